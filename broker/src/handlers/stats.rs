//! What operators look at: statistics of topics and groups (202, 208, 300, 303, 315, 317, 343, 345), and the samples that rates are
//! made of. Source: behaviour sheet 12.2, 12.4; wire-protocol sheet 7.1, 7.3, 7.5; known faults F05, S16.
use crate::error::BrokerError;
use crate::handlers::offset::{self, bounds, stopping, store_time_at};
use crate::requests::Request;
use crate::shard::Shard;
use crate::snapshot::{Group, Subscription, Topic};
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uringmq_proto::body::MessageQueue;
use uringmq_proto::body::heartbeat::SubscriptionData;
use uringmq_proto::body::stats::{
    BrokerConsumeStats, BrokerStatsData, BrokerStatsItem, ConsumeStats, ConsumeTimeSpan, ConsumeTimeSpanBody,
    GroupList, OffsetWrapper, QuerySubscriptionBody, TopicList, TopicOffset, TopicStatsTable,
};
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::admin::{
    GetBrokerConsumeStats, GetConsumeStats, GroupOnly, TopicAndGroup, ViewBrokerStats,
};
use uringmq_proto::headers::topic::TopicOnly;
use uringmq_proto::types::QueueKey;
use uringmq_store::StoreError;

/// What one queue's owner knows of it, with the store times (ms) that were asked for; `None` where there is no such message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    queue: u32,
    min: u64,
    max: u64,
    committed: Option<i64>,
    pulled: Option<i64>,
    first_ms: Option<i64>,
    last_ms: Option<i64>,
    /// Of the message before the committed offset.
    before_ms: Option<i64>,
    /// Of the message at the committed offset.
    at_ms: Option<i64>,
}

/// Which times to look up; each is a read of the log.
#[derive(Clone, Copy, Default)]
struct Wanted {
    first: bool,
    last: bool,
    before: bool,
    at: bool,
}

/// Asks the owners about queues `0..queues` of a topic; in the order of queues.
async fn gather(
    shard: &Rc<Shard>,
    topic: &Topic,
    queues: i32,
    group: Option<&str>,
    wanted: Wanted,
) -> Result<Vec<Facts>, StoreError> {
    let (id, group): (_, Option<Arc<str>>) = (topic.id, group.map(Into::into));
    let answers = shard.run_on_all(move |owner| {
        let group = group.clone();
        async move {
            let mut mine = Vec::new();
            for queue in 0..queues.max(0) as u32 {
                let key = QueueKey { topic: id, queue };
                if owner.owner(key) == owner.id {
                    mine.push(facts(&owner, key, group.as_deref(), wanted).await?);
                }
            }
            Ok::<_, StoreError>(mine)
        }
    });
    let answers = answers.await;
    if answers.len() < shard.shards as usize {
        return Err(stopping());
    }
    let mut all = Vec::with_capacity(queues.max(0) as usize);
    for mine in answers {
        all.extend(mine?);
    }
    all.sort_unstable_by_key(|facts| facts.queue);
    Ok(all)
}

async fn facts(owner: &Shard, key: QueueKey, group: Option<&str>, wanted: Wanted) -> Result<Facts, StoreError> {
    let (min, max) = bounds(owner, key);
    let mut facts = Facts { queue: key.queue, min, max, ..Facts::default() };
    if let Some(group) = group {
        facts.committed = owner.offsets.get(key, group);
        facts.pulled = owner.offsets.pull_offset(key, group);
    }
    let Some(queue) = owner.queues.get(key) else { return Ok(facts) };
    let time = async |wanted: bool, offset: Option<u64>| match offset {
        Some(offset) if wanted => store_time_at(owner, &queue, offset).await,
        _ => Ok(None),
    };
    let committed = facts.committed.map(|offset| offset as u64);
    facts.first_ms = time(wanted.first, Some(min)).await?;
    facts.last_ms = time(wanted.last, max.checked_sub(1)).await?;
    facts.before_ms = time(wanted.before, committed.and_then(|offset| offset.checked_sub(1))).await?;
    facts.at_ms = time(wanted.at, Some(committed.unwrap_or(0))).await?;
    Ok(facts)
}

fn message_queue(broker: &str, topic: &Topic, queue: u32) -> MessageQueue {
    MessageQueue { broker_name: broker.to_owned(), queue_id: queue as i32, topic: topic.name.to_string() }
}

fn find_topic(shard: &Shard, name: &str) -> Result<Arc<Topic>, BrokerError> {
    shard.topic(name).ok_or_else(|| BrokerError::NoTopic(name.to_owned()))
}

