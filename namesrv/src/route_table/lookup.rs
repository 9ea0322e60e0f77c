//! What clients and operators ask the table: routes, cluster tables, topic lists.
use super::{BrokerKey, MASTER_ID, RouteTable};
use std::collections::BTreeSet;
use uringmq_proto::body::route::{BrokerData, BrokerMemberGroup, ClusterInfo, TopicRouteData};
use uringmq_proto::body::stats::TopicList;
use uringmq_proto::names::perm;

/// Topics that acting masters coordinate by; their routes are shown as they are.
const SYNC_MEMBER_PREFIX: &str = "rmq_sys_SYNC_BROKER_MEMBER_";
/// Bits of a topic's sysFlag.
const UNIT: i32 = 1;
const UNIT_SUB: i32 = 2;

/// Which topics of units are listed (311, 312, 313).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitTopics {
    Unit,
    UnitSub,
    UnitSubNotUnit,
}

impl RouteTable {
    /// The queues of a topic and the brokers that hold them, whatever the permissions; `None` without either.
    pub fn route(&self, topic: &str) -> Option<TopicRouteData> {
        let queue_datas: Vec<_> = self.topics.get(topic)?.values().cloned().collect();
        let held = queue_datas.iter().filter_map(|data| self.brokers.get(&data.broker_name));
        let mut broker_datas: Vec<BrokerData> = held.cloned().collect();
        if broker_datas.is_empty() {
            return None;
        }
        if self.rules.support_acting_master && !topic.starts_with(SYNC_MEMBER_PREFIX) {
            let readonly = |name: &str| queue_datas.iter().any(|q| q.broker_name == name && q.perm & perm::WRITE == 0);
            broker_datas.iter_mut().filter(|broker| readonly(&broker.broker_name)).for_each(show_acting_master);
        }
        let servers = |addr: &String, cluster: &str| {
            let servers = self.filter_servers.get(&BrokerKey::new(cluster, addr))?;
            Some((addr.clone(), servers.clone()))
        };
        let addrs = broker_datas.iter().flat_map(|b| b.broker_addrs.values().map(move |addr| (addr, &b.cluster)));
        let filter_server_table = addrs.filter_map(|(addr, cluster)| servers(addr, cluster)).collect();
        let mappings = self.mappings.get(topic).filter(|brokers| !brokers.is_empty());
        Some(TopicRouteData {
            filter_server_table,
            topic_queue_mapping_by_broker: mappings.cloned(),
            broker_datas,
            queue_datas,
            order_topic_conf: None,
        })
    }

    pub fn cluster_info(&self) -> ClusterInfo {
        let names = |names: &BTreeSet<String>| names.iter().cloned().collect();
        ClusterInfo {
            broker_addr_table: self.brokers.clone(),
            cluster_addr_table: self.clusters.iter().map(|(cluster, all)| (cluster.clone(), names(all))).collect(),
        }
    }

    /// All ids and addresses of a broker name; no addresses when it is unknown.
    pub fn member_group(&self, cluster: &str, name: &str) -> BrokerMemberGroup {
        let broker = self.brokers.get(name).filter(|broker| broker.cluster == cluster);
        BrokerMemberGroup {
            broker_addrs: broker.map(|broker| broker.broker_addrs.clone()).unwrap_or_default(),
            broker_name: name.to_owned(),
            cluster: cluster.to_owned(),
        }
    }

    pub fn all_topics(&self) -> TopicList {
        TopicList { topic_list: self.topics.keys().cloned().collect(), ..TopicList::default() }
    }

    /// Topics with queues on a broker of `cluster`.
    pub fn topics_of_cluster(&self, cluster: &str) -> TopicList {
        let Some(names) = self.clusters.get(cluster) else { return TopicList::default() };
        let there = self.topics.iter().filter(|(_, brokers)| brokers.keys().any(|name| names.contains(name)));
        TopicList { topic_list: there.map(|(topic, _)| topic.clone()).collect(), ..TopicList::default() }
    }

    /// Names of clusters and brokers, which are topics too, and the address of one broker.
    pub fn system_topics(&self) -> TopicList {
        let names = self.clusters.iter().flat_map(|(cluster, names)| std::iter::once(cluster).chain(names));
        let addr = self.brokers.values().find_map(|broker| broker.broker_addrs.values().next());
        TopicList { topic_list: names.cloned().collect(), broker_addr: addr.cloned() }
    }

    pub fn unit_topics(&self, which: UnitTopics) -> TopicList {
        let wanted = |flag: i32| match which {
            UnitTopics::Unit => flag & UNIT != 0,
            UnitTopics::UnitSub => flag & UNIT_SUB != 0,
            UnitTopics::UnitSubNotUnit => flag & UNIT_SUB != 0 && flag & UNIT == 0,
        };
        let there = self.topics.iter().filter(|(_, brokers)| {
            brokers.values().next().is_some_and(|data| wanted(data.topic_sys_flag)) // one of them speaks for all
        });
        TopicList { topic_list: there.map(|(topic, _)| topic.clone()).collect(), ..TopicList::default() }
    }
}

/// Shows the smallest id of a group without master as its master, so that clients pull from it; nobody can write, as its queues lack
/// the permission.
fn show_acting_master(broker: &mut BrokerData) {
    if !broker.enable_acting_master || broker.broker_addrs.contains_key(&MASTER_ID) {
        return;
    }
    if let Some((_, addr)) = broker.broker_addrs.pop_first() {
        broker.broker_addrs.insert(MASTER_ID, addr);
    }
}

/// Keeps the brokers of a caller's zone and those without a master, with their queues (wire-protocol sheet 9.4).
pub fn keep_zone(route: &mut TopicRouteData, zone: &str) {
    let near = |broker: &BrokerData| {
        let same = broker.zone_name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(zone));
        same || !broker.broker_addrs.contains_key(&MASTER_ID)
    };
    let (kept, dropped): (Vec<_>, Vec<_>) = route.broker_datas.drain(..).partition(near);
    route.queue_datas.retain(|data| kept.iter().any(|broker| broker.broker_name == data.broker_name));
    let gone = |addr: &String| dropped.iter().any(|broker| broker.broker_addrs.values().any(|there| there == addr));
    route.filter_server_table.retain(|addr, _| !gone(addr));
    route.broker_datas = kept;
}
