//! Acknowledgements that wait for slaves: SYNC_MASTER with inSyncReplicas above 1. They leave in log order, when the replicated mark has
//! passed their batch, or when slaveTimeout is over; the messages are stored either way. The writer goes on meanwhile: what is held here
//! is bounded by what the shards have in flight.
use crate::mesh::{Event, Msg};
use crate::placement::ShardId;
use crate::shard::Shard;
use crate::shard::appends::{Appended, Receipt, Refusal};
use futures_lite::future;
use glommio::timer::sleep;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::warn;

/// By asking shard: token and outcome.
pub type Acks = Vec<Vec<(u32, Result<Receipt, Refusal>)>>;

/// Those of one batch.
struct Batch {
    /// Where it ends in the log.
    end: u64,
    until: Instant,
    acks: Acks,
}

#[derive(Default)]
pub struct HeldAcks {
    batches: RefCell<VecDeque<Batch>>,
    filled: Event,
}

impl HeldAcks {
    /// Holds what a batch that ends at `end` has to answer, for `patience` at most.
    pub fn hold(&self, end: u64, acks: Acks, patience: Duration) {
        self.batches.borrow_mut().push_back(Batch { end, until: Instant::now() + patience, acks });
        self.filled.set();
    }

    /// Everything up to the replicated mark, and with it what waited too long by `now`. How many of the latter there were.
    fn take_due(&self, mark: u64, now: Instant, shards: usize) -> (Acks, usize) {
        let (mut due, mut late): (Acks, _) = (vec![Vec::new(); shards], 0);
        let mut batches = self.batches.borrow_mut();
        while batches.front().is_some_and(|b| b.end <= mark || b.until <= now) {
            let batch = batches.pop_front().expect("looked at just now");
            let in_time = batch.end <= mark;
            for (all, acks) in due.iter_mut().zip(batch.acks) {
                late += if in_time { 0 } else { acks.len() };
                all.extend(acks.into_iter().map(|(token, outcome)| {
                    (token, outcome.map(|receipt| Receipt { replicated: in_time, ..receipt }))
                }));
            }
        }
        (due, late)
    }

    /// Sends what is due. On the writer's shard.
    pub fn release(&self, shard: &Shard) {
        self.send_due(shard, shard.marks.replicated.load(Ordering::Acquire), Instant::now());
    }

    /// Sends everything, replicated or not: the broker stops.
    pub fn give_up(&self, shard: &Shard) {
        let last = self.batches.borrow().back().map(|batch| batch.until);
        if let Some(last) = last {
            self.send_due(shard, shard.marks.replicated.load(Ordering::Acquire), last.max(Instant::now()));
        }
    }

    fn send_due(&self, shard: &Shard, mark: u64, now: Instant) {
        if self.batches.borrow().is_empty() {
            return;
        }
        let (due, late) = self.take_due(mark, now, shard.shards as usize);
        if late > 0 {
            warn!(late, mark, "messages are stored here, but slaves did not confirm them within slaveTimeout");
        }
        send(shard, due);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.batches.borrow().front().map(|batch| batch.until)
    }
}

/// One message to each shard that asked.
pub fn send(shard: &Shard, acks: Acks) {
    let sent = Instant::now();
    for (to, acks) in acks.into_iter().enumerate().filter(|(_, a)| !a.is_empty()) {
        shard.mesh.push(to as ShardId, Msg::Appended(Box::new(Appended { sent, acks })));
    }
}

/// Lets go of what waited too long; a task of the writer's shard.
pub async fn expire(shard: Rc<Shard>) {
    let held = &shard.writer.as_ref().expect("runs on the writer shard").held;
    while !shard.gate.is_closed() {
        match held.next_deadline() {
            Some(until) => {
                sleep(until.saturating_duration_since(Instant::now())).await;
                held.release(&shard);
            }
            None => future::or(held.filled.wait(), shard.gate.closed()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::types::{PhyOffset, QueueOffset};

    fn ack(token: u32) -> (u32, Result<Receipt, Refusal>) {
        let phy = PhyOffset(token.into());
        (token, Ok(Receipt { phy, queue_offset: QueueOffset(0), store_timestamp_ms: 0, replicated: true }))
    }

    #[test]
    fn a_batch_leaves_when_slaves_have_it_or_when_it_waited_too_long() {
        let held = HeldAcks::default();
        let patience = Duration::from_secs(3);
        held.hold(100, vec![vec![ack(1)], vec![]], patience);
        held.hold(200, vec![vec![ack(2)], vec![ack(3)]], patience);
        held.hold(300, vec![vec![], vec![(4, Err(Refusal::DiskFull)), ack(5)]], patience);
        let now = Instant::now();
        assert_eq!(held.take_due(99, now, 2), (vec![vec![], vec![]], 0));
        assert_eq!(held.take_due(250, now, 2), (vec![vec![ack(1), ack(2)], vec![ack(3)]], 0));
        let (due, late) = held.take_due(250, now + 2 * patience, 2);
        assert_eq!(late, 2);
        assert!(matches!(due[1][..], [(4, Err(Refusal::DiskFull)), (5, Ok(Receipt { replicated: false, .. }))]));
        assert_eq!(held.next_deadline(), None);
    }
}
