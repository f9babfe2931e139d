//! The library with each of its features alone, the command line without AF_XDP, and the library for the other processor: all
//! that users may build and the workspace does not.
use crate::stage::Stage;
use crate::{Failure, Outcome, dist, program, setup};
use rxe_rig::process;
use std::process::Command;

/// What is checked: packages, their features, and more words, for a target that is not this machine's own.
const BUILDS: [(&[&str], &str, &[&str]); 8] = [
    (&LIBRARY, "", &[]),
    (&LIBRARY, "link", &[]),
    (&LIBRARY, "xdp", &[]),
    (&LIBRARY, "udp", &[]),
    (&LIBRARY, "capture", &[]),
    (&LIBRARY, "tracing", &[]),
    // All that needs no C: there may be no C compiler for it.
    (&LIBRARY, "udp,capture", &FOR_AARCH64),
    (&PROGRAMS, "udp", &[]),
];

const LIBRARY: [&str; 2] = ["--package", "uroce"];

/// The command line, and the library that its programs get.
const PROGRAMS: [&str; 4] = ["--package", "uroce-cli", "--package", "uroce-verbs"];

/// What `PROGRAMS` with `udp` must not depend on, since they take C or libclang: names of crates.
const WITH_C: [&str; 6] = ["bindgen", "clang-sys", "libbpf-sys", "libxdp-sys", "xsk-rs", "cc"];

const AARCH64: &str = "aarch64-unknown-linux-gnu";

const FOR_AARCH64: [&str; 2] = ["--target", AARCH64];

/// The stage of `cargo xtask test` that compiles the library in parts.
pub(crate) fn stage() -> Stage {
    Stage::of("features", || {
        let has_aarch64 = has_aarch64();
        needs_no_c()?;
        let builds = BUILDS.iter().filter(|(.., more)| more.is_empty() || has_aarch64);
        builds.copied().try_for_each(|(packages, features, more)| check(packages, features, more))
    })
}

fn check(packages: &[&str], features: &str, more: &[&str]) -> Outcome {
    let mut command = program::cargo();
    command.args(["clippy", "--quiet", "--no-default-features", "--features", features]).args(packages);
    process::run(command.args(more).args(["--", "-D", "warnings"]))?;
    Ok(())
}

/// Holds that the command line without AF_XDP is built by Rust and a linker alone.
fn needs_no_c() -> Outcome {
    let mut tree = program::cargo();
    tree.args(["tree", "--prefix", "none", "--edges", "normal,build", "--no-default-features", "--features", "udp"]);
    let lines = dist::output(tree.args(PROGRAMS))?;
    let takes_c = |line: &&str| line.split_whitespace().next().is_some_and(|name| WITH_C.contains(&name));
    match lines.lines().find(takes_c) {
        Some(line) => Err(Failure::Failed(format!("the command line without AF_XDP depends on {line}, which takes C"))),
        None => Ok(()),
    }
}

/// The stage of `--full` that checks the library's tests without what takes a C compiler.
pub(crate) fn tests_stage() -> Stage {
    Stage::of("udp", || check(&LIBRARY, "udp", &["--lib", "--tests"]))
}

/// The stage of `--full` that checks the programs for the other processor, too, and runs, on an emulated one, what the
/// library has of unit tests without its links: the copies in assembly, above all, and whatever takes the order of bytes or
/// of stores for granted.
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
        // All that the programs depend on takes minutes.
        check(&PROGRAMS, "udp", &FOR_AARCH64)?;
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
