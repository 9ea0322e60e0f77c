//! Files that someone or something damaged while the store was stopped, cleanly or not: it starts, tells, and serves all records.
#![cfg(feature = "sim")]
mod common;
use common::*;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uringmq_store::StoreError;
use uringmq_store::checkpoint;
use uringmq_store::deleted_topics;
use uringmq_store::io::Io;
use uringmq_store::io::sim::{Faults, SimIo, block_on};

const FILE_BYTES: usize = 200;

/// 35 records in A/0 (four queue files), 12 in B/1; the last record of the log is one of A/0.
fn prepared(clean: bool) -> (SimIo, Model) {
    let io = SimIo::new(1, Faults::none());
    let mut model = Model::new();
    block_on(async {
        let mut store = Store::open(io.clone(), config()).await.unwrap();
        for n in 0..35 {
            for (topic, queue) in [("B", 1), ("A", 0)] {
                if topic == "A" || n < 12 {
                    let bodies = [body(topic, queue, n)];
                    store.put(topic, queue, &bodies, true).await.unwrap();
                    model.entry((topic.to_owned(), queue)).or_default().extend(bodies);
                }
            }
        }
        store.sync().await.unwrap();
        if clean {
            store.stop().await.unwrap();
        }
    });
    (io, model)
}

fn queue_file(n: usize) -> PathBuf {
    queue_dir("A", 0).join(format!("{:020}", n * FILE_BYTES))
}

fn idle_file(n: usize) -> PathBuf {
    queue_dir("B", 1).join(format!("{:020}", n * FILE_BYTES))
}

/// Opens, compares, goes on, and opens again.
fn check(io: &SimIo, model: &Model, what: &str) -> Vec<String> {
    block_on(async {
        let mut store = Store::open(io.clone(), config()).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(store.read_all().await, *model, "{what}");
        let notes = store.opened.report.notes.clone();
        let mut more = model.clone();
        let first = model[&("A".to_owned(), 0)].len();
        let bodies: Vec<_> = (first..first + 12).map(|n| body("A", 0, n)).collect();
        store.put("A", 0, &bodies, true).await.unwrap();
        more.get_mut(&("A".to_owned(), 0)).unwrap().extend(bodies);
        assert_eq!(store.read_all().await, more, "{what}, then more");
        store.stop().await.unwrap();
        let store = Store::open(io.clone(), config()).await.unwrap();
        assert_eq!(store.read_all().await, more, "{what}, opened again");
        assert_eq!(store.opened.report.queue_entries_rebuilt, 0, "{what}: nothing is left to repair");
        notes
    })
}

#[test]
fn queue_files_of_every_wrong_kind_are_built_again() {
    type Damage = fn(&SimIo);
    let damages: [(&str, Damage); 14] = [
        ("a zero-filled next file", |io| io.plant(&queue_file(4), &[0; FILE_BYTES])),
        ("two zero-filled next files", |io| {
            io.plant(&queue_file(4), &[0; FILE_BYTES]);
            io.plant(&queue_file(5), &[0; FILE_BYTES]);
        }),
        ("the last file empty", |io| io.plant(&queue_file(3), &[])),
        ("the last file of 7 bytes", |io| io.plant(&queue_file(3), &[0; 7])),
        ("the last file cut at an entry", |io| {
            let whole = io.contents(&queue_file(3)).unwrap();
            io.plant(&queue_file(3), &whole[..60]);
        }),
        ("the last file too long", |io| {
            let whole = io.contents(&queue_file(3)).unwrap();
            io.plant(&queue_file(3), &[&whole[..], &[0; 20]].concat());
        }),
        ("the last file zero-filled", |io| io.plant(&queue_file(3), &[0; FILE_BYTES])),
        ("the last file's end zero-filled", |io| {
            let whole = io.contents(&queue_file(3)).unwrap();
            io.plant(&queue_file(3), &[&whole[..40], &[0; 160]].concat());
        }),
        ("the last file missing", |io| block_on(io.remove(&queue_file(3))).unwrap()),
        ("a middle file missing", |io| block_on(io.remove(&queue_file(1))).unwrap()),
        ("a middle file short", |io| io.plant(&queue_file(1), &[1; 100])),
        ("the first file missing", |io| block_on(io.remove(&queue_file(0))).unwrap()),
        ("the first two files missing", |io| {
            block_on(io.remove(&queue_file(0))).unwrap();
            block_on(io.remove(&queue_file(1))).unwrap();
        }),
        ("all files missing", |io| (0..4).for_each(|n| block_on(io.remove(&queue_file(n))).unwrap())),
    ];
    for clean in [true, false] {
        for (what, damage) in damages {
            let (io, model) = prepared(clean);
            damage(&io);
            check(&io, &model, &format!("{what}, clean {clean}"));
        }
    }
}

