//! `bench compare`: Apache's broker and ours in turn, on the same machine, disk and cores, under the same load generator (`rmqload`,
//! which is neither's own). Prints the measured table as Markdown.
//!
//! A round is, for each side: a fresh store with ASYNC_FLUSH (closed loop, drain, open loop), then one with SYNC_FLUSH. After each timed
//! send the topic is read back: as many records as acknowledged, CRCs right, keys found. Starts are measured at last, on a filled store.
mod rmqload;
mod sides;

use crate::error::BenchError;
use crate::on_executor;
use crate::peer::{Caller, PullAsk, mix};
use crate::process::Server;
use crate::pull::{Drain, drain_all};
use crate::report::median;
use clap::Args;
use glommio::timer::Timer;
use rmqload::{Load, Outcome};
use sides::{Flush, Side};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uringmq_proto::message::{prop, property};

const QUEUES: u32 = 8;
const STOP_MAX: Duration = Duration::from_secs(120);
const START_MAX: Duration = Duration::from_secs(180);
/// Keys looked for after each timed send, and how long the index may be behind.
const KEYS_ASKED: u64 = 100;
const INDEX_MAX: Duration = Duration::from_secs(60);

#[derive(Args, Debug, Clone)]
pub(crate) struct CompareArgs {
    /// The rmqload binary
    #[arg(long)]
    rmqload: PathBuf,
    /// Directory with the jars of Apache's broker and their dependencies
    #[arg(long, required_unless_present = "apache_cache")]
    apache_lib: Option<PathBuf>,
    /// Directory to fetch them into by Maven, unless they are there already
    #[arg(long, conflicts_with = "apache_lib")]
    apache_cache: Option<PathBuf>,
    /// Apache's version
    #[arg(long, default_value = "5.5.0")]
    apache_version: String,
    /// Heap of Apache's broker
    #[arg(long, default_value = "4g")]
    heap: String,
    /// Our binary [default: this one]
    #[arg(long)]
    ours: Option<PathBuf>,
    /// Lines added to our configuration, such as shards=2
    #[arg(long)]
    our_conf: Vec<String>,
    /// Directory for stores and logs, on the disk to be measured; what is in it from a run before is replaced
    #[arg(long, default_value = "uringmq-compare")]
    dir: PathBuf,
    /// Rounds, of which the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each load
    #[arg(long, default_value_t = 10.0, value_parser = crate::seconds)]
    secs: f64,
    /// Size of the store for the starts; 0 leaves them out
    #[arg(long, default_value_t = 4.0)]
    store_gb: f64,
    /// Cores of the servers, as taskset takes them
    #[arg(long)]
    server_cpus: Option<String>,
    /// Cores of the load generator
    #[arg(long)]
    load_cpus: Option<String>,
    /// Port of the brokers; its neighbours must be free too
    #[arg(long, default_value_t = 20911)]
    port: u16,
}

/// The rows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Closed,
    Open,
    SyncOne,
    SyncMany,
    Drain,
    Memory,
    StartClean,
    StartKilled,
}

/// How a row is told: its name, its unit, whether more is better, and the ratio or bound that is wanted.
struct Told {
    row: Row,
    name: &'static str,
    unit: &'static str,
    more_is_better: bool,
    wanted: &'static str,
}

const fn told(row: Row, name: &'static str, unit: &'static str, more_is_better: bool, wanted: &'static str) -> Told {
    Told { row, name, unit, more_is_better, wanted }
}

const TOLD: [Told; 8] = [
    told(Row::Closed, "closed loop, 8 connections x 32", "msg/s", true, "4x"),
    told(Row::Open, "open loop 10 k msg/s, p99.9", "ms", false, "1/4"),
    told(Row::SyncOne, "sync flush, 1 x 1", "msg/s", true, "3x"),
    told(Row::SyncMany, "sync flush, 32 x 1", "msg/s", true, "3x"),
    told(Row::Drain, "drain, 8 connections", "msg/s", true, "1.3x"),
    told(Row::Memory, "most resident memory under that load", "MB", false, "< 400 MB"),
    told(Row::StartClean, "start after a clean stop", "s", false, "< 1 s"),
    told(Row::StartKilled, "start after kill -9", "s", false, "< 1 s"),
];

