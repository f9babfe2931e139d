//! The nightly toolchain of those who need one. Whoever does installs it; `cargo xtask setup` does not.
use crate::Outcome;
use rxe_rig::process;
use std::process::Command;

/// Pinned, so that the same is built everywhere and every day.
pub(crate) const NIGHTLY: &str = "nightly-2026-10-01";

/// Has it, with these components.
pub(crate) fn ensure(components: &[&str]) -> Outcome {
    let mut command = Command::new("rustup");
    command.args(["toolchain", "install", NIGHTLY, "--profile", "minimal", "--no-self-update"]);
    components.iter().for_each(|component| {
        command.args(["--component", component]);
    });
    process::run(&mut command)?;
    Ok(())
}

/// A program of it, `cargo` say.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", NIGHTLY, program]);
    // What the cargo that runs us says of its own toolchain.
    command.env_remove("RUSTC").env_remove("RUSTDOC").env_remove("CARGO");
    command
}

/// Where its libraries and its tools of LLVM are.
pub(crate) fn library_directory() -> Result<std::path::PathBuf, crate::Failure> {
    let printed = process::run(command("rustc").args(["--print", "target-libdir"]))?;
    Ok(std::path::PathBuf::from(printed.trim()))
}
