//! A queue on the simulated disk: bytes, reads from memory and files, trims, cuts, failures.
use super::*;
use crate::io::sim::{Faults, SimIo, block_on};

const DIR: &str = "/s/consumequeue/T/3";
/// Ten entries a file.
const FILE_BYTES: u64 = 200;

fn disk() -> SimIo {
    let io = SimIo::new(1, Faults::none());
    io.plant_dir(Path::new("/s/consumequeue"));
    io
}
fn queue(io: &SimIo, min: u64, max: u64) -> ConsumeQueue<SimIo> {
    ConsumeQueue::new(io.clone(), PathBuf::from(DIR), FILE_BYTES, QueueOffset(min), QueueOffset(max))
}
fn entry(n: u64) -> Entry {
    Entry { base: n, ..Entry::new(PhyOffset(n * 100), 100, -(n as i64)) }
}
fn fill(q: &ConsumeQueue<SimIo>, range: std::ops::Range<u64>) {
    for n in range {
        assert_eq!(q.append(QueueOffset(n), entry(n)), Appended::Done);
    }
}
/// Everything that can be read, as a consumer would.
fn drain(q: &ConsumeQueue<SimIo>) -> Vec<Entry> {
    let mut all = Vec::new();
    let mut at = q.min().0;
    while at < q.max().0 {
        let before = all.len();
        block_on(q.read(QueueOffset(at), 7, &mut all)).unwrap();
        assert!(all.len() > before && all.len() <= before + 7, "some, but not more than asked");
        at += (all.len() - before) as u64;
    }
    all
}
fn names(io: &SimIo) -> Vec<String> {
    let names = block_on(io.list(Path::new(DIR))).unwrap_or_default();
    names.iter().map(|n| n.to_str().unwrap().to_owned()).collect()
}

#[test]
fn the_bytes_are_those_of_the_sheet() {
    let io = disk();
    let q = queue(&io, 12, 12);
    let one = Entry::new(PhyOffset(0x0102_0304_0506), 101, 2_598_919);
    assert_eq!(q.append(QueueOffset(12), one), Appended::Done);
    assert!(q.dirty());
    block_on(q.flush()).unwrap();
    assert!(!q.dirty());
    assert_eq!(names(&io), ["00000000000000000200"]);
    let bytes = io.contents(&Path::new(DIR).join("00000000000000000200")).unwrap();
    let hole = [0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes[..20], hole);
    assert_eq!(bytes[20..40], hole);
    assert_eq!(bytes[40..60], [0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 101, 0, 0, 0, 0, 0, 0x27, 0xA8, 0x07]);
    assert_eq!(bytes.len(), 200);
    assert!(bytes[60..].iter().all(|b| *b == 0));
    assert_eq!((q.min(), q.max()), (QueueOffset(12), QueueOffset(13)));
}

#[test]
fn lower_is_known_and_higher_is_a_gap() {
    let q = queue(&disk(), 0, 0);
    fill(&q, 0..3);
    assert_eq!(q.append(QueueOffset(2), entry(2)), Appended::Known);
    assert_eq!(q.append(QueueOffset(4), entry(4)), Appended::Gap { expected: QueueOffset(3) });
    assert_eq!(q.max(), QueueOffset(3));
}

#[test]
fn everything_is_read_from_memory_and_from_files() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..25);
    let all: Vec<Entry> = (0..25).map(entry).collect();
    assert_eq!(drain(&q), all);
    block_on(q.flush()).unwrap();
    q.shrink();
    let mut out = Vec::new();
    assert!(!q.read_hot(QueueOffset(0), 1, &mut out) && out.is_empty());
    assert_eq!(drain(&q), all);
    assert!(q.read_hot(QueueOffset(21), 4, &mut out), "the chunk that was just read");
    assert_eq!(out, all[21..]);
    q.close_idle();
    fill(&q, 25..31);
    block_on(async {
        q.flush().await.unwrap();
        q.sync().await.unwrap();
    });
    assert!(!q.unsynced());
    let again = queue(&io.after_crash(), 0, 31);
    assert_eq!(drain(&again), (0..31).map(entry).collect::<Vec<_>>());
    assert_eq!(names(&io).len(), 4);
    out.clear();
    block_on(q.read(QueueOffset(31), 5, &mut out)).unwrap();
    assert!(q.read_hot(QueueOffset(31), 5, &mut out) && out.is_empty(), "nothing beyond the end");
}

