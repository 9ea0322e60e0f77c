//! `bench e2e`: the time from sending a message (or when it should have been sent) to its arrival at a long-polling consumer; of timers, from
//! when a message is due.
//!
//! Producer and consumer are one process, so one clock. Messages of other runs in the topic are passed over.
use crate::error::BenchError;
use crate::load::{Kind, Load, Plan, STAMP_BYTES};
use crate::peer::{Caller, PullAsk};
use crate::pull::{Drain, drain_all};
use crate::report::{Report, Tally};
use crate::send::Shape;
use crate::{Target, Timing, on_executor};
use clap::Args;
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the last messages may take to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(5);

#[derive(Args, Debug, Clone)]
pub(crate) struct E2eArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    timing: Timing,
    #[command(flatten)]
    shape: Shape,
    /// Consumers of each queue, as so many groups would have; each message must reach all of them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    groups: u32,
    /// The messages are timers, due so many ms after each was made; latency counts from then
    #[arg(long, default_value_t = 0, conflicts_with = "batch")]
    timer_ms: u32,
    /// Meanwhile, in each round, another consumer reads this topic (of as many queues) from its first message on
    #[arg(long)]
    replay: Option<String>,
}

pub(crate) fn main(mut args: E2eArgs) -> Result<(), BenchError> {
    args.shape.size = args.shape.size.max(STAMP_BYTES as u32);
    on_executor(args.target.cpu, move || run(args))
}

async fn run(args: E2eArgs) -> Result<(), BenchError> {
    let broker = args.target.addr()?;
    let caller = Caller::dial(broker).await?;
    caller.create_topic(&args.target.topic, args.target.queues).await?;
    let mut report = Report::new("e2e", args.timing.json, args.timing.hlog.as_deref())?;
    let mut replays = Report::new("replay", args.timing.json, None)?;
    let mut missing = 0;
    for _ in 0..args.timing.rounds {
        let replaying =
            args.replay.clone().map(|topic| glommio::spawn_local(replay(broker, topic, args.target.queues)));
        let tally = round(broker, &caller, &args, &report).await?;
        report.round(&tally, Duration::from_secs_f64(args.timing.secs));
        missing += tally.missing;
        if let Some(replaying) = replaying {
            let (tally, over) = replaying.await?; // to its end, also when that is later
            replays.round(&tally, over);
        }
    }
    report.end()?;
    replays.end()?;
    caller.close().await;
    match missing {
        0 => Ok(()),
        count => Err(BenchError::Wrong(format!("{count} acknowledged messages never arrived"))),
    }
}

/// One consumer that drains a topic; its latencies are those of its pulls.
async fn replay(broker: SocketAddr, topic: String, queues: u32) -> Result<(Tally, Duration), BenchError> {
    let drain = Drain { topic, queues, conns: 1, max_msgs: 32, from: None, follow: None, check: true };
    drain_all(broker, &drain, |_, _| {}).await
}

struct Arrivals {
    run: u64,
    load: Rc<Load>,
    /// From making a message to when it is due.
    waits: Duration,
    tally: RefCell<Tally>,
    arrived: Cell<u64>,
    failed: RefCell<Option<BenchError>>,
}

async fn round(broker: SocketAddr, caller: &Caller, args: &E2eArgs, report: &Report) -> Result<Tally, BenchError> {
    let run = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let plan = args.shape.plan(&args.target, &args.timing, Some(run));
    let kind = if args.timer_ms > 0 { Kind::Timed(args.timer_ms) } else { plan.kind };
    let load = Load::new(Plan { kind, ..plan });
    let waits = Duration::from_millis(u64::from(args.timer_ms));
    let arrivals = Rc::new(Arrivals {
        run,
        load: load.clone(),
        waits,
        tally: RefCell::default(),
        arrived: Cell::new(0),
        failed: RefCell::default(),
    });
    let mut consumers = Vec::new();
    let each = args.target.conns.min(args.target.queues);
    for _ in 0..each * args.groups {
        consumers.push(Rc::new(Caller::dial(broker).await?));
    }
    let mut tasks = Vec::new();
    for queue in 0..args.target.queues {
        let offset = caller.max_offset(&args.target.topic, queue).await?;
        for of_group in consumers.chunks(each as usize) {
            let consumer = of_group[queue as usize % of_group.len()].clone();
            let (arrivals, topic) = (arrivals.clone(), args.target.topic.clone());
            tasks.push(glommio::spawn_local(async move {
                if let Err(error) = consume(&consumer, &topic, queue, offset, &arrivals).await {
                    arrivals.failed.borrow_mut().get_or_insert(error);
                }
            }));
        }
    }
    load.run(broker, args.target.conns, |phase, over| report.progress(phase, &arrivals.tally.borrow(), over)).await?;
    let deadline = Instant::now() + ARRIVAL_MAX + waits;
    let expected = || load.acknowledged() * u64::from(args.groups);
    while arrivals.arrived.get() < expected() && Instant::now() < deadline && arrivals.failed.borrow().is_none() {
        Timer::new(Duration::from_millis(5)).await;
    }
    for task in tasks {
        task.cancel().await; // a held pull: nothing of it is lost
    }
    for consumer in consumers {
        if let Some(consumer) = Rc::into_inner(consumer) {
            consumer.close().await;
        }
    }
    if let Some(error) = arrivals.failed.take() {
        return Err(error);
    }
    let mut tally = arrivals.tally.borrow().clone();
    let sent = load.tally();
    tally.missing = expected().saturating_sub(arrivals.arrived.get());
    tally.late_ns = sent.late_ns;
    tally.codes = sent.codes;
    Ok(tally)
}

async fn consume(
    consumer: &Caller,
    topic: &str,
    queue: u32,
    mut offset: i64,
    arrivals: &Arrivals,
) -> Result<(), BenchError> {
    loop {
        let pulled = consumer.pull(topic, &PullAsk { queue, offset, max_msgs: 32, hold: true }).await?;
        let now = arrivals.load.now();
        for record in pulled.records(false) {
            let record =
                record.map_err(|why| BenchError::Wrong(format!("queue {queue}, from offset {offset}: {why}")))?;
            let Some(intended) = intended(record.body, arrivals.run) else { continue };
            arrivals.arrived.set(arrivals.arrived.get() + 1);
            if now < intended {
                let (offset, early) = (record.queue_offset, Duration::from_nanos(intended - now));
                return Err(BenchError::Wrong(format!("queue {queue}, offset {offset}: early by {early:?}")));
            }
            if arrivals.load.is_measured(intended.saturating_sub(arrivals.waits.as_nanos() as u64)) {
                let mut tally = arrivals.tally.borrow_mut();
                tally.took(now.saturating_sub(intended));
                tally.msgs += 1;
                tally.bytes += record.body.len() as u64;
            }
        }
        offset = pulled.next;
    }
}

/// The intended send time in a body of this run.
fn intended(body: &[u8], run: u64) -> Option<u64> {
    let (stamp, intended) = (body.first_chunk::<8>()?, body.get(8..)?.first_chunk::<8>()?);
    (u64::from_be_bytes(*stamp) == run).then_some(u64::from_be_bytes(*intended))
}
