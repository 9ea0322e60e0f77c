//! A master and its slave, each a process of its own, with a NameServer beside. Ports stay over restarts, as in a real cluster.
use super::client::Client;
use super::server::{BINARY, free_port, stop_child, test_dir, wait_for_line};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// One `uringmq` process that can be ended and started again on what it left.
pub struct Node {
    child: Option<Child>,
    server: &'static str,
    /// With its configuration, its log and its store.
    pub dir: PathBuf,
    pub addr: SocketAddr,
}

impl Node {
    fn new(server: &'static str, dir: PathBuf, conf: &str, port: u16) -> Self {
        std::fs::create_dir_all(&dir).expect("a directory for the node");
        std::fs::write(dir.join("conf"), conf).expect("the configuration file");
        Node { child: None, server, dir, addr: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("log")).expect("the log");
        let mut child = Command::new(BINARY)
            .args([self.server, "-c", "conf"])
            .current_dir(&self.dir)
            .env_remove("NAMESRV_ADDR")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary");
        let ready = wait_for_line(&mut child, "uringmq ready");
        self.child = Some(child);
        ready.unwrap_or_else(|why| panic!("{why}; {}", self.log()));
    }

    /// Everything that it wrote to standard error.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join("log")).expect("the log")).into_owned()
    }

    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may be gone
            child.wait().expect("its end");
        }
    }

    /// SIGTERM.
    pub fn stop(&mut self) -> ExitStatus {
        stop_child(self.child.take().expect("it runs"))
            .unwrap_or_else(|| panic!("SIGTERM did not end it: {}", self.log()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
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
            master: Node::new("broker", at("master"), &master_conf, master),
            slave: Node::new("broker", at("slave"), &slave_conf, slave),
            _namesrv: Node::new(
                "namesrv",
                at("namesrv"),
                &format!("listenPort={namesrv}\nbindAddress=127.0.0.1\n"),
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
