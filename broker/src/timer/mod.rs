//! The arbitrary timers: messages that wait in the timer topic for a time of their own and are stored again under their real topic then.
//! Runs on shard 0 of a master, in four tasks: [`follow`] enqueues (queue to timer log and wheel), [`load`] reads the slots that are near,
//! [`fire`] delivers what is due, and one saves how far that is. Source: behaviour sheet 7.2 to 7.4, store-format sheet 10; known faults
//! D01, D04, D06.
//!
//! The wheel only selects a slot of `timerPrecisionMs`; within it each message comes at the very ms that was asked for, never before. What
//! waits long costs a slot of the wheel, not a message: its record is looked at a second before its slot.
//!
//! Nothing is lost: a message hangs on the synced wheel before the queue's progress is saved, and the time that was read is saved when all
//! copies up to it are durable. A restart repeats at most what was delivered since. Where Apache's broker differs:
//! - a delay that cannot be represented is refused; there it is in the past and delivered at once (known fault D01);
//! - what cannot be delivered is stepped over and counted, and what cannot be stored now is tried until it can be: neither holds up others;
//! - a message that rolls says its very time in TIMER_DELIVER_MS.
mod counts;
mod fire;
mod follow;
mod load;
pub mod near;
pub mod put;

use crate::Io;
use crate::config::BrokerConfig;
use crate::control::persist;
use crate::delay::{self, Fetched};
use crate::handlers::offset::{bounds, stopping};
use crate::mesh::{Event, Msg};
use crate::placement::ShardId;
use crate::shard::Shard;
use counts::Counts;
use futures_lite::future;
use near::Near;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tracing::{error, info, warn};
use uringmq_proto::body::timer::TimerMetrics;
use uringmq_proto::fastjson;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found};
use uringmq_proto::types::{PhyOffset, QueueKey};
use uringmq_store::StoreError;
use uringmq_store::json_table;
use uringmq_store::open::Opened;
use uringmq_store::timer::{self as files, TimerFiles, TimerStore, floor_ms};
use uringmq_store::timer_check::{self, TimerCheck};
use uringmq_store::timer_log::{Unit, Window};

const CHECK_FILE: &str = "timercheck";
const METRICS_FILE: &str = "timermetrics";
/// Saved at least so often, whatever changed.
const SAVE_MS_MAX: i64 = 10_000;
/// Pause before what failed is tried again.
const RETRY_MS: i64 = 200;

/// The timers of a broker, on shard 0; on the owner of the timer queue, what to ring.
#[derive(Default)]
pub struct Timers {
    /// Once started.
    store: OnceCell<TimerStore<Io>>,
    near: RefCell<Near>,
    counts: Counts,
    /// Next entry of the queue to be enqueued.
    queue_offset: Cell<u64>,
    /// All slots before it are done.
    read_ms: Cell<i64>,
    /// Units from this slot on are being written: none of them may be counted as done.
    writing_from_ms: Cell<Option<i64>>,
    /// The end of the copies stored so far.
    copied_to: Cell<u64>,
    /// (read time, end of copies) that becomes the saved one when the log is durable so far.
    candidate: Cell<Option<(i64, u64)>>,
    saved: Cell<TimerCheck>,
    saved_at_ms: Cell<i64>,
    /// [`Timers::work`] when it was saved.
    saved_work: Cell<u64>,
    metrics_at_ms: Cell<i64>,
    saving: uringmq_store::turn::Turn,
    /// Units of the timer log that the start read before the broker was ready.
    pub walked: Cell<u64>,
    /// Enqueued before the start, beyond the progress that was saved.
    known: RefCell<HashSet<PhyOffset>>,
    /// The queue has grown.
    arrived: Event,
    /// Something is due earlier than before.
    due: Event,
    /// A slot is near.
    slot: Event,
    /// The read time when all of the queue was enqueued, until it has passed; and the last one that has.
    caught_up: Cell<Option<i64>>,
    delivered_to: Cell<Option<i64>>,
    /// When, and what [`Timers::rates`] began to count from; the rates of the stretch before.
    sampled: Cell<(i64, u64, u64)>,
    rates: Cell<(f64, f64)>,
    pub enqueued: Cell<u64>,
    pub delivered: Cell<u64>,
    pub cancelled: Cell<u64>,
    pub rolled: Cell<u64>,
    /// Stepped over, because they could not become a message.
    pub skipped: Cell<u64>,
    failures: delay::Quiet,
    skips: delay::Quiet,
    /// On a slave: its master's progress is in `saved`.
    copied: Cell<bool>,
    /// Of a store that was a slave's: its master had enqueued the messages before this queue offset, and all slots before this time (ms) were done.
    inherited: Cell<(i64, i64)>,
    /// The timer queue, on its owner.
    watched: Cell<Option<QueueKey>>,
    heard: Cell<bool>,
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

impl Timers {
    /// On the queue's owner: an entry was added to `key`.
    pub fn note(&self, key: QueueKey) {
        if self.watched.get() == Some(key) {
            self.heard.set(true);
        }
    }

