//! Offsets of queues and groups: F01, F02, F03, F05, F06, F07. On three shards, so that owners and connections are apart.
use crate::common::{Client, Message, Pull, Server, Shared, props};
use std::time::{Duration, Instant};
use uringmq_proto::body;
use uringmq_proto::body::stats::ConsumeStats;
use uringmq_proto::codes::response as code;

static SERVER: Shared = Shared::new("faults-offsets", "shards=3");

fn create_group(client: &mut Client, group: &str) {
    client.ok(200, &[], format!("{{\"groupName\":\"{group}\"}}").as_bytes());
}

#[test]
fn f01_a_question_about_offsets_changes_none() {
    let mut server = Server::start("faults-offsets-query", "shards=3");
    let mut client = server.client();
    client.create_topic("Asked", 2);
    client.send_many("Asked", 0, "", 10);
    client.pull_all("Asked", 0, 0, 10);
    for (group, offset) in [("g1", 3), ("g2", 7)] {
        create_group(&mut client, group);
        assert_eq!(client.commit(group, "Asked", 0, offset).code, 0);
    }
    let ask = |client: &mut Client, filter: &str| {
        let ext = [("filterGroups", filter), ("compareGroup", "g2"), ("topic", "Asked")];
        String::from_utf8(client.ok(308, &ext, b"").body).expect("JSON")
    };
    for filter in ["g1", "g2", "g1,g2", " g1 , g2 ", "stranger", ","] {
        ask(&mut client, filter);
        for (group, offset) in [("g1", 3), ("g2", 7)] {
            assert_eq!(client.committed(group, "Asked", 0), Some(offset), "{group} after a question without {filter}");
        }
    }
    assert!(ask(&mut client, "g2").contains(":3"), "the smallest offset of the groups that count");
    for clean in [true, false] {
        match clean {
            true => assert!(server.stop().success()),
            false => server.kill(),
        }
        server.start_again();
        let mut client = server.client();
        for (group, offset) in [("g1", 3), ("g2", 7)] {
            assert_eq!(client.committed(group, "Asked", 0), Some(offset), "{group} after a restart");
        }
    }
    server.check_healthy("F01");
}

/// Pulls around both ends of a queue: the code and the next offset of each.
fn pull_around(client: &mut Client, topic: &str, (min, max): (i64, i64)) {
    let mut ask = |offset| {
        let pulled = client.pull(&Pull::at(topic, 0, offset).now());
        assert_eq!((pulled.min, pulled.max), (min, max), "{offset}: {pulled:?}");
        (pulled.code, pulled.next)
    };
    assert_eq!(ask(max), (code::PULL_NOT_FOUND, max), "at the end there is nothing new");
    for beyond in [max + 1, max + 100, 1 << 62, i64::MAX] {
        assert_eq!(ask(beyond), (code::PULL_OFFSET_MOVED, max), "{beyond} is beyond the end");
    }
    for below in [min - 1, -1, -100, i64::MIN] {
        assert_eq!(ask(below), (code::PULL_OFFSET_MOVED, min), "{below} is below the beginning");
    }
    assert_eq!(ask(max - 1), (0, max));
    let first = client.pull(&Pull { count: 1, ..Pull::at(topic, 0, min).now() });
    assert_eq!((first.code, first.next), (0, min + 1));
}

#[test]
fn f02_pulls_beyond_the_ends() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Ends", 2);
    client.send_many("Ends", 0, "", 20);
    client.pull_all("Ends", 0, 0, 20);
    pull_around(&mut client, "Ends", (0, 20));
    // At the end a pull is held until something comes.
    let mut waiting = server.client();
    let held = waiting.ask_pull(&Pull { suspend_ms: 50_000, ..Pull::at("Ends", 0, 20) });
    client.sent("Ends", 0, "", b"something new");
    let pulled = waiting.pulled(held);
    assert_eq!((pulled.code, pulled.next), (0, 21), "{pulled:?}");
    assert_eq!(pulled.messages[0].body, b"something new");
    server.check_healthy("F02");
}

/// What searches by time must answer, by the store times of the queue's messages.
fn search_around(client: &mut Client, topic: &str, messages: &[Message]) {
    let (first, last) = (&messages[0], &messages[messages.len() - 1]);
    let times: Vec<i64> = messages.iter().map(|m| m.store_timestamp_ms).collect();
    assert!(times.is_sorted());
    let edges = [0, -1, 1, i64::MIN, i64::MAX, times[0] - 1, last.store_timestamp_ms + 1];
    for at in times.iter().flat_map(|t| [*t - 1, *t, *t + 1]).chain(edges) {
        let lower = first.queue_offset + times.partition_point(|t| *t < at) as i64;
        let upper = first.queue_offset + (times.partition_point(|t| *t <= at) as i64 - 1).max(0);
        for (boundary, want) in [("", lower), ("LOWER", lower), ("lower", lower), ("UPPER", upper), ("upper", upper)] {
            assert_eq!(client.search(topic, 0, at, boundary), want, "{topic} {boundary} of {at} in {times:?}");
        }
    }
}

