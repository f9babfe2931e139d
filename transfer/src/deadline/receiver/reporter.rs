use uroce::time::{Duration, Instant};

use super::super::arrivals::Arrivals;
use super::super::wire::{Report, WholeWord};
use super::super::{Bitmap, Run};

/// What the sender is to know of what arrived, and when it is told.
#[derive(Debug)]
pub(super) struct Reporter {
    arrivals: Arrivals,
    /// The number that arrived last, and when.
    newest: Option<(u32, Instant)>,
    /// Symbols that arrived since the latest report.
    unreported: u32,
    at: Instant,
    /// From the latest report to the next, if nothing arrives.
    idle: Duration,
    sequence: u32,
    /// Words of the bitmap that changed, the latest last.
    changed: Vec<u32>,
}

/// So many symbols are reported at once: as in uroce's reliable connections, where one in thirteen asks for it.
const REPORT_PACKETS: u32 = 13;

/// A symbol is reported within this time.
const REPORT_DELAY: Duration = Duration::from_millis(1);

/// Reports come on when nothing arrives: they show that the receiver is there, and what of the last symbols is missing. The
/// first comes after this, and each later one after twice as long, up to the longest.
const FIRST_IDLE: Duration = Duration::from_millis(2);
const LONGEST_IDLE: Duration = Duration::from_millis(20);

impl Default for Reporter {
    fn default() -> Reporter {
        Reporter {
            arrivals: Arrivals::default(),
            newest: None,
            unreported: 0,
            at: Instant::ZERO,
            idle: FIRST_IDLE,
            sequence: 0,
            changed: Vec::new(),
        }
    }
}

impl Reporter {
    /// When the next report is due.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Makes a report due at `at`, if not earlier.
    pub fn due(&mut self, at: Instant) {
        self.at = self.at.min(at);
    }

    /// Takes the number of a datagram that has arrived.
    pub fn arrived(&mut self, number: u32, now: Instant) {
        self.arrivals.insert(number);
        self.newest = Some((number, now));
        self.unreported += 1;
        self.due(if self.unreported >= REPORT_PACKETS { now } else { now + REPORT_DELAY });
    }

    /// Takes a block that has become whole.
    pub fn whole(&mut self, block: u32) {
        let index = block / 64;
        self.changed.retain(|changed| *changed != index);
        if self.changed.len() == Report::WORDS_MAX {
            self.changed.remove(0);
        }
        self.changed.push(index);
    }

    /// The report that is due now; `None` when none is.
    pub fn report(&mut self, left_us: u32, whole: &Bitmap, now: Instant) -> Option<Report> {
        if self.at > now {
            return None;
        }
        self.idle = if self.unreported > 0 { FIRST_IDLE } else { (self.idle * 2).min(LONGEST_IDLE) };
        (self.at, self.unreported) = (now + self.idle, 0);
        self.sequence = self.sequence.wrapping_add(1);
        let (newest, arrived_at) = self.newest.unwrap_or((0, now));
        let word = |index: &u32| WholeWord { index: *index, bits: whole.words()[*index as usize] };
        let ranges = self.arrivals.newest_first().take(Report::RANGES_MAX);
        Some(Report {
            sequence: self.sequence,
            left_us,
            newest,
            delay_us: (now - arrived_at).as_micros().try_into().unwrap_or(u32::MAX),
            arrived: ranges.map(|(first, count)| Run { first, count }).collect(),
            words: self.changed.iter().rev().map(word).collect(),
        })
    }
}
