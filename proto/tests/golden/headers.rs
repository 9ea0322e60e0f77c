//! Each request golden holds every field its Java header class has, with a value by its type: a name or type read wrongly shows.
use super::{command, goldens};
use std::collections::BTreeMap;
use uringmq_proto::command::{Command, Value, write_request};
use uringmq_proto::headers::{self as h, Header, HeaderError};

/// Fields that many headers share and no handler needs.
const COMMON: [&str; 6] = ["ns", "nsd", "bname", "oway", "lo", "liteTopic"];

type Fields = Vec<(&'static str, Value<'static>)>;
type Decode = fn(&Command<'_>) -> Result<Fields, HeaderError>;

fn owned(pairs: Vec<(&'static str, Value<'_>)>) -> Fields {
    let own = |value: Value<'_>| match value {
        Value::Str(text) => Value::from(text.into_owned()),
        Value::I64(n) => n.into(),
        Value::U64(n) => n.into(),
        Value::Bool(b) => b.into(),
    };
    pairs.into_iter().map(|(key, value)| (key, own(value))).collect()
}

fn text(value: &Value<'_>) -> String {
    match value {
        Value::Str(text) => text.to_string(),
        Value::I64(n) => n.to_string(),
        Value::U64(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
    }
}

/// The header type of each request code.
fn decoders() -> BTreeMap<i32, Decode> {
    let mut all: BTreeMap<i32, Decode> = BTreeMap::new();
    macro_rules! rows {
        ($($($code:literal)|+ => $header:path;)*) => {$($(
            let decode: Decode = |cmd| <$header>::decode(cmd).map(|header| owned(header.ext()));
            assert!(all.insert($code, decode).is_none(), "code {} stands twice", $code);
        )+)*};
    }
    rows! {
        11 | 361 => h::pull::PullMessage;
        12 => h::admin::QueryMessage;
        14 => h::offset::QueryConsumerOffset;
        15 => h::offset::UpdateConsumerOffset;
        17 => h::topic::CreateTopic;
        21 => h::topic::GetAllTopicConfig;
        29 => h::offset::SearchOffset;
        30 => h::offset::GetMaxOffset;
        31 => h::offset::GetMinOffset;
        32 => h::offset::GetEarliestMsgStoretime;
        33 => h::admin::ViewMessage;
        35 => h::client::UnregisterClient;
        36 => h::send::ConsumerSendMsgBack;
        37 => h::transaction::EndTransaction;
        38 | 40 | 203 => h::client::ConsumerGroupOnly;
        39 => h::transaction::CheckTransactionState;
        100 => h::route::PutKvConfig;
        101 | 102 => h::route::KvKey;
        103 => h::route::RegisterBroker;
        104 => h::route::UnregisterBroker;
        105 => h::route::GetRouteInfo;
        201 => h::admin::GetAllSubscriptionGroup;
        202 | 215 | 300 => h::topic::TopicOnly;
        204 => h::client::ProducerGroupOnly;
        205 | 327 => h::route::BrokerNameOnly;
        207 => h::admin::DeleteSubscriptionGroup;
        208 => h::admin::GetConsumeStats;
        216 => h::route::DeleteTopicInNamesrv;
        217 => h::route::RegisterTopic;
        219 => h::route::KvNamespace;
        220 | 222 => h::admin::ResetConsumerOffset;
        223 => h::admin::GetConsumerStatus;
        224 => h::route::GetTopicsByCluster;
        303 | 345 => h::admin::TopicAndGroup;
        307 => h::client::GetConsumerRunningInfo;
        308 => h::admin::QueryCorrectionOffset;
        309 => h::client::ConsumeMessageDirectly;
        314 => h::admin::CloneGroupOffset;
        315 => h::admin::ViewBrokerStats;
        317 => h::admin::GetBrokerConsumeStats;
        321 => h::topic::QueryConsumeQueue;
        322 => h::route::QueryDataVersion;
        323 => h::transaction::ResumeCheckHalfMessage;
        343 | 352 => h::admin::GroupOnly;
        351 => h::topic::GetTopicConfig;
        353 => h::admin::GroupForbidden;
        370 => h::pop::RecallMessage;
        901 => h::route::GetBrokerMemberGroup;
        904 => h::route::BrokerHeartbeat;
        905 => h::route::NotifyMinBrokerIdChange;
        906 => h::admin::ExchangeHaInfo;
        908 => h::admin::ResetMasterFlushOffset;
        200050 => h::pop::PopMessage;
        200051 => h::pop::AckMessage;
        200052 => h::pop::PeekMessage;
        200053 => h::pop::ChangeInvisibleTime;
        200054 => h::pop::Notification;
        200055 => h::pop::PollingInfo;
    }
    for code in [10, 310, 320] {
        all.insert(code, |cmd| h::send::SendMessage::decode(cmd).map(|header| owned(header.ext(cmd.code))));
    }
    all.insert(34, |cmd| h::NoHeader::decode(cmd).map(|_| Fields::new()));
    all
}

fn requests() -> Vec<(i32, Vec<u8>)> {
    let all = goldens().into_iter().filter(|(name, _)| name.starts_with("request-"));
    all.map(|(name, bytes)| (name.split('-').nth(1).unwrap().parse().unwrap(), bytes)).collect()
}

#[test]
fn every_header_reads_every_field_of_its_java_class() {
    let decoders = decoders();
    let requests = requests();
    assert_eq!(requests.len(), decoders.len(), "a golden for each decoder");
    let mut wrong = Vec::new();
    for (code, bytes) in &requests {
        let cmd = command(bytes);
        assert_eq!(cmd.code, *code);
        let fields = decoders[code](&cmd).unwrap_or_else(|error| panic!("{code}: {error}"));
        let read: BTreeMap<&str, String> = fields.iter().map(|(key, value)| (*key, text(value))).collect();
        for (key, value) in &cmd.ext.0 {
            match read.get(key.as_ref()) {
                Some(found) => assert_eq!(found, value, "{code}: {key}"),
                None if COMMON.contains(&key.as_ref()) || *code == 34 => {}
                None => wrong.push(format!("{code}: {key} is not read")),
            }
        }
        // What is not in Java's class came from a default or from elsewhere in its code.
        for (key, value) in &read {
            let from_ext = cmd.ext.get(key).is_some();
            let default = ["false", "-1", "0", ""].contains(&value.as_str());
            if !from_ext && !default {
                wrong.push(format!("{code}: {key} = {value} is not Java's"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn request(code: i32, ext: &[(&str, Value<'_>)]) -> Vec<u8> {
    let mut out = Vec::new();
    write_request(&mut out, code, 1, false, ext, b"");
    out
}

/// Known fault P08.
#[test]
fn unreadable_fields_are_named() {
    let decoders = decoders();
    for (code, bytes) in requests() {
        let cmd = command(&bytes);
        let decode = decoders[&code];
        let fields = decode(&cmd).unwrap();
        let with = |key: &str, value: &str| {
            let ext: Vec<_> =
                fields.iter().map(|(k, v)| (*k, if *k == key { value.to_owned().into() } else { v.clone() })).collect();
            let out = request(code, &ext);
            decode(&command(&out))
        };
        for (key, value) in &fields {
            let wrongs: &[&str] = match value {
                Value::Str(_) => continue,
                Value::Bool(_) => &["", "maybe", "1", " true"],
                _ => &["", "abc", "1e3", "9223372036854775808", " 1", "1.0", "１"],
            };
            for wrong in wrongs {
                match with(key, wrong) {
                    Err(HeaderError::Bad { field, value, .. }) => {
                        assert!(field.starts_with(key) && *wrong == value, "{code}: {field} for {key}")
                    }
                    other => panic!("{code}: {key} = {wrong:?} gave {other:?}"),
                }
            }
            if matches!(value, Value::Bool(_)) {
                assert!(with(key, "TRUE").is_ok() && with(key, "False").is_ok());
            }
        }
        // Each field left out in turn: an error names it, or it has a default.
        for (key, _) in &fields {
            let ext: Vec<_> = fields.iter().filter(|(k, _)| k != key).cloned().collect();
            let out = request(code, &ext);
            if let Err(error) = decode(&command(&out)) {
                assert!(matches!(&error, HeaderError::Missing(field) if field.starts_with(key)), "{code}: {error}");
            }
        }
        let mut more: Vec<_> = fields.clone();
        more.push(("surplus", "x".to_owned().into()));
        let out = request(code, &more);
        assert_eq!(decode(&command(&out)), Ok(fields), "{code}: an unknown field is ignored");
    }
}

#[test]
fn required_fields_are_missed() {
    for (code, field) in [
        (11, "consumerGroup"),
        (310, "a (producerGroup)"),
        (10, "producerGroup"),
        (15, "consumerGroup"),
        (12, "topic"),
        (105, "topic"),
        (103, "brokerName"),
        (36, "offset"),
    ] {
        let out = request(code, &[]);
        assert_eq!(decoders()[&code](&command(&out)), Err(HeaderError::Missing(field)));
    }
}

#[test]
fn a_long_value_is_not_repeated_whole() {
    let out = request(31, &[("topic", "T".into()), ("queueId", "x".repeat(70_000).into())]);
    let error = decoders()[&31](&command(&out)).unwrap_err().to_string();
    assert!(error.contains("queueId") && error.len() < 120, "{error}");
}

/// Go sends letters with 320 and long names with 10; the letters of the one mean nothing to the other.
#[test]
fn the_code_decides_the_spelling_of_a_send() {
    let long = requests().into_iter().find(|(code, _)| *code == 10).unwrap().1;
    let short = requests().into_iter().find(|(code, _)| *code == 320).unwrap().1;
    let (long, short) = (command(&long), command(&short));
    let (a, b) = (h::send::SendMessage::decode(&long).unwrap(), h::send::SendMessage::decode(&short).unwrap());
    assert_eq!(a, b);
    assert!(a.batch && a.unit_mode);
    assert!(a.properties.contains("KEYS\u{1}k1 \"k2\"\u{2}中\u{1}\\x\u{2}"));
    let out = request(10, &b.ext(320));
    assert_eq!(h::send::SendMessage::decode(&command(&out)), Err(HeaderError::Missing("producerGroup")));
}