#[test]
fn f03_searches_by_time() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Times", 2);
    for boundary in ["", "LOWER", "UPPER"] {
        for at in [i64::MIN, -1, 0, 1, i64::MAX] {
            assert_eq!(client.search("Times", 1, at, boundary), 0, "an empty queue");
        }
    }
    (0..12).for_each(|n: u32| drop(client.sent("Times", 0, "", n.to_string().as_bytes())));
    let all = client.pull_all("Times", 0, 0, 12);
    search_around(&mut client, "Times", &all);
    // A reset to now, or to the end, leaves nothing behind.
    for time in [i64::MAX, -1, all[11].store_timestamp_ms + 1] {
        let group = format!("f03-{time}");
        create_group(&mut client, &group);
        assert_eq!(client.commit(&group, "Times", 0, 2).code, 0);
        let ext: [(&str, &str); 4] =
            [("group", &group), ("topic", "Times"), ("timestamp", &time.to_string()), ("isForce", "true")];
        client.ok(222, &ext, b"");
        let pulled = client.pull(&Pull { group: &group, ..Pull::at("Times", 0, 2).now() });
        assert_eq!(
            (pulled.code, pulled.next),
            (code::PULL_OFFSET_MOVED, 12),
            "a consumer is sent to the end: {pulled:?}"
        );
        assert_eq!(client.committed(&group, "Times", 0), Some(12));
        assert_eq!(lags(&mut client, &group, "Times"), [0]);
    }
    server.check_healthy("F03");
}

/// Lags of a group on the queues of a topic on which it committed, from 208.
fn lags(client: &mut Client, group: &str, topic: &str) -> Vec<i64> {
    let answer = client.ok(208, &[("consumerGroup", group), ("topic", topic)], b"");
    let stats: ConsumeStats = body::parse(&answer.body).expect("statistics");
    let committed = stats.offset_table.0.into_values().filter(|o| o.consumer_offset != 0);
    committed.map(|o| o.broker_offset - o.consumer_offset).collect()
}

#[test]
fn f05_a_topic_made_anew_begins_at_0() {
    let server = SERVER.lease();
    let (mut client, mut waiting) = (server.client(), server.client());
    for round in 0..3 {
        client.create_topic("Anew", 1);
        client.heartbeat("f05", "Anew", ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
        assert!(matches!(client.committed("f05", "Anew", 0), None | Some(0)), "round {round}: a stale offset");
        let pull = |at| Pull { group: "f05", suspend_ms: 600_000, ..Pull::at("Anew", 0, at) };
        if round == 0 {
            client.send_many("Anew", 0, "", 1000);
            client.pull_all("Anew", 0, 0, 1000);
            assert_eq!(client.commit("f05", "Anew", 0, 1000).code, 0);
        } else {
            let held = (round == 2).then(|| waiting.ask_pull(&pull(0)));
            (0..10).for_each(|n: i64| assert_eq!(client.sent("Anew", 0, "", b"x").queue_offset, n));
            if let Some(held) = held {
                assert!(!waiting.pulled(held).messages.is_empty());
            }
            assert_eq!(client.pull_all("Anew", 0, 0, 10).len(), 10, "round {round}");
            assert!(lags(&mut client, "f05", "Anew").iter().all(|lag| *lag >= 0));
            assert_eq!(client.commit("f05", "Anew", 0, 10).code, 0);
            assert_eq!(lags(&mut client, "f05", "Anew"), [0]);
        }
        let end = client.bounds("Anew", 0).1;
        let held = waiting.ask_pull(&pull(end));
        client.delete_topic("Anew");
        let answer = waiting.pulled(held); // held for longer than the client waits
        assert!(answer.code != 0 && answer.messages.is_empty(), "{answer:?}");
    }
    server.check_healthy("F05");
}

/// The same where the table of topics was lost, or is another's: the offsets of a topic that nobody knows are not those of the next one of
/// its name.
#[test]
fn f05_offsets_of_an_unknown_topic_go_when_it_is_made() {
    let mut server = Server::start("faults-offsets-ghost", "shards=3\nflushConsumerOffsetInterval=100");
    let mut client = server.client();
    client.create_topic("Known", 1);
    create_group(&mut client, "f05");
    assert_eq!(client.commit("f05", "Known", 0, 7).code, 0);
    assert!(server.stop().success());
    let table = server.store().join("config/consumerOffset.json");
    let text = std::fs::read_to_string(&table).expect("the offsets");
    assert!(text.contains("\"Known@f05\""), "{text}");
    std::fs::write(&table, text.replace("\"Known@f05\"", "\"Ghost@f05\"")).expect("written");
    server.start_again();
    let mut client = server.client();
    client.create_topic("Ghost", 1);
    assert_eq!(client.committed("f05", "Ghost", 0), None);
    client.send_many("Ghost", 0, "", 3);
    client.pull_all("Ghost", 0, 0, 3);
    assert!(lags(&mut client, "f05", "Ghost").iter().all(|lag| (0..=3).contains(lag)));
    assert!(server.stop().success());
    server.start_again();
    assert_eq!(server.client().committed("f05", "Ghost", 0), Some(0), "none is stored: the queue begins at 0");
    server.check_healthy("F05");
}

const START_MODES: [&str; 3] = ["CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"];

/// As in Java, whose clients depend on it: 0 as long as the first message is there, whatever the start mode; else nothing is known.
#[test]
fn f06_a_new_group_on_a_small_topic() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Small", 1);
    client.send_many("Small", 0, "", 10);
    client.pull_all("Small", 0, 0, 10);
    for mode in START_MODES {
        let group = format!("f06-{mode}");
        client.heartbeat(&group, "Small", ("TAG", "*"), mode);
        assert_eq!(client.committed(&group, "Small", 0), Some(0), "{mode}");
        let ext: [(&str, &str); 4] =
            [("consumerGroup", &group), ("topic", "Small"), ("queueId", "0"), ("setZeroIfNotFound", "false")];
        assert_eq!(client.call(14, &ext, b"").code, code::QUERY_NOT_FOUND, "{mode}");
    }
    server.check_healthy("F06");
}

