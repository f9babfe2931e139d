use std::collections::VecDeque;
use std::ops::Range;

use crate::congestion::{Progress, Sample};
use crate::time::{Duration, Instant};
use crate::wire::{AnswerReport, Psn};

/// The READ responses that were sent to a peer and of which it has not reported yet: nobody acknowledges them, and
/// congestion control must know what becomes of them (docs/EXTENSIONS.md).
#[derive(Debug, Default)]
pub struct AnswerFlight {
    /// In the order in which they were sent; the first is in flight.
    flights: VecDeque<Flight>,
    /// How many are gone from the front, ever.
    gone: u64,
    /// By path: the place, counted like that, before which all are known to have come or to be lost.
    known: Vec<u64>,
    /// Those in flight, and their bytes.
    count: usize,
    bytes: u64,
    /// What the peer had counted.
    arrived: u32,
    /// Responses that left the flight and that the peer has not counted.
    uncounted: i64,
    copy: u8,
    /// The PSN after the newest that was sent, while some are in flight.
    next: Psn,
    /// The newest round trip.
    round_trip: Option<Duration>,
    progress: Progress,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    at: Instant,
    psn: Psn,
    /// 0 when it has come, or is lost.
    bytes: u16,
    path: u8,
    /// The copy, and [`AGAIN`].
    copy: u8,
}

/// It was sent before. Several requests for it can have come before the first of their responses went out, all of one copy.
const AGAIN: u8 = 32;

/// One READ response in so many asks for a report. It is no multiple of a usual number of paths.
const REPORT_EVERY: u32 = 13;

/// Responses of which nothing was heard for so many round trips are not waited for.
const PATIENCE_ROUND_TRIPS: u32 = 4;
const PATIENCE_AT_LEAST: Duration = Duration::from_millis(50);
const PATIENCE_BEFORE_SAMPLES: Duration = Duration::from_millis(300);

impl AnswerFlight {
    /// Whether the READ response with this PSN asks for a report, unless it is the last of its READ.
    pub fn asks(psn: Psn) -> bool {
        psn.value().is_multiple_of(REPORT_EVERY)
    }

    /// The copy that READ responses are now: how often the peer has requested some again, modulo 32.
    pub fn copy(&self) -> u8 {
        self.copy
    }

    /// Records a READ response of `bytes`, the whole packet.
    pub fn sent(&mut self, psn: Psn, bytes: usize, path: u8, now: Instant) {
        self.expire(now);
        let bytes = bytes.min(u16::MAX.into()) as u16;
        (self.count, self.bytes) = (self.count + 1, self.bytes + u64::from(bytes));
        let is_again = !self.flights.is_empty() && psn.is_before(self.next);
        if !is_again {
            self.next = psn.plus(1);
        }
        let copy = if is_again { self.copy | AGAIN } else { self.copy };
        self.flights.push_back(Flight { at: now, psn, bytes, path, copy });
    }

    /// Bytes of responses in flight. Those that the peer has counted are not, though it is not known which they are.
    pub fn bytes(&self) -> u64 {
        self.bytes - self.each() * (self.count - self.in_flight()) as u64
    }

    /// Whether so few are in flight that none of them may have asked for a report.
    pub fn is_small(&self) -> bool {
        self.in_flight() < 2 * REPORT_EVERY as usize
    }

    /// How many are in flight, by what the peer has counted.
    fn in_flight(&self) -> usize {
        self.count.saturating_sub(usize::try_from(-self.uncounted).unwrap_or(0))
    }

    /// Bytes of one of them, in the mean.
    fn each(&self) -> u64 {
        self.bytes.checked_div(self.count as u64).unwrap_or(0)
    }

    /// What became of responses since the last call.
    pub fn progress(&mut self) -> Progress {
        std::mem::take(&mut self.progress)
    }

    /// Takes the peer's report. Responses on one path arrive in the order in which they were sent.
    pub fn take(&mut self, report: &AnswerReport, now: Instant) {
        let count = report.arrived.wrapping_sub(self.arrived) % AnswerReport::COUNTS;
        if count >= AnswerReport::COUNTS / 2 {
            // It was overtaken by a later one.
            return;
        }
        self.arrived = report.arrived;
        // Responses that were requested again may have come as well, but no more can be new than were sent.
        let count = count.min((self.flights.len() + self.uncounted.unsigned_abs() as usize) as u32);
        let each = self.each();
        let (mut landed, mut landed_bytes) = (0, 0);
        if let Some(index) = self.find(report) {
            let newest = self.flights[index];
            self.sample(&newest, report, now);
            let path = usize::from(newest.path);
            self.known.resize(self.known.len().max(path + 1), self.gone);
            let from = self.known[path].saturating_sub(self.gone) as usize;
            for flight in self.flights.range_mut(from.min(index)..=index).filter(|flight| flight.path == newest.path) {
                landed += i64::from(flight.bytes > 0);
                landed_bytes += u64::from(std::mem::take(&mut flight.bytes));
            }
            self.known[path] = self.gone + index as u64 + 1;
        }
        (self.count, self.bytes) = (self.count - landed as usize, self.bytes - landed_bytes);
        self.progress.delivered_bytes += each * u64::from(count);
        self.uncounted += landed - i64::from(count);
        if self.uncounted > 0 {
            self.progress.lost_bytes += each * std::mem::take(&mut self.uncounted) as u64;
        }
        self.drop_known();
        // More than those before the newest cannot have been counted and not found: some of the lost had come.
        let before_newest = self.known.iter().max().map_or(0, |newest| newest.saturating_sub(self.gone));
        self.uncounted = self.uncounted.max(-(before_newest as i64));
    }

