//! The messages whose slots are near: in the order of the times that were asked for, with what their slots still need. Plain state of shard
//! 0; knows no files and no tasks.
use std::collections::{BTreeMap, HashSet};
use uringmq_proto::types::PhyOffset;

/// Bytes of records kept from the reading of a slot until they are due; beyond, they are read again.
const HELD_BYTES_MAX: usize = 32 << 20;

/// A message that waits for its time.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The time of the slot that it hangs on.
    pub slot_ms: i64,
    pub bytes: u32,
    /// When it was enqueued.
    pub write_ms: i64,
    pub rolls: bool,
    /// Its record, unless memory was short.
    pub record: Option<Box<[u8]>>,
}

/// What is known of a slot that is near.
#[derive(Debug, Default)]
struct Slot {
    /// Being read.
    loading: bool,
    /// Messages that are not done.
    open: usize,
    /// Keys of messages that were taken back: `UNIQ_KEY`, or `topic+UNIQ_KEY`.
    deletes: HashSet<String>,
    /// Messages that are done, by topic.
    done: BTreeMap<String, i64>,
}

#[derive(Debug, Default)]
pub struct Near {
    /// By due time and place in the log.
    waiting: BTreeMap<(i64, PhyOffset), Waiting>,
    slots: BTreeMap<i64, Slot>,
    held_bytes: usize,
}

impl Near {
    pub fn has(&self, slot_ms: i64) -> bool {
        self.slots.contains_key(&slot_ms)
    }

    /// The slot is near from now on; `loading`: what hangs on it is being read, until [`Near::loaded`].
    pub fn begin(&mut self, slot_ms: i64, loading: bool) {
        self.slots.insert(slot_ms, Slot { loading, ..Slot::default() });
    }

    pub fn loaded(&mut self, slot_ms: i64) {
        if let Some(slot) = self.slots.get_mut(&slot_ms) {
            slot.loading = false;
        }
    }

    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// A message of a slot that is near. The same place twice is one message.
    pub fn add(&mut self, due_ms: i64, phy: PhyOffset, mut waiting: Waiting) {
        let Some(slot) = self.slots.get_mut(&waiting.slot_ms) else { return };
        let bytes = waiting.record.as_ref().map_or(0, |record| record.len());
        if self.held_bytes + bytes > HELD_BYTES_MAX {
            waiting.record = None;
        }
        let held = waiting.record.as_ref().map_or(0, |record| record.len());
        if let std::collections::btree_map::Entry::Vacant(place) = self.waiting.entry((due_ms, phy)) {
            place.insert(waiting);
            slot.open += 1;
            self.held_bytes += held;
        }
    }

    pub fn delete(&mut self, slot_ms: i64, key: &str) {
        if let Some(slot) = self.slots.get_mut(&slot_ms) {
            slot.deletes.insert(key.to_owned());
        }
    }

