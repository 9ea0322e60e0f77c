//! The controller: elects the masters of broker groups, as Apache's controller does, for Apache's brokers. What several controllers have
//! agreed on is ordered and kept by the Raft library openraft. Control plane: it runs on a tokio runtime of its own and shares nothing
//! with the shards. Source: replication sheet 8.
pub mod config;
pub mod elect;
mod handlers;
pub mod live;
pub mod node;
mod notify;
pub mod peers;
pub mod raft;
pub mod requests;
mod server;
pub mod state;
#[cfg(test)]
mod test_dir;

pub use config::ControllerConfig;

use live::{DEFAULT_TIMEOUT_MS, Live};
use node::{Node, NodeError, NodeStartError};
use server::Call;
use state::{Ask, Group, Outcome};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};
use uringmq_proto::body::BodyError;
use uringmq_proto::codes::response;
use uringmq_proto::command::Response;
use uringmq_proto::headers::HeaderError;
use uringmq_proto::settings::listed::UpdateError;

/// How long a stop waits for what is under way.
const STOP_MAX: Duration = Duration::from_secs(3);
/// In `leads_since_ms` of one that does not lead.
const NOT_LEADING: i64 = -1;

/// Why a controller does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen on {addr}: {source}")]
    Bind { addr: SocketAddr, source: io::Error },
    #[error(transparent)]
    Node(#[from] NodeStartError),
    #[error("no thread for the controller: {0}")]
    Runtime(io::Error),
}

