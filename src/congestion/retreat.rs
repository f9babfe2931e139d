use crate::time::{Duration, Instant};

use super::losses::Losses;
use super::{Flight, Progress, Rate};

/// Leaves the line to others when they come, and is back soon after they have gone: what a flow of class scavenger does.
///
/// Others are known by a queue that lasts though this flow has given back what of it is its own. Then only probes are sent: a few
/// packets now and then, spread over a round trip, at the rate of the line where a single one is too short to meet others. As
/// long as others send, some of them wait. When none does, half of the line is used, and all of it when there is no queue then.
///
/// Flows of this class keep the queue short, and so are told from others: beside a short queue one comes back with a little, and
/// has more from then on by what the tops of all tell of a fair window.
#[derive(Debug)]
pub(super) struct Retreat {
    state: State,
    /// When the state began: what was sent before says nothing of it.
    since: Instant,
    /// Since when all that was seen showed a queue of others.
    queued_from: Option<(Instant, Losses)>,
    /// What fits without others, in bytes a second, as tops have shown it: the rate of trains, and what is to be had again. 0 before
    /// the first.
    line: f64,
    /// Probes in a row that saw a queue, though a short one: so do flows of this class keep it.
    calm: u32,
    /// Whether packets were lost when others came: the buffer is shallow, and they need longer until they use the line.
    is_flooded: bool,
    /// When the first packet of those in a row went that found the line free, and how many these are.
    clean: Option<(Instant, u32)>,
    /// When the line was come back to last.
    returned_at: Option<Instant>,
    /// Round trips from one probe to the next.
    every: u32,
    probe: Probe,
    /// Packets that were seen since the state began, and those of them that stood in a queue.
    seen: [u32; 2],
    /// The length of a train, in bytes.
    train_bytes: f64,
    /// The round trip without queues.
    base: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The line is used, while others do not come.
    Stays,
    /// Others have the line.
    Away,
    /// This part of what was had before is used, to see whether there is room.
    Returns(f64),
}

/// Trains of a probe, spread over a round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    began: Instant,
    /// When its latest packet was sent, and bytes of that train in front of it, where it was sent early.
    sent_at: Instant,
    ahead: f64,
    /// Trains that were sent, and bytes of the present one.
    trains: u32,
    bytes: f64,
    /// Whether nobody waits for what its packets see any more.
    is_judged: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Course {
    /// To go on as usual.
    Usual,
    /// To send what [`Retreat::sent`] says.
    Away,
    /// To go on with so many bytes in a round trip.
    Back(f64),
}

/// What is known when news of packets come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The delay in queues up to which the window grows, in seconds.
    pub target: f64,
    /// The round trip without queues.
    pub base: Duration,
    /// The window, in bytes.
    pub window: f64,
    /// Length of the longest packet, in bytes.
    pub packet: f64,
    pub now: Instant,
}

/// A queue of others: so many times the target, and this part of a round trip and so many packets at least. Half of it is none:
/// idle hosts add 300 µs to a packet that comes alone.
const SUDDEN: f64 = 2.0;
const SUDDEN_SHARE: f64 = 1.0 / 32.0;
const SUDDEN_PACKETS: f64 = 3.0;

/// For how many quarters of a round trip it lasts: more than it takes to see what became of a window that was too large.
const LOOK: u32 = 5;

/// The share that is lost, and the least packets, when others overrun a shallow buffer: that is not waited for.
const FLOODED: f64 = 1.0 / 8.0;
const FLOODED_PACKETS: f64 = 3.5;

/// Trains of a probe. A flow that has not most of the line sends its packets in a row, once in a round trip: a single train can miss
/// them.
const TRAINS: u32 = 4;

/// How long a train is: so many times the target, up to this part of a round trip, and one packet at least.
const TRAIN: f64 = 2.0;
const TRAIN_SHARE: f64 = 1.0 / 64.0;

/// Round trips from one probe to the next, at first and at most.
const EVERY: u32 = 2;
const EVERY_MOST: u32 = 8;

/// Who is away again within so many round trips came back too early.
const EARLY: u32 = 6;

/// The share of packets that stand in a queue when half of the line is not free.
const QUEUED: f64 = 0.25;

/// What is left of the line as it was known each time it is left, and when that was too early: another one may be slower.
const FORGOTTEN: f64 = 31.0 / 32.0;
const FAILED: f64 = 7.0 / 8.0;

/// Packets in a row that find the line free until it is, and for how many quarters of a round trip: who has not most of the line sends
/// its packets in a row.
const CLEAN: u32 = 3;
const CLEAN_QUARTERS: u32 = 3;
/// So many times as many, and as long, after losses: who has lost much begins slowly.
const CLEAN_FLOODED: u32 = 4;
/// The part of the line that is used then.
const HALF: f64 = 0.5;