/// F02, F03 and F06 on a queue whose first messages are gone with their segment.
#[test]
fn f02_f03_f06_on_a_queue_whose_head_is_gone() {
    let server = Server::start("faults-offsets-head", "shards=3\ncleanResourceInterval=200");
    let mut client = server.client();
    client.create_topic("Head", 2);
    let body = vec![b'x'; 900 << 10];
    (0..14).for_each(|_| drop(client.sent("Head", 0, "", &body))); // 8 MiB a segment
    client.pull_all("Head", 0, 0, 14);
    client.ok(25, &[], b"fileReservedTime=0");
    let until = Instant::now() + Duration::from_secs(40);
    while client.bounds("Head", 0).0 == 0 {
        assert!(Instant::now() < until, "the first segment stays");
        client.ok(329, &[], b"");
    }
    let (min, max) = client.bounds("Head", 0);
    assert!((1..14).contains(&min) && max == 14, "{min} {max}");
    pull_around(&mut client, "Head", (min, max));
    let kept = client.pull_all("Head", 0, min, (max - min) as usize);
    search_around(&mut client, "Head", &kept);
    for mode in START_MODES {
        let group = format!("f06-{mode}");
        client.heartbeat(&group, "Head", ("TAG", "*"), mode);
        assert_eq!(client.committed(&group, "Head", 0), None, "{mode}");
    }
    server.check_healthy("F02, F03, F06 without the head");
}

#[test]
fn f07_next_offsets_lead_on_to_a_rare_match() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Rare", 1);
    let (other, wanted) = (props(&[("TAGS", "Other")]), props(&[("TAGS", "Wanted")]));
    let items: Vec<(&[u8], &str)> = vec![(b"no", &other); 1000];
    for _ in 0..100 {
        let sent = client.send_batch("Rare", 0, &items);
        assert_eq!(sent.code, 0, "{}", sent.remark);
    }
    let at = client.sent("Rare", 0, &wanted, b"yes").queue_offset;
    assert_eq!(at, 100_000);
    let mut pull = Pull { suspend_ms: 1000, ..Pull::at("Rare", 0, 0).of("Wanted") };
    let mut found = Vec::new();
    while found.is_empty() {
        let pulled = client.pull(&pull);
        let range = pull.offset..pulled.next;
        if pulled.code == code::PULL_NOT_FOUND && pull.offset <= at {
            continue; // the queue follows the log
        }
        assert!(pulled.next > pull.offset, "it goes nowhere from {}: {pulled:?}", pull.offset);
        assert!(matches!(pulled.code, 0 | code::PULL_RETRY_IMMEDIATELY), "{pulled:?}");
        assert!(pulled.messages.iter().all(|m| range.contains(&m.queue_offset)), "{range:?}: {pulled:?}");
        pull.offset = pulled.next;
        found = pulled.messages;
    }
    assert_eq!((found.len(), found[0].queue_offset, found[0].body.as_slice()), (1, at, &b"yes"[..]));
    assert_eq!(pull.offset, at + 1);
    server.check_healthy("F07");
}
