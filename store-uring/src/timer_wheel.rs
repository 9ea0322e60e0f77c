//! The timer wheel: which messages are due in which stretch of `precision_ms`, as the ends of a chain in the timer log. Used by shard 0's
//! timers. Only slots in use are in memory, so that what waits long costs 24 bytes a slot. Source: store-format sheet 10.
//!
//! | at | bytes | field |
//! | 0  | 8     | the slot's time / precision; another time's slot is empty |
//! | 8  | 8     | `first`: position of the oldest unit |
//! | 16 | 8     | `last`: position of the newest unit |
//! | 24 | 4     | `num`: messages less deletions |
//! | 28 | 4     | zero |
//!
//! The slot of time t stands at 32 * (t / precision mod 1,209,600). A slot that is done stays in the file until another takes its place:
//! what lies before the time that was read is done.
use crate::StoreError;
use crate::io::{Access, File, Io, Open, write_all};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const SLOT_BYTES: usize = 32;
/// Seven days of seconds; whatever the precision.
pub const SLOTS_TOTAL: i64 = 7 * 86_400;
const SLOTS: i64 = 2 * SLOTS_TOTAL;
const FILE_BYTES: u64 = SLOTS as u64 * SLOT_BYTES as u64;
const PIECE_BYTES: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub first: u64,
    pub last: u64,
    pub num: i32,
}

pub struct Wheel<I: Io> {
    io: I,
    path: PathBuf,
    precision_ms: i64,
    /// By time / precision.
    slots: RefCell<BTreeMap<i64, Slot>>,
    /// Changed since they were written.
    dirty: RefCell<BTreeSet<i64>>,
    /// There was no file, or an empty one.
    missing: bool,
}

fn failed(op: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { op, path: path.to_owned(), source }
}

impl<I: Io> Wheel<I> {
    /// Reads the slots from `from_ms` on. A missing file is made at the first flush; one of another length is refused, as by Apache's
    /// broker.
    pub async fn open(io: I, path: PathBuf, precision_ms: i64, from_ms: i64) -> Result<Self, StoreError> {
        let (slots, dirty) = (RefCell::default(), RefCell::default());
        let mut wheel = Wheel { io, path, precision_ms, slots, dirty, missing: true };
        let path = &wheel.path;
        let file = match wheel.io.open(path, Open { access: Access::Read, direct: false }).await {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(wheel),
            Err(e) => return Err(failed("open", path, e)),
        };
        let len = file.len().await.map_err(|e| failed("stat", path, e))?;
        if len != FILE_BYTES && len != 0 {
            let what = format!("{len} bytes, not {FILE_BYTES}; remove it, and the timer log tells what waits");
            return Err(StoreError::Refused { path: path.clone(), what });
        }
        let (mut at, from) = (0, from_ms / precision_ms);
        while at < len {
            let piece = file.read_at(at, PIECE_BYTES).await.map_err(|e| failed("read", path, e))?;
            if piece.as_ref().len() < SLOT_BYTES {
                break;
            }
            let mut slots = wheel.slots.borrow_mut();
            for (index, bytes) in piece.as_ref().chunks_exact(SLOT_BYTES).enumerate() {
                let index = (at / SLOT_BYTES as u64) as i64 + index as i64;
                if let Some((time, slot)) = decode(bytes).filter(|(time, _)| *time % SLOTS == index && *time >= from) {
                    slots.insert(time, slot);
                }
            }
            at += PIECE_BYTES as u64;
        }
        wheel.missing = len == 0;
        Ok(wheel)
    }

    /// Nothing of it was saved: only the timer log tells what waits.
    pub fn is_missing(&self) -> bool {
        self.missing
    }

    fn key(&self, time_ms: i64) -> i64 {
        time_ms.div_euclid(self.precision_ms)
    }

    pub fn precision_ms(&self) -> i64 {
        self.precision_ms
    }

    pub fn get(&self, time_ms: i64) -> Option<Slot> {
        self.slots.borrow().get(&self.key(time_ms)).copied()
    }

    pub fn put(&self, time_ms: i64, slot: Slot) {
        let key = self.key(time_ms);
        self.slots.borrow_mut().insert(key, slot);
        self.dirty.borrow_mut().insert(key);
    }

    /// Takes the unit at `at` into its slot, unless it is there already.
    pub fn add(&self, time_ms: i64, at: u64, num: i32) {
        let slot = match self.get(time_ms) {
            Some(slot) if slot.last >= at => return,
            Some(slot) => Slot { last: at, num: slot.num.saturating_add(num), ..slot },
            None => Slot { first: at, last: at, num },
        };
        self.put(time_ms, slot);
    }

