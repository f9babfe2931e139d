//! `uroce sim attack`: what a stranger's packets do to a connection.

use std::process::ExitCode;

use serde_json::{Value, json};
use uroce_laboratory::sim::attack::{AttackCell, AttackOutcome, AttackResult, Effort};

use crate::Failure;

use super::cells::{self, Options};

/// Success rate of forged packets from an off-path attacker, computed and measured; exit status 1 when a measured count exceeds
/// its bound.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Run only matching cells: attack=send-only, victim=plain|auto-plain|auto-auto; conditions separated by commas. A key that
    /// is not given matches all its values.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Forged packets in each cell.
    #[arg(long, default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    packets: u64,
    /// Forged packets per second.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Unknown bits of the PSN; 24 when the attacker knows none.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(8..=24))]
    psn_bits: u32,
}

fn value(cell: &AttackCell, key: &str) -> String {
    match key {
        "attack" => cell.forgery.name().to_owned(),
        _ => cell.victim.name().to_owned(),
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = AttackCell::all();
    cells::keep(&mut cells, &arguments.only, &["attack", "victim"], value)?;
    let Arguments { packets, rate, psn_bits, .. } = *arguments;
    let (seed, effort) = (arguments.options.seed, Effort { packets, packets_per_second: rate, psn_bits });
    let run = |cell: &AttackCell| cell.run(effort, seed);
    let describe = |cell: &AttackCell, result: &Result<AttackResult, String>| describe(cell, result, rate);
    let results = cells::run(&cells, arguments.options.threads, run, describe);
    let is_wrong = |result: &Result<AttackResult, String>| {
        result.as_ref().map_or(true, |result| result.exceeded().next().is_some())
    };
    let failed = results.iter().any(is_wrong);
    for (cell, result) in cells.iter().zip(&results) {
        if arguments.options.json {
            let which = json!({ "victim": cell.victim.name(), "attack": cell.forgery.name(), "seed": seed });
            println!("{}", cells::object(which, fields(result, rate)));
        } else {
            println!("{}", describe(cell, result));
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Seconds until an outcome is to be expected, at so many packets a second; `None` for never.
fn seconds(expected: f64, packets: u64, rate: u64) -> Option<f64> {
    (expected > 0.0).then(|| packets as f64 / expected / rate as f64)
}

fn fields(result: &Result<AttackResult, String>, rate: u64) -> Value {
    let result = match result {
        Ok(result) => result,
        Err(error) => return json!({ "violation": error }),
    };
    let outcome = |outcome: AttackOutcome| {
        let expected = result.expected(outcome);
        let fields = json!({
            "measured": result.counts[outcome],
            "computed": expected,
            "bound": result.bound(outcome),
            "computed_seconds": expected.and_then(|expected| seconds(expected, result.packets, rate)),
            "measured_seconds": seconds(result.counts[outcome] as f64, result.packets, rate),
            "exceeds": result.exceeded().any(|exceeded| exceeded == outcome),
        });
        (outcome.name().to_owned(), fields)
    };
    let outcomes: serde_json::Map<_, _> = AttackOutcome::ALL.into_iter().map(outcome).collect();
    json!({
        "packets": result.packets,
        "packets_per_second": rate,
        "psn_bits": result.psn_bits,
        "connections": result.connections,
        "messages": result.completed,
        "outcomes": outcomes,
    })
}

/// A line, and one for each outcome that was seen or could be.
fn describe(cell: &AttackCell, result: &Result<AttackResult, String>, rate: u64) -> String {
    let what = format!("{:10} {:20}", cell.victim.name(), cell.forgery.name());
    let result = match result {
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
        if let Some(seconds) = seconds(expected, result.packets, rate) {
            text += &format!("  one in {}", duration(seconds));
        }
    }
    text
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
