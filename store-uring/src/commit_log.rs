//! The order of segments, the one [`Appender`] (with each queue's next offset) and the marks placed, written and durable.
//! Used by the writer role only; readers are [`crate::log_reader::LogReader`].
//!
//! What holds at every moment, so that recovery (ours or Apache's) finds the end:
//! - behind the last record of the active segment are only zeros: a new segment is zeros, opening zeroes what was behind the end, and
//!   what a refused batch left is zeroed and synced before the refusal is told, or at the latest before the next batch is written;
//! - a zero written to warm blocks never meets appended bytes: warming starts behind everything handed to the disk, and a write
//!   that would meet a warming piece waits for it;
//! - at most one closed segment is not synced (two during a roll), which is how far back opening syncs.
mod flight;

use crate::batch::{Batch, Part, align_down, align_up};
use crate::event::Event;
use crate::io::{File, Io, write_all, write_whole, write_zeros};
use crate::seeded::{Bug, bug};
use crate::segment::{self, Places, Segment, store_error};
use crate::{StoreConfig, StoreError};
pub use flight::{Flight, Landed};
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use uringmq_proto::record::{BLANK_BYTES_MIN, patch};
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset};

/// One warming write: long enough for the device, short enough that a write of the log hardly waits behind it.
const WARM_PIECE_BYTES: u64 = 512 * 1024;
/// Segments before the active one that opening syncs.
const UNSYNCED_SEGMENTS_MAX: u64 = 2;

/// Where a run of records went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub phy: PhyOffset,
    /// Of the first record; the others follow by one. 0 for unnumbered records.
    pub queue_offset: QueueOffset,
    pub store_timestamp_ms: i64,
}

/// What one write covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub from: PhyOffset,
    pub to: PhyOffset,
    /// True when everything up to `to` is on stable storage too.
    pub durable: bool,
}

/// The end of the log. One exists; the writer core owns it.
pub struct Appender<I: Io> {
    shared: Rc<Shared<I>>,
    /// Missing before the first record.
    filling: Option<Filling<I::File>>,
    next: HashMap<QueueKey, u64>,
    /// Offsets to restore when what is placed or in flight fails, in the order of change.
    undo: VecDeque<Undo>,
    air: flight::Air,
    store_timestamp_ms: i64,
    /// What failed batches may have left behind the end: `from` (aligned) and `to`, in log order.
    soiled: Vec<(u64, u64)>,
}

/// A queue's next offset before the run at `at` took some.
struct Undo {
    at: u64,
    key: QueueKey,
    before: u64,
}

struct Filling<F: File> {
    batch: Batch<F>,
    /// Whose file lends the buffers; the active one when the batch began.
    segment: Rc<Segment<F>>,
}

