//! Who is where: topics, brokers, clusters and who is alive. Pure state: no sockets, no clock (times are given, in ms of any steady
//! clock), no files; refilled by brokers within one registration period after a start. Used by the request handlers, the scan and the
//! end of a connection. Source: behaviour sheet 1.1 to 1.6, wire-protocol sheet 9; known faults N01, N03, A03.
//!
//! Where it differs from Apache's, on purpose:
//! - a first registration with exactly one topic is taken (N03), and code 322 answers "changed" until the broker has sent another
//!   number of topics, so that a broker that asks first still sends its full table;
//! - an unregistration counts only from who registered last (N01);
//! - write permission wiped from a broker stays wiped until it is added again or the broker has gone (A03).
mod lookup;
#[cfg(test)]
mod tests;

pub use lookup::{UnitTopics, keep_zone};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use uringmq_proto::body::mapping::TopicQueueMappingInfo;
use uringmq_proto::body::register::RegisterBrokerBody;
use uringmq_proto::body::route::{BrokerData, QueueData, TopicRouteData};
use uringmq_proto::body::topic::{DataVersion, TopicConfig};
use uringmq_proto::names::perm;
use uringmq_remoting::ConnId;

/// How long a broker lives after its last sign when it names no time of its own.
pub const BROKER_EXPIRY_MS: i64 = 120_000;
/// The id of a master.
const MASTER_ID: i64 = 0;

/// A broker's address is unique within its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct BrokerKey {
    cluster: String,
    addr: String,
}

impl BrokerKey {
    fn new(cluster: &str, addr: &str) -> Self {
        BrokerKey { cluster: cluster.to_owned(), addr: addr.to_owned() }
    }
}

/// A broker that registered and has not gone.
#[derive(Clone, Debug)]
struct Live {
    name: String,
    seen_ms: i64,
    timeout_ms: i64,
    data_version: DataVersion,
    /// Whose end is the broker's end.
    conn: ConnId,
    /// The connection of the registration before, while it may still be open: its late unregistration means nothing.
    former: Option<ConnId>,
    ha_addr: String,
    /// The table may lack topics: the broker is known by a registration of a single one.
    partial: bool,
}

/// Which of Apache's switches the table obeys; see the configuration's keys of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub delete_topic_with_broker_registration: bool,
    pub notify_min_broker_id_changed: bool,
    pub support_acting_master: bool,
}

/// REGISTER_BROKER with its body decoded.
#[derive(Clone, Debug)]
pub struct Registration<'a> {
    pub cluster: &'a str,
    pub name: &'a str,
    pub addr: &'a str,
    pub id: i64,
    pub ha_addr: &'a str,
    pub zone: Option<&'a str>,
    /// Lives so long after its last sign; [`BROKER_EXPIRY_MS`] when absent.
    pub timeout_ms: Option<i64>,
    /// Absent: an old broker, which counts as false.
    pub acting_master: Option<bool>,
    pub body: &'a RegisterBrokerBody,
    pub conn: ConnId,
}

/// What a registering broker is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// For slaves whose master is known and alive: its address and its address for slaves.
    pub master: Option<(String, String)>,
    pub notice: Option<MinIdNotice>,
}

/// The smallest id of a broker group changed: NOTIFY_MIN_BROKER_ID_CHANGE to `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinIdNotice {
    pub to: Vec<ConnId>,
    pub broker_name: String,
    pub min_id: i64,
    pub min_addr: String,
    pub offline_addr: Option<String>,
    pub ha_addr: Option<String>,
}

/// Answer to QUERY_DATA_VERSION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionAnswer {
    pub changed: bool,
    pub stored: Option<DataVersion>,
}

#[derive(Debug, Default)]
pub struct RouteTable {
    rules: Rules,
    /// Topic, then broker name.
    topics: BTreeMap<String, BTreeMap<String, QueueData>>,
    /// Broker name to its addresses.
    brokers: BTreeMap<String, BrokerData>,
    /// Cluster to broker names.
    clusters: BTreeMap<String, BTreeSet<String>>,
    live: HashMap<BrokerKey, Live>,
    filter_servers: HashMap<BrokerKey, Vec<String>>,
    /// Topic, then broker name: static topics.
    mappings: BTreeMap<String, BTreeMap<String, TopicQueueMappingInfo>>,
    /// Broker names whose write permission was taken until it is added again.
    wiped: BTreeSet<String>,
}

impl RouteTable {
    pub fn new(rules: Rules) -> Self {
        RouteTable { rules, ..RouteTable::default() }
    }

