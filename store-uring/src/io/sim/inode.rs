//! One file of the simulated disk: its sectors as a reader sees them, as a power cut leaves them, and the versions between.
use super::SECTOR;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::rc::Rc;

/// How many unsynced versions of one sector a power cut may choose from.
const VERSIONS_MAX: usize = 4;

pub(super) type Sector = Rc<[u8; SECTOR]>;

#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) live: HashMap<u64, Sector>,
    durable: HashMap<u64, Sector>,
    /// Versions written since the last sync, oldest first.
    pending: BTreeMap<u64, Vec<Sector>>,
    pub(super) bytes: u64,
    durable_bytes: u64,
    /// From the start of the file.
    pub(super) allocated: u64,
    pub(super) modified_ms: i64,
    /// Sectors that the device cannot read any more; a write makes them good again.
    unreadable: BTreeSet<u64>,
    /// A failed sync left sectors that are not durable and not pending either.
    forgotten: bool,
    /// Written past the page cache.
    direct: bool,
}

impl Inode {
    fn put(&mut self, sector: u64, data: Sector) {
        self.unreadable.remove(&sector);
        self.live.insert(sector, data.clone());
        let versions = self.pending.entry(sector).or_default();
        if versions.len() == VERSIONS_MAX {
            versions.remove(0);
        }
        versions.push(data);
    }
    /// Part of a sector; the rest keeps its bytes.
    pub(super) fn patch(&mut self, sector: u64, at: usize, bytes: &[u8]) {
        let mut data = self.live.get(&sector).map_or([0; SECTOR], |s| **s);
        data[at..at + bytes.len()].copy_from_slice(bytes);
        self.put(sector, Rc::new(data));
    }
    /// Flips a bit for good, on the disk too.
    pub(super) fn flip(&mut self, at: u64, bit: u8) {
        let (sector, off) = (at / SECTOR as u64, (at % SECTOR as u64) as usize);
        let mut data = self.live.get(&sector).map_or([0; SECTOR], |s| **s);
        data[off] ^= 1 << (bit % 8);
        let data = Rc::new(data);
        self.live.insert(sector, data.clone());
        self.pending.remove(&sector);
        self.durable.insert(sector, data);
    }
    pub(super) fn set_len(&mut self, bytes: u64) {
        if bytes < self.bytes {
            let first = bytes / SECTOR as u64;
            let cut = (bytes % SECTOR as u64) as usize;
            let mut behind: Vec<u64> = self.live.keys().copied().filter(|s| *s >= first).collect();
            behind.sort_unstable();
            for sector in behind {
                let keep = if sector == first { cut } else { 0 };
                self.patch(sector, keep, &[0; SECTOR][keep..]);
                if keep == 0 {
                    self.live.remove(&sector);
                }
            }
            self.unreadable.retain(|s| *s < first);
            self.allocated = self.allocated.min(bytes.next_multiple_of(SECTOR as u64));
        }
        self.bytes = bytes;
    }
    pub(super) fn make_durable(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.pending) {
            if let Some(last) = versions.last() {
                self.durable.insert(sector, last.clone());
            }
        }
        self.durable_bytes = self.bytes;
    }
    /// As `make_durable`, of a range of whole sectors.
    pub(super) fn make_range_durable(&mut self, sectors: std::ops::Range<u64>) {
        let versions: Vec<u64> = self.pending.range(sectors).map(|(sector, _)| *sector).collect();
        for sector in versions {
            if let Some(last) = self.pending.remove(&sector).and_then(|versions| versions.last().cloned()) {
                self.durable.insert(sector, last);
            }
        }
        self.durable_bytes = self.bytes;
    }
    /// What was written since the last sync will not become durable unless it is written again.
    pub(super) fn forget_pending(&mut self) {
        self.forgotten |= !self.pending.is_empty();
        self.pending.clear();
    }
    /// A process begins anew. Its syncs bring what failed ones of the process before left behind, where that had reached the device: a flush
    /// covers all writes that the device took before (NVMe base specification, Flush). Pages that the kernel failed to write are clean
    /// for it, and stay away.
    pub(super) fn begin_anew(&mut self) {
        if !self.forgotten || !self.direct {
            return;
        }
        for (sector, data) in &self.live {
            if self.durable.get(sector).is_none_or(|old| old != data) {
                self.pending.entry(*sector).or_insert_with(|| vec![data.clone()]);
            }
        }
        self.forgotten = false;
    }
    pub(super) fn written_direct(&mut self) {
        self.direct = true;
    }
    /// What it takes of the disk: what was allocated, and sectors written behind that.
    pub(super) fn used(&self) -> u64 {
        let behind = self.live.keys().filter(|s| **s * SECTOR as u64 >= self.allocated).count() as u64;
        self.allocated + behind * SECTOR as u64
    }
    pub(super) fn read(&self, at: u64, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let pos = at + done as u64;
            let (sector, off) = (pos / SECTOR as u64, (pos % SECTOR as u64) as usize);
            let n = (SECTOR - off).min(out.len() - done);
            if let Some(data) = self.live.get(&sector) {
                out[done..done + n].copy_from_slice(&data[off..off + n]);
            }
            done += n;
        }
    }
    pub(super) fn make_unreadable(&mut self, sectors: impl IntoIterator<Item = u64>) {
        self.unreadable.extend(sectors);
    }
    /// EIO when a sector of the range cannot be read.
    pub(super) fn check_readable(&self, at: u64, bytes: usize) -> io::Result<()> {
        let end = (at + bytes as u64).div_ceil(SECTOR as u64);
        match self.unreadable.range(at / SECTOR as u64..end).next() {
            Some(_) if bytes > 0 => Err(super::disk::eio()),
            _ => Ok(()),
        }
    }
    /// What a power cut leaves: of each sector one of its versions, of the length the old or the new.
    pub(super) fn cut_power(&mut self, random: &mut impl FnMut() -> u64) {
        for (sector, versions) in std::mem::take(&mut self.pending) {
            let pick = random() as usize % (versions.len() + 1);
            if pick > 0 {
                self.durable.insert(sector, versions[pick - 1].clone());
            }
        }
        if self.bytes != self.durable_bytes && random().is_multiple_of(2) {
            self.durable_bytes = self.bytes;
        }
        self.bytes = self.durable_bytes;
        let end = self.bytes.div_ceil(SECTOR as u64);
        self.durable.retain(|s, _| *s < end);
        let tail = (self.bytes % SECTOR as u64) as usize;
        if tail > 0
            && let Some(last) = self.durable.get_mut(&(end - 1))
        {
            Rc::make_mut(last)[tail..].fill(0);
        }
        self.live = self.durable.clone();
        self.forgotten = false;
        self.allocated = self.allocated.min(end * SECTOR as u64);
    }
    /// Whether a power cut would change it.
    pub(super) fn is_durable(&self) -> bool {
        self.pending.is_empty() && self.bytes == self.durable_bytes && !self.forgotten
    }
}
