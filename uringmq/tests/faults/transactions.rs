//! Transactions: T01, T03, T04, and what a producer may rely on: all or nothing, once, across restarts and kill -9.
use crate::common::{Client, Message, Pull, Server, props};
use std::time::{SystemTime, UNIX_EPOCH};
use uringmq_proto::command::OwnedCommand;

const HALF: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
const OP: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
const ASIDE: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
const COMMIT: &str = "8";
const ROLLBACK: &str = "12";
/// Checks come soon, and three are enough.
const QUICK: &str = "transactionTimeOut=500\ntransactionCheckInterval=300\ntransactionCheckMax=3\ntransactionOpBatchInterval=100\n\
                     flushConsumerOffsetInterval=1000";
/// Nobody is asked while a test looks.
const SLOW: &str = "transactionTimeOut=3600000\ntransactionOpBatchInterval=100";

/// What a producer knows of its half: offsets in the half queue and the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Half {
    offset: i64,
    phy: i64,
    key: String,
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

fn try_send_half(
    client: &mut Client,
    topic: &str,
    queue: i32,
    group: &str,
    key: &str,
    more: &[(&str, &str)],
) -> OwnedCommand {
    let mut pairs = vec![("UNIQ_KEY", key), ("TRAN_MSG", "true"), ("PGROUP", group), ("TAGS", "TagA")];
    pairs.extend(more);
    pairs.retain(|(_, value)| !value.is_empty());
    let (queue, born, text) = (queue.to_string(), now_ms().to_string(), props(&pairs));
    let ext = [
        ("a", group),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue.as_str()),
        ("f", "4"), // as Java: prepared
        ("g", born.as_str()),
        ("h", "7"),
        ("i", text.as_str()),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    client.call(310, &ext, key.as_bytes())
}

/// The body is the key.
fn send_half(client: &mut Client, topic: &str, queue: i32, group: &str, key: &str, more: &[(&str, &str)]) -> Half {
    let answer = try_send_half(client, topic, queue, group, key, more);
    assert_eq!(answer.code, 0, "{key}: {:?}", answer.remark);
    assert_eq!(answer.get("queueId"), Some(queue.to_string().as_str()), "the queue that was asked for");
    assert_eq!(answer.get("transactionId"), Some(key));
    let id = answer.get("msgId").expect("an offset id");
    Half {
        offset: answer.get("queueOffset").and_then(|text| text.parse().ok()).expect("an offset"),
        phy: i64::from_str_radix(&id[16..], 16).expect("the log offset"),
        key: key.to_owned(),
    }
}

fn end_ext<'a>(
    group: &'a str,
    half: &'a Half,
    how: &'a str,
    from_check: &'a str,
    numbers: &'a [String; 2],
) -> Vec<(&'a str, &'a str)> {
    vec![
        ("producerGroup", group),
        ("tranStateTableOffset", &numbers[0]),
        ("commitLogOffset", &numbers[1]),
        ("commitOrRollback", how),
        ("fromTransactionCheck", from_check),
        ("msgId", &half.key),
        ("transactionId", &half.key),
    ]
}

fn try_end(client: &mut Client, group: &str, half: &Half, how: &str, from_check: bool) -> OwnedCommand {
    let numbers = [half.offset.to_string(), half.phy.to_string()];
    client.call(37, &end_ext(group, half, how, if from_check { "true" } else { "false" }, &numbers), b"")
}

fn end(client: &mut Client, group: &str, half: &Half, how: &str) {
    let answer = try_end(client, group, half, how, false);
    assert_eq!(answer.code, 0, "{half:?}: {:?}", answer.remark);
}

fn join(client: &mut Client, group: &str) {
    let body = format!(
        "{{\"clientID\":\"producer-of-{group}\",\"producerDataSet\":[{{\"groupName\":\"{group}\"}}],\"consumerDataSet\":[]}}"
    );
    client.ok(34, &[], body.as_bytes());
}

