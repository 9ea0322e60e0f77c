//! The records of the revive topic: check points, and acknowledgements of what they list. Each is a timer: a check point comes up a second
//! before its messages are visible again, an acknowledgement when they are. Form: Apache's, store-format sheet 12.1, checked on 5.5.0.
use crate::error::BrokerError;
use crate::shard::Shard;
use crate::shard::appends::{Gathered, NewMessage};
use crate::timer::put::{self, Fate, Wish};
use uringmq_proto::body::pop::{AckBody, CheckPoint};
use uringmq_proto::codes::response as code;
use uringmq_proto::fastjson;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;

const CHECK_POINT_TAG: &str = "ck";
const ACK_TAG: &str = "ack";
const BATCH_ACK_TAG: &str = "bAck";
/// A check point comes up so long before its messages are visible again.
const LEAD_MS: i64 = 1000;
/// What the `ao` of an acknowledgement of several messages is.
const OF_SEVERAL: i64 = -1;

/// What a record of the revive topic says.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    CheckPoint(CheckPoint),
    Ack(AckBody),
}

impl Entry {
    /// `None` when it is neither.
    pub fn read(properties: &str, body: &[u8]) -> Option<Self> {
        match message::property(properties, prop::TAGS)? {
            CHECK_POINT_TAG => fastjson::from_slice(body).ok().map(Entry::CheckPoint),
            ACK_TAG | BATCH_ACK_TAG => fastjson::from_slice(body).ok().map(Entry::Ack),
            _ => None,
        }
    }
}

/// What a check point and its acknowledgements have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub topic: String,
    pub queue_id: i32,
    pub start_offset: i64,
    pub group: String,
    pub pop_ms: i64,
    pub broker_name: String,
}

impl Key {
    pub fn of_check_point(c: &CheckPoint) -> Self {
        Key {
            topic: c.topic.clone(),
            queue_id: c.queue_id,
            start_offset: c.start_offset,
            group: c.group.clone(),
            pop_ms: c.pop_ms,
            broker_name: c.broker_name.clone(),
        }
    }
    pub fn of_ack(a: &AckBody) -> Self {
        Key {
            topic: a.topic.clone(),
            queue_id: a.queue_id,
            start_offset: a.start_offset,
            group: a.group.clone(),
            pop_ms: a.pop_ms,
            broker_name: a.broker_name.clone(),
        }
    }
    fn id(&self, offset: i64, tag: &str) -> String {
        let Key { topic, queue_id, group, pop_ms, broker_name, .. } = self;
        format!("{topic}@{queue_id}@{offset}@{group}@{pop_ms}@{broker_name}@{tag}")
    }

    /// Body and acknowledgement tag of these messages of the check point.
    fn ack(&self, offsets: &[i64]) -> (AckBody, &'static str) {
        let one = |offset, offsets| AckBody {
            offset,
            offsets,
            broker_name: self.broker_name.clone(),
            group: self.group.clone(),
            pop_ms: self.pop_ms,
            queue_id: self.queue_id,
            start_offset: self.start_offset,
            topic: self.topic.clone(),
        };
        match offsets {
            [offset] => (one(*offset, Vec::new()), ACK_TAG),
            several => (one(OF_SEVERAL, several.to_vec()), BATCH_ACK_TAG),
        }
    }
}

impl Shard {
    /// Leaves a check point for the writer; `push_appends` is owed.
    ///
    /// # Errors
    /// A time that the timers do not hold, or a broker that stops.
    pub fn gather_check_point(&self, revive_queue: i32, c: &CheckPoint) -> Result<Gathered, BrokerError> {
        let id = Key::of_check_point(c).id(c.start_offset, CHECK_POINT_TAG);
        let deliver_ms = c.visible_ms().saturating_sub(LEAD_MS);
        self.gather_revive(revive_queue, CHECK_POINT_TAG, &id, deliver_ms, &fastjson::to_vec(c))
    }

    /// Leaves the acknowledgement of these messages of a check point, to come up at `visible_ms`, for the writer; `push_appends` is owed.
    ///
    /// # Errors
    /// As above.
    pub fn gather_ack(
        &self,
        revive_queue: i32,
        key: &Key,
        offsets: &[i64],
        visible_ms: i64,
    ) -> Result<Gathered, BrokerError> {
        let (body, tag) = key.ack(offsets);
        let id = key.id(body.offset, ACK_TAG);
        self.gather_revive(revive_queue, tag, &id, visible_ms, &fastjson::to_vec(&body))
    }

    fn gather_revive(
        &self,
        revive_queue: i32,
        tag: &str,
        id: &str,
        deliver_ms: i64,
        body: &[u8],
    ) -> Result<Gathered, BrokerError> {
        let (config, now_ms) = (self.config(), self.now_ms());
        let queue =
            u32::try_from(revive_queue).ok().filter(|queue| *queue < config.revive_queues).ok_or_else(|| {
                let remark = format!("revive queue[{revive_queue}] is illegal, there are {}", config.revive_queues);
                BrokerError::refused(code::MESSAGE_ILLEGAL, remark)
            })?;
        let revive = names::revive_topic(&config.cluster_name);
        let mut text = String::new();
        for (name, value) in
            [(prop::TIMER_DELIVER_MS, deliver_ms.to_string().as_str()), (prop::UNIQ_KEY, id), (prop::TAGS, tag)]
        {
            message::push_property(&mut text, name, value);
        }
        let place = match Wish::of(&text).fate(&config, now_ms)? {
            Fate::Now => (revive, queue),
            Fate::Waits { out_ms } => {
                put::push_times(&mut text, out_ms, &revive, queue);
                (names::WHEEL_TIMER_TOPIC.to_owned(), 0)
            }
        };
        let topic = self.topic(&place.0).ok_or(BrokerError::NoTopic(place.0))?;
        let new = NewMessage {
            topic: &topic,
            queue: place.1,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: now_ms,
            born_host: self.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: &text,
            wait_durable: true,
        };
        Ok(self.gather(&new)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { topic: "T".into(), queue_id: 1, start_offset: 5, group: "g".into(), pop_ms: 7, broker_name: "b".into() }
    }

    #[test]
    fn acknowledgements_are_named_as_apaches() {
        let (one, tag) = key().ack(&[6]);
        assert_eq!((one.offset, tag, key().id(one.offset, ACK_TAG)), (6, "ack", "T@1@6@g@7@b@ack".to_owned()));
        let (several, tag) = key().ack(&[6, 8]);
        assert_eq!((several.offset, several.offsets.as_slice(), tag), (-1, [6, 8].as_slice(), "bAck"));
        assert_eq!(key().id(several.offset, ACK_TAG), "T@1@-1@g@7@b@ack");
        assert_eq!((Key::of_ack(&one), Key::of_ack(&several)), (key(), key()));
    }

    #[test]
    fn records_are_told_apart_by_their_tag() {
        let properties = |tag: &str| format!("TAGS\u{1}{tag}\u{2}");
        let ack = fastjson::to_vec(&key().ack(&[6, 8]).0);
        assert_eq!(Entry::read(&properties("bAck"), &ack), Some(Entry::Ack(key().ack(&[6, 8]).0)));
        assert!(matches!(Entry::read(&properties("ck"), b"{\"t\":\"T\"}"), Some(Entry::CheckPoint(_))));
        for (tag, body) in [("ck", "x"), ("ack", ""), ("other", "{}")] {
            assert_eq!(Entry::read(&properties(tag), body.as_bytes()), None, "{tag}");
        }
        assert_eq!(Entry::read("", b"{}"), None);
    }
}
