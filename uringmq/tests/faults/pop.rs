//! POP consumption: what is popped and acknowledged does not come back, what is not does, across shards, restarts and kill -9; O01, O02, O05, O07,
//! and the strings and handles by which clients work.
use crate::common::{Client, Pop, Popped, Server, props};
use std::collections::{BTreeMap, BTreeSet};

const SETTINGS: &str = "brokerName=broker-a";

fn start(name: &str, settings: &str) -> Server {
    Server::start(name, &format!("{SETTINGS}\n{settings}"))
}

/// Sends `count` messages over the queues of a topic; their bodies.
fn send(client: &mut Client, topic: &str, queues: i32, count: usize) -> BTreeSet<String> {
    (0..count)
        .map(|number| {
            let body = format!("m{number:03}");
            client.sent(topic, number as i32 % queues, &props(&[("TAGS", "a")]), body.as_bytes());
            body
        })
        .collect()
}

fn bodies(popped: &[Popped]) -> BTreeSet<String> {
    popped.iter().map(Popped::body).collect()
}

/// Messages of a retry topic's queue.
fn retried(client: &mut Client, group: &str, topic: &str) -> i64 {
    client.bounds(&format!("%RETRY%{group}_{topic}"), 0).1
}

/// Half of what is popped is acknowledged; the other half comes back once, as retries, and nothing else does.
fn unacked_come_back(name: &str, settings: &str) {
    let server = start(name, settings);
    let mut client = server.client();
    client.create_topic("popped", 4);
    let sent = send(&mut client, "popped", 4, 40);
    let pop = Pop { invisible_ms: 3000, ..Pop::of("popped", "g") };
    let first = client.pop_all(&pop, 40);
    assert_eq!((bodies(&first), first.len()), (sent, 40), "each once");
    assert_eq!(client.pop(&pop).code, 210, "all are invisible");
    let (acked, left): (Vec<Popped>, Vec<Popped>) =
        first.into_iter().partition(|popped| popped.message.queue_offset % 2 == 0);
    acked.iter().for_each(|popped| client.acked("g", popped));
    let second = client.pop_all(&pop, left.len());
    assert_eq!((bodies(&second), second.len()), (bodies(&left), left.len()));
    for popped in &second {
        let message = &popped.message;
        assert_eq!((message.topic.as_str(), message.reconsume_times), ("popped", 1));
        assert_eq!((message.prop("TAGS"), message.prop("ORIGIN_GROUP")), (Some("a"), Some("g")));
        let was = left.iter().find(|was| was.message.body == message.body).expect("one of them");
        let first_ms = was.handle.split(' ').nth(1);
        assert_eq!(
            (message.prop("1ST_POP_TIME"), message.born_timestamp_ms),
            (first_ms, was.message.born_timestamp_ms)
        );
    }
    // By the name of their first topic, as well as by that of the retry topic.
    for (number, popped) in second.iter().enumerate() {
        let topic = if number % 2 == 0 { popped.topic.clone() } else { "popped".to_owned() };
        client.acked("g", &Popped { topic, ..popped.clone() });
    }
    // One more message bounds the wait: what was to come back would have by then.
    client.sent("popped", 0, "", b"last");
    let last = client.pop_all(&pop, 1);
    let again = client.pop_all(&pop, 1);
    assert_eq!((last[0].body(), again[0].body()), ("last".to_owned(), "last".to_owned()));
    assert_eq!(retried(&mut client, "g", "popped"), left.len() as i64 + 1);
    server.check_healthy(name);
}

#[test]
fn unacked_come_back_on_one_shard() {
    unacked_come_back("pop-1", "shards=1");
}

#[test]
fn unacked_come_back_on_two_shards() {
    unacked_come_back("pop-2", "shards=2\nflushDiskType=SYNC_FLUSH");
}

#[test]
fn unacked_come_back_on_four_shards() {
    unacked_come_back("pop-4", "shards=4");
}

