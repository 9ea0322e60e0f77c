//! Opening a store: finds the end of the log, repairs the derived files and hands out plain states that any core can open from.
//! Runs once at the start, on one executor, before the shards.
use crate::io::Io;
use crate::{StoreConfig, StoreError};
use uringmq_proto::types::{PhyOffset, QueueOffset};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    pub topic: String,
    pub queue: u32,
    pub min: QueueOffset,
    pub max: QueueOffset,
}

/// A store ready to run; plain data.
#[derive(Clone, Debug)]
pub struct Opened {
    pub min: PhyOffset,
    pub end: PhyOffset,
    /// The last stop was clean.
    pub clean: bool,
    pub queues: Vec<QueueState>,
    pub last_store_timestamp_ms: i64,
    pub report: RepairReport,
}

/// What recovery did; logged, and one day JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RepairReport {
    pub scanned_from: u64,
    pub scanned_bytes: u64,
    pub records: u64,
    /// Where the log was cut, and why, when it did not end at a zero tail.
    pub cut_at: Option<u64>,
    pub cut_why: Option<String>,
    pub queue_entries_rebuilt: u64,
    pub queues_cut: u64,
    pub notes: Vec<String>,
}

/// How far a long recovery is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub at: PhyOffset,
    pub from: PhyOffset,
    pub to: PhyOffset,
}

/// Makes the directories of an empty store; otherwise recovers. All derived entries are flushed when it returns.
pub async fn open<I: Io>(
    io: I,
    config: &StoreConfig,
    progress: impl FnMut(Progress),
) -> Result<Opened, StoreError> {
    let _ = (io, config, progress);
    todo!()
}
