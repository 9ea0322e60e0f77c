//! From a configuration to a serving broker, and back: which role runs on which core, in what order things open and close.
use crate::config::{BrokerConfig, BrokerRole, FlushDiskType};
use crate::control::{self, Control};
use crate::handlers::{offset, stats};
use crate::mesh::{Mesh, Wires};
use crate::placement::ShardId;
use crate::replicas::{Agent, Kept, Replicas, Role, Told, Who};
use crate::replication::sync_set::{self, Switch};
use crate::replication::{self, Replication, epoch_file};
use crate::shard::appends::Appends;
use crate::shard::requests_in::BrokerService;
use crate::shard::{self, Marks, Shard};
use crate::stages::Stages;
use crate::stop_signal::{self, StopHandle};
use crate::writer::copy::Copier;
use crate::writer::{self, Writer, held, upkeep};
use crate::{Index, Io, Log, LogReader, delay, escape, half_message, machine, pop, start_checks, timer};
use glommio::{Latency, LocalExecutorBuilder, Placement, Shares};
use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use uringmq_proto::epochs::Epochs;
use uringmq_proto::message::prop;
use uringmq_remoting::Limits;
use uringmq_remoting::connection::Conns;
use uringmq_remoting::listener::{self, Bound, Spread};
use uringmq_remoting::stop::Gate;
use uringmq_store::checkpoint;
use uringmq_store::cut;
use uringmq_store::io::glommio::OpLog;
use uringmq_store::late_writes;
use uringmq_store::open::{self, Opened, Progress};
use uringmq_store::queue_ends;
use uringmq_store::{EXTENSION_DIR, Extensions, StoreConfig, StoreError};

const RING_DEPTH: usize = 512;
/// A stop that takes longer is cut off: the store never depends on a clean one. Tens of thousands of new queues take tens of seconds to
/// be made on a slow disk.
const STOP_MAX: Duration = Duration::from_secs(60);

/// A server to run beside the broker on shard 0 (standalone: the NameServer). Resolves once it serves; it stops with the gate.
pub type Beside = Box<dyn FnOnce(Rc<Gate>) -> Pin<Box<dyn Future<Output = Result<(), String>>>> + Send>;

pub struct BrokerRun {
    pub config: BrokerConfig,
    pub beside: Option<Beside>,
    pub stop: StopHandle,
    /// Called once everything serves, with the address of the main listener.
    pub ready: Box<dyn FnOnce(SocketAddr) + Send>,
}

