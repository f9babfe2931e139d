//! Deadline mode in virtual time: what cells of `uroce sim deadline` keep to.

use uroce::time::Duration;
use uroce_laboratory::sim::deadline::{DeadlineCell, Deadlines};

const SEED: u64 = 1;

fn run(bursts: bool, repair_per_mille: u16) -> (DeadlineCell, Deadlines) {
    let cell =
        DeadlineCell { loss: 0.01, bursts, round_trip: Duration::from_millis(100), repair_per_mille, chunks: 200 };
    let result = cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"));
    (cell, result)
}

/// Chunks of 1 MiB over 300 Mb/s, 100 ms and 1 % of loss: 99 of 100 take at most 1.05 times as long as without losses.
#[test]
fn repair_symbols_make_up_for_losses_without_a_round_trip() {
    for (bursts, repair_per_mille) in [(false, 120), (true, 240)] {
        let (cell, result) = run(bursts, repair_per_mille);
        assert!(cell.limit().is_some() && cell.keeps(&result), "seed {SEED}, {cell:?}: {result:?}");
        // Without losses there is nothing but a round trip and the serialisation, and little more.
        let least = cell.round_trip + DeadlineCell::serialisation();
        assert!(result.lossless_p99 < least * 102 / 100 && result.lossless_p99 >= least, "{result:?}");
    }
}

/// Without them most chunks lose a packet, and wait for a round trip more.
#[test]
fn selective_repeat_waits_for_a_round_trip() {
    let (cell, result) = run(false, 0);
    assert!(result.repaired > 0.8 && result.chunks.median > result.lossless_p99 + cell.round_trip / 2, "{result:?}");
    assert!(result.overhead < 0.02, "{result:?}");
}
