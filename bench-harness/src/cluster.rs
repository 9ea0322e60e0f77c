//! `bench cluster`: a group of three brokers under three controllers and two NameServers, each in a network namespace of its own on
//! this machine, while nodes are killed, paused, cut off and slowed down. Producers and consumers write down what happened, and a checker
//! decides: see [`check`]. It needs root and iproute2, for some faults mkfs.ext4 and loop devices.
//!
//! The main thread makes the faults, one at a time; all clients run on one executor. A seed decides which faults come, not when what
//! follows from them happens.
mod check;
mod client;
mod disk;
mod history;
mod nemesis;
mod net;
mod nodes;
mod readback;
mod report;

use crate::error::BenchError;
use crate::on_executor;
use crate::peer::{Caller, mix, now_ms};
use check::{Replica, Rules, check};
use clap::Args;
use client::{Orders, Plan, TOPIC};
use disk::Disk;
use history::{Event, History, Live};
use nemesis::{Dice, Fault, Kind};
use net::Net;
use nodes::{BROKERS, NodeId, Nodes, Role, Setting, node_dir};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Set by SIGINT and SIGTERM: the run ends, and what it started with it.
static STOPPED: AtomicBool = AtomicBool::new(false);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest wait for the group to be whole: at the start, and after a fault.
const WHOLE_MAX: Duration = Duration::from_secs(90);
/// Longest wait for a new master after a fault that is to bring one.
const MASTER_MAX: Duration = Duration::from_secs(60);
/// Slaves copy topics and groups from the master every 5 s.
const TABLES_COPIED: Duration = Duration::from_secs(11);
/// Producers have ended when nothing was sent for so long, consumers when nothing was consumed.
const SILENCE_MS: i64 = 4000;

#[derive(Args, Debug, Clone)]
pub(crate) struct ClusterArgs {
    /// The binary of the nodes; by default this one
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// Where configurations, stores, logs and the history go; what it has of an earlier run is removed
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Seconds of faults
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Go on until so many masters were followed by others, and let all faults be of the master (then --seconds is the most it may take)
    #[arg(long)]
    failovers: Option<u32>,
    /// Kinds of faults, which come in this order over and over
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kill,pause,partition,one-way,slow")]
    nemesis: Vec<Kind>,
    /// For the faults; told in the output
    #[arg(long)]
    seed: Option<u64>,
    /// allAckInSyncStateSet=false: what is lost is measured, and is no violation
    #[arg(long = "async")]
    asynchronous: bool,
    /// A line more in every broker's configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Producers; each sends one message after the other
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    producers: u32,
    /// Milliseconds between two sends of a producer
    #[arg(long, default_value_t = 10)]
    pause_ms: u64,
    /// Queues of the topic, each with a consumer
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
    /// Largest body in bytes
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(12..=65536))]
    size: u32,
    /// Seconds of commits, before the last one, that a consumer may have to repeat after a failover
    #[arg(long, default_value_t = 15)]
    window_secs: u32,
    /// In front of the names of namespaces, links and cgroups; runs at the same time need different ones, and different subnets
    #[arg(long, default_value = "uq", value_parser = prefix)]
    prefix: String,
    /// The subnet of the nodes: three numbers of a /24
    #[arg(long, default_value = "10.231.77", value_parser = subnet)]
    subnet: Subnet,
    /// MiB of each broker's disk, where a fault of disks is among the faults
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..))]
    disk_mib: u32,
}

#[derive(Clone, Copy, Debug)]
struct Subnet([u8; 3]);

fn subnet(text: &str) -> Result<Subnet, String> {
    let parts: Option<Vec<u8>> = text.split('.').map(|part| part.parse().ok()).collect();
    let parts = parts.and_then(|parts| <[u8; 3]>::try_from(parts).ok());
    parts.map(Subnet).ok_or_else(|| "not three numbers like 10.231.77".to_owned())
}

fn prefix(text: &str) -> Result<String, String> {
    let good = (1..=8).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase());
    if good { Ok(text.to_owned()) } else { Err("not one to eight small letters".to_owned()) }
}

pub(crate) fn main(args: ClusterArgs) -> Result<(), BenchError> {
    catch_signals();
    let seed = args.seed.unwrap_or_else(|| mix(now_ms() as u64) % 1_000_000);
    println!("seed {seed}, {} nodes below {}", NodeId::everybody().len(), args.dir.display());
    let nodes = prepare(&args)?;
    let history = Arc::new(History::create(&args.dir.join("history.jsonl"))?);
    let mut run = Run::start(args, nodes, history)?;
    run.begin()?;
    let fallen = run.faults(Dice(mix(seed)))?;
    let (replicas, mut wrong) = run.end()?;
    wrong.extend(fallen);
    let events = run.history.finish()?;
    let rules = Rules { nothing_lost: !run.args.asynchronous, window_ms: i64::from(run.args.window_secs) * 1000 };
    let master = run.history.live().master.unwrap_or_default();
    let verdict = check(&events, &replicas, master, &rules);
    report::print(&events, &verdict, run.history.live().failovers, seed);
    wrong.iter().for_each(|text| println!("VIOLATION: {text}"));
    let violations = verdict.violations + wrong.len() as u64;
    if violations == 0 {
        return Ok(());
    }
    let history = run.args.dir.join("history.jsonl");
    Err(BenchError::Wrong(format!("{violations} violations with seed {seed}; the history: {}", history.display())))
}

