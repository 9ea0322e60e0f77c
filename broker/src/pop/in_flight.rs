//! How many messages of a queue a group has in hand: popped, not acknowledged, and not visible again yet. On the queue's owner, while
//! `enablePopMessageThreshold` is on; with more than `popInflightMessageThreshold` of them the group gets no more of the queue. Plain state;
//! knows no queue. Source: behaviour sheet 9.2, checked against Apache's broker 5.5.0; known fault O07.
//!
//! Apache's broker counts; here each message is known by its offset, so an acknowledgement that comes twice counts once and nothing stays
//! counted for good. What was popped before a start, or while the switch was off, is not counted.
use crate::snapshot::TopicTable;
use hashbrown::HashMap;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use uringmq_proto::types::QueueKey;

/// Of one queue and group. At most the limit and one pop's messages more are in it.
#[derive(Default)]
struct Held {
    /// When each is visible again, ms.
    until_ms: HashMap<i64, i64>,
    by_time: BTreeSet<(i64, i64)>,
}

impl Held {
    fn set(&mut self, offset: i64, until_ms: i64) {
        if let Some(before) = self.until_ms.insert(offset, until_ms) {
            self.by_time.remove(&(before, offset));
        }
        self.by_time.insert((until_ms, offset));
    }

    fn remove(&mut self, offset: i64) {
        if let Some(until_ms) = self.until_ms.remove(&offset) {
            self.by_time.remove(&(until_ms, offset));
        }
    }

    fn drop_visible(&mut self, now_ms: i64) {
        while let Some((_, offset)) = self.by_time.first().copied().filter(|(until_ms, _)| *until_ms <= now_ms) {
            self.remove(offset);
        }
    }
}

#[derive(Default)]
pub struct InFlight {
    held: RefCell<HashMap<(QueueKey, Arc<str>), Held>>,
}

impl InFlight {
    /// These messages were handed out, or are to stay invisible until another time.
    pub fn note(&self, key: QueueKey, group: &Arc<str>, until_ms: i64, offsets: impl Iterator<Item = i64>) {
        let mut all = self.held.borrow_mut();
        let held = all.entry((key, group.clone())).or_default();
        offsets.for_each(|offset| held.set(offset, until_ms));
    }

    /// As [`note`](Self::note) for a message that is known; another stays unknown.
    pub fn prolong(&self, key: QueueKey, group: &Arc<str>, until_ms: i64, offset: i64) {
        if let Some(held) = self.held.borrow_mut().get_mut(&(key, group.clone()))
            && held.until_ms.contains_key(&offset)
        {
            held.set(offset, until_ms);
        }
    }

    /// These messages are acknowledged.
    pub fn settle(&self, key: QueueKey, group: &Arc<str>, offsets: &[i64]) {
        if let Some(held) = self.held.borrow_mut().get_mut(&(key, group.clone())) {
            offsets.iter().for_each(|offset| held.remove(*offset));
        }
    }

    /// When there may be room again without an acknowledgement, ms; `None` while there is: no more than `limit` are in hand.
    pub fn full_to_ms(&self, key: QueueKey, group: &Arc<str>, limit: usize, now_ms: i64) -> Option<i64> {
        let mut all = self.held.borrow_mut();
        let held = all.get_mut(&(key, group.clone()))?;
        held.drop_visible(now_ms);
        match held.until_ms.len() > limit {
            true => held.by_time.first().map(|(until_ms, _)| *until_ms),
            false => None,
        }
    }

    /// Forgets what is visible again by `now_ms`, and queues of topics that are gone.
    pub fn tidy(&self, topics: &TopicTable, now_ms: i64) {
        self.held.borrow_mut().retain(|(key, _), held| {
            held.drop_visible(now_ms);
            !held.until_ms.is_empty() && topics.by_id(key.topic).is_some()
        });
    }

    /// Forgets everything: the switch is off.
    pub fn clear(&self) {
        self.held.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::types::TopicId;

    const KEY: QueueKey = QueueKey { topic: TopicId(0), queue: 3 };

    fn full(in_flight: &InFlight, limit: usize, now_ms: i64) -> Option<i64> {
        in_flight.full_to_ms(KEY, &"g".into(), limit, now_ms)
    }

    #[test]
    fn more_than_the_limit_is_too_many() {
        let (in_flight, group) = (InFlight::default(), "g".into());
        assert_eq!(full(&in_flight, 0, 0), None);
        in_flight.note(KEY, &group, 100, [5, 6].into_iter());
        assert_eq!((full(&in_flight, 1, 0), full(&in_flight, 2, 0)), (Some(100), None));
        in_flight.settle(KEY, &group, &[5, 5, 9]);
        assert_eq!(
            (full(&in_flight, 0, 0), full(&in_flight, 1, 0)),
            (Some(100), None),
            "one message, one acknowledgement"
        );
        assert_eq!(in_flight.full_to_ms(KEY, &"h".into(), 0, 0), None);
    }

    #[test]
    fn what_is_visible_again_is_not_in_hand() {
        let (in_flight, group) = (InFlight::default(), "g".into());
        in_flight.note(KEY, &group, 100, 0..3);
        in_flight.prolong(KEY, &group, 150, 1);
        in_flight.prolong(KEY, &group, 150, 7);
        assert_eq!((full(&in_flight, 2, 99), full(&in_flight, 2, 100)), (Some(100), None));
        assert_eq!((full(&in_flight, 0, 149), full(&in_flight, 0, 150)), (Some(150), None));
        in_flight.note(KEY, &group, 200, 0..3);
        in_flight.tidy(&TopicTable::default(), 0);
        assert_eq!(full(&in_flight, 0, 0), None, "the topic is gone");
    }
}
