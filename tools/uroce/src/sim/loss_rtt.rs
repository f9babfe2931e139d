//! `uroce sim loss-rtt`: goodput by loss and round trip.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce_laboratory::sim::loss_rtt::{Cell, Ends};
use uroce_laboratory::sim::{Goodput, TransferError, TransferOperation};

use super::cells::{self, Options};
use super::picture::{self, Square};
use crate::Failure;

/// Goodput of a queue pair over a 10 Gb/s link by loss and round trip: selective repeat, data from a plain peer, and
/// go-back-N.
///
/// Exit status 1 when a request fails (except when a go-back-N requester gives up) or the received data is wrong.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Run only matching cells: op=write|read|send, recovery=selective|plain|go-back-n, loss=0.01, loss_model=uniform|burst,
    /// rtt_ms=10; conditions separated by commas. A key that is not given matches all its values.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Also draw the cells into this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Do not run: draw the output of an earlier run with --json.
    #[arg(long, value_name = "FILE", requires = "svg", conflicts_with_all = ["only", "json"])]
    from: Option<PathBuf>,
}

const KEYS: [&str; 5] = ["op", "recovery", "loss", "loss_model", "rtt_ms"];

fn loss_model(cell: &Cell) -> &'static str {
    if cell.bursts { "burst" } else { "uniform" }
}

/// The cell's value of a key of `--only`.
fn value(cell: &Cell, key: &str) -> String {
    match key {
        "op" => cell.operation.name().to_owned(),
        "recovery" => cell.ends.name().to_owned(),
        "loss" => cell.loss.to_string(),
        "loss_model" => loss_model(cell).to_owned(),
        _ => cell.round_trip.as_millis().to_string(),
    }
}

fn table(only: &[String]) -> Result<Vec<Cell>, Failure> {
    let mut cells = Vec::new();
    for ends in Ends::ALL {
        for bursts in [false, true] {
            for operation in TransferOperation::ALL {
                for loss in Cell::LOSSES {
                    for ms in Cell::ROUND_TRIPS_MS {
                        let round_trip = Duration::from_millis(ms);
                        cells.push(Cell { operation, ends, loss, bursts, round_trip });
                    }
                }
            }
        }
    }
    cells::keep(&mut cells, only, &KEYS, value)?;
    Ok(cells)
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let (Some(from), Some(svg)) = (&arguments.from, &arguments.svg) {
        draw(svg, &read(from)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cells = table(&arguments.only)?;
    let results = cells::run(&cells, arguments.options.threads, |cell| cell.run(arguments.options.seed), describe);
    let (mut failed, mut lines) = (false, Vec::new());
    for (cell, result) in cells.iter().zip(results) {
        failed |= match &result {
            Ok(_) => false,
            // What becomes of those that go back is what the table is about.
            Err(error) => cell.ends == Ends::Selective || *error != TransferError::GaveUp,
        };
        if !arguments.options.json {
            println!("{}", describe(cell, &result));
        }
        let which = json!({
            "op": cell.operation.name(),
            "recovery": cell.ends.name(),
            "loss": cell.loss,
            "loss_model": loss_model(cell),
            "rtt_ms": cell.round_trip.as_millis() as u64,
            "seed": arguments.options.seed,
        });
        let fields = match result {
            Ok(result) => cells::object(
                json!({ "fraction": result.goodput_bps / result.ideal_bps }),
                cells::goodput_fields(&result),
            ),
            Err(TransferError::GaveUp) => json!({ "goodput_bps": 0, "gave_up": true }),
            Err(TransferError::Wrong(text)) => json!({ "violation": text }),
        };
        let object = cells::object(which, fields);
        if arguments.options.json {
            println!("{object}");
        }
        lines.push(object);
    }
    if let Some(svg) = &arguments.svg {
        draw(svg, &lines)?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The lines that an earlier run printed.
fn read(file: &Path) -> Result<Vec<Value>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("{}, line {}: {error}", file.display(), number + 1).into())
    };
    text.lines().enumerate().map(line).collect()
}

fn draw(file: &Path, lines: &[Value]) -> Result<(), Failure> {
    let squares = lines.iter().map(Square::of).collect::<Result<Vec<_>, _>>()?;
    picture::draw(file, &squares).map_err(|error| format!("{}: {error}", file.display()).into())
}

fn describe(cell: &Cell, result: &Result<Goodput, TransferError>) -> String {
    let Cell { operation, loss, round_trip, .. } = cell;
    let what = format!(
        "{:5} {:9} {:5} % {:7} {:3} ms",
        operation.name(),
        cell.ends.name(),
        loss * 100.0,
        loss_model(cell),
        round_trip.as_millis()
    );
    match result {
        Ok(result) => format!("{what}  {}", cells::goodput_text(result, "ideal")),
        Err(error) => format!("{what}  {error}"),
    }
}
