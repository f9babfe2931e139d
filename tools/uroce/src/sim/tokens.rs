//! `uroce sim tokens`: tokens beside KV transfers at full rate, over a wide area network that is one queue.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce_laboratory::sim::{TokenCell, TokenDelay, TokenDelays, TransferError};

use crate::Failure;

use super::cells::{self, Cell, Options};

const EXAMPLES: &str = "\
Examples:
  uroce sim tokens --only line_bps=300e6,rtt_ms=30
  uroce sim tokens --only loss=1% --json | jq .over_of_rtt";

/// How long messages of 64 bytes take beside KV transfers that nobody tells a rate, over a wide area network that is one queue.
///
/// Exit status 1 when one in a hundred waits for more than 2 % of the round trip longer than without transfers.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Run only matching cells: line_bps=300e6|1e9, rtt_ms=30|40|100, flows=1|4, loss=0|0.001|0.01; conditions separated by commas. A key
    /// that is not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Messages that are measured in each cell.
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = "Test",
          value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    tokens: u64,
}

fn ms(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// How much longer 99 % of tokens take than without transfers, as a share of the round trip.
fn over_of_rtt(cell: &TokenCell, idle: &TokenDelay, delay: &TokenDelay) -> f64 {
    (ms(delay.p99) - ms(idle.p99)) / ms(cell.round_trip)
}

/// The share of the transfers' goodput that is given up for tokens.
fn cost(result: &TokenDelays) -> f64 {
    1.0 - result.classes.goodput_bps / result.one_class.goodput_bps
}

impl Cell for TokenCell {
    type Outcome = Result<TokenDelays, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.tokens/1";

    const KEYS: &'static [&'static str] = &["line_bps", "rtt_ms", "flows", "loss"];

    fn which(&self) -> Value {
        json!({
            "line_bps": self.line_bps,
            "rtt_ms": self.round_trip.as_millis() as u64,
            "flows": self.flows,
            "loss": self.loss,
            "messages": self.tokens,
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(result) => json!({
                "idle_median_ms": ms(result.idle.median),
                "idle_p99_ms": ms(result.idle.p99),
                "median_ms": ms(result.classes.median),
                "p99_ms": ms(result.classes.p99),
                "over_of_rtt": over_of_rtt(self, &result.idle, &result.classes),
                "queue_p99_ms": ms(result.classes.queue_p99),
                "goodput_bps": result.classes.goodput_bps,
                "one_class_median_ms": ms(result.one_class.median),
                "one_class_p99_ms": ms(result.one_class.p99),
                "one_class_over_of_rtt": over_of_rtt(self, &result.idle, &result.one_class),
                "one_class_queue_p99_ms": ms(result.one_class.queue_p99),
                "one_class_goodput_bps": result.one_class.goodput_bps,
                "goodput_cost": cost(result),
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let name = format!(
            "{:4} Mb/s {:3} ms  {} flows  loss {:4.1} %",
            self.line_bps / 1_000_000,
            self.round_trip.as_millis(),
            self.flows,
            self.loss * 100.0,
        );
        match outcome {
            Ok(result) => format!(
                "{name}  idle p99 {:7.3} ms  p99 {:7.3}, {:5.2} % of the round trip over  one class {:7.3}, {:5.2} %  \
                 goodput {:6.1} Mb/s, {:4.1} % less",
                ms(result.idle.p99),
                ms(result.classes.p99),
                over_of_rtt(self, &result.idle, &result.classes) * 100.0,
                ms(result.one_class.p99),
                over_of_rtt(self, &result.idle, &result.one_class) * 100.0,
                result.classes.goodput_bps / 1e6,
                cost(result) * 100.0,
            ),
            Err(error) => format!("{name}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        !outcome.as_ref().is_ok_and(|result| result.classes.p99 <= result.idle.p99 + self.allowance())
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = TokenCell::table();
    cells::keep(&mut cells, &arguments.only)?;
    cells.iter_mut().for_each(|cell| cell.tokens = arguments.tokens as usize);
    let seed = arguments.options.seed;
    Ok(cells::play(&cells, &arguments.options, |cell: &TokenCell| cell.run(seed)).exit_code())
}
