//! The nodes of the cluster: three brokers of one group, three controllers, two NameServers, each a process in a namespace of its own.
use super::disk::Disk;
use super::net::Net;
use crate::error::BenchError;
use crate::process::{Server, shown};
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub(super) const GROUP_NAME: &str = "chaos";
pub(super) const BROKERS: usize = 3;
const CONTROLLERS: usize = 3;
const NAMESRVS: usize = 2;
const BROKER_PORT: u16 = 10911;
const CONTROLLER_PORT: u16 = 9877;
const NAMESRV_PORT: u16 = 9876;
pub(super) const SEGMENT_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Broker,
    Controller,
    Namesrv,
}

impl Role {
    /// Its subcommand of the binary.
    fn word(self) -> &'static str {
        match self {
            Role::Broker => "broker",
            Role::Controller => "controller",
            Role::Namesrv => "namesrv",
        }
    }

    fn port(self) -> u16 {
        match self {
            Role::Broker => BROKER_PORT,
            Role::Controller => CONTROLLER_PORT,
            Role::Namesrv => NAMESRV_PORT,
        }
    }
}

/// One of a role, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId {
    pub(super) role: Role,
    pub(super) index: usize,
}

impl NodeId {
    /// Last byte of its address.
    pub(super) fn host(self) -> u8 {
        let base = match self.role {
            Role::Broker => 11,
            Role::Controller => 21,
            Role::Namesrv => 31,
        };
        base + self.index as u8
    }

    pub(super) fn broker(index: usize) -> NodeId {
        NodeId { role: Role::Broker, index }
    }

    pub(super) fn all(role: Role) -> impl Iterator<Item = NodeId> {
        let count = match role {
            Role::Broker => BROKERS,
            Role::Controller => CONTROLLERS,
            Role::Namesrv => NAMESRVS,
        };
        (0..count).map(move |index| NodeId { role, index })
    }

    pub(super) fn everybody() -> Vec<NodeId> {
        [Role::Controller, Role::Namesrv, Role::Broker].into_iter().flat_map(NodeId::all).collect()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role.word(), self.index)
    }
}

/// What is the same for all nodes.
pub(super) struct Setting {
    pub(super) bin: PathBuf,
    pub(super) dir: PathBuf,
    /// Lines of every broker's configuration, behind the harness's own.
    pub(super) more: String,
}

struct Node {
    id: NodeId,
    server: Option<Server>,
}

/// All nodes of a run. Their processes end with it.
pub(super) struct Nodes {
    nodes: Vec<Node>,
    setting: Setting,
    pub(super) net: Net,
    /// Of the brokers, where a fault of the disk is among the faults.
    pub(super) disks: Vec<Disk>,
}

impl Nodes {
    /// Writes the configurations; starts nothing.
    pub(super) fn new(setting: Setting, net: Net, disks: Vec<Disk>) -> Result<Nodes, BenchError> {
        let nodes = NodeId::everybody().into_iter().map(|id| Node { id, server: None }).collect();
        let nodes = Nodes { nodes, setting, net, disks };
        for node in &nodes.nodes {
            let dir = nodes.dir(node.id);
            fs::create_dir_all(&dir).map_err(BenchError::io(dir.display().to_string()))?;
            let path = nodes.conf(node.id);
            fs::write(&path, nodes.configuration(node.id)).map_err(BenchError::io(path.display().to_string()))?;
        }
        Ok(nodes)
    }

    pub(super) fn dir(&self, id: NodeId) -> PathBuf {
        node_dir(&self.setting.dir, id)
    }

    fn conf(&self, id: NodeId) -> PathBuf {
        self.setting.dir.join(format!("{}-{}.conf", id.role.word(), id.index))
    }

    pub(super) fn store(&self, broker: usize) -> PathBuf {
        self.dir(NodeId::broker(broker)).join("store")
    }

    pub(super) fn at(&self, id: NodeId) -> SocketAddr {
        self.net.at(id.host(), id.role.port())
    }

    fn list(&self, role: Role, joined: &str) -> String {
        let addresses: Vec<String> = NodeId::all(role).map(|id| self.at(id).to_string()).collect();
        addresses.join(joined)
    }

    fn configuration(&self, id: NodeId) -> String {
        let (address, dir) = (self.net.address(id.host()), self.dir(id));
        match id.role {
            Role::Namesrv => format!("listenPort={NAMESRV_PORT}\n"),
            Role::Controller => {
                let peers: Vec<String> =
                    NodeId::all(Role::Controller).map(|one| format!("n{}-{}", one.index, self.at(one))).collect();
                format!(
                    "controllerDLegerGroup=chaos\ncontrollerDLegerPeers={}\ncontrollerDLegerSelfId=n{}\ncontrollerStorePath={}\n",
                    peers.join(";"),
                    id.index,
                    dir.join("store").display()
                )
            }
            Role::Broker => format!(
                "enableControllerMode=true\ncontrollerAddr={}\nnamesrvAddr={}\nbrokerName={GROUP_NAME}\nbrokerIP1={address}\n\
                 brokerIP2={address}\nlistenPort={BROKER_PORT}\nstorePathRootDir={}\nmappedFileSizeCommitLog={SEGMENT_BYTES}\n\
                 maxHashSlotNum=10000\nmaxIndexNum=40000\nwarmAheadBytes=0\nslaveReadEnable=true\ncleanFileForciblyEnable=false\n{}\n",
                self.list(Role::Controller, ";"),
                self.list(Role::Namesrv, ";"),
                dir.join("store").display(),
                self.setting.more
            ),
        }
    }

    fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.id == id).expect("every node is in the list")
    }

    /// Starts it, if it does not run. Its output goes to the end of its log.
    pub(super) fn start(&mut self, id: NodeId) -> Result<(), BenchError> {
        if self.is_running(id) {
            return Ok(());
        }
        let log = self.setting.dir.join(format!("{}-{}.log", id.role.word(), id.index));
        let command = format!(
            "ip netns exec {} {} {} -c {} >>{} 2>&1",
            self.net.space(id.host()),
            shown(&self.setting.bin),
            id.role.word(),
            shown(&self.conf(id)),
            shown(&log)
        );
        let server = Server::start(&command)?;
        if id.role == Role::Broker
            && let Some(disk) = self.disks.get(id.index)
        {
            disk.admit(server.pid())?;
        }
        self.node(id).server = Some(server);
        Ok(())
    }

    pub(super) fn is_running(&self, id: NodeId) -> bool {
        let node = self.nodes.iter().find(|node| node.id == id);
        node.and_then(|node| node.server.as_ref()).is_some_and(|server| !server.has_ended())
    }

    /// Nodes that ended though nobody ended them.
    pub(super) fn fallen(&self) -> Vec<NodeId> {
        let ended = |node: &&Node| node.server.as_ref().is_some_and(Server::has_ended);
        self.nodes.iter().filter(ended).map(|node| node.id).collect()
    }

    /// SIGKILL; it is gone when this returns.
    pub(super) fn kill(&mut self, id: NodeId) {
        self.node(id).server = None;
    }

    /// SIGSTOP or SIGCONT.
    pub(super) fn signal(&mut self, id: NodeId, signal: libc::c_int) {
        if let Some(server) = &self.node(id).server {
            server.signal(signal);
        }
    }
}

/// Where a node's files are.
pub(super) fn node_dir(dir: &Path, id: NodeId) -> PathBuf {
    dir.join(format!("{}-{}", id.role.word(), id.index))
}
