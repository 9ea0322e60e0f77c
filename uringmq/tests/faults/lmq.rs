//! Light queues (LMQ): messages are in them beside their own queues, numbered without gaps, through stops and kill -9; S14.
use crate::common::{Client, Pull, Server, props};
use std::time::{Duration, Instant};
use uringmq_proto::message::parse_offset_id;

const SETTINGS: &str =
    "enableLmq=true\nenableMultiDispatch=true\nflushConsumerOffsetInterval=100\nmappedFileSizeConsumeQueue=400";
const PATIENCE: Duration = Duration::from_secs(60);
const ILLEGAL: i32 = 13;

/// In these light queues, too.
fn in_lights(lights: &str) -> String {
    props(&[("INNER_MULTI_DISPATCH", lights), ("TAGS", "T")])
}

fn wait_for_end(client: &mut Client, light: &str, end: i64) {
    let begun = Instant::now();
    while client.bounds(light, 0).1 < end {
        assert!(begun.elapsed() < PATIENCE, "{light} ends at {:?}, not at {end}", client.bounds(light, 0));
        std::thread::yield_now();
    }
}

/// Every light queue's bodies, in its order.
fn check(client: &mut Client, expected: &[(&str, &Vec<String>)]) {
    for (light, bodies) in expected {
        wait_for_end(client, light, bodies.len() as i64);
        assert_eq!(client.bounds(light, 0), (0, bodies.len() as i64), "{light}");
        let found = client.pull_all(light, 0, 0, bodies.len());
        let found: Vec<String> = found.iter().map(|m| String::from_utf8_lossy(&m.body).into()).collect();
        assert_eq!(&&found, bodies, "{light}");
    }
}

fn survives(clean: bool, shards: usize) {
    let mut server = Server::start(&format!("lmq-{clean}-{shards}"), &format!("{SETTINGS}\nshards={shards}"));
    let mut client = server.client();
    client.create_topic("T", 3);
    client.create_topic("U", 1);
    let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..3 {
        for n in 0..40 {
            let body = format!("{round}-{n}");
            let (topic, queue) = if n % 3 == 0 { ("U", 0) } else { ("T", n % 3) };
            let lights = match n % 4 {
                0 => "%LMQ%a",
                1 => "%LMQ%a,%LMQ%b",
                2 => "%LMQ%c,%LMQ%b,%LMQ%a",
                _ => "%LMQ%c",
            };
            let light = |name: &str| lights.contains(name);
            [("%LMQ%a", &mut a), ("%LMQ%b", &mut b), ("%LMQ%c", &mut c)]
                .into_iter()
                .filter(|(name, _)| light(name))
                .for_each(|(_, bodies)| bodies.push(body.clone()));
            client.sent(topic, queue, &in_lights(lights), body.as_bytes());
        }
        let all = [("%LMQ%a", &a), ("%LMQ%b", &b), ("%LMQ%c", &c)];
        check(&mut client, &all);
        let at = 10 + round;
        assert_eq!(client.commit("%LMQ%g", "%LMQ%a", 0, at).code, 0);
        assert_eq!(client.commit("%LMQ%g", "T", 1, at).code, 0);
        match clean {
            true => assert!(server.stop().success()),
            false => {
                let table = server.store().join("config/lmqConsumerOffset.json");
                let begun = Instant::now();
                let saved =
                    |text: String| text.contains(&format!("\"%LMQ%a@%LMQ%g\":{at}")) && text.contains("offsetTable");
                while !std::fs::read_to_string(&table).is_ok_and(|text| saved(text.split_whitespace().collect())) {
                    assert!(begun.elapsed() < PATIENCE, "{} has not {at}", table.display());
                    std::thread::yield_now();
                }
                server.kill();
            }
        }
        server.start_again();
        client = server.client();
        check(&mut client, &all);
        assert_eq!(client.committed("%LMQ%g", "%LMQ%a", 0), Some(at));
        assert_eq!(client.committed("%LMQ%g", "T", 1), Some(at));
    }
    let tables = ["topics.json", "subscriptionGroup.json"].map(|name| server.store().join("config").join(name));
    for table in tables {
        assert!(!std::fs::read_to_string(&table).expect("a table").contains("%LMQ%"), "{}", table.display());
    }
    server.check_healthy("restarts with light queues");
}

#[test]
fn light_queues_survive_a_stop() {
    survives(true, 1);
    survives(true, 2);
}