/// The other queue's records are far from the log's end; only the marks of the clean stop tell that it lost some.
#[test]
fn an_idle_queue_that_lost_entries_is_built_again_after_a_clean_stop() {
    type Damage = fn(&SimIo);
    let damages: [(&str, Damage); 5] = [
        ("its last file missing", |io| block_on(io.remove(&idle_file(1))).unwrap()),
        ("its last file zero-filled", |io| io.plant(&idle_file(1), &[0; FILE_BYTES])),
        ("its first file's end zero-filled, the last missing", |io| {
            let whole = io.contents(&idle_file(0)).unwrap();
            io.plant(&idle_file(0), &[&whole[..100], &[0; 100]].concat());
            block_on(io.remove(&idle_file(1))).unwrap();
        }),
        ("all its files missing", |io| (0..2).for_each(|n| block_on(io.remove(&idle_file(n))).unwrap())),
        ("its directory missing", |io| {
            (0..2).for_each(|n| block_on(io.remove(&idle_file(n))).unwrap());
            block_on(io.remove_dir(&queue_dir("B", 1))).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let (io, model) = prepared(true);
        damage(&io);
        let notes = check(&io, &model, what);
        assert!(notes.iter().any(|n| n.contains("B/1")), "{what}: {notes:?}");
    }
    let (io, model) = prepared(true);
    io.plant(&PathBuf::from("/s/config/queueEnds.json"), b"{");
    check(&io, &model, "unreadable marks");
}

#[test]
fn queues_of_another_file_size_are_built_again() {
    for clean in [true, false] {
        for merged in [2, 4] {
            let (io, model) = prepared(clean);
            let all: Vec<u8> = (0..4).flat_map(|n| io.contents(&queue_file(n)).unwrap()).collect();
            (0..4).for_each(|n| block_on(io.remove(&queue_file(n))).unwrap());
            for (i, file) in all.chunks(merged * FILE_BYTES).enumerate() {
                io.plant(&queue_file(i * merged), file);
            }
            let notes = check(&io, &model, &format!("{merged} in one, clean {clean}"));
            assert!(notes.iter().any(|n| n.contains("another length")), "{notes:?}");
        }
    }
}

#[test]
fn missing_derived_directories_and_checkpoints_are_no_matter() {
    let removals: [&[&str]; 6] = [
        &["/s/consumequeue"],
        &["/s/index"],
        &["/s/checkpoint"],
        &["/s/consumequeue", "/s/index"],
        &["/s/consumequeue", "/s/index", "/s/checkpoint"],
        &["/s/consumequeue/A"],
    ];
    for clean in [true, false] {
        for removal in removals {
            let (io, model) = prepared(clean);
            for path in io.paths().into_iter().rev() {
                if removal.iter().any(|r| path.starts_with(r)) {
                    block_on(async {
                        if io.metadata(&path).await.unwrap().is_dir {
                            io.remove_dir(&path).await.unwrap();
                        } else {
                            io.remove(&path).await.unwrap();
                        }
                    });
                }
            }
            check(&io, &model, &format!("without {removal:?}, clean {clean}"));
        }
    }
}

/// After a kill, with a checkpoint that covers all of the log.
#[test]
fn queues_that_are_gone_as_a_whole_are_built_again_after_a_kill() {
    for (lost, told) in [("consumequeue", "no queue is left"), ("consumequeue/A", "A/0: missing, though it was synced")]
    {
        let (io, model) = prepared(true);
        block_on(checkpoint::mark_running(&io, Path::new("/s"))).unwrap();
        let lost = Path::new("/s").join(lost);
        io.paths().iter().filter(|path| path.starts_with(&lost)).for_each(|path| io.lose(path));
        let notes = check(&io, &model, told);
        assert!(notes.iter().any(|note| note.contains(told)), "{notes:?}");
    }
}

/// A power cut left the first file empty and the second one whole, of records that did not get to the disk.
#[test]
fn a_queue_of_which_nothing_got_to_the_disk_begins_at_0() {
    let (io, mut model) = prepared(false);
    let new = Path::new("/s/consumequeue/New/0");
    io.plant(&new.join(format!("{:020}", 0)), &[]);
    io.plant(&new.join(format!("{FILE_BYTES:020}")), &[7; FILE_BYTES]);
    block_on(async {
        let mut store = Store::open(io.clone(), config()).await.unwrap();
        let bodies = [body("New", 0, 0)];
        store.put("New", 0, &bodies, true).await.unwrap();
        model.insert(("New".to_owned(), 0), bodies.to_vec());
        assert_eq!(store.read_all().await, model);
    });
}

#[test]
fn strangers_among_the_files_are_ignored_and_named() {
    let (io, model) = prepared(true);
    for path in ["commitlog/abc", "consumequeue/A/0/.DS_Store", "consumequeue/A/x/y", "consumequeue/z", "index/q"] {
        io.plant(&PathBuf::from("/s").join(path), b"?");
    }
    let notes = check(&io, &model, "strangers");
    for name in ["abc", ".DS_Store", "A/x", "index/q"] {
        assert!(notes.iter().any(|n| n.contains(name)), "{name}: {notes:?}");
    }
}

#[test]
fn damage_below_the_mark_is_stepped_over_and_told() {
    for clean in [true, false] {
        let (io, model) = prepared(clean);
        // Without the checkpoint's help all is walked; the mark stays, since the checkpoint says how far all was synced.
        block_on(io.remove(&queue_file(0))).unwrap();
        let starts: Vec<u64> = (0..4).map(|n| n * 8192).collect();
        let log = |n: u64| PathBuf::from("/s/commitlog").join(format!("{:020}", starts[n as usize]));
        let record =
            io.contents(&log(1)).unwrap().windows(4).position(|w| w == [0xDA, 0xA3, 0x20, 0xA7]).unwrap() as u64;
        assert!(io.flip_bit(&log(1), record + 90, 3));
        let store = block_on(Store::open(io.clone(), config())).unwrap();
        let report = &store.opened.report;
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        assert_eq!(report.cut_at, None);
        let end = 8192 + record - 4;
        assert_eq!(report.damaged[0].0, end, "its exact position");
        let found = block_on(store.read_all_but_corrupt());
        for (id, bodies) in &model {
            let there = &found[id];
            assert_eq!(there.len(), bodies.len(), "{id:?} keeps its numbering");
            let lost = there.iter().zip(bodies).filter(|(a, b)| a != b).count();
            assert_eq!(lost, (id.0 == "A") as usize, "{id:?}");
        }
    }
}

/// The recovery that steps over it lowers the checkpoint first; crashed at any of its operations, it must not leave a checkpoint by
/// which the next one takes the damage for the log's end.
#[test]
fn damage_is_still_stepped_over_when_the_recovery_was_crashed() {
    for clean in [true, false] {
        let (io, model) = prepared(clean);
        block_on(io.remove(&queue_file(0))).unwrap();
        let second = PathBuf::from("/s/commitlog").join(format!("{:020}", 8192));
        let bytes = io.contents(&second).unwrap();
        let record = bytes.windows(4).position(|w| w == [0xDA, 0xA3, 0x20, 0xA7]).unwrap() as u64;
        assert!(io.flip_bit(&second, record + 90, 3));
        let copies: Rc<RefCell<Vec<SimIo>>> = Rc::default();
        let seen = copies.clone();
        io.watch(Rc::new(move |copy| seen.borrow_mut().push(copy)));
        drop(block_on(Store::open(io.clone(), config())).unwrap());
        io.unwatch();
        let copies = copies.take();
        assert!(copies.len() > 5);
        for (n, copy) in copies.into_iter().enumerate() {
            for left in [copy.after_kill(), copy.after_crash_of(n as u64)] {
                let what = format!("clean {clean}, crash at {n}");
                let store = block_on(Store::open(left, config())).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(store.opened.report.cut_at, None, "{what}: {:?}", store.opened.report);
                let found = block_on(store.read_all_but_corrupt());
                for (id, bodies) in &model {
                    let there = &found[id];
                    assert_eq!(there.len(), bodies.len(), "{what}: {id:?} keeps its numbering");
                    let lost = there.iter().zip(bodies).filter(|(a, b)| a != b).count();
                    assert_eq!(lost, (id.0 == "A") as usize, "{what}: {id:?}");
                }
            }
        }
    }
}

#[test]
fn a_torn_tail_is_cut_and_appends_go_on() {
    for garbage in 0..4 {
        let (io, model) = prepared(false);
        let log = PathBuf::from("/s/commitlog/00000000000000008192");
        let end = block_on(Store::open(io.after_kill(), config())).unwrap().opened.end.0;
        let name = PathBuf::from("/s/commitlog").join(format!("{:020}", end - end % 8192));
        let mut whole = io.contents(&name).unwrap();
        let at = (end % 8192) as usize;
        let old = io.contents(&log).unwrap();
        match garbage {
            0 => whole[at..at + 100].fill(0xFF),
            1 => whole[at..at + 300].copy_from_slice(&old[..300]), // a record of another place
            2 => whole[at..at + 8].copy_from_slice(&[0, 0, 1, 0, 0xDA, 0xA3, 0x20, 0xA7]),
            _ => whole[at..at + 8].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF, 0xDA, 0xA3, 0x20, 0xA7]),
        }
        io.plant(&name, &whole);
        let opened = block_on(Store::open(io.after_kill(), config())).unwrap().opened;
        assert_eq!((opened.end.0, opened.report.cut_at), (end, Some(end)), "garbage {garbage}");
        check(&io, &model, &format!("garbage {garbage}"));
    }
}