/// What the appender shares with [`Keeper`], its helper on the same core.
struct Shared<I: Io> {
    io: I,
    places: Places,
    segment_bytes: u64,
    record_bytes_max: usize,
    batch_bytes_max: usize,
    warm_ahead_bytes: u64,
    min: Cell<u64>,
    written: Cell<u64>,
    durable: Cell<u64>,
    poisoned: Cell<Option<(&'static str, PhyOffset)>>,
    /// What is before the end in its block, from when the segment is ready to be written to until the first batch takes it.
    tail: RefCell<Option<Vec<u8>>>,
    ready: Cell<bool>,
    /// Oldest first: closed and not yet synced, the active one, the next.
    open: RefCell<VecDeque<Rc<Segment<I::File>>>>,
    making: Cell<bool>,
    made: Event,
    syncing: Cell<bool>,
    synced: Event,
    /// End of all bytes handed to the disk.
    busy_to: Cell<u64>,
    /// Blocks below are written or will be by the log itself.
    warm_at: Cell<u64>,
    /// A refill of the warm stretch is going on.
    warm_refill: Cell<bool>,
    warming: Cell<Option<(u64, u64)>>,
    warmed: Event,
    zeros: RefCell<Option<<I::File as File>::Buf>>,
}

/// The next `count` offsets of a queue, for the run at `at`: the first of them.
fn take_offsets(
    next: &mut HashMap<QueueKey, u64>,
    undo: &mut VecDeque<Undo>,
    at: u64,
    (key, count): (QueueKey, u64),
) -> u64 {
    let next = next.entry(key).or_insert(0);
    let before = *next;
    *next += count;
    undo.push_back(Undo { at, key, before });
    before
}

impl<I: Io> Appender<I> {
    /// Opens the log for appending at `end` (as recovery found it; bytes behind it count as garbage and are overwritten).
    /// Succeeds on a full disk; then the first writes answer `NoSpace`.
    /// Errors: `Refused` (a segment of another length, a missing one), `Io`.
    pub async fn open(io: I, config: &StoreConfig, min: PhyOffset, end: PhyOffset) -> Result<Self, StoreError> {
        let places = Places::make(&io, config).await.map_err(|source| {
            let path = config.commit_log_dir.clone();
            StoreError::File { op: "make directories of", path, source }
        })?;
        let shared = Rc::new(Shared::new(io, config, places, min.0, end.0));
        shared.clear_aside().await?;
        shared.take_out_behind(end.0).await?;
        shared.sync_closed(end.0).await?;
        match shared.make_ready().await {
            Err(StoreError::NoSpace(_)) => {} // the keeper tries again
            done => done?,
        }
        Ok(Appender {
            shared,
            filling: None,
            next: HashMap::new(),
            undo: VecDeque::new(),
            air: flight::Air::default(),
            store_timestamp_ms: 0,
            soiled: Vec::new(),
        })
    }

    /// The keeper of this log: makes the next segment, warms it, syncs, deletes. Its methods run beside `write`, as tasks of the
    /// writer core.
    pub fn keeper(&self) -> Keeper<I> {
        Keeper { shared: self.shared.clone() }
    }

    /// Sets the next offset of a queue (start, topic made again).
    pub fn set_next(&mut self, key: QueueKey, next: QueueOffset) {
        self.next.insert(key, next.0);
    }

    /// The offset that the next numbered record of the queue gets; 0 for a queue never seen.
    pub fn next(&self, key: QueueKey) -> QueueOffset {
        QueueOffset(self.next.get(&key).copied().unwrap_or(0))
    }

    /// No record gets a store time below this (the last one of the log, when the clock stepped back over a restart).
    pub fn set_store_timestamp_min(&mut self, ms: i64) {
        self.store_timestamp_ms = self.store_timestamp_ms.max(ms);
    }

    /// Whether a run of `bytes` still fits the batch being filled (always true for an empty batch).
    pub fn fits(&self, bytes: usize) -> bool {
        let placed = self.placed();
        placed == 0 || placed + bytes <= self.shared.batch_bytes_max
    }

    fn placed(&self) -> usize {
        self.filling.as_ref().map_or(0, |filling| filling.batch.placed())
    }

    /// Places an indivisible run of encoded records (lengths in `lens`, summing to `records.len()`): assigns offsets and the store
    /// time, patches them into `records`, copies the run into the batch. Rolls to the next segment first when the run and its
    /// 8 bytes do not fit the rest. `numbered` is false for prepared and rollback records, which get queue offset 0.
    /// Errors: `TooLarge`, `NoSpace` (no segment at all could be had yet), `Poisoned`; nothing was placed then.
    pub fn place(
        &mut self,
        key: QueueKey,
        numbered: bool,
        records: &mut [u8],
        lens: &[u32],
    ) -> Result<Placed, StoreError> {
        self.place_counted((key, if numbered { lens.len() as u64 } else { 0 }), records, lens)
    }

