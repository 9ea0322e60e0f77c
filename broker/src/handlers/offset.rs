//! Consumer offsets and queue bounds (14, 15, 29 to 32), and what moves or compares offsets of whole groups (222, 308, 314, and
//! cleanOffset of 207). Source: behaviour sheet 4.6, 5.3, 5.4; store-format sheet 18; known faults F01, F03, F05, F06, S16.
//!
//! Reading about a queue that nobody wrote to makes nothing: it is empty, its bounds are 0 and 0.
use crate::control::{self, persist};
use crate::error::BrokerError;
use crate::handlers::relay;
use crate::requests::{Answer, Origin, Request};
use crate::responses;
use crate::shard::Shard;
use crate::shard::queues::Queue;
use crate::snapshot::Topic;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use tracing::{info, warn};
use uringmq_proto::body::MessageQueue;
use uringmq_proto::body::offset::{CorrectionOffsetBody, QueueOffsets, ResetOffsetBody};
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::admin::{CloneGroupOffset, QueryCorrectionOffset, ResetConsumerOffset};
use uringmq_proto::headers::offset::{
    GetEarliestMsgStoretime, GetMaxOffset, GetMinOffset, QueryConsumerOffset, SearchOffset, UpdateConsumerOffset,
};
use uringmq_proto::headers::{Header, HeaderError};
use uringmq_proto::names;
use uringmq_proto::record;
use uringmq_proto::types::{QueueKey, QueueOffset, TopicId};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::{Entry, Form};

/// The key of a queue as a request names it; `None` when no such topic is known or the id cannot be one.
pub fn queue_key(shard: &Shard, topic: &str, queue_id: i32) -> Option<QueueKey> {
    let queue = u32::try_from(queue_id).ok()?;
    Some(QueueKey { topic: shard.topics.borrow().get(topic)?.id, queue })
}

/// The queue on its owner shard; `None` when it is empty, or none.
fn find_queue(shard: &Shard, topic: &str, queue_id: i32) -> Option<Rc<Queue>> {
    shard.queues.get(queue_key(shard, topic, queue_id)?)
}

/// First offset and next offset of a queue of this shard.
pub fn bounds(shard: &Shard, key: QueueKey) -> (u64, u64) {
    shard.queues.get(key).map_or((0, 0), |queue| (queue.cq.min().0, queue.cq.max().0))
}

fn offset_answer(offset: u64) -> Response {
    Response::ok().with("offset", offset)
}

/// 14, on the owner.
///
/// Where nothing is stored, 0 is answered as long as message 0 is there: a new group on a young queue starts at the beginning
/// whatever its start mode, as clients of Apache's broker know it (known fault F06, by design). Apache's broker asks whether the
/// message is in the page cache, and takes it for granted where it cannot tell; here every message that exists counts.
pub fn query_consumer_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = QueryConsumerOffset::decode(req.cmd)?;
    let key = queue_key(shard, h.topic, h.queue_id);
    if let Some(offset) = key.and_then(|key| shard.offsets.get(key, h.consumer_group)) {
        return Ok(Response::ok().with("offset", offset).into());
    }
    let remark = if h.set_zero_if_not_found == Some(false) {
        "Not found, do not set to zero, maybe this group boot first"
    } else {
        match key.map(|key| bounds(shard, key)) {
            Some((0, max)) if max > 0 => return Ok(offset_answer(0).into()),
            _ => "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
        }
    };
    Err(BrokerError::refused(code::QUERY_NOT_FOUND, remark))
}

