//! Batches of 2 MiB, one at a time, in virtual time: what cells of `uroce sim batches` keep to.

use uroce::congestion::CongestionControl;
use uroce::time::Duration;
use uroce_laboratory::sim::TransferOperation;
use uroce_laboratory::sim::batches::{BatchCell, Batches};

const SEED: u64 = 1;

fn cell(operation: TransferOperation, messages: usize, round_trip_ms: u64, loss: f64) -> BatchCell {
    let (round_trip, gap) = (Duration::from_millis(round_trip_ms), Duration::ZERO);
    BatchCell { operation, messages, loss, round_trip, gap, batches: 200, congestion: CongestionControl::default() }
}

/// A cell that keeps to its bound.
fn bounded(cell: BatchCell) -> Batches {
    let result = cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"));
    assert!(result.batches.p99 <= cell.bound(), "seed {SEED}, {cell:?}: {result:?} of {:?}", cell.bound());
    assert!(result.batches.median >= cell.round_trip + BatchCell::serialisation(), "{result:?}");
    result
}

/// A batch waits for nothing but the line: at a hundredth of a percent most batches lose nothing.
#[test]
fn where_losses_are_rare_batches_take_the_serialisation_and_a_round_trip() {
    for (messages, round_trip_ms) in [(1, 10), (1, 100), (256, 30)] {
        let cell = cell(TransferOperation::Write, messages, round_trip_ms, 0.000_01);
        let result = bounded(cell);
        let least = cell.round_trip + BatchCell::serialisation();
        assert!(result.batches.median < least * 102 / 100, "seed {SEED}, {cell:?}: {result:?}");
    }
}

/// A repair that is lost, and the last packet, which nothing follows, cost a round trip and a little each.
#[test]
fn at_one_percent_a_repair_that_is_lost_costs_a_round_trip_and_little_more() {
    for (messages, round_trip_ms) in [(1, 30), (256, 30)] {
        let result = bounded(cell(TransferOperation::Write, messages, round_trip_ms, 0.01));
        assert!(result.spurious_fraction < 0.001, "seed {SEED}: {result:?}");
    }
    // Two of 200 would be a matter of luck.
    bounded(BatchCell { batches: 1000, ..cell(TransferOperation::Read, 1, 30, 0.01) });
}

/// A controller that rests forgets nothing.
#[test]
fn a_pause_between_batches_changes_nothing() {
    let gap = Duration::from_millis(200);
    bounded(BatchCell { gap, ..cell(TransferOperation::Write, 16, 30, 0.01) });
}
