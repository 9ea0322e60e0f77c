//! What the machine must offer, looked at once before any shard starts: io_uring, locked memory, open files, a filesystem with direct
//! I/O, the store's lock. Each refusal is one plain sentence with its cure. Also finds the core that takes the disk's interrupt, where
//! the writer does best (findings: completions of direct writes run there).
use crate::machine;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;
use uringmq_store::lock::StoreLock;

/// What the runtime locks for the rings of one executor; without it nothing runs.
const RING_BYTES: u64 = 512 << 10;
/// Buffers of one executor that the runtime registers with the kernel (its own default is far more). Where the limit is too low for
/// them it runs without the registration.
pub const IO_MEMORY_BYTES: usize = 4 << 20;
/// Below this many descriptors a busy broker runs out: connections, segments, queue files.
const OPEN_FILES_WANTED: u64 = 4096;
const DIRECT_BYTES: usize = 4096;
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Why the broker does not start here.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("this kernel ({release}) has no io_uring; run on Linux 5.8 or newer, built with CONFIG_IO_URING")]
    NoIoUring { release: String },
    #[error(
        "io_uring is forbidden by the setting kernel.io_uring_disabled = {value}; allow it with: sysctl -w kernel.io_uring_disabled=0"
    )]
    IoUringDisabled { value: u8 },
    #[error(
        "io_uring is forbidden by a seccomp profile, as Docker's and containerd's default one does; run the container with the profile \
         in deploy/, or with --security-opt seccomp=unconfined"
    )]
    IoUringFiltered,
    #[error(
        "io_uring cannot be set up: {0}; see whether a security module or the memory limit of this process forbids it"
    )]
    IoUring(#[source] io::Error),
    #[error(
        "the locked-memory limit is {limit_bytes} bytes and {executors} executors need {need_bytes}; raise it (ulimit -l {need_kib}, \
         LimitMEMLOCK={need_bytes} in a systemd unit, --ulimit memlock={need_bytes} for Docker) or set fewer shards"
    )]
    LockedMemory { limit_bytes: u64, need_bytes: u64, need_kib: u64, executors: usize },
    #[error(
        "{path} cannot be used for the store: {source}; give a directory that this user may write in storePathRootDir"
    )]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "{path} lies on a filesystem without direct I/O (O_DIRECT): {source}; put the store on ext4, xfs or another disk filesystem"
    )]
    NoDirectIo { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Store(#[from] uringmq_store::StoreError),
}

/// What the checks leave behind.
#[derive(Debug)]
pub struct Checked {
    /// Held as long as the broker runs.
    pub lock: StoreLock,
    /// To be logged; the broker runs all the same.
    pub warnings: Vec<String>,
}

/// All checks, in the order in which a user would want to hear of them. Raises limits where it may. `executors`: how many will run in
/// this process; `dirs`: the store's root first, then its other directories.
pub fn check(executors: usize, root: &Path, other_dirs: &[&Path]) -> Result<Checked, StartError> {
    io_uring()?;
    let mut warnings: Vec<String> = locked_memory(executors)?.into_iter().chain(open_files()).collect();
    let lock = uringmq_store::lock::lock(root)?;
    for dir in std::iter::once(root).chain(other_dirs.iter().copied()) {
        warnings.extend(direct_io(dir)?);
    }
    Ok(Checked { lock, warnings })
}

/// Sets up a small ring and closes it again.
pub fn io_uring() -> Result<(), StartError> {
    let mut params = [0u8; 120]; // struct io_uring_params, all zero: no options
    // SAFETY: the call reads and writes 120 bytes at `params`, which are there.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2u32, params.as_mut_ptr()) };
    if fd >= 0 {
        // SAFETY: the kernel just made this descriptor and nobody else knows it.
        drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let disabled = read("/proc/sys/kernel/io_uring_disabled").trim().parse().ok();
    let filtered =
        read("/proc/thread-self/status").lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'));
    Err(diagnose(error, disabled, filtered, read("/proc/sys/kernel/osrelease").trim()))
}

/// `disabled`: kernel.io_uring_disabled where the kernel has it (6.6 and newer), so that its presence proves that io_uring is built in.
/// `filtered`: a seccomp filter is on this thread. Some profiles answer ENOSYS to look like an old kernel.
fn diagnose(error: io::Error, disabled: Option<u8>, filtered: bool, release: &str) -> StartError {
    match (error.raw_os_error(), disabled) {
        (Some(libc::EPERM), Some(value)) if value > 0 => StartError::IoUringDisabled { value },
        (Some(libc::EPERM | libc::EACCES), _) if filtered => StartError::IoUringFiltered,
        (Some(libc::ENOSYS), _) if filtered => StartError::IoUringFiltered,
        (Some(libc::ENOSYS), _) => StartError::NoIoUring { release: release.to_owned() },
        _ => StartError::IoUring(error),
    }
}

/// Raises the soft limit of `resource` to `want` (the hard limit at most; the hard limit too where this process may) and returns the
/// soft limit then.
fn raise_limit(resource: libc::__rlimit_resource_t, want: u64) -> io::Result<u64> {
    let limit = machine::limit(resource)?;
    if limit.rlim_cur >= want {
        return Ok(limit.rlim_cur);
    }
    for max in [limit.rlim_max.max(want), limit.rlim_max] {
        let raised = libc::rlimit { rlim_cur: want.min(max), rlim_max: max };
        // SAFETY: `raised` is a readable rlimit.
        if unsafe { libc::setrlimit(resource, &raised) } == 0 {
            return Ok(raised.rlim_cur);
        }
    }
    Ok(limit.rlim_cur)
}

/// Room for the rings of `executors`; a warning when there is none for their registered buffers.
pub fn locked_memory(executors: usize) -> Result<Option<String>, StartError> {
    let executors = executors.max(1);
    let need_bytes = RING_BYTES * executors as u64;
    let wanted_bytes = need_bytes + (IO_MEMORY_BYTES * executors) as u64;
    let limit_bytes = raise_limit(libc::RLIMIT_MEMLOCK, wanted_bytes).map_err(StartError::IoUring)?;
    if limit_bytes < need_bytes {
        return Err(StartError::LockedMemory { limit_bytes, need_bytes, need_kib: need_bytes >> 10, executors });
    }
    Ok((limit_bytes < wanted_bytes).then(|| {
        format!(
            "the locked-memory limit is {limit_bytes} bytes; with {wanted_bytes} the buffers of {executors} executors could be \
             registered with the kernel, which saves work on every write (ulimit -l {}, LimitMEMLOCK= in a systemd unit)",
            wanted_bytes >> 10
        )
    }))
}

/// Raises the limit of open files to the hard one; a warning when that is little.
pub fn open_files() -> Option<String> {
    let limit = machine::limit(libc::RLIMIT_NOFILE);
    let want = limit.map_or(OPEN_FILES_WANTED, |limit| limit.rlim_max.max(limit.rlim_cur));
    match raise_limit(libc::RLIMIT_NOFILE, want) {
        Ok(files) if files < OPEN_FILES_WANTED => Some(format!(
            "only {files} files may be open at once; raise the limit to {OPEN_FILES_WANTED} or more (ulimit -n, LimitNOFILE= in a systemd unit)"
        )),
        Ok(_) => None,
        Err(error) => Some(format!("the limit of open files cannot be read: {error}")),
    }
}

/// Makes `dir` and writes a block to a nameless file in it with O_DIRECT. A warning on tmpfs, where the runtime writes through the page
/// cache and nothing survives the machine.
pub fn direct_io(dir: &Path) -> Result<Option<String>, StartError> {
    let directory = |source| StartError::Directory { path: dir.to_owned(), source };
    fs::create_dir_all(dir).map_err(directory)?;
    let name = CString::new(dir.as_os_str().as_bytes()).map_err(|error| directory(error.into()))?;
    // SAFETY: an all-zero statfs is a value of it.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is a C string and `about` is writable.
    if unsafe { libc::statfs(name.as_ptr(), &mut about) } != 0 {
        return Err(directory(io::Error::last_os_error()));
    }
    if about.f_type == TMPFS_MAGIC {
        return Ok(Some(format!(
            "{} lies in memory (tmpfs): writes are buffered and are lost with the machine",
            dir.display()
        )));
    }
    match write_direct(&name) {
        Ok(()) => Ok(None),
        Err(source) if matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Err(StartError::NoDirectIo { path: dir.to_owned(), source })
        }
        // What is stored can be read all the same, and retention makes room.
        Err(source) if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => Ok(None),
        Err(source) => Err(directory(source)),
    }
}

/// One aligned block to a file that never gets a name, so that nothing strays into a store.
fn write_direct(dir: &CString) -> io::Result<()> {
    #[repr(align(4096))]
    struct Block([u8; DIRECT_BYTES]);
    let block = Block([0; DIRECT_BYTES]);
    let file = nameless(dir, libc::O_RDWR | libc::O_DIRECT | libc::O_CLOEXEC)?;
    // SAFETY: the block is readable for its length and lives through the call.
    let wrote = unsafe { libc::pwrite(file.as_raw_fd(), block.0.as_ptr().cast(), DIRECT_BYTES, 0) };
    match usize::try_from(wrote) {
        Ok(DIRECT_BYTES) => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Opens a file in `dir` that has no name, or loses it at once where the filesystem cannot make nameless ones.
fn nameless(dir: &CString, flags: i32) -> io::Result<OwnedFd> {
    let open = |path: &CString, flags| {
        // SAFETY: `path` is a C string; the mode is given as O_TMPFILE and O_CREAT ask.
        match unsafe { libc::open(path.as_ptr(), flags, 0o600) } {
            // SAFETY: the descriptor was just made and nobody else knows it.
            fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match open(dir, flags | libc::O_TMPFILE) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let path = Path::new(std::ffi::OsStr::from_bytes(dir.as_bytes())).join(".uringmq-direct-probe");
            let name = CString::new(path.as_os_str().as_bytes())?;
            let file = open(&name, flags | libc::O_CREAT);
            let _ = fs::remove_file(&path); // nothing was written under this name
            file
        }
        other => other,
    }
}

/// The core that takes the interrupts of the block device below `path`; `None` when the device has a queue for each core, or is not
/// known.
pub fn disk_interrupt_cpu(path: &Path) -> Option<usize> {
    let device = fs::metadata(path).ok()?.dev();
    let interrupts = fs::read_to_string("/proc/interrupts").ok()?;
    let affinity = |irq: &str| fs::read_to_string(format!("/proc/irq/{irq}/effective_affinity_list")).ok();
    interrupt_cpu(&interrupts, &interrupt_prefix(&device_dir(device)?)?, affinity)
}

/// The sysfs directory of a block device; through `/proc/self/mountinfo` for a filesystem with a device number of its own (btrfs), and
/// down to the disk of a mapped device that has only one.
fn device_dir(device: u64) -> Option<PathBuf> {
    let numbers = |device: u64| format!("{}:{}", libc::major(device), libc::minor(device));
    let link = |device: u64| fs::canonicalize(format!("/sys/dev/block/{}", numbers(device))).ok();
    let mounted = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let source = mount_source(&mounts, &numbers(device))?;
        link(fs::metadata(source).ok()?.rdev())
    };
    let mut dir = link(device).or_else(mounted)?;
    for _ in 0..8 {
        let mut below = fs::read_dir(dir.join("slaves")).ok().into_iter().flatten().flatten();
        match (below.next(), below.next()) {
            (Some(one), None) => dir = fs::canonicalize(one.path()).ok()?,
            (None, _) => return Some(dir),
            _ => return None,
        }
    }
    None
}

/// The device file that is mounted with the device number `numbers`. A line: id, parent, major:minor, root, mount point, options,
/// optional fields, `-`, type, source, options.
fn mount_source<'m>(mounts: &'m str, numbers: &str) -> Option<&'m str> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(numbers))?;
    line.split_once(" - ")?.1.split(' ').nth(1).filter(|source| source.starts_with('/'))
}