    /// Grows with everything that is done.
    fn work(&self) -> u64 {
        [&self.enqueued, &self.delivered, &self.cancelled, &self.rolled, &self.skipped]
            .iter()
            .map(|cell| cell.get())
            .sum()
    }

    fn store(&self) -> &TimerStore<Io> {
        self.store.get().expect("set before the tasks start")
    }

    /// How far the timers are, as `timercheck` has it and 60 answers it; `None` before the start. On a slave as its master said last.
    pub fn check(&self) -> Option<TimerCheck> {
        let known = self.store.get().is_some() || self.copied.get();
        known.then(|| self.saved.get())
    }

    /// The table of waiting messages, as 61 answers it.
    pub fn metrics(&self) -> TimerMetrics {
        self.counts.table_less(self.near.borrow().done_counts())
    }

    /// Messages on the slot of a time.
    pub fn waiting_at(&self, slot_ms: i64) -> i64 {
        self.store.get().and_then(|store| store.wheel.get(slot_ms)).map_or(0, |slot| slot.num.into())
    }

    /// Messages on the wheel.
    pub fn waiting(&self) -> i64 {
        self.store.get().map_or(0, |store| store.wheel.total().max(0))
    }

    /// How far the time that was read is behind, s.
    pub fn read_behind_s(&self, now_ms: i64) -> i64 {
        self.store.get().map_or(0, |_| (now_ms - self.read_ms.get()).max(0) / 1000)
    }

    /// Messages enqueued and delivered a second.
    pub fn rates(&self) -> (f64, f64) {
        self.rates.get()
    }

