//! What a batch brought, as every shard gets it.
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset};

/// Contiguous log bytes that stand in a shared buffer.
#[derive(Clone, Debug)]
pub struct Span {
    pub phy: PhyOffset,
    pub at: u32,
    pub bytes: u32,
    pub buffer: Arc<Vec<u8>>,
}

/// One record of the batch.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub key: QueueKey,
    pub queue_offset: QueueOffset,
    pub phy: PhyOffset,
    pub bytes: u32,
    pub tags_code: i64,
    pub store_timestamp_ms: i64,
    /// Messages in it: more than one in an inner batch.
    pub count: u16,
    /// False for prepared and rollback records.
    pub numbered: bool,
    pub hash_from: u32,
    pub hash_count: u16,
}

/// A written (SYNC_FLUSH: durable) range of the log with its records. Immutable.
#[derive(Debug)]
pub struct Committed {
    /// When it became readable.
    pub since: Instant,
    pub from: PhyOffset,
    pub to: PhyOffset,
    pub spans: SmallVec<[Span; 4]>,
    pub entries: Vec<Entry>,
    pub hashes: Vec<u32>,
}
