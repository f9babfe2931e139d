use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::memory::{Access, MemoryTable, Pd, Span};
use crate::wire::{Bth, Extension, Headers, Ieth, ImmDt, Key, Opcode, Operation, Packet, Psn, RequestTrailer, Reth};

use super::connection::Connection;
use super::inbound::{Current, Inbound, check_length};
use super::message_kind::MessageKind;
use super::ranges::Ranges;
use super::work::{MAX_MESSAGE_BYTES, spans, total};

/// A request that arrived early, and what it is checked against.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
    pub packet: &'a Packet<'a>,
    pub trailer: Option<&'a RequestTrailer>,
    pub inbound: &'a Inbound,
    pub connection: &'a Connection,
    pub memory: &'a MemoryTable,
    /// The protection domain of the receive requests.
    pub receive_pd: Pd,
}

/// What is needed to finish a request in its turn, when its bytes are placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    opcode: Opcode,
    flags: u8,
    /// Length of the payload, in bytes.
    pub len: u16,
    /// The immediate data, or the R_Key to invalidate.
    word: u32,
    /// Its index in its message, as it claimed.
    pub index: u32,
}

const ASKS: u8 = 1;
const SOLICITED: u8 = 2;

impl Placed {
    pub fn new(packet: &Packet<'_>, spot: Spot) -> Placed {
        let bth = packet.bth();
        let flags = if bth.ack_request() { ASKS } else { 0 } | if bth.solicited() { SOLICITED } else { 0 };
        let word = packet.imm_dt().map(|imm| imm.data()).or(packet.ieth().map(|ieth| ieth.key().0));
        let len = packet.payload().len() as u16;
        Placed { opcode: bth.opcode(), flags, len, word: word.unwrap_or_default(), index: spot.index }
    }

    /// The headers of the request. A packet that starts a WRITE has the message's `reth`.
    pub fn headers(&self, connection: &Connection, psn: Psn, reth: Reth) -> Headers {
        let opcode = self.opcode;
        let bth = Bth::new(opcode, connection.qpn, psn)
            .with_ack_request(self.flags & ASKS != 0)
            .with_solicited(self.flags & SOLICITED != 0);
        let starts_write = opcode.operation() == Operation::Write && opcode.position().starts();
        let extension = match (starts_write, opcode.has_immediate(), opcode.has_invalidate()) {
            (true, true, _) => Extension::RethImmDt(reth, ImmDt::new(self.word)),
            (true, false, _) => Extension::Reth(reth),
            (false, true, _) if mutated!("immediate-of-what-came-early-lost") => Extension::ImmDt(ImmDt::new(0)),
            (false, true, _) => Extension::ImmDt(ImmDt::new(self.word)),
            (false, false, true) => Extension::Ieth(Ieth::new(Key(self.word))),
            (false, false, false) => Extension::None,
        };
        Headers { bth, extension }
    }
}

/// The place of a packet in its message, as it claimed and nothing contradicts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// The position of its message's first packet.
    start: u64,
    /// The packet's index in the message.
    index: u32,
}

impl Spot {
    pub fn position(self) -> u64 {
        self.start + u64::from(self.index)
    }
}

/// A packet's claim that contradicts others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lie;

#[derive(Clone, Copy, Debug)]
struct Message {
    kind: MessageKind,
    /// The position after its last packet; of a SEND, as far as it is known.
    end: u64,
    is_whole: bool,
    /// Packets that are placed, and whose turn has not come.
    placed: u32,
    /// The address in this process that it writes to, if that is known.
    host: Option<usize>,
    /// Whether it writes to unknown memory, which must be taken for any.
    is_anywhere: bool,
    /// Whether its region allows it to overtake others.
    is_relaxed: bool,
}

/// The messages of which packets arrived early, as these claimed (docs/EXTENSIONS.md), and what is needed to place
/// their bytes.
///
/// A SEND is placed in the memory of its receive request, which it names by number. A WRITE is placed if its region was
/// registered for that. All messages before it must be known, too, and must write elsewhere or be placed. No claim is
/// final: when a packet's turn comes, it must prove true.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Messages by the position of their first packet.
    known: BTreeMap<u64, Message>,
    /// All positions from the expected one to this belong to known messages.
    covered: u64,
    /// The memory that WRITEs and atomics among them write, by the position of their first packet.
    writes: Ranges,
    /// The first positions of SENDs, by the number of their receive request.
    sends: BTreeMap<u64, u64>,
    /// The memory of receive requests before `resolved`, by their number; and the same in order, for removal.
    receives: Ranges,
    order: VecDeque<(u64, usize)>,
    resolved: u64,
}

impl Messages {
    /// Whether no message is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What a message takes in the tables, in bytes, approximately.
    pub const MESSAGE_BYTES: usize = 192;

