//! What several tests share.

#![allow(dead_code, reason = "every test uses some of it")]

pub mod captures;
pub mod compared;
pub mod compiled;
pub mod iscsi;
pub mod offer;
pub mod perftest;
pub mod processes;
pub mod programs;
pub mod qperf;
pub mod small_disk;
pub mod tally;

/// Whether all of a matrix is to be played, not a sample of it: `cargo xtask test --full` sets UROCE_FULL.
pub fn plays_all() -> bool {
    std::env::var_os("UROCE_FULL").is_some()
}

/// Whether a game of a matrix is to be played: all are, or with `UROCE_ONLY=words` those whose name contains these words.
pub fn is_wanted(name: &str) -> bool {
    std::env::var("UROCE_ONLY").map_or(true, |words| name.contains(&words))
}
