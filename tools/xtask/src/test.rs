//! `cargo xtask test [--full] [STAGE…]`: what CI runs, stage by stage, stopping at the first that fails.
use crate::stage::{self, Stage};
use crate::{Failure, Outcome, setup};

/// Set for the tests that `--full` runs: they read it and take every matrix.
const FULL_VARIABLE: &str = "UROCE_TEST_FULL";

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let full = arguments.contains(&"--full");
    let only: Vec<&str> = arguments.iter().copied().filter(|word| *word != "--full").collect();
    if let Some(option) = only.iter().find(|word| word.starts_with('-')) {
        return Err(Failure::Usage(format!("test has no option {option}")));
    }
    if full {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(FULL_VARIABLE, "1") };
    }
    stage::run(stages(), &only)
}

fn stages() -> Vec<Stage> {
    vec![
        Stage::of("setup", || setup::run(&[])),
        Stage::cargo("fmt", &["fmt", "--all", "--check"]),
        Stage::cargo("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        // Unit tests, documentation examples, and the tests of the parts together that need no other machine.
        Stage::cargo("unit", &["test", "--quiet", "--workspace", "--exclude", "rxe-rig", "--exclude", "uroce-cli"]),
        // The command line against itself, over AF_XDP in namespaces, and against the kernel's rxe in a machine. One at a
        // time: each may boot machines, and there are few processors.
        Stage::cargo("rig", &["test", "--quiet", "--package", "rxe-rig", "--", "--test-threads=1"]),
        Stage::cargo("interop", &["test", "--quiet", "--package", "uroce-cli", "--", "--test-threads=1"]),
    ]
}
