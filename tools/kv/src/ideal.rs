use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::profile::{LINE_BPS, Path};

/// Payload of a frame at path MTU 4096, and all that the emulator counts of it: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4.
const PAYLOAD_BYTES: u64 = 4096;
const FRAME_BYTES: u64 = PAYLOAD_BYTES + 14 + 20 + 8 + 12 + 4;

/// How often it is played.
const RUNS: usize = 20_000;

/// Nanoseconds that the line takes for a frame.
const FRAME_NS: u64 = FRAME_BYTES * 8_000_000_000 / LINE_BPS;

/// What a request of `bytes` takes, from its post to its completion, by an ideal selective repeat that knows of a loss one round
/// trip after the packet was sent, repairs it at once, and loses no acknowledge: the share `quantile` of many such requests, each
/// alone on the path.
pub fn request_time(bytes: u64, path: &Path, quantile: f64, seed: u64) -> Duration {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let mut all: Vec<u64> = (0..RUNS).map(|_| one_ns(bytes.div_ceil(PAYLOAD_BYTES), path, &mut chance)).collect();
    all.sort_unstable();
    Duration::from_nanos(all[((RUNS as f64 * quantile) as usize).min(RUNS - 1)])
}

fn one_ns(packets: u64, path: &Path, chance: &mut ChaCha8Rng) -> u64 {
    let rtt_ns = path.rtt.as_nanos() as u64;
    let lost_below = path.loss * 2_f64.powi(32);
    let (mut now_ns, mut fresh, mut last_ns) = (0, packets, 0);
    // When losses become known.
    let mut lost: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    while fresh > 0 || !lost.is_empty() {
        let is_repair = lost.peek().is_some_and(|Reverse(known_ns)| *known_ns <= now_ns);
        if is_repair {
            lost.pop();
        } else if fresh > 0 {
            fresh -= 1;
        } else if let Some(Reverse(known_ns)) = lost.pop() {
            now_ns = known_ns;
        }
        now_ns += FRAME_NS;
        if f64::from(chance.next_u32()) < lost_below {
            lost.push(Reverse(now_ns + rtt_ns));
        } else {
            last_ns = last_ns.max(now_ns);
        }
    }
    last_ns + rtt_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u64 = 2 << 20;

    fn p99_ms(rtt_ms: u64, loss: f64) -> f64 {
        let path = Path { rtt: Duration::from_millis(rtt_ms), loss };
        request_time(BATCH, &path, 0.99, 1).as_secs_f64() * 1e3
    }

    #[test]
    fn without_loss_it_takes_the_line_and_a_round_trip() {
        // 512 frames of 4154 bytes at 300 Mb/s are 56.7 ms.
        assert!((p99_ms(30, 0.0) - 86.7).abs() < 0.1, "{}", p99_ms(30, 0.0));
    }

    #[test]
    fn each_repair_that_is_lost_costs_a_round_trip() {
        // Rarely the last packets are lost, so a repair costs less than a round trip; and never less than nothing.
        let (few, many) = (p99_ms(30, 1e-3), p99_ms(30, 1e-2));
        assert!((86.7..=116.9).contains(&few), "{few}");
        assert!((116.7..=147.0).contains(&many), "{many}");
    }
}
