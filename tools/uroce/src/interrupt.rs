use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signal that came while a [`Interruptible`] was there; 0 without one.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// The signals that ask for an end: Ctrl-C, and what `kill` and `timeout` send.
const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

/// As long as it is there, the first of [`SIGNALS`] is only noted, so that what was measured can be printed. A second one ends
/// the program.
pub struct Interruptible(());

impl Interruptible {
    /// Begins to note signals.
    pub fn begin() -> Interruptible {
        // SAFETY: the handler stores into an atomic and nothing else. It is removed when it has run once (SA_RESETHAND), and
        // SA_RESTART leaves system calls of other threads as they are.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            for signal in SIGNALS {
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        Interruptible(())
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        for signal in SIGNALS {
            // SAFETY: the default action takes no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

extern "C" fn note(signal: i32) {
    CAUGHT.store(signal, Ordering::Relaxed);
}

/// Whether a signal has come.
pub fn is_pending() -> bool {
    CAUGHT.load(Ordering::Relaxed) != 0
}

/// The failure of what a signal has cut short; nothing without a signal.
///
/// # Errors
/// [`Interrupted`], when a signal has come.
pub fn check() -> Result<(), Interrupted> {
    match CAUGHT.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted { signal }),
    }
}

/// A signal has ended a test early.
#[derive(Debug)]
pub struct Interrupted {
    signal: i32,
}

impl Interrupted {
    /// The exit status that shells give a program that the signal has ended.
    pub fn status(&self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted: what was printed is only a part of the test")
    }
}

impl std::error::Error for Interrupted {}
