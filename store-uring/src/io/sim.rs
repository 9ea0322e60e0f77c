//! The simulated disk: an in-memory file system with seeded faults, for tests and the fault campaign.
//!
//! Durable bytes and pending writes are kept apart per 512-byte sector: a sync of a file makes its pending sectors durable, a sync of
//! a directory the names in it. [`SimIo::after_crash`] gives the disk as a power cut leaves it (each unsynced sector old or new, of
//! each directory's unsynced name changes a prefix), [`SimIo::after_kill`] as a killed process leaves it (all that was completed).
//! A name whose directory is not durable is lost with it. Everything follows from the seed and the order of the operations.
use super::{ALIGN, Access, File, Io, Metadata, Open, Space};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What a disk writes as a whole: old or new, never a mix.
pub const SECTOR: usize = 512;
/// How many unsynced versions of one sector a power cut may choose from.
const VERSIONS_MAX: usize = 4;
/// Polls after which [`block_on`] takes a future for one that never resolves.
const POLLS_MAX: usize = 1_000_000;
/// Where the virtual clock starts, in ms.
const EPOCH_MS: i64 = 1_700_000_000_000;

type Sector = Rc<[u8; SECTOR]>;

/// What goes wrong. Counts start at 0 and are of the whole disk; each numbered error happens once.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The operation (see [`SimIo::operations`]) at which the machine stops: it is done in part, and it and all later ones fail.
    pub crash_at: Option<u64>,
    /// One write in so many is short.
    pub short_write_every: Option<u64>,
    pub read_error_at: Option<u64>,
    pub write_error_at: Option<u64>,
    /// The sync fails and what it should have made durable never gets there unless it is written again.
    pub sync_error_at: Option<u64>,
    /// Bytes of all files together; ENOSPC beyond.
    pub capacity_bytes: Option<u64>,
    /// Each operation is pending once before it completes, so that tasks interleave.
    pub yielding: bool,
}

impl Faults {
    pub fn none() -> Self {
        Faults::default()
    }
    pub fn crash_at(operation: u64) -> Self {
        Faults { crash_at: Some(operation), ..Faults::default() }
    }
}

#[derive(Clone, Default)]
struct Inode {
    live: HashMap<u64, Sector>,
    durable: HashMap<u64, Sector>,
    /// Versions written since the last sync, oldest first.
    pending: BTreeMap<u64, Vec<Sector>>,
    bytes: u64,
    durable_bytes: u64,
    /// From the start of the file.
    allocated: u64,
    modified_ms: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Node {
    Dir,
    File(u64),
}

#[derive(Clone, Debug)]
enum NameChange {
    Put(PathBuf, Node),
    Gone(PathBuf),
    Moved(PathBuf, PathBuf),
}

#[derive(Clone)]
struct Disk {
    random: u64,
    faults: Faults,
    operations: u64,
    reads: u64,
    writes: u64,
    syncs: u64,
    crashed: bool,
    now_ms: i64,
    inodes: HashMap<u64, Inode>,
    next_inode: u64,
    live: BTreeMap<PathBuf, Node>,
    durable: BTreeMap<PathBuf, Node>,
    changes: Vec<NameChange>,
}

/// The disk; clones are the same disk.
#[derive(Clone)]
pub struct SimIo {
    disk: Rc<RefCell<Disk>>,
}

/// An open file; usable after its name is gone, as on Unix.
pub struct SimFile {
    disk: Rc<RefCell<Disk>>,
    inode: u64,
    how: Open,
}

fn crashed() -> io::Error {
    io::Error::other("crashed")
}
fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}
fn not_found() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

/// `a//b/./c` and a leading `./` mean the same file.
fn clean(path: &Path) -> PathBuf {
    let short: PathBuf = path.components().filter(|c| !matches!(c, std::path::Component::CurDir)).collect();
    if short.as_os_str().is_empty() { PathBuf::from("/") } else { short }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("/"),
    }
}

impl NameChange {
    fn dirs(&self) -> [PathBuf; 2] {
        match self {
            NameChange::Put(p, _) | NameChange::Gone(p) => [parent(p), parent(p)],
            NameChange::Moved(a, b) => [parent(a), parent(b)],
        }
    }
    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            NameChange::Put(p, node) => {
                names.insert(p.clone(), *node);
            }
            NameChange::Gone(p) => {
                names.remove(p);
            }
            NameChange::Moved(from, to) => {
                let moved: Vec<PathBuf> = names.keys().filter(|p| p.starts_with(from)).cloned().collect();
                for old in moved {
                    let node = names.remove(&old).expect("just listed");
                    let rest = old.strip_prefix(from).expect("filtered by prefix");
                    let new = if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) };
                    names.insert(new, node);
                }
            }
        }
    }
}

