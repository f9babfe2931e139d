//! Faults at memory that a program lent: the program unmapped it, and the copy that hits it ends with an error.
//!
//! Programs unmap and free before they deregister. A kernel driver pins the pages; we do not, so a copy can hit a page
//! that is gone. A handler for SIGSEGV and SIGBUS makes such a copy fail (`copy.rs`). Other faults go to the handler that
//! was installed before.
//!
//! The kernel ends a process whose fault cannot be delivered. So threads that copy must not block these two signals,
//! and the handler must stay. A check before every copy would cost one or two system calls (0.3 µs each, more than a
//! packet). Instead, every place that changes mask or handler is covered:
//!
//! - A thread unblocks both signals when it first works with an engine ([`receive`]), once memory was lent.
//! - `libibverbs.so.1` has `sigaction`, `sigprocmask` and their like in place of the C library's
//!   (`tools/verbs/src/signals.rs`). The signals then stay unblocked, and our handler calls the program's.
//!
//! Whatever bypasses both is the program's risk: a mask set by a system call of its own, for example.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;

/// The signals that a copy can raise.
pub const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Whether this process lent memory, and has the handler installed for it.
pub fn are_handled() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// Installs the handler, unless it is installed already.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in SIGNALS {
            let previous = previous(signal);
            // SAFETY: all structures are plain memory, for which zero is a valid value. The handler finds what was there before,
            // since that is written first; when it changed in between, it is written again.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                c_library::sigaction(signal, std::ptr::null(), &mut action);
                previous.set(&action);
                let mut ours: libc::sigaction = std::mem::zeroed();
                ours.sa_sigaction = handle as *const () as usize;
                ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                c_library::sigaction(signal, &ours, &mut action);
                previous.set(&action);
            }
        }
        INSTALLED.store(true, Ordering::Release);
    });
}

/// Unblocks the signals that copies raise, in the calling thread, from now on. After the first time it costs a look at
/// a variable of the thread.
pub fn receive() {
    thread_local! {
        static RECEIVES: Cell<bool> = const { Cell::new(false) };
    }
    if INSTALLED.load(Ordering::Relaxed) && !RECEIVES.get() {
        if !mutated!("signals-stay-blocked", by "uroce --lib copies_end_with_errors_in_threads") {
            unblock();
        }
        RECEIVES.set(true);
    }
}

#[cold]
fn unblock() {
    // SAFETY: the set is plain memory, and filled before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in SIGNALS {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// Replaces the C library's sigaction(2) for programs. Once our handler is installed, it stays, and passes other faults
/// to the program's handler.
///
/// # Safety
/// As for sigaction(2).
pub unsafe fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if !SIGNALS.contains(&signal) || !are_handled() {
        // SAFETY: the caller's promise.
        return unsafe { c_library::sigaction(signal, action, old) };
    }
    let previous = previous(signal);
    // SAFETY: the caller's pointers are null, or to structures that may be read or written. The new one is read first: both may
    // be the same.
    unsafe {
        let new = (!action.is_null()).then(|| *action);
        if !old.is_null() {
            *old = previous.get();
        }
        if let Some(new) = new {
            previous.set(&new);
        }
    }
    0
}

/// Replaces the C library's pthread_sigmask(3) and sigprocmask(2) for programs. Once our handler is installed, its
/// signals stay unblocked. Returns 0, or -1 and `errno`.
///
/// # Safety
/// As for sigprocmask(2).
pub unsafe fn sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    /// The signals that glibc itself needs: cancellation, and changes of the user in all threads.
    const C_LIBRARYS: [c_int; 2] = [32, 33];
    if set.is_null() || how == libc::SIG_UNBLOCK {
        // SAFETY: the caller's promise.
        return unsafe { c_library::sigmask(how, set, old) };
    }
    // SAFETY: the caller's set may be read. The C library refuses to take its own signals out of a set, so it is done by hand.
    unsafe {
        let mut set = *set;
        let bits = (&raw mut set).cast::<u64>();
        let keeps =
            are_handled() && !mutated!("signals-blocked-again", by "uroce --lib copies_end_with_errors_in_threads");
        let kept = if keeps { &SIGNALS[..] } else { &[] };
        for signal in kept.iter().chain(&C_LIBRARYS) {
            *bits &= !(1 << (signal - 1));
        }
        c_library::sigmask(how, &set, old)
    }
}

/// The C library's own functions, by names that no other library replaces.
mod c_library {
    /// Length of a set of Linux's signals, in bytes.
    const SIGNAL_BYTES: usize = 8;