#[test]
fn memory_is_bounded_when_flushed() {
    let io = disk();
    let q = ConsumeQueue::new(io, PathBuf::from(DIR), 6_000_000, QueueOffset(0), QueueOffset(0));
    fill(&q, 0..50_000);
    block_on(q.flush()).unwrap();
    assert_eq!(q.state.borrow().recent.len(), RECENT_MAX);
    let mut out = Vec::new();
    assert!(q.read_hot(QueueOffset(50_000 - RECENT_MAX as u64), 32, &mut out));
    out.clear();
    block_on(q.read(QueueOffset(10), 100_000, &mut out)).unwrap();
    assert_eq!(out.len(), CHUNK_ENTRIES as usize);
    q.shrink();
    assert!(q.memory_bytes() < 1000, "{}", q.memory_bytes());
}

#[test]
fn appends_go_on_while_a_flush_is_under_way() {
    let io = SimIo::new(1, Faults { yielding: true, ..Faults::none() });
    io.plant_dir(Path::new("/s/consumequeue"));
    let q = queue(&io, 0, 0);
    fill(&q, 0..25);
    let mut next = 25;
    let mut flushes = [Box::pin(q.flush()), Box::pin(q.flush())];
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut done = [false; 2];
    while done != [true; 2] {
        for (flush, done) in flushes.iter_mut().zip(&mut done) {
            if !*done && flush.as_mut().poll(&mut cx).is_ready() {
                *done = true;
            }
        }
        if next < 60 {
            fill(&q, next..next + 1);
            next += 1;
            let mut out = Vec::new();
            assert!(q.read_hot(QueueOffset(next - 1), 1, &mut out));
        }
    }
    drop(flushes);
    block_on(q.flush()).unwrap();
    q.shrink();
    assert_eq!(drain(&q), (0..next).map(entry).collect::<Vec<_>>());
}

#[test]
fn trimming_removes_whole_files_and_raises_the_minimum() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..35);
    block_on(q.flush()).unwrap();
    q.shrink();
    let trim = |log_min: u64| {
        block_on(q.trim(PhyOffset(log_min))).unwrap();
        (q.min().0, names(&io).len())
    };
    assert_eq!(trim(0), (0, 4));
    assert_eq!(trim(1), (1, 4));
    assert_eq!(trim(950), (10, 3));
    assert_eq!(trim(900), (10, 3), "never lowered");
    assert_eq!(trim(2500), (25, 2));
    assert_eq!(trim(1_000_000), (35, 1), "the last file stays, the offset too");
    fill(&q, 35..37);
    assert_eq!(drain(&q), [entry(35), entry(36)]);
    assert_eq!(trim_pending(&q), 36);
}
fn trim_pending(q: &ConsumeQueue<SimIo>) -> u64 {
    block_on(q.trim(PhyOffset(3600))).unwrap();
    q.min().0
}

#[test]
fn a_cut_leaves_zeros_behind() {
    let io = disk();
    for at in [0, 1, 9, 10, 11, 20, 24, 25] {
        let q = queue(&io, 0, 0);
        fill(&q, 0..25);
        block_on(async {
            q.flush().await.unwrap();
            q.cut(QueueOffset(at)).await.unwrap();
        });
        assert_eq!(q.max().0, at);
        let starts = block_on(q.file_starts()).unwrap();
        assert_eq!(starts.len() as u64, at.div_ceil(10));
        if let Some(last) = starts.last() {
            let bytes = io.contents(&q.path(*last)).unwrap();
            assert_eq!(bytes.len(), 200);
            assert!(bytes[(at * 20 - last) as usize..].iter().all(|b| *b == 0));
        }
        fill(&q, at..30);
        block_on(q.flush()).unwrap();
        q.shrink();
        assert_eq!(drain(&q), (0..30).map(entry).collect::<Vec<_>>());
        block_on(q.destroy()).unwrap();
        assert_eq!(io.paths().iter().filter(|p| p.starts_with("/s/consumequeue/T")).count(), 0);
    }
}

#[test]
fn a_destroyed_queue_stays_gone() {
    let io = disk();
    io.plant(Path::new("/s/consumequeue/T/4/00000000000000000000"), &[0; 200]);
    let q = queue(&io, 0, 0);
    fill(&q, 0..5);
    block_on(async {
        q.flush().await.unwrap();
        q.destroy().await.unwrap();
    });
    assert_eq!(q.append(q.max(), entry(5)), Appended::Done);
    block_on(q.flush()).unwrap();
    assert!(names(&io.after_crash()).is_empty());
    assert!(io.contents(Path::new("/s/consumequeue/T/4/00000000000000000000")).is_some(), "its neighbour stays");
}

