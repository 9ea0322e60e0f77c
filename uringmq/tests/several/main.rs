//! Several NameServers that know nothing of each other, and several masters: whoever is dead or silent holds up nobody else, a NameServer's
//! name may get another address, and a dead master's routes go.
mod acting;
#[path = "../common/mod.rs"]
mod common;
mod names;
mod silent;

use common::{Client, Node, Pull, free_port, test_dir};
use names::Hosts;
use silent::{accepting, dropping};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use uringmq_proto::body::pop::QueryAssignmentResponse;
use uringmq_proto::body::route::TopicRouteData;
use uringmq_proto::fastjson;

const TOPIC: &str = "spread";
const QUEUES: i32 = 4;
const TOPIC_NOT_EXIST: i32 = 17;
const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than any wait of these tests: who waits for a silent one so long is seen to.
const FOR_EVER: &str = "connectTimeoutMillis=3600000\nregisterBrokerTimeoutMills=3600000";

/// Registrations come every 10 s at the most; signs of life come in between.
const ALIVE: &str = "enableSlaveActingMaster=true\nbrokerHeartbeatInterval=200\nbrokerNotActiveTimeoutMillis=4000";
const SYSTEM_BUSY: i32 = 2;
const WRITE: i32 = 2;

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One at an address of the loopback network; not started.
fn name_server(dir: &Path, name: &str, ip: [u8; 4], port: u16) -> Node {
    let ip = Ipv4Addr::from(ip);
    let conf = format!("listenPort={port}\nbindAddress={ip}\nscanNotActiveBrokerInterval=200\n");
    let mut node = Node::new("namesrv", dir.join(name), conf, port);
    node.addr.set_ip(IpAddr::V4(ip));
    node
}

/// Two that run.
fn name_servers(dir: &Path) -> [Node; 2] {
    ["names-0", "names-1"].map(|name| {
        let mut node = name_server(dir, name, [127, 0, 0, 1], free_port());
        node.start();
        node
    })
}

/// A master, not started, that is told of these NameServers.
fn master(dir: &Path, name: &str, names: &[String], more: &str) -> Node {
    let port = free_port();
    let conf = format!(
        "brokerName={name}\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort={port}\nnamesrvAddr={}\n\
         storePathRootDir={}\nmappedFileSizeCommitLog=1048576\nmaxHashSlotNum=10000\nmaxIndexNum=40000\nwarmAheadBytes=0\nshards=2\n\
         registerNameServerPeriod=10000\n{more}\n",
        names.join(";"),
        dir.join(name).join("store").display()
    );
    Node::new("broker", dir.join(name), conf, port)
}

fn texts<'a>(addrs: impl IntoIterator<Item = &'a SocketAddr>) -> Vec<String> {
    addrs.into_iter().map(SocketAddr::to_string).collect()
}

/// What a NameServer says of a topic; nothing is in it without a route.
fn route(names: &Node, topic: &str) -> TopicRouteData {
    let answer = names.client().call(105, &[("topic", topic), ("acceptStandardJsonOnly", "true")], b"");
    if answer.code == TOPIC_NOT_EXIST {
        return TopicRouteData::default();
    }
    assert_eq!(answer.code, 0, "{answer:?}");
    fastjson::from_slice(&answer.body).expect("a route")
}

/// The brokers of a topic's route, sorted; none without a route.
fn brokers_of(names: &Node, topic: &str) -> Vec<String> {
    let mut brokers: Vec<String> =
        route(names, topic).broker_datas.into_iter().map(|broker| broker.broker_name).collect();
    brokers.sort();
    brokers
}

fn routed(names: &Node, topic: &str, wanted: &[&str]) {
    until(&format!("{topic} on {wanted:?} at {}", names.addr), || (brokers_of(names, topic) == wanted).then_some(()));
}

