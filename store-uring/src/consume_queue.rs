//! A queue's index of 20-byte entries. Entries wait in memory until `flush`; the newest stay there for hot pulls.
//! Source: store-format sheet 4. Used by the queue's owner shard.
use crate::StoreError;
use crate::io::Io;
use std::path::PathBuf;
use uringmq_proto::types::{PhyOffset, QueueOffset};

pub const ENTRY_BYTES: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub phy: PhyOffset,
    pub bytes: u32,
    pub tags_code: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    Done,
    /// Below the queue's end: it is there already.
    Known,
    /// Above the queue's end; nothing was added.
    Gap { expected: QueueOffset },
}

/// All methods take `&self` and borrow nothing across an await, so a shard keeps it in an `Rc`.
pub struct ConsumeQueue<I: Io> {
    io: I,
}

impl<I: Io> ConsumeQueue<I> {
    /// `dir` is `consumequeue/<topic>/<queue>`, made when the first flush writes. `min`..`max` as recovery found them.
    pub fn new(io: I, dir: PathBuf, file_bytes: u64, min: QueueOffset, max: QueueOffset) -> Self {
        let _ = (dir, file_bytes, min, max);
        ConsumeQueue { io }
    }
    pub fn min(&self) -> QueueOffset {
        let _ = &self.io;
        todo!()
    }
    /// The next offset to be appended.
    pub fn max(&self) -> QueueOffset {
        todo!()
    }
    pub fn append(&self, at: QueueOffset, entry: Entry) -> Appended {
        let _ = (at, entry);
        todo!()
    }
    /// Appends up to `count` entries from `from` to `out` when all of them are in memory; false (and nothing added) when the files
    /// must be read.
    pub fn read_hot(&self, from: QueueOffset, count: usize, out: &mut Vec<Entry>) -> bool {
        let _ = (from, count, out);
        todo!()
    }
    /// As `read_hot`, from memory or the files. May give fewer at a file's end, never none while `from` lies in `min..max`.
    pub async fn read(&self, from: QueueOffset, count: usize, out: &mut Vec<Entry>) -> Result<(), StoreError> {
        let _ = (from, count, out);
        todo!()
    }
    pub fn dirty(&self) -> bool {
        todo!()
    }
    /// Writes pending entries to the files, without sync. One flush at a time per queue.
    pub async fn flush(&self) -> Result<(), StoreError> {
        todo!()
    }
    /// Syncs the files written since the last sync (and their directory when a file was made).
    pub async fn sync(&self) -> Result<(), StoreError> {
        todo!()
    }
    /// The log now starts at `log_min`: removes files wholly below, raises `min` to the first entry at or above it.
    pub async fn trim(&self, log_min: PhyOffset) -> Result<(), StoreError> {
        let _ = log_min;
        todo!()
    }
    /// Removes all files (topic deleted).
    pub async fn destroy(&self) -> Result<(), StoreError> {
        todo!()
    }
    /// Approximate bytes held in memory.
    pub fn memory_bytes(&self) -> usize {
        todo!()
    }
}
