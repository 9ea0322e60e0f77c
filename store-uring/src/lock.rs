//! The store's `lock` file: an open-file-description write lock on byte 0, so that Apache's broker and ours exclude each other.
//! Java's `FileChannel.tryLock(0, 1, false)` is a POSIX record lock of the process; the two kinds see each other.
use crate::StoreError;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Held while it lives.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
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
    Ok(StoreLock { _file: file })
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
        Ok(()) => Ok(Some(StoreLock { _file: file })),
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