/// Probes in a row that see a short queue only, until it counts as that of flows of this class; and the part of the line with which
/// it is shared from then on, which is no sudden queue for them.
const CALM: u32 = 4;
const SMALL: f64 = 1.0 / 64.0;

impl Retreat {
    /// A flow that is alone as far as it knows.
    pub fn new(now: Instant) -> Retreat {
        Retreat {
            state: State::Stays,
            since: now,
            queued_from: None,
            line: 0.0,
            calm: 0,
            is_flooded: false,
            clean: None,
            returned_at: None,
            every: EVERY,
            probe: Probe::default(),
            seen: [0; 2],
            train_bytes: 0.0,
            base: Duration::ZERO,
        }
    }

    /// Whether others have the line.
    pub fn is_away(&self) -> bool {
        self.state == State::Away
    }

    /// Takes what became of packets.
    pub fn take(&mut self, progress: &Progress, flight: &Flight, known: &Known) -> Course {
        let Known { base, now, .. } = *known;
        self.base = base;
        let Some(sample) = progress.sample.filter(|sample| sample.sent_at >= self.since) else {
            return if self.is_away() { Course::Away } else { Course::Usual };
        };
        let queue = flight.queue().unwrap_or_default().as_secs_f64();
        match self.state {
            State::Away => self.judge(sample.sent_at, queue, known),
            State::Returns(share) if now > self.since + base * 2 => self.go_on(share, known),
            State::Stays | State::Returns(_) => {
                self.seen[0] += 1;
                self.seen[1] += u32::from(queue > self.free(known));
                if self.is_taken(queue, flight, known) {
                    self.leave(known);
                    return Course::Away;
                }
                Course::Usual
            }
        }
    }

    /// Goes on after two round trips with this share of the line: with twice as much if that was free.
    fn go_on(&mut self, share: f64, known: &Known) -> Course {
        if f64::from(self.seen[1]) > QUEUED * f64::from(self.seen[0]) {
            if share >= HALF {
                self.leave(known);
                return Course::Away;
            }
            self.become_of(State::Stays, known.now);
            return Course::Usual;
        }
        let more = (share * 2.0).min(1.0);
        self.become_of(if more < 1.0 { State::Returns(more) } else { State::Stays }, known.now);
        Course::Back(self.line * more * known.base.as_secs_f64())
    }

    /// Takes what fits at the top of a climb, in bytes a second.
    pub fn top(&mut self, fits: f64) {
        self.line = fits.max(self.line * FORGOTTEN);
    }

    /// Leaves the line, for longer if it was come back to lately.
    fn leave(&mut self, known: &Known) {
        let base = known.base.as_secs_f64();
        let is_early = self.returned_at.is_some_and(|at| known.now < at + known.base * EARLY);
        self.line *= if is_early { FAILED } else { FORGOTTEN };
        self.every = if is_early { (self.every * 2).min(EVERY_MOST) } else { EVERY };
        self.train_bytes = self.line * (TRAIN * known.target).min(TRAIN_SHARE * base);
        self.probe = Probe { trains: TRAINS, is_judged: true, ..Probe::default() };
        (self.calm, self.clean) = (0, None);
        self.become_of(State::Away, known.now);
    }

    /// Comes back with this part of the line.
    fn come_back(&mut self, share: f64, known: &Known) -> Course {
        self.returned_at = Some(known.now);
        self.become_of(State::Returns(share), known.now);
        Course::Back(self.line * share * known.base.as_secs_f64())
    }

    /// A shorter queue is none: hosts add as much.
    fn free(&self, known: &Known) -> f64 {
        self.sudden(known) / 2.0
    }

    /// A queue of others is as long as that, in seconds.
    fn sudden(&self, known: &Known) -> f64 {
        let least = (SUDDEN_SHARE * known.base.as_secs_f64()).max(SUDDEN_PACKETS * known.packet / self.line);
        least.max(SUDDEN * known.target)
    }

    fn become_of(&mut self, state: State, now: Instant) {
        (self.state, self.since, self.queued_from, self.seen) = (state, now, None, [0; 2]);
    }

