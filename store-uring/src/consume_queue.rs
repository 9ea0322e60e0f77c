//! A queue's index of 20-byte entries. Entries wait in memory until `flush`; the newest stay there for hot pulls.
//! Used by the queue's owner shard, and by recovery. Source: store-format sheet 4.
//!
//! Entry n of the queue stands at byte 20n of the sequence of its files; each file is named by its first byte, sparse and of full
//! length from the start. In the first file, the slots before the first entry are holes. Their bytes: [`entry`].
//!
//! In a batch queue ([`Form::Batch`]) entries stand one after the other whatever their numbers are: *slots* count entries, offsets count
//! messages. In the other queues both are the same.
mod entry;
pub mod extension;
mod units;

pub use entry::{BATCH_COUNT_MAX, BATCH_ENTRY_BYTES, Bounds, ENTRY_BYTES, Entry, Form};

use crate::StoreError;
use crate::io::{Access, File, Io, Open, write_all};
use crate::seeded::{Bug, bug};
use crate::turn::Turn;
use extension::{Extension, Unit};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uringmq_proto::types::{PhyOffset, QueueOffset};

/// Entries kept in memory after they are in a file.
const RECENT_MAX: usize = 1024;
/// Entries of one read of a file: 64 KiB, so that sequential pulls of 32 read once in a hundred.
const CHUNK_ENTRIES: u64 = 3276;
/// Chunks kept, so that two groups far apart do not push each other out.
const CHUNKS: usize = 2;
/// With more files to sync than this, syncing the filesystem is faster: a sync of one is a commit of its journal, milliseconds.
const SYNC_ONE_BY_ONE_MAX: usize = 16;
/// Entries of one write: 512 KiB.
const WRITE_ENTRIES: u64 = 26_214;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    Done,
    /// Below the queue's end: it is there already.
    Known,
    /// Above the queue's end; nothing was added.
    Gap {
        expected: QueueOffset,
    },
}

/// All methods take `&self` and borrow nothing across an await, so a shard keeps it in an `Rc`.
pub struct ConsumeQueue<I: Io> {
    io: I,
    form: Form,
    dir: PathBuf,
    file_bytes: u64,
    /// `None` where nobody said where it is: no unit is read or written then.
    extension: Option<Extension<I>>,
    /// Of whoever changes files.
    turn: Turn,
    state: RefCell<State<I::File>>,
}

struct State<F: File> {
    form: Form,
    /// Slots of the first entry and behind the last; and the offsets that belong to them.
    min: u64,
    max: u64,
    min_offset: u64,
    max_offset: u64,
    /// The entries up to slot `max`, at least those that are in no file yet.
    recent: VecDeque<Entry>,
    /// Units of entries in `recent`, with their slots.
    units: VecDeque<(u64, Unit)>,
    /// Entries of slots below are in the files.
    written: u64,
    /// Starts of files written since they were synced.
    unsynced: Vec<u64>,
    names_unsynced: bool,
    dir_made: bool,
    /// A sync failed: what the files hold is unknown, and no later sync may claim it.
    failed: bool,
    destroyed: bool,
    /// Appended to or read since [`ConsumeQueue::rest`].
    used: bool,
    writer: Option<(u64, Rc<F>)>,
    reader: Option<(u64, Rc<F>)>,
    chunks: VecDeque<Chunk<F>>,
}

/// Entries as they were read.
struct Chunk<F: File> {
    /// Slot of the first.
    from: u64,
    count: u64,
    bytes: F::Buf,
}

