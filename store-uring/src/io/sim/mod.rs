//! The simulated disk: an in-memory file system with seeded faults, for tests and the fault campaign.
//!
//! Durable bytes and pending writes are kept apart per 512-byte sector: a sync of a file makes its pending sectors durable, a sync of
//! a directory the names in it. [`SimIo::after_crash`] gives the disk as a power cut leaves it (each unsynced sector old or new, of
//! each directory's unsynced name changes a prefix), [`SimIo::after_kill`] as a killed process leaves it (all that was completed).
//! A name whose directory is not durable is lost with it. Everything follows from the seed and the order of the operations.
mod disk;
mod inode;
mod names;

use super::{ALIGN, Access, File, Io, Metadata, Open, Space};
use disk::{Disk, crashed, eio};
use names::{NameChange, Node, ancestors, below, clean, parent};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What a disk writes as a whole: old or new, never a mix.
pub const SECTOR: usize = 512;
/// Polls after which [`block_on`] takes a future for one that never resolves.
const POLLS_MAX: usize = 1_000_000;
/// What goes wrong. Counts start at 0 and are of the whole disk; each numbered error happens once.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The operation (see [`SimIo::operations`]) at which the machine stops: it is done in part, and it and all later ones fail.
    pub crash_at: Option<u64>,
    /// One write in so many is short.
    pub short_write_every: Option<u64>,
    pub read_error_at: Option<u64>,
    pub write_error_at: Option<u64>,
    /// The write gets some of its sectors and then no space, as on a filesystem that copies on write or has quotas.
    pub write_no_space_at: Option<u64>,
    /// The sync fails and what it should have made durable does not get there unless it is written again; what was written past the page
    /// cache may, by a sync of the next process.
    pub sync_error_at: Option<u64>,
    /// Bytes of all files together; ENOSPC beyond.
    pub capacity_bytes: Option<u64>,
    /// Each operation is pending once before it completes, so that tasks interleave.
    pub yielding: bool,
}

/// So many of each were begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub syncs: u64,
}

