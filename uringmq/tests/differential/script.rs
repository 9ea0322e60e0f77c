//! The cases' little language. A case is a line `== name`, then a command a line:
//!
//! | command | what |
//! | --- | --- |
//! | `topic NAME QUEUES [PERM [ATTRIBUTES]]` | makes a topic; must succeed |
//! | `send TOPIC QUEUE BODY [PROPERTY:VALUE]... [FIELD=VALUE]...` | 310; `FIELD` is a letter of its header, or `code` |
//! | `batch TOPIC QUEUE BODY,BODY... [PROPERTY:VALUE]... [FIELD=VALUE]...` | 320; `BODY` may be `body/PROPERTY:VALUE/...` |
//! | `pull TOPIC QUEUE OFFSET [FIELD=VALUE]...` | 11, held for up to 15 s unless `sysFlag=4` |
//! | `pop TOPIC GROUP [FIELD=VALUE]...` | 200050, of any queue, not held unless `pollTime` says so |
//! | `beat GROUP TOPIC TYPE EXPRESSION [FROM_WHERE]` | 34 |
//! | `settle TOPIC QUEUE MAX` | waits until the queue's end is MAX |
//! | `> CODE [FIELD=VALUE]... [\| BODY]` | any request |
//! | `keep NAME FIELD`, `keep NAME @FIELD` | `$NAME` is that field of the last answer, or the log offset in it |
//! | `client NAME` | another connection; that of the name `namesrv` is to the NameServer |
//!
//! `@name` is a name of the case's own; `\s` in a value is a blank. A line `#` is a comment.
use super::common::{Client, now_ms, send_ext};
use super::shown::{self, Names};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uringmq_proto::command::OwnedCommand;
use uringmq_proto::message::{BatchItem, parse_offset_id, push_batch_item, push_property};

const SETTLE_MAX: Duration = Duration::from_secs(10);

pub struct Case {
    pub area: String,
    pub number: usize,
    pub name: String,
    /// Why ours differs.
    pub differs: Option<String>,
    commands: Vec<String>,
}

pub fn parse(area: &str, text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("== ") {
            let (area, number) = (area.to_owned(), cases.len() + 1);
            cases.push(Case { area, number, name: name.to_owned(), differs: None, commands: Vec::new() });
            continue;
        }
        let case = cases.last_mut().unwrap_or_else(|| panic!("{area}: '{line}' before any case"));
        match line.strip_prefix("! ") {
            Some(why) => case.differs = Some(why.to_owned()),
            None => case.commands.push(line.to_owned()),
        }
    }
    let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    names.sort_unstable();
    let doubled = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(doubled.is_none(), "{area}: two cases of one name: {doubled:?}");
    cases
}

/// Who is asked.
#[derive(Clone, Copy)]
pub struct Servers {
    pub broker: SocketAddr,
    pub namesrv: SocketAddr,
}

/// A run of a case: its connections and what it kept.
struct Run {
    servers: Servers,
    names: Names,
    clients: HashMap<String, Client>,
    client: String,
    kept: HashMap<String, String>,
    last: Option<OwnedCommand>,
    out: String,
}

/// Runs a case; its commands and their answers.
pub fn run(case: &Case, servers: Servers) -> String {
    let mut run = Run {
        servers,
        names: Names::of(&case.area, case.number),
        clients: HashMap::new(),
        client: "a".to_owned(),
        kept: HashMap::new(),
        last: None,
        out: String::new(),
    };
    for command in &case.commands {
        run.command(command);
    }
    run.out
}

