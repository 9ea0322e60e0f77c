//! Names of topics, the flags of the command line, what operators ask: A01, A08.
use crate::common::{BINARY, Client, Pull, Server, Shared, test_dir};
use std::path::Path;
use std::process::{Command, Output};
use uringmq_proto::body::{self, stats::KvTable};

static SERVER: Shared = Shared::new("faults-admin", "shards=2\nbrokerClusterName=TheCluster\nbrokerName=the-broker");

#[test]
fn a01_creating_and_sending_know_one_rule_for_names() {
    let server = SERVER.lease();
    let mut client = server.client();
    client.create_topic("ordinary", 1); // the table is on disk from here on
    let table = || std::fs::read(server.store().join("config/topics.json")).expect("the table");
    let name = |bytes: usize| "n".repeat(bytes);
    let mut refused: Vec<String> = [
        "", " ", " a", "a ", "a b", "a\t", "a\n", "中", "a.b", "../x", "..", "/", "a/b", "a\\b", "a+b", "a:b", "\u{0}",
        "é",
    ]
    .map(String::from)
    .to_vec();
    refused.extend([128, 255, 256, 300, 32_767].map(name));
    refused.push("中".repeat(43)); // 129 bytes
    for topic in &refused {
        let before = table();
        let shown: String = topic.chars().take(20).collect();
        let created = client.try_create_topic(topic, 1);
        let remark = created.remark.unwrap_or_default();
        assert!(created.code != 0 && !remark.is_empty() && remark.len() < 500, "{shown:?} was created: {remark}");
        let sent = client.send(topic, 0, "", b"x");
        assert_eq!(
            (sent.code, sent.remark.as_str()),
            (created.code, remark.as_str()),
            "{shown:?}: one rule, one answer"
        );
        assert!(before == table(), "{shown:?} changed the table");
    }
    for topic in ["a%", "%", "|", "a|b", "a-b", "a_b", "0", &name(1), &name(126), &name(127)] {
        client.create_topic(topic, 1);
        let sent = client.sent(topic, 0, "", topic.as_bytes());
        assert_eq!(client.pull_all(topic, 0, sent.queue_offset, 1)[0].topic, topic);
        assert!(String::from_utf8_lossy(&table()).contains(&format!("\"{topic}\"")), "{topic} is not in the table");
    }
    // The same by sending alone.
    let auto = "m".repeat(127);
    let sent = client.sent(&auto, 0, "", b"x");
    assert_eq!(client.pull_all(&auto, 0, sent.queue_offset, 1).len(), 1);
    for own in ["TheCluster", "the-broker", "SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x"] {
        let before = table();
        let created = client.try_create_topic(own, 1);
        let remark = created.remark.unwrap_or_default();
        assert!(created.code != 0 && remark.contains(own), "{own}: {remark}");
        assert!(before == table(), "{own} changed the table");
    }
    for closed in ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"] {
        let sent = client.send(closed, 0, "", b"x");
        assert!(sent.code != 0 && sent.remark.contains(closed), "{sent:?}");
    }
    server.check_healthy("A01");
}

fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(BINARY)
        .args(args)
        .current_dir(dir)
        .env_remove("NAMESRV_ADDR")
        .env_remove("RUST_LOG")
        .output()
        .expect("the binary")
}

/// Value of a key that `-p` printed.
fn printed(output: &Output, key: &str) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a08_flags_in_any_order() {
    let dir = test_dir("faults-admin-flags");
    std::fs::write(
        dir.join("b.conf"),
        "listenPort=12345\nnamesrvAddr=1.2.3.4:9\nbrokerName=of-the-file\nbrokerIP1=127.0.0.1\nstorePathRootDir=s\n",
    )
    .unwrap();
    let flags = [&["-c", "b.conf"][..], &["-n", "5.6.7.8:1;9.9.9.9:2"], &["-p"]];
    let mut texts = Vec::new();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let args: Vec<&str> =
            ["broker"].into_iter().chain(order.iter().flat_map(|n| flags[*n].iter().copied())).collect();
        let output = run(&dir, &args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        assert_eq!(
            printed(&output, "namesrvAddr").as_deref(),
            Some("5.6.7.8:1;9.9.9.9:2"),
            "the command line wins: {args:?}"
        );
        assert_eq!(printed(&output, "listenPort").as_deref(), Some("12345"), "{args:?}");
        assert_eq!(printed(&output, "brokerName").as_deref(), Some("of-the-file"), "{args:?}");
        texts.push(output.stdout);
    }
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "the order decides");
    let from_file = run(&dir, &["broker", "-p", "-c", "b.conf"]);
    assert_eq!(printed(&from_file, "namesrvAddr").as_deref(), Some("1.2.3.4:9"));
    let defaults = run(&dir, &["broker", "-p"]);
    assert_eq!(printed(&defaults, "listenPort").as_deref(), Some("10911"), "{}", said(&defaults));
    std::fs::write(dir.join("n.conf"), "listenPort=12346\n").unwrap();
    for args in [["namesrv", "-c", "n.conf", "-p"], ["namesrv", "-p", "-c", "n.conf"]] {
        assert_eq!(printed(&run(&dir, &args), "listenPort").as_deref(), Some("12346"), "{args:?}");
    }
    assert!(!dir.join("s").exists(), "printing makes no store");
}

