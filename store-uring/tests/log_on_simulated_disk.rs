//! The log on the simulated disk: a model of what was placed, written and synced against what a scan of the files finds.
#![cfg(feature = "sim")]
mod log_files;

use log_files::{Random, SEGMENT_BYTES, config, join, key, queue_offset, record, scan, seeds};
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::Poll;
use uringmq_proto::types::{PhyOffset, QueueOffset};
use uringmq_store::commit_log::Appender;
use uringmq_store::io::sim::{Faults, SimIo, block_on};
use uringmq_store::io::{File, Io, Metadata, Open, Space};
use uringmq_store::{StoreConfig, StoreError};

async fn open_empty<I: Io>(io: &I, config: &StoreConfig) -> Appender<I> {
    Appender::open(io.clone(), config, PhyOffset(0), PhyOffset(0)).await.unwrap()
}

/// Opens at the end that a scan finds, with the queues' next offsets after it, as recovery does.
async fn reopen<I: Io>(io: &I, config: &StoreConfig) -> (Appender<I>, Vec<(u64, Vec<u8>)>) {
    let found = scan(io.clone(), config, 0).await;
    let mut log = Appender::open(io.clone(), config, PhyOffset(0), PhyOffset(found.end)).await.unwrap();
    for (_, bytes) in &found.records {
        let queue = u32::from_be_bytes(*bytes[12..].first_chunk().unwrap());
        log.set_next(key(queue), QueueOffset(queue_offset(bytes) + 1));
    }
    (log, found.records)
}

fn place_one<I: Io>(log: &mut Appender<I>, queue: u32, seed: u64, bytes: usize) -> Result<(u64, Vec<u8>), StoreError> {
    let mut bytes = record(queue, seed, bytes);
    let len = bytes.len() as u32;
    let placed = log.place(key(queue), true, &mut bytes, &[len])?;
    Ok((placed.phy.0, bytes))
}

/// The records that a log must hold, in order.
#[derive(Default)]
struct Model {
    written: Vec<(u64, Vec<u8>)>,
    durable: usize,
    /// Placed in the batch that is not written.
    pending: Vec<(u64, Vec<u8>)>,
    /// Where runs end in the log.
    run_ends: Vec<u64>,
}

impl Model {
    /// `found` has at least `sure` of what was written, and besides only what was placed after it.
    fn check(&self, found: &[(u64, Vec<u8>)], sure: usize, why: &str) {
        assert!(found.len() >= sure, "{why}: {} records, {sure} are sure", found.len());
        let all: Vec<_> = self.written.iter().chain(&self.pending).collect();
        assert!(found.len() <= all.len(), "{why}: {} records, {} were placed", found.len(), all.len());
        for (index, record) in found.iter().enumerate() {
            assert!(record == all[index], "{why}: record {index} at {} is another", record.0);
        }
    }

    fn restart(&mut self, found: Vec<(u64, Vec<u8>)>) {
        self.durable = found.len();
        self.written = found;
        self.pending.clear();
        self.run_ends.clear();
    }
}

async fn place_run<I: Io>(log: &mut Appender<I>, model: &mut Model, random: &mut Random) {
    let queue = random.below(3) as u32;
    let count = 1 + random.below(4) as usize;
    let mut lens = Vec::new();
    let mut bytes = Vec::new();
    for _ in 0..count {
        let size = match random.below(10) {
            0 => 92 + random.below(23 * 1024) as usize / count, // up to one larger than a batch
            1..=3 => 92 + random.below(4096) as usize,
            _ => 92 + random.below(300) as usize,
        };
        lens.push(size as u32);
        bytes.extend_from_slice(&record(queue, random.below(1000), size));
    }
    if !log.fits(bytes.len()) {
        match random.below(2) == 0 {
            true => fly(log, model, random).await,
            false => write(log, model, random).await,
        }
    }
    if !log.fits(bytes.len()) {
        write(log, model, random).await;
    }
    place_bytes(log, model, queue, bytes, &lens);
}

fn place_bytes<I: Io>(log: &mut Appender<I>, model: &mut Model, queue: u32, mut bytes: Vec<u8>, lens: &[u32]) {
    let next = log.next(key(queue));
    let placed = log.place(key(queue), true, &mut bytes, lens).unwrap();
    assert_eq!(placed.queue_offset, next);
    let mut at = 0;
    model.run_ends.push(placed.phy.0 + bytes.len() as u64);
    for (index, len) in lens.iter().enumerate() {
        let one = bytes[at..at + *len as usize].to_vec();
        assert_eq!(queue_offset(&one), next.0 + index as u64);
        model.pending.push((placed.phy.0 + at as u64, one));
        at += *len as usize;
    }
    assert!(
        placed.phy.0 % SEGMENT_BYTES + bytes.len() as u64 + 8 <= SEGMENT_BYTES,
        "a run is in one segment, and not in its last 8 bytes"
    );
}

