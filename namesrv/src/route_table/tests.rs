use super::*;
use uringmq_proto::body::topic::TopicConfigSerializeWrapper;

const A: ConnId = ConnId { shard: 0, serial: 1 };
const B: ConnId = ConnId { shard: 0, serial: 2 };
const C: ConnId = ConnId { shard: 0, serial: 3 };

fn version(counter: i64) -> DataVersion {
    DataVersion { counter, state_version: 0, timestamp: 1000 }
}

fn body(counter: i64, topics: &[&str]) -> RegisterBrokerBody {
    let table = topics.iter().map(|name| ((*name).to_owned(), TopicConfig::new(*name, 8))).collect();
    RegisterBrokerBody {
        topic_config_serialize_wrapper: TopicConfigSerializeWrapper {
            data_version: version(counter),
            topic_config_table: table,
            ..TopicConfigSerializeWrapper::default()
        },
        ..RegisterBrokerBody::default()
    }
}

/// A registration of broker `b` in cluster `c`.
fn from<'a>(id: i64, addr: &'a str, conn: ConnId, body: &'a RegisterBrokerBody) -> Registration<'a> {
    Registration {
        cluster: "c",
        name: "b",
        addr,
        id,
        ha_addr: "ha:1",
        zone: None,
        timeout_ms: None,
        acting_master: None,
        body,
        conn,
    }
}

fn acting<'a>(id: i64, addr: &'a str, conn: ConnId, body: &'a RegisterBrokerBody) -> Registration<'a> {
    Registration { acting_master: Some(true), ..from(id, addr, conn, body) }
}

fn table(rules: Rules) -> RouteTable {
    RouteTable::new(rules)
}

/// A table with a master of topics T1 and T2, registered on A.
fn with_master() -> RouteTable {
    let mut table = table(Rules::default());
    table.register(&from(0, "m:1", A, &body(1, &["T1", "T2"])), 0);
    table
}

fn perm_of(table: &RouteTable, topic: &str) -> Option<i32> {
    table.route(topic).map(|route| route.queue_datas[0].perm)
}

fn addrs(table: &RouteTable) -> Vec<(i64, String)> {
    let group = table.member_group("c", "b");
    group.broker_addrs.iter().map(|(id, addr)| (*id, addr.clone())).collect()
}

#[test]
fn a_registered_broker_is_routed_to() {
    let table = with_master();
    let route = table.route("T1").unwrap();
    assert_eq!(route.broker_datas.len(), 1);
    assert_eq!(route.broker_datas[0].broker_addrs.get(&0).map(String::as_str), Some("m:1"));
    assert_eq!((route.queue_datas[0].read_queue_nums, route.queue_datas[0].perm), (8, 6));
    assert!(table.route("T3").is_none());
    assert_eq!(table.all_topics().topic_list, ["T1", "T2"]);
    let info = table.cluster_info();
    assert_eq!(info.cluster_addr_table["c"], ["b"]);
    assert_eq!(info.broker_addr_table["b"].cluster, "c");
}

#[test]
fn topics_are_taken_only_when_the_version_changed() {
    let mut table = with_master();
    let mut changed = body(1, &["T1", "T2", "T3"]);
    changed.topic_config_serialize_wrapper.topic_config_table.get_mut("T1").unwrap().perm = 4;
    table.register(&from(0, "m:1", A, &changed), 1);
    assert_eq!(perm_of(&table, "T1"), Some(6), "same version: what is known stays");
    assert!(table.route("T3").is_some(), "and what is unknown is taken");
    changed.topic_config_serialize_wrapper.data_version = version(2);
    table.register(&from(0, "m:1", A, &changed), 2);
    assert_eq!(perm_of(&table, "T1"), Some(4));
    table.register(&from(0, "m:1", A, &body(3, &["T1"])), 3);
    assert!(table.route("T2").is_some(), "a topic dropped from the payload stays");
}

#[test]
fn topics_go_with_the_registration_where_that_is_asked_for() {
    let mut table = table(Rules { delete_topic_with_broker_registration: true, ..Rules::default() });
    table.register(&from(0, "m:1", A, &body(1, &["T1", "T2", "T3"])), 0);
    table.register(&from(0, "m:1", A, &body(2, &["T1"])), 1);
    assert!(table.route("T2").is_some(), "one topic is a change of that topic");
    table.register(&from(0, "m:1", A, &body(3, &["T1", "T3"])), 2);
    assert!(table.route("T2").is_none() && table.route("T3").is_some());
}

