use std::collections::VecDeque;

use crate::memory::{Access, MemoryTable};
use crate::wire::{Aeth, AtomicAckEth, Bth, Extension, Headers, Key, Msn, NakCode, Opcode, Position, Psn, Syndrome};

use crate::transport::answer_flight::AnswerFlight;
use crate::transport::connection::{Connection, WINDOW_PACKETS};
use crate::transport::context::{Context, Fatal};
use crate::transport::event::Event;
use crate::transport::inbound::Refusal;
use crate::transport::outgoing::{Outgoing, no_payload};
use crate::transport::transmit::Transmit;

/// Upper bound on the READs that a peer can request again at once: the gaps of a window that lost 5 %.
const AGAIN_MAX: usize = 1 << 14;

/// What is owed to the peer, except selective acknowledges: acknowledges, NAKs, READ responses and results of atomics.
#[derive(Debug, Default)]
pub struct Owed {
    /// Answers, in order.
    answers: VecDeque<OwedReply>,
    /// READ responses that a peer with selective repeat requests again: they go first.
    again: VecDeque<ReadAnswer>,
    /// READs and atomics that the peer can have outstanding.
    outstanding_max: usize,
    /// The READ responses of which the peer has not reported yet; `None` before the first.
    pub flight: Option<Box<AnswerFlight>>,
}

#[derive(Debug)]
pub enum OwedReply {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn,
    },
    Read(ReadAnswer),
    Atomic {
        psn: Psn,
        msn: Msn,
        original: u64,
        is_repeat: bool,
    },
    /// A READ response without data: to a FLUSH or ATOMIC WRITE.
    Empty {
        psn: Psn,
        msn: Msn,
        is_outstanding: bool,
    },
}

/// The READ responses to one request, or the rest of them.
#[derive(Clone, Copy, Debug)]
pub struct ReadAnswer {
    /// The first PSN of the READ that it answers, all or part of it.
    pub request: Psn,
    pub msn: Msn,
    pub key: Key,
    /// The PSN of the next packet.
    pub psn: Psn,
    /// The address of the next byte.
    pub address: u64,
    /// The bytes that are left.
    pub rest: u32,
    /// The index of the next packet among `count` packets.
    pub index: u32,
    pub count: u32,
    /// Whether these responses were sent before.
    pub is_repeat: bool,
}

impl Owed {
    pub fn set_outstanding_max(&mut self, max: usize) {
        self.outstanding_max = max;
    }

    /// READs and atomics that the peer can have outstanding.
    pub fn outstanding_max(&self) -> usize {
        self.outstanding_max
    }

