//! The writer role: inbox -> batch -> write -> acks. One exists; it owns the end of the log.
//!
//! One write is in flight; what arrives meanwhile is the next batch, so load sets the size of a batch and no timer does.
pub mod committed;
pub mod copy;
pub mod held;
pub mod upkeep;

use crate::mesh::{Event, Msg};
use crate::placement::ShardId;
use crate::shard::Shard;
use crate::shard::appends::{AppendGroup, Receipt, Refusal, Run};
use crate::stages::Stage;
use crate::{Keeper, Log};
use committed::{Committed, Entry, Span};
use copy::Copier;
use futures_lite::future;
use glommio::timer::sleep;
use held::{Acks, HeldAcks};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing::error;
use uringmq_proto::message::{self, prop};
use uringmq_proto::record;
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset};
use uringmq_store::StoreError;
use uringmq_store::io::glommio::{OpKind, OpLog};

/// Hints to a shard that is behind are dropped above this; its cursor reads the log instead.
const HINT_BACKLOG_MAX: usize = 64;
/// The checkpoint stays at most so many segments behind the end: Apache's broker, looking for the segment to recover from, walks back
/// 10 and then starts where it is, with holes in the queues before.
const UNCOVERED_SEGMENTS_MAX: u64 = 5;
/// Longest wait for it before a batch.
const UNCOVERED_HOLD: Duration = Duration::from_secs(1);

/// The writer's inbox, on its shard.
pub struct Writer {
    inbox: RefCell<VecDeque<Box<AppendGroup>>>,
    ready: Event,
    /// Where queues go on, as recovery found them; taken by `run` before the first batch.
    next: RefCell<Vec<(QueueKey, QueueOffset)>>,
    stopping: Cell<bool>,
    stopped: Event,
    pub keeper: Keeper,
    /// Wakes the keeper's task after a write.
    pub tail_moved: Event,
    /// A checkpoint was tried; and whether the last one failed.
    checkpoint_tried: Event,
    checkpoint_failed: Cell<bool>,
    /// Retention was asked for by code 329; it is looked at its next time.
    pub clean_now: Cell<bool>,
    /// A segment could not be made for lack of space; retention is rung for.
    pub no_space: Cell<bool>,
    pub space_short: Event,
    /// Where acknowledgements are noted beside the log's operations, when they are recorded.
    pub ops: Option<OpLog>,
    pub held: HeldAcks,
    /// A slave's: the log, which only its master adds to.
    pub copier: Option<Copier>,
}

impl Writer {
    pub fn new(keeper: Keeper, ops: Option<OpLog>, copier: Option<Copier>) -> Self {
        Writer {
            copier,
            held: HeldAcks::default(),
            inbox: RefCell::default(),
            ready: Event::default(),
            next: RefCell::default(),
            stopping: Cell::new(false),
            stopped: Event::default(),
            keeper,
            tail_moved: Event::default(),
            checkpoint_tried: Event::default(),
            checkpoint_failed: Cell::new(false),
            clean_now: Cell::new(false),
            no_space: Cell::new(false),
            space_short: Event::default(),
            ops,
        }
    }
    /// Gives back how long the group was on its way.
    pub fn take(&self, mut group: Box<AppendGroup>) -> Duration {
        group.stamps.taken = Instant::now();
        let way = group.stamps.taken - group.stamps.pushed;
        self.inbox.borrow_mut().push_back(group);
        self.ready.set();
        way
    }
    pub fn set_next(&self, next: Vec<(QueueKey, QueueOffset)>) {
        *self.next.borrow_mut() = next;
    }
    pub fn checkpoint_tried(&self, ok: bool) {
        self.checkpoint_failed.set(!ok);
        self.checkpoint_tried.set();
    }
    /// Lets `run` finish what is in the inbox and end; resolves when it has.
    pub async fn stop(&self) {
        self.stopping.set(true);
        self.ready.set();
        self.stopped.wait().await;
    }
}

/// One batch's bookkeeping: who asked, in log order.
struct Waiting {
    groups: Vec<AppendGroup>,
    /// (group, run, where it went)
    placed: Vec<(u32, u32, Receipt)>,
    refused: Vec<(ShardId, u32, Refusal)>,
}

impl Waiting {
    fn new() -> Self {
        Waiting { groups: Vec::new(), placed: Vec::new(), refused: Vec::new() }
    }