    /// As `place`, of records that take `count` offsets of their queue: 0 for those that are not numbered, more than `lens` of an inner batch.
    pub fn place_counted(
        &mut self,
        (key, count): (QueueKey, u64),
        records: &mut [u8],
        lens: &[u32],
    ) -> Result<Placed, StoreError> {
        let numbered = count > 0;
        self.shared.check_poison()?;
        self.check_size(records.len(), lens)?;
        if self.filling.is_none() {
            self.begin()?;
        }
        let Filling { batch, segment } = self.filling.as_mut().expect("begun above");
        let phy = batch.make_room(&segment.file, records.len());
        self.store_timestamp_ms = self.store_timestamp_ms.max(self.shared.io.now_ms());
        let first = if numbered { take_offsets(&mut self.next, &mut self.undo, phy, (key, count)) } else { 0 };
        let mut at = 0;
        for (index, &bytes) in lens.iter().enumerate() {
            let record = &mut records[at..at + bytes as usize];
            let queue_offset = if numbered { first + index as u64 } else { 0 };
            patch(record, queue_offset, phy + at as u64, self.store_timestamp_ms);
            at += bytes as usize;
        }
        batch.push(&segment.file, records);
        Ok(Placed {
            phy: PhyOffset(phy),
            queue_offset: QueueOffset(first),
            store_timestamp_ms: self.store_timestamp_ms,
        })
    }

    /// Gives the next `count` offsets of a queue to what was placed last; they are taken back if its batch is refused. The first of them.
    pub fn take_offsets(&mut self, key: QueueKey, count: u64) -> u64 {
        let at = self.filling.as_ref().map_or(0, |filling| filling.batch.end() - 1);
        take_offsets(&mut self.next, &mut self.undo, at, (key, count))
    }

    /// Takes `bytes` of another log (a slave its master's), which stand there at `at`, as they are: cut anywhere, blanks at the ends of
    /// segments included. Both logs have segments of one length.
    /// Errors: `OutOfRange` when `at` is not where this log goes on, `NoSpace`, `Poisoned`; nothing was placed then.
    pub fn place_copy(&mut self, at: PhyOffset, bytes: &[u8]) -> Result<(), StoreError> {
        self.shared.check_poison()?;
        if self.filling.is_none() {
            self.begin()?;
        }
        let Filling { batch, segment } = self.filling.as_mut().expect("begun above");
        if batch.end() != at.0 {
            return Err(StoreError::OutOfRange(at));
        }
        batch.push_copy(&segment.file, bytes);
        Ok(())
    }

    /// Begins an empty log anew at `start`, where a segment begins: what a master gives to a slave that has nothing is its last segment.
    /// Errors: `Refused` (no beginning of a segment; the log is not empty), those of making a segment.
    pub async fn start_at(&mut self, start: PhyOffset) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let refused = |what: String| Err(StoreError::Refused { path: shared.places.log.clone(), what });
        if !start.0.is_multiple_of(shared.segment_bytes) {
            return refused(format!("cannot begin at {start}, inside a segment (mappedFileSizeCommitLog)"));
        }
        if shared.written.get() != 0 || self.pending() {
            return refused(format!("is not empty, and cannot begin anew at {start}"));
        }
        // Out of the log before the new beginning is in it: a crash leaves an empty log, not one with a gap.
        let mut out = 0;
        loop {
            while shared.making.get() {
                shared.made.next().await;
            }
            let next = shared.open.borrow().get(out).cloned();
            let Some(segment) = next else { break };
            segment::take_out(&shared.io, &shared.places, segment.start).await?;
            out += 1;
        }
        let old = std::mem::take(&mut *shared.open.borrow_mut());
        self.filling = None;
        self.soiled.clear();
        for mark in [&shared.min, &shared.written, &shared.durable, &shared.busy_to, &shared.warm_at] {
            mark.set(start.0);
        }
        shared.tail.replace(Some(Vec::new()));
        shared.segment_or_make(start.0).await?;
        for segment in old {
            let path = shared.places.aside.join(segment::name(segment.start));
            segment::free(&shared.io, &path).await.map_err(|source| StoreError::File { op: "remove", path, source })?;
        }
        Ok(())
    }

    fn check_size(&self, bytes: usize, lens: &[u32]) -> Result<(), StoreError> {
        let sum: usize = lens.iter().map(|&len| len as usize).sum();
        assert!(sum == bytes && bytes > 0, "a run of {bytes} bytes, its records have {sum}");
        let largest = lens.iter().copied().max().unwrap_or(0) as usize;
        if largest > self.shared.record_bytes_max {
            return Err(StoreError::TooLarge { bytes: largest, max: self.shared.record_bytes_max });
        }
        let max = self.shared.segment_bytes as usize - BLANK_BYTES_MIN;
        if bytes > max {
            return Err(StoreError::TooLarge { bytes, max });
        }
        Ok(())
    }

