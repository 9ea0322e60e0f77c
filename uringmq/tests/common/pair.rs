//! A master and its slave, each a process of its own, with a NameServer beside. Ports stay over restarts, as in a real cluster.
use super::client::Client;
use super::server::{Process, free_port, test_dir};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

/// One of them, at an address that stays.
pub struct Node {
    process: Process,
    conf: String,
    pub addr: SocketAddr,
}

impl Node {
    /// Not started yet.
    pub fn new(server: &'static str, dir: PathBuf, conf: String, port: u16) -> Self {
        std::fs::create_dir_all(&dir).expect("a directory for the node");
        Node { process: Process::new(server, dir), conf, addr: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    pub fn start(&mut self) {
        self.process.start(&self.conf).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Starts it without waiting until it serves, which it may never do.
    pub fn launch(&mut self) {
        self.process.launch(&self.conf);
    }

    /// What the next start reads in place of some lines of the configuration.
    pub fn set(&mut self, before: &str, after: &str) {
        assert!(self.conf.contains(before), "{before} is not in {}", self.conf);
        self.conf = self.conf.replace(before, after);
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }
}

impl Deref for Node {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

pub struct Pair {
    pub master: Node,
    pub slave: Node,
    _namesrv: Node,
    dir: PathBuf,
}

impl Pair {
    /// Nothing but the NameServer runs yet. `both` are settings of both brokers, `of_master` of the master alone.
    pub fn new(name: &str, both: &str, of_master: &str) -> Self {
        let dir = test_dir(name);
        let (namesrv, master, slave) = (free_port(), free_port(), free_port());
        let conf = |port: u16, store: &Path, more: &str| {
            format!(
                "brokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort={port}\nnamesrvAddr=127.0.0.1:{namesrv}\n\
                 storePathRootDir={}\nbrokerName=pair\nmappedFileSizeCommitLog=1048576\nmaxHashSlotNum=10000\nmaxIndexNum=40000\n\
                 warmAheadBytes=0\nshards=2\nregisterNameServerPeriod=10000\n{both}\n{more}\n",
                store.display()
            )
        };
        let at = |name: &str| dir.join(name);
        let master_conf = conf(master, &at("master").join("store"), of_master);
        let slave_conf = conf(slave, &at("slave").join("store"), "brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true");
        let mut pair = Pair {
            master: Node::new("broker", at("master"), master_conf, master),
            slave: Node::new("broker", at("slave"), slave_conf, slave),
            _namesrv: Node::new(
                "namesrv",
                at("namesrv"),
                format!("listenPort={namesrv}\nbindAddress=127.0.0.1\n"),
                namesrv,
            ),
            dir,
        };
        pair._namesrv.start();
        pair
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.master.kill();
            self.slave.kill();
            let _ = std::fs::remove_dir_all(&self.dir); // the next run does it
        }
    }
}
