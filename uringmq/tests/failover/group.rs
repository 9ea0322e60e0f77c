//! Brokers of one name under one controller, each a process of its own.
use crate::common::{Client, Node, free_port, test_dir};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use uringmq_proto::body::controller::{BrokerReplicasInfo, EpochCache, ReplicasInfo};
use uringmq_proto::fastjson;

const PATIENCE: Duration = Duration::from_secs(90);
pub const NAME: &str = "group";
const SEGMENT_BYTES: u64 = 1 << 20;

/// What `find` gives, once it gives something.
pub fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

pub struct Group {
    controller: SocketAddr,
    namesrv: SocketAddr,
    /// Of its number at the controller it is told nothing: who registers first gets the first one.
    pub brokers: Vec<Node>,
    /// The controller and the NameServer.
    pub servers: Vec<Node>,
    more: String,
    dir: Option<PathBuf>,
}

impl Group {
    /// A controller, a NameServer and `count` brokers, started one after the other. `more` are settings of all brokers.
    pub fn start(name: &str, count: usize, more: &str) -> Self {
        let dir = test_dir(name);
        let (controller, namesrv) = (free_port(), free_port());
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let store = dir.join("controller/store");
        let of_controller = format!(
            "controllerDLegerGroup=c\ncontrollerDLegerPeers=n0-127.0.0.1:{controller}\ncontrollerDLegerSelfId=n0\n\
             controllerStorePath={}\nscanNotActiveBrokerInterval=500\nscanInactiveMasterInterval=500\n",
            store.display()
        );
        let of_namesrv = format!("listenPort={namesrv}\nbindAddress=127.0.0.1\n");
        let mut servers = vec![
            Node::new("controller", dir.join("controller"), of_controller, controller),
            Node::new("namesrv", dir.join("namesrv"), of_namesrv, namesrv),
        ];
        servers.iter_mut().for_each(Node::start);
        let mut group = Group {
            controller: at(controller),
            namesrv: at(namesrv),
            brokers: Vec::new(),
            servers,
            more: more.to_owned(),
            dir: Some(dir),
        };
        (0..count).for_each(|_| group.add());
        group
    }

    /// The same group, to look at from another thread.
    pub fn observer(&self) -> Group {
        Group {
            controller: self.controller,
            namesrv: self.namesrv,
            brokers: Vec::new(),
            servers: Vec::new(),
            more: String::new(),
            dir: None,
        }
    }

    /// Starts one more broker.
    pub fn add(&mut self) {
        let dir = self.dir.as_ref().expect("no observer").join(format!("broker-{}", self.brokers.len()));
        let port = free_port();
        let conf = format!(
            "enableControllerMode=true\ncontrollerAddr={}\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nbindAddress=127.0.0.1\n\
             listenPort={port}\nnamesrvAddr={}\nstorePathRootDir={}\nbrokerName={NAME}\n\
             mappedFileSizeCommitLog={SEGMENT_BYTES}\nmaxHashSlotNum=10000\nmaxIndexNum=40000\nwarmAheadBytes=0\nshards=2\n\
             registerNameServerPeriod=10000\nsyncBrokerMetadataPeriod=500\nbrokerHeartbeatInterval=300\nslaveReadEnable=true\n\
             {}\n",
            self.controller,
            self.namesrv,
            dir.join("store").display(),
            self.more
        );
        let mut node = Node::new("broker", dir, conf, port);
        node.start();
        self.brokers.push(node);
    }

    pub fn controller(&self) -> Client {
        Client::connect(self.controller)
    }

    fn info(&self) -> ReplicasInfo {
        let answer = self.controller().ok(1006, &[], format!("[\"{NAME}\"]").as_bytes());
        let mut all: BrokerReplicasInfo = fastjson::from_slice(&answer.body).expect("a table");
        all.replicas_info_table.remove(NAME).unwrap_or_default()
    }

    pub fn master_address(&self) -> Option<SocketAddr> {
        self.info().master_address.map(|address| address.parse().expect("an address"))
    }

    /// Which broker is master, in which epoch.
    pub fn try_master(&self) -> Option<(usize, i32)> {
        let info = self.info();
        let address: SocketAddr = info.master_address?.parse().expect("an address");
        let index = self.brokers.iter().position(|broker| broker.addr == address).expect("one of ours");
        Some((index, info.master_epoch))
    }

