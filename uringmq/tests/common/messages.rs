//! Topics, messages and offsets, as a client asks for them.
use super::client::Client;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use uringmq_proto::command::OwnedCommand;
use uringmq_proto::message::{self, BatchItem};
use uringmq_proto::record::{self, Found};

/// A message as pulls, key queries and look-ups answer it.
#[derive(Clone, Debug)]
pub struct Message {
    pub topic: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub phy_offset: i64,
    pub store_timestamp_ms: i64,
    pub born_timestamp_ms: i64,
    pub flag: i32,
    pub sys_flag: i32,
    pub prepared_transaction_offset: i64,
    pub reconsume_times: i32,
    pub properties: String,
    pub body: Vec<u8>,
}

impl Message {
    pub fn prop(&self, name: &str) -> Option<&str> {
        message::property(&self.properties, name)
    }

    /// All records of a body, their CRCs checked.
    pub fn all(mut bytes: &[u8]) -> Vec<Message> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let Ok(Found::Record(r)) = record::parse(bytes, true) else { panic!("no record: {bytes:?}") };
            all.push(Message {
                topic: r.topic.to_owned(),
                queue_id: r.queue_id,
                queue_offset: r.queue_offset,
                phy_offset: r.phy_offset,
                store_timestamp_ms: r.store_timestamp_ms,
                born_timestamp_ms: r.born_timestamp_ms,
                flag: r.flag,
                sys_flag: r.sys_flag,
                prepared_transaction_offset: r.prepared_transaction_offset,
                reconsume_times: r.reconsume_times,
                properties: r.properties.to_owned(),
                body: r.body.to_vec(),
            });
            bytes = &bytes[r.bytes..];
        }
        all
    }
}

/// Properties as a message carries them, with the separator behind the last one.
pub fn props(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        message::push_property(&mut text, name, value);
    }
    text
}