impl Run {
    fn command(&mut self, line: &str) {
        let mut expanded = self.names.expanded(line);
        for (name, value) in &self.kept {
            expanded = expanded.replace(&format!("${name}"), value);
        }
        let (head, body) = expanded.split_once(" | ").unwrap_or((&expanded, ""));
        let words: Vec<String> = head.split_whitespace().map(|word| word.replace("\\s", " ")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let bad = || -> ! { panic!("no such command: {line}") };
        match words[..] {
            ["topic", name, queues, ref more @ ..] => {
                self.topic(name, queues, more.first().copied().unwrap_or("6"), more.get(1).copied());
            }
            ["send", topic, queue, body, ref more @ ..] => self.send(line, topic, queue, body, more),
            ["batch", topic, queue, bodies, ref more @ ..] => self.batch(line, topic, queue, bodies, more),
            ["pull", topic, queue, offset, ref more @ ..] => self.pull(line, topic, queue, offset, more),
            ["pop", topic, group, ref more @ ..] => self.pop(line, topic, group, more),
            ["beat", group, topic, kind, expression, ref more @ ..] => {
                let from = more.first().copied().unwrap_or("CONSUME_FROM_FIRST_OFFSET");
                self.client().heartbeat(group, topic, (kind, expression), from);
            }
            ["settle", topic, queue, max] => self.settle(topic, queue, max),
            [">", code, ref fields @ ..] => {
                let code = code.parse().unwrap_or_else(|_| bad());
                let fields = pairs(fields, '=');
                self.call(line, code, &fields, body.as_bytes());
            }
            ["keep", name, field] => self.keep(name, field),
            ["client", name] => self.client = name.to_owned(),
            _ => bad(),
        }
    }

    fn client(&mut self) -> &mut Client {
        let to = if self.client == "namesrv" { self.servers.namesrv } else { self.servers.broker };
        self.clients.entry(self.client.clone()).or_insert_with(|| Client::connect(to))
    }

    fn call(&mut self, line: &str, code: i32, fields: &[(&str, &str)], body: &[u8]) {
        let client = self.client();
        let opaque = client.ask(code, 0, fields, body);
        // Requests and notices of the broker in between are passed over.
        let answer = loop {
            match client.receive() {
                Some(got) if got.opaque == opaque && got.flag & 1 != 0 => break Some(got),
                Some(_) => {}
                None => break None,
            }
        };
        let mut shown = answer.as_ref().map_or_else(|| "  closed\n".to_owned(), |answer| shown::answer(code, answer));
        if let Some(offset) = answer.as_ref().and_then(|answer| answer.get("queueOffset"))
            && (line.contains(" f=4") || line.contains(" DELAY:"))
        {
            // In a topic of the broker's own, so it depends on the cases before.
            shown = shown.replace(&format!("queueOffset={offset}"), "queueOffset=OWN");
        }
        self.out += &format!("{line}\n{}", self.names.shortened(&shown));
        if answer.is_none() {
            self.clients.remove(&self.client);
        }
        self.last = answer;
    }

    fn topic(&mut self, name: &str, queues: &str, perm: &str, attributes: Option<&str>) {
        let mut fields = vec![
            ("topic", name),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", queues),
            ("writeQueueNums", queues),
            ("perm", perm),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        fields.extend(attributes.map(|text| ("attributes", text)));
        self.client().ok(17, &fields, b"");
    }

    fn send(&mut self, line: &str, topic: &str, queue: &str, body: &str, more: &[&str]) {
        let mut properties = String::new();
        for (name, value) in pairs(more, ':') {
            push_property(&mut properties, name, value);
        }
        let mut fields = send_ext(topic, queue, &properties, "0");
        let code = overlaid(&mut fields, &pairs(more, '='), 310);
        self.call(line, code, &fields, body.as_bytes());
    }

    fn batch(&mut self, line: &str, topic: &str, queue: &str, bodies: &str, more: &[&str]) {
        let mut encoded = Vec::new();
        for item in bodies.split(',') {
            let mut parts = item.split('/');
            let body = parts.next().unwrap_or_default().as_bytes();
            let mut properties = String::new();
            for (name, value) in parts.filter_map(|part| part.split_once(':')) {
                push_property(&mut properties, name, value);
            }
            push_batch_item(&mut encoded, &BatchItem { flag: 0, body, properties: &properties });
        }
        let mut properties = String::new();
        for (name, value) in pairs(more, ':') {
            push_property(&mut properties, name, value);
        }
        let mut fields = send_ext(topic, queue, &properties, "0");
        for (name, value) in &mut fields {
            if *name == "m" {
                *value = "true";
            }
        }
        let code = overlaid(&mut fields, &pairs(more, '='), 320);
        self.call(line, code, &fields, &encoded);
    }

    fn pull(&mut self, line: &str, topic: &str, queue: &str, offset: &str, more: &[&str]) {
        let mut fields = vec![
            ("consumerGroup", "differential"),
            ("topic", topic),
            ("queueId", queue),
            ("queueOffset", offset),
            ("maxMsgNums", "32"),
            ("sysFlag", "6"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "15000"),
            ("subscription", "*"),
            ("subVersion", "0"),
            ("expressionType", "TAG"),
        ];
        let code = overlaid(&mut fields, &pairs(more, '='), 11);
        self.call(line, code, &fields, b"");
    }

    fn pop(&mut self, line: &str, topic: &str, group: &str, more: &[&str]) {
        let born = now_ms().to_string();
        let mut fields = vec![
            ("consumerGroup", group),
            ("topic", topic),
            ("queueId", "-1"),
            ("maxMsgNums", "32"),
            ("invisibleTime", "60000"),
            ("pollTime", "0"),
            ("bornTime", born.as_str()),
            ("initMode", "0"),
        ];
        let code = overlaid(&mut fields, &pairs(more, '='), 200_050);
        self.call(line, code, &fields, b"");
    }

    fn settle(&mut self, topic: &str, queue: &str, max: &str) {
        let deadline = Instant::now() + SETTLE_MAX;
        let fields = [("topic", topic), ("queueId", queue), ("committed", "true")];
        loop {
            let answer = self.client().ok(30, &fields, b"");
            let found = answer.get("offset").unwrap_or_default().to_owned();
            if found == max {
                return;
            }
            if Instant::now() >= deadline {
                self.out += &self.names.shortened(&format!("  {topic} {queue} ends at {found} and not at {max}\n"));
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn keep(&mut self, name: &str, field: &str) {
        let last = self.last.as_ref().expect("an answer before keep");
        let value = match field.strip_prefix('@') {
            Some(id) => last.get(id).and_then(parse_offset_id).map(|(_, phy)| phy.to_string()),
            None => last.get(field).map(str::to_owned),
        };
        let value = value.unwrap_or_else(|| panic!("no {field} in {last:?}"));
        self.kept.insert(name.to_owned(), value);
    }
}

/// Words that are pairs of this kind; the first of both signs in a word decides.
fn pairs<'a>(words: &[&'a str], sign: char) -> Vec<(&'a str, &'a str)> {
    let of = |word: &&'a str| {
        let at = word.find([':', '='])?;
        word[at..].starts_with(sign).then(|| (&word[..at], &word[at + 1..]))
    };
    words.iter().filter_map(of).collect()
}

/// Puts fields over those that are there, takes out what is `-`, adds the others; gives the request code.
fn overlaid<'a>(fields: &mut Vec<(&'a str, &'a str)>, over: &[(&'a str, &'a str)], code: i32) -> i32 {
    let mut asked = code;
    for (name, value) in over {
        if *name == "code" {
            asked = value.parse().expect("a request code");
            continue;
        }
        fields.retain(|(known, _)| known != name);
        if *value != "-" {
            fields.push((name, value));
        }
    }
    asked
}
