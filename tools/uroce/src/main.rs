//! `uroce`: the command line. A small dispatcher, one file a subcommand.
//!
//! Results go to stdout, progress and errors to stderr. Exit status: 0 success, 1 failure, 2 usage; `run` exits as the
//! program that it ran.

mod arbiter;
mod capture_file;
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
mod failure;
mod filter;
mod interrupt;
mod lab;
mod losses;
mod man;
mod marks;
mod metrics;
mod packet_line;
mod perf;
mod pingpong;
mod plot;
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
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RoCE v2 in userspace: a peer to the ibv tools, without RDMA hardware or kernel modules.
#[derive(Parser)]
#[command(name = "uroce", version = VERSION, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  uroce devices                        which interfaces can be used
  uroce pingpong --dev 127.0.0.2       a server on the loopback, for `uroce pingpong --dev 127.0.0.3 127.0.0.2`
  uroce run ib_write_bw 10.0.0.1       perftest on this stack

Exit status: 0 success, 1 failure, 2 usage. With --json, failures are objects, too (docs/JSON.md).";

/// `0.1.0 (0e48732, x86_64)`: the commit that it was built from, where that is known, and the architecture.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("UROCE_BUILD"), ")");

#[derive(Subcommand)]
enum Command {
    Arbiter(arbiter::Arguments),
    Completions(completions::Arguments),
    Decode(decode::Arguments),
    Devices(devices::Arguments),
    Lab(lab::Arguments),
    Man(man::Arguments),
    Perf(Box<perf::Arguments>),
    Pingpong(pingpong::Arguments),
    Plot(plot::Arguments),
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
    let command = Arguments::try_parse().unwrap_or_else(|error| failure::usage(&error)).command;
    let is_json = command.is_json();
    let result = match command {
        Command::Arbiter(arguments) => arbiter::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Decode(arguments) => decode::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Pingpong(arguments) => pingpong::run(&arguments),
        Command::Plot(arguments) => plot::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Run(arguments) => return run::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
    };
    result.unwrap_or_else(|failure| failure::tell(&failure, is_json))
}

impl Command {
    /// Whether `--json` is given.
    fn is_json(&self) -> bool {
        match self {
            Command::Arbiter(_) | Command::Completions(_) | Command::Lab(_) | Command::Man(_) | Command::Run(_) => {
                false
            }
            Command::Plot(_) | Command::Top(_) => false,
            Command::Decode(arguments) => arguments.json,
            Command::Devices(arguments) => arguments.json,
            Command::Perf(arguments) => arguments.json,
            Command::Pingpong(arguments) => arguments.json,
            Command::Replay(arguments) => arguments.json,
            Command::Sim(arguments) => arguments.is_json(),
            Command::Stat(arguments) => arguments.json,
        }
    }
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
