//! A shard's periodic work: held pulls, missed hints, flushing of its queues, trimming behind retention, and on shard 0 the
//! checkpoint.
use crate::ConsumeQueue;
use crate::machine;
use crate::shard::Shard;
use glommio::timer::sleep;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{debug, error, info};
use uringmq_proto::types::PhyOffset;
use uringmq_store::StoreError;
use uringmq_store::derived::{self, Synced};

const TICK_MS: u64 = 50;
/// A checkpoint is due after so much was dispatched (or a segment, if that is less), or so long after the last one. Each writes most pages of
/// the index's slots; a start reads the log from it on, which is a matter of a quarter of a second.
const CHECKPOINT_BYTES: u64 = 256 * 1024 * 1024;
const CHECKPOINT_MS: i64 = 10_000;
const FLUSH_MS: i64 = 1000;
/// A page of a queue's file. A queue that has less than this to flush waits for the checkpoint, which flushes all, or for [`FLUSH_ALL_MS`]:
/// thousands of queues with a handful of entries each would cost more than their messages.
const FLUSH_ENTRIES: u64 = 200;
const FLUSH_ALL_MS: i64 = 10_000;
/// Queues of a shard that may hold files in any case.
const FILES_MIN: usize = 512;
/// A queue that nobody used for so long gives back its files and its memory.
const REST_MS: i64 = 10_000;

/// The shard's timer.
pub async fn tick(shard: Rc<Shard>) {
    let seen = Cell::new((PhyOffset(0), PhyOffset(0)));
    let (mut flushed_ms, mut flushed_all_ms, mut rested_ms) = (shard.now_ms(), shard.now_ms(), shard.now_ms());
    while !shard.gate.is_closed() {
        sleep(Duration::from_millis(TICK_MS)).await;
        let now = shard.now_ms();
        shard.check_held(now);
        let behind = (shard.dispatch.at(), shard.marks.readable());
        if behind.0 < behind.1 && seen.replace(behind).0 == behind.0 {
            shard.start_catch_up();
        }
        if now - flushed_ms >= FLUSH_MS {
            flushed_ms = now;
            let all = now - flushed_all_ms >= FLUSH_ALL_MS;
            if all {
                flushed_all_ms = now;
            }
            flush(&shard, if all { 1 } else { FLUSH_ENTRIES }).await;
        }
        if now - rested_ms >= REST_MS {
            rested_ms = now;
            shard.queues.all().iter().for_each(|queue| queue.cq.rest());
            let in_flight = &shard.pop.in_flight;
            match shard.config.borrow().pop_limits_in_flight {
                true => in_flight.tidy(&shard.topics.borrow(), now),
                false => in_flight.clear(),
            }
        }
    }
}

/// Queues of this shard that may hold files at the same time: together with the other shards' half of what the process may open.
fn files_max(shard: &Shard) -> usize {
    (machine::open_files_max() / 2 / usize::from(shard.shards)).max(FILES_MIN)
}

/// Those that have `entries` or more to flush.
async fn flush(shard: &Rc<Shard>, entries: u64) {
    let queues = shard.queues.all();
    let all: Vec<&ConsumeQueue> = queues.iter().map(|queue| &queue.cq).collect();
    if let Err(e) = derived::flush_queues(&all, entries, files_max(shard)).await {
        error!(error = %e, "not all consume queues are flushed");
    }
}

/// Makes durable all that this shard derives from the log, and says up to where that reaches; with what the index's `prepare` gave on the
/// shard that has it.
async fn sync_derived(shard: Rc<Shard>) -> Result<(Synced, Option<i64>), StoreError> {
    let (last, last_ms) = shard.dispatch.last();
    let queues = shard.queues.all();
    let root = shard.config().store_root.clone();
    let all: Vec<&ConsumeQueue> = queues.iter().map(|queue| &queue.cq).collect();
    derived::sync_queues(&shard.io, &root, &all, files_max(&shard)).await?;
    let index_ms = match &shard.index {
        Some(index) => Some(index.prepare().await?),
        None => None,
    };
    Ok((Synced { last, last_ms }, index_ms))
}

/// Shard 0: a checkpoint whenever enough happened.
pub async fn checkpoint_periodically(shard: Rc<Shard>) {
    let bytes_max = CHECKPOINT_BYTES.min(shard.config().segment_bytes);
    let mut done = (shard.dispatch.at(), shard.now_ms());
    let mut trimmed = shard.marks.min();
    while !shard.gate.is_closed() {
        sleep(Duration::from_millis(TICK_MS * 2)).await;
        let (at, now) = (shard.dispatch.at(), shard.now_ms());
        let min = shard.marks.min();
        if min > trimmed {
            trimmed = min;
            trim(&shard, min).await;
        }
        if at == done.0 || (at.0 - done.0.0 < bytes_max && now - done.1 < CHECKPOINT_MS) {
            continue;
        }
        done = (at, now);
        match write_checkpoint(&shard).await {
            Ok(()) => debug!(%at, "checkpoint"),
            Err(e) => error!(error = %e, "checkpoint not written; a restart will read more of the log"),
        }
    }
}

/// Claims what all shards have synced, and never more than the log itself has. On shard 0; one at a time.
pub async fn write_checkpoint(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let _turn = shard.checkpoint_turn.take().await;
    let written = write_next_checkpoint(shard).await;
    let ok = written.is_ok();
    shard
        .run_on(shard.writer_shard, move |s| async move {
            s.writer.as_ref().expect("asked of the writer shard").checkpoint_tried(ok);
        })
        .await;
    written
}

async fn write_next_checkpoint(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let root = shard.config().store_root.clone();
    let mut all = Vec::with_capacity(shard.shards as usize);
    let mut index_ms = None;
    for synced in shard.run_on_all(sync_derived).await {
        let (synced, prepared) = synced?;
        all.push(synced);
        index_ms = index_ms.or(prepared);
    }
    if all.len() < shard.shards as usize {
        return Ok(()); // one is gone already, and its queues may be behind
    }
    let synced_log = shard
        .run_on(shard.writer_shard, |s| async move {
            let keeper = &s.writer.as_ref().expect("asked of the writer shard").keeper;
            let durable = keeper.sync().await?;
            s.marks.durable.fetch_max(durable.0, Ordering::Release);
            Ok::<_, StoreError>(durable)
        })
        .await;
    let Some(durable) = synced_log else { return Ok(()) };
    let index = shard.index.as_ref().zip(index_ms);
    let covered = derived::advance(&shard.io, &root, index, &all, durable?).await?;
    shard.marks.checkpointed.fetch_max(covered.0, Ordering::AcqRel);
    Ok(())
}

async fn trim(shard: &Rc<Shard>, min: PhyOffset) {
    shard
        .run_on_all(move |s| async move {
            s.reader.trim(min);
            for queue in s.queues.all() {
                if let Err(e) = queue.cq.trim(min).await {
                    error!(topic = %queue.topic.name, queue = queue.key.queue, error = %e, "consume queue not trimmed");
                }
            }
            if let Some(index) = &s.index
                && let Err(e) = index.trim(min).await
            {
                error!(error = %e, "index not trimmed");
            }
        })
        .await;
    info!(%min, "queues and index trimmed");
}
