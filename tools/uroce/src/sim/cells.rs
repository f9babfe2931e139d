//! What the tables of `uroce sim` have in common: which cells, on how many threads.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use uroce::quantity;
use uroce_laboratory::sim::Goodput;

use crate::Failure;

/// What each of these tables is told.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Seed of all random decisions, such as which frames are lost.
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Test")]
    pub seed: u64,
    /// Number of threads, 1 to 256; results do not depend on it.
    #[arg(long, value_name = "N", default_value_t = super::default_threads(), help_heading = "Test",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    pub threads: u64,
    /// Print one JSON object per cell (docs/JSON.md).
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// A cell of a table: conditions, under which something is tried.
pub(super) trait Cell: Sync {
    /// What comes of it.
    type Outcome: Send;

    /// What its objects are called in docs/JSON.md.
    const SCHEMA: &'static str;

    /// The fields of [`which`](Cell::which) that `--only` may ask for.
    const KEYS: &'static [&'static str];

    /// Which cell it is, as the fields of an object.
    fn which(&self) -> Value;

    /// What came of it, as the fields of an object.
    fn fields(&self, outcome: &Self::Outcome) -> Value;

    /// Both, on a line for people.
    fn describe(&self, outcome: &Self::Outcome) -> String;

    /// Whether it came out as it must not.
    fn is_wrong(&self, outcome: &Self::Outcome) -> bool;
}

/// A table that was run.
pub(super) struct Sheet<O> {
    /// An object for each cell: which it is, and what came of it.
    pub lines: Vec<Value>,
    /// In the order of the cells.
    pub outcomes: Vec<O>,
    pub is_wrong: bool,
}

impl<O> Sheet<O> {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.is_wrong))
    }
}

/// Runs the cells on several threads, describes each on stderr when it is done, and prints the results.
pub(super) fn play<C: Cell>(
    cells: &[C],
    options: &Options,
    run: impl Fn(&C) -> C::Outcome + Sync,
) -> Sheet<C::Outcome> {
    let outcomes = run_all(cells, options.threads, run);
    let line = |(cell, outcome): (&C, &C::Outcome)| {
        let line =
            object(object(cell.which(), json!({ "schema": C::SCHEMA, "seed": options.seed })), cell.fields(outcome));
        if options.json {
            println!("{line}");
        } else {
            println!("{}", cell.describe(outcome));
        }
        line
    };
    let lines = cells.iter().zip(&outcomes).map(line).collect();
    let is_wrong = cells.iter().zip(&outcomes).any(|(cell, outcome)| cell.is_wrong(outcome));
    Sheet { lines, outcomes, is_wrong }
}

/// An object with the fields of both.
pub(super) fn object(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

/// What a cell came to, as fields.
pub(super) fn goodput_fields(result: &Goodput) -> Value {
    json!({
        "goodput_bps": result.goodput_bps,
        "completed_bps": result.completed_bps,
        "ideal_bps": result.ideal_bps,
        "spurious_fraction": result.spurious_fraction,
        "memory_bytes": result.memory_bytes,
        "frames": result.frames,
    })
}

/// The same in words; `whole` is what the ideal is called.
pub(super) fn goodput_text(result: &Goodput, whole: &str) -> String {
    format!(
        "{:6.3} Gb/s  {:6.2} % of {whole}  completed {:6.3}  spurious {:.4} %  memory {:.1} MB",
        result.goodput_bps / 1e9,
        result.goodput_bps / result.ideal_bps * 100.0,
        result.completed_bps / 1e9,
        result.spurious_fraction * 100.0,
        result.memory_bytes as f64 / 1e6,
    )
}

/// Keeps the cells that have what `--only` says: one of the values that `|` separates.
///
/// # Errors
/// A condition of another form, or that no cell fulfils.
pub(super) fn keep<C: Cell>(cells: &mut Vec<C>, only: &[String]) -> Result<(), Failure> {
    for condition in only {
        let (key, wanted) = condition.split_once('=').filter(|(key, _)| C::KEYS.contains(key)).ok_or_else(|| {
            format!("--only {condition}: write KEY=VALUE with one of the keys {}", C::KEYS.join(", "))
        })?;
        let fits = |cell: &C| {
            let value = &cell.which()[key];
            wanted.split('|').any(|wanted| is(value, wanted))
        };
        if !cells.iter().any(fits) {
            return Err(format!("--only {condition}: no cell of the table matches").into());
        }
        cells.retain(fits);
    }
    Ok(())
}

/// Whether a value of a cell is the one that this text says.
fn is(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(value) => value == wanted,
        Value::Bool(value) => wanted.parse() == Ok(*value),
        value => value.as_f64().is_some_and(|value| number(wanted) == Some(value)),
    }
}

/// A number of a cell, which may be a share in percent.
fn number(text: &str) -> Option<f64> {
    if text.ends_with('%') { quantity::share(text) } else { text.parse().ok() }
}

/// The outcomes, in the order of the cells.
pub(super) fn run_all<C: Cell>(cells: &[C], threads: u64, run: impl Fn(&C) -> C::Outcome + Sync) -> Vec<C::Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<C::Outcome>>> = Mutex::new(cells.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(index) else { break };
                    let outcome = run(cell);
                    eprintln!("{}/{}: {}", index + 1, cells.len(), cell.describe(&outcome));
                    outcomes.lock().expect("no thread panics")[index] = Some(outcome);
                }
            });
        }
    });
    outcomes.into_inner().expect("no thread panics").into_iter().flatten().collect()
}