/// Two groups, and two clients of one, each get their share; a filter's strangers are passed over.
#[test]
fn groups_share_nothing_and_members_share_all() {
    let server = start("pop-groups", "shards=2");
    let (mut one, mut two) = (server.client(), server.client());
    one.create_topic("shared", 4);
    let sent = send(&mut one, "shared", 4, 64);
    for number in 0..8 {
        one.sent("shared", number % 4, &props(&[("TAGS", "b")]), format!("b{number}").as_bytes());
    }
    let pop = Pop { count: 5, expression: "a", ..Pop::of("shared", "g") };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = 0;
    while count < 64 {
        for client in [&mut one, &mut two] {
            let answer = client.pop(&pop);
            assert!(answer.messages.len() <= 5 && matches!(answer.code, 0 | 210), "{answer:?}");
            count += answer.messages.len();
            answer.messages.iter().for_each(|popped| *seen.entry(popped.body()).or_default() += 1);
        }
    }
    assert_eq!((seen.keys().cloned().collect::<BTreeSet<_>>(), count), (sent.clone(), 64), "each once");
    assert_eq!(bodies(&two.pop_all(&Pop { expression: "b", ..Pop::of("shared", "h") }, 8)).len(), 8);
    let all = two.pop_all(&Pop::of("shared", "i"), 72);
    assert_eq!(all.len(), 72);
    server.check_healthy("groups");
}

/// O01.
#[test]
fn odd_requests_are_refused() {
    let server = start("pop-odd", "shards=2");
    let mut client = server.client();
    client.create_topic("odd", 1);
    client.sent("odd", 0, "", b"x");
    let pop = Pop::of("odd", "g");
    for (odd, code) in [
        (Pop { count: 0, ..pop }, 29),
        (Pop { count: -1, ..pop }, 29),
        (Pop { count: 33, ..pop }, 29),
        (Pop { count: i32::MAX, ..pop }, 29),
        (Pop { invisible_ms: -1, ..pop }, 29),
        (Pop { invisible_ms: i64::MAX, ..pop }, 29),
        (Pop { queue: 999, ..pop }, 29),
        (Pop { topic: "none", ..pop }, 17),
        (Pop { expression: "||", ..pop }, 23),
        (Pop { group: "", ..pop }, 26),
    ] {
        let answer = client.pop(&odd);
        assert_eq!((answer.code, answer.rest), (code, 0), "{odd:?}: {}", answer.remark);
    }
    assert_eq!(client.pop(&Pop { poll_ms: -1, ..pop }).code, 0, "it is not held, that is all");
    assert_eq!(client.pop(&Pop { queue: -7, ..pop }).code, 210, "below 0 means any");
    server.check_healthy("odd pops");
}

#[test]
fn switched_off_timers_refuse_pops() {
    let server = start("pop-off", "shards=1\ntimerWheelEnable=false");
    let mut client = server.client();
    client.create_topic("off", 1);
    let answer = client.pop(&Pop::of("off", "g"));
    assert!(answer.code == 1 && answer.remark.contains("timerWheelEnable"), "{answer:?}");
    server.check_healthy("no timers");
}

/// A held pop is answered when a message comes, whichever queue it comes to, and one of those that wait gets it.
#[test]
fn a_held_pop_is_answered_by_the_next_message() {
    let server = start("pop-held", "shards=4");
    let (mut sender, mut waiters) = (server.client(), [server.client(), server.client(), server.client()]);
    sender.create_topic("held", 8);
    let pop = Pop { count: 1, ..Pop::of("held", "g") };
    let asked: Vec<i32> = waiters.iter_mut().map(|waiter| waiter.ask_pop(&pop.held())).collect();
    let wait = (0..100_000).any(|_| sender.polling("held", "g", -1) == 3);
    assert!(wait, "{} wait", sender.polling("held", "g", -1));
    for (number, queue) in [7, 2, 5].into_iter().enumerate() {
        sender.sent("held", queue, "", format!("m{number}").as_bytes());
    }
    let mut all = Vec::new();
    for (waiter, opaque) in waiters.iter_mut().zip(asked) {
        let answer = waiter.popped(opaque, "g");
        assert_eq!((answer.code, answer.messages.len()), (0, 1), "{answer:?}");
        all.extend(answer.bodies());
    }
    all.sort();
    assert_eq!((all, sender.polling("held", "g", -1)), (vec!["m0".into(), "m1".into(), "m2".into()], 0));
    // One whose connection goes away takes nothing with it.
    let mut gone = server.client();
    gone.ask_pop(&pop.held());
    assert!((0..100_000).any(|_| sender.polling("held", "g", -1) == 1));
    drop(gone);
    assert!((0..1_000_000).any(|_| sender.polling("held", "g", -1) == 0));
    let left = waiters[0].ask_pop(&pop.held());
    sender.sent("held", 3, "", b"last");
    assert_eq!(waiters[0].popped(left, "g").bodies(), ["last"]);
    server.check_healthy("held pops");
}

