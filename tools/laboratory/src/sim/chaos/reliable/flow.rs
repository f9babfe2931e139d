use std::collections::{BTreeMap, BTreeSet, VecDeque};

use arrayvec::ArrayVec;
use uroce::time::Instant;
use uroce::transport::{CompletionKind, MAX_SGE, Skipped, Status};
use uroce::wire::{Key, Psn};

use crate::sim::chaos::arena::Piece;
use crate::sim::pattern;

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
    SendInvalidate,
    Bind,
    LocalInvalidate,
}

impl Kind {
    pub fn is_atomic(self) -> bool {
        matches!(self, Kind::FetchAdd | Kind::CompareSwap)
    }

    /// Whether answers carry data.
    pub fn is_answered(self) -> bool {
        self == Kind::Read || self.is_atomic()
    }

    /// Whether it takes a receive request of the peer.
    pub fn consumes(self) -> bool {
        self.is_send() || self == Kind::WriteImmediate
    }

    /// Whether it sends no packet.
    pub fn is_local(self) -> bool {
        matches!(self, Kind::Bind | Kind::LocalInvalidate)
    }

    /// Whether it names the peer's memory.
    pub fn is_remote(self) -> bool {
        !self.is_send() && !self.is_local()
    }

    pub fn is_send(self) -> bool {
        matches!(self, Kind::Send | Kind::SendImmediate | Kind::SendInvalidate)
    }

    pub fn writes(self) -> bool {
        matches!(self, Kind::Write | Kind::WriteImmediate) || self.is_atomic()
    }

    pub fn completion(self) -> CompletionKind {
        match self {
            Kind::Send | Kind::SendImmediate | Kind::SendInvalidate => CompletionKind::Send,
            Kind::Bind => CompletionKind::BindWindow,
            Kind::LocalInvalidate => CompletionKind::LocalInvalidate,
            Kind::Write | Kind::WriteImmediate => CompletionKind::Write,
            Kind::Read => CompletionKind::Read,
            Kind::FetchAdd => CompletionKind::FetchAdd,
            Kind::CompareSwap => CompletionKind::CompareSwap,
        }
    }
}

/// The bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload {
    Pattern(u64),
    /// A flag, or the result of an atomic in memory.
    Word(u64),
}

impl Payload {
    pub fn byte(self, index: usize) -> u8 {
        match self {
            Payload::Pattern(name) => pattern::byte(name, index),
            Payload::Word(word) => word.to_ne_bytes()[index],
        }
    }

    pub fn fill(self, start: usize, out: &mut [u8]) {
        match self {
            Payload::Pattern(name) => pattern::fill(name, start, out),
            Payload::Word(word) => out.copy_from_slice(&word.to_ne_bytes()[start..][..out.len()]),
        }
    }
}

/// The deliberate fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// An unknown key, one of another domain or without the access, or a range beyond the region.
    Access,
    /// A misaligned atomic, or a SEND longer than the receive request.
    Invalid,
    /// An unknown local key.
    Local,
    /// A binding that is not allowed.
    Binding,
}

impl Fault {
    pub fn status(self) -> Status {
        match self {
            Fault::Access => Status::RemoteAccess,
            Fault::Invalid => Status::RemoteInvalidRequest,
            Fault::Local => Status::LocalProtection,
            Fault::Binding => Status::MwBind,
        }
    }
}

/// A send request that was posted.
#[derive(Clone, Debug)]
pub(super) struct Wr {
    pub index: u64,
    pub kind: Kind,
    /// The first of its PSNs, counted from the flow's first.
    pub first: u64,
    pub packets: u32,
    pub len: u32,
    pub signaled: bool,
    pub fence: bool,
    pub payload: Payload,
    /// The ranges of its bytes in the requester's arena; and the slot to give back.
    pub pieces: ArrayVec<Piece, MAX_SGE>,
    pub slot: Option<usize>,
    /// The offset in the responder's arena that it reads or writes.
    pub target: u32,
    /// The expected result of a READ or atomic.
    pub expected: Vec<u8>,
    pub immediate: Option<u32>,
    /// The number of the receive request that it takes, counted from the flow's first.
    pub receive: u64,
    /// The number of earlier requests that send packets.
    pub messages: u64,
    /// The window of the peer that it uses or invalidates, or the window of its own side that it changes.
    pub window: Option<usize>,
    /// The key that the peer must invalidate.
    pub invalidates: Option<Key>,
    pub fault: Option<Fault>,
    /// Whether it can change the responder's memory.
    pub places: bool,
    /// Whether the responder deregistered the region while it was in flight.
    pub frozen: bool,
    /// Whether it could change the responder's memory before the region was deregistered.
    pub placed_before: bool,
    /// Whether it is never carried out because an earlier one fails, although it has no fault itself.
    pub is_void: bool,
    /// The number of answers that reached the requester in order.
    pub answers: u32,
    /// Whether one of its packets has reached the responder more than once.
    pub asked_again: bool,
    /// Whether no receive request was posted for it when the first of its packets reached the responder.
    pub lacked: bool,
}

