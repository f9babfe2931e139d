//! What the tables of `uroce sim` have in common: which cells, on how many threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Failure;

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
            return Err(format!("--only {condition}: no cell of the table has that").into());
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
