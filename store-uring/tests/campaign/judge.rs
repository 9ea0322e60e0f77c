//! Opens what a crash left, with the store's own recovery, and compares all of it with the model. Every fault is a panic that says which.
use crate::machine::{Machine, load_table, map_of, queue_dir};
use crate::model::{Model, QueueId};
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::path::Path;
use uringmq_proto::record::{self, Found};
use uringmq_proto::types::{PhyOffset, QueueOffset};
use uringmq_store::checkpoint;
use uringmq_store::consume_queue::{ConsumeQueue, Entry};
use uringmq_store::io::sim::SimIo;
use uringmq_store::log_reader::LogReader;
use uringmq_store::open::RepairReport;

/// Of the first `sure` records of the model none may be missing. Returns the opened store and how many there are (those that
/// retention removed included).
pub async fn judge(io: SimIo, plan: &Plan, model: &Model, sure: usize, what: &str) -> (Machine, usize) {
    judge_index_times(&io, &plan.config.root, what);
    let opened = Machine::open(io.clone(), &plan.config).await;
    let machine = opened.unwrap_or_else(|e| panic!("{what}: does not open: {e}"));
    let told = Told(&machine.opened.report, machine.opened.min.0, machine.opened.end.0);
    let count = judge_log(&machine, model, sure, what);
    judge_damage(&machine, model, count, what);
    judge_queues(&machine, model, count, what).await;
    judge_index(&machine, model, count, what).await;
    judge_tables(&io, model, what).await;
    let claimed = checkpoint::read(&io, &plan.config.root).await.expect("readable").logics_phy;
    assert!(claimed < machine.opened.end || claimed.0 == 0, "{what}: the checkpoint names {claimed}, behind the end");
    drop(told);
    (machine, count)
}

/// After an unclean stop Apache's broker drops every index file whose header says a later time than the checkpoint.
fn judge_index_times(io: &SimIo, root: &Path, what: &str) {
    let time_at = |path: &Path, at: usize| {
        let bytes = io.contents(path).unwrap_or_default();
        bytes.get(at..at + 8).map_or(0, |time| i64::from_be_bytes(time.try_into().expect("8 bytes")))
    };
    let covered = time_at(&root.join("checkpoint"), 16);
    for path in io.paths().iter().filter(|path| path.starts_with(root.join("index"))) {
        let end = time_at(path, 8);
        assert!(end <= covered, "{what}: {} ends at {end}, the checkpoint says {covered}", path.display());
    }
}

/// Says what recovery did, should the judge find a fault.
struct Told<'a>(&'a RepairReport, u64, u64);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && std::thread::current().name() != Some(crate::seeded_bugs::THREAD) {
            eprintln!("log {}..{}, {:?}", self.1, self.2, self.0);
        }
    }
}

/// The segments by their start, as any reader finds them in the directory.
fn segments(io: &SimIo, dir: &Path, segment_bytes: u64, what: &str) -> BTreeMap<u64, Vec<u8>> {
    let files = io.paths().into_iter().filter(|p| p.parent() == Some(dir));
    let named = files.filter_map(|path| {
        let start = path.file_name()?.to_str()?.parse::<u64>().ok()?;
        let bytes = io.contents(&path).expect("a file");
        assert_eq!(bytes.len() as u64, segment_bytes, "{what}: segment {start} has another length");
        Some((start, bytes))
    });
    named.collect()
}