    /// Whether others have come: their queue is there at once, and lasts.
    fn is_taken(&mut self, queue: f64, flight: &Flight, known: &Known) -> bool {
        let Known { base, now, .. } = *known;
        // What more than fits is in flight stands in the queue, too.
        let own = (known.window / self.line - base.as_secs_f64()).max(0.0);
        if self.line == 0.0 || queue - own < self.free(known) {
            self.queued_from = None;
            return false;
        }
        let (from, losses) = *self.queued_from.get_or_insert_with(|| (now, Losses::until(flight)));
        let (delivered, lost) = losses.since(flight);
        self.is_flooded = lost as f64 > (FLOODED * (delivered + lost) as f64).max(FLOODED_PACKETS * known.packet);
        let is_long = own < queue - self.sudden(known);
        let lasted = now.saturating_since(from);
        self.is_flooded && lasted >= base / 4 || is_long && lasted >= base * LOOK / 4
    }

    /// Takes what a packet of a probe saw.
    fn judge(&mut self, sent_at: Instant, queue: f64, known: &Known) -> Course {
        let probe = self.probe;
        if probe.is_judged || sent_at < probe.began {
            return Course::Away;
        }
        let queue = queue - probe.ahead / self.line;
        if queue > self.free(known) {
            self.probe.is_judged = true;
            let is_calm = queue < self.sudden(known);
            self.calm = if is_calm { self.calm + 1 } else { 0 };
            if self.calm >= CALM {
                return self.come_back(SMALL, known);
            }
            self.clean = None;
        } else {
            let (first, count) = self.clean.map_or((sent_at, 1), |(first, count)| (first, count + 1));
            self.clean = Some((first, count));
            let times = if self.is_flooded { CLEAN_FLOODED } else { 1 };
            if count >= CLEAN * times && sent_at >= first + known.base * CLEAN_QUARTERS * times / 4 {
                return self.come_back(HALF, known);
            }
        }
        Course::Away
    }

    /// Takes a packet of `bytes` that goes now. Returns the rate at which the next one follows, while others have the line.
    pub fn sent(&mut self, bytes: u64, now: Instant) -> Option<Rate> {
        if !self.is_away() {
            return None;
        }
        let bytes = bytes as f64;
        if self.probe.trains >= TRAINS {
            self.probe = Probe { began: now, ..Probe::default() };
        }
        let probe = &mut self.probe;
        probe.ahead = match probe.bytes {
            0.0 => 0.0,
            _ => (probe.ahead + bytes - now.saturating_since(probe.sent_at).as_secs_f64() * self.line).max(0.0),
        };
        (probe.bytes, probe.sent_at) = (probe.bytes + bytes, now);
        if probe.bytes < self.train_bytes {
            return Some(Rate::from_bits((self.line * 8.0) as u64));
        }
        (probe.bytes, probe.trains) = (0.0, probe.trains + 1);
        let wait = match probe.trains {
            TRAINS if self.clean.is_none() => (probe.began + self.base * self.every).saturating_since(now),
            _ => self.base / TRAINS,
        };
        Some(Rate::from_bits((bytes * 8.0 / wait.as_secs_f64().max(1e-6)) as u64))
    }

    /// Bytes of a probe.
    pub fn probe_bytes(&self) -> f64 {
        (f64::from(TRAINS) * self.train_bytes).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    const BASE: Duration = Duration::from_millis(20);
    const PACKET: f64 = 4200.0;

    /// A flow of 100 Mb/s that knows its line, or is away from it, at a time in milliseconds.
    struct Play {
        retreat: Retreat,
        flight: Flight,
        window: f64,
    }

    fn at(ms: f64) -> Instant {
        Instant::from_ns((ms * 1e6) as u64)
    }

    fn play() -> Play {
        let mut play = Play { retreat: Retreat::new(at(0.0)), flight: Flight::default(), window: 250e3 };
        play.retreat.top(12.5e6);
        assert_eq!(play.see(100.0, 0.0, 0), Course::Usual);
        play
    }

    impl Play {
        /// A packet arrives that stood in the queue for so long, and so many are found to be lost.
        fn see(&mut self, ms: f64, queue_ms: f64, lost: u64) -> Course {
            let round_trip = BASE + Duration::from_secs_f64(queue_ms / 1e3);
            let sent_at = at(ms - round_trip.as_secs_f64() * 1e3);
            let sample = Some(Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false });
            let [delivered_bytes, lost_bytes] = [1, lost].map(|packets| packets * PACKET as u64);
            let progress = Progress { delivered_bytes, lost_bytes, sample, ..Progress::default() };
            self.flight.take(&progress, self.window as u64, at(ms));
            let known = Known { target: 150e-6, base: BASE, window: self.window, packet: PACKET, now: at(ms) };
            self.retreat.take(&progress, &self.flight, &known)
        }

        /// The same for each of so many milliseconds from `from` on. Returns when it was something else than before, and what.
        fn see_all(&mut self, from: f64, lasts: u32, queue_ms: f64) -> Option<(f64, Course)> {
            let before = if self.retreat.is_away() { Course::Away } else { Course::Usual };
            let mut all = (0..lasts).map(|ms| from + f64::from(ms));
            all.find_map(|ms| Some((ms, self.see(ms, queue_ms, 0))).filter(|(_, course)| *course != before))
        }

        /// The times until the next packet after each of so many, in milliseconds.
        fn send(&mut self, from: f64, packets: u32) -> Vec<f64> {
            let mut now = from;
            let mut next = |retreat: &mut Retreat| {
                let rate = retreat.sent(PACKET as u64, at(now)).expect("a rate").bytes() as f64;
                now += PACKET / rate * 1e3;
                (PACKET / rate * 1e3).round()
            };
            (0..packets).map(|_| next(&mut self.retreat)).collect()
        }
    }

