//! Bodies of Java: read, written again, compared byte for byte; and what is tolerated in reading.
use super::golden;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uringmq_proto::body::{
    self, BodyError, MessageQueue, group, heartbeat, lock, offset, pop, register, route, stats, topic,
};
use uringmq_proto::fastjson;

fn same<T: DeserializeOwned + Serialize>(name: &str) -> T {
    let bytes = golden(name);
    let value: T = body::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    let again = if name.starts_with("file-") {
        fastjson::to_vec_pretty(&value)
    } else if name.ends_with("-strict") {
        fastjson::to_vec_strict(&value)
    } else {
        fastjson::to_vec(&value)
    };
    assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(bytes).unwrap(), "{name}");
    value
}

#[test]
fn bodies_are_written_as_java_writes_them() {
    same::<stats::KvTable>("body-kv");
    same::<stats::TopicList>("body-topic-list");
    same::<stats::ConsumeStats>("body-consume-stats");
    same::<stats::TopicStatsTable>("body-topic-stats");
    same::<stats::ConsumerConnection>("body-consumer-connection");
    same::<offset::ResetOffsetBody>("body-reset");
    same::<lock::LockBatchRequest>("body-lock");
    same::<lock::LockBatchResponse>("body-locked");
    same::<group::SubscriptionGroupConfig>("body-group");
    same::<group::SubscriptionGroupWrapper>("body-groups");
    same::<route::ClusterInfo>("body-cluster");
    same::<heartbeat::CheckClientRequest>("body-check-client");
    same::<pop::QueryAssignmentRequest>("body-query-assignment");
    same::<topic::TopicConfigSerializeWrapper>("file-topics");
    let offsets = same::<offset::ConsumerOffsetTable>("body-offsets");
    assert_eq!(offsets, same("file-offsets"));
    assert_eq!(offsets.offset_table["T@g"].get(&0), Some(&12));
}

#[test]
fn defaults_are_java_s() {
    let text = String::from_utf8(golden("body-group")).unwrap();
    assert_eq!(fastjson::to_vec(&group::SubscriptionGroupConfig::new("g")), text.as_bytes());
    let old: group::SubscriptionGroupConfig = body::parse(br#"{"groupName":"g"}"#).unwrap();
    assert_eq!(old, group::SubscriptionGroupConfig::new("g"));
    let old: topic::TopicConfig = body::parse(br#"{"topicName":"T","perm":4,"attributes":null}"#).unwrap();
    assert_eq!(old, topic::TopicConfig { perm: 4, ..topic::TopicConfig::new("T", 16) });
}

#[test]
fn routes_come_in_two_forms() {
    let loose = same::<route::TopicRouteData>("body-route-fastjson");
    let strict = same::<route::TopicRouteData>("body-route-strict");
    assert_eq!(strict.broker_datas[0].cluster, "c/中\u{1F600}");
    assert_eq!(loose.broker_datas[0].broker_addrs[&0], "10.0.0.1:10911");
    for (version, flag, is_strict) in [(317, false, false), (400, false, false), (401, false, true), (317, true, true)]
    {
        let golden = golden(if is_strict { "body-route-strict" } else { "body-route-fastjson" });
        assert_eq!(if is_strict { &strict } else { &loose }.encode(version, flag), golden);
    }
    let empty = String::from_utf8(route::TopicRouteData::default().encode(513, true)).unwrap();
    assert_eq!(empty, r#"{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}"#);
    let old: route::QueueData = body::parse(br#"{"brokerName":"b","topicSynFlag":3}"#).unwrap();
    assert_eq!(old.topic_sys_flag, 3);
}

#[test]
fn heartbeats_of_java_and_go() {
    let java = same::<heartbeat::HeartbeatData>("body-heartbeat");
    let consumer = &java.consumer_data_set[0];
    assert_eq!(consumer.message_model, heartbeat::MessageModel::Broadcasting);
    assert_eq!(consumer.subscription_data_set[0].code_set, [2598919, 2598920]);
    let go: heartbeat::HeartbeatData = body::parse(
        br#"{"clientID":"c","producerDataSet":null,"consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",
        "messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,
        "topic":"T","subString":"TagA","tagsSet":["TagA"],"codeSet":["2598919"],"subVersion":1700000000000000000,
        "expressionType":"TAG"}],"unitMode":false,"new":[{}]}]}"#,
    )
    .unwrap();
    let sub = &go.consumer_data_set[0].subscription_data_set[0];
    assert_eq!((sub.code_set.as_slice(), sub.is_tag(), sub.takes_all()), (&[2598919][..], true, false));
    assert_eq!((go.heartbeat_fingerprint, go.without_sub, go.producer_data_set.len()), (0, false, 0));
    let sparse = br#"{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T","expressionType":null,
        "codeSet":null,"tagsSet":null}],"consumeType":null,"messageModel":"SOMETHING_NEW","consumeFromWhere":1}]}"#;
    let sparse: heartbeat::HeartbeatData = body::parse(sparse).unwrap();
    let consumer = &sparse.consumer_data_set[0];
    assert_eq!(consumer.subscription_data_set[0].expression_type, "TAG");
    assert_eq!(consumer.consume_from_where, heartbeat::ConsumeFromWhere::FirstOffset);
    assert_eq!((consumer.consume_type, consumer.message_model), Default::default());
}

