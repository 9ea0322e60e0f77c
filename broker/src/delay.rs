//! The delay levels: messages that wait in the schedule topic, one queue a level, are stored again under their real topic when they
//! are due. Runs on shard 0 of a master or an acting slave, one task a level; the entries come from the queues' owners in batches, the
//! copies go to the writer like any message, an acting slave's to another master. Source: behaviour sheet 7.1, store-format sheet 9; known
//! faults D03, D04, S11.
//!
//! Nothing stops a level: an entry that cannot become a message is stepped over and counted, a copy that cannot be stored now is
//! tried again. A level's offset moves over what is done, so a stop repeats at most one batch.
//!
//! A level that was read to its end cannot have anything due before its delay has passed, so an empty queue is looked at rarely and a
//! waiting head is waited for to the millisecond.
use crate::control::persist::{self, Watch};
use crate::escape::{self, EscapeError};
use crate::handlers::offset::stopping;
use crate::placement::ShardId;
use crate::shard::Shard;
use crate::shard::appends::{Gathered, NewMessage};
use crate::snapshot::Topic;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use thiserror::Error;
use tracing::{error, info, warn};
use uringmq_proto::body::offset::DelayOffsetTable;
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::fastjson;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found, Record};
use uringmq_proto::types::{QueueKey, QueueOffset};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Entry;
use uringmq_store::dispatch;
use uringmq_store::json_table;

/// Entries asked of a queue's owner at a time.
const FETCH_ENTRIES: usize = 256;
/// Copies under way at a time, per level; the bytes are counted without the first one.
const BATCH_ENTRIES: usize = 128;
/// An acting slave's messages on their way to another master, per level.
const ESCAPES: usize = 16;
const BATCH_BYTES: usize = 1 << 20;
/// A waiting head is compared with the clock this often, should the clock be set.
const CLOCK_CHECK_MS: i64 = 100;
/// How often the end of a queue is looked at: half the level's delay, within these.
const IDLE_MS: std::ops::RangeInclusive<i64> = 100..=1000;
/// How often a slave looks whether it acts as master.
const OFF_DUTY_MS: i64 = 200;
/// Pause before what failed is tried again; doubles up to the last.
const RETRY_MS: std::ops::RangeInclusive<u64> = 100..=10_000;
/// A repeated warning of a level is logged once in so long, with its count.
const WARN_MS: i64 = 10_000;

/// How far each level is; on shard 0.
#[derive(Default)]
pub struct Delay {
    /// By level - 1. Empty until loaded.
    levels: RefCell<Vec<Progress>>,
    version: Cell<DataVersion>,
    updates: Cell<u64>,
    dirty: Cell<bool>,
    watch: Watch,
    /// Entries stepped over since the start.
    skipped: Cell<u64>,
    delivered: Cell<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    offset: u64,
    /// It was stored, or moved since the start: operators see such levels only.
    used: bool,
}

impl Delay {
    /// (level, next offset) of the levels used so far.
    pub fn progress(&self) -> Vec<(u32, u64)> {
        let levels = self.levels.borrow();
        levels.iter().zip(1..).filter(|(level, _)| level.used).map(|(level, number)| (number, level.offset)).collect()
    }

    /// Entries stepped over since the start, because they could not become a message.
    pub fn skipped(&self) -> u64 {
        self.skipped.get()
    }

    /// Messages delivered since the start.
    pub fn delivered(&self) -> u64 {
        self.delivered.get()
    }

    fn offset(&self, level: usize) -> u64 {
        self.levels.borrow()[level - 1].offset
    }

    fn advance(&self, level: usize, offset: u64, version_step: u64, now_ms: i64) {
        self.levels.borrow_mut()[level - 1] = Progress { offset, used: true };
        self.dirty.set(true);
        self.updates.set(self.updates.get() + 1);
        if self.updates.get().is_multiple_of(version_step.max(1)) {
            self.version.set(self.version.get().next(0, now_ms));
        }
    }