    /// Begins the first batch. `NoSpace` when the start was on a full disk and the keeper could not make up for it yet.
    fn begin(&mut self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let end = shared.written.get();
        let (Some(tail), Some(segment)) = (shared.tail.take(), shared.segment(end)) else {
            return Err(StoreError::NoSpace(PhyOffset(end)));
        };
        let batch = Batch::new(&segment.file, end, &tail, shared.segment_bytes, shared.batch_bytes_max);
        self.filling = Some(Filling { batch, segment });
        Ok(())
    }

    /// True when something was placed since the last write.
    pub fn pending(&self) -> bool {
        self.placed() > 0
    }

    /// Writes what was placed, and syncs after it when `durable`. On an error nothing of the batch counts: its queue offsets are
    /// taken back, and `NoSpace` leaves the log usable (what it wrote in part is zeros again) while an I/O error poisons it. Not to be dropped before it ends.
    pub async fn write(&mut self, durable: bool) -> Result<Written, StoreError> {
        assert!(self.air.is_empty(), "a batch is written alone");
        let from = self.shared.written.get();
        let done = self.write_batch(durable).await;
        match done {
            Ok(to) => {
                self.undo.clear();
                let durable = self.shared.durable.get() >= to;
                Ok(Written { from: PhyOffset(from), to: PhyOffset(to), durable })
            }
            Err(e) => {
                let Some(Filling { batch, segment }) = &mut self.filling else { return Err(e) };
                if batch.kept_to() != from {
                    self.give_up(&e).await; // it began with what an earlier one left to it
                    return Err(e);
                }
                batch.rewind(&segment.file);
                if matches!(e, StoreError::NoSpace(_)) {
                    // Before anybody is told of the refusal: a crash must not make records of it. If it fails, the next batch does it.
                    let _ = self.shared.clean(&mut self.soiled, batch.tail()).await;
                }
                self.undo_offsets();
                Err(e)
            }
        }
    }

    async fn write_batch(&mut self, durable: bool) -> Result<u64, StoreError> {
        let shared = self.shared.clone();
        shared.check_poison()?;
        if let Some(filling) = self.filling.as_mut().filter(|filling| filling.batch.placed() > 0) {
            let end = filling.batch.end();
            shared.busy_to.set(shared.busy_to.get().max(align_up(end)));
            for start in filling.batch.parts().iter().map(|part| part.segment_end - shared.segment_bytes) {
                shared.segment_or_make(start).await?;
            }
            let rolls = filling.batch.parts().len() > 1 || shared.written.get().is_multiple_of(shared.segment_bytes);
            if rolls && shared.durable.get() < shared.start_of(shared.written.get()) {
                shared.sync_to(shared.written.get()).await?; // at most one closed segment stays without
            }
            shared.clean(&mut self.soiled, filling.batch.tail()).await?;
            shared.write_parts(&mut filling.batch, &mut self.soiled).await?;
            if durable {
                shared.sync_to(end).await?;
            }
            shared.check_poison()?;
            self.soiled.clear();
            filling.segment = shared.segment(end - 1).expect("written to just now");
            filling.batch.advance(&filling.segment.file);
            shared.written.set(end);
            shared.close_synced();
        } else if durable {
            shared.sync_to(shared.written.get()).await?;
        }
        Ok(shared.written.get())
    }

    pub fn written(&self) -> PhyOffset {
        PhyOffset(self.shared.written.get())
    }

    pub fn durable(&self) -> PhyOffset {
        PhyOffset(self.shared.durable.get())
    }
}

