use crate::time::{Duration, Instant};

use super::LongestFrame;
use super::flood::LOOK;
use super::slope::Slope;

/// A window that grows until there is a queue, and then gives back what stands in it.
///
/// All queue pairs behind a bottleneck see its queue at the same time, and so begin to climb together. From then on each
/// grows by as many bytes as every other, more of them in each round trip. How much the queue grows by a byte of a queue
/// pair's own tells how many they are, and with it a fair window.
#[derive(Debug)]
pub(super) struct Climb {
    gait: &'static Gait,
    /// What the top before told of a fair window, in bytes.
    fair_before: Option<f64>,
    /// The part of the gait's first step with which it begins, at most 1: many small windows overrun a shallow buffer otherwise
    /// before any of them hears of it.
    eased: f64,
    /// Packets that were sent before say nothing of it.
    from: Instant,
    /// Since when packets are in flight without a pause, or `from`.
    resumed_at: Instant,
    /// Bytes by which the window grows in a round trip without queues, now.
    grows_by: f64,
    /// Until when it is known whether the window grew, and when it did last.
    grown_at: Instant,
    grew_at: Instant,
    glance: Glance,
    /// The latest glances, the newest first.
    glances: [Glance; KEPT],
    /// Whether the latest glance has reached the target: it is waited until all of a look have, or one has not.
    is_held: bool,
    slope: Slope,
}

/// How fast a window climbs, and how much of it is left free at the top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gait {
    /// Bytes by which a window grows in the first round trip. They are the same for all paths: queue pairs would not be
    /// comparable otherwise.
    first: f64,
    /// By how much faster it grows in each further round trip.
    growth: f64,
    /// The share of the window that is left free at the top: so the queue becomes empty, and who begins sees the round trip
    /// without it.
    pub free: f64,
    /// Round trips in which is had again what was given back to a queue that came at once.
    regained: f64,
}

impl Gait {
    /// The usual one. It begins with half a packet of path MTU 4096.
    pub const USUAL: &'static Gait = &Gait { first: 2150.0, growth: 1.4, free: 0.005, regained: 8.0 };

    /// That of a window in class scavenger, which is to be back soon and to make no queue.
    pub const SCAVENGER: &'static Gait = &Gait { first: 1024.0, growth: 1.15, free: 0.01, regained: f64::INFINITY };

    /// That of a window beside urgent messages. In each of its last round trips it grows by a 20th of what it had left free:
    /// until it sees a queue, that becomes longer by 0.2 % of a round trip.
    pub const CALM: &'static Gait = &Gait { first: 512.0, growth: 1.05, free: 0.03, regained: f64::INFINITY };
}

/// The least delay of a few packets in a row: what hosts add to it is no queue.
#[derive(Clone, Copy, Debug)]
struct Glance {
    began: Instant,
    samples: u32,
    /// In seconds, and when its packet was sent.
    least: (f64, Instant),
}

/// What a packet saw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Its delay in queues, in seconds.
    pub queue: f64,
    pub sent_at: Instant,
    /// The delay up to which a window climbs, in seconds.
    pub target: f64,
    /// The round trip without queues.
    pub base: Duration,
    /// When its arrival was known.
    pub now: Instant,
    /// Whether delays on this way are its host's own.
    pub delays_are_own: bool,
}

/// The end of a climb: the queue has reached the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Top {
    /// What fits into the network without a queue, in bytes.
    pub fit: f64,
    /// A fair share of it, in bytes; `None` when the queue did not tell.
    pub fair: Option<f64>,
    /// The same of the top before.
    fair_before: Option<f64>,
    /// The queue that goes, in seconds.
    queue: f64,
    /// Bytes by which the window grows in the first round trip afterwards: where the queue came at once, what was given back
    /// is to be had again as soon.
    grows_by: f64,
    /// Whether the queue is as long as one that comes at once, and the top before did not make it shorter: it is not noise.
    pub lasts: bool,
}

/// The part of the target at which a queue counts as seen.
const SEEN: f64 = 1.0 / 3.0;

/// Round trips of a climb, and after a pause, in which the queue tells nothing of a fair window: it still follows what the top
/// before has changed, or a window that was sent at once.
const UNTOLD: u32 = 2;

