use crate::cache;
use crate::time::{Duration, Instant};
use crate::wire::Telemetry;

use super::lateness::Lateness;
use super::rate::NANOS_IN_A_SECOND;
use super::{CongestionControl, Controller, Flight, FlowStatus, Progress, Rate, Seat};

/// Paces packets: spaces them out so that they keep to a rate, which a [`Controller`] decides on, up to a cap.
#[derive(Debug)]
pub struct Pacer {
    /// What decides on the rate.
    kind: CongestionControl,
    /// The rate that is never exceeded; `None` for none.
    cap: Option<Rate>,
    /// The rate of the link; `None` when it is not known.
    line: Option<Rate>,
    /// The controller, from the first data on.
    control: Option<Box<Control>>,
    /// The time at which all that was sent is paid for.
    paid_at: Instant,
    /// The share of the rate and the window that is used: numerator and denominator.
    share: (u64, u64),
    /// Time that is caught up after a pause, at that share of a rate.
    burst: (Option<Rate>, Duration),
    /// What is kept to now, which each packet asks for: the rate, and how many bytes can be in flight.
    rate: Option<Rate>,
    limit_bytes: u64,
    /// Whether it takes turns with other flows, as the controller says.
    takes_turns: bool,
}

#[derive(Debug)]
struct Control {
    controller: Box<dyn Controller>,
    flight: Flight,
    /// How late this host is, and the time that is allowed for it: caught up for, and in flight beside the window.
    lateness: Lateness,
    allowance: Duration,
    /// Whether urgent messages of this host are under way.
    is_beside_urgent: bool,
    is_scavenger: bool,
}

impl Control {
    fn new(controller: Box<dyn Controller>) -> Control {
        let (flight, lateness, allowance) = (Flight::default(), Lateness::default(), Duration::ZERO);
        Control { controller, flight, lateness, allowance, is_beside_urgent: false, is_scavenger: false }
    }

    /// The time that is allowed for this host's lateness, or another one, within what it is beside urgent messages: what goes
    /// at once stands in a queue, which a rate of little less than the line's empties slowly.
    fn calm(&self, usual: Duration) -> Duration {
        match self.is_beside_urgent {
            true => usual.min((self.flight.shortest().unwrap_or_default() / CALM_BURST).max(BURST_MIN)),
            false => usual,
        }
    }

    /// Time that is caught up, where that is `usual` for a host that is never late.
    fn burst(&self, usual: Duration) -> Duration {
        self.calm(self.allowance.max(usual))
    }

    /// Bytes that are in flight beside the window, since nobody looks at answers while this host is late.
    fn unseen_bytes(&self) -> u64 {
        if self.allowance.is_zero() {
            return 0;
        }
        let rate = self.controller.rate().map_or(0, Rate::bytes);
        rate.saturating_mul(self.calm(self.allowance).as_nanos() as u64) / NANOS_IN_A_SECOND
    }
}

/// Burst after a pause, in bytes: as much as Linux's pacing sends in one piece (net/ipv4/tcp_output.c,
/// `tcp_tso_autosize`), within the times by which a host's timers are late.
const BURST_BYTES: u64 = 64 << 10;
const BURST_MIN: Duration = Duration::from_micros(50);
const BURST_MAX: Duration = Duration::from_millis(1);

/// The part of a round trip that a host catches up at most beside urgent messages.
const CALM_BURST: u32 = 64;

/// The rate of a link that does not report it: what most RNICs have today.
const LINE: Rate = Rate::from_bits(100_000_000_000);

/// Length of the Ethernet header, in bytes: rates count it.
const ETHERNET_BYTES: u64 = 14;

impl Pacer {
    /// A pacer that keeps to what a controller of this kind decides, all of it, up to `cap`.
    pub fn new(kind: CongestionControl, cap: Option<Rate>) -> Pacer {
        let (burst, rate, limit_bytes) = ((None, Duration::ZERO), cap, u64::MAX);
        let (line, control, paid_at, share) = (None, None, Instant::ZERO, (1, 1));
        Pacer { kind, cap, line, control, paid_at, share, burst, rate, limit_bytes, takes_turns: false }
    }

