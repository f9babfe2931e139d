//! What `src/sync.rs` is to uroce, and `tools/verbs/src/sync.rs` to the library.

use std::ptr::NonNull;

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub use loom::sync::{LockResult, Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;

pub mod atomic {
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

pub mod thread {
    pub use loom::hint::spin_loop;
    pub use loom::thread::yield_now;
}

macro_rules! for_statics {
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visibility fn $($rest)*
    };
}
pub(crate) use for_statics;

/// loom has none.
pub(crate) struct OnceLock<T: 'static>(Mutex<Option<&'static T>>);

impl<T: 'static> OnceLock<T> {
    pub fn new() -> OnceLock<T> {
        OnceLock(Mutex::new(None))
    }

    pub fn get(&self) -> Option<&T> {
        *self.0.lock().unwrap()
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.0.lock().unwrap().get_or_insert_with(|| Box::leak(Box::new(make())))
    }
}

/// Each slot is made: loom's atomics are more than zeroed pages.
pub(crate) fn reserve<T>(count: usize, fresh: impl Fn() -> T) -> Option<NonNull<T>> {
    let slots: Vec<T> = std::iter::repeat_with(fresh).take(count).collect();
    NonNull::new(slots.leak().as_mut_ptr())
}
