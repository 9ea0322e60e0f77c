//! The key index against the log: its items are in log order, so both are walked side by side. Source: store-format sheet 5.
use crate::store::files::{names, read_at};
use crate::store::report::{Fault, Report};
use crate::store::{Held, ToolError};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use uringmq_store::index_file::{HEADER_BYTES, Header, ITEM_BYTES, Item, Layout, SLOT_BYTES};

const DEFAULT_SLOTS: u32 = 5_000_000;
const DEFAULT_ITEMS: u32 = 20_000_000;
/// Apache's ratio of items to slots, which most who change the numbers keep.
const ITEMS_PER_SLOT: u64 = 4;

pub(super) struct IndexCheck {
    dir: PathBuf,
    /// Of files not opened yet, newest first.
    waiting: Vec<(String, Layout)>,
    open: Option<IndexFile>,
    log_min: u64,
    clean: bool,
    /// Where the first item leads.
    begins: Option<u64>,
    unindexed: u64,
}

struct IndexFile {
    name: String,
    layout: Layout,
    header: Header,
    reader: BufReader<File>,
    /// What stands at the cursor, its number, and the one behind it.
    item: Option<Item>,
    number: u32,
    behind: Option<Item>,
    /// Newest item of each slot's chain, of those passed.
    newest: Vec<u32>,
    last_phy: u64,
}

impl IndexFile {
    fn fault(&self, at: u64, what: String) -> Fault {
        Fault { file: format!("index/{}", self.name), at, what }
    }

    fn read_item(&mut self, number: u32) -> Result<Option<Item>, ToolError> {
        if number >= self.header.count {
            return Ok(None);
        }
        let mut bytes = [0; ITEM_BYTES];
        let read = self.reader.read_exact(&mut bytes);
        read.map_err(ToolError::io("read", self.name.as_ref()))?;
        Ok(Some(Item::decode(&bytes)))
    }

    /// Steps over the item at the cursor, whose place in its chain is checked.
    fn pass(&mut self, heals: bool, report: &mut Report) -> Result<(), ToolError> {
        let Some(item) = self.item else { return Ok(()) };
        report.index_items += 1;
        let slot = self.layout.slot_of(item.hash) as usize;
        if item.previous != self.newest[slot] {
            let what = format!(
                "item {}: says that item {} is before it in its chain, which is {}",
                self.number, item.previous, self.newest[slot]
            );
            let fault = self.fault(self.layout.item_at(self.number) + 16, what);
            report.found(heals, fault);
        }
        self.newest[slot] = self.number;
        self.last_phy = item.phy;
        self.item = self.behind;
        self.number += 1;
        self.behind = self.read_item(self.number + 1)?;
        Ok(())
    }

    /// All items are passed: slots and header must agree with them.
    fn close(mut self, heals: bool, report: &mut Report) -> Result<(), ToolError> {
        let mut slots = vec![0; self.layout.slots as usize * SLOT_BYTES];
        let file = self.reader.get_mut();
        read_at(file, HEADER_BYTES as u64, &mut slots).map_err(ToolError::io("read", self.name.as_ref()))?;
        for (slot, (bytes, newest)) in slots.chunks_exact(SLOT_BYTES).zip(&self.newest).enumerate() {
            let found = u32::from_be_bytes(bytes.try_into().expect("4 bytes"));
            if found != *newest {
                let what = format!("slot {slot}: leads to item {found}; the newest of its chain is {newest}");
                report.found(heals, self.fault(self.layout.slot_at(slot as u32), what));
            }
        }
        if self.header.count > 1 && self.header.end_phy != self.last_phy {
            let what = format!("header: ends at offset {}, its last item at {}", self.header.end_phy, self.last_phy);
            report.found(heals, self.fault(24, what));
        }
        Ok(())
    }
}

/// The layout of a file of that length: the configured one, Apache's default, or one of the same ratio.
fn layout_of(held: &Held, bytes: u64) -> Option<Layout> {
    let configured = held.config.as_ref().map(|c| Layout { slots: c.index_slots, items: c.index_items });
    let default = Layout { slots: DEFAULT_SLOTS, items: DEFAULT_ITEMS };
    let each = SLOT_BYTES as u64 + ITEMS_PER_SLOT * ITEM_BYTES as u64;
    let slots = bytes.checked_sub(HEADER_BYTES as u64).filter(|rest| rest % each == 0).map(|rest| rest / each);
    let similar = slots.and_then(|slots| u32::try_from(slots).ok()).filter(|slots| *slots > 0);
    let similar = similar.map(|slots| Layout { slots, items: slots.saturating_mul(ITEMS_PER_SLOT as u32) });
    [configured, Some(default), similar].into_iter().flatten().find(|layout| layout.file_bytes() == bytes)
}

/// The layout of the store's newest index file, if it has one of a known layout.
pub(crate) fn index_layout(held: &Held) -> Result<Option<Layout>, ToolError> {
    let dir = held.root.join("index");
    let Some(name) = names(&dir)?.pop() else { return Ok(None) };
    let path = dir.join(&name);
    let bytes = std::fs::metadata(&path).map_err(ToolError::io("stat", &path))?.len();
    Ok(layout_of(held, bytes))
}

