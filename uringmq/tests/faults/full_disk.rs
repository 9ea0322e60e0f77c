//! A full disk: sends are refused with a plain remark, whether or not they wait for the flush; reads go on; it heals by itself.
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
        let (image, at) = (dir.join("image"), dir.join("disk"));
        std::fs::create_dir(&at).expect("a place to mount at");
        std::fs::File::create(&image).and_then(|f| f.set_len(DISK_BYTES)).expect("an image");
        let run = |program: &str, args: &[&str]| {
            Command::new(program).args(args).arg(&image).args((program == "mount").then_some(&at)).status()
        };
        let made = run("mkfs.ext4", &["-q", "-F", "-m", "0"]).is_ok_and(|status| status.success());
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
