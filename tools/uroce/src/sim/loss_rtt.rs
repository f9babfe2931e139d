//! `uroce sim loss-rtt`: goodput by loss and round trip.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce::congestion::CongestionControl;
use uroce_laboratory::sim::loss_rtt::{Cell, Ends};
use uroce_laboratory::sim::{Goodput, TransferError, TransferOperation};

use super::cells::{self, Options};
use super::picture::{self, Square};
use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  uroce sim loss-rtt --only op=write,loss=1%
  uroce sim loss-rtt --json --svg loss-rtt.svg > loss-rtt.json
  uroce sim loss-rtt --from loss-rtt.json --svg loss-rtt.svg";

/// Goodput of a queue pair over a 10 Gb/s link by loss and round trip: selective repeat, data from a plain peer, and
/// go-back-N.
///
/// Exit status 1 when a request fails (except when a go-back-N requester gives up) or the received data is wrong.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// What decides on the rate: steady, or fixed, which is given the rate of the network.
    #[arg(long, value_name = "NAME", help_heading = "Test", default_value_t)]
    congestion: CongestionControl,
    /// Run only matching cells: op=write|read|send, recovery=selective|plain|go-back-n, loss=0.01, loss_model=uniform|burst,
    /// rtt_ms=10; conditions separated by commas. A key that is not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Also draw the cells into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Do not run: draw the output of an earlier run with --json.
    #[arg(long, value_name = "FILE", help_heading = "Output", requires = "svg", conflicts_with_all = ["only", "json"])]
    from: Option<PathBuf>,
}

fn loss_model(cell: &Cell) -> &'static str {
    if cell.bursts { "burst" } else { "uniform" }
}

impl cells::Cell for Cell {
    type Outcome = Result<Goodput, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.loss-rtt/1";

    const KEYS: &'static [&'static str] = &["op", "recovery", "loss", "loss_model", "rtt_ms"];

    fn which(&self) -> Value {
        json!({
            "op": self.operation.name(),
            "recovery": self.ends.name(),
            "loss": self.loss,
            "loss_model": loss_model(self),
            "rtt_ms": self.round_trip.as_millis() as u64,
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(goodput) => cells::object(
                json!({ "fraction": goodput.goodput_bps / goodput.ideal_bps }),
                cells::goodput_fields(goodput),
            ),
            Err(TransferError::GaveUp) => json!({ "goodput_bps": 0, "gave_up": true }),
            Err(TransferError::Wrong(text)) => json!({ "violation": text }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let Cell { operation, loss, round_trip, .. } = self;
        let what = format!(
            "{:5} {:9} {:5} % {:7} {:3} ms",
            operation.name(),
            self.ends.name(),
            loss * 100.0,
            loss_model(self),
            round_trip.as_millis()
        );
        match outcome {
            Ok(goodput) => format!("{what}  {}", cells::goodput_text(goodput, "ideal")),
            Err(error) => format!("{what}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        match outcome {
            Ok(_) => false,
            // What becomes of those that go back is what the table is about.
            Err(error) => self.ends == Ends::Selective || *error != TransferError::GaveUp,
        }
    }
}

fn table(only: &[String], congestion: CongestionControl) -> Result<Vec<Cell>, Failure> {
    let mut cells = Vec::new();
    for ends in Ends::ALL {
        for bursts in [false, true] {
            for operation in TransferOperation::ALL {
                for loss in Cell::LOSSES {
                    for ms in Cell::ROUND_TRIPS_MS {
                        let round_trip = Duration::from_millis(ms);
                        cells.push(Cell { operation, ends, loss, bursts, round_trip, congestion });
                    }
                }
            }
        }
    }
    cells::keep(&mut cells, only)?;
    Ok(cells)
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let (Some(from), Some(svg)) = (&arguments.from, &arguments.svg) {
        draw(svg, &read(from)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cells = table(&arguments.only, arguments.congestion)?;
    let sheet = cells::play(&cells, &arguments.options, |cell| cell.run(arguments.options.seed));
    if let Some(svg) = &arguments.svg {
        draw(svg, &sheet.lines)?;
    }
    Ok(sheet.exit_code())
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
