//! A slave whose log is not its master's any more: told, or cut back to the last place where both agree when slaveTruncateBytesMax allows it.
use super::common::{Client, Pair, Pull, props};
use super::{PULL_OFFSET_MOVED, TOPIC, WAITING, number_of, pulled, same_logs, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Allows everything that these tests store.
const CUT: &str = "slaveTruncateBytesMax=100000000";

/// Sends `count` messages to two queues, numbered from what the queues hold; nobody waits for the slave.
fn send(client: &mut Client, count: usize, text: &str, body_bytes: usize) {
    let unwaited = props(&[("WAIT", "false"), ("KEYS", text)]);
    for n in 0..count {
        let body = format!("{text} {n} {}", "x".repeat(body_bytes));
        client.sent(TOPIC, n as i32 % 2, &unwaited, body.as_bytes());
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("the store") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("its type").is_dir() {
            true => copy_dir(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

fn report(pair: &Pair) -> BTreeMap<String, serde_json::Value> {
    let text = std::fs::read(pair.slave.store().join("config/repairReport.json")).expect("a report");
    serde_json::from_slice(&text).expect("JSON")
}

/// Where the slave's cut was, of how many bytes and records, as its report says; what was cut is kept.
fn reported_cut(pair: &Pair) -> (u64, u64, u64) {
    let report = report(pair);
    let cut = &report["ordered_cut"];
    let number = |name: &str| cut[name].as_u64().unwrap_or_else(|| panic!("no {name} in {cut}"));
    let (at, bytes) = (number("at"), number("end") - number("at"));
    assert_eq!(report["cut_at"].as_u64(), Some(at));
    let kept = std::fs::metadata(cut["kept"].as_str().expect("a file")).expect("it is there");
    assert_eq!(kept.len(), bytes);
    (at, bytes, number("records"))
}

/// The slave follows, to the byte, and serves what the master has and nothing else.
fn in_step(pair: &Pair, from: u64) {
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 2);
    let waited = client.send(TOPIC, 0, "", b"in step");
    assert_eq!(waited.code, 0, "{waited:?}");
    let end = number_of(&mut client) as u64;
    same_logs(pair, from, end);
    for queue in 0..2 {
        let (min, max) = client.bounds(TOPIC, queue);
        until("the queue at the slave", || (pair.slave.client().bounds(TOPIC, queue) == (min, max)).then_some(()));
        let mut at_master = Vec::new();
        while at_master.len() < (max - min) as usize {
            at_master.extend(client.pull(&Pull::at(TOPIC, queue, min + at_master.len() as i64).now()).messages);
        }
        let at_slave = pulled(&pair.slave, queue, min, max);
        let bodies = |all: &[super::Message]| all.iter().map(|m| m.body.clone()).collect::<Vec<_>>();
        assert!(bodies(&at_slave) == bodies(&at_master), "queue {queue}");
    }
    assert!(!pair.slave.log().contains("panic"), "{}", pair.slave.log());
}

/// The end of the master's log is lost, its slave has it: the master is an older copy of itself.
fn ahead(name: &str, both: &str, lost: usize) -> (Pair, u64) {
    let mut pair = Pair::new(name, both, WAITING);
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 2);
    send(&mut client, 30, "kept", 1000);
    assert_eq!(client.send(TOPIC, 0, "", b"the last that is kept").code, 0);
    let kept_to = number_of(&mut client) as u64;
    assert!(pair.master.stop().success());
    let copy = pair.master.dir.join("copy");
    copy_dir(&pair.master.store(), &copy);
    pair.master.start();
    let mut client = pair.master.client();
    send(&mut client, lost - 1, "lost", 3000);
    client.heartbeat("readers", TOPIC, ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
    let end = client.bounds(TOPIC, 0).1;
    assert_eq!(client.commit("readers", TOPIC, 0, end).code, 0);
    assert_eq!(client.send(TOPIC, 1, "", b"the last that is lost").code, 0);
    let mut slave = pair.slave.client();
    until("the offset at the slave", || slave.committed("readers", TOPIC, 0).filter(|offset| *offset == end));
    pair.master.kill();
    std::fs::remove_dir_all(pair.master.store()).expect("the master's store");
    std::fs::rename(copy, pair.master.store()).expect("the copy in its place");
    (pair, kept_to)
}

#[test]
fn a_slave_that_is_ahead_is_cut_back_to_its_master() {
    let (mut pair, kept_to) = ahead("truncation-ahead", &format!("{CUT}\noffsetCheckInSlave=true"), 800);
    let pid = pair.slave.pid();
    pair.master.start();
    in_step(&pair, 0);
    let (at, bytes, records) = reported_cut(&pair);
    assert_eq!((at, records), (kept_to, 800));
    assert!(bytes > 2 << 20, "{bytes} bytes");
    assert_eq!(pair.slave.pid(), pid);
    let mut slave = pair.slave.client();
    assert!(slave.query(TOPIC, "lost", &[]).1.is_empty(), "the index knows nothing of what was cut");
    assert_eq!(slave.query(TOPIC, "kept", &[]).1.len(), 30);
    // 15 and the one before the cut; the one that was sent since is not passed over.
    assert_eq!(slave.committed("readers", TOPIC, 0), Some(16));
    let beyond = slave.pull(&Pull::at(TOPIC, 0, 10_000).now());
    assert_eq!((beyond.code, beyond.next), (PULL_OFFSET_MOVED, slave.bounds(TOPIC, 0).1));
    assert!(pair.slave.stop().success());
    pair.slave.start();
    in_step(&pair, 0);
}

/// Both took writes as masters, over more than one segment.
#[test]
fn a_slave_that_took_writes_as_a_master_is_cut_back_to_what_both_have() {
    let mut pair = Pair::new("truncation-diverged", CUT, WAITING);
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 2);
    send(&mut client, 700, "of both", 2000);
    assert_eq!(client.send(TOPIC, 0, "", b"the last of both").code, 0);
    let agreed = number_of(&mut client) as u64;
    assert!(agreed > 1 << 20);
    pair.master.kill();
    assert!(pair.slave.stop().success());
    pair.slave.set("brokerRole=SLAVE\nbrokerId=1", "brokerRole=ASYNC_MASTER\nbrokerId=0");
    pair.slave.start();
    let mut other = pair.slave.client();
    other.create_topic("only-here", 1);
    send(&mut other, 600, "of the second", 2500);
    other.sent("only-here", 0, "", b"x");
    // Waiting timers and delayed messages go with the log.
    let tomorrow = UNIX_EPOCH.elapsed().expect("a clock").as_millis() + 24 * 3600 * 1000;
    other.sent(TOPIC, 0, &props(&[("TIMER_DELIVER_MS", &tomorrow.to_string())]), b"tomorrow");
    other.sent(TOPIC, 0, &props(&[("DELAY", "18")]), b"in two hours");
    until("the timer on the wheel", || (pair.slave.store().join("timerwheel").exists()).then_some(()));
    assert!(pair.slave.stop().success());
    pair.slave.set("brokerRole=ASYNC_MASTER\nbrokerId=0", "brokerRole=SLAVE\nbrokerId=1");
    pair.master.start();
    send(&mut pair.master.client(), 1500, "of the first, who stays", 2500);
    pair.slave.start();
    in_step(&pair, 0);
    let (at, _, records) = reported_cut(&pair);
    assert_eq!((at, records), (agreed, 603));
    let mut slave = pair.slave.client();
    assert!(slave.query(TOPIC, "of the second", &[]).1.is_empty());
    assert!(!pair.slave.store().join("consumequeue/only-here").exists());
}

#[test]
fn what_is_more_than_the_limit_stays_until_it_is_raised() {
    let (mut pair, kept_to) = ahead("truncation-limit", "slaveTruncateBytesMax=5000", 40);
    pair.master.start();
    let word = format!("the two agree up to {kept_to}, and the ");
    until("the slave's word", || pair.slave.log().contains(&word).then_some(()));
    assert!(pair.slave.log().contains("slaveTruncateBytesMax=5000 does not allow"), "{}", pair.slave.log());
    assert_eq!(pulled(&pair.slave, 0, 0, 16 + 20).len(), 36, "it keeps what it has");
    pair.slave.client().ok(25, &[], CUT.as_bytes());
    in_step(&pair, 0);
    assert_eq!(reported_cut(&pair).0, kept_to);
}

/// At each step of the cut, and of the start that makes it.
#[test]
fn a_slave_that_is_killed_while_it_is_cut_is_cut_by_the_next_start() {
    let (mut pair, kept_to) = ahead("truncation-kill", CUT, 900);
    pair.master.start();
    let steps = ["the cut is ordered", "log cut at", "store open ", "roles placed", "broker serves"];
    for step in steps {
        let before = pair.slave.log().len();
        if !pair.slave.runs() {
            pair.slave.launch();
        }
        // The first runs since before its master came back, and may be past the step already.
        let from = if step == steps[0] { 0 } else { before };
        until(step, || {
            let log = pair.slave.log();
            (log[from..].contains(step) || log[before..].contains("broker serves")).then_some(())
        });
        pair.slave.kill();
    }
    pair.slave.start();
    in_step(&pair, 0);
    assert!(pair.slave.log().contains(&format!("log cut at {kept_to}")));
}

/// An order that waits is for a slave; whoever makes it a master wants what it has.
#[test]
fn an_order_to_cut_is_for_a_slave() {
    let mut pair = Pair::new("truncation-promoted", "", "");
    let (slave, master) = ("brokerRole=SLAVE\nbrokerId=1", "brokerRole=ASYNC_MASTER\nbrokerId=0");
    pair.slave.set(slave, master);
    pair.slave.start();
    let mut client = pair.slave.client();
    client.create_topic(TOPIC, 2);
    send(&mut client, 20, "x", 100);
    let all = pulled(&pair.slave, 0, 0, 10);
    assert!(pair.slave.stop().success());
    // Those of the two queues take turns, and all are of one length.
    let (cut, bytes) = (all[7].phy_offset, (all[7].phy_offset - all[6].phy_offset) / 2);
    let order = format!(
        "{{\"last\":{},\"at\":{cut},\"end\":{},\"records\":6,\"first_crc\":null,\"why\":\"a test\",\"kept\":null}}",
        cut - bytes,
        cut + 6 * bytes
    );
    let path = pair.slave.store().join("config/cutOrder.json");
    std::fs::write(&path, &order).expect("the order");
    pair.slave.start();
    assert!(pair.slave.log().contains("it stays, since this broker is no slave"));
    assert!(!path.exists());
    assert_eq!((pair.slave.client().bounds(TOPIC, 0), pair.slave.client().bounds(TOPIC, 1)), ((0, 10), (0, 10)));
    assert!(pair.slave.stop().success());
    std::fs::write(&path, &order).expect("the order");
    pair.slave.set(master, slave);
    pair.slave.start();
    assert!(!path.exists());
    assert_eq!((pair.slave.client().bounds(TOPIC, 0), pair.slave.client().bounds(TOPIC, 1)), ((0, 7), (0, 7)));
}
