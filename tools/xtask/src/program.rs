//! Programs of the workspace that measure: built with optimisation, and run with the options given.
use crate::{Failure, Outcome, setup};
use std::process::Command;

/// Builds and runs the program that has the name of its `package`, which needs root for what `needs` says; the packages
/// `beside` are built, too.
pub(crate) fn run(package: &str, needs: &str, beside: &[&str], arguments: &[&str]) -> Outcome {
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 && !arguments.iter().any(|word| matches!(*word, "--help" | "-h")) {
        return Err(Failure::Failed(format!("{package} needs root, for {needs}: run it with sudo")));
    }
    setup::packages()?;
    if !beside.is_empty() {
        let packages = beside.iter().flat_map(|package| ["--package", *package]);
        let status = cargo().args(["build", "--release"]).args(packages).status();
        if !status.map_err(|e| Failure::Failed(format!("starting cargo: {e}")))?.success() {
            return Err(Failure::Failed(format!("{} did not build", beside.join(", "))));
        }
    }
    start(cargo().args(["run", "--release", "--package", package, "--bin", package, "--"]).args(arguments), package)
}

/// Builds and runs the program of `package` as it is: one that needs nothing and takes no time.
pub(crate) fn run_plain(package: &str, arguments: &[&str]) -> Outcome {
    start(cargo().args(["run", "--quiet", "--package", package, "--bin", package, "--"]).args(arguments), package)
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn start(command: &mut Command, package: &str) -> Outcome {
    let status = command.status().map_err(|e| Failure::Failed(format!("starting cargo: {e}")))?;
    match status.code() {
        Some(0) => Ok(()),
        // It has said why.
        Some(code) => Err(Failure::Status(u8::try_from(code).unwrap_or(1))),
        None => Err(Failure::Failed(format!("{package} ended with {status}"))),
    }
}
