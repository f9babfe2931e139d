//! `uroce sim paths`: goodput over many paths side by side.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use uroce::path::PathPolicy;
use uroce::pcap::{Format, Writer};
use uroce_laboratory::sim::paths::PathsCell;
use uroce_laboratory::sim::{Goodput, TransferError};

use crate::Failure;

use super::cells::{self, Options};

/// Goodput of a queue pair over 16 paths (10 Gb/s together) with one-way delays from 1 to 40 ms; exit status 1 when a request
/// fails or the received data is wrong.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Run only matching cells: op=write|read|send, loss=0.001; conditions separated by commas. A key that is not given matches
    /// all its values.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Number of paths.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    paths: u16,
    /// How packets are spread over them: single, round-robin, weighted, recycle.
    #[arg(long, default_value = "round-robin")]
    path_policy: PathPolicy,
    /// Write frames of the first cell to this file (pcapng by suffix, otherwise pcap).
    #[arg(long)]
    capture: Option<PathBuf>,
    /// Upper bound on the frames to write.
    #[arg(long, default_value_t = 20_000)]
    capture_frames: u64,
}

fn value(cell: &PathsCell, key: &str) -> String {
    match key {
        "op" => cell.operation.name().to_owned(),
        _ => cell.loss.to_string(),
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = PathsCell::all();
    cells::keep(&mut cells, &arguments.only, &["op", "loss"], value)?;
    cells.iter_mut().for_each(|cell| (cell.paths, cell.policy) = (arguments.paths, arguments.path_policy));
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
    let results = cells::run(&cells, arguments.options.threads, run, describe);
    let failed = results.iter().any(Result::is_err);
    for (cell, result) in cells.iter().zip(results) {
        if !arguments.options.json {
            println!("{}", describe(cell, &result));
            continue;
        }
        let which = json!({
            "paths": cell.paths,
            "policy": cell.policy.name(),
            "op": cell.operation.name(),
            "loss": cell.loss,
            "seed": seed,
        });
        let fields = match result {
            Ok(result) => cells::object(
                json!({ "capacity_fraction": result.goodput_bps / result.ideal_bps }),
                cells::goodput_fields(&result),
            ),
            Err(error) => json!({ "violation": error.to_string() }),
        };
        println!("{}", cells::object(which, fields));
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn describe(cell: &PathsCell, result: &Result<Goodput, TransferError>) -> String {
    let PathsCell { operation, paths, policy, loss } = cell;
    let what = format!("{:5} {paths:3} paths {:11} {:3} % lost", operation.name(), policy.name(), loss * 100.0);
    match result {
        Ok(result) => format!("{what}  {}", cells::goodput_text(result, "capacity")),
        Err(error) => format!("{what}  {error}"),
    }
}