impl<I: Io> Shared<I> {
    fn new(io: I, config: &StoreConfig, places: Places, min: u64, end: u64) -> Self {
        assert!(config.segment_bytes.is_multiple_of(crate::io::ALIGN as u64), "segments are whole blocks");
        Shared {
            io,
            places,
            segment_bytes: config.segment_bytes,
            record_bytes_max: config.record_bytes_max,
            batch_bytes_max: config.batch_bytes_max,
            warm_ahead_bytes: config.warm_ahead_bytes,
            min: Cell::new(min),
            written: Cell::new(end),
            durable: Cell::new(end),
            poisoned: Cell::new(None),
            tail: RefCell::new(None),
            ready: Cell::new(false),
            open: RefCell::new(VecDeque::new()),
            making: Cell::new(false),
            made: Event::default(),
            syncing: Cell::new(false),
            synced: Event::default(),
            busy_to: Cell::new(align_up(end)),
            warm_at: Cell::new(align_up(end)),
            warm_refill: Cell::new(false),
            warming: Cell::new(None),
            warmed: Event::default(),
            zeros: RefCell::new(None),
        }
    }

    fn start_of(&self, at: u64) -> u64 {
        at - at % self.segment_bytes
    }

    fn check_poison(&self) -> Result<(), StoreError> {
        match self.poisoned.get() {
            Some((op, at)) => Err(StoreError::Poisoned { op, at }),
            None => Ok(()),
        }
    }

    /// An error of the disk other than a full one stops all writes until a restart has looked at what is there.
    fn poison(&self, e: StoreError) -> StoreError {
        if let StoreError::Io { op, at, .. } = &e
            && self.poisoned.get().is_none()
        {
            self.poisoned.set(Some((op, *at)));
        }
        e
    }

    /// The open segment that holds `at`.
    fn segment(&self, at: u64) -> Option<Rc<Segment<I::File>>> {
        let start = self.start_of(at);
        self.open.borrow().iter().find(|segment| segment.start == start).cloned()
    }

    /// Removes what an earlier process was making or removing.
    async fn clear_aside(&self) -> Result<(), StoreError> {
        let at = self.written.get();
        let names = self.io.list(&self.places.aside).await.map_err(|e| store_error("list", at, e))?;
        for name in names {
            let path = self.places.aside.join(name);
            segment::free(&self.io, &path).await.map_err(|source| StoreError::File { op: "remove", path, source })?;
        }
        Ok(())
    }

    /// Segments behind the end: made ahead and unused, or cut off by recovery.
    async fn take_out_behind(&self, end: u64) -> Result<(), StoreError> {
        let names = self.io.list(&self.places.log).await.map_err(|e| store_error("list", end, e))?;
        let last_first = names.iter().rev().filter_map(|name| segment::parse_name(name));
        for start in last_first.filter(|&start| start > self.start_of(end) && !bug(Bug::SegmentsBehindKept)) {
            segment::take_out(&self.io, &self.places, start).await?;
            let path = self.places.aside.join(segment::name(start));
            segment::free(&self.io, &path).await.map_err(|source| StoreError::File { op: "remove", path, source })?;
        }
        Ok(())
    }

    /// Syncs the segments before the active one as far back as they may not be.
    async fn sync_closed(&self, end: u64) -> Result<(), StoreError> {
        let active = self.start_of(end);
        let oldest = active.saturating_sub(UNSYNCED_SEGMENTS_MAX * self.segment_bytes);
        for start in (oldest.max(self.start_of(self.min.get()))..active).step_by(self.segment_bytes as usize) {
            if let Some(closed) = segment::open(&self.io, &self.places, start, self.segment_bytes).await? {
                closed.file.datasync().await.map_err(|e| store_error("sync", start, e))?;
            }
        }
        Ok(())
    }

    /// Opens the segment that holds the end, or makes it when the log ends where it begins, and prepares it for the first batch.
    async fn make_ready(&self) -> Result<(), StoreError> {
        let end = self.written.get();
        let start = self.start_of(end);
        let segment = match segment::open(&self.io, &self.places, start, self.segment_bytes).await? {
            Some(segment) => Rc::new(segment),
            None if end == start => self.segment_or_make(start).await?,
            None => {
                let what = "is missing, though the log ends in it".to_owned();
                return Err(StoreError::Refused { path: self.places.segment(start), what });
            }
        };
        let tail = self.zero_behind(&segment, end).await?;
        if self.segment(start).is_none() {
            self.open.borrow_mut().push_back(segment);
        }
        self.tail.replace(Some(tail));
        self.ready.set(true);
        Ok(())
    }

