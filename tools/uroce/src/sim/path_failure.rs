//! `uroce sim path-failure`: one of several paths loses everything for a while.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use uroce::congestion::CongestionControl;
use uroce::path::PathPolicy;
use uroce_laboratory::sim::TransferError;
use uroce_laboratory::sim::path_failure::{DarkDirection, FailureCell, FailureResult};

use crate::Failure;

use super::cells::{self, Cell, Options};
use super::timeline::{self, Line};

const EXAMPLES: &str = "\
Examples:
  uroce sim path-failure --only op=write
  uroce sim path-failure --paths 4 --rtt-ms 80
  uroce sim path-failure --svg path-failure.svg";

/// Goodput of a queue pair over 8 paths (10 Gb/s together) when one of them is dark for 40 round trips.
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
    /// Run only matching cells: op=write|read|send, direction=both|forward|return; conditions separated by commas. A key that is
    /// not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Number of paths, 2 to 256.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=256))]
    paths: u16,
    /// How packets are spread over them: single, round-robin, weighted, recycle.
    #[arg(long, value_name = "NAME", help_heading = "Test", default_value = "round-robin")]
    path_policy: PathPolicy,
    /// The round trip of each path in milliseconds, 1 to 1000.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rtt_ms: u64,
    /// Also draw goodput over time into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

fn direction(cell: &FailureCell) -> &'static str {
    match cell.direction {
        DarkDirection::Both => "both",
        DarkDirection::Forward => "forward",
        DarkDirection::Return => "return",
    }
}

impl Cell for FailureCell {
    type Outcome = Result<FailureResult, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.path-failure/1";

    const KEYS: &'static [&'static str] = &["op", "direction"];

    fn which(&self) -> Value {
        json!({
            "paths": self.paths,
            "policy": self.policy.name(),
            "op": self.operation.name(),
            "direction": direction(self),
            "rtt_ms": self.round_trip.as_millis() as u64,
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(result) => json!({
                "recovery_rtt": result.recovery_rtt,
                "return_rtt": result.return_rtt,
                "blind_rtt": result.blind_rtt,
                "capacity_fraction": result.capacity_fraction,
                "worst_fraction": result.worst_fraction,
                "restored_fraction": result.restored_fraction,
                "lost_frames": result.lost_frames,
                "spurious_fraction": result.spurious_fraction,
                "qp_errors": result.qp_errors,
                "timeline": result.timeline,
            }),
            Err(TransferError::GaveUp) => json!({ "qp_errors": 1 }),
            Err(TransferError::Wrong(text)) => json!({ "violation": text }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let FailureCell { operation, paths, policy, .. } = self;
        let what = format!("{:5} {paths:3} paths {:11} dark {:7}", operation.name(), policy.name(), direction(self));
        match outcome {
            Ok(result) => format!(
                "{what}  recovered after {:.2} round trips  back after {:.2} (and {:.2} until a probe came through)  {:6.2} % of the \
                 remaining capacity, {:6.2} % at worst, {:6.2} % of the full capacity once it is back  {} frames \
                 lost  spurious {:.4} %  {} errors",
                result.recovery_rtt,
                result.return_rtt,
                result.blind_rtt,
                result.capacity_fraction * 100.0,
                result.worst_fraction * 100.0,
                result.restored_fraction * 100.0,
                result.lost_frames,
                result.spurious_fraction * 100.0,
                result.qp_errors,
            ),
            Err(error) => format!("{what}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        outcome.as_ref().map_or(true, |result| result.qp_errors > 0)
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = FailureCell::all();
    cells::keep(&mut cells, &arguments.only)?;
    for cell in &mut cells {
        (cell.paths, cell.policy) = (arguments.paths, arguments.path_policy);
        cell.congestion = arguments.congestion;
        cell.round_trip = std::time::Duration::from_millis(arguments.rtt_ms);
    }
    let sheet = cells::play(&cells, &arguments.options, |cell| cell.run(arguments.options.seed));
    if let Some(svg) = &arguments.svg {
        let fine = cells.iter().zip(&sheet.outcomes).filter_map(|(cell, outcome)| Some((cell, outcome.as_ref().ok()?)));
        let lines = fine.map(|(cell, result)| Line {
            operation: cell.operation,
            direction: cell.direction,
            shares: &result.timeline,
        });
        timeline::draw(svg, arguments.paths, &lines.collect::<Vec<_>>())
            .map_err(|error| format!("{}: {error}", svg.display()))?;
    }
    Ok(sheet.exit_code())
}
