//! What is stored, and what reading must not store: S07, S08, S09, S12, S14, S15, S16.
use crate::common::{Client, Pull, Server, Shared, props};
use std::path::{Path, PathBuf};
use uringmq_proto::codes::response as code;

static SERVER: Shared = Shared::new("faults-store", "shards=2");

#[test]
fn s07_batch_properties_without_their_last_separator() {
    let server = SERVER.lease();
    let mut client = server.client();
    let ended = props(&[("K", "v"), ("TAGS", "TagX")]);
    let open = ended.strip_suffix('\u{2}').expect("a separator");
    let only = "TAGS\u{1}TagX";
    let items: [(&[u8], &str); 5] =
        [(b"ended", &ended), (b"open", open), (b"only", only), (b"other", "TAGS\u{1}TagY"), (b"bare", "")];
    let sent = client.send_batch("Unended", 0, &items);
    assert_eq!((sent.code, sent.queue_offset), (0, 0), "{}", sent.remark);
    let pulled = client.pull(&Pull::at("Unended", 0, 0).of("TagX"));
    let got: Vec<_> = pulled.messages.iter().map(|m| m.body.as_slice()).collect();
    assert_eq!(got, [&b"ended"[..], b"open", b"only"]);
    assert!(pulled.messages.iter().all(|m| m.prop("TAGS") == Some("TagX")), "{pulled:?}");
    assert!(pulled.messages[..2].iter().all(|m| m.prop("K") == Some("v")), "{pulled:?}");
    // The same in a single send, to which the broker adds properties of its own.
    client.sent("Unended", 0, open, b"single");
    let single = client.pull_all("Unended", 0, 5, 1).remove(0);
    assert_eq!((single.prop("TAGS"), single.prop("K")), (Some("TagX"), Some("v")), "{}", single.properties);
    assert!(single.prop("UNIQ_KEY").is_some_and(|key| key.len() == 32), "{}", single.properties);
    server.check_healthy("S07");
}

#[test]
fn s08_properties_that_should_be_numbers() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Odd", 1);
    for (name, value, refused) in [
        ("DELAY", "4x", true),
        ("DELAY", "", false),
        ("DELAY", "4Pinpoint", true),
        ("DELAY", "99999999999", true),
        ("DELAY", "-1", false),
        ("DELAY", "0", false),
        ("RETRY_TOPIC", "abc", false),
        ("RECONSUME_TIME", "abc", false),
        ("MAX_RECONSUME_TIMES", "abc", false),
        ("WAIT", "perhaps", false),
        ("WAIT", "", false),
        ("odd\u{1}name", "v", false),
        ("odd", "v\u{2}w", false),
        ("odd", "v\u{2}\u{1}\u{2}\u{2}", false),
        ("", "v", false),
    ] {
        // A tag behind the odd one shows that what follows is still read.
        let text = format!("{name}\u{1}{value}\u{2}TAGS\u{1}Behind\u{2}");
        let sent = client.send("Odd", 0, &text, text.as_bytes());
        assert_eq!(sent.code, if refused { code::MESSAGE_ILLEGAL } else { 0 }, "{text:?}: {}", sent.remark);
        if refused {
            assert!(sent.remark.contains(name), "{}", sent.remark);
            continue;
        }
        let pulled = client.pull(&Pull::at("Odd", 0, sent.queue_offset).of("Behind"));
        assert_eq!(pulled.messages.first().map(|m| m.body.as_slice()), Some(text.as_bytes()), "{pulled:?}");
        assert!(
            pulled.messages[0].properties.starts_with(&text),
            "stored otherwise: {}",
            pulled.messages[0].properties
        );
    }
    server.check_healthy("S08");
}

/// The `n`th body of a batch: 0 to `most` bytes that tell whose they are.
fn mixed(seed: usize, n: usize, most: usize) -> Vec<u8> {
    let bytes = if n % 7 == 3 { 0 } else { (seed * 7919 + n * 104_729) % (most + 1) };
    format!("{seed}/{n} ").bytes().cycle().take(bytes).collect()
}

