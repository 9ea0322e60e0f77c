//! `bench compare`: Apache's broker and ours in turn, on the same machine, disk and cores, under the same load generator (`rmqload`,
//! which is neither's own). Prints the measured table as Markdown.
//!
//! A round is, for each side: a fresh store with ASYNC_FLUSH, then one with SYNC_FLUSH, and the loads of each. After each timed send the
//! topic is read back: as many records as acknowledged, CRCs right, keys found. A server that stores nothing goes along: its figures are
//! the generator's and the machine's own. Starts are measured at last, on a filled store. `--loads pairs` measures a master with its slave.
mod fio;
mod html;
mod loads;
mod pairs;
mod rmqload;
mod sides;
mod table;
mod verify;

use crate::counters::Counters;
use crate::error::BenchError;
use crate::idle;
use crate::on_executor;
use crate::peer::Caller;
use crate::process::Server;
use clap::Args;
use fio::Fio;
use glommio::timer::Timer;
use loads::{Figure, Row, Sends, Work};
use rmqload::{Load, RECORD_BYTES};
use sides::{Flush, Side};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use table::Measured;

const QUEUES: u32 = 8;
const STOP_MAX: Duration = Duration::from_secs(120);
const START_MAX: Duration = Duration::from_secs(600); // Apache with many queues
/// The first seconds after a start.
const FIRST_SECS: f64 = 8.0;
const IDLE_CONNECTIONS: usize = 5000;
/// Of /proc/PID/stat: 100 ticks a second on every architecture (sysconf _SC_CLK_TCK).
const US_PER_TICK: f64 = 10_000.0;
/// Queues of a topic for the starts with many.
const MANY_QUEUES: u32 = 1000;

#[derive(Args, Debug, Clone)]
pub(crate) struct CompareArgs {
    /// The rmqload binary
    #[arg(long)]
    rmqload: PathBuf,
    /// Directory with the jars of Apache's broker and their dependencies
    #[arg(long)]
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
    /// Which loads, with commas: short, all, pairs, or names as in the list that a wrong name brings up
    #[arg(long, default_value = "short", value_parser = loads::chosen)]
    loads: std::vec::Vec<&'static str>,
    /// Who is measured, of apache, uringmq, rust (rocketmq-rust) and null (which stores nothing)
    #[arg(long, value_delimiter = ',', default_values = ["apache", "uringmq", "null"], value_parser = ["apache", "uringmq", "rust", "null"])]
    sides: Vec<String>,
    /// The binary rocketmq-broker-rust, for the side rust
    #[arg(long)]
    rocketmq_rust: Option<PathBuf>,
    /// Size of the store for the starts
    #[arg(long, default_value_t = 4.0)]
    store_gb: f64,
    /// Size of the large store for the starts
    #[arg(long, default_value_t = 20.0)]
    large_gb: f64,
    /// Thousands of queues for the starts with many; Apache's broker holds a file of each open, ours does not
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    many_thousand: u32,
    /// Size of the backlog that is drained cold
    #[arg(long, default_value_t = 7.0)]
    cold_gb: f64,
    /// Also write a report with plots, one file that needs no other
    #[arg(long)]
    html: Option<PathBuf>,
    /// Also put the table between the speed marks of this file
    #[arg(long)]
    readme: Option<PathBuf>,
    /// Lines of JSON instead of the table: one a figure, with all rounds
    #[arg(long)]
    json: bool,
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

/// One side under measurement.
struct Bench<'a> {
    args: &'a CompareArgs,
    side: &'a Side,
    measured: &'a mut Measured,
}