    /// Takes effect with the next change.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Takes a broker's registration, the whole of it or one topic. Steps as in behaviour sheet 1.2.
    pub fn register(&mut self, ask: &Registration<'_>, now_ms: i64) -> Registered {
        let key = BrokerKey::new(ask.cluster, ask.addr);
        let version = ask.body.topic_config_serialize_wrapper.data_version;
        if self.is_outdated(ask, version) {
            self.live.remove(&key);
            return Registered::default();
        }
        let group = self.join(ask);
        self.write_topics(ask, &key, &group);
        let former = self.live.get(&key);
        let topics = ask.body.topic_config_serialize_wrapper.topic_config_table.len();
        let live = Live {
            name: ask.name.to_owned(),
            seen_ms: now_ms,
            timeout_ms: ask.timeout_ms.filter(|ms| *ms > 0).unwrap_or(BROKER_EXPIRY_MS),
            data_version: version,
            conn: ask.conn,
            former: former.map(|live| live.conn).filter(|conn| *conn != ask.conn),
            ha_addr: ask.ha_addr.to_owned(),
            partial: topics == 1 && (group.first || former.is_none_or(|live| live.partial)),
        };
        self.live.insert(key.clone(), live);
        match ask.body.filter_server_list.as_deref() {
            None => {}
            Some([]) => drop(self.filter_servers.remove(&key)),
            Some(servers) => drop(self.filter_servers.insert(key, servers.to_vec())),
        }
        Registered {
            master: if ask.id == MASTER_ID { None } else { self.live_master(ask) },
            notice: if group.min_changed { self.notice(ask.name, None, Some(ask.ha_addr.to_owned())) } else { None },
        }
    }

    /// Another address holds the id with a newer state: two brokers claim one place, and this one lost.
    fn is_outdated(&self, ask: &Registration<'_>, version: DataVersion) -> bool {
        let holder = self.brokers.get(ask.name).and_then(|broker| broker.broker_addrs.get(&ask.id));
        let Some(holder) = holder.filter(|holder| *holder != ask.addr) else { return false };
        let live = self.live.get(&BrokerKey::new(ask.cluster, holder));
        live.is_some_and(|live| live.data_version.state_version > version.state_version)
    }

    /// Makes the broker known under its name, id and address.
    fn join(&mut self, ask: &Registration<'_>) -> Joined {
        self.clusters.entry(ask.cluster.to_owned()).or_default().insert(ask.name.to_owned());
        let known = self.brokers.contains_key(ask.name);
        let broker = self.brokers.entry(ask.name.to_owned()).or_insert_with(|| BrokerData {
            broker_name: ask.name.to_owned(),
            cluster: ask.cluster.to_owned(),
            ..BrokerData::default()
        });
        broker.enable_acting_master = ask.acting_master.unwrap_or(false);
        broker.zone_name = ask.zone.map(str::to_owned);
        let min_before = broker.broker_addrs.keys().next().copied().unwrap_or(0);
        // A slave that became master, or the other way round, keeps its address under one id only.
        broker.broker_addrs.retain(|id, addr| *id == ask.id || addr != ask.addr);
        let replaced = broker.broker_addrs.insert(ask.id, ask.addr.to_owned());
        let min_now = broker.broker_addrs.keys().next().copied();
        Joined {
            first: !known || replaced.is_none(),
            min_changed: ask.id < min_before,
            prime_slave: ask.acting_master.is_some() && ask.id != MASTER_ID && min_now == Some(ask.id),
            acting: broker.enable_acting_master,
        }
    }

    /// Takes the topics of a registration, if it comes from one who may change them.
    fn write_topics(&mut self, ask: &Registration<'_>, key: &BrokerKey, group: &Joined) {
        if ask.id != MASTER_ID && !group.prime_slave {
            return;
        }
        let wrapper = &ask.body.topic_config_serialize_wrapper;
        let mappings = wrapper.topic_queue_mapping_info_map.as_ref().filter(|map| !map.is_empty());
        let changed = self.live.get(key).is_none_or(|live| live.data_version != wrapper.data_version) || group.first;
        // A registration of one topic is a change of that topic, not a list of all.
        let whole_list = wrapper.topic_config_table.len() > 1 && mappings.is_none();
        if self.rules.delete_topic_with_broker_registration && whole_list {
            self.drop_absent_topics(ask.name, &wrapper.topic_config_table);
        }
        let no_write = (group.prime_slave && group.acting) || self.wiped.contains(ask.name);
        for (name, topic) in &wrapper.topic_config_table {
            let known = self.topics.get(name).is_some_and(|brokers| brokers.contains_key(ask.name));
            if changed || !known {
                self.put_queue_data(name, queue_data(ask.name, topic, no_write));
            }
        }
        if changed {
            for (topic, info) in mappings.into_iter().flatten() {
                let brokers = self.mappings.entry(topic.clone()).or_default();
                brokers.insert(info.bname.clone(), info.clone());
            }
        }
    }

