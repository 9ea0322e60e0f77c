//! Filters: L01, L02, L03, F07. What every expression gives is proved in `filter/`; here is what the broker makes of it.
use crate::common::{Client, Message, Pull, Server, Shared, props};

static SERVER: Shared = Shared::new("faults-filter", "shards=2\nenablePropertyFilter=true\nfilterSupportRetry=true");
const FROM_FIRST: &str = "CONSUME_FROM_FIRST_OFFSET";

fn bodies(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|m| String::from_utf8(m.body.clone()).expect("text")).collect()
}

/// Sends the numbers from 0 on, each with itself as property `n`.
fn send_numbers(client: &mut Client, topic: &str, queue: i32, count: i32) {
    for n in 0..count {
        let text = n.to_string();
        client.sent(
            topic,
            queue,
            &props(&[("n", &text), ("TAGS", if n % 2 == 0 { "even" } else { "odd" })]),
            text.as_bytes(),
        );
    }
}

#[test]
fn l03_expressions_are_refused_where_they_are_off() {
    let server = Server::start("faults-filter-off", "shards=2");
    let mut client = server.client();
    client.create_topic("Plain", 1);
    client.sent("Plain", 0, &props(&[("TAGS", "A"), ("a", "6")]), b"x");
    let off = "The broker does not support consumer to filter message by SQL92";
    for text in ["a > 5", "a >"] {
        let checked = client.check_subscription("Plain", ("SQL92", text));
        assert_eq!((checked.code, checked.remark.as_deref()), (1, Some(off)), "{text}");
        let pulled = client.pull(&Pull::at("Plain", 0, 0).sql(text));
        assert_eq!((pulled.code, pulled.remark.as_str()), (1, off), "{text}");
    }
    client.heartbeat("L03", "Plain", ("SQL92", "a > 5"), FROM_FIRST);
    let pulled = client.pull(&Pull { group: "L03", ..Pull::at("Plain", 0, 0).of("") });
    assert_eq!((pulled.code, pulled.remark.as_str()), (1, off));
    assert_eq!(client.check_subscription("Plain", ("TAG", "A")).code, 0);
    assert_eq!(client.pull(&Pull::at("Plain", 0, 0).of("A")).messages.len(), 1);
    server.check_healthy("L03");
}

#[test]
fn l01_bad_expressions_are_refused_when_they_are_checked() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Checked", 1);
    client.sent("Checked", 0, &props(&[("a", "6")]), b"x");
    for good in ["a > 5", "TRUE", "a IS NOT NULL AND (b BETWEEN 1 AND 2 OR c NOT IN ('x', 'y'))"] {
        assert_eq!(client.check_subscription("Checked", ("SQL92", good)).code, 0, "{good}");
    }
    let long = format!("a = '{}'", "x".repeat(10 << 10));
    let deep = format!("{}a = 1{}", "(".repeat(1000), ")".repeat(1000));
    for (kind, bad, why) in [
        ("SQL92", "a >", "the expression ends"),
        ("SQL92", "a > 'x'", "only numbers have an order"),
        ("SQL92", "", "the expression ends"),
        ("SQL92", "5", "a condition is expected"),
        ("SQL92", &long, "limit 8192"),
        ("SQL92", &deep, "nested deeper than 100"),
        ("XPATH", "a = 1", "expression type XPATH is unknown"),
    ] {
        let checked = client.check_subscription("Checked", (kind, bad));
        let remark = checked.remark.unwrap_or_default();
        assert!(checked.code == 23 && remark.contains(why), "{bad}: {} {remark}", checked.code);
        // A push consumer that goes on all the same is told with each pull, and no broker thread is lost to it.
        client.heartbeat("L01", "Checked", (kind, bad), FROM_FIRST);
        let pulled = client.pull(&Pull { group: "L01", ..Pull::at("Checked", 0, 0).of("") });
        assert_eq!(pulled.code, 27, "{bad}: {}", pulled.remark);
        // A pull that carries its subscription has no filter then, as with Apache's broker.
        if !bad.is_empty() {
            let pulled = client.pull(&Pull { kind, ..Pull::at("Checked", 0, 0).of(bad) });
            assert_eq!(pulled.messages.len(), 1, "{bad}");
        }
    }
    server.check_healthy("L01");
}

/// Two tags with one hash, and odd texts.
#[test]
fn l02_tags_of_one_hash_reach_the_client_and_the_offset_moves_on() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("OneHash", 1);
    for tag in ["BB", "Cc", "Aa"] {
        client.sent("OneHash", 0, &props(&[("TAGS", tag)]), tag.as_bytes());
    }
    client.sent("OneHash", 0, "", b"none");
    for (text, want) in [
        ("Aa", vec!["BB", "Aa"]),
        (" Aa || Cc ", vec!["BB", "Cc", "Aa"]),
        ("*", vec!["BB", "Cc", "Aa", "none"]),
        ("Dd", vec![]),
    ] {
        let pulled = client.pull(&Pull::at("OneHash", 0, 0).of(text));
        assert_eq!(bodies(&pulled.messages), want, "{text}");
        assert_eq!((pulled.next, pulled.code), (4, if want.is_empty() { 20 } else { 0 }), "{text}");
    }
    assert_eq!(client.pull(&Pull::at("OneHash", 0, 0).of("||")).code, 23);
    server.check_healthy("L02");
}

