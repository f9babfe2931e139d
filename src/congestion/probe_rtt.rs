use crate::time::{Duration, Instant};

use super::losses::Losses;
use super::{Flight, LongestFrame, moments};

/// Sends less for two round trips, to see how long they are without a queue, where nobody else could.
///
/// Many queue pairs that begin together overrun a buffer before any of them has seen the round trip without it. Then none sees
/// a queue, and what is lost passes for chance. One that sends less alone changes nothing. So all do it at the same moments,
/// as BBR's flows come to (draft-ietf-ccwg-bbr, ProbeRTT): at multiples of a power of two of nanoseconds, by the clock of the
/// host, and of more than eight round trips. Only small windows do that lose packets: large ones have begun alone.
#[derive(Debug, Default)]
pub(super) struct ProbeRtt {
    /// When it was looked at last, and what had been delivered and lost by then.
    began: Instant,
    losses: Losses,
    /// The next moment, and how many probes in a row have taught nothing: after each it is twice as long until the next one.
    next: Instant,
    in_vain: u32,
    under_way: Option<UnderWay>,
    /// Whether there was a queue before the latest probe.
    is_crowded: bool,
}

/// A probe under way: until when, and what was known before.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    until: Instant,
    window: f64,
    base: Duration,
    smoothed: Duration,
    /// What arrived, in bytes a second.
    arriving: f64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Probe {
    /// To go on as usual.
    None,
    /// To keep to so many bytes.
    Less(f64),
    /// To go on with so many bytes, as before: the round trip without a queue was known.
    Over(f64),
    /// To go on with what fits, in bytes: there was a queue that nobody had seen.
    Found(f64),
}

/// The share of a window with which it goes on meanwhile, and for how many round trips.
const LEFT: f64 = 0.25;
const LASTS: u32 = 2;

/// The share of packets that is lost at least, and how many these are.
const LOST: f64 = 0.02;
const LEAST_LOST: f64 = 3.0;

/// The least round trips that are looked at before a probe.
const LOOKED_AT: u32 = 4;

/// Probes in vain after which it does not become longer: 64 periods.
const MOST_IN_VAIN: u32 = 6;

/// The part of a round trip that is a queue of many.
const QUEUED: u32 = 32;

/// By how much shorter a round trip is that is news: more than hosts' own delays.
const NEWS: Duration = Duration::from_micros(200);

impl ProbeRtt {
    /// Whether a window of so many bytes is one of many that keep a queue together, as the latest probe has shown.
    pub fn is_crowded(&self, window: f64, packet: LongestFrame) -> bool {
        self.is_crowded && packet.is_small(window)
    }

    /// Takes what is known of packets, of which `packet` is the longest, and a window of so many bytes.
    pub fn take(&mut self, flight: &Flight, window: f64, packet: LongestFrame, now: Instant) -> Probe {
        let (Some(base), Some(smoothed)) = (flight.shortest(), flight.smoothed()) else { return Probe::None };
        match self.under_way {
            Some(probe) if now < probe.until => Probe::Less(probe.window * LEFT),
            Some(probe) => {
                let is_news = base + NEWS < probe.base;
                // A queue that does not go is that of others.
                let before = probe.smoothed.saturating_sub(base);
                let has_gone = flight.queue().is_some_and(|queue| queue * 2 <= before);
                self.is_crowded = before > base / QUEUED && has_gone;
                self.in_vain = if is_news { 0 } else { (self.in_vain + 1).min(MOST_IN_VAIN) };
                self.under_way = None;
                self.look_anew(flight, base, now);
                let fits = probe.arriving * base.as_secs_f64();
                if is_news { Probe::Found(fits.min(probe.window)) } else { Probe::Over(probe.window) }
            }
            None if now < self.next => Probe::None,
            None => {
                let (delivered, lost) = self.losses.since(flight);
                let lasted = now.saturating_since(self.began);
                let least_lost = (LOST * (delivered + lost) as f64).max(LEAST_LOST * packet.bytes());
                self.look_anew(flight, base, now);
                if !packet.is_small(window) || (lost as f64) < least_lost || lasted < base * LOOKED_AT {
                    return Probe::None;
                }
                let arriving = delivered as f64 / lasted.as_secs_f64();
                self.under_way = Some(UnderWay { until: now + smoothed * LASTS, window, base, smoothed, arriving });
                Probe::Less(window * LEFT)
            }
        }
    }

    fn look_anew(&mut self, flight: &Flight, base: Duration, now: Instant) {
        self.next = moments::next(base, self.in_vain, now);
        (self.began, self.losses) = (now, Losses::until(flight));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Progress, Sample};
    use super::*;