/// Known fault P06.
#[test]
fn bodies_that_are_missing_or_no_object_say_so() {
    for none in [&b""[..], b"  \n"] {
        assert!(matches!(body::parse::<lock::LockBatchRequest>(none), Err(BodyError::Missing)));
    }
    for other in [&b"null"[..], b"[]", b"1", b"\"x\"", b"[{}]"] {
        assert!(matches!(body::parse::<heartbeat::HeartbeatData>(other), Err(BodyError::NotObject)));
    }
    let named = |error: BodyError, field: &str| assert!(error.to_string().contains(field), "{error}");
    named(body::parse::<heartbeat::HeartbeatData>(b"{}").unwrap_err(), "clientID");
    named(body::parse::<lock::LockBatchRequest>(b"{}").unwrap_err(), "clientId");
    named(body::parse::<pop::QueryAssignmentRequest>(b"{}").unwrap_err(), "clientId");
    named(body::parse::<pop::SetMessageRequestMode>(b"{}").unwrap_err(), "consumerGroup");
    named(body::parse::<topic::CreateTopicList>(b"{}").unwrap_err(), "topicConfigList");
    named(body::parse::<group::SubscriptionGroupList>(b"{}").unwrap_err(), "groupConfigList");
    assert!(matches!(body::parse::<stats::KvTable>(b"{\"table\":"), Err(BodyError::Json(_))));
}

#[test]
fn registrations_plain_and_compressed() {
    let plain = same::<register::RegisterBrokerBody>("body-register-plain");
    let zlib = register::RegisterBrokerBody::decode_compressed(&golden("body-register-zlib"), 513).unwrap();
    assert_eq!(zlib.filter_server_list, plain.filter_server_list);
    let (a, b) = (&zlib.topic_config_serialize_wrapper, &plain.topic_config_serialize_wrapper);
    assert_eq!((&a.data_version, &a.topic_config_table), (&b.data_version, &b.topic_config_table));
    for version in [401, 413, 513] {
        let again = register::RegisterBrokerBody::decode_compressed(&zlib.encode_compressed(version), version).unwrap();
        assert_eq!(again.topic_config_serialize_wrapper.topic_config_table, a.topic_config_table);
        assert_eq!(again.topic_config_serialize_wrapper.topic_queue_mapping_info_map.is_some(), version >= 413);
    }
}

fn zlib(plain: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn bad_compressed_registrations_are_errors() {
    use register::{INFLATED_BYTES_MAX, RegisterBrokerBody, RegisterError};
    let decode = |body: &[u8]| RegisterBrokerBody::decode_compressed(body, 513).unwrap_err();
    assert!(matches!(decode(b""), RegisterError::Body(BodyError::Missing)));
    assert!(matches!(decode(b"not zlib"), RegisterError::Inflate(_)));
    assert!(matches!(decode(&zlib(&vec![0; INFLATED_BYTES_MAX + 1])), RegisterError::TooLarge));
    assert!(matches!(decode(&zlib(b"")), RegisterError::Malformed("cut short")));
    assert!(matches!(decode(&zlib(&[255; 4])), RegisterError::Malformed("negative length")));
    assert!(matches!(decode(&zlib(&[127, 255, 255, 255])), RegisterError::Malformed("cut short")));
    let block = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    for topic in ["", "T", "T 1 2", "T a b c SINGLE_TAG", "T 1 2 6 SINGLE_TAG {broken"] {
        let body = [block("{}"), vec![0, 0, 0, 1], block(topic), block("[]"), vec![0; 4]].concat();
        assert!(RegisterBrokerBody::decode_compressed(&zlib(&body), 513).is_err(), "{topic}");
    }
    let body = [block("{}"), vec![0x7f, 0xff, 0xff, 0xff]].concat();
    assert!(matches!(decode(&zlib(&body)), RegisterError::Malformed(_)));
}

#[test]
fn tables_with_odd_keys_are_errors() {
    assert!(body::parse::<offset::DelayOffsetTable>(br#"{"offsetTable":{"x":1}}"#).is_err());
    assert!(body::parse::<offset::ResetOffsetBody>(br#"{"offsetTable":{7:1}}"#).is_err());
    let both: offset::DelayOffsetTable = body::parse(br#"{"offsetTable":{1:2,"3":4}}"#).unwrap();
    assert_eq!(both.offset_table.iter().collect::<Vec<_>>(), [(&1, &2), (&3, &4)]);
}

#[test]
fn queues_sort_as_java_sorts_them() {
    let mq = |topic: &str, broker: &str, queue_id| MessageQueue {
        topic: topic.into(),
        broker_name: broker.into(),
        queue_id,
    };
    let mut queues = [mq("b", "a", 0), mq("a", "b", 2), mq("a", "b", 10), mq("a", "a", 11)];
    queues.sort();
    assert_eq!(queues, [mq("a", "a", 11), mq("a", "b", 2), mq("a", "b", 10), mq("b", "a", 0)]);
}

#[test]
fn data_versions_order_by_state_then_counter_then_time() {
    let v = |state_version, counter, timestamp| topic::DataVersion { counter, state_version, timestamp };
    assert!(v(1, 0, 0) > v(0, 9, 9) && v(0, 2, 0) > v(0, 1, 9) && v(0, 1, 2) > v(0, 1, 1));
    assert_eq!(v(0, 1, 5).next(3, 8), v(3, 2, 8));
}