/// What is placed in two flights beside each other, if it may be; what one of them does not take stays placed.
async fn fly<I: Io>(log: &mut Appender<I>, model: &mut Model, random: &mut Random) {
    if !log.may_start() {
        return;
    }
    let whole_to = log.whole_blocks_to().0;
    let first_to = model.run_ends.iter().copied().filter(|end| log.written().0 < *end && *end <= whole_to).max();
    let first = log.start(first_to.map(PhyOffset), random.below(2) == 0);
    assert_eq!(log.may_start(), log.pending(), "only its carried end");
    for seed in 0..random.below(4) {
        let bytes = record(1, seed, 92 + random.below(6000) as usize);
        let len = bytes.len() as u32;
        if log.fits(bytes.len()) {
            place_bytes(log, model, 1, bytes, &[len]);
        }
    }
    let mut landed = match log.may_start() && log.in_flight() == 1 {
        true => {
            assert!(first_to.is_some(), "the unfinished block is in one write at a time");
            let second = log.start(None, random.below(2) == 0);
            match random.below(2) == 0 {
                true => <[_; 2]>::from(join(first.run(), second.run()).await).into(),
                false => {
                    let (second, first) = join(second.run(), first.run()).await;
                    vec![first, second]
                }
            }
        }
        false => vec![first.run().await],
    };
    for landed in landed.drain(..) {
        let from = log.written();
        let written = log.land(landed).unwrap();
        assert!(written.from == from && written.to == log.written() && written.to > from);
        let whole = model.pending.iter().take_while(|(at, bytes)| at + bytes.len() as u64 <= written.to.0).count();
        model.written.extend(model.pending.drain(..whole));
        if written.durable {
            model.durable = model.written.len();
        }
    }
    assert_eq!(log.in_flight(), 0);
}

/// A write with the keeper's work beside it.
async fn write<I: Io>(log: &mut Appender<I>, model: &mut Model, random: &mut Random) {
    let durable = random.below(3) == 0;
    let keeper_first = random.below(2) == 0;
    let keeper = log.keeper();
    let beside = async {
        for _ in 0..random.below(6) {
            keeper.step().await.unwrap();
        }
        if random.below(3) == 0 {
            keeper.sync().await.unwrap();
        }
    };
    let written = match keeper_first {
        true => join(beside, log.write(durable)).await.1,
        false => join(log.write(durable), beside).await.0,
    };
    let written = written.unwrap();
    model.written.append(&mut model.pending);
    assert!(!durable || written.durable);
    assert!(log.durable() <= log.written() && log.written() == written.to);
    let durable = log.durable().0;
    model.durable = model.written.iter().take_while(|(at, bytes)| at + bytes.len() as u64 <= durable).count();
}

#[test]
fn random_appends_survive_every_kind_of_reopen() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let faults = Faults { yielding: true, short_write_every: Some(5), ..Faults::none() };
        let mut config = config("/store");
        config.warm_ahead_bytes = [0, 40 * 1024, 200 * 1024][random.below(3) as usize];
        block_on(async {
            let mut disk = SimIo::new(seed, faults.clone());
            let mut log = open_empty(&disk, &config).await;
            let mut model = Model::default();
            for _ in 0..150 {
                match random.below(40) {
                    0 => {
                        disk = disk.after_kill();
                        disk.set_faults(faults.clone());
                        let (reopened, found) = reopen(&disk, &config).await;
                        model.check(&found, model.written.len(), &format!("seed {seed}, kill"));
                        log = reopened;
                        model.restart(found);
                    }
                    1 => {
                        disk = disk.after_crash();
                        disk.set_faults(faults.clone());
                        let (reopened, found) = reopen(&disk, &config).await;
                        model.check(&found, model.durable, &format!("seed {seed}, power cut"));
                        log = reopened;
                        model.restart(found);
                    }
                    2..=7 => write(&mut log, &mut model, &mut random).await,
                    8..=12 => fly(&mut log, &mut model, &mut random).await,
                    _ => place_run(&mut log, &mut model, &mut random).await,
                }
            }
            write(&mut log, &mut model, &mut random).await;
            let found = scan(disk.clone(), &config, 0).await;
            model.check(&found.records, model.written.len(), &format!("seed {seed}, end"));
            assert_eq!(found.end, log.written().0);
            assert!(found.zeros_behind, "seed {seed}: what stands behind the end must never be taken for a record");
        });
    }
}

