//! The state of the simulated disk and its operations, each with what a crash in the middle of it does.
use super::inode::Inode;
use super::names::{Name, NameChange, Names, Node, ancestors};
use super::{Faults, SECTOR, SimIo};
use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;

/// Where the virtual clock starts, in ms.
const EPOCH_MS: i64 = 1_700_000_000_000;

#[derive(Clone)]
pub(super) struct Disk {
    pub(super) random: u64,
    pub(super) faults: Faults,
    pub(super) operations: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) syncs: u64,
    pub(super) crashed: bool,
    pub(super) now_ms: i64,
    /// Shared with the copies of this disk until one changes them.
    inodes: HashMap<u64, Rc<Inode>>,
    next_inode: u64,
    pub(super) live: Names,
    pub(super) durable: Names,
    pub(super) changes: Vec<NameChange>,
    pub(super) watch: Option<Rc<dyn Fn(SimIo)>>,
}

pub(super) fn crashed() -> io::Error {
    io::Error::other("crashed")
}
pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}
pub(super) fn not_found() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

/// splitmix64.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Disk {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Disk {
            random: seed,
            faults,
            operations: 0,
            reads: 0,
            writes: 0,
            syncs: 0,
            crashed: false,
            now_ms: EPOCH_MS,
            inodes: HashMap::new(),
            next_inode: 1,
            live: Names::new(),
            durable: Names::new(),
            changes: Vec::new(),
            watch: None,
        }
    }
    pub(super) fn random(&mut self) -> u64 {
        next_random(&mut self.random)
    }
    /// Counts an operation that changes something; `Ok(true)` when the machine stops in the middle of it.
    pub(super) fn begin(&mut self) -> io::Result<bool> {
        if self.crashed {
            return Err(crashed());
        }
        let this = self.operations;
        self.operations += 1;
        if self.faults.crash_at == Some(this) {
            self.crashed = true;
            return Ok(true);
        }
        Ok(false)
    }
    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.changes.push(change);
    }
    /// A name change that the crash may swallow.
    pub(super) fn change_or_crash(&mut self, change: NameChange) -> io::Result<()> {
        if self.begin()? {
            if self.random().is_multiple_of(2) {
                self.change(change);
            }
            return Err(crashed());
        }
        self.change(change);
        Ok(())
    }
    pub(super) fn node(&self, path: &str) -> io::Result<Node> {
        if self.crashed {
            return Err(crashed());
        }
        if path == "/" {
            return Ok(Node::Dir);
        }
        self.live.get(path).copied().ok_or_else(not_found)
    }
    pub(super) fn inode(&mut self, id: u64) -> &mut Inode {
        Rc::make_mut(self.inodes.get_mut(&id).expect("an inode stays while its disk lives"))
    }
    pub(super) fn file(&self, id: u64) -> &Inode {
        &self.inodes[&id]
    }
    /// Of all files, in the order they were made.
    fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.inodes.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
    pub(super) fn used(&self) -> u64 {
        let linked: HashSet<u64> =
            self.live.values().filter_map(|n| if let Node::File(i) = n { Some(*i) } else { None }).collect();
        linked.iter().map(|i| self.inodes[i].used()).sum()
    }
    pub(super) fn room_for(&self, more: u64) -> io::Result<()> {
        match self.faults.capacity_bytes {
            Some(capacity) if self.used() + more > capacity => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            _ => Ok(()),
        }
    }
    pub(super) fn write(&mut self, id: u64, at: u64, bytes: &[u8]) -> io::Result<usize> {
        let stops = self.begin()?;
        let this = self.writes;
        self.writes += 1;
        let failure = match Some(this) {
            this if this == self.faults.write_error_at => Some(eio()),
            this if this == self.faults.write_no_space_at => Some(io::Error::from_raw_os_error(libc::ENOSPC)),
            _ => None,
        };
        let sectors = (at / SECTOR as u64)..(at + bytes.len() as u64).div_ceil(SECTOR as u64);
        let inode = &self.inodes[&id];
        let fresh =
            sectors.clone().filter(|s| *s * SECTOR as u64 >= inode.allocated && !inode.live.contains_key(s)).count()
                as u64;
        self.room_for(fresh * SECTOR as u64)?;
        let mut count = bytes.len();
        if self.faults.short_write_every.is_some_and(|n| this % n == n - 1) && count > SECTOR {
            let whole = count / SECTOR;
            count = (1 + self.random() as usize % (whole - 1).max(1)) * SECTOR;
        }
        let mut done = 0;
        while done < count {
            let pos = at + done as u64;
            let off = (pos % SECTOR as u64) as usize;
            let n = (SECTOR - off).min(count - done);
            let torn = (stops || failure.is_some()) && self.random().is_multiple_of(2);
            if !torn {
                let inode = self.inode(id);
                inode.patch(pos / SECTOR as u64, off, &bytes[done..done + n]);
                inode.bytes = inode.bytes.max(pos + n as u64);
            }
            done += n;
        }
        let now = self.now_ms;
        self.inode(id).modified_ms = now;
        match failure {
            _ if stops => Err(crashed()),
            Some(failure) => Err(failure),
            None => Ok(count),
        }
    }
    pub(super) fn sync(&mut self, id: u64) -> io::Result<()> {
        if self.begin()? {
            return Err(crashed());
        }
        self.sync_counted(|disk| disk.inode(id).forget_pending())?;
        self.inode(id).make_durable();
        Ok(())
    }
    /// The second half of a synced write: its own bytes become durable, and no others, as on a device that writes through (FUA).
    pub(super) fn sync_range(&mut self, id: u64, at: u64, bytes: u64) -> io::Result<()> {
        if self.begin()? {
            return Err(crashed());
        }
        self.sync_counted(|disk| disk.inode(id).forget_pending())?;
        self.inode(id).make_range_durable(at / SECTOR as u64..(at + bytes).div_ceil(SECTOR as u64));
        Ok(())
    }
    /// Fails when this is the sync to fail. The kernel forgets then that the pages were dirty: only a new write brings them to the disk.
    pub(super) fn sync_counted(&mut self, forget: impl FnOnce(&mut Self)) -> io::Result<()> {
        let this = self.syncs;
        self.syncs += 1;
        if self.faults.sync_error_at == Some(this) {
            forget(self);
            return Err(eio());
        }
        Ok(())
    }
    /// Name changes that touch `dir` become durable, with every earlier one of the directories they touch.
    pub(super) fn sync_names(&mut self, dir: &str) {
        let mut dirs: HashSet<Name> = HashSet::from([dir.to_owned()]);
        let mut keep = vec![false; self.changes.len()];
        for (i, change) in self.changes.iter().enumerate().rev() {
            let touched = change.dirs();
            if touched.iter().any(|d| dirs.contains(*d)) {
                keep[i] = true;
                dirs.extend(touched.map(str::to_owned));
            }
        }
        let mut rest = Vec::new();
        for (change, keep) in std::mem::take(&mut self.changes).into_iter().zip(keep) {
            if keep {
                change.apply(&mut self.durable);
            } else {
                rest.push(change);
            }
        }
        self.changes = rest;
    }
    pub(super) fn cut_power(&mut self) {
        let mut keeps: HashMap<Name, u64> = HashMap::new();
        for change in std::mem::take(&mut self.changes) {
            let dirs = change.dirs();
            let mut kept = true;
            for dir in &dirs {
                if !keeps.contains_key(*dir) {
                    let n = if self.random().is_multiple_of(2) { u64::MAX } else { self.random() % 4 };
                    keeps.insert((*dir).to_owned(), n);
                }
                kept &= keeps[*dir] > 0;
            }
            for dir in &dirs {
                let left = keeps.get_mut(*dir).expect("inserted above");
                *left = if kept { left.saturating_sub(1) } else { 0 };
            }
            if kept {
                change.apply(&mut self.durable);
            }
        }
        let all = self.durable.clone();
        self.durable.retain(|name, _| ancestors(name).skip(1).all(|dir| all.get(dir) == Some(&Node::Dir)));
        self.live = self.durable.clone();
        self.drop_unlinked();
        let mut random = self.random;
        for id in self.ids() {
            if !self.file(id).is_durable() {
                self.inode(id).cut_power(&mut || next_random(&mut random));
            }
        }
        self.random = random;
    }
    /// Files without a name, which nobody has open on a disk just started.
    pub(super) fn drop_unlinked(&mut self) {
        let mut linked = HashSet::new();
        for node in self.live.values().chain(self.durable.values()) {
            if let Node::File(id) = node {
                linked.insert(*id);
            }
        }
        for change in &self.changes {
            if let NameChange::Put(_, Node::File(id)) = change {
                linked.insert(*id);
            }
        }
        self.inodes.retain(|id, _| linked.contains(id));
    }
    pub(super) fn begin_anew(&mut self) {
        for id in self.ids() {
            self.inode(id).begin_anew();
        }
    }
    /// Everything written so far is durable, or (a crash, an error) each file's part is a matter of chance.
    pub(super) fn sync_all(&mut self) -> io::Result<()> {
        let ids = self.ids();
        if self.begin()? {
            // Some files got there, and no name.
            for id in ids {
                if self.random().is_multiple_of(2) {
                    self.inode(id).make_durable();
                }
            }
            return Err(crashed());
        }
        self.sync_counted(|disk| ids.iter().for_each(|id| disk.inode(*id).forget_pending()))?;
        for id in ids {
            if !self.file(id).is_durable() {
                self.inode(id).make_durable();
            }
        }
        for change in std::mem::take(&mut self.changes) {
            change.apply(&mut self.durable);
        }
        Ok(())
    }
    /// Truncates or extends, or (`allocate`) makes it at least that long with blocks of its own.
    pub(super) fn resize(&mut self, id: u64, bytes: u64, allocate: bool) -> io::Result<()> {
        let stops = self.begin()?;
        if stops && self.random().is_multiple_of(2) {
            return Err(crashed());
        }
        if allocate {
            let inode = self.file(id);
            let new = inode.allocated..bytes;
            let inside = inode.live.keys().filter(|s| new.contains(&(**s * SECTOR as u64))).count() as u64;
            let more = bytes.next_multiple_of(SECTOR as u64).saturating_sub(inode.allocated);
            self.room_for(more.saturating_sub(inside * SECTOR as u64))?;
            let inode = self.inode(id);
            inode.allocated = inode.allocated.max(bytes.next_multiple_of(SECTOR as u64));
            inode.bytes = inode.bytes.max(bytes);
        } else {
            self.inode(id).set_len(bytes);
        }
        let now = self.now_ms;
        self.inode(id).modified_ms = now;
        if stops { Err(crashed()) } else { Ok(()) }
    }
    pub(super) fn new_inode(&mut self) -> u64 {
        let id = self.next_inode;
        self.next_inode += 1;
        let mut inode = Inode::default();
        inode.modified_ms = self.now_ms;
        self.inodes.insert(id, Rc::new(inode));
        id
    }
}