    fn sample(&self, now_ms: i64) {
        let (since_ms, enqueued, delivered) = self.sampled.get();
        let now = (now_ms, self.enqueued.get(), self.delivered.get());
        let ms = now_ms - since_ms;
        if (0..SAVE_MS_MAX).contains(&ms) {
            return;
        }
        let rate = |now: u64, before: u64| {
            if ms > 0 && since_ms > 0 { (now - before) as f64 * 1000.0 / ms as f64 } else { 0.0 }
        };
        self.rates.set((rate(now.1, enqueued), rate(now.2, delivered)));
        self.sampled.set(now);
    }
}

impl Shard {
    /// Tells shard 0's timers when their queue has grown.
    pub fn ring_timers(&self) {
        if !self.timer.heard.replace(false) {
            return;
        }
        if self.id == 0 {
            self.timer.arrived.set();
        } else {
            self.mesh.push(0, Msg::Run(Box::new(|shard: Rc<Shard>| shard.timer.arrived.set())));
        }
    }
}

fn path(shard: &Shard, file: &str) -> PathBuf {
    persist::path(&shard.config().store_root, file)
}

fn queue_of(shard: &Shard) -> Result<(ShardId, QueueKey), StoreError> {
    let topic = shard.topic(names::WHEEL_TIMER_TOPIC).ok_or_else(stopping)?;
    let key = QueueKey { topic: topic.id, queue: 0 };
    Ok((shard.owner(key), key))
}

async fn fetch(shard: &Rc<Shard>, from: u64) -> Result<Fetched, StoreError> {
    let (owner, key) = queue_of(shard)?;
    shard.run_on(owner, move |owner| delay::fetch(owner, key, from)).await.unwrap_or_else(|| Err(stopping()))
}

/// Entries of the queue that are not enqueued.
pub async fn behind(shard: &Rc<Shard>) -> u64 {
    let Ok((owner, key)) = queue_of(shard) else { return 0 };
    let max = shard.run_on(owner, move |owner| async move { bounds(&owner, key).1 }).await;
    max.map_or(0, |max| max.saturating_sub(shard.timer.queue_offset.get()))
}

/// Reads the timers' files, brings them into agreement with the log, which ended at `log_end` when the store was opened, and starts the
/// tasks; they end when the shard's doors close. On shard 0, once every shard has its queues; does nothing but on a master with
/// `timerWheelEnable`.
pub async fn start(shard: &Rc<Shard>, log_end: PhyOffset) -> Result<(), StoreError> {
    let config = shard.config();
    if config.broker_id != 0 || !config.timer_wheel {
        return Ok(());
    }
    let timers = &shard.timer;
    let check = timer_check::read(&shard.io, &path(shard, CHECK_FILE)).await?;
    let parse = |text: &[u8]| fastjson::from_slice::<TimerMetrics>(text).map_err(|e| e.to_string());
    match json_table::load(&shard.io, &path(shard, METRICS_FILE), parse).await {
        Ok(stored) => timers.counts.load(stored.unwrap_or_default()),
        Err(StoreError::Refused { path, what }) => {
            warn!(path = %path.display(), what, "the table of waiting timers is not used; it is counted from now on");
        }
        Err(e) => return Err(e),
    }
    let files = files_of(&config);
    let store = files::open(shard.io.clone(), &files, &check.unwrap_or_default(), log_end).await?;
    let fresh = check.is_none() && store.last.is_none();
    let check = check.unwrap_or_default();
    let read_ms = if fresh { floor_ms(shard.now_ms(), files.precision_ms) } else { store.read_ms };
    timers.read_ms.set(read_ms);
    if check.master_queue_offset > check.queue_offset {
        timers.inherited.set((check.master_queue_offset, read_ms));
    }
    timers.saved.set(TimerCheck { read_ms, ..check });
    let (last, waiting) = (store.last, store.wheel.total());
    timers.walked.set(store.walked);
    if timers.store.set(store).is_err() {
        return Ok(()); // started before
    }
    find_queue_offset(shard, &check, last).await?;
    look_back(shard, last).await?;
    let walked = timers.walked.get();
    info!(
        from = timers.queue_offset.get(),
        read_ms,
        waiting,
        walked,
        known = timers.known.borrow().len(),
        "timers found"
    );
    timers.counts.begin();
    glommio::spawn_local(recount(shard.clone(), last)).detach();
    let (_, key) = queue_of(shard)?;
    shard.run_on_all(move |s| async move { s.timer.watched.set(Some(key)) }).await;
    glommio::spawn_local(follow::run(shard.clone())).detach();
    glommio::spawn_local(load::run(shard.clone())).detach();
    glommio::spawn_local(fire::run(shard.clone())).detach();
    glommio::spawn_local(save_periodically(shard.clone())).detach();
    Ok(())
}

pub fn files_of(config: &BrokerConfig) -> TimerFiles {
    TimerFiles {
        root: config.store_root.clone(),
        log_file_bytes: config.timer_log_file_bytes,
        precision_ms: config.timer_precision_ms,
    }
}

/// The log that was opened was cut: what timers had enqueued of the messages behind goes too. Before any shard.
pub async fn cut(io: &Io, files: &TimerFiles, opened: &Opened) -> Result<(), StoreError> {
    let queue = opened.queues.iter().find(|queue| queue.topic == names::WHEEL_TIMER_TOPIC && queue.queue == 0);
    let queue_end = queue.map_or(0, |queue| queue.bounds.max.0);
    files::cut(io, files, &persist::path(&files.root, CHECK_FILE), opened.end, queue_end).await
}

/// A slave keeps how far its master's timers are, for the day when it leads: what they have delivered is not delivered again. Nothing where
/// timers run here.
pub async fn copy(shard: &Shard, theirs: &TimerCheck, waiting: Option<TimerMetrics>) -> Result<(), StoreError> {
    let timers = &shard.timer;
    if timers.store.get().is_some() {
        return Ok(());
    }
    let before = match timers.copied.get() {
        true => timers.saved.get(),
        false => timer_check::read(&shard.io, &path(shard, CHECK_FILE)).await?.unwrap_or_default(),
    };
    let next = TimerCheck {
        read_ms: theirs.read_ms,
        master_queue_offset: theirs.master_queue_offset,
        version: theirs.version,
        ..before
    };
    if next != before {
        timer_check::write(&shard.io, &path(shard, CHECK_FILE), &next).await?;
    }
    timers.saved.set(next);
    timers.copied.set(true);
    if let Some(waiting) = waiting.filter(|waiting| *waiting != timers.counts.table()) {
        let text = fastjson::to_vec(&waiting);
        json_table::save(&shard.io, &path(shard, METRICS_FILE), &text).await?;
        timers.counts.load(waiting);
    }
    Ok(())
}

/// Where the queue goes on: behind the newest unit's message, but not behind what the master had enqueued.
async fn find_queue_offset(shard: &Rc<Shard>, check: &TimerCheck, last: Option<(u64, Unit)>) -> Result<(), StoreError> {
    let timers = &shard.timer;
    let mut behind_last = None;
    if let Some((_, unit)) = last {
        let mut bytes = Vec::new();
        if shard.read_record(unit.phy, unit.bytes, &mut bytes).await.is_ok()
            && let Ok(Found::Record(record)) = record::parse(&bytes, false)
            && record.topic == names::WHEEL_TIMER_TOPIC
        {
            behind_last = u64::try_from(record.queue_offset).ok().map(|offset| offset + 1);
        }
    }
    let noted = u64::try_from(check.queue_offset.min(check.master_queue_offset)).unwrap_or(0);
    let wanted = match behind_last {
        Some(offset) => offset.min(u64::try_from(check.master_queue_offset).unwrap_or(0)).max(noted),
        None => noted,
    };
    let (owner, key) = queue_of(shard)?;
    let (min, max) = shard.run_on(owner, move |owner| async move { bounds(&owner, key) }).await.ok_or_else(stopping)?;
    let offset = wanted.clamp(min, max);
    if offset != wanted {
        warn!(noted = wanted, used = offset, min, max, "the timers' place in their queue was corrected");
    }
    timers.queue_offset.set(offset);
    Ok(())
}

/// Walks the units back from the newest to the first that the queue will not bring again: those before it hang for good.
async fn look_back(shard: &Rc<Shard>, last: Option<(u64, Unit)>) -> Result<(), StoreError> {
    let timers = &shard.timer;
    let log = &timers.store().log;
    let mut known = HashSet::new();
    if let Some(first) = fetch(shard, timers.queue_offset.get()).await?.entries.first().map(|entry| entry.phy) {
        let mut window = Window::default();
        let mut next = last;
        while let Some((at, unit)) = next.filter(|(_, unit)| unit.phy >= first) {
            known.insert(unit.phy);
            next = match log.before(at) {
                Some(before) => log.unit(before, &mut window).await?.map(|unit| (before, unit)),
                None => None,
            };
        }
    }
    timers.walked.set(timers.walked.get() + known.len() as u64);
    *timers.known.borrow_mut() = known;
    Ok(())
}

/// Counts anew how many messages of each topic wait, from the newest unit back to the first that hangs, while the broker serves.
async fn recount(shard: Rc<Shard>, last: Option<(u64, Unit)>) {
    let (timers, mut by_hash) = (&shard.timer, BTreeMap::<i32, (i64, Unit)>::new());
    let store = timers.store();
    let first_hanging = store.wheel.first().unwrap_or(u64::MAX);
    let mut window = Window::default();
    let mut next = last;
    while let Some((at, unit)) = next.filter(|(at, _)| *at >= first_hanging) {
        if shard.doors.is_closed() {
            return; // the table stays as it was saved, with what changed since
        }
        if !unit.deletes() && unit.slot_ms() >= store.read_ms {
            by_hash.entry(unit.topic_hash).or_insert((0, unit)).0 += 1;
        }
        next = match store.log.before(at) {
            Some(before) => match store.log.unit(before, &mut window).await {
                Ok(unit) => unit.map(|unit| (before, unit)),
                Err(e) => return warn!(error = %e, "timers that wait are not counted: the timer log cannot be read"),
            },
            None => None,
        };
    }
    let mut counted = BTreeMap::new();
    for (hash, (count, unit)) in by_hash {
        let topic = match timers.counts.topic_of(hash) {
            Some(topic) => Some(topic),
            None => real_topic(&shard, &unit).await,
        };
        if let Some(topic) = topic {
            counted.insert(topic, count);
        }
    }
    timers.counts.finish(&counted, shard.now_ms());
}

async fn real_topic(shard: &Shard, unit: &Unit) -> Option<String> {
    let mut bytes = Vec::new();
    shard.read_record(unit.phy, unit.bytes, &mut bytes).await.ok()?;
    match record::parse(&bytes, false) {
        Ok(Found::Record(record)) => message::property(record.properties, prop::REAL_TOPIC).map(str::to_owned),
        _ => None,
    }
}

/// Not longer than until the doors close.
async fn sleep(shard: &Shard, ms: i64) {
    shard.sleep(Duration::from_millis(ms.max(1) as u64)).await;
}

async fn sleep_or(shard: &Shard, ms: i64, event: &Event) {
    future::or(sleep(shard, ms), event.wait()).await;
}

fn note_failure(shard: &Shard, e: &StoreError, what: &'static str) {
    if let Some(times) = shard.timer.failures.note(shard.now_ms()) {
        error!(error = %e, times, "{what}; it is tried again");
    }
}

fn note_skip(shard: &Shard, phy: PhyOffset, why: &'static str) {
    count(&shard.timer.skipped);
    if let Some(times) = shard.timer.skips.note(shard.now_ms()) {
        warn!(%phy, times, why, "timer message was stepped over");
    }
}

/// Moves the read time over the slots that are done; back, should the clock be set back. Over the slot of this moment too when nothing
/// `more` will hang on it.
fn sweep(shard: &Shard, more: bool) {
    let timers = &shard.timer;
    let wheel = &timers.store().wheel;
    let now_ms = shard.now_ms();
    let passed = floor_ms(now_ms, wheel.precision_ms()) + if more { 0 } else { wheel.precision_ms() };
    let limit = timers.writing_from_ms.get().map_or(passed, |from| passed.min(from));
    for (slot_ms, done) in timers.near.borrow_mut().sweep(limit) {
        wheel.remove(slot_ms);
        done.iter().for_each(|(topic, done)| timers.counts.add(topic, -done, now_ms));
    }
    let reached = wheel.next_from(0).map_or(limit, |(slot_ms, _)| limit.min(slot_ms));
    timers.read_ms.set(reached);
}

async fn save_periodically(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        let period_ms = shard.config.borrow().timer_flush_ms.max(1) as i64;
        sleep(&shard, period_ms).await;
        sweep(&shard, true);
        shard.timer.sample(shard.now_ms());
        if let Err(e) = save(&shard, false).await {
            note_failure(&shard, &e, "progress of timers not saved");
        }
        let min = shard.marks.min();
        if let Err(e) = shard.timer.store().log.retire(min).await {
            note_failure(&shard, &e, "old files of the timer log not removed");
        }
    }
}