#[test]
fn a08_files_that_are_none() {
    let dir = test_dir("faults-admin-files");
    std::fs::create_dir(dir.join("directory")).unwrap();
    std::fs::write(dir.join("broken"), "listenPort=12a\n").unwrap();
    std::fs::write(dir.join("bytes"), b"brokerName=\xff\xfe\n").unwrap();
    std::fs::write(dir.join("empty"), "").unwrap();
    std::fs::write(dir.join("unknown"), "listenPort=12347\nnoSuchKeyOfAnyBroker=1\nnoSuchKeyOfAnyBroker2=\n").unwrap();
    for server in ["broker", "namesrv", "standalone"] {
        for file in ["missing", "missing/too", "directory", "broken", "bytes"] {
            for print in [false, true] {
                let mut args = vec![server, "-c", file];
                if print && server != "standalone" {
                    args.insert(1, "-p");
                }
                let output = run(&dir, &args);
                let said = said(&output);
                assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
                assert!(said.contains(file) && !said.contains("panicked"), "{args:?}: {said}");
                assert!(output.stdout.is_empty(), "{args:?}: nothing is ready or printed: {said}");
            }
        }
    }
    let broken = said(&run(&dir, &["broker", "-c", "broken"]));
    assert!(broken.contains("listenPort") && broken.contains("line 1") && broken.contains("12a"), "{broken}");
    for server in ["broker", "namesrv"] {
        let empty = run(&dir, &[server, "-c", "empty", "-p"]);
        assert!(empty.status.success() && printed(&empty, "listenPort").is_some(), "{}", said(&empty));
        let unknown = run(&dir, &[server, "-p", "-c", "unknown"]);
        assert!(unknown.status.success(), "{}", said(&unknown));
        assert_eq!(printed(&unknown, "listenPort").as_deref(), Some("12347"));
        let warned = String::from_utf8_lossy(&unknown.stderr).matches("noSuchKeyOfAnyBroker").count();
        assert!((1..=3).contains(&warned), "warned of once: {}", said(&unknown));
    }
}

/// How often the stage was passed, as code 28 tells.
fn passed(client: &mut Client, stage: &str, reset: &str) -> u64 {
    let answer = client.ok(28, &[("resetStages", reset)], b"");
    let figures: KvTable = body::parse(&answer.body).expect("a table");
    let told = figures.table.get(&format!("stageUs.{stage}")).unwrap_or_else(|| panic!("no {stage}: {figures:?}"));
    let count = told.strip_prefix("count=").and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{stage}: {told}"))
}

#[test]
fn the_stages_of_a_message_are_counted_and_begin_anew() {
    let server = Server::start("faults-stages", "shards=2\nflushDiskType=SYNC_FLUSH");
    let mut client = server.client();
    client.create_topic("Staged", 1);
    let mut consumer = server.client();
    // A message may be faster than the pull that was asked for before it, and then wakes nobody.
    let woken = (0..1000).find(|n| {
        let opaque = consumer.ask_pull(&Pull::at("Staged", 0, *n));
        client.send_many("Staged", 0, "", 1);
        assert_eq!(consumer.pulled(opaque).code, 0);
        passed(&mut client, "9-wake", "false") > 0
    });
    assert!(woken.is_some(), "no pull was ever held");
    let stages =
        ["1-gather", "2-toWriter", "3-wait", "4-write", "5-sync", "6-back", "7-answer", "8-dispatch", "9-wake"];
    for stage in stages {
        assert!(passed(&mut client, stage, "false") > 0, "{stage}");
    }
    assert!(passed(&mut client, "4-write", "true") > 0);
    assert_eq!(passed(&mut client, "4-write", "false"), 0, "it began anew");
    server.check_healthy("questions about stages");
}
