//! One fixed-length file of the log: name, preallocation, removal. Used by the appender and its keeper.
//!
//! Apache refuses a `commitlog/` in which any file has another length than configured, so a segment is made under a directory beside
//! it and enters by rename at its full length; an expired one leaves by rename before it shrinks.
use crate::io::{Access, File, Io, Open};
use crate::seeded::{Bug, bug};
use crate::{StoreConfig, StoreError};
use std::io;
use std::path::{Path, PathBuf};
use uringmq_proto::types::PhyOffset;

/// How much of an expired segment one truncation frees: a few ms of the filesystem's journal, where a whole GiB takes a hundred.
const TRUNCATE_STEP_BYTES: u64 = 64 << 20;

const DIRECT: Open = Open { access: Access::Write, direct: true };

/// An open segment.
pub(crate) struct Segment<F> {
    pub(crate) start: u64,
    pub(crate) file: F,
}

/// Where segments lie.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) log: PathBuf,
    /// Segments being made and being removed; on the log's filesystem, for the renames: beside the log's directory, or in it
    /// (Apache skips directories there) when the log's directory is a mount point.
    pub(crate) aside: PathBuf,
}

impl Places {
    /// Wherever the aside of a log may be.
    pub(crate) fn asides(log: &Path) -> [PathBuf; 2] {
        let mut beside = log.file_name().unwrap_or_default().to_owned();
        beside.push("-next");
        [log.with_file_name(beside), log.join("next")]
    }

    /// As a reader needs them: where the aside is has not been looked up.
    pub(crate) fn of(config: &StoreConfig) -> Places {
        let log = config.commit_log_dir.clone();
        let [beside, _] = Places::asides(&log);
        Places { aside: beside, log }
    }

    /// Makes the directories, durably, and finds out which aside can be used.
    pub(crate) async fn make<I: Io>(io: &I, config: &StoreConfig) -> io::Result<Places> {
        let beside = Places::of(config);
        let [_, aside] = Places::asides(&beside.log);
        let inside = Places { aside, log: beside.log.clone() };
        io.create_dir(&beside.log).await?;
        for known in [&inside, &beside] {
            if io.metadata(&known.aside).await.is_ok_and(|found| found.is_dir) {
                return Ok(known.clone());
            }
        }
        let tried = async {
            io.create_dir(&beside.aside).await?;
            io.rename(&beside.aside, &inside.aside).await?;
            io.rename(&inside.aside, &beside.aside).await
        };
        let places = match tried.await {
            Ok(()) => beside,
            Err(e) => {
                use io::ErrorKind::{CrossesDevices, PermissionDenied, ReadOnlyFilesystem};
                if !matches!(e.kind(), CrossesDevices | PermissionDenied | ReadOnlyFilesystem) {
                    return Err(e);
                }
                let _ = io.remove_dir(&beside.aside).await; // only made to try
                io.create_dir(&inside.aside).await?;
                inside
            }
        };
        let parents = places.log.ancestors().filter(|dir| !dir.as_os_str().is_empty());
        for parent in parents {
            match io.sync_dir(parent).await {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => break, // so it is not one made just now
                done => done?,
            }
        }
        Ok(places)
    }

    pub(crate) fn segment(&self, start: u64) -> PathBuf {
        self.log.join(name(start))
    }
}

/// 20 digits: the offset of the file's first byte.
pub(crate) fn name(start: u64) -> String {
    format!("{start:020}")
}

/// The offset in a segment's name; `None` for any other name.
pub(crate) fn parse_name(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok())?
}

/// `NoSpace` for a full disk or quota (the log stays usable), `Io` for everything else.
pub(crate) fn store_error(op: &'static str, at: u64, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::NoSpace(PhyOffset(at)),
        _ => StoreError::Io { op, at: PhyOffset(at), source },
    }
}

/// Makes the segment at `start`: full length, all zeros, its name durable.
pub(crate) async fn make<I: Io>(
    io: &I,
    places: &Places,
    start: u64,
    bytes: u64,
) -> Result<Segment<I::File>, StoreError> {
    let aside = places.aside.join(name(start));
    let made = async {
        match io.remove(&aside).await {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(("remove", e)),
            _ => {}
        }
        let open = Open { access: Access::CreateNew, direct: true };
        let file = io.open(&aside, open).await.map_err(|e| ("open", e))?;
        file.allocate(bytes).await.map_err(|e| ("allocate", e))?;
        file.sync().await.map_err(|e| ("sync", e))?; // its length; a rename is worth nothing without
        io.rename(&aside, &places.segment(start)).await.map_err(|e| ("rename", e))?;
        if !bug(Bug::NoDirectorySync) {
            io.sync_dir(&places.log).await.map_err(|e| ("sync directory", e))?;
        }
        Ok(Segment { start, file })
    };
    match made.await {
        Ok(segment) => Ok(segment),
        Err((op, e)) => {
            // What an allocation got before it failed is space that others need; the next start removes what stays.
            let _ = io.remove(&aside).await;
            Err(store_error(op, start, e))
        }
    }
}

/// Opens the existing segment at `start`; `None` when there is none.
pub(crate) async fn open<I: Io>(
    io: &I,
    places: &Places,
    start: u64,
    bytes: u64,
) -> Result<Option<Segment<I::File>>, StoreError> {
    let file = match io.open(&places.segment(start), DIRECT).await {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(store_error("open", start, e)),
    };
    let found = file.len().await.map_err(|e| store_error("stat", start, e))?;
    if found != bytes {
        let what = format!("has {found} bytes instead of {bytes} (mappedFileSizeCommitLog)");
        return Err(StoreError::Refused { path: places.segment(start), what });
    }
    Ok(Some(Segment { start, file }))
}

/// Takes a segment out of the log: its name is gone from there, durably, when this returns.
pub(crate) async fn take_out<I: Io>(io: &I, places: &Places, start: u64) -> Result<(), StoreError> {
    match io.rename(&places.segment(start), &places.aside.join(name(start))).await {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(store_error("rename", start, e)),
        _ => {}
    }
    if bug(Bug::RemovalWithoutDirectorySync) {
        return Ok(());
    }
    io.sync_dir(&places.log).await.map_err(|e| store_error("sync directory", start, e))
}

/// Frees a file that was taken out, in steps.
pub(crate) async fn free<I: Io>(io: &I, path: &Path) -> io::Result<()> {
    let file = match io.open(path, Open { access: Access::Write, direct: false }).await {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let mut bytes = file.len().await?;
    while bytes > TRUNCATE_STEP_BYTES {
        bytes -= TRUNCATE_STEP_BYTES;
        file.set_len(bytes).await?;
    }
    drop(file);
    io.remove(path).await
}