#[test]
fn failures_are_told_and_nothing_is_lost() {
    let io = disk();
    let q = queue(&io, 0, 0);
    fill(&q, 0..5);
    io.set_faults(Faults { write_error_at: Some(0), ..Faults::none() });
    assert!(matches!(block_on(q.flush()), Err(StoreError::File { op: "write", .. })));
    assert!(q.dirty());
    io.set_faults(Faults { capacity_bytes: Some(0), ..Faults::none() });
    assert!(block_on(q.flush()).is_err());
    io.set_faults(Faults { sync_error_at: Some(0), ..Faults::none() });
    block_on(q.flush()).unwrap();
    assert!(matches!(block_on(q.sync()), Err(StoreError::File { op: "sync", .. })));
    assert!(matches!(block_on(q.sync()), Err(StoreError::Poisoned { .. })), "no later sync may claim it");
    assert_eq!(drain(&q), (0..5).map(entry).collect::<Vec<_>>());
}

#[test]
fn many_are_synced_at_once() {
    for seed in 0..10 {
        let io = SimIo::new(seed, Faults::none());
        io.plant_dir(Path::new("/s/consumequeue"));
        let dir = |n: u64| Path::new("/s/consumequeue/T").join(n.to_string());
        let queues: Vec<_> = (0..40)
            .map(|n| ConsumeQueue::new(io.clone(), dir(n), FILE_BYTES, QueueOffset(0), QueueOffset(0)))
            .collect();
        for (n, q) in queues.iter().enumerate() {
            fill(q, 0..n as u64);
            block_on(q.flush()).unwrap();
        }
        let all: Vec<_> = queues.iter().collect();
        let before = io.operations();
        block_on(ConsumeQueue::sync_many(&io, Path::new("/s"), &all)).unwrap();
        assert_eq!(io.operations() - before, 1);
        assert!(queues.iter().all(|q| !q.unsynced()));
        let after = io.after_crash();
        for n in 0..40 {
            let q = ConsumeQueue::new(after.clone(), dir(n), FILE_BYTES, QueueOffset(0), QueueOffset(n));
            assert_eq!(drain(&q), (0..n).map(entry).collect::<Vec<_>>());
        }
        all.iter().for_each(|q| fill(q, q.max().0..q.max().0 + 1));
        all.iter().for_each(|q| block_on(q.flush()).unwrap());
        io.set_faults(Faults { sync_error_at: Some(1), ..Faults::none() });
        assert!(block_on(ConsumeQueue::sync_many(&io, Path::new("/s"), &all)).is_err());
        assert!(matches!(block_on(all[7].sync()), Err(StoreError::Poisoned { .. })), "no later sync may claim it");
    }
}

/// Of a batch queue: an entry for each count.
fn batches(io: &SimIo, counts: &[u16]) -> ConsumeQueue<SimIo> {
    io.plant_dir(Path::new("/s/batchconsumequeue"));
    let dir = PathBuf::from("/s/batchconsumequeue/T/0");
    let q = ConsumeQueue::of_form(Form::Batch, io.clone(), dir, 460, Bounds::empty(Form::Batch, QueueOffset(0)));
    for (n, count) in counts.iter().enumerate() {
        assert_eq!(q.append(q.max(), batch(n as u64, *count)), Appended::Done);
    }
    q
}
fn batch(n: u64, count: u16) -> Entry {
    Entry { count, stored_ms: 1_700_000_000_000 + n as i64, ..Entry::new(PhyOffset(n * 100), 100, n as i64) }
}
fn read_batches(q: &ConsumeQueue<SimIo>, from: u64) -> Vec<Entry> {
    let mut all = Vec::new();
    block_on(q.read(QueueOffset(from), 32, &mut all)).unwrap();
    all
}

