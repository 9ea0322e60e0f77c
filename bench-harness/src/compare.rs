//! `bench compare`: Apache's broker and ours in turn, on the same machine, disk and cores, under the same load generator (`rmqload`,
//! which is neither's own). Prints the measured table as Markdown.
//!
//! A round is, for each side: a fresh store with ASYNC_FLUSH, then one with SYNC_FLUSH, and the loads of each. After each timed send the
//! topic is read back: as many records as acknowledged, CRCs right, keys found. A server that stores nothing goes along: its figures are
//! the generator's and the machine's own. Starts are measured at last, on a filled store.
mod html;
mod loads;
mod rmqload;
mod sides;
mod table;
mod verify;

use crate::error::BenchError;
use crate::on_executor;
use crate::peer::Caller;
use crate::process::Server;
use clap::Args;
use glommio::timer::Timer;
use loads::Row;
use rmqload::Load;
use sides::{Flush, Side};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
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
    /// Which loads, with commas: short, all, or names as in the list that a wrong name brings up
    #[arg(long, default_value = "short", value_parser = loads::chosen)]
    loads: std::vec::Vec<&'static str>,
    /// Who is measured, of apache, uringmq and null (which stores nothing)
    #[arg(long, value_delimiter = ',', default_values = ["apache", "uringmq", "null"], value_parser = ["apache", "uringmq", "null"])]
    sides: Vec<String>,
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
            _ => sides::null(&args)?,
        });
    }
    let mut measured = Measured::default();
    for round in 1..=args.rounds {
        for side in &sides {
            eprintln!("round {round} of {}: {}", args.rounds, side.name());
            Bench { args: &args, side, measured: &mut measured }.round()?;
        }
    }
    for side in sides.iter().filter(|side| side.stores()) {
        Bench { args: &args, side, measured: &mut measured }.all_starts()?;
    }
    let names: Vec<&'static str> = sides.iter().map(Side::name).collect();
    match args.json {
        true => table::print_json(&measured, &names),
        false => println!("{}", table::markdown(&args, &measured, &names)),
    }
    if let Some(path) = &args.html {
        let page = html::page(&args, &measured, &names);
        std::fs::write(path, page).map_err(BenchError::io(format!("writing {}", path.display())))?;
    }
    match &args.readme {
        Some(path) => table::put_into(path, &table::markdown(&args, &measured, &names)),
        None => Ok(()),
    }
}