/// 202.
pub async fn topic_stats(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = TopicOnly::decode(req.cmd)?;
    let topic = find_topic(shard, h.topic)?;
    let queues = topic.config.read_queue_nums.max(topic.config.write_queue_nums);
    let all = gather(shard, &topic, queues, None, Wanted { last: true, ..Wanted::default() }).await?;
    let broker = shard.config().broker_name.clone();
    let rows = all.iter().map(|facts| {
        let offsets = TopicOffset {
            last_update_timestamp: facts.last_ms.unwrap_or(0),
            max_offset: facts.max as i64,
            min_offset: facts.min as i64,
        };
        (message_queue(&broker, &topic, facts.queue), offsets)
    });
    let body = TopicStatsTable { offset_table: rows.collect(), topic_put_tps: 0.0 };
    Ok(Response::ok().body(fastjson::to_vec(&body)))
}

/// A group's row of 208. A commit beyond the queue's end (of an older topic of that name) is shown as the end: lag is never negative
/// (known fault F05).
fn lag(facts: &Facts) -> OffsetWrapper {
    let broker_offset = facts.max as i64;
    let consumer_offset = facts.committed.unwrap_or(0).min(broker_offset);
    OffsetWrapper {
        broker_offset,
        consumer_offset,
        last_timestamp: facts.before_ms.unwrap_or(0),
        pull_offset: facts.pulled.unwrap_or(0).min(broker_offset).max(consumer_offset),
    }
}

/// Adds a group's rows on one topic.
async fn add_lag(shard: &Rc<Shard>, group: &str, topic: &Topic, stats: &mut ConsumeStats) -> Result<(), StoreError> {
    let wanted = Wanted { before: true, ..Wanted::default() };
    let broker = shard.config().broker_name.clone();
    for facts in gather(shard, topic, topic.config.read_queue_nums, Some(group), wanted).await? {
        stats.offset_table.insert(message_queue(&broker, topic, facts.queue), lag(&facts));
    }
    Ok(())
}

fn find_group(shard: &Shard, name: &str) -> Option<Arc<Group>> {
    shard.groups.borrow().get(name).cloned()
}

/// Whether the group has members that subscribe other topics and not this one.
fn is_unsubscribed(group: Option<&Group>, topic: &str) -> bool {
    let online = group.and_then(|group| group.online.as_ref());
    online.is_some_and(|online| !online.subscriptions.is_empty() && !online.subscriptions.contains_key(topic))
}

/// Topics that a group has offsets on or subscribes now.
async fn topics_of(shard: &Rc<Shard>, group: &str) -> Vec<Arc<Topic>> {
    let topics = shard.topics.borrow().clone();
    let with_offsets = offset::topics_of_group(shard, group).await;
    let mut names: BTreeSet<Arc<str>> =
        with_offsets.iter().filter_map(|id| Some(topics.by_id(*id)?.name.clone())).collect();
    if let Some(online) = find_group(shard, group).as_ref().and_then(|group| group.online.as_ref()) {
        names.extend(online.subscriptions.keys().cloned());
    }
    names.iter().filter_map(|name| topics.get(name).cloned()).collect()
}

/// 208.
pub async fn consume_stats(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = GetConsumeStats::decode(req.cmd)?;
    let listed = h.topic_list.map(|list| list.split(';').map(str::trim).filter(|t| !t.is_empty()).collect::<Vec<_>>());
    let topics: Vec<Arc<Topic>> = match (&listed, h.topic) {
        (Some(names), _) => names.iter().filter_map(|name| shard.topic(name)).collect(),
        (None, Some(name)) => shard.topic(name).into_iter().collect(),
        (None, None) => topics_of(shard, h.consumer_group).await,
    };
    let group = find_group(shard, h.consumer_group);
    let mut stats = ConsumeStats::default();
    for topic in topics {
        if listed.is_some() || !is_unsubscribed(group.as_deref(), &topic.name) {
            add_lag(shard, h.consumer_group, &topic, &mut stats).await?;
        }
    }
    Ok(Response::ok().body(fastjson::to_vec(&stats)))
}

