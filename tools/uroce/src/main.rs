//! `uroce`: the command line. A small dispatcher, one file a subcommand.
//!
//! Results go to stdout, progress and errors to stderr. Exit status: 0 success, 1 failure, 2 usage; `run` exits as the
//! program that it ran.

mod arbiter;
mod choices;
mod completions;
mod counters_on_signal;
mod decode;
mod device_arguments;
mod device_tree;
mod devices;
mod elf;
mod elsewhere;
mod failed_request;
mod lab;
mod man;
mod metrics;
mod perf;
mod pingpong;
mod replay;
mod report;
mod run;
mod running;
mod sim;
mod stat;
mod tcp;
mod terms;
mod top;
mod trailer_report;

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
    Arbiter(arbiter::Arguments),
    Completions(completions::Arguments),
    Decode(decode::Arguments),
    Devices(devices::Arguments),
    Lab(lab::Arguments),
    Man(man::Arguments),
    Perf(perf::Arguments),
    Pingpong(pingpong::Arguments),
    Replay(replay::Arguments),
    Run(run::Arguments),
    Sim(sim::Arguments),
    Stat(stat::Arguments),
    Top(top::Arguments),
}

/// What went wrong, in one line.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    end_with_the_reader();
    log();
    let result = match Arguments::parse().command {
        Command::Arbiter(arguments) => arbiter::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Decode(arguments) => decode::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Pingpong(arguments) => pingpong::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Run(arguments) => return run::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("uroce: {error}");
        ExitCode::FAILURE
    })
}

/// What the stack tells goes to stderr as `RUST_LOG` asks for it: `RUST_LOG=uroce=debug`.
fn log() {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}

/// Ends this program without a word when who reads its output has seen enough (`uroce devices | head -1`), as other programs
/// of the command line end. Rust ignores the signal, and printing would panic. Sockets do not raise it: the standard library
/// asks for MSG_NOSIGNAL.
fn end_with_the_reader() {
    // SAFETY: the action is the default one, and nothing else runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
