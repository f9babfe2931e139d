//! Tokens beside KV transfers at full rate, in virtual time: what cells of `uroce sim tokens` reach, with and without classes.

use uroce::time::Duration;
use uroce_laboratory::sim::{TokenCell, TokenDelays};

const SEED: u64 = 1;

/// A cell whose tokens keep to 2 % of the round trip over those without transfers, beside transfers that give up little.
fn bounded(line_bps: u64, rtt_ms: u64, flows: usize, loss: f64) -> (TokenCell, TokenDelays) {
    let cell = TokenCell { line_bps, round_trip: Duration::from_millis(rtt_ms), flows, loss, tokens: 3000 };
    let result = cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"));
    assert!(result.classes.p99 <= result.idle.p99 + cell.allowance(), "seed {SEED}, {cell:?}: {result:?}");
    let [with, without] = [result.classes, result.one_class].map(|delay| delay.goodput_bps);
    assert!(
        with > 0.95 * without && without > 0.96 * (1.0 - loss) * line_bps as f64,
        "seed {SEED}, {cell:?}: {result:?}"
    );
    (cell, result)
}

#[test]
fn transfers_of_class_bulk_keep_the_queue_short_for_urgent_messages() {
    for (line_bps, rtt_ms, flows) in [(300_000_000, 30, 1), (300_000_000, 40, 4), (1_000_000_000, 30, 4)] {
        let (cell, result) = bounded(line_bps, rtt_ms, flows, 0.0);
        let half = cell.round_trip / 2;
        assert!((half..half + Duration::from_micros(10)).contains(&result.idle.p99), "{result:?}");
        assert!(result.one_class.p99 > result.idle.p99 + cell.allowance(), "of one class they do not: {result:?}");
        assert!(result.classes.queue_p99 * 2 < result.one_class.queue_p99, "{result:?}");
    }
}

/// A token that is lost takes a round trip more, and those behind it wait for it: with transfers and without.
#[test]
fn under_loss_tokens_beside_transfers_wait_as_without_them() {
    for (line_bps, flows, loss) in [(300_000_000, 1, 0.001), (1_000_000_000, 4, 0.01)] {
        let (cell, result) = bounded(line_bps, 40, flows, loss);
        assert!(result.idle.p99 > cell.round_trip * 3 / 4, "without loss it is half: {result:?}");
    }
}