impl Inode {
    fn put(&mut self, sector: u64, data: Sector) {
        self.live.insert(sector, data.clone());
        let versions = self.pending.entry(sector).or_default();
        if versions.len() == VERSIONS_MAX {
            versions.remove(0);
        }
        versions.push(data);
    }
    /// Part of a sector; the rest keeps its bytes.
    fn patch(&mut self, sector: u64, at: usize, bytes: &[u8]) {
        let mut data = self.live.get(&sector).map_or([0; SECTOR], |s| **s);
        data[at..at + bytes.len()].copy_from_slice(bytes);
        self.put(sector, Rc::new(data));
    }
    fn set_len(&mut self, bytes: u64) {
        if bytes < self.bytes {
            let first = bytes / SECTOR as u64;
            let cut = (bytes % SECTOR as u64) as usize;
            let behind: Vec<u64> = self.live.keys().copied().filter(|s| *s >= first).collect();
            for sector in behind {
                let keep = if sector == first { cut } else { 0 };
                self.patch(sector, keep, &[0; SECTOR][keep..]);
                if keep == 0 {
                    self.live.remove(&sector);
                }
            }
            self.allocated = self.allocated.min(bytes.next_multiple_of(SECTOR as u64));
        }
        self.bytes = bytes;
    }
    fn make_durable(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.pending) {
            if let Some(last) = versions.last() {
                self.durable.insert(sector, last.clone());
            }
        }
        self.durable_bytes = self.bytes;
    }
    /// What it takes of the disk: what was allocated, and sectors written behind that.
    fn used(&self) -> u64 {
        let behind = self.live.keys().filter(|s| **s * SECTOR as u64 >= self.allocated).count() as u64;
        self.allocated + behind * SECTOR as u64
    }
    fn read(&self, at: u64, out: &mut [u8]) {
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
}

