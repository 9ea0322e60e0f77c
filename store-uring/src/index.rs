//! The key index: hash slots and chained items, in memory until `flush`. Source: store-format sheet 5. Used by shard 0.
use crate::io::Io;
use crate::{StoreConfig, StoreError};
use uringmq_proto::types::PhyOffset;

/// All methods take `&self` and borrow nothing across an await.
pub struct Index<I: Io> {
    io: I,
}

impl<I: Io> Index<I> {
    /// Opens the files under `<root>/index`, as recovery left them.
    pub async fn open(io: I, config: &StoreConfig) -> Result<Self, StoreError> {
        let _ = config;
        Ok(Index { io })
    }
    /// Adds one key of one record. Records come in log order; all keys of a record one after the other. A record below the end
    /// of the index (already indexed) is skipped.
    pub fn put(&self, hash: u32, phy: PhyOffset, store_timestamp_ms: i64) {
        let _ = (hash, phy, store_timestamp_ms, &self.io);
        todo!()
    }
    /// Offsets whose key hash is `hash` and whose item time lies in `begin_ms..=end_ms`, newest first, at most `max`. The caller
    /// compares keys.
    pub async fn query(&self, hash: u32, max: usize, begin_ms: i64, end_ms: i64) -> Result<Vec<PhyOffset>, StoreError> {
        let _ = (hash, max, begin_ms, end_ms);
        todo!()
    }
    /// End time and end offset of the newest item.
    pub fn last(&self) -> (i64, PhyOffset) {
        todo!()
    }
    /// Writes what is new, without sync.
    pub async fn flush(&self) -> Result<(), StoreError> {
        todo!()
    }
    pub async fn sync(&self) -> Result<(), StoreError> {
        todo!()
    }
    /// Removes files wholly below `log_min`.
    pub async fn trim(&self, log_min: PhyOffset) -> Result<(), StoreError> {
        let _ = log_min;
        todo!()
    }
    /// `indexMsgTimestamp` for the checkpoint: end time of what is synced.
    pub fn synced_ms(&self) -> i64 {
        todo!()
    }
}
