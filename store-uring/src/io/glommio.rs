//! The production io: glommio files, O_DIRECT for the log. Used by every role; everything it makes stays on its core.
//!
//! What glommio 0.9.0 needs worked round (source read, versions of 2024):
//! - opening a `DmaFile` does `statfs` by path and unwraps, so a name removed meanwhile would end the process: the file is opened
//!   buffered first, and again for direct io through `/proc/self/fd`, which names the open file itself;
//! - `statx` goes by path too, which a rename or that detour makes stale: lengths come from `fstat` on the descriptor;
//! - `write_at` keeps the buffer on an error: writes go through an `Rc`;
//! - the first file that a thread opens on a device decides whether the device is polled, by one read; an empty or unwritten file
//!   answers that without the device, and all later reads fail with `EOPNOTSUPP` while writes spin: the first open of a device is
//!   write-only here, which settles it as not polled;
//! - its errors wrap the OS error: the number is taken out here, once.
//!
//! There is no uring operation (in glommio) for names in directories, so these go to the executor's blocking thread.
use super::{Access, File, Io, Metadata, Open, Space};
use glommio::GlommioError;
use glommio::io::{BufferedFile, DmaBuffer, DmaFile, OpenOptions, ReadResult};
use std::cell::{OnceCell, RefCell};
use std::fmt::Write as _;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// One recorded operation of a file, in the order in which this core saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub seq: u64,
    pub kind: OpKind,
    /// As it was opened; a later rename does not change it.
    pub file: Rc<Path>,
    pub at: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    WriteStart,
    /// Completed without error; `bytes` as the system answered.
    WriteEnd,
    SyncStart,
    /// Completed without error.
    SyncEnd,
    /// Noted by the owner of the io: the record at `at` of the log, of `bytes`, is acknowledged now, on its write alone.
    Acked,
    /// The same, for one whose sender was promised stable storage.
    AckedDurable,
}

/// Operations kept; what comes later is not recorded.
const OPS_MAX: usize = 1_000_000;

/// What the files of one core did, for the test that an acknowledgement follows the write (and sync) that covers it. Writes of
/// nothing but zeros cover no record and are left out.
#[derive(Clone, Default, Debug)]
pub struct OpLog(Rc<RefCell<Vec<Op>>>);

impl OpLog {
    pub fn note(&self, kind: OpKind, file: &Rc<Path>, at: u64, bytes: u64) {
        let mut ops = self.0.borrow_mut();
        let seq = ops.len() as u64;
        if ops.len() < OPS_MAX {
            ops.push(Op { seq, kind, file: file.clone(), at, bytes });
        }
    }

    /// One line an operation, in order: kind, name of the file (`-` for none), position, bytes.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for op in self.0.borrow().iter() {
            let name = op.file.file_name().map_or("-".into(), |name| name.to_string_lossy());
            writeln!(text, "{:?} {name} {} {}", op.kind, op.at, op.bytes).expect("a String takes all");
        }
        text
    }

    pub fn ops(&self) -> Vec<Op> {
        self.0.borrow().clone()
    }
}

/// Cheap to clone. `Default` is the one for shards.
#[derive(Clone, Default, Debug)]
pub struct GlommioIo {
    log: Option<OpLog>,
    blocking: bool,
}

impl GlommioIo {
    /// For the shards: nothing blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// For the start, before any shard runs: directory operations are made on the calling thread, which is faster by the hop to
    /// the blocking thread (some 50 us for each of thousands of queue directories).
    pub fn starting() -> Self {
        GlommioIo { log: None, blocking: true }
    }

    /// Records the operations of all files opened through it.
    pub fn recording(log: OpLog) -> Self {
        GlommioIo { log: Some(log), blocking: false }
    }

    /// Runs a call that may sleep in the kernel away from the shard.
    async fn away<R: Send + 'static>(&self, call: impl FnOnce() -> R + Send + 'static) -> R {
        if self.blocking { call() } else { glommio::executor().spawn_blocking(call).await }
    }
}