#[test]
fn a_crash_at_any_operation_keeps_what_was_durable() {
    let config = config("/store");
    // Ends at the crash; gives what was acknowledged and what was placed at all.
    async fn workload(disk: &SimIo, config: &StoreConfig) -> (usize, Vec<(u64, Vec<u8>)>) {
        let (mut sure, mut all) = (0, Vec::new());
        let Ok(mut log) = Appender::open(disk.clone(), config, PhyOffset(0), PhyOffset(0)).await else {
            return (sure, all);
        };
        for seed in 0..28 {
            let Ok(placed) = place_one(&mut log, 0, seed, 1000 + 211 * seed as usize) else { break };
            all.push(placed);
            if seed % 3 != 2 {
                continue;
            }
            let keeper = log.keeper();
            let (written, _) = join(log.write(true), keeper.step()).await;
            if written.is_err() {
                break;
            }
            sure = all.len();
        }
        (sure, all)
    }
    let calm = SimIo::new(7, Faults::none());
    let (sure, all) = block_on(workload(&calm, &config));
    assert!(sure == 27 && all.last().unwrap().0 > SEGMENT_BYTES, "the workload rolls");
    for crash_at in 0..calm.operations() {
        let disk = SimIo::new(7, Faults::crash_at(crash_at));
        let (sure, all) = block_on(workload(&disk, &config));
        let disk = disk.after_crash();
        let model = Model { written: all, durable: sure, ..Model::default() };
        let (mut log, found) = block_on(reopen(&disk, &config));
        model.check(&found, sure, &format!("crash at {crash_at}"));
        // The log goes on, and what it had stays.
        block_on(async {
            let more = place_one(&mut log, 0, 99, 500).unwrap();
            log.write(true).await.unwrap();
            let again = scan(disk.clone(), &config, 0).await.records;
            assert_eq!(again.len(), found.len() + 1, "crash at {crash_at}");
            assert_eq!(again.last(), Some(&more));
        });
    }
}

#[test]
fn what_a_kill_left_is_durable_once_the_log_is_open_again() {
    for seed in seeds() {
        block_on(async {
            let config = config("/store");
            let disk = SimIo::new(seed, Faults::none());
            let mut log = open_empty(&disk, &config).await;
            for record in 0..30 {
                place_one(&mut log, 0, record, 8_000 + 37 * seed as usize).unwrap();
                log.write(false).await.unwrap(); // over four segments, without a sync asked for
            }
            assert!(log.written().0 > 3 * SEGMENT_BYTES);
            let disk = disk.after_kill();
            let (_, found) = reopen(&disk, &config).await;
            assert_eq!(found.len(), 30);
            assert!(scan(disk.after_crash(), &config, 0).await.records == found, "seed {seed}");
        });
    }
}

#[test]
fn a_record_leaves_8_bytes_or_goes_to_the_next_segment() {
    let mut config = config("/store");
    config.record_bytes_max = SEGMENT_BYTES as usize;
    config.batch_bytes_max = SEGMENT_BYTES as usize;
    let first = 1000;
    let rest = SEGMENT_BYTES as usize - first;
    for (bytes, at) in [
        (rest - 8, first as u64),
        (rest - 7, SEGMENT_BYTES),
        (rest, SEGMENT_BYTES),
        (rest - 9, first as u64),
        (SEGMENT_BYTES as usize - 8, SEGMENT_BYTES),
    ] {
        block_on(async {
            let disk = SimIo::new(1, Faults::none());
            let mut log = open_empty(&disk, &config).await;
            place_one(&mut log, 0, 1, first).unwrap();
            let (phy, _) = place_one(&mut log, 0, 2, bytes).unwrap();
            assert_eq!(phy, at, "a record of {bytes} with {rest} left");
            log.write(false).await.unwrap();
            let (phy, _) = place_one(&mut log, 0, 3, 100).unwrap();
            let wanted = if at == SEGMENT_BYTES && bytes < SEGMENT_BYTES as usize - 108 {
                at + bytes as u64
            } else {
                (at / SEGMENT_BYTES + 1) * SEGMENT_BYTES
            };
            assert_eq!(phy, wanted);
            log.write(true).await.unwrap();
            let found = scan(disk.clone(), &config, 0).await;
            assert_eq!(found.records.len(), 3);
            assert_eq!(found.end, log.written().0);
            let too_large = place_one(&mut log, 0, 4, SEGMENT_BYTES as usize - 7).unwrap_err();
            assert!(matches!(too_large, StoreError::TooLarge { .. }), "{too_large}");
        });
    }
}

