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

use std::sync::LazyLock;

extern crate self as uroce;

/// The points of the mutants: the environment says which one is on, also without the feature that uroce needs.
#[macro_export]
macro_rules! mutated {
    ($name:literal $(, by $test:literal)?) => {
        $crate::is_mutated($name)
    };
}

/// Whether this mistake is to be made: `cargo xtask mutants`.
pub fn is_mutated(name: &str) -> bool {
    static CHOSEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("UROCE_MUTANT").ok());
    CHOSEN.as_deref() == Some(name)
}

/// Runs `model` in all orders in which threads are interrupted up to so many times: loops that wait make those of more
/// endless.
pub fn explore(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(model);
}

mod ring;
mod rw_lock;
mod sync;

#[path = "../../../src/time.rs"]
pub mod time;

#[path = "../../../src/wire/numbers.rs"]
mod numbers;
mod wire {
    pub use crate::numbers::{Key, Qpn};
}

pub mod completions;
pub mod engine;

#[path = "../../verbs/src/lock.rs"]
mod lock;
#[path = "../../verbs/src/slab.rs"]
mod slab;

pub mod objects;