fn beat(client: &mut Client, group: &str) {
    client.heartbeat(group, TOPIC, ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
}

/// Queues that a group's only client gets, by 400: the broker asks a NameServer for them.
fn assigned(client: &mut Client, group: &str) -> Vec<(String, i32)> {
    let ask = format!(
        "{{\"topic\":\"{TOPIC}\",\"consumerGroup\":\"{group}\",\"clientId\":\"client-of-{group}\",\"strategyName\":\"AVG\",\
         \"messageModel\":\"CLUSTERING\"}}"
    );
    let answer = client.ok(400, &[], ask.as_bytes());
    let got: QueryAssignmentResponse = fastjson::from_slice(&answer.body).expect("assignments");
    let queues = got.message_queue_assignments.into_iter().flatten().map(|one| one.message_queue);
    let mut queues: Vec<_> = queues.map(|queue| (queue.broker_name, queue.queue_id)).collect();
    queues.sort();
    queues
}

/// N06: one that takes connections and says nothing, and one that does not even answer a connection's first packet, beside two that serve.
#[test]
fn silent_name_servers_hold_up_no_start_no_client_and_no_registration() {
    let dir = test_dir("several-silent");
    let good = name_servers(&dir);
    let (accepting, dropping) = (accepting(), dropping());
    let all = texts([&accepting.local_addr().expect("its address"), &dropping.addr, &good[0].addr, &good[1].addr]);
    let mut a = master(&dir, "broker-a", &all, FOR_EVER);
    let mut b = master(&dir, "broker-b", &texts(good.iter().map(|names| &names.addr)), "");
    a.start();
    b.start();
    let mut client = a.client();
    client.create_topic(TOPIC, QUEUES);
    b.client().create_topic(TOPIC, QUEUES);
    for names in &good {
        routed(names, TOPIC, &["broker-a", "broker-b"]);
    }
    // It was called, and is still waited for.
    let (mut call, _) = accepting.accept().expect("the broker's call");
    assert!(silent::hears_something(&mut call));

    let groups: Vec<String> = (0..10).map(|n| format!("group-{n}")).collect();
    groups.iter().for_each(|group| beat(&mut client, group));
    for names in &good {
        groups.iter().for_each(|group| routed(names, &format!("%RETRY%{group}"), &["broker-a"]));
    }
    client.create_topic("later", 1);
    good.iter().for_each(|names| routed(names, "later", &["broker-a"]));
    let every: Vec<_> = ["broker-a", "broker-b"]
        .iter()
        .flat_map(|name| (0..QUEUES).map(move |queue| (name.to_string(), queue)))
        .collect();
    assert_eq!(assigned(&mut client, &groups[0]), every, "a NameServer that answers is asked");

    assert!(a.stop().success());
    good.iter().for_each(|names| routed(names, TOPIC, &["broker-b"]));
    assert!(!a.log().contains("panic"), "{}", a.log());
}

/// One that served and then stands still, or dies, misses news; it gets all when it is back, and meanwhile the other one serves.
#[test]
fn a_name_server_that_comes_back_is_told_what_it_missed() {
    let dir = test_dir("several-back");
    let mut names = name_servers(&dir);
    let mut broker =
        master(&dir, "broker-a", &texts(names.iter().map(|names| &names.addr)), "registerBrokerTimeoutMills=500");
    broker.start();
    let mut client = broker.client();
    client.create_topic(TOPIC, QUEUES);
    names.iter().for_each(|names| routed(names, TOPIC, &["broker-a"]));

    names[0].signal("STOP");
    client.create_topic("while-it-stands", 1);
    beat(&mut client, "stands");
    routed(&names[1], "while-it-stands", &["broker-a"]);
    routed(&names[1], "%RETRY%stands", &["broker-a"]);
    names[0].signal("CONT");
    routed(&names[0], "while-it-stands", &["broker-a"]);
    routed(&names[0], "%RETRY%stands", &["broker-a"]);

    names[0].kill();
    client.create_topic("while-it-is-dead", 1);
    beat(&mut client, "dead");
    routed(&names[1], "while-it-is-dead", &["broker-a"]);
    names[0].start();
    for topic in [TOPIC, "while-it-stands", "while-it-is-dead", "%RETRY%dead"] {
        routed(&names[0], topic, &["broker-a"]);
    }
}

/// A NameServer's name that leads nowhere at first, then to one address, then to another.
#[test]
fn a_name_servers_new_address_is_found() {
    let dir = test_dir("several-moved");
    let hosts = Hosts::new(&dir);
    let port = free_port();
    let mut by_address = name_server(&dir, "by-address", [127, 0, 0, 1], free_port());
    let mut first = name_server(&dir, "first", [127, 0, 0, 2], port);
    let mut second = name_server(&dir, "second", [127, 0, 0, 3], port);
    [&mut by_address, &mut first, &mut second].into_iter().for_each(|names| names.start());
    let all = [format!("names.test:{port}"), by_address.addr.to_string()];
    let mut broker = master(&dir, "broker-a", &all, "updateNameServerAddrPeriod=1000");
    broker.through = hosts.seen_by();
    broker.start();
    broker.client().create_topic(TOPIC, QUEUES);
    routed(&by_address, TOPIC, &["broker-a"]);

    hosts.say("127.0.0.2 names.test");
    routed(&first, TOPIC, &["broker-a"]);
    hosts.say("127.0.0.3 names.test");
    routed(&second, TOPIC, &["broker-a"]);
    routed(&first, TOPIC, &[]);
    assert_eq!(brokers_of(&by_address, TOPIC), ["broker-a"], "the other one is not touched");
}

/// Killed, its connections end and its routes with them; standing still, they go when it gave no sign for its time. Each NameServer finds
/// out for itself, and the other master stays.
#[test]
fn a_dead_masters_routes_go_at_every_name_server_and_come_back_with_it() {
    let dir = test_dir("several-masters");
    let names = name_servers(&dir);
    let addrs = texts(names.iter().map(|names| &names.addr));
    let [mut a, mut b] = ["broker-a", "broker-b"].map(|name| {
        let mut node = master(&dir, name, &addrs, ALIVE);
        node.start();
        node.client().create_topic(TOPIC, QUEUES);
        node
    });
    let everywhere = |wanted: &[&str]| names.iter().for_each(|names| routed(names, TOPIC, wanted));
    everywhere(&["broker-a", "broker-b"]);
    b.kill();
    everywhere(&["broker-a"]);
    b.start();
    everywhere(&["broker-a", "broker-b"]);

    b.signal("STOP");
    everywhere(&["broker-a"]);
    assert!(names.iter().all(|names| names.log().contains("gave no sign for its time")));
    b.signal("CONT");
    everywhere(&["broker-a", "broker-b"]);
    assert!(a.stop().success() && b.stop().success());
    everywhere(&[]);
}

/// With supportActingMaster the routes lead to the slave while its master is dead: for readers, not for writers.
#[test]
fn a_slave_stands_in_for_its_dead_master_in_routes() {
    let dir = test_dir("several-acting");
    let mut names = name_server(&dir, "names", [127, 0, 0, 1], free_port());
    names.set("scanNotActiveBrokerInterval=200", "scanNotActiveBrokerInterval=200\nsupportActingMaster=true");
    names.start();
    let addrs = texts([&names.addr]);
    let role = "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=60000";
    let mut leader = master(&dir, "group", &addrs, &format!("{ALIVE}\n{role}"));
    let role = "brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true";
    let mut slave = master(&dir, "group", &addrs, &format!("{ALIVE}\n{role}"));
    slave.dir = dir.join("slave");
    std::fs::create_dir_all(&slave.dir).expect("a directory for the slave");
    slave.set("group/store", "slave/store");
    leader.start();
    slave.start();
    let mut client = leader.client();
    client.create_topic(TOPIC, 1);
    for n in 0..10 {
        client.sent(TOPIC, 0, "", format!("message {n}").as_bytes());
    }
    // By id: where the route leads to, and whether it may be written to.
    let led = |names: &Node| {
        let route = route(names, TOPIC);
        let addrs: Vec<(i64, String)> =
            route.broker_datas.into_iter().flat_map(|broker| broker.broker_addrs.0).collect();
        (addrs, route.queue_datas.iter().any(|queues| queues.perm & WRITE != 0))
    };
    let of_both = (vec![(0, leader.addr.to_string()), (1, slave.addr.to_string())], true);
    until("both", || (led(&names) == of_both).then_some(()));
    until("the topic at the slave", || {
        let got = slave.client().pull(&Pull::at(TOPIC, 0, 0).now());
        (got.code == 0 && got.messages.len() == 10).then_some(())
    });
    leader.kill();
    until("the slave in its place", || (led(&names) == (vec![(0, slave.addr.to_string())], false)).then_some(()));
    let mut at_slave = slave.client();
    beat(&mut at_slave, "readers");
    assert_eq!(at_slave.pull(&Pull::at(TOPIC, 0, 4).now()).messages.len(), 6);
    assert_eq!(at_slave.commit("readers", TOPIC, 0, 7).code, 0);
    assert_eq!(at_slave.committed("readers", TOPIC, 0), Some(7));
    assert_eq!(at_slave.send(TOPIC, 0, "", b"never").code, SYSTEM_BUSY);
    leader.start();
    until("both again", || (led(&names) == of_both).then_some(()));
    leader.client().sent(TOPIC, 0, "", b"after it");
}