/// Known fault N03.
#[test]
fn a_single_topic_first_then_the_whole_table() {
    let mut table = table(Rules::default());
    table.register(&from(0, "m:1", A, &body(5, &["T2"])), 0);
    assert!(table.route("T2").is_some());
    let answer = table.query_data_version("c", "m:1", version(5), 1);
    assert_eq!(answer, VersionAnswer { changed: true, stored: Some(version(5)) }, "so that it sends its full table");
    table.register(&from(0, "m:1", A, &body(5, &["T1", "T2", "T3"])), 2);
    for topic in ["T1", "T2", "T3"] {
        assert!(table.route(topic).is_some(), "{topic}");
    }
    assert!(!table.query_data_version("c", "m:1", version(5), 3).changed);
    table.register(&from(0, "m:1", A, &body(6, &["T1"])), 4);
    assert!(!table.query_data_version("c", "m:1", version(6), 5).changed, "one topic of a table that is whole");
}

/// Known fault N01: late news of an old connection means nothing.
#[test]
fn an_old_connection_cannot_wipe_a_newer_registration() {
    let topics = body(1, &["T1", "T2"]);
    // The same broker again on another connection.
    let mut table = with_master();
    table.register(&from(0, "m:1", B, &topics), 1);
    assert_eq!(table.unregister("c", "m:1", "b", 0, A), None);
    assert!(table.route("T1").is_some(), "its late unregistration");
    table.connection_closed(A);
    assert!(table.route("T1").is_some(), "its end");
    table.unregister("c", "m:1", "b", 0, B);
    assert!(table.route("T1").is_none(), "the newer one may");

    // The same address under another id.
    let mut table = with_master();
    table.register(&from(1, "m:1", B, &topics), 1);
    table.unregister("c", "m:1", "b", 0, C);
    table.connection_closed(A);
    assert_eq!(addrs(&table), [(1, "m:1".to_owned())]);
    assert!(table.route("T1").is_some());

    // Another address under the same id, and another id.
    for id in [0, 1] {
        let mut table = with_master();
        table.register(&from(id, "m:2", B, &topics), 1);
        table.connection_closed(A);
        assert!(table.route("T1").is_some(), "id {id}");
        assert_eq!(addrs(&table), [(id, "m:2".to_owned())]);
    }

    // A connection that never registered it speaks for it (a tool, or a broker that opened a new one).
    let mut table = with_master();
    table.unregister("c", "m:1", "b", 0, C);
    assert!(table.route("T1").is_none());
}

#[test]
fn the_end_of_a_connection_removes_its_broker_at_once() {
    let mut table = with_master();
    table.connection_closed(C);
    assert!(table.route("T1").is_some());
    assert_eq!(table.connection_closed(A), []);
    assert!(table.route("T1").is_none());
    assert_eq!(table.cluster_info(), Default::default());
    assert_eq!(table.all_topics().topic_list.len(), 0);
}

#[test]
fn who_gives_no_sign_for_its_time_expires() {
    let mut table = with_master();
    assert_eq!(table.expire(BROKER_EXPIRY_MS), (vec![], vec![]));
    table.heartbeat("c", "m:1", 100);
    table.heartbeat("c", "unknown:1", 100);
    assert_eq!(table.expire(BROKER_EXPIRY_MS + 100).0, []);
    assert!(!table.query_data_version("c", "m:1", version(1), 200).changed, "a question is a sign");
    assert_eq!(table.expire(BROKER_EXPIRY_MS + 200).0, []);
    assert!(table.query_data_version("c", "m:1", version(9), 300).changed, "but not that of one who will register");
    assert_eq!(table.expire(BROKER_EXPIRY_MS + 201).0, [A]);
    assert!(table.route("T1").is_none());
    // A time of the broker's own.
    let topics = body(1, &["T1", "T2"]);
    table.register(&Registration { timeout_ms: Some(50), ..from(0, "m:1", A, &topics) }, 0);
    table.register(&Registration { timeout_ms: Some(-1), name: "other", ..from(0, "o:1", B, &topics) }, 0);
    assert_eq!(table.expire(51).0, [A], "a time of nothing is no time");
}

