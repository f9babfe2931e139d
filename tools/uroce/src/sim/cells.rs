//! What the tables of `uroce sim` have in common: which cells, on how many threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use uroce_laboratory::sim::Goodput;

use crate::Failure;

/// What each of these tables is told.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Seed of all random decisions, such as which frames are lost.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of threads; results do not depend on it.
    #[arg(long, default_value_t = super::default_threads(), value_parser = clap::value_parser!(u64).range(1..=256))]
    pub threads: u64,
    /// Print one JSON object per cell.
    #[arg(long)]
    pub json: bool,
}

/// An object with the fields of both: which cell it is, and what it came to.
pub(super) fn object(mut cell: Value, result: Value) -> Value {
    if let (Value::Object(cell), Value::Object(result)) = (&mut cell, result) {
        cell.extend(result);
    }
    cell
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

/// Keeps the cells that have what `--only` says. `value` gives a cell's value of a key.
///
/// # Errors
/// A condition of another form, or that no cell fulfils.
pub(super) fn keep<C>(
    cells: &mut Vec<C>,
    only: &[String],
    keys: &[&str],
    value: impl Fn(&C, &str) -> String,
) -> Result<(), Failure> {
    for condition in only {
        let (key, wanted) = condition
            .split_once('=')
            .filter(|(key, _)| keys.contains(key))
            .ok_or_else(|| format!("--only {condition}: write KEY=VALUE with one of the keys {}", keys.join(", ")))?;
        let number = wanted.parse::<f64>();
        let fits = |cell: &C| match (&number, value(cell, key).parse::<f64>()) {
            (Ok(wanted), Ok(value)) => *wanted == value,
            _ => value(cell, key) == wanted,
        };
        if !cells.iter().any(fits) {
            return Err(format!("--only {condition}: no cell of the table matches").into());
        }
        cells.retain(fits);
    }
    Ok(())
}

/// Runs the cells on several threads, and tells of each as it is done. Results are in the order of the cells.
pub(super) fn run<C: Sync, R: Send>(
    cells: &[C],
    threads: u64,
    run: impl Fn(&C) -> R + Sync,
    describe: impl Fn(&C, &R) -> String + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(cells.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(index) else { break };
                    let result = run(cell);
                    eprintln!("{}/{}: {}", index + 1, cells.len(), describe(cell, &result));
                    results.lock().expect("no thread panics")[index] = Some(result);
                }
            });
        }
    });
    results.into_inner().expect("no thread panics").into_iter().flatten().collect()
}