    pub fn master(&self) -> (usize, i32) {
        until("a master", || self.try_master())
    }

    /// The number of a broker at the controller.
    pub fn id_of(&self, index: usize) -> i64 {
        let info = self.info();
        let address = self.brokers[index].addr.to_string();
        let all = info.in_sync_replicas.iter().chain(&info.not_in_sync_replicas);
        all.clone().find(|one| one.broker_address == address).map(|one| one.broker_id).expect("it is registered")
    }

    pub fn set(&self) -> BTreeSet<i64> {
        self.info().in_sync_replicas.iter().map(|one| one.broker_id).collect()
    }

    /// Waits until the SyncStateSet is this.
    pub fn in_sync(&self, ids: &[i64]) {
        let wanted: BTreeSet<i64> = ids.iter().copied().collect();
        until(&format!("SyncStateSet {wanted:?}"), || (self.set() == wanted).then_some(()));
    }

    /// Connected to the master once it serves as such.
    pub fn client_of_master(&self) -> Client {
        until("a master that serves", || {
            let mut client = Client::try_connect(self.master_address()?)?;
            let status = client.ask(907, 0, &[], b"");
            let answer = std::iter::from_fn(|| client.receive()).find(|answer| answer.opaque == status)?;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            text.contains("\"master\":true").then_some(client)
        })
    }

    /// What 1007 says: epoch, beginning, end.
    pub fn epochs(&self, index: usize) -> Vec<(i32, i64, i64)> {
        let cache = self.epoch_cache(index).expect("it serves");
        cache.epoch_list.iter().map(|one| (one.epoch, one.start_offset, one.end_offset)).collect()
    }

    fn epoch_cache(&self, index: usize) -> Option<EpochCache> {
        let mut client = Client::try_connect(self.brokers[index].addr)?;
        let asked = client.ask(1007, 0, &[], b"");
        let answer = std::iter::from_fn(|| client.receive()).find(|answer| answer.opaque == asked)?;
        assert_eq!(answer.code, 0, "{:?}", answer.remark);
        Some(fastjson::from_slice(&answer.body).expect("epochs"))
    }

    /// Where a broker's log ends.
    pub fn written(&self, index: usize) -> u64 {
        until("a broker that serves", || self.epoch_cache(index)).max_offset as u64
    }

    /// All brokers' logs become the same, to the byte, and nothing is sent meanwhile.
    pub fn same_logs(&self) {
        let (master, _) = self.master();
        let end = self.written(master);
        for index in 0..self.brokers.len() {
            until("the same end of the log", || (self.written(index) == end).then_some(()));
        }
        for start in (0..end).step_by(SEGMENT_BYTES as usize) {
            let name = format!("commitlog/{start:020}");
            let read = |index: usize| std::fs::read(self.brokers[index].store().join(&name)).expect(&name);
            let (bytes, first) = ((end - start).min(SEGMENT_BYTES) as usize, read(0));
            for index in 1..self.brokers.len() {
                assert!(first[..bytes] == read(index)[..bytes], "{name} of broker {index} differs");
            }
        }
    }

    /// What a power cut does to a log that was not synced: a broker that does not run loses its log from `from` on.
    pub fn lose_end(&self, index: usize, from: u64) {
        let name = format!("commitlog/{:020}", from - from % SEGMENT_BYTES);
        let path = self.brokers[index].store().join(name);
        let mut bytes = std::fs::read(&path).expect("the last segment");
        let lost = &mut bytes[(from % SEGMENT_BYTES) as usize..];
        assert!(lost.iter().any(|byte| *byte != 0), "nothing to lose behind {from}");
        lost.fill(0);
        std::fs::write(&path, bytes).expect("the last segment, changed");
    }

    pub fn no_panic(&self) {
        for (index, broker) in self.brokers.iter().enumerate() {
            let log = broker.log();
            assert!(!log.contains("panic") && !log.contains("queue offset gap"), "broker {index}: {log}");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(dir) = self.dir.take().filter(|_| !std::thread::panicking()) {
            self.brokers.iter_mut().for_each(|broker| broker.kill());
            let _ = std::fs::remove_dir_all(dir); // the next run does it
        }
    }
}
