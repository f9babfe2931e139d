use std::collections::VecDeque;
use std::fmt::Debug;

use arrayvec::ArrayVec;
use rustc_hash::FxHashSet;

use crate::time::Instant;
use crate::wire::{Psn, Sack};

/// How a responder tells its peer what arrived: the other end of [`Recovery`](crate::recovery::Recovery). What a peer makes of
/// acknowledges depends on how it sends again what is lost, and so does what it is owed.
pub(super) trait AckPolicy: Debug + Send + Sync {
    /// Whether a request that came early is the peer's beyond doubt, as its tag tells. What nobody vouches for is not acted upon before
    /// the peer has sent it again in its order, and is not reported.
    fn vouches_for_early(&self) -> bool {
        false
    }

    /// Whether acknowledges overtake all other answers. Else each answer waits its turn.
    fn overtakes(&self) -> bool {
        false
    }

    /// Whether a peer that asks for READ responses again misses just these. Else it misses all that follow, too.
    fn asks_for_what_is_missing(&self) -> bool {
        false
    }

    /// A request packet arrived.
    fn arrived(&mut self, _arrival: Arrived) {}

    /// The request `ahead` PSNs after the expected one, 1 or more, is kept until its turn comes.
    fn kept(&mut self, _ahead: u32) {}

    /// So many more PSNs were carried out.
    fn advance(&mut self, _packets: u32) {}

    /// The peer is taken to have sent as if `latest` was the PSN of the packet that arrived last.
    fn skip(&mut self, _latest: Psn) {}

    /// What was kept is kept no more.
    fn forget(&mut self) {}

    /// An acknowledge is owed. Returns whether it is one of this policy's own; else it is to be queued among the other answers.
    fn owe(&mut self) -> bool {
        false
    }

    /// A copy of an acknowledge is owed, which takes another path.
    fn owe_copy(&mut self) {}

    /// Which acknowledge of its own is owed.
    fn owed(&self) -> OwedAck {
        OwedAck::None
    }

    /// Acknowledges take this path from now on.
    fn take_path(&mut self, _path: u8) {}

    /// What the acknowledge that is owed says, in at most `max_blocks` blocks; `expected` is the expected PSN.
    fn poll(&mut self, _expected: Psn, _max_blocks: usize, _now: Instant) -> Option<Sack> {
        None
    }

    /// Bytes of memory that it takes.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A request packet that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub psn: Psn,
    /// It had been sent so often before.
    pub attempt: u8,
    /// It came with «congestion experienced».
    pub is_marked: bool,
    /// It asks for an acknowledge.
    pub asks: bool,
    pub at: Instant,
}

/// An acknowledge that a policy owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwedAck {
    /// None.
    None,
    /// A copy of what was said, over another path.
    Copy,
    /// What is new, and a copy perhaps.
    New,
}

/// To a peer that goes back: acknowledges say how far all arrived, and wait their turn among the other answers (IBTA 9.7.5.1.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct CumulativeAcks;

impl AckPolicy for CumulativeAcks {}

/// To a peer that repeats selectively: acknowledges say which packets arrived (docs/EXTENSIONS.md).
///
/// Positions are PSNs that do not wrap.
#[derive(Debug)]
pub(super) struct SelectiveAcks {
    /// The position of the expected PSN.
    expected: u64,
    /// The position after the highest that arrived.
    end: u64,
    /// A bit for each position that arrived, from the word of the expected one on; none for the rest.
    words: VecDeque<u64>,
    /// Words that changed, to be reported first.
    changed: VecDeque<u64>,
    in_changed: FxHashSet<u64>,
    /// The word whose turn it is, of those that did not change.
    turn: u64,
    /// The packet that arrived last: its PSN and attempt, and when.
    latest: Option<(Psn, u8, Instant)>,
    /// Packets that arrived with «congestion experienced».
    marked: u16,
    /// The one that arrived last did; one that did stays the last until it was reported.
    is_latest_marked: bool,
    /// An acknowledge is owed.
    is_owed: bool,
    /// A copy of one is owed, which takes another path.
    is_copy_owed: bool,
    /// The path that acknowledges take.
    path: u8,
    /// Packets since the last acknowledge.
    unreported: u32,
}

/// The first position, so that a block may begin before it.
const START: u64 = 1 << 32;

/// An acknowledge is owed after so many packets at the latest, whether asked for or not.
const ACKNOWLEDGE_EVERY: u32 = 16;

/// Blocks of an acknowledge that are for changed words at the most; the others take turns.
const CHANGED_BLOCKS: usize = 32;

impl Default for SelectiveAcks {
    fn default() -> SelectiveAcks {
        SelectiveAcks {
            expected: START,
            end: START,
            words: VecDeque::new(),
            changed: VecDeque::new(),
            in_changed: FxHashSet::default(),
            turn: 0,
            latest: None,
            marked: 0,
            is_latest_marked: false,
            is_owed: false,
            is_copy_owed: false,
            path: 0,
            unreported: 0,
        }
    }
}

impl SelectiveAcks {
    /// The peer is told all that came early, the oldest first.
    fn report_all(&mut self) {
        if self.end <= self.expected {
            return;
        }
        self.changed.clear();
        self.in_changed.clear();
        for word in self.expected / 64..=(self.end - 1) / 64 {
            self.changed.push_back(word);
            self.in_changed.insert(word);
        }
    }

