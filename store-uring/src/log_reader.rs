//! A shard's reader of the log: direct reads through a small block cache with read-ahead, shared by the pulls of that shard.
//!
//! Blocks lie on a grid of 512 KiB from each segment's start. A first read somewhere fetches a piece of its block; going on from
//! there, or coming from the block before, fetches the rest or the whole. Only bytes below the caller's limit are kept, since those
//! never change, except by the removal of their segment: then the open descriptor still answers, or an error does.
//!
//! Blocks are kept as copies in memory that is used again. Keeping the reads' own buffers costs more: they are registered with the
//! ring and few, and fresh ones are mapped, faulted in and unmapped by the system for each block (measured: 1.4 times the CPU).
use crate::batch::{align_down, align_up};
use crate::event::Event;
use crate::io::{ALIGN, Access, File, Io, Open, is_unreadable};
use crate::segment::{Places, store_error};
use crate::{StoreConfig, StoreError};
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use uringmq_proto::record::{self, Found, RECORD_BYTES_MIN, RecordError};
use uringmq_proto::types::PhyOffset;

/// Largest read; more has put processes to uninterruptible sleep on older kernels, and gains nothing.
const BLOCK_BYTES: u64 = 512 * 1024;
/// What a first, perhaps only, read at a place fetches.
const PIECE_BYTES: u64 = 64 * 1024;
/// Open segments kept per shard.
const FILES_MAX: usize = 64;
/// Memory of dropped blocks kept for the next ones.
const SPARE_MAX: usize = 4;
/// Blocks noted for read-ahead; a note that is never taken up is pushed out.
const AHEAD_MAX: usize = 8;

/// Cheap to keep one per shard. All methods take `&self`; nothing is borrowed across an await.
pub struct LogReader<I: Io> {
    io: I,
    places: Places,
    segment_bytes: u64,
    record_bytes_max: u64,
    cache_bytes_max: usize,
    min: Cell<u64>,
    /// Counts uses, for least recently used.
    uses: Cell<u64>,
    files: RefCell<Vec<Opened<I::File>>>,
    slots: RefCell<HashMap<u64, Slot>>,
    cached_bytes: Cell<usize>,
    spare: RefCell<Vec<Vec<u8>>>,
    ahead: RefCell<VecDeque<Ahead>>,
}

struct Opened<F> {
    start: u64,
    used: u64,
    file: Rc<F>,
}

/// What is known of one block of the grid.
struct Slot {
    used: u64,
    /// A reader (not only read-ahead) was here.
    touched: bool,
    block: Option<Block>,
    /// A read of it is in flight.
    loading: Option<Rc<Event>>,
}

/// Bytes of the log from `from` on, always inside one block of the grid.
struct Block {
    from: u64,
    bytes: Vec<u8>,
}

impl Block {
    fn to(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }

    fn holds(&self, at: u64) -> bool {
        self.from <= at && at < self.to()
    }
}

/// How to get at bytes that are not here.
enum Plan {
    Wait(Rc<Event>),
    Read { from: u64, to: u64 },
}

#[derive(Clone, Copy)]
struct Ahead {
    at: u64,
    limit: u64,
}

/// Takes the mark of a read in flight away however the read ends, also when its task is dropped.
struct Loading<'a, I: Io> {
    reader: &'a LogReader<I>,
    key: u64,
}

impl<I: Io> Drop for Loading<'_, I> {
    fn drop(&mut self) {
        let mut slots = self.reader.slots.borrow_mut();
        let Some(slot) = slots.get_mut(&self.key) else { return };
        let loading = slot.loading.take();
        if slot.block.is_none() {
            slots.remove(&self.key);
        }
        drop(slots);
        if let Some(loading) = loading {
            loading.happened();
        }
    }
}

impl<I: Io> LogReader<I> {
    pub fn new(io: I, config: &StoreConfig) -> Self {
        LogReader {
            io,
            places: Places::of(config),
            segment_bytes: config.segment_bytes,
            record_bytes_max: config.record_bytes_max as u64,
            cache_bytes_max: config.read_cache_bytes,
            min: Cell::new(0),
            uses: Cell::new(0),
            files: RefCell::new(Vec::new()),
            slots: RefCell::new(HashMap::new()),
            cached_bytes: Cell::new(0),
            spare: RefCell::new(Vec::new()),
            ahead: RefCell::new(VecDeque::new()),
        }
    }

