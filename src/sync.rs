//! What threads share, by one name: the models in `tools/loom` put their own in its place.

pub use std::sync::{LockResult, Mutex, MutexGuard};

/// Atomic numbers.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

/// Gives the processor away, and waits a moment.
pub mod thread {
    pub use std::hint::spin_loop;
    pub use std::thread::yield_now;
}
