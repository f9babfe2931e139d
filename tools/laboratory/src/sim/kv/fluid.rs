use uroce::time::Duration;
use uroce::transport::RecoverySettings;

use crate::sim::goodput::PAYLOAD;
use crate::sim::line::Line;
use crate::sim::random::Random;
use crate::sim::transfer::TransferError;

use super::pool::{Depth, MESSAGE_BYTES, Pool};
use super::{KvTransport, Piece};

/// A transport over a line, without its packets: pieces leave one after the other at its goodput, and each is acknowledged a
/// delay later.
#[derive(Clone, Debug, PartialEq)]
pub struct Fluid {
    /// Payload, in bits a second.
    pub goodput_bps: f64,
    /// What pieces took beyond that time, shortest first; at least one. Each is as likely as the others.
    pub delays: Vec<Duration>,
}

/// The time that is sent without a pause, for a first guess: round trips.
const BUSY_ROUND_TRIPS: u32 = 8;

/// The shorter of the pieces that are measured is what arrives in a round trip, between these limits: what is lost of the last
/// round trip makes a piece late. The longer ones are so many times as long.
const SHORT_BYTES: [f64; 2] = [(1 << 20) as f64, (64 << 20) as f64];
const LONGER: u64 = 8;

/// How many of each are measured; and of a transport that takes seconds to settle.
const PIECES: u32 = 16;
const PIECES_OF_SLOW: u32 = 64;

impl Fluid {
    /// One that carries all that the line does, and of which nothing is ever lost.
    pub fn ideal(line: &Line) -> Fluid {
        Fluid { goodput_bps: line.payload_bps(), delays: vec![line.round_trip] }
    }

    /// What a transport reaches over a line, packet by packet. Shorter and longer pieces take turns, and after each of them
    /// there is a pause as long as it took: connections that carry caches are idle now and then, too.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, or the received bytes differ.
    pub fn measure(line: Line, transport: KvTransport, seed: u64) -> Result<Fluid, TransferError> {
        let mut pool = Pool::warm(line, transport, Depth::ample(&line, transport), seed)?;
        let guess_bps = pool.keep_busy(line.round_trip * BUSY_ROUND_TRIPS)?;
        let [least, most] = SHORT_BYTES;
        let in_flight = (guess_bps / 8.0 * line.round_trip.as_secs_f64()).clamp(least, most);
        let short = (in_flight as u64).next_multiple_of(MESSAGE_BYTES);
        let sizes = [short, LONGER * short];
        let count = if transport.is_slow_to_settle() { PIECES_OF_SLOW } else { PIECES };
        let (mut took, mut sums) = (Vec::new(), [Duration::ZERO; 2]);
        for number in 0..2 * count as usize {
            let pause = took.last().map_or(line.round_trip, |(_, took)| *took);
            let piece = Piece { at: pause, bytes: sizes[number % 2] };
            let time = pool.carry(&[piece])?[0] - pause;
            sums[number % 2] += time;
            took.push((piece.bytes, time));
        }
        pool.finish()?;
        let longer = sizes[1] - sizes[0];
        // Chance makes nothing faster than the line.
        let span = (sums[1].saturating_sub(sums[0]) / count).max(at_rate(longer, line.payload_bps()));
        let goodput_bps = longer as f64 * 8.0 / span.as_secs_f64();
        let delay =
            |(bytes, time): (u64, Duration)| time.saturating_sub(at_rate(bytes, goodput_bps)).max(line.round_trip);
        let mut delays: Vec<Duration> = took.into_iter().map(delay).collect();
        delays.sort_unstable();
        Ok(Fluid { goodput_bps, delays })
    }

    /// When each piece is acknowledged whole.
    pub fn carry(&self, pieces: &[Piece], random: &mut Random) -> Vec<Duration> {
        let (mut free, mut end) = (Duration::ZERO, Duration::ZERO);
        let ends = pieces.iter().map(|piece| {
            free = free.max(piece.at) + at_rate(piece.bytes, self.goodput_bps);
            end = end.max(free + self.delays[random.below(self.delays.len() as u64) as usize]);
            end
        });
        ends.collect()
    }

