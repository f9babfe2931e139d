use std::collections::BTreeSet;

use uroce::time::{Duration, Instant};

use super::random::Random;

/// An ideal selective repeat: it sends at the rate of the line, knows of each lost packet a round trip after it was sent,
/// and sends it again at once. Nothing is lost on the way back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ideal {
    /// The packets that are to arrive.
    pub packets: u64,
    /// How long the line takes to send one.
    pub frame: Duration,
    pub round_trip: Duration,
    /// The share of packets that are lost, repairs too, 0 to 1 without the 1.
    pub loss: f64,
}

impl Ideal {
    /// How long the packets take until the sender knows that the last one has arrived.
    pub fn batch(&self, random: &mut Random) -> Duration {
        // When each lost packet can be sent again, and which.
        let mut repairs: BTreeSet<(Instant, u64)> = BTreeSet::new();
        let (mut now, mut next, mut known) = (Instant::ZERO, 0, Instant::ZERO);
        loop {
            let due = repairs.first().filter(|(at, _)| *at <= now || next == self.packets).copied();
            let number = match due {
                Some(repair) => {
                    repairs.remove(&repair);
                    now = now.max(repair.0);
                    repair.1
                }
                None if next < self.packets => {
                    next += 1;
                    next - 1
                }
                None => return known - Instant::ZERO,
            };
            now = now + self.frame;
            let told = now + self.round_trip;
            if random.chance(self.loss) {
                repairs.insert((told, number));
            } else {
                known = known.max(told);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDEAL: Ideal =
        Ideal { packets: 500, frame: Duration::from_micros(100), round_trip: Duration::from_millis(30), loss: 0.0 };

    #[test]
    fn without_losses_it_takes_the_serialisation_and_a_round_trip() {
        assert_eq!(IDEAL.batch(&mut Random::new(1, 0)), Duration::from_millis(80));
    }

    #[test]
    fn a_packet_that_is_lost_k_times_comes_k_round_trips_later() {
        let one = Ideal { packets: 1, loss: 0.5, ..IDEAL };
        let mut random = Random::new(1, 0);
        let took: Vec<Duration> = (0..4000).map(|_| one.batch(&mut random)).collect();
        let round = IDEAL.round_trip + IDEAL.frame;
        for (rounds, share) in [(1, 0.5), (2, 0.25), (3, 0.125)] {
            let found = took.iter().filter(|took| **took == round * rounds).count() as f64 / took.len() as f64;
            assert!((share - 0.03..share + 0.03).contains(&found), "seed 1: {rounds}: {found}");
        }
    }

    #[test]
    fn a_loss_at_the_beginning_costs_no_round_trip() {
        let long = Ideal { packets: 5000, loss: 0.001, ..IDEAL };
        let mut random = Random::new(1, 0);
        let mut took: Vec<Duration> = (0..200).map(|_| long.batch(&mut random)).collect();
        took.sort_unstable();
        // Five are lost of 500 ms, each of them is sent once more.
        let median = took[took.len() / 2];
        assert!((Duration::from_micros(530_200)..Duration::from_millis(560)).contains(&median), "seed 1: {median:?}");
    }
}
