//! The timer log: a unit for each message that hangs on the timer wheel, in the order in which the messages were enqueued. Units of one slot
//! of the wheel form a chain from the newest to the oldest. Used by shard 0's timers. Source: store-format sheet 10.
//!
//! | at | bytes | field of a [`Unit`] |
//! | 0  | 4     | 52 |
//! | 4  | 8     | `prev`: position of the unit before it in its slot; -1 = none |
//! | 12 | 4     | `magic`: 1, with [`ROLL`] and [`DELETE`] |
//! | 16 | 8     | `write_ms` |
//! | 24 | 4     | `delay_ms`: its slot's time less `write_ms` |
//! | 28 | 8     | `phy` |
//! | 36 | 4     | `bytes` |
//! | 40 | 4     | `topic_hash` |
//! | 44 | 8     | zero |
//!
//! A position is the file's start, which is its name, and the place in the file. A unit is never split: where less than a unit and a blank
//! are left, the file ends with a blank (i32 bytes left, i64 0, i32 0xCBD43194). Behind the last unit are zeros.
use crate::StoreError;
use crate::io::{Access, File, Io, Open, write_all};
use crate::turn::Turn;
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use uringmq_proto::types::PhyOffset;

pub const UNIT_BYTES: usize = 52;
const BLANK_BYTES: usize = 16;
const BLANK_MAGIC: u32 = 0xCBD4_3194;
/// In `magic`: every unit has it.
pub const PLAIN: i32 = 1;
/// In `magic`: when its slot comes the message is enqueued anew, its own time lying behind the window.
pub const ROLL: i32 = 2;
/// In `magic`: it takes back another message of its slot.
pub const DELETE: i32 = 4;
const MAGIC_MAX: i32 = 15;
/// Bytes of one read.
const WINDOW_BYTES: u64 = 64 * 1024;
/// Bytes of one piece of a write.
const PIECE_BYTES: usize = 512 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub prev: Option<u64>,
    pub magic: i32,
    /// When it was enqueued, down to the wheel's precision.
    pub write_ms: i64,
    pub delay_ms: i32,
    pub phy: PhyOffset,
    pub bytes: u32,
    /// Java's hash of the real topic.
    pub topic_hash: i32,
}

impl Unit {
    /// The time of the slot it hangs on.
    pub fn slot_ms(&self) -> i64 {
        self.write_ms.saturating_add(self.delay_ms.into())
    }
    pub fn rolls(&self) -> bool {
        self.magic & ROLL != 0
    }
    pub fn deletes(&self) -> bool {
        self.magic & DELETE != 0
    }

    pub fn encode(&self) -> [u8; UNIT_BYTES] {
        let mut out = [0; UNIT_BYTES];
        out[..4].copy_from_slice(&(UNIT_BYTES as u32).to_be_bytes());
        out[4..12].copy_from_slice(&self.prev.map_or(-1, |at| at as i64).to_be_bytes());
        out[12..16].copy_from_slice(&self.magic.to_be_bytes());
        out[16..24].copy_from_slice(&self.write_ms.to_be_bytes());
        out[24..28].copy_from_slice(&self.delay_ms.to_be_bytes());
        out[28..36].copy_from_slice(&self.phy.0.to_be_bytes());
        out[36..40].copy_from_slice(&self.bytes.to_be_bytes());
        out[40..44].copy_from_slice(&self.topic_hash.to_be_bytes());
        out
    }

    /// `None` where no unit stands.
    pub fn decode(bytes: &[u8]) -> Option<Unit> {
        let bytes: &[u8; UNIT_BYTES] = bytes.first_chunk()?;
        let i32_at = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let i64_at = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let unit = Unit {
            prev: u64::try_from(i64_at(4)).ok(),
            magic: i32_at(12),
            write_ms: i64_at(16),
            delay_ms: i32_at(24),
            phy: PhyOffset(u64::try_from(i64_at(28)).ok()?),
            bytes: u32::try_from(i32_at(36)).ok()?,
            topic_hash: i32_at(40),
        };
        (i32_at(0) == UNIT_BYTES as i32 && (0..=MAGIC_MAX).contains(&unit.magic)).then_some(unit)
    }
}

/// Bytes of one file as they were read, so that a walk reads each stretch once.
pub struct Window<F: File> {
    from: u64,
    bytes: Option<F::Buf>,
}

impl<F: File> Default for Window<F> {
    fn default() -> Self {
        Window { from: 0, bytes: None }
    }
}