    fn place(&mut self, log: &mut Log, group: AppendGroup, full: bool) {
        let index = self.groups.len() as u32;
        self.groups.push(group);
        let group = self.groups.last_mut().expect("just pushed");
        let from = group.from;
        for n in 0..group.runs.len() {
            if group.runs[n].late.reserved > 0 {
                finish(log, group, n);
            }
            let run = &group.runs[n];
            let Run { at, bytes, first_record, record_count, late, .. } = *run;
            let records = &mut group.bytes[at as usize..(at + bytes) as usize];
            let lens = &group.lens[first_record as usize..(first_record + record_count) as usize];
            let count = match (run.numbered, late.messages) {
                (false, _) => 0,
                (true, 0) => record_count as u64,
                (true, messages) => messages as u64,
            };
            let outcome = match full {
                true => Err(Refusal::DiskFull),
                false => log.place_counted((run.key, count), records, lens).map_err(|e| Refusal::of(&e)),
            };
            match outcome {
                Ok(p) => {
                    for (key, at) in &group.lights[late.first_light as usize..][..late.light_count as usize] {
                        assert_eq!(log.take_offsets(*key, 1), at.0, "as its record says");
                    }
                    let receipt = Receipt {
                        phy: p.phy,
                        queue_offset: p.queue_offset,
                        store_timestamp_ms: p.store_timestamp_ms,
                        replicated: true,
                    };
                    self.placed.push((index, n as u32, receipt));
                }
                Err(e) => self.refused.push((from, run.token, e)),
            }
        }
    }

    /// Acks by asking shard: the refused ones, and those placed runs that `which` selects.
    fn acks(&mut self, shard: &Shard, failed: Option<Refusal>, which: impl Fn(&Run) -> bool) -> Acks {
        let mut acks: Acks = vec![Vec::new(); shard.shards as usize];
        for &(g, r, receipt) in &self.placed {
            let group = &self.groups[g as usize];
            let run = &group.runs[r as usize];
            if which(run) {
                acks[group.from as usize].push((run.token, failed.map_or(Ok(receipt), Err)));
            }
        }
        for (from, token, refusal) in self.refused.drain(..) {
            acks[from as usize].push((token, Err(refusal)));
        }
        acks
    }

    fn answer(&mut self, shard: &Shard, failed: Option<Refusal>, which: impl Fn(&Run) -> bool) {
        held::send(shard, self.acks(shard, failed, which));
    }

    /// What is written (`kind`: or durable) is told to those that `which` selects, with `slaves` once these have it too (the operations'
    /// record has it from now on).
    fn acknowledge(&mut self, shard: &Shard, kind: OpKind, slaves: Option<PhyOffset>, which: impl Fn(&Run) -> bool) {
        if let Some(ops) = shard.writer.as_ref().and_then(|w| w.ops.as_ref()) {
            let no_file: Rc<Path> = Path::new("").into();
            for &(g, r, receipt) in &self.placed {
                let run = &self.groups[g as usize].runs[r as usize];
                if which(run) {
                    ops.note(kind, &no_file, receipt.phy.0, run.bytes as u64);
                }
            }
        }
        let acks = self.acks(shard, None, which);
        match (slaves, &shard.writer) {
            (Some(end), Some(writer)) if acks.iter().any(|of| !of.is_empty()) => {
                writer.held.hold(end.0, acks, Duration::from_millis(shard.config.borrow().slave_timeout_ms));
                writer.held.release(shard); // they may have been faster than our own disk
            }
            _ => held::send(shard, acks),
        }
    }

    /// The disk refused the batch: those that `which` selects, the ones not answered yet, are told.
    fn fail(&mut self, shard: &Shard, e: &StoreError, which: impl Fn(&Run) -> bool) {
        error!(error = %e, "append failed; what was not acknowledged does not count");
        self.answer(shard, Some(Refusal::of(e)), which);
    }

