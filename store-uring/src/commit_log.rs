//! The order of segments, the one [`Appender`] (with each queue's next offset) and the marks placed, written and durable.
//! Used by the writer role only; readers are [`crate::log_reader::LogReader`].
use crate::io::Io;
use crate::{StoreConfig, StoreError};
use std::rc::Rc;
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset};

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
}

/// What the appender shares with [`Keeper`], its helper on the same core.
struct Shared<I: Io> {
    io: I,
}

impl<I: Io> Appender<I> {
    /// Opens the log for appending at `end` (as recovery found it; bytes behind it count as garbage and are overwritten).
    pub async fn open(io: I, config: &StoreConfig, min: PhyOffset, end: PhyOffset) -> Result<Self, StoreError> {
        let _ = (io, config, min, end);
        todo!()
    }

    /// The keeper of this log: makes the next segment, warms it, syncs, deletes. Its methods run beside `write`, as tasks of the
    /// writer core.
    pub fn keeper(&self) -> Keeper<I> {
        Keeper { shared: self.shared.clone() }
    }

    /// Sets the next offset of a queue (start, topic made again).
    pub fn set_next(&mut self, key: QueueKey, next: QueueOffset) {
        let _ = (key, next);
        todo!()
    }
    pub fn next(&self, key: QueueKey) -> QueueOffset {
        let _ = key;
        todo!()
    }

    /// Whether a run of `bytes` still fits the batch being filled (always true for an empty batch).
    pub fn fits(&self, bytes: usize) -> bool {
        let _ = bytes;
        todo!()
    }

    /// Places an indivisible run of encoded records (lengths in `lens`, summing to `records.len()`): assigns offsets and the store
    /// time, patches them into `records`, copies the run into the batch. Rolls to the next segment first when the run and its
    /// 8 bytes do not fit the rest. `numbered` is false for prepared and rollback records, which get queue offset 0.
    /// Errors: `TooLarge`, `NoSpace` (no next segment could be had), `Poisoned`; nothing was placed then.
    pub fn place(
        &mut self,
        key: QueueKey,
        numbered: bool,
        records: &mut [u8],
        lens: &[u32],
    ) -> Result<Placed, StoreError> {
        let _ = (key, numbered, records, lens);
        todo!()
    }

    /// True when something was placed since the last write.
    pub fn pending(&self) -> bool {
        todo!()
    }

    /// Writes what was placed, and syncs after it when `durable`. On an error nothing of the batch counts: its queue offsets are
    /// taken back, and `NoSpace` leaves the log usable while an I/O error poisons it.
    pub async fn write(&mut self, durable: bool) -> Result<Written, StoreError> {
        let _ = (durable, &self.shared.io);
        todo!()
    }

    pub fn written(&self) -> PhyOffset {
        todo!()
    }
    pub fn durable(&self) -> PhyOffset {
        todo!()
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
        let _ = &self.shared;
        todo!()
    }
    /// Syncs the log up to what was written when called; returns the durable mark. Used with ASYNC_FLUSH.
    pub async fn sync(&self) -> Result<PhyOffset, StoreError> {
        todo!()
    }
    /// First offset still stored.
    pub fn min(&self) -> PhyOffset {
        todo!()
    }
    pub fn written(&self) -> PhyOffset {
        todo!()
    }
    pub fn durable(&self) -> PhyOffset {
        todo!()
    }
    /// Why writes are refused, if they are.
    pub fn poisoned(&self) -> Option<(&'static str, PhyOffset)> {
        todo!()
    }
    /// Closed segments, oldest first: start and last modification (ms). The active one is not in it.
    pub async fn closed_segments(&self) -> Result<Vec<(PhyOffset, i64)>, StoreError> {
        todo!()
    }
    /// Removes the oldest closed segment (renamed out, truncated in steps, unlinked); returns the new minimum.
    pub async fn remove_oldest(&self) -> Result<PhyOffset, StoreError> {
        todo!()
    }
}
