//! A master and a slave, both ours: what the master acknowledged with inSyncReplicas=2 is on the slave, whoever is killed, and the slave's
//! log is its master's to the byte.
#[path = "../common/mod.rs"]
mod common;
mod known_faults;
mod truncation;

use common::{Client, Message, Node, Pair, Pull};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

const TOPIC: &str = "copied";
/// Each send waits for the slave, however long that takes to be in step.
const WAITING: &str = "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=60000";
const FLUSH_SLAVE_TIMEOUT: i32 = 12;
const SYSTEM_BUSY: i32 = 2;
const TOPIC_NOT_EXIST: i32 = 17;
const PULL_NOT_FOUND: i32 = 19;
const PULL_RETRY_IMMEDIATELY: i32 = 20;
const PULL_OFFSET_MOVED: i32 = 21;
/// For what a slave copies now and then.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls until it gives something.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

fn number(client: &mut Client, code: i32, field: &str) -> i64 {
    let body = client.ok(code, &[], b"").body;
    let text = String::from_utf8(body).expect("JSON");
    let (_, rest) = text.split_once(&format!("\"{field}\":")).unwrap_or_else(|| panic!("no {field} in {text}"));
    let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '-').collect();
    digits.parse().unwrap_or_else(|_| panic!("{field} in {text}"))
}

/// Messages of a queue as a slave serves them, from `offset` on, once it has up to `end`.
fn pulled(slave: &Node, queue: i32, offset: i64, end: i64) -> Vec<Message> {
    let mut client = slave.client();
    let mut all = Vec::new();
    let mut pull = Pull::at(TOPIC, queue, offset).now();
    while pull.offset < end {
        let got = until("messages at the slave", || {
            let got = client.pull(&pull);
            let later = [TOPIC_NOT_EXIST, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY].contains(&got.code);
            assert!(later || got.code == 0, "{got:?}");
            (got.code == 0).then_some(got)
        });
        pull.offset = got.next;
        all.extend(got.messages);
    }
    all
}

/// The logs of both, where both have them, are the same; the slave's begins at `from`.
fn same_logs(pair: &Pair, from: u64, end: u64) {
    let mut compared = 0;
    for start in (from..end).step_by(1 << 20) {
        let name = format!("commitlog/{start:020}");
        let [master, slave] =
            [&pair.master, &pair.slave].map(|node| std::fs::read(node.store().join(&name)).expect(&name));
        let bytes = (end - start).min(1 << 20) as usize;
        assert!(master[..bytes] == slave[..bytes], "{name} differs");
        compared += bytes as u64;
    }
    assert_eq!(compared, end - from);
}

#[test]
fn a_send_waits_for_the_slave_and_says_so_when_there_is_none() {
    let mut pair = Pair::new("replication-status", "", "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=300");
    pair.master.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    let alone = client.send(TOPIC, 0, "", b"alone");
    assert_eq!((alone.code, alone.queue_offset, alone.msg_id.len()), (FLUSH_SLAVE_TIMEOUT, 0, 32), "{alone:?}");
    let unwaited = client.sent(TOPIC, 0, &common::props(&[("WAIT", "false")]), b"unwaited");
    assert_eq!(unwaited.queue_offset, 1);
    pair.slave.start();
    let mut sent = 2;
    until("the slave in step", || {
        sent += 1;
        let got = client.send(TOPIC, 0, "", b"in step?");
        assert!([0, FLUSH_SLAVE_TIMEOUT].contains(&got.code), "{got:?}");
        (got.code == 0).then_some(())
    });
    let bodies: Vec<_> = pulled(&pair.slave, 0, 0, sent).into_iter().map(|m| m.body).collect();
    assert_eq!((&bodies[0][..], &bodies[1][..]), (&b"alone"[..], &b"unwaited"[..]));
    assert_eq!(number(&mut client, 907, "inSyncSlaveNums"), 1);

    let mut at_slave = pair.slave.client();
    let refused = at_slave.send(TOPIC, 0, "", b"a slave stores nothing");
    assert_eq!(refused.code, SYSTEM_BUSY, "{refused:?}");
    assert!(refused.remark.starts_with("[REJECTREQUEST]"), "{refused:?}");
    assert!(!pair.master.log().contains("inSyncReplicas=2 to have"), "{}", pair.master.log());
}