/// By the pull's own text and by the group's heartbeat, hot and, after a restart, from the disk; with every number of shards.
#[test]
fn expressions_choose_by_properties_hot_and_cold() {
    for shards in [1, 2, 4] {
        let settings = format!("shards={shards}\nenablePropertyFilter=true");
        let mut server = Server::start(&format!("faults-filtered-by-{shards}"), &settings);
        let mut client = server.client();
        client.create_topic("Numbers", 4);
        (0..4).for_each(|queue| send_numbers(&mut client, "Numbers", queue, 40));
        for round in ["hot", "cold"] {
            for queue in 0..4 {
                let pull = Pull::at("Numbers", queue, 0);
                let pulled = client.pull(&pull.sql("n BETWEEN 7 AND 9 OR (n > 36 AND TAGS = 'even')"));
                assert_eq!(
                    (bodies(&pulled.messages), pulled.next),
                    (vec!["7".into(), "8".into(), "9".into(), "38".into()], 40)
                );
                let pulled = client.pull(&pull.sql("n > 100").now());
                assert_eq!((pulled.code, pulled.next, pulled.max), (20, 40, 40), "{round}");
                let pulled = client.pull(&Pull { count: 2, ..pull.sql("n >= 10") });
                assert_eq!((bodies(&pulled.messages), pulled.next), (vec!["10".into(), "11".into()], 12), "{round}");
                client.heartbeat("by-beat", "Numbers", ("SQL92", "n < 2"), FROM_FIRST);
                let own = Pull { group: "by-beat", ..pull.of("") };
                assert_eq!(bodies(&client.pull(&own).messages), ["0", "1"], "{round}, {shards} shards");
            }
            if round == "hot" {
                assert!(server.stop().success());
                server.start_again();
                client = server.client();
            }
        }
        server.check_healthy("filtered pulls");
    }
}

/// F07: the offset only moves forward and the one match far away is found.
#[test]
fn f07_a_rare_match_is_found_by_following_the_offset() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Rare", 1);
    client.send_many("Rare", 0, &props(&[("n", "1")]), 3000);
    client.sent("Rare", 0, &props(&[("n", "2")]), b"the one");
    let (mut pull, mut rounds) = (Pull::at("Rare", 0, 0).sql("n = 2").now(), 0);
    let found = loop {
        let pulled = client.pull(&pull);
        assert!(matches!(pulled.code, 0 | 20) && pulled.next > pull.offset, "{pulled:?}");
        pull.offset = pulled.next;
        rounds += 1;
        if pulled.code == 0 {
            break pulled;
        }
    };
    assert_eq!((bodies(&found.messages), found.next, rounds), (vec!["the one".into()], 3001, 4));
    server.check_healthy("F07");
}

/// A held pull is answered by the first message that matches and passes over those before it.
#[test]
fn a_held_pull_waits_for_a_match() {
    let server = SERVER.lease();
    let (mut client, mut puller) = (server.client(), server.client());
    client.create_topic("Held", 2);
    client.heartbeat("held", "Held", ("SQL92", "n > 5"), FROM_FIRST);
    for (queue, own) in [(0, true), (1, false)] {
        let mut pull = Pull::at("Held", queue, 0).sql("n > 5");
        if own {
            pull = Pull { group: "held", ..pull.of("") };
        }
        let mut asked = puller.ask_pull(&pull);
        for n in [1, 2, 3, 6, 7] {
            client.sent("Held", queue, &props(&[("n", &n.to_string())]), n.to_string().as_bytes());
        }
        // The first ones may have been there before the pull: it is told of them and goes on behind.
        let pulled = loop {
            let pulled = puller.pulled(asked);
            if pulled.code != 20 {
                break pulled;
            }
            assert!(pulled.next > pull.offset && pulled.next <= 3, "{pulled:?}");
            pull.offset = pulled.next;
            asked = puller.ask_pull(&pull);
        };
        assert_eq!((pulled.code, bodies(&pulled.messages)[0].as_str()), (0, "6"), "{pulled:?}");
        assert!(pulled.next == 4 || pulled.next == 5, "{pulled:?}");
    }
    server.check_healthy("held pulls");
}

/// `filterSupportRetry`: a retried message is asked what the group asks of its first topic.
#[test]
fn retried_messages_are_filtered_where_that_is_on() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Origin", 1);
    client.heartbeat("retrying", "Origin", ("SQL92", "n > 5"), FROM_FIRST);
    for n in ["4", "6"] {
        client.sent("%RETRY%retrying", 0, &props(&[("n", n), ("RETRY_TOPIC", "Origin")]), n.as_bytes());
    }
    let own = Pull { group: "retrying", ..Pull::at("%RETRY%retrying", 0, 0).of("") };
    assert_eq!(bodies(&client.pull(&own).messages), ["6"]);
    server.check_healthy("filtered retries");
}