impl Faults {
    pub fn none() -> Self {
        Faults::default()
    }
    pub fn crash_at(operation: u64) -> Self {
        Faults { crash_at: Some(operation), ..Faults::default() }
    }
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

impl SimIo {
    pub fn new(seed: u64, faults: Faults) -> Self {
        SimIo { disk: Rc::new(RefCell::new(Disk::new(seed, faults))) }
    }
    /// From now on `watch` is given, at each operation and before it is done, a copy of this disk that stopped in the middle of it: all
    /// crash points of a run in one run. Whatever the caller knows at that moment is what was acknowledged before the crash.
    pub fn watch(&self, watch: Rc<dyn Fn(SimIo)>) {
        self.disk.borrow_mut().watch = Some(watch);
    }
    pub fn unwatch(&self) {
        self.disk.borrow_mut().watch = None;
    }
    /// Does what changes something, after showing the watcher what a crash in it leaves.
    fn operate<T>(disk: &RefCell<Disk>, operation: impl Fn(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let watch = disk.borrow().watch.clone().filter(|_| !disk.borrow().crashed);
        if let Some(watch) = watch {
            let mut copy = disk.borrow().clone();
            copy.watch = None;
            copy.faults.crash_at = Some(copy.operations);
            let _ = operation(&mut copy); // what it gives is lost in the crash
            if copy.crashed {
                watch(SimIo { disk: Rc::new(RefCell::new(copy)) });
            }
        }
        operation(&mut disk.borrow_mut())
    }
    /// Operations begun so far that change something (writes, syncs, lengths, names); reads do not count.
    pub fn operations(&self) -> u64 {
        self.disk.borrow().operations
    }
    /// What the numbered faults count.
    pub fn counts(&self) -> Counts {
        let disk = self.disk.borrow();
        Counts { reads: disk.reads, writes: disk.writes, syncs: disk.syncs }
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
        self.after_crash_of(0)
    }
    /// As `after_crash`; another `choice` is another cut: other sectors and names got there.
    pub fn after_crash_of(&self, choice: u64) -> SimIo {
        let next = self.copy();
        next.disk.borrow_mut().random ^= choice.wrapping_mul(0xD134_2543_DE82_EF95);
        next.disk.borrow_mut().cut_power();
        next
    }
    /// Another disk, as this one stands after the process is killed; what was not synced is still not durable. Without faults.
    pub fn after_kill(&self) -> SimIo {
        let next = self.copy();
        next.disk.borrow_mut().begin_anew();
        next
    }
    fn copy(&self) -> SimIo {
        let mut disk = self.disk.borrow().clone();
        disk.faults = Faults::none();
        disk.crashed = false;
        disk.operations = 0;
        disk.watch = None;
        disk.drop_unlinked();
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
        let inode = disk.file(*id);
        let mut out = vec![0; inode.bytes as usize];
        inode.read(0, &mut out);
        Some(out)
    }
    /// Makes a directory with its parents, all durable.
    pub fn plant_dir(&self, path: &Path) {
        let path = clean(path);
        let mut disk = self.disk.borrow_mut();
        for dir in ancestors(&path) {
            disk.live.insert(dir.to_owned(), Node::Dir);
            disk.durable.insert(dir.to_owned(), Node::Dir);
        }
    }
    /// Makes or replaces a file with its directories, all durable: how a test prepares or damages a disk.
    pub fn plant(&self, path: &Path, bytes: &[u8]) {
        let path = clean(path);
        self.plant_dir(Path::new(parent(&path)));
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
        inode.flip(at, bit);
        true
    }
    /// Reads of the sectors of `from..to` fail from now on, until they are written again. False when there is no such file.
    pub fn make_unreadable(&self, path: &Path, from: u64, to: u64) -> bool {
        let mut disk = self.disk.borrow_mut();
        let Some(Node::File(id)) = disk.live.get(&clean(path)).copied() else { return false };
        disk.inode(id).make_unreadable(from / SECTOR as u64..to.div_ceil(SECTOR as u64));
        true
    }
    /// The file's name is gone for good, and nobody removed it.
    pub fn lose(&self, path: &Path) {
        let mut disk = self.disk.borrow_mut();
        disk.live.remove(&clean(path));
        disk.durable.remove(&clean(path));
    }
    /// Every path, directories included.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.disk.borrow().live.keys().map(PathBuf::from).collect()
    }
    async fn turn(&self) {
        let yielding = self.disk.borrow().faults.yielding;
        yield_once(yielding).await;
    }
}

impl Io for SimIo {
    type File = SimFile;

