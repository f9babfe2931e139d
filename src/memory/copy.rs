//! Copies to and from memory that a program lent, and that may have vanished since.
//!
//! Programs unmap and free before they deregister. A kernel driver has the pages pinned; we have not, so a copy may hit a
//! page that is gone. The copies here are few instructions at known places; a handler for SIGSEGV and SIGBUS finds the
//! fault there and has them return an error. All other faults go on to whoever handled them before.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// A page was not there, or not writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vanished;

/// Copies `len` bytes.
///
/// # Safety
/// One of both ranges must be valid memory of our own; the other may be anything. They must not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Vanished> {
    install_handler();
    // SAFETY: the caller's promise; faults in the other range end in the handler.
    if unsafe { uroce_memory_copy(to, from, len) } == 0 { Ok(()) } else { Err(Vanished) }
}

/// Replaces the eight aligned bytes at `cell` by `new(old)` in one atomic step and returns the old ones.
///
/// # Safety
/// `cell` is aligned to eight, and may be anything else.
pub(super) unsafe fn update_u64(cell: *mut u64, new: impl Fn(u64) -> u64) -> Result<u64, Vanished> {
    install_handler();
    // A guess: the exchange fails and tells the value, or the guess was right.
    let mut old = 0;
    loop {
        // SAFETY: `old` is ours; a fault at `cell` ends in the handler.
        match unsafe { uroce_memory_exchange(cell, &mut old, new(old)) } {
            EXCHANGED => return Ok(old),
            OTHER_VALUE => {}
            _ => return Err(Vanished),
        }
    }
}

const EXCHANGED: u64 = 0;
const OTHER_VALUE: u64 = 1;

unsafe extern "C" {
    /// 0 when `len` bytes were copied, 1 after a fault.
    fn uroce_memory_copy(to: *mut u8, from: *const u8, len: usize) -> u64;
    /// If `*cell == *old`, stores `new` and returns 0; else sets `*old` and returns 1; 2 after a fault.
    fn uroce_memory_exchange(cell: *mut u64, old: *mut u64, new: u64) -> u64;
    static uroce_memory_copy_may_fault: u8;
    static uroce_memory_copy_faulted: u8;
    static uroce_memory_exchange_may_fault: u8;
    static uroce_memory_exchange_faulted: u8;
}

// The instructions that may fault are single ones, so that the handler compares one address each.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".globl uroce_memory_copy, uroce_memory_copy_may_fault, uroce_memory_copy_faulted",
    ".hidden uroce_memory_copy, uroce_memory_copy_may_fault, uroce_memory_copy_faulted",
    "uroce_memory_copy:",
    "mov rcx, rdx",
    "uroce_memory_copy_may_fault:",
    "rep movsb",
    "xor eax, eax",
    "ret",
    "uroce_memory_copy_faulted:",
    "mov eax, 1",
    "ret",
    ".globl uroce_memory_exchange, uroce_memory_exchange_may_fault, uroce_memory_exchange_faulted",
    ".hidden uroce_memory_exchange, uroce_memory_exchange_may_fault, uroce_memory_exchange_faulted",
    "uroce_memory_exchange:",
    "mov rax, [rsi]",
    "uroce_memory_exchange_may_fault:",
    "lock cmpxchg [rdi], rdx",
    "jne 2f",
    "xor eax, eax",
    "ret",
    "2:",
    "mov [rsi], rax",
    "mov eax, 1",
    "ret",
    "uroce_memory_exchange_faulted:",
    "mov eax, 2",
    "ret",
);

static HANDLER_IS_THERE: AtomicBool = AtomicBool::new(false);

fn install_handler() {
    if HANDLER_IS_THERE.load(Ordering::Acquire) {
        return;
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        previous::install(libc::SIGSEGV);
        previous::install(libc::SIGBUS);
        HANDLER_IS_THERE.store(true, Ordering::Release);
    });
}

/// The handlers that were there before ours.
mod previous {
    use std::cell::UnsafeCell;
    use std::mem::MaybeUninit;

    struct Slot(UnsafeCell<MaybeUninit<libc::sigaction>>);