#[test]
fn with_one_copy_asked_for_nobody_waits_and_the_start_says_so() {
    let mut pair = Pair::new("replication-warning", "", "brokerRole=SYNC_MASTER");
    pair.master.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    client.sent(TOPIC, 0, "", b"at once");
    assert!(pair.master.log().contains("set inSyncReplicas=2"), "{}", pair.master.log());
}

#[test]
fn a_slave_copies_the_log_to_the_byte_in_step_behind_and_after_a_kill() {
    let mut pair = Pair::new("replication-bytes", "", WAITING);
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 4);
    let body = vec![7; 3000];
    for n in 0..400 {
        client.sent(TOPIC, n % 4, "", &body); // over the end of a segment
    }
    assert!(pair.slave.stop().success());
    let unwaited = common::props(&[("WAIT", "false"), ("KEYS", "behind")]);
    for n in 0..1200 {
        client.sent(TOPIC, n % 4, &unwaited, &body);
    }
    pair.slave.start();
    client.sent(TOPIC, 0, "", b"in step");
    pair.slave.kill();
    for n in 0..400 {
        client.sent(TOPIC, n % 4, &unwaited, &body);
    }
    pair.slave.start();
    client.sent(TOPIC, 0, "", b"in step again");
    let end = number(&mut client, 907, "masterCommitLogMaxOffset");
    assert!(end > 6 << 20, "{end} bytes");
    same_logs(&pair, 0, end as u64);
    let total: i64 = (0..4).map(|queue| client.bounds(TOPIC, queue).1).sum();
    let found: i64 = (0..4)
        .map(|queue| {
            let max = client.bounds(TOPIC, queue).1;
            pulled(&pair.slave, queue, 0, max).len() as i64
        })
        .sum();
    assert_eq!((total, found), (2002, 2002));
    let (code, by_key) = pair.slave.client().query(TOPIC, "behind", &[]);
    assert_eq!((code, by_key.len()), (0, 32), "the slave has an index of its own");
}

#[test]
fn an_empty_slave_begins_with_the_last_segment() {
    let mut pair = Pair::new("replication-late", "", WAITING);
    pair.master.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    let unwaited = common::props(&[("WAIT", "false")]);
    let mut offsets = Vec::new();
    for n in 0..900 {
        let body = format!("{n} {}", "x".repeat(3000));
        client.sent(TOPIC, 0, &unwaited, body.as_bytes());
        offsets.push(number_of(&mut client));
    }
    pair.slave.start();
    client.sent(TOPIC, 0, "", b"in step");
    let end = number(&mut client, 907, "masterCommitLogMaxOffset") as u64;
    let from = end - end % (1 << 20);
    assert_eq!(from, 2 << 20);
    same_logs(&pair, from, end);
    let first = offsets.iter().position(|end| *end > from as i64).expect("it is behind the segment's start") as i64;
    let check = |pair: &Pair| {
        let got = pulled(&pair.slave, 0, first, 901);
        assert_eq!(got.len() as i64, 901 - first);
        assert!(got[0].body.starts_with(format!("{first} ").as_bytes()));
        assert_eq!(pair.slave.client().bounds(TOPIC, 0), (first, 901));
    };
    check(&pair);
    pair.slave.kill();
    pair.slave.start();
    check(&pair);
    assert!(pair.slave.stop().success());
    pair.slave.start();
    check(&pair);
    readers_before_its_first(&mut pair, first);
}

/// A slave that has not all of a queue sends nobody over what its master has, unless it is told to.
fn readers_before_its_first(pair: &mut Pair, first: i64) {
    let mut slave = pair.slave.client();
    let before = Pull { suspend_ms: 50, ..Pull::at(TOPIC, 0, 3) };
    until("the master there", || (slave.pull(&before).code == PULL_RETRY_IMMEDIATELY).then_some(()));
    let got = slave.pull(&before);
    assert_eq!((got.code, got.next), (PULL_RETRY_IMMEDIATELY, 3), "{got:?}");
    pair.master.kill();
    until("the master gone", || (slave.pull(&before).code == PULL_NOT_FOUND).then_some(()));
    let got = slave.pull(&before);
    assert_eq!((got.code, got.next), (PULL_NOT_FOUND, 3), "it waits for the master: {got:?}");
    let beyond = Pull { suspend_ms: 50, ..Pull::at(TOPIC, 0, 5000) };
    let got = slave.pull(&beyond);
    assert_eq!((got.code, got.next), (PULL_NOT_FOUND, 5000), "{got:?}");
    slave.ok(25, &[], b"offsetCheckInSlave=true");
    for (pull, next) in [(before, first), (beyond, 901)] {
        let got = until("the new setting", || {
            let got = slave.pull(&pull);
            (got.code != PULL_NOT_FOUND).then_some(got)
        });
        assert_eq!((got.code, got.next), (PULL_OFFSET_MOVED, next), "{got:?}");
    }
    let found = slave.pull(&Pull::at(TOPIC, 0, first).now());
    assert_eq!((found.messages[0].queue_offset, found.code), (first, 0));
}

