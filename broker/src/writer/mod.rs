//! The writer role: inbox -> batch -> write -> acks. One exists; it owns the end of the log. Its loop is [`pipeline`].
pub mod committed;
pub mod copy;
pub mod held;
mod pipeline;
pub mod unconfirmed;
pub mod upkeep;

use crate::mesh::{Event, Msg};
use crate::placement::ShardId;
use crate::shard::Shard;
use crate::shard::appends::{AppendGroup, Receipt, Refusal, Run};
use crate::{Keeper, Log};
use committed::{Committed, Entry, Span};
use copy::Copier;
use futures_lite::future;
use glommio::timer::sleep;
use held::{Acks, HeldAcks};
use pipeline::Pipeline;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing::error;
use unconfirmed::Unconfirmed;
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
    /// Controller mode: batches that consumers may not see yet.
    pub unconfirmed: Unconfirmed,
    /// A slave's: the log, which only its master adds to.
    pub copier: Option<Copier>,
}

impl Writer {
    pub fn new(keeper: Keeper, ops: Option<OpLog>, copier: Option<Copier>) -> Self {
        Writer {
            copier,
            held: HeldAcks::default(),
            unconfirmed: Unconfirmed::default(),
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
    /// The replicated or confirmed mark moved: shows to consumers what they may see, then answers who waits for that.
    pub fn release(&self, shard: &Shard) {
        self.unconfirmed.release(shard, unconfirmed::bound(shard));
        self.held.release(shard);
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

    /// Of the placed runs.
    fn bytes(&self) -> usize {
        match (self.placed.first(), self.placed.last()) {
            (Some((_, _, first)), Some(&last)) => (self.end_of(last) - first.phy.0) as usize,
            _ => 0,
        }
    }

    /// Where a placed run ends in the log.
    fn end_of(&self, (group, run, receipt): (u32, u32, Receipt)) -> u64 {
        receipt.phy.0 + u64::from(self.groups[group as usize].runs[run as usize].bytes)
    }

    /// Where the last run ends that is whole at `to`.
    fn end_of_run(&self, to: PhyOffset) -> Option<PhyOffset> {
        let ends = self.placed.iter().rev().map(|&placed| self.end_of(placed));
        ends.into_iter().find(|end| *end <= to.0).map(PhyOffset)
    }

    /// Takes the runs away that stand at `to` in the log or behind it. What was refused stays.
    fn split_off(&mut self, to: PhyOffset) -> Waiting {
        let keep = self.placed.partition_point(|(_, _, receipt)| receipt.phy < to);
        let mut placed = self.placed.split_off(keep);
        let Some(&(group, run, _)) = placed.first() else { return Waiting::new() };
        let split = self.groups[group as usize].split_off(run as usize);
        let mut groups = vec![split];
        groups.extend(self.groups.drain(group as usize + 1..));
        for (of, n, _) in &mut placed {
            if *of == group {
                *n -= run;
            }
            *of -= group;
        }
        Waiting { groups, placed, refused: Vec::new() }
    }

    fn place(&mut self, log: &mut Log, group: AppendGroup, refused: Option<Refusal>) {
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
            let outcome = match refused {
                Some(refusal) => Err(refusal),
                None => log.place_counted((run.key, count), records, lens).map_err(|e| Refusal::of(&e)),
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
                writer.release(shard); // they may have been faster than our own disk
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
pub async fn run(shard: Rc<Shard>, log: Log, sync_flush: bool) {
    Pipeline::new(shard, log, sync_flush).run().await;
}

/// Why nothing is stored just now.
fn refused_now(shard: &Shard) -> Option<Refusal> {
    if shard.marks.disk_full.load(Ordering::Relaxed) != 0 {
        return Some(Refusal::DiskFull);
    }
    let config = shard.config.borrow();
    let few = || shard.marks.in_sync.load(Ordering::Relaxed) < config.min_in_sync_replicas.into();
    (config.controller_mode && few()).then_some(Refusal::TooFewReplicas)
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

/// Whether the checkpoint is so far behind that the next batch is held for it; only small segments get there.
fn checkpoint_lags(shard: &Shard) -> bool {
    let segment_bytes = shard.config.borrow().segment_bytes;
    let segments = |mark: &AtomicU64| mark.load(Ordering::Acquire) / segment_bytes;
    segments(&shard.marks.written) > segments(&shard.marks.checkpointed) + UNCOVERED_SEGMENTS_MAX
}

/// Waits for the checkpoint while it lags. Never for long: one that fails, or covers no more because a shard is behind, must not stop the
/// writes.
async fn await_checkpoint(shard: &Shard, writer: &Writer) {
    if !checkpoint_lags(shard) {
        return;
    }
    let covered = async {
        while checkpoint_lags(shard) && !writer.checkpoint_failed.get() {
            writer.checkpoint_tried.wait().await;
        }
    };
    future::or(covered, sleep(UNCOVERED_HOLD)).await;
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

/// Up to where the log is durable now: at least what was written before.
async fn sync(shard: &Rc<Shard>) -> Result<PhyOffset, StoreError> {
    let writer = shard.writer.as_ref().expect("runs on the writer shard");
    let durable = writer.keeper.sync().await?;
    shard.marks.durable.fetch_max(durable.0, Ordering::Release);
    Ok(durable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::appends::{Late, RecordMeta, Stamps};
    use uringmq_proto::types::TopicId;

    fn key(queue: u32) -> QueueKey {
        QueueKey { topic: TopicId(1), queue }
    }

    /// Runs of two records of 10 bytes each, every record with a hash and every run with a light queue; all numbers are `first` and on.
    fn group(first: u32, runs: u32) -> AppendGroup {
        let now = Instant::now();
        let records = 0..2 * runs;
        let meta = |n: u32| RecordMeta {
            bytes: 10,
            tags_code: (first + n).into(),
            delayed: false,
            hash_from: n,
            hash_count: 1,
        };
        let run = |n| Run {
            token: first + n,
            key: key(0),
            numbered: true,
            wait_durable: true,
            first_record: 2 * n,
            record_count: 2,
            at: 20 * n,
            bytes: 20,
            late: Late { first_light: n, light_count: 1, ..Late::default() },
        };
        AppendGroup {
            from: 0,
            bytes: records.clone().flat_map(|n| [(first + n) as u8; 10]).collect(),
            lens: vec![10; 2 * runs as usize],
            records: records.clone().map(meta).collect(),
            hashes: records.map(|n| first + n).collect(),
            lights: (0..runs).map(|n| (key(first + n), QueueOffset(0))).collect(),
            runs: (0..runs).map(run).collect(),
            stamps: Stamps { begun: now, pushed: now, taken: now },
        }
    }

    /// Three runs in a group, of which the second was refused, and one in another; from 1000 on.
    fn waiting() -> Waiting {
        let receipt =
            |at| Receipt { phy: PhyOffset(at), queue_offset: QueueOffset(0), store_timestamp_ms: 0, replicated: true };
        let placed = vec![(0, 0, receipt(1000)), (0, 2, receipt(1020)), (1, 0, receipt(1040))];
        Waiting { groups: vec![group(0, 3), group(100, 1)], placed, refused: Vec::new() }
    }

    #[test]
    fn what_is_whole_at_a_place_is_told() {
        let waiting = waiting();
        assert_eq!(waiting.bytes(), 60);
        let ends = [1019, 1020, 1059, 1060, 2000].map(|to| waiting.end_of_run(PhyOffset(to)).map(|end| end.0));
        assert_eq!(ends, [None, Some(1020), Some(1040), Some(1060), Some(1060)]);
        assert_eq!((Waiting::new().bytes(), Waiting::new().end_of_run(PhyOffset(9))), (0, None));
    }

    #[test]
    fn runs_behind_a_place_leave_with_all_that_is_theirs() {
        let mut kept = waiting();
        let rest = kept.split_off(PhyOffset(1020));
        let tokens = |waiting: &Waiting| -> Vec<(u32, u64)> {
            let token = |&(g, r, receipt): &(u32, u32, Receipt)| {
                (waiting.groups[g as usize].runs[r as usize].token, receipt.phy.0)
            };
            waiting.placed.iter().map(token).collect()
        };
        assert_eq!((tokens(&kept), tokens(&rest)), (vec![(0, 1000)], vec![(2, 1020), (100, 1040)]));
        let (split, other) = (&rest.groups[0], &rest.groups[1]);
        assert_eq!((kept.groups.len(), rest.groups.len(), other.hashes.as_slice()), (1, 2, &[100, 101][..]));
        assert_eq!(kept.groups[0].bytes, [[0; 10], [1; 10], [2; 10], [3; 10]].concat());
        let Run { at, bytes, first_record, late, .. } = split.runs[0];
        assert_eq!((at, bytes, first_record, late.first_light), (0, 20, 0, 0));
        assert_eq!((&split.bytes[..], &split.lens[..]), (&[[4; 10], [5; 10]].concat()[..], &[10, 10][..]));
        assert_eq!((&split.hashes[..], split.lights[0].0), (&[4, 5][..], key(2)));
        let metas: Vec<(u32, i64)> = split.records.iter().map(|meta| (meta.hash_from, meta.tags_code)).collect();
        assert_eq!(metas, [(0, 4), (1, 5)]);
        // Nothing stands there: nothing leaves.
        assert!(kept.split_off(PhyOffset(1020)).groups.is_empty() && tokens(&kept).len() == 1);
    }
}