#[test]
fn a_log_of_another_segment_size_is_refused_and_the_key_named() {
    let (io, _) = prepared(true);
    let path = PathBuf::from("/s/commitlog/00000000000000008192");
    let whole = io.contents(&path).unwrap();
    io.plant(&path, &whole[..4096]);
    let Err(StoreError::Refused { path: named, what }) = block_on(Store::open(io.clone(), config())).map(|_| ()) else {
        panic!("not refused");
    };
    assert_eq!(named, path);
    assert!(what.contains("mappedFileSizeCommitLog") && what.contains("4096"), "{what}");
    let (io, model) = prepared(true);
    let last = io.paths().into_iter().rfind(|p| p.parent() == Some(&PathBuf::from("/s/commitlog"))).unwrap();
    let next = last.file_name().unwrap().to_str().unwrap().parse::<u64>().unwrap() + 8192;
    io.plant(&PathBuf::from(format!("/s/commitlog/{next:020}")), &[]);
    check(&io, &model, "an empty last segment");
}

#[test]
fn a_missing_middle_segment_lets_the_log_start_behind_it() {
    for clean in [true, false] {
        let (io, mut model) = prepared(clean);
        block_on(async {
            let mut store = Store::open(io.clone(), config()).await.unwrap();
            let bodies: Vec<_> = (35..75).map(|n| body("A", 0, n)).collect();
            for one in &bodies {
                store.put("A", 0, std::slice::from_ref(one), true).await.unwrap();
            }
            model.get_mut(&("A".to_owned(), 0)).unwrap().extend(bodies);
            store.sync().await.unwrap();
            if clean {
                store.stop().await.unwrap();
            }
        });
        block_on(io.remove(&PathBuf::from("/s/commitlog/00000000000000008192"))).unwrap();
        let store = block_on(Store::open(io.clone(), config())).unwrap();
        assert_eq!(store.opened.min.0, 16384);
        assert!(store.opened.report.notes.iter().any(|n| n.contains("missing")));
        let (q, bodies) = (&store.queues[&("A".to_owned(), 0)], &model[&("A".to_owned(), 0)]);
        assert_eq!(q.max().0 as usize, bodies.len());
        assert!(q.min().0 > 35 && q.min().0 < 75);
        let found = block_on(store.read_all());
        assert_eq!(found[&("A".to_owned(), 0)], bodies[q.min().0 as usize..]);
    }
}