/// Where the master's log ends.
fn number_of(client: &mut Client) -> i64 {
    number(client, 907, "masterCommitLogMaxOffset")
}

#[test]
fn a_slave_copies_the_tables_and_serves_reads_without_its_master() {
    let mut pair = Pair::new("replication-tables", "", WAITING);
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 3);
    client.create_topic("gone", 1);
    client.sent(TOPIC, 2, "", b"one");
    client.sent("gone", 0, "", b"x");
    client.heartbeat("readers", TOPIC, ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
    assert_eq!(client.commit("readers", TOPIC, 2, 1).code, 0);
    let mut slave = pair.slave.client();
    until("the offset at the slave", || slave.committed("readers", TOPIC, 2).filter(|offset| *offset == 1));
    client.delete_topic("gone");
    until("the topic's end at the slave", || {
        let answer = slave.call(351, &[("topic", "gone")], b"");
        (answer.code == TOPIC_NOT_EXIST).then_some(())
    });
    let config = slave.ok(351, &[("topic", TOPIC)], b"").body;
    assert!(String::from_utf8(config).expect("JSON").contains("\"readQueueNums\":3"));

    pair.master.kill();
    let got = until("a pull without the master", || {
        let got = slave.pull(&Pull::at(TOPIC, 2, 0));
        (got.code == 0).then_some(got)
    });
    assert_eq!(got.messages[0].body, b"one");
    // With nobody to send it to, the slave holds a reader itself.
    until("a held pull", || {
        (slave.pull(&Pull { suspend_ms: 100, ..Pull::at(TOPIC, 2, 1) }).code == PULL_NOT_FOUND).then_some(())
    });

    // A deletion is for good there too, also when all queues have to be built again from the log.
    let noted = pair.slave.store().join("config/deletedTopics.json");
    until("the deletion noted", || std::fs::read_to_string(&noted).ok().filter(|text| text.contains("\"gone\"")));
    pair.slave.kill();
    std::fs::remove_dir_all(pair.slave.store().join("consumequeue")).expect("the queues");
    pair.slave.start();
    assert_eq!(pulled(&pair.slave, 2, 0, 1)[0].body, b"one");
    assert!(!pair.slave.store().join("consumequeue/gone").exists());
}

/// What has a version is copied when that changes, not when offsets are.
#[test]
fn a_new_topic_a_changed_one_and_a_mapping_are_at_the_slave_at_once() {
    let mut pair = Pair::new("replication-at-once", "slaveTablesPeriodMs=86400000", WAITING);
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    let mut slave = pair.slave.client();
    let mut shown = |what: &str, topic: &str, part: &str| {
        until(what, || {
            let answer = slave.call(351, &[("topic", topic), ("lo", "true")], b"");
            (answer.code == 0).then(|| String::from_utf8(answer.body).expect("JSON")).filter(|text| text.contains(part))
        });
    };
    client.create_topic(TOPIC, 3);
    shown("the new topic", TOPIC, "\"readQueueNums\":3");
    client.create_topic(TOPIC, 5);
    shown("the changed topic", TOPIC, "\"readQueueNums\":5");
    // A topic that a message makes is in the log before any table tells of it.
    client.sent("made-by-a-message", 0, "", b"x");
    let made =
        String::from_utf8(client.ok(351, &[("topic", "made-by-a-message"), ("lo", "true")], b"").body).expect("JSON");
    shown("the topic of the message", "made-by-a-message", &made);
    let body = r#"{"bname":"pair","dirty":false,"epoch":7,"hostedQueues":{"0":[{"bname":"pair","endOffset":-1,"gen":0,"logicOffset":100,
        "queueId":2,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}]},"scope":"__global__","topic":"static","totalQueues":1}"#;
    let numbers = [("readQueueNums", "8"), ("writeQueueNums", "8"), ("perm", "6"), ("topicSysFlag", "0")];
    let words =
        [("topic", "static"), ("defaultTopic", "TBW102"), ("topicFilterType", "SINGLE_TAG"), ("order", "false")];
    client.ok(513, &[&numbers[..], &words[..]].concat(), body.as_bytes());
    shown("the mapping", "static", "\"logicOffset\":100");
    client.sent("static", 0, "", b"logical");
    until("a pull of the logical queue at the slave", || {
        let got = slave.pull(&Pull::at("static", 0, 100).now());
        (got.code == 0).then(|| assert_eq!((got.messages[0].body.as_slice(), got.next), (&b"logical"[..], 101)))
    });
    // Over a start without its master, too.
    pair.master.kill();
    assert!(pair.slave.stop().success());
    pair.slave.start();
    let text =
        String::from_utf8(pair.slave.client().ok(351, &[("topic", "static"), ("lo", "true")], b"").body).expect("JSON");
    assert!(text.contains("\"epoch\":7"), "{text}");
}

