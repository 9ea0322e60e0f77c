//! One controller and the brokers that it judges; the brokers are connections.
use crate::common::{Client, Process, free_port, test_dir};
use crate::{alter, apply_id, beat, elect, led_by, state, until, view};
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use uringmq_proto::command::{Command, OwnedCommand};
use uringmq_proto::frame::{self, Split};

const GROUP: &str = "broker-a";
const LONG_MS: u64 = 600_000;

struct Alone {
    process: Process,
    addr: SocketAddr,
}

fn start(name: &str, more: &str) -> Alone {
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut process = Process::new("controller", test_dir(name));
    let conf = format!("listenPort={}\ncontrollerStorePath={}\n{more}\n", addr.port(), process.store().display());
    process.start(&conf).expect("a controller without peers");
    led_by(&[addr]);
    Alone { process, addr }
}

impl Alone {
    fn client(&self) -> Client {
        Client::connect(self.addr)
    }
}

/// Where a broker listens, to hear of its new master.
struct Ear(TcpListener);

impl Ear {
    fn new() -> Ear {
        Ear(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    fn address(&self) -> String {
        self.0.local_addr().expect("its address").to_string()
    }

    fn notice(&self) -> OwnedCommand {
        let (mut stream, _) = self.0.accept().expect("a connection");
        let mut bytes = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream.read_to_end(&mut bytes).expect("a notice");
        let Split::Whole { frame, bytes: whole } = frame::split(&bytes, true).expect("a frame") else { panic!("cut") };
        assert_eq!(whole, bytes.len(), "one notice a connection");
        OwnedCommand::from(&Command::decode(frame).expect("a header"))
    }
}

/// Brokers 1 (master), 2 and 3, all in the set; 2 has more of the log than 3.
fn led(alone: &Alone, addresses: [&str; 3], master_ms: u64) -> (Client, [Client; 3]) {
    let mut client = alone.client();
    let mut brokers = [alone.client(), alone.client(), alone.client()];
    for (n, address) in addresses.iter().enumerate() {
        apply_id(&mut client, GROUP, n as i64 + 1, address);
    }
    for (n, offset) in [(1, 200), (2, 100)] {
        beat(&mut brokers[n], GROUP, n as i64 + 1, LONG_MS, offset);
    }
    beat(&mut brokers[0], GROUP, 1, LONG_MS, 300);
    assert_eq!(elect(&mut client, GROUP, 1), 0);
    assert_eq!(alter(&mut client, GROUP, 1, (1, 1), &[1, 2, 3]), 0);
    beat(&mut brokers[0], GROUP, 1, master_ms, 300);
    (client, brokers)
}

#[test]
fn a_master_whose_connection_ends_is_followed_by_the_longest_log() {
    let alone = start("controller-close", "");
    let (two, three) = (Ear::new(), Ear::new());
    let (mut client, [one, mut second, third]) =
        led(&alone, ["127.0.0.1:1", &two.address(), &three.address()], LONG_MS);
    for ear in [&two, &three] {
        let first = ear.notice();
        assert_eq!(
            (first.code, first.flag, first.get("masterBrokerId")),
            (1008, 2, Some("1")),
            "of the first election"
        );
    }
    drop(one);
    until("an election", || view(&mut client, GROUP) == (Some(2), 2, vec![2], 3));
    for ear in [&two, &three] {
        let notice = ear.notice();
        assert_eq!((notice.code, notice.flag), (1008, 2));
        for (field, value) in [
            ("masterAddress", two.address()),
            ("masterBrokerId", "2".to_owned()),
            ("masterEpoch", "2".to_owned()),
            ("syncStateSetEpoch", "3".to_owned()),
        ] {
            assert_eq!(notice.get(field), Some(value.as_str()), "{field}");
        }
        assert_eq!(notice.body, br#"{"syncStateSet":[2],"syncStateSetEpoch":3}"#);
    }
    // A connection of a broker that is no master changes nothing.
    drop(third);
    until("3 is dead", || state(&mut client, GROUP).not_in_sync_replicas.iter().all(|one| !one.alive));
    assert_eq!(view(&mut client, GROUP), (Some(2), 2, vec![2], 3));
    // A second connection takes over; the end of the first is no death.
    let mut again = alone.client();
    beat(&mut again, GROUP, 2, LONG_MS, 200);
    beat(&mut second, "other", 1, LONG_MS, 0);
    drop(second);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(view(&mut client, GROUP), (Some(2), 2, vec![2], 3));
    // Nobody of the set is left: no master; and it may come back.
    drop(again);
    until("no master", || view(&mut client, GROUP) == (None, 3, vec![2], 3));
    let mut back = alone.client();
    beat(&mut back, GROUP, 2, LONG_MS, 200);
    assert_eq!(elect(&mut client, GROUP, 2), 0);
    assert_eq!(view(&mut client, GROUP), (Some(2), 4, vec![2], 4));
}

#[test]
fn a_master_that_gives_no_sign_for_its_time_is_replaced() {
    let alone = start("controller-silent", "scanNotActiveBrokerInterval=100\nnotifyBrokerRoleChanged=false");
    let (mut client, _brokers) = led(&alone, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], 300);
    until("an election", || view(&mut client, GROUP) == (Some(2), 2, vec![2], 3));
    assert!(alone.process.log().contains("gave no sign for its time"));
}

#[test]
fn a_member_that_comes_back_leads_without_being_asked() {
    let alone = start("controller-back", "scanInactiveMasterInterval=100");
    let (mut client, [one, two, three]) = led(&alone, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], LONG_MS);
    drop((two, three));
    until("only 1 is alive", || {
        state(&mut client, GROUP).in_sync_replicas.iter().all(|r| r.alive == (r.broker_id == 1))
    });
    drop(one);
    until("no master", || view(&mut client, GROUP) == (None, 2, vec![1, 2, 3], 2));
    let mut third = alone.client();
    beat(&mut third, GROUP, 3, LONG_MS, 100);
    until("3 leads", || view(&mut client, GROUP).0 == Some(3));
}

#[test]
fn unclean_elections_are_switched_on_at_run_time_and_the_switch_is_kept() {
    let mut alone = start("controller-unclean", "");
    let (mut client, [one, _second, _third]) = led(&alone, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], LONG_MS);
    assert_eq!(alter(&mut client, GROUP, 1, (1, 2), &[1]), 0);
    drop(one);
    until("no master", || view(&mut client, GROUP).0.is_none());
    assert_eq!(elect(&mut client, GROUP, 2), 2012, "what 2 does not have would be lost");
    assert_eq!(client.call(1009, &[], b"enableElectUncleanMaster=maybe").code, 1);
    assert_eq!(client.call(1009, &[], b"controllerDLegerPeers=n0-h:1").code, 16);
    client.ok(1009, &[], b"enableElectUncleanMaster=true");
    assert_eq!(elect(&mut client, GROUP, 3), 0);
    assert_eq!(view(&mut client, GROUP).0, Some(2), "the longer log, whoever asks");
    let kept = std::fs::read_to_string(alone.process.dir.join("broker.conf")).unwrap();
    assert!(kept.lines().any(|line| line == "enableElectUncleanMaster=true"), "{kept}");
    alone.process.kill();
    alone.process.start(&kept).expect("it starts on what it wrote");
    led_by(&[alone.addr]);
    let mut client = alone.client();
    assert_eq!(view(&mut client, GROUP).0, Some(2));
    let config = String::from_utf8(client.ok(1010, &[], b"").body).unwrap();
    assert!(config.contains("enableElectUncleanMaster=true"), "{config}");
    assert!(alone.process.stop().success());
}