impl Wr {
    /// A request that sends no packet.
    pub fn nothing(index: u64, kind: Kind, first: u64, messages: u64) -> Wr {
        Wr {
            index,
            kind,
            first,
            packets: 0,
            len: 0,
            signaled: true,
            fence: false,
            payload: Payload::Pattern(0),
            pieces: ArrayVec::new(),
            slot: None,
            target: 0,
            expected: Vec::new(),
            immediate: None,
            receive: 0,
            messages,
            window: None,
            invalidates: None,
            fault: None,
            places: false,
            frozen: false,
            placed_before: false,
            is_void: false,
            answers: 0,
            asked_again: false,
            lacked: false,
        }
    }

    /// Whether answers are missing.
    pub fn awaits_answer(&self) -> bool {
        self.kind.is_answered() && self.answers < self.packets
    }

    /// The PSN after the last one of the request.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// The byte that it writes at `offset` of the responder's arena, and the PSN that carries it.
    pub fn written_byte(&self, offset: usize, mtu: usize) -> Option<(u8, u64)> {
        self.bytes_for(offset, mtu).filter(|_| self.places)
    }

    /// As [`written_byte`](Self::written_byte), now or before the region was deregistered.
    pub fn byte_ever_written(&self, offset: usize, mtu: usize) -> Option<(u8, u64)> {
        self.bytes_for(offset, mtu).filter(|_| self.places || self.placed_before)
    }

    /// As [`written_byte`](Self::written_byte), also where it can be placed although an earlier one is not carried out.
    pub fn byte_written_early(&self, offset: usize, mtu: usize) -> Option<(u8, u64)> {
        // The access through a window can change between two packets.
        self.bytes_for(offset, mtu).filter(|_| (self.places || self.is_void) && self.window.is_none())
    }

    fn bytes_for(&self, offset: usize, mtu: usize) -> Option<(u8, u64)> {
        if !self.kind.writes() {
            return None;
        }
        let index = offset.checked_sub(self.target as usize).filter(|index| *index < self.len as usize)?;
        Some((self.payload.byte(index), self.first + (index / mtu) as u64))
    }

    /// The offset in the message of `offset` of the requester's arena.
    pub fn message_offset(&self, offset: usize) -> Option<usize> {
        message_offset(&self.pieces, offset)
    }
}

/// The offset in a message of `offset` of the arena whose pieces hold it.
pub(super) fn message_offset(pieces: &[Piece], offset: usize) -> Option<usize> {
    let mut before = 0;
    for &(start, len) in pieces {
        let (start, len) = (start as usize, len as usize);
        if (start..start + len).contains(&offset) {
            return Some(before + offset - start);
        }
        before += len;
    }
    None
}

/// The model of one direction of a connection: the requests of one side, and which of them the other side must or can
/// have carried out.
pub(super) struct Flow {
    base: Psn,
    pub wrs: VecDeque<Wr>,
    /// The number of requests before the first of `wrs`.
    pub settled: u64,
    /// The numbers of PSNs, messages and receive requests that all posted requests take.
    pub posted_psn: u64,
    pub posted_messages: u64,
    pub posted_receives: u64,

    /// The number of requests that the requester's completions have accounted for.
    pub completed: u64,
    /// Whether an unsuccessful completion was seen.
    pub failed: bool,
    /// Whether the program is draining the send queue, so that no request is begun; and whether it is drained, so that
    /// no packet is sent.
    pub is_draining: bool,
    pub is_drained: bool,
    /// The PSN after the highest one sent.
    pub sent: u64,
    /// The requester knows that all requests before this PSN are done.
    pub known: u64,
    /// The peer has acknowledged PSNs before this one.
    pub acknowledged: u64,
    /// The requester must not send until then.
    pub rnr_until: Option<Instant>,
    /// When the current retries began: with the latest progress, or with the first packet after all had been done.
    pub patient_since: Instant,
    /// The packets retransmitted since then, and when a packet was sent last. Besides timeouts, these use up retries:
    /// sequence NAKs, and answers that show that earlier ones are missing, with the time of the latest.
    pub sent_again: u32,
    pub last_sent_at: Instant,
    pub naks: u32,
    pub gap_at: Option<Instant>,
    /// Answers that came before earlier ones, with a hash of each.
    ///
    /// They are taken from a peer with the extension, and kept from another one. `None` stands for two different
    /// answers, which a READ that is carried out again can give.
    early_answers: BTreeMap<u64, Option<u64>>,
    /// The number of RNR NAKs received since the last progress.
    pub rnr_naks: u32,
    pub most_rnr_naks: u32,

