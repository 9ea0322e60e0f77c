//! The writer's loop: what arrived is placed while the disk writes, up to two writes are under way beside each other, and with SYNC_FLUSH
//! one sync beside them. Load alone sets the sizes: nothing waits for a timer. When a write has landed, what waits for the next one gives
//! the shard some turns first, in which it answers and reads: with little to do they cost next to nothing, and a busy shard gets fewer and
//! larger writes, and so fewer and larger answers.
use super::committed::Committed;
use super::{Waiting, Writer, await_checkpoint, checkpoint_lags, refused_now, sync, tell_all};
use crate::Log;
use crate::mesh::Msg;
use crate::shard::Shard;
use crate::stages::Stage;
use futures_lite::future;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;
use uringmq_proto::types::PhyOffset;
use uringmq_store::StoreError;
use uringmq_store::commit_log::{Landed, Written};
use uringmq_store::io::glommio::OpKind;

/// Writes under way at the same time. Two keep the disk busy while this core is busy with what the first one brought.
const FLIGHTS_MAX: usize = 2;
/// Less than this waits for the write or sync under way, to be one write with what arrives meanwhile: each costs the core some 40 us.
const BESIDE_BYTES_MIN: usize = 64 * 1024;
/// Turns of the shard between a write's end and the next one's start.
const TURNS_BETWEEN: usize = 8;

type Running<T> = Pin<Box<dyn Future<Output = T>>>;

/// One write under way with those who wait for it.
struct Flight {
    waiting: Waiting,
    begun: Instant,
    /// It is on stable storage when it has landed.
    synced: bool,
    run: Running<Landed>,
    landed: Option<Landed>,
}

/// Written, and waiting for the sync.
struct Unsynced {
    waiting: Waiting,
    written: Written,
    since: Instant,
    /// What was told to slaves already.
    committed: Option<Committed>,
}

/// The sync under way.
struct Sync {
    run: Running<Result<PhyOffset, StoreError>>,
    done: Option<Result<PhyOffset, StoreError>>,
}

pub(super) struct Pipeline {
    shard: Rc<Shard>,
    log: Log,
    sync_flush: bool,
    /// What is placed and in no write yet.
    filling: Waiting,
    flights: VecDeque<Flight>,
    unsynced: VecDeque<Unsynced>,
    sync: Option<Sync>,
}

impl Pipeline {
    pub(super) fn new(shard: Rc<Shard>, log: Log, sync_flush: bool) -> Self {
        let (flights, unsynced) = (VecDeque::new(), VecDeque::new());
        Pipeline { shard, log, sync_flush, filling: Waiting::new(), flights, unsynced, sync: None }
    }

    /// Ends when the writer is stopped and all is answered.
    pub(super) async fn run(mut self) {
        let shard = self.shard.clone();
        let writer = shard.writer.as_ref().expect("runs on the writer shard");
        loop {
            self.place_arrived(writer);
            self.start_sync();
            if self.start(writer).await {
                writer.tail_moved.set();
                continue;
            }
            if self.settle().await {
                writer.tail_moved.set();
                self.let_others_turn(writer).await;
                continue;
            }
            let busy = !self.flights.is_empty() || self.sync.is_some();
            if !busy && writer.inbox.borrow().is_empty() && writer.stopping.get() {
                break;
            }
            self.something(writer).await;
        }
        writer.held.give_up(&shard);
        writer.stopped.set();
    }

    /// Before a write that somebody waits for already and that is not beside another.
    async fn let_others_turn(&self, writer: &Writer) {
        let awaited = self.log.pending() || !writer.inbox.borrow().is_empty();
        if awaited && self.flights.is_empty() {
            for _ in 0..TURNS_BETWEEN {
                glommio::executor().yield_task_queue_now().await;
            }
        }
    }

    fn place_arrived(&mut self, writer: &Writer) {
        for (key, next) in writer.next.take() {
            self.log.set_next(key, next);
        }
        let refused = refused_now(&self.shard);
        loop {
            let fits = writer.inbox.borrow().front().is_some_and(|group| self.log.fits(group.bytes.len()));
            if !fits {
                break;
            }
            let group = writer.inbox.borrow_mut().pop_front().expect("front was there");
            self.filling.place(&mut self.log, *group, refused);
        }
        if !self.filling.refused.is_empty() {
            self.filling.answer(&self.shard, None, |_| false);
        }
    }

