//! Ordered pops of the queues that this shard owns: what was given last of each, to whom, and what is acknowledged of it. While a message of it
//! is neither acknowledged nor visible again the queue gives nothing, but to the same attempt. Plain state; knows no queue.
//! Source: behaviour sheet 9.6, store-format sheet 8.3 (`consumerOrderInfo.json`), checked against Apache's broker 5.5.0; known fault O06.
use crate::placement::{self, ShardId};
use crate::snapshot::TopicTable;
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use uringmq_proto::body::pop::{OrderInfo, OrderInfoTable};
use uringmq_proto::types::QueueKey;

/// What was not touched for so long is forgotten.
const KEPT_MS: i64 = 24 * 3_600_000;

/// The last ordered pop of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Given {
    attempt: String,
    pop_ms: i64,
    invisible_ms: i64,
    offsets: Vec<i64>,
    /// Bit i: message i is acknowledged.
    acked: u64,
    /// How often messages were given before.
    counts: BTreeMap<i64, i32>,
    /// Where it was changed: when a message is visible again.
    visible_ms: BTreeMap<i64, i64>,
}

impl Given {
    fn is_acked(&self, index: usize) -> bool {
        index < 64 && self.acked >> index & 1 != 0
    }

    /// When the last message that is not acknowledged is visible again; `None` when all are acknowledged.
    fn blocked_to_ms(&self) -> Option<i64> {
        let usual = self.pop_ms.saturating_add(self.invisible_ms);
        let left = self.offsets.iter().enumerate().filter(|(index, _)| !self.is_acked(*index));
        left.map(|(_, offset)| self.visible_ms.get(offset).copied().unwrap_or(usual)).max()
    }

    /// The first message that is not acknowledged, or behind the last.
    fn next(&self) -> i64 {
        let left = self.offsets.iter().enumerate().find(|(index, _)| !self.is_acked(*index));
        left.map_or_else(|| self.offsets.last().map_or(0, |last| last + 1), |(_, offset)| *offset)
    }
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// The group's offset is to be here; `all`: the queue is free again.
    Next { offset: i64, all: bool },
    /// It is of another pop than the last: nothing.
    Stale,
    /// The last pop did not give that message.
    Unknown,
}

#[derive(Default)]
pub struct Orders {
    given: RefCell<HashMap<(QueueKey, Arc<str>), Given>>,
    dirty: Cell<bool>,
}

impl Orders {
    /// Until when a queue gives nothing to this attempt; `None`: it does now.
    pub fn blocked_to_ms(&self, key: QueueKey, group: &Arc<str>, attempt: Option<&str>, now_ms: i64) -> Option<i64> {
        let given = self.given.borrow();
        let last = given.get(&(key, group.clone()))?;
        if attempt.is_some_and(|attempt| !attempt.is_empty() && attempt == last.attempt) {
            return None;
        }
        last.blocked_to_ms().filter(|until| *until > now_ms)
    }

    /// Notes what a pop gives; how often each was given before, and the least of them when all were.
    pub fn give(
        &self,
        (key, group): (QueueKey, &Arc<str>),
        attempt: Option<&str>,
        (pop_ms, invisible_ms): (i64, i64),
        offsets: Vec<i64>,
    ) -> (BTreeMap<i64, i32>, i32) {
        let mut given = self.given.borrow_mut();
        let last = given.entry((key, group.clone())).or_default();
        let attempt = attempt.unwrap_or_default().to_owned();
        let counts = match !attempt.is_empty() && attempt == last.attempt {
            true => std::mem::take(&mut last.counts),
            false => {
                let again = offsets.iter().filter(|offset| last.offsets.contains(offset));
                again.map(|offset| (*offset, last.counts.get(offset).map_or(1, |before| before + 1))).collect()
            }
        };
        let least = match counts.len() == offsets.len() {
            true => counts.values().copied().min().unwrap_or(0),
            false => 0,
        };
        let next = Given { attempt, pop_ms, invisible_ms, offsets, counts: counts.clone(), ..Given::default() };
        *last = next;
        self.dirty.set(true);
        (counts, least)
    }