#[test]
fn light_queues_survive_kill_9() {
    survives(false, 1);
    survives(false, 2);
}

/// All queue files gone, after kill -9 and after a stop: the light queues come from the log, as all others do, and go on where they were.
#[test]
fn light_queues_are_built_again_from_the_log() {
    for shards in [1, 2] {
        let mut server = Server::start(&format!("lmq-lost-{shards}"), &format!("{SETTINGS}\nshards={shards}"));
        let mut client = server.client();
        client.create_topic("T", 1);
        let mut bodies = Vec::new();
        for clean in [false, true] {
            for n in 0..30 {
                bodies.push(format!("{clean}-{n}"));
                client.sent("T", 0, &in_lights("%LMQ%a"), bodies.last().expect("just pushed").as_bytes());
            }
            match clean {
                true => assert!(server.stop().success()),
                false => server.kill(),
            }
            std::fs::remove_dir_all(server.store().join("consumequeue")).expect("the queues");
            server.start_again();
            client = server.client();
            check(&mut client, &[("%LMQ%a", &bodies)]);
        }
        server.check_healthy("lost light queues");
    }
}

/// A reader that is there before the first message is woken by it.
#[test]
fn a_reader_waits_for_a_light_queue_that_is_not_there_yet() {
    for shards in [1, 2] {
        let server = Server::start(&format!("lmq-waits-{shards}"), &format!("{SETTINGS}\nshards={shards}"));
        let (mut reader, mut client) = (server.client(), server.client());
        client.create_topic("T", 1);
        let waiting =
            reader.ask_pull(&Pull { group: "%LMQ%readers", suspend_ms: 60_000, ..Pull::at("%LMQ%new", 0, 0) });
        client.sent("T", 0, &in_lights("%LMQ%new"), b"first");
        let pulled = reader.pulled(waiting);
        assert_eq!((pulled.code, pulled.next), (0, 1), "{pulled:?}");
        assert_eq!(pulled.messages[0].body, b"first");
        assert_eq!(pulled.messages[0].prop("INNER_MULTI_QUEUE_OFFSET"), Some("0"));
        server.check_healthy("a held pull of a light queue");
    }
}

/// S14: no name leads out of its directory or makes one that the next start stumbles over.
#[test]
fn names_that_are_no_light_queues_are_refused() {
    let mut server = Server::start("lmq-names", &format!("{SETTINGS}\nshards=2"));
    let mut client = server.client();
    client.create_topic("T", 1);
    let long = format!("%LMQ%{}", "x".repeat(300));
    for lights in ["%LMQ%a/1", "%LMQ%../../x", "%LMQ%", "%LMQ%a,%LMQ%a", "plain", "%LMQ%a,,%LMQ%b", &long] {
        let sent = client.send("T", 0, &in_lights(lights), b"x");
        assert_eq!(sent.code, ILLEGAL, "{lights}: {}", sent.remark);
        assert!(sent.remark.contains("INNER_MULTI_DISPATCH"), "{lights}: {}", sent.remark);
    }
    assert_ne!(client.send("%LMQ%a", 0, "", b"x").code, 0, "messages of a light queue have a topic");
    client.sent("T", 0, &in_lights("%LMQ%a"), b"good");
    wait_for_end(&mut client, "%LMQ%a", 1);
    assert_eq!(client.bounds("T", 0), (0, 1));
    server.kill();
    server.start_again();
    assert_eq!(server.client().pull_all("%LMQ%a", 0, 0, 1)[0].body, b"good");
    server.check_healthy("names of light queues");
}

/// Without the two switches the property is one like any other.
#[test]
fn nothing_happens_where_light_queues_are_off() {
    let server = Server::start("lmq-off", "enableLmq=true\nshards=2");
    let mut client = server.client();
    client.create_topic("T", 1);
    client.sent("T", 0, &in_lights("%LMQ%a"), b"x");
    assert_eq!(client.pull_all("T", 0, 0, 1)[0].prop("INNER_MULTI_QUEUE_OFFSET"), None);
    assert!(!server.store().join("consumequeue/%LMQ%a").exists());
    server.check_healthy("no light queues");
}