pub(crate) fn main(args: CompareArgs) -> Result<(), BenchError> {
    let mut sides = Vec::new();
    for name in &args.sides {
        sides.push(match name.as_str() {
            "apache" => sides::apache(&args)?,
            "uringmq" => sides::ours(&args)?,
            "rust" => sides::rust(&args)?,
            _ => sides::null(&args)?,
        });
    }
    let mut measured = Measured::default();
    let fio = Fio::on(&args.dir)?;
    if fio.is_none() {
        eprintln!("fio is not installed: nothing to hold syncs and cold reads against");
    }
    // What fails of one side takes nothing from the others, nor from its other rounds.
    let mut failures = Vec::new();
    let mut judge = |side: &Side, outcome: Result<(), BenchError>| {
        if let Err(e) = outcome {
            eprintln!("FAILED, {}: {e}", side.name());
            failures.push(format!("{}: {e}", side.name()));
        }
    };
    for round in 1..=args.rounds {
        for side in &sides {
            eprintln!("round {round} of {}: {}", args.rounds, side.name());
            for work in loads::WORKS {
                let mut bench = Bench { args: &args, side, measured: &mut measured };
                judge(side, bench.work(*work));
            }
        }
        if let Some(fio) = &fio {
            disk(&args, fio, &mut measured)?;
        }
    }
    for side in sides.iter().filter(|side| side.fills()) {
        let mut bench = Bench { args: &args, side, measured: &mut measured };
        judge(side, bench.all_starts());
    }
    let names: Vec<&'static str> = sides.iter().map(Side::name).chain(fio.is_some().then_some(table::FIO)).collect();
    match args.json {
        true => table::print_json(&measured, &names),
        false => println!("{}", table::markdown(&args, &measured, &names)),
    }
    if let Some(path) = &args.html {
        let page = html::page(&args, &measured, &names);
        std::fs::write(path, page).map_err(BenchError::io(format!("writing {}", path.display())))?;
    }
    if let Some(path) = &args.readme {
        table::put_into(path, &table::markdown(&args, &measured, &names))?;
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(BenchError::Process(format!("not all was measured: {}", failures.join("; ")))),
    }
}

/// What the disk gives where a figure of ours is to come near it, as messages a second.
fn disk(args: &CompareArgs, fio: &Fio, measured: &mut Measured) -> Result<(), BenchError> {
    let wants = |load| args.loads.contains(&load);
    let row_of = |key| loads::SENDS.iter().find(|s| s.key == key).map(|s| s.rows[0]).expect("a load of the list");
    if wants("sync-1x1") {
        measured.note(row_of("sync-1x1"), table::FIO, fio.synced_writes_per_s(4096)?);
    }
    if let Some(group_kb) = measured.last(loads::GROUP, "uringmq").filter(|_| wants("sync-8x32")) {
        let bytes = (group_kb * 1024.0 / 4096.0).ceil().max(1.0) * 4096.0;
        let groups = fio.synced_writes_per_s(bytes as u64)?;
        measured.note(row_of("sync-8x32"), table::FIO, groups * group_kb * 1024.0 / RECORD_BYTES);
    }
    if wants("cold") {
        measured.note(loads::COLD[1], table::FIO, fio.read_bytes_per_s()? / RECORD_BYTES);
    }
    Ok(())
}