/// Makes durable what was enqueued and saves how far the timers are. `last`: at a stop, when the log is written and synced to its end.
pub async fn save(shard: &Rc<Shard>, last: bool) -> Result<(), StoreError> {
    let timers = &shard.timer;
    let Some(store) = timers.store.get() else { return Ok(()) };
    let _turn = timers.saving.take().await;
    let now_ms = shard.now_ms();
    let work = timers.work();
    let idle = work == timers.saved_work.get() && timers.candidate.get().is_none();
    if idle && !last && (0..SAVE_MS_MAX).contains(&(now_ms - timers.saved_at_ms.get())) {
        return Ok(());
    }
    if last {
        sweep(shard, false);
    }
    if last || timers.candidate.get().is_none() {
        timers.candidate.set(Some((timers.read_ms.get(), timers.copied_to.get())));
    }
    let before = timers.saved.get();
    let mut read_ms = before.read_ms.min(timers.read_ms.get());
    if let Some((reached, copied_to)) = timers.candidate.get()
        && copied_to <= shard.marks.durable().0
    {
        timers.candidate.set(None);
        read_ms = reached;
    }
    let queue_offset = timers.queue_offset.get() as i64;
    let log_at = store.log.end() as i64;
    store.log.write().await?;
    store.log.sync().await?;
    store.wheel.flush().await?;
    let changed = (read_ms, queue_offset) != (before.read_ms, before.queue_offset);
    let version = if changed { before.version.next(0, now_ms) } else { before.version };
    let check = TimerCheck { read_ms, log_at, queue_offset, master_queue_offset: queue_offset, version };
    timer_check::write(&shard.io, &path(shard, CHECK_FILE), &check).await?;
    timers.saved.set(check);
    timers.saved_work.set(work);
    timers.saved_at_ms.set(now_ms);
    if last || !(0..SAVE_MS_MAX).contains(&(now_ms - timers.metrics_at_ms.get())) {
        let text = fastjson::to_vec(&timers.metrics());
        json_table::save(&shard.io, &path(shard, METRICS_FILE), &text).await?;
        timers.metrics_at_ms.set(now_ms);
    }
    Ok(())
}

