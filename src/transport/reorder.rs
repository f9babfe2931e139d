use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::frame::FrameBytes;
use crate::wire::{Bth, Operation, Packet, PathMtu};

use super::counters::Counters;
use super::early::{Arrival, Messages, Placed, Spot};
use super::extension::RecoverySettings;

/// What the responder keeps of requests that arrived before earlier ones. Those whose bytes are placed keep what
/// finishes them in their turn; the others wait as a whole.
///
/// Positions are PSNs that do not wrap.
#[derive(Debug)]
pub(super) struct Reorder {
    /// The position of the expected PSN.
    expected: u64,
    /// The position after the highest that was kept, or the expected one.
    end: u64,
    /// Requests that arrived early, from the BTH to the ICRC, without their trailers. From a peer with go-back-N, empty
    /// where two differed: one is a stranger's, and neither is trusted.
    waiting: FxHashMap<u64, Box<[u8]>>,
    waiting_bytes: usize,
    /// Requests that arrived early, and whose bytes are in memory.
    placed: FxHashMap<u64, Placed>,
    messages: Messages,
    /// Positions of requests that wait, but can be placed once more is known or placed, in the order of their attempts.
    tries: VecDeque<u64>,
}

/// The result for a request that arrived early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// It waits; or its bytes are placed, and the rest of it waits.
    Kept,
    /// It arrived before.
    Duplicate,
    /// There is no room for it, or it is too far ahead.
    Overflow,
}

/// A request that arrived early, and whose turn has come.
#[derive(Debug)]
pub(super) enum Waiting {
    /// The packet from the BTH to the ICRC.
    Bytes(Box<[u8]>),
    Placed(Placed),
}

/// The first position, large enough for no message to begin before zero.
const START: u64 = 1 << 32;

/// Upper bound on the waiting requests that are tried again with each early one: more than one can add.
const TRIES: usize = 2;

/// Bytes that a request takes when its bytes are placed: its entry, and its share of the tables.
const PLACED_BYTES: usize = 32;

const WINDOW: u64 = RecoverySettings::MAX_WINDOW as u64;

/// Bytes that a waiting request counts for, beside its entry: at least as many as once it is placed.
fn charge(waiting: &[u8]) -> usize {
    waiting.len().max(PLACED_BYTES - 1)
}

/// Whether two packets, from the BTH on, are copies of one request. Some bits can differ: the acknowledge request, and
/// the congestion marks that routers set.
fn is_the_same(a: &[u8], b: &[u8]) -> bool {
    const MAY_DIFFER: [usize; 2] = [4, 8];
    let differs = |at: usize| a[at] != b[at] && !MAY_DIFFER.contains(&at);
    a.len() == b.len() && !(0..Bth::BYTES).any(differs) && a[Bth::BYTES..] == b[Bth::BYTES..]
}

/// Places the bytes of a request that belongs to `spot`, if that is allowed before its turn, and keeps the rest of it.
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
            waiting: FxHashMap::default(),
            waiting_bytes: 0,
            placed: FxHashMap::default(),
            messages: Messages::default(),
            tries: VecDeque::new(),
        }
    }
}

impl Reorder {
    /// Keeps a request that is `ahead` PSNs after the expected one: less than `window`, and in at most `limit` bytes.
    /// Its bytes are placed where that is allowed. `is_vouched_for`: its tag proves that it is the peer's.
    pub fn keep(
        &mut self,
        ahead: u32,
        arrival: &Arrival<'_>,
        (window, limit): (u32, usize),
        is_vouched_for: bool,
        counters: &mut Counters,
    ) -> Early {
        let position = self.expected + u64::from(ahead);
        if u64::from(ahead) >= u64::from(window).min(WINDOW) {
            return Early::Overflow;
        }
        // Without such proof nothing is placed, and where two copies differ neither counts.
        if !is_vouched_for && let Some(waiting) = self.waiting.get_mut(&position) {
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
        // This is the minimum that it takes, beside what is known of its message and of the one being received.
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
        self.end = self.end.max(position + 1);
        Early::Kept
    }

    /// Places a request that waits, if that is allowed by now: the last packet of a WRITE whose others are placed, or
    /// one that could have been overwritten.
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

    /// Whether the request that is `ahead` PSNs after the expected one waits already, in the same bytes as `packet`,
    /// and everything before it waits, too.
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

    /// Whether the request at `position`, which is not before the expected one, is kept.
    fn has(&self, position: u64) -> bool {
        self.waiting.contains_key(&position) || self.placed.contains_key(&position)
    }

    /// Removes the request with the expected PSN, if it arrived early.
    pub fn take_expected(&mut self) -> Option<Waiting> {
        if let Some(placed) = self.placed.remove(&self.expected) {
            return Some(Waiting::Placed(placed));
        }
        let waiting = self.waiting.remove(&self.expected)?;
        self.waiting_bytes -= if mutated!("early-request-leaked") { 0 } else { charge(&waiting) };
        Some(Waiting::Bytes(waiting))
    }

    /// Whether the request with the expected PSN arrived early.
    pub fn has_expected(&self) -> bool {
        self.expected < self.end && self.has(self.expected)
    }

    /// Gives back a request that could not execute yet.
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

    /// The known messages, and the position of the expected PSN.
    pub fn messages(&mut self) -> (&mut Messages, u64) {
        (&mut self.messages, self.expected)
    }

    /// Moves the expected PSN on.
    pub fn advance(&mut self, packets: u32) {
        let to = self.expected + u64::from(packets);
        // Requests at the PSNs that a READ's responses take cannot execute.
        for position in self.expected..to.min(self.end) {
            if let Some(waiting) = self.waiting.remove(&position) {
                self.waiting_bytes -= charge(&waiting);
            }
            self.placed.remove(&position);
        }
        self.expected = to;
        self.end = self.end.max(to);
    }

    /// Discards what arrived early.
    pub fn forget(&mut self) {
        self.waiting = FxHashMap::default();
        self.waiting_bytes = 0;
        self.placed = FxHashMap::default();
        self.messages = Messages::default();
        self.tries = VecDeque::new();
        self.end = self.expected;
    }

    /// Bytes of requests that wait, and of what is kept of those that are placed.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes + self.waiting.len() + self.placed.len() * PLACED_BYTES + self.messages.bytes()
    }

    /// Memory that it holds, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.waiting_bytes
            + self.waiting.capacity() * size_of::<(u64, Box<[u8]>)>()
            + self.tries.capacity() * size_of::<u64>()
            + self.placed.capacity() * size_of::<(u64, Placed)>()
            + self.messages.bytes()
    }
}