    pub fn ack(&self, key: QueueKey, group: &Arc<str>, offset: i64, pop_ms: i64) -> Acked {
        let mut given = self.given.borrow_mut();
        let Some(last) = given.get_mut(&(key, group.clone())) else {
            return Acked::Next { offset: offset.saturating_add(1), all: true };
        };
        if last.pop_ms != pop_ms {
            return Acked::Stale;
        }
        let Some(index) = last.offsets.iter().position(|known| *known == offset).filter(|index| *index < 64) else {
            return Acked::Unknown;
        };
        last.acked |= 1 << index;
        self.dirty.set(true);
        Acked::Next { offset: last.next(), all: last.blocked_to_ms().is_none() }
    }

    /// Has a message of the last pop be visible again at this time; false when that pop did not give it.
    pub fn change(&self, key: QueueKey, group: &Arc<str>, offset: i64, pop_ms: i64, visible_ms: i64) -> bool {
        let mut given = self.given.borrow_mut();
        let last = given.get_mut(&(key, group.clone()));
        let Some(last) = last.filter(|last| last.pop_ms == pop_ms && last.offsets.contains(&offset)) else {
            return false;
        };
        last.visible_ms.insert(offset, visible_ms);
        self.dirty.set(true);
        true
    }

    /// The group goes on elsewhere: nothing is held back any more.
    pub fn forget(&self, key: QueueKey, group: &Arc<str>) {
        if self.given.borrow_mut().remove(&(key, group.clone())).is_some() {
            self.dirty.set(true);
        }
    }

    pub fn dirty(&self) -> bool {
        self.dirty.get()
    }
    pub fn mark_dirty(&self) {
        self.dirty.set(true);
    }

    /// Everything of topics that are there, in the stored form; what is old is forgotten. What is exported is no longer dirty.
    pub fn export(&self, topics: &TopicTable, now_ms: i64) -> Vec<(String, u32, OrderInfo)> {
        self.dirty.set(false);
        let mut given = self.given.borrow_mut();
        given.retain(|(key, _), last| topics.by_id(key.topic).is_some() && now_ms - last.pop_ms < KEPT_MS);
        let stored = |last: &Given| {
            let first = last.offsets.first().copied().unwrap_or(0);
            let rest = last.offsets.iter().skip(1).map(|offset| offset - first);
            OrderInfo {
                attempt: last.attempt.clone(),
                acked: last.acked as i64,
                invisible_ms: last.invisible_ms,
                last_ms: last.pop_ms,
                offsets: last.offsets.first().copied().into_iter().chain(rest).collect(),
                counts: last.counts.iter().map(|(offset, count)| (*offset, *count)).collect(),
                visible_ms: last.visible_ms.iter().map(|(offset, ms)| (*offset, *ms)).collect(),
                pop_ms: last.pop_ms,
            }
        };
        let row = |((key, group), last): (&(QueueKey, Arc<str>), &Given)| {
            let name = &topics.by_id(key.topic)?.name;
            Some((format!("{name}@{group}"), key.queue, stored(last)))
        };
        given.iter().filter_map(row).collect()
    }