/// Glances in a round trip, and the least samples of one.
const GLANCES: u32 = 8;
const GLANCE_SAMPLES: u32 = 3;

/// A queue that is so much shorter at a look's end was a burst of others, and is no top.
const FALLS: f64 = 0.5;

/// Glances that are kept. A queue counts as reached when all of a [`LOOK`] show it, or of half a round trip if that is
/// shorter; and one reaches further.
const KEPT: usize = GLANCES as usize / 2 + 1;

/// A climb of fewer round trips, or to a queue that came at once, was too fast, and one of more was too slow: the next one begins
/// with so many times the step. All climbs behind a bottleneck last as long, and so their steps stay about the same.
const SHORT: f64 = 4.0;
const LONG: f64 = 10.0;
const SLOWER: f64 = 0.5;
const FASTER: f64 = 1.5;

/// The least share of a small window with which it begins.
const FIRST_SHARE: f64 = 1.0 / 192.0;

/// A queue that is seen within so many round trips after the top before has not become shorter.
const LASTS: f64 = 5.0;

/// A queue so many times the target came at once: it is others', and tells nothing of a fair window.
const SUDDEN: f64 = 2.0;

/// The part of the way to a fair window that is gone at a top.
const SHARED: f64 = 0.3;

/// By how much a window of a late host changes by what one top tells.
const ALONE: f64 = 0.1;

/// A window is fair enough when it is not further from a fair one than by this factor.
const NEARLY_FAIR: f64 = 1.15;

/// The bounds of what is believed of a fair window, as shares of the present one.
const FAIR_MIN: f64 = 0.25;
const FAIR_MAX: f64 = 8.0;

impl Top {
    /// By how much a window that fits, in bytes, is to change so that it comes nearer to a fair one.
    ///
    /// What a host that `is_late` does not send for a time slice, and then sends at once, makes the queue shorter and longer
    /// without its window. There one top changes a window by a tenth at most; by more only what two in a row tell, by the
    /// lesser change of both.
    pub fn share(&self, fit: f64, is_late: bool) -> f64 {
        let [now, before] = [self.fair, self.fair_before].map(|fair| fair.map_or(1.0, |fair| towards(fair / fit)));
        match is_late {
            false => now,
            true if now < 1.0 => now.max(before.min(1.0 - ALONE)),
            true => now.min(before.max(1.0 + ALONE)),
        }
    }
}

/// By how much a window is to change of which `fair` is a fair share.
fn towards(fair: f64) -> f64 {
    let far = match fair {
        less @ ..1.0 => (less * NEARLY_FAIR).min(1.0),
        more => (more / NEARLY_FAIR).max(1.0),
    };
    1.0 + (far.clamp(FAIR_MIN, FAIR_MAX) - 1.0) * SHARED
}

impl Glance {
    fn new(began: Instant) -> Glance {
        Glance { began, samples: 0, least: (f64::INFINITY, began) }
    }
}

impl Climb {
    /// A climb that begins at `from`, by so many bytes in the first round trip at least.
    pub fn new(gait: &'static Gait, grows_by: f64, from: Instant) -> Climb {
        Climb {
            gait,
            fair_before: None,
            eased: 1.0,
            from,
            resumed_at: from,
            grows_by: grows_by.max(gait.first),
            grown_at: from,
            grew_at: from,
            glance: Glance::new(from),
            glances: [Glance::new(Instant::ZERO); KEPT],
            is_held: false,
            slope: Slope::default(),
        }
    }

    /// The climb after another one's top: it begins when the queue has gone.
    pub fn after(top: &Top, gait: &'static Gait, base: Duration, now: Instant) -> Climb {
        let queue = Duration::try_from_secs_f64(top.queue).unwrap_or_default();
        let climb = Climb::new(gait, top.grows_by, now + queue + base / GLANCES);
        Climb { fair_before: top.fair, ..climb }
    }

    /// Begins this climb in the place of the present one, as eased as that.
    pub fn restart(&mut self, climb: Climb) {
        let (eased, first) = (self.eased, climb.gait.first);
        let grows_by = if climb.grows_by > first { climb.grows_by } else { first * eased };
        *self = Climb { eased, grows_by, ..climb };
    }

