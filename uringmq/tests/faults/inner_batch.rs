//! Topics with queue.type=BatchCQ: records of many messages keep their numbers and are given whole, through stops, kill -9, and the loss of
//! queue files, which are built again from the log.
use crate::common::{Client, Message, Pop, Pull, Sent, Server, batch_of, props, send_ext};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TOPIC: &str = "Batches";
/// Ten entries a file.
const SETTINGS: &str =
    "mapperFileSizeBatchConsumeQueue=460\nmappedFileSizeConsumeQueue=400\nflushConsumerOffsetInterval=100";
const ILLEGAL: i32 = 13;
const PATIENCE: Duration = Duration::from_secs(60);

/// What was stored in a queue: each record's first offset and number of messages.
type Stored = Vec<(i64, usize)>;

/// Batches of 1 to 7 messages, and messages alone between them.
fn fill(client: &mut Client, queue: i32, stored: &mut Stored, records: usize) {
    for _ in 0..records {
        let next = stored.last().map_or(0, |(at, count)| at + *count as i64);
        let n = stored.len();
        let (at, count) = match n % 4 {
            3 => (client.sent(TOPIC, queue, "", format!("q{queue}-{n}").as_bytes()).queue_offset, 1),
            _ => (client.send_inner_batch(TOPIC, queue, &format!("q{queue}-{n}"), 1 + n % 7), 1 + n % 7),
        };
        assert_eq!(at, next, "record {n} of queue {queue}");
        stored.push((at, count));
    }
}

fn count_of(message: &Message) -> usize {
    message.prop("INNER_NUM").map_or(1, |text| text.parse().expect("a number"))
}

/// All records of a queue from its first offset on, as a consumer gets them.
fn read_all(client: &mut Client, topic: &str, queue: i32) -> Vec<Message> {
    let (min, max) = client.bounds(topic, queue);
    let mut all = Vec::new();
    let mut pull = Pull { count: 10, ..Pull::at(topic, queue, min) };
    while pull.offset < max {
        let pulled = client.pull(&pull);
        match pulled.code {
            0 => {}
            20 | 21 => all.clear(), // more has been removed meanwhile
            _ => panic!("{pulled:?}"),
        }
        all.extend(pulled.messages);
        assert!(pulled.next > pull.offset);
        pull.offset = pulled.next;
    }
    assert_eq!(pull.offset, max);
    all
}

fn check(client: &mut Client, queue: i32, stored: &Stored) {
    let end = stored.last().map_or(0, |(at, count)| at + *count as i64);
    let begun = Instant::now();
    while client.bounds(TOPIC, queue).1 < end {
        assert!(begun.elapsed() < PATIENCE, "queue {queue} ends at {:?}, not at {end}", client.bounds(TOPIC, queue));
        std::thread::yield_now();
    }
    assert_eq!(client.bounds(TOPIC, queue), (0, end));
    let all = read_all(client, TOPIC, queue);
    let found: Stored = all.iter().map(|m| (m.queue_offset, count_of(m))).collect();
    assert_eq!(&found, stored, "queue {queue}");
    for (n, message) in all.iter().enumerate().filter(|(_, m)| m.prop("INNER_NUM").is_some()) {
        assert_eq!(message.sys_flag & 0xC0, 0xC0);
        assert_eq!(message.prop("INNER_BASE"), Some(&*message.queue_offset.to_string()));
        assert!(String::from_utf8_lossy(&message.body).contains(&format!("q{queue}-{n}/0")), "record {n}");
    }
    for (at, count) in stored.iter().filter(|(_, count)| *count > 2) {
        let inside = client.pull(&Pull { count: 1, ..Pull::at(TOPIC, queue, at + 1) });
        let got: Vec<i64> = inside.messages.iter().map(|m| m.queue_offset).collect();
        assert_eq!((got, inside.next), (vec![*at], at + *count as i64), "from inside of a record");
    }
}

