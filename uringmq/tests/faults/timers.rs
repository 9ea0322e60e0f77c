//! Arbitrary timers: D01, D04, D06, D08, and what a producer may rely on: never early, in the order of the times, none lost across restarts
//! and kill -9, one that cannot be delivered never in the way of others.
use crate::common::{Client, Message, Pull, Server, props};
use std::time::{SystemTime, UNIX_EPOCH};
use uringmq_proto::command::OwnedCommand;
use uringmq_proto::recall;

const TIMER: &str = "rmq_sys_wheel_timer";
const RECALLS: &str = "recallMessageEnable=true";

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

fn try_send(client: &mut Client, topic: &str, key: &str, more: &[(&str, &str)]) -> OwnedCommand {
    let mut pairs = vec![("UNIQ_KEY", key), ("TAGS", "TagA")];
    pairs.extend(more);
    let (born, text) = (now_ms().to_string(), props(&pairs));
    let ext = [
        ("a", "timer-producer"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "0"),
        ("f", "0"),
        ("g", born.as_str()),
        ("h", "0"),
        ("i", text.as_str()),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    client.call(310, &ext, key.as_bytes())
}

/// Sends a message whose body is its key; its recall handle.
fn send(client: &mut Client, topic: &str, key: &str, more: &[(&str, &str)]) -> Option<String> {
    let answer = try_send(client, topic, key, more);
    assert_eq!(answer.code, 0, "{key}: {:?}", answer.remark);
    assert_eq!(answer.get("queueId"), Some("0"), "the queue that was asked for");
    answer.get("recallHandle").map(str::to_owned)
}

fn keys(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
}

/// Everything in a queue now.
fn all(client: &mut Client, topic: &str) -> Vec<Message> {
    let max = client.bounds(topic, 0).1;
    client.pull_all(topic, 0, 0, max as usize)
}

/// Waits for `count` messages of a topic that had none.
fn wait_for(client: &mut Client, topic: &str, count: usize) -> Vec<Message> {
    let (mut all, mut pull) = (Vec::new(), Pull::at(topic, 0, 0));
    while all.len() < count {
        let pulled = client.pull(&pull);
        assert_eq!(pulled.code, 0, "after {} of {count}: {pulled:?}", all.len());
        all.extend(pulled.messages);
        pull.offset = pulled.next;
    }
    all
}

/// The time before which a delivered message would be early, by its own properties and the copy that waited.
fn due_ms(waited: &Message, delivered: &Message, out_ms: i64) -> i64 {
    let number = |name| waited.prop(name).map(|text| text.parse::<i64>().expect("a number"));
    match (number("TIMER_DELAY_SEC"), number("TIMER_DELAY_MS"), number("TIMER_DELIVER_MS")) {
        // The delay counts from when it was sent, a moment before it was stored; its slot tells the rest.
        (Some(sec), ..) => (waited.store_timestamp_ms + sec * 1000).min(out_ms + 1000),
        (None, Some(ms), _) => (waited.store_timestamp_ms + ms).min(out_ms + 1000),
        (None, None, at) => at.unwrap_or_else(|| panic!("no time: {delivered:?}")),
    }
}

fn check_times(client: &mut Client, delivered: &[Message]) {
    let waited = all(client, TIMER);
    for message in delivered {
        let key = message.prop("UNIQ_KEY").expect("a key");
        let before = waited.iter().find(|waited| waited.prop("UNIQ_KEY") == Some(key)).expect("it waited");
        let out: i64 = message.prop("TIMER_OUT_MS").and_then(|text| text.parse().ok()).expect("a slot");
        let due = due_ms(before, message, out);
        assert!(message.store_timestamp_ms >= due, "early: {due} {message:?}");
        assert!(out % 1000 == 0 && message.store_timestamp_ms > out, "{message:?}");
        assert_eq!((message.prop("REAL_TOPIC"), message.prop("REAL_QID")), (Some(message.topic.as_str()), Some("0")));
        assert!(message.prop("TIMER_ENQUEUE_MS").is_some() && message.prop("TIMER_DEQUEUE_MS").is_some());
        assert_eq!(message.born_timestamp_ms, before.born_timestamp_ms);
    }
}

/// Request 61: how many wait for a topic.
fn waiting(client: &mut Client, topic: &str) -> i64 {
    let body = client.ok(61, &[], b"").body;
    let table: uringmq_proto::body::timer::TimerMetrics = uringmq_proto::fastjson::from_slice(&body).expect("a table");
    table.timing_count.get(topic).map_or(0, |metric| metric.count)
}

/// A delivered message can be pulled a moment before it is counted out.
fn comes_to_wait(client: &mut Client, topic: &str, want: i64) {
    let came = (0..100_000).any(|_| waiting(client, topic) == want);
    assert!(came, "{topic}: {} wait, not {want}", waiting(client, topic));
}

fn each_comes_at_its_time(name: &str, settings: &str) {
    let server = Server::start(name, settings);
    let mut client = server.client();
    client.create_topic("timed", 1);
    let deliver = (now_ms() + 1700).to_string();
    for (key, property, value) in [
        ("last", "TIMER_DELAY_SEC", "2"),
        ("third", "TIMER_DELIVER_MS", deliver.as_str()),
        ("first", "TIMER_DELAY_MS", "300"),
        ("second", "TIMER_DELAY_MS", "900"),
    ] {
        let handle = send(&mut client, "timed", key, &[(property, value)]).expect("a handle");
        let recall = recall::parse(&handle).expect("a handle");
        assert_eq!((recall.topic.as_str(), recall.uniq_key.as_str()), ("timed", key));
    }
    let delivered = wait_for(&mut client, "timed", 4);
    assert_eq!(keys(&delivered), ["first", "second", "third", "last"]);
    check_times(&mut client, &delivered);
    server.check_healthy(name);
}

#[test]
fn each_message_comes_at_its_time_on_one_shard() {
    each_comes_at_its_time("timers-1", "shards=1");
}

#[test]
fn each_message_comes_at_its_time_on_two_shards() {
    each_comes_at_its_time("timers-2", "shards=2\nflushDiskType=SYNC_FLUSH");
}

#[test]
fn each_message_comes_at_its_time_on_four_shards() {
    each_comes_at_its_time("timers-4", "shards=4");
}

/// D01, D08: on the running broker, and nothing of it stays behind.
#[test]
fn odd_times_are_refused_or_past() {
    let server = Server::start("timers-odd", "shards=2");
    let mut client = server.client();
    client.create_topic("odd", 1);
    let (past, far) = ((now_ms() - 1).to_string(), (now_ms() + 259_201_000).to_string());
    let mut stored = 0;
    for (name, value, code) in [
        ("TIMER_DELAY_SEC", "9223372036854775807", 13),
        ("TIMER_DELAY_MS", "9223372036854775807", 13),
        ("TIMER_DELAY_SEC", "9007199254740992", 13),
        ("TIMER_DELAY_SEC", "259201", 13),
        ("TIMER_DELAY_SEC", "1e3", 13),
        ("TIMER_DELAY_MS", "soon", 13),
        ("TIMER_DELIVER_MS", far.as_str(), 13),
        ("TIMER_DELIVER_MS", "9223372036854775807", 13),
        ("TIMER_DELAY_SEC", "-1", 0),
        ("TIMER_DELAY_SEC", "-9223372036854775808", 0),
        ("TIMER_DELAY_SEC", "", 0),
        ("TIMER_DELIVER_MS", "0", 0),
        ("TIMER_DELIVER_MS", "1", 0),
        ("TIMER_DELIVER_MS", past.as_str(), 0),
    ] {
        let answer = try_send(&mut client, "odd", &format!("k{value}"), &[(name, value)]);
        assert_eq!(answer.code, code, "{name} = '{value}': {:?}", answer.remark);
        assert_eq!(answer.get("recallHandle"), None, "{name} = '{value}'");
        if code == 13 {
            let remark = answer.remark.unwrap_or_default();
            assert!(remark.starts_with("timer message illegal") && remark.contains("259200000"), "{remark}");
        } else {
            stored += 1;
        }
    }
    assert_eq!(client.bounds("odd", 0), (0, stored), "what is past is there at once");
    assert_eq!(client.bounds(TIMER, 0), (0, 0));
    // D04: nobody writes the timer topic itself, and no batch gets there.
    assert_ne!(try_send(&mut client, TIMER, "forged", &[("REAL_TOPIC", "odd"), ("REAL_QID", "0")]).code, 0);
    let in_batch = props(&[("TIMER_DELAY_SEC", "1")]);
    let batch = client.send_batch("odd", 0, &[(b"x", &in_batch)]);
    assert_eq!((batch.code, client.bounds(TIMER, 0)), (0, (0, 0)), "an item of a batch is an ordinary message");
    // A level beats all three.
    let level = try_send(&mut client, "odd", "level", &[("DELAY", "1"), ("TIMER_DELAY_SEC", "x")]);
    assert_eq!((level.code, level.get("recallHandle")), (0, None));
    assert_eq!(client.bounds("SCHEDULE_TOPIC_XXXX", 0), (0, 1));
    // D08: the one limit, which the refusals name, is the longest delay that is taken.
    for (n, (name, value)) in
        [("TIMER_DELAY_SEC", "259199"), ("TIMER_DELAY_SEC", "259200"), ("TIMER_DELAY_MS", "259200000")]
            .iter()
            .enumerate()
    {
        send(&mut client, "odd", &format!("longest{n}"), &[(name, value)]);
    }
    assert_eq!(try_send(&mut client, "odd", "longer", &[("TIMER_DELAY_MS", "259200001")]).code, 13);
    assert_eq!(
        (client.bounds("odd", 0).1, client.bounds(TIMER, 0)),
        (stored + 1, (0, 3)),
        "the item of the batch is all"
    );
    server.check_healthy("odd times");
}

#[test]
fn switched_off_timers_are_refused() {
    let server = Server::start("timers-off", "shards=1\ntimerWheelEnable=false");
    let mut client = server.client();
    client.create_topic("off", 1);
    let answer = try_send(&mut client, "off", "k", &[("TIMER_DELAY_SEC", "1")]);
    assert_eq!(answer.code, 1);
    assert!(answer.remark.unwrap_or_default().starts_with("accurate timer message is not enabled"));
    assert_eq!((client.call(60, &[], b"").code, client.call(61, &[], b"").code), (1, 1));
    server.check_healthy("no timers");
}

/// D06.
#[test]
fn a_recalled_message_does_not_come() {
    let server = Server::start("timers-recall", &format!("shards=2\n{RECALLS}"));
    let mut client = server.client();
    client.create_topic("recalled", 1);
    client.create_topic("other", 1);
    let deliver = ((now_ms() / 1000 + 4) * 1000 + 500).to_string();
    let at = [("TIMER_DELIVER_MS", deliver.as_str())];
    let handle = send(&mut client, "recalled", "goes", &at).expect("a handle");
    send(&mut client, "recalled", "stays", &at);
    let call = |client: &mut Client, topic: &str, handle: &str| {
        client.call(370, &[("producerGroup", "p"), ("topic", topic), ("recallHandle", handle)], b"")
    };
    for _ in 0..2 {
        let answer = call(&mut client, "recalled", &handle);
        assert_eq!((answer.code, answer.get("msgId")), (0, Some("goes")), "{:?}", answer.remark);
    }
    let broker = recall::parse(&handle).expect("a handle").broker_name;
    let made = |topic: &str, broker: &str, time: i64| recall::handle(topic, broker, time, "nobody");
    let soon = now_ms() + 60_000;
    for (topic, handle, code, remark) in [
        ("recalled", "rubbish".to_owned(), 604, "recall handle is invalid"),
        ("other", handle.clone(), 604, "recall failed, topic not match"),
        ("missing", handle.clone(), 17, "recall failed, the topic[missing] not exist"),
        ("recalled", made("recalled", "another", soon), 604, "recall failed, broker service not available"),
        ("recalled", made("recalled", &broker, now_ms() - 1), 604, "recall failed, timestamp invalid"),
        ("recalled", made("recalled", &broker, now_ms() + 259_300_000), 604, "recall failed, timestamp invalid"),
    ] {
        let answer = call(&mut client, topic, &handle);
        assert_eq!((answer.code, answer.remark.as_deref()), (code, Some(remark)));
    }
    // One that nobody sent: it takes back nothing.
    assert_eq!(call(&mut client, "recalled", &made("recalled", &broker, soon)).code, 0);
    let delivered = wait_for(&mut client, "recalled", 1);
    assert_eq!(keys(&delivered), ["stays"]);
    // The first one of a later slot comes when all of the earlier is done.
    send(&mut client, "recalled", "later", &[("TIMER_DELAY_MS", "1500")]);
    let pulled = client.pull(&Pull::at("recalled", 0, 1));
    assert_eq!(keys(&pulled.messages), ["later"]);
    assert_eq!(call(&mut client, "recalled", &handle).code, 604, "it is too late");
    comes_to_wait(&mut client, "recalled", 0);
    // And it stays so while the slots are done, one after the other.
    let until_ms = now_ms() + 2500;
    while now_ms() < until_ms {
        assert_eq!(waiting(&mut client, "recalled"), 0);
    }
    server.check_healthy("recalls");
}

#[test]
fn recalls_are_off_by_default() {
    let server = Server::start("timers-no-recall", "shards=1");
    let mut client = server.client();
    client.create_topic("t", 1);
    let answer = client.call(370, &[("topic", "t"), ("recallHandle", "x")], b"");
    assert_eq!((answer.code, answer.remark.as_deref()), (16, Some("recall failed, operation is forbidden")));
    server.check_healthy("a forbidden recall");
}

/// What waited comes after a stop and after a kill, due before or after; what was delivered before a clean stop does not come again.
#[test]
fn what_waits_survives_restarts_and_kills() {
    for (name, settings) in [("timers-again-1", "shards=1"), ("timers-again-2", "shards=2\nflushDiskType=SYNC_FLUSH")] {
        let mut server = Server::start(name, settings);
        let mut client = server.client();
        client.create_topic("again", 1);
        send(&mut client, "again", "done", &[("TIMER_DELAY_MS", "200")]);
        send(&mut client, "again", "while-away", &[("TIMER_DELAY_MS", "2600")]);
        send(&mut client, "again", "after", &[("TIMER_DELAY_SEC", "6")]);
        send(&mut client, "again", "much-later", &[("TIMER_DELAY_SEC", "7200")]);
        send(&mut client, "again", "rolls", &[("TIMER_DELAY_SEC", "200000")]);
        assert_eq!(keys(&wait_for(&mut client, "again", 1)), ["done"]);
        server.stop();
        server.start_again();
        let mut client = server.client();
        assert_eq!(keys(&wait_for(&mut client, "again", 2)), ["done", "while-away"]);
        server.kill();
        server.start_again();
        let mut client = server.client();
        let delivered = wait_until(&mut client, "again", "after");
        check_times(&mut client, &delivered);
        let done = delivered.iter().filter(|message| message.body == b"done").count();
        assert_eq!(done, 1, "a clean stop forgot nothing");
        // Without the wheel the timer log tells what waits.
        server.stop();
        std::fs::remove_file(server.store().join("timerwheel")).expect("a wheel");
        server.start_again();
        let mut client = server.client();
        assert_eq!(waiting(&mut client, "again"), 2);
        send(&mut client, "again", "new", &[("TIMER_DELAY_MS", "100")]);
        let delivered = wait_until(&mut client, "again", "new");
        let far = |message: &&Message| matches!(message.body.as_slice(), b"much-later" | b"rolls");
        assert_eq!(delivered.iter().find(far).map(|message| &message.body), None);
        server.check_healthy(name);
    }
}

/// Everything of a topic up to the message `key`.
fn wait_until(client: &mut Client, topic: &str, key: &str) -> Vec<Message> {
    let (mut all, mut pull) = (Vec::<Message>::new(), Pull::at(topic, 0, 0));
    while all.last().is_none_or(|last| last.body != key.as_bytes()) {
        let pulled = client.pull(&pull);
        assert_eq!(pulled.code, 0, "after {:?}: {pulled:?}", keys(&all));
        all.extend(pulled.messages);
        pull.offset = pulled.next;
    }
    all
}

/// Kills while messages are sent and delivered: each acknowledged one comes, none early.
#[test]
fn no_acknowledged_message_is_lost_by_kills() {
    let mut server = Server::start("timers-kills", "shards=2\ntimerFlushIntervalMs=100");
    server.client().create_topic("kills", 1);
    let mut sent = Vec::new();
    for round in 0..3 {
        let mut client = server.client();
        for n in 0..200 {
            let (key, delay) = (format!("{round}-{n}"), (50 + n * 13 % 2000).to_string());
            send(&mut client, "kills", &key, &[("TIMER_DELAY_MS", &delay)]);
            sent.push(key);
        }
        server.kill();
        server.start_again();
    }
    let mut client = server.client();
    send(&mut client, "kills", "last", &[("TIMER_DELAY_MS", "3000")]);
    let delivered = wait_until(&mut client, "kills", "last");
    let came: std::collections::HashSet<String> = keys(&delivered).into_iter().collect();
    let lost: Vec<&String> = sent.iter().filter(|key| !came.contains(*key)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    check_times(&mut client, &delivered);
    server.check_healthy("kills");
}

/// D04: one that cannot be delivered is stepped over.
#[test]
fn a_message_without_a_topic_holds_up_nobody() {
    let server = Server::start("timers-poison", "shards=2");
    let mut client = server.client();
    client.create_topic("gone", 1);
    client.create_topic("here", 1);
    send(&mut client, "gone", "poison", &[("TIMER_DELAY_MS", "1000")]);
    send(&mut client, "here", "sound", &[("TIMER_DELAY_MS", "1300")]);
    client.delete_topic("gone");
    assert_eq!(keys(&wait_for(&mut client, "here", 1)), ["sound"]);
    let info = client.ok(28, &[], b"").body;
    let info: serde_json::Value = serde_json::from_slice(&info).expect("a table");
    let figure = |key: &str| info["table"][key].as_str().expect("text").to_owned();
    assert_eq!((figure("timerSkipped"), figure("timerOffsetBehind")), ("1".into(), "0".into()));
    for key in ["timerReadBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps"] {
        assert!(figure(key).parse::<f64>().is_ok(), "{key}");
    }
    server.check_healthy("a poison message");
}

/// D04 for a delay level.
#[test]
fn a_delayed_message_without_a_topic_stops_no_level() {
    let server = Server::start("timers-level-poison", "shards=2");
    let mut client = server.client();
    client.create_topic("gone", 1);
    client.create_topic("here", 1);
    for (topic, body) in [("gone", "poison"), ("here", "sound")] {
        client.sent(topic, 0, &props(&[("DELAY", "1")]), body.as_bytes());
    }
    client.delete_topic("gone");
    assert_eq!(keys(&wait_for(&mut client, "here", 1)), ["sound"]);
    for system in ["SCHEDULE_TOPIC_XXXX", TIMER, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"] {
        for forged in [&[][..], &[("REAL_TOPIC", "here")], &[("REAL_TOPIC", "here"), ("REAL_QID", "-1")]] {
            assert_eq!(client.send(system, 0, &props(forged), b"forged").code, 16, "{system} {forged:?}");
        }
    }
    client.sent("here", 0, &props(&[("DELAY", "1")]), b"next");
    assert_eq!(keys(&wait_for(&mut client, "here", 2)), ["sound", "next"]);
    server.check_healthy("a poisoned level");
}

#[test]
fn what_is_too_far_for_the_window_is_enqueued_anew() {
    let server = Server::start("timers-roll", "shards=1\ntimerRollWindowSlot=4");
    let mut client = server.client();
    client.create_topic("rolled", 1);
    send(&mut client, "rolled", "far", &[("TIMER_DELAY_MS", "5700")]);
    send(&mut client, "rolled", "near", &[("TIMER_DELAY_MS", "2900")]);
    let delivered = wait_for(&mut client, "rolled", 2);
    assert_eq!(keys(&delivered), ["near", "far"]);
    assert_eq!((delivered[0].prop("TIMER_ROLL_TIMES"), delivered[1].prop("TIMER_ROLL_TIMES")), (None, Some("1")));
    check_times(&mut client, &delivered);
    comes_to_wait(&mut client, "rolled", 0);
    server.check_healthy("a roll");
}

#[test]
fn a_full_slot_takes_no_more() {
    let server = Server::start("timers-full", "shards=2\ntimerCongestNumEachSlot=3");
    let mut client = server.client();
    client.create_topic("full", 1);
    let deliver = (now_ms() + 3_600_000).to_string();
    // The wheel learns of each a moment after it was stored.
    let mut taken = 0;
    let refused = loop {
        let answer = try_send(&mut client, "full", &taken.to_string(), &[("TIMER_DELIVER_MS", &deliver)]);
        if answer.code != 0 {
            break answer;
        }
        taken += 1;
        assert!(taken < 20_000, "a slot for 3 takes no more than 6, and what was on its way");
    };
    assert!(taken >= 3);
    let remark = refused.remark.unwrap_or_default();
    assert!(
        refused.code == 1 && remark.starts_with("timer message is under flow control"),
        "{} {remark}",
        refused.code
    );
    let other = (now_ms() + 1_800_000).to_string();
    send(&mut client, "full", "other-slot", &[("TIMER_DELIVER_MS", &other)]);
    server.check_healthy("a full slot");
}

/// 60: progress as Apache's slaves read it.
#[test]
fn progress_is_told_in_apaches_bytes() {
    let mut server = Server::start("timers-check", "shards=1\ntimerFlushIntervalMs=50");
    let mut client = server.client();
    client.create_topic("check", 1);
    for n in 0..3 {
        send(&mut client, "check", &n.to_string(), &[("TIMER_DELAY_SEC", "3600")]);
    }
    send(&mut client, "check", "now", &[("TIMER_DELAY_MS", "100")]);
    wait_for(&mut client, "check", 1);
    comes_to_wait(&mut client, "check", 3);
    server.stop();
    let bytes = std::fs::read(server.store().join("config/timercheck")).expect("the file");
    let number = |field: usize| i64::from_be_bytes(bytes[field * 8..field * 8 + 8].try_into().expect("8 bytes"));
    assert_eq!((bytes.len(), number(1), number(2), number(3)), (4096, 4 * 52, 4, 4));
    assert!(number(0) % 1000 == 0 && number(6) > 0);
    let log = std::fs::read(server.store().join("timerlog/00000000000000000000")).expect("the log");
    assert_eq!((log.len(), &log[..4]), (104_857_600, [0, 0, 0, 52].as_slice()));
    server.start_again();
    let mut client = server.client();
    let answered = client.ok(60, &[], b"").body;
    assert_eq!((answered.len(), &answered[8..32]), (56, &bytes[8..32]));
    assert_eq!(waiting(&mut client, "check"), 3);
    server.check_healthy("progress");
}

/// A figure of code 28.
fn figure(client: &mut Client, key: &str) -> i64 {
    let info: serde_json::Value = serde_json::from_slice(&client.ok(28, &[], b"").body).expect("a table");
    info["table"][key].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no number {key}: {info}"))
}

/// However many wait, a start reads what came after the last save only; what waits is counted while the broker serves.
#[test]
fn a_start_does_not_read_what_waits() {
    let mut server = Server::start("timers-many", "shards=2\ntimerFlushIntervalMs=100");
    let mut client = server.client();
    client.create_topic("many", 1);
    let mut sent = 0;
    let mut some = |client: &mut Client, count: usize| {
        for _ in 0..count {
            sent += 1;
            send(client, "many", &sent.to_string(), &[("TIMER_DELAY_SEC", "3600")]);
        }
    };
    some(&mut client, 600);
    comes_to_wait(&mut client, "many", 600);
    server.stop();
    server.start_again();
    let mut client = server.client();
    assert_eq!(figure(&mut client, "timerStartWalked"), 0, "after a clean stop");
    comes_to_wait(&mut client, "many", 600);
    some(&mut client, 20);
    comes_to_wait(&mut client, "many", 620);
    server.kill();
    server.start_again();
    let mut client = server.client();
    let walked = figure(&mut client, "timerStartWalked");
    assert!((0..=40).contains(&walked), "{walked} units read, and 20 came after the clean stop");
    comes_to_wait(&mut client, "many", 620);
    // The table of what waits is made anew.
    server.stop();
    for end in ["", ".bak", ".sum"] {
        drop(std::fs::remove_file(server.store().join(format!("config/timermetrics{end}"))));
    }
    server.start_again();
    let mut client = server.client();
    comes_to_wait(&mut client, "many", 620);
    send(&mut client, "many", "soon", &[("TIMER_DELAY_MS", "100")]);
    assert_eq!(keys(&wait_for(&mut client, "many", 1)), ["soon"]);
    server.check_healthy("many timers");
}
