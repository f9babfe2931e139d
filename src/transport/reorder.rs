use std::collections::VecDeque;

use arrayvec::ArrayVec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::frame::FrameBytes;
use crate::time::Instant;
use crate::wire::{Bth, Operation, Packet, PathMtu, Psn, Sack};

use super::counters::Counters;
use super::early::{Arrival, Messages, Placed, Spot};
use super::extension::RecoverySettings;

/// What the responder keeps of requests that came before earlier ones: which they are; of those whose bytes are where they
/// belong, what it takes to finish them in their turn; and the others, which wait.
///
/// Positions are PSNs that do not wrap.
#[derive(Debug)]
pub(super) struct Reorder {
    /// The position of the expected PSN.
    expected: u64,
    /// The position after the highest that arrived.
    end: u64,
    /// A bit for each position that arrived, from the word of the expected one on; none for the rest.
    words: VecDeque<u64>,
    /// Requests that came early, from the BTH to the ICRC, without their trailers. Of a peer that goes back, empty where two differed:
    /// one is a stranger's, and nobody can tell which.
    waiting: FxHashMap<u64, Box<[u8]>>,
    waiting_bytes: usize,
    /// Requests that came early, and whose bytes are in memory.
    placed: FxHashMap<u64, Placed>,
    messages: Messages,
    /// Positions of requests that wait although they may be placed once more is known or done, in the order of their tries.
    tries: VecDeque<u64>,
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
    /// It waits; or its bytes are where they belong, and the rest of it waits.
    Kept,
    /// It was here before.
    Duplicate,
    /// There is no room for it, or it is too far ahead.
    Overflow,
}

/// A request that came early, and whose turn it is.
#[derive(Debug)]
pub(super) enum Waiting {
    /// From the BTH to the ICRC.
    Bytes(Box<[u8]>),
    Placed(Placed),
}

/// The first position: no message that is coming in begins before zero.
const START: u64 = 1 << 32;

/// Requests that wait which are tried anew with each that comes early: more than can be added by it.
const TRIES: usize = 2;

/// What a request takes whose bytes are placed: its entry, and its share of the tables.
const PLACED_BYTES: usize = 32;

const WINDOW: u64 = RecoverySettings::MAX_WINDOW as u64;

/// An acknowledge is owed after so many packets at the latest, whether asked for or not.
const ACKNOWLEDGE_EVERY: u32 = 16;

/// Blocks of an acknowledge that are for changed words at the most; the others take turns.
const CHANGED_BLOCKS: usize = 32;

/// What a request that waits counts for, beside its entry: no less than once it is placed.
fn charge(waiting: &[u8]) -> usize {
    waiting.len().max(PLACED_BYTES - 1)
}

/// Whether a request was sent twice, from the BTH on: some bits may differ, since an acknowledge may be asked for at other places,
/// and routers tell of congestion.
fn is_the_same(a: &[u8], b: &[u8]) -> bool {
    const MAY_DIFFER: [usize; 2] = [4, 8];
    let differs = |at: usize| a[at] != b[at] && !MAY_DIFFER.contains(&at);
    a.len() == b.len() && !(0..Bth::BYTES).any(differs) && a[Bth::BYTES..] == b[Bth::BYTES..]
}

/// Places the bytes of a request that belongs to `spot`, if they may be placed before its turn, and keeps the rest of it.
fn place(
    messages: &mut Messages,
    placed: &mut FxHashMap<u64, Placed>,
    spot: Spot,
    expected: u64,
    arrival: &Arrival<'_>,
) -> bool {
    let is_done = |position| position < expected || placed.contains_key(&position);
    let was_placed = messages.place(spot, expected, arrival, is_done);
    if was_placed {
        placed.insert(spot.position(), Placed::new(arrival.packet, spot));
    }
    was_placed
}

