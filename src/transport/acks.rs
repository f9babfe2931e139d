use std::collections::VecDeque;
use std::fmt::Debug;

use arrayvec::ArrayVec;
use rustc_hash::FxHashSet;

use crate::time::Instant;
use crate::wire::{CarriedAcknowledge, Psn, Sack, Telemetry};

/// How a responder reports to its peer what arrived: the counterpart of [`Recovery`](crate::recovery::Recovery). What a
/// peer makes of acknowledges depends on its loss recovery, and so does what it is owed.
pub(super) trait AckPolicy: Debug + Send + Sync {
    /// Whether the tag of a request that arrives out of order proves that it is the peer's. Otherwise it has no effect,
    /// and is not reported, before the peer has gone back and retransmitted it or a later one.
    fn vouches_for_early(&self) -> bool {
        false
    }

    /// Whether acknowledges overtake all other answers. Otherwise each answer waits its turn.
    fn overtakes(&self) -> bool {
        false
    }

    /// Whether a peer that requests READ responses again misses only these. Otherwise it misses all that follow, too.
    fn asks_for_what_is_missing(&self) -> bool {
        false
    }

    /// Records that a request packet arrived.
    fn arrived(&mut self, _arrival: Arrived) {}

    /// Records what switches wrote into the request packet that arrived last.
    fn measured(&mut self, _psn: Psn, _telemetry: Telemetry) {}

    /// What switches wrote into the trigger of an acknowledge; `None` when it had no room for that.
    fn telemetry(&self, _trigger: Psn) -> Option<&Telemetry> {
        None
    }

    /// Records that the request `ahead` PSNs after the expected one, at least 1, is kept until its turn.
    fn kept(&mut self, _ahead: u32) {}

    /// Records that requests of `packets` more PSNs have executed.
    fn advance(&mut self, _packets: u32) {}

    /// Makes `latest` the PSN of the packet that arrived last, if one has arrived.
    fn skip(&mut self, _latest: Psn) {}

    /// Discards the record of kept requests.
    fn forget(&mut self) {}

    /// Owes an acknowledge. Returns whether the policy sends it itself; otherwise the caller queues it among the other
    /// answers.
    fn owe(&mut self) -> bool {
        false
    }

    /// Owes a copy of an acknowledge, which takes another path.
    fn owe_copy(&mut self) {}

    /// Which acknowledge of its own the policy owes.
    fn owed(&self) -> OwedAck {
        OwedAck::None
    }

    /// Sets the path that acknowledges take from now on.
    fn take_path(&mut self, _path: u8) {}

    /// The contents of the acknowledge that is owed, in at most `max_blocks` blocks; `expected` is the expected PSN.
    /// `None` for a policy without acknowledges of its own.
    fn poll(&mut self, _expected: Psn, _max_blocks: usize, _now: Instant) -> Option<Sack> {
        None
    }

    /// The acknowledge of its own that is owed, if a request can carry it: nothing has arrived early.
    fn to_carry(&self, _expected: Psn, _now: Instant) -> Option<CarriedAcknowledge> {
        None
    }

    /// Records that a request carries that acknowledge.
    fn was_carried(&mut self) {}

    /// Memory that it holds, in bytes.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A request packet that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub psn: Psn,
    /// Earlier transmissions of the packet.
    pub attempt: u8,
    /// Whether the packet arrived with «congestion experienced».
    pub is_marked: bool,
    /// Whether the packet asks for an acknowledge.
    pub asks: bool,
    pub at: Instant,
}

/// An acknowledge that a policy owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwedAck {
    /// No acknowledge.
    None,
    /// A copy of what was reported, over another path.
    Copy,
    /// An acknowledge with news; a copy can be owed as well.
    New,
}

/// Towards a peer that uses go-back-N: acknowledges are cumulative, and wait their turn among the other answers (IBTA
/// 9.7.5.1.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct CumulativeAcks;

impl AckPolicy for CumulativeAcks {}

/// Towards a peer that uses selective repeat: acknowledges report which packets arrived (docs/EXTENSIONS.md).
///
/// Positions are PSNs that do not wrap.
#[derive(Debug)]
pub(super) struct SelectiveAcks {
    /// The position of the expected PSN.
    expected: u64,
    /// The position after the highest that arrived.
    end: u64,
    /// Bits of the positions that arrived, in words of 64, from the word of the expected position on. Words past the
    /// end are zero.
    words: VecDeque<u64>,
    /// Words that changed, to be reported first.
    changed: VecDeque<u64>,
    in_changed: FxHashSet<u64>,
    /// The word that was last reported in rotation: words that did not change take turns.
    turn: u64,
    /// The packet that arrived last: its PSN, its attempt and the time.
    latest: Option<(Psn, u8, Instant)>,
    /// What switches wrote into the packet of that PSN, if it had room for it.
    telemetry: Option<Box<(Psn, Telemetry)>>,
    /// Packets that arrived with «congestion experienced», modulo 2^16.
    marked: u16,
    /// Whether the packet in `latest` had «congestion experienced»; until reported, only another such replaces it.
    is_latest_marked: bool,
    /// Whether an acknowledge is owed.
    is_owed: bool,
    /// Whether a copy of an acknowledge is owed, which takes another path.
    is_copy_owed: bool,
    /// The path that acknowledges take.
    path: u8,
    /// Packets since the last acknowledge.
    unreported: u32,
}