impl Io for GlommioIo {
    type File = GlommioFile;

    async fn open(&self, path: &Path, how: Open) -> io::Result<GlommioFile> {
        let path: Rc<Path> = std::path::absolute(path)?.into(); // glommio resolves relative paths by blocking calls
        if self.blocking && !how.direct {
            let kind = Kind::Blocking(open_blocking(&path, how.access)?);
            return Ok(GlommioFile { kind, synced: OnceCell::new(), path, log: self.log.clone(), blocking: true });
        }
        let mut options = OpenOptions::new();
        options.read(true).write(how.access != Access::Read);
        match how.access {
            Access::Read | Access::Write => {}
            Access::Create => _ = options.create(true),
            Access::CreateNew => _ = options.create_new(true),
        }
        let pinned = options.buffered_open(&path).await.map_err(os_error)?;
        let kind = if how.direct {
            let by_descriptor = by_descriptor(pinned.as_raw_fd());
            settle_polling(&by_descriptor, file_stat(pinned.as_raw_fd())?.st_dev).await;
            let mut options = OpenOptions::new();
            options.read(true).write(how.access != Access::Read);
            let direct = options.dma_open(by_descriptor).await.map_err(os_error);
            pinned.close().await.map_err(os_error)?;
            Kind::Direct(direct?)
        } else {
            Kind::Buffered(pinned)
        };
        Ok(GlommioFile { kind, synced: OnceCell::new(), path, log: self.log.clone(), blocking: self.blocking })
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let dir = dir.to_owned();
        self.away(move || {
            let mut names = std::fs::read_dir(dir)?
                .map(|entry| entry.map(|e| PathBuf::from(e.file_name())))
                .collect::<io::Result<Vec<_>>>()?;
            names.sort_unstable();
            Ok(names)
        })
        .await
    }

