use std::collections::VecDeque;

use uroce::time::{Duration, Instant};

use crate::sim::network::{Network, Observer};
use crate::sim::random::Random;
use crate::sim::transfer::Transfer;

use super::{FlowSizes, SizeBin};

/// Flows that come at random (a Poisson process). Each takes the connection that has the least to send.
pub(super) struct Offered {
    /// The flows that are to come, the next one first.
    to_come: VecDeque<Arrival>,
    /// Of each connection, the flows that it sends, the oldest first.
    under_way: Vec<VecDeque<UnderWay>>,
    /// The size of each flow that was sent, and how long it took.
    done: Vec<(u64, Duration)>,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Instant,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    flow: Arrival,
    /// Messages of the connection until it is sent.
    end: u64,
}

/// Bytes of all flows together, about, and how many there are at most.
const BYTES: f64 = 2e9;
const FLOWS_MAX: f64 = 20_000.0;

/// The bins by size: up to so many bytes, and the larger ones.
const BINS: [u64; 4] = [10_000, 100_000, 1_000_000, u64::MAX];

impl Offered {
    /// Flows from `start` on that are `bps` bits a second on average, over so many connections.
    pub fn new(sizes: FlowSizes, bps: f64, start: Instant, connections: usize, random: &mut Random) -> Offered {
        let mean = sizes.mean_bytes();
        let per_s = bps / 8.0 / mean;
        let mut at = 0.0;
        let arrivals = (0..(BYTES / mean).min(FLOWS_MAX) as usize).map(|_| {
            at += random.gap_s(per_s);
            Arrival { at: start + Duration::from_secs_f64(at), bytes: sizes.draw(random) }
        });
        Offered { to_come: arrivals.collect(), under_way: vec![VecDeque::new(); connections], done: Vec::new() }
    }

    /// When the next flow comes; `None` when all have come.
    pub fn next_at(&self) -> Option<Instant> {
        self.to_come.front().map(|flow| flow.at)
    }

    /// Whether all flows were sent.
    pub fn is_over(&self) -> bool {
        self.to_come.is_empty() && self.under_way.iter().all(VecDeque::is_empty)
    }

    /// Has the next flow come.
    pub fn begin(&mut self, transfers: &mut [Transfer], network: &mut Network, observer: &mut impl Observer) {
        let Some(flow) = self.to_come.pop_front() else { return };
        let load = |flows: &VecDeque<UnderWay>| flows.iter().map(|one| one.flow.bytes).sum::<u64>();
        let least = (0..self.under_way.len()).min_by_key(|index| load(&self.under_way[*index]));
        let index = least.expect("there are connections");
        let end = transfers[index].send(network, observer, flow.bytes);
        self.under_way[index].push_back(UnderWay { flow, end });
    }

    /// Notes that so many messages of a connection were sent.
    pub fn completed(&mut self, connection: usize, messages: u64, now: Instant) {
        while let Some(one) = self.under_way[connection].pop_front_if(|one| one.end <= messages) {
            self.done.push((one.flow.bytes, now - one.flow.at));
        }
    }

    /// Bytes of all flows that were sent.
    pub fn done_bytes(&self) -> u64 {
        self.done.iter().map(|(bytes, _)| bytes).sum()
    }

    /// How long flows took by size, in times of the least: at `bps` bits a second, after a round trip.
    pub fn bins(&self, bps: f64, round_trip: Duration) -> Vec<SizeBin> {
        let least = |bytes: u64| round_trip.as_secs_f64() + bytes as f64 * 8.0 / bps;
        let bin = |(index, up_to_bytes): (usize, &u64)| {
            let above = if index == 0 { 0 } else { BINS[index - 1] };
            let of_bin = self.done.iter().filter(|(bytes, _)| (above + 1..=*up_to_bytes).contains(bytes));
            let mut slowdowns: Vec<f64> = of_bin.map(|(bytes, took)| took.as_secs_f64() / least(*bytes)).collect();
            slowdowns.sort_unstable_by(f64::total_cmp);
            let share = |percent: usize| slowdowns.get(slowdowns.len() * percent / 100).copied();
            SizeBin {
                up_to_bytes: Some(*up_to_bytes).filter(|bytes| *bytes != u64::MAX),
                flows: slowdowns.len(),
                slowdowns: [share(50), share(99)],
            }
        };
        BINS.iter().enumerate().map(bin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_come_at_the_rate_and_are_told_apart_by_size() {
        let start = Instant::ZERO + Duration::from_millis(1);
        let bps = 10e9;
        let mut offered = Offered::new(FlowSizes::FbHdp, bps, start, 3, &mut Random::new(4, 5));
        let bytes: u64 = offered.to_come.iter().map(|flow| flow.bytes).sum();
        let took = offered.to_come.back().unwrap().at - start;
        let rate = bytes as f64 * 8.0 / took.as_secs_f64();
        assert!((rate / bps - 1.0).abs() < 0.1, "{rate}");
        assert!(offered.to_come.iter().is_sorted_by_key(|flow| flow.at) && !offered.is_over());
        // Three flows of a connection, of which the second is sent with the first.
        offered.to_come.clear();
        for (bytes, end) in [(1000, 1), (10_000, 2), (10_001, 4)] {
            offered.under_way[1].push_back(UnderWay { flow: Arrival { at: start, bytes }, end });
        }
        let ms = Duration::from_millis;
        offered.completed(1, 3, start + ms(2));
        assert!(!offered.is_over());
        offered.completed(1, 4, start + ms(3));
        assert!(offered.is_over());
        // At 1 Gb/s: 8, 80 and 80.008 µs, after a millisecond.
        let bins = offered.bins(1e9, ms(1));
        let flows: Vec<usize> = bins.iter().map(|bin| bin.flows).collect();
        assert_eq!(flows, [2, 1, 0, 0]);
        let [p50, p99] = bins[0].slowdowns.map(Option::unwrap);
        assert!((p50 - 2.0 / 1.008).abs() < 1e-9 && p50 == p99, "{p50} {p99}");
        assert!((bins[1].slowdowns[0].unwrap() - 3.0 / 1.080_008).abs() < 1e-9);
        assert_eq!((bins[3].up_to_bytes, bins[3].slowdowns), (None, [None, None]));
    }
}
