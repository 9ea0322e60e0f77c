//! Static topics: a logical queue made of several physical ones, over kill -9, from any of four shards; what another broker has is asked of it.
use crate::common::{Client, Pair, Pull, Server, now_ms};

const NOT_LEADER: i32 = 501;
const OFFSET_MOVED: i32 = 21;
/// Whose pulls made it.
const GROUP: &str = "test-group";

/// 513 with the items of each logical queue: (broker, physical queue, logical offset, its end or -1).
fn create(client: &mut Client, topic: &str, epoch: i64, queues: &[&[(&str, i32, i64, i64)]]) -> i32 {
    let hosted: Vec<String> = queues
        .iter()
        .enumerate()
        .map(|(queue, items)| {
            let items: Vec<String> = items
                .iter()
                .enumerate()
                .map(|(generation, (broker, physical, logic, end))| {
                    format!(
                        r#"{{"bname":"{broker}","endOffset":{end},"gen":{generation},"logicOffset":{logic},"queueId":{physical},"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}}"#
                    )
                })
                .collect();
            format!(r#""{queue}":[{}]"#, items.join(","))
        })
        .collect();
    let body = format!(
        r#"{{"bname":"broker-a","dirty":false,"epoch":{epoch},"hostedQueues":{{{}}},"scope":"__global__","topic":"{topic}","totalQueues":{}}}"#,
        hosted.join(","),
        queues.len()
    );
    let ext = [
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "8"),
        ("writeQueueNums", "8"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    client.call(513, &ext, body.as_bytes()).code
}

fn offset(client: &mut Client, code: i32, ext: &[(&str, &str)]) -> Option<i64> {
    let answer = client.call(code, ext, b"");
    (answer.code == 0).then(|| answer.get("offset").and_then(|text| text.parse().ok()).expect("an offset"))
}

fn bounds(client: &mut Client, topic: &str) -> (Option<i64>, Option<i64>) {
    let ext = [("topic", topic), ("queueId", "0")];
    (offset(client, 31, &ext), offset(client, 30, &ext))
}

/// What a pull of logical queue 0 gives: its code, where it goes on, the bodies.
fn pull(client: &mut Client, topic: &str, from: i64) -> (i32, i64, Vec<String>) {
    let pulled = client.pull(&Pull::at(topic, 0, from));
    let bodies = pulled.messages.iter().map(|m| String::from_utf8_lossy(&m.body).into_owned()).collect();
    (pulled.code, pulled.next, bodies)
}

fn connect(server: &Server) -> Client {
    let mut client = server.client();
    client.must_succeed = false;
    client
}

fn survives(shards: usize) {
    let settings = format!("brokerName=broker-a\nshards={shards}\nflushConsumerOffsetInterval=100");
    let mut server = Server::start(&format!("static-{shards}"), &settings);
    let mut client = connect(&server);
    let topic = "mapped";
    assert_eq!(create(&mut client, topic, 1, &[&[("broker-a", 3, 0, -1)], &[("broker-a", 6, 0, -1)]]), 0);
    for n in 0..5 {
        let sent = client.sent(topic, 0, "", format!("old{n}").as_bytes());
        assert_eq!((sent.queue_id, sent.queue_offset), (0, n), "the client is told of the logical queue");
    }
    assert_eq!(pull(&mut client, topic, 0).2.len(), 5);
    // The queue goes on as another physical one, from offset 100.
    let moved: &[&[(&str, i32, i64, i64)]] =
        &[&[("broker-a", 3, 0, 5), ("broker-a", 5, 100, -1)], &[("broker-a", 6, 0, -1)]];
    assert_eq!(create(&mut client, topic, 2, moved), 0);
    assert_eq!(create(&mut client, topic, 1, moved), 1, "an older epoch");
    for n in 100..103 {
        assert_eq!(client.sent(topic, 0, "", format!("new{n}").as_bytes()).queue_offset, n);
    }
    assert_eq!(client.sent(topic, 1, "", b"other").queue_offset, 0);
    let stored =
        |client: &mut Client| offset(client, 14, &[("consumerGroup", GROUP), ("topic", topic), ("queueId", "0")]);
    for round in 0..2 {
        assert_eq!(pull(&mut client, topic, 2), (0, 5, ["old2", "old3", "old4"].map(String::from).to_vec()));
        assert_eq!(pull(&mut client, topic, 5), (OFFSET_MOVED, 100, vec![]), "round {round}");
        assert_eq!(pull(&mut client, topic, 100), (0, 103, ["new100", "new101", "new102"].map(String::from).to_vec()));
        assert_eq!(bounds(&mut client, topic), (Some(0), Some(103)));
        assert_eq!(client.commit(GROUP, topic, 0, 3).code, 0);
        assert_eq!(stored(&mut client), Some(3), "round {round}");
        if round == 0 {
            server.kill();
            server.start_again();
            client = connect(&server);
        }
    }
    assert_eq!(client.commit(GROUP, topic, 0, 102).code, 0);
    assert_eq!(stored(&mut client), Some(102), "the newer queue's offset counts");
    // Another broker takes the queue over.
    let taken: &[&[(&str, i32, i64, i64)]] = &[&[("broker-a", 5, 100, 3), ("broker-b", 0, 200, -1)]];
    assert_eq!(create(&mut client, topic, 3, taken), 0);
    assert_eq!(client.send(topic, 0, "", b"x").code, NOT_LEADER);
    assert_eq!(pull(&mut client, topic, 250).0, NOT_LEADER);
    assert_eq!(pull(&mut client, topic, 101), (0, 103, ["new101", "new102"].map(String::from).to_vec()));
    assert_eq!(bounds(&mut client, topic), (None, None));
    server.check_healthy("static topics");
}

#[test]
fn static_topics_survive_kill_9_on_one_shard() {
    survives(1);
}

#[test]
fn static_topics_survive_kill_9_on_four_shards() {
    survives(4);
}

/// A queue that moved from one broker to another: who leads it now answers for all of it.
#[test]
fn an_older_part_is_asked_of_the_broker_that_has_it() {
    let mut pair = Pair::new("static-two", "flushConsumerOffsetInterval=100", "");
    pair.slave.set("brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true", "");
    for (node, name) in [(&mut pair.master, "broker-a"), (&mut pair.slave, "broker-b")] {
        node.set("brokerName=pair", &format!("brokerName={name}"));
        node.start();
    }
    let (mut a, mut b) = (pair.master.client(), pair.slave.client());
    (a.must_succeed, b.must_succeed) = (false, false);
    let topic = "moved";
    assert_eq!(create(&mut a, topic, 1, &[&[("broker-a", 3, 0, -1)]]), 0);
    for n in 0..5 {
        assert_eq!(a.sent(topic, 0, "", format!("old{n}").as_bytes()).queue_offset, n);
    }
    assert_eq!(pull(&mut a, topic, 0).2.len(), 5);
    assert_eq!(a.commit(GROUP, topic, 0, 3).code, 0);
    let moved_ms = now_ms() + 1;
    let moved: &[&[(&str, i32, i64, i64)]] = &[&[("broker-a", 3, 0, 5), ("broker-b", 1, 100, -1)]];
    assert_eq!((create(&mut a, topic, 2, moved), create(&mut b, topic, 2, moved)), (0, 0));
    while now_ms() <= moved_ms {
        std::thread::yield_now();
    }
    assert_eq!(a.send(topic, 0, "", b"x").code, NOT_LEADER);
    for n in 100..103 {
        assert_eq!(b.sent(topic, 0, "", format!("new{n}").as_bytes()).queue_offset, n);
    }
    let old: Vec<String> = (0..5).map(|n| format!("old{n}")).collect();
    let new: Vec<String> = (100..103).map(|n| format!("new{n}")).collect();
    for round in 0..2 {
        assert_eq!(pull(&mut b, topic, 0), (0, 5, old.clone()), "round {round}");
        assert_eq!(pull(&mut b, topic, 3), (0, 5, old[3..].to_vec()));
        assert_eq!(pull(&mut b, topic, 5), (OFFSET_MOVED, 100, vec![]));
        assert_eq!(pull(&mut b, topic, 100), (0, 103, new.clone()));
        assert_eq!(bounds(&mut b, topic), (Some(0), Some(103)));
        assert_eq!(bounds(&mut a, topic), (None, None));
        assert_eq!((b.search(topic, 0, 0, "lower"), b.search(topic, 0, moved_ms, "lower")), (0, 100));
        let stored = [("consumerGroup", GROUP), ("topic", topic), ("queueId", "0")];
        assert_eq!(offset(&mut b, 14, &stored), Some(3), "as its older part's broker has it");
        let earliest = |client: &mut Client, queue: &str, more: &[(&str, &str)]| {
            let ext: Vec<(&str, &str)> = [("topic", topic), ("queueId", queue)].iter().chain(more).copied().collect();
            client.ok(32, &ext, b"").get("timestamp").map(str::to_owned)
        };
        let of_a = earliest(&mut a, "3", &[("lo", "false")]);
        assert!(of_a.is_some() && earliest(&mut b, "0", &[]) == of_a, "{of_a:?}");
        if round == 0 {
            // Without it the newer part is served, and of the older one it is said why not.
            assert!(pair.master.stop().success());
            let pulled = b.pull(&Pull::at(topic, 0, 0));
            assert!(pulled.code == 1 && pulled.remark.contains("broker broker-a"), "{pulled:?}");
            assert_eq!(pull(&mut b, topic, 100), (0, 103, new.clone()));
            pair.master.start();
            a = pair.master.client();
            a.must_succeed = false;
        }
    }
}