    /// Appends the stored bytes of one record to `out`, checked (size, magic, CRC); `bytes` 0 = size unknown (by offset alone).
    /// `limit` is the mark up to which the log may be read. Errors: `OutOfRange`, `Corrupt`, `Io`; `out` is unchanged then.
    pub async fn read_record(
        &self,
        at: PhyOffset,
        bytes: u32,
        limit: PhyOffset,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let start = out.len();
        let done = self.read_checked(at.0, u64::from(bytes), limit.0, out).await;
        if done.is_err() {
            out.truncate(start);
        }
        done
    }

    async fn read_checked(&self, at: u64, bytes: u64, limit: u64, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let corrupt = |what| StoreError::Corrupt { at: PhyOffset(at), what };
        if at < self.min.get() || at >= limit || bytes > limit - at {
            return Err(StoreError::OutOfRange(PhyOffset(at)));
        }
        let start = out.len();
        let bytes = if bytes == 0 {
            if limit - at < RECORD_BYTES_MIN as u64 {
                return Err(StoreError::OutOfRange(PhyOffset(at)));
            }
            self.copy(at, 4, limit, out).await?;
            let size = out[start..].first_chunk().map_or(0, |size| u32::from_be_bytes(*size));
            out.truncate(start);
            u64::from(size)
        } else {
            bytes
        };
        let rest = (self.segment_end(at) - at).min(limit - at);
        if bytes < RECORD_BYTES_MIN as u64 || bytes > self.record_bytes_max.min(rest) {
            return Err(corrupt("impossible size"));
        }
        self.copy(at, bytes, limit, out).await?;
        match record::parse(&out[start..], true) {
            Ok(Found::Record(found)) if found.bytes as u64 != bytes => Err(corrupt("another size than its entry says")),
            Ok(Found::Record(found)) if found.phy_offset != at as i64 => Err(corrupt("another offset than its place")),
            Ok(Found::Record(_)) => Ok(()),
            Ok(Found::Blank { .. }) => Err(corrupt("a blank, not a record")),
            Err(RecordError::Crc { .. }) => Err(corrupt("body CRC does not match")),
            Err(RecordError::Short { .. }) => Err(corrupt("another size than its entry says")),
            Err(RecordError::Bad(what)) => Err(corrupt(what)),
        }
    }

    /// Raw bytes of a range (catch-up, recovery), up to `bytes`, cut at the segment's end and at `limit`.
    /// Errors: `OutOfRange`, `Corrupt` (the file ends early), `Io`.
    pub async fn read_range(&self, at: PhyOffset, bytes: usize, limit: PhyOffset) -> Result<Vec<u8>, StoreError> {
        if at.0 < self.min.get() || at >= limit {
            return Err(StoreError::OutOfRange(at));
        }
        let bytes = (bytes as u64).min(self.segment_end(at.0) - at.0).min(limit.0 - at.0);
        let mut out = Vec::with_capacity(bytes as usize);
        self.copy(at.0, bytes, limit.0, &mut out).await?;
        Ok(out)
    }

    /// Forgets everything below `min` (segments were removed). To be called before or right after the removal.
    pub fn trim(&self, min: PhyOffset) {
        self.min.set(self.min.get().max(min.0));
        self.files.borrow_mut().retain(|opened| opened.start + self.segment_bytes > min.0);
        let mut freed = 0;
        self.slots.borrow_mut().retain(|_, slot| match &slot.block {
            Some(block) if slot.loading.is_none() && block.to() <= min.0 => {
                freed += block.bytes.len();
                false
            }
            _ => true,
        });
        self.cached_bytes.set(self.cached_bytes.get() - freed);
    }

    /// The next block that a sequential reader will want and that is not here yet; have a task run [`LogReader::read_ahead`] then.
    pub fn wants_ahead(&self) -> Option<PhyOffset> {
        self.ahead.borrow().front().map(|ahead| PhyOffset(ahead.at))
    }

    /// Fetches the block noted first. An error is left for the reader who comes there.
    pub async fn read_ahead(&self) {
        let Some(Ahead { at, limit }) = self.ahead.borrow_mut().pop_front() else { return };
        if !self.slots.borrow().contains_key(&self.key(at)) {
            let _ = self.load(at, BLOCK_BYTES, limit).await;
        }
    }

    fn segment_start(&self, at: u64) -> u64 {
        at - at % self.segment_bytes
    }