    /// The number of requests that the responder must have carried out, since it acknowledged them.
    pub executed: u64,
    /// All packets before this PSN have reached the responder.
    pub arrived: u64,
    /// Packets behind a gap that have arrived: from, to.
    early: BTreeMap<u64, u64>,
    /// The PSN that the responder expects next.
    ///
    /// It is exact for a responder that takes packets only in order. For one that keeps early packets it is an upper
    /// bound, since room can have been missing for some.
    pub expected: u64,
    /// The largest value of `expected` when an RNR NAK was sent; 0 without one.
    ///
    /// An RNR NAK can wait before it is sent, and its request can arrive again meanwhile.
    pub expected_before_rnr: u64,
    /// The PSN of the responder's latest NAK. The responder can be silent until that PSN arrives.
    pub refused: Option<u64>,
    /// Whether a NAK must be sent before the responder falls silent.
    pub nak_due: bool,
    /// The expected PSNs at the arrival of later ones.
    pub gaps: BTreeSet<u64>,
    /// The numbers of receive requests that were completed, and that failed.
    pub received: u64,
    pub flushed: u64,

    /// The contents of the responder's target when all posted requests are done.
    pub planned: Vec<u8>,
    /// Flags written: value, and the request that writes it.
    pub flags: VecDeque<(u64, u64)>,
    pub last_flag: u64,
    /// The first request that must fail.
    pub bad: Option<u64>,
    /// Whether no request that is posted now is carried out. (After a READ into a bad buffer some are, until the answer
    /// comes.)
    pub void: bool,
}

impl Flow {
    pub fn new(base: Psn, planned: Vec<u8>, last_flag: u64) -> Flow {
        Flow {
            base,
            wrs: VecDeque::new(),
            settled: 0,
            posted_psn: 0,
            posted_messages: 0,
            posted_receives: 0,
            completed: 0,
            failed: false,
            is_draining: false,
            is_drained: false,
            sent: 0,
            known: 0,
            acknowledged: 0,
            rnr_until: None,
            patient_since: Instant::ZERO,
            sent_again: 0,
            last_sent_at: Instant::ZERO,
            naks: 0,
            gap_at: None,
            early_answers: BTreeMap::new(),
            rnr_naks: 0,
            most_rnr_naks: 0,
            executed: 0,
            arrived: 0,
            early: BTreeMap::new(),
            expected: 0,
            expected_before_rnr: 0,
            refused: None,
            nak_due: false,
            gaps: BTreeSet::new(),
            received: 0,
            flushed: 0,
            planned,
            flags: VecDeque::new(),
            last_flag,
            bad: None,
            void: false,
        }
    }

    /// The PSN as a count from the flow's first: of all counts with the PSN on the wire the nearest to `near`. `None`
    /// before the first.
    pub fn count(&self, psn: Psn, near: u64) -> Option<u64> {
        let here = self.base.plus(near as u32);
        near.checked_add_signed(i64::from(psn.since(here)))
    }

    /// Whether the PSN is the one before the flow's first.
    pub fn is_before_first(&self, psn: Psn) -> bool {
        psn.plus(1) == self.base
    }

    pub fn posted(&self) -> u64 {
        self.settled + self.wrs.len() as u64
    }

    pub fn wr(&self, index: u64) -> Option<&Wr> {
        self.wrs.get(index.checked_sub(self.settled)? as usize)
    }

    pub fn wr_mut(&mut self, index: u64) -> Option<&mut Wr> {
        self.wrs.get_mut(index.checked_sub(self.settled)? as usize)
    }

    /// Whether some answers to a READ have not reached the requester.
    pub fn awaits_read(&self) -> bool {
        self.wrs.iter().any(|wr| wr.kind == Kind::Read && wr.awaits_answer())
    }

    /// The request that a PSN belongs to.
    pub fn find(&self, psn: u64) -> Option<&Wr> {
        let place = self.wrs.partition_point(|wr| wr.end() <= psn);
        self.wrs.get(place).filter(|wr| wr.first <= psn)
    }

    /// The number of earlier requests that send packets: the MSN; `None` when the request was settled too long ago.
    pub fn messages(&self, index: u64) -> Option<u64> {
        if index == self.posted() { Some(self.posted_messages) } else { self.wr(index).map(|wr| wr.messages) }
    }

    /// The number of requests whose PSNs are all before `psn`; `None` when that is too long ago.
    pub fn messages_before(&self, psn: u64) -> Option<u64> {
        let front = self.wrs.front().map_or(self.posted_psn, |wr| wr.first);
        (psn >= front).then(|| self.settled + self.wrs.partition_point(|wr| wr.end() <= psn) as u64)
    }

