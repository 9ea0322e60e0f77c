//! What was sent, and how far it was acknowledged: the judge's side of the truth. Knows no disk.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use uringmq_store::consume_queue::Entry;

pub const TABLES: usize = 2;

/// Topic and queue.
pub type QueueId = (String, u32);

/// A record as it was placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub phy: u64,
    pub bytes: Vec<u8>,
    /// Missing for a record that has no place in a queue.
    pub at: Option<(QueueId, u64)>,
    /// Its places in light queues, beside its own.
    pub lights: Vec<(QueueId, u64)>,
    pub tags_code: i64,
    /// Messages in it.
    pub count: u16,
    /// Store time, where its entry has it.
    pub stored_ms: i64,
    pub key: String,
    pub topic: String,
}

impl Sent {
    pub fn entry(&self) -> Entry {
        use uringmq_proto::types::PhyOffset;
        let plain = Entry::new(PhyOffset(self.phy), self.bytes.len() as u32, self.tags_code);
        let base = self.at.as_ref().map_or(0, |(_, at)| *at);
        Entry { base, count: self.count, stored_ms: self.stored_ms, ..plain }
    }
    /// In a light queue, at this offset.
    fn light_entry(&self, at: u64) -> Entry {
        Entry { base: at, count: 1, stored_ms: 0, ..self.entry() }
    }
}

/// A small table saved in versions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Table {
    /// The last save that succeeded, and the last that was tried; 0: none.
    pub saved: u64,
    pub tried: u64,
    /// The backup holds this version or a later one; 0: there may be none.
    pub kept: u64,
    /// Where a bit flipped since the last save that succeeded.
    pub decayed: Option<Part>,
}

/// A file of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Main,
    Backup,
    Mark,
}

impl Table {
    /// The save of the last version tried succeeded. `kept`: the one before is the backup now; it is not when that had decayed or could
    /// not be read, and the backup stays as it is.
    pub fn saved_now(&mut self, kept: bool) {
        if kept {
            self.kept = self.saved;
        }
        self.saved = self.tried;
        self.decayed = self.decayed.filter(|part| *part == Part::Backup && !kept);
    }
    /// Versions that a start may find.
    pub fn right(&self) -> std::ops::RangeInclusive<u64> {
        let least = if self.decayed == Some(Part::Main) { self.kept } else { self.saved };
        least..=self.tried
    }
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// In the order of the log; the last ones may be under way. What was refused is not in it.
    pub log: Vec<Rc<Sent>>,
    /// How many of them were acknowledged as written (they survive a kill) and as durable (they survive a power cut).
    pub written: usize,
    pub durable: usize,
    /// The checkpoint that no power cut takes back names this position or a later one. (A later one may be read from the page cache, if
    /// its sync failed.)
    pub checkpointed: u64,
    /// Retention was asked to remove what is below.
    pub floor: u64,
    pub tables: [Table; TABLES],
    /// A deletion that was begun and not acknowledged: of this topic nothing is known.
    pub deleting: Option<String>,
    /// Positions of records that went bad on the disk.
    pub bad: BTreeSet<u64>,
    /// Of topics that were deleted: so many records of the log are older than that, and in no queue.
    pub deleted: BTreeMap<String, usize>,
}

impl Model {
    /// A start found this many records, of which none will be lost again.
    pub fn found(&mut self, count: usize) {
        self.log.truncate(count);
        (self.written, self.durable) = (count, count);
    }
    /// Those that end there or before.
    pub fn written_to(&mut self, end: u64) {
        let behind = self.log.iter().rev().take_while(|sent| sent.phy + sent.bytes.len() as u64 > end).count();
        self.written = self.log.len() - behind;
    }
    pub fn all_written(&mut self) {
        self.written = self.log.len();
    }
    pub fn all_durable(&mut self) {
        self.durable = self.written;
    }
    /// The batch under way was refused.
    pub fn refused(&mut self) {
        self.log.truncate(self.written);
    }
    /// Whether the topic of the n-th record was deleted since.
    pub fn is_dead(&self, n: usize) -> bool {
        self.deleted.get(&self.log[n].topic).is_some_and(|older| n < *older)
    }
    /// The next offset of a queue.
    pub fn next(&self, id: &QueueId) -> u64 {
        let mut lights = self.log.iter().rev().flat_map(|sent| &sent.lights);
        if let Some((_, at)) = lights.find(|(of, _)| of == id) {
            return at + 1;
        }
        let alive = self.log.iter().enumerate().rev().filter(|(n, _)| !self.is_dead(*n));
        let placed = alive.filter_map(|(_, sent)| Some((sent.at.as_ref()?, sent.count)));
        let mut of_queue = placed.filter(|((of, _), _)| of == id);
        of_queue.next().map_or(0, |((_, at), count)| at + count as u64)
    }
    /// Next offsets and entries by queue, of the first `count` records.
    pub fn queues(&self, count: usize) -> BTreeMap<QueueId, Vec<Entry>> {
        let mut queues: BTreeMap<QueueId, Vec<Entry>> = BTreeMap::new();
        for (n, sent) in self.log[..count].iter().enumerate() {
            // That its topic is no more takes nothing out of a light queue.
            for (id, at) in &sent.lights {
                let entries = queues.entry(id.clone()).or_default();
                assert_eq!(entries.len() as u64, *at, "{id:?}: placed with a gap or twice");
                entries.push(sent.light_entry(*at));
            }
            if let Some((id, at)) = &sent.at
                && !self.is_dead(n)
            {
                let entries = queues.entry(id.clone()).or_default();
                let next = entries.last().map_or(0, Entry::end);
                assert_eq!(next, *at, "{id:?}: placed with a gap or twice");
                entries.push(sent.entry());
            }
        }
        queues
    }
}