#[test]
fn more_waiters_than_allowed_are_told() {
    let server = start("pop-full", "shards=1\npopPollingSize=1");
    let (mut client, mut waiter) = (server.client(), server.client());
    client.create_topic("full", 1);
    let pop = Pop { poll_ms: 5000, ..Pop::of("full", "g") };
    for _ in 0..2 {
        waiter.ask_pop(&pop);
    }
    assert!((0..100_000).any(|_| client.polling("full", "g", -1) == 2));
    assert_eq!(client.pop(&pop).code, 209);
    let ext = [("consumerGroup", "g"), ("topic", "full"), ("queueId", "-1"), ("pollTime", "5000")];
    let born = crate::common::now_ms().to_string();
    let answer = client.ok(200_054, &[&ext[..], &[("bornTime", &born)]].concat(), b"");
    assert_eq!((answer.get("hasMsg"), answer.get("pollingFull")), (Some("false"), Some("true")));
    assert_eq!(client.pop(&Pop::of("full", "h")).code, 210, "another group is another line");
    server.check_healthy("too many waiters");
}

/// A notification is answered when there is something, and takes nothing.
#[test]
fn a_notification_waits_and_takes_nothing() {
    let server = start("pop-notify", "shards=2");
    let (mut client, mut waiter) = (server.client(), server.client());
    client.create_topic("noted", 2);
    let born = crate::common::now_ms().to_string();
    let ext = [
        ("consumerGroup", "g"),
        ("topic", "noted"),
        ("queueId", "-1"),
        ("pollTime", "30000"),
        ("bornTime", born.as_str()),
    ];
    let opaque = waiter.ask(200_054, 0, &ext, b"");
    assert!((0..100_000).any(|_| client.polling("noted", "g", -1) == 1));
    client.sent("noted", 1, "", b"x");
    assert_eq!(waiter.answer_to(opaque).get("hasMsg"), Some("true"));
    assert_eq!(client.pop(&Pop::of("noted", "g")).bodies(), ["x"]);
    server.check_healthy("notifications");
}

/// A longer time keeps a message away, a shorter one brings it earlier, each once; the new handle is the one that counts.
#[test]
fn the_invisible_time_of_one_message_is_changed() {
    let server = start("pop-change", "shards=2");
    let mut client = server.client();
    client.create_topic("changed", 1);
    send(&mut client, "changed", 1, 3);
    let pop = Pop { invisible_ms: 3000, ..Pop::of("changed", "g") };
    let first = client.pop_all(&pop, 3);
    let longer = client.change_invisible("g", &first[0], 60_000);
    let shorter = client.change_invisible("g", &first[1], 1000);
    assert_ne!((&longer.handle, &shorter.handle), (&first[0].handle, &first[1].handle));
    client.acked("g", &first[2]);
    let second = client.pop_all(&Pop { count: 1, invisible_ms: 60_000, ..pop }, 1);
    assert_eq!(second[0].body(), "m001");
    client.acked("g", &second[0]);
    client.acked("g", &longer);
    // What was to come back in the first time would have before this one does.
    client.sent("changed", 0, "", b"last");
    let last = client.pop_all(&pop, 1);
    assert_eq!((last[0].body(), client.pop_all(&pop, 1)[0].body()), ("last".to_owned(), "last".to_owned()));
    assert_eq!(retried(&mut client, "g", "changed"), 2);
    server.check_healthy("changed times");
}

