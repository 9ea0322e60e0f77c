//! `uringmq bench`: load, drains, end-to-end latency, kill tests and comparisons, against any broker that speaks the RocketMQ remoting
//! protocol. A client of `remoting`; it knows nothing of our broker but its command line.
//!
//! Latencies are measured with hdrhistogram. In the open loop they count from the time a message should have been sent, so a
//! server that stalls does not hide the messages it kept from being sent ("coordinated omission").
mod cluster;
mod compare;
mod counters;
mod e2e;
mod error;
#[cfg(test)]
mod fake;
mod hlog;
mod idle;
mod kill;
mod load;
mod null;
mod peer;
mod ports;
mod process;
mod pull;
mod report;
mod send;
mod sweep;

use clap::{Args, Subcommand};
use error::BenchError;
use glommio::{LocalExecutorBuilder, Placement};
use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

pub use ports::free_port;

/// Measure a broker: load, drain, end-to-end latency, kill -9, comparison with Apache's
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  uringmq bench send --conns 8 --inflight 32               closed loop: each connection keeps 32 requests in flight
  uringmq bench send --rate 10000                          open loop: latency from the intended send time
  uringmq bench send --batch 32 --size 100 --rounds 5      batches; median and spread of five rounds
  uringmq bench pull --conns 8                             drains the topic, checking every record
  uringmq bench e2e --rate 1000                            from the send to the arrival at a long-polling consumer
  uringmq bench kill --start 'uringmq broker -c b.conf'    kill -9 under load; everything acknowledged must be there
  uringmq bench chaos --start 'uringmq broker -c b.conf' --store DIR --kills 200   and the log's tail is torn each time
  uringmq bench cluster --dir DIR --nemesis kill,partition   three brokers in network namespaces, and a checker
  uringmq bench null --listen 127.0.0.1:10911              stores nothing: what the generator itself can do
  uringmq bench send --topics 5000 --queues 4 --rate 10000 many topics, each message to one at random
  uringmq bench send --transactional --hlog run.hlog       half messages and commits; latencies as an HdrHistogram log
  uringmq bench e2e --groups 20 --rate 1000                fan-out: every message to twenty consumers
  uringmq bench send --idle 5000 --conns 100 --rate 10000  busy connections among many that are silent
  uringmq bench e2e --rate 10000 --replay OldTopic         mixed: producers, followers, and one that reads a backlog from its start
  uringmq bench sweep --set shards=1,2 --set spinBeforeParkUs=0,50   what each setting gives and costs
  uringmq bench compare --apache-lib lib --rmqload rmqload the table of both brokers on this machine
  uringmq bench compare ... --loads all --html report.html every load, with plots";

#[derive(Subcommand, Debug)]
enum What {
    /// Send messages, in a closed loop (--inflight) or an open one (--rate)
    Send(send::SendArgs),
    /// Drain the queues of a topic
    Pull(pull::PullArgs),
    /// Time from sending a message to its arrival at a long-polling consumer
    E2e(e2e::E2eArgs),
    /// Kill a broker under load, restart it, and look for every acknowledged message
    Kill(kill::KillArgs),
    /// The same, with the log damaged behind the last acknowledged record before each restart
    Chaos(kill::ChaosArgs),
    /// Three brokers, three controllers and two NameServers in network namespaces: kills, pauses, partitions, slow links and disks
    Cluster(cluster::ClusterArgs),
    /// A server that answers at once and stores nothing: the generator's and the machine's own figures
    Null(null::NullArgs),
    /// Every combination of some configuration keys' values, by throughput and latency
    Sweep(sweep::SweepArgs),
    /// Apache's broker and ours in turn on this machine, as a Markdown table
    Compare(compare::CompareArgs),
}

/// Where to and over how many connections.
#[derive(Args, Debug, Clone)]
struct Target {
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:10911")]
    broker: String,
    /// Topic; created when missing
    #[arg(long, default_value = "BenchTopic")]
    topic: String,
    /// Queues of the topic
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    queues: u32,
    /// Connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    conns: u32,
    /// Run on this processor core only
    #[arg(long)]
    cpu: Option<usize>,
}

impl Target {
    fn addr(&self) -> Result<SocketAddr, BenchError> {
        resolve(&self.broker)
    }
}

fn resolve(name: &str) -> Result<SocketAddr, BenchError> {
    let unknown = |why: String| BenchError::Address { name: name.to_owned(), why };
    let mut found = name.to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("no address".to_owned()))
}

/// How long, how often, and how to tell.
#[derive(Args, Debug, Clone)]
struct Timing {
    /// Seconds of load before measuring starts, in each round
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    warmup: f64,
    /// Seconds measured in each round
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    secs: f64,
    /// Rounds; with more than one, median and spread are told at the end
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One line of JSON for each round, and one for all
    #[arg(long)]
    json: bool,
    /// Also write the latencies of each second into this HdrHistogram log
    #[arg(long)]
    hlog: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(secs) if (0.0..=1e6).contains(&secs) => Ok(secs),
        _ => Err("not a number of seconds".to_owned()),
    }
}

/// Runs what `args` ask for; the exit code of the process. 0: done; 1: messages lost or wrong; 2: could not be done.
pub fn main(args: BenchArgs) -> i32 {
    let outcome = match args.what {
        What::Send(args) => send::main(args),
        What::Pull(args) => pull::main(args),
        What::E2e(args) => e2e::main(args),
        What::Kill(args) => kill::main(args),
        What::Chaos(args) => kill::chaos(args),
        What::Cluster(args) => cluster::main(args),
        What::Null(args) => null::main(args),
        What::Sweep(args) => sweep::main(args),
        What::Compare(args) => compare::main(args),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("uringmq bench: {error}");
            if matches!(error, BenchError::Wrong(_)) { 1 } else { 2 }
        }
    }
}

/// Runs `work` on a glommio executor of its own, pinned to `cpu` when given.
fn on_executor<T, F>(cpu: Option<usize>, work: impl FnOnce() -> F + Send + 'static) -> Result<T, BenchError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, BenchError>> + 'static,
{
    let placement = cpu.map_or(Placement::Unbound, Placement::Fixed);
    let builder = LocalExecutorBuilder::new(placement).name("bench").spin_before_park(Duration::from_micros(20));
    let failed = |error: glommio::GlommioError<()>| BenchError::Executor(error.to_string());
    builder.spawn(work).map_err(failed)?.join().map_err(failed)?
}
