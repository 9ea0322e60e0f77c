//! A name server seen from its port: registration, routes, configuration, and what must not disturb it.
mod common;
use common::*;
use uringmq_namesrv::requests::ROWS;
use uringmq_proto::codes::request::*;

const STRICT: &str = r#"{"brokerDatas":[{"brokerAddrs":{"0":"m:1"},"brokerName":"b","cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}"#;

#[test]
fn routes_in_both_styles_of_json() {
    let server = Server::start("route", "");
    let mut client = server.client();
    let mut broker_conn = server.client();
    broker_conn.register("0", "m:1", &body(1, &["T", "T2"]));
    let bare = STRICT.replace(r#"{"0":"m:1"}"#, r#"{0:"m:1"}"#);
    for (version, accept, want) in [
        (401, "", STRICT),
        (479, "", STRICT),
        (400, "", &bare),
        (317, "", &bare),
        (317, "true", STRICT),
        (400, "false", &bare),
    ] {
        client.version = version;
        let ext = [("topic", "T"), ("acceptStandardJsonOnly", accept)];
        let answer = client.ok(GET_ROUTEINFO_BY_TOPIC, if accept.is_empty() { &ext[..1] } else { &ext }, b"");
        assert_eq!(String::from_utf8(answer.body).unwrap(), want, "version {version}, flag {accept}");
    }
    let answer = client.call(GET_ROUTEINFO_BY_TOPIC, &[("topic", "none")], b"");
    assert_eq!(answer.code, 17);
    let remark = answer.remark.unwrap();
    assert!(remark.starts_with("No topic route info in name server for the topic: none\nSee https://"), "{remark}");
    let info = client.ok(GET_BROKER_CLUSTER_INFO, &[], b"");
    let want = r#"{"brokerAddrTable":{"b":{"brokerAddrs":{0:"m:1"},"brokerName":"b","cluster":"c","enableActingMaster":false}},"clusterAddrTable":{"c":["b"]}}"#;
    assert_eq!(String::from_utf8(info.body).unwrap(), want, "bare keys for everybody");
    let group = client.ok(GET_BROKER_MEMBER_GROUP, &[("clusterName", "c"), ("brokerName", "b")], b"");
    assert_eq!(group.body, br#"{"brokerMemberGroup":{"brokerAddrs":{0:"m:1"},"brokerName":"b","cluster":"c"}}"#);
    server.forget();
}

#[test]
fn registrations_of_all_forms() {
    let server = Server::start("forms", "");
    let mut client = server.client();
    let topics = body(3, &["T", "U"]);
    let send = |client: &mut Client, addr: &str, extra: &[(&'static str, String)], bytes: &[u8]| {
        let mut ext = broker("0", addr);
        ext.extend(extra.iter().map(|(key, value)| (*key, value.as_str())));
        client.call(REGISTER_BROKER, &ext, bytes)
    };
    let crc = |bytes: &[u8]| uringmq_proto::record::body_crc(bytes).to_string();
    let compressed = topics.encode_compressed(479);
    let flags = [("compressed", "true".to_owned()), ("bodyCrc32", crc(&compressed))];
    assert_eq!(send(&mut client, "m:1", &flags, &compressed).code, 0);
    assert_eq!(client.route("T").as_deref(), Some(STRICT));
    let plain = topics.encode_plain();
    let refused = send(&mut client, "m:1", &[("bodyCrc32", "1".to_owned())], &plain);
    assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("crc32 not match")));
    let refused = send(&mut client, "m:1", &flags[..1], &plain);
    assert_eq!(refused.code, 1);
    assert!(refused.remark.unwrap().contains("inflated"));
    // A very old broker sends the topics alone.
    client.version = 36;
    let old = serde_json::to_vec(&body(9, &["OLD", "OLD2"]).topic_config_serialize_wrapper).unwrap();
    assert_eq!(send(&mut client, "m:1", &[], &old).code, 0);
    client.version = 479;
    assert!(client.route("OLD").is_some());
    // No body refreshes with version 0.
    assert_eq!(send(&mut client, "m:1", &[], b"").code, 0);
    let version = client.ok(QUERY_DATA_VERSION, &broker("0", "m:1"), br#"{"counter":0,"timestamp":0}"#);
    assert_eq!(version.get("changed"), Some("false"));
    assert_eq!(version.body, br#"{"counter":0,"stateVersion":0,"timestamp":0}"#);
    let version = client.ok(QUERY_DATA_VERSION, &broker("0", "m:1"), br#"{"counter":1,"timestamp":0}"#);
    assert_eq!(version.get("changed"), Some("true"));
    let version = client.ok(QUERY_DATA_VERSION, &broker("0", "nobody:1"), br#"{"counter":1}"#);
    assert_eq!((version.get("changed"), version.body.len()), (Some("true"), 0));
    client.ok(BROKER_HEARTBEAT, &broker("0", "m:1"), b"");
    server.forget();
}

/// Known fault N01, and that a dead broker vanishes with its connection.
#[test]
fn the_end_of_an_old_connection_does_not_wipe_a_newer_registration() {
    let server = Server::start("n01", "");
    let mut client = server.client();
    for newer in [("0", "m:1"), ("1", "m:1"), ("1", "m:2")] {
        let (mut first, mut second) = (server.client(), server.client());
        first.register("0", "m:1", &body(1, &["T", "U"]));
        second.register(newer.0, newer.1, &body(1, &["T", "U"]));
        first.oneway(UNREGISTER_BROKER, &broker("0", "m:1"));
        drop(first);
        // A full turn of the server after the end of the first: what it does at a connection's end is done.
        for _ in 0..20 {
            drop(server.client());
            client.ok(GET_BROKER_CLUSTER_INFO, &[], b"");
            assert!(client.route("T").is_some(), "{newer:?}");
        }
        drop(second);
        while client.route("T").is_some() {
            std::thread::yield_now();
        }
    }
    server.forget();
}

/// Known fault N03.
#[test]
fn one_topic_first_is_taken_and_the_whole_table_too() {
    let server = Server::start("n03", "");
    let mut client = server.client();
    client.register("0", "m:1", &body(5, &["T2"]));
    assert!(client.route("T2").is_some(), "a broker that has one topic");
    let version = client.ok(QUERY_DATA_VERSION, &broker("0", "m:1"), br#"{"counter":5,"timestamp":7}"#);
    assert_eq!(version.get("changed"), Some("true"), "so that the whole table is sent");
    client.register("0", "m:1", &body(5, &["T1", "T2", "T3"]));
    for topic in ["T1", "T2", "T3"] {
        assert!(client.route(topic).is_some(), "{topic}");
    }
    server.forget();
}

#[test]
fn a_silent_broker_is_cut_off_and_its_group_told() {
    let server = Server::start("expiry", "scanNotActiveBrokerInterval=20\nnotifyMinBrokerIdChanged=true\n");
    let (mut master, mut slave) = (server.client(), server.client());
    let acting = |id: &'static str, addr: &'static str, timeout: &'static str| {
        let mut ext = broker(id, addr);
        ext.extend([("enableActingMaster", "true"), ("heartbeatTimeoutMillis", timeout)]);
        ext
    };
    let topics = body(1, &["T", "U"]).encode_plain();
    master.ok(REGISTER_BROKER, &acting("0", "m:1", "60"), &topics);
    let answer = slave.ok(REGISTER_BROKER, &acting("1", "s:1", "60000"), &topics);
    assert_eq!((answer.get("masterAddr"), answer.get("haServerAddr")), (Some("m:1"), Some("ha:1")));
    let told = slave.receive().expect("a notice");
    assert_eq!((told.code, told.flag), (NOTIFY_MIN_BROKER_ID_CHANGE, 2));
    assert_eq!((told.get("minBrokerId"), told.get("minBrokerAddr")), (Some("1"), Some("s:1")));
    assert_eq!((told.get("brokerName"), told.get("offlineBrokerAddr")), (Some("b"), Some("m:1")));
    assert!(master.receive().is_none(), "its connection was closed");
    assert!(slave.route("T").unwrap().contains("\"perm\":4"));
    server.forget();
}

#[test]
fn key_value_table_is_on_disk_before_the_answer() {
    let server = Server::start("kv", "");
    let mut client = server.client();
    let long = "x".repeat(1 << 20);
    let entry = |namespace: &'static str, key: &'static str| vec![("namespace", namespace), ("key", key)];
    let put = |client: &mut Client, namespace, key, value: &str| {
        let mut ext = entry(namespace, key);
        ext.push(("value", value));
        client.call(PUT_KV_CONFIG, &ext, b"")
    };
    assert_eq!(put(&mut client, "ns", "k", "v;:\u{e9}").code, 0);
    let file = std::fs::read_to_string(server.dir.join("kv.json")).unwrap();
    assert_eq!(file, r#"{"configTable":{"ns":{"k":"v;:é"}}}"#);
    assert_eq!(put(&mut client, "ns", "long", &long).code, 0);
    assert_eq!(put(&mut client, "ORDER_TOPIC_CONFIG", "T", "broker-a:x;;:").code, 0);
    // Known fault A04: no entry without a key.
    for (namespace, key) in [("ns", ""), ("", "k")] {
        let refused = put(&mut client, namespace, key, "v");
        assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("namespace or key is null")));
    }
    let refused = client.call(PUT_KV_CONFIG, &[("namespace", "ns"), ("value", "v")], b"");
    assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("header field key is missing")));
    assert_eq!(client.ok(GET_KV_CONFIG, &entry("ns", "k"), b"").get("value"), Some("v;:\u{e9}"));
    let (dir, status) = (server.dir.clone(), server.stop());
    assert_eq!(status, 0);

    let server = Server::start("kv", "");
    assert_eq!(server.dir, dir);
    let mut client = server.client();
    assert_eq!(client.ok(GET_KV_CONFIG, &entry("ns", "long"), b"").get("value").map(str::len), Some(1 << 20));
    client.ok(DELETE_KV_CONFIG, &entry("ns", "long"), b"");
    client.ok(DELETE_KV_CONFIG, &entry("ns", "long"), b"");
    assert!(std::fs::metadata(dir.join("kv.json")).unwrap().len() < 1000);
    let missing = client.call(GET_KV_CONFIG, &entry("ns", "long"), b"");
    assert_eq!((missing.code, missing.remark.as_deref()), (22, Some("No config item, Namespace: ns Key: long")));
    let list = client.ok(GET_KVLIST_BY_NAMESPACE, &[("namespace", "ns")], b"");
    assert_eq!(String::from_utf8(list.body).unwrap(), "{\"table\":{\"k\":\"v;:\u{e9}\"}}");
    assert_eq!(client.call(GET_KVLIST_BY_NAMESPACE, &[("namespace", "none")], b"").code, 22);
    // A registering broker is told the order configuration.
    let answer = client.register("0", "m:1", &body(1, &["T", "U"]));
    assert_eq!(answer.body, br#"{"table":{"T":"broker-a:x;;:"}}"#);
    drop(client);
    assert_eq!(server.stop(), 0);

    // A damaged file: the one before is used.
    std::fs::write(dir.join("kv.json"), "\0\0\0").unwrap();
    let server = Server::start("kv", "");
    assert_eq!(server.client().ok(GET_KV_CONFIG, &entry("ns", "long"), b"").get("value").map(str::len), Some(1 << 20));
    server.forget();
}

#[test]
fn configuration_at_run_time() {
    let server = Server::start("config", "myKey=1\n");
    let mut client = server.client();
    client.register("0", "m:1", &body(1, &["T", "U"]));
    client.ok(PUT_KV_CONFIG, &[("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T"), ("value", "b:4")], b"");
    assert!(!client.route("T").unwrap().contains("orderTopicConf"));
    let text = |client: &mut Client| String::from_utf8(client.ok(GET_NAMESRV_CONFIG, &[], b"").body).unwrap();
    let before = text(&mut client);
    assert!(before.contains("\norderMessageEnable=false\n") && before.contains("\nmyKey=1\n"), "{before}");
    for key in ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"] {
        let refused = client.call(UPDATE_NAMESRV_CONFIG, &[], format!("orderMessageEnable=true\n{key}=/x").as_bytes());
        assert_eq!(
            (refused.code, refused.remark.as_deref()),
            (16, Some("Can not update config in black list.")),
            "{key}"
        );
    }
    for (body, remark) in [
        (&b"a=\\u1"[..], "string2Properties error"),
        (b"a=\xff\xfe", "string2Properties error"),
        (b"enableTopicList=maybe", "enableTopicList = 'maybe' is neither true nor false"),
        (b"", "the request body is missing"),
    ] {
        let refused = client.call(UPDATE_NAMESRV_CONFIG, &[], body);
        assert_eq!((refused.code, refused.remark.as_deref()), (1, Some(remark)));
    }
    assert_eq!(text(&mut client), before, "nothing was applied");
    client.ok(
        UPDATE_NAMESRV_CONFIG,
        &[],
        b"orderMessageEnable=true\nenableTopicList=false\nenableAllTopicList=false\nnobody=1",
    );
    assert!(client.route("T").unwrap().contains("\"orderTopicConf\":\"b:4\""));
    assert!(!client.route("U").unwrap().contains("orderTopicConf"), "left out where there is none");
    let file = std::fs::read_to_string(server.dir.join("n.conf")).unwrap();
    assert_eq!(file, text(&mut client));
    assert!(file.contains("enableTopicList=false\n") && !file.contains("nobody"), "{file}");
    for code in [GET_TOPICS_BY_CLUSTER, GET_UNIT_TOPIC_LIST, GET_ALL_TOPIC_LIST_FROM_NAMESERVER] {
        let refused = client.call(code, &[("cluster", "c")], b"");
        assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("disable")));
    }
    client.ok(UPDATE_NAMESRV_CONFIG, &[], b"needWaitForService=true\nwaitSecondsForService=1000");
    let refused = client.call(GET_ROUTEINFO_BY_TOPIC, &[("topic", "T")], b"");
    assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("name server not ready")));
    server.forget();
}