/// Walks the files as Apache's recovery would: the records are those of the model, in its order, and nothing follows them.
fn judge_log(machine: &Machine, model: &Model, sure: usize, what: &str) -> usize {
    let (min, end) = (machine.opened.min.0, machine.opened.end.0);
    assert!(min <= model.floor, "{what}: the log begins at {min}, nothing above {} was removed", model.floor);
    let first = model.log.partition_point(|sent| sent.phy < min);
    let bytes = machine.config.segment_bytes;
    let files = segments(&machine.io, &machine.config.commit_log_dir, bytes, what);
    let mut at = min;
    let mut count = first;
    'walk: while let Some(file) = files.get(&(at - at % bytes)) {
        let mut inside = (at % bytes) as usize;
        while inside < file.len() {
            let bad = model.log.get(count).filter(|sent| sent.phy == at && model.bad.contains(&at));
            match record::parse(&file[inside..], true) {
                _ if bad.is_some() => {
                    inside += bad.map_or(0, |sent| sent.bytes.len());
                    count += 1;
                }
                Ok(Found::Blank { bytes: rest }) => {
                    assert_eq!(inside + rest, file.len(), "{what}: a blank of another length at {at}");
                    inside += rest;
                }
                Ok(Found::Record(found)) if found.phy_offset as u64 == at => {
                    let sent = model.log.get(count);
                    let same = sent.is_some_and(|s| s.phy == at && s.bytes == file[inside..inside + found.bytes]);
                    assert!(same, "{what}: the record at {at} was never sent: {found:?}, should be {sent:?}");
                    inside += found.bytes;
                    count += 1;
                }
                _ => {
                    let zeros = file[inside..].iter().all(|b| *b == 0);
                    assert!(zeros, "{what}: bytes behind the end at {at} could become a record");
                    break 'walk;
                }
            }
            at = at - at % bytes + inside as u64;
        }
    }
    assert_eq!(at, end, "{what}: recovery says the log ends at {end}");
    assert!(count >= sure, "{what}: {count} records of {sure} acknowledged ones, the log ends at {end}");
    for (start, file) in files.range(at.next_multiple_of(bytes).max(at + 1)..) {
        assert!(file.iter().all(|b| *b == 0), "{what}: segment {start} behind the end {end} is not zeros");
    }
    count
}

/// What is told as damage is what went bad, to the byte.
fn judge_damage(machine: &Machine, model: &Model, count: usize, what: &str) {
    let report = &machine.opened.report;
    let stored = || model.log[..count].iter().filter(|sent| sent.phy >= machine.opened.min.0);
    for (from, to) in &report.damaged {
        let mut inside =
            stored().filter(|sent| sent.phy < *to && *from < sent.phy + sent.bytes.len() as u64).peekable();
        assert_eq!(inside.peek().map(|sent| sent.phy), Some(*from), "{what}: damage at {from}..{to}");
        let whole = inside.find(|sent| !model.bad.contains(&sent.phy));
        assert_eq!(whole, None, "{what}: whole, and told as damage at {from}..{to}");
    }
    for sent in stored().filter(|sent| model.bad.contains(&sent.phy) && sent.phy >= report.scanned_from) {
        let told = report.damaged.iter().any(|(from, to)| (from..to).contains(&&sent.phy));
        // The log's last block is written again with what follows, from memory.
        let healed = || stored_bytes(machine, sent.phy, sent.bytes.len()) == sent.bytes;
        assert!(told || healed(), "{what}: the bad record at {} was scanned and is not told", sent.phy);
    }
}

fn stored_bytes(machine: &Machine, phy: u64, bytes: usize) -> Vec<u8> {
    let inside = phy % machine.config.segment_bytes;
    let path = machine.config.commit_log_dir.join(format!("{:020}", phy - inside));
    machine.io.contents(&path).expect("a segment")[inside as usize..][..bytes].to_vec()
}