#[test]
fn unnumbered_records_take_no_queue_offset() {
    block_on(async {
        let disk = SimIo::new(1, Faults::none());
        let mut log = open_empty(&disk, &config("/store")).await;
        log.set_next(key(0), QueueOffset(7));
        let mut bytes = record(0, 1, 200);
        assert_eq!(log.place(key(0), false, &mut bytes, &[200]).unwrap().queue_offset, QueueOffset(0));
        assert_eq!(queue_offset(&bytes), 0);
        assert_eq!(log.next(key(0)), QueueOffset(7));
    });
}

#[test]
fn store_times_never_step_back() {
    block_on(async {
        let disk = SimIo::new(1, Faults::none());
        let mut log = open_empty(&disk, &config("/store")).await;
        disk.set_now_ms(5_000);
        let mut bytes = record(0, 1, 200);
        assert_eq!(log.place(key(0), true, &mut bytes, &[200]).unwrap().store_timestamp_ms, 5_000);
        disk.set_now_ms(4_000);
        assert_eq!(log.place(key(0), true, &mut bytes, &[200]).unwrap().store_timestamp_ms, 5_000);
        log.set_store_timestamp_min(6_000);
        assert_eq!(log.place(key(0), true, &mut bytes, &[200]).unwrap().store_timestamp_ms, 6_000);
    });
}

#[test]
fn garbage_behind_the_end_never_becomes_records() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults::none());
        let mut log = open_empty(&disk, &config).await;
        let mut placed = Vec::new();
        // Of whole blocks, so that padding covers no stale head.
        for seed in 0..30 {
            placed.push(place_one(&mut log, 0, seed, 4096).unwrap());
            if seed % 4 == 3 {
                log.write(true).await.unwrap();
            }
        }
        log.write(true).await.unwrap();
        // Recovery cut the log at record 5: good records lie behind the end, in this segment and the next.
        let end = placed[5].0;
        let mut log = Appender::open(disk.clone(), &config, PhyOffset(0), PhyOffset(end)).await.unwrap();
        assert_eq!(scan(disk.clone(), &config, 0).await.end, end);
        assert_eq!(disk.contents(&config.commit_log_dir.join(format!("{SEGMENT_BYTES:020}"))), None);
        log.set_next(key(0), QueueOffset(5));
        for seed in 0..25 {
            // Each end meets where an old record began, so that a stale one would be read as the next.
            place_one(&mut log, 0, seed, 4096).unwrap();
            log.write(false).await.unwrap();
            let found = scan(disk.clone(), &config, 0).await;
            assert_eq!((found.records.len(), found.end), (6 + seed as usize, log.written().0));
        }
    });
}

#[test]
fn a_full_disk_refuses_the_batch_and_heals() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults { capacity_bytes: Some(SEGMENT_BYTES + 20_000), ..Faults::none() });
        let mut log = open_empty(&disk, &config).await;
        let mut kept = Vec::new();
        for seed in 0..3 {
            kept.push(place_one(&mut log, 0, seed, 16_000).unwrap());
            log.write(true).await.unwrap();
        }
        // This batch needs a second segment: half of it fits the first.
        place_one(&mut log, 0, 10, 10_000).unwrap();
        place_one(&mut log, 1, 11, 16_000).unwrap();
        let refused = log.write(true).await.unwrap_err();
        assert!(matches!(refused, StoreError::NoSpace(PhyOffset(SEGMENT_BYTES))), "{refused}");
        assert_eq!((log.next(key(0)), log.next(key(1))), (QueueOffset(3), QueueOffset(0)));
        assert!(!log.pending() && log.keeper().poisoned().is_none());
        assert!(matches!(log.keeper().step().await, Err(StoreError::NoSpace(_))));
        assert_eq!(scan(disk.clone(), &config, 0).await.records, kept);
        // What fits is still taken.
        kept.push(place_one(&mut log, 0, 12, 1_000).unwrap());
        log.write(true).await.unwrap();
        // Space returns.
        disk.set_faults(Faults::none());
        kept.push(place_one(&mut log, 0, 13, 16_000).unwrap());
        log.write(true).await.unwrap();
        assert_eq!(scan(disk.clone(), &config, 0).await.records, kept);
        assert_eq!(log.next(key(0)), QueueOffset(5));
    });
}

