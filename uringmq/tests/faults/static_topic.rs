//! Static topics: a logical queue made of several physical ones, over kill -9, from any of four shards; what another broker has is refused.
use crate::common::{Client, Pull, Server};

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
                .map(|(broker, physical, logic, end)| {
                    format!(
                        r#"{{"bname":"{broker}","endOffset":{end},"gen":0,"logicOffset":{logic},"queueId":{physical},"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}}"#
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