    /// The place of the response in flight that a report is about.
    fn find(&self, report: &AnswerReport) -> Option<usize> {
        let is_it = |index: &usize| {
            let flight = &self.flights[*index];
            flight.psn == report.newest && flight.bytes > 0 && flight.copy % AGAIN == report.copy
        };
        let first = self.flights.front()?.psn;
        // Most of them have been sent once, one after the other.
        let guess = usize::try_from(report.newest.since(first)).unwrap_or(0).min(self.flights.len() - 1);
        (guess..self.flights.len()).find(is_it).or_else(|| (0..guess).rev().find(is_it))
    }

    fn sample(&mut self, flight: &Flight, report: &AnswerReport, now: Instant) {
        let delay = Duration::from_micros(report.delay_us.into());
        let round_trip = now.saturating_since(flight.at).saturating_sub(delay);
        if report.delay_us == u16::MAX || flight.copy & AGAIN != 0 {
            return;
        }
        self.round_trip = Some(round_trip);
        self.progress.sample = Some(Sample {
            sent_at: flight.at,
            round_trip,
            delay,
            path: flight.path,
            is_marked: report.is_newest_marked,
        });
    }

    /// Forgets all: the peer was not known when they were sent, and reports of none.
    pub fn forget(&mut self) {
        self.gone += self.flights.len() as u64;
        (self.flights, self.count, self.bytes, self.uncounted) = (VecDeque::new(), 0, 0, 0);
    }

    /// Records that the peer requests responses again, from the first PSN up to before the second: they are lost.
    pub fn asked_again(&mut self, psns: &Range<Psn>) {
        self.copy = (self.copy + 1) % AGAIN;
        let (mut lost, mut lost_bytes) = (0, 0);
        for flight in &mut self.flights {
            if flight.psn.since(psns.start) >= 0 && flight.psn.is_before(psns.end) {
                lost += usize::from(flight.bytes > 0);
                lost_bytes += u64::from(std::mem::take(&mut flight.bytes));
            }
        }
        (self.count, self.bytes) = (self.count - lost, self.bytes - lost_bytes);
        self.progress.lost_bytes += lost_bytes;
        self.drop_known();
    }

    /// Drops those at the front that are not in flight any more. Idle queue pairs are small.
    fn drop_known(&mut self) {
        while self.flights.pop_front_if(|flight| flight.bytes == 0).is_some() {
            self.gone += 1;
        }
        if self.flights.is_empty() && self.flights.capacity() > 16 {
            self.flights = VecDeque::new();
        }
    }

    /// When the oldest of them is not waited for any more.
    pub fn expires_at(&self) -> Option<Instant> {
        self.flights.front().map(|flight| flight.at + self.patience())
    }

    /// Forgets those that are not waited for any more.
    pub fn expire(&mut self, now: Instant) {
        while self.expires_at().is_some_and(|at| at <= now)
            && let Some(front) = self.flights.front_mut()
        {
            let bytes = u64::from(std::mem::take(&mut front.bytes));
            (self.count, self.bytes) = (self.count - 1, self.bytes - bytes);
            self.uncounted += 1;
            self.progress.forgotten_bytes += bytes;
            self.drop_known();
        }
    }

