//! `uroce sim`: the stack over networks in virtual time.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::json;
use uroce::pcap::{Format, Writer};
use uroce_laboratory::sim::chaos::{self, Kind, Outcome};

use crate::Failure;

mod attack;
mod batches;
mod cells;
mod congestion;
mod deadline;
mod deadline_map;
mod kv;
mod kv_picture;
mod layers;
mod layers_picture;
mod loss_rtt;
mod matrix;
mod path_failure;
mod paths;
pub(crate) mod picture;
mod priorities;
mod stream;
mod stream_picture;
pub(crate) mod svg;
mod timeline;
mod tokens;

const EXAMPLES: &str = "\
Examples:
  uroce sim chaos                                      about ten seconds of everything
  uroce sim loss-rtt --only op=write,loss=1%           what 1 % of loss leaves
  uroce sim congestion --only scenario=wan,flows=4     how four flows share a bottleneck";

/// Run the stack over networks in virtual time: the same seed gives the same run.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    table: Table,
}

#[derive(Subcommand)]
enum Table {
    Chaos(ChaosArguments),
    LossRtt(loss_rtt::Arguments),
    Congestion(congestion::Arguments),
    Matrix(matrix::Arguments),
    Paths(paths::Arguments),
    PathFailure(path_failure::Arguments),
    Priorities(priorities::Arguments),
    Tokens(tokens::Arguments),
    Batches(batches::Arguments),
    Deadline(deadline::Arguments),
    Kv(kv::Arguments),
    Stream(stream::Arguments),
    Layers(layers::Arguments),
    Attack(attack::Arguments),
}

const CHAOS_EXAMPLES: &str = "\
Examples:
  uroce sim chaos --seeds 10000
  uroce sim chaos --packets 100000000 --fail-fast
  uroce sim chaos --seed 17 --seeds 1 --capture 17.pcapng";

/// Run random programs over random networks with all kinds of faults, and check all results.
///
/// Exit status 1 on any violation.
#[derive(clap::Args)]
#[command(after_help = CHAOS_EXAMPLES)]
struct ChaosArguments {
    /// Number of seeds to run [default: 1000].
    #[arg(long, value_name = "N", help_heading = "Test", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Test")]
    seed: u64,
    /// Number of threads, 1 to 256; results do not depend on it.
    #[arg(long, value_name = "N", default_value_t = default_threads(), help_heading = "Test",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// Stop after this many packets; without --seeds, run as many seeds as that takes.
    #[arg(long, value_name = "N", help_heading = "Test", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Stop at the first violation.
    #[arg(long, help_heading = "Test")]
    fail_fast: bool,
    /// Print one JSON object (docs/JSON.md).
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write the frames of the run to this file (pcapng by suffix, otherwise pcap); only with --seeds 1.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    capture: Option<PathBuf>,
}

/// Without `--seeds` and `--packets`: about ten seconds.
const DEFAULT_SEEDS: u64 = 1000;

/// A share in percent, to four decimals.
fn in_percent(share: f64) -> f64 {
    (share * 1e6).round() / 1e4
}

fn default_threads() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

