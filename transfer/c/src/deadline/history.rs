use std::ptr;

use uroce::time::Duration;
use uroce_transfer::deadline::{History, Receiver};

/// Nothing is known yet; NULL when the share is none.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_history_new(whole_per_mille: u16) -> *mut History {
    match whole_per_mille {
        1..=999 => Box::into_raw(Box::new(History::new(f64::from(whole_per_mille) / 1000.0))),
        _ => ptr::null_mut(),
    }
}

/// Frees a history, or nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_history_free(history: *mut History) {
    if !history.is_null() {
        // SAFETY: it came from a box, and is freed once.
        drop(unsafe { Box::from_raw(history) });
    }
}

/// Takes a request that has ended.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_history_record(history: &mut History, receiver: &Receiver, took_ns: u64) {
    history.record(receiver, Duration::from_nanos(took_ns));
}

/// How long the next request may take, in nanoseconds; 0 while too little is known.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_history_deadline(history: &History, bytes: u64) -> u64 {
    history.deadline(bytes).map_or(0, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX))
}
