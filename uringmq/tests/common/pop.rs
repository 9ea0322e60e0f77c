//! Pops and acknowledgements, as a client makes them.
use super::client::Client;
use super::messages::Message;
use std::time::{SystemTime, UNIX_EPOCH};
use uringmq_proto::command::OwnedCommand;

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

/// 200050.
#[derive(Clone, Copy, Debug)]
pub struct Pop<'a> {
    pub topic: &'a str,
    pub group: &'a str,
    /// -1: any.
    pub queue: i32,
    pub count: i32,
    pub invisible_ms: i64,
    pub poll_ms: i64,
    /// 0: a new group begins at the first message; 1: at the last.
    pub init_mode: i32,
    pub expression: &'a str,
    /// Of an ordered pop; empty: it is none.
    pub attempt: &'a str,
}

impl<'a> Pop<'a> {
    /// Of any queue, answered at once.
    pub fn of(topic: &'a str, group: &'a str) -> Self {
        Pop {
            topic,
            group,
            queue: -1,
            count: 32,
            invisible_ms: 60_000,
            poll_ms: 0,
            init_mode: 0,
            expression: "",
            attempt: "",
        }
    }
    /// Held until there is something.
    pub fn held(self) -> Self {
        Pop { poll_ms: 30_000, ..self }
    }
}

/// A message that was popped, and the handle by which it is acknowledged.
#[derive(Clone, Debug)]
pub struct Popped {
    pub message: Message,
    pub handle: String,
    pub offset: i64,
    /// Where an acknowledgement goes.
    pub topic: String,
    pub queue: i32,
}

impl Popped {
    pub fn body(&self) -> String {
        String::from_utf8_lossy(&self.message.body).into_owned()
    }
}

#[derive(Debug)]
pub struct PopAnswer {
    pub code: i32,
    pub remark: String,
    pub rest: i64,
    pub counts: String,
    pub messages: Vec<Popped>,
}

impl PopAnswer {
    /// Sorted.
    pub fn bodies(&self) -> Vec<String> {
        let mut bodies: Vec<String> = self.messages.iter().map(Popped::body).collect();
        bodies.sort();
        bodies
    }

    fn of(answer: OwnedCommand, group: &str) -> Self {
        let text = |key: &str| answer.get(key).unwrap_or_default().to_owned();
        let messages = if answer.code == 0 { handles(&answer, group) } else { Vec::new() };
        PopAnswer {
            code: answer.code,
            rest: text("restNum").parse().unwrap_or(i64::MIN),
            counts: text("orderCountInfo"),
            messages,
            remark: answer.remark.unwrap_or_default(),
        }
    }
}

/// Each message with its handle: its own, or made of the answer's strings as clients do.
fn handles(answer: &OwnedCommand, group: &str) -> Vec<Popped> {
    let get = |key: &str| answer.get(key).unwrap_or_else(|| panic!("no {key}: {answer:?}"));
    let starts: Vec<Vec<&str>> = get("startOffsetInfo").split(';').map(|part| part.split(' ').collect()).collect();
    let mut messages = Message::all(&answer.body).into_iter();
    let mut all = Vec::new();
    for part in get("msgOffsetInfo").split(';') {
        let [mark, queue, offsets] = part.split(' ').collect::<Vec<_>>()[..] else { panic!("{part}") };
        let start = starts.iter().find(|start| start[..2] == [mark, queue]).expect("a start for each queue")[2];
        for offset in offsets.split(',') {
            let message = messages.next().expect("a message for each offset");
            assert_eq!(message.queue_offset.to_string(), offset, "in the order of the body");
            let handle = format!(
                "{start} {} {} {} {mark} {} {queue} {offset}",
                get("popTime"),
                get("invisibleTime"),
                get("reviveQid"),
                "broker-a"
            );
            if let Some(own) = message.prop("POP_CK") {
                assert_eq!(own, handle);
            }
            let topic = match mark {
                "0" => message.topic.clone(),
                "1" => format!("%RETRY%{group}_{}", message.topic),
                _ => format!("%RETRY%{group}+{}", message.topic),
            };
            let (queue, offset) = (queue.parse().expect("a number"), message.queue_offset);
            all.push(Popped { message, handle, offset, topic, queue });
        }
    }
    assert!(messages.next().is_none(), "an offset for each message");
    all
}