impl<F: File> State<F> {
    fn recent_from(&self) -> u64 {
        self.max - self.recent.len() as u64
    }
    fn trim_recent(&mut self, keep: usize) {
        let droppable = (self.written.saturating_sub(self.recent_from())) as usize;
        let drop = self.recent.len().saturating_sub(keep).min(droppable);
        self.recent.drain(..drop);
        self.trim_units();
    }
    /// From memory; false when the first one is not there.
    fn read_memory(&self, from: u64, count: u64, out: &mut Vec<Entry>) -> bool {
        if from >= self.recent_from() {
            let first = (from - self.recent_from()) as usize;
            let last = (first + count as usize).min(self.recent.len());
            out.extend(self.recent.range(first..last));
            return true;
        }
        let Some(chunk) = self.chunks.iter().find(|c| (c.from..c.from + c.count).contains(&from)) else { return false };
        let first = (from - chunk.from) as usize;
        let last = (first as u64 + count).min(chunk.count) as usize;
        let (form, size) = (self.form, self.form.entry_bytes());
        let bytes = chunk.bytes.as_ref()[first * size..last * size].chunks_exact(size);
        out.extend(
            bytes
                .zip(from..)
                .map(|(b, slot)| form.decode(slot, b).unwrap_or(Entry { base: slot, ..Entry::hole(PhyOffset(0)) })),
        );
        true
    }
    /// The slot of the entry that holds the message at `offset`, when memory can tell.
    fn slot_in_memory(&self, offset: u64) -> Option<u64> {
        if self.form == Form::Plain {
            return Some(offset);
        }
        if self.recent.front().is_some_and(|first| first.base <= offset) {
            return Some(self.recent_from() + self.recent.partition_point(|e| e.end() <= offset) as u64);
        }
        let size = self.form.entry_bytes();
        self.chunks.iter().find_map(|chunk| {
            let at = |n: u64| self.form.decode(chunk.from + n, &chunk.bytes.as_ref()[n as usize * size..][..size]);
            let holds = at(0)?.base <= offset && offset < at(chunk.count - 1)?.end();
            let (mut low, mut high) = (0, chunk.count);
            while holds && low < high {
                let middle = low + (high - low) / 2;
                match at(middle)?.end() <= offset {
                    true => low = middle + 1,
                    false => high = middle,
                }
            }
            holds.then_some(chunk.from + low)
        })
    }
    fn bounds(&self) -> Bounds {
        Bounds { min: QueueOffset(self.min_offset), max: QueueOffset(self.max_offset), first: self.min, end: self.max }
    }
    fn touched(&mut self, start: u64) {
        if !self.unsynced.contains(&start) {
            self.unsynced.push(start);
        }
    }
    fn forget_files(&mut self) {
        self.writer = None;
        self.reader = None;
        self.chunks.clear();
    }
}

/// 20 digits of the offset of the file's first byte.
pub(crate) fn file_name(start: u64) -> String {
    format!("{start:020}")
}

/// The offset that a name of 20 digits says.
pub(crate) fn file_start(name: &Path) -> Option<u64> {
    let name = name.to_str()?;
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok()).flatten()
}

const READ: Open = Open { access: Access::Read, direct: false };
const WRITE: Open = Open { access: Access::Write, direct: false };
const CREATE: Open = Open { access: Access::Create, direct: false };