    /// The hint for all shards. The groups' buffers become the shards' tail caches.
    fn committed(&mut self, shard: &Shard, from: PhyOffset, to: PhyOffset) -> Committed {
        let count: usize = self.groups.iter().map(|g| g.records.len()).sum();
        let mut entries = Vec::with_capacity(count);
        let mut spans: SmallVec<[Span; 4]> = SmallVec::new();
        let mut hashes = Vec::with_capacity(self.groups.iter().map(|g| g.hashes.len()).sum());
        let mut buffers: Vec<Option<Arc<Vec<u8>>>> = vec![None; self.groups.len()];
        let mut hash_base = vec![0u32; self.groups.len()];
        for (i, g) in self.groups.iter_mut().enumerate() {
            hash_base[i] = hashes.len() as u32;
            hashes.extend_from_slice(&g.hashes);
            let mut bytes = std::mem::take(&mut g.bytes);
            if bytes.len() < bytes.capacity() / 4 * 3 {
                let exact = bytes.as_slice().to_vec(); // the cache is charged by length, and the buffer is warm
                shard.appends.recycle(std::mem::replace(&mut bytes, exact));
            }
            buffers[i] = Some(Arc::new(bytes));
        }
        for &(g, r, receipt) in &self.placed {
            let group = &self.groups[g as usize];
            let run = &group.runs[r as usize];
            let count = run.late.messages.max(1);
            let mut phy = receipt.phy;
            for (n, meta) in group.records[run.first_record as usize..][..run.record_count as usize].iter().enumerate()
            {
                let tags_code = if meta.delayed { receipt.store_timestamp_ms + meta.tags_code } else { meta.tags_code };
                entries.push(Entry {
                    key: run.key,
                    queue_offset: receipt.queue_offset + if run.numbered { n as u64 } else { 0 },
                    phy,
                    bytes: meta.bytes,
                    tags_code,
                    store_timestamp_ms: receipt.store_timestamp_ms,
                    count,
                    numbered: run.numbered,
                    hash_from: hash_base[g as usize] + meta.hash_from,
                    hash_count: meta.hash_count,
                });
                phy = phy + meta.bytes as u64;
            }
            let of_record = entries.len();
            for (key, at) in &group.lights[run.late.first_light as usize..][..run.late.light_count as usize] {
                let record = entries[of_record - 1];
                entries.push(Entry { key: *key, queue_offset: *at, count: 1, hash_count: 0, ..record });
            }
            match spans.last_mut() {
                Some(s)
                    if s.phy + s.bytes as u64 == receipt.phy
                        && s.at + s.bytes == run.at
                        && buffers[g as usize].as_ref().is_some_and(|b| Arc::ptr_eq(b, &s.buffer)) =>
                {
                    s.bytes += run.bytes;
                }
                _ => spans.push(Span {
                    phy: receipt.phy,
                    at: run.at,
                    bytes: run.bytes,
                    buffer: buffers[g as usize].clone().expect("every group has its buffer"),
                }),
            }
        }
        Committed { since: Instant::now(), from, to, spans, entries, hashes }
    }
}

/// Writes into a run's record what only the writer knows of its properties: the first number of an inner batch, the numbers in its light
/// queues. They are taken once it is placed.
fn finish(log: &Log, group: &mut AppendGroup, n: usize) {
    let run = &mut group.runs[n];
    let late = run.late;
    let mut text = String::with_capacity(late.reserved as usize);
    if late.messages > 0 {
        message::push_property(&mut text, prop::INNER_BASE, &log.next(run.key).0.to_string());
    }
    let lights = &mut group.lights[late.first_light as usize..][..late.light_count as usize];
    if !lights.is_empty() {
        lights.iter_mut().for_each(|(key, at)| *at = log.next(*key));
        let numbers: Vec<String> = lights.iter().map(|(_, at)| at.0.to_string()).collect();
        message::push_property(&mut text, prop::INNER_MULTI_QUEUE_OFFSET, &numbers.join(","));
    }
    let record = &mut group.bytes[run.at as usize..(run.at + run.bytes) as usize];
    run.bytes = record::finish(record, late.reserved as usize, &text) as u32;
    group.lens[run.first_record as usize] = run.bytes;
    group.records[run.first_record as usize].bytes = run.bytes;
}

/// The writer's loop; ends when stopped and the inbox is empty.
pub async fn run(shard: Rc<Shard>, mut log: Log, sync_flush: bool) {
    let writer = shard.writer.as_ref().expect("runs on the writer shard");
    loop {
        if writer.inbox.borrow().is_empty() {
            if writer.stopping.get() {
                break;
            }
            writer.ready.wait().await;
            continue;
        }
        for (key, next) in writer.next.take() {
            log.set_next(key, next);
        }
        let full = shard.marks.disk_full.load(Ordering::Relaxed) != 0;
        let mut waiting = Waiting::new();
        loop {
            let fits =
                writer.inbox.borrow().front().is_some_and(|g| waiting.groups.is_empty() || log.fits(g.bytes.len()));
            if !fits {
                break;
            }
            let group = writer.inbox.borrow_mut().pop_front().expect("front was there");
            waiting.place(&mut log, *group, full);
        }
        write_batch(&shard, &mut log, waiting, sync_flush).await;
        writer.tail_moved.set();
        await_checkpoint(&shard, writer).await;
    }
    writer.held.give_up(&shard);
    writer.stopped.set();
}