/// The next check that reaches this producer: the half it is about, as its newest copy, and the message in it.
fn next_check(client: &mut Client) -> (Half, Message) {
    loop {
        let got = client.receive().expect("a check");
        if got.code != 39 || got.flag & 1 != 0 {
            continue;
        }
        assert_eq!((got.flag & 2, got.get("topic"), got.get("bname").is_some()), (2, Some(HALF), true), "{got:?}");
        let number = |key| got.get(key).and_then(|text| text.parse().ok()).expect("a number");
        let half = Half {
            offset: number("tranStateTableOffset"),
            phy: number("commitLogOffset"),
            key: got.get("msgId").expect("the unique key").to_owned(),
        };
        let message = Message::all(&got.body).remove(0);
        assert_eq!(got.get("transactionId"), Some(half.key.as_str()));
        assert!(got.get("offsetMsgId").is_some_and(|id| id.ends_with(&format!("{:016X}", half.phy))));
        assert_eq!((message.queue_offset, message.phy_offset), (half.offset, half.phy));
        return (half, message);
    }
}

/// Reads checks until `key` was asked for `times` times; all keys in the order of asking.
fn checks_until(client: &mut Client, key: &str, times: usize) -> Vec<String> {
    let mut asked: Vec<String> = Vec::new();
    while asked.iter().filter(|of| *of == key).count() < times {
        asked.push(next_check(client).0.key);
    }
    asked
}

/// Everything in a queue now.
fn all(client: &mut Client, topic: &str, queue: i32) -> Vec<Message> {
    let max = client.bounds(topic, queue).1;
    client.pull_all(topic, queue, 0, max as usize)
}

fn keys(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|m| String::from_utf8(m.body.clone()).expect("a key")).collect()
}

/// Waits until so many halves were set aside. The first one makes the topic.
fn aside(client: &mut Client, count: usize) -> Vec<Message> {
    let (mut all, mut pull) = (Vec::new(), Pull::at(ASIDE, 0, 0));
    for _ in 0..1000 {
        let pulled = client.pull(&pull);
        all.extend(pulled.messages);
        if all.len() >= count {
            return all;
        }
        match pulled.code {
            17 => drop(client.pull(&Pull { suspend_ms: 100, ..Pull::at("Pause", 0, 0) })), // held for a while
            _ => pull.offset = pulled.next,
        }
    }
    panic!("only {} of {count} were set aside", all.len());
}

/// Waits until op messages name so many halves.
fn await_ops(client: &mut Client, count: usize) -> Vec<i64> {
    let (mut named, mut pull) = (Vec::new(), Pull::at(OP, 0, 0));
    while named.len() < count {
        let pulled = client.pull(&pull);
        for op in &pulled.messages {
            assert_eq!(op.prop("TAGS"), Some("d"));
            let text = std::str::from_utf8(&op.body).expect("text");
            assert!(text.ends_with(','), "{text}");
            named.extend(text.trim_end_matches(',').split(',').map(|n| n.parse::<i64>().expect("a number")));
        }
        pull.offset = pulled.next;
    }
    named
}