    async fn open(&self, path: &Path, how: Open) -> io::Result<SimFile> {
        self.turn().await;
        let path = clean(path);
        let disk = self.disk.borrow();
        let found = match disk.node(&path) {
            Ok(node) => Some(node),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let inode = match (found, how.access) {
            (Some(Node::Dir), _) => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
            (Some(Node::File(_)), Access::CreateNew) => return Err(io::Error::from_raw_os_error(libc::EEXIST)),
            (Some(Node::File(id)), _) => id,
            (None, Access::Read | Access::Write) => return Err(disk::not_found()),
            (None, Access::Create | Access::CreateNew) => {
                if disk.node(parent(&path))? != Node::Dir {
                    return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
                }
                drop(disk);
                Self::operate(&self.disk, |disk| {
                    let id = disk.new_inode();
                    disk.change_or_crash(NameChange::Put(path.clone(), Node::File(id))).map(|()| id)
                })?
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
        let names = below(&disk.live, &dir).filter(|(name, _)| !name.contains('/'));
        Ok(names.map(|(name, _)| PathBuf::from(name)).collect())
    }
    async fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.turn().await;
        let disk = self.disk.borrow();
        Ok(match disk.node(&clean(path))? {
            Node::Dir => Metadata { bytes: 4096, modified_ms: disk.now_ms, is_dir: true },
            Node::File(id) => {
                let inode = disk.file(id);
                Metadata { bytes: inode.bytes, modified_ms: inode.modified_ms, is_dir: false }
            }
        })
    }
    async fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.turn().await;
        let path = clean(path);
        let disk = self.disk.borrow();
        let mut missing = Vec::new();
        for dir in ancestors(&path) {
            match disk.node(dir) {
                Ok(Node::Dir) => break,
                Ok(Node::File(_)) => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => missing.push(dir.to_owned()),
                Err(e) => return Err(e),
            }
        }
        drop(disk);
        for dir in missing.into_iter().rev() {
            Self::operate(&self.disk, |disk| disk.change_or_crash(NameChange::Put(dir.clone(), Node::Dir)))?;
        }
        Ok(())
    }
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.turn().await;
        let (from, to) = (clean(from), clean(to));
        Self::operate(&self.disk, |disk| {
            disk.node(&from)?;
            disk.node(parent(&to))?;
            disk.change_or_crash(NameChange::Moved(from.clone(), to.clone()))
        })
    }
    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.turn().await;
        let path = clean(path);
        Self::operate(&self.disk, |disk| match disk.node(&path)? {
            Node::Dir => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            Node::File(_) => disk.change_or_crash(NameChange::Gone(path.clone())),
        })
    }
    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.turn().await;
        let path = clean(path);
        Self::operate(&self.disk, |disk| match disk.node(&path)? {
            Node::File(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            Node::Dir if below(&disk.live, &path).next().is_some() => {
                Err(io::Error::from_raw_os_error(libc::ENOTEMPTY))
            }
            Node::Dir => disk.change_or_crash(NameChange::Gone(path.clone())),
        })
    }
    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.turn().await;
        let dir = clean(dir);
        Self::operate(&self.disk, |disk| {
            if disk.node(&dir)? != Node::Dir {
                return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
            }
            if disk.begin()? {
                return Err(crashed());
            }
            disk.sync_names(&dir);
            Ok(())
        })
    }
    async fn sync_all(&self, dir: &Path) -> io::Result<()> {
        self.turn().await;
        let dir = clean(dir);
        Self::operate(&self.disk, |disk| {
            disk.node(&dir)?;
            disk.sync_all()
        })
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
    fn operate<T>(&self, operation: impl Fn(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        SimIo::operate(&self.disk, operation)
    }
    fn resize(&self, bytes: u64, allocate: bool) -> io::Result<()> {
        self.check_writable()?;
        self.operate(|disk| disk.resize(self.inode, bytes, allocate))
    }
}

impl File for SimFile {
    type Buf = Vec<u8>;

    fn buffer(&self, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }
    /// Full of what memory may hold: bytes that are no zeros.
    fn buffer_unzeroed(&self, bytes: usize) -> Vec<u8> {
        vec![0xA5; bytes]
    }
    async fn write_at(&self, at: u64, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        self.check(at, buf.len());
        self.turn().await;
        if let Err(e) = self.check_writable() {
            return (Err(e), buf);
        }
        let wrote = self.operate(|disk| {
            if self.how.direct {
                disk.inode(self.inode).written_direct();
            }
            disk.write(self.inode, at, &buf)
        });
        (wrote, buf)
    }
    async fn write_synced_at(&self, at: u64, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        let (wrote, buf) = self.write_at(at, buf).await;
        let Ok(bytes) = wrote else { return (wrote, buf) };
        self.turn().await;
        let synced = self.operate(|disk| disk.sync_range(self.inode, at, bytes as u64));
        (synced.map(|()| bytes), buf)
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
        let inode = disk.file(self.inode);
        let there = inode.bytes.saturating_sub(at).min(bytes as u64) as usize;
        inode.check_readable(at, there)?;
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
        if disk.crashed { Err(crashed()) } else { Ok(disk.file(self.inode).bytes) }
    }
    async fn datasync(&self) -> io::Result<()> {
        self.turn().await;
        self.operate(|disk| disk.sync(self.inode))
    }
    async fn sync(&self) -> io::Result<()> {
        self.turn().await;
        self.operate(|disk| disk.sync(self.inode))
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
mod tests;