/// 317.
pub async fn broker_consume_stats(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = GetBrokerConsumeStats::decode(req.cmd)?;
    let groups = shard.groups.borrow().clone();
    let mut body = BrokerConsumeStats { broker_addr: broker_addr(shard), ..BrokerConsumeStats::default() };
    let mut names: Vec<&Arc<str>> = groups.by_name.keys().collect();
    names.sort_unstable();
    for name in names {
        let group = groups.get(name).map(|group| &**group);
        let topics = shard.topics.borrow().clone();
        let mut per_topic = Vec::new();
        for id in offset::topics_of_group(shard, name).await {
            let Some(topic) = topics.by_id(id) else { continue };
            if (h.is_order && !topic.config.order) || is_unsubscribed(group, &topic.name) {
                continue;
            }
            let mut stats = ConsumeStats::default();
            add_lag(shard, name, topic, &mut stats).await?;
            for row in stats.offset_table.values() {
                body.total_diff = body.total_diff.saturating_add(row.broker_offset - row.consumer_offset);
                body.total_inflight_diff =
                    body.total_inflight_diff.saturating_add(row.pull_offset - row.consumer_offset);
            }
            per_topic.push(stats);
        }
        body.consume_stats_list.push(BTreeMap::from([(name.to_string(), per_topic)]));
    }
    Ok(Response::ok().body(fastjson::to_vec(&body)))
}

/// The address that this broker registers with.
pub fn broker_addr(shard: &Shard) -> String {
    shard.config().broker_addr(shard.store_host.port())
}

/// A group's row of 303.
fn time_span(queue: MessageQueue, facts: &Facts, now_ms: i64) -> ConsumeTimeSpan {
    const UNKNOWN: i64 = -1;
    let consumed = facts.committed.unwrap_or(0);
    let first_ms = facts.first_ms.unwrap_or(UNKNOWN);
    let behind = consumed < facts.max as i64;
    ConsumeTimeSpan {
        message_queue: queue,
        min_time_stamp: first_ms,
        max_time_stamp: facts.last_ms.unwrap_or(UNKNOWN),
        consume_time_stamp: if consumed > 0 { facts.before_ms.unwrap_or(UNKNOWN) } else { first_ms },
        delay_time: facts.at_ms.filter(|_| behind).map_or(0, |at_ms| now_ms - at_ms),
    }
}

/// 303.
pub async fn consume_time_span(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = TopicAndGroup::decode(req.cmd)?;
    let topic = find_topic(shard, h.topic)?;
    let wanted = Wanted { first: true, last: true, before: true, at: true };
    let all = gather(shard, &topic, topic.config.write_queue_nums, Some(h.group), wanted).await?;
    let (broker, now_ms) = (shard.config().broker_name.clone(), shard.now_ms());
    let spans = all.iter().map(|facts| time_span(message_queue(&broker, &topic, facts.queue), facts, now_ms));
    Ok(Response::ok().body(fastjson::to_vec(&ConsumeTimeSpanBody { consume_time_span_set: spans.collect() })))
}

/// 300: groups that subscribe the topic now, and groups that have offsets on it.
pub async fn consumed_by_whom(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = TopicOnly::decode(req.cmd)?;
    let groups = shard.groups.borrow().clone();
    let subscribes =
        |group: &&Arc<Group>| group.online.as_ref().is_some_and(|online| online.subscriptions.contains_key(h.topic));
    let mut names: BTreeSet<Arc<str>> = groups.by_name.values().filter(subscribes).map(|g| g.name.clone()).collect();
    if let Some(topic) = shard.topic(h.topic) {
        names.extend(offset::groups_of_topic(shard, topic.id).await);
    }
    let group_list = names.iter().map(|name| name.to_string()).collect();
    Ok(Response::ok().body(fastjson::to_vec(&GroupList { group_list })))
}

/// 343: topics that a group has offsets on.
pub async fn topics_by_consumer(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = GroupOnly::decode(req.cmd)?;
    let ids = offset::topics_of_group(shard, h.group).await;
    let topics = shard.topics.borrow().clone();
    let mut topic_list: Vec<String> = ids.iter().filter_map(|id| Some(topics.by_id(*id)?.name.to_string())).collect();
    topic_list.sort_unstable();
    let body = TopicList { broker_addr: Some(broker_addr(shard)), topic_list };
    Ok(Response::ok().body(fastjson::to_vec(&body)))
}

/// 345: a group's live subscription on a topic.
pub async fn subscription_by_consumer(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = TopicAndGroup::decode(req.cmd)?;
    let group = find_group(shard, h.group);
    let online = group.as_ref().and_then(|group| group.online.as_ref());
    let subscription = online.and_then(|online| online.subscriptions.get(h.topic));
    let body = QuerySubscriptionBody {
        group: h.group.to_owned(),
        subscription_data: subscription.map(|subscription| subscription_data(h.topic, subscription)),
        topic: h.topic.to_owned(),
    };
    Ok(Response::ok().body(fastjson::to_vec(&body)))
}