impl Disk {
    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Counts an operation that changes something; `Ok(true)` when the machine stops in the middle of it.
    fn begin(&mut self) -> io::Result<bool> {
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
    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.changes.push(change);
    }
    /// A name change that the crash may swallow.
    fn change_or_crash(&mut self, change: NameChange) -> io::Result<()> {
        if self.begin()? {
            if self.random().is_multiple_of(2) {
                self.change(change);
            }
            return Err(crashed());
        }
        self.change(change);
        Ok(())
    }
    fn node(&self, path: &Path) -> io::Result<Node> {
        if self.crashed {
            return Err(crashed());
        }
        if path == Path::new("/") {
            return Ok(Node::Dir);
        }
        self.live.get(path).copied().ok_or_else(not_found)
    }
    fn inode(&mut self, id: u64) -> &mut Inode {
        self.inodes.get_mut(&id).expect("inodes are never dropped")
    }
    fn used(&self) -> u64 {
        let linked: HashSet<u64> =
            self.live.values().filter_map(|n| if let Node::File(i) = n { Some(*i) } else { None }).collect();
        linked.iter().map(|i| self.inodes[i].used()).sum()
    }
    fn room_for(&self, more: u64) -> io::Result<()> {
        match self.faults.capacity_bytes {
            Some(capacity) if self.used() + more > capacity => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            _ => Ok(()),
        }
    }
    fn write(&mut self, id: u64, at: u64, bytes: &[u8]) -> io::Result<usize> {
        let stops = self.begin()?;
        let this = self.writes;
        self.writes += 1;
        if self.faults.write_error_at == Some(this) {
            return Err(eio());
        }
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
            let torn = stops && self.random().is_multiple_of(2);
            if !torn {
                let inode = self.inode(id);
                inode.patch(pos / SECTOR as u64, off, &bytes[done..done + n]);
                inode.bytes = inode.bytes.max(pos + n as u64);
            }
            done += n;
        }
        let now = self.now_ms;
        self.inode(id).modified_ms = now;
        if stops { Err(crashed()) } else { Ok(count) }
    }
    fn sync(&mut self, id: u64) -> io::Result<()> {
        if self.begin()? {
            return Err(crashed());
        }
        self.sync_counted(|disk| disk.inode(id).pending.clear())?;
        self.inode(id).make_durable();
        Ok(())
    }
    /// Fails when this is the sync to fail. The kernel forgets then that the pages were dirty: only a new write brings them to the disk.
    fn sync_counted(&mut self, forget: impl FnOnce(&mut Self)) -> io::Result<()> {
        let this = self.syncs;
        self.syncs += 1;
        if self.faults.sync_error_at == Some(this) {
            forget(self);
            return Err(eio());
        }
        Ok(())
    }
    /// Name changes that touch `dir` become durable, with every earlier one of the directories they touch.
    fn sync_names(&mut self, dir: &Path) {
        let mut dirs: HashSet<PathBuf> = HashSet::from([dir.to_owned()]);
        let mut keep = vec![false; self.changes.len()];
        for (i, change) in self.changes.iter().enumerate().rev() {
            let touched = change.dirs();
            if touched.iter().any(|d| dirs.contains(d)) {
                keep[i] = true;
                dirs.extend(touched);
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
    fn cut_power(&mut self) {
        let mut keeps: HashMap<PathBuf, u64> = HashMap::new();
        for change in std::mem::take(&mut self.changes) {
            let dirs = change.dirs();
            let mut kept = true;
            for dir in &dirs {
                if !keeps.contains_key(dir) {
                    let n = if self.random().is_multiple_of(2) { u64::MAX } else { self.random() % 4 };
                    keeps.insert(dir.clone(), n);
                }
                kept &= keeps[dir] > 0;
            }
            for dir in &dirs {
                let left = keeps.get_mut(dir).expect("inserted above");
                *left = if kept { left.saturating_sub(1) } else { 0 };
            }
            if kept {
                change.apply(&mut self.durable);
            }
        }
        let all = self.durable.clone();
        self.durable.retain(|path, _| {
            path.ancestors()
                .skip(1)
                .all(|a| a.parent().is_none() || a.as_os_str().is_empty() || all.get(a) == Some(&Node::Dir))
        });
        self.live = self.durable.clone();
        let mut ids: Vec<u64> = self.inodes.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let mut inode = self.inodes.remove(&id).expect("just listed");
            let pending = std::mem::take(&mut inode.pending);
            for (sector, versions) in pending {
                let pick = self.random() as usize % (versions.len() + 1);
                if pick > 0 {
                    inode.durable.insert(sector, versions[pick - 1].clone());
                }
            }
            if inode.bytes != inode.durable_bytes && self.random().is_multiple_of(2) {
                inode.durable_bytes = inode.bytes;
            }
            inode.bytes = inode.durable_bytes;
            let end = inode.bytes.div_ceil(SECTOR as u64);
            inode.durable.retain(|s, _| *s < end);
            let tail = (inode.bytes % SECTOR as u64) as usize;
            if tail > 0
                && let Some(last) = inode.durable.get_mut(&(end - 1))
            {
                Rc::make_mut(last)[tail..].fill(0);
            }
            inode.live = inode.durable.clone();
            inode.allocated = inode.allocated.min(end * SECTOR as u64);
            self.inodes.insert(id, inode);
        }
    }
}

impl SimIo {
    pub fn new(seed: u64, faults: Faults) -> Self {
        SimIo {
            disk: Rc::new(RefCell::new(Disk {
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
                live: BTreeMap::new(),
                durable: BTreeMap::new(),
                changes: Vec::new(),
            })),
        }
    }
    /// Operations begun so far that change something (writes, syncs, lengths, names); reads do not count.
    pub fn operations(&self) -> u64 {
        self.disk.borrow().operations
    }
    /// Faults from here on; counts go on.
    pub fn set_faults(&self, faults: Faults) {
        self.disk.borrow_mut().faults = faults;
    }
    /// Stops the machine now: every later operation fails.
    pub fn crash(&self) {
        self.disk.borrow_mut().crashed = true;
    }
    pub fn has_crashed(&self) -> bool {
        self.disk.borrow().crashed
    }
    /// Another disk, as a power cut here and now leaves this one; without faults.
    pub fn after_crash(&self) -> SimIo {
        let next = self.copy();
        next.disk.borrow_mut().cut_power();
        next
    }
    /// Another disk, as this one stands after the process is killed; what was not synced is still not durable. Without faults.
    pub fn after_kill(&self) -> SimIo {
        self.copy()
    }
    fn copy(&self) -> SimIo {
        let mut disk = self.disk.borrow().clone();
        disk.faults = Faults::none();
        disk.crashed = false;
        disk.operations = 0;
        SimIo { disk: Rc::new(RefCell::new(disk)) }
    }
    pub fn set_now_ms(&self, now_ms: i64) {
        self.disk.borrow_mut().now_ms = now_ms;
    }
    pub fn advance_ms(&self, ms: i64) {
        self.disk.borrow_mut().now_ms += ms;
    }
    /// The whole of a file as a reader sees it now; `None` when there is none.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let disk = self.disk.borrow();
        let Some(Node::File(id)) = disk.live.get(&clean(path)) else { return None };
        let inode = &disk.inodes[id];
        let mut out = vec![0; inode.bytes as usize];
        inode.read(0, &mut out);
        Some(out)
    }
    /// Makes a directory with its parents, all durable.
    pub fn plant_dir(&self, path: &Path) {
        let path = clean(path);
        let mut disk = self.disk.borrow_mut();
        for dir in path.ancestors().filter(|d| !d.as_os_str().is_empty() && *d != Path::new("/")) {
            disk.live.insert(dir.to_owned(), Node::Dir);
            disk.durable.insert(dir.to_owned(), Node::Dir);
        }
    }
    /// Makes or replaces a file with its directories, all durable: how a test prepares or damages a disk.
    pub fn plant(&self, path: &Path, bytes: &[u8]) {
        let path = clean(path);
        self.plant_dir(&parent(&path));
        let mut disk = self.disk.borrow_mut();
        let id = disk.new_inode();
        let inode = disk.inode(id);
        for (i, chunk) in bytes.chunks(SECTOR).enumerate() {
            if chunk.iter().any(|b| *b != 0) {
                inode.patch(i as u64, 0, chunk);
            }
        }
        inode.bytes = bytes.len() as u64;
        inode.make_durable();
        disk.live.insert(path.clone(), Node::File(id));
        disk.durable.insert(path, Node::File(id));
    }
    /// Flips one bit of a file for good. False when there is no such byte.
    pub fn flip_bit(&self, path: &Path, at: u64, bit: u8) -> bool {
        let mut disk = self.disk.borrow_mut();
        let Some(Node::File(id)) = disk.live.get(&clean(path)).copied() else { return false };
        let inode = disk.inode(id);
        if at >= inode.bytes {
            return false;
        }
        let mut byte = [0];
        inode.read(at, &mut byte);
        let (sector, off) = (at / SECTOR as u64, (at % SECTOR as u64) as usize);
        let mut data = inode.live.get(&sector).map_or([0; SECTOR], |s| **s);
        data[off] = byte[0] ^ (1 << (bit % 8));
        let data = Rc::new(data);
        inode.live.insert(sector, data.clone());
        inode.durable.insert(sector, data);
        true
    }
    /// Every path, directories included.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.disk.borrow().live.keys().cloned().collect()
    }
    async fn turn(&self) {
        let yielding = self.disk.borrow().faults.yielding;
        yield_once(yielding).await;
    }
}

