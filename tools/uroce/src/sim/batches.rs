//! `uroce sim batches`: how long 2 MiB take, one batch at a time.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce::congestion::CongestionControl;
use uroce_laboratory::sim::TransferError;
use uroce_laboratory::sim::batches::{BATCH_BYTES, BatchCell, Batches, LINE_BPS};

use crate::Failure;

use super::cells::{self, Cell, Options};

const EXAMPLES: &str = "\
Examples:
  uroce sim batches --only 'op=write,messages=1,rtt_ms=30,gap_ms=0'
  uroce sim batches --batches 2000 --only 'loss=1%,gap_ms=0'
  uroce sim batches --json | jq 'select(.p99_ms > .bound_ms)'";

/// How long batches of 2 MiB take over 300 Mb/s, one after the other, beside an ideal selective repeat.
///
/// Exit status 1 when one of a hundred takes longer than the serialisation and two round trips, or three and a half where
/// more than 0.01 % of packets is lost.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Number of batches of each cell.
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "Test",
          value_parser = clap::value_parser!(u32).range(1..))]
    batches: u32,
    /// What decides on the rate.
    #[arg(long, value_name = "NAME", help_heading = "Test", default_value_t)]
    congestion: CongestionControl,
    /// Run only matching cells: op=write|read, messages=1|16|256, rtt_ms=10|30|40|100, loss=0.001%|0.01%|0.1%|1%,
    /// gap_ms=0|200|2000; conditions separated by commas. A key that is not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
}

fn ms(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

impl Cell for BatchCell {
    type Outcome = Result<Batches, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.batches/1";

    const KEYS: &'static [&'static str] = &["op", "messages", "rtt_ms", "loss", "gap_ms"];

    fn which(&self) -> Value {
        json!({
            "op": self.operation.name(),
            "messages": self.messages,
            "message_bytes": BATCH_BYTES / self.messages,
            "line_bps": LINE_BPS,
            "rtt_ms": ms(self.round_trip),
            "loss": self.loss,
            "gap_ms": ms(self.gap),
            "batches": self.batches,
            "congestion": self.congestion.to_string(),
            "bound_ms": ms(self.bound()),
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(result) => json!({
                "first_ms": ms(result.first),
                "p50_ms": ms(result.batches.median),
                "p99_ms": ms(result.batches.p99),
                "max_ms": ms(result.batches.max),
                "ideal_p50_ms": ms(result.ideal.median),
                "ideal_p99_ms": ms(result.ideal.p99),
                "ideal_max_ms": ms(result.ideal.max),
                "spurious_fraction": result.spurious_fraction,
                "queue_drops": result.queue_drops,
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let name = format!(
            "{:5} {:3} x {:4} KiB  {:3} ms  {:5} %  gap {:4} ms",
            self.operation.name(),
            self.messages,
            BATCH_BYTES / self.messages / 1024,
            ms(self.round_trip),
            super::in_percent(self.loss),
            ms(self.gap),
        );
        match outcome {
            Ok(result) => format!(
                "{name}  p50 {:6.1} (ideal {:5.1})  p99 {:6.1} ({:5.1}) of {:5.1}  max {:6.1}  first {:6.1} ms{}",
                ms(result.batches.median),
                ms(result.ideal.median),
                ms(result.batches.p99),
                ms(result.ideal.p99),
                ms(self.bound()),
                ms(result.batches.max),
                ms(result.first),
                if self.is_wrong(outcome) { "  too long" } else { "" },
            ),
            Err(error) => format!("{name}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        !outcome.as_ref().is_ok_and(|result| result.batches.p99 <= self.bound())
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = BatchCell::table(arguments.batches as usize, arguments.congestion);
    cells::keep(&mut cells, &arguments.only)?;
    let seed = arguments.options.seed;
    Ok(cells::play(&cells, &arguments.options, |cell: &BatchCell| cell.run(seed)).exit_code())
}