#[test]
fn permissions_topics_and_lists() {
    let server = Server::start("topics", "");
    let mut client = server.client();
    client.register("0", "m:1", &body(1, &["T", "U"]));
    assert_eq!(client.ok(WIPE_WRITE_PERM_OF_BROKER, &[("brokerName", "b")], b"").get("wipeTopicCount"), Some("2"));
    client.register("0", "m:1", &body(1, &["T", "U"]));
    assert!(client.route("T").unwrap().contains("\"perm\":4"), "survives a registration");
    assert_eq!(client.ok(ADD_WRITE_PERM_OF_BROKER, &[("brokerName", "b")], b"").get("addTopicCount"), Some("2"));
    assert!(client.route("T").unwrap().contains("\"perm\":6"));
    let route = r#"{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":3}]}"#;
    client.ok(REGISTER_TOPIC_IN_NAMESRV, &[("topic", "H")], route.as_bytes());
    assert!(client.route("H").unwrap().contains("\"readQueueNums\":3"));
    let list =
        |client: &mut Client, code, ext: &[(&str, &str)]| String::from_utf8(client.ok(code, ext, b"").body).unwrap();
    assert_eq!(list(&mut client, GET_ALL_TOPIC_LIST_FROM_NAMESERVER, &[]), r#"{"topicList":["H","T","U"]}"#);
    assert_eq!(list(&mut client, GET_TOPICS_BY_CLUSTER, &[("cluster", "c")]), r#"{"topicList":["H","T","U"]}"#);
    assert_eq!(list(&mut client, GET_TOPICS_BY_CLUSTER, &[("cluster", "x")]), r#"{"topicList":[]}"#);
    assert_eq!(list(&mut client, GET_SYSTEM_TOPIC_LIST_FROM_NS, &[]), r#"{"brokerAddr":"m:1","topicList":["c","b"]}"#);
    assert_eq!(list(&mut client, GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, &[]), r#"{"topicList":[]}"#);
    client.ok(DELETE_TOPIC_IN_NAMESRV, &[("topic", "H"), ("clusterName", "c")], b"");
    client.ok(DELETE_TOPIC_IN_NAMESRV, &[("topic", "never was")], b"");
    assert_eq!(client.route("H"), None);
    let zone = |zone| [("topic", "T"), ("__ZONE_MODE", "true"), ("__ZONE_NAME", zone)];
    assert!(client.ok(GET_ROUTEINFO_BY_TOPIC, &zone("far"), b"").body.starts_with(br#"{"brokerDatas":[]"#));
    let mut ext = broker("0", "m:1");
    ext.push(("__ZONE_NAME", "Near"));
    client.ok(REGISTER_BROKER, &ext, &body(1, &["T", "U"]).encode_plain());
    let near = client.ok(GET_ROUTEINFO_BY_TOPIC, &zone("near"), b"");
    assert!(String::from_utf8(near.body).unwrap().contains("\"zoneName\":\"Near\""));
    server.forget();
}

/// Known fault P06.
#[test]
fn bodies_that_are_none_get_an_answer() {
    let server = Server::start("p06", "");
    let mut client = server.client();
    client.register("0", "m:1", &body(1, &["T", "U"]));
    let ext = broker("0", "m:1");
    let topic = [("topic", "T")];
    let cases = [(REGISTER_TOPIC_IN_NAMESRV, &topic[..]), (QUERY_DATA_VERSION, &ext[..]), (REGISTER_BROKER, &ext[..])];
    for (code, ext) in cases {
        for body in ["", "null", "[]", "7", "\"x\"", "{", "{\"a\":", "\0\0", "{}"] {
            let answer = client.call(code, ext, body.as_bytes());
            // An empty object lacks nothing that a registration needs, and no body is a registration's refreshment.
            let fine = body == "{}" || (body.is_empty() && code == REGISTER_BROKER);
            assert_eq!(answer.code, i32::from(!fine), "code {code}, body {body:?}: {:?}", answer.remark);
            if !fine {
                let remark = answer.remark.unwrap();
                assert!(remark.contains("body") && !remark.contains("panic"), "{remark}");
            }
        }
    }
    assert!(client.route("T").is_some());
    server.forget();
}

/// Known fault P08: every code with fields missing, unreadable, extreme and unknown.
#[test]
fn header_fields_that_cannot_be_read_are_named() {
    let server = Server::start("p08", "");
    let mut client = server.client();
    let fields = [
        "namespace",
        "key",
        "value",
        "brokerName",
        "brokerAddr",
        "clusterName",
        "haServerAddr",
        "brokerId",
        "topic",
        "cluster",
        "heartbeatTimeoutMillis",
        "enableActingMaster",
        "compressed",
        "bodyCrc32",
        "acceptStandardJsonOnly",
        "epoch",
        "maxOffset",
    ];
    for row in ROWS {
        let bare = client.call(row.code, &[], b"{}");
        if bare.code != 0 {
            let remark = bare.remark.unwrap_or_default();
            assert!(
                remark.starts_with("header field ") || remark.contains("config") || remark.contains("body"),
                "{row:?}: {remark}"
            );
        }
        for value in ["", "abc", "-1", "9223372036854775807", "9223372036854775808", "maybe", "\u{0}", "１"] {
            for odd in fields {
                let ext: Vec<(&str, &str)> =
                    fields.iter().map(|field| (*field, if *field == odd { value } else { plain(field) })).collect();
                let answer = client.call(row.code, &ext, b"{}");
                assert!(
                    answer.code == 0 || answer.remark.is_some_and(|remark| !remark.is_empty()),
                    "{row:?} {odd}={value}"
                );
            }
        }
        let ext: Vec<_> = fields.iter().map(|field| (*field, plain(field))).chain([("who", "knows")]).collect();
        let answer = client.call(row.code, &ext, b"{}");
        assert_ne!(answer.code, 3, "{row:?}");
    }
    let named = client.call(
        REGISTER_BROKER,
        &[("brokerName", "b"), ("brokerAddr", "a"), ("clusterName", "c"), ("brokerId", "x")],
        b"",
    );
    let remark = named.remark.unwrap();
    assert!(remark.contains("brokerId") && remark.contains("'x'"), "{remark}");
    let mut ext = broker("0", "m:1");
    ext[0].1 = " ";
    let refused = client.call(REGISTER_BROKER, &ext, b"");
    assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("header field brokerName is empty")));
    server.forget();
}

/// A value that every request can read.
fn plain(field: &str) -> &'static str {
    match field {
        "brokerId" | "heartbeatTimeoutMillis" | "bodyCrc32" | "epoch" | "maxOffset" => "0",
        "enableActingMaster" | "compressed" | "acceptStandardJsonOnly" => "false",
        _ => "some",
    }
}

/// Known fault P01 and what else a stranger sends: only that connection ends.
#[test]
fn garbage_ends_its_connection_only() {
    let server = Server::start("p01", "");
    let mut client = server.client();
    client.register("0", "m:1", &body(1, &["T", "U"]));
    let header = |kind: u8, text: &str, claimed: usize| {
        let mut frame = ((4 + text.len()) as u32).to_be_bytes().to_vec();
        frame.push(kind);
        frame.extend_from_slice(&(claimed as u32).to_be_bytes()[1..]);
        frame.extend_from_slice(text.as_bytes());
        frame
    };
    let cases = [
        vec![0; 16],
        [&[0, 0, 0, 2][..], &[1; 14]].concat(),
        header(7, "{}__________", 2),
        header(0, "{}__________", 5000),
        header(0, "no json here", 12),
        header(0, "[1,2,3,4,5,6]", 13),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3, 0],
    ];
    for bytes in cases {
        let mut stranger = server.client();
        stranger.raw(&bytes);
        assert!(stranger.receive().is_none(), "{bytes:?}");
        assert!(client.route("T").is_some());
    }
    let answer = client.call(424242, &[], b"");
    assert_eq!((answer.code, answer.remark.as_deref()), (3, Some(" request type 424242 not supported")));
    // Nothing is ever answered to a one-way request: the next answer is that of the next call.
    for code in [GET_ROUTEINFO_BY_TOPIC, PUT_KV_CONFIG, 424242, GET_NAMESRV_CONFIG] {
        client.oneway(code, &[("topic", "none"), ("namespace", "n"), ("key", "k"), ("value", "v")]);
    }
    assert_eq!(client.ok(GET_KV_CONFIG, &[("namespace", "n"), ("key", "k")], b"").get("value"), Some("v"));
    server.forget();
}

#[test]
fn every_code_of_a_name_server_is_in_the_table() {
    let served: Vec<i32> = ROWS.iter().map(|row| row.code).collect();
    let known = [
        100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901,
        904,
    ];
    assert_eq!(served.len(), known.len());
    assert!(known.iter().all(|code| served.contains(code)));
}
