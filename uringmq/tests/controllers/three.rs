//! Three controllers: what they have agreed on survives every kill that leaves the files.
use crate::common::{Client, Process, free_port, test_dir};
use crate::{alter, apply_id, beat, elect, led_by, state, view};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

const GROUP: &str = "broker-a";
/// No heartbeat runs out during a test.
const LONG_MS: u64 = 600_000;

/// Code, fields, body.
type Request<'a> = (i32, Vec<(&'a str, &'a str)>, &'a [u8]);

struct Three {
    all: Vec<Process>,
    addrs: Vec<SocketAddr>,
    more: &'static str,
}

impl Three {
    fn start(name: &str, more: &'static str) -> Three {
        let mut ports = BTreeSet::new();
        while ports.len() < 3 {
            ports.insert(free_port());
        }
        let addrs = ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let all = (0..3).map(|n| Process::new("controller", test_dir(&format!("{name}-n{n}")))).collect();
        let mut three = Three { all, addrs, more };
        (0..3).for_each(|n| three.start_one(n));
        three
    }

    fn conf(&self, n: usize) -> String {
        let peers: Vec<String> = self.addrs.iter().enumerate().map(|(n, addr)| format!("n{n}-{addr}")).collect();
        format!(
            "controllerDLegerGroup=three\ncontrollerDLegerPeers={}\ncontrollerDLegerSelfId=n{n}\ncontrollerStorePath={}\n{}\n",
            peers.join(";"),
            self.all[n].store().display(),
            self.more
        )
    }

    fn start_one(&mut self, n: usize) {
        let conf = self.conf(n);
        self.all[n].start(&conf).unwrap_or_else(|why| panic!("n{n}: {why}"));
    }

    fn running(&self) -> Vec<SocketAddr> {
        (0..3).filter(|n| self.all[*n].runs()).map(|n| self.addrs[n]).collect()
    }

    /// Its number, and a client of it.
    fn leader(&self) -> (usize, Client) {
        let running = self.running();
        let addr = running[led_by(&running)];
        (self.addrs.iter().position(|one| *one == addr).expect("one of them"), Client::connect(addr))
    }

    fn client(&self, n: usize) -> Client {
        Client::connect(self.addrs[n])
    }

    fn no_panic(&self) {
        for (n, one) in self.all.iter().enumerate() {
            assert!(!one.log().contains("panic"), "n{n}: {}", one.log());
        }
    }
}

/// Brokers 1 and 2 in step, known to be alive by every controller that runs; the connections keep them so.
fn beats(three: &Three) -> Vec<Client> {
    let mut connections = Vec::new();
    for addr in three.running() {
        for id in [1, 2] {
            let mut client = Client::connect(addr);
            beat(&mut client, GROUP, id, LONG_MS, 100);
            connections.push(client);
        }
    }
    connections
}

#[test]
fn what_was_decided_survives_the_leader_s_death_and_a_restart_of_all() {
    let mut three = Three::start("controllers-three", "");
    let (first, mut client) = three.leader();
    apply_id(&mut client, GROUP, 1, "127.0.0.1:1");
    apply_id(&mut client, GROUP, 2, "127.0.0.1:2");
    let held = beats(&three);
    assert_eq!(elect(&mut client, GROUP, 1), 0);
    assert_eq!(alter(&mut client, GROUP, 1, (1, 1), &[1, 2]), 0);
    let decided = (Some(1), 1, vec![1, 2], 2);
    assert_eq!(view(&mut client, GROUP), decided);

    three.all[first].kill();
    let (second, mut client) = three.leader();
    assert_ne!(second, first);
    assert_eq!(view(&mut client, GROUP), decided, "the new leader has it");
    assert!(state(&mut client, GROUP).in_sync_replicas.iter().all(|one| one.alive), "and knows who is alive");
    assert_eq!(alter(&mut client, GROUP, 1, (1, 2), &[1]), 0, "two of three go on");
    let decided = (Some(1), 1, vec![1], 3);

    three.start_one(first);
    three.all[second].kill();
    let (_, mut client) = three.leader();
    assert_eq!(view(&mut client, GROUP), decided, "who came back has caught up");

    drop(held);
    (0..3).for_each(|n| three.all[n].kill());
    (0..3).for_each(|n| three.start_one(n));
    let (_, mut client) = three.leader();
    assert_eq!(view(&mut client, GROUP), decided, "after a kill of all");
    assert_eq!(elect(&mut client, GROUP, 2), 2012, "2 is not in the set, and nobody has been heard of");
    assert_eq!(view(&mut client, GROUP), decided, "a master that was not heard of yet is not lost yet");
    let _held = beats(&three);
    assert_eq!(alter(&mut client, GROUP, 1, (1, 3), &[1, 2]), 0, "and it goes on");
    three.no_panic();
}