#[test]
fn slaves_are_told_of_a_live_master_and_do_not_change_topics() {
    let mut table = with_master();
    let reply = table.register(&from(1, "s:1", B, &body(7, &["T1", "T9"])), 1);
    assert_eq!(reply.master, Some(("m:1".to_owned(), "ha:1".to_owned())));
    assert!(table.route("T9").is_none());
    assert_eq!(table.register(&from(0, "m:1", A, &body(1, &["T1", "T2"])), 1).master, None, "a master needs no other");
    table.connection_closed(A);
    assert_eq!(table.register(&from(1, "s:1", B, &body(7, &["T1"])), 2).master, None);
    assert_eq!(addrs(&table), [(1, "s:1".to_owned())]);
    assert_eq!(perm_of(&table, "T1"), Some(6), "without acting masters the queues keep their permission");
}

#[test]
fn a_slave_that_became_master_keeps_one_id() {
    let mut table = with_master();
    table.register(&from(1, "s:1", B, &body(1, &["T1", "T2"])), 1);
    table.register(&from(0, "s:1", B, &body(2, &["T1", "T2"])), 2);
    assert_eq!(addrs(&table), [(0, "s:1".to_owned())]);
    table.connection_closed(A);
    assert_eq!(addrs(&table), [(0, "s:1".to_owned())]);
}

#[test]
fn an_older_state_does_not_take_the_place_of_a_newer_one() {
    let state = |state_version, topics: &[&str]| {
        let mut body = body(1, topics);
        body.topic_config_serialize_wrapper.data_version.state_version = state_version;
        body
    };
    let mut table = table(Rules::default());
    table.register(&from(0, "m:1", A, &state(5, &["T1", "T2"])), 0);
    let reply = table.register(&from(0, "m:2", B, &state(4, &["T1", "T2", "T3"])), 1);
    assert_eq!(reply, Registered::default());
    assert_eq!(addrs(&table), [(0, "m:1".to_owned())]);
    assert!(table.route("T3").is_none());
    table.register(&from(0, "m:2", B, &state(5, &["T1", "T2", "T3"])), 2);
    assert_eq!(addrs(&table), [(0, "m:2".to_owned())]);
    assert!(table.route("T3").is_some());
}

#[test]
fn acting_masters() {
    let topics = body(1, &["T1", "T2", "rmq_sys_SYNC_BROKER_MEMBER_b"]);
    let mut table =
        table(Rules { support_acting_master: true, notify_min_broker_id_changed: true, ..Rules::default() });
    table.register(&acting(0, "m:1", A, &topics), 0);
    assert_eq!(table.register(&acting(1, "s:1", B, &topics), 0).notice, None, "1 is not below 0");
    table.register(&acting(2, "s:2", C, &topics), 0);
    let notices = table.connection_closed(A);
    let told = MinIdNotice {
        to: vec![B, C],
        broker_name: "b".to_owned(),
        min_id: 1,
        min_addr: "s:1".to_owned(),
        offline_addr: Some("m:1".to_owned()),
        ha_addr: None,
    };
    assert_eq!(notices, [told]);
    assert_eq!(perm_of(&table, "T1"), Some(4), "nobody can write");
    let shown =
        |topic: &str| table.route(topic).unwrap().broker_datas[0].broker_addrs.keys().copied().collect::<Vec<_>>();
    assert_eq!(shown("T1"), [0, 2], "the smallest id is shown as master");
    assert_eq!(shown("rmq_sys_SYNC_BROKER_MEMBER_b"), [1, 2], "the group sees itself as it is");
    // The prime slave registers the topics, without write permission.
    table.register(&acting(1, "s:1", B, &body(2, &["T1", "T5"])), 1);
    assert_eq!(perm_of(&table, "T5"), Some(4));
    // The master is back.
    let notice = table.register(&acting(0, "m:1", A, &body(3, &["T1", "T2"])), 2).notice.unwrap();
    assert_eq!((notice.to, notice.min_id, notice.offline_addr), (vec![B, C], 0, None));
    assert_eq!(notice.ha_addr.as_deref(), Some("ha:1"));
    assert_eq!(perm_of(&table, "T1"), Some(6));
    // One of several slaves gone changes no minimum.
    assert_eq!(table.connection_closed(C), []);
}

