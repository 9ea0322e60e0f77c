//! `bench pull`: drains the queues of a topic, one pull after the other in each, and checks what it gets.
use crate::error::BenchError;
use crate::peer::{Caller, PullAsk, Pulled};
use crate::report::{Report, Tally};
use crate::{Target, on_executor};
use clap::Args;
use futures_lite::future::or;
use glommio::timer::Timer;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[derive(Args, Debug, Clone)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    target: Target,
    /// Messages asked for in a pull
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_msgs: u32,
    /// Start at this queue offset instead of the smallest
    #[arg(long)]
    from: Option<i64>,
    /// At the end of a queue wait for more, until --secs are over
    #[arg(long)]
    follow: bool,
    /// How long to follow
    #[arg(long, default_value_t = 10.0, value_parser = crate::seconds)]
    secs: f64,
    /// Do not check CRCs and the order of offsets
    #[arg(long)]
    no_check: bool,
    /// Rounds, each a whole drain
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One line of JSON for each round, and one for all
    #[arg(long)]
    json: bool,
}

/// What a drain is to do.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    pub(crate) topic: String,
    pub(crate) queues: u32,
    pub(crate) conns: u32,
    pub(crate) max_msgs: u32,
    pub(crate) from: Option<i64>,
    pub(crate) follow: Option<Duration>,
    pub(crate) check: bool,
}

pub(crate) fn main(args: PullArgs) -> Result<(), BenchError> {
    on_executor(args.target.cpu, move || run(args))
}

async fn run(args: PullArgs) -> Result<(), BenchError> {
    let broker = args.target.addr()?;
    let drain = Drain {
        topic: args.target.topic.clone(),
        queues: args.target.queues,
        conns: args.target.conns,
        max_msgs: args.max_msgs,
        from: args.from,
        follow: args.follow.then(|| Duration::from_secs_f64(args.secs)),
        check: !args.no_check,
    };
    let mut report = Report::new("pull", args.json, None)?;
    for _ in 0..args.rounds {
        let (tally, over) = drain_all(broker, &drain, |tally, over| report.progress("draining", tally, over)).await?;
        report.round(&tally, over);
    }
    report.end()
}

/// Drains every queue at once, queue q on connection q modulo their number. Gives the counts and the time it took.
pub(crate) async fn drain_all(
    broker: SocketAddr,
    drain: &Drain,
    watch: impl Fn(&Tally, Duration),
) -> Result<(Tally, Duration), BenchError> {
    let mut callers = Vec::new();
    for _ in 0..drain.conns.min(drain.queues) {
        callers.push(Rc::new(Caller::dial(broker).await?));
    }
    let tally = Rc::new(RefCell::new(Tally::default()));
    let started = Instant::now();
    let mut tasks = Vec::new();
    for queue in 0..drain.queues {
        let (caller, drain, tally) = (callers[queue as usize % callers.len()].clone(), drain.clone(), tally.clone());
        tasks.push(glommio::spawn_local(async move {
            let draining = drain_queue(&caller, &drain, queue, &tally);
            match drain.follow {
                None => draining.await,
                Some(most) => {
                    or(draining, async {
                        Timer::new(most).await;
                        Ok(())
                    })
                    .await
                }
            }
        }));
    }
    let all = async {
        for task in tasks {
            task.await?;
        }
        Ok::<(), BenchError>(())
    };
    or(all, async {
        loop {
            Timer::new(Duration::from_millis(250)).await;
            watch(&tally.borrow(), started.elapsed());
        }
    })
    .await?;
    let over = started.elapsed();
    for caller in callers {
        if let Some(caller) = Rc::into_inner(caller) {
            caller.close().await;
        }
    }
    let tally = tally.borrow().clone();
    Ok((tally, over))
}

async fn drain_queue(caller: &Caller, drain: &Drain, queue: u32, tally: &RefCell<Tally>) -> Result<(), BenchError> {
    let mut offset = match drain.from {
        Some(from) => from,
        None => caller.min_offset(&drain.topic, queue).await?,
    };
    loop {
        let asked = Instant::now();
        let ask = PullAsk { queue, offset, max_msgs: drain.max_msgs, hold: drain.follow.is_some() };
        let pulled = caller.pull(&drain.topic, &ask).await?;
        let (msgs, bytes) = count(&pulled, queue, offset, drain.check)?;
        {
            let mut tally = tally.borrow_mut();
            if msgs > 0 {
                tally.took(asked.elapsed().as_nanos() as u64);
            }
            tally.msgs += msgs;
            tally.bytes += bytes;
            *tally.codes.entry(0).or_default() += 1;
        }
        offset = pulled.next;
        if pulled.end && drain.follow.is_none() {
            return Ok(());
        }
    }
}

/// Records and their bytes. With `check`, their CRCs are right and their offsets follow each other from `offset` on.
fn count(pulled: &Pulled, queue: u32, offset: i64, check: bool) -> Result<(u64, u64), BenchError> {
    let mut msgs = 0;
    for record in pulled.records(check) {
        let at = offset + msgs as i64;
        let wrong = |why: String| BenchError::Wrong(format!("queue {queue}, offset {at}: {why}"));
        let record = record.map_err(wrong)?;
        if check && (record.queue_offset, record.queue_id) != (at, queue as i32) {
            return Err(wrong(format!("a record of queue {}, offset {}", record.queue_id, record.queue_offset)));
        }
        msgs += 1;
    }
    Ok((msgs, pulled.body.len() as u64))
}