#[test]
fn an_empty_store_opens_on_a_full_disk() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults { capacity_bytes: Some(1000), ..Faults::none() });
        let mut log = open_empty(&disk, &config).await;
        assert!(matches!(place_one(&mut log, 0, 1, 200), Err(StoreError::NoSpace(_))));
        assert!(log.keeper().step().await.is_err());
        disk.set_faults(Faults::none());
        log.keeper().step().await.unwrap();
        let placed = place_one(&mut log, 0, 1, 200).unwrap();
        log.write(true).await.unwrap();
        assert_eq!(scan(disk.clone(), &config, 0).await.records, vec![placed]);
    });
}

#[test]
fn a_failed_write_or_sync_stops_writes() {
    for (faults, op) in [
        (Faults { write_error_at: Some(20), ..Faults::none() }, "write"),
        (Faults { sync_error_at: Some(20), ..Faults::none() }, "sync"),
    ] {
        block_on(async {
            let config = config("/store");
            let disk = SimIo::new(1, faults);
            let mut log = open_empty(&disk, &config).await;
            let mut kept = Vec::new();
            let failed = loop {
                let placed = place_one(&mut log, 0, kept.len() as u64, 300).unwrap();
                match log.write(true).await {
                    Ok(_) => kept.push(placed),
                    Err(e) => break e,
                }
                assert!(kept.len() < 100, "no fault was met");
            };
            assert!(matches!(failed, StoreError::Io { op: failed, .. } if failed == op), "{failed}");
            assert_eq!(log.written().0, 300 * kept.len() as u64);
            assert_eq!(log.next(key(0)), QueueOffset(kept.len() as u64));
            assert!(matches!(place_one(&mut log, 0, 3, 300), Err(StoreError::Poisoned { op: why, .. }) if why == op));
            assert!(matches!(log.write(true).await, Err(StoreError::Poisoned { .. })));
            assert!(matches!(log.keeper().sync().await, Err(StoreError::Poisoned { .. })));
            assert_eq!(log.keeper().poisoned().map(|(why, _)| why), Some(op));
            // What was durable is served, and a restart goes on.
            let disk = disk.after_kill();
            let (mut log, found) = reopen(&disk, &config).await;
            assert_eq!(found[..kept.len()], kept);
            place_one(&mut log, 0, 4, 300).unwrap();
            log.write(true).await.unwrap();
        });
    }
}

#[test]
fn a_flight_that_fails_stops_writes_and_takes_back_what_is_in_the_air() {
    for failing in [0, 1] {
        block_on(async {
            let config = config("/store");
            let disk = SimIo::new(1, Faults::none());
            let mut log = open_empty(&disk, &config).await;
            let kept = place_one(&mut log, 0, 0, 300).unwrap();
            log.write(false).await.unwrap();
            // Two records in the first, of which the second ends behind its last whole block; one more in the second.
            let first = [place_one(&mut log, 0, 1, 3_700).unwrap(), place_one(&mut log, 1, 2, 300).unwrap()];
            let whole_to = PhyOffset(first[1].0);
            assert_eq!(log.whole_blocks_to(), PhyOffset(4096));
            let one = log.start(Some(whole_to), false);
            place_one(&mut log, 0, 3, 5_000).unwrap();
            let two = log.start(None, false);
            assert!(!log.may_start() && !log.pending() && log.in_flight() == 2);
            disk.set_faults(Faults { write_error_at: Some(disk.counts().writes + failing), ..Faults::none() });
            let (one, two) = join(one.run(), two.run()).await;
            // The first one may well be on the disk: what a failed disk acknowledges nobody knows, so it counts for nothing either.
            let failed = log.land(one).unwrap_err();
            drop(two);
            log.give_up(&failed).await;
            let (first_failed, poisoned) = (
                matches!(failed, StoreError::Io { op: "write", .. }),
                matches!(failed, StoreError::Poisoned { op: "write", .. }),
            );
            assert_eq!((first_failed, poisoned), (failing == 0, failing == 1), "{failed}");
            assert_eq!((log.in_flight(), log.written().0), (0, 300));
            assert_eq!((log.next(key(0)), log.next(key(1))), (QueueOffset(1), QueueOffset(0)));
            assert!(matches!(place_one(&mut log, 0, 4, 300), Err(StoreError::Poisoned { op: "write", .. })));
            let (mut log, found) = reopen(&disk.after_kill(), &config).await;
            assert_eq!(found[0], kept);
            place_one(&mut log, 0, 4, 300).unwrap();
            log.write(true).await.unwrap();
        });
    }
}

