//! What every shard holds, and `on(msg)`. State is plain fields behind cells that are never borrowed across an await.
pub mod appends;
pub mod dispatch;
pub mod offsets;
pub mod property_filter;
pub mod pulls;
pub mod queues;
pub mod requests_in;
pub mod tail_cache;
pub mod upkeep;

use crate::config::{BrokerConfig, BrokerRole};
use crate::control::Control;
use crate::control::mappings::MappingTable;
use crate::mesh::{Forward, Mesh, Msg};
use crate::placement::{self, ShardId};
use crate::replicas::Replicas;
use crate::replication::Replication;
use crate::requests::Origin;
use crate::snapshot::{FilterTable, GroupTable, Topic, TopicTable};
use crate::stages::{Stage, Stages};
use crate::writer::Writer;
use crate::{Index, Io, LogReader};
use futures_lite::future;
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uringmq_proto::command::Response;
use uringmq_proto::types::{PhyOffset, QueueKey};
use uringmq_remoting::connection::Conns;
use uringmq_remoting::stop::Gate;
use uringmq_store::io::Io as _;
use uringmq_store::turn::Turn;

/// How far the log is, readable on every core. Written by the writer core alone (but for `checkpointed`); each only grows.
#[derive(Debug, Default)]
pub struct Marks {
    pub min: AtomicU64,
    pub written: AtomicU64,
    pub durable: AtomicU64,
    /// Consumers may read up to here: written, or durable with SYNC_FLUSH.
    pub readable: AtomicU64,
    /// Start of the last record that the checkpoint on the disk covers. Written by shard 0.
    pub checkpointed: AtomicU64,
    /// Behind the last byte that as many slaves have as inSyncReplicas asks for. Written by the replication shard.
    pub replicated: AtomicU64,
    /// Controller mode: up to there consumers may read a slave's log. Written by the replication shard.
    pub confirmed: AtomicU64,
    /// Controller mode: members of the SyncStateSet. Written by the replication shard.
    pub in_sync: AtomicU64,
    /// A slave: 1 while its master feeds it. Written by the replication shard.
    pub following: AtomicU64,
    /// Slaves connected. Written by the replication shard.
    pub slaves: AtomicU64,
    /// The disk is nearly full: writes are refused (1) until use falls.
    pub disk_full: AtomicU64,
    /// The disk is so full that topics of `diskRefuseEarlyTopics` are refused (1).
    pub disk_early: AtomicU64,
    /// Hours until it is full at the present rate; `u64::MAX` when that is not known, or never.
    pub disk_hours_left: AtomicU64,
}

impl Marks {
    pub fn min(&self) -> PhyOffset {
        PhyOffset(self.min.load(Ordering::Acquire))
    }
    pub fn readable(&self) -> PhyOffset {
        PhyOffset(self.readable.load(Ordering::Acquire))
    }
    pub fn durable(&self) -> PhyOffset {
        PhyOffset(self.durable.load(Ordering::Acquire))
    }
}

/// Counters of one shard, added up when asked for.
#[derive(Debug, Default)]
pub struct Counters {
    pub put_messages: Cell<u64>,
    pub put_bytes: Cell<u64>,
    pub put_failed: Cell<u64>,
    pub get_messages: Cell<u64>,
    pub get_bytes: Cell<u64>,
    pub get_missed: Cell<u64>,
    /// Messages that a pull passed over by their bit maps.
    pub bits_excluded: Cell<u64>,
}

pub struct Shard {
    pub id: ShardId,
    pub shards: u16,
    /// The shard that has the writer role.
    pub writer_shard: ShardId,
    /// The shard that has the replication role.
    pub ha_shard: ShardId,
    pub config: RefCell<Arc<BrokerConfig>>,
    /// brokerIP1:listenPort, in every record and message id.
    pub store_host: SocketAddr,
    /// Of the machine; Java's measure of what is "in memory".
    pub memory_bytes: u64,
    pub mesh: Mesh,
    pub conns: Rc<Conns>,
    /// Closed last: background tasks end with it.
    pub gate: Rc<Gate>,
    /// Closed first: listeners end with it.
    pub doors: Rc<Gate>,
    pub topics: RefCell<Arc<TopicTable>>,
    /// Of static topics.
    pub mappings: RefCell<Arc<MappingTable>>,
    pub groups: RefCell<Arc<GroupTable>>,
    pub marks: Arc<Marks>,
    pub io: Io,
    pub reader: LogReader,
    pub tail: RefCell<tail_cache::TailCache>,
    pub appends: appends::Appends,
    pub queues: queues::Queues,
    pub offsets: offsets::Offsets,
    pub dispatch: dispatch::Cursor,
    /// What groups filter by, for bit maps.
    pub group_filters: RefCell<Arc<FilterTable>>,
    /// SQL92 expressions that requests brought.
    pub filters: uringmq_filter::Cache,
    pub counters: Counters,
    pub stages: Stages,
    /// How far the delay levels are; shard 0 only.
    pub delay: crate::delay::Delay,
    pub escape: crate::escape::Escape,
    /// Which transactions are open; shard 0 only.
    pub half_messages: crate::half_message::HalfMessages,
    /// Messages that wait for a time of their own; shard 0 only, but for what rings it.
    pub timer: crate::timer::Timers,
    /// Pops that wait, and what is popped just now.
    pub pop: crate::pop::Pop,
    /// What operators ask for beside the counters: samples, the configuration's version; shard 0 only.
    pub figures: crate::handlers::stats::Figures,
    /// Shard 0 only.
    pub control: Option<Control>,
    /// Shard 0 only, when messageIndexEnable.
    pub index: Option<Index>,
    /// Held by whoever writes the checkpoint; shard 0 only.
    pub checkpoint_turn: Turn,
    /// Controller mode.
    pub replicas: Option<Replicas>,
    /// The writer shard only.
    pub writer: Option<Writer>,
    /// The replication shard only.
    pub replication: Option<Replication>,
}

