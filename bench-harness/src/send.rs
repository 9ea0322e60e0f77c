//! `bench send`.
use crate::error::BenchError;
use crate::idle;
use crate::load::{Kind, Load, Pace, Plan};
use crate::peer::Caller;
use crate::report::Report;
use crate::{Target, Timing, on_executor};
use clap::Args;
use std::time::Duration;

#[derive(Args, Debug, Clone)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    timing: Timing,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    kind: KindArgs,
    /// Connections more, which are silent meanwhile
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=15_000))]
    idle: u32,
    /// After each round, where the broker says that the time went (UringMQ's alone tell it; microseconds)
    #[arg(long)]
    stages: bool,
}

/// What is sent, and how fast.
#[derive(Args, Debug, Clone)]
pub(crate) struct Shape {
    /// Requests that each connection keeps in flight (closed loop)
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) inflight: u32,
    /// Messages a second over all connections (open loop); latency counts from the intended send time
    #[arg(long, value_parser = rate, conflicts_with = "inflight")]
    pub(crate) rate: Option<f64>,
    /// Bytes of a message's body
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub(crate) size: u32,
    /// Messages in a request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: u32,
}

/// Which kind of message, and to how many topics.
#[derive(Args, Debug, Clone)]
struct KindArgs {
    /// Topics, TOPIC-0 and so on, each message to one at random; with one, TOPIC itself
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    topics: u32,
    /// Delay level of the messages
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=18))]
    delay_level: u32,
    /// The messages are timers, due so many ms after each was made
    #[arg(long, default_value_t = 0, conflicts_with_all = ["delay_level", "batch", "transactional"])]
    timer_ms: u32,
    /// Each message is a transaction: a half message, and when that is acknowledged its commit; latency until that is answered
    #[arg(long, conflicts_with_all = ["batch", "delay_level"])]
    transactional: bool,
}

impl KindArgs {
    fn kind(&self) -> Kind {
        match self.delay_level {
            0 if self.timer_ms > 0 => Kind::Timed(self.timer_ms),
            0 if self.transactional => Kind::Transactional,
            0 => Kind::Plain,
            level => Kind::Delayed(level),
        }
    }

    fn topics(&self, topic: &str) -> Vec<String> {
        match self.topics {
            1 => vec![topic.to_owned()],
            many => (0..many).map(|n| format!("{topic}-{n}")).collect(),
        }
    }
}

pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (1e-3..=1e8).contains(&rate) => Ok(rate),
        _ => Err("not a number of messages a second".to_owned()),
    }
}

impl Shape {
    pub(crate) fn plan(&self, target: &Target, timing: &Timing, stamp: Option<u64>) -> Plan {
        Plan {
            topics: vec![target.topic.clone()],
            kind: Kind::Plain,
            queues: target.queues,
            size: self.size as usize,
            batch: self.batch,
            pace: self.rate.map_or(Pace::Closed(self.inflight), Pace::Open),
            stamp,
            warmup: Duration::from_secs_f64(timing.warmup),
            measured: Duration::from_secs_f64(timing.secs),
        }
    }
}

pub(crate) fn main(args: SendArgs) -> Result<(), BenchError> {
    on_executor(args.target.cpu, move || run(args))
}

async fn run(args: SendArgs) -> Result<(), BenchError> {
    let broker = args.target.addr()?;
    let caller = Caller::dial(broker).await?;
    let topics = args.kind.topics(&args.target.topic);
    for topic in &topics {
        caller.create_topic(topic, args.target.queues).await?;
    }
    let _idle = idle::open(broker, args.idle as usize)?;
    let plan = Plan { topics, kind: args.kind.kind(), ..args.shape.plan(&args.target, &args.timing, None) };
    let mut report = Report::new("send", args.timing.json, args.timing.hlog.as_deref())?;
    for _ in 0..args.timing.rounds {
        if args.stages {
            caller.stages().await?; // the warm-up counts, what was before does not
        }
        let load = Load::new(plan.clone());
        load.run(broker, args.target.conns, |phase, over| report.progress(phase, &load.tally(), over)).await?;
        report.round(&load.tally(), Duration::from_secs_f64(args.timing.secs));
        if args.stages {
            report.stages(&caller.stages().await?);
        }
    }
    caller.close().await;
    report.end()
}