#[test]
fn a_synced_flight_is_durable_where_all_before_it_is() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults::none());
        let mut log = open_empty(&disk, &config).await;
        place_one(&mut log, 0, 9, 300).unwrap();
        log.write(true).await.unwrap(); // the first one makes the segment
        let mut fly = async |seed, synced| {
            let record = place_one(&mut log, 0, seed, 3_000).unwrap();
            let landed = log.start(None, synced).run().await;
            (record, log.land(landed).unwrap(), log.keeper())
        };
        let syncs = disk.counts().syncs;
        let (first, written, keeper) = fly(0, true).await;
        assert!(written.durable && keeper.durable() == written.to);
        assert_eq!(disk.counts().syncs, syncs + 1, "its own");
        let (_, written, _) = fly(1, false).await;
        assert!(!written.durable);
        // It vouches for its own bytes alone.
        let (_, written, keeper) = fly(2, true).await;
        assert!(!written.durable && keeper.durable().0 == first.0 + 3_000);
        assert_eq!(keeper.sync().await.unwrap(), written.to);
        let (last, written, _) = fly(3, true).await;
        assert!(written.durable);
        for choice in 0..20 {
            let found = reopen(&disk.after_crash_of(choice), &config).await.1;
            assert_eq!((found.len(), found.last()), (5, Some(&last)), "cut {choice}");
        }
    });
}

#[test]
fn a_synced_flight_whose_sync_fails_stops_writes() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults::none());
        let mut log = open_empty(&disk, &config).await;
        place_one(&mut log, 0, 9, 300).unwrap();
        log.write(true).await.unwrap();
        place_one(&mut log, 0, 0, 300).unwrap();
        let flight = log.start(None, true);
        disk.set_faults(Faults { sync_error_at: Some(disk.counts().syncs), ..Faults::none() });
        let landed = flight.run().await;
        let failed = log.land(landed).unwrap_err();
        log.give_up(&failed).await;
        assert_eq!((log.written().0, log.durable().0), (300, 300));
        assert!(matches!(place_one(&mut log, 0, 1, 300), Err(StoreError::Poisoned { .. })));
    });
}

#[test]
fn removing_the_oldest_moves_the_minimum() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults::none());
        let mut log = open_empty(&disk, &config).await;
        for seed in 0..25 {
            place_one(&mut log, 0, seed, 8_000).unwrap();
            log.write(false).await.unwrap();
            log.keeper().step().await.unwrap();
        }
        let keeper = log.keeper();
        let closed: Vec<u64> = keeper.closed_segments().await.unwrap().iter().map(|(start, _)| start.0).collect();
        assert_eq!(closed, [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]);
        for min in [1, 2, 3, 3] {
            assert_eq!(keeper.remove_oldest(log.written()).await.unwrap(), PhyOffset(min * SEGMENT_BYTES));
            let paths = disk.paths();
            assert!(!paths.contains(&config.commit_log_dir.join(format!("{:020}", (min - 1) * SEGMENT_BYTES))));
            assert!(paths.contains(&config.commit_log_dir.join(format!("{:020}", 3 * SEGMENT_BYTES))));
        }
        assert!(keeper.closed_segments().await.unwrap().is_empty());
        assert!(!scan(disk.clone(), &config, 3 * SEGMENT_BYTES).await.records.is_empty());
    });
}

#[test]
fn segments_have_their_full_length_whenever_they_are_in_the_log() {
    let config = config("/store");
    let run = |crash_at: Option<u64>| {
        let disk = SimIo::new(3, Faults { crash_at, ..Faults::none() });
        let _: Result<(), StoreError> = block_on(async {
            let mut log = Appender::open(disk.clone(), &config, PhyOffset(0), PhyOffset(0)).await?;
            for seed in 0..12 {
                place_one(&mut log, 0, seed, 16_000)?;
                log.write(true).await?;
                log.keeper().step().await?;
            }
            log.keeper().remove_oldest(log.written()).await?;
            Ok(())
        });
        disk
    };
    for crash_at in 0..run(None).operations() {
        let disk = run(Some(crash_at)).after_crash();
        for path in disk.paths().iter().filter(|path| path.starts_with(&config.commit_log_dir)) {
            if let Some(bytes) = disk.contents(path) {
                assert_eq!(bytes.len() as u64, SEGMENT_BYTES, "{}, crash at {crash_at}", path.display());
            }
        }
    }
}

