//! CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not digest comes back later, from the group's retry topic, or rests in
//! its dead-letter topic. Source: behaviour sheet 6.1, 6.2; wire-protocol sheet 5.8; known faults R01, R03.
use crate::control;
use crate::delay;
use crate::error::BrokerError;
use crate::handlers::query;
use crate::requests::{Answer, Origin, Request};
use crate::responses;
use crate::shard::Shard;
use crate::shard::appends::NewMessage;
use crate::snapshot::{Group, Topic};
use std::rc::Rc;
use std::sync::Arc;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::send::ConsumerSendMsgBack;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names::{self, perm};
use uringmq_proto::record::{self, Found, Record};
use uringmq_store::StoreError;

/// Clients older than this (3.4.9) do not mean what their maxReconsumeTimes says.
const OWN_LIMIT_FROM_VERSION: i32 = 121;
/// First level of a message that failed for the first time.
const FIRST_LEVEL: i32 = 3;

/// On the connection's shard. What is missing (group, retry topic) is made by control, which sends the request back here.
pub fn send_back(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = ConsumerSendMsgBack::decode(req.cmd)?;
    let group = shard.groups.borrow().get(h.group).cloned();
    let Some(group) = group else {
        return match req.retried {
            true => Err(BrokerError::NoGroup(h.group.to_owned())),
            false => shard.ask_control(req),
        };
    };
    let config = shard.config();
    if config.broker_permission & perm::WRITE as u32 == 0 {
        let remark = format!("the broker[{}] sending message is forbidden", config.broker_ip1);
        return Err(BrokerError::refused(code::NO_PERMISSION, remark));
    }
    if group.config.retry_queue_nums <= 0 {
        return Ok(Response::ok().into());
    }
    let name = names::retry_topic(h.group);
    let Some(topic) = shard.topic(&name) else {
        return match req.retried {
            true => Err(BrokerError::refused(code::SYSTEM_ERROR, format!("topic[{name}] not exist"))),
            false => shard.ask_control(req),
        };
    };
    if topic.config.perm & perm::WRITE == 0 {
        let remark = format!("the topic[{name}] sending message is forbidden");
        return Err(BrokerError::refused(code::NO_PERMISSION, remark));
    }
    let back = Back {
        phy: h.offset,
        level: h.delay_level,
        limit: limit(h.max_reconsume_times, &group, req.origin.version),
        group,
        retry_topic: topic,
    };
    let (shard, origin): (Rc<Shard>, Origin) = (shard.clone(), req.origin);
    glommio::spawn_local(async move {
        let stored = back.store(&shard).await;
        let response = stored.map_or_else(|e| responses::of_error(&e), |()| Response::ok());
        shard.respond(origin, response);
    })
    .detach();
    Ok(Answer::Later)
}

/// How often a message of the group may be tried again.
fn limit(asked: Option<i32>, group: &Group, version: i32) -> i32 {
    asked.filter(|_| version >= OWN_LIMIT_FROM_VERSION).unwrap_or(group.config.retry_max_times)
}

/// One message on its way back.
struct Back {
    /// Where it was read from the log.
    phy: i64,
    /// As the client asked: 0 leaves it to the broker, negative means no further try.
    level: i32,
    limit: i32,
    group: Arc<Group>,
    retry_topic: Arc<Topic>,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// To the dead letters, at once and for good (known fault R01).
    Dead,
    /// To the retry topic, by this delay level.
    Retry(i32),
}

fn fate(reconsume_times: i32, level: i32, limit: i32) -> Fate {
    match level {
        _ if level < 0 || reconsume_times >= limit => Fate::Dead,
        0 => Fate::Retry(reconsume_times.saturating_add(FIRST_LEVEL)),
        level => Fate::Retry(level),
    }
}

/// The properties of the copy: those of the message, with where it came from and its first id, which later tries keep.
fn properties_of(record: &Record<'_>) -> String {
    let mut text = message::without(record.properties, &[prop::WAIT, prop::DELAY, prop::CRC32]);
    if message::property(&text, prop::RETRY_TOPIC).is_none() {
        message::push_property(&mut text, prop::RETRY_TOPIC, record.topic);
    }
    if message::property(&text, prop::ORIGIN_MESSAGE_ID).is_none() {
        let mut id = String::new();
        message::write_offset_id(&mut id, record.store_host, record.phy_offset as u64);
        message::push_property(&mut text, prop::ORIGIN_MESSAGE_ID, &id);
    }
    message::push_property(&mut text, prop::WAIT, "false");
    text
}

impl Back {
    async fn store(&self, shard: &Rc<Shard>) -> Result<(), BrokerError> {
        let bytes = query::read_at(shard, self.phy).await?;
        let record = match bytes.as_deref().map(|bytes| record::parse(bytes, false)) {
            Some(Ok(Found::Record(record))) => record,
            _ => {
                let remark = format!("look message by offset failed, {}", self.phy);
                return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
            }
        };
        let text = properties_of(&record);
        match fate(record.reconsume_times, self.level, self.limit) {
            Fate::Dead => {
                let topic = dead_letters(shard, &self.group.name).await?;
                let mut text = text;
                message::push_property(&mut text, prop::DELAY, "0");
                put(shard, &record, &topic, 0, &text).await
            }
            Fate::Retry(level) => {
                let schedule = shard
                    .topic(names::SCHEDULE_TOPIC)
                    .ok_or_else(|| BrokerError::NoTopic(names::SCHEDULE_TOPIC.to_owned()))?;
                let top = shard.appends.delay_levels_ms().len();
                let queue = pick_queue(self.group.config.retry_queue_nums, self.phy, shard.now_ms());
                let (text, level_queue) = delay::divert(&text, level, top, &self.retry_topic.name, queue);
                put(shard, &record, &schedule, level_queue, &text).await
            }
        }
    }
}

