//! The `uroce` command line: a small dispatcher, one file a subcommand.
//!
//! Results go to stdout, progress and errors to stderr. Exit status: 0 success, 1 failure, 2 usage.

mod device_arguments;
mod devices;
mod pingpong;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RoCE v2 in userspace: a peer to the ibv tools, without RDMA hardware or kernel modules.
#[derive(Parser)]
#[command(name = "uroce", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Devices(devices::Arguments),
    Pingpong(pingpong::Arguments),
}

/// What went wrong, in one line.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Pingpong(arguments) => pingpong::run(&arguments),
    };
    match result {
        Ok(status) => status,
        Err(error) => {
            eprintln!("uroce: {error}");
            ExitCode::FAILURE
        }
    }
}
