//! A queue with its extension on the simulated disk.
use super::extension::{Place, Unit, is_address, place_of};
use super::*;
use crate::io::sim::{Faults, SimIo, block_on};

const DIR: &str = "/s/consumequeue/T/3";
const EXTENSION: &str = "/s/consumequeue_ext/T/3";
/// Ten entries a file.
const FILE_BYTES: u64 = 200;
/// Three units of 24 bytes a file, and the mark at its end.
const UNITS_FILE_BYTES: u64 = 90;

fn disk() -> SimIo {
    let io = SimIo::new(1, Faults::none());
    io.plant_dir(Path::new("/s/consumequeue"));
    io
}

fn queue_of(io: &SimIo, range: (u64, u64), writes: bool) -> ConsumeQueue<SimIo> {
    let at = QueueOffset;
    let queue = ConsumeQueue::new(io.clone(), PathBuf::from(DIR), FILE_BYTES, at(range.0), at(range.1));
    queue.extended(Place { dir: PathBuf::from(EXTENSION), file_bytes: UNITS_FILE_BYTES, writes })
}

fn queue(io: &SimIo, min: u64, max: u64) -> ConsumeQueue<SimIo> {
    queue_of(io, (min, max), true)
}

fn entry(n: u64) -> Entry {
    Entry { base: n, ..Entry::new(PhyOffset(n * 100), 100, 1000 + n as i64) }
}

/// Its map tells the number.
fn unit(n: u64) -> Unit {
    Unit { tags_code: 1000 + n as i64, stored_ms: n as i64 * 7, map: (n as u32).to_be_bytes().into() }
}

fn fill(q: &ConsumeQueue<SimIo>, range: std::ops::Range<u64>) {
    for n in range {
        assert_eq!(q.append_with(QueueOffset(n), entry(n), unit(n)), Appended::Done);
    }
}

fn flush(q: &ConsumeQueue<SimIo>) {
    block_on(async {
        q.flush().await.unwrap();
        q.sync().await.unwrap();
    });
    assert!(!q.unsynced() && !q.dirty());
}

fn names(io: &SimIo) -> Vec<String> {
    let names = block_on(io.list(Path::new(EXTENSION))).unwrap_or_default();
    names.iter().map(|n| n.to_str().unwrap().to_owned()).collect()
}

fn bytes(io: &SimIo, start: u64) -> Vec<u8> {
    io.contents(&Path::new(EXTENSION).join(file_name(start))).unwrap()
}

/// Numbers, tags (where they are known) and maps of all that can be read, through the files.
fn all(q: &ConsumeQueue<SimIo>) -> Vec<(u64, Option<i64>, Option<u32>)> {
    let mut found = Vec::new();
    while let next = q.min().0 + found.len() as u64
        && next < q.max().0
    {
        let mut entries = Vec::new();
        block_on(q.read(QueueOffset(next), 7, &mut entries)).unwrap();
        let mut maps = vec![None; entries.len()];
        block_on(q.units(&entries, |index, stored_ms, map| {
            let n = u32::from_be_bytes(map.try_into().unwrap());
            assert_eq!(stored_ms, n as i64 * 7);
            maps[index] = Some(n);
        }))
        .unwrap();
        found.extend(entries.iter().zip(maps).map(|(e, map)| (e.base, e.tags(), map)));
    }
    found
}

fn with_units(range: std::ops::Range<u64>) -> Vec<(u64, Option<i64>, Option<u32>)> {
    range.map(|n| (n, Some(1000 + n as i64), Some(n as u32))).collect()
}

#[test]
fn the_bytes_are_those_of_the_sheet() {
    let io = disk();
    let q = queue(&io, 0, 0);
    let unit = Unit { tags_code: 97, stored_ms: 0x0102, map: [1, 2, 255, 0].into() };
    q.append_with(QueueOffset(0), Entry::new(PhyOffset(5), 101, 97), unit);
    flush(&q);
    assert_eq!(names(&io), ["00000000000000000000"]);
    let mut expected = vec![0, 24];
    expected.extend([0, 0, 0, 0, 0, 0, 0, 97]);
    expected.extend([0, 0, 0, 0, 0, 0, 1, 2]);
    expected.extend([0, 4, 1, 2, 255, 0]);
    expected.resize(UNITS_FILE_BYTES as usize, 0);
    assert_eq!(bytes(&io, 0), expected);
    let entry = io.contents(&Path::new(DIR).join(file_name(0))).unwrap();
    assert_eq!(entry[..20], [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 101, 0x80, 0, 0, 0, 0, 0, 0, 0], "address 0");
}

#[test]
fn addresses_are_below_every_tag() {
    assert!(is_address(i64::MIN) && is_address(i32::MIN as i64 - 1) && !is_address(i32::MIN as i64));
    assert_eq!((place_of(i64::MIN), place_of(i64::MIN + 77)), (0, 77));
}

