//! Looking messages up by key: S01, S03, S04, S05.
use crate::common::{Client, Message, Shared, props};
use std::time::{Duration, Instant};

static SERVER: Shared = Shared::new("faults-query", "shards=2");

const UNIQUE: (&str, &str) = ("_UNIQUE_KEY_QUERY", "true");

/// Asks until `count` messages are found: the index follows the log, a send's answer does not wait for it.
fn found(client: &mut Client, topic: &str, key: &str, more: &[(&str, &str)], count: usize) -> Vec<Message> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let (code, messages) = client.query(topic, key, more);
        if messages.len() >= count || Instant::now() > until {
            assert_eq!(messages.len(), count, "{topic} {key:?} {more:?}: code {code}");
            return messages;
        }
    }
}

fn none(client: &mut Client, topic: &str, key: &str, more: &[(&str, &str)]) {
    let (code, messages) = client.query(topic, key, more);
    assert_eq!((code, messages.len()), (22, 0), "{topic} {key:?} {more:?}");
}

fn bodies(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|m| String::from_utf8_lossy(&m.body).into_owned()).collect()
}

#[test]
fn s01_equal_hashes_of_topic_and_key_are_told_apart() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.sent("AaTopic", 0, &props(&[("KEYS", "Aa")]), b"first");
    client.sent("BBTopic", 0, &props(&[("KEYS", "BB")]), b"second");
    assert_eq!(bodies(&found(&mut client, "AaTopic", "Aa", &[], 1)), ["first"]);
    assert_eq!(bodies(&found(&mut client, "BBTopic", "BB", &[], 1)), ["second"]);
    for (topic, key) in [("AaTopic", "BB"), ("BBTopic", "Aa"), ("AaTopic", "AaTopic"), ("Aa", "Topic#Aa")] {
        none(&mut client, topic, key, &[]);
        none(&mut client, topic, key, &[UNIQUE]);
    }
    server.check_healthy("S01");
}

#[test]
fn s03_counts_and_times_at_their_limits_are_no_error() {
    let server = SERVER.lease();
    let mut client = server.client();
    let text = props(&[("KEYS", "many")]);
    (0..100).for_each(|n: u32| drop(client.sent("Limits", 1, &text, n.to_string().as_bytes())));
    client.sent("Limits", 1, &props(&[("KEYS", "last")]), b"last");
    let last = found(&mut client, "Limits", "last", &[], 1).remove(0); // from here on the index has them all
    for (max, least, most) in [("-1", 0, 0), ("-2147483648", 0, 0), ("0", 0, 0), ("1", 1, 1), ("2147483647", 1, 64)] {
        let (code, messages) = client.query("Limits", "many", &[("maxNum", max)]);
        assert!(matches!(code, 0 | 22) && (least..=most).contains(&messages.len()), "{max}: {code} {}", messages.len());
    }
    let (at, before, after) = (last.store_timestamp_ms, last.store_timestamp_ms - 1, last.store_timestamp_ms + 1);
    let (max, min) = (i64::MAX, i64::MIN);
    for (begin, end, count) in [
        (at, at, 1),
        (after, before, 0),
        (0, 0, 0),
        (0, max, 1),
        (min, max, 1),
        (max, max, 0),
        (max, min, 0),
        (0, before, 0),
        (at, max, 1),
        (after, max, 0),
    ] {
        let range: [(&str, &str); 2] = [("beginTimestamp", &begin.to_string()), ("endTimestamp", &end.to_string())];
        let (code, messages) = client.query("Limits", "last", &range);
        assert_eq!((code, messages.len()), (if count == 0 { 22 } else { 0 }, count), "{begin}..{end}");
    }
    for key in ["", " ", &"k".repeat(64 << 10), "\u{0}", "中"] {
        none(&mut client, "Limits", key, &[]);
        none(&mut client, "Limits", key, &[UNIQUE]);
    }
    server.check_healthy("S03");
}

#[test]
fn s04_each_word_of_the_keys_finds_its_message_once() {
    let server = SERVER.lease();
    let mut client = server.client();
    for (n, keys) in ["k1 k2 k1", " lead", "trail ", "a1  a2"].iter().enumerate() {
        let uniq = format!("UNIQ{n}");
        client.sent("Words", 0, &props(&[("KEYS", keys), ("UNIQ_KEY", &uniq), ("TAGS", "TheTag")]), uniq.as_bytes());
    }
    for more in [&[][..], &[("indexType", "K")]] {
        for (key, want) in [("k1", 0), ("k2", 0), ("lead", 1), ("trail", 2), ("a1", 3), ("a2", 3), ("UNIQ2", 2)] {
            assert_eq!(bodies(&found(&mut client, "Words", key, more, 1)), [format!("UNIQ{want}")], "{key} {more:?}");
        }
        for key in ["", "k1 k2", "k1 k2 k1", " lead", "k", "K1", "TheTag"] {
            none(&mut client, "Words", key, more);
        }
    }
    for more in [&[UNIQUE][..], &[("indexType", "U")], &[UNIQUE, ("indexType", "U")]] {
        assert_eq!(bodies(&found(&mut client, "Words", "UNIQ0", more, 1)), ["UNIQ0"], "{more:?}");
        none(&mut client, "Words", "k1", more);
        none(&mut client, "Words", "", more);
    }
    server.check_healthy("S04");
}

#[test]
fn s05_both_copies_of_a_unique_key_are_found() {
    let server = SERVER.lease();
    let mut client = server.client();
    let text = props(&[("UNIQ_KEY", "7F0000010001TWICE")]);
    client.sent("Twice", 0, &text, b"first try");
    client.sent("Twice", 3, &text, b"second try");
    for more in [&[UNIQUE][..], &[("indexType", "U")]] {
        let mut both = bodies(&found(&mut client, "Twice", "7F0000010001TWICE", more, 2));
        both.sort_unstable();
        assert_eq!(both, ["first try", "second try"], "{more:?}");
    }
    server.check_healthy("S05");
}