/// What was measured, by row and side.
type Measured = BTreeMap<(Row, &'static str), Vec<f64>>;

pub(crate) fn main(args: CompareArgs) -> Result<(), BenchError> {
    let sides = [sides::apache(&args)?, sides::ours(&args)?];
    let mut measured = Measured::new();
    for round in 1..=args.rounds {
        for side in &sides {
            eprintln!("round {round} of {}: {}", args.rounds, side.name());
            async_session(&args, side, &mut measured)?;
            sync_session(&args, side, &mut measured)?;
        }
    }
    if args.store_gb > 0.0 {
        for side in &sides {
            eprintln!("starts with {} GB: {}", args.store_gb, side.name());
            starts(&args, side, &mut measured)?;
        }
    }
    println!("{}", table(&args, &sides, &measured));
    Ok(())
}

fn note(measured: &mut Measured, row: Row, side: &Side, value: f64) {
    eprintln!("  {row:?}: {value:.3}");
    measured.entry((row, side.name())).or_default().push(value);
}

fn async_session(args: &CompareArgs, side: &Side, measured: &mut Measured) -> Result<(), BenchError> {
    let server = started(args, side, Flush::Async, true)?;
    let load = Load { args, topic: "Closed", conns: 8 };
    load.create()?;
    let closed = load.send(args.secs, &["--inflight", "32"])?;
    note(measured, Row::Closed, side, closed.msg_per_s);
    let drained = load.drain()?;
    check(args, &load, &closed)?;
    note(measured, Row::Drain, side, drained.msg_per_s);
    let load = Load { args, topic: "Open", conns: 8 };
    load.create()?;
    let open = load.send(args.secs, &["--rate", "10000"])?;
    note(measured, Row::Open, side, open.p999_ms);
    check(args, &load, &open)?;
    note(measured, Row::Memory, side, peak_memory_mb(server.pid())?);
    stop(server, libc::SIGTERM)
}

fn sync_session(args: &CompareArgs, side: &Side, measured: &mut Measured) -> Result<(), BenchError> {
    let server = started(args, side, Flush::Sync, true)?;
    for (row, topic, conns) in [(Row::SyncOne, "SyncOne", 1), (Row::SyncMany, "SyncMany", 32)] {
        let load = Load { args, topic, conns };
        load.create()?;
        let sent = load.send(args.secs, &["--inflight", "1"])?;
        note(measured, row, side, sent.msg_per_s);
        check(args, &load, &sent)?;
    }
    stop(server, libc::SIGTERM)
}

/// Fills a store and measures starts until the first answer: after clean stops, and after kill -9 under load.
fn starts(args: &CompareArgs, side: &Side, measured: &mut Measured) -> Result<(), BenchError> {
    let mut server = started(args, side, Flush::Async, true)?;
    let load = Load { args, topic: "Filled", conns: 8 };
    load.create()?;
    load.fill(args.store_gb)?;
    for _ in 0..args.rounds {
        stop(server, libc::SIGTERM)?;
        server = started(args, side, Flush::Async, false)?;
        note(measured, Row::StartClean, side, answered_after(args, &server)?);
    }
    for _ in 0..args.rounds {
        let mut running = load.start_sending(20.0)?;
        std::thread::sleep(Duration::from_secs(2)); // load before the kill
        stop(server, libc::SIGKILL)?;
        let _ = running.kill();
        let _ = running.wait();
        server = started(args, side, Flush::Async, false)?;
        note(measured, Row::StartKilled, side, answered_after(args, &server)?);
    }
    stop(server, libc::SIGTERM)
}

/// Starts a side and waits until it answers; on an empty store when `fresh`.
fn started(args: &CompareArgs, side: &Side, flush: Flush, fresh: bool) -> Result<Server, BenchError> {
    let dir = args.dir.join(side.name());
    if fresh && dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(BenchError::io(format!("removing {}", dir.display())))?;
    }
    let server = Server::start(&side.command(&dir, flush)?)?;
    if fresh {
        answered_after(args, &server)?;
    }
    Ok(server)
}

fn stop(server: Server, signal: libc::c_int) -> Result<(), BenchError> {
    server.signal(signal);
    if server.wait(STOP_MAX) { Ok(()) } else { Err(server.failure("did not end")) }
}

fn broker(args: &CompareArgs) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], args.port))
}