/// A time up to which everything that waited for it is delivered, whatever was stored before that time; `None` until there is one. On shard 0.
///
/// What is enqueued late hangs on the slot of the read time, or before it. So when that has passed after the whole queue was enqueued, all
/// of it is delivered.
pub async fn delivered_to(shard: &Rc<Shard>) -> Result<Option<i64>, StoreError> {
    let timers = &shard.timer;
    if timers.store.get().is_none() {
        return Ok(None);
    }
    let (owner, key) = queue_of(shard)?;
    let end = shard.run_on(owner, move |owner| async move {
        let dispatched = owner.dispatch.at() >= owner.marks.readable();
        dispatched.then(|| bounds(&owner, key).1)
    });
    let end = end.await.ok_or_else(stopping)?;
    sweep(shard, true);
    let read_ms = timers.read_ms.get();
    if let Some(before_ms) = timers.caught_up.get().filter(|before_ms| read_ms > *before_ms) {
        timers.delivered_to.set(Some(before_ms));
        timers.caught_up.set(None);
    }
    let enqueued = timers.writing_from_ms.get().is_none() && end.is_some_and(|end| timers.queue_offset.get() >= end);
    if enqueued && timers.caught_up.get().is_none() {
        timers.caught_up.set(Some(read_ms));
    }
    Ok(timers.delivered_to.get())
}

/// Logged once at a stop.
pub fn log_totals(shard: &Shard) {
    let t = &shard.timer;
    if t.enqueued.get() + t.delivered.get() + t.skipped.get() > 0 {
        info!(
            enqueued = t.enqueued.get(),
            delivered = t.delivered.get(),
            cancelled = t.cancelled.get(),
            rolled = t.rolled.get(),
            skipped = t.skipped.get(),
            "timer messages of this run"
        );
    }
}