impl Shard {
    pub fn config(&self) -> Arc<BrokerConfig> {
        self.config.borrow().clone()
    }
    pub fn now_ms(&self) -> i64 {
        self.io.now_ms()
    }
    pub fn owner(&self, key: QueueKey) -> ShardId {
        placement::owner(key, self.shards)
    }
    pub fn topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.topics.borrow().get(name).cloned()
    }
    /// A slave: its log is its master's.
    pub fn follows(&self) -> bool {
        self.config.borrow().role == BrokerRole::Slave
    }
    /// A slave's master feeds it just now.
    pub fn master_is_there(&self) -> bool {
        self.marks.following.load(Ordering::Relaxed) != 0
    }
    /// Waits for so long, not longer than until the doors close.
    pub async fn sleep(&self, time: Duration) {
        let timer = async {
            Timer::new(time).await;
        };
        future::or(timer, self.doors.closed()).await;
    }
    /// The control role; only on shard 0, where the request table sends what needs it.
    pub fn control(&self) -> &Control {
        self.control.as_ref().expect("control handlers run on shard 0 only")
    }

    /// Runs `job` on shard `to` and returns what it gave. For slow paths: it allocates. `None` while the process stops.
    pub async fn run_on<T, F, Fut>(self: &Rc<Self>, to: ShardId, job: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Shard>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        if to == self.id {
            return Some(job(self.clone()).await);
        }
        let (tx, rx) = flume::bounded(1);
        self.mesh.push(
            to,
            Msg::Run(Box::new(move |shard: Rc<Shard>| {
                glommio::spawn_local(async move {
                    let _ = tx.send(job(shard).await);
                })
                .detach();
            })),
        );
        rx.recv_async().await.ok()
    }

    /// As `run_on` for every shard in turn; the answers in shard order.
    pub async fn run_on_all<T, F, Fut>(self: &Rc<Self>, job: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(Rc<Shard>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let mut all = Vec::with_capacity(self.shards as usize);
        for to in 0..self.shards {
            let job = job.clone();
            all.extend(self.run_on(to, job).await);
        }
        all
    }

    /// Resolves when every shard has taken what was pushed to it before, as the lanes keep their order. Who is answered after that finds a
    /// change of a table on whichever shard his next connection is.
    pub async fn taken_by_all(self: &Rc<Self>) {
        self.run_on_all(|_| async {}).await;
    }

    /// Answers a request from wherever it was handled. One-way requests and closed connections are dropped silently.
    pub fn respond(&self, origin: Origin, response: Response) {
        if origin.oneway {
            return;
        }
        if origin.conn.shard != self.id {
            self.mesh.push(origin.conn.shard, Msg::Respond(Box::new((origin, response))));
            return;
        }
        if let Some(conn) = self.conns.get(origin.conn) {
            conn.respond(origin.opaque, &response);
        }
    }

    /// The receive loop's body.
    pub fn on(self: &Rc<Self>, msg: Msg) {
        match msg {
            Msg::Append(group) => {
                let way = self.writer.as_ref().expect("appends go to the writer shard").take(group);
                self.stages.took(Stage::ToWriter, way);
            }
            Msg::Appended(acks) => self.on_appended(*acks),
            Msg::Committed(c) => self.on_committed(c),
            Msg::Written(spans) => self.on_written(&spans),
            Msg::Replicated => self.writer.as_ref().expect("told to the writer shard").release(self),
            Msg::Pull(ask) => self.on_pull(*ask),
            Msg::PullFound(found) => self.on_pull_found(*found),
            Msg::Forward(f) => self.on_forward(*f),
            Msg::Respond(answer) => self.respond(answer.0, answer.1),
            Msg::Retry(f) => self.on_retry(*f),
            Msg::Topics(t) => {
                let gone = self.queues.drop_deleted(&t);
                let rebuild = self.follows() && self.queues.drop_changed(&t);
                self.offsets.drop_deleted(&t);
                *self.topics.borrow_mut() = t;
                if rebuild {
                    self.dispatch_again();
                }
                // A topic made anew starts at 0, and this tells whoever waits for the old one (known fault F05).
                gone.iter().for_each(|queue| self.release_held(queue));
                self.rung(None);
            }
            Msg::Groups(g) => *self.groups.borrow_mut() = g,
            Msg::Run(job) => job(self.clone()),
        }
    }

    pub fn forward(&self, to: ShardId, frame: &[u8], origin: Origin) {
        self.mesh.push(to, Msg::Forward(Box::new(Forward { frame: frame.to_vec(), origin })));
    }
}
