use std::collections::VecDeque;
use std::time::Duration;

use super::{Part, chunks};

/// What a connection does with chunks, as its program has measured it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Payload that it carries while there is something to send, in bits a second, above 0.
    pub rate_bps: f64,
    /// From sending a short message until it is acknowledged.
    pub round_trip: Duration,
    /// What a message costs the sender beside its bytes, from one post to the next.
    pub message: Duration,
    /// Messages that can be on their way at once, at least 1: the lesser of the send queue and the receives posted ahead.
    pub outstanding: usize,
}

/// The shortest chunk that is looked at, and the longest, in bytes: a packet of the largest path MTU, and the longest power of
/// two that is a message (IBTA 9.7.7: 2^31).
const SHORTEST: u64 = 4096;
const LONGEST: u64 = 1 << 31;

/// The most chunks that are looked at for a size: there is little to gain from more, and the choice takes milliseconds.
const MOST_CHUNKS: u64 = 1 << 16;

/// How much longer than with the best size a stream may take with the chosen one, if that makes fewer messages.
const SLACK: f64 = 0.01;

impl Conditions {
    /// How long a stream takes from its beginning until its last chunk is acknowledged.
    ///
    /// # Panics
    /// When `chunk_bytes` is 0.
    pub fn total(&self, parts: &[Part], chunk_bytes: u64) -> Duration {
        self.total_with_places(parts, chunk_bytes, self.round_trip)
    }

    /// The same where a message has its place in the send queue for so long after its last byte has left.
    fn total_with_places(&self, parts: &[Part], chunk_bytes: u64, place: Duration) -> Duration {
        let (mut may_post, mut free) = (Duration::ZERO, Duration::ZERO);
        let mut ends: VecDeque<Duration> = VecDeque::with_capacity(self.outstanding);
        for chunk in chunks(parts, chunk_bytes) {
            let room =
                if ends.len() == self.outstanding { ends.pop_front().unwrap_or_default() } else { Duration::ZERO };
            let posted = chunk.ready.max(may_post).max(room);
            may_post = posted + self.message;
            free = free.max(may_post) + Duration::from_secs_f64(chunk.bytes as f64 * 8.0 / self.rate_bps);
            ends.push_back(free + place);
        }
        ends.pop_back().map_or(Duration::ZERO, |end| end - place + self.round_trip)
    }

    /// The chunk size in bytes with which a stream takes the least time, to 1 %; of such sizes the longest, which makes the
    /// fewest messages. A power of two.
    ///
    /// It counts on losses: a message keeps its place among those on their way for a second round trip, in which a lost packet
    /// is repaired. Where these are few, chunks are longer for it.
    pub fn choose(&self, parts: &[Part]) -> u64 {
        let total: u64 = parts.iter().map(|part| part.bytes).sum();
        let shortest = (total / MOST_CHUNKS).next_power_of_two().clamp(SHORTEST, LONGEST);
        let longest = total.next_power_of_two().clamp(shortest, LONGEST);
        let sizes = (shortest.ilog2()..=longest.ilog2()).map(|power| 1 << power);
        let place = self.round_trip * 2;
        let times: Vec<(u64, Duration)> =
            sizes.map(|size| (size, self.total_with_places(parts, size, place))).collect();
        let best = times.iter().map(|(_, time)| *time).min().unwrap_or_default();
        let limit = best.mul_f64(1.0 + SLACK);
        times.iter().rev().find(|(_, time)| *time <= limit).map_or(shortest, |(size, _)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 64 parts of 1 MiB, each so many microseconds after the one before.
    fn parts(apart_us: u64) -> Vec<Part> {
        (1..=64).map(|number| Part { ready: Duration::from_micros(apart_us * number), bytes: MIB }).collect()
    }

    /// A MiB takes a millisecond.
    const CONDITIONS: Conditions = Conditions {
        rate_bps: (8 * MIB * 1000) as f64,
        round_trip: Duration::from_millis(20),
        message: Duration::from_micros(10),
        outstanding: 1000,
    };

    fn total_us(apart_us: u64, chunk_bytes: u64, outstanding: usize) -> u64 {
        Conditions { outstanding, ..CONDITIONS }.total(&parts(apart_us), chunk_bytes).as_micros() as u64
    }

    #[test]
    fn a_stream_takes_the_longer_of_compute_and_transfer_and_one_chunk() {
        // Compute takes 128 ms, and only the last chunk is not hidden behind it.
        assert_eq!(total_us(2000, MIB, 1000), 128_000 + 10 + 1000 + 20_000);
        assert_eq!(total_us(2000, MIB / 4, 1000), 128_000 + 10 + 1000 + 20_000);
        assert_eq!(total_us(2000, 4 * MIB, 1000), 128_000 + 10 + 4000 + 20_000);
        // Compute takes 32 ms, and transfer 64: the first chunk is waited for.
        assert_eq!(total_us(500, MIB, 1000), 500 + 10 + 64_000 + 20_000);
        assert_eq!(total_us(500, 4 * MIB, 1000), 2000 + 10 + 64_000 + 20_000);
    }

    #[test]
    fn messages_on_their_way_limit_what_a_round_trip_carries() {
        // Ten chunks of 1 MiB take 10 ms, and the next one waits for the first one's acknowledge: ten in 21.01 ms, and four
        // remain of 64.
        let rounds = 6 * (20_000 + 10 + 1000);
        assert_eq!(total_us(0, MIB, 10), rounds + 10 + 4 * 1000 + 20_000);
        assert!(total_us(0, 2 * MIB, 10) < total_us(0, MIB, 10));
        assert!(total_us(0, 4 * MIB, 10) < total_us(0, 2 * MIB, 10));
    }

    #[test]
    fn the_choice_is_the_longest_of_the_best() {
        for (apart_us, outstanding) in [(2000, 1000), (500, 1000), (500, 16), (0, 4), (100, 1)] {
            let conditions = Conditions { outstanding, ..CONDITIONS };
            let parts = parts(apart_us);
            let chosen = conditions.choose(&parts);
            let time = |size| conditions.total_with_places(&parts, size, conditions.round_trip * 2);
            let best = (12..28).map(|power| time(1 << power)).min().unwrap();
            assert!(time(chosen) <= best.mul_f64(1.01), "{apart_us}, {outstanding}: {chosen}");
            // Up to one chunk of all.
            let mut longer = (chosen.ilog2() + 1..27).map(|power| time(1 << power));
            assert!(longer.all(|time| time > best.mul_f64(1.01)), "{apart_us}, {outstanding}: {chosen}");
        }
    }

    #[test]
    fn few_places_make_longer_chunks_so_that_repairs_leave_no_gap() {
        let parts: Vec<Part> =
            (1..=256).map(|number| Part { ready: Duration::from_micros(500 * number), bytes: MIB }).collect();
        let choose = |outstanding| Conditions { outstanding, ..CONDITIONS }.choose(&parts);
        // Four of 8 MiB fill a round trip of 20 ms and their own 8. A repaired one takes 40, and would leave a gap.
        let conditions = Conditions { outstanding: 4, ..CONDITIONS };
        assert_eq!(conditions.total(&parts, 8 * MIB), Duration::from_micros(4000 + 10 + 256_000 + 20_000));
        assert_eq!((choose(4), choose(100)), (16 * MIB, 4 * MIB));
    }

    #[test]
    fn a_stream_of_nothing_takes_no_time() {
        assert_eq!(CONDITIONS.total(&[], MIB), Duration::ZERO);
        assert_eq!(CONDITIONS.choose(&[]), SHORTEST);
    }
}