/// A disk that answers the next writes (after `left` good ones) with an error.
#[derive(Clone)]
struct Refusing {
    disk: SimIo,
    fault: Rc<Cell<Option<(u32, i32)>>>,
    /// For how many turns a write of zeros alone (warming) is in flight.
    zeros_take: Rc<Cell<u32>>,
    /// A directory that is a filesystem of its own.
    mount: Option<PathBuf>,
}

impl Refusing {
    fn new(disk: SimIo) -> Self {
        Refusing { disk, fault: Rc::default(), zeros_take: Rc::default(), mount: None }
    }
}

struct RefusingFile {
    file: <SimIo as Io>::File,
    io: Refusing,
}

impl Io for Refusing {
    type File = RefusingFile;
    async fn open(&self, path: &Path, how: Open) -> io::Result<RefusingFile> {
        Ok(RefusingFile { file: self.disk.open(path, how).await?, io: self.clone() })
    }
    async fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.disk.list(dir).await
    }
    async fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.disk.metadata(path).await
    }
    async fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path).await
    }
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if let Some(mount) = &self.mount
            && from.starts_with(mount) != to.starts_with(mount)
        {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        self.disk.rename(from, to).await
    }
    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path).await
    }
    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path).await
    }
    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir).await
    }
    async fn sync_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_all(dir).await
    }
    async fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path).await
    }
    fn now_ms(&self) -> i64 {
        self.disk.now_ms()
    }
}

/// Pending once.
async fn turn() {
    let mut first = true;
    poll_fn(|_| if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

impl File for RefusingFile {
    type Buf = <<SimIo as Io>::File as File>::Buf;
    fn buffer(&self, bytes: usize) -> Self::Buf {
        self.file.buffer(bytes)
    }
    async fn write_at(&self, at: u64, buf: Self::Buf) -> (io::Result<usize>, Self::Buf) {
        let bytes: &[u8] = buf.as_ref();
        if bytes.iter().all(|byte| *byte == 0) {
            for _ in 0..self.io.zeros_take.get() {
                turn().await;
            }
        }
        match self.io.fault.get() {
            Some((0, number)) => return (Err(io::Error::from_raw_os_error(number)), buf),
            Some((left, number)) => self.io.fault.set(Some((left - 1, number))),
            None => {}
        }
        self.file.write_at(at, buf).await
    }
    async fn read_at(&self, at: u64, bytes: usize) -> io::Result<Self::Buf> {
        self.file.read_at(at, bytes).await
    }
    async fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes).await
    }
    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes).await
    }
    async fn len(&self) -> io::Result<u64> {
        self.file.len().await
    }
    async fn datasync(&self) -> io::Result<()> {
        self.file.datasync().await
    }
    async fn sync(&self) -> io::Result<()> {
        self.file.sync().await
    }
}

#[test]
fn what_a_half_written_refused_batch_left_is_cleaned_before_the_next() {
    const ENOSPC: i32 = 28;
    block_on(async {
        let config = config("/store");
        let io = Refusing::new(SimIo::new(1, Faults::none()));
        let mut log = open_empty(&io, &config).await;
        let mut kept = Vec::new();
        // All of whole blocks, so that padding covers no stale head.
        for seed in 0..3 {
            kept.push(place_one(&mut log, 0, seed, 12_288).unwrap());
            log.write(true).await.unwrap();
        }
        // Two parts: the first is written (records, blank and all), the second meets a full disk.
        for seed in 3..8 {
            place_one(&mut log, 0, seed, 4_096).unwrap();
        }
        place_one(&mut log, 0, 8, 8_192).unwrap();
        io.fault.set(Some((1, ENOSPC)));
        assert!(matches!(log.write(true).await, Err(StoreError::NoSpace(PhyOffset(SEGMENT_BYTES)))));
        assert_eq!(log.next(key(0)), QueueOffset(3));
        // Still full: cleaning is refused as well.
        io.fault.set(Some((0, ENOSPC)));
        place_one(&mut log, 0, 9, 4_096).unwrap();
        assert!(matches!(log.write(true).await, Err(StoreError::NoSpace(_))));
        io.fault.set(None);
        for seed in 10..20 {
            // As long as the first refused record: the second one would follow directly.
            kept.push(place_one(&mut log, 0, seed, 4_096).unwrap());
            log.write(true).await.unwrap();
            assert_eq!(scan(io.clone(), &config, 0).await.records, kept);
        }
    });
}