    /// The slot is done.
    pub fn remove(&self, time_ms: i64) {
        let key = self.key(time_ms);
        self.slots.borrow_mut().remove(&key);
        self.dirty.borrow_mut().remove(&key);
    }

    /// The slots that lead to positions from `end` on are no slots; the oldest unit that any of them held.
    pub fn drop_beyond(&self, end: u64) -> Option<u64> {
        let mut first = None;
        self.slots.borrow_mut().retain(|_, slot| {
            let beyond = slot.last >= end;
            if beyond {
                first = Some(first.map_or(slot.first, |first: u64| first.min(slot.first)));
            }
            !beyond
        });
        first
    }

    /// Drops what was read before.
    pub fn drop_before(&self, time_ms: i64) {
        let kept = self.slots.borrow_mut().split_off(&self.key(time_ms));
        *self.slots.borrow_mut() = kept;
    }

    /// The first slot in use from a time on, with its time.
    pub fn next_from(&self, time_ms: i64) -> Option<(i64, Slot)> {
        let slots = self.slots.borrow();
        slots.range(self.key(time_ms)..).next().map(|(key, slot)| (key * self.precision_ms, *slot))
    }

    /// The oldest unit that hangs on it.
    pub fn first(&self) -> Option<u64> {
        self.slots.borrow().values().map(|slot| slot.first).min()
    }

    /// Messages that hang on it.
    pub fn total(&self) -> i64 {
        self.slots.borrow().values().map(|slot| i64::from(slot.num)).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.borrow().is_empty()
    }

    /// Writes what changed and syncs. What failed is written by the next call. One flush at a time.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let keys: Vec<i64> = std::mem::take(&mut *self.dirty.borrow_mut()).into_iter().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let flushed = self.flush_slots(&keys).await;
        if flushed.is_err() {
            let slots = self.slots.borrow();
            self.dirty.borrow_mut().extend(keys.into_iter().filter(|key| slots.contains_key(key)));
        }
        flushed
    }

    async fn flush_slots(&self, keys: &[i64]) -> Result<(), StoreError> {
        let path = &self.path;
        let how = Open { access: Access::Create, direct: false };
        let file = self.io.open(path, how).await.map_err(|e| failed("open", path, e))?;
        if file.len().await.map_err(|e| failed("stat", path, e))? < FILE_BYTES {
            file.set_len(FILE_BYTES).await.map_err(|e| failed("lengthen", path, e))?;
            let dir = path.parent().unwrap_or(Path::new("."));
            self.io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))?;
        }
        // Only what changed is written: a slot that was done a moment ago may have to be found again after a power cut.
        let near = |a: &i64, b: &i64| a + 1 == *b && b.rem_euclid(SLOTS) != 0;
        for run in keys.chunk_by(near) {
            let (first, last) = (run[0], run[run.len() - 1]);
            for from in (first..=last).step_by(PIECE_BYTES / SLOT_BYTES) {
                let count = (last + 1 - from).min((PIECE_BYTES / SLOT_BYTES) as i64);
                let mut buf = file.buffer(count as usize * SLOT_BYTES);
                for (key, slot) in self.slots.borrow().range(from..from + count) {
                    let at = (key - from) as usize * SLOT_BYTES;
                    encode(*key, slot, &mut buf.as_mut()[at..at + SLOT_BYTES]);
                }
                let at = from.rem_euclid(SLOTS) as u64 * SLOT_BYTES as u64;
                write_all(&file, at, buf).await.0.map_err(|e| failed("write", path, e))?;
            }
        }
        file.sync().await.map_err(|e| failed("sync", path, e))
    }
}

fn encode(key: i64, slot: &Slot, out: &mut [u8]) {
    out[..8].copy_from_slice(&key.to_be_bytes());
    out[8..16].copy_from_slice(&slot.first.to_be_bytes());
    out[16..24].copy_from_slice(&slot.last.to_be_bytes());
    out[24..28].copy_from_slice(&slot.num.to_be_bytes());
    out[28..32].fill(0);
}

