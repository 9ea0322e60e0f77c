//! A shard's reader of the log: direct reads through a small block cache with read-ahead, shared by the pulls of that shard.
use crate::io::Io;
use crate::{StoreConfig, StoreError};
use uringmq_proto::types::PhyOffset;

/// Cheap to keep one per shard. All methods take `&self`; nothing is borrowed across an await.
pub struct LogReader<I: Io> {
    io: I,
}

impl<I: Io> LogReader<I> {
    pub fn new(io: I, config: &StoreConfig) -> Self {
        let _ = config;
        LogReader { io }
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
        let _ = (at, bytes, limit, out, &self.io);
        todo!()
    }
    /// Raw bytes of a range (catch-up, recovery), up to `bytes`, cut at the segment's end and at `limit`.
    pub async fn read_range(&self, at: PhyOffset, bytes: usize, limit: PhyOffset) -> Result<Vec<u8>, StoreError> {
        let _ = (at, bytes, limit);
        todo!()
    }
    /// Forgets everything below `min` (segments were removed).
    pub fn trim(&self, min: PhyOffset) {
        let _ = min;
        todo!()
    }
}