async fn judge_queues(machine: &Machine, model: &Model, count: usize, what: &str) {
    let min = machine.opened.min;
    let expected = model.queues(count);
    let unknown = |id: &QueueId| model.deleting.as_ref() == Some(&id.0);
    for (id, queue) in machine.queues.iter().filter(|(id, _)| !unknown(id)) {
        let known = expected.get(id).and_then(|entries| entries.last()).map_or(0, Entry::end);
        assert_eq!(queue.max().0, known, "{what}: next offset of {id:?}");
    }
    let reader = LogReader::new(machine.io.clone(), &machine.config);
    let bodies: BTreeMap<u64, &[u8]> = model.log[..count].iter().map(|s| (s.phy, &s.bytes[..])).collect();
    for (id, entries) in expected.iter().filter(|(id, _)| !unknown(id)) {
        let Some(queue) = machine.queues.get(id) else {
            panic!("{what}: {id:?} with {} entries is gone", entries.len())
        };
        let gone = entries.partition_point(|e| e.phy < min);
        let bad = |at: usize| model.bad.contains(&entries[at].phy.0);
        let first = entries.partition_point(|e| e.base < queue.min().0);
        let whole = entries.get(first).map_or(queue.max().0, |e| e.base) == queue.min().0;
        let right = whole && first >= gone && (gone..first).all(bad);
        assert!(right, "{what}: first offset of {id:?} is {first}, not {gone}; the log begins at {min}");
        let mut at = first;
        while at < entries.len() {
            let mut found = Vec::new();
            let read = queue.read(QueueOffset(entries[at].base), 16, &mut found).await;
            read.unwrap_or_else(|e| panic!("{what}: {id:?} at {at}: {e}"));
            assert!(!found.is_empty(), "{what}: {id:?} at {at}: nothing");
            judge_units(queue, &found, &format!("{what}: {id:?}")).await;
            for entry in found {
                let entry = Entry { unit: 0, ..entry }; // its tags are read from there
                if entry.is_hole() && entry.count > 1 {
                    // One hole for several lost records.
                    let to = entries.partition_point(|e| e.base < entry.end());
                    let right =
                        entry.base == entries[at].base && (at..to).all(bad) && entries[to - 1].end() == entry.end();
                    assert!(right, "{what}: {id:?} has {entry:?} at {at}");
                    at = to;
                    continue;
                }
                let lost = bad(at) && entry.is_hole() && entry.count == entries[at].count;
                let same = lost || entry == entries[at];
                assert!(same, "{what}: entry {at} of {id:?} in {}: {entry:?}", queue_dir(id).display());
                if !bad(at) {
                    let mut bytes = Vec::new();
                    let read = reader.read_record(entry.phy, entry.bytes, machine.log.written(), &mut bytes).await;
                    read.unwrap_or_else(|e| panic!("{what}: {id:?} at {at}: {e}"));
                    assert_eq!(bytes, bodies[&entry.phy.0], "{what}: record {at} of {id:?}");
                }
                at += 1;
            }
        }
    }
}

/// An entry's unit, where it has one, is the one that it was written with. (Recovery writes entries without.)
async fn judge_units(queue: &ConsumeQueue<SimIo>, entries: &[Entry], what: &str) {
    for entry in entries.iter().filter(|entry| entry.unit != 0) {
        assert!(entry.tags().is_some(), "{what}: the unit of {entry:?} is not there");
    }
    let judge = |index: usize, _: i64, map: &[u8]| {
        assert_eq!(map, map_of(entries[index].phy), "{what}: the unit of {:?}", entries[index]);
    };
    let looked = queue.units(entries, judge).await;
    looked.unwrap_or_else(|e| panic!("{what}: units: {e}"));
}

/// Each record is found by its key, once.
async fn judge_index(machine: &Machine, model: &Model, count: usize, what: &str) {
    if !machine.config.index_enabled {
        return;
    }
    let stored = model.log[..count].iter().enumerate().filter(|(_, s)| s.phy >= machine.opened.min.0);
    // A query walks a chain: the newest ones each time, of the others each time a sixth.
    let asked = stored.filter(|(n, _)| n + 24 >= count || (n + what.len() + count).is_multiple_of(6));
    for (_, sent) in asked {
        let hash = record::index_hash(&sent.topic, &sent.key);
        let found = machine.index.query(hash, 64, 0, i64::MAX).await;
        let found = found.unwrap_or_else(|e| panic!("{what}: key {}: {e}", sent.key));
        let times = found.iter().filter(|phy| phy.0 == sent.phy).count();
        let wanted = usize::from(!model.bad.contains(&sent.phy));
        assert!(
            (wanted..=1).contains(&times),
            "{what}: key {} of the record at {} leads to {found:?}",
            sent.key,
            sent.phy
        );
        let behind = found.iter().find(|phy| **phy >= machine.opened.end);
        assert_eq!(behind, None::<&PhyOffset>, "{what}: key {} leads behind the end", sent.key);
    }
}

/// The last save that succeeded, or one that was tried after it.
async fn judge_tables(io: &SimIo, model: &Model, what: &str) {
    for (n, table) in model.tables.iter().enumerate() {
        let loaded = load_table(io, n).await;
        let version = loaded.unwrap_or_else(|e| panic!("{what}: {e}")).unwrap_or(0);
        let right = table.right();
        assert!(right.contains(&version), "{what}: table {n} has version {version}, of {right:?}");
    }
}
