use std::collections::VecDeque;
use std::ops::Range;

use crate::congestion::{Progress, Sample};
use crate::time::{Duration, Instant};

use super::{Answer, Departure, Expired, Recovery, Said, Wants};

/// Go-back-N, as rxe and RNICs speak it. The peer accepts packets in order only, and a lost packet is retransmitted
/// with all that followed it (IBTA 9.7.5, 9.7.5.1).
#[derive(Debug)]
pub struct GoBackN {
    first: u64,
    next: u64,
    /// The position that goes out next: equal to `next`, unless it went back.
    again: u64,
    /// All requests before this position have executed.
    carried_out: u64,
    /// The missing answers of each READ or atomic, in order.
    answers: VecDeque<Range<u64>>,
    /// Whether an answer is missing that precedes an executed request.
    is_overtaken: bool,
    /// Whether it went back for that: not twice without progress.
    is_gap_reported: bool,
    /// Whether the next request cannot be sent, and so nothing after it.
    is_stopped: bool,
    timeout: Option<Duration>,
    /// How long is to be waited, in microseconds: two round trips. While none is known, longer after each acknowledge that can be
    /// that of a packet which was sent before.
    wanted_us: u32,
    is_round_trip_known: bool,
    retransmit_at: Option<Instant>,
    /// The packets in flight, in order.
    flights: VecDeque<Flight>,
    in_flight_bytes: u64,
    progress: Progress,
}

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    position: u64,
    bytes: u32,
    at: Instant,
    /// Whether it was sent before: its acknowledge can be that of the earlier one (RFC 6298, 3).
    is_again: bool,
}

/// Upper bound on the timeouts after which is retransmitted (IBTA 9.7.6.1.3: at least the local ACK timeout, and at most four
/// times as long).
const MAX_PATIENCE: u32 = 4;

/// No round trip is longer that is not known: light takes 200 ms around the world in a fibre. Four timeouts of perftest's.
const LONGEST: Duration = Duration::from_millis(268);

/// Every packet whose position is a multiple of this asks for an acknowledge, so that the window never closes without
/// one on its way.
const ACK_REQUEST_EVERY: u64 = 64;

/// A time in microseconds, as queue pairs keep it.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl GoBackN {
    /// Upper bound on the positions in flight. rxe stalls at 128 itself (RXE_MAX_UNACKED_PSNS); more overruns the
    /// receive rings in front of such peers.
    pub const WINDOW: u64 = 128;

    /// A recovery with nothing in flight; the next position is `start`.
    pub fn new(start: u64, timeout: Option<Duration>) -> GoBackN {
        GoBackN {
            first: start,
            next: start,
            again: start,
            carried_out: start,
            answers: VecDeque::new(),
            is_overtaken: false,
            is_gap_reported: false,
            is_stopped: false,
            timeout,
            wanted_us: 0,
            is_round_trip_known: false,
            retransmit_at: None,
            flights: VecDeque::new(),
            in_flight_bytes: 0,
            progress: Progress::default(),
        }
    }

    /// Bytes of the oldest packet in flight.
    fn oldest_bytes(&self) -> u64 {
        self.flights.front().map_or(0, |flight| u64::from(flight.bytes))
    }

    fn go_back(&mut self) {
        let to = self.first - u64::from(mutated!("go-back-too-far"));
        self.again = (to + u64::from(mutated!("go-back-too-short"))).min(self.next);
        self.is_stopped = false;
        // The oldest packet is lost. The others arrived out of order for the most part, where the peer drops them: they say
        // nothing of the network.
        self.progress.lost_bytes += self.oldest_bytes();
        self.in_flight_bytes = 0;
        self.flights.clear();
    }

    fn depart(&mut self, position: u64, bytes: usize, is_again: bool, at: Instant) {
        if bytes == 0 {
            return;
        }
        let bytes = bytes as u32;
        self.in_flight_bytes += u64::from(bytes);
        self.flights.push_back(Flight { position, bytes, at, is_again });
    }

    /// Takes the packets that have executed out of the flight.
    fn land(&mut self, now: Instant) {
        let mut is_doubtful = false;
        while let Some(flight) = self.flights.pop_front_if(|flight| flight.position < self.carried_out) {
            self.in_flight_bytes -= u64::from(flight.bytes);
            self.progress.delivered_bytes += u64::from(flight.bytes);
            if !flight.is_again {
                let round_trip = now.saturating_since(flight.at);
                (self.wanted_us, self.is_round_trip_known) = (micros(round_trip * 2), true);
                let delay = Duration::ZERO;
                self.progress.sample =
                    Some(Sample { sent_at: flight.at, round_trip, delay, path: 0, is_marked: false });
            }
            is_doubtful |= flight.is_again;
        }
        if is_doubtful && !self.is_round_trip_known {
            // The round trip may be longer than the timeout: it would never be known (RFC 6298, 5.5 to 5.7).
            self.wanted_us = micros((self.patience().unwrap_or_default() * 2).min(LONGEST));
        }
        // Idle queue pairs are small.
        if self.flights.is_empty() && self.flights.capacity() > 16 {
            self.flights = VecDeque::new();
        }
    }

    /// Starts the next timeout, if something is in flight.
    fn restart_timer(&mut self, now: Instant) {
        self.retransmit_at = self.patience().filter(|_| self.first < self.next).map(|patience| now + patience);
    }

    fn start_timer(&mut self, now: Instant) {
        if self.retransmit_at.is_none() && !mutated!("timer-not-armed") {
            self.restart_timer(now);
        }
    }
}