    /// Whether a message of this slot was taken back.
    pub fn is_deleted(&self, slot_ms: i64, topic: &str, uniq_key: &str) -> bool {
        self.slots.get(&slot_ms).is_some_and(|slot| {
            !slot.deletes.is_empty()
                && (slot.deletes.contains(uniq_key) || slot.deletes.contains(&format!("{topic}+{uniq_key}")))
        })
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<i64> {
        self.waiting.first_key_value().map(|((due_ms, _), _)| *due_ms)
    }

    /// Takes what is due at `now_ms`, in order: at most `count`, and `bytes` unless the first has more.
    pub fn take_due(&mut self, now_ms: i64, count: usize, bytes: usize) -> Vec<(PhyOffset, Waiting)> {
        let mut taken = Vec::new();
        let mut taken_bytes = 0;
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 <= now_ms
            && taken.len() < count
            && (taken.is_empty() || taken_bytes + first.get().bytes as usize <= bytes)
        {
            let ((_, phy), waiting) = first.remove_entry();
            taken_bytes += waiting.bytes as usize;
            self.held_bytes -= waiting.record.as_ref().map_or(0, |record| record.len());
            taken.push((phy, waiting));
        }
        taken
    }

    /// A taken message is done; its topic, when it counts.
    pub fn done(&mut self, slot_ms: i64, topic: Option<&str>) {
        let Some(slot) = self.slots.get_mut(&slot_ms) else { return };
        slot.open = slot.open.saturating_sub(1);
        if let Some(topic) = topic {
            match slot.done.get_mut(topic) {
                Some(count) => *count += 1,
                None => drop(slot.done.insert(topic.to_owned(), 1)),
            }
        }
    }

    /// Done messages of slots that are not, by topic.
    pub fn done_counts(&self) -> impl Iterator<Item = (&str, i64)> {
        self.slots.values().flat_map(|slot| slot.done.iter().map(|(topic, count)| (topic.as_str(), *count)))
    }

    /// Removes the slots before `before_ms` on which nothing is left; their times, and what was done on them by topic.
    pub fn sweep(&mut self, before_ms: i64) -> Vec<(i64, BTreeMap<String, i64>)> {
        let finished: Vec<i64> = self
            .slots
            .range(..before_ms)
            .filter(|(_, slot)| !slot.loading && slot.open == 0)
            .map(|(slot_ms, _)| *slot_ms)
            .collect();
        let take = |slot_ms| self.slots.remove(&slot_ms).map(|slot| (slot_ms, slot.done));
        finished.into_iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(slot_ms: i64, bytes: u32) -> Waiting {
        Waiting { slot_ms, bytes, write_ms: 0, rolls: false, record: Some(vec![7; bytes as usize].into()) }
    }
    fn places(taken: &[(PhyOffset, Waiting)]) -> Vec<u64> {
        taken.iter().map(|(phy, _)| phy.0).collect()
    }

    #[test]
    fn what_is_due_comes_in_the_order_of_its_times() {
        let mut near = Near::default();
        near.add(1500, PhyOffset(9), waiting(1000, 10));
        assert_eq!(near.count(), 0, "its slot is not near");
        near.begin(1000, false);
        near.begin(2000, false);
        for (due, phy, slot) in [(1500, 3, 1000), (1200, 4, 1000), (2100, 1, 2000), (1500, 2, 1000), (1500, 2, 1000)] {
            near.add(due, PhyOffset(phy), waiting(slot, 10));
        }
        assert_eq!((near.count(), near.next_due(), near.held_bytes), (4, Some(1200), 40));
        assert!(near.take_due(1199, 10, 1000).is_empty());
        assert_eq!(places(&near.take_due(1500, 2, 1000)), [4, 2]);
        assert_eq!(places(&near.take_due(9999, 10, 15)), [3]);
        assert_eq!(places(&near.take_due(9999, 10, 5)), [1], "the first goes whatever its size");
        assert_eq!((near.next_due(), near.held_bytes), (None, 0));
    }

    #[test]
    fn a_slot_is_done_when_all_of_it_is() {
        let mut near = Near::default();
        near.begin(1000, true);
        near.add(1500, PhyOffset(1), waiting(1000, 10));
        near.add(1600, PhyOffset(2), waiting(1000, 10));
        near.delete(1000, "T+K");
        near.delete(1000, "L");
        assert!(near.is_deleted(1000, "T", "K") && near.is_deleted(1000, "U", "L"));
        assert!(!near.is_deleted(1000, "U", "K") && !near.is_deleted(2000, "T", "K"));
        near.take_due(1500, 10, 1000);
        near.done(1000, Some("T"));
        assert!(near.sweep(2000).is_empty(), "it is being read");
        near.loaded(1000);
        assert!(near.sweep(2000).is_empty(), "one waits");
        assert_eq!(near.done_counts().collect::<Vec<_>>(), [("T", 1)]);
        near.take_due(1600, 10, 1000);
        near.done(1000, Some("T"));
        near.done(1000, None);
        assert!(near.sweep(1000).is_empty());
        assert_eq!(near.sweep(2000), [(1000, BTreeMap::from([("T".to_owned(), 2)]))]);
        assert!(!near.has(1000));
    }

    #[test]
    fn records_beyond_the_budget_are_read_again() {
        let mut near = Near::default();
        near.begin(0, false);
        for n in 0..40 {
            near.add(1, PhyOffset(n), waiting(0, 1 << 20));
        }
        assert_eq!(near.held_bytes, HELD_BYTES_MAX);
        let taken = near.take_due(1, 100, usize::MAX);
        assert_eq!(taken.iter().filter(|(_, waiting)| waiting.record.is_some()).count(), 32);
        assert_eq!((taken.len(), near.held_bytes), (40, 0));
    }
}