    /// The share `quantile` of the delays.
    pub fn delay(&self, quantile: f64) -> Duration {
        share(&self.delays, quantile)
    }

    /// What can be in flight of one connection, as bits of payload a second.
    fn most_bps(round_trip: Duration, transport: KvTransport) -> f64 {
        let bits = f64::from(RecoverySettings::MAX_WINDOW) * 8.0 * PAYLOAD as f64;
        transport.connections() as f64 * bits / round_trip.as_secs_f64()
    }
}

/// What a transport reaches over a path at several rates of its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Fluids {
    /// What moves the pieces.
    pub transport: KvTransport,
    /// The round trip of the path.
    pub round_trip: Duration,
    /// Rates in bits a second, slowest first, each with what was measured at it; at least one.
    pub measured: Vec<(u64, Fluid)>,
}

/// The part of the line's growth that goodput must follow to follow it further.
const FOLLOWS: f64 = 0.9;

impl Fluids {
    /// What is reached over a line of this rate. Of a faster line than was measured the goodput has the same share, if it had
    /// the same share of the two fastest ones; otherwise something else limits it, and it does not grow. No connection has
    /// more in flight than its window of packet numbers.
    pub fn at(&self, bps: u64) -> Fluid {
        let slower = self.measured.iter().rev().find(|(measured, _)| *measured <= bps);
        let (measured, fluid) = slower.unwrap_or(&self.measured[0]);
        let before = self.measured.iter().rev().find(|(before, _)| before < measured);
        let follows = before.is_none_or(|(before_bps, before)| {
            let line = *measured as f64 / *before_bps as f64;
            fluid.goodput_bps / before.goodput_bps >= FOLLOWS * line
        });
        let times = if follows { bps as f64 / *measured as f64 } else { 1.0 };
        let most = Fluid::most_bps(self.round_trip, self.transport);
        Fluid { goodput_bps: (fluid.goodput_bps * times).min(most), delays: fluid.delays.clone() }
    }
}

/// The time of so many bytes at a rate in bits a second.
fn at_rate(bytes: u64, bps: f64) -> Duration {
    Duration::from_secs_f64(bytes as f64 * 8.0 / bps)
}

/// The one below which a share of all are; they are in order, and at least one.
pub fn share(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fluid(goodput_bps: f64, delay_ms: u64) -> Fluid {
        Fluid { goodput_bps, delays: vec![Duration::from_millis(delay_ms)] }
    }

    #[test]
    fn pieces_wait_for_each_other() {
        let piece = |at_ms, bytes| Piece { at: Duration::from_millis(at_ms), bytes };
        let pieces = [piece(0, 1_000_000), piece(1, 1_000_000), piece(100, 500_000)];
        let ends = fluid(1e9, 10).carry(&pieces, &mut Random::new(1, 0));
        assert_eq!(ends, [18, 26, 114].map(Duration::from_millis));
    }

    #[test]
    fn goodput_follows_a_faster_line_only_where_it_has_followed_before() {
        let round_trip = Duration::from_millis(40);
        let of = |bps: [f64; 2]| Fluids {
            transport: KvTransport::Uroce,
            round_trip,
            measured: vec![(1_000_000_000, fluid(bps[0], 40)), (10_000_000_000, fluid(bps[1], 41))],
        };
        assert_eq!(of([0.9e9, 9e9]).at(100_000_000_000), fluid(90e9, 41));
        assert_eq!(of([0.9e9, 3e9]).at(100_000_000_000), fluid(3e9, 41));
        assert_eq!(of([0.9e9, 3e9]).at(1_000_000_000), fluid(0.9e9, 40));
        // 262,144 packets of 4096 bytes in 40 ms.
        assert_eq!(of([0.9e9, 9e9]).at(400_000_000_000), fluid(262_144.0 * 4096.0 * 8.0 / 0.04, 41));
    }
}
