//! Units of a queue's entries ([`super::extension`]): in memory by the entry's slot until their entry leaves it, then by their address in the files.
use super::extension::{Extension, Place, Read, Unit};
use super::{Appended, CHUNK_ENTRIES, ConsumeQueue, ENTRY_BYTES, Entry, Form, State};
use crate::StoreError;
use crate::io::{File, Io};
use uringmq_proto::types::QueueOffset;

impl<F: File> State<F> {
    pub(super) fn trim_units(&mut self) {
        let from = self.recent_from();
        while self.units.front().is_some_and(|(slot, _)| *slot < from) {
            self.units.pop_front();
        }
    }
    fn unit(&self, slot: u64) -> Option<&Unit> {
        let found = self.units.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(&self.units[found].1)
    }
    /// Slots below `to` whose units have no place yet, with them.
    fn unplaced(&self, to: u64) -> impl Iterator<Item = (u64, &Unit)> {
        let from = self.recent_from();
        let waits = move |slot: u64| self.recent[(slot - from) as usize].unit == 0;
        let units = self.units.iter().skip_while(move |(slot, _)| *slot < self.written);
        units.take_while(move |(slot, _)| *slot < to).filter(move |(slot, _)| waits(*slot)).map(|(slot, u)| (*slot, u))
    }
}

impl<I: Io> ConsumeQueue<I> {
    /// Says where the queue's extension is. Before anything is read.
    pub fn extended(mut self, place: Place) -> Self {
        assert!(self.form == Form::Plain, "a batch queue has no extension");
        self.extension = Some(Extension::new(self.io.clone(), place));
        self
    }
    /// Whether entries are to be appended with units.
    pub fn makes_units(&self) -> bool {
        self.extension.as_ref().is_some_and(|extension| extension.place.writes)
    }
    /// As [`ConsumeQueue::append`], with a unit.
    pub fn append_with(&self, at: QueueOffset, entry: Entry, unit: Unit) -> Appended {
        assert!(self.makes_units(), "units are written by the configuration");
        let appended = self.append(at, entry);
        if appended == Appended::Done {
            self.state.borrow_mut().units.push_back((at.0, unit));
        }
        appended
    }
    /// Writes the units of `count` entries from slot `from` on, the first that is in no file, and notes their addresses.
    pub(super) async fn place_units(&self, from: u64, count: u64) -> Result<(), StoreError> {
        let Some(extension) = &self.extension else { return Ok(()) };
        let to = from + count;
        if self.state.borrow().unplaced(to).next().is_none() {
            return Ok(());
        }
        if !extension.has_begun() {
            let last = self.newest_address(from).await?;
            extension.begin(last).await?;
        }
        let (slots, plan) = {
            let s = self.state.borrow();
            let slots: Vec<u64> = s.unplaced(to).map(|(slot, _)| slot).collect();
            (slots, extension.plan(s.unplaced(to).map(|(_, unit)| unit)))
        };
        extension.write(&plan).await?;
        let mut s = self.state.borrow_mut();
        let recent_from = s.recent_from();
        for (slot, address) in slots.into_iter().zip(&plan.addresses) {
            s.recent[(slot - recent_from) as usize].unit = address.unwrap_or(0);
        }
        Ok(())
    }
    /// The address of the last unit that one of the entries before `from`, all of them in the files, leads to; of the last few thousand, and of
    /// two files at most.
    async fn newest_address(&self, from: u64) -> Result<Option<i64>, StoreError> {
        let low = self.state.borrow().min.max(from.saturating_sub(CHUNK_ENTRIES));
        let mut to = from;
        while to > low {
            let at = (to - 1) * ENTRY_BYTES as u64;
            let start = at - at % self.file_bytes;
            let first = low.max(start / ENTRY_BYTES as u64);
            let file = self.reader(start).await?;
            let bytes = (to - first) as usize * ENTRY_BYTES;
            let bytes = file.read_at(first * ENTRY_BYTES as u64 - start, bytes).await;
            let bytes = bytes.map_err(|e| self.failed("read", start, e))?;
            let entries = bytes.as_ref().chunks_exact(ENTRY_BYTES).rev().filter_map(Entry::decode);
            if let Some(entry) = entries.into_iter().find(|entry| entry.unit != 0) {
                return Ok(Some(entry.unit));
            }
            to = first;
        }
        Ok(None)
    }
    /// Gives entries that were read their tagsCode from their units; false when one of those is not in memory. What has no unit where its
    /// address says stays as it is.
    pub(super) fn resolve_hot(&self, entries: &mut [Entry]) -> bool {
        let Some(extension) = &self.extension else { return true };
        entries.iter_mut().filter(|entry| entry.tags().is_none()).all(|entry| take_tags(extension, entry))
    }
    /// As `resolve_hot`, by the files.
    pub(super) async fn resolve(&self, entries: &mut [Entry]) -> Result<(), StoreError> {
        let Some(extension) = &self.extension else { return Ok(()) };
        for entry in entries.iter_mut().filter(|entry| entry.tags().is_none()) {
            if !take_tags(extension, entry) {
                extension.load(entry.unit).await?;
                take_tags(extension, entry);
            }
        }
        Ok(())
    }
    /// Calls `each` for entries that were read just now and have a unit: index, store time (ms) and bit map. False when a unit is not in memory.
    pub fn units_hot(&self, entries: &[Entry], mut each: impl FnMut(usize, i64, &[u8])) -> bool {
        (0..entries.len()).all(|index| self.look_at(entries, index, &mut each))
    }
    /// As `units_hot`, by the files.
    ///
    /// # Errors
    /// Those of a read, but for what the device cannot read: that is as if there were no unit.
    pub async fn units(&self, entries: &[Entry], mut each: impl FnMut(usize, i64, &[u8])) -> Result<(), StoreError> {
        for (index, entry) in entries.iter().enumerate() {
            if let (false, Some(extension)) = (self.look_at(entries, index, &mut each), &self.extension) {
                extension.load(entry.unit).await?;
                self.look_at(entries, index, &mut each);
            }
        }
        Ok(())
    }
    /// False when the unit would have to be read.
    fn look_at(&self, entries: &[Entry], index: usize, each: &mut impl FnMut(usize, i64, &[u8])) -> bool {
        let entry = &entries[index];
        if let Some(unit) = self.state.borrow().unit(entry.base) {
            each(index, unit.stored_ms, &unit.map);
            return true;
        }
        let Some(extension) = self.extension.as_ref().filter(|_| entry.unit != 0) else { return true };
        let seen = extension.look(entry.unit, |read| {
            if let Read::Unit { stored_ms, map, .. } = read {
                each(index, stored_ms, map);
            }
        });
        seen.is_some()
    }
}

/// False when the entry's unit is not in memory.
fn take_tags<I: Io>(extension: &Extension<I>, entry: &mut Entry) -> bool {
    let seen = extension.look(entry.unit, |read| match read {
        Read::Unit { tags_code, .. } => Some(tags_code),
        Read::None | Read::Cut => None,
    });
    if let Some(Some(tags_code)) = seen {
        entry.tags_code = tags_code;
    }
    seen.is_some()
}
