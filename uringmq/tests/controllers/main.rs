//! Controllers as processes: three of them through kills, one with the brokers that it judges, and the same conversation that Apache's
//! controller had. With Apache's brokers: `bench-harness/interop/run-controller`.
mod against_apache;
mod alone;
#[path = "../common/mod.rs"]
mod common;
mod inside;
mod three;

use common::Client;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uringmq_proto::body::controller::{BrokerReplicasInfo, ReplicasInfo};
use uringmq_proto::fastjson;

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until all who answer name the same leader, and it is one of them: its place in `addrs`.
fn led_by(addrs: &[SocketAddr]) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let named: Vec<Option<SocketAddr>> = addrs
            .iter()
            .map(|addr| {
                let metadata = Client::try_connect(*addr)?.call(1005, &[], b"");
                let leader = metadata.get("controllerLeaderAddress")?.parse().expect("an address");
                let leads = metadata.get("isLeader") == Some("true");
                assert_eq!(leads, leader == *addr, "{metadata:?}");
                Some(leader)
            })
            .collect();
        let leader = named[0].and_then(|leader| addrs.iter().position(|addr| *addr == leader));
        if let Some(leader) = leader.filter(|_| named.iter().all(|one| *one == named[0])) {
            return leader;
        }
        assert!(Instant::now() < deadline, "no leader: {named:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One heartbeat that counts for ten minutes, on `client`'s connection.
fn beat(client: &mut Client, group: &str, id: i64, timeout_ms: u64, max_offset: u64) {
    let (id, time, offset) = (id.to_string(), timeout_ms.to_string(), max_offset.to_string());
    let fields = [
        ("clusterName", "c"),
        ("brokerName", group),
        ("brokerAddr", "127.0.0.1:1"),
        ("brokerId", id.as_str()),
        ("epoch", "0"),
        ("maxOffset", &offset),
        ("heartbeatTimeoutMills", &time),
    ];
    client.ok(904, &fields, b"");
}

fn apply_id(client: &mut Client, group: &str, id: i64, address: &str) {
    let (id, code) = (id.to_string(), format!("{address};1"));
    let fields =
        [("clusterName", "c"), ("brokerName", group), ("appliedBrokerId", id.as_str()), ("registerCheckCode", &code)];
    client.ok(1013, &fields, b"");
}

fn elect(client: &mut Client, group: &str, id: i64) -> i32 {
    let id = id.to_string();
    let fields = [("clusterName", "c"), ("brokerName", group), ("brokerId", id.as_str()), ("designateElect", "false")];
    client.call(1002, &fields, b"").code
}

fn alter(client: &mut Client, group: &str, master: i64, epochs: (i32, i32), set: &[i64]) -> i32 {
    let (master, epoch) = (master.to_string(), epochs.0.to_string());
    let body = format!("{{\"syncStateSet\":{set:?},\"syncStateSetEpoch\":{}}}", epochs.1);
    let fields = [("brokerName", group), ("masterBrokerId", master.as_str()), ("masterEpoch", &epoch)];
    client.call(1001, &fields, body.as_bytes()).code
}

/// What 1006 says of a group.
fn state(client: &mut Client, group: &str) -> ReplicasInfo {
    let answer = client.ok(1006, &[], format!("[\"{group}\"]").as_bytes());
    let mut info: BrokerReplicasInfo = fastjson::from_slice(&answer.body).expect("a table");
    info.replicas_info_table.remove(group).unwrap_or_else(|| panic!("no group {group}"))
}

/// Master, its epoch, the set, its epoch.
fn view(client: &mut Client, group: &str) -> (Option<i64>, i32, Vec<i64>, i32) {
    let info = state(client, group);
    let set = info.in_sync_replicas.iter().map(|one| one.broker_id).collect();
    (info.master_broker_id, info.master_epoch, set, info.sync_state_set_epoch)
}

/// Waits until `holds`.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
