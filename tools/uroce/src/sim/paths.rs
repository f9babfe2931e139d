//! `uroce sim paths`: goodput over many paths side by side.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use uroce::congestion::CongestionControl;
use uroce::path::PathPolicy;
use uroce::pcap::{Format, Writer};
use uroce_laboratory::sim::paths::PathsCell;
use uroce_laboratory::sim::{Goodput, TransferError};

use crate::Failure;

use super::cells::{self, Cell, Options};

const EXAMPLES: &str = "\
Examples:
  uroce sim paths --only op=write,loss=0.1%
  uroce sim paths --paths 4 --path-policy weighted
  uroce sim paths --only op=read --capture paths.pcapng";

/// Goodput of a queue pair over 16 paths (10 Gb/s together) with one-way delays from 1 to 40 ms.
///
/// Exit status 1 when a request fails or the received data is wrong.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// What decides on the rate: steady, or fixed, which is given the rate of the network.
    #[arg(long, value_name = "NAME", help_heading = "Test", default_value_t)]
    congestion: CongestionControl,
    /// Run only matching cells: op=write|read|send, loss=0.001; conditions separated by commas. A key that is not given matches
    /// all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Number of paths, 1 to 256.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    paths: u16,
    /// How packets are spread over them: single, round-robin, weighted, recycle.
    #[arg(long, value_name = "NAME", help_heading = "Test", default_value = "round-robin")]
    path_policy: PathPolicy,
    /// Write frames of the first cell to this file (pcapng by suffix, otherwise pcap).
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    capture: Option<PathBuf>,
    /// Upper bound on the frames to write.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 20_000)]
    capture_frames: u64,
}

impl Cell for PathsCell {
    type Outcome = Result<Goodput, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.paths/1";

    const KEYS: &'static [&'static str] = &["op", "loss"];

    fn which(&self) -> Value {
        json!({
            "paths": self.paths,
            "policy": self.policy.name(),
            "op": self.operation.name(),
            "loss": self.loss,
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(goodput) => cells::object(
                json!({ "capacity_fraction": goodput.goodput_bps / goodput.ideal_bps }),
                cells::goodput_fields(goodput),
            ),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let PathsCell { operation, paths, policy, loss, .. } = self;
        let what = format!("{:5} {paths:3} paths {:11} {:3} % lost", operation.name(), policy.name(), loss * 100.0);
        match outcome {
            Ok(goodput) => format!("{what}  {}", cells::goodput_text(goodput, "capacity")),
            Err(error) => format!("{what}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        outcome.is_err()
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = PathsCell::all();
    cells::keep(&mut cells, &arguments.only)?;
    for cell in &mut cells {
        (cell.paths, cell.policy) = (arguments.paths, arguments.path_policy);
        cell.congestion = arguments.congestion;
    }
    let first = cells.first().copied();
    let seed = arguments.options.seed;
    if let Some(path) = &arguments.capture {
        // Before anything runs: a file that cannot be made is said at once.
        drop(std::fs::File::create(path)?);
    }
    let run = |cell: &PathsCell| {
        let file = arguments.capture.as_ref().filter(|_| Some(*cell) == first);
        let capture = file.and_then(|path| {
            let file: Box<dyn Write> = Box::new(std::io::BufWriter::new(std::fs::File::create(path).ok()?));
            Writer::new(file, Format::of(path)).ok()
        });
        cell.run(seed, capture, arguments.capture_frames)
    };
    Ok(cells::play(&cells, &arguments.options, run).exit_code())
}