#[test]
fn one_request_acknowledges_many() {
    let server = start("pop-batch", "shards=4");
    let mut client = server.client();
    client.create_topic("batched", 4);
    send(&mut client, "batched", 4, 40);
    let pop = Pop { invisible_ms: 3000, ..Pop::of("batched", "g") };
    let (kept, acked): (Vec<Popped>, Vec<Popped>) =
        client.pop_all(&pop, 40).into_iter().partition(|popped| popped.body() == "m017");
    client.batch_ack("g", &acked);
    let second = client.pop_all(&Pop { invisible_ms: 60_000, ..pop }, 1);
    assert_eq!((bodies(&second), retried(&mut client, "g", "batched")), (bodies(&kept), 1));
    client.batch_ack("g", &second);
    server.check_healthy("batch acknowledgements");
}

/// O05: a retry topic of the longest names, by either naming.
#[test]
fn the_longest_names_are_retried() {
    for (v2, joint) in [("false", '_'), ("true", '+')] {
        let server = start(&format!("pop-long-{v2}"), &format!("shards=2\nenableRetryTopicV2={v2}"));
        let mut client = server.client();
        let (topic, group) = ("t".repeat(127), "g".repeat(120));
        client.create_topic(&topic, 1);
        client.sent(&topic, 0, "", b"x");
        let pop = Pop { invisible_ms: 1000, ..Pop::of(&topic, &group) };
        assert_eq!(client.pop_all(&pop, 1)[0].message.reconsume_times, 0);
        let again = client.pop_all(&Pop { invisible_ms: 60_000, ..pop }, 1);
        assert_eq!((again[0].body(), again[0].message.reconsume_times), ("x".to_owned(), 1));
        let retry = format!("%RETRY%{group}{joint}{topic}");
        assert_eq!((again[0].topic.as_str(), client.bounds(&retry, 0)), (retry.as_str(), (0, 1)));
        assert_eq!(client.committed(&group, &retry, 0), Some(1));
        client.acked(&group, &again[0]);
        server.check_healthy("long names");
    }
}

/// O02: between every step the broker is stopped or killed. All that was not acknowledged comes back, nothing that was does.
fn restarts_lose_and_repeat_nothing(name: &str, settings: &str, kill: bool) {
    let mut server = start(name, settings);
    let again = |server: &mut Server| {
        match kill {
            true => server.kill(),
            false => assert!(server.stop().success()),
        }
        server.start_again();
    };
    let mut client = server.client();
    client.create_topic("kept", 4);
    let sent = send(&mut client, "kept", 4, 60);
    // Long enough for two restarts on a machine that is busy.
    let pop = Pop { invisible_ms: 15_000, ..Pop::of("kept", "g") };
    let mut first = client.pop_all(&pop, 30);
    again(&mut server);
    let mut client = server.client();
    // What is popped is invisible after a restart too.
    first.extend(client.pop_all(&pop, 60 - first.len()));
    assert_eq!((bodies(&first), first.len()), (sent, 60), "each once");
    let (acked, left): (Vec<Popped>, Vec<Popped>) = first.into_iter().partition(|popped| popped.offset % 3 != 0);
    acked.iter().for_each(|popped| client.acked("g", popped));
    again(&mut server);
    let mut client = server.client();
    let second = client.pop_all(&pop, left.len());
    assert_eq!((bodies(&second), second.len()), (bodies(&left), left.len()), "each once");
    second.iter().for_each(|popped| client.acked("g", popped));
    again(&mut server);
    let mut client = server.client();
    client.sent("kept", 0, "", b"last");
    let last = client.pop_all(&Pop { invisible_ms: 1500, ..pop }, 1);
    again(&mut server);
    let mut client = server.client();
    let back = client.pop_all(&pop, 1);
    assert_eq!((last[0].body(), back[0].body()), ("last".to_owned(), "last".to_owned()));
    client.acked("g", &back[0]);
    assert_eq!(client.pop(&pop).code, 210);
    assert_eq!(retried(&mut client, "g", "kept"), left.len() as i64 + 1, "each was stored again once");
    server.check_healthy(name);
}

#[test]
fn restarts_lose_and_repeat_nothing_on_one_shard() {
    restarts_lose_and_repeat_nothing("pop-restart-1", "shards=1", false);
}