/// Namespaces, disks and configurations.
fn prepare(args: &ClusterArgs) -> Result<Nodes, BenchError> {
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return Err(BenchError::Process("network namespaces need root".to_owned()));
    }
    let io = |path: &PathBuf| BenchError::io(path.display().to_string());
    fs::create_dir_all(&args.dir).map_err(io(&args.dir))?;
    let dir = fs::canonicalize(&args.dir).map_err(io(&args.dir))?;
    let bin = match &args.bin {
        Some(bin) => fs::canonicalize(bin).map_err(io(bin))?,
        None => std::env::current_exe().map_err(BenchError::io("the path of this binary"))?,
    };
    let hosts: Vec<u8> = NodeId::everybody().into_iter().map(NodeId::host).collect();
    let net = Net::make(&args.prefix, args.subnet.0, &hosts)?;
    let mut disks = Vec::new();
    for id in NodeId::everybody() {
        let place = node_dir(&dir, id);
        if id.role == Role::Broker {
            disk::unmount(&place);
        }
        for file in
            [place.clone(), place.with_extension("log"), place.with_extension("conf"), place.with_extension("img")]
        {
            let removed = if file.is_dir() { fs::remove_dir_all(&file) } else { fs::remove_file(&file) };
            removed.or_else(|error| if file.exists() { Err(error) } else { Ok(()) }).map_err(io(&file))?;
        }
        if id.role == Role::Broker && args.nemesis.iter().any(|kind| kind.needs_disk()) {
            disks.push(Disk::make(&place, args.disk_mib, &format!("{}{}", args.prefix, id.host()))?);
        }
    }
    if args.nemesis.contains(&Kind::SlowDisk) && !disks.iter().all(Disk::can_be_slow) {
        return Err(BenchError::Process(
            "this kernel has no control of a cgroup's writes: leave slow-disk out".to_owned(),
        ));
    }
    let mut more = format!("allAckInSyncStateSet={}\n", !args.asynchronous);
    args.set.iter().for_each(|line| more += &format!("{line}\n"));
    Nodes::new(Setting { bin, dir, more }, net, disks)
}

struct Run {
    args: ClusterArgs,
    nodes: Nodes,
    history: Arc<History>,
    orders: Arc<Orders>,
    clients: Option<JoinHandle<Result<(), BenchError>>>,
}

impl Run {
    /// Starts nodes and clients; the clients only watch.
    fn start(args: ClusterArgs, mut nodes: Nodes, history: Arc<History>) -> Result<Run, BenchError> {
        for id in NodeId::everybody() {
            nodes.start(id)?;
        }
        let orders = Arc::new(Orders::default());
        let addresses = |role| NodeId::all(role).map(|id| nodes.at(id)).collect();
        let plan = Plan {
            brokers: addresses(Role::Broker),
            controllers: addresses(Role::Controller),
            namesrvs: addresses(Role::Namesrv),
            queues: args.queues,
            producers: args.producers,
            pause: Duration::from_millis(args.pause_ms),
            size: args.size as usize,
        };
        let (of_clients, to_clients) = (history.clone(), orders.clone());
        let clients = thread::spawn(move || on_executor(None, move || client::run(plan, of_clients, to_clients)));
        Ok(Run { args, nodes, history, orders, clients: Some(clients) })
    }