impl Bench<'_> {
    fn wants(&self, load: &str) -> bool {
        self.args.loads.contains(&load)
    }

    fn note(&mut self, row: Row, value: f64) {
        eprintln!("  {}{}: {value:.3}", row.load, row.figure.told());
        self.measured.note(row, self.side.name(), value);
    }

    fn work(&mut self, work: Work) -> Result<(), BenchError> {
        match work {
            Work::Session(flush) => {
                let sends = loads::SENDS.iter().any(|s| s.flush == flush && self.wants(s.key));
                match sends || (flush == Flush::Async && self.side.stores()) {
                    true => self.session(flush),
                    false => Ok(()),
                }
            }
            Work::Spinning if self.wants(loads::SPINNING.key) => {
                let server = started(self.args, self.side, Flush::Async, true, loads::SPINNING_CONF)?;
                self.sends(&loads::SPINNING, server.pid())?;
                stop(server, libc::SIGTERM)
            }
            Work::Topics if self.wants("topics") && self.side.fills() => self.topics(),
            Work::Cold if self.wants("cold") && self.side.fills() => self.cold(),
            Work::Pairs if self.side.fills() => {
                let wanted = self.args;
                let mut pairings = loads::PAIRINGS.iter().filter(|pairing| wanted.loads.contains(&pairing.key));
                pairings.try_for_each(|pairing| self.pair(pairing))
            }
            Work::Spinning | Work::Topics | Work::Cold | Work::Pairs => Ok(()),
        }
    }

    fn session(&mut self, flush: Flush) -> Result<(), BenchError> {
        let server = started(self.args, self.side, flush, true, &[])?;
        let all_kinds = flush == Flush::Async && self.side.stores();
        if all_kinds && self.wants("memory") {
            self.note(loads::MEMORY_IDLE, memory_kb(server.pid(), "VmRSS")? / 1024.0);
        }
        if all_kinds && self.wants("first") {
            self.first()?;
        }
        if all_kinds && self.wants("idle") {
            self.idle_connections(server.pid())?;
        }
        for sends in loads::SENDS.iter().filter(|s| s.flush == flush && self.args.loads.contains(&s.key)) {
            self.sends(sends, server.pid())?;
        }
        if all_kinds && self.wants("transactions") && self.side.fills() {
            self.transactions()?;
        }
        if all_kinds && self.wants("e2e") {
            self.e2e()?;
        }
        if all_kinds && self.wants("memory") {
            self.note(loads::MEMORY, memory_kb(server.pid(), "VmHWM")? / 1024.0);
        }
        stop(server, libc::SIGTERM)
    }

    fn sends(&mut self, sends: &'static Sends, pid: u32) -> Result<(), BenchError> {
        let load = Load { args: self.args, topic: sends.key, conns: sends.conns };
        load.create()?;
        let grouped = sends.key == "sync-8x32" && self.side.is_ours();
        if grouped {
            stages(self.args)?;
        }
        let costs = self.side.stores() && !sends.costs.is_empty();
        let log_before = if costs { log_end(self.args).ok() } else { None };
        let mut counters = costs.then(|| Counters::attach(pid));
        let before = Costs::of(pid);
        let sent = load.send(self.args.secs, sends.how)?;
        let option = |name: &str| sends.how.iter().skip_while(|w| **w != name).nth(1).and_then(|n| n.parse().ok());
        let batch = option("--batch").unwrap_or(1);
        for row in sends.rows {
            self.note(*row, row.figure.of(&sent));
        }
        self.measured.plot(sends.key, self.side.name(), &sent);
        if !self.side.stores() {
            if sends.key == "closed" && self.wants("drain") {
                self.note(loads::DRAIN, load.drain()?.msg_per_s);
            }
            return Ok(());
        }
        let (after, messages) = (Costs::of(pid), (sent.acknowledged * batch).max(1) as f64);
        let calls = counters.as_mut().and_then(Counters::system_calls).map(|calls| calls as f64 / messages);
        let cycles = counters.as_mut().and_then(Counters::cycles).map(|cycles| cycles as f64 / messages / 1000.0);
        drop(counters);
        let log_after = if costs { log_end(self.args).ok() } else { None };
        let grown =
            log_before.zip(log_after).map(|(from, to)| to.saturating_sub(from) as f64).filter(|grown| *grown > 0.0);
        for row in sends.costs {
            let cost = match row.figure {
                Figure::Cpu => Some((after.cpu_us - before.cpu_us) / messages),
                Figure::SystemCalls => calls,
                Figure::Cycles => cycles,
                _ => grown.map(|grown| (after.disk_bytes - before.disk_bytes) / grown),
            };
            // One that does not tell where its log ends, or that may not be counted, has no such figure.
            if let Some(cost) = cost {
                self.note(*row, cost);
            }
        }
        if grouped && let Some(syncs) = stage(&stages(self.args)?, "5-sync", "count=").filter(|syncs| *syncs > 0.0) {
            self.note(loads::GROUP, messages * RECORD_BYTES / syncs / 1024.0);
        }
        if sends.key == "closed" && self.wants("drain") {
            self.note(loads::DRAIN, load.drain()?.msg_per_s);
        }
        match sends.key {
            "delayed" => Ok(()),               // its messages come later, under another key
            _ if !self.side.fills() => Ok(()), // its figures are told, its store is not ours to judge
            _ => verify::check(self.args, &load, &sent, batch),
        }
    }

    fn first(&mut self) -> Result<(), BenchError> {
        let load = Load { args: self.args, topic: "first", conns: 8 };
        load.create()?;
        let sent = load.send(FIRST_SECS, &["--size", "1024", "--rate", "10000", "--warm", "0"])?;
        for row in loads::FIRST {
            self.note(row, row.figure.of(&sent));
        }
        Ok(())
    }

    fn transactions(&mut self) -> Result<(), BenchError> {
        let what = ["send", "--topic", "transactions", "--conns", "8", "--inflight", "32", "--transactional"];
        let figures = self.bench_figures(&what, &["msg_per_s", "p999_ms"])?;
        for (row, figure) in loads::TRANSACTIONS.into_iter().zip(figures) {
            self.note(row, figure);
        }
        Ok(())
    }

    fn e2e(&mut self) -> Result<(), BenchError> {
        if self.side.is_ours() {
            stages(self.args)?;
        }
        let p999 = self.bench(&["e2e", "--topic", "e2e", "--conns", "8", "--rate", "10000"], "p999_ms")?;
        self.note(loads::E2E, p999);
        if self.side.is_ours()
            && let Some(us) = stage(&stages(self.args)?, "9-wake", "p99=")
        {
            self.note(loads::WAKE, us / 1000.0);
        }
        Ok(())
    }

    /// Sends to one topic and to many, each time on an empty store.
    fn topics(&mut self) -> Result<(), BenchError> {
        for (topics, [open, closed]) in loads::TOPICS {
            let server = started(self.args, self.side, Flush::Async, true, &[])?;
            let count = topics.to_string();
            let send = ["send", "--topic", "topics", "--topics", &count, "--queues", "4", "--conns", "8"];
            let p999 = self.bench(&[&send[..], &["--rate", "10000"]].concat(), "p999_ms")?;
            self.note(open, p999);
            let msg_per_s = self.bench(&[&send[..], &["--inflight", "32"]].concat(), "msg_per_s")?;
            self.note(closed, msg_per_s);
            stop(server, libc::SIGTERM)?;
        }
        Ok(())
    }

    fn bench(&self, what: &[&str], figure: &str) -> Result<f64, BenchError> {
        Ok(self.bench_figures(what, &[figure])?[0])
    }

    /// A load by our own generator, in a process of its own; gives figures of its one round.
    fn bench_figures(&self, what: &[&str], figures: &[&str]) -> Result<Vec<f64>, BenchError> {
        let broker = broker(self.args).to_string();
        let output = Command::new(sides::binary(self.args)?)
            .arg("bench")
            .args(what)
            .args(["--json", "--broker", &broker, "--secs", &self.args.secs.to_string()])
            .output()
            .map_err(BenchError::io("running our own bench"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let line: Option<serde_json::Value> = said.lines().next().and_then(|line| serde_json::from_str(line).ok());
        let found =
            line.and_then(|line| figures.iter().map(|figure| line[*figure].as_f64()).collect::<Option<Vec<_>>>());
        let found = found.filter(|_| output.status.success());
        found.ok_or_else(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            BenchError::Process(format!("bench {}: {said}{errors}", what.join(" ")))
        })
    }

    /// What the server keeps for each of many connections that said one thing and are silent since; before the heavy loads, whose memory comes and goes.
    fn idle_connections(&mut self, pid: u32) -> Result<(), BenchError> {
        let before = memory_kb(pid, "VmRSS")?;
        let sockets = idle::open(broker(self.args), IDLE_CONNECTIONS)?;
        std::thread::sleep(Duration::from_secs(2)); // until all are read
        self.note(loads::IDLE_CONNECTION, (memory_kb(pid, "VmRSS")? - before) / sockets.len() as f64);
        Ok(())
    }

    /// A producer at an even pace while another client drains what no cache holds any more.
    fn cold(&mut self) -> Result<(), BenchError> {
        let server = started(self.args, self.side, Flush::Async, true, &[])?;
        let backlog = Load { args: self.args, topic: "backlog", conns: 8 };
        backlog.create()?;
        backlog.fill(self.args.cold_gb)?;
        stop(server, libc::SIGTERM)?;
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "1"); // needs root; else the page cache helps Apache
        let server = started(self.args, self.side, Flush::Async, false, &[])?;
        answered_after(self.args, &server)?;
        let load = Load { args: self.args, topic: "paced", conns: 8 };
        load.create()?;
        let (paced, drained) = std::thread::scope(|scope| {
            let drain = scope.spawn(|| backlog.drain());
            let paced = load.send(self.args.secs, &["--size", "1024", "--rate", "10000", "--warm", "1"]);
            (paced, drain.join().expect("the drain does not panic"))
        });
        let [latency, drain] = loads::COLD;
        self.note(latency, paced?.p999_ms);
        self.note(drain, drained?.msg_per_s);
        stop(server, libc::SIGTERM)
    }

    fn all_starts(&mut self) -> Result<(), BenchError> {
        let (small, large) = (self.args.store_gb, self.args.large_gb);
        for (name, rows, gb) in [("start", loads::START, small), ("start-large", loads::START_LARGE, large)] {
            if self.wants(name) {
                eprintln!("starts with {gb} GB: {}", self.side.name());
                self.starts(rows, |load| load.fill(gb))?;
            }
        }
        if self.wants("start-queues") {
            let topics = self.args.many_thousand;
            eprintln!("starts with {} queues: {}", topics * MANY_QUEUES, self.side.name());
            self.starts(loads::START_QUEUES, |load| {
                (0..topics).try_for_each(|n| load.fill_queues(&format!("many-{n}"), MANY_QUEUES))
            })?;
        }
        Ok(())
    }

    /// Fills a store and measures starts until the first answer: after clean stops, and after kill -9 under load.
    fn starts(
        &mut self,
        rows: [Row; 2],
        fill: impl FnOnce(&Load<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let [clean, killed] = rows;
        let mut server = started(self.args, self.side, Flush::Async, true, &[])?;
        let load = Load { args: self.args, topic: "filled", conns: 8 };
        load.create()?;
        fill(&load)?;
        for _ in 0..self.args.rounds {
            stop(server, libc::SIGTERM)?;
            server = started(self.args, self.side, Flush::Async, false, &[])?;
            self.note(clean, answered_after(self.args, &server)?);
        }
        for _ in 0..self.args.rounds {
            let mut running = load.start_sending(20.0)?;
            std::thread::sleep(Duration::from_secs(2)); // load before the kill
            stop(server, libc::SIGKILL)?;
            let _ = running.kill();
            let _ = running.wait();
            server = started(self.args, self.side, Flush::Async, false, &[])?;
            self.note(killed, answered_after(self.args, &server)?);
        }
        stop(server, libc::SIGTERM)
    }
}