    fn drop_absent_topics(&mut self, broker: &str, table: &BTreeMap<String, TopicConfig>) {
        self.topics.retain(|topic, brokers| {
            if !table.contains_key(topic) {
                brokers.remove(broker);
            }
            !brokers.is_empty()
        });
    }

    fn put_queue_data(&mut self, topic: &str, data: QueueData) {
        match self.topics.get_mut(topic) {
            Some(brokers) => drop(brokers.insert(data.broker_name.clone(), data)),
            None => {
                let brokers = BTreeMap::from([(data.broker_name.clone(), data)]);
                self.topics.insert(topic.to_owned(), brokers);
            }
        }
    }

    /// The master of the caller's group, if it is alive.
    fn live_master(&self, ask: &Registration<'_>) -> Option<(String, String)> {
        let addr = self.brokers.get(ask.name)?.broker_addrs.get(&MASTER_ID)?;
        let live = self.live.get(&BrokerKey::new(ask.cluster, addr))?;
        Some((addr.clone(), live.ha_addr.clone()))
    }

    /// UNREGISTER_BROKER on connection `conn`. A late one, from a connection or for an id that a newer registration has replaced, means
    /// nothing (known fault N01).
    pub fn unregister(&mut self, cluster: &str, addr: &str, name: &str, id: i64, conn: ConnId) -> Option<MinIdNotice> {
        let key = BrokerKey::new(cluster, addr);
        if self.live.get(&key).is_some_and(|live| live.former == Some(conn)) {
            return None;
        }
        let held = self.brokers.get(name).and_then(|broker| broker.broker_addrs.get(&id));
        if held.is_some_and(|held| held == addr) { self.remove(&key, name) } else { None }
    }

    /// A connection ended: who registered last on it is gone at once.
    pub fn connection_closed(&mut self, conn: ConnId) -> Vec<MinIdNotice> {
        for live in self.live.values_mut().filter(|live| live.former == Some(conn)) {
            live.former = None;
        }
        self.remove_all(|live| live.conn == conn)
    }

    /// Removes who gave no sign for its time; also returns their connections, which are to be closed.
    pub fn expire(&mut self, now_ms: i64) -> (Vec<ConnId>, Vec<MinIdNotice>) {
        let late = |live: &Live| now_ms.saturating_sub(live.seen_ms) > live.timeout_ms;
        let conns = self.live.values().filter(|live| late(live)).map(|live| live.conn).collect();
        (conns, self.remove_all(late))
    }

    fn remove_all(&mut self, gone: impl Fn(&Live) -> bool) -> Vec<MinIdNotice> {
        let mut gone: Vec<(BrokerKey, String)> = self
            .live
            .iter()
            .filter(|(_, live)| gone(live))
            .map(|(key, live)| (key.clone(), live.name.clone()))
            .collect();
        gone.sort();
        gone.iter().filter_map(|(key, name)| self.remove(key, name)).collect()
    }

    /// Takes one address out of every table.
    fn remove(&mut self, key: &BrokerKey, name: &str) -> Option<MinIdNotice> {
        self.live.remove(key);
        self.filter_servers.remove(key);
        let broker = self.brokers.get_mut(name)?;
        let min_before = broker.broker_addrs.keys().next().copied();
        let held = broker.broker_addrs.iter().find(|(_, addr)| **addr == key.addr).map(|(id, _)| *id);
        broker.broker_addrs.retain(|_, addr| *addr != key.addr);
        if broker.broker_addrs.is_empty() {
            self.forget(name);
            return None;
        }
        let acting = broker.enable_acting_master;
        if acting && !broker.broker_addrs.contains_key(&MASTER_ID) {
            self.topics
                .values_mut()
                .filter_map(|brokers| brokers.get_mut(name))
                .for_each(|data| data.perm &= !perm::WRITE);
        }
        if !acting || held.is_none() || held != min_before {
            return None;
        }
        self.notice(name, Some(key.addr.clone()), None)
    }

    /// The last address of a broker is gone.
    fn forget(&mut self, name: &str) {
        self.brokers.remove(name);
        self.wiped.remove(name);
        self.clusters.retain(|_, names| {
            names.remove(name);
            !names.is_empty()
        });
        self.topics.retain(|_, brokers| {
            brokers.remove(name);
            !brokers.is_empty()
        });
        let topics = &self.topics;
        self.mappings.retain(|topic, _| topics.contains_key(topic));
    }