    async fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let path = path.to_owned();
        let found = self.away(move || std::fs::metadata(path)).await?;
        let modified_ms = found.modified().map(ms_since_epoch)?;
        Ok(Metadata { bytes: found.len(), modified_ms, is_dir: found.is_dir() })
    }

    async fn create_dir(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.away(move || std::fs::create_dir_all(path)).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.away(move || std::fs::rename(from, to)).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.away(move || std::fs::remove_file(path)).await
    }

    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.away(move || std::fs::remove_dir(path)).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = dir.to_owned();
        self.away(move || std::fs::File::open(dir)?.sync_all()).await
    }

    async fn sync_all(&self, dir: &Path) -> io::Result<()> {
        let dir = dir.to_owned();
        self.away(move || {
            let dir = std::fs::File::open(dir)?;
            // SAFETY: the directory is open for the whole call, which touches no memory of ours.
            if unsafe { libc::syncfs(dir.as_raw_fd()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
        .await
    }

    async fn space(&self, path: &Path) -> io::Result<Space> {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
        self.away(move || {
            // SAFETY: all-zero is a valid statvfs; the path is a C string and both pointers live through the call.
            let (failed, found) = unsafe {
                let mut found: libc::statvfs = std::mem::zeroed();
                (libc::statvfs(path.as_ptr(), &mut found), found)
            };
            if failed != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Space::of_blocks(found.f_frsize, found.f_blocks, found.f_bfree, found.f_bavail))
        })
        .await
    }

    fn now_ms(&self) -> i64 {
        ms_since_epoch(SystemTime::now())
    }
}

#[derive(Debug)]
enum Kind {
    Direct(DmaFile),
    Buffered(BufferedFile),
    /// At the start only: thousands of small reads of the page cache, each some ten times faster than by the ring.
    Blocking(std::fs::File),
}

fn open_blocking(path: &Path, access: Access) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(access != Access::Read);
    match access {
        Access::Read | Access::Write => {}
        Access::Create => _ = options.create(true).truncate(false),
        Access::CreateNew => _ = options.create_new(true),
    }
    options.open(path)
}

/// Closed by the reactor after the drop.
#[derive(Debug)]
pub struct GlommioFile {
    kind: Kind,
    /// The same file opened with O_DSYNC, from the first synced write on.
    synced: OnceCell<DmaFile>,
    path: Rc<Path>,
    log: Option<OpLog>,
    blocking: bool,
}

impl GlommioFile {
    fn note(&self, kind: OpKind, at: u64, bytes: u64) {
        if let Some(log) = &self.log {
            log.note(kind, &self.path, at, bytes);
        }
    }

    /// For writes that are on stable storage when they complete. One request of the ring does what a write and an fdatasync would do in
    /// two, of which a kernel worker does the second; a device that can (FUA) does both in one.
    async fn opened_synced(&self, direct: &DmaFile) -> io::Result<&DmaFile> {
        if self.synced.get().is_none() {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(libc::O_DSYNC);
            let opened = options.dma_open(by_descriptor(direct.as_raw_fd())).await.map_err(os_error)?;
            if let Err(second) = self.synced.set(opened) {
                second.close().await.map_err(os_error)?; // two writes were the first
            }
        }
        Ok(self.synced.get().expect("set above"))
    }

    fn descriptor(&self) -> i32 {
        match &self.kind {
            Kind::Direct(file) => file.as_raw_fd(),
            Kind::Buffered(file) => file.as_raw_fd(),
            Kind::Blocking(file) => file.as_raw_fd(),
        }
    }

    /// `how`: which kind of zeros. Where it is not known, zeros are written.
    async fn fallocate(&self, how: i32, from: u64, to: u64) -> io::Result<()> {
        let descriptor = self.descriptor();
        let mode = how | libc::FALLOC_FL_KEEP_SIZE;
        let call = move || {
            // SAFETY: the caller holds the file open until the answer; fallocate touches no memory of ours.
            if unsafe { libc::fallocate(descriptor, mode, from as i64, (to - from) as i64) } == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        };
        match if self.blocking { call() } else { glommio::executor().spawn_blocking(call).await } {
            Err(e) if e.kind() == io::ErrorKind::Unsupported => super::write_zeros(self, from, to).await,
            done => done,
        }
    }
}

impl File for GlommioFile {
    type Buf = GlommioBuf;

    fn buffer(&self, bytes: usize) -> GlommioBuf {
        let mut buf = self.buffer_unzeroed(bytes);
        buf.as_mut().fill(0); // DMA buffers come with the contents of their last use
        buf
    }

    fn buffer_unzeroed(&self, bytes: usize) -> GlommioBuf {
        match &self.kind {
            Kind::Direct(file) if bytes > 0 => GlommioBuf(Memory::Dma(Rc::new(file.alloc_dma_buffer(bytes)))),
            Kind::Direct(_) | Kind::Buffered(_) | Kind::Blocking(_) => GlommioBuf(Memory::Bytes(vec![0; bytes])),
        }
    }

    fn cut(&self, buf: GlommioBuf, bytes: usize) -> GlommioBuf {
        match buf.0 {
            Memory::Dma(mut dma) => match Rc::get_mut(&mut dma) {
                Some(own) => {
                    own.trim_to_size(bytes);
                    GlommioBuf(Memory::Dma(dma))
                }
                None => GlommioBuf(Memory::Bytes(dma.as_bytes()[..bytes].to_vec())),
            },
            Memory::Bytes(mut vec) => {
                vec.truncate(bytes);
                GlommioBuf(Memory::Bytes(vec))
            }
            Memory::Read(read) => GlommioBuf(Memory::Bytes(read[..bytes].to_vec())),
        }
    }

    async fn write_at(&self, at: u64, buf: GlommioBuf) -> (io::Result<usize>, GlommioBuf) {
        let noted = self.log.is_some() && buf.as_ref().iter().any(|byte| *byte != 0);
        if noted {
            self.note(OpKind::WriteStart, at, buf.as_ref().len() as u64);
        }
        let (wrote, buf) = match &self.kind {
            Kind::Direct(file) => {
                let dma = buf.into_dma(file);
                let wrote = file.write_rc_at(dma.clone(), at).await;
                (wrote, GlommioBuf(Memory::Dma(dma)))
            }
            // The buffered write keeps the vector it is given, so it gets a copy.
            Kind::Buffered(file) => (file.write_at(buf.as_ref().to_vec(), at).await, buf),
            Kind::Blocking(file) => (file.write_at(buf.as_ref(), at).map_err(GlommioError::IoError), buf),
        };
        if let (Ok(bytes), true) = (&wrote, noted) {
            self.note(OpKind::WriteEnd, at, *bytes as u64);
        }
        (wrote.map_err(os_error), buf)
    }

    async fn write_synced_at(&self, at: u64, buf: GlommioBuf) -> (io::Result<usize>, GlommioBuf) {
        let Kind::Direct(direct) = &self.kind else {
            return match self.write_at(at, buf).await {
                (Ok(bytes), buf) => (self.datasync().await.map(|()| bytes), buf),
                failed => failed,
            };
        };
        let file = match self.opened_synced(direct).await {
            Ok(file) => file,
            Err(e) => return (Err(e), buf),
        };
        self.note(OpKind::WriteStart, at, buf.as_ref().len() as u64);
        let dma = buf.into_dma(direct);
        let wrote = file.write_rc_at(dma.clone(), at).await.map_err(os_error);
        if let Ok(bytes) = &wrote {
            self.note(OpKind::WriteEnd, at, *bytes as u64);
            self.note(OpKind::SyncStart, 0, 0);
            self.note(OpKind::SyncEnd, 0, 0);
        }
        (wrote, GlommioBuf(Memory::Dma(dma)))
    }

    async fn read_at(&self, at: u64, bytes: usize) -> io::Result<GlommioBuf> {
        let read = match &self.kind {
            Kind::Direct(file) => file.read_at_aligned(at, bytes).await,
            Kind::Buffered(file) => file.read_at(at, bytes).await,
            Kind::Blocking(file) => {
                let mut read = vec![0; bytes];
                let there = file.read_at(&mut read, at)?;
                read.truncate(there);
                return Ok(GlommioBuf(Memory::Bytes(read)));
            }
        };
        Ok(GlommioBuf(Memory::Read(read.map_err(os_error)?)))
    }

    async fn allocate(&self, bytes: u64) -> io::Result<()> {
        match &self.kind {
            Kind::Direct(file) => file.pre_allocate(bytes, false).await,
            Kind::Buffered(file) => file.pre_allocate(bytes, false).await,
            Kind::Blocking(file) => {
                // SAFETY: the file is open for the whole call, which touches no memory of ours.
                let failed = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) } != 0;
                return if failed { Err(io::Error::last_os_error()) } else { Ok(()) };
            }
        }
        .map_err(os_error)
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        match &self.kind {
            Kind::Direct(file) => file.truncate(bytes).await,
            Kind::Buffered(file) => file.truncate(bytes).await,
            Kind::Blocking(file) => return file.set_len(bytes),
        }
        .map_err(os_error)
    }

    /// ext4, XFS and btrfs turn the range into unwritten blocks at once; where that is not known, zeros are written.
    async fn zero_range(&self, from: u64, to: u64) -> io::Result<()> {
        self.fallocate(libc::FALLOC_FL_ZERO_RANGE, from, to).await
    }

    async fn punch_hole(&self, from: u64, to: u64) -> io::Result<()> {
        self.fallocate(libc::FALLOC_FL_PUNCH_HOLE, from, to).await
    }

    async fn len(&self) -> io::Result<u64> {
        Ok(file_stat(self.descriptor())?.st_size as u64)
    }

    async fn datasync(&self) -> io::Result<()> {
        self.note(OpKind::SyncStart, 0, 0);
        match &self.kind {
            Kind::Direct(file) => file.fdatasync().await,
            Kind::Buffered(file) => file.fdatasync().await,
            Kind::Blocking(file) => file.sync_data().map_err(GlommioError::IoError),
        }
        .map_err(os_error)?;
        self.note(OpKind::SyncEnd, 0, 0);
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        self.note(OpKind::SyncStart, 0, 0);
        let descriptor = self.descriptor();
        let call = move || {
            // SAFETY: the caller holds the file open until the answer; fsync touches no memory of ours.
            if unsafe { libc::fsync(descriptor) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        if self.blocking { call() } else { glommio::executor().spawn_blocking(call).await }?;
        self.note(OpKind::SyncEnd, 0, 0);
        Ok(())
    }
}

/// Names an open file itself, whatever became of its path.
fn by_descriptor(descriptor: i32) -> String {
    format!("/proc/self/fd/{descriptor}")
}

thread_local! {
    /// Devices of which glommio has decided on this thread.
    static SETTLED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Makes glommio use the interrupt-driven ring for a device (see the head of this file), once per thread and device. When the file
/// cannot be opened for writing, glommio decides by itself.
async fn settle_polling(path: &str, device: u64) {
    if SETTLED.with_borrow(|settled| settled.contains(&device)) {
        return;
    }
    if let Ok(file) = OpenOptions::new().write(true).dma_open(path).await {
        let _ = file.close().await;
        SETTLED.with_borrow_mut(|settled| settled.push(device));
    }
}

/// In memory for an open file of a local filesystem, so it does not block the shard.
fn file_stat(descriptor: i32) -> io::Result<libc::stat> {
    // SAFETY: all-zero is a valid stat; the caller holds the descriptor open; the pointer lives through the call.
    let (failed, found) = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &mut found), found)
    };
    if failed == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// Memory for one write, or what one read brought.
