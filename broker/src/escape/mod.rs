//! A slave that acts for its dead master (`enableSlaveActingMaster`): whether this one does, and the escape bridge, by which what its duties
//! produce is sent to a master of another name in the same cluster (`enableRemoteEscape`). On shard 0. Source: replication sheet 6.4,
//! behaviour sheet 11.7.
//!
//! A slave's own log is its master's, so nothing is written here. What cannot be sent waits: the duty's progress moves over what another
//! master has acknowledged, no further.
use crate::replication::tables;
use crate::shard::Shard;
use futures_lite::future;
use glommio::timer::Timer;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;
use tracing::{info, warn};
use uringmq_proto::body::offset::DelayOffsetTable;
use uringmq_proto::body::route::{BrokerMemberGroup, TopicRouteData};
use uringmq_proto::codes::{request, response};
use uringmq_proto::headers::send::SendMessage;
use uringmq_proto::message::{self, java_hash, prop, sys_flag};
use uringmq_proto::names::perm;
use uringmq_proto::record::Record;
use uringmq_remoting::connection::CallError;
use uringmq_store::turn::Turn;

/// Between two questions who of the group is alive; Apache's syncBrokerMemberGroupPeriod.
const LOOK: Duration = Duration::from_secs(1);
/// For one message at the other broker, as Apache's.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long a route is good for an escape: shorter than for clients, since masters die just then.
const ROUTE_LIFE: Duration = Duration::from_secs(2);
/// How long a master that starts waits for its slaves' word.
const HAND_OVER_MAX: Duration = Duration::from_secs(3);
/// As which producer the messages come.
const PRODUCER: &str = "CID_RMQ_SYS_INNER_PRODUCER";
/// What was for this broker only: with it the other broker would delay the message again, or take it for a half.
const DROPPED: &[&str] = &[
    prop::DELAY,
    prop::REAL_TOPIC,
    prop::REAL_QID,
    prop::TIMER_DELAY_SEC,
    prop::TIMER_DELAY_MS,
    prop::TIMER_DELIVER_MS,
    prop::TIMER_OUT_MS,
    prop::TRAN_MSG,
    prop::CRC32,
];

/// Why a message did not escape. It may all the same be stored, when its answer did not come in time.
#[derive(Debug, Error)]
pub enum EscapeError {
    #[error("enableRemoteEscape is off")]
    Off,
    #[error("this broker does not act as master")]
    NotActing,
    #[error("no other master of the cluster takes topic {0}")]
    NoTarget(String),
    #[error("{0} cannot be reached: {1}")]
    Peer(String, String),
    #[error("{0}: {1}")]
    Call(String, CallError),
    #[error("{broker} answered {code}: {remark}")]
    Refused { broker: String, code: i32, remark: String },
}

/// State of shard 0.
#[derive(Default)]
pub struct Escape {
    acting: Cell<bool>,
    /// One connects at a time: the others then find its connection.
    connecting: Turn,
    /// A target that fails is not the next try's.
    failures: Cell<usize>,
}

/// Whether this broker has a master's background duties: it is one, or it acts as one. On shard 0.
pub fn on_duty(shard: &Shard) -> bool {
    shard.config.borrow().broker_id == 0 || acting(shard)
}

/// Whether this slave acts for its dead master. It does not once the master feeds it. On shard 0.
pub fn acting(shard: &Shard) -> bool {
    shard.escape.acting.get() && !shard.master_is_there()
}

/// Whether this broker may come to act as master.
pub fn may_act(shard: &Shard) -> bool {
    let config = shard.config.borrow();
    config.slave_acting_master && config.broker_id != 0 && !config.controller_mode && shard.follows()
}

/// Follows who of the group is alive, until the doors close. On shard 0 of a slave that may act.
pub async fn follow(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        let (cluster, name, id) = {
            let config = shard.config.borrow();
            (config.cluster_name.clone(), config.broker_name.clone(), config.broker_id)
        };
        let groups = match shard.master_is_there() {
            true => Vec::new(),
            false => shard.control().registration.groups(&cluster, &name).await,
        };
        let acts = is_smallest(&groups, id);
        if shard.escape.acting.replace(acts) != acts {
            match acts {
                true => info!(broker = name, id, "no master is alive: this slave takes over its duties"),
                false => info!(broker = name, id, "this slave has no duties of a master any more"),
            }
        }
        shard.sleep(LOOK).await;
    }
}