    fn segment_end(&self, at: u64) -> u64 {
        self.segment_start(at) + self.segment_bytes
    }

    /// Start of the block of the grid in which `at` lies.
    fn key(&self, at: u64) -> u64 {
        let inside = at % self.segment_bytes;
        at - inside % BLOCK_BYTES
    }

    fn block_end(&self, key: u64) -> u64 {
        (key + BLOCK_BYTES).min(self.segment_end(key))
    }

    /// Appends `at..at+bytes`, all below `limit` and in one segment.
    async fn copy(&self, at: u64, bytes: u64, limit: u64, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let end = at + bytes;
        let mut at = at;
        while at < end {
            match self.copy_cached(at, end, limit, out) {
                0 => self.load(at, end - at, limit).await?,
                copied => at += copied,
            }
        }
        Ok(())
    }

    /// Appends what the block with `at` has of `at..end`; how many bytes, 0 when `at` is not here.
    fn copy_cached(&self, at: u64, end: u64, limit: u64, out: &mut Vec<u8>) -> u64 {
        let key = self.key(at);
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(&key) else { return 0 };
        let Some(block) = slot.block.as_ref().filter(|block| block.holds(at)) else { return 0 };
        let to = block.to().min(end);
        out.extend_from_slice(&block.bytes[(at - block.from) as usize..(to - block.from) as usize]);
        self.uses.set(self.uses.get() + 1);
        slot.used = self.uses.get();
        if !slot.touched {
            slot.touched = true;
            self.note_ahead(&slots, key, limit);
        }
        to - at
    }

    /// A reader who comes from the block before will go on to the next.
    fn note_ahead(&self, slots: &HashMap<u64, Slot>, key: u64, limit: u64) {
        let next = self.block_end(key);
        if next >= limit || slots.contains_key(&next) || !self.follows(slots, key) {
            return;
        }
        let mut ahead = self.ahead.borrow_mut();
        if ahead.iter().any(|noted| noted.at == next) {
            return;
        }
        if ahead.len() == AHEAD_MAX {
            ahead.pop_front();
        }
        ahead.push_back(Ahead { at: next, limit });
    }

    /// Whether the block before `key` was read to its end.
    fn follows(&self, slots: &HashMap<u64, Slot>, key: u64) -> bool {
        key > 0
            && slots.get(&self.key(key - 1)).and_then(|slot| slot.block.as_ref()).is_some_and(|block| block.to() == key)
    }

    /// Makes the block hold `at` (if the read succeeds, and it is not evicted at once); shares a read in flight.
    async fn load(&self, at: u64, want: u64, limit: u64) -> Result<(), StoreError> {
        let key = self.key(at);
        let (mut from, mut to) = match self.plan(key, at, want, limit) {
            Plan::Wait(loading) => {
                loading.next().await;
                return Ok(()); // the caller looks again
            }
            Plan::Read { from, to } => (from, to),
        };
        let loading = Loading { reader: self, key };
        let segment = self.segment_start(from);
        let file = self.file(segment, at).await?;
        let bytes = |from, to| (align_up(to).min(segment + self.segment_bytes) - from) as usize;
        let mut read = file.read_at(from - segment, bytes(from, to)).await;
        if read.as_ref().is_err_and(is_unreadable) {
            // Somewhere in there: what was asked for may be all right.
            (from, to) = (align_down(at), (at + want).min(self.block_end(key)).min(limit));
            read = file.read_at(from - segment, bytes(from, to)).await;
        }
        if read.as_ref().is_err_and(is_unreadable) && self.reads_elsewhere(&file, from - segment, to - segment).await {
            return Err(StoreError::Corrupt { at: PhyOffset(at), what: "a block of it cannot be read" });
        }
        let buf = read.map_err(|e| store_error("read", from, e))?;
        let read = buf.as_ref();
        let read = &read[..read.len().min((to - from) as usize)];
        if at >= from + read.len() as u64 {
            // A segment being removed shrinks while it is open.
            return Err(match self.min.get() > at {
                true => StoreError::OutOfRange(PhyOffset(at)),
                false => StoreError::Corrupt { at: PhyOffset(at), what: "the segment's file ends before it" },
            });
        }
        self.keep(key, from, read);
        drop(loading);
        self.evict(key);
        Ok(())
    }