/// A subscription in the shape of heartbeats.
pub fn subscription_data(topic: &str, subscription: &Subscription) -> SubscriptionData {
    let tags = subscription.expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
    SubscriptionData {
        class_filter_mode: false,
        code_set: subscription.codes.clone(),
        expression_type: subscription.expression_type.clone(),
        sub_string: subscription.expression.clone(),
        sub_version: subscription.version,
        tags_set: if subscription.codes.is_empty() { Vec::new() } else { tags.map(str::to_owned).collect() },
        topic: topic.to_owned(),
    }
}

/// Sums of all shards' counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub put_messages: u64,
    pub put_bytes: u64,
    pub put_failed: u64,
    pub get_messages: u64,
    pub get_bytes: u64,
    pub get_missed: u64,
    pub bits_excluded: u64,
}

/// Adds up the counters of all shards.
pub async fn totals(shard: &Rc<Shard>) -> Totals {
    let each = shard.run_on_all(|s| async move {
        let c = &s.counters;
        Totals {
            put_messages: c.put_messages.get(),
            put_bytes: c.put_bytes.get(),
            put_failed: c.put_failed.get(),
            get_messages: c.get_messages.get(),
            get_bytes: c.get_bytes.get(),
            get_missed: c.get_missed.get(),
            bits_excluded: c.bits_excluded.get(),
        }
    });
    each.await.into_iter().fold(Totals::default(), |a, b| Totals {
        put_messages: a.put_messages + b.put_messages,
        put_bytes: a.put_bytes + b.put_bytes,
        put_failed: a.put_failed + b.put_failed,
        get_messages: a.get_messages + b.get_messages,
        get_bytes: a.get_bytes + b.get_bytes,
        get_missed: a.get_missed + b.get_missed,
        bits_excluded: a.bits_excluded + b.bits_excluded,
    })
}

/// One reading of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    at_ms: i64,
    totals: Totals,
}

/// Readings at equal distances, the newest last; one more than the span has steps.
struct Ring {
    every_ms: i64,
    steps: usize,
    samples: VecDeque<Sample>,
}

impl Ring {
    fn new(every_ms: i64, steps: usize) -> Self {
        Ring { every_ms, steps, samples: VecDeque::new() }
    }

    fn push(&mut self, sample: Sample) {
        let due = self.samples.back().is_none_or(|last| {
            // The sampler's pauses are not exact. A clock set back begins anew.
            sample.at_ms >= last.at_ms + self.every_ms - SAMPLE_MS as i64 / 2 || sample.at_ms < last.at_ms
        });
        if due {
            self.samples.push_back(sample);
            while self.samples.len() > self.steps + 1 {
                self.samples.pop_front();
            }
        }
    }

    /// What was counted over the last `steps` (fewer while the process is young), and over how many ms.
    fn span(&self, steps: usize, count: impl Fn(&Totals) -> u64) -> (u64, i64) {
        let Some(last) = self.samples.back() else { return (0, 0) };
        let first = self.samples.get(self.samples.len().saturating_sub(steps + 1)).unwrap_or(last);
        (count(&last.totals).saturating_sub(count(&first.totals)), last.at_ms - first.at_ms)
    }

    /// Counted per second over the last `steps`; `None` until there are so many readings.
    fn rate(&self, steps: usize, count: impl Fn(&Totals) -> u64) -> Option<f64> {
        if self.samples.len() <= steps {
            return None;
        }
        let (counted, ms) = self.span(steps, count);
        Some(if ms > 0 { counted as f64 * 1000.0 / ms as f64 } else { 0.0 })
    }
}

/// Pause between two readings of the counters.
const SAMPLE_MS: u64 = 10_000;

/// What shard 0 keeps for operators beside the counters.
pub struct Figures {
    /// For 10 s, 60 s and 600 s.
    seconds: RefCell<Ring>,
    /// For the hour and the day of 315.
    minutes: RefCell<Ring>,
    hours: RefCell<Ring>,
    /// Number of the local day, and the totals at its beginning and at that of the day before.
    day: Cell<(i64, Totals, Totals)>,
    pub started_ms: Cell<i64>,
    /// Of the broker's configuration: raised by each code 25.
    pub config_version: Cell<DataVersion>,
    /// A code 25 is being written.
    pub config_saving: Cell<bool>,
}