/// Why a request is not served; [`ControllerError::response`] is what its caller sees. What the state refuses is no error here: it has
/// answers of its own ([`state::Refusal`]).
#[derive(Debug, Error)]
pub enum ControllerError {
    #[error(" request type {0} not supported")]
    UnknownCode(i32),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("header field {0} is empty")]
    Blank(&'static str),
    #[error("header field {field} has {bytes} bytes, limit {max}")]
    TooLong { field: &'static str, bytes: usize, max: usize },
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("header field brokerId is missing in a heartbeat")]
    HeartbeatWithoutId,
    #[error("{0} is no group of this controller")]
    NoGroup(String),
    #[error("brokerControllerIdsToClean: '{0}' is no number; ids are separated by ;")]
    CleanIds(String),
    #[error(transparent)]
    Update(#[from] UpdateError),
    #[error("a controller inside a name server is configured by the name server's file alone")]
    Inside,
    #[error("changed in memory, but not saved: {0}")]
    NotSaved(io::Error),
    #[error("this is not controller n{to} of {group}")]
    Astray { group: String, to: i64 },
}

impl ControllerError {
    /// The one place where an error meets a response code.
    pub fn response(&self) -> Response {
        let code = match self {
            ControllerError::UnknownCode(_) => response::REQUEST_CODE_NOT_SUPPORTED,
            ControllerError::Node(NodeError::NotLeader(_)) => response::CONTROLLER_NOT_LEADER,
            ControllerError::HeartbeatWithoutId => response::CONTROLLER_INVALID_REQUEST,
            ControllerError::NoGroup(_) => response::CONTROLLER_BROKER_METADATA_NOT_EXIST,
            ControllerError::CleanIds(_) => response::CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            ControllerError::Update(UpdateError::BlackList) | ControllerError::Inside => response::NO_PERMISSION,
            ControllerError::Header(_)
            | ControllerError::Body(_)
            | ControllerError::Blank(_)
            | ControllerError::TooLong { .. }
            | ControllerError::Node(NodeError::NoMajority | NodeError::Failed(_))
            | ControllerError::Update(UpdateError::Syntax | UpdateError::Value { .. })
            | ControllerError::NotSaved(_)
            | ControllerError::Astray { .. } => response::SYSTEM_ERROR,
        };
        Response::err(code, self.to_string())
    }
}

/// One running controller. Its locks are held for moments, never across an await; only `updating`, an async one, is held while a file
/// is written.
pub struct Controller {
    node: Node,
    live: Mutex<Live>,
    config: Mutex<Arc<ControllerConfig>>,
    updating: tokio::sync::Mutex<()>,
    started: Instant,
    /// On the clock of [`Controller::now_ms`]; [`NOT_LEADING`] otherwise.
    leads_since_ms: AtomicI64,
    connections: AtomicU64,
}

impl Controller {
    /// A steady clock; ms since the start.
    fn now_ms(&self) -> i64 {
        self.started.elapsed().as_millis() as i64
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().expect("a panic ends the process")
    }

    fn config(&self) -> Arc<ControllerConfig> {
        self.config.lock().expect("a panic ends the process").clone()
    }

    fn set_config(&self, config: ControllerConfig) {
        *self.config.lock().expect("a panic ends the process") = Arc::new(config);
    }

    fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    fn group(&self, name: &str) -> Option<Group> {
        self.node.applied().state.group(name).cloned()
    }

    fn alive_ids(&self, name: &str, cluster: &str) -> BTreeSet<i64> {
        self.live().alive(cluster, name, self.now_ms()).iter().map(|one| one.id).collect()
    }

    /// The living of a group; nobody where there is none.
    fn alive_ids_of(&self, name: &str) -> BTreeSet<i64> {
        self.group(name).map(|group| self.alive_ids(name, &group.cluster)).unwrap_or_default()
    }

    async fn respond(&self, call: &Call<'_>) -> Response {
        requests::dispatch(self, call).await.unwrap_or_else(|error| {
            debug!(peer = %call.peer, code = call.cmd.code, "{error}");
            error.response()
        })
    }

    /// An election asked for by a broker, an operator or this controller (`by` is `None`); the group's brokers are told.
    async fn elect(&self, name: &str, by: Option<i64>, designate: bool) -> Result<Outcome, NodeError> {
        self.node.up_to_date().await?;
        let group = self.group(name);
        let alive = group.as_ref().map(|group| self.live().alive(&group.cluster, name, self.now_ms()));
        let config = self.config();
        let ask = Ask::Elect {
            group: name.to_owned(),
            by,
            designate,
            unclean: config.unclean,
            alive: alive.unwrap_or_default(),
        };
        let outcome = self.node.decide(ask).await?;
        if let (true, Some(group)) = (outcome.role_changed, &outcome.group) {
            match group.master {
                Some(id) => info!(group = name, master = id, epoch = group.master_epoch, "a master is elected"),
                None => warn!(group = name, epoch = group.master_epoch, "the group has no master"),
            }
            if config.notify && group.master.is_some() {
                self.tell(name, group);
            }
        }
        Ok(outcome)
    }

    fn tell(&self, name: &str, group: &Group) {
        let living = self.alive_ids(name, &group.cluster);
        for (_, broker) in group.brokers.iter().filter(|(id, _)| living.contains(id)) {
            tokio::spawn(notify::send(broker.address.clone(), notify::notice(group)));
        }
    }

    /// Whether a group needs an election that nobody asks for. A master that was not heard of at all is lost when this controller has
    /// led long enough to have heard of it.
    fn needs_master(&self, name: &str, group: &Group) -> bool {
        let since = self.leads_since_ms.load(Ordering::Acquire);
        if since == NOT_LEADING || group.is_new() {
            return false;
        }
        let now_ms = self.now_ms();
        let live = self.live();
        let alive = live.alive(&group.cluster, name, now_ms);
        match group.master {
            Some(id) if alive.iter().any(|one| one.id == id) => false,
            Some(id) => live.is_lost(&group.cluster, name, id, since) || now_ms - since >= DEFAULT_TIMEOUT_MS,
            None => {
                let unclean = self.config().unclean;
                let could = |id: i64| group.sync_state_set.contains(&id) || unclean && group.brokers.contains_key(&id);
                alive.iter().any(|one| could(one.id))
            }
        }
    }

    /// Elects where a group has lost its master, or can have one again.
    async fn look_at(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            let Some(group) = self.group(&name) else { continue };
            if !self.needs_master(&name, &group) {
                continue;
            }
            match self.elect(&name, None, false).await {
                Ok(outcome) => debug!(group = name, "election: {:?}", outcome.refusal),
                Err(error) => debug!(group = name, "no election: {error}"),
            }
        }
    }

    async fn look_at_all(&self) {
        let names: Vec<String> = self.node.applied().state.groups.keys().cloned().collect();
        self.look_at(names).await;
    }

    fn connection_closed(self: &Arc<Self>, connection: u64) {
        let gone = self.live().closed(connection, self.now_ms());
        if gone.is_empty() {
            return;
        }
        for key in &gone {
            warn!(group = key.group, id = key.id, "the connection of a broker ended");
        }
        let server = self.clone();
        tokio::spawn(async move { server.look_at(gone.into_iter().map(|key| key.group)).await });
    }

    async fn scan_brokers(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_millis(self.config().scan_ms)).await;
            let late = self.live().expire(self.now_ms());
            for key in &late {
                warn!(group = key.group, id = key.id, "a broker gave no sign for its time");
            }
            self.look_at(late.into_iter().map(|key| key.group)).await;
        }
    }

    async fn scan_masters(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_millis(self.config().scan_master_ms)).await;
            self.look_at_all().await;
        }
    }

    /// Notes when this controller begins and ceases to lead. Returns when openraft has stopped by a failure: why.
    async fn watch(self: Arc<Self>) -> String {
        let mut metrics = self.node.metrics();
        loop {
            let (failed, leads) = {
                let now = metrics.borrow_and_update();
                (now.running_state.as_ref().err().map(ToString::to_string), now.current_leader == Some(now.id))
            };
            if let Some(why) = failed {
                return why;
            }
            let led = self.leads_since_ms.load(Ordering::Acquire) != NOT_LEADING;
            if leads != led {
                info!(leads, "controller n{}", self.node.number);
                let since = if leads { self.now_ms() } else { NOT_LEADING };
                self.leads_since_ms.store(since, Ordering::Release);
                if leads {
                    let server = self.clone();
                    tokio::spawn(async move { server.look_at_all().await });
                }
            }
            if metrics.changed().await.is_err() {
                return "the Raft library has ended".to_owned();
            }
        }
    }
}

