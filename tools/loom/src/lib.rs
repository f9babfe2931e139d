//! The hand-made concurrency, in all orders in which threads can run and see each other's writes ([loom]).
//!
//! The files are those of uroce itself: what they call `crate::sync` is the standard library's there, and loom's here. Around
//! them stands as little as they need. `tests/` has the models: `cargo test -p uroce-loom`.
//!
//! [loom]: https://docs.rs/loom

// With their tests, which are for the real atomics, the files do not build here.
#![cfg(not(test))]
#![allow(
    dead_code,
    missing_docs,
    reason = "the files have more than the models use, and are documented where they belong"
)]

extern crate self as uroce;

/// The points of the mutants are none here.
#[macro_export]
macro_rules! mutated {
    ($($what:tt)*) => {
        $crate::NO_MISTAKE
    };
}
pub const NO_MISTAKE: bool = false;

mod sync;

#[path = "../../../src/time.rs"]
pub mod time;

pub mod engine;

#[path = "../../verbs/src/lock.rs"]
mod lock;
#[path = "../../verbs/src/slab.rs"]
mod slab;

pub mod objects;