#[test]
fn a_write_waits_for_the_warming_it_meets() {
    for turns in 0..40 {
        block_on(async {
            let config = StoreConfig { segment_bytes: 1 << 20, warm_ahead_bytes: 1 << 20, ..config("/store") };
            let io = Refusing::new(SimIo::new(1, Faults::none()));
            let mut log = open_empty(&io, &config).await;
            let keeper = log.keeper();
            // A first step may make the segment; then each is a piece of zeros right behind the end.
            io.zeros_take.set(turns);
            let mut kept = Vec::new();
            for seed in 0..10 {
                kept.push(place_one(&mut log, 0, seed, 5_000).unwrap());
                let (_, written) = join(keeper.step(), log.write(false)).await;
                written.unwrap();
                assert_eq!(scan(io.clone(), &config, 0).await.records, kept);
            }
        });
    }
}

#[test]
fn a_log_directory_on_its_own_filesystem_holds_its_next_segments() {
    block_on(async {
        let config = config("/store");
        let io =
            Refusing { mount: Some(config.commit_log_dir.clone()), ..Refusing::new(SimIo::new(1, Faults::none())) };
        let mut log = open_empty(&io, &config).await;
        let mut kept = Vec::new();
        for seed in 0..15 {
            kept.push(place_one(&mut log, 0, seed, 16_000).unwrap());
            log.write(true).await.unwrap();
        }
        assert_eq!(log.keeper().remove_oldest(log.written()).await.unwrap(), PhyOffset(SEGMENT_BYTES));
        assert!(io.disk.paths().iter().all(|path| !path.starts_with("/store/commitlog-next")));
        // The next start finds the same place.
        let end = log.written();
        drop(log);
        let mut log = Appender::open(io.clone(), &config, PhyOffset(SEGMENT_BYTES), end).await.unwrap();
        kept.push(place_one(&mut log, 0, 15, 16_000).unwrap());
        log.write(true).await.unwrap();
        kept.retain(|(at, _)| *at >= SEGMENT_BYTES);
        assert_eq!(scan(io.clone(), &config, SEGMENT_BYTES).await.records, kept);
    });
}

#[test]
fn a_start_on_a_full_disk_heals_with_its_tail() {
    const ENOSPC: i32 = 28;
    block_on(async {
        let config = config("/store");
        let io = Refusing::new(SimIo::new(1, Faults::none()));
        let mut log = open_empty(&io, &config).await;
        let mut kept = vec![place_one(&mut log, 0, 1, 5_000).unwrap()];
        place_one(&mut log, 0, 2, 16_000).unwrap();
        log.write(true).await.unwrap();
        // Recovery cut the second record off; zeroing it meets a sparse file on a full disk.
        io.fault.set(Some((0, ENOSPC)));
        let mut log = Appender::open(io.clone(), &config, PhyOffset(0), PhyOffset(5_000)).await.unwrap();
        log.set_next(key(0), QueueOffset(1));
        assert!(matches!(place_one(&mut log, 0, 3, 300), Err(StoreError::NoSpace(_))));
        assert!(matches!(log.keeper().step().await, Err(StoreError::NoSpace(_))));
        io.fault.set(None);
        log.keeper().step().await.unwrap();
        kept.push(place_one(&mut log, 0, 4, 300).unwrap());
        log.write(true).await.unwrap();
        assert_eq!(scan(io.clone(), &config, 0).await.records, kept);
    });
}

#[test]
fn an_unfinished_segment_of_another_length_is_refused() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults::none());
        disk.create_dir(&config.commit_log_dir).await.unwrap();
        disk.plant(&config.commit_log_dir.join(format!("{:020}", 0)), &[0; 8192]);
        let refused = Appender::open(disk.clone(), &config, PhyOffset(0), PhyOffset(0)).await.err().unwrap();
        assert!(refused.to_string().contains("has 8192 bytes instead of 65536"), "{refused}");
        // And a log cannot end in a segment that is not there.
        let end = PhyOffset(SEGMENT_BYTES + 5000);
        let refused = Appender::open(disk.clone(), &config, PhyOffset(SEGMENT_BYTES), end).await.err().unwrap();
        assert!(matches!(refused, StoreError::Refused { .. }), "{refused}");
    });
}