    const PACKET: u64 = 4300;

    /// The moments of a round trip of 20 ms: each 2^28 nanoseconds.
    const PERIOD_MS: u64 = 268;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    /// A packet that took so long arrives, and so many more; others are found to be lost.
    fn pass(flight: &mut Flight, ms: u64, round_trip_ms: u64, delivered: u64, lost: u64) {
        let sent_at = at(ms - round_trip_ms);
        let round_trip = Duration::from_millis(round_trip_ms);
        let sample = Some(Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false });
        let [delivered_bytes, lost_bytes] = [delivered, lost].map(|packets| packets * PACKET);
        flight.take(&Progress { delivered_bytes, lost_bytes, sample, ..Progress::default() }, 0, at(ms));
    }

    /// Flows that began together over a way of 20 ms, each at its time, of whose packets a share is lost. Returns when each probe
    /// began, and what it came to.
    fn play(began_ms: u64, seen_ms: u64, window: f64, delivered: u64, lost: u64, probed_ms: u64) -> Vec<(u64, Probe)> {
        let mut flight = Flight::default();
        pass(&mut flight, began_ms, seen_ms, 1, 0);
        let mut probe_rtt = ProbeRtt::default();
        assert_eq!(probe_rtt.take(&flight, window, LongestFrame::default(), at(began_ms)), Probe::None);
        let (mut found, mut probing): (Vec<(u64, Probe)>, Option<u64>) = (Vec::new(), None);
        for ms in began_ms + 1..2300 {
            let round_trip_ms = if probing.is_some_and(|from| ms > from + 21) { probed_ms } else { seen_ms };
            pass(&mut flight, ms, round_trip_ms, delivered, lost);
            match (probe_rtt.take(&flight, window, LongestFrame::default(), at(ms)), probing) {
                (Probe::None, _) => {}
                (Probe::Less(less), from) => {
                    assert_eq!(less, window / 4.0);
                    probing = from.or(Some(ms));
                }
                (end, from) => {
                    found.push((from.expect("a probe that began"), end));
                    probing = None;
                }
            }
        }
        found
    }

    #[test]
    fn flows_that_began_at_different_times_probe_at_the_same_moment_and_find_what_fits() {
        let moments = [25, 60, 110].map(|began_ms| play(began_ms, 24, 1e5, 1, 1, 20)[0]);
        for (from, probe) in moments {
            assert_eq!(from, PERIOD_MS + 1, "the first millisecond after the moment");
            let Probe::Found(window) = probe else { panic!("{probe:?}") };
            // A packet in a millisecond arrives, and the round trip is 20 ms.
            assert!((window / (20.0 * PACKET as f64) - 1.0).abs() < 0.02, "{window}");
        }
    }

    /// Else random losses cost a probe in each period.
    #[test]
    fn who_learns_nothing_probes_half_as_often() {
        let found = play(25, 20, 1e5, 1, 1, 20);
        assert_eq!(found.iter().map(|(from, _)| from / PERIOD_MS).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert!(found.iter().all(|(_, end)| *end == Probe::Over(1e5)), "{found:?}");
    }

    #[test]
    fn large_windows_and_those_that_lose_little_do_not_probe() {
        assert_eq!(play(25, 24, 64.1 * LongestFrame::UNKNOWN, 1, 1, 20), []);
        assert_eq!(play(25, 24, 1e5, 60, 1, 20), []);
        assert_eq!(play(25, 24, 1e5, 40, 1, 20)[0].0 / PERIOD_MS, 1, "2.4 % lost");
        assert_eq!(play(230, 24, 1e5, 1, 1, 20)[0].0 / PERIOD_MS, 2, "too short a look");
    }

    #[test]
    fn many_are_known_by_a_queue_that_goes_when_all_probe() {
        let crowded = |probed_ms| {
            let (mut flight, mut probe_rtt) = (Flight::default(), ProbeRtt::default());
            let mut take = |flight: &Flight, ms| probe_rtt.take(flight, 1e5, LongestFrame::default(), at(ms));
            pass(&mut flight, 25, 24, 1, 0);
            assert_eq!(take(&flight, 25), Probe::None);
            (26..268).for_each(|ms| pass(&mut flight, ms, 24, 1, 1));
            assert_eq!(take(&flight, 269), Probe::Less(25e3));
            pass(&mut flight, 300, probed_ms, 1, 0);
            assert_ne!(take(&flight, 330), Probe::None);
            [1e5, 1e6].map(|window| probe_rtt.is_crowded(window, LongestFrame::default()))
        };
        assert_eq!((crowded(20), crowded(24)), ([true, false], [false, false]));
    }
}