#[test]
fn s09_batches_between_singles() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("Batches", 1);
    let mut other = server.client();
    let singles = std::thread::spawn(move || {
        let send = |n: u32| (other.sent("Batches", 0, "", format!("single {n}").as_bytes()).queue_offset, n);
        (0..200).map(send).collect::<Vec<_>>()
    });
    let mut wanted: Vec<(i64, Vec<u8>)> = Vec::new();
    for (round, (count, most)) in
        [(1, 100 << 10), (2, 100 << 10), (31, 100 << 10), (32, 60 << 10), (1000, 3000), (1, 0), (32, 100), (1000, 0)]
            .into_iter()
            .enumerate()
    {
        let bodies: Vec<Vec<u8>> = (0..count).map(|n| mixed(round, n, most)).collect();
        let items: Vec<(&[u8], &str)> = bodies.iter().map(|body| (body.as_slice(), "")).collect();
        let sent = client.send_batch("Batches", 0, &items);
        assert_eq!(sent.code, 0, "{count}: {}", sent.remark);
        assert_eq!(sent.msg_id.split(',').count(), count, "an id each");
        wanted.extend(bodies.into_iter().enumerate().map(|(n, body)| (sent.queue_offset + n as i64, body)));
    }
    let singles = singles.join().expect("the singles");
    wanted.extend(singles.into_iter().map(|(offset, n)| (offset, format!("single {n}").into_bytes())));
    wanted.sort_unstable();
    let offsets: Vec<i64> = wanted.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, Vec::from_iter(0..wanted.len() as i64), "offsets that answers named are contiguous");
    let all = client.pull_all("Batches", 0, 0, wanted.len());
    for (message, (offset, body)) in all.iter().zip(&wanted) {
        assert!(message.queue_offset == *offset && message.body == *body, "at {offset}: {message:?}");
    }
    for (offset, body) in &wanted {
        let one = client.pull(&Pull { count: 1, ..Pull::at("Batches", 0, *offset) });
        assert!(
            one.code == 0 && one.messages.len() == 1 && one.next == offset + 1,
            "at {offset}: {} {}",
            one.code,
            one.next
        );
        assert!(one.messages[0].body == *body, "at {offset}");
    }
    server.check_healthy("S09");
}

/// Files of a queue in their order.
fn queue_files(store: &Path, topic: &str) -> Vec<PathBuf> {
    let dir = store.join("consumequeue").join(topic).join("0");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("a queue").map(|entry| entry.expect("an entry").path()).collect();
    files.sort_unstable();
    files
}

#[test]
fn s12_damaged_queue_files_are_made_again() {
    let mut server = Server::start("faults-store-queues", "shards=2\nmappedFileSizeConsumeQueue=2000");
    let mut client = server.client();
    client.create_topic("Damaged", 1);
    client.send_many("Damaged", 0, "", 250); // 100 entries a file
    let truncate = |file: &Path, bytes: u64| {
        std::fs::File::options().write(true).open(file).and_then(|file| file.set_len(bytes)).expect("truncated");
    };
    type Damage<'a> = (&'a str, &'a dyn Fn(&[PathBuf]));
    let damages: [Damage; 7] = [
        ("a next file of zeros", &|files| {
            let last: u64 =
                files[files.len() - 1].file_name().and_then(|n| n.to_str()).expect("a name").parse().expect("a number");
            std::fs::write(files[0].with_file_name(format!("{:020}", last + 2000)), [0; 2000]).expect("written");
        }),
        ("the last one empty", &|files| truncate(&files[files.len() - 1], 0)),
        ("the last one of 7 bytes", &|files| truncate(&files[files.len() - 1], 7)),
        ("the last one zeroed", &|files| std::fs::write(&files[files.len() - 1], [0; 2000]).expect("written")),
        ("the first one gone", &|files| std::fs::remove_file(&files[0]).expect("removed")),
        ("the first one empty", &|files| truncate(&files[0], 0)),
        ("all gone", &|files| files.iter().for_each(|file| std::fs::remove_file(file).expect("removed"))),
    ];
    let mut count = 250;
    for clean in [true, false] {
        for (what, damage) in &damages {
            match clean {
                true => assert!(server.stop().success()),
                false => server.kill(),
            }
            let files = queue_files(&server.store(), "Damaged");
            assert!(!files.is_empty());
            damage(&files);
            server.start_again();
            let mut client = server.client();
            let of = format!("{what}, stopped {}", if clean { "in order" } else { "by kill -9" });
            let all = client.pull_all("Damaged", 0, 0, count);
            assert!(all.iter().enumerate().all(|(n, m)| m.queue_offset == n as i64), "{of}");
            assert_eq!(client.bounds("Damaged", 0), (0, count as i64), "{of}");
            let sent = client.sent("Damaged", 0, "", b"one more");
            assert_eq!(sent.queue_offset, count as i64, "{of}");
            count += 1;
            assert_eq!(client.pull_all("Damaged", 0, count as i64 - 1, 1)[0].body, b"one more", "{of}");
            server.check_healthy(&of);
        }
    }
}