/// What every shard's thread is given.
#[derive(Clone)]
struct Parts {
    config: Arc<BrokerConfig>,
    store: StoreConfig,
    opened: Arc<Opened>,
    wires: Wires,
    marks: Arc<Marks>,
    spread: Spread,
    fast_spread: Spread,
    store_host: SocketAddr,
    shards: u16,
    writer_shard: ShardId,
    ha_shard: ShardId,
    /// Controller mode.
    replicas: Option<(Replicas, Epochs)>,
    memory_bytes: u64,
    stop: StopHandle,
    outcome: flume::Sender<Result<(), String>>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The process's exit code.
    Status(i32),
    /// It stopped in order, to start over: the log's end is to be cut off, or the role is another one. The next start gets this variable of the
    /// environment.
    Again { variable: &'static str, value: String },
}

/// Runs the broker until it is stopped.
pub fn run(run: BrokerRun) -> Ended {
    let stop = run.stop.clone();
    match try_run(run) {
        Ok(kept) if stop.again() => Ended::Again { variable: Kept::VARIABLE, value: kept.hand_on() },
        Ok(_) => Ended::Status(0),
        Err(text) => {
            error!("{text}");
            eprintln!("uringmq broker: {text}");
            Ended::Status(1)
        }
    }
}

fn try_run(run: BrokerRun) -> Result<Kept, String> {
    let started = Instant::now();
    machine::small_pages();
    let BrokerRun { mut config, beside, stop, ready } = run;
    let cpus = allowed_cpus(&config);
    let shards = config.shard_count(cpus.len());
    machine::COOPERATIVE_RINGS.store(shards == 1 && config.spin_before_park_us == 0, Ordering::Relaxed);
    let checked =
        start_checks::check(shards, &config.store_root, &[&config.commit_log_dir]).map_err(|e| e.to_string())?;
    checked.warnings.iter().for_each(|text| warn!("{text}"));
    let mut lock = checked.lock; // held until the process ends its work
    if let Err(e) = lock.guard(&config.commit_log_dir) {
        warn!(error = %e, "nothing but the lock keeps an Apache broker off this store while it is open");
    }
    late_writes::wait(&config.commit_log_dir).map_err(|e| e.to_string())?;
    let bound = bind(config.listen_addr())?;
    let fast = if config.listen_port == 0 { None } else { Some(bind(config.fast_listen_addr())?) };
    let mut store = config.to_store_config();
    if store.extensions == Extensions::None && store.root.join(EXTENSION_DIR).is_dir() {
        store.extensions = Extensions::Read; // an earlier run wrote units
    }
    let opened = open_store(&config, &store, cpus[0])?;
    let replicas = match config.controller_mode {
        false => None,
        true => match take_role(&mut config, &opened, bound.addr.port(), cpus[0], &stop)? {
            Some(taken) => Some(taken),
            None => return Ok(Kept::default()),
        },
    };
    let ha = match config.role {
        BrokerRole::Slave => None,
        _ => Some(bind_ha(&mut config)?),
    };
    store.topic_forms.clear(); // recovery's
    let cores = place(&config, &cpus, shards);
    let (outcome, outcomes) = flume::unbounded();
    let spread = spread(&config, shards, cores.writer as usize);
    let parts = Parts {
        store_host: config.store_host(bound.addr.port()),
        memory_bytes: machine::memory_bytes(),
        config: Arc::new(config),
        marks: Arc::new(Marks {
            min: AtomicU64::new(opened.min.0),
            written: AtomicU64::new(opened.end.0),
            durable: AtomicU64::new(opened.end.0),
            readable: AtomicU64::new(opened.end.0),
            checkpointed: AtomicU64::new(opened.covered.0),
            // Above nothing that was acknowledged: it only answers what is written from now on.
            replicated: AtomicU64::new(if replicas.is_some() { opened.end.0 } else { 0 }),
            confirmed: AtomicU64::new(opened.end.0),
            in_sync: AtomicU64::new(replicas.as_ref().map_or(0, |(of, _)| of.first.set.len() as u64)),
            following: AtomicU64::new(0),
            slaves: AtomicU64::new(0),
            disk_full: AtomicU64::new(0),
            disk_early: AtomicU64::new(0),
            disk_hours_left: AtomicU64::new(u64::MAX),
        }),
        store,
        opened: Arc::new(opened),
        wires: Wires::new(shards as u16),
        spread: spread(),
        fast_spread: spread(),
        shards: shards as u16,
        writer_shard: cores.writer,
        ha_shard: replication::shard_of(shards as u16, cores.writer),
        replicas: replicas.clone(),
        stop,
        outcome,
    };
    let (mut first, mut ha) = (Some((bound, fast, beside, ready, started)), ha);
    let mut threads = Vec::with_capacity(shards);
    for id in 0..shards as u16 {
        let parts = parts.clone();
        let extra = if id == 0 { first.take() } else { None };
        let ha = if id == parts.ha_shard { ha.take() } else { None };
        let spin = Duration::from_micros(parts.config.spin_before_park_us);
        let thread = LocalExecutorBuilder::new(Placement::Fixed(cores.cpus[id as usize]))
            .name(&format!("shard-{id}"))
            .io_memory(start_checks::IO_MEMORY_BYTES)
            .ring_depth(RING_DEPTH)
            .spin_before_park(spin)
            .spawn(move || run_shard(id, parts, extra, ha))
            .map_err(|e| format!("executor of shard {id}: {e}"))?;
        threads.push(thread);
    }
    drop(parts.outcome);
    let mut result = Ok(());
    while let Ok(outcome) = outcomes.recv() {
        if let Err(text) = outcome {
            // A shard that could not start cannot stop in order either: nothing was served yet.
            result = Err(text);
            break;
        }
    }
    if result.is_ok() {
        for thread in threads {
            if thread.join().is_err() {
                result = Err("a shard ended in a panic".into());
            }
        }
    }
    // It was alive for the controller up to here, and where it starts over it stays so.
    result.map(|()| replicas.map(|(replicas, _)| replicas.end()).unwrap_or_default())
}

/// Controller mode: waits for a role, and brings configuration and epochs into line with it. `None` when a stop was asked for meanwhile.
fn take_role(
    config: &mut BrokerConfig,
    opened: &Opened,
    port: u16,
    cpu: usize,
    stop: &StopHandle,
) -> Result<Option<(Replicas, Epochs)>, String> {
    let end = opened.end.0;
    let read = epoch_file::read(&config.store_root).map_err(|e| e.to_string())?;
    let mut own = read.clone();
    own.cut(end);
    let told = Arc::new(Told::default());
    told.set_log(end, end);
    told.epoch.store(own.last().map_or(0, |last| last.epoch.into()), Ordering::Relaxed);
    let who = Who {
        cluster: config.cluster_name.clone(),
        broker: config.broker_name.clone(),
        address: config.store_host(port),
    };
    let newest = read.last().map(|last| last.epoch); // also where the log has lost its bytes
    let Some((role, replicas)) = Agent::start(config, who, told.clone(), newest, stop)? else { return Ok(None) };
    let epochs = epoch_file::in_role(read.clone(), end, &role).map_err(|e| e.to_string())?;
    if epochs != read {
        save_epochs(config, &epochs, cpu)?;
    }
    told.epoch.store(epochs.last().map_or(0, |last| last.epoch.into()), Ordering::Relaxed);
    (config.role, config.broker_id) = match role {
        Role::Master { .. } => (BrokerRole::SyncMaster, 0),
        Role::Slave => (BrokerRole::Slave, replicas.id),
    };
    Ok(Some((replicas, epochs)))
}

fn save_epochs(config: &BrokerConfig, epochs: &Epochs, cpu: usize) -> Result<(), String> {
    let (root, epochs) = (config.store_root.clone(), epochs.clone());
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name("epochs")
        .io_memory(start_checks::IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .spawn(move || async move {
            let saved = epoch_file::save(&Io::starting(), &root, &epochs).await;
            saved.map_err(|e| format!("the epochs of the log cannot be saved: {e}"))
        })
        .map_err(|e| format!("executor of the epochs: {e}"))?
        .join()
        .map_err(|e| format!("saving the epochs ended: {e}"))?
}

fn bind(addr: SocketAddr) -> Result<Bound, String> {
    listener::bind(addr)
        .map_err(|e| format!("cannot listen on {addr}: {e} (listenPort, or listenPort - 2 for the fast port)"))
}

/// Where slaves connect. With a free port for clients (tests) it is a free one too.
fn bind_ha(config: &mut BrokerConfig) -> Result<Bound, String> {
    let mut addr = config.listen_addr();
    addr.set_port(config.ha_listen_port);
    let bound = listener::bind(addr).map_err(|e| format!("cannot listen for slaves on {addr}: {e} (haListenPort)"))?;
    config.ha_listen_port = bound.addr.port();
    Ok(bound)
}

/// Which core each shard runs on.
struct Cores {
    cpus: Vec<usize>,
    writer: ShardId,
}

/// Who gets the connections: with many cores the log alone keeps the writer's busy, with few every one is needed.
fn spread(config: &BrokerConfig, shards: usize, writer: usize) -> impl Fn() -> Spread + use<> {
    let serves = match config.writer_connections {
        -1 => shards <= WRITER_SERVES_MAX_SHARDS,
        wanted => wanted == 1,
    };
    move || if serves || shards == 1 { Spread::preferring(shards, writer) } else { Spread::sparing(shards, writer) }
}

fn allowed_cpus(config: &BrokerConfig) -> Vec<usize> {
    if config.cpu_set.0.is_empty() { machine::usable_cpus() } else { config.cpu_set.0.clone() }
}

/// The writer goes to the core that takes the disk's interrupt: there it makes room for the kernel's completion worker whenever it
/// waits, while a busy stranger would delay that worker by a scheduler tick.
fn place(config: &BrokerConfig, cpus: &[usize], shards: usize) -> Cores {
    let wanted = match config.writer_cpu {
        cpu if cpu >= 0 => Some(cpu as usize),
        _ => start_checks::disk_interrupt_cpu(&config.commit_log_dir),
    };
    let on: Vec<usize> = match (shards, wanted) {
        (1, Some(cpu)) if cpus.contains(&cpu) || config.writer_cpu >= 0 => vec![cpu],
        _ => (0..shards).map(|i| cpus[i % cpus.len()]).collect(),
    };
    let writer = on.iter().position(|c| Some(*c) == wanted).unwrap_or(shards - 1);
    info!(cores = ?on, writer_core = on[writer], "roles placed");
    Cores { writer: writer as ShardId, cpus: on }
}

/// Recovery, on an executor of its own that ends with it.
fn open_store(config: &BrokerConfig, store: &StoreConfig, cpu: usize) -> Result<Opened, String> {
    let (config, mut store) = (config.clone(), store.clone());
    // A slave may be told only later that it is one.
    let slave = config.role == BrokerRole::Slave || config.controller_mode;
    let timers = timer::files_of(&config);
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name("recovery")
        .io_memory(start_checks::IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .spawn(move || async move {
            let io = Io::starting();
            let started = Instant::now();
            let show = |p: Progress| {
                let (done, of) = ((p.at.0 - p.from.0) >> 20, (p.to.0 - p.from.0) >> 20);
                info!(at = %p.at, done_mib = done, of_mib = of, mib_per_s = p.bytes_per_s >> 20, "recovering");
            };
            if !slave {
                withdraw_cut(&io, &store).await.map_err(|e| e.to_string())?;
            }
            store.topic_forms = control::topic_forms(&io, &config).await.map_err(|e| e.to_string())?;
            let opened = open::open(io.clone(), &store, show).await.map_err(|e| e.to_string())?;
            if opened.report.ordered_cut.is_some() {
                timer::cut(&io, &timers, &opened).await.map_err(|e| e.to_string())?;
            }
            checkpoint::mark_running(&io, &store.root).await.map_err(|e| e.to_string())?;
            info!(
                min = %opened.min, end = %opened.end, clean = opened.clean, queues = opened.queues.len(),
                scanned = opened.report.scanned_bytes, ms = started.elapsed().as_millis() as u64, "store open"
            );
            Ok(opened)
        })
        .map_err(|e| format!("executor of recovery: {e}"))?
        .join()
        .map_err(|e| format!("recovery ended: {e}"))?
}

/// Only a slave gets back from a master what is cut.
async fn withdraw_cut(io: &Io, store: &StoreConfig) -> Result<(), StoreError> {
    let Some(order) = cut::read(io, &store.root).await? else { return Ok(()) };
    warn!(
        at = order.at,
        why = order.why,
        "the end of the log was to be cut off; it stays, since this broker is no slave"
    );
    cut::done(io, &store.root).await
}

/// Up to so many shards the writer's core serves connections too (`writerConnections=-1`).
const WRITER_SERVES_MAX_SHARDS: usize = 3;

type First = (Bound, Option<Bound>, Option<Beside>, Box<dyn FnOnce(SocketAddr) + Send>, Instant);

async fn run_shard(id: ShardId, parts: Parts, first: Option<First>, ha: Option<Bound>) {
    let outcome = parts.outcome.clone();
    match start_shard(id, &parts).await {
        Ok(shard) => {
            if let Some(ha) = ha {
                glommio::spawn_local(replication::master::serve(shard.clone(), ha)).detach();
            }
            if id == parts.ha_shard && parts.replicas.is_some() {
                glommio::spawn_local(sync_set::watch(shard.clone())).detach();
                glommio::spawn_local(sync_set::tell(shard.clone())).detach();
                if !shard.follows() {
                    glommio::spawn_local(sync_set::check(shard.clone())).detach();
                }
            }
            serve(shard, parts, first).await;
        }
        Err(text) => {
            let _ = outcome.send(Err(text));
        }
    }
}

async fn start_shard(id: ShardId, parts: &Parts) -> Result<Rc<Shard>, String> {
    let io = Io::new();
    let config = &parts.config;
    let opened = &parts.opened;
    let mut log = None;
    let mut writer = None;
    if id == parts.writer_shard {
        let ops = (!config.operation_log_path.is_empty()).then(OpLog::default);
        let log_io = ops.clone().map_or_else(|| io.clone(), Io::recording);
        let mut appender = Log::open(log_io, &parts.store, opened.min, opened.end).await.map_err(|e| e.to_string())?;
        appender.set_store_timestamp_min(opened.last_store_timestamp_ms);
        let keeper = appender.keeper();
        let copier = match config.role {
            BrokerRole::Slave => Some(Copier::new(appender, opened.end)),
            _ => {
                log = Some(appender);
                None
            }
        };
        writer = Some(Writer::new(keeper, ops, copier));
    }
    let index = match id == 0 && config.index_enabled {
        true => Some(open_index(&io, parts).await.map_err(|e| e.to_string())?),
        false => None,
    };
    let control = match id {
        0 => Some(Control::load(&io, config, &opened.queues).await.map_err(|e| e.to_string())?),
        _ => None,
    };
    let stamp = stamp(config);
    let switch = || parts.replicas.clone().map(|(replicas, epochs)| Switch::new(replicas, epochs));
    let shard = Rc::new(Shard {
        id,
        shards: parts.shards,
        writer_shard: parts.writer_shard,
        ha_shard: parts.ha_shard,
        // A copy a core: its counter is touched on every request.
        config: RefCell::new(Arc::new(BrokerConfig::clone(config))),
        store_host: parts.store_host,
        memory_bytes: parts.memory_bytes,
        mesh: Mesh::new(id, &parts.wires),
        conns: Rc::new(Conns::default()),
        gate: Gate::new(),
        doors: Gate::new(),
        topics: RefCell::default(),
        mappings: RefCell::default(),
        groups: RefCell::default(),
        marks: parts.marks.clone(),
        reader: LogReader::new(io.clone(), &parts.store),
        tail: RefCell::new(shard::tail_cache::TailCache::new(config.tail_cache_bytes)),
        appends: Appends::new(parts.store.delay_levels_ms.clone(), stamp),
        queues: shard::queues::Queues::new(io.clone(), parts.store.clone()),
        offsets: shard::offsets::Offsets::default(),
        dispatch: shard::dispatch::Cursor::new(opened.end, opened.last_store_timestamp_ms),
        group_filters: RefCell::default(),
        filters: uringmq_filter::Cache::default(),
        counters: shard::Counters::default(),
        stages: Stages::default(),
        delay: delay::Delay::default(),
        escape: Default::default(),
        half_messages: half_message::HalfMessages::default(),
        timer: timer::Timers::default(),
        pop: pop::Pop::default(),
        figures: stats::Figures::default(),
        control,
        index,
        checkpoint_turn: Default::default(),
        writer,
        replicas: parts.replicas.as_ref().map(|(replicas, _)| replicas.clone()),
        replication: (id == parts.ha_shard).then(|| Replication::new(parts.stop.clone(), switch())),
        io,
    });
    shard.reader.trim(opened.min);
    spawn_roles(&shard, log, config);
    Ok(shard)
}

async fn open_index(io: &Io, parts: &Parts) -> Result<Index, StoreError> {
    let index = Index::open(io.clone(), &parts.store).await?;
    open::index_again(io, &parts.store, &parts.opened, &index).await?;
    Ok(index)
}

/// What every single send gets besides its own properties.
fn stamp(config: &BrokerConfig) -> String {
    let mut text = String::new();
    uringmq_proto::message::push_property(&mut text, prop::MSG_REGION, &config.region_id);
    uringmq_proto::message::push_property(&mut text, prop::TRACE_ON, if config.trace_on { "true" } else { "false" });
    uringmq_proto::message::push_property(&mut text, prop::CLUSTER, &config.cluster_name);
    text
}

fn spawn_roles(shard: &Rc<Shard>, log: Option<Log>, config: &BrokerConfig) {
    let receiving = shard.clone();
    glommio::spawn_local(async move {
        loop {
            receiving.mesh.receive(|msg| receiving.on(msg)).await;
        }
    })
    .detach();
    for to in (0..shard.shards).filter(|to| *to != shard.id) {
        let sending = shard.clone();
        glommio::spawn_local(async move { sending.mesh.run_outbox(to).await }).detach();
    }
    // Background work gets a small share of the core when requests want it.
    let background = glommio::executor().create_task_queue(Shares::Static(100), Latency::NotImportant, "background");
    let _ = glommio::spawn_local_into(shard::upkeep::tick(shard.clone()), background).map(|t| t.detach());
    if shard.writer.is_none() {
        return;
    }
    let sync_flush = config.flush_disk_type == FlushDiskType::SyncFlush;
    match log {
        Some(log) => {
            glommio::spawn_local(writer::run(shard.clone(), log, sync_flush)).detach();
            glommio::spawn_local(held::expire(shard.clone())).detach();
        }
        None => drop(glommio::spawn_local(writer::refuse_appends(shard.clone())).detach()),
    }
    let _ = glommio::spawn_local_into(upkeep::keep_segments(shard.clone()), background).map(|t| t.detach());
    let _ = glommio::spawn_local_into(upkeep::retain(shard.clone()), background).map(|t| t.detach());
    if !sync_flush {
        let _ = glommio::spawn_local_into(upkeep::sync_periodically(shard.clone()), background).map(|t| t.detach());
    }
}

/// Serves until stopped, then closes in order.
async fn serve(shard: Rc<Shard>, parts: Parts, first: Option<First>) {
    for (spread, fast) in [(parts.spread.clone(), false), (parts.fast_spread.clone(), true)] {
        let service = Rc::new(BrokerService { shard: shard.clone(), fast });
        let limits = Limits { idle_ms: parts.config.idle_seconds * 1000, ..Limits::default() };
        glommio::spawn_local(listener::serve(
            spread,
            shard.id,
            shard.conns.clone(),
            service,
            limits,
            shard.doors.clone(),
        ))
        .detach();
    }
    let Some((bound, fast, beside, ready, started)) = first else {
        // The other shards stop when shard 0 has closed what depends on them.
        shard.gate.closed().await;
        return;
    };
    match open_doors(&shard, &parts, bound, fast, beside).await {
        Ok(addr) => {
            info!(%addr, ms = started.elapsed().as_millis() as u64, "broker serves");
            ready(addr);
        }
        Err(text) => {
            let _ = parts.outcome.send(Err(text));
            return;
        }
    }
    parts.stop.wait().await;
    if glommio::timer::timeout(STOP_MAX, async {
        stop(&shard, &parts).await;
        Ok::<(), glommio::GlommioError<()>>(())
    })
    .await
    .is_err()
    {
        warn!("the ordered stop took too long and is cut off; the next start recovers");
        std::process::exit(1);
    }
}

async fn open_doors(
    shard: &Rc<Shard>,
    parts: &Parts,
    bound: Bound,
    fast: Option<Bound>,
    beside: Option<Beside>,
) -> Result<SocketAddr, String> {
    if let (Some((replicas, _)), false) = (&parts.replicas, shard.follows()) {
        shard.control().topics.borrow_mut().begin_epoch(replicas.first.epoch, shard.now_ms());
    }
    shard.control().publish(shard);
    let topics = shard.topics.borrow().clone();
    let opened = parts.opened.clone();
    shard
        .run_on_all(move |s| {
            let (topics, opened) = (topics.clone(), opened.clone());
            async move {
                *s.topics.borrow_mut() = topics.clone();
                s.queues.adopt(&opened.queues, &topics, s.id, s.shards);
            }
        })
        .await;
    set_next_offsets(shard).await;
    control::load_offsets(shard).await.map_err(|e| e.to_string())?;
    pop::load_orders(shard).await.map_err(|e| e.to_string())?;
    if let Some(cut) = &parts.opened.report.ordered_cut {
        settle_cut(shard, &parts.store.root).await.map_err(|e| e.to_string())?;
        info!(at = cut.at, bytes = cut.end - cut.at, records = cut.records, kept = ?cut.kept, "the log's end was cut off");
    }
    if !parts.opened.clean {
        pop::recover::restore(shard).await.map_err(|e| e.to_string())?;
    }
    half_message::start(shard).await.map_err(|e| e.to_string())?;
    if let Some(beside) = beside {
        beside(shard.gate.clone()).await?;
    }
    let addr = bound.addr;
    glommio::spawn_local(listener::accept(bound, parts.spread.clone(), shard.doors.clone())).detach();
    if let Some(fast) = fast {
        glommio::spawn_local(listener::accept(fast, parts.fast_spread.clone(), shard.doors.clone())).detach();
    }
    control::start(shard).await;
    delay::start(shard).await.map_err(|e| e.to_string())?;
    if shard.follows() {
        let following =
            |s: Rc<Shard>| async move { drop(glommio::spawn_local(replication::slave::follow(s)).detach()) };
        shard.run_on(shard.ha_shard, following).await;
        glommio::spawn_local(replication::tables::follow(shard.clone())).detach();
        if escape::may_act(shard) {
            glommio::spawn_local(escape::follow(shard.clone())).detach();
        }
    }
    timer::start(shard, parts.opened.end).await.map_err(|e| e.to_string())?;
    pop::revive::start(shard).await;
    glommio::spawn_local(pop::save_orders_periodically(shard.clone())).detach();
    glommio::spawn_local(stats::sample(shard.clone())).detach();
    glommio::spawn_local(shard::upkeep::checkpoint_periodically(shard.clone())).detach();
    Ok(addr)
}

/// The log was cut: consumer offsets behind the end of their queue would pass over what comes to stand there; they go to the end, where a
/// consumer that comes with one is sent as well. Then all of the cut is done.
async fn settle_cut(shard: &Rc<Shard>, root: &Path) -> Result<(), StoreError> {
    let lowered = shard.run_on_all(|s| async move { s.offsets.lower_to(|key| offset::bounds(&s, key).1) }).await;
    let lowered: usize = lowered.into_iter().sum();
    if lowered > 0 {
        warn!(lowered, "consumer offsets behind the end of their queues were corrected");
    }
    control::persist::save_offsets(shard).await?;
    cut::done(&shard.io, root).await
}

/// Tells the writer where each queue goes on.
async fn set_next_offsets(shard: &Rc<Shard>) {
    let next = shard
        .run_on_all(|s| async move { s.queues.all().iter().map(|q| (q.key, q.cq.max())).collect::<Vec<_>>() })
        .await;
    shard
        .run_on(shard.writer_shard, move |s| async move {
            let writer = s.writer.as_ref().expect("asked of the writer shard");
            writer.set_next(next.into_iter().flatten().collect());
        })
        .await;
}

/// Listeners and requests, then the writer, then what is derived from the log, then the tables, then the clean mark.
async fn stop(shard: &Rc<Shard>, parts: &Parts) {
    shard
        .run_on_all(|s| async move {
            s.doors.close();
            for queue in s.queues.all_holding() {
                s.release_held(&queue);
            }
        })
        .await;
    control::unregister(shard).await;
    shard.run_on_all(|s| async move { s.conns.for_each(|c| c.close("the broker stops")) }).await;
    if let Err(e) = half_message::flush_ops(shard).await {
        warn!(error = %e, "ended transactions not noted; some producers will be asked again");
    }
    shard
        .run_on(shard.writer_shard, |s| async move {
            let writer = s.writer.as_ref().expect("asked of the writer shard");
            writer.stop().await;
            // Nobody reads any more, and the derived files end where the log does.
            writer.unconfirmed.release(&s, u64::MAX);
            let path = s.config.borrow().operation_log_path.clone();
            if let Some(ops) = &writer.ops
                && let Err(e) = std::fs::write(&path, ops.text())
            {
                error!(error = %e, path, "operationLogPath is not written");
            }
        })
        .await;
    settle(shard).await;
    delay::log_totals(shard);
    half_message::log_totals(shard);
    timer::log_totals(shard);
    shard.run_on_all(|s| async move { pop::log_totals(&s) }).await;
    let mut clean = true;
    if let Err(e) = shard::upkeep::write_checkpoint(shard).await {
        error!(error = %e, "derived files not flushed; the next start rebuilds them");
        clean = false;
    }
    if let Err(e) = timer::save(shard, true).await {
        warn!(error = %e, "progress of timers not saved; some will be delivered again");
    }
    if let Err(e) = pop::save_orders(shard).await {
        warn!(error = %e, "ordered pops not saved; some messages may be given twice");
    }
    if let Err(e) = control::save_all(shard).await {
        error!(error = %e, "tables not saved");
        clean = false;
    }
    if clean {
        if let Err(e) = note_queue_ends(shard, &parts.store.root).await {
            warn!(error = %e, "ends of queues not noted; a next start may overlook lost queue files");
        }
        match checkpoint::mark_clean(&shard.io, &parts.store.root).await {
            Ok(()) => info!("stopped clean"),
            Err(e) => error!(error = %e, "clean mark not set; the next start recovers"),
        }
    }
    stop_signal::note_done();
    shard.run_on_all(|s| async move { s.gate.close() }).await;
}

/// Where all queues end, by which the next start sees that files of a queue were lost or zeroed (known fault S12).
async fn note_queue_ends(shard: &Rc<Shard>, root: &Path) -> Result<(), StoreError> {
    let ends = shard.run_on_all(|s| async move {
        let all = s.queues.all();
        all.iter().map(|q| (q.topic.name.clone(), q.key.queue, q.cq.max())).collect::<Vec<_>>()
    });
    let ends: Vec<_> = ends.await.into_iter().flatten().collect();
    let checkpoint = checkpoint::read(&shard.io, root).await?;
    let ends = ends.iter().map(|(topic, queue, max)| (&**topic, *queue, *max));
    queue_ends::write(&shard.io, root, &checkpoint, ends).await
}

/// Waits until every shard's cursor has reached the end of the log.
async fn settle(shard: &Rc<Shard>) {
    shard
        .run_on_all(|s| async move {
            while s.dispatch.at() < s.marks.readable() {
                s.start_catch_up();
                s.dispatch.moved.wait().await;
            }
        })
        .await;
}
