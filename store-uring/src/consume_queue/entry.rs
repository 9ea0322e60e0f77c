//! What one entry of a queue's index is, in both kinds of queues. Source: store-format sheet 4.1, 4.9.
//!
//! | at | bytes | field of an [`Entry`] |
//! | 0  | 8     | `phy`       |
//! | 8  | 4     | `bytes`; 0 = no entry, 0x7FFFFFFF = a hole: an offset without a record |
//! | 12 | 8     | `tags_code`, or `unit` when that is not 0 |
//!
//! An entry of a batch queue ([`Form::Batch`]) is for a record that may hold many messages, and has more:
//!
//! | at | bytes | field of an [`Entry`] |
//! | 20 | 8     | `stored_ms` |
//! | 28 | 8     | `base`      |
//! | 36 | 2     | `count`     |
//! | 38 | 8     | -1 (4 bytes), 0 |
use super::extension::is_address;
use uringmq_proto::types::{PhyOffset, QueueOffset};

/// Of a plain queue.
pub const ENTRY_BYTES: usize = 20;
pub const BATCH_ENTRY_BYTES: usize = 46;
/// Most messages of one record: Java's field for it is a signed short.
pub const BATCH_COUNT_MAX: u16 = i16::MAX as u16;
/// `bytes` of a slot that has no record.
const HOLE_BYTES: u32 = 0x7FFF_FFFF;
/// Which kind of entries a queue has: attribute `queue.type` of its topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// `SimpleCQ`: an entry a message, in `consumequeue`.
    #[default]
    Plain,
    /// `BatchCQ`: an entry a record of one or many messages, in `batchconsumequeue`.
    Batch,
}

impl Form {
    pub const ALL: [Form; 2] = [Form::Plain, Form::Batch];
    /// Length of an entry in the files.
    pub const fn entry_bytes(self) -> usize {
        match self {
            Form::Plain => ENTRY_BYTES,
            Form::Batch => BATCH_ENTRY_BYTES,
        }
    }
    /// The directory of all queues of this kind, below the store's root.
    pub const fn dir(self) -> &'static str {
        match self {
            Form::Plain => "consumequeue",
            Form::Batch => "batchconsumequeue",
        }
    }
    /// Of the entry in slot `slot`. `None` where none was written: a size, number or count that is none.
    pub fn decode(self, slot: u64, bytes: &[u8]) -> Option<Entry> {
        let entry = Entry::decode(bytes)?;
        if self == Form::Plain {
            return Some(Entry { base: slot, ..entry });
        }
        let stored_ms = i64::from_be_bytes(bytes[20..28].try_into().expect("8 bytes"));
        let base = u64::from_be_bytes(bytes[28..36].try_into().expect("8 bytes"));
        let count = u16::from_be_bytes(bytes[36..38].try_into().expect("2 bytes"));
        let valid = base <= i64::MAX as u64 && (1..=BATCH_COUNT_MAX).contains(&count);
        valid.then_some(Entry { base, count, stored_ms, ..entry })
    }
    pub(crate) fn encode(self, entry: &Entry, out: &mut [u8]) {
        entry.encode(out);
        if self == Form::Batch {
            out[20..28].copy_from_slice(&entry.stored_ms.to_be_bytes());
            out[28..36].copy_from_slice(&entry.base.to_be_bytes());
            out[36..38].copy_from_slice(&entry.count.to_be_bytes());
            out[38..42].copy_from_slice(&(-1i32).to_be_bytes());
            out[42..46].fill(0);
        }
    }
}

/// Where a queue begins and ends: its offsets `min..max`, and the slots `first..end` of their entries, which are the same numbers in a
/// plain queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub min: QueueOffset,
    pub max: QueueOffset,
    pub first: u64,
    pub end: u64,
}

impl Bounds {
    /// Of a plain queue.
    pub fn plain(min: QueueOffset, max: QueueOffset) -> Self {
        Bounds { min, max, first: min.0, end: max.0 }
    }
    /// Of a queue without entries, the next of which has the offset `at`.
    pub fn empty(form: Form, at: QueueOffset) -> Self {
        let slot = if form == Form::Plain { at.0 } else { 0 };
        Bounds { min: at, max: at, first: slot, end: slot }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub phy: PhyOffset,
    pub bytes: u32,
    /// See [`Entry::tags`].
    pub tags_code: i64,
    /// Address of its unit in the queue's extension, which stands in the file in place of `tags_code`; 0 = it has none (yet).
    pub unit: i64,
    /// The queue offset of its first message; set when it is appended or read.
    pub base: u64,
    /// Messages in its record, at most [`BATCH_COUNT_MAX`]; 1 but in a batch queue.
    pub count: u16,
    /// The record's; 0 but in a batch queue.
    pub stored_ms: i64,
}

impl Entry {
    /// A slot that leads to no record; `phy` keeps the order of the entries around it.
    pub const fn hole(phy: PhyOffset) -> Self {
        Entry::new(phy, HOLE_BYTES, 0)
    }
    /// Of a record with one message.
    pub const fn new(phy: PhyOffset, bytes: u32, tags_code: i64) -> Self {
        Entry { phy, bytes, tags_code, unit: 0, base: 0, count: 1, stored_ms: 0 }
    }
    /// Behind its last message.
    pub fn end(&self) -> u64 {
        self.base + self.count as u64
    }
    /// Its tagsCode; `None` when that stands in a unit that is not there.
    pub fn tags(&self) -> Option<i64> {
        (!is_address(self.tags_code)).then_some(self.tags_code)
    }
    pub fn is_hole(&self) -> bool {
        self.bytes == HOLE_BYTES
    }
    pub(crate) fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.phy.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.bytes.to_be_bytes());
        let tags_code = if self.unit == 0 { self.tags_code } else { self.unit };
        out[12..20].copy_from_slice(&tags_code.to_be_bytes());
    }
    /// `None` where no entry was written: size 0 or negative, or a negative offset.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let phy = PhyOffset(u64::from_be_bytes(bytes[..8].try_into().expect("8 bytes")));
        let size = u32::from_be_bytes(bytes[8..12].try_into().expect("4 bytes"));
        let tags_code = i64::from_be_bytes(bytes[12..20].try_into().expect("8 bytes"));
        let unit = if is_address(tags_code) { tags_code } else { 0 };
        let entry = Entry { unit, ..Entry::new(phy, size, tags_code) };
        (entry.phy.0 <= i64::MAX as u64 && (1..=HOLE_BYTES).contains(&entry.bytes)).then_some(entry)
    }
}
