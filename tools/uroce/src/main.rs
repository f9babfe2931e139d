//! `uroce`: the command line. Exit status 2 for a wrong command line, 1 for a failure.

mod decode;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RoCEv2 in userspace: run, test and look at RDMA without RDMA hardware.
#[derive(Parser)]
#[command(name = "uroce", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Decode(decode::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Decode(arguments) => decode::run(&arguments),
    }
}