    /// Memory that the messages take, in bytes, approximately.
    pub fn bytes(&self) -> usize {
        self.known.len() * Self::MESSAGE_BYTES
    }

    /// Takes the claim of the packet at `position` about its message. `None` when it makes none.
    pub fn learn(&mut self, position: u64, expected: u64, arrival: &Arrival<'_>) -> Result<Option<Spot>, Lie> {
        let Some(trailer) = arrival.trailer else { return Ok(None) };
        let number = arrival.inbound.receive_number(trailer.receive_number).ok_or(Lie)?;
        let mtu = arrival.connection.path_mtu;
        let packet = arrival.packet;
        let (operation, place) = (packet.bth().opcode().operation(), packet.bth().opcode().position());
        let index = trailer.index;
        let start = position.checked_sub(index.into()).filter(|_| place.starts() == (index == 0)).ok_or(Lie)?;
        let (kind, end) = match operation {
            Operation::Send => (MessageKind::Send { number }, position + 1),
            Operation::Write => {
                let reth = packet.reth().copied().or(trailer.reth).ok_or(Lie)?;
                let packets = mtu.packets(reth.length() as usize);
                let fits = u64::from(reth.length()) <= MAX_MESSAGE_BYTES && index < packets;
                if !fits || place.ends() != (index + 1 == packets) {
                    return Err(Lie);
                }
                (MessageKind::Write { reth, number }, start + u64::from(packets))
            }
            Operation::ReadRequest => {
                let bytes = packet.reth().ok_or(Lie)?.length();
                (MessageKind::Read, start + u64::from(mtu.packets(bytes as usize)))
            }
            // A FLUSH changes nothing, like a READ.
            Operation::Flush => (MessageKind::Read, start + 1),
            _ => (MessageKind::Atomic, start + 1),
        };
        let is_whole = !matches!(kind, MessageKind::Send { .. }) || place.ends();
        self.learn_current(expected, arrival)?;
        if start < expected && !self.known.contains_key(&start) {
            return Err(Lie);
        }
        let next = self.known.range(start + 1..).next().map_or(u64::MAX, |(next, _)| *next);
        if let Some(known) = self.known.get_mut(&start) {
            let fits = known.kind == kind
                && (!known.is_whole || end <= known.end)
                && (!is_whole || end >= known.end)
                && end <= next;
            if !fits {
                return Err(Lie);
            }
            known.end = known.end.max(end);
            known.is_whole |= is_whole;
        } else {
            let before = self.known.range(..start).next_back().map_or(0, |(_, message)| message.end);
            if before > start || end > next {
                return Err(Lie);
            }
            self.insert(start, kind, (end, is_whole), arrival)?;
        }
        Ok(Some(Spot { start, index }))
    }

    /// Adds the message that is being received: it is known without a claim.
    fn learn_current(&mut self, expected: u64, arrival: &Arrival<'_>) -> Result<(), Lie> {
        let Some(Current { packets, kind, rest }) = arrival.inbound.current(arrival.connection.path_mtu) else {
            return Ok(());
        };
        let start = expected - u64::from(packets);
        if self.known.contains_key(&start) {
            return Ok(());
        }
        self.insert(start, kind, (expected + u64::from(rest.unwrap_or(0)), rest.is_some()), arrival)
    }

    fn insert(
        &mut self,
        start: u64,
        kind: MessageKind,
        (end, is_whole): (u64, bool),
        arrival: &Arrival<'_>,
    ) -> Result<(), Lie> {
        let written = match kind {
            MessageKind::Send { number } => {
                // Later SENDs take later receive requests.
                let before = self.sends.range(..=number).next_back();
                let after = self.sends.range(number..).next();
                let is_unused = number >= arrival.inbound.first_unfinished();
                if !is_unused
                    || before.is_some_and(|(_, other)| *other >= start)
                    || after.is_some_and(|(_, o)| *o <= start)
                {
                    return Err(Lie);
                }
                self.sends.insert(number, start);
                None
            }
            MessageKind::Write { reth, .. } => {
                Some((reth.key(), reth.address(), u64::from(reth.length()), Access::REMOTE_WRITE))
            }
            MessageKind::Atomic => match (arrival.packet.atomic_eth(), arrival.packet.reth()) {
                (Some(eth), _) => Some((eth.key(), eth.address(), 8, Access::REMOTE_ATOMIC)),
                (None, Some(reth)) => Some((reth.key(), reth.address(), 8, Access::REMOTE_WRITE)),
                (None, None) => return Err(Lie),
            },
            MessageKind::Read => None,
        };
        let written = written.filter(|(_, _, len, _)| *len > 0);
        let scope = arrival.connection.scope();
        let span = written
            .and_then(|(key, address, len, access)| arrival.memory.remote_of_region(scope, key, address, len, access));
        if let Some((span, _)) = span {
            self.writes.insert(span.addresses(), start, 0);
        }
        let host = span.map(|(span, _)| span.addresses().start);
        let is_relaxed = span.is_some_and(|(_, is_relaxed)| is_relaxed);
        let is_anywhere = written.is_some() && host.is_none();
        self.known.insert(start, Message { kind, end, is_whole, placed: 0, host, is_anywhere, is_relaxed });
        Ok(())
    }