impl Default for Figures {
    fn default() -> Self {
        Figures {
            seconds: RefCell::new(Ring::new(SAMPLE_MS as i64, 60)),
            minutes: RefCell::new(Ring::new(600_000, 6)),
            hours: RefCell::new(Ring::new(3_600_000, 24)),
            day: Cell::default(),
            started_ms: Cell::new(0),
            config_version: Cell::default(),
            config_saving: Cell::new(false),
        }
    }
}

impl Figures {
    fn take(&self, at_ms: i64, day: i64, totals: Totals) {
        let sample = Sample { at_ms, totals };
        for ring in [&self.seconds, &self.minutes, &self.hours] {
            ring.borrow_mut().push(sample);
        }
        let (known, today, _) = self.day.get();
        if known != day {
            let first = self.started_ms.get() == 0 || known == 0;
            self.day.set(if first { (day, Totals::default(), Totals::default()) } else { (day, totals, today) });
        }
    }

    /// Totals when this day began and when the last one did, as far as the process was up.
    pub fn mornings(&self) -> (Totals, Totals) {
        let (_, today, yesterday) = self.day.get();
        (today, yesterday)
    }

    /// `10s 60s 600s` rates as Java writes them: a window without enough readings is an empty piece.
    pub fn rates(&self, count: impl Fn(&Totals) -> u64 + Copy) -> String {
        let ring = self.seconds.borrow();
        let piece = |steps| ring.rate(steps, count).map(|rate| format!("{rate:?}")).unwrap_or_default();
        [piece(1), piece(6), piece(60)].join(" ")
    }

    fn stats_data(&self, count: impl Fn(&Totals) -> u64 + Copy) -> BrokerStatsData {
        let item = |ring: &RefCell<Ring>, steps| {
            let (sum, ms) = ring.borrow().span(steps, count);
            let tps = if ms > 0 { sum as f64 * 1000.0 / ms as f64 } else { 0.0 };
            BrokerStatsItem { avgpt: 0.0, sum: sum as i64, tps }
        };
        BrokerStatsData {
            stats_minute: item(&self.seconds, 6),
            stats_hour: item(&self.minutes, 6),
            stats_day: item(&self.hours, 24),
        }
    }
}

/// Reads the counters every 10 s until the doors close; on shard 0.
pub async fn sample(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        let totals = totals(&shard).await;
        let now_ms = shard.now_ms();
        shard.figures.take(now_ms, local_day(now_ms), totals);
        if shard.figures.started_ms.get() == 0 {
            shard.figures.started_ms.set(now_ms);
        }
        let pause = async {
            Timer::new(Duration::from_millis(SAMPLE_MS)).await;
        };
        futures_lite::future::or(pause, shard.doors.closed()).await;
    }
}

/// Number of the local day.
fn local_day(now_ms: i64) -> i64 {
    let seconds = now_ms.div_euclid(1000);
    // SAFETY: `localtime_r` fills the given struct and keeps no pointer to it; an all-zero `tm` is a valid value of plain numbers and a
    // pointer that is not followed.
    let offset_seconds = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut local);
        local.tm_gmtoff
    };
    (seconds + offset_seconds).div_euclid(86_400)
}

