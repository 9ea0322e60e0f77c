//! Answers as text that is the same in every run: moments, addresses and ids are masked, members sorted.
use super::common::Message;
use serde_json::Value;
use uringmq_proto::command::OwnedCommand;
use uringmq_proto::fastjson;
use uringmq_proto::message;

/// The names of a case's own: `@x` in its text.
pub struct Names {
    prefix: String,
}

impl Names {
    pub fn of(area: &str, number: usize) -> Self {
        Names { prefix: format!("D_{area}_{number}_") }
    }

    pub fn expanded(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('@') {
            out += &rest[..at];
            rest = &rest[at + 1..];
            // `keep NAME @FIELD` is no name.
            let named = rest.starts_with(|c: char| c.is_ascii_alphabetic()) && !text.starts_with("keep ");
            out += if named { &self.prefix } else { "@" };
        }
        out + rest
    }

    pub fn shortened(&self, text: &str) -> String {
        text.replace(&self.prefix, "@")
    }
}

/// Requests whose answers hold records.
const RECORDS: [i32; 6] = [11, 361, 12, 33, 200_050, 200_052];
/// Fields that name a place in the log or a moment, different in every run.
const IDS: [&str; 5] = ["msgId", "offsetMsgId", "transactionId", "indexLastUpdatePhyoffset", "recallHandle"];
/// Members that count what happened before, or for how long.
const COUNTERS: [&str; 6] = ["dataVersion", "delayTime", "counter", "stateVersion", "physicOffset", "physicSize"];

pub fn answer(code: i32, answer: &OwnedCommand) -> String {
    let mut ext: Vec<String> = answer
        .ext
        .iter()
        .map(|(name, value)| match IDS.contains(&name.as_str()) && !value.is_empty() && value != "0" {
            true => format!("{name}=ID"),
            // Counts from the pop to the change.
            false if code == 200_053 && name == "invisibleTime" && answer.get("reviveQid") == Some("999") => {
                format!("{name}=ANY")
            }
            // Taken in turns.
            false if name == "reviveQid" && value != "999" => format!("{name}=ANY"),
            false => format!("{name}={}", masked(value)),
        })
        .collect();
    ext.sort();
    let mut out = format!("  {} {}\n", answer.code, ext.join(" "));
    if let Some(remark) = answer.remark.as_deref().filter(|remark| !remark.is_empty()) {
        out += &format!("  # {}\n", masked(&remark.replace('\n', " ")));
    }
    if answer.body.is_empty() {
        return out;
    }
    if RECORDS.contains(&code) {
        for message in Message::all(&answer.body) {
            out += &format!("  {}\n", record(&message).trim_end());
        }
        return out;
    }
    out + &body(&answer.body)
}

fn body(bytes: &[u8]) -> String {
    match fastjson::from_slice::<Value>(bytes) {
        Ok(value) => format!("  {}\n", json(&value)),
        Err(_) => format!("  text {}\n", masked(&String::from_utf8_lossy(bytes)).replace('\n', "\\n")),
    }
}

fn record(message: &Message) -> String {
    let mut properties: Vec<String> = message::properties(&message.properties)
        // Made of a host's address, which may be of either length.
        .map(|(name, value)| {
            if name == "POP_CK" {
                let mut fields: Vec<&str> = value.split(' ').collect();
                if let Some(revive_queue) = fields.get_mut(3) {
                    *revive_queue = "ANY";
                }
                return format!("{name}:{}", masked(&fields.join(" ")));
            }
            match ["UNIQ_KEY", "ORIGIN_MESSAGE_ID", "__transactionId__"].contains(&name) && value.len() >= 32 {
                true => format!("{name}:ID"),
                false => format!("{name}:{}", masked(value)),
            }
        })
        .collect();
    properties.sort();
    format!(
        "[{} {} {}] {:?} sys={} flag={} reconsumed={} {}",
        message.topic,
        message.queue_id,
        message.queue_offset,
        String::from_utf8_lossy(&message.body),
        message.sys_flag,
        message.flag,
        message.reconsume_times,
        properties.join(" ")
    )
}

fn json(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_by_key(|(name, _)| name.as_str());
            let shown: Vec<String> = members
                .into_iter()
                .map(|(name, value)| match COUNTERS.contains(&name.as_str()) {
                    true => format!("{name}:COUNTED"),
                    false => format!("{}:{}", masked(name), json(value)),
                })
                .collect();
            format!("{{{}}}", shown.join(","))
        }
        Value::Array(items) => {
            let mut items: Vec<String> = items.iter().map(json).collect();
            items.sort(); // most of Apache's come from hash tables
            format!("[{}]", items.join(","))
        }
        Value::String(text) => format!("{:?}", masked(text)),
        other => masked(&other.to_string()),
    }
}

/// Moments (numbers of 13 digits) and addresses of this machine are masked.
fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut digits = String::new();
    let end = |digits: &mut String, out: &mut String| {
        let moment = digits.len() == 13 && digits.starts_with('1') && !digits.starts_with("1700000000");
        out.push_str(if moment { "TIME" } else { digits });
        digits.clear();
    };
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        end(&mut digits, &mut out);
        out.push(c);
    }
    end(&mut digits, &mut out);
    match out.find("127.0.0.1:") {
        None => out,
        Some(_) => {
            let mut parts = out.split("127.0.0.1:");
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |text, part| text + "ADDRESS" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
    }
}
