//! `uroce arbiter`: what shares an interface among programs. They start it themselves.

use std::process::ExitCode;

use clap::Args;
use uroce::link::udp::{Arbiter, ArbiterError};

use crate::Failure;

/// Share an interface's UDP sockets among the programs of this user (programs start it themselves)
///
/// It gives each program a slot, is on no packet's way, and ends with the last program.
#[derive(Args)]
#[command(hide = true)]
pub struct Arguments {
    /// The interface
    #[arg(value_name = "NAME")]
    interface: String,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // What `ps` and our messages about ports call it: who has a port is the programs that it gave it to.
    rustix::thread::set_name(c"uroce-arbiter")?;
    match Arbiter::new(&arguments.interface) {
        Ok(arbiter) => arbiter.serve()?,
        // Two programs began at once.
        Err(ArbiterError::Exists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}
