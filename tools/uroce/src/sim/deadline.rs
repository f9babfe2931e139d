//! `uroce sim deadline`: how long a chunk of 1 MiB takes in deadline mode, with repair symbols and without.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce_laboratory::sim::deadline::{CHUNK_BYTES, DeadlineCell, DeadlineError, Deadlines, LINE_BPS};

use super::cells::{self, Cell, Options};
use super::deadline_map::{self, Place};
use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  uroce sim deadline --only loss=1%,rtt_ms=100
  uroce sim deadline --json | jq 'select(.slowdown > 1.05)'
  uroce sim deadline --svg deadline-map.svg";

/// How long chunks of 1 MiB take over 300 Mb/s until the receiver has them, one after the other: selective repeat, and
/// 30 to 240 repair symbols for a thousand.
///
/// Exit status 1 when a chunk does not arrive, or, at 1 % of loss and 100 ms, one of a hundred takes more than 1.05 times as
/// long as without losses: with 120 repair symbols for a thousand, and with 240 where losses come in bursts.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Number of chunks of each cell.
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "Test",
          value_parser = clap::value_parser!(u32).range(1..))]
    chunks: u32,
    /// Run only matching cells: loss_model=uniform|burst, rtt_ms=1|10|30|100, loss=0.01%|0.1%|1%|3%,
    /// repair_per_mille=0|30|60|120|240; conditions separated by commas. A key that is not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Also draw into this SVG file where repair symbols are faster than selective repeat.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

fn ms(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

fn loss_model(cell: &DeadlineCell) -> &'static str {
    if cell.bursts { "burst" } else { "uniform" }
}

impl Cell for DeadlineCell {
    type Outcome = Result<Deadlines, DeadlineError>;

    const SCHEMA: &'static str = "uroce.sim.deadline/1";

    const KEYS: &'static [&'static str] = &["loss_model", "rtt_ms", "loss", "repair_per_mille"];

    fn which(&self) -> Value {
        json!({
            "loss_model": loss_model(self),
            "rtt_ms": ms(self.round_trip),
            "loss": self.loss,
            "repair_per_mille": self.repair_per_mille,
            "chunk_bytes": CHUNK_BYTES,
            "line_bps": LINE_BPS,
            "chunks": self.chunks,
            "limit": self.limit(),
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(result) => json!({
                "first_ms": ms(result.first),
                "p50_ms": ms(result.chunks.median),
                "p99_ms": ms(result.chunks.p99),
                "max_ms": ms(result.chunks.max),
                "lossless_p99_ms": ms(result.lossless_p99),
                "slowdown": result.slowdown(),
                "overhead": result.overhead,
                "repaired": result.repaired,
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let name = format!(
            "{:7} {:3} ms  {:5} %  repair {:3} ‰",
            loss_model(self),
            ms(self.round_trip),
            super::in_percent(self.loss),
            self.repair_per_mille,
        );
        match outcome {
            Ok(result) => format!(
                "{name}  p50 {:6.1}  p99 {:6.1}  max {:6.1}  first {:6.1} ms  p99 x {:.3} of lossless  sent + {:4.1} %  \
                 repaired {:4.1} %{}",
                ms(result.chunks.median),
                ms(result.chunks.p99),
                ms(result.chunks.max),
                ms(result.first),
                result.slowdown(),
                100.0 * result.overhead,
                100.0 * result.repaired,
                if self.is_wrong(outcome) { "  too long" } else { "" },
            ),
            Err(error) => format!("{name}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        !outcome.as_ref().is_ok_and(|result| self.keeps(result))
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = DeadlineCell::table(arguments.chunks as usize);
    cells::keep(&mut cells, &arguments.only)?;
    let seed = arguments.options.seed;
    let sheet = cells::play(&cells, &arguments.options, |cell: &DeadlineCell| cell.run(seed));
    if let Some(file) = &arguments.svg {
        draw(file, &cells, &sheet.outcomes)?;
    }
    Ok(sheet.exit_code())
}

fn draw(file: &Path, cells: &[DeadlineCell], outcomes: &[Result<Deadlines, DeadlineError>]) -> Result<(), Failure> {
    let place = |(cell, outcome): (&DeadlineCell, &Result<Deadlines, DeadlineError>)| {
        let result = outcome.as_ref().ok()?;
        Some(Place {
            bursts: cell.bursts,
            round_trip_ms: cell.round_trip.as_millis() as u64,
            loss: cell.loss,
            repair_per_mille: cell.repair_per_mille,
            p99_ms: ms(result.chunks.p99),
        })
    };
    let places: Vec<Place> = cells.iter().zip(outcomes).filter_map(place).collect();
    deadline_map::draw(file, &places).map_err(|error| format!("{}: {error}", file.display()).into())
}
