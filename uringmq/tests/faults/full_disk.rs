//! A full disk: sends are refused with a plain remark, whether or not they wait for the flush; reads go on; it heals by itself. Before it
//! refuses, it removes the oldest segments, unless that is switched off.
use crate::common::{Pull, Server, props, test_dir};
use std::path::{Path, PathBuf};
use std::process::Command;

const DISK_BYTES: u64 = 64 << 20;
const BALLAST_BYTES: usize = 24 << 20;
const BODY_BYTES: usize = 256 << 10;
/// More than the disk can hold.
const SENDS_MAX: usize = 400;

/// A small ext4 of its own, unmounted with the value.
struct Disk(PathBuf);

impl Disk {
    /// `None` where this user may not mount.
    fn mount(dir: &Path) -> Option<Self> {
        Disk::keeping(dir, 0)
    }

    /// One of which this percentage is kept for root.
    fn keeping(dir: &Path, percent: u8) -> Option<Self> {
        let (image, at) = (dir.join("image"), dir.join("disk"));
        std::fs::create_dir(&at).expect("a place to mount at");
        std::fs::File::create(&image).and_then(|f| f.set_len(DISK_BYTES)).expect("an image");
        let run = |program: &str, args: &[&str]| {
            Command::new(program).args(args).arg(&image).args((program == "mount").then_some(&at)).status()
        };
        let made = run("mkfs.ext4", &["-q", "-F", "-m", &percent.to_string()]).is_ok_and(|status| status.success());
        let mounted = made && run("mount", &["-o", "loop"]).is_ok_and(|status| status.success());
        mounted.then_some(Disk(at))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn fills_refuses_and_heals(flush: &str) {
    let dir = test_dir(&format!("full-disk-{flush}"));
    let Some(disk) = Disk::mount(&dir) else {
        println!("not tried: this user may not mount an ext4 image");
        return;
    };
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).expect("room for the ballast");
    // Retention would refuse by its ratio before the disk is really full.
    let settings = format!(
        "storePathRootDir={}\nflushDiskType={flush}\nshards=2\ncleanResourceInterval=600000",
        disk.0.join("store").display()
    );
    let mut server = Server::start(&format!("full-disk-server-{flush}"), &settings);
    let mut client = server.client();
    client.create_topic("Full", 1);
    let waits = [props(&[("WAIT", "true")]), props(&[("WAIT", "false")])];
    let body = vec![7; BODY_BYTES];
    let mut stored = 0;
    let refused = (0..SENDS_MAX).find_map(|n| {
        let sent = client.send("Full", 0, &waits[n % 2], &body);
        if sent.code != 0 {
            return Some(sent);
        }
        assert_eq!(sent.queue_offset, stored as i64);
        stored += 1;
        None
    });
    let refused = refused.expect("the disk is full by now");
    for sent in [refused, client.send("Full", 0, &waits[0], &body), client.send("Full", 0, &waits[1], &body)] {
        assert_eq!(sent.code, 14, "{}", sent.remark);
        assert!(sent.remark.starts_with("service not available now. no space"), "{}", sent.remark);
    }
    assert!(stored > 8, "only {stored} were stored");
    assert_eq!(client.pull(&Pull::at("Full", 0, 0)).messages[0].body, body, "reads go on");

    std::fs::remove_file(&ballast).expect("the ballast");
    for properties in &waits {
        assert_eq!(client.sent("Full", 0, properties, &body).queue_offset, stored as i64, "no offset was lost");
        stored += 1;
    }
    assert_eq!(client.pull_all("Full", 0, 0, stored).len(), stored);
    server.check_healthy("a full disk");
    server.kill();
    server.start_again();
    assert_eq!(server.client().pull_all("Full", 0, 0, stored).len(), stored, "after kill -9");
    drop(server);
    drop(disk);
}

#[test]
fn async_flush() {
    fills_refuses_and_heals("ASYNC_FLUSH");
}

#[test]
fn sync_flush() {
    fills_refuses_and_heals("SYNC_FLUSH");
}

/// A broker on a disk of its own, with small segments; `None` where this user may not mount.
fn on_small_disk(name: &str, settings: &str) -> Option<(Server, Disk)> {
    on_disk(name, 0, settings)
}

/// One of which this percentage is kept for root.
fn on_disk(name: &str, kept_percent: u8, settings: &str) -> Option<(Server, Disk)> {
    let Some(disk) = Disk::keeping(&test_dir(&format!("full-disk-{name}")), kept_percent) else {
        println!("not tried: this user may not mount an ext4 image");
        return None;
    };
    let settings = format!(
        "storePathRootDir={}\nmappedFileSizeCommitLog=2097152\nshards=2\n{settings}",
        disk.0.join("store").display()
    );
    Some((Server::start(&format!("full-disk-server-{name}"), &settings), disk))
}

/// Sends until `count` are stored. One that meets the moment in which a segment is being removed may be sent again, as clients do.
fn send_all(server: &Server, count: usize, body: &[u8]) {
    let mut client = server.client();
    let mut refusals = 0;
    for n in 0..count as i64 {
        loop {
            let sent = client.send("Full", 0, "", body);
            if sent.code == 0 {
                assert_eq!(sent.queue_offset, n);
                break;
            }
            refusals += 1;
            assert!(sent.code == 14 && refusals < 200_000, "{}: {}", sent.code, sent.remark);
        }
    }
}

/// More is sent than the disk holds: the oldest segments go, the newest messages are there.
fn makes_room(name: &str, settings: &str) {
    let Some((server, disk)) = on_small_disk(name, settings) else { return };
    let body = vec![7; BODY_BYTES];
    server.client().create_topic("Full", 1);
    send_all(&server, SENDS_MAX, &body);
    let mut client = server.client();
    let (min, max) = client.bounds("Full", 0);
    assert!(max == SENDS_MAX as i64 && min > 0, "{min} to {max}");
    assert_eq!(client.pull(&Pull::at("Full", 0, max - 1)).messages[0].body, body);
    assert!(server.log().contains("removed the oldest segment"), "{}", server.log());
    server.check_healthy("a disk that was cleaned by force");
    drop(server);
    drop(disk);
}

#[test]
fn the_oldest_segments_go_by_force_before_anything_is_refused_by_ratio() {
    makes_room("ratio", "cleanFileForciblyEnable=true\ncleanResourceInterval=100\ndeleteCommitLogFilesInterval=0");
}

#[test]
fn the_oldest_segment_goes_when_the_next_one_cannot_be_made() {
    makes_room("enospc", "cleanFileForciblyEnable=true\ncleanResourceInterval=600000\ndeleteCommitLogFilesInterval=0");
}

/// Most of the disk is kept for root: a broker that took that for used would remove its oldest segments as on a disk that is nearly full.
#[test]
fn what_is_kept_for_root_is_not_used() {
    let settings = "cleanFileForciblyEnable=true\ncleanResourceInterval=100\ndeleteCommitLogFilesInterval=0";
    let Some((server, disk)) = on_disk("kept", 50, settings) else { return };
    let mut client = server.client();
    client.create_topic("Kept", 1);
    let body = vec![7; BODY_BYTES];
    (0..32).for_each(|n| assert_eq!(client.sent("Kept", 0, "", &body).queue_offset, n));
    let by_df = || {
        let df = Command::new("df").arg("--output=pcent").arg(&disk.0).output().expect("df");
        let df = String::from_utf8_lossy(&df.stdout);
        let percent = df.lines().nth(1).and_then(|line| line.trim().trim_end_matches('%').parse::<f64>().ok());
        percent.expect("a percentage")
    };
    let mut seen = Vec::new();
    // The next segment may be made between two looks.
    let agrees = (0..1000).any(|_| {
        let told = client.ok(28, &[], b"");
        let table: serde_json::Value = serde_json::from_slice(&told.body).expect("code 28");
        let ratio = table["table"]["commitLogDiskRatio"].as_str().and_then(|text| text.parse::<f64>().ok());
        seen.push((ratio.expect("a ratio") * 100.0, by_df()));
        seen.last().is_some_and(|(told, by_df)| (told - by_df).abs() <= 1.0 && *by_df < 75.0)
    });
    assert!(agrees, "the ratio told and df's: {seen:?}");
    assert_eq!(client.bounds("Kept", 0), (0, 32), "nothing went");
    assert!(!server.log().contains("removed the oldest segment"), "{}", server.log());
    drop(server);
    drop(disk);
}

#[test]
fn a_watermark_in_bytes_refuses_and_early_topics_go_first() {
    let free = 50 << 20; // of 64 MiB, and the filesystem takes its part
    let settings = format!(
        "cleanResourceInterval=100\ndiskFullFreeBytes={free}\ndiskRefuseEarlyTopics=Early\ndiskRefuseEarlyRatio=10"
    );
    let Some((server, disk)) = on_small_disk("bytes", &settings) else { return };
    let mut client = server.client();
    client.must_succeed = true;
    ["Full", "Early"].iter().for_each(|topic| client.create_topic(topic, 1));
    assert_eq!(client.sent("Early", 0, "", b"while there is room").code, 0);
    client.must_succeed = false;
    let ballast = disk.0.join("ballast");
    let refused = |topic: &str, client: &mut crate::common::Client, remark: &str| {
        let found = (0..1_000_000).find_map(|_| Some(client.send(topic, 0, "", b"x")).filter(|sent| sent.code != 0));
        let found = found.expect("it is refused in the end");
        assert!(found.code == 14 && found.remark.contains(remark), "{}: {}", found.code, found.remark);
    };
    std::fs::write(&ballast, vec![1; 6 << 20]).expect("room for the ballast");
    refused("Early", &mut client, "topic[Early] is one of diskRefuseEarlyTopics");
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).expect("room for the ballast");
    refused("Full", &mut client, "the disk is nearly full");
    assert_eq!(client.pull(&Pull::at("Early", 0, 0)).messages[0].body, b"while there is room", "reads go on");
    std::fs::remove_file(&ballast).expect("the ballast");
    for topic in ["Full", "Early"] {
        let again = (0..1_000_000).any(|_| client.send(topic, 0, "", b"again").code == 0);
        assert!(again, "{topic} is taken again");
    }
    drop(server);
    drop(disk);
}