    /// Looks until `good` holds; `Ok(false)` when it does not in time, an error when the run was stopped.
    fn wait(&self, most: Duration, good: impl Fn(&Live) -> bool) -> Result<bool, BenchError> {
        let deadline = Instant::now() + most;
        while !good(&self.history.live()) {
            if STOPPED.load(Ordering::Relaxed) {
                return Err(BenchError::Process("stopped by a signal".to_owned()));
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    fn rest(&self, time: Duration) -> Result<(), BenchError> {
        self.wait(time, |_| false).map(drop)
    }

    /// Waits for the whole group, makes topic and group, and lets the clients begin.
    fn begin(&mut self) -> Result<(), BenchError> {
        if !self.wait(WHOLE_MAX, |live| live.in_sync == BROKERS && live.master.is_some())? {
            return Err(BenchError::Process(format!("no whole group: {:?}", self.history.live())));
        }
        let (master, queues) = (self.history.live().master.unwrap_or_default(), self.args.queues);
        let master = self.nodes.at(NodeId::broker(master));
        on_executor(None, move || async move {
            let caller = Caller::dial(master).await?;
            caller.create_topic(TOPIC, queues).await?;
            caller.create_group().await?;
            caller.close().await;
            Ok(())
        })?;
        self.rest(TABLES_COPIED)?;
        self.orders.produce.store(true, Ordering::Relaxed);
        self.orders.consume.store(true, Ordering::Relaxed);
        if !self.wait(WHOLE_MAX, |live| live.acknowledged.is_some())? {
            return Err(BenchError::Process("nothing is acknowledged".to_owned()));
        }
        Ok(())
    }

    /// Fault after fault. Gives what is wrong already.
    fn faults(&mut self, mut dice: Dice) -> Result<Vec<String>, BenchError> {
        let mut wrong = Vec::new();
        let end = Instant::now() + Duration::from_secs(self.args.seconds);
        let kinds = self.args.nemesis.clone();
        let mut round = 0;
        while Instant::now() < end && self.args.failovers.is_none_or(|wanted| self.history.live().failovers < wanted) {
            self.rest(Duration::from_millis(1000 + dice.below(2000)))?;
            let Some(master) = self.history.live().master else { continue };
            // A short run has each kind at the master once.
            let masters_only = self.args.failovers.is_some() || round < kinds.len();
            let fault = Fault::choose(&mut dice, kinds[round % kinds.len()], master, masters_only);
            round += 1;
            self.one(&fault, &mut wrong)?;
        }
        Ok(wrong)
    }

    fn one(&mut self, fault: &Fault, wrong: &mut Vec<String>) -> Result<(), BenchError> {
        let before = self.history.live();
        let (broker, at_ms) = ((fault.target.role == Role::Broker).then_some(fault.target.index), now_ms());
        self.history.add(Event::Fault {
            at_ms,
            kind: fault.kind.word(),
            what: fault.to_string(),
            broker,
            of_master: fault.of_master,
        });
        fault.begin(&mut self.nodes)?;
        let other = |live: &Live| live.acknowledged.is_some_and(|(at, by)| at >= at_ms && Some(by) != before.master);
        let changed = fault.of_master && self.wait(MASTER_MAX, other)?;
        let changed_ms = now_ms() - at_ms;
        self.rest(fault.hold)?;
        fault.heal(&mut self.nodes)?;
        for id in self.nodes.fallen() {
            wrong.push(format!("{id} ended by itself during or after: {fault}"));
            self.nodes.start(id)?;
        }
        let healed_ms = now_ms();
        self.rest(Duration::from_millis(500))?;
        let begun = now_ms();
        let whole = |live: &Live| {
            live.in_sync == BROKERS && live.master.is_some() && live.acknowledged.is_some_and(|(at, _)| at >= begun)
        };
        let whole = self.wait(WHOLE_MAX, whole)?;
        let took_ms = now_ms() - healed_ms;
        self.history.add(Event::Healed { at_ms: now_ms(), took_ms: whole.then_some(took_ms) });
        if !whole {
            let live = self.history.live();
            wrong.push(format!(
                "{fault}: the group is not whole {} s after it was healed: {live:?}",
                WHOLE_MAX.as_secs()
            ));
        }
        let outcome = match (fault.of_master, changed) {
            (true, true) => format!("a new master acknowledged after {changed_ms} ms"),
            (true, false) => "no new master".to_owned(),
            _ => "no new master expected".to_owned(),
        };
        let live = self.history.live();
        println!(
            "{:>4} failovers, {:>8} sends: {fault}: {outcome}; whole {took_ms} ms after the healing, epoch {}",
            live.failovers, live.sent, live.epoch
        );
        Ok(())
    }

    /// Lets the clients come to their end and reads back what there is. Gives the replicas, and what is wrong with the logs.
    fn end(&mut self) -> Result<(Vec<Replica>, Vec<String>), BenchError> {
        self.rest(Duration::from_secs(2))?;
        self.orders.produce.store(false, Ordering::Relaxed);
        let silent = |live: &Live| now_ms() - live.active_ms > SILENCE_MS;
        if !self.wait(WHOLE_MAX, silent)? {
            return Err(BenchError::Wrong("the consumers do not come to the end".to_owned()));
        }
        let end = readback::settled(&self.nodes)?;
        self.end_clients()?;
        let replicas = readback::replicas(&self.nodes, self.args.queues)?;
        Ok((replicas, readback::differing_logs(&self.nodes, end)?))
    }

    fn end_clients(&mut self) -> Result<(), BenchError> {
        self.orders.end.store(true, Ordering::Relaxed);
        match self.clients.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(BenchError::Process("the clients' thread panicked".to_owned())),
            None => Ok(()),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.end_clients(); // an error of theirs was told, or another one is
    }
}

fn catch_signals() {
    extern "C" fn stop(_: libc::c_int) {
        STOPPED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores into an atomic and does nothing else.
        unsafe { libc::signal(signal, stop as *const () as libc::sighandler_t) };
    }
}