/// Seconds from the server's start to its first answer.
fn answered_after(args: &CompareArgs, server: &Server) -> Result<f64, BenchError> {
    let (broker, started) = (broker(args), server.started);
    let asked = on_executor(None, move || async move {
        while started.elapsed() < START_MAX {
            if let Ok(caller) = Caller::dial(broker).await {
                let answered = caller.min_offset("TBW102", 0).await;
                caller.close().await;
                if answered.is_ok() {
                    return Ok(Some(started.elapsed().as_secs_f64()));
                }
            }
            Timer::new(Duration::from_millis(2)).await;
        }
        Ok(None)
    })?;
    asked.ok_or_else(|| server.failure(&format!("did not answer within {} s", START_MAX.as_secs())))
}

/// Everything acknowledged is there: as many records, with the right CRCs and offsets, and found by their keys.
fn check(args: &CompareArgs, load: &Load<'_>, sent: &Outcome) -> Result<(), BenchError> {
    let (broker, topic, acknowledged) = (broker(args), load.topic.to_owned(), sent.acknowledged);
    let drain =
        Drain { topic: topic.clone(), queues: QUEUES, conns: 8, max_msgs: 32, from: None, follow: None, check: true };
    on_executor(None, move || async move {
        let (tally, _) = drain_all(broker, &drain, |_, _| ()).await?;
        if tally.msgs < acknowledged {
            let found = tally.msgs;
            return Err(BenchError::Wrong(format!("{topic}: {acknowledged} acknowledged, {found} there")));
        }
        let caller = Caller::dial(broker).await?;
        let deadline = Instant::now() + INDEX_MAX;
        for n in 0..KEYS_ASKED {
            let key = some_key(&caller, &topic, n).await?;
            while !caller.knows_key(&topic, &key).await? {
                if Instant::now() > deadline {
                    return Err(BenchError::Wrong(format!("{topic}: message {key} is not found by its key")));
                }
                Timer::new(Duration::from_millis(100)).await;
            }
        }
        caller.close().await;
        Ok(())
    })
}

/// The UNIQ_KEY of the message at a place that looks random, another for each `n`.
async fn some_key(caller: &Caller, topic: &str, n: u64) -> Result<String, BenchError> {
    let queue = (n % QUEUES as u64) as u32;
    let max = caller.max_offset(topic, queue).await?;
    let offset = (mix(n) % max.max(1) as u64) as i64;
    let pulled = caller.pull(topic, &PullAsk { queue, offset, max_msgs: 1, hold: false }).await?;
    let record = pulled.records(true).next().and_then(Result::ok);
    let key = record.and_then(|record| property(record.properties, prop::UNIQ_KEY).map(str::to_owned));
    key.ok_or_else(|| BenchError::Wrong(format!("{topic}: no message with a key at offset {offset} of queue {queue}")))
}

/// The most memory the process had resident so far.
fn peak_memory_mb(pid: u32) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(BenchError::io(path))?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    peak.map(|kb| kb / 1024.0).ok_or_else(|| BenchError::Process(format!("no VmHWM of process {pid}")))
}

fn table(args: &CompareArgs, sides: &[Side; 2], measured: &Measured) -> String {
    let mut out = format!(
        "1 KiB messages, {QUEUES} queues, {} s a load, median of {} rounds (smallest - largest).\n\n| load | Apache {} | UringMQ | ratio | wanted |\n| --- | --- | --- | --- | --- |\n",
        args.secs, args.rounds, args.apache_version
    );
    for told in &TOLD {
        let of = |side: &Side| {
            let mut values = measured.get(&(told.row, side.name()))?.clone();
            values.sort_by(f64::total_cmp);
            Some(values)
        };
        let (Some(apache), Some(ours)) = (of(&sides[0]), of(&sides[1])) else { continue };
        let (theirs, mine) = (median(&apache), median(&ours));
        let ratio =
            if told.more_is_better { format!("{:.2}x", mine / theirs) } else { format!("1/{:.1}", theirs / mine) };
        let unit = told.unit;
        let cell = |values: &[f64]| {
            let (low, high) = (number(values[0]), number(values[values.len() - 1]));
            format!("{} {unit} ({low} - {high})", number(median(values)))
        };
        out += &format!("| {} | {} | {} | {ratio} | {} |\n", told.name, cell(&apache), cell(&ours), told.wanted);
    }
    out
}

/// A number with as many digits as are worth reading.
fn number(value: f64) -> String {
    match value {
        _ if value >= 1000.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn shown(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
