//! The io seam: what could differ between two runs is behind it, the clock too. Two implementations: `GlommioIo` (production) and
//! `SimIo` (the simulated disk, feature `sim`).
pub mod glommio;
#[cfg(feature = "sim")]
pub mod sim;

use std::io;
use std::path::{Path, PathBuf};

/// Direct reads and writes are whole multiples of this, at multiples of it.
pub const ALIGN: usize = 4096;
const WRITE_TRIES: usize = 8;
const ZERO_PIECE_BYTES: u64 = 512 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Made when missing; contents kept.
    Create,
    /// Refused with `AlreadyExists` when there.
    CreateNew,
}

/// `direct`: O_DIRECT, buffers and offsets aligned to [`ALIGN`]; otherwise through the page cache, any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub access: Access,
    pub direct: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub bytes: u64,
    pub modified_ms: i64,
    pub is_dir: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What is used and what is free to this process: less than the size of the filesystem by what that keeps for root.
    pub total_bytes: u64,
    /// Free to this process.
    pub free_bytes: u64,
}

impl Space {
    /// From the fields of statvfs(3). Apache's broker and df(1) divide by the same sum (UtilAll.getDiskPartitionSpaceUsedPercent), so that
    /// a ratio in broker.conf means one thing: blocks that are kept for root count as neither used nor free.
    pub fn of_blocks(block_bytes: u64, blocks: u64, free: u64, available: u64) -> Self {
        let used = blocks.saturating_sub(free);
        Space {
            total_bytes: used.saturating_add(available).saturating_mul(block_bytes),
            free_bytes: available.saturating_mul(block_bytes),
        }
    }
}

/// Whether the device (or a checksum of the filesystem) says that what is stored cannot be read. Recovery takes that for damage of these
/// bytes; any other error of a read stops it.
pub fn is_unreadable(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EIO | libc::ENODATA | libc::EREMOTEIO | libc::EBADMSG | libc::EILSEQ | libc::EUCLEAN)
    )
}

#[allow(async_fn_in_trait)] // futures stay on their core
pub trait Io: Clone + 'static {
    type File: File;
    async fn open(&self, path: &Path, how: Open) -> io::Result<Self::File>;
    /// Names in a directory, sorted, directories included; `NotFound` when it is missing.
    async fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    async fn metadata(&self, path: &Path) -> io::Result<Metadata>;
    /// With parents; no error when there.
    async fn create_dir(&self, path: &Path) -> io::Result<()>;
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    async fn remove(&self, path: &Path) -> io::Result<()>;
    /// An empty directory.
    async fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Names in it are durable after this.
    async fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// All that was written to any file of the filesystem that holds `dir`, and all names, are durable after this: one flush where
    /// thousands of files would need one each.
    async fn sync_all(&self, dir: &Path) -> io::Result<()>;
    async fn space(&self, path: &Path) -> io::Result<Space>;
    /// Wall clock, ms since the epoch.
    fn now_ms(&self) -> i64;
}

#[allow(async_fn_in_trait, clippy::len_without_is_empty)] // a length may fail to be had
pub trait File: 'static {
    type Buf: AsRef<[u8]> + AsMut<[u8]> + 'static;
    /// Zeroed, aligned.
    fn buffer(&self, bytes: usize) -> Self::Buf;
    /// Aligned, contents unspecified: for a caller that fills what it writes.
    fn buffer_unzeroed(&self, bytes: usize) -> Self::Buf {
        self.buffer(bytes)
    }
    /// The first `bytes` of a buffer; what lies behind is given up. Production copies nothing.
    fn cut(&self, buf: Self::Buf, bytes: usize) -> Self::Buf {
        let mut kept = self.buffer_unzeroed(bytes);
        kept.as_mut().copy_from_slice(&buf.as_ref()[..bytes]);
        kept
    }
    /// May be short. The buffer comes back in every case.
    async fn write_at(&self, at: u64, buf: Self::Buf) -> (io::Result<usize>, Self::Buf);
    /// As `write_at`, and what it wrote is on stable storage, with what of the metadata leads there (O_DSYNC); of other writes it says
    /// nothing. After an error nothing is known of either.
    async fn write_synced_at(&self, at: u64, buf: Self::Buf) -> (io::Result<usize>, Self::Buf) {
        match self.write_at(at, buf).await {
            (Ok(bytes), buf) => (self.datasync().await.map(|()| bytes), buf),
            failed => failed,
        }
    }
    /// May be short at the end of the file.
    async fn read_at(&self, at: u64, bytes: usize) -> io::Result<Self::Buf>;
    /// Allocates blocks for `bytes` from the start and makes the file at least that long.
    async fn allocate(&self, bytes: u64) -> io::Result<()>;
    async fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Makes an aligned range (inside the file's length) read as zeros; not durable before a sync.
    async fn zero_range(&self, from: u64, to: u64) -> io::Result<()> {
        write_zeros(self, from, to).await
    }
    /// As `zero_range` for any range, giving the blocks back; for files through the page cache.
    async fn punch_hole(&self, from: u64, to: u64) -> io::Result<()> {
        write_zeros(self, from, to).await
    }
    async fn len(&self) -> io::Result<u64>;
    async fn datasync(&self) -> io::Result<()>;
    /// fsync: length and all metadata too.
    async fn sync(&self) -> io::Result<()>;
}

/// Writes zeros over a range (aligned for a direct file), in pieces.
pub async fn write_zeros<F: File + ?Sized>(file: &F, from: u64, to: u64) -> io::Result<()> {
    let mut buf = None;
    let mut at = from;
    while at < to {
        let bytes = (to - at).min(ZERO_PIECE_BYTES) as usize;
        let piece = match buf.take() {
            Some(used) => file.cut(used, bytes),
            None => file.buffer(bytes),
        };
        let (wrote, back) = write_all(file, at, piece).await;
        wrote?;
        buf = Some(back);
        at += bytes as u64;
    }
    Ok(())
}

/// A short write is repeated whole: the range has one writer and the bytes are the same. The buffer comes back in every case.
pub async fn write_all<F: File + ?Sized>(file: &F, at: u64, buf: F::Buf) -> (io::Result<()>, F::Buf) {
    write_whole(file, (at, false), buf).await
}

/// As [`write_all`]; `synced`: each try is a [`File::write_synced_at`].
pub async fn write_whole<F: File + ?Sized>(
    file: &F,
    (at, synced): (u64, bool),
    mut buf: F::Buf,
) -> (io::Result<()>, F::Buf) {
    for _ in 0..WRITE_TRIES {
        let (wrote, back) = if synced { file.write_synced_at(at, buf).await } else { file.write_at(at, buf).await };
        buf = back;
        match wrote {
            Ok(n) if n == buf.as_ref().len() => return (Ok(()), buf),
            Ok(_) => {}
            Err(e) => return (Err(e), buf),
        }
    }
    (Err(io::ErrorKind::WriteZero.into()), buf)
}