/// 15, on the owner.
pub fn update_consumer_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = UpdateConsumerOffset::decode(req.cmd).map_err(bad_update)?;
    let light = shard.config.borrow().light_queues();
    if light && names::is_light_queue(h.topic) && h.queue_id == 0 && shard.topics.borrow().get(h.topic).is_none() {
        return Ok(commit_early(shard, req.origin, &h));
    }
    let light = light && names::is_light_queue(h.consumer_group);
    if !light && shard.groups.borrow().get(h.consumer_group).is_none() {
        let remark = format!("Group {} not exist!", h.consumer_group);
        return Err(BrokerError::refused(code::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
    }
    if shard.topics.borrow().get(h.topic).is_none() {
        return Err(BrokerError::refused(code::TOPIC_NOT_EXIST, format!("Topic {} not exist!", h.topic)));
    }
    let Some(key) = queue_key(shard, h.topic, h.queue_id) else {
        return Err(BrokerError::refused(code::INVALID_PARAMETER, format!("queueId {} is no queue", h.queue_id)));
    };
    let mut response = Response::ok();
    if !shard.offsets.commit(key, h.consumer_group, h.commit_offset) {
        response.remark = Some("Offset has been previously reset".into());
    }
    Ok(response.into())
}

/// A commit for a light queue that is not there yet.
fn commit_early(shard: &Rc<Shard>, origin: Origin, h: &UpdateConsumerOffset<'_>) -> Answer {
    let (shard, topic, group, offset) =
        (shard.clone(), h.topic.to_owned(), h.consumer_group.to_owned(), h.commit_offset);
    glommio::spawn_local(async move {
        let name = topic.clone();
        let made = shard.run_on(0, move |s| async move {
            control::make_lights(&s, std::iter::once(name.as_str()))?;
            Ok::<_, BrokerError>(queue_key(&s, &name, 0))
        });
        let response = match made.await.unwrap_or_else(|| Err(stopping().into())) {
            Ok(Some(key)) => {
                shard.run_on(shard.owner(key), move |s| async move { s.offsets.commit(key, &group, offset) }).await;
                Response::ok()
            }
            Ok(None) => responses::of_error(&BrokerError::NoTopic(topic)),
            Err(e) => responses::of_error(&e),
        };
        shard.respond(origin, response);
    })
    .detach();
    Answer::Later
}

/// Without queue or offset it is an invalid parameter.
fn bad_update(e: HeaderError) -> BrokerError {
    match &e {
        HeaderError::Missing("queueId" | "commitOffset") => {
            BrokerError::refused(code::INVALID_PARAMETER, e.to_string())
        }
        _ => e.into(),
    }
}

/// 30, on the owner. What is not dispatched yet cannot be read either, so `committed` makes no difference.
pub fn max_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = GetMaxOffset::decode(req.cmd)?;
    let max = find_queue(shard, h.topic, h.queue_id).map_or(0, |queue| queue.cq.max().0);
    Ok(offset_answer(max).into())
}

/// 31, on the owner.
pub fn min_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = GetMinOffset::decode(req.cmd)?;
    let min = find_queue(shard, h.topic, h.queue_id).map_or(0, |queue| queue.cq.min().0);
    Ok(offset_answer(min).into())
}

/// 32, on the owner: store time of the queue's first message, -1 when there is none.
pub async fn earliest_store_time(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = GetEarliestMsgStoretime::decode(req.cmd)?;
    let mut time_ms = -1;
    if let Some(queue) = find_queue(shard, h.topic, h.queue_id) {
        time_ms = store_time_at(shard, &queue, queue.cq.min().0).await?.unwrap_or(-1);
    }
    Ok(Response::ok().with("timestamp", time_ms))
}

/// 29, on the owner.
pub async fn search_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = SearchOffset::decode(req.cmd)?;
    let boundary = Boundary::of(h.boundary_type)?;
    let offset = match find_queue(shard, h.topic, h.queue_id) {
        Some(queue) => offset_by_time(shard, &queue, h.timestamp_ms, boundary).await?,
        None => 0,
    };
    Ok(offset_answer(offset))
}

/// Which message a search by time is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The first one stored at that time or later; behind the last when all are older.
    Lower,
    /// The last one stored at that time or earlier; the first when all are newer.
    Upper,
}

impl Boundary {
    /// As a header names it: any case, absent means lower.
    fn of(text: Option<&str>) -> Result<Self, BrokerError> {
        match text {
            None => Ok(Boundary::Lower),
            Some(text) if text.eq_ignore_ascii_case("lower") => Ok(Boundary::Lower),
            Some(text) if text.eq_ignore_ascii_case("upper") => Ok(Boundary::Upper),
            Some(text) => {
                Err(HeaderError::Bad { field: "boundaryType", want: "LOWER or UPPER", value: text.to_owned() }.into())
            }
        }
    }
}