#[test]
fn what_left_with_old_segments_is_neither_missed_nor_served() {
    for clean in [true, false] {
        for trimmed in [true, false] {
            let (io, model) = prepared(false);
            let log_min = block_on(async {
                let mut store = Store::open(io.clone(), config()).await.unwrap();
                for n in 35..75 {
                    store.put("A", 0, &[body("A", 0, n)], true).await.unwrap();
                }
                store.sync().await.unwrap();
                let log_min = store.log.keeper().remove_oldest(store.log.written()).await.unwrap();
                if trimmed {
                    for q in store.queues.values() {
                        q.trim(log_min).await.unwrap();
                    }
                    store.index.trim(log_min).await.unwrap();
                }
                if clean {
                    store.stop().await.unwrap();
                }
                log_min
            });
            let store = block_on(Store::open(io.clone(), config())).unwrap();
            let what = format!("clean {clean}, trimmed {trimmed}");
            assert_eq!(store.opened.min, log_min, "{what}");
            assert!(store.opened.report.scanned_from > log_min.0, "{what}: bounded");
            assert!(store.opened.report.notes.is_empty(), "{what}: {:?}", store.opened.report.notes);
            let (a, b) = (&store.queues[&("A".to_owned(), 0)], &store.queues[&("B".to_owned(), 1)]);
            assert!(a.min().0 > 10 && a.max().0 == 75, "{what}");
            assert_eq!((b.min().0, b.max().0), (12, 12), "{what}: empty, and its offset kept");
            let found = block_on(store.read_all());
            let all: Vec<_> = (a.min().0 as usize..75).map(|n| body("A", 0, n)).collect();
            assert_eq!(found[&("A".to_owned(), 0)], all, "{what}");
            assert!(model.len() == 2 && found[&("B".to_owned(), 1)].is_empty(), "{what}");
        }
    }
}

