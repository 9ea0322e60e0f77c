//! What each replica has when all is healed: its messages by pulls, its epochs, and its log's bytes.
use super::check::{Queue, Replica};
use super::client::{TOPIC, id_of};
use super::nodes::{BROKERS, NodeId, Nodes, SEGMENT_BYTES};
use crate::error::BenchError;
use crate::on_executor;
use crate::peer::{Caller, PullAsk};
use glommio::timer::Timer;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use uringmq_proto::body::controller::EpochCache;
use uringmq_proto::codes::{request, response};

const PATIENCE: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_millis(200);
/// Pulls before a queue's end that may bring nothing.
const EMPTY_MAX: u32 = 50;

/// Waits until all brokers' logs end at the same place. Gives it.
pub(super) fn settled(nodes: &Nodes) -> Result<u64, BenchError> {
    let brokers: Vec<SocketAddr> = NodeId::all(super::nodes::Role::Broker).map(|id| nodes.at(id)).collect();
    on_executor(None, move || async move {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut ends = Vec::new();
            for broker in &brokers {
                ends.push(epochs(*broker).await.map(|cache| cache.max_offset).ok());
            }
            if let [Some(first), rest @ ..] = &ends[..]
                && rest.iter().all(|end| *end == Some(*first))
            {
                return Ok(*first as u64);
            }
            if Instant::now() > deadline {
                return Err(BenchError::Wrong(format!("the logs do not become the same; they end at {ends:?}")));
            }
            Timer::new(AGAIN).await;
        }
    })
}

async fn epochs(broker: SocketAddr) -> Result<EpochCache, BenchError> {
    let what = "asking for the epochs";
    let caller = Caller::impatient(broker, Duration::from_secs(3)).await?;
    let answer = caller.ask(request::GET_BROKER_EPOCH_CACHE, &[], b"").await;
    caller.close().await;
    let answer = answer?;
    if answer.code != response::SUCCESS {
        return Err(BenchError::refused(what, &answer));
    }
    uringmq_proto::body::parse(&answer.body).map_err(|error| BenchError::Answer { what, why: error.to_string() })
}

/// Reads everything from every broker.
pub(super) fn replicas(nodes: &Nodes, queues: u32) -> Result<Vec<Replica>, BenchError> {
    let brokers: Vec<SocketAddr> = NodeId::all(super::nodes::Role::Broker).map(|id| nodes.at(id)).collect();
    on_executor(None, move || async move {
        let mut all = Vec::new();
        for broker in brokers {
            let cache = epochs(broker).await?;
            let epochs = cache.epoch_list.iter().map(|one| (one.epoch, one.start_offset, one.end_offset)).collect();
            let mut replica = Replica { epochs, queues: Vec::new() };
            for queue in 0..queues {
                replica.queues.push(read_queue(broker, queue).await?);
            }
            all.push(replica);
        }
        Ok(all)
    })
}

async fn read_queue(broker: SocketAddr, queue: u32) -> Result<Queue, BenchError> {
    let caller = Caller::dial(broker).await?;
    let (start, end) = (caller.min_offset(TOPIC, queue).await?, caller.max_offset(TOPIC, queue).await?);
    let mut read = Queue { start, ids: Vec::new() };
    let (mut offset, mut empty) = (start, 0);
    while offset < end {
        let pulled = caller.pull(TOPIC, &PullAsk { queue, offset, max_msgs: 32, hold: false }).await?;
        let before = offset;
        for record in pulled.records(true) {
            let wrong = |why: String| BenchError::Wrong(format!("{broker}, queue {queue}, offset {offset}: {why}"));
            let record = record.map_err(wrong)?;
            if record.queue_offset != offset {
                return Err(wrong(format!("the record of offset {}", record.queue_offset)));
            }
            read.ids.push(id_of(record.body));
            offset += 1;
        }
        if offset == before {
            empty += 1;
            if empty > EMPTY_MAX {
                return Err(BenchError::Wrong(format!("{broker}, queue {queue}: nothing at offset {offset} of {end}")));
            }
            Timer::new(AGAIN).await;
        }
    }
    caller.close().await;
    Ok(read)
}

/// Where the logs of the brokers differ from the first one's, up to `end`.
pub(super) fn differing_logs(nodes: &Nodes, end: u64) -> Result<Vec<String>, BenchError> {
    let mut faults = Vec::new();
    for start in (0..end).step_by(SEGMENT_BYTES as usize) {
        let bytes = (end - start).min(SEGMENT_BYTES) as usize;
        let name = format!("commitlog/{start:020}");
        let read = |broker: usize| {
            let path = nodes.store(broker).join(&name);
            read_start(&path, bytes).map_err(BenchError::io(path.display().to_string()))
        };
        let first = read(0)?;
        for broker in 1..BROKERS {
            let other = read(broker)?;
            if let Some(at) = first.iter().zip(&other).position(|(a, b)| a != b) {
                faults.push(format!("the logs of brokers 0 and {broker} differ at {}", start + at as u64));
            }
        }
    }
    Ok(faults)
}

fn read_start(path: &Path, bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = vec![0; bytes];
    File::open(path)?.read_exact_at(&mut read, 0)?;
    Ok(read)
}
