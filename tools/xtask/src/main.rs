//! `cargo xtask`: set-up, demo, tests, benches and the rxe rig. Exit status 2 for a wrong command line, 1 for a failure.
#![allow(clippy::disallowed_methods, reason = "it times and waits for other programs")]

mod coverage;
mod demo;
mod dist;
mod features;
mod fuzz;
mod htsim;
mod install;
mod instructions;
mod lab;
mod licenses;
mod miri;
mod mutants;
mod nightly;
mod program;
mod pyverbs;
mod rust_programs;
mod rxe;
mod sanitizers;
mod setup;
mod stage;
mod test;
mod valkey;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  setup                 install what is missing (Debian packages, Python packages under target/)
  demo                  two peers over AF_XDP in two namespaces, captured and verified
  test [--full] [--no-fail-fast] [STAGE…]
                        what CI runs; --full: every matrix
  dist [--udp] [deb] [tar]
                        target/dist: a Debian package, and an archive with a static program; --udp: the package without AF_XDP
  bench [--json]        this stack, the bare AF_XDP pipe, UDP and TCP on the same veth (bench --help for more);
                        --machines: instructions and frames between two emulated machines, beside the kernel's rxe
  instructions [--json] [--keep]
                        instructions of each step of a message, by callgrind, beside those kept in benches/instructions.json
  mutants [--seeds N] [--json] [NAME…]
                        wrong versions of the transport, each of which the simulator must find wrong (1000 seeds)
  fuzz [--seconds N] [TARGET…]
                        the fuzz targets (endpoint, responder, decode, capture), each for so long (20 s)
  coverage [--seeds N] [--json]
                        which lines of the transport chaos (1000 seeds) and what fuzzing kept reach
  pyverbs [--json] [FILE…]
                        rdma-core's tests in Python on this stack and on the kernel's rxe, counts side by side
  htsim [--json]        connection matrices on uet-htsim, which is fetched and compiled, beside `uroce sim matrix`
  survey [--json] [--check] [--all] [ROOT]
                        what makes the code hard to change, counted: long functions, circles of imports, names used twice
  lab                   two namespaces and a cable to try things in
  wan [--path delay=20ms,loss=0.01,rate=500M]… [--measure | --compare | --grid | --beside] [COMMAND…]
                        the same with a wide area network between them (wan --help for more); --compare: what
                        RDMA WRITEs with and without selective repeat, and TCP, reach over it; --grid: over each
                        combination of a round trip, a buffer and losses; --beside: on one bottleneck with TCP
  kv [--profile metro|regional|continental|lossy] [--json]
                        KV caches between two sites: NIXL and Mooncake over uroce and over TCP, through such a network
                        (kv --help for more); leaves target/kv/kv.html
  rxe build             build the kernel rxe machine's image
  rxe up [--n N] [--mtu M] [--memory MIB] [--share DIR] [--no-rxe]
                        boot N machines (1 or 2) on a bridge; they stay until `rxe down`
  rxe exec VM COMMAND…  run a shell command in machine vm0 or vm1
  rxe put VM FILE PATH  copy a program, with its libraries, into a machine
  rxe capture FILE      capture the bridge's RoCE frames until interrupted
  rxe status            the namespaces and machines of the running lab
  rxe down              stop them";

/// Why a command ended without success.
pub(crate) enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// The work failed.
    Failed(String),
    /// A program of ours ended with this status, and has said why.
    Status(u8),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Failed(text) => f.write_str(text),
            Failure::Status(status) => write!(f, "exit status {status}"),
        }
    }
}

impl From<rxe_rig::RigError> for Failure {
    fn from(error: rxe_rig::RigError) -> Self {
        Failure::Failed(error.to_string())
    }
}

/// What a subcommand ends with.
pub(crate) type Outcome = Result<(), Failure>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.split_first() {
        Some((&"setup", rest)) => setup::run(rest),
        Some((&"demo", rest)) => demo::run(rest),
        Some((&"test", rest)) => test::run(rest),
        Some((&"dist", rest)) => dist::run(rest),
        Some((&"bench", rest)) => {
            program::run("uroce-bench", "network namespaces and AF_XDP", &["uroce-cli", "uroce-verbs"], rest)
        }
        Some((&"lab", rest)) => lab::run(rest),
        Some((&"wan", rest)) => {
            let plays = ["--compare", "--grid", "--beside"];
            let compares = rest.iter().any(|word| plays.iter().any(|play| word.starts_with(play)));
            let beside: &[&str] = if compares { &["uroce-cli", "uroce-verbs"] } else { &[] };
            program::run("uroce-wan", "network namespaces and packet sockets", beside, rest)
        }
        Some((&"kv", rest)) => setup::engines().and_then(|()| {
            let beside = ["uroce-cli", "uroce-verbs", "uroce-transfer-c"];
            program::run("uroce-kv", "network namespaces and AF_XDP", &beside, rest)
        }),
        Some((&"instructions", rest)) => instructions::run(rest),
        Some((&"mutants", rest)) => mutants::run(rest),
        Some((&"fuzz", rest)) => fuzz::run(rest),
        Some((&"coverage", rest)) => coverage::run(rest),
        Some((&"pyverbs", rest)) => pyverbs::run(rest),
        Some((&"htsim", rest)) => htsim::run(rest),
        Some((&"survey", rest)) => program::run_plain("uroce-survey", rest),
        Some((&"rxe", rest)) => rxe::run(rest),
        Some((&("help" | "--help" | "-h"), _)) => {
            println!("{USAGE}");
            Ok(())
        }
        Some((other, _)) => Err(Failure::Usage(format!("there is no command {other}"))),
        None => Err(Failure::Usage("a command is missing".into())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => {
            eprintln!("xtask: {text}\n{USAGE}");
            ExitCode::from(2)
        }
        Err(Failure::Failed(text)) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
        Err(Failure::Status(status)) => ExitCode::from(status),
    }
}
