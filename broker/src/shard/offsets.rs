//! Consumer offsets of the queues that this shard owns, by group: what was committed, a reset that waits for the next pull, and how
//! far the newest pull read. Knows no queue: whether an offset lies in its queue is the handlers' business.
//! Source: behaviour sheet 4.4, 5.3, 5.4; file shape: store-format sheet 8.3.
//!
//! A commit comes with many pulls, so a known group costs two look-ups and no allocation.
use crate::placement::{self, ShardId};
use crate::snapshot::TopicTable;
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use uringmq_proto::types::{QueueKey, TopicId};

/// Between topic and group in the stored table; no name may hold it.
const AT: char = '@';
/// No offset.
const NONE: i64 = -1;

/// A group as this shard numbers it.
type GroupNo = u32;

#[derive(Clone, Copy, Debug)]
struct Progress {
    committed: i64,
    /// Commits are swallowed while this is set; the next pull of the queue takes it.
    reset: i64,
    /// In memory only.
    pulled: i64,
}

const NO_PROGRESS: Progress = Progress { committed: NONE, reset: NONE, pulled: NONE };

#[derive(Default)]
struct Tables {
    numbers: HashMap<Arc<str>, GroupNo>,
    names: Vec<Arc<str>>,
    progress: HashMap<(QueueKey, GroupNo), Progress>,
    /// Rows of `progress` per topic, so that a new topic table is checked without walking them.
    rows: HashMap<TopicId, usize>,
    /// Stored rows whose topic is not known here: written back as they were. Shard 0 only.
    ghosts: BTreeMap<String, BTreeMap<u32, i64>>,
}

impl Tables {
    fn group(&mut self, name: &str) -> GroupNo {
        if let Some(no) = self.numbers.get(name) {
            return *no;
        }
        let (no, name) = (self.names.len() as GroupNo, Arc::<str>::from(name));
        self.numbers.insert(name.clone(), no);
        self.names.push(name);
        no
    }

    fn find(&self, key: QueueKey, group: &str) -> Option<&Progress> {
        self.progress.get(&(key, *self.numbers.get(group)?))
    }

    fn find_mut(&mut self, key: QueueKey, group: &str) -> Option<&mut Progress> {
        self.progress.get_mut(&(key, *self.numbers.get(group)?))
    }

    fn row(&mut self, key: QueueKey, group: &str) -> &mut Progress {
        let no = self.group(group);
        let rows = &mut self.rows;
        self.progress.entry((key, no)).or_insert_with(|| {
            *rows.entry(key.topic).or_default() += 1;
            NO_PROGRESS
        })
    }

    /// Removes the rows that `gone` selects; true when there were any.
    fn remove(&mut self, mut gone: impl FnMut(QueueKey, GroupNo) -> bool) -> bool {
        let (before, rows) = (self.progress.len(), &mut self.rows);
        self.progress.retain(|(key, no), _| {
            let keep = !gone(*key, *no);
            if !keep && let Some(count) = rows.get_mut(&key.topic) {
                *count -= 1;
            }
            keep
        });
        rows.retain(|_, count| *count > 0);
        self.progress.len() < before
    }
}

/// One shard's consumer offsets.
#[derive(Default)]
pub struct Offsets {
    tables: RefCell<Tables>,
    dirty: Cell<bool>,
    commits: Cell<u64>,
}

impl Offsets {
    /// The committed offset (a reset's target, while one waits); `None` when the group never committed on this queue.
    pub fn get(&self, key: QueueKey, group: &str) -> Option<i64> {
        self.tables.borrow().find(key, group).map(|row| row.committed).filter(|offset| *offset >= 0)
    }

    /// Stores what a client commits; a smaller one than before is taken too. False when a reset waits: the commit is swallowed.
    /// A negative offset changes nothing.
    pub fn commit(&self, key: QueueKey, group: &str, offset: i64) -> bool {
        let mut tables = self.tables.borrow_mut();
        if let Some(row) = tables.find_mut(key, group) {
            if row.reset != NONE {
                return false;
            }
            if offset >= 0 && row.committed != offset {
                row.committed = offset;
                self.note();
            }
            return true;
        }
        if offset >= 0 {
            tables.row(key, group).committed = offset;
            self.note();
        }
        true
    }

