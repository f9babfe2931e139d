//! What programs reach in place of the C library's functions for signals, since this library comes before it.
//!
//! Memory that a program lends may vanish, and only a signal's handler finds out ([`uroce::memory::faults`]). So its signals stay
//! unblocked and its handler stays, whatever the program asks for; the program's own handler gets all other faults. Before
//! memory is registered, and for all other signals, they do what the C library's do. None of them allocates or takes a lock:
//! they are called in handlers, and between fork and exec.

use std::ffi::c_int;

use uroce::memory::faults;

use crate::error::set_errno;

/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the program's promise is the same.
    unsafe { faults::sigaction(signal, action, old) }
}

/// As sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the program's promise is the same.
    unsafe { faults::sigmask(how, set, old) }
}

/// As pthread_sigmask(3), which returns the error and leaves errno alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the program's promise is the same; errno is this thread's.
    unsafe {
        let before = *libc::__errno_location();
        let failed = faults::sigmask(how, set, old) != 0;
        let error = if failed { *libc::__errno_location() } else { 0 };
        set_errno(before);
        error
    }
}

// Programs linked before glibc 2.32 know it by another version.
std::arch::global_asm!(
    ".text",
    ".globl uroce_pthread_sigmask_of_libpthread",
    "uroce_pthread_sigmask_of_libpthread:",
    "jmp {}",
    ".symver uroce_pthread_sigmask_of_libpthread, pthread_sigmask@GLIBC_2.2.5",
    sym pthread_sigmask,
);

/// Sets a handler as signal(3) does: calls that it interrupts go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the program's promise is the same.
    unsafe { set(signal, handler, libc::SA_RESTART) }
}

/// As signal(3) for programs that are strictly of the C standard: for the first signal only, which it does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the program's promise is the same.
    unsafe { set(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// Returns the handler before.
///
/// # Safety
/// As for sigaction(2).
unsafe fn set(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    // SAFETY: both structures are plain memory, for which zero is a valid value.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut action.sa_mask, signal);
        }
        if faults::sigaction(signal, &action, &mut old) == 0 { old.sa_sigaction } else { libc::SIG_ERR }
    }
}
