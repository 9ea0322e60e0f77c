//! This controller as one of its group: starts openraft over the files, puts requests into the log, tells who leads.
use crate::config::ControllerConfig;
use crate::peers::Peers;
use crate::raft::Raft;
use crate::raft::journal::{self, DiskError};
use crate::raft::log_store::{LogStore, blocking};
use crate::raft::machine::{Applied, Machine};
use crate::raft::network::Network;
use crate::state::{Ask, Outcome};
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{BasicNode, Config, RaftMetrics, SnapshotPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tracing::info;

/// A leader gives a sign of life so often.
const HEARTBEAT_MS: u64 = 300;
/// A follower without one waits so long before it wants to lead; each waits another time between these.
const ELECTION_MS: (u64, u64) = (1_000, 2_000);
/// Longest wait for a majority, as Apache's controller waits.
const CONSENSUS_MAX: Duration = Duration::from_secs(5);
/// Entries that stay behind a snapshot: a follower a little behind needs no snapshot.
const ENTRIES_KEPT: u64 = 100;
const SNAPSHOT_CHUNK_BYTES: u64 = 1 << 20;

/// Why a controller does not start.
#[derive(Debug, Error)]
pub enum NodeStartError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(
        "controllerDLegerPeers names {configured}, but {dir} is of {stored}: the controllers of a group do not change"
    )]
    Members { configured: String, stored: String, dir: String },
    #[error("the Raft library does not start: {0}")]
    Raft(String),
}

/// Why a request could not be decided here.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("this controller does not lead{}", leader_text(*.0))]
    NotLeader(Option<u64>),
    #[error("no majority of the controllers answered within {} s; it may be done later", CONSENSUS_MAX.as_secs())]
    NoMajority,
    #[error("this controller has failed: {0}")]
    Failed(String),
}

fn leader_text(leader: Option<u64>) -> String {
    leader.map_or(", and knows no leader".to_owned(), |number| format!("; n{number} does"))
}

type Metrics = RaftMetrics<u64, BasicNode>;

/// One of the controllers.
pub struct Node {
    pub raft: Raft,
    pub number: u64,
    pub group: String,
    pub peers: Peers,
    machine: Machine,
    /// End of the log that the start found. A leader that comes back in its own term may still lead, and openraft then takes the snapshot
    /// for all that was decided until its followers have answered; it is not.
    found: Option<u64>,
    _lock: File,
}

impl Node {
    /// # Errors
    /// Files that cannot be used; a configuration that names other controllers than the files.
    pub async fn start(config: &ControllerConfig) -> Result<Node, NodeStartError> {
        let (dir, number, peers) = (config.own_dir(), config.number(), config.all_peers());
        let shown = dir.display().to_string();
        let (lock, log, machine) = blocking(move || {
            let lock = journal::lock(&dir)?;
            Ok::<_, DiskError>((lock, LogStore::open(&dir)?, Machine::open(&dir)?))
        })
        .await?;
        let network = Network { group: config.group.clone(), peers: peers.clone() };
        let settings = Arc::new(settings(config).validate().map_err(|error| NodeStartError::Raft(error.to_string()))?);
        let raft_error = |error: &dyn std::fmt::Display| NodeStartError::Raft(error.to_string());
        let raft = Raft::new(number, settings, network, log, machine.clone()).await.map_err(|e| raft_error(&e))?;
        let members = members(number, &peers, config);
        let mut found = None;
        if raft.is_initialized().await.map_err(|e| raft_error(&e))? {
            found = raft.metrics().borrow().last_log_index;
            let stored: BTreeSet<u64> = raft.metrics().borrow().membership_config.membership().voter_ids().collect();
            // Nothing stored but a vote: the log, and with it who the members are, comes from the leader.
            if !stored.is_empty() && !stored.iter().eq(members.keys()) {
                let names = |numbers: Vec<&u64>| numbers.iter().map(|n| format!("n{n}")).collect::<Vec<_>>().join(",");
                let _ = raft.shutdown().await; // it has not begun
                return Err(NodeStartError::Members {
                    configured: names(members.keys().collect()),
                    stored: names(stored.iter().collect()),
                    dir: shown,
                });
            }
        } else {
            raft.initialize(members).await.map_err(|e| raft_error(&e))?;
        }
        info!(dir = shown, "controller n{number} of {} with the peers {}", config.group, peers.to_listing());
        Ok(Node { raft, number, group: config.group.clone(), peers, machine, found, _lock: lock })
    }

    /// What is applied here; held for moments only.
    pub fn applied(&self) -> MutexGuard<'_, Applied> {
        self.machine.applied()
    }

    pub fn metrics(&self) -> watch::Receiver<Metrics> {
        self.raft.metrics()
    }

    /// Who leads, as far as this controller knows. Not this one where no majority has answered it for so long that the others may have
    /// another leader.
    pub fn leader(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        let alone = now.millis_since_quorum_ack.is_some_and(|silent| silent > ELECTION_MS.1);
        now.current_leader.filter(|leader| *leader != self.number || !alone)
    }

    /// Once it returns, [`Node::applied`] has all that was decided before the call.
    pub async fn up_to_date(&self) -> Result<(), NodeError> {
        let read = async {
            self.raft.ensure_linearizable().await?;
            let applied = |now: &Metrics| now.last_applied.map(|id| id.index) >= self.found.min(now.last_log_index);
            let _ = self.raft.metrics().wait_for(applied).await; // no metrics: it stops
            Ok(())
        };
        match tokio::time::timeout(CONSENSUS_MAX, read).await {
            Err(_) => Err(NodeError::NoMajority),
            Ok(Ok(())) => Ok(()),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to)))) => {
                Err(NodeError::NotLeader(to.leader_id))
            }
            Ok(Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)))) => Err(NodeError::NotLeader(None)),
            Ok(Err(RaftError::Fatal(why))) => Err(NodeError::Failed(why.to_string())),
        }
    }

    /// Decides a request: by the log if it changes something. The outcome holds once this returns.
    pub async fn decide(&self, ask: Ask) -> Result<Outcome, NodeError> {
        self.up_to_date().await?;
        {
            let applied = self.applied();
            let verdict = applied.state.judge(&ask);
            if !verdict.changes() {
                return Ok(applied.state.outcome(&ask, verdict));
            }
        }
        match tokio::time::timeout(CONSENSUS_MAX, self.raft.client_write(ask)).await {
            Err(_) => Err(NodeError::NoMajority),
            Ok(Ok(written)) => Ok(written.data),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to)))) => {
                Err(NodeError::NotLeader(to.leader_id))
            }
            Ok(Err(error)) => Err(NodeError::Failed(error.to_string())),
        }
    }
}

fn settings(config: &ControllerConfig) -> Config {
    Config {
        cluster_name: config.group.clone(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.0,
        election_timeout_max: ELECTION_MS.1,
        install_snapshot_timeout: CONSENSUS_MAX.as_millis() as u64,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_entries),
        snapshot_max_chunk_size: SNAPSHOT_CHUNK_BYTES,
        max_in_snapshot_log_to_keep: ENTRIES_KEPT.min(config.snapshot_entries),
        ..Config::default()
    }
}

fn members(number: u64, peers: &Peers, config: &ControllerConfig) -> BTreeMap<u64, BasicNode> {
    if peers.is_empty() {
        return BTreeMap::from([(number, BasicNode::new(config.listen_addrs()[0]))]);
    }
    peers.iter().map(|(number, address)| (number, BasicNode::new(address))).collect()
}