#[test]
fn s14_light_queue_names_lead_to_no_directory() {
    let mut server = Server::start("faults-store-light", "shards=2");
    let mut client = server.client();
    client.create_topic("Plain", 1);
    let before = names_below(&server.dir.join("store/consumequeue"));
    let long = "%LMQ%".to_owned() + &"x".repeat(300);
    // Light queues are off here, so what asks for them is a property like any other; where they are on: `lmq.rs`.
    for name in ["%LMQ%a/1", "%LMQ%../../x", "%LMQ%", "%LMQ%a,%LMQ%a", &long] {
        client.sent("Plain", 0, &props(&[("INNER_MULTI_DISPATCH", name)]), b"to light queues");
        // As a topic of its own it is a name like any other.
        let made = client.try_create_topic(name, 1);
        assert_eq!(made.code == 0, !name.contains(['/', ',', '.']) && name.len() < 128, "{name}: {:?}", made.remark);
    }
    let after = names_below(&server.dir.join("store/consumequeue"));
    assert!(after.iter().all(|name| before.contains(name) || !name.contains("LMQ")), "{after:?}");
    assert!(!server.dir.join("x").exists() && !server.dir.join("store/x").exists());
    assert_eq!(client.sent("Plain", 0, "", b"after").queue_offset, 5);
    server.kill();
    server.start_again();
    assert_eq!(server.client().pull_all("Plain", 0, 0, 6)[5].body, b"after");
    server.check_healthy("S14");
}

/// The file of the log that holds `at`, and where in it.
fn in_log(store: &Path, at: u64) -> (PathBuf, u64) {
    const SEGMENT_BYTES: u64 = 8 << 20; // as every test server has it
    (store.join("commitlog").join(format!("{:020}", at - at % SEGMENT_BYTES)), at % SEGMENT_BYTES)
}

/// The last record of a killed broker's log is damaged: the log is cut there, and what is stored afterwards is not missed.
#[test]
fn s15_what_follows_a_damaged_tail_is_kept() {
    let mut server = Server::start("faults-store-tail", "shards=2");
    server.client().create_topic("Tail", 1);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for round in 0..12_u64 {
        let mut client = server.client();
        for n in 0..20 {
            let body = format!("{round}-{n}-{}", "x".repeat(200)).into_bytes();
            assert_eq!(client.sent("Tail", 0, "", &body).queue_offset, kept.len() as i64, "round {round}");
            kept.push(body);
        }
        let last = client.pull_all("Tail", 0, kept.len() as i64 - 1, 1)[0].phy_offset as u64;
        server.kill();
        let (path, at) = in_log(&server.store(), last);
        let file = std::fs::File::options().read(true).write(true).open(path).expect("the log");
        let inside = at + 90 + round * 7919 % 190; // in the body, which has a checksum
        use std::os::unix::fs::FileExt;
        match round % 3 {
            0 => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, inside).expect("a byte");
                file.write_all_at(&[byte[0] ^ (1 << (round % 8))], inside).expect("flipped");
            }
            1 => file.write_all_at(&[0; 4096], at).expect("zeroed"),
            _ => file.set_len(inside).expect("cut"),
        }
        drop(file);
        server.start_again();
        kept.pop();
        let mut client = server.client();
        assert_eq!(client.bounds("Tail", 0), (0, kept.len() as i64), "round {round}: {}", server.log());
        for n in 0..100 {
            let body = format!("{round} after {n}").into_bytes();
            assert_eq!(client.sent("Tail", 0, "", &body).queue_offset, kept.len() as i64, "round {round}");
            kept.push(body);
        }
        let all = client.pull_all("Tail", 0, 0, kept.len());
        assert!(all.iter().map(|m| &m.body).eq(&kept), "round {round}");
    }
    server.check_healthy("S15");
}