    // SAFETY: written once, before the handler that reads it is installed.
    unsafe impl Sync for Slot {}

    static SEGV: Slot = Slot(UnsafeCell::new(MaybeUninit::zeroed()));
    static BUS: Slot = Slot(UnsafeCell::new(MaybeUninit::zeroed()));

    fn slot(signal: libc::c_int) -> *mut libc::sigaction {
        let slot = if signal == libc::SIGBUS { &BUS } else { &SEGV };
        slot.0.get().cast()
    }

    pub(super) fn install(signal: libc::c_int) {
        // SAFETY: both structures are plain memory, zero is a valid value, and the slot is written before the handler
        // can run.
        unsafe {
            libc::sigaction(signal, std::ptr::null(), slot(signal));
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = super::handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }

    /// Does what would have been done without us.
    ///
    /// # Safety
    /// Only from the handler, with its arguments.
    pub(super) unsafe fn call(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the slot was written before the handler was installed, and the handlers in it are the program's own.
        unsafe {
            let previous = slot(signal);
            match (*previous).sa_sigaction {
                // The instruction faults again, and now nobody catches it.
                libc::SIG_DFL | libc::SIG_IGN => {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = libc::SIG_DFL;
                    libc::sigaction(signal, &action, std::ptr::null_mut());
                }
                handler if (*previous).sa_flags & libc::SA_SIGINFO != 0 => {
                    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, info, context);
                }
                handler => {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// Async-signal-safe: it compares two addresses and changes one register, or calls the handler before it.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context, which is ours to change.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as usize;
        let landing = if at == (&raw const uroce_memory_copy_may_fault) as usize {
            &raw const uroce_memory_copy_faulted
        } else if at == (&raw const uroce_memory_exchange_may_fault) as usize {
            &raw const uroce_memory_exchange_faulted
        } else {
            return previous::call(signal, info, context);
        };
        registers[libc::REG_RIP as usize] = landing as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HostMemory;

    #[test]
    fn copies_and_exchanges_work_where_there_is_memory() {
        let (from, mut to) = ([1u8, 2, 3, 4, 5], [0u8; 5]);
        // SAFETY: both are our own.
        assert_eq!(unsafe { copy(from.as_ptr(), to.as_mut_ptr(), 5) }, Ok(()));
        assert_eq!(to, from);
        for start in [0, 7, u64::MAX] {
            let mut cell = start;
            // SAFETY: as above.
            assert_eq!(unsafe { update_u64(&mut cell, |old| old.wrapping_add(3)) }, Ok(start));
            assert_eq!(cell, start.wrapping_add(3));
        }
    }

    #[test]
    fn vanished_and_read_only_pages_are_errors_and_not_the_end() {
        let memory = HostMemory::new(8192).unwrap();
        let page = memory.as_ptr();
        // SAFETY: the mapping is ours, and nobody else looks at it.
        unsafe {
            assert_eq!(libc::mprotect(page.add(4096).cast(), 4096, libc::PROT_READ), 0);
            let mut buffer = [7u8; 100];
            assert_eq!(copy(page.add(4050), buffer.as_mut_ptr(), 100), Ok(()));
            assert_eq!(copy(buffer.as_ptr(), page.add(4050), 100), Err(Vanished), "half of it is read-only");
            assert_eq!(update_u64(page.add(4096).cast(), |old| old + 1), Err(Vanished));
            assert_eq!(libc::mprotect(page.cast(), 8192, libc::PROT_NONE), 0);
            assert_eq!(copy(page, buffer.as_mut_ptr(), 1), Err(Vanished));
            assert_eq!(update_u64(page.cast(), |old| old + 1), Err(Vanished));
        }
    }

    /// A fault of the program's own, elsewhere, still kills it, as it would without us.
    #[test]
    fn other_faults_go_on_to_whoever_handled_them_before() {
        // SAFETY: the child only touches memory, and never returns.
        let child = unsafe { libc::fork() };
        if child == 0 {
            install_handler();
            // SAFETY: none of these is memory, on purpose.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
                std::ptr::write_volatile(8 as *mut u8, 1);
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
    }
}
