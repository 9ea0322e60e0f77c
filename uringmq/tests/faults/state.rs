//! The tables of `config/`, damaged while the broker was stopped: A10, D03, and bits that flipped where nobody wrote.
use crate::common::{Client, Pull, Server, props};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SETTINGS: &str =
    "shards=2\nmessageDelayLevel=1s 2s\nflushConsumerOffsetInterval=100\nflushDelayOffsetInterval=100";
/// A message of a level comes after seconds; a starved machine may need far longer.
const DELIVERY_MAX: Duration = Duration::from_secs(60);

/// A table, and a text in it that still makes a table when its first byte's lowest bit flips.
const TABLES: [(&str, &str); 4] = [
    ("topics.json", "Kept"),
    ("subscriptionGroup.json", "kept-group"),
    ("consumerOffset.json", "43"),
    ("delayOffset.json", "2"),
];

fn table(server: &Server, name: &str) -> PathBuf {
    server.store().join("config").join(name)
}

fn copy_all(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to); // of the case before
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp").success());
}

fn find(text: &[u8], needle: &str) -> usize {
    let found = text.windows(needle.len()).rposition(|at| at == needle.as_bytes());
    found.unwrap_or_else(|| panic!("no {needle} in {}", String::from_utf8_lossy(text)))
}

/// As the disk would: another content, and the file's time is the same.
fn flip(path: &Path, at: usize) {
    let modified = std::fs::metadata(path).and_then(|m| m.modified()).expect("a time");
    let mut text = std::fs::read(path).expect("a table");
    text[at] ^= 1;
    std::fs::write(path, text).expect("written");
    let file = std::fs::File::options().write(true).open(path).expect("a table");
    file.set_modified(modified).expect("the time it had");
}

fn wait_for_persist(server: &Server, name: &str, text: &str) {
    let began = Instant::now();
    while !std::fs::read_to_string(table(server, name)).is_ok_and(|now| now.contains(text)) {
        assert!(began.elapsed() < DELIVERY_MAX, "{text} is not in {name}");
        std::thread::yield_now();
    }
}

/// Sends a message of level 1 and waits until it is there.
fn delayed_message_comes(client: &mut Client, body: &[u8]) {
    let end = client.bounds("Kept", 1).1;
    client.sent("Kept", 1, &props(&[("DELAY", "1")]), body);
    let began = Instant::now();
    let mut at = end;
    loop {
        let pulled = client.pull(&Pull { suspend_ms: 1000, ..Pull::at("Kept", 1, at) });
        if pulled.messages.iter().any(|m| m.body == body) {
            return;
        }
        at += pulled.messages.len() as i64; // older ones may come once more
        assert!(began.elapsed() < DELIVERY_MAX, "{} did not come", String::from_utf8_lossy(body));
    }
}

