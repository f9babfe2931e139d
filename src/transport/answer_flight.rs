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
    /// The newest round trip, and the shortest of responses that were sent once.
    round_trip: Option<Duration>,
    shortest: Option<Duration>,
    progress: Progress,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    at: Instant,
    psn: Psn,
    /// 0 when it has come, or is lost.
    bytes: u16,
    path: u8,
    is_again: bool,
}

/// One READ response in so many asks for a report. It is no multiple of a usual number of paths.
const REPORT_EVERY: u32 = 13;

/// Responses of which nothing was heard for so many round trips are not waited for.
const PATIENCE_ROUND_TRIPS: u32 = 4;
const PATIENCE_AT_LEAST: Duration = Duration::from_millis(50);
const PATIENCE_BEFORE_SAMPLES: Duration = Duration::from_secs(1);

impl AnswerFlight {
    /// Whether the READ response with this PSN asks for a report, unless it is the last of its READ.
    pub fn asks(psn: Psn) -> bool {
        psn.value().is_multiple_of(REPORT_EVERY)
    }

    /// Records a READ response of `bytes`, the whole packet; `is_again` when the peer requested it again.
    pub fn sent(&mut self, psn: Psn, bytes: usize, path: u8, is_again: bool, now: Instant) {
        self.expire(now);
        let bytes = bytes.min(u16::MAX.into()) as u16;
        (self.count, self.bytes) = (self.count + 1, self.bytes + u64::from(bytes));
        self.flights.push_back(Flight { at: now, psn, bytes, path, is_again });
    }

    /// Bytes of responses in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether so few are in flight that none of them may have asked for a report.
    pub fn is_small(&self) -> bool {
        self.count < 2 * REPORT_EVERY as usize
    }

    /// What became of responses since the last call.
    pub fn progress(&mut self) -> Progress {
        std::mem::take(&mut self.progress)
    }

    /// Takes the peer's report. Responses on one path arrive in the order in which they were sent.
    pub fn take(&mut self, report: &AnswerReport, now: Instant) {
        let count = report.arrived.wrapping_sub(self.arrived) % (1 << 24);
        if count as usize > self.flights.len() + self.uncounted.unsigned_abs() as usize {
            // A report that was overtaken by a later one, or one that cannot be.
            return;
        }
        self.arrived = report.arrived;
        let (mut landed, mut landed_bytes) = (0, 0);
        if let Some(index) = self.find(report.newest) {
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
        let each = landed_bytes.checked_div(landed as u64).unwrap_or_default();
        self.progress.delivered_bytes += each * u64::from(count);
        self.uncounted += landed - i64::from(count);
        if self.uncounted > 0 {
            self.progress.lost_bytes += each * std::mem::take(&mut self.uncounted) as u64;
        }
        self.drop_known();
    }

    /// The place of the newest response in flight with this PSN.
    fn find(&self, psn: Psn) -> Option<usize> {
        let is_it = |index: &usize| self.flights[*index].psn == psn && self.flights[*index].bytes > 0;
        let first = self.flights.front()?.psn;
        // Most of them have been sent once, one after the other.
        let guess = usize::try_from(psn.since(first)).unwrap_or(0).min(self.flights.len() - 1);
        (guess..self.flights.len()).find(is_it).or_else(|| (0..guess).rev().find(is_it))
    }

    fn sample(&mut self, flight: &Flight, report: &AnswerReport, now: Instant) {
        let delay = Duration::from_micros(report.delay_us.into());
        let round_trip = now.saturating_since(flight.at).saturating_sub(delay);
        // One that was requested again can be the earlier one, late.
        let can_be_earlier = flight.is_again && self.shortest.is_none_or(|shortest| round_trip < shortest);
        if report.delay_us == u16::MAX || can_be_earlier {
            return;
        }
        self.round_trip = Some(round_trip);
        if !flight.is_again {
            self.shortest = Some(self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip)));
        }
        self.progress.sample = Some(Sample {
            sent_at: flight.at,
            round_trip,
            delay,
            path: flight.path,
            is_marked: report.is_newest_marked,
        });
    }

    /// Records that the peer requests responses again, from the first PSN up to before the second: they are lost.
    pub fn asked_again(&mut self, psns: &Range<Psn>) {
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
