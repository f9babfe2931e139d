//! `uroce sim path-failure`: one of several paths loses everything for a while.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use uroce::path::PathPolicy;
use uroce_laboratory::sim::TransferError;
use uroce_laboratory::sim::path_failure::{DarkDirection, FailureCell, FailureResult};

use crate::Failure;

use super::cells::{self, Options};
use super::timeline::{self, Line};

/// Goodput of a queue pair over 8 paths (10 Gb/s together) when one of them is dark for 40 round trips; exit status 1 when a
/// request fails or the received data is wrong.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Run only matching cells: op=write|read|send, direction=both|forward|return; conditions separated by commas. A key that is
    /// not given matches all its values.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Number of paths.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=256))]
    paths: u16,
    /// How packets are spread over them: single, round-robin, weighted, recycle.
    #[arg(long, default_value = "round-robin")]
    path_policy: PathPolicy,
    /// The round trip of each path, in milliseconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rtt_ms: u64,
    /// Also draw goodput over time into this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn direction(cell: &FailureCell) -> &'static str {
    match cell.direction {
        DarkDirection::Both => "both",
        DarkDirection::Forward => "forward",
        DarkDirection::Return => "return",
    }
}

fn value(cell: &FailureCell, key: &str) -> String {
    match key {
        "op" => cell.operation.name().to_owned(),
        _ => direction(cell).to_owned(),
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = FailureCell::all();
    cells::keep(&mut cells, &arguments.only, &["op", "direction"], value)?;
    for cell in &mut cells {
        (cell.paths, cell.policy) = (arguments.paths, arguments.path_policy);
        cell.round_trip = std::time::Duration::from_millis(arguments.rtt_ms);
    }
    let results = cells::run(&cells, arguments.options.threads, |cell| cell.run(arguments.options.seed), describe);
    let failed =
        results.iter().any(|result| result.as_ref().is_ok_and(|result| result.qp_errors > 0) || result.is_err());
    if let Some(svg) = &arguments.svg {
        let fine = cells.iter().zip(&results).filter_map(|(cell, result)| Some((cell, result.as_ref().ok()?)));
        let lines = fine.map(|(cell, result)| Line {
            operation: cell.operation,
            direction: cell.direction,
            shares: &result.timeline,
        });
        timeline::draw(svg, arguments.paths, &lines.collect::<Vec<_>>())
            .map_err(|error| format!("{}: {error}", svg.display()))?;
    }
    for (cell, result) in cells.iter().zip(results) {
        if !arguments.options.json {
            println!("{}", describe(cell, &result));
            continue;
        }
        let which = json!({
            "paths": cell.paths,
            "policy": cell.policy.name(),
            "op": cell.operation.name(),
            "direction": direction(cell),
            "rtt_ms": cell.round_trip.as_millis() as u64,
            "seed": arguments.options.seed,
        });
        let fields = match result {
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
        };
        println!("{}", cells::object(which, fields));
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn describe(cell: &FailureCell, result: &Result<FailureResult, TransferError>) -> String {
    let FailureCell { operation, paths, policy, .. } = cell;
    let what = format!("{:5} {paths:3} paths {:11} dark {:7}", operation.name(), policy.name(), direction(cell));
    match result {
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
