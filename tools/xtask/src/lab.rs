//! `cargo xtask lab [COMMAND…]`: two namespaces and a cable to try things in, gone when the shell or command ends.
use crate::{Failure, Outcome, setup};
use rxe_rig::VethPair;

/// Carries every path MTU.
const INTERFACE_MTU: u16 = 4500;

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    setup::packages()?;
    let pair = VethPair::create(INTERFACE_MTU)?;
    let (a, b) = (VethPair::A, VethPair::B);
    eprintln!("here: {} {} {} (namespace {})", a.interface, a.ipv4, a.ipv6, pair.a.name());
    eprintln!("there: {} {} {} (`$THERE command` runs a command there)", b.interface, b.ipv4, b.ipv6);
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
    let (program, rest) = arguments.split_first().map_or((shell.as_str(), &[][..]), |(first, rest)| (*first, rest));
    let mut command = pair.a.command(program);
    command.args(rest).env("THERE", format!("ip netns exec {}", pair.b.name()));
    let status = command.status().map_err(|e| Failure::Failed(format!("cannot start {program}: {e}")))?;
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::Status(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
    }
}
