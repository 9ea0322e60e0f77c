//! Two things that glommio asks of the kernel, changed on their way. It asks by libc's `syscall`, which this module takes the place of in
//! the binary; everything else goes to the kernel as it comes.
//!
//! - Before each park of an executor it has every core that runs a thread of the process interrupted (`membarrier`, private expedited), so
//!   that those who wake it need no fence of their own. Under load that is a fifth of a shard's time, and in a virtual machine each
//!   interrupt is an exit of both. On x86-64 those who wake have a full fence anyway (a locked compare-and-exchange), so a fence on the
//!   parking side alone is as good.
//! - A ring (`io_uring_setup`) tells of each completion at once, by an interrupt of the core that is busy with something else. A shard that
//!   is alone takes them when it enters the kernel next (`IORING_SETUP_COOP_TASKRUN`, Linux 5.19), if the broker says so.
use std::arch::asm;
use std::sync::atomic::{Ordering, fence};
use uringmq_broker::machine::COOPERATIVE_RINGS;

const COOP_TASKRUN: u32 = 1 << 8;
/// Of `flags` in `struct io_uring_params`.
const FLAGS_AT: usize = 8;
const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
/// The kernel's answers from here up are errors, negated.
const ERRNO_MAX: libc::c_ulong = 4095;

/// As the function of that name in syscall(2).
///
/// # Safety
/// As of the system call that is made.
// SAFETY (of the name): the C prototype is variadic, of longs; on x86-64 these arrive where seven plain ones do, and an argument that the
// caller left out is read as whatever is there and handed to a system call that does not look at it, as in the C library's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: libc::c_long,
    a: libc::c_long,
    b: libc::c_long,
    c: libc::c_long,
    d: libc::c_long,
    e: libc::c_long,
    f: libc::c_long,
) -> libc::c_long {
    if number == libc::SYS_membarrier && a == PRIVATE_EXPEDITED {
        fence(Ordering::SeqCst);
        return 0;
    }
    if number == libc::SYS_io_uring_setup && COOPERATIVE_RINGS.load(Ordering::Relaxed) {
        let flags = (b as *mut u8).wrapping_add(FLAGS_AT).cast::<u32>();
        // SAFETY: the caller's parameters, which the kernel reads and writes as well; nobody else knows of them.
        unsafe {
            *flags |= COOP_TASKRUN;
            let ring = to_kernel(number, [a, b, c, d, e, f]);
            if ring != -libc::c_long::from(libc::EINVAL) {
                return answer(ring);
            }
            *flags &= !COOP_TASKRUN; // an older kernel
        }
    }
    // SAFETY: as the caller promises.
    answer(unsafe { to_kernel(number, [a, b, c, d, e, f]) })
}

/// The kernel's own answer: errors are negated numbers.
///
/// # Safety
/// As of the system call that is made.
unsafe fn to_kernel(number: libc::c_long, [a, b, c, d, e, f]: [libc::c_long; 6]) -> libc::c_long {
    let answer: libc::c_long;
    // SAFETY: the instruction as the kernel's ABI for x86-64 has it: number in rax, arguments in these six, rcx and r11 lost; what the call
    // does to memory is the caller's responsibility.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// As the C library gives it: -1 and `errno` for an error.
fn answer(of_kernel: libc::c_long) -> libc::c_long {
    if of_kernel as libc::c_ulong > libc::c_ulong::MAX - ERRNO_MAX {
        // SAFETY: the address of this thread's errno is always valid.
        unsafe { *libc::__errno_location() = -of_kernel as libc::c_int };
        return -1;
    }
    of_kernel
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::sync::atomic::Ordering;
    use uringmq_broker::machine::COOPERATIVE_RINGS;

    #[test]
    fn other_calls_go_to_the_kernel() {
        // SAFETY: getpid takes nothing and cannot fail.
        assert_eq!(unsafe { libc::syscall(libc::SYS_getpid) }, std::process::id() as libc::c_long);
        // SAFETY: a descriptor that is none, a null buffer of no bytes.
        let refused = unsafe { libc::syscall(libc::SYS_read, -1, std::ptr::null_mut::<u8>(), 0) };
        assert_eq!((refused, Error::last_os_error().raw_os_error()), (-1, Some(libc::EBADF)));
        let (mut ends, mut byte) = ([0; 2], [0u8]);
        // SAFETY: room for two descriptors; then buffers of one byte.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            assert_eq!(libc::syscall(libc::SYS_write, ends[1], [7u8].as_ptr(), 1usize), 1);
            assert_eq!(libc::syscall(libc::SYS_read, ends[0], byte.as_mut_ptr(), 1usize), 1);
        }
        assert_eq!(byte, [7]);
    }

    #[test]
    fn rings_are_cooperative_when_the_broker_says_so() {
        let make = |flags: u32| {
            let mut params = [0u32; 30]; // struct io_uring_params
            params[super::FLAGS_AT / 4] = flags;
            // SAFETY: the parameters live through the call and have the size that the kernel takes.
            let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
            let refused = Error::last_os_error().raw_os_error().filter(|_| ring < 0);
            if ring >= 0 {
                // SAFETY: the descriptor was made just now and is nobody else's.
                unsafe { libc::close(ring as libc::c_int) };
            }
            (refused, params[super::FLAGS_AT / 4])
        };
        assert_eq!(make(0), (None, 0));
        COOPERATIVE_RINGS.store(true, Ordering::Relaxed);
        assert_eq!(make(0), (None, super::COOP_TASKRUN));
        // Refused with the flag and without: the caller finds what it asked for.
        assert_eq!(make(1 << 31), (Some(libc::EINVAL), 1 << 31));
        COOPERATIVE_RINGS.store(false, Ordering::Relaxed);
    }

    #[test]
    fn the_barrier_interrupts_nobody() {
        // Not registered for it, the kernel would refuse: EPERM.
        // SAFETY: takes and changes nothing.
        assert_eq!(unsafe { libc::syscall(libc::SYS_membarrier, super::PRIVATE_EXPEDITED, 0, 0) }, 0);
    }
}
