//! The index on the simulated disk: bytes, queries against a plain list, crashes at each operation.
use super::*;
use crate::io::sim::{Faults, SimIo, block_on};
use std::collections::HashMap;
use uringmq_proto::record::index_hash;

const T0: i64 = 1_700_000_000_000;

fn config(slots: u32, items: u32) -> StoreConfig {
    StoreConfig {
        root: "/s".into(),
        commit_log_dir: "/s/commitlog".into(),
        segment_bytes: 4096,
        queue_file_bytes: 200,
        batch_file_bytes: 460,
        extension_file_bytes: 40_000,
        extensions: crate::Extensions::None,
        topic_forms: Default::default(),
        light_queues: false,
        index_enabled: true,
        index_slots: slots,
        index_items: items,
        delay_levels_ms: vec![],
        record_bytes_max: 4096,
        batch_bytes_max: 4096,
        warm_ahead_bytes: 0,
        read_cache_bytes: 0,
    }
}
fn disk(seed: u64) -> SimIo {
    let io = SimIo::new(seed, Faults::none());
    io.plant_dir(Path::new("/s/index"));
    io
}
fn open(io: &SimIo, config: &StoreConfig) -> Index<SimIo> {
    block_on(Index::open(io.clone(), config)).unwrap()
}
fn query(index: &Index<SimIo>, hash: u32, begin: i64, end: i64) -> Vec<u64> {
    block_on(index.query(hash, 1000, begin, end)).unwrap().iter().map(|p| p.0).collect()
}
fn all(index: &Index<SimIo>, hash: u32) -> Vec<u64> {
    query(index, hash, 0, i64::MAX)
}
fn files(io: &SimIo) -> Vec<PathBuf> {
    io.paths().into_iter().filter(|p| p.parent() == Some(Path::new("/s/index"))).collect()
}
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn the_bytes_are_those_of_the_sheet() {
    let io = disk(1);
    let config = config(5_000_000, 100);
    let index = open(&io, &config);
    assert_eq!(index_hash("TopicTest", "key1"), 1_655_984_460);
    index.put(index_hash("TopicTest", "key1"), PhyOffset(0x0102), T0 + 5);
    index.put(984_460, PhyOffset(0x0304), T0 + 2505);
    block_on(index.sync()).unwrap();
    let name = files(&io)[0].clone();
    let bytes = io.contents(&name).unwrap();
    assert_eq!(bytes.len(), 40 + 20_000_000 + 2000);
    let t0 = (T0 + 5).to_be_bytes();
    let t1 = (T0 + 2505).to_be_bytes();
    assert_eq!(bytes[..8], t0);
    assert_eq!(bytes[8..16], t1);
    assert_eq!(bytes[16..32], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4]);
    assert_eq!(bytes[32..40], [0, 0, 0, 1, 0, 0, 0, 3], "one slot in use, next item 3");
    assert_eq!(bytes[40 + 4 * 984_460..][..4], [0, 0, 0, 2]);
    let items = &bytes[40 + 20_000_000..];
    assert!(items[..20].iter().all(|b| *b == 0), "item 0 is unused");
    assert_eq!(items[20..40], [0x62, 0xB4, 0x51, 0x4C, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(items[40..60], [0, 0x0F, 0x05, 0x8C, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 2, 0, 0, 0, 1]);
    let name = name.file_name().unwrap().to_str().unwrap();
    assert!(name.len() == 17 && name.starts_with("202311"), "{name}: local time of the clock's start");
}

#[test]
fn queries_stop_at_times_and_at_the_maximum() {
    let io = disk(1);
    let index = open(&io, &config(7, 1000));
    for n in 0..100u64 {
        index.put(5, PhyOffset(1000 + n), T0 + n as i64 * 1000);
        index.put(12, PhyOffset(1000 + n), T0 + n as i64 * 1000); // same slot
    }
    for _ in 0..2 {
        let newest_first: Vec<u64> = (0..100).rev().map(|n| 1000 + n).collect();
        assert_eq!(all(&index, 5), newest_first);
        assert_eq!(query(&index, 5, T0 + 10_000, T0 + 12_000), [1012, 1011, 1010]);
        assert_eq!(query(&index, 5, T0 + 10_000, T0 + 10_000), [1010]);
        assert_eq!(query(&index, 5, i64::MIN, T0), [1000]);
        assert_eq!(query(&index, 5, T0 + 99_000, i64::MAX), [1099]);
        let nothing: [(i64, i64); 5] = [(0, 0), (T0 + 2, T0 + 1), (-5, -1), (i64::MAX, i64::MAX), (i64::MAX, i64::MIN)];
        for (begin, end) in nothing {
            assert_eq!(query(&index, 5, begin, end), [] as [u64; 0], "{begin}..={end}");
        }
        assert!(all(&index, 6).is_empty());
        for max in [0, 1, 3] {
            assert_eq!(block_on(index.query(5, max, 0, i64::MAX)).unwrap().len(), max);
        }
        block_on(index.sync()).unwrap();
    }
}

#[test]
fn a_record_is_given_once_and_two_with_one_key_both() {
    let index = open(&disk(1), &config(50, 1000));
    for (phy, keys) in [(10, &[1u32, 2, 1][..]), (20, &[1]), (30, &[2])] {
        keys.iter().for_each(|key| index.put(*key, PhyOffset(phy), T0));
    }
    assert_eq!(all(&index, 1), [20, 10]);
    assert_eq!(all(&index, 2), [30, 10]);
    index.put(1, PhyOffset(20), T0);
    assert_eq!(all(&index, 1), [20, 10], "below the end: known");
    assert_eq!(index.last(), (T0, PhyOffset(30)));
}

#[test]
fn times_out_of_order_are_clamped() {
    let index = open(&disk(1), &config(50, 1000));
    index.put(1, PhyOffset(10), T0);
    index.put(1, PhyOffset(20), T0 - 5000);
    index.put(1, PhyOffset(30), i64::MAX);
    index.put(1, PhyOffset(40), 5);
    let items: Vec<u32> =
        (1..5).map(|n| index.state.borrow().newest.as_ref().unwrap().item(n).unwrap().after_s).collect();
    assert_eq!(items, [0, 0, i32::MAX as u32, 0]);
}

/// Keys 0..20 over records in order, compared with a plain list. Small files, so that it rolls often.
#[test]
fn random_work_agrees_with_a_list() {
    for seed in 0..20u64 {
        let io = SimIo::new(seed, Faults { yielding: true, ..Faults::none() });
        io.plant_dir(Path::new("/s/index"));
        let config = config(if seed % 2 == 0 { 3 } else { 3000 }, 40);
        let mut index = open(&io, &config);
        let mut model: HashMap<u32, Vec<u64>> = HashMap::new();
        let mut state = seed;
        let mut phy = 0;
        for step in 0..200 {
            match random(&mut state) % 10 {
                0 => block_on(index.flush()).unwrap(),
                1 => block_on(index.sync()).unwrap(),
                2 => {
                    block_on(index.sync()).unwrap();
                    index = open(&io, &config);
                }
                _ => {
                    phy += 100;
                    for _ in 0..1 + random(&mut state) % 3 {
                        let key = (random(&mut state) % 20) as u32;
                        index.put(key, PhyOffset(phy), T0 + phy as i64);
                        let list = model.entry(key).or_default();
                        if list.last() != Some(&phy) {
                            list.push(phy);
                        }
                    }
                }
            }
            let key = (random(&mut state) % 20) as u32;
            let mut expected = model.get(&key).cloned().unwrap_or_default();
            expected.reverse();
            assert_eq!(all(&index, key), expected, "seed {seed}, step {step}, key {key}");
        }
        assert!(files(&io).len() > 3, "it rolled");
    }
}

#[test]
fn puts_go_on_while_a_sync_is_under_way() {
    for seed in 0..10u64 {
        let io = SimIo::new(seed, Faults { yielding: true, ..Faults::none() });
        io.plant_dir(Path::new("/s/index"));
        let config = config(5, 100);
        let index = open(&io, &config);
        let mut phy = 0;
        let mut put = || {
            phy += 1;
            index.put(phy as u32 % 7, PhyOffset(phy), T0);
        };
        (0..50).for_each(|_| put());
        let mut sync = Box::pin(index.sync());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        while std::future::Future::poll(sync.as_mut(), &mut cx).is_pending() {
            (0..3).for_each(|_| put());
        }
        drop(sync);
        for key in 0..7 {
            let expected: Vec<u64> = (1..=phy).rev().filter(|p| *p % 7 == key).collect();
            assert_eq!(all(&index, key as u32), expected);
        }
        // What was put before the sync is durable, and whole chains of it.
        let again = open(&io.after_crash(), &config);
        let end = again.last().1.0;
        assert!(end >= 50);
        for key in 0..7 {
            let expected: Vec<u64> = (1..=end).rev().filter(|p| *p % 7 == key).collect();
            assert_eq!(all(&again, key as u32), expected, "seed {seed}, end {end}");
        }
    }
}

#[test]
fn what_is_cut_can_be_put_again() {
    let io = disk(1);
    let config = config(5, 20);
    let index = open(&io, &config);
    let put = |index: &Index<SimIo>, from: u64, to: u64| {
        for phy in from..to {
            index.put(phy as u32 % 7, PhyOffset(phy * 10), T0 + phy as i64 * 1000);
            index.put(phy as u32 % 3 + 10, PhyOffset(phy * 10), T0 + phy as i64 * 1000);
        }
    };
    put(&index, 0, 50);
    block_on(index.sync()).unwrap();
    for cut in [49, 48, 30, 20, 19, 3, 0] {
        let index = open(&io, &config);
        block_on(index.cut(PhyOffset(cut * 10))).unwrap();
        for key in 0..7 {
            let expected: Vec<u64> = (0..cut).rev().filter(|p| p % 7 == key).map(|p| p * 10).collect();
            assert_eq!(all(&index, key as u32), expected, "cut at {cut}");
        }
        let again = open(&io.after_crash(), &config);
        assert_eq!(again.last().1, index.last().1);
        put(&again, cut, 60);
        block_on(again.sync()).unwrap();
        for key in 0..3 {
            let expected: Vec<u64> = (0..60).rev().filter(|p| p % 3 == key).map(|p| p * 10).collect();
            assert_eq!(all(&again, key as u32 + 10), expected, "cut at {cut}, put again");
        }
    }
}

/// Whatever is on the disk after a crash at any point, cutting at the last synced record and putting the rest again gives all.
#[test]
fn a_crash_anywhere_loses_no_key_of_what_was_synced() {
    let config = config(5, 30);
    let put = |index: &Index<SimIo>, from: u64, to: u64| {
        for phy in from..to {
            index.put(phy as u32 % 7, PhyOffset(phy * 10), T0);
            index.put(phy as u32 % 3 + 10, PhyOffset(phy * 10), T0);
        }
    };
    let work = |io: &SimIo| -> u64 {
        let Ok(index) = block_on(Index::open(io.clone(), &config)) else { return 0 };
        let mut synced = 0;
        for round in 1..=4 {
            put(&index, synced, round * 12);
            if block_on(index.flush()).is_err() || block_on(index.sync()).is_err() {
                break;
            }
            synced = round * 12;
        }
        synced
    };
    for seed in 0..6 {
        let calm = disk(seed);
        assert_eq!(work(&calm), 48);
        for crash_at in 0..calm.operations() {
            let io = disk(seed);
            io.set_faults(Faults::crash_at(crash_at));
            let synced = work(&io);
            for after in [io.after_crash(), io.after_kill()] {
                let (index, lost) = block_on(Index::open_checked(after.clone(), &config)).unwrap();
                // The last record synced is the checkpoint's; recovery cuts there and replays from there.
                let last = PhyOffset(synced.saturating_sub(1) * 10);
                let from = lost.replay_from.map_or(last, |p| p.min(last));
                block_on(index.cut(from)).unwrap();
                put(&index, from.0 / 10, 60);
                block_on(index.sync()).unwrap();
                let index = open(&after.after_crash(), &config);
                for key in 0..7 {
                    let expected: Vec<u64> = (0..60).rev().filter(|p| p % 7 == key).map(|p| p * 10).collect();
                    assert_eq!(all(&index, key as u32), expected, "seed {seed}, crash at {crash_at}, synced {synced}");
                }
                for key in 0..3 {
                    let expected: Vec<u64> = (0..60).rev().filter(|p| p % 3 == key).map(|p| p * 10).collect();
                    assert_eq!(all(&index, key as u32 + 10), expected, "seed {seed}, crash at {crash_at}");
                }
            }
        }
    }
}

#[test]
fn damaged_files_are_removed_with_the_newer_ones() {
    let config = config(5, 20);
    let prepare = || {
        let io = disk(1);
        let index = open(&io, &config);
        (0..50).for_each(|phy| index.put(1, PhyOffset(phy * 10), T0));
        block_on(index.sync()).unwrap();
        let files = files(&io);
        assert_eq!(files.len(), 3);
        (io, files)
    };
    let check = |io: &SimIo| block_on(Index::open_checked(io.clone(), &config)).unwrap();
    let (io, _) = prepare();
    assert_eq!(check(&io).1, Lost::default());
    type Damage = fn(&[u8]) -> Vec<u8>;
    let damages: [Damage; 6] = [
        |_| vec![],
        |bytes| bytes[..7].to_vec(),
        |bytes| bytes[..bytes.len() - 1].to_vec(),
        |bytes| vec![0; bytes.len()],
        |bytes| [&[0xFF; 40], &bytes[40..]].concat(),
        |bytes| [&bytes[..60], &vec![0; bytes.len() - 60][..]].concat(),
    ];
    for damage in damages {
        for (n, end) in [(2, Some(370)), (1, Some(180)), (0, Some(0))] {
            let (io, files) = prepare();
            let whole = io.contents(&files[n]).unwrap();
            io.plant(&files[n], &damage(&whole));
            let (index, lost) = check(&io);
            assert_eq!(lost.replay_from.map(|p| p.0), end);
            assert_eq!(all(&index, 1).len() as u64, end.unwrap() / 10 + (n > 0) as u64);
        }
    }
    let (io, files) = prepare();
    let longer = [io.contents(&files[1]).unwrap(), vec![7; 100]].concat();
    io.plant(&files[1], &longer);
    io.plant(Path::new("/s/index/strange"), b"x");
    let (index, lost) = check(&io);
    assert_eq!(lost.replay_from, None);
    assert_eq!(lost.notes, ["index/strange: not a name of an index file, ignored"]);
    assert_eq!(all(&index, 1).len(), 50);
}

#[test]
fn old_files_go_with_the_log() {
    let io = disk(1);
    let config = config(5, 20);
    let index = open(&io, &config);
    (0..60).for_each(|phy| index.put(1, PhyOffset(phy * 10), T0));
    block_on(index.sync()).unwrap();
    assert_eq!(files(&io).len(), 4);
    block_on(index.trim(PhyOffset(180))).unwrap();
    assert_eq!(files(&io).len(), 4, "its last item is at 180");
    block_on(index.trim(PhyOffset(181))).unwrap();
    assert_eq!(files(&io).len(), 3);
    block_on(index.trim(PhyOffset(1_000_000))).unwrap();
    assert_eq!(files(&io).len(), 1, "the newest stays");
    assert_eq!(all(&index, 1), [590, 580, 570]);
}

#[test]
fn names_go_up_even_when_the_clock_does_not() {
    let io = disk(1);
    let config = config(5, 3);
    let index = open(&io, &config);
    for phy in 0..10 {
        index.put(1, PhyOffset(phy), T0);
        index.put(1, PhyOffset(phy), T0);
        if phy == 5 {
            io.set_now_ms(T0 - 86_400_000);
        }
    }
    block_on(index.sync()).unwrap();
    assert_eq!(files(&io).len(), 10);
    assert_eq!(all(&open(&io, &config), 1), (0..10).rev().collect::<Vec<_>>());
}

#[test]
fn a_disabled_index_has_no_files_and_no_answers() {
    let io = disk(1);
    let config = StoreConfig { index_enabled: false, ..config(5, 20) };
    let index = open(&io, &config);
    index.put(1, PhyOffset(1), T0);
    index.mark_indexed(PhyOffset(1), T0);
    block_on(index.sync()).unwrap();
    assert!(all(&index, 1).is_empty());
    assert!(files(&io).is_empty());
}

#[test]
fn a_failed_sync_is_never_claimed_later() {
    let io = disk(1);
    let index = open(&io, &config(5, 20));
    index.put(1, PhyOffset(1), T0);
    io.set_faults(Faults { write_error_at: Some(0), ..Faults::none() });
    assert!(block_on(index.sync()).is_err());
    block_on(index.sync()).unwrap();
    index.put(1, PhyOffset(2), T0 + 9000);
    io.set_faults(Faults { sync_error_at: Some(3), ..Faults::none() });
    assert!(block_on(index.sync()).is_err());
    assert!(matches!(block_on(index.sync()), Err(StoreError::Poisoned { .. })));
    assert_eq!(index.synced_ms(), T0);
    assert_eq!(all(&index, 1), [2, 1]);
}
