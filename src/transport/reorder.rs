use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::frame::FrameBytes;
use crate::wire::{Bth, Operation, Packet, PathMtu};

use super::counters::Counters;
use super::early::{Arrival, Messages, Placed, Spot};
use super::extension::RecoverySettings;

/// What the responder keeps of requests that came before earlier ones: of those whose bytes are where they belong, what it takes
/// to finish them in their turn; and the others, which wait.
///
/// Positions are PSNs that do not wrap.
#[derive(Debug)]
pub(super) struct Reorder {
    /// The position of the expected PSN.
    expected: u64,
    /// The position after the highest that was kept, or the expected one.
    end: u64,
    /// Requests that came early, from the BTH to the ICRC, without their trailers. Of a peer that goes back, empty where two differed:
    /// one is a stranger's, and nobody can tell which.
    waiting: FxHashMap<u64, Box<[u8]>>,
    waiting_bytes: usize,
    /// Requests that came early, and whose bytes are in memory.
    placed: FxHashMap<u64, Placed>,
    messages: Messages,
    /// Positions of requests that wait although they may be placed once more is known or done, in the order of their tries.
    tries: VecDeque<u64>,
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
            waiting: FxHashMap::default(),
            waiting_bytes: 0,
            placed: FxHashMap::default(),
            messages: Messages::default(),
            tries: VecDeque::new(),
        }
    }
}

impl Reorder {
    /// Keeps a request that is `ahead` PSNs after the expected one, of which at most `window` are kept, in `limit` bytes;
    /// its bytes go to their place when they may. `is_vouched_for`: it is the peer's beyond doubt.
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
        // Of what nobody vouches for nothing is placed, and where two copies differ neither counts.
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
        self.end = self.end.max(position + 1);
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
        self.waiting.contains_key(&position) || self.placed.contains_key(&position)
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
        self.expected < self.end && self.has(self.expected)
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
        self.expected = to;
        self.end = self.end.max(to);
    }

    /// Forgets what came early.
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

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.waiting_bytes
            + self.waiting.capacity() * size_of::<(u64, Box<[u8]>)>()
            + self.tries.capacity() * size_of::<u64>()
            + self.placed.capacity() * size_of::<(u64, Placed)>()
            + self.messages.bytes()
    }
}