/// The first position, large enough for a block to begin before it.
const START: u64 = 1 << 32;

/// Packets after which an acknowledge is owed, even when none of them asked for one.
const ACKNOWLEDGE_EVERY: u32 = 16;

/// Upper bound on an acknowledge's blocks for changed words; the other blocks are for all words in turn.
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
            telemetry: None,
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
    /// The packet that arrived last: its PSN, its attempt, and how many microseconds ago, at most 65535.
    fn trigger(&self, expected: Psn, now: Instant) -> (Psn, u8, u16) {
        let (trigger, attempt, at) = self.latest.unwrap_or((expected.minus(1), 0, now));
        (trigger, attempt, u16::try_from(now.saturating_since(at).as_micros()).unwrap_or(u16::MAX))
    }

    /// Records that all news are reported.
    fn reported(&mut self) {
        (self.is_owed, self.is_latest_marked, self.unreported) = (false, false, 0);
    }

    /// Marks all words from the expected position on as changed, the oldest first.
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

    /// The words that the next acknowledge reports, where something arrived early: at most `max_blocks` of them.
    fn words_to_report(&mut self, is_copy: bool, max_blocks: usize) -> ArrayVec<u64, { Sack::MAX_BLOCKS }> {
        let mut reported = ArrayVec::new();
        let (first, last) = (self.expected / 64, (self.end - 1) / 64);
        // The next acknowledge over the usual path reports what changed, and arrives before this copy.
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

    fn measured(&mut self, psn: Psn, telemetry: Telemetry) {
        **self.telemetry.get_or_insert_default() = (psn, telemetry);
    }

    fn telemetry(&self, trigger: Psn) -> Option<&Telemetry> {
        let (psn, telemetry) = self.telemetry.as_deref()?;
        let is_of_it =
            *psn == trigger || mutated!("telemetry-of-another-packet", by "uroce --test telemetry only_of_the_trigger");
        is_of_it.then_some(telemetry)
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

    /// When the path changes, everything is reported once more, the oldest first: acknowledges on the old path are
    /// overtaken.
    fn take_path(&mut self, path: u8) {
        if std::mem::replace(&mut self.path, path) != path {
            self.report_all();
        }
    }

    fn poll(&mut self, expected: Psn, max_blocks: usize, now: Instant) -> Option<Sack> {
        let is_copy = self.owed() == OwedAck::Copy;
        let (trigger, attempt, delay_us) = self.trigger(expected, now);
        // A copy takes a path of its own, so it must not give a round-trip sample.
        let delay_us = if is_copy { u16::MAX } else { delay_us };
        let is_trigger_marked = self.is_latest_marked && !is_copy;
        let (marked, blocks) = (self.marked, ArrayVec::new());
        // It is large: it begins where it is returned.
        let mut said = Some(Sack { trigger, attempt, delay_us, marked, is_trigger_marked, blocks });
        if is_copy {
            self.is_copy_owed = false;
            self.words.iter_mut().for_each(|word| *word |= u64::from(mutated!("copy-says-too-much")));
        } else {
            self.reported();
        }
        if self.end <= self.expected {
            // Nothing arrived early.
            self.changed.clear();
            self.in_changed.clear();
            return said;
        }
        for word in self.words_to_report(is_copy, max_blocks) {
            let bits = self.words.get((word - self.expected / 64) as usize).copied().unwrap_or(0);
            if bits != 0 {
                let base = expected
                    .plus((word * 64).wrapping_sub(self.expected) as u32 + u32::from(mutated!("sack-bit-off-by-one")));
                said.as_mut()?.blocks.push((base, bits));
            }
        }
        said
    }

    fn to_carry(&self, expected: Psn, now: Instant) -> Option<CarriedAcknowledge> {
        let says_all = self.end <= self.expected
            || mutated!("carried-although-some-are-early", by "uroce --test carried what_arrived_early");
        if self.owed() != OwedAck::New || !says_all {
            return None;
        }
        let (trigger, attempt, delay_us) = self.trigger(expected, now);
        if self.telemetry(trigger).is_some()
            && !mutated!("telemetry-lost-to-a-request", by "uroce --test telemetry a_request_does_not_carry")
        {
            return None;
        }
        let (marked, is_trigger_marked) = (self.marked, self.is_latest_marked);
        Some(CarriedAcknowledge { psn: expected.minus(1), trigger, attempt, delay_us, marked, is_trigger_marked })
    }

    fn was_carried(&mut self) {
        self.reported();
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + (self.words.capacity() + self.changed.capacity() + self.in_changed.capacity()) * 8
    }
}