#[test]
fn who_does_not_lead_says_so_and_who_does() {
    let three = Three::start("controllers-followers", "");
    let (leader, _) = three.leader();
    let follower = (leader + 1) % 3;
    for binary in [false, true] {
        let mut client = Client::speaking(three.addrs[follower], binary);
        let group = ("brokerName", GROUP);
        let cluster = ("clusterName", "c");
        let requests: [Request<'_>; 8] = [
            (1001, vec![group, ("masterBrokerId", "1"), ("masterEpoch", "1")], b"{\"syncStateSet\":[1]}"),
            (1002, vec![cluster, group, ("brokerId", "1")], b""),
            (1003, vec![cluster, group, ("brokerId", "1"), ("brokerAddress", "h:1")], b""),
            (1004, vec![group], b""),
            (1006, vec![], b"[]"),
            (1011, vec![cluster, group], b""),
            (1012, vec![cluster, group], b""),
            (1013, vec![cluster, group, ("appliedBrokerId", "1"), ("registerCheckCode", "h:1;1")], b""),
        ];
        for (code, fields, body) in &requests {
            let answer = client.call(*code, fields, body);
            assert_eq!(answer.code, 2007, "{code}: {answer:?}");
            let remark = answer.remark.unwrap_or_default();
            assert!(remark.contains(&format!("n{leader} does")), "{code}: {remark}");
        }
        let metadata = client.ok(1005, &[], b"");
        let peers: String = three.addrs.iter().enumerate().map(|(n, addr)| format!("n{n}:{addr};")).collect();
        for (field, value) in [
            ("group", "three".to_owned()),
            ("controllerLeaderId", format!("n{leader}")),
            ("controllerLeaderAddress", three.addrs[leader].to_string()),
            ("isLeader", "false".to_owned()),
            ("peers", peers),
        ] {
            assert_eq!(metadata.get(field), Some(value.as_str()), "{field}");
        }
        let config = client.ok(1010, &[], b"");
        assert!(String::from_utf8(config.body).unwrap().contains("controllerDLegerGroup=three"));
    }
    three.no_panic();
}

#[test]
fn without_a_majority_nothing_is_decided() {
    let mut three = Three::start("controllers-minority", "");
    let (leader, mut client) = three.leader();
    apply_id(&mut client, GROUP, 1, "127.0.0.1:1");
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    others.iter().for_each(|n| three.all[*n].kill());
    let fields =
        [("clusterName", "c"), ("brokerName", GROUP), ("appliedBrokerId", "2"), ("registerCheckCode", "h:2;1")];
    let refused = three.client(leader).call(1013, &fields, b"");
    assert!([1, 2007].contains(&refused.code), "{refused:?}");
    let read = three.client(leader).call(1004, &[("brokerName", GROUP)], b"");
    assert!([1, 2007].contains(&read.code), "an old leader's state may be old: {read:?}");
    crate::until("the one that is left says that nobody leads", || {
        let metadata = three.client(leader).ok(1005, &[], b"");
        metadata.get("isLeader") == Some("false") && metadata.get("controllerLeaderId").is_none()
    });
    three.start_one(others[0]);
    let (_, mut client) = three.leader();
    assert_eq!(state(&mut client, GROUP).not_in_sync_replicas[0].broker_id, 1);
    apply_id(&mut client, GROUP, 2, "h:2");
    three.no_panic();
}

/// The state of the snapshot file: a frame of 12 bytes and JSON.
fn snapshot(store: &Path, n: usize) -> Option<serde_json::Value> {
    let bytes = std::fs::read(store.join(format!("uringmq-n{n}/snapshot"))).ok()?;
    serde_json::from_slice(&bytes[12..]).ok()
}

#[test]
fn one_that_was_away_long_gets_a_snapshot() {
    let mut three = Three::start("controllers-snapshot", "controllerSnapshotEntries=50");
    let (leader, mut client) = three.leader();
    let away = (leader + 1) % 3;
    three.all[away].kill();
    for id in 1..=400 {
        apply_id(&mut client, GROUP, id, &format!("127.0.0.1:{id}"));
    }
    let log = std::fs::metadata(three.all[leader].store().join(format!("uringmq-n{leader}/raft.log"))).unwrap().len();
    assert!(log < 100_000, "the log holds {log} bytes: it does not begin anew with snapshots");
    three.start_one(away);
    crate::until("the snapshot at the one that was away", || {
        let saved = snapshot(&three.all[away].store(), away);
        saved.is_some_and(|saved| saved["applied"]["state"]["groups"][GROUP]["next_id"].as_i64() >= Some(300))
    });
    (0..3).for_each(|n| three.all[n].kill());
    three.start_one(away);
    three.start_one(leader);
    let (_, mut client) = three.leader();
    assert_eq!(state(&mut client, GROUP).not_in_sync_replicas.len(), 400);
    three.no_panic();
}

#[test]
fn other_peers_than_the_files_have_are_refused() {
    let mut three = Three::start("controllers-peers", "");
    three.leader();
    let conf = three.conf(0);
    three.all[0].kill();
    let two: Vec<String> = (0..2).map(|n| format!("n{n}-{}", three.addrs[n])).collect();
    let peers = conf.lines().find(|line| line.starts_with("controllerDLegerPeers")).unwrap();
    let other = conf.replace(peers, &format!("controllerDLegerPeers={}", two.join(";")));
    let why = three.all[0].start(&other).expect_err("it starts");
    assert!(why.contains("controllerDLegerPeers names n0,n1") && why.contains("n0,n1,n2"), "{why}");
    let mut second = Process::new("controller", test_dir("controllers-peers-second"));
    three.start_one(0);
    let port = format!("{}", three.addrs[0].port());
    let why = second.start(&conf.replace(&port, &free_port().to_string())).expect_err("it starts");
    assert!(why.contains("is in use by another controller"), "{why}");
}