/// Every NameServer that answers knows no smaller id, nor the master, and one does.
fn is_smallest(groups: &[BrokerMemberGroup], id: i64) -> bool {
    let smallest = |group: &BrokerMemberGroup| group.broker_addrs.0.keys().min() == Some(&id);
    !groups.is_empty() && groups.iter().all(smallest)
}

/// Where a message of a topic may go: the queues of the masters of other names in the cluster, as the route has them.
fn targets(route: &TopicRouteData, cluster: &str, own: &str) -> Vec<(String, String, i32)> {
    let mut all = Vec::new();
    for queues in route.queue_datas.iter().filter(|queues| queues.perm & perm::WRITE != 0 && queues.broker_name != own)
    {
        let broker = route.broker_datas.iter().find(|broker| broker.broker_name == queues.broker_name);
        let Some(broker) = broker.filter(|broker| broker.cluster == cluster) else { continue };
        let Some(addr) = broker.broker_addrs.0.get(&0) else { continue };
        all.extend((0..queues.write_queue_nums).map(|queue| (queues.broker_name.clone(), addr.clone(), queue)));
    }
    all.sort();
    all
}

/// The target by the hash of topic and store host; another one after each failure.
fn pick<'t, T>(targets: &'t [T], topic: &str, store_host: &str, failures: usize) -> Option<&'t T> {
    let hash = java_hash(store_host, java_hash(topic, 0)) as u32 as usize;
    (!targets.is_empty()).then(|| &targets[(hash.wrapping_add(failures)) % targets.len()])
}

/// Sends what a record holds to another master, under `topic`; returns when that has acknowledged it. On shard 0; the caller bounds how many
/// are under way.
///
/// # Errors
/// [`EscapeError`]: it is to be tried again later.
pub async fn send(shard: &Shard, record: &Record<'_>, topic: &str) -> Result<(), EscapeError> {
    let sent = try_send(shard, record, topic).await;
    if sent.is_err() {
        shard.escape.failures.set(shard.escape.failures.get().wrapping_add(1));
    }
    sent
}

async fn try_send(shard: &Shard, record: &Record<'_>, topic: &str) -> Result<(), EscapeError> {
    let config = shard.config();
    if !config.remote_escape {
        return Err(EscapeError::Off);
    }
    let route = shard.control().registration.route_within(topic, ROUTE_LIFE).await;
    let all = route.map(|route| targets(&route, &config.cluster_name, &config.broker_name)).unwrap_or_default();
    let store_host = shard.store_host.to_string();
    let target = pick(&all, topic, &store_host, shard.escape.failures.get());
    let (broker, addr, queue) = target.ok_or_else(|| EscapeError::NoTarget(topic.to_owned()))?;
    let conn = {
        let _turn = shard.escape.connecting.take().await;
        // Asked after the turn: what waited for it may have waited for long.
        if !acting(shard) {
            return Err(EscapeError::NotActing);
        }
        let connected = shard.control().peers.connect(broker, addr, TIMEOUT).await;
        connected.map_err(|e| EscapeError::Peer(broker.to_string(), e.to_string()))?
    };
    let properties = message::without(record.properties, DROPPED);
    let header = SendMessage {
        producer_group: PRODUCER,
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: *queue,
        sys_flag: record.sys_flag & !sys_flag::OF_BROKER,
        born_timestamp_ms: record.born_timestamp_ms,
        flag: record.flag,
        properties: &properties,
        reconsume_times: record.reconsume_times,
        unit_mode: false,
        // The copy is for the same try: the other broker is not to count it.
        max_reconsume_times: Some(i32::MAX),
        batch: false,
        broker_name: Some(broker),
    };
    let code = request::SEND_MESSAGE_V2;
    let answer = conn.call(code, &header.ext(code), record.body, TIMEOUT).await;
    let answer = answer.map_err(|e| EscapeError::Call(broker.to_string(), e))?;
    match answer.code {
        // Stored there in any case.
        response::SUCCESS
        | response::FLUSH_DISK_TIMEOUT
        | response::FLUSH_SLAVE_TIMEOUT
        | response::SLAVE_NOT_AVAILABLE => Ok(()),
        code => {
            let remark = answer.remark.unwrap_or_default();
            Err(EscapeError::Refused { broker: broker.to_string(), code, remark })
        }
    }
}