    /// To whom and what to tell of a broker's new smallest id; `None` when that is switched off.
    fn notice(&self, name: &str, offline_addr: Option<String>, ha_addr: Option<String>) -> Option<MinIdNotice> {
        let broker = self.brokers.get(name).filter(|_| self.rules.notify_min_broker_id_changed)?;
        let (min_id, min_addr) = broker.broker_addrs.iter().next()?;
        let everyone = offline_addr.is_some() || broker.broker_addrs.len() == 1;
        let told = broker.broker_addrs.iter().filter(|(id, _)| everyone || *id != min_id);
        let conn = |addr: &String| Some(self.live.get(&BrokerKey::new(&broker.cluster, addr))?.conn);
        Some(MinIdNotice {
            to: told.filter_map(|(_, addr)| conn(addr)).collect(),
            broker_name: name.to_owned(),
            min_id: *min_id,
            min_addr: min_addr.clone(),
            offline_addr,
            ha_addr,
        })
    }

    /// BROKER_HEARTBEAT: a sign of life of a broker that is known.
    pub fn heartbeat(&mut self, cluster: &str, addr: &str, now_ms: i64) {
        if let Some(live) = self.live.get_mut(&BrokerKey::new(cluster, addr)) {
            live.seen_ms = now_ms;
        }
    }

    /// QUERY_DATA_VERSION: whether the broker has to register; a sign of life when not.
    pub fn query_data_version(
        &mut self,
        cluster: &str,
        addr: &str,
        version: DataVersion,
        now_ms: i64,
    ) -> VersionAnswer {
        let Some(live) = self.live.get_mut(&BrokerKey::new(cluster, addr)) else {
            return VersionAnswer { changed: true, stored: None };
        };
        let changed = live.partial || live.data_version != version;
        if !changed {
            live.seen_ms = now_ms;
        }
        VersionAnswer { changed, stored: Some(live.data_version) }
    }

    /// REGISTER_TOPIC: all or nothing; every broker named must be known.
    pub fn register_topic(&mut self, topic: &str, route: &TopicRouteData) {
        let known = |data: &QueueData| self.brokers.contains_key(&data.broker_name);
        if topic.is_empty() || !route.queue_datas.iter().all(known) {
            return;
        }
        for data in &route.queue_datas {
            let mut data = data.clone();
            if self.wiped.contains(&data.broker_name) {
                data.perm &= !perm::WRITE;
            }
            self.put_queue_data(topic, data);
        }
    }

    /// Deletes a topic, with `cluster` on its brokers only.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(cluster) = cluster else {
            self.topics.remove(topic);
            self.mappings.remove(topic);
            return;
        };
        let (Some(brokers), Some(names)) = (self.topics.get_mut(topic), self.clusters.get(cluster)) else { return };
        brokers.retain(|name, _| !names.contains(name));
        if brokers.is_empty() {
            self.topics.remove(topic);
            self.mappings.remove(topic);
        }
    }

    /// Takes the write permission of every topic of a broker, of later registrations too; the number of topics.
    pub fn wipe_write_perm(&mut self, broker: &str) -> usize {
        if self.brokers.contains_key(broker) {
            self.wiped.insert(broker.to_owned());
        }
        self.each_queue_data(broker, |data| data.perm &= !perm::WRITE)
    }

    /// Makes every topic of a broker readable and writable, and nothing else; the number of topics.
    pub fn add_write_perm(&mut self, broker: &str) -> usize {
        self.wiped.remove(broker);
        self.each_queue_data(broker, |data| data.perm = perm::READ | perm::WRITE)
    }

    fn each_queue_data(&mut self, broker: &str, mut change: impl FnMut(&mut QueueData)) -> usize {
        let mut count = 0;
        for data in self.topics.values_mut().filter_map(|brokers| brokers.get_mut(broker)) {
            change(data);
            count += 1;
        }
        count
    }
}

/// What joining its group made of a broker.
struct Joined {
    /// Its name, or its id under that name, was not known.
    first: bool,
    min_changed: bool,
    /// No master, and the smallest id of those that know of acting masters.
    prime_slave: bool,
    acting: bool,
}

fn queue_data(broker: &str, topic: &TopicConfig, no_write: bool) -> QueueData {
    QueueData {
        broker_name: broker.to_owned(),
        perm: if no_write { topic.perm & !perm::WRITE } else { topic.perm },
        read_queue_nums: topic.read_queue_nums,
        topic_sys_flag: topic.topic_sys_flag,
        write_queue_nums: topic.write_queue_nums,
    }
}