    /// Changes the calling thread's signal mask, as sigprocmask(2) does.
    pub unsafe fn sigmask(how: libc::c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> libc::c_int {
        // SAFETY: the caller's promise is the system call's.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, SIGNAL_BYTES) as libc::c_int }
    }

    #[cfg(not(target_env = "gnu"))]
    pub use libc::sigaction;

    #[cfg(target_env = "gnu")]
    unsafe extern "C" {
        #[link_name = "__sigaction"]
        pub fn sigaction(signal: libc::c_int, action: *const libc::sigaction, old: *mut libc::sigaction)
        -> libc::c_int;
    }
}

/// The handler that gets all other faults: the one installed before ours, or the one that the program has set since.
struct Previous {
    /// Its address, with [`FLAGS`] in the upper bits, which no address has: both change at once.
    handler: AtomicU64,
    /// The signals that are blocked while the handler runs.
    mask: AtomicU64,
}

/// The flags that matter when the handler is called. A program also reads `SA_RESTART` and `SA_ONSTACK` back.
const FLAGS: [(u64, c_int); 5] = [
    (1 << 63, libc::SA_SIGINFO),
    (1 << 62, libc::SA_NODEFER),
    (1 << 61, libc::SA_RESETHAND),
    (1 << 60, libc::SA_RESTART),
    (1 << 59, libc::SA_ONSTACK),
];
const ADDRESS: u64 = (1 << 59) - 1;

static SEGV: Previous = Previous { handler: AtomicU64::new(0), mask: AtomicU64::new(0) };
static BUS: Previous = Previous { handler: AtomicU64::new(0), mask: AtomicU64::new(0) };

fn previous(signal: c_int) -> &'static Previous {
    if signal == libc::SIGBUS { &BUS } else { &SEGV }
}

impl Previous {
    fn set(&self, action: &libc::sigaction) {
        let flags = FLAGS.iter().filter(|(_, flag)| action.sa_flags & flag != 0).map(|(bit, _)| bit);
        // SAFETY: a set of signals is at least 64 bits, of which Linux uses the first 64.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        self.mask.store(mask, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction as u64 | flags.sum::<u64>(), Ordering::Release);
    }

    fn get(&self) -> libc::sigaction {
        let handler = self.handler.load(Ordering::Acquire);
        // SAFETY: plain memory, for which zero is a valid value; the set as in `set`.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = (handler & ADDRESS) as usize;
            action.sa_flags = FLAGS.iter().filter(|(bit, _)| handler & bit != 0).map(|(_, flag)| flag).sum();
            (&raw mut action.sa_mask).cast::<u64>().write(self.mask.load(Ordering::Relaxed));
            action
        }
    }

    /// Does what would happen without our handler.
    ///
    /// # Safety
    /// Only from the handler, with its arguments.
    unsafe fn call(&self, signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let action = self.get();
        // SAFETY: the kernel passes a valid structure. The handlers are the program's own; what they find blocked the kernel
        // unblocks when we return, as it would.
        unsafe {
            // By kill(2) and its like: no instruction will raise it once more.
            let was_sent = (*info).si_code <= 0;
            match action.sa_sigaction {
                libc::SIG_IGN if was_sent => {}
                libc::SIG_DFL | libc::SIG_IGN => {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = libc::SIG_DFL;
                    c_library::sigaction(signal, &action, std::ptr::null_mut());
                    if was_sent {
                        libc::raise(signal);
                    }
                }
                handler => {
                    let mut mask = action.sa_mask;
                    if action.sa_flags & libc::SA_NODEFER == 0 {
                        libc::sigaddset(&mut mask, signal);
                    }
                    c_library::sigmask(libc::SIG_BLOCK, &mask, std::ptr::null_mut());
                    if action.sa_flags & libc::SA_RESETHAND != 0 {
                        self.handler.store(libc::SIG_DFL as u64, Ordering::Release);
                    }
                    if action.sa_flags & libc::SA_SIGINFO != 0 {
                        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                            std::mem::transmute(handler);
                        handler(signal, info, context);
                    } else {
                        let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                        handler(signal);
                    }
                }
            }
        }
    }
}

/// The handler. It is async-signal-safe: it compares addresses and changes one register, or calls the previous handler.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context, which is ours to change.
    unsafe {
        let at = instruction(context);
        match super::copy::landing(*at as usize) {
            // What somebody sends at that very moment is no fault.
            Some(landing) if (*info).si_code > 0 => *at = landing as _,
            _ => previous(signal).call(signal, info, context),
        }
    }
}

/// Where the address of the interrupted instruction is stored.
///
/// # Safety
/// `context` is what the kernel passes to a handler.
#[cfg(target_arch = "x86_64")]
unsafe fn instruction(context: *mut libc::c_void) -> *mut i64 {
    // SAFETY: the caller's promise.
    unsafe { &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] }
}

