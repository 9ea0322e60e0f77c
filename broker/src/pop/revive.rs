//! Follows the revive topic, each queue on its owner: check points open there, acknowledgements settle them, and what is not acknowledged when
//! its time is over is stored again in the group's retry topic. Source: behaviour sheet 9.7; known faults O02, O05.
//!
//! A check point is ripe when every acknowledgement that was due by then is in the queue and read: the timers say how far they are. What is
//! revived is acknowledged in the same group of records, so a start that reads the queue again revives it no second time. A kill has the timers
//! repeat some records: check points that were settled shortly before the start are known by their keys.
use crate::control;
use crate::delay;
use crate::error::BrokerError;
use crate::handlers::offset::stopping;
use crate::pop::log::{Entry, Key};
use crate::pop::{REVIVE_GROUP, count};
use crate::shard::Shard;
use crate::shard::appends::{Gathered, NewMessage};
use crate::snapshot::Topic;
use crate::timer;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};
use uringmq_proto::body::pop::{AckBody, CheckPoint};
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found, Record};
use uringmq_proto::types::{QueueKey, QueueOffset};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Entry as QueueEntry;

/// Between two looks.
const ROUND: Duration = Duration::from_millis(100);
/// Check points revived together.
const BATCH: usize = 32;
/// An acknowledgement waits so long for its check point.
const ORPHAN_MS: i64 = 5000;
const ORPHANS_MAX: usize = 10_000;
/// How far back a start looks for check points that were settled.
const LOOK_BACK_MS: i64 = 30_000;
const LOOK_BACK_ENTRIES: u64 = 256;

/// Starts a task on every shard of a master with timers; each ends when its shard's doors close.
pub async fn start(shard: &Rc<Shard>) {
    let config = shard.config();
    if config.broker_id != 0 || !config.timer_wheel {
        return;
    }
    shard.run_on_all(|s| async move { drop(glommio::spawn_local(run(s)).detach()) }).await;
}

/// A check point whose messages are not all settled.
struct Open {
    check_point: CheckPoint,
    key: Key,
    /// Messages that are not acknowledged.
    left: Vec<i64>,
}

/// What is known of one revive queue. Plain state; knows no files.
#[derive(Default)]
struct Table {
    /// By offset in the revive queue.
    open: BTreeMap<u64, Open>,
    by_key: HashMap<Key, u64>,
    /// Acknowledgements that came before their check point.
    orphans: Vec<(i64, Key, Vec<i64>)>,
    /// Check points settled lately, while the timers may bring them again.
    settled: Option<HashSet<Key>>,
}

impl Table {
    fn take(&mut self, at: u64, entry: Entry, now_ms: i64) {
        match entry {
            Entry::CheckPoint(check_point) => self.open(at, check_point),
            Entry::Ack(ack) => self.ack(&ack, now_ms),
        }
    }

    fn open(&mut self, at: u64, check_point: CheckPoint) {
        let key = Key::of_check_point(&check_point);
        if self.by_key.contains_key(&key) || self.settled.as_ref().is_some_and(|settled| settled.contains(&key)) {
            return;
        }
        let left: Vec<i64> = check_point.offsets().collect();
        self.by_key.insert(key.clone(), at);
        self.open.insert(at, Open { check_point, key: key.clone(), left });
        let early: Vec<Vec<i64>> =
            self.orphans.extract_if(.., |(_, of, _)| *of == key).map(|orphan| orphan.2).collect();
        self.settle(at, &early.concat());
    }

    fn ack(&mut self, ack: &AckBody, now_ms: i64) {
        let offsets = if ack.offsets.is_empty() { std::slice::from_ref(&ack.offset) } else { &ack.offsets };
        let key = Key::of_ack(ack);
        match self.by_key.get(&key) {
            Some(at) => self.settle(*at, offsets),
            None if self.orphans.len() < ORPHANS_MAX => self.orphans.push((now_ms, key, offsets.to_vec())),
            None => {}
        }
    }

    /// These messages of a check point need nothing more.
    fn settle(&mut self, at: u64, offsets: &[i64]) {
        let Some(open) = self.open.get_mut(&at) else { return };
        open.left.retain(|offset| !offsets.contains(offset));
        if open.left.is_empty() {
            self.close(at);
        }
    }

