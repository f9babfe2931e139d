//! Miri over the unit tests that it can run: a stage of `cargo xtask test --full`.
use crate::stage::Stage;
use crate::{nightly, setup};

/// What Miri runs: what is laid out in bytes, what touches memory, and what those who send and receive remember. None of it
/// needs signals, descriptors or system calls that Miri does not have. `path::set` is missing: its tests play seconds of
/// virtual time, minutes of Miri each, and nothing there is unsafe.
const UNDER_MIRI: [&str; 9] = [
    "wire::",
    "memory::",
    "recovery::",
    "path::policy",
    "path::recycle",
    "path::round_robin",
    "path::single",
    "path::weighted",
    "transport::ranges",
];

/// Addresses become pointers again where memory is registered (permissive provenance); proptest asks for its directory
/// (no isolation).
const MIRI_FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-disable-isolation";

/// Each takes Miri a while.
const PROPTEST_CASES: &str = "16";

/// The stage.
pub(crate) fn stage() -> Stage {
    let words = [&["miri", "test", "--package", "uroce", "--lib", "--"][..], &UNDER_MIRI].concat();
    Stage::command("miri", format!("MIRIFLAGS=\"{MIRI_FLAGS}\" cargo {}", words.join(" ")), move || {
        nightly::ensure(&["miri", "rust-src"])?;
        let mut command = nightly::command("cargo");
        command.args(words).env("MIRIFLAGS", MIRI_FLAGS).env("PROPTEST_CASES", PROPTEST_CASES);
        command.env("CARGO_TARGET_DIR", setup::target_directory().join("miri"));
        Ok(command)
    })
}