/// 41 or 42 for a consumer group; the numbers of the queues that are locked.
fn lock(client: &mut Client, code: i32, who: &str, queues: &[i32], only_here: bool) -> Vec<i32> {
    let set: Vec<String> =
        queues.iter().map(|q| format!(r#"{{"brokerName":"pair","queueId":{q},"topic":"{TOPIC}"}}"#)).collect();
    let body = format!(
        r#"{{"clientId":"{who}","consumerGroup":"orderly","mqSet":[{}],"onlyThisBroker":{only_here}}}"#,
        set.join(",")
    );
    let answer = String::from_utf8(client.ok(code, &[], body.as_bytes()).body).expect("JSON");
    (0..10)
        .filter(|queue| {
            answer.contains(&format!("\"queueId\":{queue},")) || answer.contains(&format!("\"queueId\":{queue}}}"))
        })
        .collect()
}

/// In strict mode a queue is locked when most of the replicas say so, and unlocked at all of them.
#[test]
fn in_strict_mode_replicas_lock_together() {
    const LOCK: i32 = 41;
    const UNLOCK: i32 = 42;
    let mut pair = Pair::new("replication-strict-locks", "lockInStrictMode=true\ntotalReplicas=2", WAITING);
    pair.master.start();
    pair.slave.start();
    let (mut master, mut slave) = (pair.master.client(), pair.slave.client());
    assert_eq!(lock(&mut slave, LOCK, "a", &[0], true), [0]);
    // As soon as the NameServer knows both.
    until("a lock of both", || (lock(&mut master, LOCK, "b", &[0, 1], false) == [1]).then_some(()));
    assert_eq!(lock(&mut slave, LOCK, "a", &[1], true), [0; 0], "it is b's there, too");
    lock(&mut master, UNLOCK, "b", &[0, 1], false);
    assert_eq!(lock(&mut slave, LOCK, "a", &[1], true), [1], "b has given it up there, too");
    // Half is not more than half.
    pair.slave.kill();
    assert_eq!(lock(&mut master, LOCK, "b", &[2], false), [0; 0]);
    assert_eq!(lock(&mut master, LOCK, "b", &[3], true), [3], "asked of this one alone");
    master.ok(25, &[], b"lockInStrictMode=false\n");
    assert_eq!(lock(&mut master, LOCK, "b", &[2], false), [2]);
}

/// How far the timers are: the next entry of their queue, their own and the master's.
fn timers_at(client: &mut Client) -> Option<(i64, i64)> {
    let answer = client.call(60, &[], b"");
    let field = |n: usize| i64::from_be_bytes(answer.body[n * 8..][..8].try_into().expect("8 bytes"));
    (answer.code == 0).then(|| (field(2), field(3)))
}

/// A slave copies how far its master's timers are, and goes on there when it leads.
#[test]
fn what_the_masters_timers_delivered_is_not_delivered_again_by_the_slave_that_follows_it() {
    let mut pair = Pair::new("replication-timers", "", WAITING);
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    let at = |seconds: u128| {
        let ms = UNIX_EPOCH.elapsed().expect("a clock").as_millis() + seconds * 1000;
        common::props(&[("TIMER_DELIVER_MS", &ms.to_string())])
    };
    client.sent(TOPIC, 0, &at(1), b"soon");
    client.sent(TOPIC, 0, &at(86_400), b"tomorrow");
    client.sent(TOPIC, 0, &at(3 * 86_400 - 60), b"rolls before");
    until("the first", || (client.bounds(TOPIC, 0).1 == 1).then_some(()));
    // What was due when it was stored counts as done some seconds later.
    let passed = UNIX_EPOCH.elapsed().expect("a clock").as_millis() as i64 + 13_000;
    let read_to = |client: &mut Client| {
        let answer = client.call(60, &[], b"");
        (answer.code == 0).then(|| i64::from_be_bytes(answer.body[..8].try_into().expect("8 bytes")))
    };
    let mut slave = pair.slave.client();
    until("the slave's copy", || read_to(&mut slave).filter(|read| *read > passed));
    assert_eq!(timers_at(&mut slave), Some((0, 3)));
    let waits = |client: &mut Client| {
        let text = String::from_utf8(client.ok(61, &[], b"").body).expect("JSON");
        text.split_once("\"count\":").map(|(_, rest)| rest.starts_with('2'))
    };
    assert_eq!(waits(&mut slave), Some(true));
    assert!(pair.master.stop().success());
    assert!(pair.slave.stop().success());
    pair.slave.set("brokerRole=SLAVE\nbrokerId=1", "brokerRole=ASYNC_MASTER\nbrokerId=0");
    pair.slave.start();
    let mut client = pair.slave.client();
    until("all of the queue", || timers_at(&mut client).filter(|(own, _)| *own == 3));
    client.sent(TOPIC, 0, &at(1), b"of the new master");
    until("its own", || (client.bounds(TOPIC, 0).1 >= 2).then_some(()));
    let all: Vec<_> = pulled(&pair.slave, 0, 0, 2).into_iter().map(|m| m.body).collect();
    assert_eq!(all, [&b"soon"[..], b"of the new master"]);
    assert_eq!(waits(&mut client), Some(true));
}

#[test]
fn a_slave_whose_log_is_not_its_masters_says_so_and_keeps_what_it_has() {
    let mut pair = Pair::new("replication-diverged", "", "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=300");
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    let mut sent = 0;
    until("the slave in step", || {
        sent += 1;
        (client.send(TOPIC, 0, "", b"of the first master").code == 0).then_some(())
    });
    let kept = pulled(&pair.slave, 0, 0, sent).len();

    // The master's disk is lost: the slave has more than it.
    assert!(pair.master.stop().success());
    std::fs::remove_dir_all(pair.master.store()).expect("the master's store");
    pair.master.start();
    until("the slave's word", || {
        pair.slave.log().contains("it has what the master lost; not one record").then_some(())
    });
    // The new log grows past the slave's end; sends are stored, but no slave has them.
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    for _ in 0..sent + 2 {
        assert_eq!(client.send(TOPIC, 0, "", b"of the second, and longer than that").code, FLUSH_SLAVE_TIMEOUT);
    }
    let word = "is another one than the master's; not one record of this log is the master's";
    until("the slave's second word", || pair.slave.log().contains(word).then_some(()));
    let still = pulled(&pair.slave, 0, 0, sent);
    assert_eq!(still.len(), kept);
    assert!(still.iter().all(|message| message.body == b"of the first master"));
}

/// Acknowledged with code 0: queue, offset, body.
type Book = Arc<Mutex<BTreeMap<(i32, i64), String>>>;

/// Sends to one queue until told to stop, through whatever happens to the master.
fn write(addr: std::net::SocketAddr, queue: i32, stop: &AtomicBool, count: &AtomicU64, book: &Book) {
    let mut client = None;
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if client.is_none() {
            client = Client::try_connect(addr);
        }
        let Some(open) = &mut client else {
            std::thread::yield_now();
            continue;
        };
        let body = format!("{queue}/{n} {}", "y".repeat(n % 900));
        match open.try_send(TOPIC, queue, body.as_bytes()) {
            Some(sent) if sent.code == 0 => {
                book.lock().unwrap().insert((queue, sent.queue_offset), body);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => {}
            None => client = None,
        }
    }
}

fn killed_under_load(name: &str, flush: &str) {
    let settings = format!("flushDiskType={flush}");
    let mut pair = Pair::new(name, &settings, "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=2000");
    pair.master.start();
    pair.master.client().create_topic(TOPIC, 4);
    pair.slave.start();
    until("the topic at the slave", || {
        (pair.slave.client().call(351, &[("topic", TOPIC)], b"").code == 0).then_some(())
    });
    let (book, stop, count) = (Book::default(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let addr = pair.master.addr;
    let writers: Vec<_> = (0..4)
        .map(|queue| {
            let (book, stop, count) = (book.clone(), stop.clone(), count.clone());
            std::thread::spawn(move || write(addr, queue, &stop, &count, &book))
        })
        .collect();
    let more = |what: &str| {
        let wanted = count.load(Ordering::Relaxed) + 100;
        until(what, || (count.load(Ordering::Relaxed) >= wanted).then_some(()));
    };
    more("acknowledged at first");
    for round in 0..2 {
        pair.slave.kill();
        pair.slave.start();
        more("acknowledged after the slave's death");
        pair.master.kill();
        pair.master.start();
        more(&format!("acknowledged after the master's death, round {round}"));
    }
    // The last word: both at once, and the master never comes back.
    pair.master.kill();
    pair.slave.kill();
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    pair.slave.start();
    let book = book.lock().unwrap();
    assert!(book.len() >= 500);
    for queue in 0..4 {
        let acknowledged: Vec<_> = book.iter().filter(|((of, _), _)| *of == queue).collect();
        let end = acknowledged.last().map_or(0, |((_, offset), _)| offset + 1);
        let found: BTreeMap<i64, Vec<u8>> =
            pulled(&pair.slave, queue, 0, end).into_iter().map(|m| (m.queue_offset, m.body)).collect();
        for ((_, offset), body) in acknowledged {
            assert_eq!(found.get(offset).map(Vec::as_slice), Some(body.as_bytes()), "queue {queue} at {offset}");
        }
    }
    assert!(!pair.slave.log().contains("panic") && !pair.master.log().contains("panic"));
}

#[test]
fn nothing_acknowledged_is_lost_when_either_side_is_killed() {
    killed_under_load("replication-kill", "ASYNC_FLUSH");
}

#[test]
fn nothing_acknowledged_is_lost_when_either_side_is_killed_with_sync_flush() {
    killed_under_load("replication-kill-sync", "SYNC_FLUSH");
}

/// A slave builds batch queues and light queues from the log, also of a topic whose records come before its configuration, and goes on with
/// them after a restart.
#[test]
fn a_slave_has_batch_queues_and_light_queues() {
    let lights = "enableLmq=true\nenableMultiDispatch=true";
    let mut pair = Pair::new("replication-batches", lights, "brokerRole=ASYNC_MASTER");
    pair.master.start();
    let mut client = pair.master.client();
    client.create_batch_topic("batches", "1");
    client.create_batch_topic("single", "1");
    client.create_topic("plain", 1);
    client.send_many("single", 0, "", 20); // nothing in these records tells of the topic's kind
    let light = common::props(&[("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b")]);
    let mut records = 0;
    for n in 0..30 {
        client.send_inner_batch("batches", 0, &format!("b{n}"), 1 + n % 5);
        client.sent("plain", 0, &light, format!("{n}").as_bytes());
        records += 1;
    }
    pair.slave.start();
    let read = |node: &Node, topic: &str, end: i64| {
        let mut client = node.client();
        let mut all = Vec::new();
        let mut offset = 0;
        while offset < end {
            let got = until("messages at the slave", || {
                let got = client.pull(&Pull { topic, ..Pull::at(topic, 0, offset).now() });
                (got.code == 0).then_some(got)
            });
            offset = got.next;
            all.extend(got.messages);
        }
        assert_eq!(client.bounds(topic, 0), (0, end), "{topic}");
        all
    };
    for restart in 0..3 {
        let end = client.bounds("batches", 0).1;
        let found = read(&pair.slave, "batches", end);
        assert_eq!(found.len(), records);
        let next: Vec<i64> = found.iter().skip(1).map(|m| m.queue_offset).chain([end]).collect();
        for (message, next) in found.iter().zip(next) {
            let count: i64 = message.prop("INNER_NUM").expect("a batch").parse().expect("a number");
            assert_eq!(message.queue_offset + count, next);
        }
        assert_eq!(read(&pair.slave, "single", 20).len(), 20);
        for light in ["%LMQ%a", "%LMQ%b"] {
            let bodies: Vec<_> = read(&pair.slave, light, records as i64).into_iter().map(|m| m.body).collect();
            assert_eq!(bodies, (0..records).map(|n| n.to_string().into_bytes()).collect::<Vec<_>>());
        }
        // Since the stop; before it the files may be to come.
        assert!(restart != 1 || pair.slave.store().join("batchconsumequeue/batches/0").is_dir());
        match restart {
            0 => assert!(pair.slave.stop().success()),
            _ => pair.slave.kill(),
        }
        client.send_inner_batch("batches", 0, "behind", 3);
        client.sent("plain", 0, &light, format!("{records}").as_bytes());
        records += 1;
        pair.slave.start();
    }
}
