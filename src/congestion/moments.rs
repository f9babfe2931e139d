use crate::time::{Duration, Instant};

/// The least round trips between two moments.
const ROUNDS: u32 = 8;

/// The next moment at which flows of this round trip look for something together: a multiple of a power of two of nanoseconds by
/// the clock of the host, of [`ROUNDS`] round trips or more. Each doubling takes every other one away, so that who looks more
/// seldom does so together with the others.
pub(super) fn next(round_trip: Duration, doublings: u32, now: Instant) -> Instant {
    let every = ((round_trip * ROUNDS).as_nanos() as u64).next_power_of_two() << doublings;
    Instant::from_ns((now.as_ns() / every + 1) * every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_the_same_for_all_and_those_of_longer_waits_are_among_them() {
        let (round_trip, every) = (Duration::from_millis(20), 1_u64 << 28);
        let next_of = |doublings, ns| next(round_trip, doublings, Instant::from_ns(ns)).as_ns();
        for ns in [1, every / 2, every - 1] {
            assert_eq!([0, 1, 2].map(|doublings| next_of(doublings, ns)), [every, 2 * every, 4 * every]);
        }
        assert_eq!(next_of(0, every), 2 * every, "the next one, not this");
    }
}
