//! `cargo xtask bench`: builds the bench program with optimisation and runs it.
use crate::{Failure, Outcome, setup};
use std::process::Command;

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 && !arguments.iter().any(|word| matches!(*word, "--help" | "-h")) {
        return Err(Failure::Failed("bench needs root, for network namespaces and AF_XDP: run it with sudo".into()));
    }
    setup::packages()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--release", "--package", "uroce-bench", "--"]).args(arguments);
    let status = command.status().map_err(|e| Failure::Failed(format!("starting cargo: {e}")))?;
    match status.code() {
        Some(0) => Ok(()),
        // It has said why.
        Some(code) => Err(Failure::Status(u8::try_from(code).unwrap_or(1))),
        None => Err(Failure::Failed(format!("the bench ended with {status}"))),
    }
}
