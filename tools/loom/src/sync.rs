//! What `src/sync.rs` is to uroce, and `tools/verbs/src/sync.rs` to the library.

use std::ptr::NonNull;

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub use loom::sync::{LockResult, Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;
pub use std::sync::PoisonError;

pub use crate::ring::ArrayQueue;
pub use crate::rw_lock::{RwLock, RwLockReadGuard};

pub mod atomic {
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

    /// loom takes a `SeqCst` read for one that acquires, but has the one order of `SeqCst` fences. Where a `SeqCst` write
    /// comes before the read, as in [`ArrayQueue::push`](super::ArrayQueue::push), a fence between both does the same.
    pub struct AtomicU8(loom::sync::atomic::AtomicU8);

    impl AtomicU8 {
        pub fn new(value: u8) -> AtomicU8 {
            AtomicU8(loom::sync::atomic::AtomicU8::new(value))
        }

        pub fn load(&self, order: Ordering) -> u8 {
            if order == Ordering::SeqCst {
                fence(Ordering::SeqCst);
            }
            self.0.load(order)
        }

        pub fn fetch_max(&self, value: u8, order: Ordering) -> u8 {
            self.0.fetch_max(value, order)
        }

        pub fn compare_exchange(&self, from: u8, to: u8, done: Ordering, not: Ordering) -> Result<u8, u8> {
            self.0.compare_exchange(from, to, done, not)
        }
    }
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