#[test]
fn queues_without_a_log_are_refused() {
    let (io, _) = prepared(true);
    for path in io.paths().into_iter().filter(|p| p.parent() == Some(&PathBuf::from("/s/commitlog"))) {
        block_on(io.remove(&path)).unwrap();
    }
    let error = block_on(Store::open(io.clone(), config())).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("storePathCommitLog"), "{error}");
}

#[test]
fn a_topic_made_again_is_numbered_from_its_second_life() {
    let (io, _) = prepared(true);
    block_on(async {
        let mut store = Store::open(io.clone(), config()).await.unwrap();
        let q = store.queues.remove(&("A".to_owned(), 0)).unwrap();
        q.destroy().await.unwrap();
        store.forget("A", 0);
        for n in 0..13 {
            store.put("A", 0, &[body("A", 0, n)], true).await.unwrap();
        }
        drop(store); // killed: the checkpoint still stands before the deletion
        let store = Store::open(io.clone(), config()).await.unwrap();
        let found = store.read_all().await;
        assert_eq!(found[&("A".to_owned(), 0)], (0..13).map(|n| body("A", 0, n)).collect::<Vec<_>>());
        checkpoint::write(&io, &config().root, &checkpoint::Checkpoint::default()).await.unwrap();
        let store = Store::open(io.clone(), config()).await.unwrap();
        assert_eq!(store.read_all().await, found, "the whole log walked");
    });
}

/// Where the n-th record of the second segment starts in its file.
fn record_in(io: &SimIo, log: &Path, n: usize) -> u64 {
    let bytes = io.contents(log).unwrap();
    let heads = bytes.windows(4).enumerate().filter(|(_, w)| *w == [0xDA, 0xA3, 0x20, 0xA7]);
    heads.map(|(at, _)| at as u64 - 4).nth(n).unwrap()
}

