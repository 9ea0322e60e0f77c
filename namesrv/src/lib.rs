//! The name server: who is where. One task-local state on one executor; runs in a process of its own or beside the broker (standalone),
//! then on shard 0. Source: behaviour sheet 1, wire-protocol sheet 9.
pub mod config;
pub mod disk;
mod handlers;
pub mod kv;
pub mod requests;
pub mod route_table;

pub use config::NamesrvConfig;

use disk::{DiskError, Saver};
use futures_lite::future::or;
use glommio::timer::Timer;
use kv::Kv;
use route_table::{MinIdNotice, RouteTable};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{debug, info, warn};
use uringmq_proto::body::BodyError;
use uringmq_proto::body::register::RegisterError;
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::FAQ;
use uringmq_proto::command::{Command, Response, Value};
use uringmq_proto::headers::HeaderError;
use uringmq_proto::settings::listed::{Settings, UpdateError};
use uringmq_remoting::connection::{Conn, Conns};
use uringmq_remoting::listener::{self, Spread};
use uringmq_remoting::stop::Gate;
use uringmq_remoting::{Limits, Service};

/// Requests to a name server are small but for registrations.
const READ_BYTES: usize = 64 << 10;
/// How long a stop waits for the answers of requests in flight.
const STOP_MAX: Duration = Duration::from_secs(5);
const RING_DEPTH: usize = 128;
const IO_MEMORY_BYTES: usize = 1 << 20;

/// Why the name server does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen on {addr} (listenPort): {source}")]
    Bind { addr: SocketAddr, source: io::Error },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a request is not served; [`NamesrvError::response`] is what its caller sees.
#[derive(Debug, Error)]
pub enum NamesrvError {
    #[error(" request type {0} not supported")]
    UnknownCode(i32),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("header field {0} is empty")]
    Blank(&'static str),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("crc32 not match")]
    Crc,
    #[error("namespace or key is null")]
    KvNull,
    #[error("No config item, {0}")]
    NoKv(String),
    #[error("name server not ready")]
    NotReady,
    #[error("No topic route info in name server for the topic: {0}{FAQ}")]
    NoRoute(String),
    #[error("disable")]
    Disabled,
    #[error(transparent)]
    Update(#[from] UpdateError),
}

impl NamesrvError {
    /// The one place where an error meets a response code.
    pub fn response(&self) -> Response {
        let code = match self {
            NamesrvError::UnknownCode(_) => response::REQUEST_CODE_NOT_SUPPORTED,
            NamesrvError::NoKv(_) => response::QUERY_NOT_FOUND,
            NamesrvError::NoRoute(_) => response::TOPIC_NOT_EXIST,
            NamesrvError::Update(UpdateError::BlackList) => response::NO_PERMISSION,
            NamesrvError::Header(_)
            | NamesrvError::Blank(_)
            | NamesrvError::Body(_)
            | NamesrvError::Register(_)
            | NamesrvError::Crc
            | NamesrvError::KvNull
            | NamesrvError::NotReady
            | NamesrvError::Disabled
            | NamesrvError::Update(UpdateError::Syntax | UpdateError::Value { .. }) => response::SYSTEM_ERROR,
        };
        Response::err(code, self.to_string())
    }
}

/// A request with the connection that it came on.
pub struct Ask<'a> {
    pub conn: &'a Rc<Conn>,
    pub cmd: &'a Command<'a>,
}

/// What a handler leaves behind.
pub enum Answer {
    Now(Response),
    /// A task answers.
    Later,
}

/// The state of one name server. Borrows never cross an await: every handler is synchronous.
pub struct Namesrv {
    table: RefCell<RouteTable>,
    kv: RefCell<Kv>,
    config: RefCell<NamesrvConfig>,
    conns: Rc<Conns>,
    saver: Rc<Saver>,
    started: Instant,
}

impl Namesrv {
    pub fn new(config: NamesrvConfig, kv: Kv, conns: Rc<Conns>) -> Rc<Self> {
        Rc::new(Namesrv {
            table: RefCell::new(RouteTable::new(config.rules())),
            kv: RefCell::new(kv),
            config: RefCell::new(config),
            conns,
            saver: Rc::default(),
            started: Instant::now(),
        })
    }

    /// A steady clock; ms since the start.
    fn now_ms(&self) -> i64 {
        self.started.elapsed().as_millis() as i64
    }

    /// Answers `ask` once the key-value table is on disk.
    fn save_kv(&self, ask: &Ask<'_>) {
        let bytes = self.kv.borrow().encode();
        self.saver.submit(&self.config.borrow().kv_path, bytes, answer_saved(ask));
    }

    /// Answers `ask` once the configuration is on disk.
    fn save_config(&self, ask: &Ask<'_>) {
        let config = self.config.borrow();
        self.saver.submit(&config.store_path, config.to_text().into_bytes(), answer_saved(ask));
    }

