//! A slave does its dead master's duties: what they produce goes to another master of the cluster.
use super::common::{Client, Node, Pull, free_port, props, test_dir};
use super::{ALIVE, SYSTEM_BUSY, master, name_server, texts, until};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const DELAYED: &str = "delayed";
const QUEUES: i32 = 2;
const MESSAGES: usize = 40;
/// What `delayLevels` says below.
const LEVELS: &str = "messageDelayLevel=1s 12s 14s";
const LEVEL_MS: [i64; 3] = [1_000, 12_000, 14_000];

struct Group {
    names: Node,
    leader: Node,
    slave: Node,
    other: Node,
}

/// A master with a slave, and a master of another name; all run.
fn group(dir: &Path, escape: bool) -> Group {
    let mut names = name_server(dir, "names", [127, 0, 0, 1], free_port());
    names.set("scanNotActiveBrokerInterval=200", "scanNotActiveBrokerInterval=200\nsupportActingMaster=true");
    names.start();
    let addrs = texts([&names.addr]);
    let both = format!("{ALIVE}\n{LEVELS}\nenableRemoteEscape={escape}");
    let role = "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=60000";
    let mut leader = master(dir, "group", &addrs, &format!("{both}\n{role}"));
    let role = "brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true";
    let mut slave = master(dir, "group", &addrs, &format!("{both}\n{role}"));
    slave.dir = dir.join("slave");
    std::fs::create_dir_all(&slave.dir).expect("a directory for the slave");
    slave.set("group/store", "slave/store");
    let mut other = master(dir, "other", &addrs, "");
    leader.start();
    slave.start();
    other.start();
    for node in [&leader, &other] {
        node.client().create_topic(DELAYED, QUEUES);
    }
    Group { names, leader, slave, other }
}

/// Body to the times (ms) when it was stored, of all that a broker has of the topic.
fn arrived(client: &mut Client) -> BTreeMap<String, Vec<i64>> {
    let mut all: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for queue in 0..QUEUES {
        let (mut at, max) = client.bounds(DELAYED, queue);
        while at < max {
            let got = client.pull(&Pull::at(DELAYED, queue, at).now());
            assert_eq!(got.code, 0, "{got:?}");
            for message in &got.messages {
                let body = String::from_utf8(message.body.clone()).expect("a text");
                all.entry(body).or_default().push(message.store_timestamp_ms);
            }
            at = got.next;
        }
    }
    all
}

/// Sends them at level 2 or 3; body to when it is due at the earliest, ms.
fn put(client: &mut Client, name: &str) -> BTreeMap<String, i64> {
    let mut due = BTreeMap::new();
    for n in 0..MESSAGES {
        let level = 2 + n % 2;
        let body = format!("{name}/{n}");
        let before_ms = super::common::now_ms();
        client.sent(DELAYED, 0, &props(&[("DELAY", &level.to_string()), ("UNIQ_KEY", &body)]), body.as_bytes());
        due.insert(body, before_ms + LEVEL_MS[level - 1]);
    }
    due
}

fn none_early(due: &BTreeMap<String, i64>, got: &BTreeMap<String, Vec<i64>>) {
    for (body, times) in got {
        let due_ms = due.get(body).unwrap_or_else(|| panic!("{body} was never put"));
        times.iter().for_each(|at_ms| assert!(at_ms >= due_ms, "{body} came {} ms early", due_ms - at_ms));
    }
}

#[test]
fn delayed_messages_of_a_dead_master_come_to_another_one_and_the_master_goes_on() {
    let dir = test_dir("several-escape");
    let mut group = group(&dir, true);
    let mut due = put(&mut group.leader.client(), "first");
    group.leader.kill();
    let mut at_other = group.other.client();
    let all: BTreeSet<String> = due.keys().cloned().collect();
    let got = until("all of them at the other master", || {
        let got = arrived(&mut at_other);
        (got.keys().cloned().collect::<BTreeSet<_>>() == all).then_some(got)
    });
    none_early(&due, &got);
    assert_eq!(
        group.slave.client().send(DELAYED, 0, "", b"never").code,
        SYSTEM_BUSY,
        "a slave takes no client's message"
    );

    group.leader.start();
    let mut at_leader = group.leader.client();
    due.append(&mut put(&mut at_leader, "second"));
    let seconds: BTreeSet<String> = due.keys().filter(|body| body.starts_with("second")).cloned().collect();
    let got = until("what was put after it at the master", || {
        let got = arrived(&mut at_leader);
        seconds.iter().all(|body| got.contains_key(body)).then_some(got)
    });
    none_early(&due, &got);
    let again: Vec<_> = got.keys().filter(|body| !seconds.contains(*body)).collect();
    assert!(again.is_empty(), "what the slave delivered is not delivered again: {again:?}");
    let there = arrived(&mut at_other);
    assert!(there.keys().all(|body| !seconds.contains(body)), "the slave stopped: {there:?}");
    drop(group.names);
}

/// Without enableRemoteEscape nothing leaves: the master delivers it when it is back.
#[test]
fn without_the_escape_delayed_messages_wait_for_their_master() {
    let dir = test_dir("several-no-escape");
    let mut group = group(&dir, false);
    let due = put(&mut group.leader.client(), "kept");
    group.leader.kill();
    until("the slave's try", || group.slave.log().contains("enableRemoteEscape is off").then_some(()));
    assert!(arrived(&mut group.other.client()).is_empty());
    group.leader.start();
    let mut at_leader = group.leader.client();
    let got = until("all of them at the master", || {
        let got = arrived(&mut at_leader);
        due.keys().all(|body| got.contains_key(body)).then_some(got)
    });
    none_early(&due, &got);
    assert!(got.values().all(|times| times.len() == 1), "once each: {got:?}");
}