    /// A slave's levels stand where its master's do; saved in their time.
    pub fn copy(&self, table: &DelayOffsetTable) {
        let mut levels = self.levels.borrow_mut();
        for (level, now) in (1..).zip(levels.iter_mut()) {
            let Some(offset) = table.offset_table.get(&level).and_then(|offset| u64::try_from(*offset).ok()) else {
                continue;
            };
            let copied = Progress { offset, used: true };
            if *now != copied {
                *now = copied;
                self.dirty.set(true);
            }
        }
        self.version.set(table.data_version);
    }

    fn table(&self) -> DelayOffsetTable {
        let offset_table = self.progress().into_iter().map(|(level, offset)| (level as i32, offset as i64)).collect();
        DelayOffsetTable { data_version: self.version.get(), offset_table }
    }
}

/// Text of the table as `delayOffset.json` holds it and code 45 answers it.
pub fn table_text(delay: &Delay) -> Vec<u8> {
    fastjson::to_vec_pretty(&delay.table())
}

const FILE: &str = "delayOffset.json";

fn path(shard: &Shard) -> PathBuf {
    persist::path(&shard.config().store_root, FILE)
}

/// Writes `delayOffset.json` when something moved since it was last written, or it is not ours any more. Before [`start`] has read it
/// nothing is written.
pub async fn save(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let delay = &shard.delay;
    if delay.levels.borrow().is_empty() {
        return Ok(());
    }
    if !delay.dirty.replace(false) && !delay.watch.is_foreign(shard, FILE).await {
        return Ok(());
    }
    let text = table_text(delay);
    let saved = json_table::save(&shard.io, &path(shard), &text).await;
    delay.watch.note(shard, FILE).await;
    if saved.is_err() {
        delay.dirty.set(true);
    }
    saved
}

/// Reads how far the levels were and starts their tasks; they end when the shard's doors close. On shard 0, once every shard has its
/// queues.
pub async fn start(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let config = shard.config();
    let parse = |text: &[u8]| fastjson::from_slice::<DelayOffsetTable>(text).map_err(|e| e.to_string());
    let stored = persist::read(&shard.io, &config, FILE, parse).await?.unwrap_or_default();
    shard.delay.watch.note(shard, FILE).await;
    let handed_over = match config.broker_id == 0 && config.slave_acting_master && !config.controller_mode {
        true => escape::handed_over(shard).await,
        false => Default::default(),
    };
    let mut levels = Vec::with_capacity(config.delay_levels.ms.len());
    for level in 1..=config.delay_levels.ms.len() {
        let (min, max) = match queue_of(shard, level) {
            Some((owner, key)) => {
                let bounds = shard.run_on(owner, move |s| async move { crate::handlers::offset::bounds(&s, key) });
                bounds.await.ok_or_else(stopping)?
            }
            None => (0, 0),
        };
        let (number, own) = (level as i32, &stored.offset_table);
        let found = own.get(&number).copied().max(handed_over.get(&number).copied());
        if found != own.get(&number).copied() {
            info!(level, own = own.get(&number), used = found, "a slave went on with this delay level");
            shard.delay.dirty.set(true);
        }
        // A slave's queue may begin later than its master's: what lies before is not done.
        let offset = match shard.follows() {
            true => found.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0),
            false => clamp(found, min, max),
        };
        if let Some(found) = found
            && i64::try_from(offset) != Ok(found)
        {
            warn!(level, stored = found, used = offset, min, max, "delay offset outside its queue was corrected");
            shard.delay.dirty.set(true);
        }
        levels.push(Progress { offset, used: found.is_some() });
    }
    shard.delay.version.set(stored.data_version);
    *shard.delay.levels.borrow_mut() = levels;
    if config.broker_id != 0 && !escape::may_act(shard) {
        return Ok(());
    }
    for (level, delay_ms) in (1..).zip(&config.delay_levels.ms) {
        glommio::spawn_local(run_level(shard.clone(), level, *delay_ms as i64)).detach();
    }
    Ok(())
}