#[derive(Debug)]
pub struct GlommioBuf(Memory);

#[derive(Debug)]
enum Memory {
    Bytes(Vec<u8>),
    Dma(Rc<DmaBuffer>),
    Read(ReadResult),
}

impl GlommioBuf {
    /// The same memory, or an aligned copy of what did not come from this kind of file.
    fn into_dma(self, file: &DmaFile) -> Rc<DmaBuffer> {
        match self.0 {
            Memory::Dma(dma) => dma,
            other => {
                let from = GlommioBuf(other);
                let mut dma = file.alloc_dma_buffer(from.as_ref().len().max(1));
                dma.trim_to_size(from.as_ref().len());
                dma.as_bytes_mut().copy_from_slice(from.as_ref());
                Rc::new(dma)
            }
        }
    }
}

impl AsRef<[u8]> for GlommioBuf {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Memory::Bytes(vec) => vec,
            Memory::Dma(dma) => dma.as_bytes(),
            Memory::Read(read) => read,
        }
    }
}

impl AsMut<[u8]> for GlommioBuf {
    /// A read result, and a buffer that a dropped write left with the kernel, are copied first.
    fn as_mut(&mut self) -> &mut [u8] {
        let own = match &mut self.0 {
            Memory::Bytes(_) => true,
            Memory::Dma(dma) => Rc::get_mut(dma).is_some(),
            Memory::Read(_) => false,
        };
        if !own {
            self.0 = Memory::Bytes(self.as_ref().to_vec());
        }
        match &mut self.0 {
            Memory::Bytes(vec) => vec,
            Memory::Dma(dma) => Rc::get_mut(dma).expect("looked at above").as_bytes_mut(),
            Memory::Read(_) => unreachable!("replaced by a copy above"),
        }
    }
}

/// The OS error inside glommio's, with its number.
fn os_error(e: GlommioError<()>) -> io::Error {
    match e.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => e.into(),
    }
}

/// Negative before 1970.
fn ms_since_epoch(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    }
}