#[test]
fn units_go_over_files_and_are_read_from_memory_and_from_there() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..25);
    assert_eq!(all(&q), with_units(0..25));
    flush(&q);
    assert_eq!(names(&io).len(), 9, "three in a file");
    assert_eq!(bytes(&io, 0)[72..], [[255, 255].as_slice(), &[0; 16]].concat());
    q.shrink();
    let mut out = Vec::new();
    assert!(!q.read_hot(QueueOffset(3), 2, &mut out));
    assert_eq!(all(&q), with_units(0..25));
    assert!(!q.read_hot(QueueOffset(3), 2, &mut out) && out.is_empty(), "the unit is not in memory");
    block_on(q.read(QueueOffset(24), 1, &mut out)).unwrap();
    out.clear();
    assert!(q.read_hot(QueueOffset(24), 1, &mut out), "what was just read");
    assert_eq!(out[0].tags(), Some(1024));
    // What is appended later lies behind what a chunk holds already.
    fill(&q, 25..40);
    flush(&q);
    q.shrink();
    assert_eq!(all(&q), with_units(0..40));
    let again = queue_of(&io.after_crash(), (0, 40), false);
    assert_eq!(all(&again), with_units(0..40), "read, though none are written any more");
}

#[test]
fn a_start_goes_on_behind_the_newest_unit() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..4);
    flush(&q);
    let q = queue(&io, 0, 4);
    fill(&q, 4..6);
    flush(&q);
    assert_eq!(names(&io).len(), 2, "the second file went on");
    // The queue loses its last entries: their units are nobody's.
    let q = queue(&io, 0, 6);
    block_on(q.cut(QueueOffset(2))).unwrap();
    for n in 2..4 {
        assert_eq!(q.append(QueueOffset(n), entry(n)), Appended::Done); // as recovery does, without units
    }
    flush(&q);
    fill(&q, 4..5);
    flush(&q);
    assert_eq!(names(&io), ["00000000000000000000"], "the later file went");
    assert!(bytes(&io, 0)[72..].starts_with(&[0, 0]), "cleared behind its end");
    q.shrink();
    let plain = |n: u64| (n, Some(1000 + n as i64), None);
    assert_eq!(all(&q), [with_units(0..2), vec![plain(2), plain(3)], with_units(4..5)].concat());
}

#[test]
fn where_no_entry_tells_units_go_to_a_file_of_their_own() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..2);
    flush(&q);
    block_on(io.remove(&Path::new(DIR).join(file_name(0)))).unwrap();
    let q = queue(&io, 0, 0);
    q.append(QueueOffset(0), entry(0));
    flush(&q);
    fill(&q, 1..2);
    flush(&q);
    assert_eq!(names(&io), ["00000000000000000000", "00000000000000000090"]);
    q.shrink();
    assert_eq!(all(&q), [(0, Some(1000), None), (1, Some(1001), Some(1))]);
}

#[test]
fn a_lost_unit_leaves_its_entry() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..5);
    flush(&q);
    block_on(io.remove(&Path::new(EXTENSION).join(file_name(0)))).unwrap();
    let q = queue(&io, 0, 5);
    let lost = |n: u64| (n, None, None);
    assert_eq!(all(&q), [vec![lost(0), lost(1), lost(2)], with_units(3..5)].concat());
    fill(&q, 5..6);
    flush(&q);
    q.shrink();
    assert_eq!(all(&q)[3..], with_units(3..6));
}

#[test]
fn trims_and_removals_take_the_units_along() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..25);
    flush(&q);
    block_on(q.trim(PhyOffset(1400))).unwrap();
    flush(&q);
    assert_eq!(q.min(), QueueOffset(14));
    assert_eq!(names(&io)[0], file_name(4 * UNITS_FILE_BYTES), "of entries 12 to 14");
    q.shrink();
    assert_eq!(all(&q), with_units(14..25));
    block_on(q.cut(QueueOffset(14))).unwrap();
    block_on(q.destroy()).unwrap();
    assert!(names(&io).is_empty());
    assert!(block_on(io.metadata(Path::new("/s/consumequeue_ext/T"))).is_err(), "its directories, too");
}

#[test]
fn a_sync_of_many_queues_covers_the_units() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..5);
    block_on(async {
        q.flush().await.unwrap();
        ConsumeQueue::sync_many(&io, Path::new("/s"), &[&q; SYNC_ONE_BY_ONE_MAX + 1]).await.unwrap();
    });
    assert_eq!(all(&queue(&io.after_crash(), 0, 5)), with_units(0..5));
}

/// A write that fails leaves nothing half done, whichever it is: the next flush writes units and entries.
#[test]
fn a_flush_that_failed_is_made_again() {
    let mut failed = 0;
    for write in 0..12 {
        let io = disk();
        let q = queue(&io, 0, 0);
        fill(&q, 0..2);
        flush(&q);
        fill(&q, 2..8);
        io.set_faults(Faults { write_error_at: Some(write), ..Faults::none() });
        failed += u32::from(block_on(q.flush()).is_err());
        io.set_faults(Faults::none());
        flush(&q);
        q.shrink();
        assert_eq!(all(&q), with_units(0..8), "{write}");
    }
    assert!(failed >= 3, "units of three files and entries are written, {failed} failed");
}
