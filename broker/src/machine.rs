//! What this machine has: the cores that the process may use, and its memory.
use std::io;
use std::sync::atomic::AtomicBool;

/// Rings made from now on take completions when their shard enters the kernel, instead of interrupting it: for a shard that no other one
/// rings at, and that does not spin (it would look for completions without entering the kernel). The binary sees to it, where it can.
pub static COOPERATIVE_RINGS: AtomicBool = AtomicBool::new(false);

/// Cores that the process may run on, in ascending order; never empty.
pub fn usable_cpus() -> Vec<usize> {
    // SAFETY: a cpu_set_t is plain data for which all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live set of the size given; pid 0 is this thread.
    let failed = unsafe { libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set) } != 0;
    let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the index is below CPU_SETSIZE and the set is initialised.
        .filter(|cpu| !failed && unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Physical memory in bytes: Java's measure of what is "in memory" is a share of it.
pub fn memory_bytes() -> u64 {
    // SAFETY: sysconf takes no pointers.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

/// A limit of this process, soft and hard.
pub fn limit(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a writable rlimit.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Files that the process may have open at once; 0 when that is not known.
pub fn open_files_max() -> usize {
    limit(libc::RLIMIT_NOFILE).map_or(0, |limit| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

/// Has the process get its memory in small pages only. A huge one is zeroed whole when it is first touched: hundreds of microseconds in the
/// middle of a shard's turn, five milliseconds in a virtual machine whose host has to find the memory first. Refused by old kernels, which
/// changes nothing but that.
pub fn small_pages() {
    // SAFETY: takes numbers only, and changes how this process's memory is mapped from now on, not what is in it.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pages_are_asked_for() {
        small_pages();
        // SAFETY: takes numbers only, changes nothing.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) }, 1);
    }

    #[test]
    fn a_machine_has_cores_and_memory() {
        let cpus = usable_cpus();
        assert_eq!(cpus.len(), std::thread::available_parallelism().map_or(1, usize::from));
        assert!(memory_bytes() > 64 << 20, "{}", memory_bytes());
        assert!(open_files_max() >= 64, "{}", open_files_max());
    }
}
