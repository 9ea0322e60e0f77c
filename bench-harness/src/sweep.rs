//! `bench sweep`: the same two loads, a closed loop for the throughput and an open one for the latency, over every combination of some
//! configuration keys' values, each on a broker of its own with an empty store. Tells which combinations no other one beats in both: the
//! Pareto front.
use crate::error::BenchError;
use crate::load::{Kind, Load, Pace, Plan};
use crate::on_executor;
use crate::peer::Caller;
use crate::ports::free_port;
use crate::process::{Server, shown};
use crate::report::{Figures, escaped, median, print_json};
use clap::Args;
use serde::Serialize;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

const COMBINATIONS_MAX: usize = 256;
const READY_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(60);
const TOPIC: &str = "sweep";
const QUEUES: u32 = 8;

#[derive(Args, Debug, Clone)]
pub(crate) struct SweepArgs {
    /// A key of the broker's configuration and its values, such as shards=1,2,4; may be repeated, and every combination is run
    #[arg(long = "set", value_name = "KEY=VALUE,VALUE", required = true, value_parser = axis)]
    axes: Vec<Axis>,
    /// Other lines of the configuration, for all combinations
    #[arg(long, value_name = "KEY=VALUE")]
    conf: Vec<String>,
    /// The binary to measure [default: this one]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Directory for stores and logs, on the disk to be measured; what is in it from a run before is replaced
    #[arg(long, default_value = "uringmq-sweep")]
    dir: PathBuf,
    /// Connections
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    conns: u32,
    /// Requests in flight on each connection in the closed loop
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    inflight: u32,
    /// Messages a second in the open loop
    #[arg(long, default_value_t = 10_000.0, value_parser = crate::send::rate)]
    rate: f64,
    /// Bytes of a message's body
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    size: u32,
    /// Seconds of load before measuring starts, for each load
    #[arg(long, default_value_t = 1.0, value_parser = crate::seconds)]
    warmup: f64,
    /// Seconds measured of each load
    #[arg(long, default_value_t = 5.0, value_parser = crate::seconds)]
    secs: f64,
    /// Rounds over all combinations, of which the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also write the table and a plot into this file, which needs no other
    #[arg(long)]
    html: Option<PathBuf>,
    /// Lines of JSON instead of the table, one a combination
    #[arg(long)]
    json: bool,
}

/// A key and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    key: String,
    values: Vec<String>,
}

fn axis(text: &str) -> Result<Axis, String> {
    let (key, values) = text.split_once('=').ok_or("not KEY=VALUE,VALUE")?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if key.trim().is_empty() || values.iter().any(String::is_empty) {
        return Err("not KEY=VALUE,VALUE: a key or a value is empty".to_owned());
    }
    Ok(Axis { key: key.trim().to_owned(), values })
}

/// Every combination of the axes' values, as lines of a configuration; the last axis changes fastest.
fn combinations(axes: &[Axis]) -> Vec<Vec<String>> {
    axes.iter().fold(vec![Vec::new()], |before, axis| {
        let with = |combination: &Vec<String>, value: &String| {
            let mut lines = combination.clone();
            lines.push(format!("{}={value}", axis.key));
            lines
        };
        before.iter().flat_map(|combination| axis.values.iter().map(move |value| with(combination, value))).collect()
    })
}

/// What one combination reached, a number a round.
#[derive(Default)]
struct Outcome {
    msg_per_s: Vec<f64>,
    p50_ms: Vec<f64>,
    p99_ms: Vec<f64>,
    p999_ms: Vec<f64>,
    refused: u64,
}

/// Medians of a combination.
#[derive(Clone, Debug, Serialize)]
struct Point {
    conf: String,
    /// Of the closed loop.
    msg_per_s: f64,
    /// Of the open loop.
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    /// Requests of both loads that were refused or never answered, in all rounds.
    refused: u64,
    /// No other combination has more throughput and less latency (p99.9).
    front: bool,
}

pub(crate) fn main(args: SweepArgs) -> Result<(), BenchError> {
    let combinations = combinations(&args.axes);
    if combinations.len() > COMBINATIONS_MAX {
        let count = combinations.len();
        return Err(BenchError::Process(format!("--set makes {count} combinations; the limit is {COMBINATIONS_MAX}")));
    }
    let mut outcomes: Vec<Outcome> = combinations.iter().map(|_| Outcome::default()).collect();
    for round in 1..=args.rounds {
        for (lines, outcome) in combinations.iter().zip(&mut outcomes) {
            eprintln!("round {round} of {}: {}", args.rounds, lines.join(" "));
            measure(&args, lines, outcome)?;
        }
    }
    let mut points: Vec<Point> =
        combinations.iter().zip(&outcomes).map(|(lines, outcome)| point(lines, outcome)).collect();
    mark_front(&mut points);
    if let Some(path) = &args.html {
        let page = page(&args, &points);
        std::fs::write(path, page).map_err(BenchError::io(format!("writing {}", path.display())))?;
    }
    match args.json {
        true => points.iter().for_each(print_json),
        false => print!("{}", table(&args, &points)),
    }
    Ok(())
}