impl Bench<'_> {
    fn wants(&self, load: &str) -> bool {
        self.args.loads.contains(&load)
    }

    fn note(&mut self, row: Row, value: f64) {
        eprintln!("  {}{}: {value:.3}", row.load, row.figure.told());
        self.measured.note(row, self.side.name(), value);
    }

    fn round(&mut self) -> Result<(), BenchError> {
        for flush in [Flush::Async, Flush::Sync] {
            let sends = loads::SENDS.iter().any(|s| s.flush == flush && self.wants(s.key));
            if sends || (flush == Flush::Async && self.side.stores()) {
                self.session(flush)?;
            }
        }
        if self.wants("cold") && self.side.stores() {
            self.cold()?;
        }
        Ok(())
    }

    fn session(&mut self, flush: Flush) -> Result<(), BenchError> {
        let server = started(self.args, self.side, flush, true)?;
        let all_kinds = flush == Flush::Async && self.side.stores();
        if all_kinds && self.wants("memory") {
            self.note(loads::MEMORY_IDLE, memory_kb(server.pid(), "VmRSS")? / 1024.0);
        }
        if all_kinds && self.wants("first") {
            self.first()?;
        }
        for sends in loads::SENDS.iter().filter(|s| s.flush == flush && self.args.loads.contains(&s.key)) {
            self.sends(sends, server.pid())?;
        }
        if all_kinds && self.wants("e2e") {
            self.e2e()?;
        }
        if all_kinds && self.wants("memory") {
            self.note(loads::MEMORY, memory_kb(server.pid(), "VmHWM")? / 1024.0);
        }
        if all_kinds && self.wants("idle") {
            self.idle_connections(server.pid())?;
        }
        stop(server, libc::SIGTERM)
    }

    fn sends(&mut self, sends: &'static loads::Sends, pid: u32) -> Result<(), BenchError> {
        let load = Load { args: self.args, topic: sends.key, conns: sends.conns };
        load.create()?;
        let before = disk_bytes(pid);
        let sent = load.send(self.args.secs, sends.how)?;
        let option = |name: &str| sends.how.iter().skip_while(|w| **w != name).nth(1).and_then(|n| n.parse().ok());
        let (batch, size) = (option("--batch").unwrap_or(1), option("--size").unwrap_or(1024));
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
        if let (Some(row), Some(before), Some(after)) = (sends.amplification, before, disk_bytes(pid)) {
            self.note(row, (after - before) as f64 / (sent.acknowledged * batch * size).max(1) as f64);
        }
        if sends.key == "closed" && self.wants("drain") {
            self.note(loads::DRAIN, load.drain()?.msg_per_s);
        }
        match sends.key {
            "delayed" => Ok(()), // its messages come later, under another key
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

    /// By our own bench, in a process of its own.
    fn e2e(&mut self) -> Result<(), BenchError> {
        let broker = broker(self.args).to_string();
        let output = Command::new(sides::binary(self.args)?)
            .args(["bench", "e2e", "--topic", "e2e", "--conns", "8", "--rate", "10000", "--json", "--broker", &broker])
            .args(["--secs", &self.args.secs.to_string()])
            .output()
            .map_err(BenchError::io("running bench e2e"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line: Option<serde_json::Value> = said.lines().next().and_then(|line| serde_json::from_str(line).ok());
        let p999 = line.as_ref().and_then(|line| line["p999_ms"].as_f64());
        let failed = || BenchError::Process(format!("bench e2e: {said}{}", String::from_utf8_lossy(&output.stderr)));
        self.note(loads::E2E, p999.filter(|_| output.status.success()).ok_or_else(failed)?);
        Ok(())
    }

    /// What the server keeps for each of many connections that said one thing and are silent since.
    fn idle_connections(&mut self, pid: u32) -> Result<(), BenchError> {
        let before = memory_kb(pid, "VmRSS")?;
        let mut frame = Vec::new();
        uringmq_proto::command::write_request(
            &mut frame,
            uringmq_proto::codes::request::GET_BROKER_RUNTIME_INFO,
            1,
            true,
            &[],
            b"",
        );
        let open = || {
            let mut socket = TcpStream::connect(broker(self.args))?;
            socket.write_all(&frame)?;
            Ok(socket)
        };
        let sockets = (0..IDLE_CONNECTIONS).map(|_| open()).collect::<Result<Vec<_>, _>>();
        let sockets = sockets.map_err(BenchError::io(format!("opening {IDLE_CONNECTIONS} connections")))?;
        std::thread::sleep(Duration::from_secs(2)); // until all are read
        self.note(loads::IDLE_CONNECTION, (memory_kb(pid, "VmRSS")? - before) / sockets.len() as f64);
        Ok(())
    }

    /// A producer at an even pace while another client drains what no cache holds any more.
    fn cold(&mut self) -> Result<(), BenchError> {
        let server = started(self.args, self.side, Flush::Async, true)?;
        let backlog = Load { args: self.args, topic: "backlog", conns: 8 };
        backlog.create()?;
        backlog.fill(self.args.cold_gb)?;
        stop(server, libc::SIGTERM)?;
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "1"); // needs root; else the page cache helps Apache
        let server = started(self.args, self.side, Flush::Async, false)?;
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
        let mut server = started(self.args, self.side, Flush::Async, true)?;
        let load = Load { args: self.args, topic: "filled", conns: 8 };
        load.create()?;
        fill(&load)?;
        for _ in 0..self.args.rounds {
            stop(server, libc::SIGTERM)?;
            server = started(self.args, self.side, Flush::Async, false)?;
            self.note(clean, answered_after(self.args, &server)?);
        }
        for _ in 0..self.args.rounds {
            let mut running = load.start_sending(20.0)?;
            std::thread::sleep(Duration::from_secs(2)); // load before the kill
            stop(server, libc::SIGKILL)?;
            let _ = running.kill();
            let _ = running.wait();
            server = started(self.args, self.side, Flush::Async, false)?;
            self.note(killed, answered_after(self.args, &server)?);
        }
        stop(server, libc::SIGTERM)
    }
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

/// Bytes that the process had written to disks so far, where the kernel counts them.
fn disk_bytes(pid: u32) -> Option<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("write_bytes:")?.trim().parse().ok())
}