/// 315, on control: the broker's own counts. What is counted by topic or group is not kept and "not exist", which tools expect.
pub async fn broker_stats(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = ViewBrokerStats::decode(req.cmd)?;
    let count: Option<fn(&Totals) -> u64> = match h.stats_name {
        "BROKER_PUT_NUMS" => Some(|totals| totals.put_messages),
        "BROKER_GET_NUMS" => Some(|totals| totals.get_messages),
        _ => None,
    };
    match count.filter(|_| h.stats_key == shard.config().cluster_name) {
        Some(count) => Ok(Response::ok().body(fastjson::to_vec(&shard.figures.stats_data(count)))),
        None => {
            let remark = format!("The stats <{}> <{}> not exist", h.stats_name, h.stats_key);
            Err(BrokerError::refused(code::SYSTEM_ERROR, remark))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::types::TopicId;

    /// Known fault F05: a commit of an older topic of that name.
    #[test]
    fn lag_is_never_negative() {
        let facts = |committed, pulled| Facts { min: 0, max: 10, committed, pulled, ..Facts::default() };
        let row = |committed, pulled| {
            let row = lag(&facts(committed, pulled));
            (row.broker_offset, row.consumer_offset, row.pull_offset)
        };
        assert_eq!(row(None, None), (10, 0, 0));
        assert_eq!(row(Some(4), Some(7)), (10, 4, 7));
        assert_eq!(row(Some(4), Some(2)), (10, 4, 4));
        assert_eq!(row(Some(1000), Some(1000)), (10, 10, 10));
    }

    #[test]
    fn a_time_span_knows_what_is_unknown() {
        let queue = MessageQueue::default();
        let empty = time_span(queue.clone(), &Facts::default(), 100);
        assert_eq!((empty.min_time_stamp, empty.max_time_stamp, empty.consume_time_stamp), (-1, -1, -1));
        assert_eq!(empty.delay_time, 0);
        let facts = Facts {
            max: 5,
            committed: Some(2),
            first_ms: Some(10),
            last_ms: Some(50),
            before_ms: Some(20),
            at_ms: Some(30),
            ..Facts::default()
        };
        let span = time_span(queue.clone(), &facts, 100);
        assert_eq!((span.consume_time_stamp, span.delay_time), (20, 70));
        let fresh = time_span(queue.clone(), &Facts { committed: None, at_ms: Some(10), ..facts }, 100);
        assert_eq!((fresh.consume_time_stamp, fresh.delay_time), (10, 90));
        let done = time_span(queue, &Facts { committed: Some(5), at_ms: None, ..facts }, 100);
        assert_eq!(done.delay_time, 0);
    }

    #[test]
    fn rates_are_empty_until_there_are_enough_readings() {
        let figures = Figures::default();
        let totals = |n: u64| Totals { put_messages: n * 1000, ..Totals::default() };
        figures.take(0, 1, totals(0));
        assert_eq!(figures.rates(|t| t.put_messages), "  ");
        figures.take(10_000, 1, totals(1));
        assert_eq!(figures.rates(|t| t.put_messages), "100.0  ");
        for n in 2..=60 {
            figures.take(n * 10_000, 1, totals(n as u64));
        }
        assert_eq!(figures.rates(|t| t.put_messages), "100.0 100.0 100.0");
        assert_eq!(figures.rates(|t| t.get_messages), "0.0 0.0 0.0");
        let data = figures.stats_data(|t| t.put_messages);
        assert_eq!((data.stats_minute.sum, data.stats_hour.sum), (6000, 60_000));
        assert_eq!((data.stats_minute.tps, data.stats_day.sum), (100.0, 0));
    }

    #[test]
    fn mornings_move_with_the_day() {
        let figures = Figures::default();
        figures.started_ms.set(1);
        let totals = |n| Totals { put_messages: n, ..Totals::default() };
        figures.take(1, 10, totals(5));
        assert_eq!(figures.mornings(), (Totals::default(), Totals::default()));
        figures.take(2, 11, totals(50));
        figures.take(3, 11, totals(60));
        assert_eq!(figures.mornings(), (totals(50), Totals::default()));
        figures.take(4, 12, totals(70));
        assert_eq!(figures.mornings(), (totals(70), totals(50)));
    }

    #[test]
    fn subscriptions_are_shown_as_heartbeats_brought_them() {
        let all = subscription_data("T", &Subscription::everything());
        assert_eq!((all.sub_string.as_str(), all.tags_set.len(), all.topic.as_str()), ("*", 0, "T"));
        let tags = Subscription {
            version: 7,
            expression: "a || b".to_owned(),
            codes: vec![97, 98],
            all: false,
            ..Subscription::everything()
        };
        let shown = subscription_data("T", &tags);
        assert_eq!(
            (shown.tags_set, shown.code_set, shown.sub_version),
            (vec!["a".to_owned(), "b".to_owned()], vec![97, 98], 7)
        );
    }

    #[test]
    fn members_that_subscribe_other_topics_hide_a_topic() {
        let group = |topics: &[&str]| Group {
            name: "g".into(),
            config: Default::default(),
            online: Some(crate::snapshot::OnlineGroup {
                broadcasting: false,
                pulling: false,
                subscriptions: topics.iter().map(|t| ((*t).into(), Arc::new(Subscription::everything()))).collect(),
            }),
            forbidden: Vec::new(),
        };
        assert!(!is_unsubscribed(None, "T"));
        assert!(!is_unsubscribed(Some(&group(&[])), "T") && !is_unsubscribed(Some(&group(&["T"])), "T"));
        assert!(is_unsubscribed(Some(&group(&["U"])), "T"));
        assert_eq!(
            message_queue("b", &Topic { id: TopicId(0), name: "T".into(), config: Default::default() }, 3).queue_id,
            3
        );
    }
}
