use crate::time::{Duration, Instant};

use super::Flight;
use super::losses::{LOOK_BYTES, Losses};

/// Notices that so much is lost that it cannot be by chance, and that nobody sees a queue although there is one: packets that
/// are sent again tell no round trip.
#[derive(Debug, Default)]
pub(super) struct Flood {
    began: Instant,
    /// What had been delivered and lost by then.
    losses: Losses,
    /// Looks in a row that showed it.
    looks: u32,
}

/// The shortest time of which a share of losses is computed: hosts rest for some milliseconds, and handle then what came.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// How much it takes to tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The least bytes of which a share of losses is computed.
    bytes: u64,
    /// Looks in a row.
    lasts: u32,
}

impl Look {
    pub const USUAL: Look = Look { bytes: LOOK_BYTES, lasts: 1 };

    /// That of a start, which overruns a queue for a round trip.
    pub const START: Look = Look { bytes: LOOK_BYTES, lasts: 2 };

    /// That of a window of a few packets, a hundred of which take tens of round trips: at 32, and at 32 more.
    pub const SMALL: Look = Look { bytes: 137_600, lasts: 2 };
}

/// The share of losses that is not by chance.
const FLOODED: f64 = 0.25;

impl Flood {
    /// Takes what is known of packets. Returns what arrives, in bytes a second, when more is lost than can be by chance, at
    /// most once a round trip, and when as many looks in a row show it as it takes.
    pub fn take(&mut self, flight: &Flight, look: Look, now: Instant) -> Option<f64> {
        let lasted = now.saturating_since(self.began);
        let (delivered, lost) = self.losses.since(flight);
        if lost + delivered < look.bytes || lasted < LOOK.max(flight.smoothed().unwrap_or_default()) {
            return None;
        }
        let is_flooded = lost as f64 > FLOODED * (lost + delivered) as f64;
        let looks = if is_flooded { self.looks + 1 } else { 0 };
        let counts = looks >= look.lasts;
        // What is found to be lost after this was sent before it.
        let looks = if counts { 0 } else { looks };
        *self = Flood { began: now, losses: Losses::until(flight), looks };
        counts.then(|| delivered as f64 / lasted.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Progress;
    use super::*;

    const PACKET: u64 = 4300;

    /// Milliseconds in each of which `delivered` packets arrive and `lost` are lost. Returns what was found to arrive.
    fn pass(
        state: &mut (Flood, Flight, Instant),
        milliseconds: u64,
        delivered: u64,
        lost: u64,
        look: Look,
    ) -> Vec<f64> {
        let (flood, flight, now) = state;
        let mut found = Vec::new();
        for _ in 0..milliseconds {
            *now = *now + Duration::from_millis(1);
            let progress =
                Progress { delivered_bytes: delivered * PACKET, lost_bytes: lost * PACKET, ..Progress::default() };
            flight.take(&progress, 0, *now);
            found.extend(flood.take(flight, look, *now));
        }
        found
    }

    fn state() -> (Flood, Flight, Instant) {
        let mut state = (Flood::default(), Flight::default(), Instant::from_ns(1_000_000_000));
        assert_eq!(pass(&mut state, 1, 100, 0, Look::USUAL), []);
        state
    }

    #[test]
    fn more_than_a_quarter_lost_is_not_by_chance() {
        let mut state = state();
        assert_eq!(pass(&mut state, 100, 15, 5, Look::USUAL), []);
        let found = pass(&mut state, 100, 14, 6, Look::USUAL);
        assert_eq!(found.len(), 10, "once in 10 ms: {found:?}");
        assert!(found.iter().all(|found| (found / (14e3 * PACKET as f64) - 1.0).abs() < 0.01), "{found:?}");
    }

    #[test]
    fn a_start_that_overruns_a_queue_once_does_not_count_and_it_counts_when_it_lasts() {
        let mut state = state();
        for _ in 0..10 {
            assert_eq!(pass(&mut state, 10, 5, 10, Look::START), []);
            assert_eq!(pass(&mut state, 10, 15, 0, Look::START), []);
        }
        assert_eq!(pass(&mut state, 20, 5, 10, Look::START).len(), 1);
    }

    #[test]
    fn a_few_packets_say_nothing() {
        let mut state = state();
        assert_eq!(pass(&mut state, 99, 0, 1, Look::USUAL), []);
        assert_eq!(pass(&mut state, 1, 0, 1, Look::USUAL), [0.0]);
    }

    #[test]
    fn of_a_window_of_a_few_packets_two_looks_at_a_few_tell() {
        let mut state = state();
        assert_eq!(pass(&mut state, 63, 0, 1, Look::SMALL), []);
        assert_eq!(pass(&mut state, 1, 0, 1, Look::SMALL), [0.0]);
    }
}
