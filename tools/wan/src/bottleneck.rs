//! The way from A to B as the middle sees it: when something goes over it, what waits in its buffer, and what is dropped there.

use std::time::Duration;

use crate::delays::Delays;
use crate::network::{Direction, Wan};
use crate::path::Counts;

/// A program sends once so many bytes have arrived in the middle: 64 queue pairs take a while to meet. How often that is looked
/// at.
const SENDS_BYTES: u64 = 1_000_000;
const LOOK: Duration = Duration::from_millis(20);

/// What had been counted at a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    /// What frames waited in the buffer.
    pub waits: Delays,
    /// What became of frames.
    pub counts: Counts,
}

impl Sight {
    /// What is counted now.
    pub fn now(wan: &Wan) -> Sight {
        Sight { waits: wan.waits(0, Direction::AToB, 0), counts: wan.path_counts(0, Direction::AToB, 0) }
    }
}

/// Waits until a program sends, or `is_over`.
pub(crate) fn await_sending(wan: &Wan, is_over: impl Fn() -> bool) {
    while wan.path_counts(0, Direction::AToB, 0).arrived_bytes < SENDS_BYTES && !is_over() {
        std::thread::sleep(LOOK);
    }
}

/// What a line of so many bits a second carries in a round trip: its bandwidth-delay product.
pub(crate) fn bdp_bytes(line_bps: u64, round_trip: Duration) -> u64 {
    (line_bps as f64 / 8.0 * round_trip.as_secs_f64()) as u64
}

/// The share of frames that found the buffer full, of those that came between two moments.
pub(crate) fn dropped_between(before: &Counts, after: &Counts) -> f64 {
    (after.queue_full - before.queue_full) as f64 / (after.arrived - before.arrived).max(1) as f64
}
