//! Tokens beside bulk, in virtual time: what cells of `uroce sim priorities` reach, with and without classes.

use uroce::time::Duration;
use uroce_laboratory::sim::priorities::{Meeting, Priorities, PriorityCell};

const SEED: u64 = 1;

/// Tokens that take as long as they may, beside bulk that loads the line.
fn bounded(meeting: Meeting, load: f64) -> Priorities {
    let cell = PriorityCell { meeting, load, tokens: 2000 };
    let result = cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"));
    assert!(result.classes.p99 <= result.bound, "seed {SEED}, {cell:?}: {result:?}");
    for latency in [result.classes, result.one_class] {
        assert!((load - 0.03..1.001).contains(&latency.load), "seed {SEED}, {cell:?}: {result:?}");
    }
    result
}

/// How much longer than without bulk one of a hundred takes.
fn wait(result: &Priorities, p99: Duration) -> Duration {
    p99.saturating_sub(result.idle)
}

/// Over 25 Gb/s and 10 µs: the bound is a frame's time a hop.
#[test]
fn where_hops_know_classes_a_token_waits_for_a_frame_a_hop() {
    for load in [0.95, 1.0] {
        let result = bounded(Meeting::Switch, load);
        assert!(result.idle < Duration::from_micros(6), "{result:?}");
        assert!(result.bound <= result.idle + Duration::from_nanos(2 * 1350), "{result:?}");
        let waits = [result.one_class, result.classes].map(|latency| wait(&result, latency.p99));
        assert!(waits[0] > 10 * waits[1], "without classes it is another matter: {result:?}");
    }
}

/// Over 1 Gb/s and 40 ms: the bound is 2 % of the round trip.
#[test]
fn over_a_line_that_is_one_queue_what_waits_waits_at_the_host() {
    let result = bounded(Meeting::WanLine, 0.95);
    assert_eq!(result.bound, result.idle + Duration::from_micros(800));
    assert!(wait(&result, result.one_class.p99) > 2 * wait(&result, result.classes.p99), "{result:?}");
    let result = bounded(Meeting::WanLine, 1.0);
    assert!(wait(&result, result.one_class.p99) > 50 * wait(&result, result.classes.p99), "{result:?}");
}

/// The host has nothing that waits. Bulk keeps the queue short: by its rates, and where nobody tells it one, for tokens.
#[test]
fn in_a_queue_far_away_a_token_waits_for_little_since_bulk_gives_way() {
    for load in [0.95, 1.0] {
        let result = bounded(Meeting::Wan, load);
        assert_eq!(result.bound, result.idle + Duration::from_micros(800));
    }
}
