//! Running the `rmqload` binary and reading the line that it prints.
use super::{CompareArgs, QUEUES};
use crate::error::BenchError;
use std::process::{Child, Command, Stdio};

/// What a batch of 32 takes in the log, about: 32 times a body of 1 KiB with its record around it.
const BATCH: f64 = 32.0;
pub(super) const RECORD_BYTES: f64 = 1024.0 + 210.0;

/// The load generator with its topic and connections.
pub(super) struct Load<'a> {
    pub(super) args: &'a CompareArgs,
    pub(super) topic: &'a str,
    pub(super) conns: u32,
}

#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) msg_per_s: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
    pub(super) p9999_ms: f64,
    pub(super) max_ms: f64,
    /// Requests answered with code 0 in all, the warm-up included; and with any other.
    pub(super) acknowledged: u64,
    pub(super) refused: u64,
}

impl Outcome {
    pub(super) fn refused_percent(&self) -> f64 {
        self.refused as f64 * 100.0 / (self.acknowledged + self.refused).max(1) as f64
    }
}

impl Load<'_> {
    fn command(&self, secs: f64, subcommand: &str, more: &[&str]) -> Command {
        self.command_on(self.topic, QUEUES, secs, subcommand, more)
    }

    fn command_on(&self, topic: &str, queues: u32, secs: f64, subcommand: &str, more: &[&str]) -> Command {
        let program = self.args.rmqload.as_os_str();
        let mut command = match &self.args.load_cpus {
            None => Command::new(program),
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["-c", cpus]).arg(program);
                command
            }
        };
        command.args(["--broker", &format!("127.0.0.1:{}", self.args.port), "--topic", topic]);
        command.args([
            "--queues",
            &queues.to_string(),
            "--conns",
            &self.conns.to_string(),
            "--secs",
            &secs.to_string(),
        ]);
        command.arg(subcommand).args(more).stdin(Stdio::null());
        command
    }

    fn run(&self, secs: f64, subcommand: &str, more: &[&str]) -> Result<String, BenchError> {
        self.run_twice(subcommand, || self.command(secs, subcommand, more))
    }

    /// Once more when it fails: it ends when a signal interrupts its waiting, as a machine that was suspended does.
    fn run_twice(&self, subcommand: &str, command: impl Fn() -> Command) -> Result<String, BenchError> {
        let mut failure = String::new();
        for _ in 0..2 {
            let output = command().output();
            let output = output.map_err(BenchError::io(format!("running {}", self.args.rmqload.display())))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                return Ok(text);
            }
            failure = format!("rmqload {subcommand}: {text}{}", String::from_utf8_lossy(&output.stderr));
            eprintln!("{failure}");
        }
        Err(BenchError::Process(failure))
    }

    pub(super) fn create(&self) -> Result<(), BenchError> {
        let text = self.run(1.0, "create", &[])?;
        if text.contains("code=0") { Ok(()) } else { Err(BenchError::Process(format!("rmqload create: {text}"))) }
    }

    /// Sends for so long, after a warm-up.
    pub(super) fn send(&self, secs: f64, how: &[&str]) -> Result<Outcome, BenchError> {
        outcome(&self.run(secs, "send", how)?)
    }

    /// Drains every queue.
    pub(super) fn drain(&self) -> Result<Outcome, BenchError> {
        outcome(&self.run(600.0, "pull", &[])?)
    }

    /// Sends batches until about so many GB are in the log.
    pub(super) fn fill(&self, gb: f64) -> Result<(), BenchError> {
        let requests = (gb * 1e9 / (BATCH * RECORD_BYTES)).ceil().to_string();
        let more = ["--size", "1024", "--batch", "32", "--inflight", "4", "--warm", "0", "--count", &requests];
        outcome(&self.run(3600.0, "send", &more)?).map(drop)
    }

    /// A topic of many queues, each with a message in it.
    pub(super) fn fill_queues(&self, topic: &str, queues: u32) -> Result<(), BenchError> {
        let created = self.run_twice("create", || self.command_on(topic, queues, 1.0, "create", &[]))?;
        if !created.contains("code=0") {
            return Err(BenchError::Process(format!("rmqload create: {created}")));
        }
        // Connection n of 8 begins with queue n and goes on from there; so much reaches them all.
        let count = (queues * 8).to_string();
        let more = ["--size", "100", "--inflight", "32", "--warm", "0", "--count", &count];
        outcome(&self.run_twice("send", || self.command_on(topic, queues, 600.0, "send", &more))?).map(drop)
    }

    /// Sends in the background; the caller ends it.
    pub(super) fn start_sending(&self, secs: f64) -> Result<Child, BenchError> {
        let mut command = self.command(secs, "send", &["--size", "1024", "--inflight", "32"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map_err(BenchError::io(format!("running {}", self.args.rmqload.display())))
    }
}

/// Reads `... msg/s=N ... p99.9=N ... codes={0: N, ...}`.
fn outcome(text: &str) -> Result<Outcome, BenchError> {
    let unread = || BenchError::Process(format!("rmqload printed what cannot be read: {text}"));
    let line = text.lines().find(|line| line.contains("msg/s=")).ok_or_else(unread)?;
    let field = |name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.parse::<f64>().ok()).ok_or_else(unread)
    };
    let codes = line.split_once("codes={").and_then(|(_, codes)| codes.split_once('}')).ok_or_else(unread)?.0;
    let (mut acknowledged, mut refused) = (0, 0);
    for code in codes.split(", ").filter(|code| !code.is_empty()) {
        let (code, count) = code.split_once(": ").ok_or_else(unread)?;
        let count: u64 = count.parse().map_err(|_| unread())?;
        *(if code == "0" { &mut acknowledged } else { &mut refused }) += count;
    }
    Ok(Outcome {
        msg_per_s: field("msg/s")?,
        p50_ms: field("p50")?,
        p99_ms: field("p99")?,
        p999_ms: field("p99.9")?,
        p9999_ms: field("p99.99")?,
        max_ms: field("max")?,
        acknowledged,
        refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_line_is_read() {
        let line = "send topic=T conns=8 msgs=1000 err=3 secs=10.00 msg/s=53210 MB/s=54.5 ms: p50=3.800 p99=9.000 p99.9=36.100 p99.99=40.0 max=55.1 codes={2: 3, 0: 1234}";
        let wanted = Outcome {
            msg_per_s: 53210.0,
            p50_ms: 3.8,
            p99_ms: 9.0,
            p999_ms: 36.1,
            p9999_ms: 40.0,
            max_ms: 55.1,
            acknowledged: 1234,
            refused: 3,
        };
        assert_eq!(outcome(&format!("no progress for 40 s\n{line}\n")).unwrap(), wanted);
        let all_refused = outcome(&line.replace("{2: 3, 0: 1234}", "{2: 3}")).unwrap();
        assert_eq!((all_refused.acknowledged, all_refused.refused_percent()), (0, 100.0));
        assert!(outcome("connection closed by broker").is_err());
    }
}