/// Names below a directory of the store, at any depth.
fn names_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        names.push(entry.file_name().to_string_lossy().into_owned());
        if entry.path().is_dir() {
            names.extend(names_below(&entry.path()));
        }
    }
    names
}

#[test]
fn s16_questions_about_unknown_topics_make_nothing() {
    let server = Server::start("faults-store-unknown", "shards=2");
    let mut client = server.client();
    client.create_topic("Known", 4);
    server.check_healthy("the start");
    let topics = std::fs::read(server.store().join("config/topics.json")).expect("the table");
    for n in 0..2000 {
        let topic = format!("Nobody-{n}-{}", n * 7919 % 1000);
        for code in [29, 30, 31, 32] {
            ask_about(&mut client, code, &topic);
        }
        let pulled = client.pull(&Pull::at(&topic, 0, n).of("*"));
        assert_eq!(pulled.code, code::TOPIC_NOT_EXIST, "{pulled:?}");
    }
    // An empty queue of a known topic, and a queue that it has not.
    for queue in [3, 4, 1000, -1, i32::MAX] {
        let pulled = client.pull(&Pull { suspend_ms: 100, ..Pull::at("Known", queue, 0) });
        let wanted = if queue == 3 { code::PULL_NOT_FOUND } else { code::INVALID_PARAMETER };
        assert_eq!(pulled.code, wanted, "{pulled:?}");
    }
    assert_eq!(client.bounds("Known", 3), (0, 0));
    let names = names_below(&server.store());
    assert!(!names.iter().any(|name| name.contains("Nobody") || name == "Known"), "{names:?}");
    let now = std::fs::read(server.store().join("config/topics.json")).expect("the table");
    assert!(topics == now, "the table of topics changed");
    assert!(!String::from_utf8_lossy(&client.ok(21, &[], b"").body).contains("Nobody"));
    assert!(!String::from_utf8_lossy(&client.ok(28, &[], b"").body).contains("Nobody"));
    server.check_healthy("S16");
}

/// 29 to 32: "no such topic", by its code or by an empty answer that says nothing is there.
fn ask_about(client: &mut Client, code: i32, topic: &str) {
    let ext = [("topic", topic), ("queueId", "0"), ("timestamp", "1")];
    let answer = client.call(code, &ext, b"");
    match answer.code {
        code::TOPIC_NOT_EXIST => assert!(answer.remark.is_some_and(|remark| remark.contains(topic)), "{code}"),
        0 => {
            assert!(matches!(answer.get("offset").or(answer.get("timestamp")), Some("0" | "-1")), "{code}: {answer:?}")
        }
        other => panic!("{code}: {other} {:?}", answer.remark),
    }
}

#[test]
fn s16_a_topic_deleted_under_a_waiting_pull_is_gone() {
    let server = SERVER.lease();
    let (mut client, mut waiting) = (server.client(), server.client());
    client.create_topic("Leaving", 2);
    client.sent("Leaving", 0, "", b"x");
    assert_eq!(client.pull_all("Leaving", 0, 0, 1).len(), 1);
    // Held for longer than this client waits for an answer.
    let ask = |(queue, at)| Pull { suspend_ms: 600_000, ..Pull::at("Leaving", queue, at) };
    let mut open: Vec<i32> = [(0, 1), (1, 0)].map(|place| waiting.ask_pull(&ask(place))).to_vec();
    client.delete_topic("Leaving");
    while !open.is_empty() {
        let answer = waiting.receive().expect("an answer to a held pull");
        assert_ne!(answer.code, 0, "{answer:?}");
        open.retain(|opaque| *opaque != answer.opaque);
    }
    let pulled = client.pull(&Pull::at("Leaving", 0, 1));
    assert_eq!(pulled.code, code::TOPIC_NOT_EXIST, "{pulled:?}");
    ask_about(&mut client, 30, "Leaving");
    let names = names_below(&server.store().join("consumequeue"));
    assert!(!names.iter().any(|name| name == "Leaving"), "{names:?}");
    server.check_healthy("S16 deletion");
}
