//! The library with each of its features alone, and for the other processor: all that users may build and the workspace does not.
use crate::stage::Stage;
use crate::{Outcome, program, setup};
use rxe_rig::process;
use std::process::Command;

/// What is checked: features, and a target where it is not this machine's own.
const BUILDS: [(&str, Option<&str>); 7] = [
    ("", None),
    ("link", None),
    ("xdp", None),
    ("udp", None),
    ("capture", None),
    ("tracing", None),
    // All that needs no C: there may be no C compiler for it.
    ("udp,capture", Some(AARCH64)),
];

/// The features with which the tests are compiled, too: those that take no C compiler.
const TESTED: &str = "udp";

const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// The stage of `cargo xtask test` that compiles the library in parts.
pub(crate) fn stage() -> Stage {
    Stage::of("features", || {
        let has_aarch64 = has_aarch64();
        BUILDS.iter().filter(|(_, target)| target.is_none() || has_aarch64).try_for_each(|(features, target)| {
            let mut command = program::cargo();
            command.args(["clippy", "--quiet", "--package", "uroce", "--no-default-features", "--features", features]);
            let targets: &[&str] = if *features == TESTED { &["--lib", "--tests"] } else { &[] };
            command.args(targets).args(target.iter().flat_map(|target| ["--target", target]));
            command.args(["--", "-D", "warnings"]);
            process::run(&mut command)?;
            Ok(())
        })
    })
}

/// The stage of `--full` that runs, on an emulated processor, what the library has of unit tests without its links: the copies
/// in assembly, above all, and whatever takes the order of bytes or of stores for granted.
pub(crate) fn aarch64_stage() -> Stage {
    // The emulator takes MADV_POPULATE_READ and MADV_WIPEONFORK, and does nothing.
    let skip = ["--", "--skip", "memory::lent", "--skip", "engine::process"];
    let words = ["test", "--quiet", "--package", "uroce", "--lib", "--no-default-features", "--target", AARCH64];
    let words = [&words[..], &skip].concat();
    Stage::command("aarch64", format!("cargo {}", words.join(" ")), move || {
        add_aarch64()?;
        setup::install(&[
            ("gcc-aarch64-linux-gnu", "linking for aarch64"),
            ("libc6-dev-arm64-cross", "linking for aarch64"),
            ("qemu-user", "running what was linked"),
        ])?;
        let mut command = program::cargo();
        command.args(words).env("PROPTEST_CASES", PROPTEST_CASES);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu");
        Ok(command)
    })
}

/// An emulated processor is some ten times slower.
const PROPTEST_CASES: &str = "64";

/// Whether the standard library for aarch64 is there, or can be had.
fn has_aarch64() -> bool {
    let added = add_aarch64();
    if let Err(failure) = &added {
        eprintln!("   not checked for {AARCH64}: {failure}");
    }
    added.is_ok()
}

fn add_aarch64() -> Outcome {
    process::run(Command::new("rustup").args(["target", "add", AARCH64]))?;
    Ok(())
}