/// Starts a side and waits until it answers; on an empty store when `fresh`.
fn started(args: &CompareArgs, side: &Side, flush: Flush, fresh: bool, more: &[&str]) -> Result<Server, BenchError> {
    let dir = args.dir.join(side.name());
    if fresh && dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(BenchError::io(format!("removing {}", dir.display())))?;
    }
    let server = Server::start(&side.command(&dir, flush, more)?)?;
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
    first_answer(broker(args), server)
}

fn first_answer(broker: SocketAddr, server: &Server) -> Result<f64, BenchError> {
    let started = server.started;
    let end = server.end();
    let asked = on_executor(None, move || async move {
        while started.elapsed() < START_MAX && !end.is_disconnected() {
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
    let what = || match server.has_ended() {
        true => "ended before it answered".to_owned(),
        false => format!("did not answer within {} s", START_MAX.as_secs()),
    };
    asked.ok_or_else(|| server.failure(&what()))
}

/// A figure of /proc/PID/status, such as VmRSS, in KB.
fn memory_kb(pid: u32, key: &str) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(BenchError::io(path))?;
    let of = |line: &str| line.strip_prefix(key)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse::<f64>().ok();
    status.lines().find_map(of).ok_or_else(|| BenchError::Process(format!("no {key} of process {pid}")))
}

/// What a process has used so far; zeros where the kernel does not tell.
struct Costs {
    /// Written to disks.
    disk_bytes: f64,
    /// On any core, for itself and in the kernel.
    cpu_us: f64,
}

impl Costs {
    fn of(pid: u32) -> Costs {
        let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let bytes = read("io").lines().find_map(|line| line.strip_prefix("write_bytes:")?.trim().parse().ok());
        // Behind the name, which may hold anything: field 3 of proc(5) is the first, utime and stime are 14 and 15.
        let stat = read("stat");
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        Costs { disk_bytes: bytes.unwrap_or_default(), cpu_us: ticks * US_PER_TICK }
    }
}

/// What the broker answers over a connection of its own.
fn asked<T: Send + 'static>(
    broker: SocketAddr,
    ask: impl AsyncFnOnce(&Caller) -> Result<T, BenchError> + Send + 'static,
) -> Result<T, BenchError> {
    on_executor(None, move || async move {
        let caller = Caller::dial(broker).await?;
        let answer = ask(&caller).await;
        caller.close().await;
        answer
    })
}

fn log_end(args: &CompareArgs) -> Result<u64, BenchError> {
    asked(broker(args), Caller::log_end)
}

/// The broker's stages since the last call.
fn stages(args: &CompareArgs) -> Result<Vec<(String, String)>, BenchError> {
    asked(broker(args), Caller::stages)
}

/// A figure of a stage, as `count=` or `p99=` (microseconds) in its line.
fn stage(stages: &[(String, String)], name: &str, figure: &str) -> Option<f64> {
    let (_, told) = stages.iter().find(|(stage, _)| stage == name)?;
    told.split(' ').find_map(|word| word.strip_prefix(figure)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_a_process_are_read() {
        let mine = std::process::id();
        let before = Costs::of(mine);
        let mut work = 0u64;
        let worked = (0..10_000).any(|_| {
            work = (0..1_000_000u64).fold(work, |sum, n| std::hint::black_box(sum ^ n.wrapping_mul(sum | 1)));
            Costs::of(mine).cpu_us > before.cpu_us
        });
        assert!(worked, "no time passed in this process");
        assert_eq!(Costs::of(u32::MAX).cpu_us, 0.0, "no such process");
    }

    #[test]
    fn a_stage_is_read() {
        let stages = [("5-sync".to_owned(), "count=12 p50=3.5 p99=40.1 p99.9=50.0 max=60.2".to_owned())];
        assert_eq!(stage(&stages, "5-sync", "count="), Some(12.0));
        assert_eq!(stage(&stages, "5-sync", "p99="), Some(40.1));
        assert_eq!(stage(&stages, "4-write", "p99="), None);
    }
}