    /// Takes what this shard owns of the stored table.
    pub fn import(&self, me: ShardId, shards: u16, topics: &TopicTable, table: &OrderInfoTable) {
        let mut given = self.given.borrow_mut();
        for (name, queues) in &table.table {
            let Some((topic, group)) = name.split_once('@') else { continue };
            let Some(topic) = topics.get(topic) else { continue };
            for (queue, info) in queues.iter() {
                let Ok(queue) = u32::try_from(*queue) else { continue };
                let key = QueueKey { topic: topic.id, queue };
                if placement::owner(key, shards) != me {
                    continue;
                }
                let first = info.offsets.first().copied().unwrap_or(0);
                let rest = info.offsets.iter().skip(1).map(|offset| first.saturating_add(*offset));
                let last = Given {
                    attempt: info.attempt.clone(),
                    pop_ms: info.pop_ms,
                    invisible_ms: info.invisible_ms,
                    offsets: info.offsets.first().copied().into_iter().chain(rest).collect(),
                    acked: info.acked as u64,
                    counts: info.counts.iter().map(|(offset, count)| (*offset, *count)).collect(),
                    visible_ms: info.visible_ms.iter().map(|(offset, ms)| (*offset, *ms)).collect(),
                };
                given.insert((key, group.into()), last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Topic;
    use uringmq_proto::types::TopicId;

    const KEY: QueueKey = QueueKey { topic: TopicId(0), queue: 3 };

    fn group() -> Arc<str> {
        "g".into()
    }

    fn give(orders: &Orders, attempt: &str, pop_ms: i64, offsets: &[i64]) -> (Vec<(i64, i32)>, i32) {
        let (counts, least) = orders.give((KEY, &group()), Some(attempt), (pop_ms, 10), offsets.to_vec());
        (counts.into_iter().collect(), least)
    }

    #[test]
    fn a_queue_gives_nothing_until_all_is_settled_but_to_the_same_attempt() {
        let orders = Orders::default();
        let blocked = |attempt: &str, now| orders.blocked_to_ms(KEY, &group(), Some(attempt), now);
        assert_eq!(blocked("a", 0), None);
        assert_eq!(give(&orders, "a", 100, &[0, 1]), (vec![], 0));
        assert_eq!((blocked("b", 109), blocked("b", 110), blocked("a", 101)), (Some(110), None, None));
        assert_eq!(orders.blocked_to_ms(KEY, &group(), None, 101), Some(110));
        assert_eq!(orders.ack(KEY, &group(), 1, 100), Acked::Next { offset: 0, all: false });
        assert_eq!(blocked("b", 109), Some(110));
        assert_eq!(orders.ack(KEY, &group(), 0, 100), Acked::Next { offset: 2, all: true });
        assert_eq!(blocked("b", 101), None);
        assert_eq!(orders.ack(KEY, &group(), 0, 99), Acked::Stale);
        assert_eq!(orders.ack(KEY, &group(), 7, 100), Acked::Unknown);
    }

    #[test]
    fn what_is_given_again_is_counted_but_not_for_the_same_attempt() {
        let orders = Orders::default();
        give(&orders, "a", 100, &[0, 1]);
        assert_eq!(give(&orders, "a", 101, &[0, 1]), (vec![], 0));
        assert_eq!(give(&orders, "b", 120, &[0, 1]), (vec![(0, 1), (1, 1)], 1));
        assert_eq!(give(&orders, "c", 140, &[1, 2]), (vec![(1, 2)], 0));
        assert_eq!(give(&orders, "", 160, &[1]), (vec![(1, 3)], 3));
        assert_eq!(give(&orders, "", 180, &[1]), (vec![(1, 4)], 4), "no attempt is no attempt again");
    }

    #[test]
    fn a_change_moves_the_time_of_one_message() {
        let orders = Orders::default();
        give(&orders, "a", 100, &[0, 1]);
        assert!(orders.change(KEY, &group(), 1, 100, 150));
        assert!(!orders.change(KEY, &group(), 2, 100, 150) && !orders.change(KEY, &group(), 1, 99, 150));
        assert_eq!(orders.blocked_to_ms(KEY, &group(), None, 120), Some(150));
        orders.ack(KEY, &group(), 1, 100);
        assert_eq!(orders.blocked_to_ms(KEY, &group(), None, 120), None);
    }

    #[test]
    fn a_restart_knows_what_was_given() {
        let mut topics = TopicTable::default();
        let topic = Arc::new(Topic { id: TopicId(0), name: "T".into(), config: Default::default() });
        topics.by_name.insert(topic.name.clone(), topic.clone());
        topics.by_id.push(Some(topic));
        let before = Orders::default();
        give(&before, "a", 100, &[5, 6, 8]);
        before.change(KEY, &group(), 6, 100, 999);
        before.ack(KEY, &group(), 5, 100);
        let rows = before.export(&topics, 101);
        assert_eq!((rows[0].0.as_str(), rows[0].1, rows[0].2.offsets.as_slice()), ("T@g", 3, [5, 1, 3].as_slice()));
        assert!(!before.dirty());
        let mut table = OrderInfoTable::default();
        rows.into_iter().for_each(|(name, queue, info)| {
            table.table.entry(name).or_default().insert(queue as i32, info);
        });
        let after = Orders::default();
        after.import(0, 1, &topics, &table);
        assert_eq!(*after.given.borrow(), *before.given.borrow());
        assert!(after.export(&topics, 100 + KEPT_MS).is_empty());
    }
}