    /// Stores an offset whatever waits (cloned offsets, a new group's first).
    pub fn set(&self, key: QueueKey, group: &str, offset: i64) {
        self.tables.borrow_mut().row(key, group).committed = offset.max(0);
        self.note();
    }

    /// Commits `offset` for the group and tells its next pull of this queue to go there; commits in between are swallowed.
    pub fn reset(&self, key: QueueKey, group: &str, offset: i64) {
        let offset = offset.max(0);
        let mut tables = self.tables.borrow_mut();
        let row = tables.row(key, group);
        (row.committed, row.reset) = (offset, offset);
        self.note();
    }

    /// The target of a waiting reset, which this ends: the pull that takes it answers "moved" with it.
    pub fn take_reset(&self, key: QueueKey, group: &str) -> Option<i64> {
        let mut tables = self.tables.borrow_mut();
        let row = tables.find_mut(key, group)?;
        let target = std::mem::replace(&mut row.reset, NONE);
        (target != NONE).then_some(target)
    }

    /// Whether a reset waits for a pull.
    pub fn reset_waits(&self, key: QueueKey, group: &str) -> bool {
        self.tables.borrow().find(key, group).is_some_and(|row| row.reset != NONE)
    }

    /// Notes how far a pull read; kept in memory only.
    pub fn pulled(&self, key: QueueKey, group: &str, next: i64) {
        let mut tables = self.tables.borrow_mut();
        match tables.find_mut(key, group) {
            Some(row) => row.pulled = next,
            None => tables.row(key, group).pulled = next,
        }
    }

    /// How far the group's newest pull of this queue read.
    pub fn pull_offset(&self, key: QueueKey, group: &str) -> Option<i64> {
        self.tables.borrow().find(key, group).map(|row| row.pulled).filter(|offset| *offset >= 0)
    }

    fn note(&self) {
        self.dirty.set(true);
        self.commits.set(self.commits.get() + 1);
    }

    /// Changed since the last export.
    pub fn dirty(&self) -> bool {
        self.dirty.get()
    }

    /// What the last export held could not be written: it is due again.
    pub fn mark_dirty(&self) {
        self.dirty.set(true);
    }

    /// Changes since the start; the stored table's version steps by them.
    pub fn commits(&self) -> u64 {
        self.commits.get()
    }

    /// Every committed offset as (`topic@group`, queue, offset), the rows of unknown topics included; what is exported is no longer
    /// dirty.
    pub fn export(&self, topics: &TopicTable) -> Vec<(String, u32, i64)> {
        self.dirty.set(false);
        let tables = self.tables.borrow();
        let known = tables.progress.iter().filter(|(_, row)| row.committed >= 0).filter_map(|((key, no), row)| {
            let topic = topics.by_id(key.topic)?;
            Some((format!("{}{AT}{}", topic.name, tables.names[*no as usize]), key.queue, row.committed))
        });
        let ghosts = tables.ghosts.iter();
        let ghosts = ghosts.flat_map(|(name, queues)| queues.iter().map(|(queue, at)| (name.clone(), *queue, *at)));
        known.chain(ghosts).collect()
    }

    /// Takes its part of the stored table: the queues that shard `me` of `shards` owns and, on shard 0, what names no known topic.
    pub fn import<'a>(
        &self,
        me: ShardId,
        shards: u16,
        topics: &TopicTable,
        stored: impl IntoIterator<Item = (&'a str, u32, i64)>,
    ) {
        let mut tables = self.tables.borrow_mut();
        for (name, queue, offset) in stored.into_iter().filter(|row| row.2 >= 0) {
            let topic = name.split_once(AT).and_then(|(topic, group)| Some((topics.get(topic)?.id, group)));
            match topic {
                Some((topic, group)) => {
                    let key = QueueKey { topic, queue };
                    if placement::owner(key, shards) == me {
                        tables.row(key, group).committed = offset;
                    }
                }
                None if me == 0 => drop(tables.ghosts.entry(name.to_owned()).or_default().insert(queue, offset)),
                None => {}
            }
        }
    }