impl Client {
    pub fn ask_pop(&mut self, pop: &Pop<'_>) -> i32 {
        let text = |number: i64| number.to_string();
        let (queue, count, init) = (pop.queue.to_string(), pop.count.to_string(), pop.init_mode.to_string());
        let (invisible, poll, born) = (text(pop.invisible_ms), text(pop.poll_ms), text(now_ms()));
        let mut ext = vec![
            ("consumerGroup", pop.group),
            ("topic", pop.topic),
            ("queueId", &queue),
            ("maxMsgNums", &count),
            ("invisibleTime", &invisible),
            ("pollTime", &poll),
            ("bornTime", &born),
            ("initMode", &init),
        ];
        if !pop.expression.is_empty() {
            ext.extend([("exp", pop.expression), ("expType", "TAG")]);
        }
        if !pop.attempt.is_empty() {
            ext.extend([("order", "true"), ("attemptId", pop.attempt)]);
        }
        self.ask(200_050, 0, &ext, b"")
    }

    pub fn popped(&mut self, opaque: i32, group: &str) -> PopAnswer {
        PopAnswer::of(self.answer_to(opaque), group)
    }

    pub fn pop(&mut self, pop: &Pop<'_>) -> PopAnswer {
        let opaque = self.ask_pop(pop);
        self.popped(opaque, pop.group)
    }

    /// Pops until `count` messages have come.
    pub fn pop_all(&mut self, pop: &Pop<'_>, count: usize) -> Vec<Popped> {
        let mut all: Vec<Popped> = Vec::new();
        while all.len() < count {
            let answer = self.pop(&pop.held());
            assert_eq!(answer.code, 0, "after {} of {count}: {answer:?}", all.len());
            all.extend(answer.messages);
        }
        all
    }

    /// 200051.
    pub fn ack(&mut self, group: &str, popped: &Popped) -> OwnedCommand {
        let (queue, offset) = (popped.queue.to_string(), popped.offset.to_string());
        let ext = [
            ("consumerGroup", group),
            ("topic", popped.topic.as_str()),
            ("queueId", &queue),
            ("extraInfo", &popped.handle),
            ("offset", &offset),
        ];
        self.call(200_051, &ext, b"")
    }

    pub fn acked(&mut self, group: &str, popped: &Popped) {
        let answer = self.ack(group, popped);
        assert_eq!(answer.code, 0, "{popped:?}: {:?}", answer.remark);
    }

    /// 200053: the message with its new handle.
    pub fn change_invisible(&mut self, group: &str, popped: &Popped, invisible_ms: i64) -> Popped {
        let (queue, offset, time) = (popped.queue.to_string(), popped.offset.to_string(), invisible_ms.to_string());
        let ext = [
            ("consumerGroup", group),
            ("topic", popped.topic.as_str()),
            ("queueId", &queue),
            ("extraInfo", &popped.handle),
            ("offset", &offset),
            ("invisibleTime", &time),
        ];
        let answer = self.ok(200_053, &ext, b"");
        let get = |key: &str| answer.get(key).unwrap_or_else(|| panic!("no {key}: {answer:?}"));
        let fields: Vec<&str> = popped.handle.split(' ').collect();
        let handle = format!(
            "{offset} {} {} {} {} broker-a {queue} {offset}",
            get("popTime"),
            get("invisibleTime"),
            get("reviveQid"),
            fields[4]
        );
        Popped { handle, ..popped.clone() }
    }

    /// 200151: all by one request.
    pub fn batch_ack(&mut self, group: &str, all: &[Popped]) {
        let acks: Vec<String> = all
            .iter()
            .map(|popped| {
                let f: Vec<&str> = popped.handle.split(' ').collect();
                let bit = (popped.offset - f[0].parse::<i64>().expect("a number")) as usize;
                let mut bytes = vec![0u8; bit / 8 + 1];
                bytes[bit / 8] = 1 << (bit % 8);
                format!(
                    "{{\"b\":\"{}\",\"c\":\"{group}\",\"it\":{},\"pt\":{},\"q\":{},\"r\":\"{}\",\"rq\":{},\"so\":{},\"t\":\"{}\"}}",
                    base64(&bytes), f[2], f[1], popped.queue, f[4], f[3], f[0], popped.topic
                )
            })
            .collect();
        let body = format!("{{\"acks\":[{}],\"brokerName\":\"broker-a\"}}", acks.join(","));
        self.ok(200_151, &[], body.as_bytes());
    }

    /// 200055.
    pub fn polling(&mut self, topic: &str, group: &str, queue: i32) -> i64 {
        let queue = queue.to_string();
        let answer = self.ok(200_055, &[("topic", topic), ("consumerGroup", group), ("queueId", &queue)], b"");
        answer.get("pollingNum").and_then(|text| text.parse().ok()).expect("a number")
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let six = bits >> (18 - 6 * place) & 63;
            out.push(if place <= three.len() { DIGITS[six as usize] as char } else { '=' });
        }
    }
    out
}
