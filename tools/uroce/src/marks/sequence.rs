use std::collections::VecDeque;
use std::ops::Range;

use uroce::time::{Duration, Instant};
use uroce::wire::Psn;

use super::history::{History, PLACES_MAX};
use super::read::Read;
use super::{Mark, Seen};

/// A jump of more PSNs than any peer has in flight (docs/EXTENSIONS.md: 262,144) begins another connection.
const JUMP_MAX: i32 = 1 << 19;

/// Upper bound on the gaps that are remembered, to tell late packets from retransmissions.
const GAPS_MAX: usize = 64;

/// What fills a gap after this time was sent again, where nothing else shows it. It is the time by which Wireshark tells
/// the two of TCP apart.
const LATE_MAX: Duration = Duration::from_millis(3);

/// The PSNs of one direction: of requests, or of answers.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub first: Option<Psn>,
    /// The PSN after the latest one.
    pub next: Psn,
    /// How many PSNs it has gone forward, at most 2^22.
    passed: u32,
    history: History,
    gaps: VecDeque<(Psn, u32, Instant)>,
}

impl Sequence {
    pub const NEW: Sequence = Sequence {
        first: None,
        next: Psn::new(0),
        passed: 0,
        history: History { places: Vec::new(), count: 0 },
        gaps: VecDeque::new(),
    };

    /// How far `psn` is after the expected one. A sequence begins with its first PSN, and again after a long jump.
    pub fn ahead(&mut self, psn: Psn) -> i32 {
        if self.first.is_none() || psn.since(self.next).abs() > JUMP_MAX {
            *self = Sequence { first: Some(psn), next: psn, ..Sequence::NEW };
        }
        psn.since(self.next)
    }

    /// Goes on behind `seen`, which takes `count` PSNs.
    pub fn advance(&mut self, seen: Seen, count: u32) {
        self.remember(seen.psn, 0..count, seen.number, seen.icrc);
    }

    /// Goes on behind a READ, whose number of PSNs is known now.
    pub fn extend(&mut self, read: Read, count: u32) {
        self.remember(read.psn, 1..count, read.frame, None);
    }

    /// Remembers the PSNs at `places` behind `base` as those of a frame, and goes on behind them.
    fn remember(&mut self, base: Psn, places: Range<u32>, frame: u64, icrc: Option<u32>) {
        for place in places.start..places.end.min(PLACES_MAX as u32) {
            self.history.insert(base.plus(place), frame, icrc);
        }
        let next = base.plus(places.end);
        self.passed = (self.passed + next.after(self.next)).min(1 << 22);
        self.next = next;
    }

    /// Remembers that the PSNs up to `psn` are missing.
    pub fn gap(&mut self, psn: Psn, now: Instant) -> Mark {
        self.gaps.truncate(GAPS_MAX - 1);
        self.gaps.push_front((self.next, psn.after(self.next), now));
        Mark::Gap { first: self.next.value(), last: psn.minus(1).value() }
    }

    /// Whether `psn` is one of the latest.
    pub fn has_passed(&self, psn: Psn) -> bool {
        self.first.is_some() && psn.is_within(self.next.minus(self.passed), self.passed)
    }

    /// What a packet is whose PSN was expected earlier. `refused` is the PSN of the last NAK.
    pub fn earlier(&mut self, seen: Seen, refused: Option<Psn>, last_frame: u64) -> Option<Mark> {
        if let Some(first) = self.history.get(seen.psn) {
            let is_copy = first.has_icrc(seen.icrc) && (seen.icrc_tells || first.frame() == last_frame);
            return Some(match is_copy {
                true => Mark::Duplicate { frame: first.frame() },
                false => Mark::Retransmission { frame: Some(first.frame()) },
            });
        }
        let gap = self.gaps.iter().find(|(first, count, _)| seen.psn.is_within(*first, *count));
        let is_late = match (seen.attempt, gap) {
            (Some(attempt), _) => attempt == 0,
            (None, Some((_, _, since))) => {
                let was_refused = refused.is_some_and(|psn| !seen.psn.is_before(psn));
                !was_refused && seen.time.saturating_since(*since) <= LATE_MAX
            }
            (None, None) => false,
        };
        self.history.insert(seen.psn, seen.number, seen.icrc);
        Some(if is_late { Mark::OutOfOrder } else { Mark::Retransmission { frame: None } })
    }

    /// Whether `psn` fills a gap that is remembered, or came before.
    pub fn knows(&self, psn: Psn) -> bool {
        self.history.get(psn).is_some() || self.gaps.iter().any(|(first, count, _)| psn.is_within(*first, *count))
    }
}