fn survives(clean: bool, shards: usize) {
    let mut server = Server::start(&format!("inner-batch-{clean}-{shards}"), &format!("{SETTINGS}\nshards={shards}"));
    let mut client = server.client();
    client.create_batch_topic(TOPIC, "2");
    let mut stored = [Stored::new(), Stored::new()];
    for _ in 0..3 {
        for (queue, stored) in (0..).zip(&mut stored) {
            fill(&mut client, queue, stored, 25);
            check(&mut client, queue, stored);
        }
        match clean {
            true => assert!(server.stop().success()),
            false => server.kill(),
        }
        server.start_again();
        client = server.client();
        (0..).zip(&stored).for_each(|(queue, stored)| check(&mut client, queue, stored));
    }
    assert!(server.store().join("batchconsumequeue").join(TOPIC).join("1").is_dir());
    assert!(!server.store().join("consumequeue").join(TOPIC).exists());
    server.check_healthy("restarts with batch queues");
}

#[test]
fn batches_survive_a_stop() {
    survives(true, 1);
    survives(true, 2);
}

#[test]
fn batches_survive_kill_9() {
    survives(false, 1);
    survives(false, 2);
}

/// After kill -9 and after a stop: all queues of one kind gone while those of the other stand, and single files gone, cut and zeroed.
#[test]
fn lost_and_damaged_queue_files_are_built_again() {
    for shards in [1, 2] {
        let mut server = Server::start(&format!("inner-batch-lost-{shards}"), &format!("{SETTINGS}\nshards={shards}"));
        let mut client = server.client();
        client.create_batch_topic(TOPIC, "1");
        client.create_topic("Plain", 1);
        let (mut stored, mut plain) = (Stored::new(), 0);
        let damages: [fn(&Path); 6] = [
            |store| fs::remove_dir_all(store.join("batchconsumequeue")).expect("the batch queues"),
            |store| fs::remove_dir_all(store.join("consumequeue")).expect("the plain queues"),
            |store| fs::remove_file(first_file(store)).expect("the first file"),
            |store| {
                let file = OpenOptions::new().write(true).open(first_file(store)).expect("the first file");
                file.set_len(100).expect("cut");
            },
            |store| {
                let path = last_file(store);
                let bytes = fs::metadata(&path).expect("a file").len() as usize;
                fs::write(path, vec![0; bytes]).expect("zeros");
            },
            |store| fs::remove_dir_all(store.join("batchconsumequeue").join(TOPIC)).expect("the topic's queues"),
        ];
        for (n, damage) in damages.iter().enumerate() {
            for clean in [false, true] {
                fill(&mut client, 0, &mut stored, 13);
                client.send_many("Plain", 0, "", 30);
                plain += 30;
                match clean {
                    true => assert!(server.stop().success()),
                    false => {
                        // What is synced comes by the checkpoint, not by the walk.
                        assert!(server.stop().success());
                        server.start_again();
                        client = server.client();
                        fill(&mut client, 0, &mut stored, 2);
                        server.kill();
                    }
                }
                // The last file of a queue may be lost after a stop only: then it is known where the queue ended.
                if clean || n != 4 {
                    damage(&server.store());
                }
                server.start_again();
                client = server.client();
                check(&mut client, 0, &stored);
                assert_eq!(client.pull_all("Plain", 0, 0, plain).len(), plain, "damage {n}, clean {clean}");
            }
        }
        server.check_healthy("lost batch queues");
    }
}

fn queue_files(store: &Path) -> Vec<PathBuf> {
    let dir = store.join("batchconsumequeue").join(TOPIC).join("0");
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).expect("a queue").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

fn first_file(store: &Path) -> PathBuf {
    queue_files(store).swap_remove(0)
}

fn last_file(store: &Path) -> PathBuf {
    queue_files(store).pop().expect("a file")
}

