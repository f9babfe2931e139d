//! Nobody types a rate, in virtual time: what cells of `uroce sim congestion` and `uroce sim loss-rtt` reach. The tables have
//! all of them; here are some that take a second each.

use uroce::congestion::CongestionControl;
use uroce::time::Duration;
use uroce_laboratory::sim::TransferOperation;
use uroce_laboratory::sim::congestion::{Congestion, CongestionCell, Scenario};
use uroce_laboratory::sim::loss_rtt::{Cell, Ends};

const SEED: u64 = 1;

/// Flows over 10 Gb/s and 20 ms, with a buffer of a tenth of what is on the way.
fn over_a_shallow_buffer(flows: usize, loss: f64) -> Congestion {
    let cell = CongestionCell {
        scenario: if loss == 0.0 { Scenario::Wan } else { Scenario::WanLoss },
        control: CongestionControl::default(),
        flows,
        round_trip: Duration::from_millis(20),
        line_bps: 10_000_000_000,
        buffer_bdp: 0.1,
        loss,
    };
    cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"))
}

/// It reaches 80 % within `start` round trips, and keeps to what is asked of it from then on.
fn assert_steady(reached: &Congestion, start: f64) {
    let Congestion { utilisation, p99_queue_over_rtt, queue_drops, start_rtts, .. } = reached;
    assert!(*utilisation >= 0.95, "seed {SEED}: {reached:?}");
    assert!(*p99_queue_over_rtt <= 0.05, "seed {SEED}: {reached:?}");
    assert!(*queue_drops <= 0.001, "seed {SEED}: {reached:?}");
    assert!(start_rtts.is_some_and(|rtts| rtts <= start), "seed {SEED}: {reached:?}");
}

#[test]
fn a_flow_finds_the_rate_and_keeps_the_queue_short() {
    let reached = over_a_shallow_buffer(1, 0.0);
    assert_steady(&reached, 12.0);
    assert!(reached.start_drops_buffers <= 1.0, "seed {SEED}: {reached:?}");
}

/// BBR v3 takes more than 2 % of loss for congestion, CUBIC any.
#[test]
fn what_is_lost_by_chance_is_not_taken_for_congestion() {
    // At 5 %, whole trains of the start are lost.
    for (loss, start) in [(0.001, 12.0), (0.01, 12.0), (0.05, 14.0)] {
        assert_steady(&over_a_shallow_buffer(1, loss), start);
    }
}

#[test]
fn four_flows_share_a_bottleneck_without_loss() {
    assert_steady(&over_a_shallow_buffer(4, 0.0), 12.0);
}

/// Their sender learns only from the requester's reports what became of READ responses, and at 5 % of loss many of the first
/// ones are asked for again.
#[test]
fn reads_find_the_rate_whatever_is_lost_at_the_start() {
    for round_trip_ms in [10, 40] {
        let cell = Cell {
            operation: TransferOperation::Read,
            ends: Ends::Selective,
            loss: 0.05,
            bursts: false,
            round_trip: Duration::from_millis(round_trip_ms),
            congestion: CongestionControl::default(),
        };
        let reached = cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"));
        assert!(reached.goodput_bps >= 0.95 * reached.ideal_bps, "seed {SEED}, {cell:?}: {reached:?}");
    }
}