#[test]
fn the_quota_says_how_many_there_are() {
    let settings = format!("{SETTINGS}\nshards=2\nenableLmqQuota=true\nmaxLmqConsumeQueueNum=2");
    let mut server = Server::start("lmq-quota", &settings);
    let mut client = server.client();
    client.create_topic("T", 1);
    client.sent("T", 0, &in_lights("%LMQ%a,%LMQ%b"), b"x");
    let sent = client.send("T", 0, &in_lights("%LMQ%a,%LMQ%c"), b"x");
    assert_eq!(sent.code, 1, "{}", sent.remark);
    assert!(sent.remark.contains("maxLmqConsumeQueueNum") && sent.remark.contains('2'), "{}", sent.remark);
    client.sent("T", 0, &in_lights("%LMQ%b"), b"x");
    server.kill();
    server.start_again();
    let mut client = server.client();
    assert_eq!(client.send("T", 0, &in_lights("%LMQ%c"), b"x").code, 1);
    client.delete_topic("%LMQ%a");
    client.sent("T", 0, &in_lights("%LMQ%c"), b"x");
    server.check_healthy("the quota of light queues");
}

/// A message that waits for its time is in its light queues when it comes, also over a kill.
#[test]
fn delayed_messages_come_into_light_queues_late() {
    for shards in [1, 2] {
        let settings = format!("{SETTINGS}\nshards={shards}\nmessageDelayLevel=2s 3s");
        let mut server = Server::start(&format!("lmq-delay-{shards}"), &settings);
        let mut client = server.client();
        client.create_topic("T", 1);
        client.sent("T", 0, &(in_lights("%LMQ%a") + &props(&[("DELAY", "1")])), b"late");
        client.sent("T", 0, &in_lights("%LMQ%a"), b"now");
        wait_for_end(&mut client, "%LMQ%a", 1);
        assert_eq!(client.pull_all("%LMQ%a", 0, 0, 1)[0].body, b"now");
        server.kill();
        server.start_again();
        let mut client = server.client();
        wait_for_end(&mut client, "%LMQ%a", 2);
        assert_eq!(client.pull_all("%LMQ%a", 0, 1, 1)[0].body, b"late");
        server.check_healthy("delayed messages of light queues");
    }
}

/// What is half is in no light queue until it is committed, nor ever when it is rolled back; over kill -9, the numbers have no gaps.
#[test]
fn a_half_message_comes_into_light_queues_once_it_is_committed() {
    let mut server = Server::start("lmq-half", &format!("{SETTINGS}\nshards=2\nflushDiskType=SYNC_FLUSH"));
    let mut client = server.client();
    client.create_topic("T", 2);
    let half = |client: &mut Client, body: &str| {
        let pairs = [("TRAN_MSG", "true"), ("PGROUP", "p"), ("INNER_MULTI_DISPATCH", "%LMQ%h,%LMQ%i")];
        let sent = client.sent("T", 1, &props(&pairs), body.as_bytes());
        let phy = parse_offset_id(&sent.msg_id).expect("an offset id").1.to_string();
        (sent.queue_offset.to_string(), phy)
    };
    let end = |client: &mut Client, (offset, phy): &(String, String), how: &str| {
        let fields = [
            ("producerGroup", "p"),
            ("tranStateTableOffset", offset.as_str()),
            ("commitLogOffset", phy.as_str()),
            ("commitOrRollback", how),
            ("fromTransactionCheck", "false"),
            ("msgId", "m"),
        ];
        client.ok(37, &fields, b"");
    };
    let (kept, dropped, late) = (half(&mut client, "kept"), half(&mut client, "dropped"), half(&mut client, "late"));
    client.sent("T", 0, &in_lights("%LMQ%h"), b"plain");
    let mut bodies = vec!["plain".to_owned()];
    check(&mut client, &[("%LMQ%h", &bodies), ("%LMQ%i", &Vec::new())]);
    end(&mut client, &kept, "8");
    end(&mut client, &dropped, "12");
    bodies.push("kept".to_owned());
    check(&mut client, &[("%LMQ%h", &bodies), ("%LMQ%i", &vec!["kept".to_owned()])]);
    server.kill();
    server.start_again();
    let mut client = server.client();
    check(&mut client, &[("%LMQ%h", &bodies), ("%LMQ%i", &vec!["kept".to_owned()])]);
    end(&mut client, &late, "8");
    bodies.push("late".to_owned());
    check(&mut client, &[("%LMQ%h", &bodies), ("%LMQ%i", &vec!["kept".to_owned(), "late".to_owned()])]);
    server.check_healthy("halves and light queues");
}
