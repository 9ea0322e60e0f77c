//! Queues with an extension (`enableConsumeQueueExt`) and bit maps (`enableCalcFilterBitMap`): what is read is the same with them and without.
use crate::common::{Client, Message, Pull, Server, props};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const ON: &str = "enablePropertyFilter=true\nenableConsumeQueueExt=true\nenableCalcFilterBitMap=true\n\
                  mappedFileSizeConsumeQueue=400\nmappedFileSizeConsumeQueueExt=40960";
const TOPIC: &str = "Numbers";
const FROM_FIRST: &str = "CONSUME_FROM_FIRST_OFFSET";
const PATIENCE: Duration = Duration::from_secs(60);

fn bodies(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|m| String::from_utf8(m.body.clone()).expect("text")).collect()
}

/// Numbers as bodies and as property `n`, with tags.
fn send(client: &mut Client, queue: i32, numbers: std::ops::Range<i32>) {
    for n in numbers {
        let text = n.to_string();
        let tag = if n % 2 == 0 { "even" } else { "odd" };
        client.sent(TOPIC, queue, &props(&[("n", &text), ("TAGS", tag)]), text.as_bytes());
    }
}

/// What the broker tells of the first entries of queue 0 to `group` (321).
fn told(client: &mut Client, group: &str) -> serde_json::Value {
    let ext = [("topic", TOPIC), ("queueId", "0"), ("index", "0"), ("count", "50"), ("consumerGroup", group)];
    serde_json::from_slice(&client.ok(321, &ext, b"").body).expect("JSON")
}