impl Recovery for GoBackN {
    fn name(&self) -> &'static str {
        "go-back-n"
    }

    fn first(&self) -> u64 {
        self.first
    }

    fn next(&self) -> u64 {
        self.next
    }

    fn upcoming(&self) -> u64 {
        self.again
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    fn patience(&self) -> Option<Duration> {
        let timeout = self.timeout?;
        let wanted = Duration::from_micros(self.wanted_us.into());
        Some(wanted.clamp(timeout, timeout * MAX_PATIENCE))
    }

    fn may_send_new(&self) -> bool {
        let window = if mutated!("window-off") { u64::MAX } else { Self::WINDOW };
        self.again == self.next && self.next - self.first < window
    }

    fn asks_for_acknowledge(&self, position: u64, _is_again: bool) -> bool {
        position % ACK_REQUEST_EVERY == ACK_REQUEST_EVERY - 1
    }

    fn sent(&mut self, packet: Departure, now: Instant) {
        let Departure { count, answers, bytes, .. } = packet;
        self.depart(self.next, bytes, false, now);
        debug_assert_eq!(self.again, self.next, "what is sent again goes before");
        let end = self.next + u64::from(count);
        if answers {
            let early = u64::from(count > 1 && mutated!("read-complete-before-its-last-answer"));
            self.answers.push_back(self.next..end - early);
        }
        (self.next, self.again) = (end, end);
        self.start_timer(now);
    }

    fn wants_anything(&self) -> bool {
        self.again < self.next
    }

    fn wants(&mut self) -> Option<Wants> {
        (self.wants_anything() && !self.is_stopped).then_some(Wants::Request(self.again))
    }

    fn sent_again(&mut self, what: Wants, _path: u8, bytes: usize, now: Instant) {
        let position = what.position();
        self.depart(position, bytes, true, now);
        // A READ is asked for the rest of its answers.
        let answers = self.answers.iter().find(|range| range.contains(&position));
        self.again = answers.map_or(position + 1, |range| range.end);
        self.start_timer(now);
    }

    fn forgo(&mut self, _what: Wants) {
        self.is_stopped = true;
    }

    fn acknowledge(&mut self, said: &Said<'_>, _now: Instant) -> bool {
        self.carried_out = self.carried_out.max(said.before);
        false
    }

    fn answer(&self, position: u64) -> Answer {
        let Some(front) = self.answers.front() else { return Answer::Unexpected };
        let oldest = front.start;
        if position == oldest || (position == oldest + 1 && mutated!("read-answer-out-of-order-taken")) {
            return Answer::Expected;
        }
        if position < oldest {
            return Answer::Unexpected;
        }
        let next = if oldest + 1 < front.end { Some(oldest + 1) } else { self.answers.get(1).map(|range| range.start) };
        Answer::Early { oldest, is_next: next == Some(position) }
    }

    fn answered(&mut self, position: u64, _now: Instant) {
        if let Some(range) = self.answers.front_mut() {
            range.start += 1;
            if range.is_empty() {
                self.answers.pop_front();
            }
        }
        self.carried_out = self.carried_out.max(position + 1);
    }

    fn settle(&mut self, now: Instant) -> u64 {
        self.land(now);
        // READs and atomics are done only with their answers.
        let skipped = u64::from(mutated!("ack-completes-unanswered-read"));
        let missing =
            self.answers.front().map(|range| range.start).filter(|missing| missing + skipped < self.carried_out);
        let first = missing.unwrap_or(self.carried_out);
        self.is_overtaken = first < self.carried_out;
        self.carried_out = first;
        if first > self.first {
            self.first = first;
            self.is_gap_reported = false;
            self.restart_timer(now);
            self.retransmit_at = self.retransmit_at.filter(|_| !mutated!("timer-not-armed-after-progress"));
        }
        // What was being sent again has arrived after all.
        self.again = self.again.max(self.first);
        self.first
    }

    fn sequence_error(&mut self, now: Instant) -> bool {
        self.go_back();
        self.restart_timer(now);
        true
    }

    fn implied_nak(&mut self, now: Instant) -> bool {
        if !self.is_overtaken || self.is_gap_reported {
            return false;
        }
        self.is_gap_reported = true;
        self.sequence_error(now)
    }

    fn is_news_of(&self, position: u64) -> bool {
        position == self.first
    }

    fn receiver_not_ready(&mut self, _position: u64, _now: Instant) {
        if !mutated!("rnr-without-going-back", by "uroce --test recovery what_the_receiver_was_not") {
            self.go_back();
        }
        self.retransmit_at = None;
    }

    fn receiver_may_be_ready(&mut self, now: Instant) {
        self.restart_timer(now);
    }

    fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    fn progress(&mut self) -> Progress {
        std::mem::take(&mut self.progress)
    }

    fn deadline(&self) -> Option<Instant> {
        self.retransmit_at
    }

    fn handle_timeout(&mut self, now: Instant) -> Expired {
        if self.retransmit_at.is_none_or(|at| at > now) {
            return Expired::default();
        }
        self.is_gap_reported = false;
        // Nobody knows what became of those behind the oldest.
        self.progress.forgotten_bytes += self.in_flight_bytes - self.oldest_bytes();
        self.go_back();
        self.restart_timer(now);
        Expired { is_silent: true, asks_again: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of 1000 bytes.
    fn packet() -> Departure {
        Departure { count: 1, answers: false, path: 0, bytes: 1000, asks: true }
    }

    /// Takes at `now` that all until `before` was carried out.
    fn hear(recovery: &mut GoBackN, before: u64, now: Instant) {
        recovery.acknowledge(&Said::before(before), now);
        recovery.settle(now);
    }

    /// Else over a way that is longer than the timeout each packet is sent twice, and the round trip is never known.
    #[test]
    fn what_was_sent_twice_and_arrives_makes_the_timeout_longer_until_a_round_trip_is_known() {
        let ms = Duration::from_millis;
        let mut recovery = GoBackN::new(0, Some(ms(67)));
        let mut now = Instant::ZERO;
        let mut patience = Vec::new();
        for position in 0..3 {
            recovery.sent(packet(), now);
            let expires_at = recovery.deadline().expect("a packet is in flight");
            recovery.handle_timeout(expires_at);
            recovery.sent_again(Wants::Request(position), 0, 1000, expires_at);
            now = now + ms(300);
            hear(&mut recovery, position + 1, now);
            patience.push(recovery.patience());
        }
        assert_eq!(patience, [134, 268, 268].map(|time| Some(ms(time))));
        // One that was sent once tells the round trip: it is waited for two of them, by the timeout at least, and four at most.
        for (position, (round_trip, expected)) in (3..).zip([(100, 200), (20, 67), (300, 268)]) {
            recovery.sent(packet(), now);
            now = now + ms(round_trip);
            hear(&mut recovery, position + 1, now);
            assert_eq!(recovery.patience(), Some(ms(expected)), "{round_trip} ms");
        }
        assert_eq!(GoBackN::new(0, None).patience(), None);
    }

    /// Else a congestion controller that has heard of nothing sends as much as before, again and again.
    #[test]
    fn of_what_is_in_flight_at_a_timeout_the_oldest_is_lost_and_the_rest_forgotten() {
        let timeout = Duration::from_millis(67);
        let mut recovery = GoBackN::new(10, Some(timeout));
        for bytes in [1000, 2000, 4000] {
            let packet = Departure { count: 1, answers: false, path: 0, bytes, asks: false };
            recovery.sent(packet, Instant::ZERO);
        }
        assert_eq!(recovery.handle_timeout(Instant::ZERO + timeout), Expired { is_silent: true, asks_again: true });
        let expected = Progress { lost_bytes: 1000, forgotten_bytes: 6000, ..Progress::default() };
        assert_eq!(recovery.progress(), expected);
        assert_eq!(recovery.upcoming(), 10);
    }
}