/// Old segments go: the queue begins at a record that is there, whole, also after the next start.
#[test]
fn a_queue_begins_at_a_whole_record_when_old_segments_go() {
    for shards in [1, 2] {
        let settings = format!(
            "{SETTINGS}\nshards={shards}\nmappedFileSizeCommitLog=1048576\ncommitLogBytesMax=3145728\ncleanResourceInterval=100\n\
             deleteCommitLogFilesInterval=0"
        );
        let mut server = Server::start(&format!("inner-batch-retention-{shards}"), &settings);
        let mut client = server.client();
        client.create_batch_topic(TOPIC, "1");
        client.create_topic("Filler", 1);
        let mut stored = Stored::new();
        while client.bounds(TOPIC, 0).0 == 0 {
            fill(&mut client, 0, &mut stored, 5);
            client.sent("Filler", 0, "", &vec![b'x'; 100_000]);
            assert!(stored.len() < 5000, "nothing is removed");
        }
        for clean in [true, false] {
            match clean {
                true => assert!(server.stop().success()),
                false => server.kill(),
            }
            server.start_again();
            client = server.client();
            let mut all = read_all(&mut client, TOPIC, 0);
            while client.bounds(TOPIC, 0).0 != all[0].queue_offset {
                all = read_all(&mut client, TOPIC, 0);
            }
            let first = stored.iter().position(|(at, _)| *at == all[0].queue_offset).expect("a record's offset");
            assert!(first > 0);
            let found: Stored = all.iter().map(|m| (m.queue_offset, count_of(m))).collect();
            assert_eq!(found, stored[first..]);
            let too_small = client.pull(&Pull::at(TOPIC, 0, 0).now());
            assert_eq!((too_small.code, too_small.next), (21, too_small.min));
            assert!(stored.iter().any(|(at, _)| *at == too_small.min), "inside of a record: {}", too_small.min);
            fill(&mut client, 0, &mut stored, 3);
        }
        server.check_healthy("retention with batch queues");
    }
}

/// A topic deleted and made again, with queues of the other kind, begins at 0 and has nothing of before, kill -9 or not.
#[test]
fn a_deleted_topic_may_come_back_with_the_other_kind_of_queues() {
    for shards in [1, 2] {
        let mut server =
            Server::start(&format!("inner-batch-delete-{shards}"), &format!("{SETTINGS}\nshards={shards}"));
        let mut client = server.client();
        client.create_batch_topic(TOPIC, "1");
        fill(&mut client, 0, &mut Stored::new(), 12);
        client.delete_topic(TOPIC);
        let (batch, plain) = (server.store().join("batchconsumequeue"), server.store().join("consumequeue"));
        assert!(!batch.join(TOPIC).exists());
        client.create_topic(TOPIC, 1);
        client.send_many(TOPIC, 0, "", 7);
        server.kill();
        server.start_again();
        client = server.client();
        assert_eq!(client.pull_all(TOPIC, 0, 0, 7).len(), 7);
        assert!(!batch.join(TOPIC).exists() && plain.join(TOPIC).exists());
        client.delete_topic(TOPIC);
        client.create_batch_topic(TOPIC, "1");
        let mut stored = Stored::new();
        fill(&mut client, 0, &mut stored, 12);
        server.kill();
        server.start_again();
        check(&mut server.client(), 0, &stored);
        assert!(batch.join(TOPIC).exists() && !plain.join(TOPIC).exists());
        server.check_healthy("a topic of another kind");
    }
}