impl Disk {
    fn new_inode(&mut self) -> u64 {
        let id = self.next_inode;
        self.next_inode += 1;
        let inode = Inode { modified_ms: self.now_ms, ..Inode::default() };
        self.inodes.insert(id, inode);
        id
    }
}

impl Io for SimIo {
    type File = SimFile;

    async fn open(&self, path: &Path, how: Open) -> io::Result<SimFile> {
        self.turn().await;
        let path = clean(path);
        let mut disk = self.disk.borrow_mut();
        let found = match disk.node(&path) {
            Ok(node) => Some(node),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let inode = match (found, how.access) {
            (Some(Node::Dir), _) => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
            (Some(Node::File(_)), Access::CreateNew) => return Err(io::Error::from_raw_os_error(libc::EEXIST)),
            (Some(Node::File(id)), _) => id,
            (None, Access::Read | Access::Write) => return Err(not_found()),
            (None, Access::Create | Access::CreateNew) => {
                if disk.node(&parent(&path))? != Node::Dir {
                    return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
                }
                let id = disk.new_inode();
                disk.change_or_crash(NameChange::Put(path, Node::File(id)))?;
                id
            }
        };
        Ok(SimFile { disk: self.disk.clone(), inode, how })
    }
    async fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.turn().await;
        let dir = clean(dir);
        let disk = self.disk.borrow();
        if disk.node(&dir)? != Node::Dir {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        let names = disk.live.keys().filter(|p| parent(p) == dir && **p != dir);
        Ok(names.filter_map(|p| p.file_name()).map(PathBuf::from).collect())
    }
    async fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.turn().await;
        let disk = self.disk.borrow();
        Ok(match disk.node(&clean(path))? {
            Node::Dir => Metadata { bytes: 4096, modified_ms: disk.now_ms, is_dir: true },
            Node::File(id) => {
                let inode = &disk.inodes[&id];
                Metadata { bytes: inode.bytes, modified_ms: inode.modified_ms, is_dir: false }
            }
        })
    }
    async fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.turn().await;
        let path = clean(path);
        let mut disk = self.disk.borrow_mut();
        let mut missing = Vec::new();
        for dir in path.ancestors().filter(|d| !d.as_os_str().is_empty()) {
            match disk.node(dir) {
                Ok(Node::Dir) => break,
                Ok(Node::File(_)) => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => missing.push(dir.to_owned()),
                Err(e) => return Err(e),
            }
        }
        for dir in missing.into_iter().rev() {
            disk.change_or_crash(NameChange::Put(dir, Node::Dir))?;
        }
        Ok(())
    }
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.turn().await;
        let (from, to) = (clean(from), clean(to));
        let mut disk = self.disk.borrow_mut();
        disk.node(&from)?;
        disk.node(&parent(&to))?;
        disk.change_or_crash(NameChange::Moved(from, to))
    }
    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.turn().await;
        let path = clean(path);
        let mut disk = self.disk.borrow_mut();
        match disk.node(&path)? {
            Node::Dir => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            Node::File(_) => disk.change_or_crash(NameChange::Gone(path)),
        }
    }
    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.turn().await;
        let path = clean(path);
        let mut disk = self.disk.borrow_mut();
        match disk.node(&path)? {
            Node::File(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            Node::Dir if disk.live.keys().any(|p| parent(p) == path) => {
                Err(io::Error::from_raw_os_error(libc::ENOTEMPTY))
            }
            Node::Dir => disk.change_or_crash(NameChange::Gone(path)),
        }
    }
    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.turn().await;
        let dir = clean(dir);
        let mut disk = self.disk.borrow_mut();
        if disk.node(&dir)? != Node::Dir {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        if disk.begin()? {
            return Err(crashed());
        }
        disk.sync_names(&dir);
        Ok(())
    }
    async fn sync_all(&self, dir: &Path) -> io::Result<()> {
        self.turn().await;
        let mut disk = self.disk.borrow_mut();
        disk.node(&clean(dir))?;
        let mut ids: Vec<u64> = disk.inodes.keys().copied().collect();
        ids.sort_unstable();
        if disk.begin()? {
            // Some files got there, and no name.
            for id in ids {
                if disk.random().is_multiple_of(2) {
                    disk.inode(id).make_durable();
                }
            }
            return Err(crashed());
        }
        disk.sync_counted(|disk| {
            for id in &ids {
                disk.inode(*id).pending.clear();
            }
        })?;
        ids.into_iter().for_each(|id| disk.inode(id).make_durable());
        for change in std::mem::take(&mut disk.changes) {
            change.apply(&mut disk.durable);
        }
        Ok(())
    }
    async fn space(&self, _path: &Path) -> io::Result<Space> {
        self.turn().await;
        let disk = self.disk.borrow();
        let total_bytes = disk.faults.capacity_bytes.unwrap_or(1 << 40);
        Ok(Space { total_bytes, free_bytes: total_bytes.saturating_sub(disk.used()) })
    }
    fn now_ms(&self) -> i64 {
        self.disk.borrow().now_ms
    }
}