/// Where the address of the interrupted instruction is stored.
///
/// # Safety
/// `context` is what the kernel passes to a handler.
#[cfg(target_arch = "aarch64")]
unsafe fn instruction(context: *mut libc::c_void) -> *mut u64 {
    // SAFETY: the caller's promise.
    unsafe { &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc }
}

#[cfg(all(test, not(miri)))] // Miri has no signals
mod tests {
    use super::*;

    /// Runs `work` in a child, and returns how that ended.
    fn in_child(work: impl FnOnce()) -> c_int {
        // SAFETY: the child does `work` and ends, without running what belongs to the parent.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no file is wanted of a child that is to die.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
            work();
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    }

    fn fault() {
        // SAFETY: it is no memory, on purpose: the process ends, or a handler of the test's does not return.
        unsafe { std::ptr::write_volatile(8 as *mut u8, 1) };
    }

    fn is_killed_by_segv(status: c_int) -> bool {
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
    }

    /// A fault of the program's own, elsewhere, still kills it, as it would without us.
    #[test]
    fn other_faults_go_on_to_whoever_handled_them_before() {
        let status = in_child(|| {
            install();
            fault();
        });
        assert!(is_killed_by_segv(status), "status {status:#x}");
    }

    #[test]
    fn a_signal_that_is_sent_kills_the_first_time() {
        let status = in_child(|| {
            // SAFETY: plain memory; the standard library's own handler would swallow it, too.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                sigaction(libc::SIGSEGV, &default, std::ptr::null_mut());
            }
            install();
            // SAFETY: no pointers are involved.
            unsafe { libc::raise(libc::SIGSEGV) };
        });
        assert!(is_killed_by_segv(status), "status {status:#x}");
    }

    /// Whether a copy has failed by now: what comes next is the program's own fault.
    static COPIED: AtomicBool = AtomicBool::new(false);

    /// Ends the child with a status that says that it ran, and how.
    extern "C" fn programs_handler(signal: c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: the kernel's structure; ending is what the handler is for.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            c_library::sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            let right = COPIED.load(Ordering::Relaxed)
                && signal == libc::SIGSEGV
                && (*info).si_code > 0
                && libc::sigismember(&mask, libc::SIGUSR1) == 1
                && libc::sigismember(&mask, libc::SIGSEGV) == 1
                && libc::sigismember(&mask, libc::SIGUSR2) == 0;
            libc::_exit(if right { 77 } else { 78 });
        }
    }

    /// A handler that a program sets later neither takes ours away nor is it forgotten.
    #[test]
    fn a_handler_that_is_set_later_gets_all_faults_but_those_of_copies() {
        let status = in_child(|| {
            install();
            // SAFETY: plain memory, and a handler that ends the child.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = programs_handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1);
                let mut old: libc::sigaction = std::mem::zeroed();
                let set = sigaction(libc::SIGSEGV, &action, &mut old);
                let others = old.sa_sigaction != handle as *const () as usize;
                sigaction(libc::SIGSEGV, std::ptr::null(), &mut old);
                let same = old.sa_sigaction == action.sa_sigaction
                    && old.sa_flags == action.sa_flags
                    && libc::sigismember(&old.sa_mask, libc::SIGUSR1) == 1;
                let copied = super::super::copy::copy(8 as *const u8, (&raw mut action).cast(), 8);
                if set != 0 || !others || !same || copied.is_ok() {
                    libc::_exit(1);
                }
                COPIED.store(true, Ordering::Relaxed);
            }
            fault();
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77, "status {status:#x}");
    }

    /// What a thread blocks before memory is lent is unblocked when it first works with an engine, and stays so.
    #[test]
    fn copies_end_with_errors_in_threads_that_block_every_signal() {
        let status = in_child(|| {
            let mut byte = 0u8;
            let mut copy_from_nowhere = || {
                // SAFETY: nothing is lent at that address any more; the byte is ours.
                if unsafe { super::super::copy::copy(8 as *const u8, &mut byte, 1) }.is_ok() {
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(1) };
                }
            };
            // SAFETY: a full set, for a mask of this thread's.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
                install();
                receive();
                copy_from_nowhere();
                if sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) != 0 {
                    libc::_exit(2);
                }
                copy_from_nowhere();
                let mut now: libc::sigset_t = std::mem::zeroed();
                sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut now);
                if libc::sigismember(&now, libc::SIGUSR1) != 1 || libc::sigismember(&now, libc::SIGBUS) != 0 {
                    libc::_exit(3);
                }
            }
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    }
}