/// The offset to go on from: what was stored, brought into the queue's bounds (known fault D03); its first when nothing was.
fn clamp(stored: Option<i64>, min: u64, max: u64) -> u64 {
    match stored.map(u64::try_from) {
        Some(Ok(offset)) => offset.clamp(min, max),
        Some(Err(_)) | None => min,
    }
}

/// Where a level's messages wait: level n in queue n - 1.
fn queue_of(shard: &Shard, level: usize) -> Option<(ShardId, QueueKey)> {
    let key = QueueKey { topic: shard.topic(names::SCHEDULE_TOPIC)?.id, queue: level as u32 - 1 };
    Some((shard.owner(key), key))
}

/// What a queue's owner says about it.
pub struct Fetched {
    pub min: u64,
    pub max: u64,
    /// From the asked offset on; none when it is not in `min..max`.
    pub entries: Vec<Entry>,
}

/// The next entries of a queue, on its owner.
pub async fn fetch(owner: Rc<Shard>, key: QueueKey, from: u64) -> Result<Fetched, StoreError> {
    let Some(queue) = owner.queues.get(key) else {
        return Ok(Fetched { min: 0, max: 0, entries: Vec::new() });
    };
    let (min, max) = (queue.cq.min().0, queue.cq.max().0);
    let mut entries = Vec::new();
    if (min..max).contains(&from) {
        queue.cq.read(QueueOffset(from), FETCH_ENTRIES.min((max - from) as usize), &mut entries).await?;
        for entry in entries.iter_mut().filter(|entry| entry.tags().is_none()) {
            entry.tags_code = deliver_ms(&owner, key, entry).await?;
        }
    }
    Ok(Fetched { min, max, entries })
}

/// When a message is due whose unit in the queue's extension is lost: its record tells, as the level does. 0, due at once, where that is gone
/// too: it is stepped over then.
async fn deliver_ms(owner: &Rc<Shard>, key: QueueKey, entry: &Entry) -> Result<i64, StoreError> {
    let Some(bytes) = owner.stored_record(entry.phy, entry.bytes).await? else { return Ok(0) };
    let Ok(Found::Record(record)) = record::parse(&bytes, false) else { return Ok(0) };
    let levels = owner.appends.delay_levels_ms();
    let delay_ms = dispatch::level_delay_ms(i32::try_from(key.queue + 1).unwrap_or(i32::MAX), levels);
    Ok(record.store_timestamp_ms.saturating_add(delay_ms))
}

/// Whether an entry with this deliver time is due. One that lies further ahead than the level's delay was made under another clock or
/// level table, and is due too.
fn is_due(deliver_ms: i64, now_ms: i64, delay_ms: i64) -> bool {
    deliver_ms <= now_ms || deliver_ms > now_ms.saturating_add(delay_ms)
}

/// How many entries at the head are due and go together.
fn due_count<'e>(entries: impl IntoIterator<Item = &'e Entry>, now_ms: i64, delay_ms: i64) -> usize {
    let mut bytes = 0;
    let mut fits = |entry: &&Entry| {
        let first = bytes == 0;
        bytes += entry.bytes as usize;
        first || bytes <= BATCH_BYTES
    };
    let due = entries.into_iter().take(BATCH_ENTRIES).take_while(|entry| is_due(entry.tags_code, now_ms, delay_ms));
    due.take_while(|entry| fits(entry)).count()
}

/// Logs of what may happen again and again: the first at once, then a count now and then.
#[derive(Default)]
pub struct Quiet {
    last_ms: Cell<Option<i64>>,
    held_back: Cell<u64>,
}

impl Quiet {
    /// How many to report now, this one included; `None` when it is too early.
    pub fn note(&self, now_ms: i64) -> Option<u64> {
        let count = self.held_back.get() + 1;
        // A clock set back counts as time passed.
        if self.last_ms.get().is_some_and(|last| (0..WARN_MS).contains(&(now_ms - last))) {
            self.held_back.set(count);
            return None;
        }
        self.held_back.set(0);
        self.last_ms.set(Some(now_ms));
        Some(count)
    }
}