impl SimFile {
    async fn turn(&self) {
        let yielding = self.disk.borrow().faults.yielding;
        yield_once(yielding).await;
    }
    fn check(&self, at: u64, bytes: usize) {
        if self.how.direct {
            assert!(at.is_multiple_of(ALIGN as u64), "direct access at {at}");
            assert!(bytes.is_multiple_of(ALIGN), "direct access of {bytes} bytes");
        }
    }
    fn check_writable(&self) -> io::Result<()> {
        if self.how.access == Access::Read { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(()) }
    }
    fn resize(&self, bytes: u64, allocate: bool) -> io::Result<()> {
        self.check_writable()?;
        let mut disk = self.disk.borrow_mut();
        let stops = disk.begin()?;
        if stops && disk.random().is_multiple_of(2) {
            return Err(crashed());
        }
        if allocate {
            let inode = &disk.inodes[&self.inode];
            let inside =
                inode.live.keys().filter(|s| (inode.allocated..bytes).contains(&(**s * SECTOR as u64))).count() as u64;
            let more = bytes.next_multiple_of(SECTOR as u64).saturating_sub(inode.allocated);
            disk.room_for(more.saturating_sub(inside * SECTOR as u64))?;
            let inode = disk.inode(self.inode);
            inode.allocated = inode.allocated.max(bytes.next_multiple_of(SECTOR as u64));
            inode.bytes = inode.bytes.max(bytes);
        } else {
            disk.inode(self.inode).set_len(bytes);
        }
        let now = disk.now_ms;
        disk.inode(self.inode).modified_ms = now;
        if stops { Err(crashed()) } else { Ok(()) }
    }
}