    /// Bytes by which the window grows in a round trip without queues, now.
    pub fn grows_by(&self) -> f64 {
        self.grows_by
    }

    /// The bytes by which the window grows until `now`, by at most `most` in a round trip.
    pub fn grow(&mut self, most: f64, base: Duration, now: Instant) -> f64 {
        let rounds = now.saturating_since(self.grown_at).div_duration_f64(base);
        if rounds <= 0.0 {
            return 0.0;
        }
        if self.is_held {
            self.grown_at = now;
            return 0.0;
        }
        if rounds > 1.0 {
            // Nothing was in flight. What is sent since, a window at once, makes a queue that says nothing of a fair one.
            self.resumed_at = now;
            self.slope = Slope::default();
        }
        let rounds = rounds.min(1.0);
        let before = self.grows_by;
        self.grows_by *= self.gait.growth.powf(rounds);
        (self.grown_at, self.grew_at) = (now, now);
        let grown = (self.grows_by - before) / self.gait.growth.ln();
        self.grows_by = self.grows_by.min(most);
        grown.min(most * rounds)
    }

    /// The window, which is not used, does not grow until `now`.
    pub fn rest(&mut self, now: Instant) {
        self.grown_at = self.grown_at.max(now);
        self.slope = Slope::default();
    }

    /// Takes what a packet saw of a window of so many bytes. Returns the top when it is reached.
    pub fn take(&mut self, seen: &Seen, window: f64) -> Option<Top> {
        let Seen { base, now, target, .. } = *seen;
        if seen.sent_at < self.from {
            return None;
        }
        self.glance.samples += 1;
        if seen.queue < self.glance.least.0 {
            self.glance.least = (seen.queue, seen.sent_at);
        }
        if self.glance.samples < GLANCE_SAMPLES || now.saturating_since(self.glance.began) < base / GLANCES {
            return None;
        }
        let glance = std::mem::replace(&mut self.glance, Glance::new(now));
        self.glances.rotate_right(1);
        self.glances[0] = glance;
        self.is_held = glance.least.0 >= target;
        if let Some((queue, sent_at)) = self.least(base, now).filter(|(queue, _)| *queue >= target) {
            let then = window - self.grown_since(sent_at, base);
            return (!self.was_burst(base, now)).then(|| self.top(queue, then, seen));
        }
        let (queue, sent_at) = glance.least;
        if queue >= target * SEEN && sent_at >= self.resumed_at + base * UNTOLD {
            self.slope.take(window - self.grown_since(sent_at, base), queue);
        }
        None
    }

    /// The least of the latest glances, and when its packet was sent; `None` while they are too few.
    fn least(&self, base: Duration, now: Instant) -> Option<(f64, Instant)> {
        let latest = self.latest(base, now)?;
        let least = latest.iter().map(|glance| glance.least);
        least.min_by(|one, other| one.0.total_cmp(&other.0)).filter(|_| latest[latest.len() - 1].began >= self.from)
    }

    /// Whether the queue was a burst of others, which goes by itself. Calm windows leave the line to others, and take no queue
    /// for one.
    fn was_burst(&self, base: Duration, now: Instant) -> bool {
        let falls = |glances: &[Glance]| glances[0].least.0 < glances[glances.len() - 1].least.0 * FALLS;
        self.gait == Gait::USUAL
            && self.latest(base, now).is_some_and(falls)
            && !mutated!("a-burst-of-others-is-a-top", by "uroce --lib climb::")
    }

    /// The glances of a look, the newest first; `None` while they are too few.
    fn latest(&self, base: Duration, now: Instant) -> Option<&[Glance]> {
        let look = LOOK.min(base / 2);
        let all = self.glances.iter().position(|glance| now.saturating_since(glance.began) >= look)?;
        Some(&self.glances[..=all])
    }