impl<I: Io> ConsumeQueue<I> {
    /// `dir` is `consumequeue/<topic>/<queue>`, made when the first flush writes. `min`..`max` as recovery found them.
    pub fn new(io: I, dir: PathBuf, file_bytes: u64, min: QueueOffset, max: QueueOffset) -> Self {
        ConsumeQueue::of_form(Form::Plain, io, dir, file_bytes, Bounds::plain(min, max))
    }
    /// As `new`; of a batch queue `dir` is `batchconsumequeue/<topic>/<queue>`.
    pub fn of_form(form: Form, io: I, dir: PathBuf, file_bytes: u64, bounds: Bounds) -> Self {
        assert!(file_bytes > 0 && file_bytes.is_multiple_of(form.entry_bytes() as u64), "a file holds whole entries");
        assert!(bounds.min <= bounds.max && bounds.first <= bounds.end, "queue {bounds:?}");
        let state = State {
            form,
            min: bounds.first,
            max: bounds.end,
            min_offset: bounds.min.0,
            max_offset: bounds.max.0,
            recent: VecDeque::new(),
            units: VecDeque::new(),
            written: bounds.end,
            unsynced: Vec::new(),
            names_unsynced: false,
            dir_made: false,
            failed: false,
            destroyed: false,
            used: true,
            writer: None,
            reader: None,
            chunks: VecDeque::new(),
        };
        ConsumeQueue { io, form, dir, file_bytes, extension: None, turn: Turn::default(), state: RefCell::new(state) }
    }
    /// With entries that recovery could not write, the last ones up to `max`: the next flush tries again.
    pub fn with_pending(form: Form, io: I, dir: PathBuf, file_bytes: u64, bounds: Bounds, pending: &[Entry]) -> Self {
        let queue = ConsumeQueue::of_form(form, io, dir, file_bytes, bounds);
        {
            let mut s = queue.state.borrow_mut();
            s.recent.extend(pending);
            s.written = bounds.end.checked_sub(pending.len() as u64).expect("each has its slot");
        }
        queue
    }
    pub fn form(&self) -> Form {
        self.form
    }
    pub fn bounds(&self) -> Bounds {
        self.state.borrow().bounds()
    }
    /// The entries that are in no file yet.
    pub(crate) fn pending(&self) -> Vec<Entry> {
        let s = self.state.borrow();
        let written = s.written.saturating_sub(s.recent_from()) as usize;
        s.recent.range(written.min(s.recent.len())..).copied().collect()
    }
    pub fn min(&self) -> QueueOffset {
        QueueOffset(self.state.borrow().min_offset)
    }
    /// The next offset to be appended.
    pub fn max(&self) -> QueueOffset {
        QueueOffset(self.state.borrow().max_offset)
    }
    /// Has a queue that never had an entry begin at `at`: the first record that this store has of it. False when it had one.
    pub fn begin_at(&self, at: QueueOffset) -> bool {
        let mut s = self.state.borrow_mut();
        let fresh = s.max_offset == 0;
        if fresh {
            let bounds = Bounds::empty(self.form, at);
            (s.min_offset, s.max_offset) = (at.0, at.0);
            (s.min, s.max, s.written) = (bounds.first, bounds.end, bounds.end);
        }
        fresh
    }
    /// Appends the entry of the record whose first message has the offset `at`.
    pub fn append(&self, at: QueueOffset, entry: Entry) -> Appended {
        assert!(entry.count == 1 || self.form == Form::Batch && entry.count > 0, "{} messages", entry.count);
        let mut s = self.state.borrow_mut();
        s.used = true;
        match at.0.cmp(&s.max_offset) {
            std::cmp::Ordering::Less => Appended::Known,
            std::cmp::Ordering::Greater => Appended::Gap { expected: QueueOffset(s.max_offset) },
            std::cmp::Ordering::Equal => {
                let entry = Entry { base: at.0, ..entry };
                s.recent.push_back(entry);
                s.max += 1;
                s.max_offset = entry.end();
                Appended::Done
            }
        }
    }
    /// Appends up to `count` entries, from the one that holds the message at `from` on, to `out` when all of them are in memory; false (and
    /// nothing added) when the files must be read. Nothing, and true, when `from` lies outside `min..max`.
    pub fn read_hot(&self, from: QueueOffset, count: usize, out: &mut Vec<Entry>) -> bool {
        let before = out.len();
        let all = {
            let mut s = self.state.borrow_mut();
            s.used = true;
            if !(s.min_offset..s.max_offset).contains(&from.0) {
                return true;
            }
            let Some(slot) = s.slot_in_memory(from.0) else { return false };
            let count = (count as u64).min(s.max - slot);
            s.read_memory(slot, count, out) && (out.len() - before) as u64 == count
        };
        let all = all && self.resolve_hot(&mut out[before..]);
        if !all {
            out.truncate(before);
        }
        all
    }
    /// As `read_hot`, from memory or the files. May give fewer at a file's end, never none while `from` lies in `min..max`. A slot that
    /// should hold an entry and does not is given as a hole.
    pub async fn read(&self, from: QueueOffset, count: usize, out: &mut Vec<Entry>) -> Result<(), StoreError> {
        let before = out.len();
        self.read_entries(from, count, out).await?;
        self.resolve(&mut out[before..]).await
    }
    /// As they stand in the files.
    async fn read_entries(&self, from: QueueOffset, count: usize, out: &mut Vec<Entry>) -> Result<(), StoreError> {
        let known = {
            let mut s = self.state.borrow_mut();
            s.used = true;
            if !(s.min_offset..s.max_offset).contains(&from.0) || count == 0 {
                return Ok(());
            }
            s.slot_in_memory(from.0)
        };
        let from = match known {
            Some(slot) => slot,
            None => self.slot_of(from.0).await?,
        };
        let size = self.form.entry_bytes() as u64;
        let (at, start, wanted) = {
            let s = self.state.borrow();
            if !(s.min..s.max).contains(&from) {
                return Ok(()); // trimmed or destroyed meanwhile
            }
            if s.read_memory(from, (count as u64).min(s.max - from), out) {
                return Ok(());
            }
            let at = from * size;
            let start = at - at % self.file_bytes;
            let file_end = (start + self.file_bytes) / size;
            (at, start, CHUNK_ENTRIES.min(s.written - from).min(file_end - from))
        };
        let file = self.reader(start).await?;
        let bytes = file.read_at(at - start, (wanted * size) as usize).await;
        let bytes = bytes.map_err(|e| self.failed("read", start, e))?;
        let got = bytes.as_ref().len() as u64 / size;
        if got == 0 {
            return Err(self.failed("read", start, ErrorKind::UnexpectedEof.into()));
        }
        let mut s = self.state.borrow_mut();
        if !(s.min..s.max).contains(&from) {
            return Ok(()); // trimmed or destroyed meanwhile
        }
        if s.chunks.len() == CHUNKS {
            s.chunks.pop_front();
        }
        s.chunks.push_back(Chunk { from, count: got, bytes });
        let found = s.chunks.len() - 1;
        s.chunks.swap(0, found); // `read_memory` takes the first that has it: the newest
        s.read_memory(from, count as u64, out);
        s.chunks.swap(0, found);
        Ok(())
    }
    /// The entry that holds the message at `offset` (or the next one): its first offset and its slot.
    pub(crate) async fn place_of(&self, offset: QueueOffset) -> Result<(QueueOffset, u64), StoreError> {
        let slot = self.slot_of(offset.0).await?;
        let bounds = self.bounds();
        if self.form == Form::Plain || slot >= bounds.end {
            return Ok((offset.min(bounds.max), slot));
        }
        let base = self.entry(slot).await?.map_or(bounds.max, |e| QueueOffset(e.base));
        Ok((base, slot))
    }
    /// The slot of the entry that holds the message at `offset`, or of the next one.
    async fn slot_of(&self, offset: u64) -> Result<u64, StoreError> {
        let (mut low, mut high) = {
            let s = self.state.borrow();
            (s.min, s.max)
        };
        if self.form == Form::Plain {
            return Ok(offset.clamp(low, high));
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle).await?.is_none_or(|e| e.end() <= offset) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }
    pub fn dirty(&self) -> bool {
        self.unflushed() > 0
    }
    /// Entries that are in memory only.
    pub fn unflushed(&self) -> u64 {
        let s = self.state.borrow();
        s.max - s.written
    }
    /// Written entries that no sync has covered, or names.
    pub fn unsynced(&self) -> bool {
        let s = self.state.borrow();
        let extension = self.extension.as_ref().is_some_and(Extension::unsynced);
        extension || !s.unsynced.is_empty() || s.names_unsynced || s.failed
    }
    /// Writes pending entries to the files, without sync. One flush at a time per queue.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        let size = self.form.entry_bytes();
        loop {
            let (from, start) = {
                let s = self.state.borrow();
                if s.destroyed || s.written == s.max {
                    return Ok(());
                }
                let at = s.written * size as u64;
                (s.written, at - at % self.file_bytes)
            };
            let file = self.writer(start, from).await?;
            let file_end = (start + self.file_bytes) / size as u64;
            let count = (self.state.borrow().max - from).min(file_end - from).min(WRITE_ENTRIES);
            self.place_units(from, count).await?;
            let buf = {
                let s = self.state.borrow();
                let mut buf = file.buffer(count as usize * size);
                let first = (from - s.recent_from()) as usize;
                let entries = s.recent.range(first..first + count as usize);
                for (place, entry) in buf.as_mut().chunks_exact_mut(size).zip(entries) {
                    self.form.encode(entry, place);
                }
                buf
            };
            self.state.borrow_mut().touched(start);
            let at = from * size as u64 - start;
            write_all(&*file, at, buf).await.0.map_err(|e| self.failed("write", start, e))?;
            let mut s = self.state.borrow_mut();
            s.written = from + count;
            s.trim_recent(RECENT_MAX);
        }
    }
    /// Syncs the files written since the last sync (and their directory when a file was made). After a failed sync every later one
    /// is `Poisoned`: what the failed one covered may be lost, and is rebuilt at the next start.
    pub async fn sync(&self) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        if self.state.borrow().failed {
            let at = PhyOffset(self.state.borrow().written * self.form.entry_bytes() as u64);
            return Err(StoreError::Poisoned { op: "sync of a queue", at });
        }
        if let Some(extension) = &self.extension
            && let Err(e) = extension.sync().await
        {
            self.state.borrow_mut().failed = true;
            return Err(e);
        }
        let files = self.state.borrow().unsynced.clone();
        for start in files {
            let held = self.state.borrow().writer.clone().filter(|(held, _)| *held == start);
            let file = match held {
                Some((_, file)) => file,
                None => {
                    let path = self.path(start);
                    Rc::new(self.io.open(&path, WRITE).await.map_err(|e| self.failed("open", start, e))?)
                }
            };
            if let Err(e) = file.datasync().await {
                self.state.borrow_mut().failed = true;
                return Err(self.failed("sync", start, e));
            }
            self.state.borrow_mut().unsynced.retain(|s| *s != start);
        }
        let (names, made) = {
            let s = self.state.borrow();
            (s.names_unsynced, s.dir_made)
        };
        if names {
            // Up to the store's root: what is made for the first batch queue has a name there.
            let dirs = self.dir.ancestors().take(if made { 4 } else { 1 });
            for dir in dirs {
                match self.io.sync_dir(dir).await {
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::NotFound => {} // nothing was written yet
                    Err(source) => return Err(StoreError::File { op: "sync", path: dir.to_owned(), source }),
                }
            }
            let mut s = self.state.borrow_mut();
            s.names_unsynced = false;
            s.dir_made = false;
        }
        Ok(())
    }
    /// Syncs many queues of one store, whose root or a directory below it is `dir`: those that need it one by one when they are few, else
    /// the whole filesystem at once. Errors as `sync`.
    pub async fn sync_many(io: &I, dir: &Path, queues: &[&ConsumeQueue<I>]) -> Result<(), StoreError> {
        let unsynced: Vec<_> = queues.iter().filter(|q| q.unsynced()).collect();
        if unsynced.len() <= SYNC_ONE_BY_ONE_MAX || unsynced.iter().any(|q| q.state.borrow().failed) {
            for q in unsynced {
                q.sync().await?;
            }
            return Ok(());
        }
        // What is written from here on counts as unsynced again.
        let mut taken = Vec::with_capacity(unsynced.len());
        for q in &unsynced {
            let _turn = q.turn.take().await;
            let mut s = q.state.borrow_mut();
            let extension = q.extension.as_ref().map(Extension::take_unsynced);
            taken.push((std::mem::take(&mut s.unsynced), s.names_unsynced, s.dir_made, extension));
            (s.names_unsynced, s.dir_made) = (false, false);
        }
        let synced = io.sync_all(dir).await;
        if synced.is_err() {
            for (q, (files, names, made, extension)) in unsynced.iter().zip(taken) {
                if let (Some(of), Some(taken)) = (&q.extension, extension) {
                    of.give_back(taken);
                }
                let mut s = q.state.borrow_mut();
                files.into_iter().for_each(|start| s.touched(start));
                s.names_unsynced |= names;
                s.dir_made |= made;
                s.failed = true;
            }
        }
        synced.map_err(|source| StoreError::File { op: "sync", path: dir.to_owned(), source })
    }
    /// The log now starts at `log_min`: removes files wholly below, raises `min` to the first entry at or above it.
    pub async fn trim(&self, log_min: PhyOffset) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        let starts = self.file_starts().await?;
        let mut first_kept = 0;
        let size = self.form.entry_bytes() as u64;
        for pair in starts.windows(2) {
            let last = (pair[0] + self.file_bytes) / size - 1;
            if last >= self.state.borrow().written || self.entry_of_file(last).await?.is_some_and(|e| e.phy >= log_min)
            {
                break;
            }
            self.remove_file(pair[0]).await?;
            first_kept = pair[1] / size;
        }
        let (mut low, mut high) = {
            let s = self.state.borrow();
            (s.min.max(first_kept), s.max)
        };
        // Entries stand in the order of the log: below `low` all lead below it, from `high` on none does.
        let mut probe = low;
        while low < high {
            let entry = self.entry(probe).await?;
            if entry.is_none_or(|e| e.phy < log_min) {
                low = probe + 1;
            } else {
                high = probe;
            }
            probe = low + (high - low) / 2;
        }
        let first = if low < self.state.borrow().max { self.entry(low).await? } else { None };
        if let (Some(extension), Some(first)) = (&self.extension, first.filter(|first| first.unit != 0)) {
            extension.trim(first.unit).await?;
        }
        let mut s = self.state.borrow_mut();
        s.min = s.min.max(low).min(s.max);
        let min_offset = match self.form {
            Form::Plain => s.min,
            Form::Batch => first.map_or(s.max_offset, |e| e.base),
        };
        s.min_offset = s.min_offset.max(min_offset);
        Ok(())
    }
    /// The queue ends at `max` now, in memory and in its files, where zeros follow. For recovery: nothing else may be under way. The next
    /// `sync` covers the names too, since a process that was killed may have made them without.
    pub async fn cut(&self, max: QueueOffset) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        let end = match self.state.borrow().bounds() {
            bounds if bounds.max == max => Some(bounds.end),
            _ if self.form == Form::Plain => Some(max.0),
            _ if max.0 == 0 => Some(0),
            _ => None,
        };
        let end = match end {
            Some(end) => end,
            None => self.slot_of(max.0).await?,
        };
        {
            let mut s = self.state.borrow_mut();
            assert!(max.0 <= s.max_offset && end <= s.max, "cut at {max}, end {}", s.max_offset);
            let keep = (end.saturating_sub(s.recent_from())) as usize;
            s.recent.truncate(keep);
            s.units.retain(|(slot, _)| *slot < end);
            (s.max, s.max_offset) = (end, max.0);
            (s.min, s.min_offset) = (s.min.min(end), s.min_offset.min(max.0));
            s.written = s.written.min(end);
            s.forget_files();
            s.names_unsynced = true;
            s.dir_made = true;
        }
        if let Some(extension) = &self.extension {
            match end {
                0 => extension.clear().await?,
                _ => extension.forget(),
            }
        }
        let at = end * self.form.entry_bytes() as u64;
        for start in self.file_starts().await?.into_iter().rev() {
            if start >= at {
                self.remove_file(start).await?;
                continue;
            }
            if start + self.file_bytes > at && !bug(Bug::QueueTailKept) {
                let file = self.io.open(&self.path(start), WRITE).await.map_err(|e| self.failed("open", start, e))?;
                // Never shorter in between: after a crash, a file of another length is damage and is built again whole.
                file.punch_hole(at - start, self.file_bytes).await.map_err(|e| self.failed("zero", start, e))?;
                self.state.borrow_mut().touched(start);
            }
            break;
        }
        Ok(())
    }
    /// Removes all files (topic deleted). What is appended afterwards is never written.
    pub async fn destroy(&self) -> Result<(), StoreError> {
        self.state.borrow_mut().destroyed = true;
        let _turn = self.turn.take().await;
        for start in self.file_starts().await? {
            self.remove_file(start).await?;
        }
        if let Some(extension) = &self.extension {
            extension.destroy().await?;
        }
        {
            let mut s = self.state.borrow_mut();
            s.forget_files();
            s.recent = VecDeque::new();
            s.units = VecDeque::new();
            (s.min, s.min_offset) = (s.max, s.max_offset);
            s.written = s.max;
            s.unsynced.clear();
            s.names_unsynced = false;
        }
        let mut dirs = self.dir.ancestors();
        for _ in 0..2 {
            let dir = dirs.next().expect("a queue lies two directories deep");
            match self.io.remove_dir(dir).await {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => break,
                Err(source) => return Err(StoreError::File { op: "remove", path: dir.to_owned(), source }),
            }
        }
        let parent = dirs.next().expect("a queue lies below the store");
        match self.io.sync_dir(parent).await {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(StoreError::File { op: "sync", path: parent.to_owned(), source: e })
            }
            _ => Ok(()),
        }
    }
    /// Approximate bytes held in memory.
    pub fn memory_bytes(&self) -> usize {
        let s = self.state.borrow();
        let chunks: usize = s.chunks.iter().map(|c| c.count as usize * self.form.entry_bytes()).sum();
        s.recent.capacity() * size_of::<Entry>() + chunks + size_of::<Self>()
    }
    /// Gives back files and memory if nobody appended or read since the last call.
    pub fn rest(&self) {
        if !std::mem::replace(&mut self.state.borrow_mut().used, false) {
            self.shrink();
            self.close_idle();
        }
    }
    pub fn holds_files(&self) -> bool {
        let s = self.state.borrow();
        s.writer.is_some() || s.reader.is_some() || self.extension.as_ref().is_some_and(Extension::holds_files)
    }
    /// Gives back the memory of a queue that nobody uses: all but what is in no file yet.
    pub fn shrink(&self) {
        let mut s = self.state.borrow_mut();
        s.trim_recent(0);
        s.recent.shrink_to_fit();
        s.units.shrink_to_fit();
        s.chunks = VecDeque::new();
        self.extension.iter().for_each(Extension::shrink);
    }
    /// Closes the files of a queue that nobody uses; they are opened again when needed.
    pub fn close_idle(&self) {
        let mut s = self.state.borrow_mut();
        s.writer = None;
        s.reader = None;
        self.extension.iter().for_each(Extension::close);
    }

    fn path(&self, start: u64) -> PathBuf {
        self.dir.join(file_name(start))
    }
    fn failed(&self, op: &'static str, start: u64, source: std::io::Error) -> StoreError {
        StoreError::File { op, path: self.path(start), source }
    }
    /// Sorted; none when there is no directory yet.
    async fn file_starts(&self) -> Result<Vec<u64>, StoreError> {
        match self.io.list(&self.dir).await {
            Ok(names) => Ok(names.iter().filter_map(|name| file_start(name)).collect()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(StoreError::File { op: "list", path: self.dir.clone(), source }),
        }
    }
    async fn remove_file(&self, start: u64) -> Result<(), StoreError> {
        self.io.remove(&self.path(start)).await.map_err(|e| self.failed("remove", start, e))?;
        let mut s = self.state.borrow_mut();
        s.names_unsynced = true;
        s.unsynced.retain(|u| *u != start);
        if s.reader.as_ref().is_some_and(|(held, _)| *held == start) {
            s.reader = None;
        }
        if s.writer.as_ref().is_some_and(|(held, _)| *held == start) {
            s.writer = None;
        }
        Ok(())
    }
    async fn reader(&self, start: u64) -> Result<Rc<I::File>, StoreError> {
        {
            let s = self.state.borrow();
            let held = [&s.reader, &s.writer].into_iter().flatten().find(|(held, _)| *held == start);
            if let Some((_, file)) = held {
                return Ok(file.clone());
            }
        }
        let file = self.io.open(&self.path(start), READ).await.map_err(|e| self.failed("open", start, e))?;
        let file = Rc::new(file);
        self.state.borrow_mut().reader = Some((start, file.clone()));
        Ok(file)
    }
    /// The file that `from` is to be written to, made at full length when it is missing, with holes before `from` when nothing is.
    async fn writer(&self, start: u64, from: u64) -> Result<Rc<I::File>, StoreError> {
        if let Some((held, file)) = &self.state.borrow().writer
            && *held == start
        {
            return Ok(file.clone());
        }
        let path = self.path(start);
        let opened = match self.io.open(&path, CREATE).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let made = self.io.create_dir(&self.dir).await;
                made.map_err(|source| StoreError::File { op: "create", path: self.dir.clone(), source })?;
                self.state.borrow_mut().dir_made = true;
                self.io.open(&path, CREATE).await
            }
            other => other,
        };
        let file = Rc::new(opened.map_err(|e| self.failed("open", start, e))?);
        let bytes = file.len().await.map_err(|e| self.failed("stat", start, e))?;
        if bytes < self.file_bytes {
            self.state.borrow_mut().names_unsynced = true;
            file.set_len(self.file_bytes).await.map_err(|e| self.failed("extend", start, e))?;
        }
        let before = (from * self.form.entry_bytes() as u64 - start) as usize;
        if before > 0 && self.form == Form::Plain {
            let last = file.read_at((before - ENTRY_BYTES) as u64, ENTRY_BYTES).await;
            let last = last.map_err(|e| self.failed("read", start, e))?;
            if Entry::decode(last.as_ref()).is_none() {
                self.state.borrow_mut().touched(start);
                self.write_holes(&file, start, before).await?;
            }
        }
        self.state.borrow_mut().writer = Some((start, file.clone()));
        Ok(file)
    }
    async fn write_holes(&self, file: &I::File, start: u64, bytes: usize) -> Result<(), StoreError> {
        let mut at = 0;
        while at < bytes {
            let mut buf = file.buffer((bytes - at).min(WRITE_ENTRIES as usize * ENTRY_BYTES));
            let written = buf.as_ref().len();
            for place in buf.as_mut().chunks_exact_mut(ENTRY_BYTES) {
                Entry::hole(PhyOffset(0)).encode(place);
            }
            write_all(file, at as u64, buf).await.0.map_err(|e| self.failed("write", start, e))?;
            at += written;
        }
        Ok(())
    }
    /// The entry of any slot up to the end; `None` where none was written.
    async fn entry(&self, at: u64) -> Result<Option<Entry>, StoreError> {
        {
            let s = self.state.borrow();
            if at >= s.recent_from() {
                return Ok(s.recent.get((at - s.recent_from()) as usize).copied());
            }
        }
        self.entry_of_file(at).await
    }
    async fn entry_of_file(&self, at: u64) -> Result<Option<Entry>, StoreError> {
        let size = self.form.entry_bytes();
        let (slot, at) = (at, at * size as u64);
        let start = at - at % self.file_bytes;
        let file = self.reader(start).await?;
        let bytes = file.read_at(at - start, size).await.map_err(|e| self.failed("read", start, e))?;
        Ok(if bytes.as_ref().len() == size { self.form.decode(slot, bytes.as_ref()) } else { None })
    }
}

#[cfg(all(test, feature = "sim"))]
mod extension_tests;
#[cfg(all(test, feature = "sim"))]
mod tests;