/// One combination once: a broker on an empty store, the closed loop, the open loop, a clean stop.
fn measure(args: &SweepArgs, lines: &[String], outcome: &mut Outcome) -> Result<(), BenchError> {
    let port = free_port().map_err(BenchError::io("looking for a free port"))?;
    let broker = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let server = Server::start(&command(args, lines, broker)?)?;
    let load = |pace| Plan {
        topics: vec![TOPIC.to_owned()],
        kind: Kind::Plain,
        queues: QUEUES,
        size: args.size as usize,
        batch: 1,
        pace,
        stamp: None,
        warmup: Duration::from_secs_f64(args.warmup),
        measured: Duration::from_secs_f64(args.secs),
    };
    let (closed, open, conns) = (load(Pace::Closed(args.inflight)), load(Pace::Open(args.rate)), args.conns);
    let (server, tallies) = on_executor(None, move || async move {
        server.ready("uringmq ready", READY_MAX).await?;
        let caller = Caller::dial(broker).await?;
        caller.create_topic(TOPIC, QUEUES).await?;
        caller.close().await;
        let mut tallies = Vec::new();
        for plan in [closed, open] {
            let load = Load::new(plan);
            load.run(broker, conns, |_, _| ()).await?;
            tallies.push(load.tally());
        }
        Ok((server, tallies))
    })?;
    server.signal(libc::SIGTERM);
    if !server.wait(STOP_MAX) {
        return Err(server.failure("did not end"));
    }
    let figures: Vec<Figures> = tallies.iter().map(|tally| tally.figures(Duration::from_secs_f64(args.secs))).collect();
    outcome.msg_per_s.push(figures[0].msg_per_s);
    outcome.p50_ms.push(figures[1].p50_ms);
    outcome.p99_ms.push(figures[1].p99_ms);
    outcome.p999_ms.push(figures[1].p999_ms);
    outcome.refused += tallies.iter().map(|tally| tally.errors()).sum::<u64>();
    Ok(())
}

/// Writes the configuration and gives the command that starts the broker.
fn command(args: &SweepArgs, lines: &[String], broker: SocketAddr) -> Result<String, BenchError> {
    let dir = &args.dir;
    let store = dir.join("store");
    if store.exists() {
        std::fs::remove_dir_all(&store).map_err(BenchError::io(format!("removing {}", store.display())))?;
    }
    std::fs::create_dir_all(dir).map_err(BenchError::io(format!("making {}", dir.display())))?;
    let dir = dir.canonicalize().map_err(BenchError::io(format!("finding {}", dir.display())))?;
    let mut conf = format!(
        "brokerIP1=127.0.0.1\nlistenPort={}\nstorePathRootDir={}\n",
        broker.port(),
        dir.join("store").display()
    );
    for line in args.conf.iter().chain(lines) {
        conf += line;
        conf.push('\n');
    }
    let file = dir.join("broker.conf");
    std::fs::write(&file, conf).map_err(BenchError::io(format!("writing {}", file.display())))?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => std::env::current_exe().map_err(BenchError::io("finding this binary"))?,
    };
    Ok(format!("{} broker -c {}", shown(&binary), shown(&file)))
}

fn point(lines: &[String], outcome: &Outcome) -> Point {
    let middle = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        median(&sorted)
    };
    Point {
        conf: lines.join(" "),
        msg_per_s: middle(&outcome.msg_per_s),
        p50_ms: middle(&outcome.p50_ms),
        p99_ms: middle(&outcome.p99_ms),
        p999_ms: middle(&outcome.p999_ms),
        refused: outcome.refused,
        front: false,
    }
}

fn mark_front(points: &mut [Point]) {
    let beats = |a: &Point, b: &Point| {
        let (no_worse, better) =
            (a.msg_per_s >= b.msg_per_s && a.p999_ms <= b.p999_ms, a.msg_per_s > b.msg_per_s || a.p999_ms < b.p999_ms);
        no_worse && better
    };
    let front: Vec<bool> = points.iter().map(|point| !points.iter().any(|other| beats(other, point))).collect();
    points.iter_mut().zip(front).for_each(|(point, front)| point.front = front);
}

fn table(args: &SweepArgs, points: &[Point]) -> String {
    let mut out = format!(
        "| configuration | closed {} x {}, msg/s | open {:.0}/s: p50 ms | p99 ms | p99.9 ms | refused | front |\n| --- | --- | --- | --- | --- | --- | --- |\n",
        args.conns, args.inflight, args.rate
    );
    for p in points {
        let front = if p.front { "*" } else { "" };
        let row = format!(
            "| {} | {:.0} | {:.3} | {:.3} | {:.3} | {} | {front} |",
            p.conf, p.msg_per_s, p.p50_ms, p.p99_ms, p.p999_ms, p.refused
        );
        out += &row;
        out.push('\n');
    }
    out
}