    /// Places the packet's bytes, if that is allowed before its turn. `is_done` returns whether the bytes of a position
    /// are placed. Returns whether they were placed.
    pub fn place(&mut self, spot: Spot, expected: u64, arrival: &Arrival<'_>, is_done: impl Fn(u64) -> bool) -> bool {
        let Some(&message) = self.known.get(&spot.start) else { return false };
        let (packet, mtu) = (arrival.packet, arrival.connection.path_mtu.bytes());
        let payload = packet.payload();
        if check_length(packet, payload.len(), mtu).is_err() {
            return false;
        }
        let offset = u64::from(spot.index) * mtu as u64;
        let len = payload.len() as u64;
        let (number, places) = match message.kind {
            MessageKind::Send { number } => {
                let number = number + u64::from(mutated!("early-send-into-another-receive-request"));
                let Some(request) = arrival.inbound.request(number) else { return false };
                if offset + len > total(&request.sges).min(MAX_MESSAGE_BYTES) {
                    return false;
                }
                match spans(arrival.memory, arrival.receive_pd, &request.sges, offset as u32, payload.len()) {
                    Ok(places) => (number, places),
                    Err(_) => return false,
                }
            }
            MessageKind::Write { reth, number } => {
                let Some(span) = self.target(spot, &message, &reth, expected, arrival) else { return false };
                if packet.imm_dt().is_some() && arrival.inbound.request(number).is_none() {
                    return false;
                }
                (number, [span].into_iter().collect())
            }
            MessageKind::Read | MessageKind::Atomic => return false,
        };
        if !self.resolve(number, arrival) {
            return false;
        }
        let free = |span: &Span<'_>| self.is_free(span.addresses(), (spot.start, number), mtu, &is_done);
        if !places.iter().all(free) {
            return false;
        }
        let mut bytes = payload;
        for span in &places {
            if span.write(bytes.take(span.len())).is_err() {
                return false;
            }
            bytes = bytes.skip(span.len());
        }
        if let Some(message) = self.known.get_mut(&spot.start) {
            message.placed += 1;
        }
        true
    }

