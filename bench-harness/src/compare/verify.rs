//! After a timed send: everything acknowledged is there.
use super::rmqload::{Load, Outcome};
use super::{CompareArgs, QUEUES, broker};
use crate::error::BenchError;
use crate::on_executor;
use crate::peer::{Caller, PullAsk, mix};
use crate::pull::{Drain, drain_all};
use glommio::timer::Timer;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uringmq_proto::message::{prop, property};

/// Keys looked for after each timed send, and how long queues and index may be behind the log.
const KEYS_ASKED: u64 = 100;
const BEHIND_MAX: Duration = Duration::from_secs(120);

/// As many records as acknowledged, with the right CRCs and offsets, and found by their keys.
pub(super) fn check(args: &CompareArgs, load: &Load<'_>, sent: &Outcome, batch: u64) -> Result<(), BenchError> {
    let (broker, topic, acknowledged) = (broker(args), load.topic.to_owned(), sent.acknowledged * batch);
    let drain =
        Drain { topic: topic.clone(), queues: QUEUES, conns: 8, max_msgs: 32, from: None, follow: None, check: true };
    on_executor(None, move || async move {
        wait_for_queues(broker, &topic, acknowledged).await?;
        let (tally, _) = drain_all(broker, &drain, |_, _| ()).await?;
        if tally.msgs < acknowledged {
            let found = tally.msgs;
            return Err(BenchError::Wrong(format!("{topic}: {acknowledged} acknowledged, {found} there")));
        }
        let caller = Caller::dial(broker).await?;
        let deadline = Instant::now() + BEHIND_MAX;
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

/// Until the queues hold so many messages; what is missing after the longest wait is the drain's to tell.
async fn wait_for_queues(broker: SocketAddr, topic: &str, messages: u64) -> Result<(), BenchError> {
    let caller = Caller::dial(broker).await?;
    let deadline = Instant::now() + BEHIND_MAX;
    loop {
        let mut there = 0;
        for queue in 0..QUEUES {
            there += caller.max_offset(topic, queue).await? - caller.min_offset(topic, queue).await?;
        }
        if there as u64 >= messages || Instant::now() > deadline {
            caller.close().await;
            return Ok(());
        }
        Timer::new(Duration::from_millis(100)).await;
    }
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