    fn close(&mut self, at: u64) {
        if let Some(open) = self.open.remove(&at) {
            self.by_key.remove(&open.key);
            if let Some(settled) = &mut self.settled {
                settled.insert(open.key);
            }
        }
    }

    /// The first check points whose messages are visible again by `now_ms`.
    fn due(&self, now_ms: i64) -> Vec<u64> {
        let due = self.open.iter().filter(|(_, open)| open.check_point.visible_ms() <= now_ms);
        due.take(BATCH).map(|(at, _)| *at).collect()
    }

    fn forget_orphans(&mut self, now_ms: i64) {
        self.orphans.retain(|(since, ..)| (0..ORPHAN_MS).contains(&(now_ms - since)));
    }
}

/// Follows one revive queue.
struct Follower {
    shard: Rc<Shard>,
    key: QueueKey,
    queue: i32,
    /// The next entry to be read.
    next: u64,
    table: Table,
}

async fn run(shard: Rc<Shard>) {
    let (name, queues) = {
        let config = shard.config.borrow();
        (names::revive_topic(&config.cluster_name), config.revive_queues)
    };
    let Some(topic) = shard.topic(&name) else { return error!(name, "no revive topic: nothing popped comes back") };
    // Of more queues before, too.
    let queues = queues.max(topic.config.read_queue_nums.max(0) as u32);
    let keys = (0..queues).map(|queue| QueueKey { topic: topic.id, queue });
    let mut followers: Vec<Follower> = Vec::new();
    for key in keys.filter(|key| shard.owner(*key) == shard.id) {
        match Follower::start(&shard, key).await {
            Ok(follower) => followers.push(follower),
            Err(e) => {
                error!(queue = key.queue, error = %e, "revive queue unreadable: what is popped by it does not come back")
            }
        }
    }
    while !shard.doors.is_closed() {
        if let Err(e) = round(&shard, &mut followers).await {
            note_failure(&shard, &e);
        }
        shard.sleep(ROUND).await;
    }
}

fn note_failure(shard: &Shard, e: &BrokerError) {
    if let Some(times) = shard.pop.failures.note(shard.now_ms()) {
        error!(error = %e, times, "popped messages could not be revived; it is tried again");
    }
}

/// Reads all queues to their ends and revives what is ripe.
async fn round(shard: &Rc<Shard>, followers: &mut [Follower]) -> Result<(), BrokerError> {
    for follower in followers.iter_mut() {
        follower.read().await?;
        follower.note_progress();
    }
    let now_ms = shard.now_ms();
    let starting = followers.iter().any(|follower| follower.table.settled.is_some());
    if !starting && followers.iter().all(|follower| follower.table.due(now_ms).is_empty()) {
        return Ok(());
    }
    let delivered = shard.run_on(0, |s| async move { timer::delivered_to(&s).await }).await;
    let Some(delivered_to) = delivered.ok_or_else(stopping)?? else { return Ok(()) };
    if shard.dispatch.at() < shard.marks.readable() {
        return Ok(()); // an acknowledgement may be among what is not dispatched yet
    }
    for follower in followers {
        follower.read().await?;
        follower.table.settled = None;
        follower.revive(delivered_to).await?;
        follower.note_progress();
    }
    Ok(())
}

impl Follower {
    /// Where the last run got to, and what it had settled just before.
    async fn start(shard: &Rc<Shard>, key: QueueKey) -> Result<Self, StoreError> {
        let (min, max) = shard.queues.get(key).map_or((0, 0), |queue| (queue.cq.min().0, queue.cq.max().0));
        let stored = shard.offsets.get(key, REVIVE_GROUP).and_then(|offset| u64::try_from(offset).ok());
        let next = stored.unwrap_or(min).clamp(min, max);
        let table = Table { settled: Some(HashSet::new()), ..Table::default() };
        let mut follower = Follower { shard: shard.clone(), key, queue: key.queue as i32, next, table };
        let known = follower.look_back(min).await?;
        if max > next || known > 0 {
            info!(queue = key.queue, from = next, to = max, known, "revive queue found");
        }
        Ok(follower)
    }

