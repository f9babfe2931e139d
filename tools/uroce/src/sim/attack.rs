//! `uroce sim attack`: what a stranger's packets do to a connection.

use std::process::ExitCode;

use serde_json::{Value, json};
use uroce_laboratory::sim::attack::{AttackCell, AttackOutcome, AttackResult, Effort};

use crate::Failure;

use super::cells::{self, Cell, Options};

const EXAMPLES: &str = "\
Examples:
  uroce sim attack --packets 1000000 --only victim=plain
  uroce sim attack --psn-bits 12 --packets 1000000
  uroce sim attack --json | jq .outcomes";

/// Success rate of forged packets from an off-path attacker, computed and measured.
///
/// Exit status 1 when a measured count exceeds its bound.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Run only matching cells: attack=send-only, victim=plain|auto-plain|auto-auto; conditions separated by commas. A key that
    /// is not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Forged packets in each cell.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    packets: u64,
    /// Forged packets per second.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Unknown bits of the PSN, 8 to 24; 24 when the attacker knows none.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 24, value_parser = clap::value_parser!(u32).range(8..=24))]
    psn_bits: u32,
}

impl Cell for AttackCell {
    type Outcome = Result<AttackResult, String>;

    const SCHEMA: &'static str = "uroce.sim.attack/1";

    const KEYS: &'static [&'static str] = &["attack", "victim"];

    fn which(&self) -> Value {
        json!({ "victim": self.victim.name(), "attack": self.forgery.name() })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        let result = match outcome {
            Ok(result) => result,
            Err(error) => return json!({ "violation": error }),
        };
        let outcome = |outcome: AttackOutcome| {
            let expected = result.expected(outcome);
            let fields = json!({
                "measured": result.counts[outcome],
                "computed": expected,
                "bound": result.bound(outcome),
                "computed_seconds": expected.and_then(|expected| seconds(result, expected)),
                "measured_seconds": seconds(result, result.counts[outcome] as f64),
                "exceeds": result.exceeded().any(|exceeded| exceeded == outcome),
            });
            (outcome.name().to_owned(), fields)
        };
        let outcomes: serde_json::Map<_, _> = AttackOutcome::ALL.into_iter().map(outcome).collect();
        json!({
            "packets": result.packets,
            "packets_per_second": result.packets_per_second,
            "psn_bits": result.psn_bits,
            "connections": result.connections,
            "messages": result.completed,
            "outcomes": outcomes,
        })
    }

    /// A line, and one for each outcome that was seen or could be.
    fn describe(&self, outcome: &Self::Outcome) -> String {
        let what = format!("{:10} {:20}", self.victim.name(), self.forgery.name());
        let result = match outcome {
            Ok(result) => result,
            Err(error) => return format!("{what}  {error}"),
        };
        let mut text = format!("{what}  {} packets", result.packets);
        for outcome in AttackOutcome::ALL {
            let (measured, expected) = (result.counts[outcome], result.expected(outcome));
            if measured == 0 && expected.is_none_or(|expected| expected == 0.0) {
                continue;
            }
            text += &format!("\n    {:17}  measured {measured:4}", outcome.name());
            if let (Some(expected), Some(bound)) = (expected, result.bound(outcome)) {
                let verdict = if measured > bound { "  EXCEEDED" } else { "" };
                text += &format!("  computed {expected:8.3}, at most {bound}{verdict}");
            }
            let expected = expected.unwrap_or(measured as f64);
            if let Some(seconds) = seconds(result, expected) {
                text += &format!("  one in {}", duration(seconds));
            }
        }
        text
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        outcome.as_ref().map_or(true, |result| result.exceeded().next().is_some())
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = AttackCell::all();
    cells::keep(&mut cells, &arguments.only)?;
    let Arguments { packets, rate, psn_bits, .. } = *arguments;
    let effort = Effort { packets, packets_per_second: rate, psn_bits };
    Ok(cells::play(&cells, &arguments.options, |cell| cell.run(effort, arguments.options.seed)).exit_code())
}

/// Seconds until so many outcomes as are expected have happened once; `None` for never.
fn seconds(result: &AttackResult, expected: f64) -> Option<f64> {
    (expected > 0.0).then(|| result.packets as f64 / expected / result.packets_per_second as f64)
}

/// A time with its unit, to three digits.
fn duration(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.3} µs", seconds * 1e6),
        1e-3..1.0 => format!("{:.0} ms", seconds * 1e3),
        1.0..600.0 => format!("{seconds:.1} s"),
        600.0..172_800.0 => format!("{:.1} hours", seconds / 3600.0),
        172_800.0..1e8 => format!("{:.0} days", seconds / 86_400.0),
        _ => format!("{:.0} years", seconds / 31_557_600.0),
    }
}
