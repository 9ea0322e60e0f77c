//! Messages sent back, and delayed ones: R01, R03, S11.
use crate::common::{Client, Message, Pull, Server, Shared, props, send_ext};
use std::time::{Duration, Instant};

static SERVER: Shared = Shared::new("faults-retry", "shards=2\nenablePropertyFilter=true");

/// Stores a message that was tried `times` times already; the message as it is stored.
fn tried(client: &mut Client, topic: &str, properties: &str, times: &str) -> Message {
    let answer = client.ok(310, &send_ext(topic, "0", properties, times), b"undigested");
    let offset = answer.get("queueOffset").and_then(|text| text.parse().ok()).expect("an offset");
    client.pull(&Pull::at(topic, 0, offset)).messages.remove(0)
}

fn send_back(client: &mut Client, message: &Message, group: &str, level: &str, limit: &str) {
    let ext: [(&str, &str); 7] = [
        ("offset", &message.phy_offset.to_string()),
        ("group", group),
        ("delayLevel", level),
        ("originMsgId", message.prop("UNIQ_KEY").unwrap_or_default()),
        ("originTopic", &message.topic),
        ("unitMode", "false"),
        ("maxReconsumeTimes", limit),
    ];
    client.ok(36, &ext, b"");
}

/// The last failure leads to the dead letters at once, whatever the level: level 18 would take two hours.
#[test]
fn r01_dead_letters_are_not_delayed() {
    let server = SERVER.lease();
    let mut client = server.client();
    for (limit, times) in [("0", "0"), ("1", "1"), ("16", "16"), ("1", "16"), ("-1", "0")] {
        let group = format!("R01-{limit}-{times}");
        client.heartbeat(&group, "Undigested", ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
        let text = props(&[("UNIQ_KEY", &format!("UNIQ-{group}")), ("KEYS", "key"), ("DELAY", "0")]);
        let message = tried(&mut client, "Undigested", &text, times);
        send_back(&mut client, &message, &group, "18", limit);
        let dead = client.pull_all(&format!("%DLQ%{group}"), 0, 0, 1).remove(0);
        assert_eq!(dead.body, b"undigested");
        let delay = dead.prop("DELAY").map_or(0, |text| text.parse::<i32>().expect("a number"));
        assert!(delay <= 0, "{}", dead.properties);
        assert_eq!(dead.prop("REAL_TOPIC"), None, "{}", dead.properties);
        assert_eq!(dead.prop("UNIQ_KEY"), message.prop("UNIQ_KEY"));
        assert_eq!(dead.prop("KEYS"), Some("key"));
        assert_eq!(dead.prop("RETRY_TOPIC"), Some("Undigested"));
        let origin = dead.prop("ORIGIN_MESSAGE_ID").expect("the first id");
        assert!(origin.ends_with(&format!("{:016X}", message.phy_offset)), "{origin}");
        let none_left = client.pull(&Pull::at(&format!("%RETRY%{group}"), 0, 0).now());
        assert_eq!((none_left.code, none_left.max), (19, 0), "{none_left:?}");
    }
    server.check_healthy("R01");
}

#[test]
fn r03_what_a_filter_let_through_comes_back() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Filtered", 1);
    for (group, expression) in
        [("R03-tag", ("TAG", "TagA")), ("R03-tags", ("TAG", "TagA || TagB")), ("R03-sql", ("SQL92", "a > 5"))]
    {
        client.heartbeat(group, "Filtered", expression, "CONSUME_FROM_FIRST_OFFSET");
        let message = tried(&mut client, "Filtered", &props(&[("TAGS", "TagA"), ("a", "6")]), "0");
        send_back(&mut client, &message, group, "1", "16"); // level 1 is a second
        let retry = format!("%RETRY%{group}");
        // By the group's own subscription, as a push consumer pulls.
        let own = Pull { group, ..Pull::at(&retry, 0, 0).of("") };
        let pulled = client.pull(&own);
        assert_eq!((pulled.code, pulled.messages.len()), (0, 1), "{group}: {pulled:?}");
        let back = &pulled.messages[0];
        assert_eq!((back.body.as_slice(), back.reconsume_times), (&b"undigested"[..], 1));
        assert_eq!(
            (back.prop("TAGS"), back.prop("a"), back.prop("RETRY_TOPIC")),
            (Some("TagA"), Some("6"), Some("Filtered"))
        );
        // And by the tag itself.
        let tagged = client.pull(&Pull { group, ..Pull::at(&retry, 0, 0).of("TagA") });
        assert_eq!((tagged.code, tagged.messages.len()), (0, 1), "{group}: {tagged:?}");
    }
    server.check_healthy("R03");
}

/// Waits for a message with this body at or behind `from`; its offset.
fn comes(client: &mut Client, topic: &str, from: i64, body: &[u8]) -> i64 {
    let began = Instant::now();
    let mut at = from;
    loop {
        let pulled = client.pull(&Pull { suspend_ms: 1000, ..Pull::at(topic, 0, at) });
        if let Some(found) = pulled.messages.iter().find(|m| m.body == body) {
            return found.queue_offset;
        }
        at += pulled.messages.len() as i64;
        assert!(began.elapsed() < Duration::from_secs(60), "{} bytes did not come to {topic}", body.len());
    }
}