/// Searches a queue of this shard by store time; see [`search`].
pub async fn offset_by_time(
    shard: &Shard,
    queue: &Queue,
    timestamp_ms: i64,
    boundary: Boundary,
) -> Result<u64, StoreError> {
    let (min, max) = (queue.cq.min().0, queue.cq.max().0);
    let found =
        search(min, max, timestamp_ms, boundary, async |offset| store_time_at(shard, queue, offset).await).await?;
    if queue.cq.form() == Form::Plain || min == max {
        return Ok(found);
    }
    // Whole records; where all are older the last one, as Apache's broker answers for batch queues (store-format sheet 18).
    Ok(base_at(queue, found.min(max - 1)).await?.unwrap_or(found))
}

/// The offset in `min..=max` that `boundary` asks for. `time_at` gives the store time of an offset, `None` where the message is gone
/// already: such offsets stand at the queue's head and are stepped over.
pub async fn search<E>(
    min: u64,
    max: u64,
    timestamp_ms: i64,
    boundary: Boundary,
    time_at: impl AsyncFn(u64) -> Result<Option<i64>, E>,
) -> Result<u64, E> {
    // `low` ends behind the last message that is older (Lower) or not newer (Upper).
    let (mut low, mut high) = (min, max);
    let mut below_is_gone = true;
    while low < high {
        let middle = low + (high - low) / 2;
        let time_ms = time_at(middle).await?;
        let before = match (time_ms, boundary) {
            (None, _) => true,
            (Some(time_ms), Boundary::Lower) => time_ms < timestamp_ms,
            (Some(time_ms), Boundary::Upper) => time_ms <= timestamp_ms,
        };
        if before {
            low = middle + 1;
            below_is_gone = time_ms.is_none();
        } else {
            high = middle;
        }
    }
    Ok(match boundary {
        Boundary::Lower => low,
        Boundary::Upper if below_is_gone => low,
        Boundary::Upper => low - 1,
    })
}

/// The entry at one offset of a queue; `None` outside its bounds.
pub async fn entry_at(queue: &Queue, offset: u64) -> Result<Option<Entry>, StoreError> {
    let mut entries = Vec::with_capacity(1);
    if (queue.cq.min().0..queue.cq.max().0).contains(&offset) {
        queue.cq.read(QueueOffset(offset), 1, &mut entries).await?;
    }
    Ok(entries.first().copied())
}

/// The first offset of the record that holds a message; `None` outside the queue's bounds.
pub async fn base_at(queue: &Queue, offset: u64) -> Result<Option<u64>, StoreError> {
    Ok(entry_at(queue, offset).await?.map(|entry| entry.base))
}

