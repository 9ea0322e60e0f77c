//! The name server, and clients that leave: N01, N03, N05. The many orders of events are tested in the name server's own crate; this
//! shows that the process is built so.
use crate::common::{Client, Shared};
use uringmq_proto::body::register::RegisterBrokerBody;
use uringmq_proto::body::topic::{DataVersion, TopicConfig, TopicConfigSerializeWrapper};

static SERVER: Shared = Shared::new("faults-namesrv", "shards=2");

fn register(client: &mut Client, broker: &str, id: &str, addr: &str, counter: i64, topics: &[&str]) {
    let table = topics.iter().map(|name| ((*name).to_owned(), TopicConfig::new(*name, 8))).collect();
    let body = RegisterBrokerBody {
        topic_config_serialize_wrapper: TopicConfigSerializeWrapper {
            data_version: DataVersion { counter, state_version: 0, timestamp: 7 },
            topic_config_table: table,
            ..TopicConfigSerializeWrapper::default()
        },
        ..RegisterBrokerBody::default()
    };
    let ext = [
        ("brokerName", broker),
        ("brokerAddr", addr),
        ("clusterName", "strange"),
        ("haServerAddr", "h:1"),
        ("brokerId", id),
    ];
    client.ok(103, &ext, &body.encode_plain());
}

/// The route of a topic as text, `None` for "no route".
fn route(client: &mut Client, topic: &str) -> Option<String> {
    let answer = client.call(105, &[("topic", topic)], b"");
    match answer.code {
        0 => Some(String::from_utf8(answer.body).expect("JSON")),
        17 => None,
        other => panic!("code {other}: {:?}", answer.remark),
    }
}

#[test]
fn n01_the_end_of_an_old_connection_leaves_a_newer_registration() {
    let server = SERVER.lease();
    let mut watcher = server.namesrv_client();
    for (old_id, new_id) in [("0", "0"), ("0", "1"), ("1", "0")] {
        let broker = format!("n01-{old_id}-{new_id}");
        let topic = format!("T-{broker}");
        let (mut old, mut new) = (server.namesrv_client(), server.namesrv_client());
        register(&mut old, &broker, old_id, "10.1.1.1:1", 1, &[&topic, "second"]);
        register(&mut new, &broker, new_id, "10.1.1.1:1", 2, &[&topic, "second"]);
        drop(old);
        // The close is seen before these requests are, or while they are answered; the route stays through all of it.
        for _ in 0..300 {
            let route = route(&mut watcher, &topic);
            assert!(route.is_some_and(|route| route.contains("10.1.1.1:1")), "{old_id} {new_id}: the route is gone");
        }
        register(&mut new, &broker, new_id, "10.1.1.1:1", 2, &[&topic, "second"]);
        assert!(route(&mut watcher, &topic).is_some());
    }
    server.check_healthy("N01");
}

#[test]
fn n03_one_topic_first_then_the_whole_list() {
    let server = SERVER.lease();
    let mut client = server.namesrv_client();
    register(&mut client, "n03", "0", "10.3.3.3:1", 5, &["n03-one"]);
    register(&mut client, "n03", "0", "10.3.3.3:1", 5, &["n03-one", "n03-two", "n03-three"]);
    for topic in ["n03-one", "n03-two", "n03-three"] {
        assert!(route(&mut client, topic).is_some_and(|route| route.contains("10.3.3.3:1")), "{topic}");
    }
    let mut single = server.namesrv_client();
    register(&mut single, "n03-small", "0", "10.3.3.4:1", 1, &["n03-only"]);
    assert!(route(&mut client, "n03-only").is_some_and(|route| route.contains("10.3.3.4:1")), "a broker of one topic");
    assert!(route(&mut client, "n03-none").is_none());
    server.check_healthy("N03");
}

#[test]
fn n05_unregistering_twice_is_harmless() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("N05", 1);
    let leave = |client: &mut Client, id: &str, producer: Option<&str>, consumer: Option<&str>| {
        let mut ext = vec![("clientID", id)];
        ext.extend(producer.map(|group| ("producerGroup", group)));
        ext.extend(consumer.map(|group| ("consumerGroup", group)));
        client.ok(35, &ext, b"");
    };
    client.heartbeat("n05", "N05", ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
    let members = client.ok(38, &[("consumerGroup", "n05")], b"");
    assert!(String::from_utf8_lossy(&members.body).contains("client-of-n05"));
    for _ in 0..2 {
        leave(&mut client, "client-of-n05", Some("p05"), Some("n05"));
        let left = client.call(38, &[("consumerGroup", "n05")], b"");
        assert!(!String::from_utf8_lossy(&left.body).contains("client-of-n05"), "{left:?}");
    }
    for (id, producer, consumer) in [
        ("nobody", Some("nothing"), Some("nothing")),
        ("nobody", Some(""), Some("")),
        ("nobody", None, None),
        ("", None, None),
        ("client-of-n05", None, Some("")),
    ] {
        leave(&mut client, id, producer, consumer);
    }
    // It may come back.
    client.heartbeat("n05", "N05", ("TAG", "*"), "CONSUME_FROM_FIRST_OFFSET");
    let members = client.ok(38, &[("consumerGroup", "n05")], b"");
    assert!(String::from_utf8_lossy(&members.body).contains("client-of-n05"));
    // The name server's counterpart.
    let mut namesrv = server.namesrv_client();
    let ext = [("brokerName", "n05"), ("brokerAddr", "10.5.5.5:1"), ("clusterName", "strange"), ("brokerId", "0")];
    (0..2).for_each(|_| drop(namesrv.ok(104, &ext, b"")));
    server.check_healthy("N05");
}