    /// Tells brokers that the smallest id of their group changed; nobody answers.
    fn tell(&self, notices: impl IntoIterator<Item = MinIdNotice>) {
        for notice in notices {
            let text = |text: &str| Value::from(text.to_owned());
            let mut ext = vec![
                ("minBrokerId", Value::from(notice.min_id)),
                ("brokerName", text(&notice.broker_name)),
                ("minBrokerAddr", text(&notice.min_addr)),
            ];
            ext.extend(notice.offline_addr.as_deref().map(|addr| ("offlineBrokerAddr", text(addr))));
            ext.extend(notice.ha_addr.as_deref().map(|addr| ("haBrokerAddr", text(addr))));
            for conn in notice.to.iter().filter_map(|id| self.conns.get(*id)) {
                conn.oneway(request::NOTIFY_MIN_BROKER_ID_CHANGE, &ext, b"");
            }
        }
    }

    /// One look at who gave no sign for too long.
    fn scan(&self) {
        let (late, notices) = self.table.borrow_mut().expire(self.now_ms());
        for conn in late.into_iter().filter_map(|id| self.conns.get(id)) {
            warn!(peer = %conn.peer(), "a broker gave no sign for its time and is removed");
            conn.close("the broker on it gave no sign for its time");
        }
        self.tell(notices);
    }
}

fn answer_saved(ask: &Ask<'_>) -> impl FnOnce(&Result<(), String>) + 'static {
    let (conn, opaque, oneway) = (ask.conn.clone(), ask.cmd.opaque, ask.cmd.is_oneway());
    move |outcome| {
        let response = match outcome {
            Ok(()) => Response::ok(),
            Err(why) => {
                warn!("a change is in memory only: {why}");
                Response::err(response::SYSTEM_ERROR, format!("changed in memory, but not saved: {why}"))
            }
        };
        if !oneway {
            conn.respond(opaque, &response);
        }
    }
}

impl Service for Namesrv {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, _: &[u8]) {
        let answer = requests::dispatch(self, &Ask { conn, cmd }).unwrap_or_else(|error| {
            debug!(peer = %conn.peer(), code = cmd.code, "{error}");
            Answer::Now(error.response())
        });
        if let Answer::Now(response) = answer
            && !cmd.is_oneway()
        {
            conn.respond(cmd.opaque, &response);
        }
    }

    /// A broker without connection is gone at once, not after its time.
    fn on_close(&self, conn: &Rc<Conn>) {
        let notices = self.table.borrow_mut().connection_closed(conn.id());
        self.tell(notices);
    }
}

/// Starts the name server on this executor; it serves when this returns, with the address that it listens on, and stops when `gate`
/// closes: no new connections, what is being saved gets its answer, connections end.
///
/// # Errors
/// An address that cannot be bound; a damaged key-value file.
pub async fn start(config: NamesrvConfig, gate: Rc<Gate>) -> Result<SocketAddr, StartError> {
    let addr = config.listen_addr();
    let bound = listener::bind(addr).map_err(|source| StartError::Bind { addr, source })?;
    let addr = bound.addr;
    let path = config.kv_path.clone();
    let (kv, warning) = glommio::executor().spawn_blocking(move || disk::load(&path, Kv::decode)).await?;
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    let limits = Limits { idle_ms: config.idle_seconds * 1000, read_bytes: READ_BYTES, ..Limits::default() };
    let conns = Rc::new(Conns::default());
    let server = Namesrv::new(config, kv.unwrap_or_default(), conns.clone());
    let spread = Spread::new(1);
    let behind = |task: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        if let Some(pass) = gate.enter() {
            glommio::spawn_local(async move {
                task.await;
                drop(pass);
            })
            .detach();
        }
    };
    behind(Box::pin(listener::accept(bound, spread.clone(), gate.clone())));
    behind(Box::pin(listener::serve(spread, 0, conns.clone(), server.clone(), limits, gate.clone())));
    behind(Box::pin(scan_until_closed(server.clone(), gate.clone())));
    behind(Box::pin(close_connections(server, gate.clone())));
    info!("name server listens on {addr}");
    Ok(addr)
}

async fn rest(time: Duration) {
    Timer::new(time).await;
}

async fn scan_until_closed(server: Rc<Namesrv>, gate: Rc<Gate>) {
    while !gate.is_closed() {
        let pause = Duration::from_millis(server.config.borrow().scan_ms);
        or(rest(pause), gate.closed()).await;
        if !gate.is_closed() {
            server.scan();
        }
    }
}

async fn close_connections(server: Rc<Namesrv>, gate: Rc<Gate>) {
    gate.closed().await;
    or(server.saver.idle(), rest(STOP_MAX)).await;
    server.conns.close_all("the name server stops");
    or(server.conns.emptied(), rest(STOP_MAX)).await;
}

/// Runs a name server on an executor of its own until `stop` resolves; the process's exit code. `ready` is called once it serves.
pub fn run(
    config: NamesrvConfig,
    stop: impl Future<Output = ()> + Send + 'static,
    ready: impl FnOnce(SocketAddr) + Send + 'static,
) -> i32 {
    let executor = glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
        .name("namesrv")
        .ring_depth(RING_DEPTH)
        .io_memory(IO_MEMORY_BYTES)
        .spawn(move || async move {
            let gate = Gate::new();
            ready(start(config, gate.clone()).await?);
            stop.await;
            gate.close();
            gate.drained().await;
            Ok::<(), StartError>(())
        });
    match executor.map(glommio::ExecutorJoinHandle::join) {
        Ok(Ok(Ok(()))) => 0,
        Ok(Ok(Err(error))) => failed(&error),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> i32 {
    eprintln!("uringmq namesrv: {error}");
    1
}