    /// Starts what is placed, if it is its time; true when it did.
    async fn start(&mut self, writer: &Writer) -> bool {
        if !self.log.pending() {
            return false;
        }
        if checkpoint_lags(&self.shard) {
            if !self.flights.is_empty() || self.sync.is_some() {
                return false; // they are answered first
            }
            await_checkpoint(&self.shard, writer).await;
        }
        if !self.log.may_start() {
            if self.flights.is_empty() {
                self.write_alone().await;
                return true;
            }
            return false;
        }
        let bytes = self.filling.bytes();
        let under_way = self.flights.len();
        let beside = under_way > 0 || self.sync.is_some();
        if under_way >= FLIGHTS_MAX || (beside && bytes < BESIDE_BYTES_MIN) {
            return false;
        }
        // More than one group in a large batch: others wait behind it, too.
        let queue = under_way > 0 || (self.filling.groups.len() > 1 && bytes >= BESIDE_BYTES_MIN);
        let whole_to = queue.then(|| self.filling.end_of_run(self.log.whole_blocks_to())).flatten();
        if under_way > 0 && whole_to.is_none() {
            return false;
        }
        let synced = self.syncs_at_once();
        let flight = self.log.start(whole_to, synced);
        let rest = whole_to.map_or_else(Waiting::new, |to| self.filling.split_off(to));
        let waiting = mem::replace(&mut self.filling, rest);
        let begun = self.begin(&waiting);
        let mut run: Running<Landed> = Box::pin(flight.run());
        let landed = future::poll_once(&mut run).await;
        self.flights.push_back(Flight { waiting, begun, synced, run, landed });
        true
    }

    /// Whether the next write is to be synced in one go. Slaves get what is written beside the sync, so with them these are two steps.
    fn syncs_at_once(&self) -> bool {
        let slaves = self.shard.marks.slaves.load(Ordering::Relaxed) > 0;
        self.sync_flush
            && !slaves
            && self.filling.groups.iter().flat_map(|group| &group.runs).any(|run| run.wait_durable)
    }

    /// The write of a batch begins, and its groups have waited for it.
    fn begin(&self, waiting: &Waiting) -> Instant {
        let begun = Instant::now();
        waiting.groups.iter().for_each(|g| self.shard.stages.took(Stage::Wait, begun - g.stamps.taken));
        begun
    }

    /// A roll, or what follows a refused batch.
    async fn write_alone(&mut self) {
        let mut waiting = mem::replace(&mut self.filling, Waiting::new());
        let begun = self.begin(&waiting);
        match self.log.write(false).await {
            Ok(written) => self.written(waiting, written, (begun, Stage::Write)),
            Err(e) => waiting.fail(&self.shard, &e, |_| true),
        }
    }

    /// Takes what has ended; true when there was something.
    async fn settle(&mut self) -> bool {
        let mut settled = false;
        if let Some(done) = self.sync.as_mut().and_then(|sync| sync.done.take()) {
            self.sync = None;
            self.synced(done);
            settled = true;
        }
        while let Some(landed) = self.flights.front_mut().and_then(|flight| flight.landed.take()) {
            let mut flight = self.flights.pop_front().expect("looked at just now");
            match self.log.land(landed) {
                Ok(written) => {
                    let stage = if flight.synced { Stage::Sync } else { Stage::Write };
                    self.written(flight.waiting, written, (flight.begun, stage));
                }
                Err(e) => {
                    self.give_up(&e).await;
                    flight.waiting.fail(&self.shard, &e, |_| true);
                }
            }
            settled = true;
        }
        settled
    }

    /// What is in flight, and what was placed behind it, is refused with the flight that failed.
    async fn give_up(&mut self, e: &StoreError) {
        let behind = mem::take(&mut self.flights);
        let mut refused = vec![mem::replace(&mut self.filling, Waiting::new())];
        for flight in behind {
            if flight.landed.is_none() {
                flight.run.await;
            }
            refused.push(flight.waiting);
        }
        self.log.give_up(e).await;
        refused.iter_mut().for_each(|waiting| waiting.fail(&self.shard, e, |_| true));
    }