#[test]
fn the_log_is_kept_below_its_size() {
    let settings = "mappedFileSizeCommitLog=1048576\ncommitLogBytesMax=4194304\ncleanResourceInterval=100\ndeleteCommitLogFilesInterval=0";
    let server = Server::start("full-disk-size", settings);
    server.client().create_topic("Full", 1);
    send_all(&server, 60, &vec![7; BODY_BYTES]);
    let mut client = server.client();
    // 15 segments were written, four may stay; three messages fit in one.
    let kept = (0..2_000_000).any(|_| {
        let (min, max) = client.bounds("Full", 0);
        max - min <= 12
    });
    assert!(kept, "{:?}", client.bounds("Full", 0));
    let (min, max) = client.bounds("Full", 0);
    assert_eq!(client.pull_all("Full", 0, min, (max - min) as usize).len(), (max - min) as usize);
    server.check_healthy("a limit of the log's size");
}

/// Takes all that is left, down to the last block.
fn fill(disk: &Disk) -> PathBuf {
    let ballast = disk.0.join("ballast");
    for bytes in [1 << 20, 4096] {
        let open = std::fs::File::options().create(true).append(true).open(&ballast);
        let mut file = open.expect("the ballast");
        while std::io::Write::write_all(&mut file, &vec![1; bytes]).is_ok() {}
        let _ = file.sync_all(); // what was taken stays taken
    }
    ballast
}