/// What just fits is larger once it is delayed or sent back; neither may stop what waits behind it, nor fill the log.
#[test]
fn s11_what_just_fits_blocks_no_level() {
    let mut server =
        Server::start("faults-retry-large", "shards=2\nmaxMessageSize=65536\nmessageDelayLevel=1s 2s 3s 4s");
    let mut client = server.client();
    client.create_topic("Large", 1);
    let filler = "p".repeat(480);
    let (mut refused, mut stored) = (0, 0);
    for bytes in [64_000, 64_700, 65_000, 65_400, 65_536] {
        let text = props(&[("filler", &filler), ("DELAY", "1")]);
        let sent = client.send("Large", 0, &text, &vec![b'L'; bytes]);
        match sent.code {
            0 => stored += 1,
            _ => refused += 1,
        }
    }
    assert!(stored > 0, "{refused} refused");
    let small = props(&[("DELAY", "1")]);
    client.sent("Large", 0, &small, b"small behind the large");
    comes(&mut client, "Large", 0, b"small behind the large");
    let (_, delivered) = client.bounds("Large", 0);
    assert_eq!(delivered, stored + 1, "each that was accepted is delivered, once");

    // And sent back.
    let group = "S11";
    client.heartbeat(group, "Large", ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
    let large = client.pull(&Pull::at("Large", 0, 0)).messages.remove(0);
    send_back(&mut client, &large, group, "1", "16");
    let retry = format!("%RETRY%{group}");
    comes(&mut client, &retry, 0, &large.body);
    client.sent("Large", 0, &small, b"small behind the retry");
    comes(&mut client, "Large", delivered, b"small behind the retry");
    server.kill();
    server.start_again();
    let mut client = server.client();
    client.sent("Large", 0, &small, b"small after a restart");
    let at = comes(&mut client, "Large", delivered, b"small after a restart");
    // Progress is saved now and then: what was delivered before the kill may come once more.
    assert!(at <= 2 * (delivered + 1), "nothing goes round: offset {at} of {delivered}");
    server.check_healthy("S11");
}

/// As many levels as are configured, with their times; what asks for more gets the last.
#[test]
fn custom_delay_levels() {
    let server = Server::start("faults-retry-levels", "shards=2\nmessageDelayLevel=1s 4s 2s");
    let mut client = server.client();
    client.create_topic("Levels", 1);
    for (level, body) in [("2", "four seconds"), ("3", "two seconds"), ("18", "the last"), ("1", "soon")] {
        client.sent("Levels", 0, &props(&[("DELAY", level)]), body.as_bytes());
    }
    let all = client.pull_all("Levels", 0, 0, 4);
    let bodies: Vec<&[u8]> = all.iter().map(|message| message.body.as_slice()).collect();
    assert_eq!(bodies, [&b"soon"[..], b"two seconds", b"the last", b"four seconds"]);
    for (message, (level, delay_ms)) in all.iter().zip([("1", 1000), ("3", 2000), ("3", 2000), ("2", 4000)]) {
        let queue = level.parse::<i32>().expect("a number") - 1;
        let max = client.bounds("SCHEDULE_TOPIC_XXXX", queue).1 as usize;
        let waited = client.pull_all("SCHEDULE_TOPIC_XXXX", queue, 0, max);
        let waited = waited.iter().find(|waited| waited.body == message.body).expect("it waited there");
        assert_eq!(message.prop("DELAY"), Some(level));
        assert!(message.store_timestamp_ms - waited.store_timestamp_ms >= delay_ms, "early: {message:?}");
    }
    server.check_healthy("custom levels");
}

/// They are kept and told. A send-back goes by the table of levels all the same, as with Apache's remoting broker.
#[test]
fn retry_policies_of_groups_are_kept() {
    let mut server = Server::start("faults-retry-policies", "shards=2\nmessageDelayLevel=1s 1s 1s 1s");
    let policies = [
        ("customised", r#"{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[3600000,7200000]}}"#),
        (
            "exponential",
            r#"{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":3600000,"max":7200000,"multiplier":3}}"#,
        ),
    ];
    let mut client = server.client();
    for (group, policy) in policies {
        client.ok(200, &[], format!(r#"{{"groupName":"{group}","groupRetryPolicy":{policy}}}"#).as_bytes());
    }
    for restarted in [false, true] {
        if restarted {
            server.kill();
            server.start_again();
        }
        let mut client = server.client();
        for (group, policy) in policies {
            let told: serde_json::Value =
                serde_json::from_slice(&client.ok(352, &[("group", group)], b"").body).expect("a group");
            let want: serde_json::Value = serde_json::from_str(policy).expect("JSON");
            assert_eq!(told["groupRetryPolicy"], want, "{group}, restarted: {restarted}");
        }
    }
    let mut client = server.client();
    client.create_topic("Policies", 1);
    for (group, _) in policies {
        client.heartbeat(group, "Policies", ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
        let message = tried(&mut client, "Policies", "", "0");
        send_back(&mut client, &message, group, "0", "16"); // an hour by its policy
        comes(&mut client, &format!("%RETRY%{group}"), 0, b"undigested");
    }
    server.check_healthy("retry policies");
}