    /// Makes everything behind the end zeros and durable, with the bytes before it in the same block, which it returns.
    async fn zero_behind(&self, segment: &Segment<I::File>, end: u64) -> Result<Vec<u8>, StoreError> {
        let file = &segment.file;
        let fail = |op| move |e| store_error(op, end, e);
        if bug(Bug::NoTailZeroing) {
            let tail = file.read_at(align_down(end) - segment.start, crate::io::ALIGN).await.map_err(fail("read"))?;
            return Ok(tail.as_ref()[..(end - align_down(end)) as usize].to_vec());
        }
        let block = align_down(end);
        let kept = (end - block) as usize;
        let at = block - segment.start;
        let mut tail = Vec::new();
        let mut behind = at;
        if kept > 0 {
            let mut buf = file.read_at(at, crate::io::ALIGN).await.map_err(fail("read"))?;
            if buf.as_ref().len() < crate::io::ALIGN {
                return Err(StoreError::Corrupt { at: PhyOffset(end), what: "its block cannot be read" });
            }
            tail.extend_from_slice(&buf.as_ref()[..kept]);
            buf.as_mut()[kept..].fill(0);
            write_all(file, at, buf).await.0.map_err(fail("write"))?;
            behind += crate::io::ALIGN as u64;
        }
        if behind < self.segment_bytes {
            file.zero_range(behind, self.segment_bytes).await.map_err(fail("zero"))?;
        }
        file.datasync().await.map_err(fail("sync"))?;
        Ok(tail)
    }

    /// The segment that begins at `start`, made when it is not there; waits for one being made.
    async fn segment_or_make(&self, start: u64) -> Result<Rc<Segment<I::File>>, StoreError> {
        loop {
            if let Some(segment) = self.segment(start) {
                return Ok(segment);
            }
            if !self.making.get() {
                break;
            }
            self.made.next().await;
        }
        self.making.set(true);
        let made = segment::make(&self.io, &self.places, start, self.segment_bytes).await;
        self.making.set(false);
        let made = made.map(Rc::new).map_err(|e| match e {
            StoreError::Io { op: "open" | "remove", .. } => e, // nothing was begun: too many open files, say
            other => self.poison(other),
        });
        if let Ok(segment) = &made {
            self.open.borrow_mut().push_back(segment.clone());
        }
        self.made.happened();
        made
    }

    /// Zeroes what failed batches left, durably: the next batch may be shorter, and what it does not cover must not become records.
    async fn clean(&self, soiled: &mut Vec<(u64, u64)>, tail: &[u8]) -> Result<(), StoreError> {
        if soiled.is_empty() || bug(Bug::RefusedBatchLeft) {
            soiled.clear();
            return Ok(());
        }
        for &(from, to) in soiled.iter() {
            let Some(segment) = self.segment(from) else { continue };
            let fail = |op| move |e| self.poison(store_error(op, from, e));
            let mut at = from - segment.start;
            if from == align_down(self.written.get()) && !tail.is_empty() {
                let mut block = segment.file.buffer(crate::io::ALIGN);
                block.as_mut()[..tail.len()].copy_from_slice(tail);
                write_all(&segment.file, at, block).await.0.map_err(fail("write"))?;
                at += crate::io::ALIGN as u64;
            }
            write_zeros(&segment.file, at, to - segment.start).await.map_err(fail("write"))?;
            segment.file.datasync().await.map_err(fail("sync"))?;
        }
        soiled.clear();
        Ok(())
    }

    async fn write_parts(&self, batch: &mut Batch<I::File>, soiled: &mut Vec<(u64, u64)>) -> Result<(), StoreError> {
        for part in batch.parts_mut() {
            let (from, to) = (part.from, part.written_to());
            let segment = self.segment(from).expect("had before the first write");
            soiled.push((from, to));
            self.write_part(&segment, part, false).await?;
        }
        Ok(())
    }