    /// The top, where a window of `window` bytes made this queue.
    fn top(&mut self, queue: f64, window: f64, seen: &Seen) -> Top {
        let base = seen.base.as_secs_f64();
        let is_sudden = queue >= SUDDEN * seen.target;
        let fair = self.slope.bytes_per_second().filter(|_| !is_sudden).map(|rate| rate * base);
        let fit = window * base / (base + queue) * (1.0 - self.gait.free);
        let grows_by = if is_sudden { (window - fit) / self.gait.regained } else { 0.0 };
        let rounds = seen.now.saturating_since(self.from).div_duration_f64(seen.base);
        let faster = match rounds {
            rounds if is_sudden || rounds < SHORT => SLOWER,
            ..=LONG => 1.0,
            _ => FASTER,
        };
        let tells = !seen.delays_are_own;
        let is_small = tells && LongestFrame::default().is_small(window);
        let least = if is_small { window * FIRST_SHARE / self.gait.first } else { 1.0 };
        self.eased = (self.eased * faster).max(least).min(1.0);
        Top { fit, fair, fair_before: self.fair_before, queue, grows_by, lasts: tells && is_sudden && rounds < LASTS }
    }

    /// The bytes by which the window has grown since `sent_at`.
    fn grown_since(&self, sent_at: Instant, base: Duration) -> f64 {
        let rounds = self.grew_at.saturating_since(sent_at.max(self.from)).div_duration_f64(base);
        let growth = self.gait.growth;
        self.grows_by * (1.0 - growth.powf(-rounds)) / growth.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(20);
    const TARGET: f64 = 400e-6;
    /// Bytes a second of the bottleneck.
    const LINE: f64 = 125e6;
    const FITS: f64 = 2.5e6;

    fn after(time: f64) -> Instant {
        Instant::from_ns((time * 1e9) as u64)
    }

    /// Climbs of flows that share a bottleneck, each with its window, from packets that come every 100 µs, and take `noise`
    /// longer than the queue is. Returns each flow's top, and its window then.
    fn tops(windows: &mut [f64], noise: impl Fn(u32) -> f64) -> Vec<(Top, f64)> {
        tops_of(Gait::USUAL, windows, noise)
    }

    fn tops_of(gait: &'static Gait, windows: &mut [f64], noise: impl Fn(u32) -> f64) -> Vec<(Top, f64)> {
        let base = BASE.as_secs_f64();
        let mut climbs: Vec<Climb> = windows.iter().map(|_| Climb::new(gait, 0.0, after(1.0))).collect();
        let mut tops: Vec<Option<(Top, f64)>> = windows.iter().map(|_| None).collect();
        // Windows of a round trip ago: what is sent stands in the queue by then.
        let mut queues = Vec::new();
        for step in 0..20_000 {
            let now = after(1.0 + f64::from(step) * 100e-6);
            queues.push(((windows.iter().sum::<f64>() - FITS) / LINE).max(0.0));
            let Some(sent) = queues.len().checked_sub(201) else { continue };
            for (index, climb) in climbs.iter_mut().enumerate() {
                if tops[index].is_some() {
                    continue;
                }
                windows[index] += climb.grow(f64::INFINITY, BASE, now);
                let queue = queues[sent] + noise(step);
                let sent_at = after((now.as_ns() as f64 / 1e9) - base - queue);
                let seen = Seen { queue, sent_at, target: TARGET, base: BASE, now, delays_are_own: false };
                tops[index] = climb.take(&seen, windows[index]).map(|top| (top, windows[index]));
            }
            if tops.iter().all(Option::is_some) {
                break;
            }
        }
        tops.into_iter().flatten().collect()
    }

    #[test]
    fn a_window_climbs_until_there_is_a_queue_and_gives_it_back() {
        let tops = tops(&mut [2e6], |_| 0.0);
        let [(top, window)] = &tops[..] else { panic!("no top") };
        assert!((TARGET..2.0 * TARGET).contains(&top.queue), "{top:?}");
        assert!(*window > FITS + TARGET * LINE, "{window}");
        assert!((0.97 * FITS..1.01 * FITS).contains(&top.fit), "{top:?}");
    }

    #[test]
    fn a_calm_window_overruns_the_queue_by_less_and_gives_more_back() {
        let free = 1.0 - Gait::CALM.free;
        for windows in [1, 4] {
            let begin = || vec![free * FITS / f64::from(windows); windows as usize];
            let over = |tops: &[(Top, f64)]| tops.iter().map(|(_, window)| window).sum::<f64>() - FITS - TARGET * LINE;
            let (usual, calm) = (tops(&mut begin(), |_| 0.0), tops_of(Gait::CALM, &mut begin(), |_| 0.0));
            assert_eq!((usual.len(), calm.len()), (windows as usize, windows as usize));
            assert!(over(&calm) < 0.01 * FITS && over(&usual) > 2.0 * over(&calm), "{usual:?} {calm:?}");
            let fits: f64 = calm.iter().map(|(top, _)| top.fit).sum();
            assert!((0.96 * FITS..0.98 * FITS).contains(&fits), "{calm:?}");
        }
    }

    #[test]
    fn a_queue_that_came_at_once_is_not_hurried_back_to_by_a_calm_window() {
        let (sent_at, now) = (after(1.0), after(1.0));
        let seen = Seen { queue: 10.0 * TARGET, sent_at, target: TARGET, base: BASE, now, delays_are_own: false };
        let grows_by = |gait| Climb::new(gait, 0.0, after(1.0)).top(seen.queue, FITS, &seen).grows_by;
        assert!(grows_by(Gait::USUAL) > 0.0);
        assert_eq!(grows_by(Gait::CALM), 0.0);
    }

    /// The top after so many round trips of a climb of a window of so many bytes, and with what the next one begins.
    fn after_rounds(eased: f64, window: f64, delays_are_own: bool, rounds: f64, queue: f64) -> (Top, f64) {
        let mut climb = Climb { eased, ..Climb::new(Gait::USUAL, 0.0, after(1.0)) };
        let now = after(1.0 + rounds * BASE.as_secs_f64());
        let top =
            climb.top(queue, window, &Seen { queue, sent_at: now, target: TARGET, base: BASE, now, delays_are_own });
        climb.restart(Climb::after(&top, Gait::USUAL, BASE, now));
        (top, climb.grows_by / Gait::USUAL.first)
    }

    /// Else 64 windows of five packets grow by half a packet each, which is more than a shallow buffer holds.
    #[test]
    fn small_windows_begin_with_less_after_climbs_that_were_too_fast() {
        let begins = |eased, rounds, queue| after_rounds(eased, 2e4, false, rounds, queue).1;
        assert_eq!(
            [begins(1.0, 3.9, TARGET), begins(1.0, 4.1, TARGET), begins(1.0, 4.1, 2.0 * TARGET)],
            [0.5, 1.0, 0.5]
        );
        assert_eq!([begins(0.5, 9.9, TARGET), begins(0.5, 10.1, TARGET), begins(1.0, 10.1, TARGET)], [0.5, 0.75, 1.0]);
        assert!((begins(0.05, 2.0, TARGET) * Gait::USUAL.first / 2e4 * 192.0 - 1.0).abs() < 1e-9, "the least");
        assert_eq!(after_rounds(1.0, 5e5, false, 2.0, TARGET).1, 1.0, "of a large window");
        assert_eq!(after_rounds(1.0, 2e4, true, 2.0, TARGET).1, 1.0, "of a host whose own delays are longer");
        // What a queue that came at once takes from a large window is to be had again soon.
        assert!(after_rounds(1.0, 5e5, false, 2.0, 5.0 * TARGET).1 > 2.0);
    }

    #[test]
    fn a_long_queue_that_is_there_again_at_once_lasts() {
        let lasts = |rounds, queue| after_rounds(1.0, 2e4, false, rounds, queue).0.lasts;
        assert!(!after_rounds(1.0, 2e4, true, 4.9, 2.0 * TARGET).0.lasts, "of a host whose own delays are longer");
        assert_eq!(
            [lasts(4.9, 2.0 * TARGET), lasts(5.1, 2.0 * TARGET), lasts(4.9, 1.9 * TARGET)],
            [true, false, false]
        );
    }

    #[test]
    fn the_slope_tells_each_of_unequal_windows_the_same_fair_one() {
        let found = tops(&mut [0.2e6, 0.7e6, 1.4e6], |_| 0.0);
        assert_eq!(found.len(), 3);
        for (top, window) in &found {
            let fair = top.fair.expect("a line");
            assert!((0.8..1.25).contains(&(fair / (FITS / 3.0))), "{window}: {top:?}");
        }
        assert!(found[0].0.share(0.2e6, false) > 1.5 && found[2].0.share(1.4e6, false) < 0.9, "{found:?}");
    }

    /// Else a flow that pauses finds that many share its line, though it is alone, and leaves them a fifth each time.
    #[test]
    fn what_a_window_that_is_sent_at_once_after_a_pause_makes_of_a_queue_tells_nothing() {
        let base = BASE.as_secs_f64();
        let mut climb = Climb::new(Gait::USUAL, 0.0, after(1.0));
        let mut window = FITS;
        // Two round trips without a queue, a second without anything, two round trips in which a queue becomes longer.
        let top = (0..400).chain(10_400..10_800).find_map(|step: u32| {
            let at = 1.0 + f64::from(step) * 100e-6;
            window += climb.grow(f64::INFINITY, BASE, after(at));
            let queue = 2e-6 * f64::from(step.saturating_sub(10_400));
            let (sent_at, now) = (after(at - base), after(at));
            climb.take(&Seen { queue, sent_at, target: TARGET, base: BASE, now, delays_are_own: false }, window)
        });
        assert!(top.is_some_and(|top| top.queue >= TARGET && top.fair.is_none()), "{top:?}");
    }

    /// Else a window never gets to what fits on a line that has one every few round trips.
    #[test]
    fn a_burst_of_others_is_no_top() {
        // Each 180 ms 5 MB more than the line takes, which are gone after 15 ms.
        let burst = |step: u32| (4e-3 - f64::from(step % 1800) * 100e-6 * 0.27).max(0.0);
        let found = tops(&mut [1.5e6], |step| if step < 1800 { 0.0 } else { burst(step) });
        let [(top, window)] = &found[..] else { panic!("no top") };
        assert!(*window > FITS, "{window}: {top:?}");
        // One that stays is.
        let found = tops(&mut [1.5e6], |step| if step < 1800 { 0.0 } else { 4e-3 });
        assert!(found[0].1 < 0.9 * FITS, "{found:?}");
    }

    #[test]
    fn delays_of_a_host_that_last_for_less_than_a_look_are_no_queue() {
        // Of each 12 ms, for 6 ms nobody looks: as long as no queue is there, all others see none.
        let late = |step: u32| if step % 120 < 60 { 5e-3 } else { 0.0 };
        let tops = tops(&mut [2e6], late);
        let [(top, window)] = &tops[..] else { panic!("no top") };
        assert!(top.queue < 2.0 * TARGET && *window > FITS, "{window}: {top:?}");
    }

    #[test]
    fn a_late_host_changes_much_only_by_what_two_tops_tell() {
        let share = |fair_before, fair| {
            let top = Top { fit: 1e6, fair, fair_before, queue: TARGET, grows_by: 0.0, lasts: false };
            (top.share(1e6, true) * 1e4).round() / 1e4
        };
        assert_eq!([share(None, Some(0.1e6)), share(None, Some(5e6))], [0.9, 1.1], "the first");
        assert_eq!([share(Some(5e6), Some(0.1e6)), share(Some(0.1e6), Some(5e6))], [0.9, 1.1], "they contradict");
        assert_eq!([share(Some(0.4e6), Some(0.1e6)), share(Some(0.1e6), Some(0.4e6))], [0.838, 0.838]);
        assert_eq!(share(None, Some(0.8e6)), 0.976, "as on another host");
        assert_eq!([share(Some(2.3e6), Some(9e6)), share(Some(9e6), Some(2.3e6))], [1.3, 1.3]);
    }

    #[test]
    fn a_window_of_nearly_a_fair_share_stays() {
        let top = |fair| Top { fit: 1e6, fair, fair_before: None, queue: TARGET, grows_by: 0.0, lasts: false };
        assert_eq!(top(None).share(1e6, false), 1.0);
        for near in [0.9e6, 1e6, 1.1e6] {
            assert_eq!(top(Some(near)).share(1e6, false), 1.0);
        }
        assert!((top(Some(2.3e6)).share(1e6, false) - 1.3).abs() < 1e-9, "three tenths of the way to 2 MB");
        assert!((top(Some(1.0)).share(1e6, false) - 0.775).abs() < 1e-9 && top(Some(1e12)).share(1e6, false) == 3.1);
    }
}