impl<F: File> Window<F> {
    fn get(&self, at: u64) -> Option<&[u8]> {
        let bytes = self.bytes.as_ref()?.as_ref();
        let at = usize::try_from(at.checked_sub(self.from)?).ok()?;
        bytes.get(at..at + UNIT_BYTES)
    }
}

pub struct TimerLog<I: Io> {
    io: I,
    dir: PathBuf,
    file_bytes: u64,
    /// Start of the oldest file; [`TimerLog::end`] when there is none.
    first: Cell<u64>,
    /// Where the next unit goes, unless it does not fit there.
    end: Cell<u64>,
    /// Stretches appended and not written yet, each within one file.
    unwritten: RefCell<Vec<(u64, Vec<u8>)>>,
    /// Starts of files written since they were synced.
    unsynced: RefCell<Vec<u64>>,
    turn: Turn,
}

fn failed(op: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { op, path: path.to_owned(), source }
}

impl<I: Io> TimerLog<I> {
    /// `file_bytes`: length of a file. Its end is not known before [`TimerLog::recover`].
    pub async fn open(io: I, dir: PathBuf, file_bytes: u64) -> Result<Self, StoreError> {
        let file_bytes = file_bytes.max((UNIT_BYTES + BLANK_BYTES) as u64);
        let names = match io.list(&dir).await {
            Ok(names) => names,
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(failed("list", &dir, e)),
        };
        let starts: Vec<u64> = names.iter().filter_map(|name| start_of(name)).collect();
        if !starts.is_empty() {
            // A process that was killed may have made the newest without.
            io.sync_dir(&dir).await.map_err(|e| failed("sync", &dir, e))?;
        }
        if let Some(odd) = starts.iter().find(|start| !start.is_multiple_of(file_bytes)) {
            let what = format!("its name is no multiple of mappedFileSizeTimerLog = {file_bytes}");
            return Err(StoreError::Refused { path: dir.join(format!("{odd:020}")), what });
        }
        let first = starts.iter().min().copied().unwrap_or(0);
        Ok(TimerLog {
            io,
            dir,
            file_bytes,
            first: Cell::new(first),
            end: Cell::new(first),
            unwritten: RefCell::default(),
            unsynced: RefCell::default(),
            turn: Turn::default(),
        })
    }

    pub fn first(&self) -> u64 {
        self.first.get()
    }
    pub fn end(&self) -> u64 {
        self.end.get()
    }
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    fn path(&self, start: u64) -> PathBuf {
        self.dir.join(format!("{start:020}"))
    }
    fn start(&self, at: u64) -> u64 {
        at - at % self.file_bytes
    }
    /// Behind the last unit that a file at `start` can hold.
    fn units_end(&self, start: u64) -> u64 {
        start + (self.file_bytes - BLANK_BYTES as u64) / UNIT_BYTES as u64 * UNIT_BYTES as u64
    }

    /// Leaves a unit for [`TimerLog::write`]; its position.
    pub fn append(&self, unit: &Unit) -> u64 {
        let mut at = self.end.get();
        let mut unwritten = self.unwritten.borrow_mut();
        let start = self.start(at);
        if at == self.units_end(start) {
            let mut blank = [0; BLANK_BYTES];
            let left = (start + self.file_bytes - at) as u32;
            blank[..4].copy_from_slice(&left.to_be_bytes());
            blank[12..].copy_from_slice(&BLANK_MAGIC.to_be_bytes());
            push(&mut unwritten, at, &blank);
            at = start + self.file_bytes;
            unwritten.push((at, Vec::new()));
        }
        push(&mut unwritten, at, &unit.encode());
        self.end.set(at + UNIT_BYTES as u64);
        at
    }

