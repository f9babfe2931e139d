//! The address and the thread sanitizer over the tests that they can run: stages of `cargo xtask test --full`.
use crate::stage::Stage;
use crate::{nightly, setup};
use std::process::Command;

/// One of rustc's sanitizers.
pub(crate) struct Sanitizer {
    /// The stage, and what rustc calls it.
    name: &'static str,
    /// Tests of uroce that it runs, beside the unit tests and the laboratory's.
    tests: &'static [&'static str],
    /// How it is to behave.
    options: (&'static str, &'static str),
}

/// Copies from memory that vanishes are caught by handlers of our own (src/memory/faults.rs).
pub(crate) const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    tests: &["transport", "completion_queues", "verbs"],
    options: ("ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0"),
};

/// What more than one thread touches.
pub(crate) const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    tests: &["completion_queues", "verbs"],
    options: ("TSAN_OPTIONS", "handle_segv=0:handle_sigbus=0"),
};

/// The standard library is built with the sanitizer, too: the thread sanitizer must see all that synchronises. With a target
/// named, build scripts and macros are built without.
const TARGET: &str = "x86_64-unknown-linux-gnu";

impl Sanitizer {
    /// The stage.
    pub(crate) fn stage(self) -> Stage {
        let flags = format!("-Zsanitizer={}", self.name);
        let packages = ["--package", "uroce", "--package", "uroce-laboratory"];
        let mut words = [&["test", "--quiet", "-Zbuild-std", "--target", TARGET][..], &packages, &["--lib"]].concat();
        self.tests.iter().for_each(|test| words.extend(["--test", test]));
        let (variable, value) = self.options;
        let line = format!("RUSTFLAGS={flags} {variable}={value} cargo {}", words.join(" "));
        Stage::command(self.name, line, move || -> Result<Command, _> {
            nightly::ensure(&["rust-src"])?;
            let mut command = nightly::command("cargo");
            command.args(words).env("RUSTFLAGS", flags).env(variable, value);
            command.env("CARGO_TARGET_DIR", setup::target_directory().join(self.name));
            Ok(command)
        })
    }
}