/// How far a starting master's slaves brought its delay levels while it was away: the largest offset of each level. Empty when none answers in
/// time: then what they delivered comes twice. On shard 0, before the levels start.
pub async fn handed_over(shard: &Rc<Shard>) -> BTreeMap<i32, i64> {
    let asked = async { ask_slaves(shard).await };
    let late = async {
        Timer::new(HAND_OVER_MAX).await;
        warn!(
            "the slaves do not say in time how far they brought the delay levels; what they delivered may come again"
        );
        BTreeMap::new()
    };
    future::or(asked, late).await
}

async fn ask_slaves(shard: &Rc<Shard>) -> BTreeMap<i32, i64> {
    let config = shard.config();
    let control = shard.control();
    let mut levels = BTreeMap::new();
    // No NameServer may have been reached yet.
    while control.registration.up().0 == 0 && !config.namesrv_addr.0.is_empty() && !shard.doors.is_closed() {
        shard.sleep(Duration::from_millis(50)).await;
    }
    for group in control.registration.groups(&config.cluster_name, &config.broker_name).await {
        for (id, addr) in group.broker_addrs.0.iter().filter(|(id, _)| **id > 0) {
            match ask_slave(shard, addr).await {
                Ok(table) => {
                    for (level, offset) in table.offset_table.0 {
                        let known = levels.entry(level).or_insert(offset);
                        *known = offset.max(*known);
                    }
                }
                Err(why) => warn!(id, addr, why, "a slave does not say how far it brought the delay levels"),
            }
        }
    }
    levels
}

async fn ask_slave(shard: &Rc<Shard>, addr: &str) -> Result<DelayOffsetTable, String> {
    let conn = shard.control().peers.connect("slave", addr, TIMEOUT).await.map_err(|e| e.to_string())?;
    tables::ask(&conn, request::GET_ALL_DELAY_OFFSET, &[]).await.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::body::route::{BrokerData, QueueData};

    fn group(ids: &[i64]) -> BrokerMemberGroup {
        let mut group = BrokerMemberGroup::default();
        ids.iter().for_each(|id| drop(group.broker_addrs.0.insert(*id, format!("h:{id}"))));
        group
    }

    #[test]
    fn the_smallest_acts_when_every_name_server_misses_the_master() {
        assert!(is_smallest(&[group(&[1, 2])], 1));
        assert!(!is_smallest(&[group(&[1, 2])], 2));
        assert!(!is_smallest(&[group(&[0, 1])], 1), "the master is alive");
        assert!(!is_smallest(&[group(&[1]), group(&[0, 1])], 1), "by one of them it is");
        assert!(!is_smallest(&[group(&[])], 1) && !is_smallest(&[], 1), "nobody knows");
    }

    #[test]
    fn only_masters_of_other_names_in_the_cluster_are_targets() {
        let mut route = TopicRouteData::default();
        for (name, cluster, id, perm) in
            [("own", "c", 0, 6), ("b", "c", 0, 6), ("other", "d", 0, 6), ("slave", "c", 1, 6), ("acting", "c", 0, 4)]
        {
            let mut broker = BrokerData { broker_name: name.into(), cluster: cluster.into(), ..BrokerData::default() };
            broker.broker_addrs.0.insert(id, format!("{name}:1"));
            route.broker_datas.push(broker);
            let queues = QueueData { broker_name: name.into(), perm, write_queue_nums: 2, ..QueueData::default() };
            route.queue_datas.push(queues);
        }
        let all = targets(&route, "c", "own");
        assert_eq!(all, [("b".into(), "b:1".into(), 0), ("b".into(), "b:1".into(), 1)]);
        let of = |failures| pick(&all, "T", "127.0.0.1:1", failures).map(|target| target.2);
        assert_eq!(of(0), of(2));
        assert_ne!(of(0), of(1), "a failure is followed by another one");
        assert_eq!(pick::<i32>(&[], "T", "h", 0), None);
    }
}