    async fn write_part(
        &self,
        segment: &Segment<I::File>,
        part: &mut Part<I::File>,
        synced: bool,
    ) -> Result<(), StoreError> {
        let (from, to) = (part.from, part.written_to());
        while self.warming.get().is_some_and(|(warm_from, warm_to)| warm_from < to && from < warm_to) {
            self.warmed.next().await;
        }
        let buf = part.take_padded(&segment.file);
        let synced = synced && !bug(Bug::AckBeforeSync);
        let (wrote, buf) = write_whole(&segment.file, (from - segment.start, synced), buf).await;
        part.put_back(buf);
        wrote.map_err(|e| self.poison(store_error("write", from, e)))
    }

    /// Syncs every segment with bytes between the durable mark and `to`, one caller at a time: the system reports a failed sync once.
    async fn sync_to(&self, to: u64) -> Result<(), StoreError> {
        while self.syncing.get() {
            self.synced.next().await;
        }
        self.check_poison()?;
        if self.durable.get() >= to {
            return Ok(());
        }
        self.syncing.set(true);
        let done = self.sync_segments(to).await;
        self.syncing.set(false);
        if done.is_ok() {
            self.durable.set(self.durable.get().max(to)); // a synced flight may have got further meanwhile
            self.close_synced();
        }
        self.synced.happened();
        done
    }

    async fn sync_segments(&self, to: u64) -> Result<(), StoreError> {
        let from = self.start_of(self.durable.get());
        for start in (from..to).step_by(self.segment_bytes as usize) {
            let Some(segment) = self.segment(start) else { continue };
            if bug(Bug::AckBeforeSync) || bug(Bug::RollSyncsNewSegmentOnly) && start < self.start_of(to - 1) {
                continue;
            }
            segment.file.datasync().await.map_err(|e| {
                let at = PhyOffset(start);
                self.poison(StoreError::Io { op: "sync", at, source: e }) // a full disk too: what was lost is not known
            })?;
        }
        Ok(())
    }

    /// Lets go of segments that are both closed and synced.
    fn close_synced(&self) {
        let done = self.start_of(self.durable.get().min(self.written.get()));
        let mut open = self.open.borrow_mut();
        while open.len() > 1 && open[0].start < done {
            open.pop_front();
        }
    }
}

/// The appender's background half. All methods may run while a `write` is in flight.
pub struct Keeper<I: Io> {
    shared: Rc<Shared<I>>,
}

impl<I: Io> Keeper<I> {
    /// One paced step of what is due: make the next segment when the tail passed half of the current one, warm up to
    /// `warm_ahead_bytes` in pieces. True when there is more to do at once.
    pub async fn step(&self) -> Result<bool, StoreError> {
        let shared = &self.shared;
        if shared.poisoned.get().is_some() {
            return Ok(false);
        }
        if !shared.ready.get() {
            shared.make_ready().await?;
            return Ok(true);
        }
        let written = shared.written.get();
        let active = shared.start_of(written);
        let next = active + shared.segment_bytes;
        if shared.segment(active).is_none() {
            shared.segment_or_make(active).await?; // a copy filled the one before to its last byte
            return Ok(true);
        }
        let near = written - active >= shared.segment_bytes / 2 || written + shared.warm_ahead_bytes > next;
        if near && shared.segment(next).is_none() {
            shared.segment_or_make(next).await?;
            return Ok(true);
        }
        self.warm().await
    }

    /// Writes one piece of zeros ahead of the tail. A refill begins when half of the stretch is used up and goes on until it is
    /// whole, so that between refills no sync of the log finds the journal busy with blocks that warming touched.
    async fn warm(&self) -> Result<bool, StoreError> {
        let shared = &self.shared;
        let written = shared.written.get();
        let Some(last) = shared.open.borrow().back().map(|last| last.start + shared.segment_bytes) else {
            return Ok(false);
        };
        let to = align_down(written + shared.warm_ahead_bytes).min(last);
        let busy_to = shared.busy_to.get();
        if shared.warm_at.get() < busy_to {
            // Overtaken: leave room for the next batches, so that none waits for a piece of this.
            shared.warm_at.set(busy_to + align_up(2 * shared.batch_bytes_max as u64));
        }
        let from = shared.warm_at.get();
        if from >= to {
            shared.warm_refill.set(false);
            return Ok(false);
        }
        if from - written.min(from) < shared.warm_ahead_bytes / 2 {
            shared.warm_refill.set(true);
        }
        if !shared.warm_refill.get() || shared.warming.get().is_some() {
            return Ok(false);
        }
        let Some(segment) = shared.segment(from) else { return Ok(false) };
        let to = to.min(from + WARM_PIECE_BYTES).min(segment.start + shared.segment_bytes);
        self.warm_piece(&segment, from, to).await?;
        Ok(true)
    }