impl File for SimFile {
    type Buf = Vec<u8>;

    fn buffer(&self, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }
    async fn write_at(&self, at: u64, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        self.check(at, buf.len());
        self.turn().await;
        if let Err(e) = self.check_writable() {
            return (Err(e), buf);
        }
        let wrote = self.disk.borrow_mut().write(self.inode, at, &buf);
        (wrote, buf)
    }
    async fn read_at(&self, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        self.check(at, bytes);
        self.turn().await;
        let mut disk = self.disk.borrow_mut();
        if disk.crashed {
            return Err(crashed());
        }
        let this = disk.reads;
        disk.reads += 1;
        if disk.faults.read_error_at == Some(this) {
            return Err(eio());
        }
        let inode = &disk.inodes[&self.inode];
        let there = inode.bytes.saturating_sub(at).min(bytes as u64) as usize;
        let mut out = vec![0; there];
        inode.read(at, &mut out);
        Ok(out)
    }
    async fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.turn().await;
        self.resize(bytes, true)
    }
    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.turn().await;
        self.resize(bytes, false)
    }
    async fn len(&self) -> io::Result<u64> {
        self.turn().await;
        let disk = self.disk.borrow();
        if disk.crashed { Err(crashed()) } else { Ok(disk.inodes[&self.inode].bytes) }
    }
    async fn datasync(&self) -> io::Result<()> {
        self.turn().await;
        self.disk.borrow_mut().sync(self.inode)
    }
    async fn sync(&self) -> io::Result<()> {
        self.turn().await;
        self.disk.borrow_mut().sync(self.inode)
    }
}