#[test]
fn kills_lose_and_repeat_nothing_on_one_shard() {
    restarts_lose_and_repeat_nothing("pop-kill-1", "shards=1", true);
}

#[test]
fn kills_lose_and_repeat_nothing_on_two_shards() {
    restarts_lose_and_repeat_nothing("pop-kill-2", "shards=2\nflushDiskType=SYNC_FLUSH", true);
}

#[test]
fn kills_lose_and_repeat_nothing_on_four_shards() {
    restarts_lose_and_repeat_nothing("pop-kill-4", "shards=4", true);
}

/// In order, over a restart: what is given blocks its queue until it is settled, and comes again first.
#[test]
fn ordered_pops_keep_the_order_over_a_restart() {
    let mut server = start("pop-order", "shards=2");
    let mut client = server.client();
    client.create_topic("ordered", 2);
    send(&mut client, "ordered", 2, 12);
    let pop = Pop { count: 2, invisible_ms: 2000, queue: 1, attempt: "one", ..Pop::of("ordered", "g") };
    let bodies = |popped: &[Popped]| popped.iter().map(Popped::body).collect::<Vec<_>>();
    let first = client.pop(&pop).messages;
    assert_eq!(bodies(&first), ["m001", "m003"]);
    assert_eq!(client.pop(&Pop { attempt: "two", ..pop }).code, 210);
    // O06: the answer was lost, the same attempt asks again.
    for _ in 0..100 {
        let again = client.pop(&pop);
        assert_eq!((bodies(&again.messages), again.counts.as_str()), (bodies(&first), "0 1 0"));
    }
    let first = client.pop(&pop).messages;
    client.acked("g", &first[0]);
    assert_eq!(client.committed("g", "ordered", 1), Some(1));
    server.stop();
    server.start_again();
    let mut client = server.client();
    let answer = client.pop(&Pop { attempt: "two", ..pop }.held());
    assert_eq!(
        (bodies(&answer.messages), answer.counts.as_str()),
        (vec!["m003".into(), "m005".into()], "0 qo1%1 1;0 1 0")
    );
    answer.messages.iter().for_each(|popped| client.acked("g", popped));
    let rest = client.pop(&Pop { attempt: "three", count: 32, ..pop }).messages;
    assert_eq!(bodies(&rest), ["m007", "m009", "m011"]);
    // An acknowledgement wakes who waits.
    let mut waiter = server.client();
    let opaque = waiter.ask_pop(&Pop { attempt: "four", ..pop }.held());
    client.sent("ordered", 1, "", b"more");
    let rest = client.pop(&Pop { attempt: "three", count: 3, invisible_ms: 60_000, ..pop }).messages;
    rest.iter().for_each(|popped| client.acked("g", popped));
    assert_eq!(waiter.popped(opaque, "g").bodies(), ["more"]);
    server.check_healthy("ordered pops");
}

/// A reset moves a pop group too, back and forth.
#[test]
fn a_reset_moves_a_pop_group() {
    let server = start("pop-reset", "shards=2");
    let mut client = server.client();
    client.create_topic("moved", 1);
    let sent = send(&mut client, "moved", 1, 5);
    let pop = Pop::of("moved", "g");
    assert_eq!(bodies(&client.pop_all(&pop, 5)), sent);
    let ext = [
        ("topic", "moved"),
        ("group", "g"),
        ("queueId", "0"),
        ("offset", "3"),
        ("timestamp", "0"),
        ("isForce", "true"),
    ];
    client.ok(222, &ext, b"");
    assert_eq!(client.pop(&pop).bodies(), ["m003", "m004"]);
    assert_eq!(client.pop(&pop).code, 210);
    server.check_healthy("a reset");
}