/// Why a delayed message is not where it is for; it is tried again.
#[derive(Debug, Error)]
enum Unstored {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Escape(#[from] EscapeError),
    /// What a master steps over.
    #[error("{0}; the master is waited for")]
    Odd(&'static str),
}

/// One level's task.
struct Level {
    shard: Rc<Shard>,
    number: usize,
    delay_ms: i64,
    failures: Quiet,
    skips: Quiet,
}

async fn run_level(shard: Rc<Shard>, number: usize, delay_ms: i64) {
    let level = Level { shard, number, delay_ms, failures: Quiet::default(), skips: Quiet::default() };
    let mut ahead: VecDeque<Entry> = VecDeque::new();
    let mut retry_ms = *RETRY_MS.start();
    while !level.shard.doors.is_closed() {
        if !escape::on_duty(&level.shard) {
            ahead.clear(); // the master may bring the level further
            level.sleep(OFF_DUTY_MS).await;
            continue;
        }
        if ahead.is_empty() {
            match level.look().await {
                Ok(entries) => {
                    retry_ms = *RETRY_MS.start();
                    ahead.extend(entries);
                }
                Err(e) => {
                    level.failed(&e, "delay queue unreadable");
                    level.sleep(retry_ms as i64).await;
                    retry_ms = (retry_ms * 2).min(*RETRY_MS.end());
                    continue;
                }
            }
        }
        let now_ms = level.shard.now_ms();
        match due_count(&ahead, now_ms, delay_ms) {
            0 => level.sleep(level.wait_ms(ahead.front(), now_ms)).await,
            due => {
                let batch: Vec<Entry> = ahead.drain(..due).collect();
                if !level.deliver(&batch).await {
                    ahead.clear();
                }
            }
        }
    }
}

impl Level {
    async fn sleep(&self, ms: i64) {
        self.shard.sleep(Duration::from_millis(ms.max(1) as u64)).await;
    }

    /// How long nothing needs to be done.
    fn wait_ms(&self, head: Option<&Entry>, now_ms: i64) -> i64 {
        match head {
            Some(entry) => entry.tags_code.saturating_sub(now_ms).clamp(1, CLOCK_CHECK_MS),
            None => (self.delay_ms / 2).clamp(*IDLE_MS.start(), *IDLE_MS.end()),
        }
    }

    fn failed(&self, e: &dyn std::error::Error, what: &'static str) {
        if let Some(times) = self.failures.note(self.shard.now_ms()) {
            error!(level = self.number, error = %e, times, "{what}; it is tried again");
        }
    }

    fn skipped(&self, offset: u64, entry: &Entry, why: &'static str) {
        let delay = &self.shard.delay;
        delay.skipped.set(delay.skipped.get() + 1);
        if let Some(times) = self.skips.note(self.shard.now_ms()) {
            warn!(level = self.number, offset, phy = %entry.phy, times, why, "delayed entry was stepped over");
        }
    }

    /// The next entries, due or not. Where the level's offset lies outside its queue (the log was trimmed), it is corrected; a slave has
    /// nothing to deliver then, since its master would pass over what only that has.
    async fn look(&self) -> Result<Vec<Entry>, StoreError> {
        let Some((owner, key)) = queue_of(&self.shard, self.number) else { return Ok(Vec::new()) };
        let from = self.shard.delay.offset(self.number);
        let fetched = self.shard.run_on(owner, move |owner| fetch(owner, key, from)).await.unwrap_or_else(|| {
            Err(stopping()) // the doors are closed by then
        })?;
        let corrected = from.clamp(fetched.min, fetched.max);
        if corrected != from && !self.shard.follows() {
            warn!(level = self.number, from, corrected, "delay offset outside its queue was corrected");
            self.advance(corrected);
        }
        Ok(fetched.entries)
    }

    fn advance(&self, offset: u64) {
        let step = self.shard.config.borrow().delay_offset_version_step;
        self.shard.delay.advance(self.number, offset, step, self.shard.now_ms());
    }

    /// Delivers the entries from the level's offset on, in order, and moves the offset over each once it and all before it are done.
    /// False: the doors close, or a slave has no duties any more, before all are done.
    async fn deliver(&self, batch: &[Entry]) -> bool {
        let first = self.shard.delay.offset(self.number);
        let mut done = vec![false; batch.len()];
        let mut retry_ms = *RETRY_MS.start();
        loop {
            let failed = match self.shard.follows() {
                true => self.escape_open(batch, &mut done).await,
                false => self.deliver_open(first, batch, &mut done).await,
            };
            let finished = done.iter().take_while(|done| **done).count() as u64;
            if first + finished > self.shard.delay.offset(self.number) {
                self.advance(first + finished);
            }
            let Some(e) = failed else { return true };
            if self.shard.doors.is_closed() || !escape::on_duty(&self.shard) {
                return false;
            }
            self.failed(&e, "delayed messages could not be stored");
            self.sleep(retry_ms as i64).await;
            retry_ms = (retry_ms * 2).min(*RETRY_MS.end());
        }
    }

    /// One try of those that are not done: reads them, then hands their copies to the writer in order, then waits for its word.
    /// The first error, if any.
    async fn deliver_open(&self, first: u64, batch: &[Entry], done: &mut [bool]) -> Option<Unstored> {
        let open: Vec<usize> = (0..batch.len()).filter(|index| !done[*index]).collect();
        let reads = run_all(open.iter().map(|index| self.read(batch[*index])).collect()).await;
        let (mut failed, mut gathered) = (None, Vec::with_capacity(open.len()));
        for (index, read) in open.into_iter().zip(reads) {
            let copied = read.and_then(|read| match read {
                Ok(bytes) => self.gather(&bytes),
                Err(why) => Ok(Err(why)),
            });
            match copied {
                Ok(Ok(copy)) => gathered.push((index, copy)),
                Ok(Err(why)) => {
                    self.skipped(first + index as u64, &batch[index], why);
                    done[index] = true;
                }
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        self.shard.push_appends();
        for (index, copy) in gathered {
            match copy.stored().await {
                Ok(_) => self.shard.delay.delivered.set(self.shard.delay.delivered.get() + 1),
                // The limit was lowered since it was sent: no later try would fare better.
                Err(StoreError::TooLarge { .. }) => {
                    self.skipped(first + index as u64, &batch[index], "it is larger than this broker stores");
                }
                Err(e) => {
                    failed = failed.or(Some(e));
                    continue;
                }
            }
            done[index] = true;
        }
        failed.map(Unstored::Store)
    }

    /// An acting slave's try of those that are not done: sends them to another master, [`ESCAPES`] at a time. The first error, if any.
    async fn escape_open(&self, batch: &[Entry], done: &mut [bool]) -> Option<Unstored> {
        let open: Vec<usize> = (0..batch.len()).filter(|index| !done[*index]).collect();
        let mut failed = None;
        for some in open.chunks(ESCAPES) {
            let sent = run_all(some.iter().map(|index| self.escape(batch[*index])).collect()).await;
            for (index, sent) in some.iter().zip(sent) {
                match sent {
                    Ok(()) => {
                        self.shard.delay.delivered.set(self.shard.delay.delivered.get() + 1);
                        done[*index] = true;
                    }
                    Err(e) => failed = failed.or(Some(e)),
                }
            }
        }
        failed
    }

    /// Sends one to another master. A slave steps over nothing: its master goes on where it stopped, and may have the record, or the topic,
    /// that is missing here.
    async fn escape(&self, entry: Entry) -> Result<(), Unstored> {
        let bytes = self.read(entry).await?.map_err(Unstored::Odd)?;
        let Ok(Found::Record(record)) = record::parse(&bytes, false) else {
            return Err(Unstored::Odd("it leads to no record"));
        };
        let topic = real_topic(&record, names::SCHEDULE_TOPIC).map_err(Unstored::Odd)?;
        Ok(escape::send(&self.shard, &record, topic).await?)
    }

    /// The bytes of an entry's record, or why there are none. An error is worth another try.
    async fn read(&self, entry: Entry) -> Result<Result<Vec<u8>, &'static str>, StoreError> {
        let bytes = self.shard.stored_record(entry.phy, entry.bytes).await?;
        Ok(bytes.ok_or("its record is gone or damaged"))
    }

    /// Leaves the copy of a waiting record for the writer, or says why it can never be delivered. An error is worth another try.
    fn gather(&self, bytes: &[u8]) -> Result<Result<Gathered, &'static str>, StoreError> {
        let Ok(Found::Record(record)) = record::parse(bytes, false) else { return Ok(Err("it leads to no record")) };
        let (topic, queue) = match destination(&record, names::SCHEDULE_TOPIC, |name| self.shard.topic(name)) {
            Ok(destination) => destination,
            Err(why) => return Ok(Err(why)),
        };
        // A checksum of the waiting record would be wrong in its copy.
        let without_crc =
            record.properties.contains(prop::CRC32).then(|| message::without(record.properties, &[prop::CRC32]));
        let properties = without_crc.as_deref().unwrap_or(record.properties);
        let copy = NewMessage::copy_of(&record, &topic, queue, properties);
        match self.shard.gather(&copy) {
            Ok(gathered) => Ok(Ok(gathered)),
            Err(StoreError::TooLarge { .. }) => Ok(Err("it is larger than this broker stores")),
            Err(e) => Err(e),
        }
    }
}

/// Topic and queue that a message waiting in the topic `waits_in` is for, or why it can never be delivered. The properties stay as they
/// are: what is left of DELAY in them delays nothing again, since only sends are looked at for it.
pub fn destination(
    record: &Record<'_>,
    waits_in: &str,
    topic: impl FnOnce(&str) -> Option<Arc<Topic>>,
) -> Result<(Arc<Topic>, u32), &'static str> {
    let name = real_topic(record, waits_in)?;
    let property = |name| message::property(record.properties, name);
    let queue = property(prop::REAL_QID).and_then(|queue| queue.parse::<u32>().ok());
    let queue = queue.filter(|queue| *queue <= i32::MAX as u32).ok_or("its REAL_QID is no queue")?;
    let topic = topic(name).ok_or("its REAL_TOPIC does not exist")?;
    // A topic may have shrunk meanwhile: a queue that nobody reads is no delivery.
    let queues = topic.config.read_queue_nums.max(topic.config.write_queue_nums).max(1) as u32;
    let queue = if queue < queues { queue } else { queue % topic.config.read_queue_nums.max(1) as u32 };
    Ok((topic, queue))
}

/// The name of the topic that a message waiting in the topic `waits_in` is for, or why it can never be delivered.
fn real_topic<'r>(record: &Record<'r>, waits_in: &str) -> Result<&'r str, &'static str> {
    if record.topic != waits_in {
        return Err("its record is of another topic");
    }
    let name = message::property(record.properties, prop::REAL_TOPIC).ok_or("it has no REAL_TOPIC")?;
    match names::is_send_forbidden(name) {
        true => Err("its REAL_TOPIC takes no messages"),
        false => Ok(name),
    }
}