/// Two of each, one saved after the other, so that backups know the first.
fn prepared(name: &str) -> (Server, PathBuf) {
    let mut server = Server::start(name, SETTINGS);
    let mut client = server.client();
    for (n, offset) in [41, 43].into_iter().enumerate() {
        client.create_topic(["Kept", "Later"][n], 2);
        let group = format!(r#"{{"groupName":"{}"}}"#, ["kept-group", "later-group"][n]);
        client.ok(200, &[], group.as_bytes());
        assert_eq!(client.commit("kept-group", "Kept", 0, offset).code, 0);
        wait_for_persist(&server, "consumerOffset.json", &offset.to_string());
        delayed_message_comes(&mut client, b"one");
    }
    wait_for_persist(&server, "delayOffset.json", "2");
    assert!(server.stop().success());
    let saved = server.dir.join("saved");
    copy_all(&server.store().join("config"), &saved);
    (server, saved)
}

/// Whichever of the two tables was taken: nothing is new, and nothing of the first is lost.
fn check(server: &Server, what: &str) {
    let mut client = server.client();
    let topics = String::from_utf8(client.ok(21, &[], b"").body).expect("JSON");
    assert!(topics.contains("\"Kept\""), "{what}: {topics}");
    let groups = String::from_utf8(client.ok(201, &[], b"").body).expect("JSON");
    assert!(groups.contains("\"kept-group\""), "{what}: {groups}");
    let committed = client.committed("kept-group", "Kept", 0);
    assert!(matches!(committed, Some(41 | 43)), "{what}: {committed:?}");
    delayed_message_comes(&mut client, what.as_bytes());
    server.check_healthy(what);
}

#[test]
fn a10_a_damaged_table_gives_way_to_its_backup() {
    let (mut server, saved) = prepared("faults-state-main");
    let config = server.store().join("config");
    type Damage = fn(&Path, &str);
    let damages: [(&str, Damage); 6] = [
        ("no bytes", |path, _| std::fs::write(path, b"").expect("written")),
        ("zeros", |path, _| std::fs::write(path, [0; 300]).expect("written")),
        ("half a file", |path, _| {
            let text = std::fs::read(path).expect("a table");
            std::fs::write(path, &text[..text.len() / 2]).expect("written");
        }),
        ("rubbish behind it", |path, _| {
            let text = std::fs::read(path).expect("a table");
            std::fs::write(path, [&text[..], b"}rubbish"].concat()).expect("written");
        }),
        ("missing", |path, _| std::fs::remove_file(path).expect("removed")),
        ("a flipped bit", |path, needle| flip(path, find(&std::fs::read(path).expect("a table"), needle))),
    ];
    for (what, damage) in damages {
        copy_all(&saved, &config);
        TABLES.iter().for_each(|(name, needle)| damage(&config.join(name), needle));
        server.start_again();
        check(&server, what);
        server.kill();
    }
    // A backup that is bad, and one that is newer, are nothing to a good table.
    copy_all(&saved, &config);
    for (n, (name, _)) in TABLES.iter().enumerate() {
        std::fs::write(config.join(format!("{name}.bak")), ["{", "{}"][n % 2]).expect("written");
    }
    server.start_again();
    check(&server, "bad and newer backups");
}

#[test]
fn a10_with_both_bad_it_refuses_and_names_the_table() {
    let (mut server, saved) = prepared("faults-state-both");
    let config = server.store().join("config");
    for (name, needle) in TABLES {
        for flipped in [false, true] {
            copy_all(&saved, &config);
            for path in [config.join(name), config.join(format!("{name}.bak"))] {
                match flipped && path.extension().is_none_or(|e| e != "bak") {
                    true => flip(&path, find(&std::fs::read(&path).expect("a table"), needle)),
                    false => std::fs::write(path, b"{").expect("written"),
                }
            }
            let refusal = server.refusal();
            assert!(refusal.contains(&format!("config/{name}")), "{refusal}");
            assert!(refusal.contains("startWithoutBrokenTables"), "{refusal}");
            assert!(config.join(name).exists(), "a refused start changes nothing");
        }
    }
    for (name, _) in TABLES {
        std::fs::write(config.join(name), b"{").expect("written");
        std::fs::write(config.join(format!("{name}.bak")), b"").expect("written");
    }
    server.settings.push_str("\nstartWithoutBrokenTables=true");
    server.start_again();
    let mut client = server.client();
    assert_eq!(client.committed("kept-group", "Kept", 0), None, "the offsets are gone, as the operator said");
    client.create_topic("Kept", 2);
    assert_eq!(client.bounds("Kept", 1), (0, 2), "the messages are not");
    assert!(config.join("topics.json.broken").exists() && config.join("topics.json.bak.broken").exists());
    server.check_healthy("a start without its tables");
}

#[test]
fn a_table_that_was_edited_is_used_and_told() {
    let (mut server, _) = prepared("faults-state-edited");
    let path = table(&server, "consumerOffset.json");
    let text = std::fs::read_to_string(&path).expect("a table");
    assert!(text.contains("43"), "{text}");
    std::fs::write(&path, text.replace("43", "17")).expect("written"); // as long as before, and of another time
    server.start_again();
    assert_eq!(server.client().committed("kept-group", "Kept", 0), Some(17));
    let log = server.log();
    assert!(log.contains("table was written by another") && log.contains("consumerOffset.json"), "{log}");
    check_offset_survives(&mut server);
}

/// And what it said is ours from the next save on.
fn check_offset_survives(server: &mut Server) {
    assert_eq!(server.client().commit("kept-group", "Kept", 0, 18).code, 0);
    assert!(server.stop().success());
    let told = server.log().matches("table was written by another").count();
    server.start_again();
    assert_eq!(server.client().committed("kept-group", "Kept", 0), Some(18));
    assert_eq!(server.log().matches("table was written by another").count(), told, "no warning about our own");
    server.check_healthy("an edited table");
}

#[test]
fn d03_delay_offsets_ahead_of_their_queue_stop_no_level() {
    let (mut server, saved) = prepared("faults-state-delay");
    let config = server.store().join("config");
    for offset in ["999999", "-5", "9223372036854775807"] {
        copy_all(&saved, &config);
        let text =
            format!(r#"{{"dataVersion":{{"counter":1,"stateVersion":0,"timestamp":1}},"offsetTable":{{1:{offset}}}}}"#);
        std::fs::write(config.join("delayOffset.json"), text).expect("written");
        server.start_again();
        assert!(server.log().contains(offset), "a warning names it: {}", server.log());
        delayed_message_comes(&mut server.client(), offset.as_bytes());
        server.check_healthy(offset);
        server.kill();
    }
}