/// Some queue of the retry topic, spread over all of them.
fn pick_queue(queues: i32, phy: i64, now_ms: i64) -> u32 {
    let mixed = (phy as u64 ^ (now_ms as u64).rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    (mixed % queues.max(1) as u64) as u32
}

/// The group's dead-letter topic: one queue, readable and writable, made by control when missing.
async fn dead_letters(shard: &Rc<Shard>, group: &str) -> Result<Arc<Topic>, BrokerError> {
    let name = names::dlq_topic(group);
    if let Some(topic) = shard.topic(&name) {
        return Ok(topic);
    }
    let made = shard.run_on(0, move |control| async move { control::ensure_topic(&control, &name, 1, 0) }).await;
    made.unwrap_or_else(|| Err(BrokerError::refused(code::SYSTEM_ERROR, "the broker is stopping")))
}

async fn put(
    shard: &Rc<Shard>,
    record: &Record<'_>,
    topic: &Arc<Topic>,
    queue: u32,
    properties: &str,
) -> Result<(), BrokerError> {
    let reconsume_times = record.reconsume_times.saturating_add(1);
    let copy = NewMessage { reconsume_times, ..NewMessage::copy_of(record, topic, queue, properties) };
    match shard.append(copy).await {
        Ok(_) => Ok(()),
        Err(e) => Err(BrokerError::refused(code::SYSTEM_ERROR, put_status(&e))),
    }
}

/// The name that Apache's broker gives to a failed put; consumers log it and send the message by themselves.
fn put_status(e: &StoreError) -> &'static str {
    match e {
        StoreError::TooLarge { .. } => "MESSAGE_ILLEGAL",
        StoreError::NoSpace(_) | StoreError::DiskFull | StoreError::Slave | StoreError::Poisoned { .. } => {
            "SERVICE_NOT_AVAILABLE"
        }
        StoreError::TooFewReplicas => "IN_SYNC_REPLICAS_NOT_ENOUGH",
        StoreError::Corrupt { .. }
        | StoreError::OutOfRange(_)
        | StoreError::Io { .. }
        | StoreError::File { .. }
        | StoreError::Refused { .. } => "UNKNOWN_ERROR",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::body::group::SubscriptionGroupConfig;
    use uringmq_proto::record::NewRecord;

    /// Known fault R01.
    #[test]
    fn the_last_failure_is_dead_at_once() {
        for (times, level, limit, want) in [
            (0, 0, 16, Fate::Retry(3)),
            (5, 0, 16, Fate::Retry(8)),
            (15, 0, 16, Fate::Retry(18)),
            (16, 0, 16, Fate::Dead),
            (17, 18, 16, Fate::Dead),
            (1, 18, 1, Fate::Dead),
            (0, 18, 1, Fate::Retry(18)),
            (0, 0, 0, Fate::Dead),
            (0, -1, 16, Fate::Dead),
            (i32::MAX, 0, i32::MAX, Fate::Dead),
            (i32::MAX - 1, 0, i32::MAX, Fate::Retry(i32::MAX)),
        ] {
            assert_eq!(fate(times, level, limit), want, "{times} {level} {limit}");
        }
    }

    #[test]
    fn the_clients_limit_counts_from_its_version_on() {
        let config = SubscriptionGroupConfig { retry_max_times: 16, ..SubscriptionGroupConfig::default() };
        let group = Group { name: "g".into(), config, online: None, forbidden: Vec::new() };
        assert_eq!((limit(Some(3), &group, 121), limit(Some(3), &group, 120)), (3, 16));
        assert_eq!(limit(None, &group, 513), 16);
    }

    #[test]
    fn the_copy_says_where_it_came_from_and_keeps_its_first_id() {
        let mut bytes = Vec::new();
        let new = |properties| NewRecord {
            topic: "T",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 1,
            born_host: "127.0.0.1:1".parse().expect("an address"),
            store_host: "10.0.0.9:10911".parse().expect("an address"),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"x",
            properties,
            more_properties: "",
        };
        let mut properties_after = |properties| {
            bytes.clear();
            record::encode(&mut bytes, &new(properties)).expect("a small record");
            record::patch(&mut bytes, 7, 1000, 5);
            match record::parse(&bytes, true) {
                Ok(Found::Record(record)) => properties_of(&record),
                other => panic!("{other:?}"),
            }
        };
        let first = properties_after("TAGS\u{1}TagA\u{2}WAIT\u{1}true\u{2}DELAY\u{1}3\u{2}");
        assert_eq!(
            first,
            "TAGS\u{1}TagA\u{2}RETRY_TOPIC\u{1}T\u{2}ORIGIN_MESSAGE_ID\u{1}0A00000900002A9F00000000000003E8\u{2}WAIT\u{1}false\u{2}"
        );
        let later = properties_after("RETRY_TOPIC\u{1}U\u{2}ORIGIN_MESSAGE_ID\u{1}X\u{2}__CRC32#\u{1}1\u{2}");
        assert_eq!(later, "RETRY_TOPIC\u{1}U\u{2}ORIGIN_MESSAGE_ID\u{1}X\u{2}WAIT\u{1}false\u{2}");
    }

    #[test]
    fn retry_queues_are_all_used() {
        let mut seen = [false; 4];
        (0..100).for_each(|n| seen[pick_queue(4, n * 353, 1_700_000_000_000 + n) as usize] = true);
        assert_eq!(seen, [true; 4]);
        assert_eq!(pick_queue(0, 5, 5), 0);
    }
}