/// A start for which there is no room: not for the entries it builds again, not for a table, not for the mark that it runs.
fn starts_on_a_full_disk(clean: bool) {
    let name = format!("start-{clean}");
    let Some((mut server, disk)) = on_small_disk(&name, "cleanResourceInterval=600000\ncleanFileForciblyEnable=false")
    else {
        return;
    };
    let mut client = server.client();
    client.create_topic("Full", 4);
    for queue in 0..4 {
        client.send_many("Full", queue, "", 200);
    }
    if clean {
        assert!(server.stop().success());
        server.start_again();
        let mut client = server.client();
        for queue in 0..4 {
            client.send_many("Full", queue, "", 100);
        }
        assert!(server.stop().success());
    } else {
        server.kill();
    }
    let count = if clean { 300 } else { 200 };
    // Without their files, queues need room for all entries.
    let _ = std::fs::remove_dir_all(disk.0.join("store/consumequeue/Full/2")); // a killed broker may not have written it yet
    let ballast = fill(&disk);
    let mut large = 0;
    for round in 0..2 {
        server.start_again();
        let mut client = server.client();
        for queue in 0..4 {
            let all = client.pull_all("Full", queue, 0, if queue == 0 { count + large } else { count });
            assert!(all.iter().enumerate().all(|(n, m)| m.queue_offset == n as i64), "round {round}, queue {queue}");
        }
        let sent = client.send("Full", 0, "", &vec![7; 3 << 20 >> 1]);
        assert!(matches!(sent.code, 0 | 14), "{}: {}", sent.code, sent.remark);
        large += usize::from(sent.code == 0);
        if round == 0 {
            server.kill();
        }
    }
    std::fs::remove_file(&ballast).expect("the ballast");
    let mut client = server.client();
    let taken = (0..1_000_000).any(|_| client.send("Full", 1, "", b"room again").code == 0);
    assert!(taken, "{}", server.log());
    assert_eq!(client.pull_all("Full", 1, count as i64, 1)[0].body, b"room again");
    server.check_healthy("a start on a full disk");
    assert!(server.stop().success());
    server.start_again();
    let mut client = server.client();
    for (queue, count) in [count + large, count + 1, count, count].into_iter().enumerate() {
        client.pull_all("Full", queue as i32, 0, count);
    }
    assert_eq!(client.bounds("Full", 1), (0, count as i64 + 1));
    drop(server);
    drop(disk);
}

#[test]
fn a_start_on_a_full_disk_after_a_clean_stop() {
    starts_on_a_full_disk(true);
}

#[test]
fn a_start_on_a_full_disk_after_kill_9() {
    starts_on_a_full_disk(false);
}