/// `None` for a slot that was never used.
fn decode(bytes: &[u8]) -> Option<(i64, Slot)> {
    let i64_at = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let time = i64_at(0);
    if time <= 0 {
        return None;
    }
    let num = i32::from_be_bytes(bytes[24..28].try_into().expect("4 bytes"));
    Some((time, Slot { first: u64::try_from(i64_at(8)).ok()?, last: u64::try_from(i64_at(16)).ok()?, num }))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::{Faults, SimIo, block_on};

    const PATH: &str = "/s/timerwheel";

    fn disk() -> SimIo {
        let io = SimIo::new(1, Faults::none());
        io.plant_dir(Path::new("/s"));
        io
    }
    fn open(io: &SimIo, from_ms: i64) -> Wheel<SimIo> {
        block_on(Wheel::open(io.clone(), PATH.into(), 1000, from_ms)).unwrap()
    }

    #[test]
    fn the_file_is_apaches() {
        // Slot 1796047841 of Apache's broker 5.5.0: one message and two that take it back.
        let golden = [
            0, 0, 0, 0, 0x6B, 0x0D, 0x83, 0xE1, 0, 0, 0, 0, 0, 0, 0x01, 0x38, 0, 0, 0, 0, 0, 0, 0x01, 0xA0, 0xFF, 0xFF,
            0xFF, 0xFF, 0, 0, 0, 0,
        ];
        let io = disk();
        let wheel = open(&io, 0);
        for (at, num) in [(312, 1), (364, -1), (416, -1)] {
            wheel.add(1_796_047_841_000, at, num);
        }
        block_on(wheel.flush()).unwrap();
        let bytes = io.contents(Path::new(PATH)).unwrap();
        assert_eq!(bytes.len(), 38_707_200);
        let at = 1_001_441 * 32;
        assert_eq!(bytes[at..at + 32], golden);
        assert_eq!(bytes.iter().filter(|b| **b != 0).count(), golden.iter().filter(|b| **b != 0).count());
        let again = open(&io.after_crash(), 0);
        assert_eq!(again.get(1_796_047_841_999), Some(Slot { first: 312, last: 416, num: -1 }));
        assert_eq!(again.next_from(0).map(|(time, _)| time), Some(1_796_047_841_000));
        assert_eq!(again.total(), -1);
        assert!(open(&io, 1_796_047_842_000).is_empty(), "it was read");
    }

    #[test]
    fn flushes_keep_what_lies_between() {
        let io = disk();
        let wheel = open(&io, 0);
        let times = [5_000, 6_000, 9_000, 200_000, 1_209_599_000, 1_209_600_000, 1_209_603_000];
        for (n, time) in times.iter().enumerate() {
            wheel.add(*time, n as u64, 1);
            block_on(wheel.flush()).unwrap();
        }
        // 5 and 7 again, and 6 lies between.
        wheel.add(5_000, 50, 1);
        wheel.add(7_000, 70, 1);
        block_on(wheel.flush()).unwrap();
        let again = open(&io.after_crash(), 0);
        for time in [6_000, 9_000, 200_000, 1_209_599_000, 1_209_600_000, 1_209_603_000, 7_000, 5_000] {
            assert_eq!(again.get(time), wheel.get(time), "{time}");
        }
        // The next round of the wheel takes an old slot's place.
        wheel.remove(6_000);
        wheel.add((6 + SLOTS) * 1000, 99, 1);
        block_on(wheel.flush()).unwrap();
        let again = open(&io, 0);
        assert_eq!((again.get(6_000), again.get((6 + SLOTS) * 1000).map(|slot| slot.last)), (None, Some(99)));
    }

    #[test]
    fn a_slot_behind_the_log_is_dropped() {
        let wheel = open(&disk(), 0);
        wheel.add(1000, 52, 1);
        wheel.add(2000, 104, 1);
        wheel.add(2000, 208, 1);
        wheel.add(3000, 156, 1);
        wheel.add(3000, 260, 1);
        assert_eq!(wheel.drop_beyond(208), Some(104));
        assert_eq!((wheel.get(1000).is_some(), wheel.get(2000), wheel.get(3000)), (true, None, None));
        assert_eq!(wheel.drop_beyond(208), None);
        wheel.add(2000, 104, 1);
        wheel.add(2000, 104, 1);
        assert_eq!(
            wheel.get(2000),
            Some(Slot { first: 104, last: 104, num: 1 }),
            "the same unit again changes nothing"
        );
        wheel.drop_before(2000);
        assert_eq!(wheel.get(1000), None);
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let io = disk();
        io.plant(Path::new(PATH), &[0; 64]);
        assert!(block_on(Wheel::open(io, PATH.into(), 1000, 0)).is_err());
    }

    #[test]
    fn a_failed_flush_is_made_up_for() {
        let io = disk();
        let wheel = open(&io, 0);
        wheel.add(1000, 7, 1);
        io.set_faults(Faults { capacity_bytes: Some(0), ..Faults::none() });
        assert!(block_on(wheel.flush()).is_err());
        io.set_faults(Faults::none());
        block_on(wheel.flush()).unwrap();
        assert_eq!(open(&io, 0).get(1000), wheel.get(1000));
    }
}