/// Runs all futures to their end, at the same time.
pub async fn run_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outcomes: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut waits = false;
        for (future, outcome) in running.iter_mut().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => *outcome = Some(value),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outcomes.into_iter().map(|outcome| outcome.expect("all are done")).collect()
}

/// What a message must hold to wait at `level` (1 to `top`, clamped) for `topic` and `queue`: its properties, and the queue of the
/// schedule topic. What it said of delays and destinations before is replaced.
pub fn divert(properties: &str, level: i32, top: usize, topic: &str, queue: u32) -> (String, u32) {
    let level = level.clamp(1, top.max(1) as i32);
    let replaced = [
        prop::DELAY,
        prop::REAL_TOPIC,
        prop::REAL_QID,
        prop::TIMER_DELAY_SEC,
        prop::TIMER_DELAY_MS,
        prop::TIMER_DELIVER_MS,
    ];
    let mut text = message::without(properties, &replaced);
    message::push_property(&mut text, prop::DELAY, &level.to_string());
    message::push_property(&mut text, prop::REAL_TOPIC, topic);
    message::push_property(&mut text, prop::REAL_QID, &queue.to_string());
    (text, level as u32 - 1)
}

/// Logged once at a stop.
pub fn log_totals(shard: &Shard) {
    let delay = &shard.delay;
    if delay.delivered() + delay.skipped() > 0 {
        info!(delivered = delay.delivered(), skipped = delay.skipped(), "delayed messages of this run");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use futures_lite::future;
    use uringmq_proto::body::topic::TopicConfig;
    use uringmq_proto::types::{PhyOffset, TopicId};

    fn entry(bytes: u32, tags_code: i64) -> Entry {
        Entry::new(PhyOffset(0), bytes, tags_code)
    }

    /// Known fault D03.
    #[test]
    fn stored_offsets_are_brought_into_the_queue() {
        for (stored, want) in [
            (None, 3),
            (Some(-5), 3),
            (Some(i64::MIN), 3),
            (Some(0), 3),
            (Some(3), 3),
            (Some(7), 7),
            (Some(10), 10),
            (Some(999_999), 10),
            (Some(i64::MAX), 10),
        ] {
            assert_eq!(clamp(stored, 3, 10), want, "{stored:?}");
        }
        assert_eq!(clamp(Some(5), 0, 0), 0, "an empty queue");
    }

    #[test]
    fn an_entry_is_due_at_its_time_or_beyond_its_level() {
        let (now, delay) = (1_000_000, 5_000);
        for (deliver, want) in [
            (now - 1, true),
            (now, true),
            (now + 1, false),
            (now + delay, false),
            (now + delay + 1, true),
            (0, true),
            (-7, true),
            (i64::MAX, true),
        ] {
            assert_eq!(is_due(deliver, now, delay), want, "{deliver}");
        }
    }

    #[test]
    fn a_batch_ends_at_what_waits_at_its_bytes_and_at_its_count() {
        let small = vec![entry(100, 5); 1000];
        assert_eq!(due_count(&small, 10, 1000), BATCH_ENTRIES);
        assert_eq!(due_count(&[entry(100, 5), entry(100, 10), entry(100, 11), entry(100, 5)], 10, 1000), 2);
        let large = [entry(4 << 20, 5), entry(1, 5)];
        assert_eq!(due_count(&large, 10, 1000), 1, "the first goes whatever its size");
        let halves = [entry(BATCH_BYTES as u32 / 2, 5); 3];
        assert_eq!(due_count(&halves, 10, 1000), 2);
        assert_eq!(due_count(&[], 10, 1000), 0);
    }

    fn topic(reads: i32, writes: i32) -> Arc<Topic> {
        let config = TopicConfig { read_queue_nums: reads, write_queue_nums: writes, ..TopicConfig::default() };
        Arc::new(Topic { id: TopicId(1), name: "T".into(), config })
    }

    fn fate(stored_under: &str, properties: &str) -> Result<u32, &'static str> {
        let bytes = testing::record(stored_under, properties);
        let Ok(Found::Record(record)) = record::parse(&bytes, true) else { panic!("just encoded") };
        destination(&record, names::SCHEDULE_TOPIC, |name| (name != "gone").then(|| topic(4, 4)))
            .map(|(_, queue)| queue)
    }

    /// Known fault D04: none of these may stop a level.
    #[test]
    fn what_cannot_be_delivered_is_told_from_what_can() {
        let text = |pairs: &[(&str, &str)]| {
            let mut text = String::new();
            pairs.iter().for_each(|(name, value)| message::push_property(&mut text, name, value));
            text
        };
        let schedule = names::SCHEDULE_TOPIC;
        assert_eq!(fate(schedule, &text(&[("DELAY", "1"), ("REAL_TOPIC", "T"), ("REAL_QID", "3")])), Ok(3));
        let forged = text(&[("REAL_TOPIC", "U"), ("REAL_TOPIC", "T"), ("REAL_QID", "x"), ("REAL_QID", "2")]);
        assert_eq!(fate(schedule, &forged), Ok(2), "the broker's own stand last");
        assert_eq!(fate(schedule, &text(&[("REAL_TOPIC", "T"), ("REAL_QID", "9")])), Ok(1), "the topic shrank");
        for bad in [
            text(&[]),
            text(&[("REAL_TOPIC", "T")]),
            text(&[("REAL_QID", "0")]),
            text(&[("REAL_TOPIC", "T"), ("REAL_QID", "abc")]),
            text(&[("REAL_TOPIC", "T"), ("REAL_QID", "-1")]),
            text(&[("REAL_TOPIC", "T"), ("REAL_QID", "2147483648")]),
            text(&[("REAL_TOPIC", "gone"), ("REAL_QID", "0")]),
            text(&[("REAL_TOPIC", names::TRANS_HALF_TOPIC), ("REAL_QID", "0")]),
            text(&[("REAL_TOPIC", schedule), ("REAL_QID", "0")]),
        ] {
            assert!(fate(schedule, &bad).is_err(), "{bad:?}");
        }
        assert!(fate("T", &text(&[("REAL_TOPIC", "T"), ("REAL_QID", "0")])).is_err());
    }

    #[test]
    fn a_diverted_message_says_where_it_goes() {
        let before = "TAGS\u{1}a\u{2}DELAY\u{1}99\u{2}REAL_TOPIC\u{1}old\u{2}TIMER_DELAY_SEC\u{1}5\u{2}";
        let (text, queue) = divert(before, 99, 18, "%RETRY%g", 2);
        assert_eq!(queue, 17);
        assert_eq!(text, "TAGS\u{1}a\u{2}DELAY\u{1}18\u{2}REAL_TOPIC\u{1}%RETRY%g\u{2}REAL_QID\u{1}2\u{2}");
        assert_eq!(divert("", 3, 18, "T", 0).1, 2);
    }

    #[test]
    fn repeated_warnings_are_counted() {
        let quiet = Quiet::default();
        assert_eq!((quiet.note(0), quiet.note(1), quiet.note(WARN_MS - 1)), (Some(1), None, None));
        assert_eq!(quiet.note(WARN_MS), Some(3));
        assert_eq!(quiet.note(5), Some(1), "the clock was set back");
    }

    #[test]
    fn all_futures_are_begun_in_order_and_waited_for() {
        let begun = RefCell::new(Vec::new());
        let begun = &begun;
        let futures = (0..4).map(|n| async move {
            begun.borrow_mut().push(n);
            for _ in 0..(4 - n) {
                future::yield_now().await;
            }
            n * 10
        });
        let outcomes = future::block_on(run_all(futures.collect()));
        assert_eq!((begun.borrow().as_slice(), outcomes.as_slice()), (&[0, 1, 2, 3][..], &[0, 10, 20, 30][..]));
    }

    #[test]
    fn progress_shows_used_levels_and_steps_its_version() {
        let delay = Delay::default();
        *delay.levels.borrow_mut() = vec![Progress::default(); 3];
        delay.advance(2, 7, 2, 1000);
        assert_eq!(delay.progress(), [(2, 7)]);
        assert_eq!(delay.version.get().counter, 0);
        delay.advance(2, 8, 2, 1001);
        assert_eq!((delay.version.get().counter, delay.version.get().timestamp), (1, 1001));
        let text = table_text(&delay);
        let back: DelayOffsetTable = fastjson::from_slice(&text).expect("our own text");
        assert_eq!(back, delay.table());
        assert_eq!(back.offset_table.get(&2), Some(&8));
    }
}