/// The loop of a slave's writer, whose log only [`Copier`] adds to: what else comes is refused. Ends when stopped.
pub async fn refuse_appends(shard: Rc<Shard>) {
    let writer = shard.writer.as_ref().expect("runs on the writer shard");
    while !writer.stopping.get() {
        let mut waiting = Waiting::new();
        let groups = std::mem::take(&mut *writer.inbox.borrow_mut());
        for group in groups {
            waiting.refused.extend(group.runs.iter().map(|run| (group.from, run.token, Refusal::Slave)));
        }
        waiting.answer(&shard, None, |_| false);
        writer.ready.wait().await;
    }
    writer.copier.as_ref().expect("a slave's writer has one").close().await;
    writer.stopped.set();
}

/// Holds the next batch while the checkpoint is too far behind; only small segments get there. Never for long: a checkpoint that fails,
/// or covers no more because a shard is behind, must not stop the writes.
async fn await_checkpoint(shard: &Shard, writer: &Writer) {
    let segment_bytes = shard.config().segment_bytes;
    let segments = |mark: &AtomicU64| mark.load(Ordering::Acquire) / segment_bytes;
    let marks = &shard.marks;
    let behind = || segments(&marks.written) > segments(&marks.checkpointed) + UNCOVERED_SEGMENTS_MAX;
    if !behind() {
        return;
    }
    let covered = async {
        while behind() && !writer.checkpoint_failed.get() {
            writer.checkpoint_tried.wait().await;
        }
    };
    future::or(covered, sleep(UNCOVERED_HOLD)).await;
}

async fn write_batch(shard: &Rc<Shard>, log: &mut Log, mut waiting: Waiting, sync_flush: bool) {
    if waiting.placed.is_empty() {
        waiting.answer(shard, None, |_| true);
        return;
    }
    let begun = Instant::now();
    waiting.groups.iter().for_each(|g| shard.stages.took(Stage::Wait, begun - g.stamps.taken));
    let written = match log.write(false).await {
        Ok(written) => written,
        Err(e) => return waiting.fail(shard, &e, |_| true),
    };
    let complete = Instant::now();
    shard.stages.took(Stage::Write, complete - begun);
    let marks = &shard.marks;
    marks.written.store(written.to.0, Ordering::Release);
    // Who waits for nothing is told at once; the others when disk and slaves have it, which both begin now.
    let slaves = shard.config.borrow().awaits_slaves().then_some(written.to);
    let mut committed = None;
    if sync_flush {
        waiting.acknowledge(shard, OpKind::Acked, None, |run| !run.wait_durable);
        if marks.slaves.load(Ordering::Relaxed) > 0 {
            let early = committed.insert(waiting.committed(shard, written.from, written.to));
            shard.mesh.push(shard.ha_shard, Msg::Written(early.spans.iter().cloned().collect()));
        }
        if let Err(e) = sync(shard).await {
            return waiting.fail(shard, &e, |run| run.wait_durable);
        }
        shard.stages.since(Stage::Sync, complete);
        marks.readable.store(written.to.0, Ordering::Release);
        waiting.acknowledge(shard, OpKind::AckedDurable, slaves, |run| run.wait_durable);
    } else {
        // Before the answers: whoever is told of a message may ask for it at once, on any shard (33, 37).
        marks.readable.store(written.to.0, Ordering::Release);
        waiting.acknowledge(shard, OpKind::Acked, None, |run| slaves.is_none() || !run.wait_durable);
        waiting.acknowledge(shard, OpKind::Acked, slaves, |run| slaves.is_some() && run.wait_durable);
    }
    let mut committed = committed.unwrap_or_else(|| waiting.committed(shard, written.from, written.to));
    committed.since = Instant::now();
    tell_all(shard, committed);
}

/// The hint for all shards; one that is behind finds the same in the log.
fn tell_all(shard: &Shard, committed: Committed) {
    let committed = Arc::new(committed);
    for to in 0..shard.shards {
        if shard.mesh.backlog(to) < HINT_BACKLOG_MAX {
            shard.mesh.push(to, Msg::Committed(committed.clone()));
        }
    }
}

async fn sync(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let writer = shard.writer.as_ref().expect("runs on the writer shard");
    let durable = writer.keeper.sync().await?;
    shard.marks.durable.store(durable.0, Ordering::Release);
    Ok(())
}
