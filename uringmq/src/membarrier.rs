//! glommio, before each park of an executor, has the kernel interrupt every core that runs a thread of the process (`membarrier`, private
//! expedited), so that those who wake it need no fence of their own. Under load that is a fifth of a shard's time, and in a virtual machine
//! each interrupt is an exit of both. On x86-64 those who wake have a full fence anyway (a locked compare-and-exchange), so a fence on the
//! parking side alone is as good. glommio makes the call by libc's `syscall`, which this module takes the place of in the binary. Everything
//! else goes to the kernel as it comes.
use std::arch::asm;
use std::sync::atomic::{Ordering, fence};

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
    if answer as libc::c_ulong > libc::c_ulong::MAX - ERRNO_MAX {
        // SAFETY: the address of this thread's errno is always valid.
        unsafe { *libc::__errno_location() = -answer as libc::c_int };
        return -1;
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::io::Error;

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
    fn the_barrier_interrupts_nobody() {
        // Not registered for it, the kernel would refuse: EPERM.
        // SAFETY: takes and changes nothing.
        assert_eq!(unsafe { libc::syscall(libc::SYS_membarrier, super::PRIVATE_EXPEDITED, 0, 0) }, 0);
    }
}