    /// The words that the next acknowledge reports, at most `max_blocks` of them.
    fn words_to_report(&mut self, is_copy: bool, max_blocks: usize) -> ArrayVec<u64, { Sack::MAX_BLOCKS }> {
        let mut reported = ArrayVec::new();
        if self.end <= self.expected {
            self.changed.clear();
            self.in_changed.clear();
            return reported;
        }
        let (first, last) = (self.expected / 64, (self.end - 1) / 64);
        // The next one over the usual path says what changed, too: it is there before this copy.
        while !is_copy && reported.len() < CHANGED_BLOCKS.min(max_blocks) {
            let Some(word) = self.changed.pop_front() else { break };
            self.in_changed.remove(&word);
            if word >= first {
                reported.push(word);
            }
        }
        let words = last - first + 1;
        for _ in 0..words.min(Sack::MAX_BLOCKS as u64) {
            if reported.len() >= max_blocks {
                break;
            }
            self.turn = if (first..last).contains(&self.turn) { self.turn + 1 } else { first };
            if !reported.contains(&self.turn) {
                reported.push(self.turn);
            }
        }
        reported
    }
}

impl AckPolicy for SelectiveAcks {
    fn vouches_for_early(&self) -> bool {
        true
    }

    fn overtakes(&self) -> bool {
        true
    }

    fn asks_for_what_is_missing(&self) -> bool {
        true
    }

    fn arrived(&mut self, arrival: Arrived) {
        let Arrived { psn, attempt, is_marked, asks, at } = arrival;
        if is_marked || !self.is_latest_marked {
            (self.latest, self.is_latest_marked) = (Some((psn, attempt, at)), is_marked);
        }
        self.marked = self.marked.wrapping_add(u16::from(is_marked));
        self.unreported += 1;
        if asks || self.unreported >= ACKNOWLEDGE_EVERY {
            self.is_owed = true;
        }
    }

    fn kept(&mut self, ahead: u32) {
        let position = self.expected + u64::from(ahead);
        let index = (position / 64 - self.expected / 64) as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (position % 64);
        if position + 1 > self.end {
            // A gap opened.
            self.is_owed |= position > self.end.max(self.expected);
            self.end = position + 1;
        }
        if self.in_changed.insert(position / 64) {
            self.changed.push_back(position / 64);
        }
    }

    fn advance(&mut self, packets: u32) {
        let to = self.expected + u64::from(packets);
        let passed = (to / 64 - self.expected / 64) as usize;
        self.words.drain(..passed.min(self.words.len()));
        if let Some(word) = self.words.front_mut() {
            *word &= u64::MAX << (to % 64);
        }
        self.expected = to;
        self.end = self.end.max(to);
    }

    fn skip(&mut self, latest: Psn) {
        self.latest = self.latest.map(|(_, attempt, at)| (latest, attempt, at));
    }

    fn forget(&mut self) {
        self.words = VecDeque::new();
        self.changed = VecDeque::new();
        self.in_changed = FxHashSet::default();
        self.end = self.expected;
    }

    fn owe(&mut self) -> bool {
        self.is_owed = true;
        true
    }

    fn owe_copy(&mut self) {
        self.is_copy_owed = true;
    }

    fn owed(&self) -> OwedAck {
        match (self.is_owed, self.is_copy_owed) {
            (true, _) => OwedAck::New,
            (false, true) => OwedAck::Copy,
            (false, false) => OwedAck::None,
        }
    }

    /// What is on its way over another path is overtaken, and said once more, the oldest first.
    fn take_path(&mut self, path: u8) {
        if std::mem::replace(&mut self.path, path) != path {
            self.report_all();
        }
    }

    fn poll(&mut self, expected: Psn, max_blocks: usize, now: Instant) -> Option<Sack> {
        let is_copy = self.owed() == OwedAck::Copy;
        let (trigger, attempt, at) = self.latest.unwrap_or((expected.minus(1), 0, now));
        // A copy takes a way of its own: no round trip is to be measured by it.
        let delay = Some(now.saturating_since(at).as_micros()).filter(|_| !is_copy);
        let delay_us = delay.and_then(|delay| u16::try_from(delay).ok()).unwrap_or(u16::MAX);
        let is_trigger_marked = self.is_latest_marked && !is_copy;
        let (marked, mut blocks) = (self.marked, ArrayVec::new());
        if is_copy {
            self.is_copy_owed = false;
            self.words.iter_mut().for_each(|word| *word |= u64::from(mutated!("copy-says-too-much")));
        } else {
            (self.is_owed, self.is_latest_marked, self.unreported) = (false, false, 0);
        }
        for word in self.words_to_report(is_copy, max_blocks) {
            let bits = self.words.get((word - self.expected / 64) as usize).copied().unwrap_or(0);
            if bits != 0 {
                let base = expected
                    .plus((word * 64).wrapping_sub(self.expected) as u32 + u32::from(mutated!("sack-bit-off-by-one")));
                blocks.push((base, bits));
            }
        }
        Some(Sack { trigger, attempt, delay_us, marked, is_trigger_marked, blocks })
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + (self.words.capacity() + self.changed.capacity() + self.in_changed.capacity()) * 8
    }
}