#[test]
fn no_notice_unless_switched_on() {
    let topics = body(1, &["T1", "T2"]);
    let mut table = table(Rules::default());
    table.register(&acting(1, "s:1", B, &topics), 0);
    assert_eq!(table.register(&acting(0, "m:1", A, &topics), 0).notice, None);
    assert_eq!(table.connection_closed(A), []);
}

/// Known fault A03.
#[test]
fn wiped_write_permission_stays_wiped_until_it_is_added() {
    let mut table = with_master();
    table.register(&Registration { name: "other", ..from(0, "o:1", B, &body(1, &["T1", "T3"])) }, 0);
    assert_eq!(table.wipe_write_perm("b"), 2);
    assert_eq!(table.wipe_write_perm("nobody"), 0);
    table.register(&from(0, "m:1", A, &body(1, &["T1", "T2"])), 1);
    assert_eq!(perm_of(&table, "T2"), Some(4), "the next registration");
    table.register(&from(0, "m:1", A, &body(2, &["T1", "T4"])), 1);
    assert_eq!((perm_of(&table, "T2"), perm_of(&table, "T4")), (Some(4), Some(4)), "a changed one");
    assert_eq!(perm_of(&table, "T3"), Some(6), "the other broker's");
    assert_eq!(table.add_write_perm("b"), 3);
    assert_eq!((perm_of(&table, "T2"), perm_of(&table, "T4")), (Some(6), Some(6)));
    table.wipe_write_perm("b");
    table.connection_closed(A);
    table.register(&from(0, "m:1", A, &body(1, &["T1", "T2"])), 2);
    assert_eq!(perm_of(&table, "T2"), Some(6), "a broker that was gone starts anew");
}

#[test]
fn topics_registered_and_deleted_by_hand() {
    let mut table = with_master();
    let queues = |broker: &str| QueueData { broker_name: broker.to_owned(), perm: 6, ..QueueData::default() };
    let route = |brokers: &[&str]| TopicRouteData {
        queue_datas: brokers.iter().map(|broker| queues(broker)).collect(),
        ..TopicRouteData::default()
    };
    table.register_topic("H", &route(&["b", "nobody"]));
    assert!(table.route("H").is_none(), "all or nothing");
    table.register_topic("H", &route(&["b"]));
    assert!(table.route("H").is_some());
    table.delete_topic("H", Some("nowhere"));
    assert!(table.route("H").is_some());
    table.delete_topic("H", Some("c"));
    assert!(table.route("H").is_none());
    table.delete_topic("T1", None);
    table.delete_topic("T1", None);
    assert_eq!(table.all_topics().topic_list, ["T2"]);
}

#[test]
fn lists() {
    let mut table = with_master();
    let mut units = body(1, &["U0", "U1", "U2", "U3"]);
    for (name, topic) in &mut units.topic_config_serialize_wrapper.topic_config_table {
        topic.topic_sys_flag = name[1..].parse().unwrap();
    }
    table.register(&Registration { cluster: "c2", name: "b2", ..from(0, "u:1", B, &units) }, 0);
    let unit = |which| table.unit_topics(which).topic_list;
    assert_eq!(unit(UnitTopics::Unit), ["U1", "U3"]);
    assert_eq!(unit(UnitTopics::UnitSub), ["U2", "U3"]);
    assert_eq!(unit(UnitTopics::UnitSubNotUnit), ["U2"]);
    assert_eq!(table.topics_of_cluster("c").topic_list, ["T1", "T2"]);
    assert_eq!(table.topics_of_cluster("nowhere").topic_list.len(), 0);
    let system = table.system_topics();
    assert_eq!(system.topic_list, ["c", "b", "c2", "b2"]);
    assert_eq!(system.broker_addr.as_deref(), Some("m:1"));
    assert_eq!(table.member_group("c2", "b").broker_addrs.len(), 0);
    assert_eq!(table.member_group("c", "b").broker_addrs.len(), 1);
}