    /// Writes what was appended; it is in the files when this returns, not yet durable. What failed is written by the next call.
    pub async fn write(&self) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        loop {
            let next = {
                let mut unwritten = self.unwritten.borrow_mut();
                if unwritten.is_empty() { None } else { Some(unwritten.remove(0)) }
            };
            let Some((at, bytes)) = next else { return Ok(()) };
            if let Err(e) = self.write_stretch(at, &bytes).await {
                self.unwritten.borrow_mut().insert(0, (at, bytes));
                return Err(e);
            }
        }
    }

    async fn write_stretch(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let start = self.start(at);
        let path = self.path(start);
        let file = self.open_file(&path, Access::Create).await?;
        if file.len().await.map_err(|e| failed("stat", &path, e))? < self.file_bytes {
            file.set_len(self.file_bytes).await.map_err(|e| failed("lengthen", &path, e))?;
            for dir in self.dir.ancestors().take(2) {
                self.io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))?;
            }
        }
        for (i, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let mut buf = file.buffer(piece.len());
            buf.as_mut().copy_from_slice(piece);
            let to = at - start + (i * PIECE_BYTES) as u64;
            write_all(&file, to, buf).await.0.map_err(|e| failed("write", &path, e))?;
        }
        self.note_unsynced(start);
        Ok(())
    }

    fn note_unsynced(&self, start: u64) {
        let mut unsynced = self.unsynced.borrow_mut();
        if !unsynced.contains(&start) {
            unsynced.push(start);
        }
    }

    async fn open_file(&self, path: &Path, access: Access) -> Result<I::File, StoreError> {
        if access == Access::Create {
            self.io.create_dir(&self.dir).await.map_err(|e| failed("create", &self.dir, e))?;
        }
        self.io.open(path, Open { access, direct: false }).await.map_err(|e| failed("open", path, e))
    }

    /// Makes durable what was written before the call.
    pub async fn sync(&self) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        loop {
            let Some(start) = self.unsynced.borrow().first().copied() else { return Ok(()) };
            let path = self.path(start);
            let file = self.open_file(&path, Access::Write).await?;
            file.sync().await.map_err(|e| failed("sync", &path, e))?;
            self.unsynced.borrow_mut().retain(|other| *other != start);
        }
    }

    /// The unit at a position; `None` when none stands there, or its file is gone.
    pub async fn unit(&self, at: u64, window: &mut Window<I::File>) -> Result<Option<Unit>, StoreError> {
        if at < self.first.get() || at >= self.end.get() {
            return Ok(None);
        }
        if window.get(at).is_none() {
            // Chains lead backwards.
            let start = self.start(at);
            let to = at + UNIT_BYTES as u64;
            let from = to.saturating_sub(WINDOW_BYTES).max(start);
            self.fill(window, from, to).await?;
        }
        Ok(window.get(at).and_then(Unit::decode))
    }

    /// Reads `from..to` of one file; nothing where the file is missing.
    async fn fill(&self, window: &mut Window<I::File>, from: u64, to: u64) -> Result<(), StoreError> {
        let start = self.start(from);
        let path = self.path(start);
        *window = Window::default();
        let file = match self.io.open(&path, Open { access: Access::Read, direct: false }).await {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(failed("open", &path, e)),
        };
        let bytes = file.read_at(from - start, (to - from) as usize).await.map_err(|e| failed("read", &path, e))?;
        *window = Window { from, bytes: Some(bytes) };
        Ok(())
    }

    /// Walks the units from the file that holds `from` on, in order, to the first place without a unit or the first that `keep` refuses;
    /// that is the log's end then, and what stood behind it is zero. Before the first append.
    pub async fn recover(&self, from: u64, keep: impl FnMut(u64, &Unit) -> bool) -> Result<(), StoreError> {
        self.recover_from(self.start(from).max(self.first.get()), keep).await
    }

    /// As [`recover`](Self::recover), from the very unit at `at` on, or where the next one would stand.
    pub async fn recover_from(&self, mut at: u64, mut keep: impl FnMut(u64, &Unit) -> bool) -> Result<(), StoreError> {
        let (mut start, mut end) = (self.start(at), at);
        'files: loop {
            let stop = self.units_end(start);
            while at < stop {
                let mut window = Window::<I::File>::default();
                let to = stop.min(at + WINDOW_BYTES / UNIT_BYTES as u64 * UNIT_BYTES as u64);
                self.fill(&mut window, at, to).await?;
                while at < to {
                    match window.get(at).and_then(Unit::decode) {
                        Some(unit) if keep(at, &unit) => at += UNIT_BYTES as u64,
                        _ => break 'files,
                    }
                    end = at;
                    self.note_unsynced(start); // a killed process may not have synced it
                }
            }
            start += self.file_bytes;
            at = start;
        }
        self.end.set(end);
        self.cut().await
    }

    /// The unit in front of `at` and its position; `None` when `at` is no unit's place or none stands there. Also before
    /// [`recover`](Self::recover).
    pub async fn found_before(&self, at: u64) -> Result<Option<(u64, Unit)>, StoreError> {
        let aligned = (at - self.start(at)).is_multiple_of(UNIT_BYTES as u64);
        let Some(before) = self.before(at).filter(|_| aligned && at <= self.units_end(self.start(at))) else {
            return Ok(None);
        };
        let mut window = Window::default();
        self.fill(&mut window, before, before + UNIT_BYTES as u64).await?;
        Ok(window.get(before).and_then(Unit::decode).map(|unit| (before, unit)))
    }

    /// Removes what stands behind the end.
    async fn cut(&self) -> Result<(), StoreError> {
        let end = self.end.get();
        let start = self.start(end);
        let names = match self.io.list(&self.dir).await {
            Ok(names) => names,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(failed("list", &self.dir, e)),
        };
        for name in names {
            let path = self.dir.join(&name);
            match start_of(&name) {
                Some(other) if other > start => {
                    self.io.remove(&path).await.map_err(|e| failed("remove", &path, e))?;
                }
                Some(other) if other == start => {
                    let file = self.open_file(&path, Access::Write).await?;
                    let len = file.len().await.map_err(|e| failed("stat", &path, e))?;
                    if len > end - start {
                        file.punch_hole(end - start, len).await.map_err(|e| failed("clear", &path, e))?;
                        file.sync().await.map_err(|e| failed("sync", &path, e))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Position of the unit in front of `at`, in the same file or the one before.
    pub fn before(&self, at: u64) -> Option<u64> {
        let start = self.start(at);
        let before = match at == start {
            true => self.units_end(start.checked_sub(self.file_bytes)?),
            false => at,
        };
        before.checked_sub(UNIT_BYTES as u64).filter(|at| *at >= self.first.get())
    }

    /// Removes the oldest files whose units all lead below `min`, but never the newest.
    pub async fn retire(&self, min: PhyOffset) -> Result<(), StoreError> {
        loop {
            let first = self.first.get();
            if first + self.file_bytes > self.start(self.end.get()) {
                return Ok(());
            }
            let last = self.units_end(first) - UNIT_BYTES as u64;
            let unit = self.unit(last, &mut Window::default()).await?;
            if unit.is_some_and(|unit| unit.phy >= min) {
                return Ok(());
            }
            let path = self.path(first);
            match self.io.remove(&path).await {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed("remove", &path, e)),
                _ => self.first.set(first + self.file_bytes),
            }
        }
    }
}

fn start_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok())?
}

fn push(unwritten: &mut Vec<(u64, Vec<u8>)>, at: u64, bytes: &[u8]) {
    match unwritten.last_mut() {
        Some((from, stretch)) if *from + stretch.len() as u64 == at => stretch.extend_from_slice(bytes),
        _ => unwritten.push((at, bytes.to_vec())),
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::{Faults, SimIo, block_on};

    /// Three units that Apache's broker 5.5.0 wrote: a first one, one with another before it, one that rolls and one that deletes.
    const GOLDEN: [&str; 4] = [
        "00000034ffffffffffffffff00000001000001a22c943868000003e800000000000000f70000015b000000540000000000000000",
        "00000034000000000000003400000001000001a22c943868000007d000000000000003b100000175000000540000000000000000",
        "00000034ffffffffffffffff00000003000001a22c9438680a4cb8000000000000000edb00000165000000540000000000000000",
        "00000034000000000000013800000005000001a22c9438680036ee8000000000000012dd00000195000000540000000000000000",
    ];

    fn bytes_of(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn unit(phy: u64, prev: Option<u64>) -> Unit {
        Unit { prev, magic: PLAIN, write_ms: 1000, delay_ms: 5000, phy: PhyOffset(phy), bytes: 100, topic_hash: 84 }
    }

    fn log(io: &SimIo, file_bytes: u64) -> TimerLog<SimIo> {
        block_on(TimerLog::open(io.clone(), "/s/timerlog".into(), file_bytes)).unwrap()
    }

    fn disk(seed: u64) -> SimIo {
        let io = SimIo::new(seed, Faults::none());
        io.plant_dir(Path::new("/s"));
        io
    }

    #[test]
    fn units_are_apaches() {
        let units: Vec<Unit> = GOLDEN.iter().map(|hex| Unit::decode(&bytes_of(hex)).unwrap()).collect();
        for (unit, hex) in units.iter().zip(GOLDEN) {
            assert_eq!(unit.encode().as_slice(), bytes_of(hex));
        }
        let first = Unit {
            prev: None,
            magic: PLAIN,
            write_ms: 1_796_044_241_000,
            delay_ms: 1000,
            phy: PhyOffset(0xF7),
            bytes: 0x15B,
            topic_hash: 84,
        };
        assert_eq!((units[0], units[0].slot_ms()), (first, 1_796_044_242_000));
        assert_eq!(units[1].prev, Some(52));
        assert!(units[2].rolls() && !units[2].deletes() && units[3].deletes() && !units[3].rolls());
        assert_eq!(units[2].delay_ms, 172_800_000, "two days, the window");
        for odd in [&[][..], &[0; 52], &[0xFF; 52], &bytes_of(GOLDEN[0])[..51]] {
            assert_eq!(Unit::decode(odd), None);
        }
    }

    #[test]
    fn what_is_synced_has_its_name_also_after_a_kill_in_the_middle() {
        let io = disk(1);
        let made = log(&io, 520);
        made.append(&unit(1, None));
        block_on(made.write()).unwrap();
        block_on(made.sync()).unwrap();
        let synced = |io: &SimIo| {
            for choice in 0..8 {
                let left = io.after_crash_of(choice).contents(Path::new("/s/timerlog/00000000000000000000"));
                assert!(left.is_some(), "power cut {choice}");
            }
        };
        synced(&io);
        // Killed before its name was durable: the next process finds a file of full length.
        let io = disk(1);
        io.plant_dir(Path::new("/s/timerlog"));
        let unnamed = io.after_kill();
        let file = block_on(
            unnamed.open(Path::new("/s/timerlog/00000000000000000000"), Open { access: Access::Create, direct: false }),
        );
        block_on(file.unwrap().set_len(520)).unwrap();
        let again = log(&unnamed.after_kill(), 520);
        again.append(&unit(1, None));
        block_on(again.write()).unwrap();
        block_on(again.sync()).unwrap();
        synced(&again.io);
    }

    #[test]
    fn a_file_ends_with_a_blank_and_the_next_one_begins() {
        let io = disk(1);
        let small = log(&io, 3 * 52 + 16 + 7);
        let positions: Vec<u64> = (0..7).map(|n| small.append(&unit(n, None))).collect();
        assert_eq!(positions, [0, 52, 104, 179, 231, 283, 358]);
        block_on(small.write()).unwrap();
        block_on(small.sync()).unwrap();
        let first = io.contents(Path::new("/s/timerlog/00000000000000000000")).unwrap();
        assert_eq!(first.len(), 179);
        assert_eq!(first[156..172], [0, 0, 0, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0xCB, 0xD4, 0x31, 0x94]);
        let again = log(&io.after_crash(), 179);
        let mut seen = Vec::new();
        let keep = |at, unit: &Unit| {
            seen.push((at, unit.phy.0));
            true
        };
        block_on(again.recover(0, keep)).unwrap();
        assert_eq!(seen, positions.iter().copied().zip(0..).collect::<Vec<_>>());
        assert_eq!(again.end(), 410);
        assert_eq!((again.before(179), again.before(231), again.before(0)), (Some(104), Some(179), None));
        for (n, at) in positions.iter().enumerate() {
            let found = block_on(again.unit(*at, &mut Window::default())).unwrap().unwrap();
            assert_eq!(found.phy.0, n as u64);
        }
        // Apache's numbers: 2,016,491 units of 52 in a file of 100 MiB, the last one at 104,857,532.
        let full = log(&disk(1), 104_857_600);
        assert_eq!(full.units_end(0) - 52, 104_857_532);
    }

    #[test]
    fn a_walk_ends_where_it_is_told_and_clears_what_is_behind() {
        let io = disk(2);
        let small = log(&io, 179);
        for n in 0..5 {
            small.append(&unit(n * 100, None));
        }
        block_on(small.write()).unwrap();
        let cut = log(&io, 179);
        block_on(cut.recover(0, |_, unit| unit.phy.0 < 150)).unwrap();
        assert_eq!(cut.end(), 104);
        assert!(io.contents(Path::new("/s/timerlog/00000000000000000179")).is_none());
        let first = io.contents(Path::new("/s/timerlog/00000000000000000000")).unwrap();
        assert!(first[104..].iter().all(|b| *b == 0), "an old unit behind a new one would be taken for a newer");
        assert_eq!(cut.append(&unit(7, None)), 104);
        block_on(cut.write()).unwrap();
        let last = log(&io, 179);
        block_on(last.recover(500, |_, _| true)).unwrap();
        assert_eq!(last.end(), 500 - 500 % 179, "a walk from behind the end finds none, and cuts there");
    }

    #[test]
    fn files_below_the_log_go_and_the_newest_stays() {
        let io = disk(3);
        let small = log(&io, 179);
        for n in 0..9 {
            small.append(&unit(n * 100, None));
        }
        block_on(small.write()).unwrap();
        block_on(small.retire(PhyOffset(200))).unwrap();
        assert_eq!(small.first(), 0, "the last unit of the first file leads to 200");
        block_on(small.retire(PhyOffset(201))).unwrap();
        assert_eq!(small.first(), 179);
        block_on(small.retire(PhyOffset(10_000))).unwrap();
        assert_eq!(small.first(), 358);
        assert_eq!(block_on(small.unit(0, &mut Window::default())).unwrap(), None);
        assert_eq!(log(&io, 179).first(), 358);
    }
}