/// The body of a batch of (body, properties).
pub fn batch_of(items: &[(&[u8], &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (body, properties) in items {
        message::push_batch_item(&mut out, &BatchItem { flag: 0, body, properties });
    }
    out
}

/// Header fields of 310 and 320.
pub fn send_ext<'a>(
    topic: &'a str,
    queue: &'a str,
    properties: &'a str,
    reconsumed: &'a str,
) -> Vec<(&'a str, &'a str)> {
    vec![
        ("a", "test-producer"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", reconsumed),
        ("k", "false"),
        ("m", "false"),
    ]
}

#[derive(Debug)]
pub struct Sent {
    pub code: i32,
    pub remark: String,
    pub queue_offset: i64,
    pub queue_id: i32,
    pub msg_id: String,
}

impl Sent {
    fn of(answer: OwnedCommand) -> Self {
        let number = |key| answer.get(key).and_then(|text| text.parse().ok()).unwrap_or(-1);
        Sent {
            code: answer.code,
            queue_offset: number("queueOffset"),
            queue_id: number("queueId") as i32,
            msg_id: answer.get("msgId").unwrap_or_default().to_owned(),
            remark: answer.remark.unwrap_or_default(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Pull<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue: i32,
    pub offset: i64,
    pub count: i32,
    /// The subscription that the pull carries; empty when it relies on its group's heartbeats.
    pub expression: &'a str,
    /// `TAG`, `SQL92`.
    pub kind: &'a str,
    /// How long it may be held; 0 not at all.
    pub suspend_ms: u64,
}

impl<'a> Pull<'a> {
    /// One of up to 32 messages, held for a while when there are none.
    pub fn at(topic: &'a str, queue: i32, offset: i64) -> Self {
        Pull { group: "test-group", topic, queue, offset, count: 32, expression: "*", kind: "TAG", suspend_ms: 15_000 }
    }

    /// Answered at once.
    pub fn now(self) -> Self {
        Pull { suspend_ms: 0, ..self }
    }

    pub fn of(self, expression: &'a str) -> Self {
        Pull { expression, ..self }
    }

    pub fn sql(self, expression: &'a str) -> Self {
        Pull { expression, kind: "SQL92", ..self }
    }
}

#[derive(Debug)]
pub struct Pulled {
    pub code: i32,
    pub remark: String,
    pub next: i64,
    pub min: i64,
    pub max: i64,
    pub messages: Vec<Message>,
}

impl Client {
    /// 17.
    pub fn create_topic(&mut self, topic: &str, queues: i32) {
        let answer = self.try_create_topic(topic, queues);
        assert_eq!(answer.code, 0, "{topic}: {:?}", answer.remark);
    }

    pub fn try_create_topic(&mut self, topic: &str, queues: i32) -> OwnedCommand {
        let queues = queues.to_string();
        let ext: [(&str, &str); 8] = [
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", &queues),
            ("writeQueueNums", &queues),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        self.call(17, &ext, b"")
    }

    /// 17, with `queue.type=BatchCQ`.
    pub fn create_batch_topic(&mut self, topic: &str, queues: &str) {
        self.create_topic_with(topic, queues, "+queue.type=BatchCQ");
    }

    /// 17, with these attributes.
    pub fn create_topic_with(&mut self, topic: &str, queues: &str, attributes: &str) {
        let ext = [
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", queues),
            ("writeQueueNums", queues),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
            ("attributes", attributes),
        ];
        self.ok(17, &ext, b"");
    }

    /// 320 with a key of the batch's own; the first message's offset.
    pub fn send_inner_batch(&mut self, topic: &str, queue: i32, key: &str, count: usize) -> i64 {
        let (queue, properties) = (queue.to_string(), props(&[("UNIQ_KEY", key), ("TAGS", "T")]));
        let mut ext = send_ext(topic, &queue, &properties, "0");
        ext.iter_mut().filter(|(name, _)| *name == "m").for_each(|(_, value)| *value = "true");
        let bodies: Vec<String> = (0..count).map(|n| format!("{key}/{n}")).collect();
        let items: Vec<(&[u8], &str)> = bodies.iter().map(|body| (body.as_bytes(), "")).collect();
        let answer = self.ok(320, &ext, &batch_of(&items));
        assert_eq!(answer.get("batchUniqId"), Some(key));
        answer.get("queueOffset").and_then(|text| text.parse().ok()).expect("an offset")
    }

    /// 215.
    pub fn delete_topic(&mut self, topic: &str) {
        self.ok(215, &[("topic", topic)], b"");
    }

    /// 310.
    pub fn send(&mut self, topic: &str, queue: i32, properties: &str, body: &[u8]) -> Sent {
        let sent = Sent::of(self.call(310, &send_ext(topic, &queue.to_string(), properties, "0"), body));
        assert!(!self.must_succeed || sent.code == 0, "{sent:?}");
        sent
    }

    /// A send whose server may go away meanwhile: then `None`.
    pub fn try_send(&mut self, topic: &str, queue: i32, body: &[u8]) -> Option<Sent> {
        let opaque = self.ask(310, 0, &send_ext(topic, &queue.to_string(), "", "0"), body);
        loop {
            let answer = self.receive()?;
            if answer.opaque == opaque {
                return Some(Sent::of(answer));
            }
        }
    }

    /// A send that must succeed.
    pub fn sent(&mut self, topic: &str, queue: i32, properties: &str, body: &[u8]) -> Sent {
        let sent = self.send(topic, queue, properties, body);
        assert_eq!(sent.code, 0, "{topic} {properties:?}: {}", sent.remark);
        sent
    }

    /// Sends `count` messages, many in flight at once; their bodies are their numbers.
    pub fn send_many(&mut self, topic: &str, queue: i32, properties: &str, count: usize) {
        let queue = queue.to_string();
        let ext = send_ext(topic, &queue, properties, "0");
        let mut open = std::collections::VecDeque::new();
        for number in 0..count {
            open.push_back(self.ask(310, 0, &ext, number.to_string().as_bytes()));
            if open.len() == 256 {
                self.settle(&mut open);
            }
        }
        self.settle(&mut open);
    }

    fn settle(&mut self, open: &mut std::collections::VecDeque<i32>) {
        while !open.is_empty() {
            let answer = self.receive().expect("an answer");
            assert_eq!(answer.code, 0, "{:?}", answer.remark);
            open.retain(|opaque| *opaque != answer.opaque);
        }
    }

    /// 320.
    pub fn send_batch(&mut self, topic: &str, queue: i32, items: &[(&[u8], &str)]) -> Sent {
        let mut ext = send_ext(topic, "", "", "0");
        let queue = queue.to_string();
        ext.iter_mut().for_each(|(key, value)| match *key {
            "e" => *value = &queue,
            "m" => *value = "true",
            _ => {}
        });
        Sent::of(self.call(320, &ext, &batch_of(items)))
    }

    /// 11, with the subscription in its header.
    pub fn pull(&mut self, pull: &Pull<'_>) -> Pulled {
        let pulled = self.ask_pull(pull);
        let pulled = self.pulled(pulled);
        assert!(!self.must_succeed || pulled.code == 0, "{pulled:?}");
        pulled
    }

    pub fn ask_pull(&mut self, pull: &Pull<'_>) -> i32 {
        let flag = if pull.suspend_ms > 0 { 2 } else { 0 } | if pull.expression.is_empty() { 0 } else { 4 };
        let text = |number: i64| number.to_string();
        let ext: [(&str, &str); 11] = [
            ("consumerGroup", pull.group),
            ("topic", pull.topic),
            ("queueId", &text(pull.queue as i64)),
            ("queueOffset", &text(pull.offset)),
            ("maxMsgNums", &text(pull.count as i64)),
            ("sysFlag", &text(flag)),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", &text(pull.suspend_ms as i64)),
            ("subscription", pull.expression),
            ("subVersion", "0"),
            ("expressionType", pull.kind),
        ];
        self.ask(11, 0, &ext, b"")
    }

    pub fn pulled(&mut self, opaque: i32) -> Pulled {
        let answer = self.answer_to(opaque);
        let number = |key| answer.get(key).and_then(|text| text.parse().ok()).unwrap_or(i64::MIN);
        Pulled {
            code: answer.code,
            next: number("nextBeginOffset"),
            min: number("minOffset"),
            max: number("maxOffset"),
            messages: if answer.code == 0 { Message::all(&answer.body) } else { Vec::new() },
            remark: answer.remark.unwrap_or_default(),
        }
    }

    /// Pulls on from `offset` until `count` messages have come, as a consumer does: it follows the offset it is given.
    pub fn pull_all(&mut self, topic: &str, queue: i32, offset: i64, count: usize) -> Vec<Message> {
        let mut all: Vec<Message> = Vec::new();
        let mut pull = Pull::at(topic, queue, offset);
        while all.len() < count {
            let pulled = self.pull(&pull);
            assert!(matches!(pulled.code, 0 | 20), "after {} of {count}: {pulled:?}", all.len());
            assert!(pulled.code == 0 || pulled.max > offset, "nothing more than {} of {count}: {pulled:?}", all.len());
            all.extend(pulled.messages);
            pull.offset = pulled.next;
        }
        assert_eq!(all.len(), count);
        all
    }

    /// 30, 31.
    pub fn bounds(&mut self, topic: &str, queue: i32) -> (i64, i64) {
        let ext: [(&str, &str); 2] = [("topic", topic), ("queueId", &queue.to_string())];
        let mut ask = |code| {
            let answer = self.ok(code, &ext, b"");
            answer.get("offset").and_then(|text| text.parse().ok()).expect("an offset")
        };
        (ask(31), ask(30))
    }

    /// 15.
    pub fn commit(&mut self, group: &str, topic: &str, queue: i32, offset: i64) -> OwnedCommand {
        let (queue, offset) = (queue.to_string(), offset.to_string());
        let ext: [(&str, &str); 4] =
            [("consumerGroup", group), ("topic", topic), ("queueId", &queue), ("commitOffset", &offset)];
        self.call(15, &ext, b"")
    }

    /// 14; `None` when nothing is stored.
    pub fn committed(&mut self, group: &str, topic: &str, queue: i32) -> Option<i64> {
        let queue = queue.to_string();
        let answer = self.call(14, &[("consumerGroup", group), ("topic", topic), ("queueId", &queue)], b"");
        match answer.code {
            0 => Some(answer.get("offset").and_then(|text| text.parse().ok()).expect("an offset")),
            22 => None,
            other => panic!("code {other}: {:?}", answer.remark),
        }
    }

    /// 29. `boundary` empty: the field is left out.
    pub fn search(&mut self, topic: &str, queue: i32, time_ms: i64, boundary: &str) -> i64 {
        let (queue, time_ms) = (queue.to_string(), time_ms.to_string());
        let mut ext: Vec<(&str, &str)> =
            vec![("topic", topic), ("queueId", &queue), ("timestamp", &time_ms), ("boundaryType", boundary)];
        ext.retain(|(_, value)| !value.is_empty());
        let answer = self.ok(29, &ext, b"");
        answer.get("offset").and_then(|text| text.parse().ok()).expect("an offset")
    }

    /// 12: code and messages. `more` are further header fields, which win.
    pub fn query(&mut self, topic: &str, key: &str, more: &[(&str, &str)]) -> (i32, Vec<Message>) {
        let end = i64::MAX.to_string();
        let mut ext: Vec<(&str, &str)> = vec![("topic", topic), ("key", key), ("maxNum", "32")];
        ext.extend([("beginTimestamp", "0"), ("endTimestamp", end.as_str())]);
        for (name, value) in more {
            ext.retain(|(known, _)| known != name);
            ext.push((name, value));
        }
        let answer = self.call(12, &ext, b"");
        let messages = if answer.code == 0 { Message::all(&answer.body) } else { Vec::new() };
        (answer.code, messages)
    }

    /// 46.
    pub fn check_subscription(&mut self, topic: &str, (kind, text): (&str, &str)) -> OwnedCommand {
        let body = format!(
            "{{\"clientId\":\"c\",\"group\":\"g\",\"subscriptionData\":{{\"topic\":\"{topic}\",\"subString\":\"{text}\",\"tagsSet\":[],\
             \"codeSet\":[],\"subVersion\":1,\"expressionType\":\"{kind}\",\"classFilterMode\":false}}}}"
        );
        self.call(46, &[], body.as_bytes())
    }

    /// 34: a consumer of one topic. `from_where` is e.g. `CONSUME_FROM_LAST_OFFSET`.
    pub fn heartbeat(&mut self, group: &str, topic: &str, expression: (&str, &str), from_where: &str) {
        let (kind, text) = expression;
        let version = next_version();
        let tags: Vec<String> = match kind == "TAG" && text != "*" {
            true => text.split("||").map(|tag| format!("\"{}\"", tag.trim())).collect(),
            false => Vec::new(),
        };
        let codes: Vec<String> = match kind == "TAG" && text != "*" {
            true => text.split("||").map(|tag| message::java_hash(tag.trim(), 0).to_string()).collect(),
            false => Vec::new(),
        };
        let subscription = |topic: &str, text: &str, kind: &str, tags: &str, codes: &str| {
            format!(
                "{{\"topic\":\"{topic}\",\"subString\":\"{text}\",\"tagsSet\":[{tags}],\"codeSet\":[{codes}],\
                 \"subVersion\":{version},\"expressionType\":\"{kind}\",\"classFilterMode\":false}}"
            )
        };
        let body = format!(
            "{{\"clientID\":\"client-of-{group}\",\"producerDataSet\":[],\"consumerDataSet\":[{{\"groupName\":\"{group}\",\
             \"consumeType\":\"CONSUME_PASSIVELY\",\"messageModel\":\"CLUSTERING\",\"consumeFromWhere\":\"{from_where}\",\
             \"unitMode\":false,\"subscriptionDataSet\":[{},{}]}}]}}",
            subscription(topic, text, kind, &tags.join(","), &codes.join(",")),
            subscription(&format!("%RETRY%{group}"), "*", "TAG", "", ""),
        );
        self.ok(34, &[], body.as_bytes());
    }
}

/// A subscription's version as clients make it, from the clock; two of one moment differ all the same.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let before = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(now_ms.max(last + 1)));
    now_ms.max(before.expect("always some") + 1)
}