    /// Has what lies outside of it fetched into the caches.
    pub fn prefetch(&self) {
        self.control.as_deref().into_iter().for_each(cache::prefetch);
    }

    /// Has what lies outside of that fetched into the caches.
    pub fn prefetch_parts(&self) {
        if let Some(control) = &self.control {
            cache::prefetch(&*control.controller);
            control.flight.prefetch();
        }
    }

    /// The same pacer on a link of this rate.
    pub fn on_line(self, line: Option<Rate>) -> Pacer {
        Pacer { line, ..self }
    }

    /// Keeps to `cap` from now on; `None` for no upper bound.
    pub fn set_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap;
        self.renew();
    }

    /// Whether [`next_after`](Self::next_after) can be later.
    pub fn can_ask_late(&self) -> bool {
        self.cap.is_some() || self.takes_turns
    }

    /// Keeps to `part` / `whole` of the rate and the window from now on; both are at least 1.
    pub fn set_share(&mut self, part: u64, whole: u64) {
        let share = (part.max(1), whole.max(1));
        if share != self.share {
            (self.share, self.burst) = (share, (None, Duration::ZERO));
            self.renew();
        }
    }

    /// When the next packet is allowed to go; `None` for now.
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        (self.paid_at > now).then_some(self.paid_at)
    }

    /// Notes that this host saw so late that the next packet is allowed to go. Others had its processor, and will have it again:
    /// what it did not send meanwhile goes at once, and as much is in flight beside the window while nobody looks at answers.
    pub fn was_late(&mut self, late: Duration, now: Instant) {
        if let Some(control) = &mut self.control {
            control.lateness.take(late, now);
            control.allowance = control.lateness.allowance(control.flight.shortest().unwrap_or_default());
            control.controller.set_lateness(control.allowance);
            self.renew();
        }
    }

    /// When the packet after one of `bytes` is allowed to go, if that one goes now, and the cap decides or it takes turns.
    /// Other controllers adapt their rate to the acknowledges: more of them make it another controller.
    pub fn next_after(&self, now: Instant, bytes: usize) -> Instant {
        let rate = self.rate.filter(|_| self.takes_turns || self.rate == self.cap);
        rate.map_or(now, |rate| now.max(self.paid_after(rate, now, bytes)))
    }

    /// Whether a further packet can be in flight beside `in_flight_bytes`.
    pub fn has_room(&self, in_flight_bytes: u64) -> bool {
        in_flight_bytes < self.limit_bytes()
    }

    /// Bytes that can be in flight: a further packet can go while there are fewer. One always can.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Takes from the controller what is kept to from now on.
    fn renew(&mut self) {
        let decided = self.control.as_ref().and_then(|control| control.controller.rate());
        self.rate = [decided, self.cap].into_iter().flatten().min_by_key(|rate| rate.bytes());
        let Some(control) = &self.control else { return };
        self.takes_turns = control.controller.takes_turns();
        let window = control.controller.window_bytes().saturating_add(control.unseen_bytes());
        let limit = match self.share {
            (part, whole) if part == whole => window,
            (part, whole) => {
                let limit = (u128::from(window) * u128::from(part)).div_ceil(whole.into());
                limit.try_into().unwrap_or(u64::MAX)
            }
        };
        self.limit_bytes = limit.max(1);
    }

    /// Whether a controller has begun, which must be told [what becomes of packets](Self::take).
    pub fn is_controlled(&self) -> bool {
        self.control.is_some()
    }

    /// Takes what switches wrote into the packet of which the peer tells now: what becomes of that is taken next.
    pub fn measured(&mut self, telemetry: &Telemetry) {
        if let Some(control) = &mut self.control {
            control.controller.measured(telemetry);
            self.renew();
        }
    }

    /// Takes what became of packets; `in_flight_bytes` are left in flight.
    pub fn take(&mut self, progress: &Progress, in_flight_bytes: u64, now: Instant) {
        if let Some(control) = self.control.as_mut().filter(|_| progress.is_news()) {
            if control.flight.shortest().is_none()
                && let Some(shortest) = control.controller.shortest_of_others()
            {
                control.flight.assume(shortest, now);
            }
            control.flight.take(progress, in_flight_bytes, now);
            control.controller.take(progress, &control.flight, now);
            self.renew();
        }
    }

    /// Takes whether urgent messages of this host are under way: what is kept in queues, they wait for.
    pub fn set_beside_urgent(&mut self, is_beside: bool, now: Instant) {
        if let Some(control) = self.control.as_mut().filter(|control| control.is_beside_urgent != is_beside) {
            control.is_beside_urgent = is_beside;
            control.controller.set_beside_urgent(is_beside, &control.flight, now);
            self.renew();
        }
    }

    /// Takes whether its flow is of class scavenger.
    pub fn set_scavenger(&mut self, is_scavenger: bool, now: Instant) {
        if let Some(control) = self.control.as_mut().filter(|control| control.is_scavenger != is_scavenger) {
            control.is_scavenger = is_scavenger;
            control.controller.set_scavenger(is_scavenger, now);
            self.renew();
        }
    }

    /// Takes a congestion notification packet. Returns whether a controller has begun, which reacts to it.
    pub fn notified(&mut self, now: Instant) -> bool {
        if let Some(control) = &mut self.control {
            control.controller.notified(&control.flight, now);
            self.renew();
        }
        self.control.is_some()
    }

    /// The rate that a controller can start at.
    fn line(&self) -> Rate {
        [self.line, self.cap].into_iter().flatten().min_by_key(|rate| rate.bytes()).unwrap_or(LINE)
    }

    /// The round trip, smoothed; `None` while a controller knows none.
    pub fn round_trip(&self) -> Option<Duration> {
        self.control.as_ref()?.flight.smoothed()
    }

    /// What the controller does and knows, of `in_flight_bytes` in flight; `None` before the first data that it sends, and without a
    /// controller.
    pub fn status(&self, in_flight_bytes: u64) -> Option<FlowStatus> {
        let Control { controller, flight, is_beside_urgent, .. } = self.control.as_deref()?;
        Some(FlowStatus {
            rate: self.rate,
            window_bytes: controller.window_bytes(),
            in_flight_bytes,
            round_trip: flight.smoothed(),
            shortest: flight.shortest(),
            delivered_bytes: flight.delivered_bytes(),
            lost_bytes: flight.lost_bytes(),
            gives_way: *is_beside_urgent,
        })
    }

    /// Whether there is a controller to start, which has not begun.
    pub fn awaits_start(&self) -> bool {
        self.control.is_none() && self.kind != CongestionControl::Fixed
    }

    /// Starts the controller, in the company of that seat. Otherwise the first data starts it, without company: queue pairs that are
    /// never used, or only receive, need none.
    #[cold]
    pub fn start(&mut self, seat: Option<Seat>) {
        self.control = self.kind.start(self.line(), seat).map(|controller| Box::new(Control::new(controller)));
        self.renew();
    }

    /// Accounts for an IP packet of `bytes` that goes now: a request, or an answer with data.
    #[inline]
    pub fn sent(&mut self, now: Instant, bytes: usize) {
        if self.awaits_start() {
            self.start(None);
        }
        self.sent_unpaced(now, bytes);
        self.sent_without_data(now, bytes);
    }

    /// As [`sent`](Self::sent), towards a peer for which packets keep to no rate.
    #[inline]
    pub fn sent_unpaced(&mut self, now: Instant, bytes: usize) {
        if let Some(control) = &mut self.control
            && control.controller.sent(bytes as u64 + ETHERNET_BYTES, now)
        {
            self.renew();
        }
    }

    /// As [`sent`](Self::sent), for an acknowledge: it keeps to the rate, and the controller is not told of it.
    #[inline]
    pub fn sent_without_data(&mut self, now: Instant, bytes: usize) {
        if let Some(rate) = self.rate {
            self.pay(rate, bytes, now);
        }
    }

    fn pay(&mut self, rate: Rate, bytes: usize, now: Instant) {
        if self.burst.0 != Some(rate) {
            self.burst = (Some(rate), self.takes(rate, BURST_BYTES).clamp(BURST_MIN, BURST_MAX));
        }
        let (earliest, bytes) = (self.earliest(now), bytes as u64 + ETHERNET_BYTES);
        let paid_at = self.paid_at.max(earliest) + self.takes(rate, bytes);
        let turn = self.control.as_mut().and_then(|control| control.controller.turn(bytes, earliest));
        self.paid_at = match turn {
            Some(turn) if self.cap == Some(rate) => turn.max(paid_at),
            Some(turn) => turn,
            None => paid_at,
        };
    }

    /// When all is paid for once a packet of `bytes` has gone now.
    fn paid_after(&self, rate: Rate, now: Instant, bytes: usize) -> Instant {
        self.paid_at.max(self.earliest(now)) + self.takes(rate, bytes as u64 + ETHERNET_BYTES)
    }

    /// What was not sent until then is not caught up.
    fn earliest(&self, now: Instant) -> Instant {
        let burst = self.control.as_ref().map_or(self.burst.1, |control| control.burst(self.burst.1));
        Instant::from_ns(now.as_ns().saturating_sub(burst.as_nanos() as u64))
    }

    /// How long bytes take at the share of `rate` that is used.
    fn takes(&self, rate: Rate, bytes: u64) -> Duration {
        rate.takes(bytes, self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Between, Companies, Sample};
    use super::*;
    use crate::wire::Addresses;

    fn pacer(rate: Rate) -> Pacer {
        Pacer::new(CongestionControl::Fixed, Some(rate))
    }

    #[test]
    fn packets_keep_to_the_rate_and_a_pause_is_caught_up_a_little() {
        let mut pacer = pacer(Rate::from_bits(8_000_000_000));
        let mut now = Instant::from_ns(1_000_000_000);
        let start = now;
        let mut bytes = 0;
        while now - start < Duration::from_millis(1) {
            match pacer.wait(now) {
                Some(at) => now = at,
                None => {
                    pacer.sent(now, 986);
                    bytes += 1000;
                }
            }
        }
        // A millisecond's worth, and a burst.
        assert!((1_065_000..=1_068_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_part_of_the_rate_is_kept_to_as_the_rate_is() {
        let mut pacer = pacer(Rate::from_bits(8_000_000_000));
        pacer.set_share(7, 8);
        let now = Instant::from_ns(1_000_000_000);
        (0..70).for_each(|_| pacer.sent(now, 986));
        assert_eq!(pacer.wait(now), Some(Instant::from_ns(1_000_000_000 - 74_899 + 80_010)));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pacer = Pacer::new(CongestionControl::Fixed, None);
        let now = Instant::from_ns(1_000_000_000);
        (0..1000).for_each(|_| pacer.sent(now, 9000));
        assert_eq!(pacer.wait(now), None);
    }

    #[test]
    fn a_host_that_is_late_has_more_in_flight_and_catches_up_for_it() {
        let mut pacer = Pacer::new(CongestionControl::Steady, None);
        let ms = Duration::from_millis;
        let mut now = Instant::from_ns(1_000_000_000);
        pacer.sent(now, 986);
        let sent_at = now;
        now = now + ms(16);
        let sample = Sample { sent_at, round_trip: ms(16), delay: ms(0), path: 0, is_marked: false };
        pacer.take(&Progress { delivered_bytes: 1000, sample: Some(sample), ..Progress::default() }, 1, now);
        let burst = |pacer: &mut Pacer| {
            let mut packets = 0;
            while pacer.wait(now).is_none() {
                pacer.sent(now, 986);
                packets += 1;
            }
            pacer.paid_at = Instant::ZERO;
            packets
        };
        let room = |pacer: &Pacer| (1..).find(|bytes| !pacer.has_room(bytes * 1000)).expect("some are too many");
        let (packets_before, room_before) = (burst(&mut pacer), room(&pacer));
        let rate = pacer.rate.expect("a long way is paced").bytes();
        pacer.was_late(ms(2), now);
        assert_eq!(burst(&mut pacer), packets_before, "late once");
        pacer.was_late(ms(2), now);
        // 2 ms of the rate, of which a burst was there before.
        let caught_up = burst(&mut pacer) - packets_before;
        let more = rate * 2 / 1_000_000;
        assert!((more / 2..=more).contains(&caught_up), "{caught_up} of {more}");
        assert!((more - 1..=more + 1).contains(&(room(&pacer) - room_before)), "{more}");
    }

    #[test]
    fn beside_urgent_messages_little_is_caught_up() {
        let mut pacer = Pacer::new(CongestionControl::Steady, Some(Rate::from_bits(80_000_000)));
        let ms = Duration::from_millis;
        let sent_at = Instant::from_ns(1_000_000_000);
        let now = sent_at + ms(16);
        pacer.sent(sent_at, 986);
        let sample = Sample { sent_at, round_trip: ms(16), delay: ms(0), path: 0, is_marked: false };
        pacer.take(&Progress { delivered_bytes: 1000, sample: Some(sample), ..Progress::default() }, 1, now);
        let burst = |pacer: &mut Pacer, is_beside| {
            pacer.set_beside_urgent(is_beside, now);
            pacer.paid_at = Instant::ZERO;
            let mut packets = 0;
            while pacer.wait(now).is_none() {
                pacer.sent(now, 986);
                packets += 1;
            }
            packets
        };
        // At 10 MB/s: a millisecond, and a quarter of one.
        assert_eq!([false, true, false].map(|is_beside| burst(&mut pacer, is_beside)), [11, 3, 11]);
        (0..2).for_each(|_| pacer.was_late(ms(2), now));
        assert_eq!([false, true].map(|is_beside| burst(&mut pacer, is_beside)), [21, 3], "a host that is late");
    }

    /// Else 8 of 9 flows with a cap send what is left by one that has little to send, too.
    #[test]
    fn a_flow_in_company_keeps_to_its_own_cap() {
        let addresses = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
        let (mut companies, ms) = (Companies::default(), Duration::from_millis);
        let sent_at = Instant::from_ns(1_000_000_000);
        let now = sent_at + ms(20);
        let mut took = [Some(Rate::from_bits(8_000_000)), None].map(|cap| {
            let mut pacer = Pacer::new(CongestionControl::Steady, cap);
            pacer.start(companies.join(Between { addresses, dscp: 0 }));
            pacer.sent(sent_at, 986);
            pacer
        });
        let sample = Sample { sent_at, round_trip: ms(20), delay: ms(0), path: 0, is_marked: false };
        let progress = Progress { delivered_bytes: 1000, sample: Some(sample), ..Progress::default() };
        took.iter_mut().for_each(|pacer| pacer.take(&progress, 1000, now));
        let [capped, free] = took.map(|mut pacer| {
            (0..100).for_each(|_| pacer.sent(now, 986));
            pacer.wait(now).map_or(Duration::ZERO, |at| at - now)
        });
        assert!(capped >= ms(98) && free < ms(2), "100 packets of 1000 bytes: {capped:?} at 1 MB/s, and {free:?}");
    }

    #[test]
    fn late_timers_are_caught_up_for_but_not_long_pauses() {
        for (rate, burst_us) in [("100G", 50), ("10G", 52), ("500M", 1000), ("10M", 1000)] {
            let rate: Rate = rate.parse().unwrap();
            let mut pacer = pacer(rate);
            let now = Instant::from_ns(1_000_000_000);
            let mut bytes = 0;
            while pacer.wait(now).is_none() {
                pacer.sent(now, 986);
                bytes += 1000;
            }
            let burst = rate.bytes() * burst_us / 1_000_000;
            assert!((burst..=burst + 2000).contains(&bytes), "{bytes} at {rate}");
        }
    }
}
