//! SIGUSR1 prints the counters of this process's devices on stderr, as `dd` prints how far it is.

use std::sync::Once;
use std::thread;

use crate::Failure;
use crate::running::{Look, count};

/// Begins to wait for the signal, in a thread of its own; threads that begin later do not get it. To be called before the first device
/// is opened.
///
/// # Errors
/// When the kernel gives no thread.
pub(crate) fn begin() -> Result<(), Failure> {
    static BEGUN: Once = Once::new();
    let mut result = Ok(());
    BEGUN.call_once(|| {
        let signals = block();
        let spawned = thread::Builder::new().name("uroce-sigusr1".to_owned()).spawn(move || {
            loop {
                let mut signal = 0;
                // SAFETY: a set that was filled, and room for a number.
                if unsafe { libc::sigwait(&signals, &mut signal) } == 0 {
                    print();
                }
            }
        });
        result = spawned.map(drop);
    });
    Ok(result?)
}

/// Blocks the signal in this thread and those that it starts from now on.
fn block() -> libc::sigset_t {
    // SAFETY: a set is plain memory, which the next call fills; the mask of this thread alone changes.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    }
}

/// A line for each device: its counters that are not 0.
fn print() {
    let look = Look::now(Some(std::process::id())).unwrap_or_default();
    for device in look.devices() {
        let counters = device["counters"].as_object().into_iter().flatten();
        let counters: Vec<String> = counters.map(|(name, value)| format!("{name} {}", count(value))).collect();
        eprintln!("uroce: {}: {}", device["device"].as_str().unwrap_or_default(), counters.join(", "));
    }
    if look.is_empty() {
        eprintln!("uroce: no device is open");
    }
}