/// A group that pops advances by records, and gets one that it does not acknowledge again, whole.
#[test]
fn pops_advance_by_whole_records() {
    for shards in [1, 2] {
        let mut server = Server::start(&format!("inner-batch-pop-{shards}"), &format!("{SETTINGS}\nshards={shards}"));
        let mut client = server.client();
        client.create_batch_topic(TOPIC, "1");
        for n in 0..6 {
            client.send_inner_batch(TOPIC, 0, &format!("b{n}"), 5);
        }
        let mut offsets = Vec::new();
        for _ in 0..3 {
            let pop = Pop { count: 9, ..Pop::of(TOPIC, "poppers").held() };
            let answer = client.pop(&pop);
            assert_eq!(answer.messages.len(), 1, "two records are more than is wanted");
            offsets.push(answer.messages[0].message.queue_offset);
            client.acked("poppers", &answer.messages[0]);
        }
        assert_eq!(offsets, [0, 5, 10]);
        let short = Pop { count: 5, invisible_ms: 1000, ..Pop::of(TOPIC, "poppers").held() };
        let lost = client.pop(&short);
        assert_eq!(lost.messages[0].message.queue_offset, 15);
        server.kill();
        server.start_again();
        client = server.client();
        let rest = client.pop_all(&Pop { count: 32, invisible_ms: 60_000, ..Pop::of(TOPIC, "poppers").held() }, 3);
        let mut bodies: Vec<String> = rest.iter().map(|p| p.body()).collect();
        bodies.sort();
        for (body, key) in bodies.iter().zip(["b3/0", "b4/0", "b5/0"]) {
            assert!(body.contains(key), "{bodies:?}");
        }
        server.check_healthy("pops of batches");
    }
}

#[test]
fn what_is_no_inner_batch_is_refused() {
    let server = Server::start("inner-batch-refused", &format!("{SETTINGS}\nshards=2"));
    let mut client = server.client();
    client.create_batch_topic(TOPIC, "1");
    client.create_topic("Plain", 1);
    let send = |client: &mut Client, topic: &str, flag: &str, properties: &[(&str, &str)]| -> Sent {
        let text = props(properties);
        let mut ext = send_ext(topic, "0", &text, "0");
        ext.iter_mut().filter(|(name, _)| *name == "f").for_each(|(_, value)| *value = flag);
        let answer = client.call(310, &ext, b"body");
        Sent {
            code: answer.code,
            remark: answer.remark.unwrap_or_default(),
            queue_offset: 0,
            queue_id: 0,
            msg_id: String::new(),
        }
    };
    for (topic, flag, properties, what) in [
        ("Plain", "128", &[("INNER_NUM", "2")][..], "queue.type"),
        ("Plain", "0", &[("INNER_NUM", "2")], "INNER_NUM"),
        (TOPIC, "0", &[("INNER_NUM", "2")], "INNER_NUM"),
        (TOPIC, "128", &[("INNER_NUM", "0")], "INNER_NUM"),
        (TOPIC, "128", &[("INNER_NUM", "32768")], "32767"),
        (TOPIC, "128", &[("INNER_NUM", "two")], "INNER_NUM"),
        (TOPIC, "128", &[("INNER_NUM", "2"), ("DELAY", "3")], "delayed"),
        (TOPIC, "128", &[("INNER_NUM", "2"), ("TIMER_DELAY_SEC", "3")], "delayed"),
        (TOPIC, "128", &[("INNER_NUM", "2"), ("TRAN_MSG", "true")], "half"),
    ] {
        let sent = send(&mut client, topic, flag, properties);
        assert_eq!(sent.code, ILLEGAL, "{properties:?}: {}", sent.remark);
        assert!(sent.remark.contains(what), "{properties:?}: {}", sent.remark);
    }
    let too_many: Vec<(&[u8], &str)> = vec![(b"x", ""); 32_768];
    let mut ext = send_ext(TOPIC, "0", "UNIQ_KEY\u{1}k\u{2}", "0");
    ext.iter_mut().filter(|(name, _)| *name == "m").for_each(|(_, value)| *value = "true");
    assert_eq!(client.call(320, &ext, &batch_of(&too_many)).code, ILLEGAL);
    assert_eq!(client.call(320, &ext, &batch_of(&too_many[1..])).code, 0, "as many as the entry's field can say");
    client.sent(TOPIC, 0, "", b"behind");
    assert_eq!(client.bounds(TOPIC, 0), (0, 32_768));
    assert_eq!(client.bounds("Plain", 0), (0, 0));
    server.check_healthy("refused batches");
}
