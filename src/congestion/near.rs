use crate::time::{Duration, Instant};

use super::Flight;
use super::flood::LOOK;
use super::losses::{LOOK_BYTES, Losses};

/// Looks at a short way now and then. Delays there are the hosts' own for the most part, and so only what lasts for a whole
/// look counts as a queue: a slow link behind a fast one, or a receiver that does not come along.
#[derive(Debug)]
pub(super) struct Near {
    began: Instant,
    /// What had been delivered and lost by then.
    losses: Losses,
    /// Of packets that were sent since: when the first was known of, and the least delay in queues.
    queue: Option<(Instant, Duration)>,
    /// The queue that may last.
    most: Duration,
}

/// The share of losses above which a queue has overflowed if there is one.
const LOSSY: f64 = 0.01;

/// The bounds of the queue that may last. It is half of one that overflowed, and becomes longer by this part of itself in
/// each look without losses.
const LEAST: Duration = Duration::from_micros(300);
const MOST: Duration = LOOK;
const FORGETS: u32 = 64;

/// The least part of the usual by which a window grows after it was cut.
const SLOWEST: f64 = 0.5;

impl Default for Near {
    /// Nothing has been seen.
    fn default() -> Near {
        Near { began: Instant::ZERO, losses: Losses::default(), queue: None, most: MOST }
    }
}

impl Near {
    /// How fast a window that was cut grows, as a part of the usual: the slower, the shorter the queue that may last.
    pub fn pace(&self) -> f64 {
        let is_even = mutated!("fills-a-queue-that-overflowed-as-fast", by "uroce --lib a_window_grows_the_slower");
        if is_even { 1.0 } else { self.most.div_duration_f64(MOST).max(SLOWEST) }
    }

    /// Takes what is known of packets on a way whose shortest round trip is `base`. Returns the part of the window that
    /// is to be kept when too much of it stands in a queue.
    pub fn take(&mut self, flight: &Flight, base: Duration, now: Instant) -> Option<f64> {
        let queue = flight.queue_since(self.began)?;
        let (from, least) = self.queue.unwrap_or((now, queue));
        let queue = least.min(queue);
        self.queue = Some((from, queue));
        let (delivered, lost) = self.losses.since(flight);
        let all = delivered + lost;
        if now.saturating_since(from) < LOOK || all < LOOK_BYTES {
            return None;
        }
        let is_lossy = lost as f64 > LOSSY * all as f64;
        let most = match is_lossy {
            true if queue > LEAST => queue / 2,
            true => self.most,
            false => self.most + self.most / FORGETS,
        };
        let most = most.clamp(LEAST, MOST);
        *self = Near { began: now, losses: Losses::until(flight), queue: None, most };
        (queue > most).then(|| (base + most).div_duration_f64(base + queue))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Progress, Sample};
    use super::*;

    const BASE: Duration = Duration::from_micros(100);
    const PACKET: u64 = 4300;

    /// Packets of `milliseconds`, ten in each, which take `queue` in queues; beside one of `lost` another is lost. Returns the parts of the window that were kept.
    fn pass(state: &mut (Near, Flight, Instant), milliseconds: u64, queue: Duration, lost: u64) -> Vec<f64> {
        let (near, flight, now) = state;
        let mut kept = Vec::new();
        for packet in 0..10 * milliseconds {
            *now = *now + Duration::from_micros(100);
            let sent_at = Instant::from_ns(now.as_ns() - (BASE + queue).as_nanos() as u64);
            let sample = Sample { sent_at, round_trip: BASE + queue, delay: Duration::ZERO, path: 0, is_marked: false };
            let lost_bytes = if lost > 0 && packet % lost == 0 { PACKET } else { 0 };
            let progress =
                Progress { delivered_bytes: PACKET, lost_bytes, sample: Some(sample), ..Progress::default() };
            flight.take(&progress, 0, *now);
            kept.extend(near.take(flight, BASE, *now));
        }
        kept
    }

    /// A way on which packets without a queue have been seen.
    fn state() -> (Near, Flight, Instant) {
        let mut state = (Near::default(), Flight::default(), Instant::from_ns(1_000_000_000));
        assert_eq!(pass(&mut state, 100, Duration::ZERO, 0), []);
        state
    }

    #[test]
    fn a_queue_of_10_ms_may_last_where_nothing_is_lost() {
        let mut state = state();
        assert_eq!(pass(&mut state, 200, Duration::from_micros(9900), 0), []);
        let kept = pass(&mut state, 200, Duration::from_micros(20_000), 0);
        assert!(kept.iter().all(|kept| (0.502..0.503).contains(kept)) && kept.len() >= 5, "{kept:?}: 10.1 of 20.1 ms");
    }

    #[test]
    fn half_of_a_queue_that_overflowed_may_last_and_more_after_a_second() {
        let mut state = state();
        let kept = pass(&mut state, 30, Duration::from_micros(2000), 20);
        assert!(!kept.is_empty() && kept.iter().all(|kept| (0.52..0.53).contains(kept)), "{kept:?}: 1.1 of 2.1 ms");
        // A look that began before ends.
        pass(&mut state, 20, Duration::from_micros(2000), 0);
        assert_eq!(pass(&mut state, 200, Duration::from_micros(1000), 0), []);
        let kept = pass(&mut state, 30, Duration::from_micros(2000), 0);
        assert!(!kept.is_empty(), "the queue that may last has grown by a few 64ths only");
        pass(&mut state, 1000, Duration::from_micros(1000), 0);
        assert_eq!(pass(&mut state, 30, Duration::from_micros(2000), 0), []);
    }

    /// Else a slow link's buffer overflows every other look.
    #[test]
    fn a_window_grows_the_slower_the_shorter_a_queue_overflowed() {
        let mut state = state();
        assert_eq!(state.0.pace(), 1.0);
        pass(&mut state, 60, Duration::from_micros(16_000), 20);
        assert!((0.79..0.81).contains(&state.0.pace()), "8 of 10 ms: {:?}", state.0);
        pass(&mut state, 30, Duration::from_micros(2000), 20);
        assert_eq!(state.0.pace(), 0.5);
    }

    #[test]
    fn a_thread_that_waits_for_its_turn_is_no_queue() {
        let mut state = state();
        for _ in 0..50 {
            assert_eq!(pass(&mut state, 4, Duration::from_millis(30), 0), []);
            assert_eq!(pass(&mut state, 4, Duration::ZERO, 0), []);
        }
    }

    #[test]
    fn losses_by_chance_leave_what_a_queue_of_300_us_takes() {
        let mut state = state();
        assert_eq!(pass(&mut state, 500, Duration::from_micros(300), 20), []);
    }
}