/// A leader that comes back in its own term leads at once, and then must not answer from its snapshot alone.
#[test]
fn the_first_answer_after_a_kill_has_all_that_was_decided() {
    let mut alone = start("controller-first-answer", "controllerSnapshotEntries=30");
    let conf = std::fs::read_to_string(alone.process.dir.join("broker.conf")).unwrap();
    let mut taken = 0;
    for _ in 0..6 {
        let mut client = alone.client();
        for _ in 0..25 {
            taken += 1;
            apply_id(&mut client, GROUP, taken, &format!("127.0.0.1:{taken}"));
        }
        alone.process.kill();
        alone.process.start(&conf).expect("it starts again");
        let mut client = alone.client();
        until("an answer", || {
            let answer = client.call(1012, &[("clusterName", "c"), ("brokerName", GROUP)], b"");
            assert!([0, 1, 2007].contains(&answer.code), "{answer:?}");
            let next = answer.get("nextBrokerId").map(str::to_owned);
            assert!(next.is_none() || next == Some((taken + 1).to_string()), "an old state: {answer:?}");
            next.is_some()
        });
    }
}

#[test]
fn what_is_wrong_is_named() {
    let alone = start("controller-wrong", "");
    let mut client = alone.client();
    let long = "x".repeat(1025);
    for (code, fields, body, want) in [
        (1004, vec![], "", "brokerName is missing"),
        (1012, vec![("brokerName", "g")], "", "clusterName is missing"),
        (1001, vec![("brokerName", "g"), ("masterBrokerId", "x"), ("masterEpoch", "1")], "", "masterBrokerId is not"),
        (1001, vec![("brokerName", "g"), ("masterBrokerId", "1"), ("masterEpoch", "1")], "[", "not a JSON object"),
        (1006, vec![], "{}", "cannot be read"),
        (
            1013,
            vec![("clusterName", "c"), ("brokerName", &long), ("appliedBrokerId", "1"), ("registerCheckCode", "h:1;1")],
            "",
            "brokerName has 1025 bytes, limit 1024",
        ),
        (61_001, vec![("group", "another"), ("to", "0")], "", "not controller n0 of another"),
        (61_001, vec![], "", "group is missing"),
    ] {
        let answer = client.call(code, &fields, body.as_bytes());
        assert_eq!(answer.code, 1, "{code} {want}: {answer:?}");
        assert!(answer.remark.as_deref().unwrap_or_default().contains(want), "{want}: {answer:?}");
    }
    let mut broken = alone.client();
    broken.raw(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(broken.receive(), None, "another protocol is closed");
    client.ok(1005, &[], b"");
    assert!(!alone.process.log().contains("panic"));
}