/// Subscribes, and waits until messages are stored later than the filter is born.
fn subscribe(client: &mut Client, group: &str, text: &str) {
    client.heartbeat(group, TOPIC, ("SQL92", text), FROM_FIRST);
    let begun = Instant::now();
    loop {
        let data = told(client, group)["filterData"].as_str().expect("it is online").to_owned();
        let data: serde_json::Value = serde_json::from_str(&data).expect("its filter");
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64;
        if data["expression"] == text && data["bornTime"].as_i64().expect("a time") < now_ms {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{data} at {now_ms}");
        std::thread::yield_now();
    }
}

/// Everything that the group is given of a queue.
fn given(client: &mut Client, group: &str, queue: i32) -> Vec<String> {
    given_to(client, Pull { group, ..Pull::at(TOPIC, queue, 0).of("") })
}

/// Everything that a pull and those that follow it are given.
fn given_to(client: &mut Client, pull: Pull<'_>) -> Vec<String> {
    let (mut pull, mut all) = (Pull { count: 100, ..pull.now() }, Vec::new());
    loop {
        let pulled = client.pull(&pull);
        assert!(matches!(pulled.code, 0 | 20) && pulled.next > pull.offset, "{pulled:?}");
        all.extend(bodies(&pulled.messages));
        pull.offset = pulled.next;
        if pulled.next == pulled.max {
            return all;
        }
    }
}

fn passed_by_bits(client: &mut Client) -> u64 {
    let table: serde_json::Value = serde_json::from_slice(&client.ok(28, &[], b"").body).expect("JSON");
    table["table"]["filterBitsExcluded"].as_str().and_then(|text| text.parse().ok()).expect("a number")
}

fn numbers(range: std::ops::Range<i32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

fn check_store(server: &Server) {
    let checked = Command::new(env!("CARGO_BIN_EXE_uringmq")).args(["store", "check"]).arg(server.store()).output();
    let checked = checked.expect("it runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

/// In every round: the group's own messages, those of a tag, those of a text that no group registered.
fn check_reads(client: &mut Client, count: i32) {
    for queue in 0..3 {
        assert_eq!(given(client, "first", queue), numbers(0..3), "queue {queue}");
        let even: Vec<String> = numbers(0..count).into_iter().step_by(2).collect();
        assert_eq!(given_to(client, Pull::at(TOPIC, queue, 0).of("even")), even, "queue {queue}");
        let last = format!("n = {}", count - 1);
        let found = given_to(client, Pull::at(TOPIC, queue, 0).sql(&last));
        assert_eq!(found, [(count - 1).to_string()], "queue {queue}");
    }
}

/// The first message of `Delayed`, once it is there.
fn delivered(client: &mut Client) -> Vec<u8> {
    let begun = Instant::now();
    loop {
        let pulled = client.pull(&Pull::at("Delayed", 0, 0));
        if let Some(message) = pulled.messages.first() {
            return message.body.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "{pulled:?}");
    }
}

#[test]
fn pulls_ask_the_bit_maps_first_and_miss_nothing() {
    for shards in [1, 2, 4] {
        let mut server = Server::start(&format!("faults-extension-{shards}"), &format!("{ON}\nshards={shards}"));
        let mut client = server.client();
        client.create_topic(TOPIC, 3);
        send(&mut client, 0, 0..1); // so that 321 has something to tell
        subscribe(&mut client, "first", "n < 3");
        send(&mut client, 0, 1..100);
        (1..3).for_each(|queue| send(&mut client, queue, 0..100));
        check_reads(&mut client, 100);
        let passed = passed_by_bits(&mut client);
        assert!(passed >= 3 * 97, "{passed} of those that do not match");
        let data = &told(&mut client, "first")["queueData"];
        assert!(data[0]["bitMap"].is_null() && data[1]["bitMap"].as_str().expect("bits").contains('1'), "{data}");
        assert_eq!((&data[2]["eval"], &data[3]["eval"]), (&true.into(), &false.into()), "{data}");
        // A later filter finds what was stored before it.
        subscribe(&mut client, "later", "n > 97");
        assert_eq!(given(&mut client, "later", 1), numbers(98..100));
        subscribe(&mut client, "later", "n > 98");
        assert_eq!(given(&mut client, "later", 1), numbers(99..100), "another expression than its bits say");
        // A clean stop, and a kill.
        for (round, count) in [(0, 110), (1, 120)] {
            match round {
                0 => assert!(server.stop().success()),
                _ => server.kill(),
            }
            server.start_again();
            client = server.client();
            client.heartbeat("first", TOPIC, ("SQL92", "n < 3"), FROM_FIRST);
            let before = passed_by_bits(&mut client);
            check_reads(&mut client, count - 10);
            assert!(round == 1 || passed_by_bits(&mut client) > before, "the filter of before the stop counts");
            (0..3).for_each(|queue| send(&mut client, queue, count - 10..count));
            check_reads(&mut client, count);
        }
        assert!(server.stop().success());
        check_store(&server);
        server.start_again();
        server.check_healthy("bit maps");
    }
}

#[test]
fn a_store_with_extensions_is_read_without_them_too() {
    let mut server = Server::start("faults-extension-off", &format!("{ON}\nshards=2\nmessageDelayLevel=1s 3s"));
    let mut client = server.client();
    client.create_topic(TOPIC, 3);
    send(&mut client, 0, 0..1);
    subscribe(&mut client, "first", "n < 3");
    send(&mut client, 0, 1..60);
    (1..3).for_each(|queue| send(&mut client, queue, 0..60));
    client.create_topic("Delayed", 1);
    let sent = Instant::now();
    client.sent("Delayed", 0, &props(&[("DELAY", "2")]), b"later");
    assert!(server.stop().success());
    check_store(&server);
    server.settings = server.settings.replace("enableConsumeQueueExt=true", "enableConsumeQueueExt=false");
    server.start_again();
    client = server.client();
    client.heartbeat("first", TOPIC, ("SQL92", "n < 3"), FROM_FIRST);
    check_reads(&mut client, 60);
    (0..3).for_each(|queue| send(&mut client, queue, 60..70));
    check_reads(&mut client, 70);
    let found = delivered(&mut client);
    assert!(found == b"later" && sent.elapsed() >= Duration::from_secs(3), "{:?}", sent.elapsed());
    // Without the units all is found all the same, if more of it is given to clients.
    server.kill();
    std::fs::remove_dir_all(server.store().join("consumequeue_ext")).expect("the extensions");
    server.start_again();
    client = server.client();
    client.heartbeat("first", TOPIC, ("SQL92", "n < 3"), FROM_FIRST);
    for queue in 0..3 {
        assert_eq!(given(&mut client, "first", queue), numbers(0..3));
        let even = given_to(&mut client, Pull::at(TOPIC, queue, 0).of("even"));
        assert!(numbers(0..70).iter().step_by(2).all(|n| even.contains(n)), "{even:?}");
    }
    server.check_healthy("lost extensions");
}

/// A delayed message whose unit is lost is due when its record says.
#[test]
fn a_delayed_message_without_its_unit_is_not_early() {
    let mut server = Server::start("faults-extension-delay", &format!("{ON}\nshards=2\nmessageDelayLevel=1s 8s"));
    let mut client = server.client();
    client.create_topic("Delayed", 1);
    let sent = Instant::now();
    client.sent("Delayed", 0, &props(&[("DELAY", "2")]), b"later");
    assert!(server.stop().success());
    std::fs::remove_dir_all(server.store().join("consumequeue_ext")).expect("the extensions");
    server.start_again();
    client = server.client();
    let found = delivered(&mut client);
    assert!(found == b"later" && sent.elapsed() >= Duration::from_secs(8), "{:?}", sent.elapsed());
    server.check_healthy("a delay without its unit");
}
