//! In which order derived files become durable and the checkpoint says so. Used by the shards' upkeep, the clean stop, recovery, and the tests that
//! crash in between. Source: store-format sheet 6, 13.
//!
//! 1. Each shard: [`sync_queues`]; the one with the index: `Index::prepare` (all but its headers).
//! 2. The log is synced.
//! 3. [`advance`]: the checkpoint's `index_ms` goes up, then the index's headers are written (Apache's broker drops index files that are
//!    newer than it), then the checkpoint claims the last record that all shards and the log have.
use crate::StoreError;
use crate::checkpoint::{self, Checkpoint};
use crate::consume_queue::ConsumeQueue;
use crate::index::Index;
use crate::io::Io;
use crate::seeded::{Bug, bug};
use crate::together;
use std::cell::Cell;
use std::path::Path;
use uringmq_proto::types::PhyOffset;

/// How far one shard's queues are synced: all entries of its queues up to and with the record at `last`. 0: it dispatched nothing yet.
#[derive(Clone, Copy, Debug)]
pub struct Synced {
    pub last: PhyOffset,
    pub last_ms: i64,
}

/// Flushes those queues that have at least `entries` for it, several at once, and lets `files_max` of all keep their files open until the next
/// time: opening one costs more than what is written to it. The first error, once all were tried.
pub async fn flush_queues<I: Io>(
    queues: &[&ConsumeQueue<I>],
    entries: u64,
    files_max: usize,
) -> Result<(), StoreError> {
    let held = queues.iter().filter(|queue| queue.holds_files());
    held.skip(files_max).for_each(|queue| queue.close_idle());
    let held = Cell::new(queues.iter().filter(|queue| queue.holds_files()).count());
    let due = queues.iter().filter(|queue| queue.dirty() && queue.unflushed() >= entries);
    together::all(due.map(|queue| flush_one(queue, &held, files_max))).await
}

async fn flush_one<I: Io>(queue: &ConsumeQueue<I>, held: &Cell<usize>, files_max: usize) -> Result<(), StoreError> {
    let before = queue.holds_files();
    let flushed = queue.flush().await;
    if !before && queue.holds_files() {
        match held.get() < files_max {
            true => held.set(held.get() + 1),
            false => queue.close_idle(),
        }
    }
    flushed
}

/// Flushes and syncs queues of one store, whose root is `root`; `files_max` as for [`flush_queues`]. What is appended meanwhile may be left out.
pub async fn sync_queues<I: Io>(
    io: &I,
    root: &Path,
    queues: &[&ConsumeQueue<I>],
    files_max: usize,
) -> Result<(), StoreError> {
    flush_queues(queues, 1, files_max).await?;
    if bug(Bug::CheckpointBeforeQueueSync) {
        return Ok(());
    }
    ConsumeQueue::sync_many(io, root, queues).await
}

/// Writes the headers of an index whose `prepare` gave `index_ms`, and first, should they be later than it, a checkpoint that says so. `now`
/// is the checkpoint as it is on the disk.
pub(crate) async fn commit_index<I: Io>(
    io: &I,
    root: &Path,
    now: &mut Checkpoint,
    index: &Index<I>,
    index_ms: i64,
) -> Result<(), StoreError> {
    if index_ms > now.index_ms {
        now.index_ms = index_ms;
        checkpoint::write(io, root, now).await?;
    }
    index.commit().await
}

/// Writes the checkpoint that `all` shards and the log, synced up to `durable`, allow; nothing when they allow none yet. `index`: with what
/// `prepare` gave for it after the records of `all` were put. Returns the record that the checkpoint on the disk covers now.
pub async fn advance<I: Io>(
    io: &I,
    root: &Path,
    index: Option<(&Index<I>, i64)>,
    all: &[Synced],
    durable: PhyOffset,
) -> Result<PhyOffset, StoreError> {
    let mut now = checkpoint::read(io, root).await?;
    if let Some((index, index_ms)) = index {
        commit_index(io, root, &mut now, index, index_ms).await?;
    }
    let Some(least) = all.iter().min_by_key(|synced| synced.last) else { return Ok(now.logics_phy) };
    if least.last >= durable || least.last == PhyOffset(0) {
        return Ok(now.logics_phy);
    }
    let next = Checkpoint {
        physic_ms: least.last_ms.max(now.physic_ms),
        logics_ms: least.last_ms,
        logics_phy: least.last,
        ..now
    };
    if next != now {
        checkpoint::write(io, root, &next).await?;
    }
    Ok(next.logics_phy)
}
