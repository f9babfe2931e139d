//! The way from A to B as the middle sees it: when something goes over it, what waits in its buffer, and what is dropped there.

use std::time::Duration;

use crate::compare::PlayError;
use crate::conditions::Conditions;
use crate::delays::Delays;
use crate::network::{Direction, Plan, Wan};
use crate::path::Counts;

/// A program sends once so many bytes have arrived in the middle: 64 queue pairs take a while to meet. How often that is looked
/// at.
const SENDS_BYTES: u64 = 1_000_000;
const LOOK: Duration = Duration::from_millis(20);

/// The one path that all flows share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bottleneck {
    /// What it does to frames.
    pub conditions: Conditions,
    /// What it carries, in bits a second of Ethernet frames.
    pub line_bps: u64,
    /// The round trip without queues.
    pub round_trip: Duration,
}

/// What had been counted at a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    /// What frames waited in the buffer.
    pub waits: Delays,
    /// What became of frames.
    pub counts: Counts,
}

impl Bottleneck {
    /// The bottleneck of a network.
    ///
    /// # Errors
    /// When it has several rails or paths, or no rate.
    pub fn of(plan: &Plan) -> Result<Bottleneck, PlayError> {
        let [rail] = &plan.rails[..] else { return Err(PlayError::NoBottleneck) };
        match (&rail.there[..], &rail.back[..]) {
            ([Conditions { rate_bps: Some(line_bps), .. }], [back]) => {
                let conditions = rail.there[0];
                Ok(Bottleneck { conditions, line_bps: *line_bps, round_trip: conditions.delay + back.delay })
            }
            _ => Err(PlayError::NoBottleneck),
        }
    }

    pub(crate) fn bdp_bytes(&self) -> u64 {
        bdp_bytes(self.line_bps, self.round_trip)
    }

    /// Payload a second over a fair share of the line's frames.
    pub(crate) fn share(&self, bps: f64, flows: usize) -> f64 {
        bps * flows as f64 / self.line_bps as f64
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bottleneck_is_one_path_with_a_rate() {
        let plan = |text: &str| Plan::simple(text.parse().unwrap(), 1);
        let found = Bottleneck::of(&plan("delay=10ms,rate=100M,queue=250k")).unwrap();
        assert_eq!(
            (found.line_bps, found.round_trip, found.bdp_bytes()),
            (100_000_000, Duration::from_millis(20), 250_000)
        );
        let mut twice = plan("delay=10ms,rate=100M");
        twice.rails[0].there.extend_from_within(..);
        for plan in [plan("delay=10ms"), twice] {
            assert!(matches!(Bottleneck::of(&plan), Err(PlayError::NoBottleneck)));
        }
    }
}