    /// Whether the disk reads a block of this segment outside of `from..to`: then what it does not read there is damaged, and the disk is not
    /// gone, which would make damage of all.
    async fn reads_elsewhere(&self, file: &I::File, from: u64, to: u64) -> bool {
        let block = ALIGN as u64;
        for at in [0, self.segment_bytes - block] {
            if (at + block <= from || at >= align_up(to)) && file.read_at(at, ALIGN).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// What to read so that the block holds `at`, unless somebody does already; marks the read as in flight.
    fn plan(&self, key: u64, at: u64, want: u64, limit: u64) -> Plan {
        let mut slots = self.slots.borrow_mut();
        let follows = self.follows(&slots, key);
        let slot = slots.entry(key).or_insert(Slot { used: 0, touched: false, block: None, loading: None });
        if let Some(loading) = &slot.loading {
            return Plan::Wait(loading.clone());
        }
        slot.loading = Some(Rc::new(Event::default()));
        self.uses.set(self.uses.get() + 1);
        slot.used = self.uses.get();
        let end = self.block_end(key).min(limit);
        match &slot.block {
            // The piece that is here grows to the end of its block.
            Some(old) if at >= old.to() => Plan::Read { from: align_down(old.to()), to: end },
            Some(_) => Plan::Read { from: key, to: end },
            None if follows => Plan::Read { from: key, to: end },
            None => Plan::Read { from: align_down(at), to: align_up(at + want.max(PIECE_BYTES)).min(end) },
        }
    }

    /// Adds what was read to the block: behind the piece that is here when it goes on from there, instead of it otherwise.
    fn keep(&self, key: u64, from: u64, read: &[u8]) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(&key) else { return };
        let before = slot.block.as_ref().map_or(0, |block| block.bytes.len());
        match &mut slot.block {
            Some(block) if block.from <= from && from <= block.to() => {
                let known = (block.to() - from) as usize;
                block.bytes.reserve_exact(read.len() - known);
                block.bytes.extend_from_slice(&read[known..]);
            }
            other => {
                let mut bytes = match read.len() as u64 > PIECE_BYTES {
                    true => self.spare.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES as usize)),
                    false => Vec::with_capacity(read.len()),
                };
                bytes.extend_from_slice(read);
                if let Some(Block { bytes, .. }) = other.replace(Block { from, bytes }) {
                    self.reuse(bytes);
                }
            }
        }
        let after = slot.block.as_ref().map_or(0, |block| block.bytes.len());
        self.cached_bytes.set(self.cached_bytes.get() + after - before);
    }

    /// Keeps the memory of a whole block for the next one.
    fn reuse(&self, mut bytes: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_MAX && bytes.capacity() == BLOCK_BYTES as usize {
            bytes.clear();
            spare.push(bytes);
        }
    }

    /// Drops the least recently used blocks over the limit; never the one just read.
    fn evict(&self, just_read: u64) {
        let mut slots = self.slots.borrow_mut();
        while self.cached_bytes.get() > self.cache_bytes_max {
            let idle = slots.iter().filter(|(key, slot)| **key != just_read && slot.loading.is_none());
            let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used).map(|(key, _)| *key) else { return };
            if let Some(block) = slots.remove(&oldest).and_then(|slot| slot.block) {
                self.cached_bytes.set(self.cached_bytes.get() - block.bytes.len());
                self.reuse(block.bytes);
            }
        }
    }

    /// The open segment that starts at `start`. `OutOfRange` when its file is gone.
    async fn file(&self, start: u64, at: u64) -> Result<Rc<I::File>, StoreError> {
        self.uses.set(self.uses.get() + 1);
        let used = self.uses.get();
        if let Some(opened) = self.files.borrow_mut().iter_mut().find(|opened| opened.start == start) {
            opened.used = used;
            return Ok(opened.file.clone());
        }
        let how = Open { access: Access::Read, direct: true };
        let file = match self.io.open(&self.places.segment(start), how).await {
            Ok(file) => Rc::new(file),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(StoreError::OutOfRange(PhyOffset(at))),
            Err(e) => return Err(store_error("open", start, e)),
        };
        let mut files = self.files.borrow_mut();
        if let Some(opened) = files.iter().find(|opened| opened.start == start) {
            return Ok(opened.file.clone()); // another task was faster
        }
        if files.len() == FILES_MAX
            && let Some(oldest) = files.iter().enumerate().min_by_key(|(_, opened)| opened.used).map(|(index, _)| index)
        {
            files.swap_remove(oldest);
        }
        files.push(Opened { start, used, file: file.clone() });
        Ok(file)
    }
}