#[test]
fn a_block_of_the_log_that_cannot_be_read_costs_the_records_in_it_below_the_mark() {
    for clean in [true, false] {
        let (io, model) = prepared(clean);
        block_on(io.remove(&queue_file(0))).unwrap(); // so that all is walked
        let log = Path::new("/s/commitlog/00000000000000008192");
        let at = record_in(&io, log, 3);
        assert!(io.make_unreadable(log, at, at + 1));
        let store = block_on(Store::open(io.clone(), config())).unwrap();
        let report = &store.opened.report;
        assert_eq!((report.damaged.len(), report.cut_at), (1, None), "{report:?}");
        let (from, to) = report.damaged[0];
        assert!((from..to).contains(&(8192 + at)), "{report:?}");
        let kept = io.contents(Path::new("/s/config/repairReport.json")).expect("kept");
        let kept: serde_json::Value = serde_json::from_slice(&kept).expect("JSON");
        assert_eq!(kept["damaged"], serde_json::json!([[from, to]]));
        assert_eq!((&kept["clean_stop"], &kept["cut_at"]), (&clean.into(), &serde_json::Value::Null));
        let found = block_on(store.read_all_but_corrupt());
        let lost: usize = model.iter().map(|(id, b)| b.iter().zip(&found[id]).filter(|(a, b)| a != b).count()).sum();
        assert!(model.iter().all(|(id, bodies)| found[id].len() == bodies.len()), "all keep their numbers");
        assert!((1..=16).contains(&lost), "{lost} records lost of one block");
    }
}

#[test]
fn a_block_of_the_log_that_cannot_be_read_cuts_it_above_the_mark() {
    let (io, model) = prepared(false);
    // Above the mark: records after the last checkpoint.
    block_on(async {
        let mut store = Store::open(io.clone(), config()).await.unwrap();
        for n in 35..60 {
            store.put("A", 0, &[body("A", 0, n)], true).await.unwrap();
        }
    });
    let whole = block_on(Store::open(io.after_kill(), config())).unwrap();
    let end = whole.opened.end.0;
    let log = PathBuf::from("/s/commitlog").join(format!("{:020}", end - end % 8192));
    assert!(io.make_unreadable(&log, 0, 1));
    let store = block_on(Store::open(io.clone(), config())).unwrap();
    let cut = store.opened.report.cut_at.expect("cut");
    assert!(cut <= end - end % 8192 && store.opened.end.0 == cut, "{:?}", store.opened.report);
    let found = block_on(store.read_all());
    let kept = &found[&("A".to_owned(), 0)];
    assert!(kept.len() >= 35 && kept.len() < 60, "{}", kept.len());
    assert!(kept.iter().enumerate().all(|(n, b)| *b == body("A", 0, n)));
    assert_eq!(found[&("B".to_owned(), 1)], model[&("B".to_owned(), 1)]);
    drop(store);
    let mut all = model;
    *all.get_mut(&("A".to_owned(), 0)).unwrap() = kept.clone();
    check(&io, &all, "the block is good again, written with zeros");
}

#[test]
fn derived_files_that_cannot_be_read_are_built_again() {
    type Damage = fn(&SimIo);
    let damages: [(&str, Damage); 6] = [
        ("the last queue file", |io| assert!(io.make_unreadable(&queue_file(3), 0, 1))),
        ("the first queue file", |io| assert!(io.make_unreadable(&queue_file(0), 0, 1))),
        ("an idle queue's file", |io| assert!(io.make_unreadable(&idle_file(1), 0, 1))),
        ("the checkpoint", |io| assert!(io.make_unreadable(Path::new("/s/checkpoint"), 0, 1))),
        ("the marks of the queues' ends", |io| {
            io.make_unreadable(Path::new("/s/config/queueEnds.json"), 0, 1);
        }),
        ("the index", |io| {
            for path in io.paths().into_iter().filter(|p| p.parent() == Some(Path::new("/s/index"))) {
                io.make_unreadable(&path, 0, 600);
            }
        }),
    ];
    for clean in [true, false] {
        for (what, damage) in damages {
            let (io, model) = prepared(clean);
            damage(&io);
            check(&io, &model, &format!("{what} cannot be read, clean {clean}"));
        }
    }
}