    pub fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.again.is_empty()
    }

    /// The number of acknowledges, not NAKs, that are owed, 0 or 1. `None` when more is owed, or another answer.
    pub fn only_acknowledges(&self) -> Option<usize> {
        let is_plain =
            |answer: &OwedReply| matches!(answer, OwedReply::Acknowledge { syndrome: Syndrome::Ack { .. }, .. });
        let is_all = self.again.is_empty() && self.answers.len() <= 1 && self.answers.iter().all(is_plain);
        is_all.then_some(self.answers.len())
    }

    /// Whether the next READ response is one that the peer has requested again, with selective repeat.
    pub fn is_next_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether the next answer carries none of our memory: an acknowledge, a NAK or the result of an atomic.
    pub fn is_next_without_payload(&self) -> bool {
        self.answers.front().is_some_and(|answer| !matches!(answer, OwedReply::Read(_)))
    }

    /// The PSN of the first READ response or result that is owed; `expected` is the peer's next PSN.
    pub fn first_result(&self, expected: Psn) -> Option<Psn> {
        let owed = self.answers.iter().filter_map(|answer| match answer {
            OwedReply::Read(ReadAnswer { psn, .. }) | OwedReply::Atomic { psn, .. } | OwedReply::Empty { psn, .. } => {
                Some(*psn)
            }
            OwedReply::Acknowledge { .. } => None,
        });
        owed.min_by_key(|psn| psn.since(expected))
    }

    /// Discards the RNR NAKs that are owed.
    pub fn forget_rnr_naks(&mut self) {
        let is_rnr_nak =
            |answer: &OwedReply| matches!(answer, OwedReply::Acknowledge { syndrome: Syndrome::RnrNak(_), .. });
        self.answers.retain(|answer| !is_rnr_nak(answer));
    }

    /// Discards the READ responses that are owed: no memory is read from now on. Acknowledges, NAKs and the results of
    /// atomics stay owed. A requester that gets one of them instead of a READ response takes that for lost (IBTA
    /// 9.7.5.1.1).
    pub fn drop_reads(&mut self) {
        self.again = VecDeque::new();
        self.answers.retain(|answer| !matches!(answer, OwedReply::Read(_)));
    }

    /// Checks that the peer has fewer READs and atomics outstanding than it can have: those that are not fully answered
    /// count (IBTA 9.7.4.1.4). Repeated answers do not: the first answer can have arrived late, and let the peer send
    /// more.
    pub fn check_outstanding(&self) -> Result<(), Refusal> {
        let is_outstanding = |answer: &&OwedReply| match answer {
            OwedReply::Read(ReadAnswer { is_repeat, .. }) | OwedReply::Atomic { is_repeat, .. } => {
                !is_repeat || mutated!("duplicates-count-as-outstanding")
            }
            OwedReply::Empty { is_outstanding, .. } => *is_outstanding,
            OwedReply::Acknowledge { .. } => false,
        };
        let outstanding = self.answers.iter().filter(is_outstanding).count();
        if outstanding < self.outstanding_max { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// Whether there is room for a FLUSH: those of rxe do not count as outstanding.
    pub fn has_room_for_flush(&self) -> bool {
        self.answers.len() < self.answers_max() + WINDOW_PACKETS as usize
    }

    /// Whether there is room for an answer that the peer can do without, since it will ask again; no room is counted as
    /// an overflow. All that the peer can have outstanding fits twice, with an acknowledge between any two.
    pub fn may_answer(&self, cx: &mut Context<'_>) -> bool {
        let room = self.answers.len() < self.answers_max();
        cx.counters.answer_overflow += u64::from(!room);
        room
    }

    fn answers_max(&self) -> usize {
        4 * self.outstanding_max + 2
    }

    /// Queues an answer. The queue grows in small steps: it is bounded, and an idle queue pair keeps its capacity.
    pub fn push(&mut self, reply: OwedReply) {
        const STEP: usize = 8;
        if self.answers.len() == self.answers.capacity() {
            self.answers.reserve_exact(STEP);
        }
        self.answers.push_back(reply);
    }

    /// Queues an answer that the peer can do without, if there is room for it.
    pub fn push_if_room(&mut self, reply: OwedReply, cx: &mut Context<'_>) {
        if self.may_answer(cx) {
            self.push(reply);
        }
    }

    /// Owes an acknowledge up to `psn`, which precedes `expected`. If the last answer owed is an acknowledge, it is
    /// extended instead.
    pub fn acknowledge(&mut self, psn: Psn, msn: Msn, expected: Psn, cx: &mut Context<'_>) {
        if let Some(OwedReply::Acknowledge { psn: owed, syndrome: Syndrome::Ack { .. }, msn: known }) =
            self.answers.back_mut()
        {
            *known = msn;
            if expected.after(psn) < expected.after(*owed) {
                *owed = psn;
            }
        } else {
            self.push_if_room(OwedReply::Acknowledge { psn, syndrome: Syndrome::ACK, msn }, cx);
        }
    }

    /// Queues READ responses again for a peer with selective repeat: only those requested, and ahead of other answers.
    /// Those that are queued for their first transmission are not sent twice.
    pub fn send_again(&mut self, mut answer: ReadAnswer, connection: &Connection, cx: &mut Context<'_>) {
        let first = self.answers.iter().find_map(|queued| match queued {
            OwedReply::Read(read) if read.request == answer.request => Some(read.psn),
            _ => None,
        });
        if let Some(first) = first {
            let Ok(packets @ 1..) = u32::try_from(first.since(answer.psn)) else { return };
            answer.rest = answer.rest.min(packets * connection.path_mtu.bytes() as u32);
            answer.count = answer.count.min(answer.index + packets);
        }
        let packets = connection.path_mtu.packets(answer.rest as usize);
        if let Some(flight) = &mut self.flight {
            flight.asked_again(&(answer.psn..answer.psn.plus(packets)));
        }
        match self.again.len() < AGAIN_MAX {
            true => self.again.push_back(answer),
            false => cx.counters.answer_overflow += 1,
        }
    }

    /// Queues READ responses again, in order. A READ that is being answered starts over, unless only some in its middle
    /// (`is_part`) are missing.
    pub fn start_over(&mut self, answer: ReadAnswer, is_part: bool, cx: &mut Context<'_>) {
        for queued in &mut self.answers {
            if let OwedReply::Read(read) = queued
                && read.request == answer.request
                && !is_part
            {
                *read = ReadAnswer { is_repeat: read.is_repeat, ..answer };
                return;
            }
        }
        self.push_if_room(OwedReply::Read(answer), cx);
    }

    /// Writes the next answer, if one is owed.
    pub fn poll_transmit(
        &mut self,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        while !self.again.is_empty() || matches!(self.answers.front(), Some(OwedReply::Read(_))) {
            let written = self.write_read(out, connection, cx)?;
            if written.is_some() {
                return Ok(written);
            }
        }
        Ok(self.poll_without_payload(out, connection, cx))
    }

    /// Writes the next answer that carries none of our memory, if one is owed. It also overtakes READ responses, which
    /// a queue pair that goes away no longer sends.
    pub fn poll_without_payload(
        &mut self,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Option<Transmit> {
        let owed = match self.answers.front()? {
            OwedReply::Read(_) => {
                let index = self.answers.iter().position(|answer| !matches!(answer, OwedReply::Read(_)))?;
                self.answers.remove(index)
            }
            _ => self.answers.pop_front(),
        };
        let (opcode, psn, extension) = match owed? {
            OwedReply::Read(_) => return None,
            OwedReply::Acknowledge { psn, syndrome, msn } => {
                (Opcode::RC_ACKNOWLEDGE, psn, Extension::Aeth(Aeth::new(syndrome, msn)))
            }
            OwedReply::Atomic { psn, msn, original, .. } => {
                let aeth = Aeth::new(Syndrome::ACK, msn);
                let extension = Extension::AethAtomicAck(aeth, AtomicAckEth::new(original));
                (Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, extension)
            }
            OwedReply::Empty { psn, msn, .. } => {
                (Opcode::RC_READ_RESPONSE_ONLY, psn, Extension::Aeth(Aeth::new(Syndrome::ACK, msn)))
            }
        };
        let bth = Bth::new(opcode, connection.remote, psn).with_offer(connection.extension.is_on_or_offered());
        let packet = Outgoing::headers(Headers { bth, extension });
        let Ok(written) = connection.write(cx.quickest_path(), out, packet, cx, no_payload);
        written
    }

    /// Writes the next READ response.
    #[inline(never)]
    fn write_read(
        &mut self,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        let is_again = !self.again.is_empty();
        let read = match (self.again.front_mut(), self.answers.front_mut()) {
            (Some(read), _) | (None, Some(OwedReply::Read(read))) => read,
            _ => return Ok(None),
        };
        let len = read.rest.min(connection.path_mtu.bytes() as u32);
        let position = Position::of(read.index, read.count);
        let opcode = match position {
            Position::First => Opcode::RC_READ_RESPONSE_FIRST,
            Position::Middle => Opcode::RC_READ_RESPONSE_MIDDLE,
            Position::Last => Opcode::RC_READ_RESPONSE_LAST,
            Position::Only => Opcode::RC_READ_RESPONSE_ONLY,
        };
        let extension = match position {
            Position::Middle => Extension::None,
            _ => Extension::Aeth(Aeth::new(Syndrome::ACK, read.msn)),
        };
        let ReadAnswer { msn, key, psn, address, .. } = *read;
        let asks_for_reports = connection.extension.wants_reports();
        let asks = asks_for_reports && len > 0 && (AnswerFlight::asks(psn) || len == read.rest);
        let bth = Bth::new(opcode, connection.remote, psn)
            .with_offer(connection.extension.is_on_or_offered())
            .with_ack_request(asks)
            .with_copy(self.flight.as_ref().filter(|_| asks_for_reports).map_or(0, |flight| flight.copy()));
        let path = cx.choose_path();
        let fill = |memory: &MemoryTable, out: &mut [u8]| {
            let wanted = Access::REMOTE_READ;
            memory.remote(connection.scope(), key, address, len.into(), wanted).and_then(|span| span.read(out))
        };
        let packet = Outgoing { payload_bytes: len as usize, ..Outgoing::headers(Headers { bth, extension }) };
        let written = connection.write(path, out, packet, cx, fill);
        let (written, is_done) = match written {
            Ok(written) => {
                read.psn = psn.plus(1);
                read.address = address.wrapping_add(len.into());
                read.rest -= len;
                read.index += 1;
                (written, read.rest == 0)
            }
            Err(_) if read.is_repeat && !mutated!("late-read-of-a-gone-key-is-fatal") => {
                // These responses were sent before. The request can be a late one: the READ completed at the peer,
                // which then had us invalidate the key. A peer that still waits asks again until its retries end.
                cx.counters.refused_duplicate += 1;
                (None, true)
            }
            Err(_) => {
                // The region was deregistered while it was being read.
                let syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
                self.answers[0] = OwedReply::Acknowledge { psn, syndrome, msn };
                cx.push_event(Event::AccessError(connection.qpn));
                return Err(Fatal);
            }
        };
        if let Some(transmit) = written.filter(|_| connection.extension.measures_answers() && len > 0) {
            self.flight.get_or_insert_default().sent(psn, transmit.len, path, cx.now);
        }
        if is_done && is_again {
            self.again.pop_front();
        } else if is_done {
            self.answers.pop_front();
        }
        Ok(written)
    }
}
