use std::collections::VecDeque;

use arrayvec::ArrayVec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::time::Instant;
use crate::wire::{Packet, Psn, Sack};

use super::extension::RecoverySettings;

/// What the responder keeps for a peer that repeats selectively: which requests came early, and those that wait for earlier
/// ones.
///
/// Positions are PSNs that do not wrap.
#[derive(Debug, Default)]
pub(super) struct Reorder {
    /// The position of the expected PSN.
    expected: u64,
    /// The position after the highest that arrived.
    end: u64,
    /// A bit for each position of the window that arrived; empty until one came early.
    words: Vec<u64>,
    /// Requests that came early, from the BTH to the ICRC, without their trailers.
    waiting: FxHashMap<u64, Box<[u8]>>,
    waiting_bytes: usize,
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
    pub is_owed: bool,
    /// A copy of one is owed, which takes another path.
    is_copy_owed: bool,
    /// The path that acknowledges take.
    path: u8,
    /// Packets since the last acknowledge.
    unreported: u32,
}

/// What becomes of a request that came early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// It waits.
    Kept,
    /// It was here before.
    Duplicate,
    /// There is no room for it, or it is too far ahead.
    Overflow,
}

const WINDOW: u64 = RecoverySettings::MAX_WINDOW as u64;
const WORDS: u64 = WINDOW / 64;

/// An acknowledge is owed after so many packets at the latest, whether asked for or not.
const ACKNOWLEDGE_EVERY: u32 = 16;

/// Blocks of an acknowledge that are for changed words at the most; the others take turns.
const CHANGED_BLOCKS: usize = 32;

impl Reorder {
    /// A request packet arrived.
    pub fn note(&mut self, psn: Psn, attempt: u8, is_marked: bool, asks: bool, now: Instant) {
        if is_marked || !self.is_latest_marked {
            (self.latest, self.is_latest_marked) = (Some((psn, attempt, now)), is_marked);
        }
        self.marked = self.marked.wrapping_add(u16::from(is_marked));
        self.unreported += 1;
        if asks || self.unreported >= ACKNOWLEDGE_EVERY {
            self.is_owed = true;
        }
    }

    /// An acknowledge of any kind is owed.
    pub fn owes(&self) -> bool {
        self.is_owed || self.is_copy_owed
    }

    /// All that is owed is a copy of what was sent.
    pub fn owes_only_a_copy(&self) -> bool {
        self.is_copy_owed && !self.is_owed
    }

    /// A copy of an acknowledge is owed.
    pub fn owe_copy(&mut self) {
        self.is_copy_owed = true;
    }

    /// Acknowledges take this path from now on. If it is another one, what is on its way over the old one is overtaken, and said
    /// once more, the oldest first.
    pub fn take_path(&mut self, path: u8) {
        if std::mem::replace(&mut self.path, path) == path || self.end <= self.expected {
            return;
        }
        self.changed.clear();
        self.in_changed.clear();
        for word in self.expected / 64..=(self.end - 1) / 64 {
            self.changed.push_back(word);
            self.in_changed.insert(word);
        }
    }

    /// Keeps a request that is `ahead` PSNs after the expected one.
    pub fn keep(&mut self, ahead: u32, packet: &Packet<'_>, limit: usize) -> Early {
        if u64::from(ahead) >= WINDOW {
            return Early::Overflow;
        }
        let position = self.expected + u64::from(ahead);
        if self.words.is_empty() {
            self.words = vec![0; WORDS as usize];
        }
        let (word, bit) = (&mut self.words[(position / 64 % WORDS) as usize], 1 << (position % 64));
        if *word & bit != 0 {
            return Early::Duplicate;
        }
        let bytes = packet.without_trailer();
        if self.waiting_bytes + bytes.len() > limit {
            return Early::Overflow;
        }
        *word |= bit;
        self.waiting_bytes += bytes.len();
        self.waiting.insert(position, bytes);
        if position + 1 > self.end {
            // A gap opened.
            self.is_owed |= position > self.end.max(self.expected);
            self.end = position + 1;
        }
        if self.in_changed.insert(position / 64) {
            self.changed.push_back(position / 64);
        }
        Early::Kept
    }

    /// The request with the expected PSN, if it came early.
    pub fn take_expected(&mut self) -> Option<Box<[u8]>> {
        if self.waiting.is_empty() {
            return None;
        }
        let waiting = self.waiting.remove(&self.expected)?;
        self.waiting_bytes -= waiting.len();
        Some(waiting)
    }

    /// Whether the request with the expected PSN came early.
    pub fn has_expected(&self) -> bool {
        self.waiting.contains_key(&self.expected)
    }

    /// It could not be carried out yet.
    pub fn put_back(&mut self, waiting: Box<[u8]>) {
        self.waiting_bytes += waiting.len();
        self.waiting.insert(self.expected, waiting);
    }

    /// The expected PSN moved on.
    pub fn advance(&mut self, packets: u32) {
        let to = self.expected + u64::from(packets);
        if self.end > self.expected {
            for position in self.expected..to.min(self.end) {
                let (word, bit) = (&mut self.words[(position / 64 % WORDS) as usize], 1 << (position % 64));
                // Something with a PSN that a READ takes is nothing that can be carried out.
                if *word & bit != 0
                    && let Some(waiting) = self.waiting.remove(&position)
                {
                    self.waiting_bytes -= waiting.len();
                }
                *word &= !bit;
            }
        }
        self.expected = to;
    }

    /// Forgets what came early.
    pub fn forget(&mut self) {
        self.waiting = FxHashMap::default();
        self.waiting_bytes = 0;
        self.words = Vec::new();
        self.changed = VecDeque::new();
        self.in_changed = FxHashSet::default();
        self.end = self.expected;
    }

    /// Bytes of requests that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes + self.waiting.len()
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.words.len() * 8 + self.waiting_bytes + self.waiting.capacity() * size_of::<(u64, Box<[u8]>)>()
    }

    /// The acknowledge that is owed, of `max_blocks` at the most; `expected` is the PSN of that position.
    pub fn sack(&mut self, expected: Psn, max_blocks: usize, now: Instant) -> Sack {
        let is_copy = self.owes_only_a_copy();
        let (trigger, attempt, at) = self.latest.unwrap_or((expected.minus(1), 0, now));
        // A copy takes a way of its own: no round trip is to be measured by it.
        let delay = Some(now.saturating_since(at).as_micros()).filter(|_| !is_copy);
        let delay_us = delay.and_then(|delay| u16::try_from(delay).ok()).unwrap_or(u16::MAX);
        let is_trigger_marked = self.is_latest_marked && !is_copy;
        let (marked, blocks) = (self.marked, ArrayVec::new());
        let mut sack = Sack { trigger, attempt, delay_us, marked, is_trigger_marked, blocks };
        if is_copy {
            self.is_copy_owed = false;
        } else {
            (self.is_owed, self.is_latest_marked, self.unreported) = (false, false, 0);
        }
        if self.end <= self.expected {
            self.changed.clear();
            self.in_changed.clear();
            return sack;
        }
        let (first, last) = (self.expected / 64, (self.end - 1) / 64);
        let mut reported: ArrayVec<u64, { Sack::MAX_BLOCKS }> = ArrayVec::new();
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
        for word in reported {
            let bits = self.words[(word % WORDS) as usize];
            if bits != 0 {
                let base = expected.plus((word * 64).wrapping_sub(self.expected) as u32);
                sack.blocks.push((base, bits));
            }
        }
        sack
    }
}