impl Default for Reorder {
    fn default() -> Reorder {
        Reorder {
            expected: START,
            end: START,
            words: VecDeque::new(),
            waiting: FxHashMap::default(),
            waiting_bytes: 0,
            placed: FxHashMap::default(),
            messages: Messages::default(),
            tries: VecDeque::new(),
            changed: VecDeque::new(),
            in_changed: FxHashSet::default(),
            turn: 0,
            latest: None,
            marked: 0,
            is_owed: false,
            is_copy_owed: false,
            is_latest_marked: false,
            path: 0,
            unreported: 0,
        }
    }
}

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
        if std::mem::replace(&mut self.path, path) != path {
            self.report_all();
        }
    }

    /// The peer is told all that came early, the oldest first.
    pub fn report_all(&mut self) {
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

    /// Keeps a request that is `ahead` PSNs after the expected one, of which at most `window` are kept, in `limit` bytes;
    /// its bytes go to their place when they may. `is_reported`: the peer is told.
    pub fn keep(
        &mut self,
        ahead: u32,
        arrival: &Arrival<'_>,
        (window, limit): (u32, usize),
        is_reported: bool,
        counters: &mut Counters,
    ) -> Early {
        let position = self.expected + u64::from(ahead);
        if u64::from(ahead) >= u64::from(window).min(WINDOW) {
            return Early::Overflow;
        }
        // Of a peer that goes back nothing is placed, and where two copies differ neither counts.
        if !is_reported && let Some(waiting) = self.waiting.get_mut(&position) {
            if !is_the_same(waiting, &arrival.packet.without_trailer())
                && !mutated!("first-copy-of-a-plain-peer-counts", by "uroce --test early what_a_stranger_sends")
            {
                self.waiting_bytes -= charge(waiting) - charge(&[]);
                *waiting = Box::default();
            }
            return Early::Duplicate;
        }
        if self.has(position) && (self.waiting.contains_key(&position) || !mutated!("early-request-placed-again")) {
            return Early::Duplicate;
        }
        // What it takes at least, beside what is known of its message and of the one that is coming in.
        if self.waiting_bytes() + PLACED_BYTES + 2 * Messages::MESSAGE_BYTES > limit {
            return Early::Overflow;
        }
        let learned = self.messages.learn(position, self.expected, arrival);
        counters.bad_trailer += u64::from(learned.is_err());
        let spot = learned.unwrap_or(None);
        let expected = self.expected;
        if spot.is_some_and(|spot| place(&mut self.messages, &mut self.placed, spot, expected, arrival)) {
            let last = self.messages.last_of(position);
            counters.placed_early += 1 + u64::from(last.is_some_and(|last| self.place_waiting(last, arrival)));
        } else {
            let bytes = arrival.packet.without_trailer();
            if self.waiting_bytes() + charge(&bytes) + 1 > limit {
                return Early::Overflow;
            }
            self.waiting_bytes += charge(&bytes);
            self.waiting.insert(position, bytes);
            self.tries.extend(spot.filter(|spot| self.messages.may_be_placed(*spot)).map(|_| position));
        }
        for _ in 0..TRIES {
            let Some(position) = self.tries.pop_front() else { break };
            if position < self.expected || !self.waiting.contains_key(&position) {
                continue;
            }
            let was_placed = self.messages.spot(position).is_some_and(|spot| self.place_waiting(spot, arrival));
            counters.placed_early += u64::from(was_placed);
            if !was_placed {
                self.tries.push_back(position);
            }
        }
        self.mark(position, is_reported);
        Early::Kept
    }

    /// Places a request that waits, if it may be by now: the last packet of a WRITE whose others are placed; one that might
    /// have been overwritten.
    fn place_waiting(&mut self, spot: Spot, arrival: &Arrival<'_>) -> bool {
        let Some(bytes) = self.waiting.get(&spot.position()) else { return false };
        let Ok(packet) = Packet::parse(FrameBytes::from(&bytes[..])) else { return false };
        let arrival = Arrival { packet: &packet, trailer: None, ..*arrival };
        let was_placed = place(&mut self.messages, &mut self.placed, spot, self.expected, &arrival);
        if was_placed {
            self.waiting_bytes -= charge(bytes);
            self.waiting.remove(&spot.position());
        }
        was_placed
    }

    /// Whether the request that is `ahead` PSNs after the expected one waits already, just as it came again, and so does all before
    /// it.
    pub fn is_sent_again(&self, ahead: u32, packet: &Packet<'_>, path_mtu: PathMtu) -> bool {
        let (mut position, end) = (self.expected, self.expected + u64::from(ahead));
        let is_here = |waiting: &[u8]| {
            is_the_same(waiting, &packet.without_trailer())
                || mutated!("whatever-waits-is-believed", by "uroce --test early what_a_stranger_sends")
        };
        if !self.waiting.get(&end).is_some_and(|waiting| is_here(waiting)) {
            return false;
        }
        while position < end {
            let Some(waiting) = self.waiting.get(&position) else { return false };
            let Ok(packet) = Packet::parse(FrameBytes::from(&waiting[..])) else { return false };
            position += match packet.bth().opcode().operation() {
                Operation::ReadRequest => {
                    packet.reth().map_or(1, |reth| path_mtu.packets(reth.length() as usize).into())
                }
                _ => 1,
            };
        }
        position == end
    }

    /// Whether the request at `position`, not before the expected one, is here.
    fn has(&self, position: u64) -> bool {
        let word = self.words.get((position / 64 - self.expected / 64) as usize);
        word.is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// `is_reported`: the peer is told, word by word.
    fn mark(&mut self, position: u64, is_reported: bool) {
        let index = (position / 64 - self.expected / 64) as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (position % 64);
        if position + 1 > self.end {
            // A gap opened.
            self.is_owed |= is_reported && position > self.end.max(self.expected);
            self.end = position + 1;
        }
        if is_reported && self.in_changed.insert(position / 64) {
            self.changed.push_back(position / 64);
        }
    }

    /// The request with the expected PSN, if it came early.
    pub fn take_expected(&mut self) -> Option<Waiting> {
        if let Some(placed) = self.placed.remove(&self.expected) {
            return Some(Waiting::Placed(placed));
        }
        let waiting = self.waiting.remove(&self.expected)?;
        self.waiting_bytes -= if mutated!("early-request-leaked") { 0 } else { charge(&waiting) };
        Some(Waiting::Bytes(waiting))
    }

    /// Whether the request with the expected PSN came early.
    pub fn has_expected(&self) -> bool {
        self.has(self.expected)
    }

    /// It could not be carried out yet.
    pub fn put_back(&mut self, waiting: Waiting) {
        match waiting {
            Waiting::Bytes(waiting) => {
                self.waiting_bytes += charge(&waiting);
                self.waiting.insert(self.expected, waiting);
            }
            Waiting::Placed(placed) => {
                self.placed.insert(self.expected, placed);
            }
        }
    }

    /// What is known of messages, and the position of the expected PSN.
    pub fn messages(&mut self) -> (&mut Messages, u64) {
        (&mut self.messages, self.expected)
    }

    /// The expected PSN moved on.
    pub fn advance(&mut self, packets: u32) {
        let to = self.expected + u64::from(packets);
        // Something with a PSN that a READ takes is nothing that can be carried out.
        for position in self.expected..to.min(self.end) {
            if let Some(waiting) = self.waiting.remove(&position) {
                self.waiting_bytes -= charge(&waiting);
            }
            self.placed.remove(&position);
        }
        let passed = (to / 64 - self.expected / 64) as usize;
        self.words.drain(..passed.min(self.words.len()));
        if let Some(word) = self.words.front_mut() {
            *word &= u64::MAX << (to % 64);
        }
        self.expected = to;
        self.end = self.end.max(to);
    }

    /// So many packets came in order; `latest` is the PSN of the last.
    pub fn skip(&mut self, packets: u32, latest: Psn) {
        self.advance(packets);
        self.latest = self.latest.map(|(_, attempt, at)| (latest, attempt, at));
    }

    /// Forgets what came early.
    pub fn forget(&mut self) {
        self.waiting = FxHashMap::default();
        self.waiting_bytes = 0;
        self.placed = FxHashMap::default();
        self.messages = Messages::default();
        self.tries = VecDeque::new();
        self.words = VecDeque::new();
        self.changed = VecDeque::new();
        self.in_changed = FxHashSet::default();
        self.end = self.expected;
    }

    /// Bytes of requests that wait, and of what is kept of those that are placed.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes + self.waiting.len() + self.placed.len() * PLACED_BYTES + self.messages.bytes()
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8
            + self.waiting_bytes
            + self.waiting.capacity() * size_of::<(u64, Box<[u8]>)>()
            + self.tries.capacity() * size_of::<u64>()
            + self.placed.capacity() * size_of::<(u64, Placed)>()
            + self.messages.bytes()
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
            self.words.iter_mut().for_each(|word| *word |= u64::from(mutated!("copy-says-too-much")));
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
            let bits = self.words.get((word - first) as usize).copied().unwrap_or(0);
            if bits != 0 {
                let base = expected
                    .plus((word * 64).wrapping_sub(self.expected) as u32 + u32::from(mutated!("sack-bit-off-by-one")));
                sack.blocks.push((base, bits));
            }
        }
        sack
    }
}