    /// A slave takes its master's table over: as `import`, and to be saved when it differs.
    pub fn copy<'a>(
        &self,
        me: ShardId,
        shards: u16,
        topics: &TopicTable,
        rows: impl Iterator<Item = (&'a str, u32, i64)> + Clone,
    ) {
        let differs = |(name, queue, offset): (&str, u32, i64)| {
            let Some((topic, group)) = name.split_once(AT) else { return false };
            let Some(topic) = topics.get(topic) else { return false };
            let key = QueueKey { topic: topic.id, queue };
            offset >= 0 && placement::owner(key, shards) == me && self.get(key, group) != Some(offset)
        };
        if rows.clone().any(differs) {
            self.import(me, shards, topics, rows);
            self.note();
        }
    }

    /// Brings committed offsets behind the end of their queue (`end_of`) there; how many.
    pub fn lower_to(&self, end_of: impl Fn(QueueKey) -> u64) -> usize {
        let mut lowered = 0;
        for ((key, _), row) in self.tables.borrow_mut().progress.iter_mut() {
            let end = i64::try_from(end_of(*key)).unwrap_or(i64::MAX);
            if row.committed > end {
                (row.committed, row.reset) = (end, row.reset.min(end));
                lowered += 1;
            }
        }
        if lowered > 0 {
            self.note();
        }
        lowered
    }

    /// Forgets the offsets of topics that are gone. A stored row of a topic that was unknown and is made anew goes too: its offsets
    /// belong to another topic of that name (known fault F05).
    pub fn drop_deleted(&self, topics: &TopicTable) {
        let mut tables = self.tables.borrow_mut();
        let ghosts = tables.ghosts.len();
        tables.ghosts.retain(|name, _| name.split_once(AT).is_none_or(|(topic, _)| topics.get(topic).is_none()));
        let mut changed = tables.ghosts.len() < ghosts;
        if tables.rows.keys().any(|topic| topics.by_id(*topic).is_none()) {
            changed |= tables.remove(|key, _| topics.by_id(key.topic).is_none());
        }
        if changed {
            self.note();
        }
    }

    /// Forgets all offsets of a group (code 207 with cleanOffset).
    pub fn remove_group(&self, group: &str) {
        let mut tables = self.tables.borrow_mut();
        let ghosts = tables.ghosts.len();
        tables.ghosts.retain(|name, _| name.split_once(AT).is_none_or(|(_, of)| of != group));
        let mut changed = tables.ghosts.len() < ghosts;
        if let Some(gone) = tables.numbers.get(group).copied() {
            changed |= tables.remove(|_, no| no == gone);
        }
        if changed {
            self.note();
        }
    }

    /// Groups with a committed offset on any queue of the topic that this shard owns.
    pub fn groups_of(&self, topic: TopicId) -> Vec<Arc<str>> {
        let tables = self.tables.borrow();
        let rows = tables.progress.iter().filter(|((key, _), row)| key.topic == topic && row.committed >= 0);
        let mut groups: Vec<GroupNo> = rows.map(|((_, no), _)| *no).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.into_iter().map(|no| tables.names[no as usize].clone()).collect()
    }

