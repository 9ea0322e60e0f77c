//! One file of the key index: its layout, and the newest one as it lives in memory. Knows no disk. Source: store-format sheet 5.
//!
//! | at             | bytes     | what                                                       |
//! | 0              | 40        | [`Header`]                                                 |
//! | 40             | 4 * slots | slot s: number of the newest item of its chain, 0 = none   |
//! | 40 + 4 * slots | 20 * items| item i from 1 on ([`Item`]); the place of item 0 is unused |
use std::collections::VecDeque;

pub const HEADER_BYTES: usize = 40;
pub const SLOT_BYTES: usize = 4;
pub const ITEM_BYTES: usize = 20;
/// Slots are written back by pages of this many bytes, counted from slot 0.
pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const PAGE_SLOTS: usize = PAGE_BYTES / SLOT_BYTES;
/// Item memory above this is given back after a burst.
const SPARE_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub slots: u32,
    pub items: u32,
}

impl Layout {
    pub fn file_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.slots as u64 * SLOT_BYTES as u64 + self.items as u64 * ITEM_BYTES as u64
    }
    pub fn slot_of(&self, hash: u32) -> u32 {
        hash % self.slots
    }
    pub fn slot_at(&self, slot: u32) -> u64 {
        HEADER_BYTES as u64 + slot as u64 * SLOT_BYTES as u64
    }
    pub fn item_at(&self, number: u32) -> u64 {
        self.slot_at(self.slots) + number as u64 * ITEM_BYTES as u64
    }
    pub fn pages(&self) -> usize {
        (self.slots as usize).div_ceil(PAGE_SLOTS)
    }
}

/// | at | bytes | field |
/// | 0  | 8     | `begin_ms`: store time of the first item |
/// | 8  | 8     | `end_ms`  |
/// | 16 | 8     | `begin_phy` |
/// | 24 | 8     | `end_phy` |
/// | 32 | 4     | `slots_used` |
/// | 36 | 4     | `count`: number of the next item; 0 on disk means 1 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub begin_ms: i64,
    pub end_ms: i64,
    pub begin_phy: u64,
    pub end_phy: u64,
    pub slots_used: u32,
    pub count: u32,
}

impl Header {
    /// Of a file that follows one which ended there.
    pub fn after(end_ms: i64, end_phy: u64) -> Self {
        Header { begin_ms: end_ms, end_ms, begin_phy: end_phy, end_phy, slots_used: 0, count: 1 }
    }
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&self.begin_ms.to_be_bytes());
        out[8..16].copy_from_slice(&self.end_ms.to_be_bytes());
        out[16..24].copy_from_slice(&self.begin_phy.to_be_bytes());
        out[24..32].copy_from_slice(&self.end_phy.to_be_bytes());
        out[32..36].copy_from_slice(&self.slots_used.to_be_bytes());
        out[36..].copy_from_slice(&self.count.to_be_bytes());
        out
    }
    /// `None` when the count cannot be of a file of this layout. (`slots_used` is counted anew when the file is loaded.)
    pub fn decode(bytes: &[u8], layout: &Layout) -> Option<Self> {
        let i64_at = |at: usize| Some(i64::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let u32_at = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let header = Header {
            begin_ms: i64_at(0)?,
            end_ms: i64_at(8)?,
            begin_phy: u64::try_from(i64_at(16)?).ok()?,
            end_phy: u64::try_from(i64_at(24)?).ok()?,
            slots_used: u32_at(32)?,
            count: u32_at(36)?.max(1),
        };
        (header.count <= layout.items).then_some(header)
    }
    pub fn overlaps(&self, begin_ms: i64, end_ms: i64) -> bool {
        self.count > 1 && begin_ms <= self.end_ms && end_ms >= self.begin_ms
    }
    /// Time of an item, to the second.
    pub fn time_ms(&self, item: &Item) -> i64 {
        self.begin_ms.saturating_add(item.after_s as i64 * 1000)
    }
}

/// | at | bytes | field |
/// | 0  | 4     | `hash` |
/// | 4  | 8     | `phy` |
/// | 12 | 4     | `after_s`: whole seconds since the header's `begin_ms`, clamped to 0..=2^31-1 |
/// | 16 | 4     | `previous`: number of the next older item of the chain, 0 = none |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub hash: u32,
    pub phy: u64,
    pub after_s: u32,
    pub previous: u32,
}

impl Item {
    pub fn encode(&self) -> [u8; ITEM_BYTES] {
        let mut out = [0; ITEM_BYTES];
        out[..4].copy_from_slice(&self.hash.to_be_bytes());
        out[4..12].copy_from_slice(&self.phy.to_be_bytes());
        out[12..16].copy_from_slice(&self.after_s.to_be_bytes());
        out[16..].copy_from_slice(&self.previous.to_be_bytes());
        out
    }
    pub fn decode(bytes: &[u8; ITEM_BYTES]) -> Self {
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Item {
            hash: u32_at(0),
            phy: u64::from_be_bytes(bytes[4..12].try_into().expect("8 bytes")),
            after_s: u32_at(12).min(i32::MAX as u32),
            previous: u32_at(16),
        }
    }
}