    async fn warm_piece(&self, segment: &Segment<I::File>, from: u64, to: u64) -> Result<(), StoreError> {
        let shared = &self.shared;
        let bytes = (to - from) as usize;
        let zeros = shared.zeros.take().filter(|zeros| zeros.as_ref().len() == bytes);
        let zeros = zeros.unwrap_or_else(|| segment.file.buffer(bytes));
        shared.warm_at.set(to);
        shared.warming.set(Some((from, to)));
        let (wrote, zeros) = segment.file.write_at(from - segment.start, zeros).await;
        shared.warming.set(None);
        shared.warmed.happened();
        shared.zeros.replace(Some(zeros));
        // A short or failed piece leaves blocks as they were, which is slower and not wrong.
        wrote.map(|_| ()).map_err(|e| store_error("warm", from, e))
    }

    /// Syncs the log up to what was written when called; returns the durable mark. Used with ASYNC_FLUSH.
    pub async fn sync(&self) -> Result<PhyOffset, StoreError> {
        self.shared.sync_to(self.shared.written.get()).await?;
        Ok(self.durable())
    }

    /// First offset still stored.
    pub fn min(&self) -> PhyOffset {
        PhyOffset(self.shared.min.get())
    }

    pub fn written(&self) -> PhyOffset {
        PhyOffset(self.shared.written.get())
    }

    pub fn durable(&self) -> PhyOffset {
        PhyOffset(self.shared.durable.get())
    }

    /// Why writes are refused, if they are.
    pub fn poisoned(&self) -> Option<(&'static str, PhyOffset)> {
        self.shared.poisoned.get()
    }

    /// Closed segments, oldest first: start and last modification (ms). The active one is not in it.
    pub async fn closed_segments(&self) -> Result<Vec<(PhyOffset, i64)>, StoreError> {
        let shared = &self.shared;
        let mut closed = Vec::new();
        let first = shared.start_of(shared.min.get());
        for start in (first..shared.start_of(shared.written.get())).step_by(shared.segment_bytes as usize) {
            match shared.io.metadata(&shared.places.segment(start)).await {
                Ok(found) => closed.push((PhyOffset(start), found.modified_ms)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(store_error("stat", start, e)),
            }
        }
        Ok(closed)
    }

    /// Removes the oldest closed segment (renamed out, truncated in steps, unlinked); returns the new minimum. Without a closed one
    /// nothing happens, nor when it reaches above `synced` (the record that the checkpoint names, whose queue entries are durable with those
    /// of all before it): after a crash, a queue whose last entries and records are both gone would be numbered from 0 again. Readers are
    /// to be told the new minimum; one that reads there meanwhile gets an error, not other bytes.
    pub async fn remove_oldest(&self, synced: PhyOffset) -> Result<PhyOffset, StoreError> {
        let shared = &self.shared;
        let start = shared.start_of(shared.min.get());
        let next = start + shared.segment_bytes;
        let unsynced = next > synced.0 && !bug(Bug::RetentionBeforeCheckpoint);
        if unsynced || next > shared.start_of(shared.written.get()) {
            return Ok(self.min());
        }
        shared.sync_to(next).await?;
        segment::take_out(&shared.io, &shared.places, start).await?;
        shared.min.set(shared.min.get().max(next));
        let path = shared.places.aside.join(segment::name(start));
        segment::free(&shared.io, &path).await.map_err(|source| StoreError::File { op: "remove", path, source })?;
        Ok(self.min())
    }
}