    /// Learns the keys of the check points before the first entry to be read.
    async fn look_back(&mut self, min: u64) -> Result<usize, StoreError> {
        let mut to = self.next;
        let mut limit_ms = None;
        let mut settled = HashSet::new();
        while to > min {
            let from = to.saturating_sub(LOOK_BACK_ENTRIES).max(min);
            let entries = delay::fetch(self.shard.clone(), self.key, from).await?.entries;
            let mut oldest_ms = i64::MAX;
            for (_, entry) in (from..to).zip(&entries) {
                let Some(bytes) = self.shard.stored_record(entry.phy, entry.bytes).await? else { continue };
                let Ok(Found::Record(record)) = record::parse(&bytes, false) else { continue };
                oldest_ms = oldest_ms.min(record.store_timestamp_ms);
                limit_ms = limit_ms.max(Some(record.store_timestamp_ms - LOOK_BACK_MS));
                if let Some(Entry::CheckPoint(check_point)) = Entry::read(record.properties, record.body) {
                    settled.insert(Key::of_check_point(&check_point));
                }
            }
            if limit_ms.is_some_and(|limit| oldest_ms < limit) {
                break;
            }
            to = from;
        }
        let count = settled.len();
        self.table.settled = Some(settled);
        Ok(count)
    }

    /// Reads to the queue's end.
    async fn read(&mut self) -> Result<(), StoreError> {
        loop {
            let fetched = delay::fetch(self.shard.clone(), self.key, self.next).await?;
            let corrected = self.next.clamp(fetched.min, fetched.max);
            if corrected != self.next {
                warn!(queue = self.queue, from = self.next, corrected, "the place in a revive queue was corrected");
                self.next = corrected;
                continue;
            }
            if fetched.entries.is_empty() {
                break;
            }
            for entry in &fetched.entries {
                self.read_one(entry).await?;
                self.next += 1;
            }
        }
        let now_ms = self.shard.now_ms();
        self.table.forget_orphans(now_ms);
        Ok(())
    }

    async fn read_one(&mut self, entry: &QueueEntry) -> Result<(), StoreError> {
        let bytes = match entry.is_hole() {
            true => None,
            false => self.shard.stored_record(entry.phy, entry.bytes).await?,
        };
        let record = bytes.as_deref().and_then(|bytes| match record::parse(bytes, false) {
            Ok(Found::Record(record)) => Entry::read(record.properties, record.body),
            _ => None,
        });
        match record {
            Some(entry) => self.table.take(self.next, entry, self.shard.now_ms()),
            None => warn!(queue = self.queue, offset = self.next, "entry of a revive queue was stepped over"),
        }
        Ok(())
    }

    /// The group's offset stands before the first check point that is not settled.
    fn note_progress(&self) {
        let at = self.table.open.first_key_value().map_or(self.next, |(at, _)| *at) as i64;
        let offsets = &self.shard.offsets;
        let known = offsets.get(self.key, REVIVE_GROUP);
        if known != Some(at) && (known.is_some() || at > 0) {
            offsets.commit(self.key, REVIVE_GROUP, at);
        }
    }

    /// Revives the check points whose messages are visible again by `now_ms`.
    async fn revive(&mut self, now_ms: i64) -> Result<(), BrokerError> {
        loop {
            let due = self.table.due(now_ms);
            if due.is_empty() || self.shard.doors.is_closed() {
                return Ok(());
            }
            let mut waiting = Vec::new();
            for at in due {
                let open = self.table.open.get(&at).expect("just listed");
                waiting.push((at, self.gather(open).await));
            }
            self.shard.push_appends();
            let mut failed = None;
            for (at, gathered) in waiting {
                match stored(gathered).await {
                    Ok(copies) => {
                        count(&self.shard.pop.revived, copies);
                        self.table.close(at);
                    }
                    Err(e) => failed = failed.or(Some(e)),
                }
            }
            if let Some(e) = failed {
                return Err(e);
            }
        }
    }

