//! Brokers in controller mode, with a controller and a NameServer of ours: who is master, what a change of masters keeps, and what becomes of
//! a log's end that only an old master has.
#[path = "../common/mod.rs"]
mod common;
mod group;
mod known_faults;

use common::{Client, Pull, props};
use group::{Group, until};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TOPIC: &str = "failover";
const QUEUES: i32 = 4;
const FLUSH_SLAVE_TIMEOUT: i32 = 12;
const SYSTEM_ERROR: i32 = 1;
const ALL_ACK: &str = "allAckInSyncStateSet=true";

/// What is served of a queue, from its first message to its last.
fn served(client: &mut Client, queue: i32) -> Vec<Vec<u8>> {
    let (min, max) = client.bounds(TOPIC, queue);
    let mut all = Vec::new();
    while (all.len() as i64) < max - min {
        let pulled = client.pull(&Pull::at(TOPIC, queue, min + all.len() as i64).now());
        assert_eq!(pulled.code, 0, "queue {queue} after {}: {pulled:?}", all.len());
        all.extend(pulled.messages.into_iter().map(|message| message.body));
    }
    all
}

/// Sends to whoever is master until it is told to end; the bodies that were acknowledged with code 0, by queue, in order.
fn send_on(group: &Group, end: &AtomicBool, acknowledged: &AtomicUsize) -> BTreeMap<i32, Vec<Vec<u8>>> {
    let mut all: BTreeMap<i32, Vec<Vec<u8>>> = BTreeMap::new();
    let (mut n, mut client) = (0, None);
    while !end.load(Ordering::Relaxed) {
        let Some(connected) = client.as_mut() else {
            client = group.master_address().and_then(Client::try_connect);
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let (queue, body) = (n % QUEUES, format!("message {n} {}", "x".repeat(500)).into_bytes());
        n += 1;
        match connected.try_send(TOPIC, queue, &body) {
            Some(sent) if sent.code == 0 => {
                all.entry(queue).or_default().push(body);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Some(sent) if sent.code == FLUSH_SLAVE_TIMEOUT => {} // stored, and not promised
            _ => {
                client = None;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    all
}

/// Every one of `wanted` is in `served`, in this order.
fn in_order(wanted: &[Vec<u8>], served: &[Vec<u8>], queue: i32) {
    let mut rest = served.iter();
    for body in wanted {
        let text = || String::from_utf8_lossy(&body[..body.len().min(20)]).into_owned();
        assert!(rest.any(|one| one == body), "queue {queue}: {} is missing of {}", text(), served.len());
    }
}

#[test]
fn kills_of_masters_lose_nothing_that_was_acknowledged() {
    let mut group = Group::start("failover-kills", 3, ALL_ACK);
    group.in_sync(&[1, 2, 3]);
    group.client_of_master().create_topic(TOPIC, QUEUES);
    let (end, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let sender = {
        let (controller, end, acknowledged) = (group.observer(), end.clone(), acknowledged.clone());
        std::thread::spawn(move || send_on(&controller, &end, &acknowledged))
    };
    let more = |count: usize| {
        let from = acknowledged.load(Ordering::Relaxed);
        until("more that is acknowledged", || (acknowledged.load(Ordering::Relaxed) >= from + count).then_some(()));
    };
    for round in 0..3 {
        more(300);
        let (old, epoch) = group.master();
        group.brokers[old].kill();
        let new = until("another master", || group.try_master().filter(|(new, _)| *new != old));
        assert!(new.1 > epoch, "round {round}: {new:?} after epoch {epoch}");
        more(100);
        group.brokers[old].start();
        group.in_sync(&[1, 2, 3]);
    }
    more(100);
    end.store(true, Ordering::Relaxed);
    let sent = sender.join().expect("the sender");
    let mut client = group.client_of_master();
    for queue in 0..QUEUES {
        in_order(&sent[&queue], &served(&mut client, queue), queue);
    }
    group.same_logs();
    group.no_panic();
}

#[test]
fn what_only_the_old_master_has_is_not_served_and_is_cut_off() {
    let more = format!("{ALL_ACK}\nslaveTimeout=300\ncheckSyncStateSetPeriod=60000\nflushDiskType=SYNC_FLUSH");
    let mut group = Group::start("failover-cut", 3, &more);
    group.in_sync(&[1, 2, 3]);
    let mut client = group.client_of_master();
    client.create_topic(TOPIC, QUEUES);
    for n in 0..40 {
        client.sent(TOPIC, n % QUEUES, "", format!("before {n}").as_bytes());
    }
    let (old, _) = group.master();
    let others: Vec<usize> = (0..3).filter(|n| *n != old).collect();
    others.iter().for_each(|n| group.brokers[*n].kill());
    for n in 0..8 {
        let sent = client.send(TOPIC, n % QUEUES, "", format!("only here {n}").as_bytes());
        assert_eq!(sent.code, FLUSH_SLAVE_TIMEOUT, "{sent:?}");
    }
    for queue in 0..QUEUES {
        assert_eq!(served(&mut client, queue).len(), 10, "consumers see what all members have");
    }
    let end = group.written(old);
    group.brokers[old].kill();
    others.iter().for_each(|n| group.brokers[*n].start());
    until("another master", || group.try_master().filter(|(new, _)| *new != old));
    let mut client = group.client_of_master();
    until("a message that is acknowledged", || (client.send(TOPIC, 0, "", b"after").code == 0).then_some(()));
    group.brokers[old].start();
    group.in_sync(&[1, 2, 3]);
    group.same_logs();
    let log = group.brokers[old].log();
    assert!(log.contains("the end of this slave's log is cut off"), "{log}");
    let kept: Vec<_> = std::fs::read_dir(group.brokers[old].store().join("cut")).expect("what was cut").collect();
    assert_eq!(kept.len(), 1);
    let kept = kept.into_iter().next().expect("one").expect("an entry").path();
    let bytes = std::fs::read(&kept).expect("what was cut");
    assert!(kept.to_string_lossy().ends_with(&format!("-{end:020}")), "{kept:?} up to {end}");
    assert!((0..8).all(|n| contains(&bytes, format!("only here {n}").as_bytes())), "{} bytes", bytes.len());
    for queue in 0..QUEUES {
        let served = served(&mut client, queue);
        assert!(served.iter().all(|body| !body.starts_with(b"only here")), "queue {queue}");
        assert_eq!(served.iter().filter(|body| body.starts_with(b"before")).count(), 10);
    }
    group.no_panic();
}

/// Two brokers with one log; then the master is killed and loses the last message of it, and no controller notices. Which one it is, in which
/// epoch it was master.
fn master_loses_its_end_unnoticed(group: &mut Group) -> (usize, i32) {
    group.in_sync(&[1, 2]);
    let mut client = group.client_of_master();
    client.create_topic(TOPIC, QUEUES);
    client.sent(TOPIC, 0, "", b"kept");
    group.same_logs();
    let (old, epoch) = group.master();
    let topics = group.brokers[1 - old].store().join("config/topics.json");
    until("the other one has the topic", || std::fs::read_to_string(&topics).ok().filter(|text| text.contains(TOPIC)));
    let kept = group.written(old);
    client.sent(TOPIC, 0, "", b"lost by the master");
    group.servers[0].kill();
    group.brokers[old].kill();
    group.lose_end(old, kept);
    (old, epoch)
}

#[test]
fn a_master_that_lost_its_end_unnoticed_gives_way_to_who_has_it() {
    let mut group = Group::start("failover-lost-end", 2, ALL_ACK);
    let (old, epoch) = master_loses_its_end_unnoticed(&mut group);
    group.servers[0].start();
    group.brokers[old].start();
    let (new, now) = group.master();
    assert!(new != old && now > epoch, "{new} in epoch {now}");
    group.in_sync(&[1, 2]);
    let mut client = group.client_of_master();
    assert_eq!(served(&mut client, 0), [b"kept".to_vec(), b"lost by the master".to_vec()]);
    client.sent(TOPIC, 0, "", b"after");
    group.same_logs();
    group.no_panic();
}

#[test]
fn a_master_that_lost_its_end_unnoticed_leads_alone_in_a_new_epoch() {
    let mut group = Group::start("failover-lost-alone", 2, ALL_ACK);
    let (old, epoch) = master_loses_its_end_unnoticed(&mut group);
    group.brokers[1 - old].kill();
    group.servers[0].start();
    group.brokers[old].start();
    let (new, now) = group.master();
    assert!(new == old && now > epoch, "{new} in epoch {now}");
    let mut client = group.client_of_master();
    let longer = "written in the place of what was lost, and behind it ".repeat(20);
    client.sent(TOPIC, 0, "", longer.as_bytes());
    group.brokers[1 - old].start();
    group.in_sync(&[1, 2]);
    group.same_logs();
    assert_eq!(served(&mut client, 0), [b"kept".to_vec(), longer.into_bytes()]);
    group.no_panic();
}

/// Without a controller nobody is elected, and the master goes on.
#[test]
fn a_master_serves_while_the_controller_is_away_and_stays_master() {
    let mut group = Group::start("failover-without", 2, ALL_ACK);
    group.in_sync(&[1, 2]);
    let before = group.master();
    let mut client = group.client_of_master();
    client.create_topic(TOPIC, QUEUES);
    group.servers[0].kill();
    for n in 0..40 {
        client.sent(TOPIC, n % QUEUES, "", format!("{n}").as_bytes());
    }
    group.servers[0].start();
    group.in_sync(&[1, 2]);
    client.sent(TOPIC, 0, "", b"after");
    assert_eq!(group.master(), before);
    assert_eq!((0..QUEUES).map(|queue| served(&mut client, queue).len()).sum::<usize>(), 41);
    // And it still fails over under the controller that came back.
    group.brokers[before.0].kill();
    until("another master", || group.try_master().filter(|(new, _)| *new != before.0));
    let mut client = group.client_of_master();
    assert_eq!((0..QUEUES).map(|queue| served(&mut client, queue).len()).sum::<usize>(), 41);
    group.no_panic();
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[test]
fn an_operator_moves_the_master_without_the_end_of_a_process() {
    let group = Group::start("failover-move", 2, ALL_ACK);
    group.in_sync(&[1, 2]);
    let mut client = group.client_of_master();
    client.create_topic(TOPIC, QUEUES);
    for n in 0..20 {
        client.sent(TOPIC, n % QUEUES, &props(&[("KEYS", "moved")]), format!("{n}").as_bytes());
    }
    let pids: Vec<u32> = group.brokers.iter().map(|broker| broker.pid()).collect();
    for round in 0..2 {
        let (old, epoch) = group.master();
        let target = group.id_of(1 - old);
        let fields = [
            ("clusterName", "DefaultCluster"),
            ("brokerName", "group"),
            ("brokerId", &target.to_string()),
            ("designateElect", "true"),
        ];
        group.controller().ok(1002, &fields, b"");
        let (new, now) = group.master();
        assert!(new == 1 - old && now > epoch, "round {round}: {new} in epoch {now}");
        group.in_sync(&[1, 2]);
        let (last, _) = group.master();
        assert_eq!((last, group.master().1), (new, now), "one election, and it holds");
        let mut client = group.client_of_master();
        let sent = client.sent(TOPIC, 0, "", format!("after round {round}").as_bytes());
        assert_eq!(sent.queue_offset, 5 + round);
        let refused = Client::connect(group.brokers[old].addr).send(TOPIC, 0, "", b"to the old one");
        assert_ne!(refused.code, 0, "{refused:?}");
    }
    assert_eq!(group.brokers.iter().map(|broker| broker.pid()).collect::<Vec<_>>(), pids);
    let mut client = group.client_of_master();
    let total: usize = (0..QUEUES).map(|queue| served(&mut client, queue).len()).sum();
    assert_eq!(total, 22);
    assert_eq!(client.query(TOPIC, "moved", &[]).1.len(), 20);
    let (master, _) = group.master();
    let epochs = group.epochs(master);
    assert_eq!(epochs, group.epochs(1 - master), "both know who wrote what");
    assert!(
        epochs.len() >= 3 && epochs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].2 == pair[1].1),
        "{epochs:?}"
    );
    group.same_logs();
    group.no_panic();
}

#[test]
fn with_too_few_replicas_nothing_is_stored() {
    let mut group = Group::start("failover-few", 1, &format!("{ALL_ACK}\nminInSyncReplicas=2\nslaveTimeout=300"));
    group.in_sync(&[1]);
    let mut client = group.client_of_master();
    client.create_topic(TOPIC, QUEUES);
    let refused = client.send(TOPIC, 0, "", b"alone");
    assert_eq!(refused.code, SYSTEM_ERROR, "{refused:?}");
    assert!(refused.remark.contains("minInSyncReplicas"), "{refused:?}");
    assert_eq!(client.bounds(TOPIC, 0), (0, 0));
    group.add();
    group.in_sync(&[1, 2]);
    until("a message with two copies", || (client.send(TOPIC, 0, "", b"with another").code == 0).then_some(()));
    group.no_panic();
}

#[test]
fn a_member_that_is_away_leaves_the_set_and_a_learner_never_joins() {
    let more = format!("{ALL_ACK}\nslaveTimeout=300\ncheckSyncStateSetPeriod=300\nhaMaxTimeSlaveNotCatchup=3000");
    let mut group = Group::start("failover-set", 2, &more);
    group.in_sync(&[1, 2]);
    let mut client = group.client_of_master();
    client.create_topic(TOPIC, QUEUES);
    client.sent(TOPIC, 0, "", b"with both");
    let (master, _) = group.master();
    let alone: BTreeSet<i64> = [group.id_of(master)].into();
    group.brokers[1 - master].kill();
    until("the set without the other", || (group.set() == alone).then_some(()));
    client.sent(TOPIC, 0, "", b"alone");
    group.brokers[1 - master].set(ALL_ACK, &format!("{ALL_ACK}\nasyncLearner=true"));
    group.brokers[1 - master].start();
    let began = Instant::now();
    let end = group.written(master);
    until("the learner has the log", || (group.written(1 - master) == end).then_some(()));
    client.sent(TOPIC, 0, "", b"with a learner");
    assert_eq!(group.set(), alone, "after {:?}", began.elapsed());
    group.no_panic();
}
