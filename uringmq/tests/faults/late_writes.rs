//! A slow disk under a broker that is killed: its last writes are still under way when it is gone and the next one starts. They must
//! not arrive over what that one writes.
use crate::common::{Client, Server, send_ext};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TOPIC: &str = "Late";
/// Of the disk, for the broker that will be killed: its writes are under way for seconds.
const SLOW_BYTES_PER_S: u64 = 512 << 10;
const BODY_BYTES: usize = 250 << 10;
const CLIENTS: usize = 4;
/// Longer than all of them are under way.
const ALL_ARRIVED: Duration = Duration::from_secs(3);
const SENDS_AFTER: usize = 2000;

/// A control group whose writes to one disk are throttled; gone with the value, when its processes are.
struct Slow(PathBuf);

impl Slow {
    /// `None` where this user may not make one (cgroup version 1, blkio).
    fn disk_of(dir: &Path, name: &str) -> Option<Self> {
        let device = std::fs::metadata(dir).expect("the directory").dev();
        let group = Path::new("/sys/fs/cgroup/blkio").join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        let slow = Slow(group);
        let rule = format!("{}:{} {SLOW_BYTES_PER_S}", libc::major(device), libc::minor(device));
        std::fs::write(slow.0.join("blkio.throttle.write_bps_device"), rule).ok()?;
        Some(slow)
    }

    fn put(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("the process joins the group");
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Sends that get no answer in time: the broker is killed over them. The first goes alone, what comes meanwhile is one long write.
fn leave_under_way(clients: &mut [Client]) {
    let ext = send_ext(TOPIC, "0", "", "0");
    for client in clients {
        client.ask(310, 0, &ext, &vec![b'x'; BODY_BYTES]);
    }
    std::thread::sleep(Duration::from_millis(600));
}

#[test]
fn writes_of_a_killed_broker_do_not_arrive_over_those_of_the_next() {
    let mut server = Server::start("late-writes", "shards=2\nwarmAheadBytes=4194304");
    let Some(slow) = Slow::disk_of(&server.dir, "uringmq-late-writes") else {
        println!("not tried: this user may not throttle a disk by a control group");
        return;
    };
    let mut client = server.client();
    client.create_topic(TOPIC, 1);
    client.send_many(TOPIC, 0, "", 100);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    slow.put(server.pid());
    leave_under_way(&mut clients);
    server.kill();

    server.start_again();
    let mut client = server.client();
    let (_, kept) = client.bounds(TOPIC, 0);
    assert!(kept >= 100, "{kept}");
    client.send_many(TOPIC, 0, "", SENDS_AFTER);
    std::thread::sleep(ALL_ARRIVED);
    let pulled = client.pull_all(TOPIC, 0, kept, SENDS_AFTER);
    for (number, message) in pulled.iter().enumerate() {
        assert_eq!(message.body, number.to_string().as_bytes());
    }
    // Not from the memory of the last few: a new start reads the log, and says what it finds.
    server.kill();
    server.start_again();
    let mut client = server.client();
    assert_eq!(client.bounds(TOPIC, 0), (0, kept + SENDS_AFTER as i64));
    assert_eq!(client.pull_all(TOPIC, 0, kept, SENDS_AFTER).len(), SENDS_AFTER);
    assert!(!server.log().contains("damage"), "{}", server.log());
    server.check_healthy("late writes");
}