    #[test]
    fn a_queue_of_others_that_lasts_for_longer_than_a_round_trip_is_left_the_line() {
        let mut play = play();
        assert_eq!(play.see_all(200.0, 60, 3.0), Some((225.0, Course::Away)));
        assert_eq!(play_with(0.4), None, "as much as idle hosts add");
    }

    /// What a flow of 100 Mb/s does beside this queue for 60 ms.
    fn play_with(queue_ms: f64) -> Option<(f64, Course)> {
        play().see_all(200.0, 60, queue_ms)
    }

    /// Else a flow that is alone leaves the line after each start and return that overruns the queue.
    #[test]
    fn a_queue_of_its_own_is_not_left() {
        let mut play = play();
        play.window = 250e3 + 12.5e6 * 3e-3;
        assert_eq!(play.see_all(200.0, 60, 3.0), None);
        let unknown = Retreat::new(at(0.0));
        let mut play = Play { retreat: unknown, flight: Flight::default(), window: 250e3 };
        assert_eq!((play.see(100.0, 0.0, 0), play.see_all(200.0, 60, 3.0)), (Course::Usual, None), "before a top");
    }

    #[test]
    fn a_shallow_buffer_that_overflows_is_not_waited_for() {
        let mut play = play();
        assert_eq!((play.see(200.0, 1.0, 0), play.see(204.0, 1.0, 4)), (Course::Usual, Course::Usual));
        assert_eq!(play.see(205.0, 1.0, 0), Course::Away);
    }

    #[test]
    fn a_probe_is_spread_over_a_round_trip_and_goes_every_other_one() {
        let mut play = play();
        play.see_all(200.0, 60, 3.0);
        assert_eq!(play.send(230.0, 8), [5.0, 5.0, 5.0, 25.0, 5.0, 5.0, 5.0, 25.0]);
    }

    #[test]
    fn packets_that_find_the_line_free_bring_back_half_of_it_and_then_all() {
        let mut play = play();
        play.see_all(200.0, 60, 3.0);
        play.send(230.0, 4);
        assert_eq!(play.see(260.0, 0.0, 0), Course::Away);
        assert_eq!(play.see(262.0, 3.0, 0), Course::Away, "others are there");
        play.send(270.0, 4);
        assert_eq!([290.5, 295.5, 300.5].map(|ms| play.see(ms, 0.1, 0)), [Course::Away; 3]);
        let Course::Back(half) = play.see(306.0, 0.1, 0) else { panic!("{:?}", play.retreat) };
        // A 32nd is forgotten.
        let fits = 250e3 * FORGOTTEN;
        assert_eq!(half, fits / 2.0);
        assert_eq!(play.see_all(327.0, 60, 0.1), Some((347.0, Course::Back(fits))));
    }

    #[test]
    fn who_came_back_too_early_looks_half_as_often() {
        let mut play = play();
        play.see_all(200.0, 60, 3.0);
        play.send(230.0, 4);
        assert!(matches!(play.see_all(250.0, 30, 0.1), Some((266.0, Course::Back(_)))));
        play.window = 125e3;
        assert_eq!(play.see_all(288.0, 60, 3.0).map(|(_, course)| course), Some(Course::Away));
        assert_eq!(play.send(350.0, 4), [5.0, 5.0, 5.0, 65.0]);
    }

    #[test]
    fn a_queue_that_stays_short_is_of_flows_of_this_class_and_shared() {
        let mut play = play();
        play.see_all(200.0, 60, 3.0);
        let back = (0..5).find_map(|probe| {
            let from = 230.0 + 40.0 * f64::from(probe);
            play.send(from, 4);
            play.see_all(from + 21.0, 10, 0.7)
        });
        let (ms, course) = back.expect("it comes back");
        assert_eq!((ms.round(), course), (371.0, Course::Back(250e3 * FORGOTTEN / 64.0)));
    }
}