    /// Leaves copies of the messages that are left of a check point, and their acknowledgement, for the writer.
    async fn gather(&self, open: &Open) -> Result<Vec<Gathered>, BrokerError> {
        let (shard, c) = (&self.shard, &open.check_point);
        let known = shard.groups.borrow().get(&c.group).is_some();
        let Some(topic) = shard.topic(&c.topic).filter(|_| known || !shard.config.borrow().pop_revive_needs_group)
        else {
            return Ok(Vec::new()); // nobody will pop it
        };
        let Ok(queue) = u32::try_from(c.queue_id) else { return Ok(Vec::new()) };
        let key = QueueKey { topic: topic.id, queue };
        let left = open.left.clone();
        let entries = shard.run_on(shard.owner(key), move |owner| entries_at(owner, key, left)).await;
        let entries = entries.ok_or_else(stopping)??;
        let retry = retry_topic(shard, &c.topic, &c.group).await?;
        let mut gathered = Vec::with_capacity(entries.len() + 1);
        for entry in entries {
            // What is gone with the oldest log files counts as done.
            let Some(bytes) = shard.stored_record(entry.phy, entry.bytes).await? else { continue };
            let Ok(Found::Record(record)) = record::parse(&bytes, false) else { continue };
            match copy(shard, &record, &retry, c) {
                Ok(copy) => gathered.push(copy),
                Err(StoreError::TooLarge { .. }) => {
                    warn!(topic = c.topic, phy = %entry.phy, "a popped message has no room for its retry and is dropped");
                }
                Err(e) => return Err(e.into()),
            }
        }
        gathered.push(shard.gather_ack(self.queue, &open.key, &open.left, c.visible_ms())?);
        Ok(gathered)
    }
}

/// Waits until all are stored; how many copies there were.
async fn stored(gathered: Result<Vec<Gathered>, BrokerError>) -> Result<usize, BrokerError> {
    let gathered = gathered?;
    let copies = gathered.len().saturating_sub(1);
    for one in gathered {
        one.stored().await?;
    }
    Ok(copies)
}

/// Of these offsets, those that the queue has. On its owner.
async fn entries_at(owner: Rc<Shard>, key: QueueKey, offsets: Vec<i64>) -> Result<Vec<QueueEntry>, StoreError> {
    let mut found = Vec::with_capacity(offsets.len());
    let Some(queue) = owner.queues.get(key) else { return Ok(found) };
    for offset in offsets.iter().filter_map(|offset| u64::try_from(*offset).ok()) {
        if (queue.cq.min().0..queue.cq.max().0).contains(&offset) {
            queue.cq.read(QueueOffset(offset), 1, &mut found).await?;
        }
    }
    found.retain(|entry| !entry.is_hole());
    Ok(found)
}

/// Where the group's retries of a topic go: one queue, made when missing, on stable storage and known to every shard when this returns. A
/// message of a retry topic goes back there.
async fn retry_topic(shard: &Rc<Shard>, topic: &str, group: &str) -> Result<Arc<Topic>, BrokerError> {
    let v2 = shard.config.borrow().pop_retry_v2;
    let name = match topic.starts_with(names::RETRY_PREFIX) {
        true => topic.to_owned(),
        false => names::pop_retry_topic(group, topic, v2),
    };
    if let Some(topic) = shard.topic(&name) {
        return Ok(topic);
    }
    let made = shard.run_on(0, move |s| async move {
        let topic = control::ensure_topic(&s, &name, 1, 0)?;
        let ticket = s.control().topics_made();
        s.control().topics_saved(ticket).await?;
        s.run_on_all(|_| async {}).await; // jobs come after the table that was pushed before them
        Ok::<_, BrokerError>(topic)
    });
    let topic = made.await.ok_or_else(stopping)??;
    let key = QueueKey { topic: topic.id, queue: 0 };
    let group: Arc<str> = group.into();
    let begun = shard.run_on(shard.owner(key), move |owner| async move {
        if owner.offsets.get(key, &group).is_none() {
            owner.offsets.set(key, &group, 0);
        }
    });
    begun.await.ok_or_else(stopping)?;
    Ok(topic)
}

/// Leaves the copy of a message for its retry.
fn copy(shard: &Shard, record: &Record<'_>, retry: &Arc<Topic>, c: &CheckPoint) -> Result<Gathered, StoreError> {
    let text = retried_text(record, c);
    let new = NewMessage {
        reconsume_times: record.reconsume_times.saturating_add(1),
        born_host: shard.store_host,
        wait_durable: true,
        ..NewMessage::copy_of(record, retry, 0, &text)
    };
    shard.gather(&new)
}