/// Pending once when `really`, so that other tasks get their turn.
async fn yield_once(really: bool) {
    let mut done = !really;
    std::future::poll_fn(move |cx| {
        if done {
            return Poll::Ready(());
        }
        done = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs a future on the simulated disk to its end. Panics when it does not get there: nothing else could wake it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
    }
    panic!("a future on the simulated disk never resolves");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::write_all;

    const CREATE: Open = Open { access: Access::Create, direct: false };

    async fn put(io: &SimIo, path: &str, bytes: &[u8]) -> io::Result<SimFile> {
        let file = io.open(Path::new(path), CREATE).await?;
        write_all(&file, 0, bytes.to_vec()).await.0?;
        Ok(file)
    }

    #[test]
    fn synced_bytes_and_names_survive_a_power_cut() {
        for seed in 0..50 {
            let io = SimIo::new(seed, Faults::none());
            block_on(async {
                io.create_dir(Path::new("/d/e")).await.unwrap();
                io.sync_dir(Path::new("/")).await.unwrap();
                io.sync_dir(Path::new("/d")).await.unwrap();
                let file = put(&io, "/d/e/f", b"hello").await.unwrap();
                file.sync().await.unwrap();
                io.sync_dir(Path::new("/d/e")).await.unwrap();
            });
            assert_eq!(io.after_crash().contents(Path::new("/d/e/f")).unwrap(), b"hello");
        }
    }

    #[test]
    fn unsynced_sectors_and_names_are_a_matter_of_the_seed() {
        let (mut lost_name, mut old, mut new, mut mixed) = (0, 0, 0, 0);
        for seed in 0..100 {
            let io = SimIo::new(seed, Faults::none());
            block_on(async {
                let file = put(&io, "/a", &[1; 1024]).await.unwrap();
                file.datasync().await.unwrap();
                io.sync_dir(Path::new("/")).await.unwrap();
                write_all(&file, 0, vec![2; 1024]).await.0.unwrap();
                put(&io, "/b", b"x").await.unwrap();
            });
            let after = io.after_crash();
            lost_name += after.contents(Path::new("/b")).is_none() as u32;
            let a = after.contents(Path::new("/a")).unwrap();
            match (a[0], a[512]) {
                (1, 1) => old += 1,
                (2, 2) => new += 1,
                _ => mixed += 1,
            }
            assert!(a[..512].iter().all(|b| *b == a[0]), "a sector is atomic");
            assert_eq!(io.after_kill().contents(Path::new("/a")).unwrap(), vec![2; 1024]);
        }
        assert!(lost_name > 0 && old > 0 && new > 0 && mixed > 0);
    }

    #[test]
    fn a_rename_is_whole_or_not_at_all() {
        let mut seen = HashSet::new();
        for seed in 0..50 {
            let io = SimIo::new(seed, Faults::none());
            block_on(async {
                for (path, text) in [("/t", b"new"), ("/m", b"old")] {
                    put(&io, path, text).await.unwrap().sync().await.unwrap();
                }
                io.sync_dir(Path::new("/")).await.unwrap();
                io.rename(Path::new("/t"), Path::new("/m")).await.unwrap();
            });
            seen.insert(io.after_crash().contents(Path::new("/m")).unwrap());
        }
        assert_eq!(seen, HashSet::from([b"old".to_vec(), b"new".to_vec()]));
    }

    #[test]
    fn the_numbered_faults_happen() {
        let io = SimIo::new(7, Faults { write_error_at: Some(1), capacity_bytes: Some(4096), ..Faults::none() });
        block_on(async {
            let file = put(&io, "/a", &[1; 512]).await.unwrap();
            assert_eq!(file.write_at(0, vec![1; 8]).await.0.unwrap_err().raw_os_error(), Some(libc::EIO));
            assert_eq!(file.allocate(8192).await.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
            file.allocate(4096).await.unwrap();
            assert_eq!(put(&io, "/b", b"x").await.err().unwrap().raw_os_error(), Some(libc::ENOSPC));
            io.remove(Path::new("/a")).await.unwrap();
            put(&io, "/b", b"x").await.unwrap();
        });
        let io = SimIo::new(7, Faults { short_write_every: Some(2), ..Faults::none() });
        block_on(async {
            let file = put(&io, "/a", &[3; 5000]).await.unwrap();
            assert!(file.write_at(0, vec![4; 5000]).await.0.unwrap() < 5000);
        });
        let io = SimIo::new(7, Faults { sync_error_at: Some(0), ..Faults::none() });
        block_on(async {
            let file = put(&io, "/a", &[3; 512]).await.unwrap();
            io.sync_dir(Path::new("/")).await.unwrap();
            assert!(file.sync().await.is_err());
            file.sync().await.unwrap();
        });
        assert!(io.after_crash().contents(Path::new("/a")).unwrap().iter().all(|b| *b == 0), "a failed sync loses it");
    }

    #[test]
    fn a_crash_stops_everything() {
        let io = SimIo::new(1, Faults::crash_at(1));
        block_on(async {
            assert!(put(&io, "/a", &[1; 512]).await.is_err());
            assert!(io.list(Path::new("/")).await.is_err());
        });
        assert!(io.has_crashed());
        assert!(block_on(io.after_kill().list(Path::new("/"))).is_ok());
    }

    #[test]
    fn truncation_reads_as_zeros_afterwards() {
        let io = SimIo::new(1, Faults::none());
        block_on(async {
            let file = put(&io, "/a", &[9; 2000]).await.unwrap();
            file.set_len(700).await.unwrap();
            file.set_len(3000).await.unwrap();
            let back = file.read_at(0, 5000).await.unwrap();
            assert_eq!(back.len(), 3000);
            assert!(back[..700].iter().all(|b| *b == 9) && back[700..].iter().all(|b| *b == 0));
            assert!(io.flip_bit(Path::new("/a"), 2999, 3));
            assert_eq!(file.read_at(2999, 1).await.unwrap(), [8]);
        });
    }
}