/// Puts `text` in the place of the file `path`: durable when it returns. Blocking.
fn save_text(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let path = dir.join(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    raft::journal::replace(&path, text.as_bytes()).map(drop).map_err(io::Error::other)
}

/// Serves until `stop` resolves, which is no error, or until the controller has failed: why.
async fn serve(
    config: ControllerConfig,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(SocketAddr),
) -> Result<Option<String>, StartError> {
    let mut listeners = Vec::new();
    for addr in config.listen_addrs() {
        listeners.push(TcpListener::bind(addr).await.map_err(|source| StartError::Bind { addr, source })?);
    }
    let addr = listeners[0].local_addr().map_err(StartError::Runtime)?;
    let server = Arc::new(Controller {
        node: Node::start(&config).await?,
        live: Mutex::default(),
        config: Mutex::new(Arc::new(config)),
        updating: tokio::sync::Mutex::default(),
        started: Instant::now(),
        leads_since_ms: AtomicI64::new(NOT_LEADING),
        connections: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    listeners.into_iter().for_each(|listener| drop(tasks.spawn(server::accept(server.clone(), listener))));
    tasks.spawn(server.clone().scan_brokers());
    tasks.spawn(server.clone().scan_masters());
    ready(addr);
    let failed = tokio::select! {
        () = stop => None,
        why = server.clone().watch() => Some(why),
    };
    tasks.abort_all();
    if tokio::time::timeout(STOP_MAX, server.node.raft.shutdown()).await.is_err() {
        warn!("the Raft library did not stop in time");
    }
    Ok(failed)
}

/// Runs a controller on threads of its own until `stop` resolves; the process's exit code. `ready` is called once it serves, with the
/// address that it listens on.
pub fn run(config: ControllerConfig, stop: impl Future<Output = ()>, ready: impl FnOnce(SocketAddr)) -> i32 {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("controller")
        .enable_io()
        .enable_time()
        .build()
        .map_err(StartError::Runtime);
    let served = runtime.and_then(|runtime| {
        let served = runtime.block_on(serve(config, stop, ready));
        runtime.shutdown_timeout(STOP_MAX);
        served
    });
    match served {
        Ok(None) => 0,
        Ok(Some(why)) => {
            error!("the controller has failed and ends: {why}");
            eprintln!("uringmq controller: {why}");
            1
        }
        Err(why) => {
            eprintln!("uringmq controller: {why}");
            1
        }
    }
}
