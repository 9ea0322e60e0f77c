//! What a broker knows outlives it: topics, groups, committed offsets and messages that wait for their time, through an orderly stop
//! and through kill -9 alike.
use crate::common::{Client, Pull, Server, props};
use std::time::{Duration, Instant};
use uringmq_proto::body;
use uringmq_proto::body::group::SubscriptionGroupConfig;

const SETTINGS: &str =
    "shards=3\nmessageDelayLevel=1s 2s 3s\nflushConsumerOffsetInterval=100\nflushDelayOffsetInterval=100";
/// A message of the longest level comes after 3 s; a starved machine may need far longer.
const DELIVERY_MAX: Duration = Duration::from_secs(60);

/// Waits until `queue` of `topic` ends at `end`.
fn wait_for_end(client: &mut Client, topic: &str, queue: i32, end: i64) {
    let began = Instant::now();
    while client.bounds(topic, queue).1 < end {
        assert!(began.elapsed() < DELIVERY_MAX, "queue {queue} of {topic} ends at {:?}", client.bounds(topic, queue));
        let ahead = Pull { suspend_ms: 1000, ..Pull::at(topic, queue, end - 1) };
        client.pull(&ahead); // held until the next arrival, or a second
    }
}

/// Waits until the offset stands in the table on disk, which a kill leaves as it is.
fn wait_for_persist(server: &Server, table: &str, text: &str) {
    let began = Instant::now();
    let path = server.store().join("config").join(table);
    while !std::fs::read_to_string(&path).is_ok_and(|now| now.contains(text)) {
        assert!(began.elapsed() < DELIVERY_MAX, "{text} is not in {}", path.display());
        std::thread::yield_now();
    }
}

fn survives(clean: bool) {
    let mut server = Server::start(&format!("restart-{clean}"), SETTINGS);
    let mut client = server.client();
    client.create_topic("Kept", 3);
    client.create_topic("Gone", 3);
    client.ok(200, &[], br#"{"groupName":"kept-group","retryMaxTimes":7,"consumeBroadcastEnable":false}"#);
    for queue in 0..3 {
        client.send_many("Kept", queue, "", 100 + queue as usize);
        assert_eq!(client.commit("kept-group", "Kept", queue, 41 + i64::from(queue)).code, 0);
    }
    client.send_many("Gone", 0, "", 5);
    client.delete_topic("Gone");
    for level in ["1", "2", "3"] {
        client.sent("Kept", 0, &props(&[("DELAY", level)]), level.as_bytes());
    }
    wait_for_persist(&server, "consumerOffset.json", "43");
    match clean {
        true => assert!(server.stop().success()),
        false => server.kill(),
    }
    server.start_again();

    let mut client = server.client();
    wait_for_end(&mut client, "Kept", 0, 103);
    for queue in 0..3 {
        let count = 100 + queue as usize;
        let mut messages = client.pull_all("Kept", queue, 0, if queue == 0 { 103 } else { count });
        let mut delayed: Vec<_> = messages.split_off(count).into_iter().map(|m| m.body).collect();
        delayed.sort();
        assert_eq!(delayed, if queue == 0 { vec![b"1", b"2", b"3"] } else { vec![] }, "each delayed message once");
        let numbers: Vec<String> = messages.iter().map(|m| String::from_utf8_lossy(&m.body).into()).collect();
        assert_eq!(numbers, (0..count).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(client.committed("kept-group", "Kept", queue), Some(41 + i64::from(queue)));
    }
    let answer = client.ok(352, &[("group", "kept-group")], b"");
    let group: SubscriptionGroupConfig = body::parse(&answer.body).expect("a group");
    assert_eq!((group.retry_max_times, group.consume_broadcast_enable), (7, false));
    assert_eq!(
        client.call(30, &[("topic", "Gone"), ("queueId", "0")], b"").get("offset"),
        Some("0"),
        "deleted for good"
    );
    assert!(!server.store().join("consumequeue/Gone").exists(), "its queues are not built again from the log");
    let topics = String::from_utf8(client.ok(21, &[], b"").body).expect("JSON");
    assert!(topics.contains("\"Kept\"") && !topics.contains("\"Gone\""), "{topics}");
    server.check_healthy("a restart");
}

#[test]
fn what_was_known_survives_a_stop() {
    survives(true);
}

#[test]
fn what_was_known_survives_kill_9() {
    survives(false);
}

/// Code 316 throws away what lies in the store of topics that no table knows; it stays away when all queues are built again from the log.
#[test]
fn queues_of_unknown_topics_are_cleaned_for_good() {
    let mut server = Server::start("restart-unknown", SETTINGS);
    let mut client = server.client();
    for topic in ["Kept", "Lost"] {
        client.create_topic(topic, 1);
        client.send_many(topic, 0, "", 5);
    }
    assert!(server.stop().success());
    let table = server.store().join("config/topics.json");
    let text = std::fs::read(&table).expect("the table");
    let mut topics: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert!(topics["topicConfigTable"].as_object_mut().expect("a table").remove("Lost").is_some());
    std::fs::write(&table, topics.to_string()).expect("written");
    server.start_again();
    let queues = server.store().join("consumequeue");
    assert!(queues.join("Lost").exists(), "it may be listed again one day");
    server.client().ok(316, &[], b"");
    assert!(!queues.join("Lost").exists());
    server.kill();
    std::fs::remove_dir_all(&queues).expect("the queues");
    server.start_again();
    assert!(!queues.join("Lost").exists());
    let mut client = server.client();
    assert_eq!(client.pull_all("Kept", 0, 0, 5).len(), 5);
    client.create_topic("Lost", 1);
    assert_eq!(client.send("Lost", 0, "", b"of the next life").queue_offset, 0);
    server.check_healthy("the cleaning of unknown topics");
}