    /// The request that takes receive request `number`.
    pub fn consumer(&self, number: u64) -> Option<&Wr> {
        self.wrs.iter().find(|wr| wr.kind.consumes() && wr.receive == number)
    }

    /// Records that packets from `from` to `to` have reached the responder.
    pub fn arrive(&mut self, from: u64, to: u64) {
        if from > self.arrived {
            let end = self.early.entry(from).or_insert(to);
            *end = to.max(*end);
            return;
        }
        self.arrived = self.arrived.max(to);
        while let Some(entry) = self.early.first_entry() {
            if *entry.key() > self.arrived {
                break;
            }
            self.arrived = self.arrived.max(*entry.get());
            entry.remove();
        }
    }

    /// Records that the answer with this PSN has reached a requester that takes answers in any order.
    pub fn answer(&mut self, psn: u64) {
        self.early_answers.insert(psn, None);
        for wr in self.wrs.iter_mut().filter(|wr| wr.awaits_answer()) {
            while wr.answers < wr.packets && self.early_answers.remove(&(wr.first + u64::from(wr.answers))).is_some() {
                wr.answers += 1;
            }
        }
    }

    /// Records that the answer with this PSN has reached a requester that takes answers in order.
    ///
    /// With `keeps` it keeps one that comes early, and takes it when the next one comes. `said` is a hash of the
    /// answer. Returns `false` when the answer acknowledges only earlier ones.
    pub fn answer_in_order(&mut self, psn: u64, said: u64, keeps: bool) -> bool {
        let waiting = self.wrs.iter().filter(|wr| wr.awaits_answer());
        let mut missing = waiting.flat_map(|wr| wr.first + u64::from(wr.answers)..wr.end());
        let (oldest, next) = (missing.next(), missing.next());
        let is_taken = match oldest {
            Some(oldest) if psn == oldest => true,
            Some(oldest) if Some(psn) == next => {
                let is_kept = self.early_answers.remove(&oldest).flatten().is_some();
                if is_kept {
                    self.take_answer(oldest);
                }
                is_kept
            }
            _ => false,
        };
        if is_taken {
            self.take_answer(psn);
        } else if keeps && oldest.is_some_and(|oldest| psn > oldest) {
            let kept = self.early_answers.entry(psn).or_insert(Some(said));
            *kept = kept.filter(|kept| *kept == said);
        }
        is_taken
    }

    /// Records that the requester knows its peer now. It drops early answers that it kept, and acknowledgements behind
    /// missing answers.
    pub fn get_acquainted(&mut self) {
        self.early_answers.clear();
        self.acknowledged = self.known;
    }

    fn take_answer(&mut self, psn: u64) {
        self.early_answers.remove(&psn);
        if let Some(wr) = self.wrs.iter_mut().find(|wr| wr.awaits_answer()) {
            wr.answers += 1;
        }
    }

    /// Whether one of a request's packets has reached the responder.
    pub fn has_begun(&self, wr: &Wr) -> bool {
        wr.first < self.arrived || self.early.range(wr.first..wr.end()).next().is_some()
    }

    /// Whether all posted requests are done, and both sides know it.
    pub fn is_idle(&self) -> bool {
        let is_received = self.received + self.flushed == self.posted_receives;
        let is_local_done = |wr: &Wr| !wr.kind.is_local() || wr.index < self.completed;
        is_received
            && self.wrs.iter().all(is_local_done)
            && self.early.is_empty()
            && self.known == self.posted_psn
            && !self.failed
            && self.bad.is_none()
    }

    /// Advances the model as if so many packets had passed, in order, and all of them were done.
    pub fn skip(&mut self, skipped: Skipped) {
        let packets = u64::from(skipped.packets);
        for count in [&mut self.posted_psn, &mut self.sent, &mut self.known, &mut self.acknowledged] {
            *count += packets;
        }
        (self.arrived, self.expected) = (self.arrived + packets, self.arrived + packets);
        (self.refused, self.nak_due) = (None, false);
        self.early_answers.clear();
        self.posted_messages += u64::from(skipped.messages);
        self.posted_receives += u64::from(skipped.receives);
        self.received += u64::from(skipped.receives);
    }

    /// Starts the retries anew.
    pub fn be_patient(&mut self, now: Instant) {
        self.patient_since = now;
        (self.sent_again, self.naks, self.gap_at) = (0, 0, None);
    }

    pub fn has_arrived(&self, psn: u64) -> bool {
        psn < self.arrived || self.early.range(..=psn).next_back().is_some_and(|(_, to)| psn < *to)
    }

    /// Forgets requests that cannot be checked any more.
    pub fn settle(&mut self) {
        let done = self.completed.min(self.executed);
        while let Some(wr) = self.wrs.front()
            && wr.index < done
            && (!wr.kind.consumes() || wr.receive < self.received)
        {
            self.wrs.pop_front();
            self.settled += 1;
        }
    }
}