/// Store time (ms) of the message at one offset of a queue; `None` when it is not there (any more), or damaged.
pub async fn store_time_at(shard: &Shard, queue: &Queue, offset: u64) -> Result<Option<i64>, StoreError> {
    let Some(entry) = entry_at(queue, offset).await? else { return Ok(None) };
    if entry.phy < shard.marks.min() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    match shard.read_record(entry.phy, entry.bytes, &mut bytes).await {
        Ok(()) => Ok(record::store_timestamp_ms(&bytes)),
        Err(StoreError::OutOfRange(_)) => Ok(None),
        Err(StoreError::Corrupt { at, what }) => {
            warn!(topic = %queue.topic.name, queue = queue.key.queue, offset, %at, what, "a damaged record has no store time");
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// 43, on control: what every group committed, as `consumerOffset.json` holds it.
pub async fn all_consumer_offsets(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Response, BrokerError> {
    Ok(Response::ok().body(fastjson::to_vec(&persist::offsets_table(shard).await)))
}

/// Where a reset is to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Offset(u64),
    /// Negative means the queue's end.
    Time(i64),
}

/// What a reset of one queue came to.
enum Reset {
    To(u64),
    Refused(String),
}

/// 222, on control.
pub async fn reset_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = ResetConsumerOffset::decode(req.cmd)?;
    let topic = shard
        .topic(h.topic)
        .ok_or_else(|| BrokerError::refused(code::TOPIC_NOT_EXIST, format!("Topic {} does not exist", h.topic)))?;
    if shard.groups.borrow().get(h.group).is_none() {
        let remark = format!("Group {} does not exist", h.group);
        return Err(BrokerError::refused(code::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
    }
    if !shard.config().server_side_reset_offset {
        return relay::reset_by_clients(shard, &topic, &h, req.origin.language).await;
    }
    let target = match u64::try_from(h.offset) {
        Ok(offset) if h.queue_id >= 0 => Target::Offset(offset),
        _ => Target::Time(h.timestamp_ms),
    };
    let queues = match u32::try_from(h.queue_id) {
        Ok(queue) => queue..queue + 1,
        Err(_) => 0..topic.config.read_queue_nums.max(0) as u32,
    };
    let mut reset = BTreeMap::new();
    for queue in queues {
        let key = QueueKey { topic: topic.id, queue };
        let group = h.group.to_owned();
        let done = shard.run_on(shard.owner(key), move |owner| reset_queue(owner, key, group, target)).await;
        match done.unwrap_or_else(|| Err(stopping())).map_err(BrokerError::Store)? {
            Reset::To(offset) => drop(reset.insert(queue, offset)),
            Reset::Refused(remark) => return Err(BrokerError::refused(code::SYSTEM_ERROR, remark)),
        }
    }
    info!(topic = h.topic, group = h.group, queues = reset.len(), "consumer offsets were reset");
    Ok(Response::ok().body(reset_body(shard, &topic, &reset)))
}

/// The error of work that another shard did not take up because the process stops.
pub fn stopping() -> StoreError {
    StoreError::File { op: "work while stopping", path: PathBuf::new(), source: std::io::ErrorKind::Interrupted.into() }
}

/// Body of 222 and 220: offsets by queue.
pub fn reset_body(shard: &Shard, topic: &Topic, offsets: &BTreeMap<u32, u64>) -> Vec<u8> {
    let broker = shard.config().broker_name.clone();
    let table = offsets.iter().map(|(queue, offset)| {
        (
            MessageQueue { topic: topic.name.to_string(), broker_name: broker.clone(), queue_id: *queue as i32 },
            *offset as i64,
        )
    });
    fastjson::to_vec(&ResetOffsetBody { offset_table: table.collect() })
}

async fn reset_queue(owner: Rc<Shard>, key: QueueKey, group: String, target: Target) -> Result<Reset, StoreError> {
    let (min, max) = bounds(&owner, key);
    let offset = match target {
        Target::Offset(offset) if offset < min || offset > max.saturating_add(1) => {
            return Ok(Reset::Refused(format!("Target offset {offset} not in consume queue range [{min}-{max}]")));
        }
        Target::Offset(offset) => offset,
        Target::Time(timestamp_ms) => time_target(&owner, key, timestamp_ms).await?,
    };
    owner.offsets.reset(key, &group, offset as i64);
    if let Some(queue) = owner.queues.get(key) {
        owner.release_held(&queue); // their next pulls find the reset
    }
    Ok(Reset::To(offset))
}

/// Where a reset by time leads on one queue of this shard: its end for a negative time.
pub async fn time_target(owner: &Shard, key: QueueKey, timestamp_ms: i64) -> Result<u64, StoreError> {
    match owner.queues.get(key) {
        None => Ok(0),
        Some(queue) if timestamp_ms < 0 => Ok(queue.cq.max().0),
        Some(queue) => offset_by_time(owner, &queue, timestamp_ms, Boundary::Lower).await,
    }
}

/// One queue's part of a [`correct`]ion: its first offset and the offsets that groups committed on it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Committed {
    queue: u32,
    min: u64,
    group: Arc<str>,
    offset: i64,
}

/// 308, on control. It only asks: the offsets of `filterGroups` are left out of the minimum and stay (known fault F01).
pub async fn query_correction_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = QueryCorrectionOffset::decode(req.cmd)?;
    let filtered: Vec<&str> =
        h.filter_groups.unwrap_or("").split(',').map(str::trim).filter(|g| !g.is_empty()).collect();
    let committed = match shard.topic(h.topic) {
        Some(topic) => committed_on(shard, topic.id).await,
        None => Vec::new(),
    };
    let offsets = correct(&committed, &filtered, h.compare_group);
    let correction_offsets = QueueOffsets::from_iter(offsets);
    Ok(Response::ok().body(fastjson::to_vec(&CorrectionOffsetBody { correction_offsets })))
}

async fn committed_on(shard: &Rc<Shard>, topic: TopicId) -> Vec<Committed> {
    let gathered = shard.run_on_all(move |owner| async move {
        let rows = owner.offsets.of_topic(topic).into_iter().map(|(group, queue, offset)| {
            let (min, _) = bounds(&owner, QueueKey { topic, queue });
            Committed { queue, min, group, offset }
        });
        rows.collect::<Vec<_>>()
    });
    gathered.await.into_iter().flatten().collect()
}

/// Per queue the smallest committed offset that is not below the queue's first, over all groups but `filtered`; `i64::MAX` where that
/// is above what `compare` committed itself.
fn correct(committed: &[Committed], filtered: &[&str], compare: &str) -> BTreeMap<i32, i64> {
    let mut smallest: BTreeMap<i32, i64> = BTreeMap::new();
    let counts = |c: &&Committed| !filtered.contains(&&*c.group) && c.offset >= c.min as i64;
    for c in committed.iter().filter(counts) {
        let least = smallest.entry(c.queue as i32).or_insert(i64::MAX);
        *least = c.offset.min(*least);
    }
    for c in committed.iter().filter(|c| &*c.group == compare) {
        let least = smallest.entry(c.queue as i32).or_insert(i64::MAX);
        if *least > c.offset {
            *least = i64::MAX;
        }
    }
    smallest
}

/// 314, on control. Topics that a live source group does not subscribe to are left out, unless it is said to be offline.
pub async fn clone_group_offset(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = CloneGroupOffset::decode(req.cmd)?;
    let (topics, groups) = (shard.topics.borrow().clone(), shard.groups.borrow().clone());
    let online = groups.get(h.src_group).and_then(|group| group.online.as_ref()).filter(|_| !h.offline);
    let wanted: Vec<TopicId> = match h.topic {
        Some(name) => topics.get(name).map(|topic| topic.id).into_iter().collect(),
        None => topics_of_group(shard, h.src_group).await,
    };
    let subscribed = |id: &TopicId| match (online, topics.by_id(*id)) {
        (_, None) => false,
        (None, _) => true,
        (Some(online), Some(topic)) => {
            online.subscriptions.is_empty() || online.subscriptions.contains_key(&topic.name)
        }
    };
    let wanted: Arc<[TopicId]> = wanted.into_iter().filter(subscribed).collect();
    let (source, target): (Arc<str>, Arc<str>) = (h.src_group.into(), h.dest_group.into());
    shard
        .run_on_all(move |owner| {
            let (wanted, source, target) = (wanted.clone(), source.clone(), target.clone());
            async move {
                for topic in wanted.iter() {
                    for (_, queue, offset) in owner.offsets.of_topic(*topic).into_iter().filter(|row| row.0 == source) {
                        owner.offsets.set(QueueKey { topic: *topic, queue }, &target, offset);
                    }
                }
            }
        })
        .await;
    Ok(Response::ok())
}

/// Topics on which a group committed anything, on all shards.
pub async fn topics_of_group(shard: &Rc<Shard>, group: &str) -> Vec<TopicId> {
    let group: Arc<str> = group.into();
    let gathered = shard.run_on_all(move |owner| {
        let group = group.clone();
        async move { owner.offsets.topics_of(&group) }
    });
    let mut topics: Vec<TopicId> = gathered.await.into_iter().flatten().collect();
    topics.sort_unstable();
    topics.dedup();
    topics
}

/// Groups that committed anything on a topic, on all shards; sorted.
pub async fn groups_of_topic(shard: &Rc<Shard>, topic: TopicId) -> Vec<Arc<str>> {
    let gathered = shard.run_on_all(move |owner| async move { owner.offsets.groups_of(topic) });
    let mut groups: Vec<Arc<str>> = gathered.await.into_iter().flatten().collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// cleanOffset of 207: forgets a group's offsets on every queue.
pub async fn clean_group(shard: &Rc<Shard>, group: &str) {
    let group: Arc<str> = group.into();
    shard
        .run_on_all(move |owner| {
            let group = group.clone();
            async move { owner.offsets.remove_group(&group) }
        })
        .await;
}

/// What a group committed on one topic, by queue, on all shards.
pub async fn committed_by(shard: &Rc<Shard>, topic: TopicId, group: &str) -> HashMap<u32, i64> {
    let rows = committed_on(shard, topic).await.into_iter().filter(|c| &*c.group == group);
    rows.map(|c| (c.queue, c.offset)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;

    /// Offsets from 10 on; `None` is gone.
    fn found(times: &[Option<i64>], timestamp_ms: i64, boundary: Boundary) -> u64 {
        let max = 10 + times.len() as u64;
        let time_at = async |offset: u64| Ok::<_, ()>(times[(offset - 10) as usize]);
        block_on(search(10, max, timestamp_ms, boundary, time_at)).expect("no error is made here")
    }

    /// Known fault F03, against a plain walk.
    #[test]
    fn search_by_time_agrees_with_a_walk() {
        let tables: [&[i64]; 5] = [&[], &[100], &[100, 200, 300], &[100, 100, 200, 200, 200, 300], &[5; 7]];
        for times in tables {
            let some: Vec<Option<i64>> = times.iter().copied().map(Some).collect();
            for timestamp_ms in [i64::MIN, -1, 0, 4, 5, 6, 99, 100, 101, 200, 250, 300, 301, i64::MAX] {
                let older = times.iter().filter(|time| **time < timestamp_ms).count() as u64;
                assert_eq!(found(&some, timestamp_ms, Boundary::Lower), 10 + older, "{times:?} {timestamp_ms}");
                let not_newer = times.iter().filter(|time| **time <= timestamp_ms).count() as u64;
                let upper = 10 + not_newer.saturating_sub(1);
                assert_eq!(found(&some, timestamp_ms, Boundary::Upper), upper, "{times:?} {timestamp_ms}");
            }
        }
    }

    #[test]
    fn messages_that_are_gone_are_stepped_over() {
        let times = [None, None, None, Some(300), Some(400)];
        for timestamp_ms in [-1, 0, 300] {
            assert_eq!(found(&times, timestamp_ms, Boundary::Lower), 13);
            assert_eq!(found(&times, timestamp_ms, Boundary::Upper), 13, "never below the first kept");
        }
        assert_eq!(found(&times, 301, Boundary::Lower), 14);
        assert_eq!((found(&times, 401, Boundary::Lower), found(&times, 401, Boundary::Upper)), (15, 14));
        assert_eq!(found(&[None, None], 5, Boundary::Upper), 12, "nothing is left");
    }

    #[test]
    fn boundaries_come_in_any_case() {
        for (text, want) in
            [(None, Boundary::Lower), (Some("LOWER"), Boundary::Lower), (Some("Upper"), Boundary::Upper)]
        {
            assert_eq!(Boundary::of(text).expect("a boundary"), want);
        }
        assert!(matches!(Boundary::of(Some("middle")), Err(BrokerError::Header(_))));
    }

    /// Known fault F01: what is asked about stays out of the answer, and only of that.
    #[test]
    fn correction_is_the_smallest_of_the_others_unless_above_the_compared() {
        let row = |queue, min, group: &str, offset| Committed { queue, min, group: group.into(), offset };
        let committed = [
            row(0, 0, "g1", 5),
            row(0, 0, "g2", 9),
            row(0, 0, "me", 7),
            row(1, 10, "g1", 4),
            row(1, 10, "g2", 30),
            row(1, 10, "me", 20),
            row(2, 0, "me", 3),
        ];
        assert_eq!(correct(&committed, &[], "me"), BTreeMap::from([(0, 5), (1, 20), (2, 3)]));
        assert_eq!(correct(&committed, &["g1"], "me"), BTreeMap::from([(0, 7), (1, 20), (2, 3)]));
        let others = correct(&committed, &["me"], "me");
        assert_eq!(others, BTreeMap::from([(0, 5), (1, i64::MAX), (2, i64::MAX)]));
        assert_eq!(correct(&committed, &[], "nobody"), BTreeMap::from([(0, 5), (1, 20), (2, 3)]));
        assert!(correct(&[], &[], "me").is_empty());
    }

    #[test]
    fn an_update_without_queue_or_offset_is_an_invalid_parameter() {
        for field in ["queueId", "commitOffset"] {
            let error = bad_update(HeaderError::Missing(field));
            assert!(matches!(error, BrokerError::Refused { code: code::INVALID_PARAMETER, .. }), "{error:?}");
        }
        assert!(matches!(bad_update(HeaderError::Missing("topic")), BrokerError::Header(_)));
    }
}