/// Source: store-format sheet 4.9.
#[test]
fn the_bytes_of_a_batch_entry_are_those_of_the_sheet() {
    let io = disk();
    let q = batches(&io, &[3]);
    assert_eq!(q.append(QueueOffset(3), batch(1, 5)), Appended::Done);
    assert_eq!((q.min(), q.max()), (QueueOffset(0), QueueOffset(8)));
    block_on(q.flush()).unwrap();
    let bytes = io.contents(Path::new("/s/batchconsumequeue/T/0/00000000000000000000")).unwrap();
    assert_eq!(bytes.len(), 460);
    let mut second = Vec::new();
    second.extend(100u64.to_be_bytes());
    second.extend(100u32.to_be_bytes());
    second.extend(1i64.to_be_bytes());
    second.extend(1_700_000_000_001i64.to_be_bytes());
    second.extend(3u64.to_be_bytes());
    second.extend(5u16.to_be_bytes());
    second.extend([0xFF; 4]);
    second.extend([0; 4]);
    assert_eq!(bytes[46..92], second);
    assert!(bytes[92..].iter().all(|b| *b == 0));
}

#[test]
fn every_offset_leads_to_the_entry_that_holds_it() {
    let io = disk();
    let counts: Vec<u16> = (0..35).map(|n| 1 + n % 4).collect();
    let q = batches(&io, &counts);
    let bases: Vec<u64> = counts.iter().scan(0, |at, count| Some(std::mem::replace(at, *at + *count as u64))).collect();
    let check = || {
        for (n, base) in bases.iter().enumerate() {
            for offset in *base..*base + counts[n] as u64 {
                let found = read_batches(&q, offset);
                assert_eq!(found[0], Entry { base: *base, ..batch(n as u64, counts[n]) }, "offset {offset}");
                assert!(found.windows(2).all(|pair| pair[0].end() == pair[1].base));
            }
        }
        assert!(read_batches(&q, q.max().0).is_empty());
    };
    check();
    block_on(q.flush()).unwrap();
    q.shrink();
    check();
    // From the files alone, as after a start.
    let bounds = q.bounds();
    assert_eq!((bounds.first, bounds.end), (0, 35));
    let again = ConsumeQueue::of_form(Form::Batch, io.clone(), PathBuf::from("/s/batchconsumequeue/T/0"), 460, bounds);
    assert_eq!(read_batches(&again, bases[20])[0].base, bases[20]);
    assert_eq!(again.append(again.max(), batch(35, 2)), Appended::Done);
    assert_eq!(again.append(QueueOffset(1), batch(9, 1)), Appended::Known);
    assert_eq!(read_batches(&again, again.max().0 - 1)[0].base, bounds.max.0);
}

#[test]
fn a_batch_queue_is_trimmed_and_cut_at_whole_entries() {
    let io = disk();
    let q = batches(&io, &[4; 35]);
    block_on(q.flush()).unwrap();
    q.shrink();
    block_on(q.trim(PhyOffset(1250))).unwrap();
    assert_eq!((q.min(), q.max()), (QueueOffset(52), QueueOffset(140)));
    assert!(io.contents(Path::new("/s/batchconsumequeue/T/0/00000000000000000000")).is_none(), "ten entries went");
    assert_eq!(read_batches(&q, 53)[0].base, 52);
    block_on(q.cut(QueueOffset(100))).unwrap();
    assert_eq!((q.min(), q.max(), q.bounds().end), (QueueOffset(52), QueueOffset(100), 25));
    assert_eq!(q.append(QueueOffset(100), batch(25, 7)), Appended::Done);
    block_on(q.flush()).unwrap();
    q.shrink();
    assert_eq!(read_batches(&q, 104)[0], Entry { base: 100, ..batch(25, 7) });
    block_on(q.trim(PhyOffset(1 << 40))).unwrap();
    assert_eq!((q.min(), q.max()), (QueueOffset(107), QueueOffset(107)), "the number stays when all is gone");
}

#[test]
fn what_is_synced_has_its_names_up_to_the_stores_root() {
    for form in Form::ALL {
        let io = SimIo::new(1, Faults::none());
        io.plant_dir(Path::new("/s"));
        let dir = Path::new("/s").join(form.dir()).join("T").join("3");
        let bytes = 10 * form.entry_bytes() as u64;
        let bounds = Bounds::empty(form, QueueOffset(0));
        let q = ConsumeQueue::of_form(form, io.clone(), dir.clone(), bytes, bounds);
        fill(&q, 0..3);
        block_on(q.flush()).unwrap();
        block_on(q.sync()).unwrap();
        for choice in 0..8 {
            let left = block_on(io.after_crash_of(choice).list(&dir)).unwrap_or_default();
            assert_eq!(left, [PathBuf::from(file_name(0))], "{form:?}, power cut {choice}");
        }
    }
}