impl IndexCheck {
    pub(super) fn open(held: &Held, log_min: u64, settled: u64, report: &mut Report) -> Result<Self, ToolError> {
        let dir = held.root.join("index");
        let mut waiting = Vec::new();
        for name in names(&dir)? {
            if name.len() != 17 || !name.bytes().all(|b| b.is_ascii_digit()) {
                report.remark(format!("index/{name}: not a name of an index file"));
                continue;
            }
            let path = dir.join(&name);
            let bytes = std::fs::metadata(&path).map_err(ToolError::io("stat", &path))?.len();
            match layout_of(held, bytes) {
                Some(layout) => waiting.push((name, layout)),
                None => report.remark(format!(
                    "index/{name}: {bytes} bytes fit no known maxHashSlotNum and maxIndexNum; not checked (give the broker's file with -c)"
                )),
            }
        }
        report.index_files = waiting.len() as u64;
        waiting.reverse();
        Ok(IndexCheck { dir, waiting, open: None, log_min, clean: settled == u64::MAX, begins: None, unindexed: 0 })
    }

    /// Has an item at the cursor, of whatever file; false when there is none left.
    fn enter(&mut self, report: &mut Report) -> Result<bool, ToolError> {
        loop {
            if self.open.as_ref().is_some_and(|file| file.item.is_some()) {
                return Ok(true);
            }
            if let Some(done) = self.open.take() {
                done.close(!self.clean, report)?;
            }
            let Some((name, layout)) = self.waiting.pop() else { return Ok(false) };
            self.open = self.open_file(name, layout, report)?;
        }
    }

    fn open_file(&self, name: String, layout: Layout, report: &mut Report) -> Result<Option<IndexFile>, ToolError> {
        let path = self.dir.join(&name);
        let mut file = File::open(&path).map_err(ToolError::io("open", &path))?;
        let mut head = [0; HEADER_BYTES];
        read_at(&mut file, 0, &mut head).map_err(ToolError::io("read", &path))?;
        let fault = |at, what| Fault { file: format!("index/{name}"), at, what };
        let Some(header) = Header::decode(&head, &layout) else {
            report.found(
                !self.clean,
                fault(0, "header: not one of a file of this length; nothing in it can be found".to_owned()),
            );
            return Ok(None);
        };
        file.seek(SeekFrom::Start(layout.item_at(1))).map_err(ToolError::io("seek", &path))?;
        let reader = BufReader::with_capacity(1 << 20, file);
        let newest = vec![0; layout.slots as usize];
        let mut open =
            IndexFile { name, layout, header, reader, item: None, number: 1, behind: None, newest, last_phy: 0 };
        open.item = open.read_item(1)?;
        open.behind = open.read_item(2)?;
        if let Some(first) = open.item
            && header.begin_phy != first.phy
        {
            let what = format!("header: begins at offset {}, its first item at {}", header.begin_phy, first.phy);
            report.found(!self.clean, open.fault(16, what));
        }
        Ok(Some(open))
    }

    /// The next record of the log, with the hashes of its keys.
    pub(super) fn take(
        &mut self,
        phy: u64,
        store_ms: i64,
        hashes: &[u32],
        report: &mut Report,
    ) -> Result<(), ToolError> {
        let heals = !self.clean;
        let mut matched = 0;
        while self.enter(report)? {
            let file = self.open.as_mut().expect("entered");
            let (item, number) = (file.item.expect("entered"), file.number);
            self.begins.get_or_insert(item.phy);
            let item_at = file.layout.item_at(number);
            // One that leads further than those around it would hold them all up.
            let astray = file.behind.is_some_and(|behind| behind.phy < item.phy && behind.phy >= file.last_phy);
            if item.phy > phy && !astray {
                break;
            }
            if item.phy == phy {
                matched += 1;
                if !hashes.contains(&item.hash) {
                    let what = format!("item {number}: its hash {} is of no key of the record at {phy}", item.hash);
                    report.found(heals, file.fault(item_at, what));
                }
                let begin_ms = file.header.begin_ms;
                let after_s = if begin_ms <= 0 { 0 } else { store_ms.saturating_sub(begin_ms) / 1000 };
                if i64::from(item.after_s) != after_s.clamp(0, i32::MAX as i64) {
                    let what = format!(
                        "item {number}: {} s after the file's begin; its record is {after_s} s after it",
                        item.after_s
                    );
                    report.found(heals, file.fault(item_at + 12, what));
                }
            } else if item.phy >= self.log_min {
                let what = format!("item {number}: leads to offset {}, where no record stands", item.phy);
                report.found(heals, file.fault(item_at + 4, what));
            }
            file.pass(heals, report)?;
        }
        if self.begins.is_some_and(|begins| phy > begins) && self.open.is_some() && matched < hashes.len() {
            self.unindexed += 1;
        }
        Ok(())
    }

    /// The log is over: so must be the items.
    pub(super) fn finish(&mut self, report: &mut Report) -> Result<(), ToolError> {
        while self.enter(report)? {
            let file = self.open.as_mut().expect("entered");
            let (item, number) = (file.item.expect("entered"), file.number);
            if item.phy >= self.log_min {
                let what = format!("item {number}: leads to offset {}, where no record stands", item.phy);
                report.found(!self.clean, file.fault(file.layout.item_at(number) + 4, what));
            }
            file.pass(!self.clean, report)?;
        }
        if self.unindexed > 0 {
            report.remark(format!(
                "index: {} records between its ends lack keys in it: they are not found by key",
                self.unindexed
            ));
        }
        Ok(())
    }
}