/// The newest file: its slots, and the items that are in no file yet.
pub(crate) struct Table {
    /// Of the file: 17 digits of local time.
    pub name: u64,
    pub layout: Layout,
    pub header: Header,
    /// Fresh pages cost no memory until a slot of theirs is used.
    pub slots: Vec<u32>,
    /// A bit per page of slots that the file does not have.
    dirty: Vec<u64>,
    items: VecDeque<[u8; ITEM_BYTES]>,
    /// Number of the first of `items`.
    items_from: u32,
    /// `header` as it was last made durable, and as it stood when items and slots were.
    pub synced: Option<Header>,
    pub prepared: Option<Header>,
}

impl Table {
    pub fn new(name: u64, layout: Layout, header: Header, synced: Option<Header>) -> Self {
        Table {
            name,
            layout,
            header,
            slots: vec![0; layout.slots as usize],
            dirty: vec![0; layout.pages().div_ceil(64)],
            items: VecDeque::new(),
            items_from: header.count,
            synced,
            prepared: None,
        }
    }
    pub fn is_full(&self) -> bool {
        self.header.count >= self.layout.items
    }
    /// Not when it is full.
    pub fn put(&mut self, hash: u32, phy: u64, store_ms: i64) {
        let h = &mut self.header;
        let number = h.count;
        if number == 1 {
            h.begin_ms = store_ms;
            h.begin_phy = phy;
        }
        let after_s = if h.begin_ms <= 0 { 0 } else { store_ms.saturating_sub(h.begin_ms) / 1000 };
        let after_s = after_s.clamp(0, i32::MAX as i64) as u32;
        let slot = self.layout.slot_of(hash) as usize;
        let old = self.slots[slot];
        let previous = if old < number { old } else { 0 };
        self.items.push_back(Item { hash, phy, after_s, previous }.encode());
        self.slots[slot] = number;
        h.slots_used += (old == 0) as u32;
        h.count += 1;
        h.end_ms = store_ms;
        h.end_phy = phy;
        self.mark_dirty(slot);
    }
    pub fn mark_dirty(&mut self, slot: usize) {
        let page = slot / PAGE_SLOTS;
        self.dirty[page / 64] |= 1 << (page % 64);
    }
    /// Takes the dirty pages, ascending.
    pub fn take_dirty(&mut self) -> Vec<u32> {
        let mut pages = Vec::new();
        for (i, word) in self.dirty.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                pages.push(i as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        pages
    }
    /// The item, if it is in memory.
    pub fn item(&self, number: u32) -> Option<Item> {
        let index = number.checked_sub(self.items_from)?;
        self.items.get(index as usize).map(Item::decode)
    }
    /// Copies the oldest items that are in no file into `out`.
    pub fn copy_items(&self, out: &mut [u8]) {
        for (place, item) in out.chunks_exact_mut(ITEM_BYTES).zip(&self.items) {
            place.copy_from_slice(item);
        }
    }
    /// Number of the oldest of them.
    pub fn items_from(&self) -> u32 {
        self.items_from
    }
    /// Items below `number` are in the file now.
    pub fn drop_items(&mut self, number: u32) {
        self.items.drain(..(number - self.items_from) as usize);
        self.items_from = number;
        if self.items.capacity() * ITEM_BYTES > SPARE_BYTES_MAX && self.items.len() * 4 < self.items.capacity() {
            self.items.shrink_to(SPARE_BYTES_MAX / ITEM_BYTES / 2);
        }
    }
    /// A page of slots as the file may have it when the items below `count` are durable and the others are not: a slot that leads
    /// to a later item gets the one before it in its chain, and its page stays dirty.
    pub fn page(&mut self, page: u32, count: u32, out: &mut [u8]) {
        let first = page as usize * PAGE_SLOTS;
        let last = (first + PAGE_SLOTS).min(self.slots.len());
        let mut later = false;
        for (place, slot) in out.chunks_exact_mut(SLOT_BYTES).zip(first..last) {
            let mut number = self.slots[slot];
            while number >= count {
                later = true;
                number = self.item(number).expect("items are dropped only below what is durable").previous;
            }
            place.copy_from_slice(&number.to_be_bytes());
        }
        if later {
            self.mark_dirty(first);
        }
    }
    /// Takes the newest item out again; `before` is the one that is the newest then.
    pub fn unput(&mut self, item: &Item, before: Option<&Item>) {
        let number = self.header.count - 1;
        assert!(self.items.is_empty() && number > 0, "only what is in the file is taken out");
        let slot = self.layout.slot_of(item.hash) as usize;
        if self.slots[slot] == number {
            self.slots[slot] = if item.previous < number { item.previous } else { 0 };
            self.header.slots_used = self.header.slots_used.saturating_sub((self.slots[slot] == 0) as u32);
            self.mark_dirty(slot);
        }
        self.header.count = number;
        self.items_from = number;
        match before {
            Some(before) => {
                self.header.end_phy = before.phy;
                self.header.end_ms = self.header.time_ms(before);
            }
            None => self.header = Header::after(0, 0),
        }
    }
}
