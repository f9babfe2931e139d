//! `uroce sim priorities`: tokens beside bulk, with and without classes.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce_laboratory::sim::TransferError;
use uroce_laboratory::sim::priorities::{Priorities, PriorityCell};

use crate::Failure;

use super::cells::{self, Cell, Options};

const EXAMPLES: &str = "\
Examples:
  uroce sim priorities --only where=switch
  uroce sim priorities --only 'where=wan|wan-line,bulk_load=95%'
  uroce sim priorities --json | jq .ratio";

/// How long messages of 64 bytes take beside large transfers that load the line, with and without traffic classes.
///
/// Exit status 1 when they take longer than docs/CLASSES.md says.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Run only matching cells: where=switch|wan-line|wan, bulk_load=0.95|1; conditions separated by commas. A key that is not given matches all
    /// its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// How many times as long a token takes where all share one class, and how many times as long it waits.
fn ratios(result: &Priorities) -> [f64; 2] {
    let waits = |latency: Duration| us(latency.saturating_sub(result.idle));
    let [one_class, classes] = [result.one_class.p99, result.classes.p99];
    [us(one_class) / us(classes), waits(one_class) / waits(classes)]
}

impl Cell for PriorityCell {
    type Outcome = Result<Priorities, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.priorities/1";

    const KEYS: &'static [&'static str] = &["where", "bulk_load"];

    fn which(&self) -> Value {
        json!({
            "where": self.meeting.name(),
            "line_bps": self.meeting.line_bps(),
            "rtt_us": us(self.meeting.round_trip()),
            "hops": self.meeting.hops(),
            "bulk_load": self.load,
            "messages": self.tokens,
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(result) => json!({
                "idle_us": us(result.idle),
                "bound_us": us(result.bound),
                "frame_us": us(result.frame),
                "median_us": us(result.classes.median),
                "p99_us": us(result.classes.p99),
                "load": result.classes.load,
                "one_class_median_us": us(result.one_class.median),
                "one_class_p99_us": us(result.one_class.p99),
                "one_class_load": result.one_class.load,
                "ratio": ratios(result)[0],
                "wait_ratio": ratios(result)[1],
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let name = format!("{:8} bulk at {:3.0} %", self.meeting.name(), self.load * 100.0);
        match outcome {
            Ok(result) => format!(
                "{name}  idle {:8.2} µs  p99 {:8.2} µs of {:8.2}  one class {:8.2} µs, {:7.3} times; waits {:5.1} times  load {:4.1} %",
                us(result.idle),
                us(result.classes.p99),
                us(result.bound),
                us(result.one_class.p99),
                ratios(result)[0],
                ratios(result)[1],
                result.classes.load * 100.0,
            ),
            Err(error) => format!("{name}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        !outcome.as_ref().is_ok_and(|result| result.classes.p99 <= result.bound)
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = PriorityCell::table();
    cells::keep(&mut cells, &arguments.only)?;
    let seed = arguments.options.seed;
    Ok(cells::play(&cells, &arguments.options, |cell: &PriorityCell| cell.run(seed)).exit_code())
}