/// The table and a plot: throughput to the right, latency upwards on a logarithmic scale, the front as a line.
fn page(args: &SweepArgs, points: &[Point]) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 420.0;
    const EDGE: f64 = 60.0;
    let most = points.iter().map(|p| p.msg_per_s).fold(1.0, f64::max) * 1.1;
    let log = |ms: f64| ms.max(1e-3).log10();
    let low = points.iter().map(|p| log(p.p999_ms)).fold(f64::MAX, f64::min).floor();
    let high = points.iter().map(|p| log(p.p999_ms)).fold(f64::MIN, f64::max).ceil().max(low + 1.0);
    let x = |p: &Point| EDGE + p.msg_per_s / most * (WIDTH - 2.0 * EDGE);
    let y = |ms: f64| HEIGHT - EDGE - (log(ms) - low) / (high - low) * (HEIGHT - 2.0 * EDGE);
    let mut svg = format!("<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\"><title>sweep</title>");
    let mut push = |what: std::fmt::Arguments<'_>| svg.write_fmt(what).expect("a String takes all");
    let mut decade = low;
    while decade <= high {
        let (at, right) = (y(10f64.powf(decade)), WIDTH - EDGE);
        push(format_args!("<line x1=\"{EDGE}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"));
        push(format_args!("<text x=\"8\" y=\"{:.1}\">{} ms</text>", at + 4.0, 10f64.powf(decade)));
        decade += 1.0;
    }
    let mut front: Vec<&Point> = points.iter().filter(|p| p.front).collect();
    front.sort_by(|a, b| a.msg_per_s.total_cmp(&b.msg_per_s));
    let line: String = front.iter().map(|p| format!("{:.1},{:.1} ", x(p), y(p.p999_ms))).collect();
    push(format_args!("<polyline points=\"{line}\" fill=\"none\" stroke=\"#2471a3\" stroke-width=\"2\"/>"));
    for p in points {
        let colour = if p.front { "#2471a3" } else { "#7f8c8d" };
        let (at_x, at_y) = (x(p), y(p.p999_ms));
        push(format_args!("<circle cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"4\" fill=\"{colour}\"/>"));
        let (text_x, text_y) = (at_x + 7.0, at_y - 5.0);
        push(format_args!("<text x=\"{text_x:.1}\" y=\"{text_y:.1}\">{}</text>", escaped(&p.conf)));
    }
    let rows: String = table(args, points)
        .lines()
        .filter(|line| !line.starts_with("| ---"))
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            let cells: String = cells.map(|cell| format!("<td>{}</td>", escaped(cell.trim()))).collect();
            format!("<tr>{cells}</tr>")
        })
        .collect();
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>UringMQ sweep</title><style>body{{font:15px sans-serif;max-width:900px;\
         margin:2em auto}}table{{border-collapse:collapse}}td{{border:1px solid #ccc;padding:3px 8px}}text{{font:11px sans-serif}}</style>\
         <h1>Throughput (closed loop) against p99.9 (open loop)</h1>{svg}</svg><table>{rows}</table></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(msg_per_s: f64, p999_ms: f64) -> Point {
        let conf = format!("a={msg_per_s}");
        Point { conf, msg_per_s, p50_ms: 0.1, p99_ms: 0.2, p999_ms, refused: 0, front: false }
    }

    #[test]
    fn every_combination_is_made_once() {
        let axes = [axis("shards=1,2").unwrap(), axis(" spin = 0, 20 ,100").unwrap()];
        let all: Vec<String> = combinations(&axes).iter().map(|lines| lines.join(" ")).collect();
        assert_eq!(
            all,
            [
                "shards=1 spin=0",
                "shards=1 spin=20",
                "shards=1 spin=100",
                "shards=2 spin=0",
                "shards=2 spin=20",
                "shards=2 spin=100"
            ]
        );
        for bad in ["shards", "=1", "shards=", "shards=1,,2"] {
            assert!(axis(bad).is_err(), "{bad}");
        }
        assert_eq!(axis("cpuSet=0-1").unwrap().values, ["0-1"]);
    }

    #[test]
    fn the_front_is_what_no_other_beats() {
        let mut points =
            [at(100.0, 5.0), at(200.0, 9.0), at(150.0, 9.0), at(90.0, 5.0), at(300.0, 50.0), at(100.0, 5.0)];
        mark_front(&mut points);
        assert_eq!(points.each_ref().map(|p| p.front), [true, true, false, false, true, true]);
        let mut one = [at(1.0, 1.0)];
        mark_front(&mut one);
        assert!(one[0].front);
    }
}
