//! Known faults of replication (sheet known-faults.md, H*), tried by raw connections to the port for slaves.
use super::common::{Client, Pair, props, send_ext};
use super::{FLUSH_SLAVE_TIMEOUT, TOPIC, WAITING, number, number_of, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Two copies wanted, and no slave of ours.
const ALONE: &str = "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=300";

fn ha_port(pair: &Pair) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], pair.master.addr.port() + 1))
}

fn report(slave: &mut TcpStream, offset: i64) -> std::io::Result<()> {
    slave.write_all(&offset.to_be_bytes())
}

/// The end of the connection, whatever was sent before.
fn dropped(slave: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match slave.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn unacknowledged(client: &mut Client, what: &str) {
    let sent = client.send(TOPIC, 0, "", b"nobody has it");
    assert_eq!(sent.code, FLUSH_SLAVE_TIMEOUT, "{what}: {sent:?}");
}

/// H01: a replica that reports more than the master has makes it take later sends for replicated.
#[test]
fn what_a_replica_cannot_have_counts_for_nothing() {
    let mut pair = Pair::new("replication-h01", "", ALONE);
    pair.master.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    unacknowledged(&mut client, "no replica");
    for lie in [i64::MAX, -1, i64::MIN, 0] {
        let lie = if lie == 0 { number_of(&mut client) + 1 } else { lie };
        let mut slave = TcpStream::connect(ha_port(&pair)).expect("the port for slaves");
        report(&mut slave, lie).expect("sent");
        assert!(dropped(&mut slave), "{lie}");
        unacknowledged(&mut client, &format!("{lie} as the first report"));
    }
    // Honest at first.
    for lie in [i64::MAX, 1 << 40] {
        let mut slave = TcpStream::connect(ha_port(&pair)).expect("the port for slaves");
        report(&mut slave, number_of(&mut client)).expect("sent");
        report(&mut slave, lie).expect("sent");
        assert!(dropped(&mut slave), "{lie}");
        unacknowledged(&mut client, &format!("{lie} as the second report"));
    }
    // An empty one is sent the last segment, and has nothing of it before it says so.
    let mut empty = TcpStream::connect(ha_port(&pair)).expect("the port for slaves");
    report(&mut empty, 0).expect("sent");
    let mut head = [0; 12];
    empty.read_exact(&mut head).expect("the log");
    unacknowledged(&mut client, "0 as the only report");
    assert!(!pair.master.log().contains("panic"));
}

/// H01, the kind: a replica has nothing of the log but what it was sent, be it as honest in its first report as it likes.
#[test]
fn what_a_replica_was_not_sent_counts_for_nothing() {
    let mut pair = Pair::new("replication-h01-unsent", "", &ALONE.replace("300", "2000"));
    pair.master.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    let unwaited = props(&[("WAIT", "false")]);
    let body = vec![7; 100_000];
    // More than the buffers of a socket hold.
    for _ in 0..320 {
        client.sent(TOPIC, 0, &unwaited, &body);
    }
    let mut slave = TcpStream::connect(ha_port(&pair)).expect("the port for slaves");
    report(&mut slave, 1).expect("sent");
    let mut head = [0; 12];
    slave.read_exact(&mut head).expect("the log");
    assert_eq!(head[..8], 1_i64.to_be_bytes(), "it is fed from where it asked");
    // It reads no more, and says that it has a message as soon as the master has.
    let mut at_master = pair.master.client();
    let before = number_of(&mut at_master);
    let opaque = client.ask(310, 0, &send_ext(TOPIC, "0", "", "0"), b"nobody has it");
    let end = until("the message in the log", || Some(number_of(&mut at_master)).filter(|end| *end > before));
    report(&mut slave, end).expect("sent");
    assert_eq!(client.answer_to(opaque).code, FLUSH_SLAVE_TIMEOUT);
    until("the master's word", || pair.master.log().contains("its log is another one").then_some(()));
}

/// H03: an idle pair loses its connection every haHousekeepingInterval.
#[test]
fn an_idle_replica_keeps_its_connection_and_a_silent_one_does_not() {
    let quick = format!("{ALONE}\nhaSendHeartbeatInterval=100\nhaHousekeepingInterval=1500");
    let mut pair = Pair::new("replication-h03", "", &quick);
    pair.master.start();
    let mut client = pair.master.client();
    client.create_topic(TOPIC, 1);
    unacknowledged(&mut client, "no replica");
    let end = number_of(&mut client);
    let mut slave = TcpStream::connect(ha_port(&pair)).expect("the port for slaves");
    slave.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    // Forty heartbeats are nearly three times the interval.
    for n in 0..40 {
        report(&mut slave, end).expect("an open connection");
        let mut head = [0; 12];
        slave.read_exact(&mut head).unwrap_or_else(|e| panic!("heartbeat {n}: {e}"));
        let (at, bytes) = head.split_at(8);
        assert_eq!((at, bytes), (&end.to_be_bytes()[..], &[0; 4][..]), "heartbeat {n}");
    }
    assert!(dropped(&mut slave), "it says nothing any more");
    until("the master's word", || pair.master.log().contains("it reported nothing for 1.5s").then_some(()));
}

/// H03, with a slave of ours: what it hears and says while nothing is sent keeps both ends content.
#[test]
fn an_idle_pair_stays_connected() {
    let mut pair =
        Pair::new("replication-h03-pair", "haSendHeartbeatInterval=100\nhaHousekeepingInterval=1500", WAITING);
    pair.master.start();
    pair.slave.start();
    let (mut client, mut at_slave) = (pair.master.client(), pair.slave.client());
    client.create_topic(TOPIC, 1);
    client.sent(TOPIC, 0, "", b"in step");
    let connected = |pair: &Pair| pair.master.log().matches("a slave connected").count();
    let before = connected(&pair);
    let first = number(&mut at_slave, 907, "lastReadTimestamp");
    until("heartbeats", || (number(&mut at_slave, 907, "lastReadTimestamp") > first + 3 * 1500).then_some(()));
    client.sent(TOPIC, 0, "", b"still in step");
    assert_eq!(connected(&pair), before, "{}", pair.master.log());
}
