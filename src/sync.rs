//! What threads share, by one name: the models in `tools/loom` put their own in its place.

pub use crossbeam_queue::ArrayQueue;
pub use std::sync::{LockResult, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Atomic numbers, and their fence.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
}

/// Gives the processor away, and waits a moment.
pub mod thread {
    pub use std::hint::spin_loop;
    pub use std::thread::yield_now;
}