#[test]
fn a_half_is_seen_when_it_is_committed_and_only_then() {
    for shards in [1, 2, 4] {
        let server = Server::start(&format!("faults-transactions-{shards}"), &format!("{SLOW}\nshards={shards}"));
        let mut client = server.client();
        client.create_topic("Paid", 4);
        let halves: Vec<Half> =
            (0..8).map(|n| send_half(&mut client, "Paid", n % 4, "p", &format!("k{n}"), &[("a", "1")])).collect();
        assert_eq!(halves.iter().map(|half| half.offset).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        for queue in 0..4 {
            assert_eq!(client.bounds("Paid", queue), (0, 0), "nothing is seen of a half");
        }
        let stored = all(&mut client, HALF, 0).remove(5);
        for (name, value) in [
            ("REAL_TOPIC", "Paid"),
            ("REAL_QID", "1"),
            ("TRAN_MSG", "true"),
            ("PGROUP", "p"),
            ("__transactionId__", "k5"),
        ] {
            assert_eq!(stored.prop(name), Some(value), "{name}");
        }
        assert_eq!((stored.sys_flag & 0xC, stored.prepared_transaction_offset), (0, 0));
        for (half, how) in halves.iter().zip([COMMIT, ROLLBACK].into_iter().cycle()) {
            end(&mut client, "p", half, how);
        }
        for queue in 0..4 {
            let want: &[&str] = match queue {
                0 => &["k0", "k4"],
                2 => &["k2", "k6"],
                _ => &[],
            };
            assert_eq!(keys(&all(&mut client, "Paid", queue)), want, "{shards} shards, queue {queue}");
        }
        let paid = all(&mut client, "Paid", 2).remove(1);
        assert_eq!((paid.sys_flag & 0xC, paid.prepared_transaction_offset, paid.flag), (8, halves[6].phy, 7));
        for (name, value) in [
            ("REAL_TOPIC", None),
            ("REAL_QID", None),
            ("TRAN_MSG", Some("true")),
            ("PGROUP", Some("p")),
            ("__transactionId__", Some("k6")),
            ("UNIQ_KEY", Some("k6")),
            ("TAGS", Some("TagA")),
            ("a", Some("1")),
        ] {
            assert_eq!(paid.prop(name), value, "{name}");
        }
        assert_eq!(client.pull(&Pull::at("Paid", 2, 0).of("TagA")).messages.len(), 2, "its tag counts");
        let mut named = await_ops(&mut client, 8);
        named.sort_unstable();
        assert_eq!(named, (0..8).collect::<Vec<_>>());
        server.check_healthy("transactions");
    }
}

#[test]
fn an_end_that_names_no_half_changes_nothing() {
    let server = Server::start("faults-transactions-bad", SLOW);
    let mut client = server.client();
    client.create_topic("Bad", 1);
    let plain = client.sent("Bad", 0, "", b"plain");
    let half = send_half(&mut client, "Bad", 0, "p", "k", &[]);
    let plain_phy = i64::from_str_radix(&plain.msg_id[16..], 16).expect("an offset");
    for (group, named, how, want) in [
        ("q", half.clone(), COMMIT, "The producer group wrong"),
        ("p", Half { offset: half.offset + 1, ..half.clone() }, COMMIT, "The transaction state table offset wrong"),
        ("p", Half { phy: half.phy + 1, ..half.clone() }, COMMIT, "Find prepared transaction message failed"),
        ("p", Half { phy: -1, ..half.clone() }, ROLLBACK, "Find prepared transaction message failed"),
        ("p", Half { phy: i64::MAX, ..half.clone() }, ROLLBACK, "Find prepared transaction message failed"),
        ("p", Half { phy: plain_phy, ..half.clone() }, COMMIT, "Find prepared transaction message failed"),
        ("p", half.clone(), "4", "commitOrRollback field wrong"),
        ("p", half.clone(), "-8", "commitOrRollback field wrong"),
    ] {
        let answer = try_end(&mut client, group, &named, how, false);
        let remark = answer.remark.unwrap_or_default();
        assert!(answer.code == 1 && remark.contains(want), "{group} {named:?} {how}: {} {remark}", answer.code);
    }
    // Not known yet: no answer at all. The next answer on this connection is the next question's.
    let numbers = [half.offset.to_string(), half.phy.to_string()];
    client.ask(37, 0, &end_ext("p", &half, "0", "false", &numbers), b"");
    assert_eq!(client.bounds("Bad", 0), (0, 1));
    // A commit and its repetition, and a rollback that comes too late.
    for how in [COMMIT, COMMIT, ROLLBACK] {
        end(&mut client, "p", &half, how);
    }
    assert_eq!(keys(&all(&mut client, "Bad", 0)), ["plain", "k"], "once");
    // A rollback is final too.
    let half = send_half(&mut client, "Bad", 0, "p", "k2", &[]);
    for how in [ROLLBACK, COMMIT] {
        end(&mut client, "p", &half, how);
    }
    assert_eq!(client.bounds("Bad", 0), (0, 2));
    server.check_healthy("ends that name no half");
}

#[test]
fn halves_are_refused_where_they_are_switched_off_or_in_a_batch() {
    let server = Server::start("faults-transactions-off", "rejectTransactionMessage=true");
    let mut client = server.client();
    client.create_topic("Off", 1);
    let answer = try_send_half(&mut client, "Off", 0, "p", "k", &[]);
    let remark = answer.remark.unwrap_or_default();
    assert!(
        answer.code == 16 && remark.ends_with("sending transaction message is forbidden"),
        "{} {remark}",
        answer.code
    );
    assert_eq!((client.bounds("Off", 0), client.bounds(HALF, 0)), ((0, 0), (0, 0)));
    assert_eq!(client.send(HALF, 0, "", b"x").code, 16, "only the broker writes there");
    server.check_healthy("refused halves");
}

/// The commit is what is delayed, not the half.
#[test]
fn a_committed_half_keeps_its_delay() {
    let server = Server::start("faults-transactions-delay", SLOW);
    let mut client = server.client();
    client.create_topic("Later", 1);
    let half = send_half(&mut client, "Later", 0, "p", "k", &[("DELAY", "1")]);
    end(&mut client, "p", &half, COMMIT);
    let committed = all(&mut client, "SCHEDULE_TOPIC_XXXX", 0).remove(0);
    let delivered = client.pull_all("Later", 0, 0, 1).remove(0);
    assert_eq!(delivered.body, b"k");
    assert!(delivered.store_timestamp_ms - committed.store_timestamp_ms >= 1000, "level 1 is a second");
    server.check_healthy("delayed transactions");
}

/// Waiting for an immune half costs none of its checks; then it is checked as often as is said, set aside, and may be resumed.
#[test]
fn t01_immunity_costs_no_check_and_what_is_set_aside_can_be_resumed() {
    let server = Server::start("faults-transactions-immune", QUICK);
    let (mut client, mut producer) = (server.client(), server.client());
    client.create_topic("Immune", 1);
    join(&mut producer, "p");
    send_half(
        &mut client,
        "Immune",
        0,
        "p",
        "k",
        &[("CHECK_IMMUNITY_TIME_IN_SECONDS", "3"), ("TRANSACTION_CHECK_TIMES", "99")],
    );
    let born = all(&mut client, HALF, 0).remove(0).born_timestamp_ms;
    for times in 1..=3 {
        let (half, message) = next_check(&mut producer);
        assert_eq!((half.key.as_str(), message.topic.as_str(), message.queue_id), ("k", "Immune", 0));
        assert_eq!(message.prop("TRANSACTION_CHECK_TIMES"), Some(times.to_string().as_str()));
        assert!(message.store_timestamp_ms - born > 3000, "checked while immune");
        // Too late for the producer itself by now; this is no answer to the check.
        let late = try_end(&mut client, "p", &half, COMMIT, false);
        assert_eq!(late.code, 604, "{:?}", late.remark);
    }
    client.create_topic("Pause", 1);
    let aside = aside(&mut client, 1).remove(0);
    assert_eq!((aside.prop("REAL_TOPIC"), aside.body.as_slice()), (Some("Immune"), &b"k"[..]));
    let id = format!("7F000001{:08X}{:016X}", server.broker.port(), aside.phy_offset);
    for bad in ["", "x", &id[..30], &format!("{}{:016X}", &id[..16], 0)] {
        assert_eq!(client.call(323, &[("topic", "Immune"), ("msgId", bad)], b"").code, 1, "{bad}");
    }
    client.ok(323, &[("topic", "Immune"), ("msgId", &id)], b"");
    let (half, message) = next_check(&mut producer);
    assert_eq!(message.prop("TRANSACTION_CHECK_TIMES"), Some("1"));
    assert_eq!(try_end(&mut client, "p", &half, COMMIT, true).code, 0);
    assert_eq!(keys(&all(&mut client, "Immune", 0)), ["k"]);
    server.check_healthy("T01");
}

/// Bad halves stop nobody.
#[test]
fn t03_bad_halves_are_set_aside_and_the_good_ones_are_checked() {
    let server = Server::start("faults-transactions-odd", QUICK);
    let (mut client, mut producer) = (server.client(), server.client());
    client.create_topic("Odd", 1);
    join(&mut producer, "p");
    for (n, bad) in [
        [("CHECK_IMMUNITY_TIME_IN_SECONDS", "abc"), ("REAL_TOPIC", "")],
        [("REAL_TOPIC", "Elsewhere"), ("REAL_QID", "-1")],
        [("TRAN_PREPARED_QUEUE_OFFSET", "5"), ("TRANSACTION_CHECK_TIMES", "-7")],
        [("TRAN_PREPARED_QUEUE_OFFSET", "x"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", "-9")],
    ]
    .iter()
    .enumerate()
    {
        send_half(&mut client, "Odd", 0, "p", &format!("bad{n}"), bad);
        let nobody = if n % 2 == 0 { "" } else { "nobody-is-there" };
        send_half(&mut client, "Odd", 0, nobody, &format!("lost{n}"), bad);
    }
    let good: Vec<Half> = (0..10).map(|n| send_half(&mut client, "Odd", 0, "p", &format!("good{n}"), &[])).collect();
    let mut seen = std::collections::BTreeSet::new();
    while good.iter().any(|half| !seen.contains(&half.key)) {
        let (half, message) = next_check(&mut producer);
        assert_eq!((message.topic.as_str(), message.queue_id), ("Odd", 0), "where it was sent to");
        if half.key.starts_with("good") && seen.insert(half.key.clone()) {
            assert_eq!(try_end(&mut client, "p", &half, COMMIT, true).code, 0);
        }
    }
    let mut delivered = keys(&all(&mut client, "Odd", 0));
    delivered.sort_unstable();
    assert_eq!(delivered, good.iter().map(|half| half.key.clone()).collect::<Vec<_>>());
    // Those of whom nobody said anything are set aside in the end: none was lost.
    client.create_topic("Pause", 1);
    let mut aside = keys(&aside(&mut client, 8));
    aside.sort_unstable();
    assert_eq!(aside, ["bad0", "bad1", "bad2", "bad3", "lost0", "lost1", "lost2", "lost3"]);
    server.check_healthy("T03");
}

/// After a clean stop, and after kill -9 once the op messages are written, nobody is asked about what is over.
#[test]
fn t04_what_is_over_is_not_checked_after_a_restart() {
    let settings = QUICK.replace("TimeOut=500", "TimeOut=3000"); // not one is slow to be ended
    let mut server = Server::start("faults-transactions-over", &format!("{settings}\nshards=2"));
    for (round, kill) in [false, true, true].into_iter().enumerate() {
        let mut client = server.client();
        client.create_topic(&format!("Over{round}"), 2);
        let topic = format!("Over{round}");
        for n in 0..200 {
            let half = send_half(&mut client, &topic, n % 2, "p", &format!("{round}-{n}"), &[]);
            end(&mut client, "p", &half, if n < 100 { COMMIT } else { ROLLBACK });
        }
        if kill {
            await_ops(&mut client, 200 * (round + 1));
            server.kill();
        } else {
            assert!(server.stop().success());
        }
        server.start_again();
        let (mut client, mut producer) = (server.client(), server.client());
        join(&mut producer, "p");
        let marker = format!("marker{round}");
        send_half(&mut client, &topic, 0, "p", &marker, &[]);
        let asked = checks_until(&mut producer, &marker, 3);
        assert_eq!(asked, [marker.as_str(); 3], "round {round}");
        let seen = client.bounds(&topic, 0).1 + client.bounds(&topic, 1).1;
        assert_eq!(seen, 100, "round {round}");
    }
    server.check_healthy("T04");
}

/// A half that is checked goes on as a copy; whichever copy is ended, it is over, and stored once.
#[test]
fn any_copy_of_a_half_ends_it_once() {
    let server = Server::start("faults-transactions-copies", &QUICK.replace("CheckMax=3", "CheckMax=1000"));
    let (mut client, mut producer) = (server.client(), server.client());
    client.create_topic("Copies", 1);
    join(&mut producer, "p");
    let first = send_half(&mut client, "Copies", 0, "p", "first", &[]);
    let newest = send_half(&mut client, "Copies", 0, "p", "newest", &[]);
    let never = send_half(&mut client, "Copies", 0, "p", "never", &[]);
    send_half(&mut client, "Copies", 0, "p", "marker", &[]);
    checks_until(&mut producer, "marker", 2);
    let (mut copies, mut others) = (Vec::new(), 0);
    while copies.is_empty() || others == 0 {
        let (half, _) = next_check(&mut producer);
        match half.key.as_str() {
            "newest" => copies.push(half),
            "marker" => others += 1,
            _ => {}
        }
    }
    // By the offsets of the send's answer, by those of a check, and both.
    end(&mut client, "p", &first, COMMIT);
    end(&mut client, "p", &copies[0], COMMIT);
    end(&mut client, "p", &newest, COMMIT);
    end(&mut client, "p", &never, ROLLBACK);
    end(&mut client, "p", &never, COMMIT);
    // A check may have been on its way. From the next one of the marker on, it is alone.
    checks_until(&mut producer, "marker", 2);
    assert_eq!(checks_until(&mut producer, "marker", 3), ["marker"; 3]);
    assert_eq!(keys(&all(&mut client, "Copies", 0)), ["first", "newest"]);
    server.check_healthy("ended copies");
}

/// kill -9 while halves are put back over and over: each is still one half, and none is lost.
#[test]
fn open_halves_survive_kill_nine_as_one() {
    let mut server = Server::start(
        "faults-transactions-killed",
        &format!("{}\nshards=4", QUICK.replace("CheckMax=3", "CheckMax=1000")),
    );
    let mut client = server.client();
    client.create_topic("Survives", 1);
    let halves: Vec<Half> =
        (0..20).map(|n| send_half(&mut client, "Survives", 0, "p", &format!("k{n}"), &[])).collect();
    for _ in 0..3 {
        let mut producer = server.client();
        join(&mut producer, "p");
        checks_until(&mut producer, "k7", 2); // and is killed in the middle of a pass
        server.kill();
        server.start_again();
    }
    let (mut client, mut producer) = (server.client(), server.client());
    for (n, half) in halves.iter().enumerate().take(10) {
        end(&mut client, "p", half, if n % 2 == 0 { COMMIT } else { ROLLBACK });
    }
    join(&mut producer, "p");
    let mut open: std::collections::BTreeSet<String> = halves[10..].iter().map(|half| half.key.clone()).collect();
    while !open.is_empty() {
        let (half, _) = next_check(&mut producer);
        if open.remove(&half.key) {
            assert_eq!(try_end(&mut client, "p", &half, COMMIT, true).code, 0);
        }
    }
    send_half(&mut client, "Survives", 0, "p", "marker", &[]);
    checks_until(&mut producer, "marker", 1);
    assert_eq!(checks_until(&mut producer, "marker", 3), ["marker"; 3]);
    let mut seen = keys(&all(&mut client, "Survives", 0));
    seen.sort_unstable();
    let mut want: Vec<String> = (0..20).filter(|n| *n >= 10 || n % 2 == 0).map(|n| format!("k{n}")).collect();
    want.sort_unstable();
    assert_eq!(seen, want, "each once");
    server.check_healthy("killed transactions");
}

/// Any live producer of the group is asked, and what it says counts.
#[test]
fn another_producer_of_the_group_is_asked() {
    let server = Server::start("faults-transactions-group", &QUICK.replace("CheckMax=3", "CheckMax=1000"));
    let (mut client, mut gone, mut stays, mut stranger) =
        (server.client(), server.client(), server.client(), server.client());
    client.create_topic("Group", 1);
    join(&mut gone, "p");
    join(&mut stranger, "other");
    send_half(&mut gone, "Group", 0, "p", "k", &[]);
    next_check(&mut gone);
    join(&mut stays, "p");
    drop(gone);
    let (half, _) = next_check(&mut stays);
    assert_eq!(try_end(&mut client, "p", &half, COMMIT, true).code, 0);
    assert_eq!(keys(&all(&mut client, "Group", 0)), ["k"]);
    send_half(&mut client, "Group", 0, "other", "marker", &[]);
    assert_eq!(checks_until(&mut stranger, "marker", 1), ["marker"], "a stranger is never asked of k");
    server.check_healthy("checks of a group");
}