    /// A batch is in the log.
    fn written(&mut self, mut waiting: Waiting, written: Written, (begun, stage): (Instant, Stage)) {
        let (shard, complete) = (self.shard.clone(), Instant::now());
        shard.stages.took(stage, complete - begun);
        let marks = &shard.marks;
        marks.written.store(written.to.0, Ordering::Release);
        let confirms = shard.config.borrow().confirms();
        if self.sync_flush || confirms {
            // Who waits for nothing is told at once; the others when disk and slaves have it, which both begin now.
            waiting.acknowledge(&shard, OpKind::Acked, None, |run| !run.wait_durable);
            let slaves = marks.slaves.load(Ordering::Relaxed) > 0;
            let committed = (slaves || confirms).then(|| waiting.committed(&shard, written.from, written.to));
            if let Some(early) = committed.as_ref().filter(|_| slaves) {
                shard.mesh.push(shard.ha_shard, Msg::Written(early.spans.iter().cloned().collect()));
            }
            let unsynced = Unsynced { waiting, written, since: complete, committed };
            // What is durable already is not before others that still wait.
            let durable = written.durable && self.unsynced.is_empty();
            if self.sync_flush && durable {
                marks.durable.fetch_max(written.to.0, Ordering::Release);
            }
            match self.sync_flush {
                true if durable => self.commit(unsynced, OpKind::AckedDurable),
                true => self.unsynced.push_back(unsynced),
                false => self.commit(unsynced, OpKind::Acked),
            }
            return;
        }
        let slaves = shard.config.borrow().awaits_slaves().then_some(written.to);
        // Before the answers: whoever is told of a message may ask for it at once, on any shard (33, 37).
        marks.readable.store(written.to.0, Ordering::Release);
        waiting.acknowledge(&shard, OpKind::Acked, None, |run| slaves.is_none() || !run.wait_durable);
        waiting.acknowledge(&shard, OpKind::Acked, slaves, |run| slaves.is_some() && run.wait_durable);
        tell_all(&shard, waiting.committed(&shard, written.from, written.to));
    }

    /// What the disk has as is asked of it: shown to consumers and answered, or held for the SyncStateSet where that confirms it.
    fn commit(&self, of: Unsynced, kind: OpKind) {
        let (shard, Unsynced { mut waiting, written, committed, .. }) = (&self.shard, of);
        let Written { from, to, .. } = written;
        if shard.config.borrow().confirms() {
            let mut committed = committed.unwrap_or_else(|| waiting.committed(shard, from, to));
            committed.since = Instant::now();
            let writer = shard.writer.as_ref().expect("runs on the writer shard");
            writer.unconfirmed.hold(committed);
            waiting.acknowledge(shard, kind, Some(to), |run| run.wait_durable);
            return writer.release(shard);
        }
        shard.marks.readable.store(to.0, Ordering::Release);
        let slaves = shard.config.borrow().awaits_slaves().then_some(to);
        waiting.acknowledge(shard, kind, slaves, |run| run.wait_durable); // first: the hints can wait
        let mut committed = committed.unwrap_or_else(|| waiting.committed(shard, from, to));
        committed.since = Instant::now();
        tell_all(shard, committed);
    }

    fn start_sync(&mut self) {
        if self.sync.is_some() || self.unsynced.is_empty() {
            return;
        }
        let shard = self.shard.clone();
        let run = Box::pin(async move { sync(&shard).await });
        self.sync = Some(Sync { run, done: None });
    }

    /// Everything up to where a sync got is durable; or nothing is known of it.
    fn synced(&mut self, done: Result<PhyOffset, StoreError>) {
        let shard = self.shard.clone();
        let durable = match done {
            Ok(durable) => durable,
            Err(e) => {
                for mut unsynced in mem::take(&mut self.unsynced) {
                    unsynced.waiting.fail(&shard, &e, |run| run.wait_durable);
                }
                return;
            }
        };
        while self.unsynced.front().is_some_and(|unsynced| unsynced.written.to <= durable) {
            let unsynced = self.unsynced.pop_front().expect("looked at just now");
            shard.stages.since(Stage::Sync, unsynced.since);
            self.commit(unsynced, OpKind::AckedDurable);
        }
    }

    /// Waits until something ended or arrived.
    async fn something(&mut self, writer: &Writer) {
        let ready = writer.ready.wait();
        let mut ready = std::pin::pin!(ready);
        poll_fn(|cx| {
            let ended = self.poll_running(cx);
            if ready.as_mut().poll(cx).is_ready() || ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }

    fn poll_running(&mut self, cx: &mut Context<'_>) -> bool {
        for flight in self.flights.iter_mut().filter(|flight| flight.landed.is_none()) {
            if let Poll::Ready(landed) = flight.run.as_mut().poll(cx) {
                flight.landed = Some(landed);
            }
        }
        let mut ended = self.flights.front().is_some_and(|flight| flight.landed.is_some());
        if let Some(sync) = self.sync.as_mut().filter(|sync| sync.done.is_none()) {
            if let Poll::Ready(done) = sync.run.as_mut().poll(cx) {
                sync.done = Some(done);
            }
            ended |= sync.done.is_some();
        }
        ended
    }
}