/// How the interrupts of the queues of a disk are named, by its directory: `.../virtio1/block/vda/vda1` gives `virtio1-req.`,
/// `.../nvme/nvme0/nvme0n1` gives `nvme0q`.
fn interrupt_prefix(dir: &Path) -> Option<String> {
    let names: Vec<&str> = dir.components().filter_map(|part| part.as_os_str().to_str()).collect();
    let numbered = |name: &&&str, kind: &str| {
        name.strip_prefix(kind).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    if let Some(virtio) = names.iter().find(|name| numbered(name, "virtio")) {
        return Some(format!("{virtio}-req."));
    }
    names.iter().find(|name| numbered(name, "nvme")).map(|nvme| format!("{nvme}q"))
}

/// The one core of all interrupts whose name is `prefix` and a number (NVMe's queue 0 is not for data). Of each the effective affinity
/// counts where it is a single core, else the core that took most.
fn interrupt_cpu(table: &str, prefix: &str, affinity: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let mut lines = table.lines();
    let cpus: Vec<usize> =
        lines.next()?.split_whitespace().map(|name| name.strip_prefix("CPU")?.parse().ok()).collect::<Option<_>>()?;
    let mut found: Option<usize> = None;
    for line in lines {
        let queue = line
            .split_whitespace()
            .last()
            .and_then(|name| name.strip_prefix(prefix))
            .and_then(|n| n.parse::<u32>().ok());
        if queue.is_none() || (queue == Some(0) && prefix.starts_with("nvme")) {
            continue;
        }
        let (irq, rest) = line.trim_start().split_once(':')?;
        let counts = cpus.iter().zip(rest.split_whitespace().map(|count| count.parse::<u64>().unwrap_or(0)));
        let most = counts.filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count).map(|(cpu, _)| *cpu);
        let cpu = affinity(irq).and_then(|list| list.trim().parse().ok()).or(most);
        match (found, cpu) {
            (_, None) => continue, // a queue that never worked
            (Some(before), Some(cpu)) if before != cpu => return None,
            _ => found = cpu,
        }
    }
    found
}

#[cfg(test)]
mod tests;