/// O07: with as many messages in hand as the threshold allows the group gets no more, and at once more when it acknowledges one, as well while it
/// waits; what is visible again is in hand no more, and a start begins with nothing in hand.
fn the_threshold_limits_what_is_in_hand(name: &str, settings: &str) {
    let limits = "enablePopMessageThreshold=true\npopInflightMessageThreshold=1";
    let mut server = start(name, &format!("{settings}\n{limits}"));
    let mut client = server.client();
    client.create_topic("limited", 1);
    let sent = send(&mut client, "limited", 1, 12);
    let pop = Pop { count: 2, ..Pop::of("limited", "g") };
    let first = client.pop(&pop).messages;
    assert_eq!(first.len(), 2);
    for _ in 0..3 {
        let refused = client.pop(&pop);
        assert_eq!((refused.code, refused.rest), (210, 10), "what is left is counted");
    }
    assert_eq!(client.pop(&Pop { group: "h", ..pop }).messages.len(), 2, "another group has hands of its own");
    // Twice the same is one acknowledgement.
    client.acked("g", &first[0]);
    client.acked("g", &first[0]);
    let second = client.pop(&pop).messages;
    assert_eq!(second.len(), 2);
    let mut waiter = server.client();
    let opaque = waiter.ask_pop(&pop.held());
    assert_eq!(client.pop(&pop).code, 210);
    client.acked("g", &first[1]);
    client.acked("g", &second[0]);
    let third = waiter.popped(opaque, "g").messages;
    assert_eq!(third.len(), 2, "an acknowledgement wakes who waits for room");
    [&second[1], &third[0], &third[1]].into_iter().for_each(|popped| client.acked("g", popped));
    // Nobody acknowledges these: their time alone makes room, for the waiter too.
    let left = client.pop(&Pop { invisible_ms: 1500, ..pop }).messages;
    let opaque = waiter.ask_pop(&pop.held());
    let fourth = waiter.popped(opaque, "g").messages;
    assert_eq!((left.len(), fourth.len()), (2, 2));
    server.kill();
    server.start_again();
    let mut client = server.client();
    let mut seen: BTreeSet<String> = [first, second, third, fourth.clone()].concat().iter().map(Popped::body).collect();
    fourth.iter().for_each(|popped| client.acked("g", popped));
    // All that is left: two that were never popped, two that come back.
    while seen.len() < sent.len() {
        let popped = client.pop(&pop.held()).messages;
        popped.iter().for_each(|popped| client.acked("g", popped));
        seen.extend(popped.iter().map(Popped::body));
    }
    assert_eq!(seen, sent);
    server.check_healthy(name);
}

#[test]
fn the_threshold_limits_what_is_in_hand_on_one_shard() {
    the_threshold_limits_what_is_in_hand("pop-limit-1", "shards=1");
}

#[test]
fn the_threshold_limits_what_is_in_hand_on_four_shards() {
    the_threshold_limits_what_is_in_hand("pop-limit-4", "shards=4");
}

/// Messages with a priority are in the queue of that number, and pops take the highest queue first, across shards and a kill.
fn priorities_come_first(name: &str, settings: &str) {
    let mut server = start(name, settings);
    let mut client = server.client();
    client.create_topic_with("ranked", "6", "+message.type=PRIORITY");
    let send = |client: &mut Client, priority: i32| {
        let properties = props(&[("_SYS_MSG_PRIORITY_", &priority.to_string())]);
        client.sent("ranked", 0, &properties, format!("p{priority}").as_bytes()).queue_id
    };
    let queues: Vec<i32> = [2, 5, 0, 9, 3, 1, 4].into_iter().map(|priority| send(&mut client, priority)).collect();
    assert_eq!(queues, [2, 5, 0, 5, 3, 1, 4], "above the last queue is the last queue");
    let pop = Pop { count: 1, ..Pop::of("ranked", "g") };
    let one_by_one = |client: &mut Client, count: usize| -> Vec<String> {
        (0..count).map(|_| client.pop(&pop.held()).messages[0].body()).collect()
    };
    assert_eq!(one_by_one(&mut client, 3), ["p5", "p9", "p4"]);
    server.kill();
    server.start_again();
    let mut client = server.client();
    send(&mut client, 8);
    assert_eq!(one_by_one(&mut client, 5), ["p8", "p3", "p2", "p1", "p0"]);
    server.check_healthy(name);
}

#[test]
fn priorities_come_first_on_one_shard() {
    priorities_come_first("pop-ranked-1", "shards=1");
}

#[test]
fn priorities_come_first_on_four_shards() {
    priorities_come_first("pop-ranked-4", "shards=4");
}
