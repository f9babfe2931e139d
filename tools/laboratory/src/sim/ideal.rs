use std::cmp::Reverse;
use std::collections::BinaryHeap;

use uroce::time::{Duration, Instant};

use super::batches::Times;
use super::goodput::{FRAME, PAYLOAD};
use super::random::Random;

/// An ideal selective repeat: it sends at the rate of the line, knows of each lost packet a round trip after it was sent,
/// and sends it again at once. Nothing is lost on the way back.
#[derive(Clone, Copy, Debug)]
pub struct Ideal {
    /// The packets that are to arrive.
    pub packets: u64,
    /// How long the line takes to send one.
    pub frame: Duration,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The share of packets that are lost, repairs too, 0 to 1 without the 1.
    pub loss: f64,
}

impl Ideal {
    /// One for batches of `bytes` over a line of `line_bps`, in bits of Ethernet frames a second, at path MTU 4096.
    pub fn new(bytes: u64, line_bps: u64, round_trip: Duration, loss: f64) -> Ideal {
        let frame = Duration::from_nanos(FRAME * 8_000_000_000 / line_bps);
        Ideal { packets: Ideal::packets_of(bytes), frame, round_trip, loss }
    }

    /// The packets of a message of so many bytes.
    pub fn packets_of(bytes: u64) -> u64 {
        bytes.div_ceil(PAYLOAD)
    }

    /// What `runs` batches take, at least one, each alone on the path.
    pub fn times(&self, runs: usize, random: &mut Random) -> Times {
        Times::of((0..runs).map(|_| self.batch(random)).collect())
    }

    /// How long the packets take until the sender knows that the last one has arrived.
    pub fn batch(&self, random: &mut Random) -> Duration {
        self.pieces([(Duration::ZERO, self.packets)], random)
    }

    /// The same of packets that are there in pieces: the time of each, which does not go back, and its number of packets.
    pub fn pieces(&self, pieces: impl IntoIterator<Item = (Duration, u64)>, random: &mut Random) -> Duration {
        let mut new =
            pieces.into_iter().flat_map(|(at, packets)| (0..packets).map(move |_| Instant::ZERO + at)).peekable();
        // When each lost packet can be sent again.
        let mut repairs: BinaryHeap<Reverse<Instant>> = BinaryHeap::new();
        let (mut now, mut known) = (Instant::ZERO, Instant::ZERO);
        loop {
            // A repair goes first when both are there.
            let repair =
                repairs.peek().map(|Reverse(at)| *at).filter(|at| *at <= now || new.peek().is_none_or(|new| at <= new));
            let at = match repair {
                Some(at) => {
                    repairs.pop();
                    at
                }
                None => match new.next() {
                    Some(at) => at,
                    None => return known - Instant::ZERO,
                },
            };
            now = now.max(at) + self.frame;
            let told = now + self.round_trip;
            if random.chance(self.loss) {
                repairs.push(Reverse(told));
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
    fn batches_take_the_time_of_their_frames() {
        // 512 frames of 4154 bytes at 300 Mb/s are 56.7 ms.
        let ideal = Ideal::new(2 << 20, 300_000_000, Duration::from_millis(30), 0.0);
        let Times { median, p99, max } = ideal.times(3, &mut Random::new(1, 0));
        assert!((median.as_secs_f64() - 0.0867).abs() < 1e-4, "{median:?}");
        assert_eq!([p99, max], [median; 2]);
    }

    #[test]
    fn each_repair_that_is_lost_costs_a_round_trip() {
        // Rarely the last packets are lost, so a repair costs less than a round trip; and never less than nothing.
        let p99 =
            |loss| Ideal::new(2 << 20, 300_000_000, IDEAL.round_trip, loss).times(20_000, &mut Random::new(1, 0)).p99;
        let (few, many) = (p99(1e-3).as_secs_f64(), p99(1e-2).as_secs_f64());
        assert!((0.0867..=0.1169).contains(&few), "seed 1: {few}");
        assert!((0.1167..=0.147).contains(&many), "seed 1: {many}");
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

    #[test]
    fn pieces_wait_until_they_are_there_and_repairs_go_meanwhile() {
        let ms = Duration::from_millis;
        let pieces = [(ms(0), 100), (ms(50), 100), (ms(55), 100)];
        // The third waits for the second: 50 + 10 + 10 ms, and a round trip.
        assert_eq!(IDEAL.pieces(pieces, &mut Random::new(1, 0)), ms(100));
        // Whatever is lost of the first piece is repaired in the pause, and costs nothing.
        let lossy = Ideal { loss: 0.01, ..IDEAL };
        let mut random = Random::new(1, 0);
        let took: Vec<Duration> = (0..1000).map(|_| lossy.pieces([(ms(0), 100), (ms(200), 1)], &mut random)).collect();
        let in_time = took.iter().filter(|took| **took == ms(230) + IDEAL.frame).count();
        assert!((970..=997).contains(&in_time), "seed 1: {in_time} of 1000, less those whose last packet is lost");
    }
}
