//! After a kill the table of offsets is as it was saved last, but what was popped since is noted by check points: no pop goes back over them.
//! Known fault O02.
use crate::control::persist;
use crate::delay;
use crate::handlers::offset::{bounds, stopping};
use crate::pop::log::Entry;
use crate::shard::Shard;
use hashbrown::HashMap;
use std::rc::Rc;
use tracing::info;
use uringmq_proto::body::pop::CheckPoint;
use uringmq_proto::names;
use uringmq_proto::record::{self, Found, Record};
use uringmq_proto::types::QueueKey;
use uringmq_store::StoreError;
use uringmq_store::io::Io as _;

/// The table is gathered some time before its file has its time.
const MARGIN_MS: i64 = 5000;
const CHUNK: u64 = 256;

/// (topic, group, queue) to the offset behind what was popped.
type Popped = HashMap<(String, String, u32), i64>;

/// Moves offsets behind what was popped since they were saved. On shard 0, once every shard has its queues and offsets.
pub async fn restore(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let config = shard.config();
    if config.broker_id != 0 || !config.timer_wheel {
        return Ok(());
    }
    let saved = shard.io.metadata(&persist::path(&config.store_root, "consumerOffset.json")).await;
    let since_ms = saved.map_or(0, |meta| meta.modified_ms - MARGIN_MS);
    let mut popped = Popped::new();
    let revive = names::revive_topic(&config.cluster_name);
    scan(shard, names::WHEEL_TIMER_TOPIC, 0, since_ms, &mut popped).await?;
    for queue in 0..config.revive_queues {
        scan(shard, &revive, queue, since_ms, &mut popped).await?;
    }
    let found = popped.len();
    let mut moved = 0;
    for ((topic, group, queue), next) in popped {
        let Some(topic) = shard.topic(&topic) else { continue };
        let key = QueueKey { topic: topic.id, queue };
        let raised = shard.run_on(shard.owner(key), move |owner| async move {
            let (_, max) = bounds(&owner, key);
            let behind = owner.offsets.get(key, &group).is_none_or(|offset| offset < next);
            // A topic of that name that was made anew has fewer messages.
            let raise = behind && next <= max as i64;
            if raise {
                owner.offsets.set(key, &group, next);
            }
            raise
        });
        moved += usize::from(raised.await.ok_or_else(stopping)?);
    }
    if found > 0 {
        info!(since_ms, queues = found, moved, "offsets of pops since the last save");
    }
    Ok(())
}

/// Looks through a queue from its end back to what was stored before `since_ms`.
async fn scan(
    shard: &Rc<Shard>,
    topic: &str,
    queue: u32,
    since_ms: i64,
    popped: &mut Popped,
) -> Result<(), StoreError> {
    let Some(topic) = shard.topic(topic) else { return Ok(()) };
    let key = QueueKey { topic: topic.id, queue };
    let owner = shard.owner(key);
    let at = shard.run_on(owner, move |owner| async move { bounds(&owner, key) }).await;
    let (min, mut to) = at.ok_or_else(stopping)?;
    while to > min {
        let from = to.saturating_sub(CHUNK).max(min);
        let fetched = shard.run_on(owner, move |owner| delay::fetch(owner, key, from)).await;
        let entries = fetched.ok_or_else(stopping)??.entries;
        let mut before = false;
        for (_, entry) in (from..to).zip(&entries) {
            let Some(bytes) = shard.stored_record(entry.phy, entry.bytes).await? else { continue };
            let Ok(Found::Record(record)) = record::parse(&bytes, false) else { continue };
            before |= record.store_timestamp_ms < since_ms;
            if let Some(check_point) = check_point_in(&record).filter(|c| c.pop_ms >= since_ms) {
                note(popped, &check_point);
            }
        }
        if before {
            return Ok(());
        }
        to = from;
    }
    Ok(())
}

fn check_point_in(record: &Record<'_>) -> Option<CheckPoint> {
    match Entry::read(record.properties, record.body)? {
        Entry::CheckPoint(check_point) => Some(check_point),
        Entry::Ack(_) => None,
    }
}

fn note(popped: &mut Popped, c: &CheckPoint) {
    let (Some(last), Ok(queue)) = (c.offsets().max(), u32::try_from(c.queue_id)) else { return };
    let next = popped.entry((c.topic.clone(), c.group.clone(), queue)).or_default();
    *next = (*next).max(last + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_of_all_check_points_counts() {
        let mut popped = Popped::new();
        let c = |start_offset, diffs: &[i32]| CheckPoint {
            topic: "T".into(),
            group: "g".into(),
            start_offset,
            count: diffs.len() as i32,
            diffs: diffs.to_vec(),
            queue_id: 1,
            ..CheckPoint::default()
        };
        note(&mut popped, &c(10, &[0, 1, 5]));
        note(&mut popped, &c(3, &[0]));
        note(&mut popped, &CheckPoint { queue_id: -1, ..c(90, &[0]) });
        note(&mut popped, &c(90, &[]));
        assert_eq!(popped.into_iter().collect::<Vec<_>>(), [(("T".into(), "g".into(), 1), 16)]);
    }
}