/// An idle queue whose records left with the log's older segments: its number is all there is of it.
#[test]
fn a_damaged_queue_without_records_keeps_its_number() {
    type Damage = fn(&SimIo);
    let damages: [(&str, Damage); 3] = [
        ("short", |io| io.plant(&idle_file(1), &io.contents(&idle_file(1)).unwrap()[..60])),
        ("long", |io| io.plant(&idle_file(1), &[&io.contents(&idle_file(1)).unwrap()[..], &[0; 20]].concat())),
        ("of another size", |io| {
            let all: Vec<u8> = (0..2).flat_map(|n| io.contents(&idle_file(n)).unwrap()).collect();
            (0..2).for_each(|n| block_on(io.remove(&idle_file(n))).unwrap());
            io.plant(&idle_file(0), &all);
        }),
    ];
    for clean in [true, false] {
        for (what, damage) in damages {
            let (io, _) = prepared(clean);
            block_on(async {
                let mut store = Store::open(io.clone(), config()).await.unwrap();
                for n in 35..95 {
                    store.put("A", 0, &[body("A", 0, n)], true).await.unwrap();
                }
                store.sync().await.unwrap();
                let keeper = store.log.keeper();
                while keeper.min().0 < 24_576 {
                    keeper.remove_oldest(store.log.written()).await.unwrap();
                }
                if clean {
                    store.stop().await.unwrap();
                }
            });
            damage(&io);
            for again in 0..2 {
                let store = block_on(Store::open(io.clone(), config())).unwrap();
                let b = &store.queues[&("B".to_owned(), 1)];
                assert_eq!((b.min().0, b.max().0), (12, 12), "{what}, clean {clean}, start {again}");
            }
        }
    }
}

/// The records of a deleted topic are still in the log, and the checkpoint written after its deletion names one when nothing came since. A
/// directory that is gone without a deletion was lost instead.
#[test]
fn a_deleted_queue_stays_away_and_its_next_life_begins_at_0() {
    for (clean, deleted) in [(true, true), (false, true), (true, false), (false, false)] {
        for remade in [0, 1, 5] {
            let io = SimIo::new(1, Faults::none());
            let what = format!("clean {clean}, deleted {deleted}, then {remade}");
            block_on(async {
                let mut store = Store::open(io.clone(), config()).await.unwrap();
                for (topic, queue, count) in [("A", 0, 3), ("B", 1, 14)] {
                    for n in 0..count {
                        store.put(topic, queue, &[body(topic, queue, n)], true).await.unwrap();
                    }
                }
                store.sync().await.unwrap();
                store.queues.remove(&("B".to_owned(), 1)).expect("it was put to").destroy().await.unwrap();
                store.sync().await.unwrap();
                if deleted {
                    let (end, min) = (store.log.written(), store.opened.min);
                    deleted_topics::note(&io, Path::new("/s"), ["B"], end, min).await.unwrap();
                    store.forget("B", 1);
                    for n in 0..remade {
                        store.put("B", 1, &[body("B", 1, n)], true).await.unwrap();
                    }
                }
                if clean {
                    store.stop().await.unwrap();
                }
                for io in [io.after_kill(), io.after_crash()] {
                    let store = Store::open(io, config()).await.unwrap();
                    let found: Vec<_> =
                        store.opened.queues.iter().map(|q| (q.topic.as_str(), q.queue, q.bounds.max.0)).collect();
                    let mut expected = vec![("A", 0, 3)];
                    if !deleted {
                        expected.push(("B", 1, 14));
                    } else if remade > 0 {
                        expected.push(("B", 1, remade as u64));
                    }
                    assert_eq!(found, expected, "{what}: {:?}", store.opened.report);
                }
            });
        }
    }
}

/// A position behind the log's end would take the records of a topic's next life for those of its last.
#[test]
fn positions_of_deleted_topics_never_lie_behind_the_end() {
    let io = SimIo::new(1, Faults::none());
    block_on(async {
        let mut store = Store::open(io.clone(), config()).await.unwrap();
        store.put("A", 0, &[body("A", 0, 0)], true).await.unwrap();
        let (end, min) = (store.log.written(), store.opened.min);
        deleted_topics::note(&io, Path::new("/s"), ["B"], end + 5000, min).await.unwrap();
        let mut store = Store::open(io.after_kill(), config()).await.unwrap();
        store.put("B", 1, &[body("B", 1, 0)], true).await.unwrap();
        let store = Store::open(store.io.after_crash(), config()).await.unwrap();
        assert_eq!(store.read_all().await.len(), 2, "{:?}", store.opened.report);
    });
}