    /// The memory that a WRITE's packet goes to, if everything before it is known. The last packet must wait until no
    /// other of its message is missing, since programs poll on the last bytes.
    fn target<'a>(
        &mut self,
        spot: Spot,
        message: &Message,
        reth: &Reth,
        expected: u64,
        arrival: &Arrival<'a>,
    ) -> Option<Span<'a>> {
        let (scope, path_mtu) = (arrival.connection.scope(), arrival.connection.path_mtu);
        let len = arrival.packet.payload().len() as u64;
        let offset = u64::from(spot.index) * path_mtu.bytes() as u64;
        let is_last = spot.position() + 1 == message.end;
        let others = message.end - spot.start.max(expected) - 1;
        let fits = len == (u64::from(reth.length()) - offset).min(path_mtu.bytes() as u64)
            && arrival.inbound.access.contains(Access::REMOTE_WRITE)
            && (!is_last || others == u64::from(message.placed) || mutated!("last-bytes-not-last"));
        let covers = self.covers(expected, spot.start) || mutated!("early-write-although-a-gap-is-unknown");
        if !fits || !covers {
            return None;
        }
        let address = reth.address().wrapping_add(offset);
        let access = Access::REMOTE_WRITE;
        let (whole, is_relaxed) =
            arrival.memory.remote_of_region(scope, reth.key(), reth.address(), reth.length().into(), access)?;
        let is_same = message.host.is_none_or(|host| host == whole.addresses().start);
        if !(is_relaxed || mutated!("early-write-to-ordinary-memory")) || !is_same {
            return None;
        }
        arrival.memory.remote_of_region(scope, reth.key(), address, len, access).map(|(span, _)| span)
    }

    /// Whether all positions from the expected one to `to` belong to messages whose destination is known.
    fn covers(&mut self, expected: u64, to: u64) -> bool {
        let mut at = self.covered.max(expected);
        while at < to {
            match self.known.range(..=at).next_back() {
                Some((_, message)) if message.end > at && !message.is_anywhere => at = message.end,
                _ => break,
            }
        }
        self.covered = at;
        at >= to
    }

    /// Finds the memory of all receive requests before `number`. Returns false when one of them is not posted.
    fn resolve(&mut self, number: u64, arrival: &Arrival<'_>) -> bool {
        let first = arrival.inbound.first_unfinished();
        self.resolved = self.resolved.max(first);
        while self.resolved < number {
            let Some(request) = arrival.inbound.request(self.resolved) else { return false };
            let mut offset = 0;
            for sge in &request.sges {
                let len = sge.length.into();
                let span = arrival.memory.local(arrival.receive_pd, sge.lkey, sge.address, len, true);
                if let Some(span) = span.ok().filter(|span| !span.is_empty()) {
                    self.receives.insert(span.addresses(), self.resolved, offset);
                    self.order.push_back((self.resolved, span.addresses().start));
                }
                offset += len;
            }
            self.resolved += 1;
        }
        true
    }

    /// Whether nothing that is missing can still write these bytes: neither messages before the one at `start`, nor
    /// those into receive requests before `number`.
    fn is_free(
        &self,
        bytes: Range<usize>,
        (start, number): (u64, u64),
        mtu: usize,
        is_done: &impl Fn(u64) -> bool,
    ) -> bool {
        let all_done = |first: u64, message: &Message, offsets: Range<u64>| {
            let packets = offsets.start / mtu as u64..=(offsets.end - 1) / mtu as u64;
            packets.map(|packet| first + packet).all(|at| is_done(at) || (message.is_whole && at >= message.end))
        };
        let written = |first: u64, offsets| {
            let is_later = first >= start || mutated!("early-write-over-an-earlier-one");
            is_later || self.known.get(&first).is_some_and(|message| all_done(first, message, offsets))
        };
        let received = |request: u64, offsets| {
            let first = self.sends.get(&request).copied();
            request >= number
                || first
                    .and_then(|first| Some((first, self.known.get(&first)?)))
                    .is_some_and(|(first, message)| all_done(first, message, offsets))
        };
        self.writes.all_overlapping(&bytes, written) && self.receives.all_overlapping(&bytes, received)
    }

    /// The place of the packet at `position`, if that is known.
    pub fn spot(&self, position: u64) -> Option<Spot> {
        let (&start, message) = self.known.range(..=position).next_back()?;
        (position < message.end).then_some(Spot { start, index: (position - start) as u32 })
    }

    /// Whether packets of its message can be placed before their turn at all.
    pub fn may_be_placed(&self, spot: Spot) -> bool {
        self.known.get(&spot.start).is_some_and(|message| match message.kind {
            MessageKind::Send { .. } => true,
            MessageKind::Write { .. } => message.is_relaxed,
            MessageKind::Read | MessageKind::Atomic => false,
        })
    }

    /// The last packet of the WRITE that `position` belongs to, unless it is at `position` itself.
    pub fn last_of(&self, position: u64) -> Option<Spot> {
        let (&start, message) = self.known.range(..=position).next_back()?;
        let index = (message.end - start - 1) as u32;
        let is_write = matches!(message.kind, MessageKind::Write { .. });
        (is_write && position + 1 < message.end).then_some(Spot { start, index })
    }

    /// The RETH of the WRITE whose first packet is at `position`.
    pub fn reth(&self, position: u64) -> Reth {
        match self.known.get(&position) {
            Some(Message { kind: MessageKind::Write { reth, .. }, .. }) => *reth,
            _ => Reth::default(),
        }
    }

    /// Checks the claims about packet number `index` of the message at `start`, which is of `kind`, when its turn has
    /// come. `placed` is what was kept of it, if its bytes are placed: then all its claims must be true.
    pub fn finish(&mut self, start: u64, index: u32, kind: MessageKind, placed: Option<&Placed>) -> Result<(), Lie> {
        let Some(message) = self.known.get_mut(&start) else {
            return if placed.is_some() { Err(Lie) } else { Ok(()) };
        };
        let is_so = message.kind == kind;
        match placed {
            Some(placed) if is_so && placed.index == index => message.placed = message.placed.saturating_sub(1),
            None if is_so || message.placed == 0 => {}
            _ => return Err(Lie),
        }
        Ok(())
    }

    /// Discards messages that start before the position `before`, and receive requests before `unfinished`.
    pub fn retire(&mut self, before: u64, unfinished: u64) {
        if self.known.is_empty() {
            return;
        }
        while let Some(entry) = self
            .known
            .first_entry()
            .filter(|entry| *entry.key() + 2 * u64::from(mutated!("early-message-never-forgotten")) < before)
        {
            let (start, message) = entry.remove_entry();
            if let Some(host) = message.host {
                self.writes.remove(host, start);
            }
        }
        if self.known.is_empty() {
            *self = Messages::default();
            return;
        }
        while let Some(entry) = self.sends.first_entry().filter(|entry| *entry.key() < unfinished) {
            entry.remove();
        }
        while let Some(&(number, address)) = self.order.front().filter(|(number, _)| *number < unfinished) {
            self.order.pop_front();
            self.receives.remove(address, number);
        }
    }
}