    /// Topics on which the group has a committed offset here.
    pub fn topics_of(&self, group: &str) -> Vec<TopicId> {
        let tables = self.tables.borrow();
        let Some(no) = tables.numbers.get(group) else { return Vec::new() };
        let rows = tables.progress.iter().filter(|((_, of), row)| of == no && row.committed >= 0);
        let mut topics: Vec<TopicId> = rows.map(|((key, _), _)| key.topic).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    /// All committed offsets on queues of `topic` here: (group, queue, offset).
    pub fn of_topic(&self, topic: TopicId) -> Vec<(Arc<str>, u32, i64)> {
        let tables = self.tables.borrow();
        let rows = tables.progress.iter().filter(|((key, _), row)| key.topic == topic && row.committed >= 0);
        rows.map(|((key, no), row)| (tables.names[*no as usize].clone(), key.queue, row.committed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Topic;

    fn topic_table(names: &[Option<&str>]) -> TopicTable {
        let mut table = TopicTable::default();
        for (id, name) in names.iter().enumerate() {
            let topic = name.map(|name| {
                let id = TopicId(id as u32);
                Arc::new(Topic { id, name: name.into(), config: Default::default() })
            });
            if let Some(topic) = &topic {
                table.by_name.insert(topic.name.clone(), topic.clone());
            }
            table.by_id.push(topic);
        }
        table
    }

    fn key(topic: u32, queue: u32) -> QueueKey {
        QueueKey { topic: TopicId(topic), queue }
    }

    fn sorted(mut rows: Vec<(String, u32, i64)>) -> Vec<(String, u32, i64)> {
        rows.sort();
        rows
    }

    #[test]
    fn a_commit_is_found_and_may_go_back() {
        let offsets = Offsets::default();
        assert_eq!((offsets.get(key(0, 0), "g"), offsets.dirty()), (None, false));
        assert!(offsets.commit(key(0, 0), "g", 7));
        assert!(offsets.commit(key(0, 0), "g", 3));
        assert!(offsets.commit(key(0, 0), "g", -1), "a negative one is ignored");
        assert_eq!(offsets.get(key(0, 0), "g"), Some(3));
        assert_eq!((offsets.get(key(0, 1), "g"), offsets.get(key(0, 0), "h")), (None, None));
        assert_eq!(offsets.commits(), 2);
        offsets.commit(key(0, 1), "g", 0);
        assert_eq!(offsets.get(key(0, 1), "g"), Some(0), "0 is an offset");
    }

    #[test]
    fn a_reset_swallows_commits_until_a_pull_takes_it() {
        let offsets = Offsets::default();
        offsets.commit(key(0, 0), "g", 100);
        offsets.reset(key(0, 0), "g", 40);
        assert_eq!(offsets.get(key(0, 0), "g"), Some(40));
        assert!(!offsets.commit(key(0, 0), "g", 101), "swallowed");
        assert!(offsets.reset_waits(key(0, 0), "g"));
        assert!(offsets.commit(key(0, 0), "other", 5) && offsets.commit(key(0, 1), "g", 5));
        assert_eq!(offsets.take_reset(key(0, 0), "g"), Some(40));
        assert_eq!(offsets.take_reset(key(0, 0), "g"), None);
        assert!(offsets.commit(key(0, 0), "g", 41));
        assert_eq!(offsets.get(key(0, 0), "g"), Some(41));
    }

    #[test]
    fn pull_offsets_are_apart_from_commits_and_never_exported() {
        let (offsets, topics) = (Offsets::default(), topic_table(&[Some("T")]));
        offsets.pulled(key(0, 0), "g", 32);
        assert_eq!((offsets.pull_offset(key(0, 0), "g"), offsets.get(key(0, 0), "g")), (Some(32), None));
        assert!(!offsets.dirty() && offsets.export(&topics).is_empty());
        assert!(offsets.groups_of(TopicId(0)).is_empty() && offsets.topics_of("g").is_empty());
    }

    #[test]
    fn stored_offsets_go_to_their_owners_and_come_back_whole() {
        let topics = topic_table(&[Some("T"), Some("%RETRY%g")]);
        let stored =
            [("T@g", 0, 1), ("T@g", 1, 2), ("T@h", 0, 3), ("%RETRY%g@g", 0, 4), ("gone@g", 0, 5), ("odd", 2, 6)];
        let shards = 3;
        let all: Vec<Offsets> = (0..shards)
            .map(|me| {
                let offsets = Offsets::default();
                offsets.import(me, shards, &topics, stored);
                offsets
            })
            .collect();
        let exported = all.iter().flat_map(|offsets| offsets.export(&topics)).collect();
        let want = stored.map(|(name, queue, offset)| (name.to_owned(), queue, offset)).to_vec();
        assert_eq!(sorted(exported), sorted(want));
        for (me, offsets) in all.iter().enumerate() {
            let mine = placement::owner(key(0, 1), shards) as usize == me;
            assert_eq!(offsets.get(key(0, 1), "g").is_some(), mine);
            assert!(!offsets.dirty());
        }
    }

    #[test]
    fn offsets_behind_the_end_go_to_it() {
        let offsets = Offsets::default();
        offsets.commit(key(0, 0), "g", 10);
        offsets.commit(key(0, 0), "h", 4);
        offsets.reset(key(0, 1), "g", 9);
        assert_eq!(offsets.lower_to(|key| 6 - u64::from(key.queue)), 2);
        assert_eq!((offsets.get(key(0, 0), "g"), offsets.get(key(0, 0), "h")), (Some(6), Some(4)));
        assert_eq!(offsets.take_reset(key(0, 1), "g"), Some(5));
        assert_eq!((offsets.lower_to(|_| 100), offsets.dirty()), (0, true));
    }

    /// Known fault F05.
    #[test]
    fn offsets_of_a_deleted_topic_do_not_reach_the_next_one_of_that_name() {
        let before = topic_table(&[Some("T"), Some("U")]);
        let offsets = Offsets::default();
        offsets.import(0, 1, &before, [("T@g", 0, 1000), ("U@g", 0, 5), ("ghost@g", 0, 9), ("other@g", 0, 9)]);
        let after = topic_table(&[None, Some("U"), Some("T"), Some("ghost")]);
        offsets.drop_deleted(&after);
        assert!(offsets.dirty());
        assert_eq!((offsets.get(key(0, 0), "g"), offsets.get(key(2, 0), "g")), (None, None));
        assert_eq!(sorted(offsets.export(&after)), [("U@g".to_owned(), 0, 5), ("other@g".to_owned(), 0, 9)]);
        offsets.drop_deleted(&after);
        assert!(!offsets.dirty(), "nothing was left to drop");
    }

    #[test]
    fn a_slave_takes_its_masters_offsets_and_keeps_others() {
        let (offsets, topics) = (Offsets::default(), topic_table(&[Some("T")]));
        offsets.commit(key(0, 0), "g", 5);
        offsets.commit(key(0, 0), "mine", 9);
        assert_eq!(offsets.export(&topics).len(), 2);
        let rows = [("T@g", 0, 8), ("T@h", 1, 2)];
        offsets.copy(0, 1, &topics, rows.into_iter());
        assert!(offsets.dirty());
        let all = sorted(offsets.export(&topics));
        assert_eq!(all, [("T@g".to_owned(), 0, 8), ("T@h".to_owned(), 1, 2), ("T@mine".to_owned(), 0, 9)]);
        offsets.copy(0, 1, &topics, rows.into_iter());
        assert!(!offsets.dirty(), "the same again");
    }

    #[test]
    fn groups_and_topics_find_each_other_and_a_group_can_go() {
        let topics = topic_table(&[Some("T"), Some("U")]);
        let offsets = Offsets::default();
        offsets.import(0, 1, &topics, [("T@g", 0, 1), ("T@g", 3, 1), ("T@h", 0, 2), ("U@g", 0, 3), ("ghost@g", 0, 9)]);
        let names = |topic: u32| -> Vec<String> {
            let mut names: Vec<String> = offsets.groups_of(TopicId(topic)).iter().map(|g| g.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!((names(0), names(1)), (vec!["g".to_owned(), "h".to_owned()], vec!["g".to_owned()]));
        assert_eq!(offsets.topics_of("g"), [TopicId(0), TopicId(1)]);
        assert_eq!(offsets.of_topic(TopicId(0)).len(), 3);
        offsets.remove_group("g");
        offsets.remove_group("nobody");
        assert_eq!(names(1), Vec::<String>::new());
        assert_eq!(offsets.export(&topics), [("T@h".to_owned(), 0, 2)]);
    }
}
