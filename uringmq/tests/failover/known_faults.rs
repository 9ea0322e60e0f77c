//! Known faults of replication (sheet known-faults.md, H*) in controller mode, whose frames are others.
use super::common::Client;
use super::group::{Group, until};
use super::{FLUSH_SLAVE_TIMEOUT, QUEUES, TOPIC};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use uringmq_proto::body::stats::HaRuntimeInfo;
use uringmq_proto::fastjson;
use uringmq_proto::ha_switch::{Handshake, REPLY_HEAD_BYTES};

fn status(client: &mut Client) -> HaRuntimeInfo {
    fastjson::from_slice(&client.ok(907, &[], b"").body).expect("a status")
}

/// A replica that shook hands with the master, as number 2.
fn replica(master: SocketAddr) -> TcpStream {
    let mut replica = TcpStream::connect((master.ip(), master.port() + 1)).expect("the port for slaves");
    let hello = Handshake { from_last_file: false, learner: false, broker_id: 2 };
    replica.write_all(&hello.encode()).expect("sent");
    let mut head = [0; REPLY_HEAD_BYTES];
    replica.read_exact(&mut head).expect("the master's answer");
    let entries = i32::from_be_bytes(head[4..8].try_into().expect("4 bytes"));
    replica.read_exact(&mut vec![0; entries as usize]).expect("its epochs");
    replica
}

fn report(replica: &mut TcpStream, offset: i64) {
    let frame = [&2_i32.to_be_bytes()[..], &offset.to_be_bytes()].concat();
    replica.write_all(&frame).expect("sent");
}

/// The end of the connection, whatever was sent before.
fn dropped(replica: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match replica.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// H01: a replica that reports more than the master has makes it take later sends for replicated.
#[test]
fn what_a_replica_cannot_have_counts_for_nothing() {
    let group = Group::start("failover-h01", 1, "inSyncReplicas=2\nslaveTimeout=300");
    group.in_sync(&[1]);
    let master = group.master_address().expect("a master");
    let mut client = group.client_of_master();
    client.create_topic(TOPIC, QUEUES);
    let mut unacknowledged = |what: &str| {
        let sent = client.send(TOPIC, 0, "", b"nobody has it");
        assert_eq!(sent.code, FLUSH_SLAVE_TIMEOUT, "{what}: {sent:?}");
        status(&mut client).master_commit_log_max_offset
    };
    let mut end = unacknowledged("no replica");
    for lie in [i64::MAX, -1, end + 1_000_000] {
        let mut first = replica(master);
        report(&mut first, lie);
        assert!(dropped(&mut first), "{lie}");
        end = unacknowledged(&format!("{lie} as the first report"));
        let mut second = replica(master);
        report(&mut second, end);
        report(&mut second, lie);
        assert!(dropped(&mut second), "{lie}");
        unacknowledged(&format!("{lie} as the second report"));
    }
    assert_eq!(group.set(), [1].into(), "it never joined");
    group.no_panic();
}

/// H03: an idle pair loses its connection every haHousekeepingInterval.
#[test]
fn an_idle_pair_stays_connected() {
    let group = Group::start("failover-h03", 2, "haSendHeartbeatInterval=100\nhaHousekeepingInterval=1500");
    group.in_sync(&[1, 2]);
    let (master, _) = group.master();
    let mut at_slave = group.brokers[1 - master].client();
    let connected = || group.brokers[master].log().matches("a slave connected").count();
    let mut heard = || status(&mut at_slave).ha_client_runtime_info.map_or(0, |client| client.last_read_timestamp);
    let first = until("a first heartbeat", || Some(heard()).filter(|at| *at > 0));
    let before = connected();
    until("heartbeats", || (heard() > first + 3 * 1500).then_some(()));
    assert_eq!(connected(), before, "{}", group.brokers[master].log());
}