    fn patience(&self) -> Duration {
        match self.round_trip {
            Some(round_trip) => (round_trip * PATIENCE_ROUND_TRIPS).max(PATIENCE_AT_LEAST),
            None => PATIENCE_BEFORE_SAMPLES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(value: u32) -> Psn {
        Psn::new(value)
    }

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    fn report(newest: u32, copy: u8, arrived: u32) -> AnswerReport {
        AnswerReport { newest: psn(newest), delay_us: 500, marked: 0, arrived, is_newest_marked: false, copy }
    }

    #[test]
    fn what_came_before_the_newest_on_its_path_has_come_or_is_lost() {
        let mut flight = AnswerFlight::default();
        (0..10).for_each(|at_ms| flight.sent(psn(at_ms), 1000, (at_ms % 2) as u8, at(at_ms.into())));
        // Of the even ones up to 6, one was lost; of the odd ones nothing is known.
        flight.take(&report(6, 0, 3), at(50));
        let progress = flight.progress();
        assert_eq!((progress.delivered_bytes, progress.lost_bytes, flight.bytes()), (3000, 1000, 6000));
        let sample = progress.sample.expect("a response was sent once");
        assert_eq!((sample.sent_at, sample.round_trip, sample.path), (at(6), Duration::from_micros(43_500), 0));
        // The same report again changes nothing.
        flight.take(&report(6, 0, 3), at(51));
        assert_eq!((flight.progress(), flight.bytes()), (Progress::default(), 6000));
    }

    #[test]
    fn what_the_peer_has_counted_on_other_paths_is_not_in_flight() {
        let mut flight = AnswerFlight::default();
        (0..30).for_each(|number| flight.sent(psn(number), 1000, (number % 10) as u8, at(0)));
        flight.take(&report(24, 0, 24), at(50));
        assert_eq!((flight.progress().delivered_bytes, flight.bytes()), (24_000, 6000));
        // The rest of them, and what the peer had counted before is found on another path.
        flight.take(&report(29, 0, 29), at(60));
        let progress = flight.progress();
        assert_eq!((progress.delivered_bytes, progress.lost_bytes, flight.bytes()), (5000, 0, 1000));
    }

    #[test]
    fn copies_of_a_response_are_told_apart() {
        let mut flight = AnswerFlight::default();
        flight.sent(psn(7), 1000, 0, at(0));
        assert_eq!(flight.copy(), 0);
        flight.asked_again(&(psn(7)..psn(8)));
        assert_eq!((flight.progress().lost_bytes, flight.bytes()), (1000, 0));
        flight.sent(psn(7), 1000, 0, at(40));
        flight.asked_again(&(psn(7)..psn(8)));
        flight.sent(psn(7), 1000, 0, at(50));
        flight.progress();
        // The second one arrives: its round trip is not reckoned from the third.
        flight.take(&report(7, 1, 1), at(80));
        assert_eq!((flight.progress().sample, flight.bytes()), (None, 1000));
        flight.take(&report(7, 2, 2), at(90));
        let sample = flight.progress().sample.expect("it is the third");
        assert_eq!((sample.sent_at, sample.round_trip), (at(50), Duration::from_micros(39_500)));
        assert_eq!(flight.bytes(), 0);
    }

    #[test]
    fn a_response_that_was_requested_twice_before_it_went_out_measures_nothing() {
        let mut flight = AnswerFlight::default();
        (0..10).for_each(|number| flight.sent(psn(number), 1000, 0, at(0)));
        // Both requests come before the first of their responses is sent: these are one copy.
        (0..2).for_each(|_| flight.asked_again(&(psn(5)..psn(8))));
        [40, 44].into_iter().for_each(|at_ms| (5..8).for_each(|number| flight.sent(psn(number), 1000, 0, at(at_ms))));
        flight.sent(psn(10), 1000, 0, at(45));
        flight.take(&report(7, 2, 8), at(50));
        assert_eq!(flight.progress().sample, None);
        flight.take(&report(10, 2, 12), at(55));
        assert_eq!(flight.progress().sample.map(|sample| sample.sent_at), Some(at(45)));
    }

    #[test]
    fn responses_that_come_though_they_were_requested_again_do_not_end_the_count() {
        let mut flight = AnswerFlight::default();
        (0..40).for_each(|number| flight.sent(psn(number), 1000, 0, at(0)));
        flight.asked_again(&(psn(0)..psn(40)));
        assert_eq!((flight.progress().lost_bytes, flight.bytes()), (40_000, 0));
        // They were only late. The peer counts them, and what is sent from now on.
        flight.sent(psn(40), 1000, 0, at(60));
        flight.take(&report(39, 0, 40), at(70));
        flight.take(&report(40, 1, 41), at(100));
        let sample = flight.progress().sample.expect("the last one was found");
        assert_eq!((sample.sent_at, flight.bytes()), (at(60), 0));
        // An older report changes nothing.
        flight.sent(psn(41), 1000, 0, at(110));
        flight.take(&report(39, 0, 40), at(120));
        assert_eq!((flight.progress(), flight.bytes()), (Progress::default(), 1000));
        // And a peer that counts what was never sent says no more than that.
        flight.take(&report(41, 1, 1_000_041), at(130));
        assert!(flight.progress().delivered_bytes <= 2000);
    }

    #[test]
    fn what_nobody_reports_of_is_forgotten_in_time() {
        let mut flight = AnswerFlight::default();
        flight.sent(psn(1), 1000, 0, at(0));
        flight.expire(at(299));
        assert_eq!(flight.bytes(), 1000);
        flight.expire(at(300));
        assert_eq!((flight.bytes(), flight.progress().forgotten_bytes), (0, 1000));
        flight.sent(psn(2), 1000, 0, at(301));
        flight.forget();
        assert_eq!((flight.bytes(), flight.progress()), (0, Progress::default()));
    }
}