/// The properties of a retried message: its own, the group that it is for, and when it was popped first.
fn retried_text(record: &Record<'_>, c: &CheckPoint) -> String {
    let first = message::property(record.properties, prop::FIRST_POP_TIME).filter(|_| record.reconsume_times > 0);
    let first = first.map_or_else(|| c.pop_ms.to_string(), str::to_owned);
    let mut text =
        message::without(record.properties, &[prop::FIRST_POP_TIME, prop::ORIGIN_GROUP, prop::POP_CK, prop::CRC32]);
    message::push_property(&mut text, prop::FIRST_POP_TIME, &first);
    message::push_property(&mut text, prop::ORIGIN_GROUP, &c.group);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn check_point(start: i64, count: i32, pop_ms: i64) -> CheckPoint {
        CheckPoint {
            topic: "T".into(),
            group: "g".into(),
            broker_name: "b".into(),
            start_offset: start,
            count,
            diffs: (0..count).collect(),
            pop_ms,
            invisible_ms: 10,
            ..CheckPoint::default()
        }
    }

    fn ack(c: &CheckPoint, offsets: &[i64]) -> Entry {
        Entry::Ack(AckBody {
            offset: offsets[0],
            offsets: if offsets.len() > 1 { offsets.to_vec() } else { Vec::new() },
            topic: c.topic.clone(),
            group: c.group.clone(),
            broker_name: c.broker_name.clone(),
            start_offset: c.start_offset,
            pop_ms: c.pop_ms,
            queue_id: c.queue_id,
        })
    }

    #[test]
    fn what_is_acknowledged_needs_nothing() {
        let mut table = Table::default();
        let (first, second) = (check_point(0, 3, 100), check_point(3, 1, 101));
        table.take(0, Entry::CheckPoint(first.clone()), 0);
        table.take(1, Entry::CheckPoint(second.clone()), 0);
        table.take(2, ack(&first, &[1]), 0);
        table.take(3, ack(&second, &[9]), 0);
        assert_eq!((table.due(109), table.due(110), table.due(111)), (vec![], vec![0], vec![0, 1]));
        assert_eq!(table.open[&0].left, [0, 2]);
        table.take(4, ack(&first, &[0, 2]), 0);
        assert_eq!(table.due(111), [1]);
        table.close(1);
        assert!(table.open.is_empty() && table.by_key.is_empty());
    }

    #[test]
    fn an_acknowledgement_may_come_before_its_check_point() {
        let mut table = Table::default();
        let c = check_point(0, 2, 100);
        table.take(0, ack(&c, &[0]), 0);
        table.take(1, Entry::CheckPoint(c.clone()), 0);
        assert_eq!((table.open[&1].left.as_slice(), table.orphans.len()), ([1i64].as_slice(), 0));
        table.take(2, ack(&check_point(7, 1, 1), &[7]), 0);
        table.forget_orphans(ORPHAN_MS - 1);
        assert_eq!(table.orphans.len(), 1);
        table.forget_orphans(ORPHAN_MS);
        assert!(table.orphans.is_empty());
    }

    #[test]
    fn the_timers_may_bring_a_check_point_twice() {
        let mut table = Table { settled: Some(HashSet::new()), ..Table::default() };
        let c = check_point(0, 1, 100);
        table.take(0, Entry::CheckPoint(c.clone()), 0);
        table.take(1, Entry::CheckPoint(c.clone()), 0);
        assert_eq!(table.open.len(), 1);
        table.take(2, ack(&c, &[0]), 0);
        table.take(3, Entry::CheckPoint(c.clone()), 0);
        assert!(table.open.is_empty());
    }

    #[test]
    fn a_retry_says_for_whom_it_is_and_when_it_was_popped_first() {
        let c = check_point(0, 1, 100);
        let text = |times, properties: &str| {
            let bytes = testing::record("T", properties);
            let Ok(Found::Record(record)) = record::parse(&bytes, false) else { panic!("just encoded") };
            retried_text(&Record { reconsume_times: times, ..record }, &c)
        };
        let once = text(0, "TAGS\u{1}a\u{2}1ST_POP_TIME\u{1}7\u{2}");
        assert_eq!(once, "TAGS\u{1}a\u{2}1ST_POP_TIME\u{1}100\u{2}ORIGIN_GROUP\u{1}g\u{2}");
        let again = text(1, "1ST_POP_TIME\u{1}7\u{2}ORIGIN_GROUP\u{1}g\u{2}POP_CK\u{1}x\u{2}");
        assert_eq!(again, "1ST_POP_TIME\u{1}7\u{2}ORIGIN_GROUP\u{1}g\u{2}");
    }
}