#[test]
fn filter_servers_and_static_topics_are_carried() {
    let mut table = table(Rules::default());
    let mut topics = body(1, &["T1", "T2"]);
    topics.filter_server_list = Some(vec!["f:1".to_owned()]);
    let info =
        TopicQueueMappingInfo { bname: "b".to_owned(), topic: "T1".to_owned(), total_queues: 8, ..Default::default() };
    topics.topic_config_serialize_wrapper.topic_queue_mapping_info_map =
        Some(BTreeMap::from([("T1".to_owned(), info)]));
    table.register(&from(0, "m:1", A, &topics), 0);
    let route = table.route("T1").unwrap();
    assert_eq!(route.filter_server_table["m:1"], ["f:1"]);
    assert_eq!(route.topic_queue_mapping_by_broker.unwrap()["b"].total_queues, 8);
    assert_eq!(table.route("T2").unwrap().topic_queue_mapping_by_broker, None);
    table.register(&from(0, "m:1", A, &body(1, &["T1", "T2"])), 1);
    assert_eq!(table.route("T1").unwrap().filter_server_table.len(), 1, "no list leaves it");
    topics.filter_server_list = Some(Vec::new());
    table.register(&from(0, "m:1", A, &topics), 2);
    assert_eq!(table.route("T1").unwrap().filter_server_table.len(), 0, "an empty one removes it");
}

#[test]
fn a_zone_keeps_its_own_and_those_without_master() {
    let topics = body(1, &["T1", "T2"]);
    let mut table = table(Rules::default());
    for (name, addr, id, zone) in
        [("b1", "a:1", 0, Some("East")), ("b2", "a:2", 0, Some("west")), ("b3", "a:3", 0, None)]
    {
        table.register(&Registration { name, zone, ..from(id, addr, A, &topics) }, 0);
    }
    table.register(&Registration { name: "b3", ..from(1, "a:4", B, &topics) }, 0);
    let kept = |table: &RouteTable| {
        let mut route = table.route("T1").unwrap();
        keep_zone(&mut route, "east");
        let brokers: Vec<String> = route.broker_datas.iter().map(|broker| broker.broker_name.clone()).collect();
        let queues: Vec<String> = route.queue_datas.iter().map(|data| data.broker_name.clone()).collect();
        assert_eq!(brokers, queues);
        brokers
    };
    assert_eq!(kept(&table), ["b1"]);
    table.unregister("c", "a:3", "b3", 0, A);
    assert_eq!(kept(&table), ["b1", "b3"]);
}

/// Whatever is asked in whatever order, no table names a broker that another does not know.
#[test]
fn random_operations_leave_the_tables_consistent() {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let all = Rules {
        delete_topic_with_broker_registration: true,
        notify_min_broker_id_changed: true,
        support_acting_master: true,
    };
    let mut table = table(all);
    let names = ["b1", "b2", "b3"];
    let addrs = ["a:1", "a:2", "a:3", "a:4"];
    for step in 0..20_000i64 {
        let (name, addr) = (names[random(3) as usize], addrs[random(4) as usize]);
        let conn = ConnId { shard: 0, serial: random(5) };
        let id = random(3) as i64;
        match random(8) {
            0..=3 => {
                let topics: Vec<String> = (0..random(4)).map(|_| format!("T{}", random(6))).collect();
                let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
                let body = body(random(3) as i64, &topics);
                let acting_master = (random(2) == 0).then_some(random(2) == 0);
                table.register(&Registration { name, acting_master, ..from(id, addr, conn, &body) }, step);
            }
            4 => drop(table.unregister("c", addr, name, id, conn)),
            5 => drop(table.connection_closed(conn)),
            6 => drop(table.expire(step + random(200_000) as i64)),
            _ => drop(table.wipe_write_perm(name)),
        }
        for broker in table.brokers.values() {
            assert!(!broker.broker_addrs.is_empty(), "step {step}");
            assert!(table.clusters["c"].contains(&broker.broker_name), "step {step}");
        }
        let known: BTreeSet<&String> = table.brokers.keys().collect();
        for brokers in table.topics.values() {
            assert!(!brokers.is_empty() && brokers.keys().all(|name| known.contains(name)), "step {step}");
        }
        assert!(table.clusters.values().flatten().all(|name| known.contains(name)), "step {step}");
        assert!(table.wiped.iter().all(|name| known.contains(name)), "step {step}");
        for topic in table.topics.keys() {
            table.route(topic).unwrap_or_else(|| panic!("step {step}: {topic} without a route"));
        }
    }
}
