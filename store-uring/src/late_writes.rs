//! Direct writes that outlive the process that asked for them.
//!
//! A killed process is gone, its locks are free and its exit status is known, while writes that its rings have handed to the device are
//! still under way: the kernel does not wait for them. On a disk that takes its time they arrive seconds later, over whatever the next
//! process has written there since. Measured: `fio` killed while its writes are throttled changes its file for seven seconds more.
use crate::StoreError;
use crate::segment::{Places, parse_name};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A process writes into its newest segment, and zeros into the one or two behind; so many of the newest are asked.
const WRITTEN_MAX: usize = 4;
/// From here on the wait is told.
const TELL_FROM: Duration = Duration::from_millis(100);

/// Returns when no write of an earlier process into the segments of this log is under way any more. Blocking; for the holder of the
/// store's lock, before it reads the log. Leaves contents, lengths and times of the files as they are.
///
/// # Errors
/// `File` when a directory cannot be listed. A file that cannot be asked (read-only, a filesystem without fallocate) is passed over:
/// whoever needs it says more of it.
pub fn wait(commit_log_dir: &Path) -> Result<(), StoreError> {
    let begun = Instant::now();
    let mut files = segments_of(commit_log_dir)?;
    files.drain(..files.len().saturating_sub(WRITTEN_MAX));
    for aside in Places::asides(commit_log_dir) {
        files.extend(segments_of(&aside)?);
    }
    for path in files {
        if let Err(e) = wait_for(&path) {
            tracing::debug!(file = %path.display(), error = %e, "not asked for late writes");
        }
    }
    if begun.elapsed() >= TELL_FROM {
        let ms = begun.elapsed().as_millis() as u64;
        tracing::warn!(ms, "waited for writes of the process that had this store open before");
    }
    Ok(())
}

/// Segments in a directory, oldest first; none if it is not there.
fn segments_of(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let listed = std::fs::read_dir(dir).and_then(|names| names.map(|name| Ok(name?.path())).collect());
    let mut files: Vec<PathBuf> = match listed {
        Ok(files) => files,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(StoreError::File { op: "list", path: dir.to_owned(), source }),
    };
    files.retain(|path| parse_name(path).is_some());
    files.sort_unstable();
    Ok(files)
}

/// Allocating waits for all direct I/O on the file before it looks at what there is to allocate (ext4, XFS); here there is nothing: the
/// first byte of a segment has its block. It counts as a change of the file, by whose time retention goes, so that is set back.
fn wait_for(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let before = file.metadata()?;
    // SAFETY: the file is open for the whole call, which touches no memory of ours.
    if unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, 1) } != 0 {
        return Err(io::Error::last_os_error());
    }
    file.set_modified(before.modified()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn files_stay_as_they_are() {
        let dir = std::env::temp_dir().join(format!("uringmq-late-writes-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let log = dir.join("commitlog");
        wait(&log).unwrap();
        assert!(!log.exists(), "nothing is made");
        std::fs::create_dir_all(log.join("next")).unwrap();
        std::fs::create_dir_all(dir.join("commitlog-next")).unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let places = [
            "commitlog/00000000000000000000",
            "commitlog/next/00000000000000008192",
            "commitlog-next/00000000000000016384",
        ];
        for place in places {
            let file = std::fs::File::create_new(dir.join(place)).unwrap();
            io::Write::write_all(&mut &file, &[7; 8192]).unwrap();
            file.set_modified(old).unwrap();
        }
        wait(&log).unwrap();
        for place in places {
            assert_eq!(std::fs::read(dir.join(place)).unwrap(), [7; 8192]);
            assert_eq!(std::fs::metadata(dir.join(place)).unwrap().modified().unwrap(), old);
        }
        assert_eq!(segments_of(&log).unwrap(), [dir.join(places[0])], "directories and the guard are no segments");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
