//! The store's `lock` file: an open-file-description write lock on byte 0, so that Apache's broker and ours exclude each other.
//! Java's `FileChannel.tryLock(0, 1, false)` is a POSIX record lock of the process; the two kinds see each other.
//!
//! Apache's broker asks for the lock only after it has loaded and recovered the store, that is after it has deleted the segment made
//! ahead, set back the index and written into the queues of a store that another one runs on. So [`StoreLock::guard`] puts a name into
//! the log's directory at which it stops before all that: a link to a descriptor of this process, a file of the wrong length while the
//! process lives. When it is gone, killed or not, the link leads nowhere and Apache's broker removes it as "an empty last file".
use crate::StoreError;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Sorts behind every segment's name, and is told to the operator by the broker that refuses because of it.
pub const GUARD: &str = "uringmq-has-this-store-open";
/// The guard's descriptor has a number about here, which no process that is given this one's id later has in use by chance.
const GUARD_FD_MAX: u64 = 16_384;

/// Held while it lives.
#[derive(Debug)]
pub struct StoreLock {
    file: File,
    guard: Option<(PathBuf, OwnedFd)>,
}

impl StoreLock {
    /// Makes Apache's broker refuse the store before it changes anything of it. Blocking, as `lock`. Works against processes that may
    /// look at this one's descriptors: of the same user, in the same container.
    pub fn guard(&mut self, commit_log_dir: &Path) -> Result<(), StoreError> {
        let path = commit_log_dir.join(GUARD);
        let failed = |op| {
            let path = path.clone();
            move |source| StoreError::File { op, path, source }
        };
        std::fs::create_dir_all(commit_log_dir).map_err(failed("create directory of"))?;
        let fd = self.high_descriptor().map_err(failed("duplicate a descriptor for"))?;
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("remove")(e)),
            _ => {}
        }
        let target = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        std::os::unix::fs::symlink(target, &path).map_err(failed("link"))?;
        self.guard = Some((path, fd));
        Ok(())
    }

    fn high_descriptor(&self) -> io::Result<OwnedFd> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is valid for the call.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == -1 {
            return Err(io::Error::last_os_error());
        }
        let from = limit.rlim_cur.clamp(2, GUARD_FD_MAX) * 3 / 4 + std::process::id() as u64 % 61;
        // SAFETY: the descriptor is open while `self.file` lives.
        let fd =
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from.min(limit.rlim_cur - 1) as i32) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made it, and nothing else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.guard {
            // Without a process to lead to it is harmless, so a failure is too.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Blocking; called once before any shard runs. `Refused` (naming the holder's pid when the system tells) when another process has it.
pub fn lock(root: &Path) -> Result<StoreLock, StoreError> {
    let path = root.join("lock");
    let failed = |op| {
        let path = path.clone();
        move |source| StoreError::File { op, path, source }
    };
    std::fs::create_dir_all(root).map_err(failed("create directory of"))?;
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(failed("open"))?;
    if let Err(e) = set_lock(&file, libc::F_WRLCK) {
        return Err(match e.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => {
                refused(&path, &file, "stop it, or start this one on another storePathRootDir")
            }
            _ => failed("lock")(e),
        });
    }
    if file.metadata().map_err(failed("stat"))?.len() == 0 {
        file.write_all(b"lock").map_err(failed("write"))?;
    }
    Ok(StoreLock { file, guard: None })
}

/// For those who only read, several at once: excludes a broker, and is excluded by one. Writes nothing; `None` when the store has no
/// lock file, so no broker can run on it.
pub fn lock_to_read(root: &Path) -> Result<Option<StoreLock>, StoreError> {
    let path = root.join("lock");
    let failed = |op| {
        let path = path.clone();
        move |source| StoreError::File { op, path, source }
    };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("open")(e)),
    };
    match set_lock(&file, libc::F_RDLCK) {
        Ok(()) => Ok(Some(StoreLock { file, guard: None })),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Err(refused(&path, &file, "stop it first"))
        }
        Err(e) => Err(failed("lock")(e)),
    }
}

/// A lock of that kind on the first byte.
fn first_byte(kind: libc::c_int) -> libc::flock {
    // SAFETY: all-zero is a valid flock (it has integers only).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_len = 1;
    lock
}

fn set_lock(file: &File, kind: libc::c_int) -> io::Result<()> {
    let lock = first_byte(kind);
    // SAFETY: the descriptor is open while `file` lives, the pointer is valid through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A record lock (Apache's) names its process; an open-file-description lock (ours) gives -1.
fn refused(path: &Path, file: &File, cure: &str) -> StoreError {
    let mut lock = first_byte(libc::F_WRLCK);
    // SAFETY: as in `set_lock`; the call writes to `lock` only.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    let holder = if asked == 0 && lock.l_type != libc::F_UNLCK as i16 && lock.l_pid > 0 {
        format!("process {}", lock.l_pid)
    } else {
        "another process".to_owned()
    };
    let what = format!("{holder} has this store open; {cure}");
    StoreError::Refused { path: path.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("uringmq-lock-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn one_holder_at_a_time() {
        let dir = temp("one");
        let held = lock(&dir).unwrap();
        let refused = lock(&dir).unwrap_err().to_string();
        assert!(refused.contains("another process has this store open"), "{refused}");
        drop(held);
        lock(&dir).unwrap();
        assert_eq!(std::fs::read(dir.join("lock")).unwrap(), b"lock");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// What Java's `File.length` says: 0 for a name that leads nowhere.
    fn java_length(path: &Path) -> u64 {
        std::fs::metadata(path).map_or(0, |meta| meta.len())
    }

    #[test]
    fn the_guard_has_a_wrong_length_while_it_is_held_and_none_afterwards() {
        let dir = temp("guard");
        let log = dir.join("commitlog");
        let path = log.join(GUARD);
        let mut held = lock(&dir).unwrap();
        held.guard(&log).unwrap();
        assert_eq!(java_length(&path), 4);
        assert!(GUARD > "99999999999999999999", "it is the last of the directory");
        drop(held);
        assert!(std::fs::symlink_metadata(&path).is_err(), "removed at a clean end");
        // As after a kill: a number of no process.
        std::os::unix::fs::symlink("/proc/4294967295/fd/9000", &path).unwrap();
        assert_eq!(java_length(&path), 0);
        let mut held = lock(&dir).unwrap();
        held.guard(&log).unwrap();
        assert_eq!(java_length(&path), 4, "a stale one is replaced");
        drop(held);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn readers_share_it_and_write_nothing() {
        let dir = temp("readers");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(lock_to_read(&dir).unwrap().is_none());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        let broker = lock(&dir).unwrap();
        let refused = lock_to_read(&dir).unwrap_err().to_string();
        assert!(refused.ends_with("another process has this store open; stop it first"), "{refused}");
        drop(broker);
        let readers = (lock_to_read(&dir).unwrap(), lock_to_read(&dir).unwrap());
        assert!(readers.0.is_some() && readers.1.is_some());
        lock(&dir).unwrap_err();
        drop(readers);
        lock(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_record_lock_as_javas_is_seen_and_named() {
        let dir = temp("java");
        std::fs::create_dir_all(&dir).unwrap();
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(dir.join("lock")).unwrap();
        let record = first_byte(libc::F_WRLCK);
        // SAFETY: the descriptor is open, the pointer valid through the call. A record lock of this process excludes
        // open-file-description locks of the same process too.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &record) }, 0);
        let refused = lock(&dir).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