impl Arguments {
    /// Whether `--json` is given.
    pub(crate) fn is_json(&self) -> bool {
        match &self.table {
            Table::Chaos(arguments) => arguments.json,
            Table::LossRtt(arguments) => arguments.options.json,
            Table::Congestion(arguments) => arguments.options.json,
            Table::Paths(arguments) => arguments.options.json,
            Table::PathFailure(arguments) => arguments.options.json,
            Table::Priorities(arguments) => arguments.options.json,
            Table::Tokens(arguments) => arguments.options.json,
            Table::Batches(arguments) => arguments.options.json,
            Table::Deadline(arguments) => arguments.options.json,
            Table::Matrix(arguments) => arguments.options.json,
            Table::Kv(arguments) => arguments.options.json,
            Table::Stream(arguments) => arguments.options.json,
            Table::Layers(arguments) => arguments.options.json,
            Table::Attack(arguments) => arguments.options.json,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.table {
        Table::Chaos(arguments) => run_chaos(arguments),
        Table::LossRtt(arguments) => loss_rtt::run(arguments),
        Table::Congestion(arguments) => congestion::run(arguments),
        Table::Paths(arguments) => paths::run(arguments),
        Table::PathFailure(arguments) => path_failure::run(arguments),
        Table::Priorities(arguments) => priorities::run(arguments),
        Table::Tokens(arguments) => tokens::run(arguments),
        Table::Batches(arguments) => batches::run(arguments),
        Table::Deadline(arguments) => deadline::run(arguments),
        Table::Matrix(arguments) => matrix::run(arguments),
        Table::Kv(arguments) => kv::run(arguments),
        Table::Stream(arguments) => stream::run(arguments),
        Table::Layers(arguments) => layers::run(arguments),
        Table::Attack(arguments) => attack::run(arguments),
    }
}

fn run_chaos(arguments: &ChaosArguments) -> Result<ExitCode, Failure> {
    let outcomes = match &arguments.capture {
        Some(_) if arguments.seeds != Some(1) => {
            return Err("--capture is only for a single seed: add --seeds 1".into());
        }
        Some(path) => {
            let file: Box<dyn Write> = Box::new(std::fs::File::create(path)?);
            let outcome = chaos::run_captured(arguments.seed, Writer::new(file, Format::of(path))?);
            let kinds = BTreeMap::from([(outcome.service, (1, outcome.packets))]);
            Summary { seeds: 1, packets: outcome.packets, kinds, failed: Vec::from_iter(failed(outcome)) }
        }
        None => run_seeds(arguments),
    };
    if arguments.json {
        let violations: Vec<_> = outcomes
            .failed
            .iter()
            .flat_map(|outcome| outcome.violations.iter().map(|text| json!({"seed": outcome.seed, "text": text})))
            .collect();
        let kind = |(kind, (seeds, packets)): (&Kind, &(u64, u64))| {
            (name(*kind).to_owned(), json!({"seeds": seeds, "packets": packets}))
        };
        let services: serde_json::Map<_, _> = outcomes.kinds.iter().map(kind).collect();
        let mut report = json!({
            "schema": "uroce.sim.chaos/1",
            "seeds": outcomes.seeds,
            "packets": outcomes.packets,
            "services": services,
            "violations": violations,
        });
        if let Some(points) = mutation_points() {
            report["mutation_points"] = json!(points);
        }
        println!("{report}");
    } else {
        for outcome in &outcomes.failed {
            for text in &outcome.violations {
                println!("seed {}: {text}", outcome.seed);
            }
        }
        for (kind, (seeds, packets)) in &outcomes.kinds {
            println!("{:3} {seeds} seeds, {packets} packets", name(*kind));
        }
        println!("{} seeds, {} packets, {} with violations", outcomes.seeds, outcomes.packets, outcomes.failed.len());
    }
    Ok(if outcomes.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The points that were come by at which the code can be made wrong, in a build for that.
fn mutation_points() -> Option<Vec<&'static str>> {
    #[cfg(feature = "mutants")]
    return Some(uroce::mutants::reached());
    #[cfg(not(feature = "mutants"))]
    None
}

struct Summary {
    seeds: u64,
    packets: u64,
    /// Seeds and packets of each kind of run.
    kinds: BTreeMap<Kind, (u64, u64)>,
    /// Those with violations, by seed.
    failed: Vec<Outcome>,
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Reliable => "rc",
        Kind::Unreliable => "uc",
        Kind::Datagram => "ud",
        Kind::SharedReceiveQueue => "srq",
    }
}

fn failed(outcome: Outcome) -> Option<Outcome> {
    (!outcome.violations.is_empty()).then_some(outcome)
}

/// Runs the seeds in several threads.
#[allow(clippy::disallowed_methods, reason = "progress is told now and then; the runs themselves have no clock")]
fn run_seeds(arguments: &ChaosArguments) -> Summary {
    let limit = arguments.seeds.unwrap_or(if arguments.packets.is_some() { u64::MAX } else { DEFAULT_SEEDS });
    let next = AtomicU64::new(0);
    let (seeds, packets) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    let kinds = Mutex::new(BTreeMap::<Kind, (u64, u64)>::new());
    let began = Instant::now();
    let told = Mutex::new(began);
    let every = Duration::from_secs(if std::io::stderr().is_terminal() { 1 } else { 30 });
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= limit {
                        break;
                    }
                    let seed = arguments.seed.wrapping_add(index);
                    let outcome = std::panic::catch_unwind(|| chaos::run(seed)).unwrap_or_else(|panic| {
                        let text = panic.downcast_ref::<String>().map(String::as_str);
                        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("of no known kind");
                        Outcome {
                            seed,
                            service: chaos::Kind::of(seed),
                            packets: 0,
                            tally: Default::default(),
                            violations: vec![format!("panic: {text}")],
                        }
                    });
                    let done = seeds.fetch_add(1, Ordering::Relaxed) + 1;
                    let sum = packets.fetch_add(outcome.packets, Ordering::Relaxed) + outcome.packets;
                    let mut sums = kinds.lock().expect("no thread panics");
                    let (seeds_of_kind, packets_of_kind) = sums.entry(outcome.service).or_default();
                    (*seeds_of_kind, *packets_of_kind) = (*seeds_of_kind + 1, *packets_of_kind + outcome.packets);
                    drop(sums);
                    if let Some(outcome) = failed(outcome) {
                        eprintln!("seed {}: {}", outcome.seed, outcome.violations[0]);
                        failures.lock().expect("no thread panics").push(outcome);
                        stop.fetch_or(arguments.fail_fast, Ordering::Relaxed);
                    }
                    if arguments.packets.is_some_and(|limit| sum >= limit) {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if let Ok(mut told) = told.try_lock()
                        && told.elapsed() >= every
                    {
                        *told = Instant::now();
                        let of = if limit == u64::MAX { String::new() } else { format!(" of {limit}") };
                        eprintln!("{done}{of} seeds, {sum} packets, {:.0?}", began.elapsed());
                    }
                }
            });
        }
    });
    let mut failed = failures.into_inner().expect("no thread panics");
    failed.sort_by_key(|outcome| outcome.seed);
    eprintln!("{:.1?}", began.elapsed());
    let kinds = kinds.into_inner().expect("no thread panics");
    Summary { seeds: seeds.into_inner(), packets: packets.into_inner(), kinds, failed }
}
