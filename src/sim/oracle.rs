use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use rustc_hash::FxHashMap;

use crate::memory::Pd;
use crate::time::Instant;
use crate::transport::{Completion, CompletionKind, CompletionQueue, Endpoint, MAX_SGE, State, Status};
use crate::wire::{Key, NakCode, Opcode, Psn, Qpn, Syndrome};

use super::arena::{Arena, Piece};
use super::flow::{Fault, Flow, Kind, Wr, message_offset};
use super::frame_pool::Condition;
use super::network::{NodeId, Observer, bth_offset};
use super::scenario::Layout;

/// PSNs in flight at the most, towards any peer (see DESIGN: what peers without our extension can bear).
const WINDOW_PACKETS: u64 = 128;

/// A receive request that was posted.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    pub wr_id: u64,
    pub slot: usize,
    pub pieces: ArrayVec<Piece, MAX_SGE>,
}

/// One side of a connection.
pub(super) struct Side {
    pub node: NodeId,
    pub qpn: Qpn,
    pub pd: Pd,
    pub arena: Arena,
    pub local_key: Key,
    pub remote_key: Key,
    /// Receive requests posted and not completed, in order.
    pub receives: VecDeque<Receive>,
    /// Receive requests posted so far.
    pub posted_receives: u64,
    /// The program put the queue pair into the error state.
    pub killed: bool,
    /// The program destroyed the queue pair.
    pub destroyed: bool,
    /// The program took the target region away.
    pub deregistered: bool,
    /// Slots that completions gave back: of sources, sinks and receive buffers.
    pub free_sources: Vec<usize>,
    pub free_sinks: Vec<usize>,
    pub free_receives: Vec<usize>,
}

/// A connection, as the oracle sees it.
pub(super) struct Connection {
    pub sides: [Side; 2],
    /// `flows[s]` are the requests of `sides[s]`.
    pub flows: [Flow; 2],
    pub layout: Layout,
    pub mtu: usize,
    /// How often RNR NAKs are borne, 7 for ever.
    pub rnr_retry: u8,
    /// Receive requests are always there before they are needed.
    pub receives_ready: bool,
    /// Names of the next patterns.
    next_name: u64,
}

impl Connection {
    pub fn new(
        sides: [Side; 2],
        flows: [Flow; 2],
        layout: Layout,
        mtu: usize,
        rnr_retry: u8,
        receives_ready: bool,
        name: u64,
    ) -> Connection {
        Connection { sides, flows, layout, mtu, rnr_retry, receives_ready, next_name: name }
    }

    /// A name for bytes that are nowhere else.
    pub fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }
}

/// How strict the oracle may be, by what the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weather {
    /// Nothing is ever lost, late or twice.
    Fair,
    /// Faults so rare that patience of seven retries never ends.
    Mild,
    /// Anything.
    Harsh,
}

/// Something that the stack did and must not do.
pub(super) type Violation = String;

/// The models of all connections, and what was found wrong.
pub(super) struct Oracle {
    pub connections: Vec<Connection>,
    /// The receiving side by node and QPN.
    pub by_qpn: FxHashMap<(usize, u32), (usize, usize)>,
    pub weather: Weather,
    /// The completion queues of each node, and whether they are emptied as soon as something is in them.
    pub queues: Vec<Vec<Arc<CompletionQueue>>>,
    pub polls_at_once: bool,
    pub violations: Vec<Violation>,
    /// Connections on which a completion was unsuccessful since the program last asked.
    pub failed: Vec<usize>,
    /// Sides with completions since the program last asked.
    pub moved: Vec<(usize, usize)>,
}

/// What the fixed part of a packet says.
struct Header {
    opcode: Opcode,
    qpn: Qpn,
    psn: Psn,
    acknowledge_requested: bool,
    /// The first word behind the BTH: the AETH, in answers that have one.
    word: [u8; 4],
}

fn header(frame: &[u8]) -> Header {
    let bth = &frame[bth_offset(frame)..];
    let three = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
    Header {
        opcode: Opcode(bth[0]),
        qpn: Qpn::new(three(5)),
        psn: Psn::new(three(9)),
        acknowledge_requested: bth[8] & 0x80 != 0,
        word: [bth[12], bth[13], bth[14], bth[15]],
    }
}

impl Oracle {
    pub fn new(weather: Weather, polls_at_once: bool) -> Oracle {
        Oracle {
            connections: Vec::new(),
            by_qpn: FxHashMap::default(),
            weather,
            queues: Vec::new(),
            polls_at_once,
            violations: Vec::new(),
            failed: Vec::new(),
            moved: Vec::new(),
        }
    }

    /// Violations beyond this many say nothing new.
    const MAX_VIOLATIONS: usize = 5;

    pub fn violation(&mut self, now: Instant, text: String) {
        if self.violations.len() < Self::MAX_VIOLATIONS {
            self.violations.push(format!("{} ns: {text}", now.as_ns()));
        }
    }

    fn violation_at(&mut self, now: Instant, c: usize, s: usize, text: impl AsRef<str>) {
        let side = &self.connections[c].sides[s];
        let text = format!("connection {c} side {s} (node {}, {}): {}", side.node.0, side.qpn, text.as_ref());
        self.violation(now, text);
    }

    /// The requester of `c`'s flow `s` sends a packet.
    fn request_sent(&mut self, now: Instant, c: usize, s: usize, header: &Header) {
        let flow = &self.connections[c].flows[s];
        let found = flow.count(header.psn, flow.sent).filter(|psn| *psn < flow.posted_psn);
        let Some(psn) = found else {
            return self.violation_at(now, c, s, format!("sent PSN {}, which no request has", header.psn));
        };
        if psn < flow.known {
            let text = format!("sent packet {psn} again although it is known to be done up to {}", flow.known);
            return self.violation_at(now, c, s, text);
        }
        if psn >= flow.acknowledged + WINDOW_PACKETS {
            let text = format!("sent packet {psn} while {} is not acknowledged", flow.acknowledged);
            return self.violation_at(now, c, s, text);
        }
        if let Some(until) = flow.rnr_until
            && now < until
        {
            let text = format!("sent packet {psn} before the time of the RNR NAK, {} ns, was over", until.as_ns());
            return self.violation_at(now, c, s, text);
        }
        let Some(wr) = flow.find(psn) else { return };
        let (index, first, end) = (wr.index, wr.first, wr.end());
        let is_read = header.opcode == Opcode::RC_READ_REQUEST;
        if is_read != (wr.kind == Kind::Read) {
            let text = format!("sent opcode {:#04x} for request {index}, a {:?}", header.opcode.0, wr.kind);
            return self.violation_at(now, c, s, text);
        }
        let last = is_read || psn + 1 == end;
        if last && !header.acknowledge_requested {
            return self.violation_at(now, c, s, format!("the last packet of request {index} asks for no acknowledge"));
        }
        let fenced = wr.fence && psn == first;
        if fenced {
            let waiting =
                flow.wrs.iter().find(|wr| wr.index < index && wr.kind.is_answered() && wr.answers < wr.packets);
            if let Some(waiting) = waiting {
                let text = format!("sent the fenced request {index} before the answers to {}", waiting.index);
                return self.violation_at(now, c, s, text);
            }
        }
        let flow = &mut self.connections[c].flows[s];
        flow.sent = flow.sent.max(if is_read { end } else { psn + 1 });
    }

    /// The responder of `c`'s flow `s` sends an answer.
    fn answer_sent(&mut self, now: Instant, c: usize, s: usize, header: &Header) {
        let r = 1 - s;
        let flow = &self.connections[c].flows[s];
        let Some(psn) = flow.count(header.psn, flow.arrived) else {
            return self.violation_at(now, c, r, format!("answers PSN {} before the first", header.psn));
        };
        if psn > flow.arrived || (psn == flow.arrived && is_positive(header)) {
            let text = format!("answers packet {psn} although only those before {} have arrived", flow.arrived);
            return self.violation_at(now, c, r, text);
        }
        let msn = u64::from(u32::from_be_bytes([0, header.word[1], header.word[2], header.word[3]]));
        let has_aeth = header.opcode != Opcode::RC_READ_RESPONSE_MIDDLE;
        let (executed, msns) = match header.opcode {
            Opcode::RC_ACKNOWLEDGE => match Syndrome::from_byte(header.word[0]) {
                Syndrome::Ack { .. } => {
                    let done = flow.messages_before(psn + 1);
                    // An acknowledge may stop short of a READ or atomic that is done.
                    (done, done.map(|done| (done, flow.messages_before(flow.arrived).unwrap_or(done))))
                }
                syndrome => {
                    let done = flow.messages_before(psn);
                    self.nak_sent(now, c, s, psn, syndrome);
                    (done, done.map(|done| (done, done + 1)))
                }
            },
            _ => {
                let Some(wr) = flow.find(psn) else { return };
                if !wr.kind.is_answered() || wr.kind.is_atomic() != (header.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE) {
                    let text = format!("answers {:?} {} with opcode {:#04x}", wr.kind, wr.index, header.opcode.0);
                    return self.violation_at(now, c, r, text);
                }
                // Answers given again have the MSN of now.
                let now = if wr.asked_again { flow.messages_before(flow.arrived) } else { None };
                (Some(wr.index + 1), Some((wr.index + 1, now.unwrap_or(wr.index + 1))))
            }
        };
        if let Some((low, high)) = msns.filter(|_| has_aeth)
            && !(low..=high).contains(&msn)
        {
            let text = format!("MSN {msn} in an answer to packet {psn}, where {low} requests are done");
            self.violation_at(now, c, r, text);
        }
        if let Some(executed) = executed {
            self.execute(now, c, s, executed, "answered");
        }
    }

    fn nak_sent(&mut self, now: Instant, c: usize, s: usize, psn: u64, syndrome: Syndrome) {
        let connection = &mut self.connections[c];
        let flow = &mut connection.flows[s];
        flow.nak_due = false;
        let wr = flow.find(psn).cloned();
        let text = match (syndrome, wr) {
            (Syndrome::RnrNak(_), Some(wr)) => {
                if !wr.kind.consumes() {
                    format!("RNR NAK for {:?} {}, which needs no receive request", wr.kind, wr.index)
                } else if connection.receives_ready {
                    format!("RNR NAK for request {}, although a receive request is there", wr.index)
                } else {
                    return;
                }
            }
            (Syndrome::Nak(NakCode::PsnSequenceError), _) => return,
            // A READ that is answered once more, though done, after its region went.
            (Syndrome::Nak(NakCode::RemoteAccessError), None) if connection.sides[1 - s].deregistered => return,
            (Syndrome::Nak(code), Some(wr)) => {
                let fault = match code {
                    NakCode::RemoteAccessError => Some(Fault::Access),
                    NakCode::InvalidRequest => Some(Fault::Invalid),
                    _ => None,
                };
                if fault.is_some() && (wr.fault == fault || (wr.frozen && fault == Some(Fault::Access))) {
                    return;
                }
                format!("NAK {code:?} for {:?} {}, whose fault is {:?}", wr.kind, wr.index, wr.fault)
            }
            (syndrome, wr) => format!("{syndrome:?} for packet {psn} of {wr:?}"),
        };
        self.violation_at(now, c, 1 - s, text);
    }

    /// The responder has carried out all requests of flow `s` before `to`: it said so, or showed it. Their bytes must be
    /// there.
    fn execute(&mut self, now: Instant, c: usize, s: usize, to: u64, how: &str) {
        let from = self.connections[c].flows[s].executed;
        if to <= from {
            return;
        }
        let connection = &mut self.connections[c];
        let flow = &mut connection.flows[s];
        flow.executed = to;
        let responder = &mut connection.sides[1 - s];
        let mut ranges = ArrayVec::<(u32, u32, u64), 32>::new();
        let mut problem = None;
        for index in from..to {
            let Some(wr) = flow.wr(index) else {
                problem = Some(format!("{how} request {index}, which was never posted"));
                break;
            };
            if wr.end() > flow.arrived {
                problem = Some(format!("{how} request {index} before all of it has arrived"));
            }
            // A READ into a bad local buffer is carried out, and fails when the answer comes.
            if wr.fault.is_some_and(|fault| fault != Fault::Local || wr.kind != Kind::Read) {
                problem = Some(format!("{how} request {index}, which must fail: {:?}", wr.fault));
            }
            if wr.kind.consumes() && wr.receive >= flow.received && self.polls_at_once {
                problem = Some(format!("{how} request {index} before its receive request is completed"));
            }
            if wr.kind.writes() && wr.places && wr.len > 0 {
                wr.payload.fill(0, responder.arena.shadow(wr.target as usize, wr.len as usize));
                if ranges.try_push((wr.target, wr.len, index)).is_err() {
                    // So many at once: the whole target.
                    ranges.clear();
                    let (start, len) = connection.layout.target();
                    ranges.push((start as u32, len as u32, index));
                }
            }
        }
        while flow.flags.front().is_some_and(|(_, index)| *index + 1 < to) {
            flow.flags.pop_front();
        }
        if let Some(text) = problem {
            self.violation_at(now, c, 1 - s, text);
        }
        for (start, len, index) in ranges {
            self.verify(now, c, 1 - s, start as usize, len as usize, &format!("{how} request {index}"));
        }
    }

    /// Compares a range of a side's memory with the model. Bytes may differ where requests in flight may write.
    pub fn verify(&mut self, now: Instant, c: usize, side: usize, start: usize, len: usize, what: &str) {
        const LIMIT: usize = usize::MAX;
        let differences = self.connections[c].sides[side].arena.differences(start, len, LIMIT);
        for offset in differences {
            let connection = &self.connections[c];
            let arena = &connection.sides[side].arena;
            let actual = arena.actual(offset);
            if explains(connection, side, offset, actual) {
                continue;
            }
            let expected = arena.expected(offset, 1)[0];
            let place = connection.layout.describe(offset);
            let text = format!("{what}: byte {offset} ({place}) is {actual:#04x} and must be {expected:#04x}");
            self.violation_at(now, c, side, text);
            return;
        }
    }

    /// Compares all of a side's memory with the model.
    pub fn verify_side(&mut self, now: Instant, c: usize, side: usize, what: &str) {
        let len = self.connections[c].sides[side].arena.len();
        self.verify(now, c, side, 0, len, what);
    }

    /// Looks at the flag of flow `s` at the responder, as a program that polls does.
    fn poll_flag(&mut self, now: Instant, c: usize, s: usize) {
        let connection = &mut self.connections[c];
        let (_, offset) = connection.layout.words();
        let value = connection.sides[1 - s].arena.actual_u64(offset);
        let flow = &mut connection.flows[s];
        if value == flow.last_flag {
            return;
        }
        let Some(&(_, index)) = flow.flags.iter().find(|(flag, _)| *flag == value) else {
            return self.violation_at(now, c, 1 - s, format!("the flag is {value:#x}, which is none that is due"));
        };
        flow.last_flag = value;
        self.execute(now, c, s, index + 1, "raised the flag of");
    }

    /// The side's queue pair may be in the error state through no fault of the stack.
    fn may_be_dead(&self, c: usize, side: usize) -> bool {
        let connection = &self.connections[c];
        let troubled = |flow: &Flow| flow.bad.is_some() || flow.failed;
        connection.sides[side].killed
            || self.weather == Weather::Harsh
            || connection.rnr_retry != 7
            || connection.flows.iter().any(troubled)
            || connection.sides.iter().any(|side| side.deregistered)
    }

    /// Takes all completions of a node.
    pub fn poll(&mut self, now: Instant, node: NodeId) {
        for queue in 0..self.queues[node.0].len() {
            while let Some(completion) = self.queues[node.0][queue].poll() {
                self.completed(now, node, completion);
            }
            if self.queues[node.0][queue].has_overflowed() {
                self.violation(now, format!("completion queue {queue} of node {} has overflowed", node.0));
            }
        }
    }

    /// Takes a completion.
    pub fn completed(&mut self, now: Instant, node: NodeId, completion: Completion) {
        let Some(&(c, side)) = self.by_qpn.get(&(node.0, completion.qpn.value())) else {
            return self.violation(now, format!("node {}: {completion:?} of no queue pair", node.0));
        };
        if completion.status != Status::Success {
            self.failed.push(c);
        }
        self.moved.push((c, side));
        let result = match completion.kind {
            CompletionKind::Receive | CompletionKind::ReceiveWriteWithImmediate => {
                self.receive_completed(now, c, side, &completion)
            }
            _ => self.send_completed(now, c, side, &completion),
        };
        if let Err(text) = result {
            self.violation_at(now, c, side, format!("{completion:?}: {text}"));
        }
    }

    fn send_completed(&mut self, now: Instant, c: usize, s: usize, completion: &Completion) -> Result<(), String> {
        let flow = &self.connections[c].flows[s];
        let (completed, posted) = (flow.completed, flow.posted());
        let index = completion.wr_id;
        if index < completed {
            return Err("completed before".into());
        }
        if index >= posted {
            return Err("was never posted".into());
        }
        if let Some(missing) = (completed..index).find(|index| flow.wr(*index).is_none_or(|wr| wr.signaled)) {
            return Err(format!("{missing} is not completed"));
        }
        if flow.failed && (completion.status != Status::WrFlush || index != completed) {
            return Err(format!("after a failure {completed} must be flushed next"));
        }
        let Some(wr) = flow.wr(index) else { return Err("was settled before".into()) };
        if wr.kind.completion() != completion.kind {
            return Err(format!("is a {:?}", wr.kind));
        }
        let success = completion.status == Status::Success;
        if success {
            if !wr.signaled {
                return Err("is not signaled".into());
            }
            if flow.bad.is_some_and(|bad| bad <= index) {
                return Err(format!("{:?} must fail", flow.bad));
            }
            if wr.kind.is_answered() && completion.byte_len != wr.len {
                return Err(format!("has {} bytes", wr.len));
            }
        } else {
            self.check_failure(c, s, index, completion.status)?;
        }
        // Everything before it was successful, reported or not.
        let done = if success { index + 1 } else { index };
        if !flow.failed {
            self.execute(now, c, s, done, "completed");
        }
        for index in completed..done {
            self.requester_done(now, c, s, index, true)?;
        }
        if !success {
            self.requester_done(now, c, s, index, false)?;
            self.connections[c].flows[s].failed = true;
        }
        let flow = &mut self.connections[c].flows[s];
        flow.completed = index + 1;
        flow.settle();
        Ok(())
    }

    /// Whether request `index` may fail like that.
    fn check_failure(&self, c: usize, s: usize, index: u64, status: Status) -> Result<(), String> {
        let connection = &self.connections[c];
        let flow = &connection.flows[s];
        let Some(wr) = flow.wr(index) else { return Err("unknown".into()) };
        let peer_may_be_gone = connection.sides.iter().any(|side| side.killed || side.deregistered)
            || connection.flows[1 - s].bad.is_some()
            || connection.flows[1 - s].failed;
        let allowed = match status {
            Status::WrFlush => self.may_be_dead(c, s),
            Status::RetryExceeded => {
                self.weather == Weather::Harsh
                    || peer_may_be_gone
                    // The NAK may be lost, and the peer is silent after it.
                    || (self.weather == Weather::Mild && flow.bad.is_some())
            }
            Status::RnrRetryExceeded => {
                connection.rnr_retry != 7 && flow.most_rnr_naks > u32::from(connection.rnr_retry)
            }
            Status::RemoteAccess if wr.frozen => true,
            status => wr.fault.is_some_and(|fault| fault.status() == status),
        };
        if allowed {
            Ok(())
        } else {
            Err(format!("no reason to fail: fault {:?}, weather {:?}", wr.fault, self.weather))
        }
    }

    /// The requester has told that `index` is over: what it was to bring must be there, and its buffers are the program's
    /// again, which at once uses them for something else.
    fn requester_done(&mut self, now: Instant, c: usize, s: usize, index: u64, success: bool) -> Result<(), String> {
        let connection = &mut self.connections[c];
        let name = connection.name();
        let Some(wr) = connection.flows[s].wr(index).cloned() else { return Err(format!("{index} is unknown")) };
        if wr.kind.is_answered() {
            let mut offset = 0;
            for &(start, len) in &wr.pieces {
                let (start, len) = (start as usize, len as usize);
                let shadow = connection.sides[s].arena.shadow(start, len);
                if success {
                    shadow.copy_from_slice(&wr.expected[offset..][..len]);
                }
                offset += len;
            }
            for &(start, len) in &wr.pieces {
                self.verify_answer(now, c, s, &wr, start as usize, len as usize, success);
            }
        }
        let side = &mut self.connections[c].sides[s];
        for &(start, len) in &wr.pieces {
            side.arena.scribble(start as usize, len as usize, name);
        }
        if let Some(slot) = wr.slot {
            let free = if wr.kind.is_answered() { &mut side.free_sinks } else { &mut side.free_sources };
            free.push(slot);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "they say which bytes of which request")]
    fn verify_answer(&mut self, now: Instant, c: usize, s: usize, wr: &Wr, start: usize, len: usize, success: bool) {
        for offset in self.connections[c].sides[s].arena.differences(start, len, usize::MAX) {
            let connection = &self.connections[c];
            let actual = connection.sides[s].arena.actual(offset);
            if answer_may_be(connection, s, wr, offset, actual) {
                continue;
            }
            let index = wr.message_offset(offset).unwrap_or_default();
            let text = format!(
                "{:?} {} (success: {success}) brought {actual:#04x} as byte {index} of {}, where {:#04x} was due",
                wr.kind, wr.index, wr.len, wr.expected[index],
            );
            return self.violation_at(now, c, s, text);
        }
    }

    fn receive_completed(&mut self, now: Instant, c: usize, r: usize, completion: &Completion) -> Result<(), String> {
        let s = 1 - r;
        let connection = &mut self.connections[c];
        let name = connection.name();
        let Some(receive) = connection.sides[r].receives.pop_front() else { return Err("was never posted".into()) };
        if receive.wr_id != completion.wr_id {
            return Err(format!("{} is the oldest", receive.wr_id));
        }
        let flow = &mut connection.flows[s];
        let consumer = flow.consumer(flow.received).cloned();
        if completion.status != Status::Success {
            let too_long = consumer.as_ref().is_some_and(|wr| wr.fault == Some(Fault::Invalid));
            let (ours, theirs) = (self.may_be_dead(c, r), self.connections[c].flows[s].bad.is_some());
            match completion.status {
                Status::WrFlush if ours => {}
                Status::LocalLength if too_long => {}
                Status::RemoteInvalidRequest | Status::LocalAccess if theirs => {}
                _ => return Err("no reason to fail".into()),
            }
            for &(start, len) in &receive.pieces {
                self.verify_receive(now, c, r, &receive, consumer.as_ref(), start, len);
            }
        } else {
            let Some(wr) = consumer else { return Err("nothing was sent for it".into()) };
            flow.received += 1;
            if wr.end() > flow.arrived {
                return Err(format!("request {} has not arrived completely", wr.index));
            }
            if wr.fault.is_some() {
                return Err(format!("request {} must fail", wr.index));
            }
            let kind = match wr.kind {
                Kind::WriteImmediate => CompletionKind::ReceiveWriteWithImmediate,
                _ => CompletionKind::Receive,
            };
            if (completion.kind, completion.byte_len, completion.immediate) != (kind, wr.len, wr.immediate) {
                return Err(format!("{:?} {} of {} bytes has {:?}", wr.kind, wr.index, wr.len, wr.immediate));
            }
            if wr.kind.is_send() {
                let mut offset = 0;
                for &(start, len) in &receive.pieces {
                    let len = (len as usize).min(wr.len as usize - offset);
                    let arena = &mut connection.sides[r].arena;
                    wr.payload.fill(offset, arena.shadow(start as usize, len));
                    offset += len;
                }
                for &(start, len) in &receive.pieces {
                    self.verify_receive(now, c, r, &receive, None, start, len);
                }
            }
            let done = if wr.kind.is_send() { wr.index } else { wr.index + 1 };
            self.execute(now, c, s, done, "reported the receipt after");
            self.connections[c].flows[s].settle();
        }
        let side = &mut self.connections[c].sides[r];
        for &(start, len) in &receive.pieces {
            side.arena.scribble(start as usize, len as usize, name);
        }
        side.free_receives.push(receive.slot);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "they say which bytes of which request")]
    fn verify_receive(
        &mut self,
        now: Instant,
        c: usize,
        r: usize,
        receive: &Receive,
        consumer: Option<&Wr>,
        start: u32,
        len: u32,
    ) {
        let connection = &mut self.connections[c];
        let mtu = connection.mtu;
        let differences = connection.sides[r].arena.differences(start as usize, len as usize, usize::MAX);
        for offset in differences {
            let arena = &connection.sides[r].arena;
            let actual = arena.actual(offset);
            let partly = consumer.is_some_and(|wr| {
                may_have_received(&connection.flows[1 - r], wr, receive, offset, mtu) == Some(actual)
            });
            if !partly {
                let expected = arena.expected(offset, 1)[0];
                let text =
                    format!("receive {}: byte {offset} is {actual:#04x} and must be {expected:#04x}", receive.wr_id);
                return self.violation_at(now, c, r, text);
            }
        }
    }

    /// The target region of `side` is taken away now: nothing that is in flight may change it any more.
    pub fn deregister(&mut self, now: Instant, c: usize, side: usize) {
        self.verify_side(now, c, side, "before deregistration");
        let connection = &mut self.connections[c];
        connection.sides[side].deregistered = true;
        let (start, len) = connection.layout.target();
        connection.sides[side].arena.accept(start, len);
        let flow = &mut connection.flows[1 - side];
        // READs that are being answered too.
        let (executed, completed) = (flow.executed, flow.completed);
        for wr in flow.wrs.iter_mut() {
            if (wr.index >= executed || (wr.kind == Kind::Read && wr.index >= completed))
                && !wr.kind.is_send()
                && wr.len > 0
            {
                wr.frozen = true;
                wr.places = false;
            }
        }
        let (_, flag) = connection.layout.words();
        flow.last_flag = connection.sides[side].arena.actual_u64(flag);
    }

    /// The queue pair of a side goes away with all that is posted to it.
    pub fn abandon(&mut self, c: usize, side: usize) {
        let connection = &mut self.connections[c];
        let flow = &mut connection.flows[side];
        flow.completed = flow.posted();
        flow.failed = true;
        let side = &mut connection.sides[side];
        side.receives.clear();
        let (local, len) = connection.layout.local();
        side.arena.accept(local, len);
    }

    /// Both queue pairs are in the error state, and all completions are there: every request must have got one.
    pub fn close(&mut self, now: Instant, c: usize) {
        for s in [0, 1] {
            let flow = &self.connections[c].flows[s];
            let (completed, posted) = (flow.completed, flow.posted());
            // Those that are not signaled may have been successful; if they were not, they would have been flushed.
            let missing = (completed..posted).find(|index| flow.failed || flow.wr(*index).is_none_or(|wr| wr.signaled));
            if let Some(index) = missing {
                self.violation_at(now, c, s, format!("request {index} was neither completed nor flushed"));
            } else if completed < posted {
                self.execute(now, c, s, posted, "completed in silence");
                for index in completed..posted {
                    if let Err(text) = self.requester_done(now, c, s, index, true) {
                        self.violation_at(now, c, s, text);
                    }
                }
                self.connections[c].flows[s].completed = posted;
            }
            if let Some(receive) = self.connections[c].sides[s].receives.front() {
                let wr_id = receive.wr_id;
                self.violation_at(now, c, s, format!("receive request {wr_id} was neither completed nor flushed"));
            }
            self.verify_side(now, c, s, "after closing");
        }
        for side in &mut self.connections[c].sides {
            let len = side.arena.len();
            side.arena.accept(0, len);
        }
    }
}

fn is_positive(header: &Header) -> bool {
    header.opcode != Opcode::RC_ACKNOWLEDGE || matches!(Syndrome::from_byte(header.word[0]), Syndrome::Ack { .. })
}

/// What a READ or atomic may bring at an offset of the requester's arena: what was due, or for a READ what a later
/// request has written meanwhile.
fn answer_may_be(connection: &Connection, s: usize, wr: &Wr, offset: usize, actual: u8) -> bool {
    let Some(index) = wr.message_offset(offset) else { return false };
    if wr.expected.get(index) == Some(&actual) {
        return true;
    }
    let flow = &connection.flows[s];
    wr.kind == Kind::Read
        && flow.wrs.iter().filter(|later| later.index > wr.index).any(|later| {
            later
                .written_byte(wr.target as usize + index, connection.mtu)
                .is_some_and(|(byte, psn)| byte == actual && flow.has_arrived(psn))
        })
}

/// The byte of a SEND that is coming in at an offset of the responder's arena.
fn may_have_received(flow: &Flow, wr: &Wr, receive: &Receive, offset: usize, mtu: usize) -> Option<u8> {
    if !wr.kind.is_send() {
        return None;
    }
    let index = message_offset(&receive.pieces, offset)?;
    let in_message = index < wr.len as usize && flow.has_arrived(wr.first + (index / mtu) as u64);
    in_message.then(|| wr.payload.byte(index))
}

/// Whether a request in flight may have put `actual` at `offset` of a side's arena.
fn explains(connection: &Connection, side: usize, offset: usize, actual: u8) -> bool {
    let (outgoing, incoming) = (&connection.flows[side], &connection.flows[1 - side]);
    let mtu = connection.mtu;
    let by_write =
        incoming.wrs.iter().filter(|wr| wr.index >= incoming.executed).any(|wr| {
            wr.written_byte(offset, mtu).is_some_and(|(byte, psn)| byte == actual && incoming.has_arrived(psn))
        });
    let by_answer = || {
        outgoing
            .wrs
            .iter()
            .filter(|wr| wr.index >= outgoing.completed && wr.kind.is_answered())
            .any(|wr| wr.message_offset(offset).is_some() && answer_may_be(connection, side, wr, offset, actual))
    };
    let by_send = || {
        let receives = &connection.sides[side].receives;
        let place = receives.iter().position(|receive| message_offset(&receive.pieces, offset).is_some());
        place.is_some_and(|place| {
            incoming
                .consumer(incoming.received + place as u64)
                .is_some_and(|wr| may_have_received(incoming, wr, &receives[place], offset, mtu) == Some(actual))
        })
    };
    by_write || by_answer() || by_send()
}

impl Observer for Oracle {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        let header = header(frame);
        let Some(&(c, receiver)) = self.by_qpn.get(&(to.0, header.qpn.value())) else { return };
        let sender = 1 - receiver;
        if self.connections[c].sides[sender].node != node {
            return self.violation_at(now, c, receiver, format!("node {} sends to its queue pair", node.0));
        }
        if header.opcode.is_response() {
            self.answer_sent(now, c, receiver, &header);
        } else {
            self.request_sent(now, c, sender, &header);
        }
    }

    fn drained(&mut self, now: Instant, node: NodeId) {
        if self.polls_at_once {
            self.poll(now, node);
        }
        for c in 0..self.connections.len() {
            for s in [0, 1] {
                let connection = &mut self.connections[c];
                if connection.flows[s].nak_due && connection.sides[1 - s].node == node {
                    connection.flows[s].nak_due = false;
                    if connection.sides[s].destroyed || connection.sides[1 - s].killed {
                        continue;
                    }
                    let expected = connection.flows[s].expected;
                    self.violation_at(now, c, 1 - s, format!("no NAK for the gap at packet {expected}"));
                }
            }
        }
    }

    fn arriving(&mut self, now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        if condition != Condition::Intact {
            return;
        }
        let header = header(frame);
        let Some(&(c, receiver)) = self.by_qpn.get(&(node.0, header.qpn.value())) else { return };
        if header.opcode.is_response() {
            self.answer_arrives(now, c, receiver, &header);
        } else {
            self.request_arrives(c, 1 - receiver, &header);
        }
    }

    fn handled(&mut self, now: Instant, node: NodeId, endpoint: &mut Endpoint, frame: Option<&[u8]>) {
        if self.polls_at_once {
            self.poll(now, node);
        }
        let Some(frame) = frame else { return };
        let header = header(frame);
        let Some(&(c, receiver)) = self.by_qpn.get(&(node.0, header.qpn.value())) else { return };
        if !header.opcode.is_response() {
            self.poll_flag(now, c, 1 - receiver);
        }
        let Ok(queue_pair) = endpoint.queue_pair(header.qpn) else { return };
        let flow = &mut self.connections[c].flows[1 - receiver];
        if queue_pair.state() == State::Error {
            flow.nak_due = false;
        } else if !header.opcode.is_response()
            && let Some(expected) = flow.count(queue_pair.psns().1, flow.expected)
            && expected < flow.expected
        {
            // It has refused the packet: for that a receive request must be missing.
            let consumes = flow.find(expected).is_some_and(|wr| wr.kind.consumes());
            flow.expected = expected;
            (flow.nak_sent, flow.nak_due) = (true, false);
            if !consumes {
                self.violation_at(now, c, receiver, format!("has not taken packet {expected}, which was next"));
            }
        }
    }
}

impl Oracle {
    /// A packet of flow `s` arrives at the responder.
    fn request_arrives(&mut self, c: usize, s: usize, header: &Header) {
        let connection = &mut self.connections[c];
        let flow = &mut connection.flows[s];
        let Some(psn) = flow.count(header.psn, flow.arrived).filter(|psn| *psn < flow.sent) else { return };
        let end = match header.opcode {
            Opcode::RC_READ_REQUEST => flow.find(psn).map_or(psn + 1, Wr::end),
            _ => psn + 1,
        };
        if flow.has_arrived(psn)
            && let Some(index) = flow.find(psn).map(|wr| wr.index)
            && let Some(wr) = flow.wr_mut(index)
        {
            wr.asked_again = true;
        }
        flow.arrive(psn, end);
        if psn == flow.expected {
            flow.expected = end;
            (flow.nak_sent, flow.nak_due) = (false, false);
        } else if psn > flow.expected
            && !flow.nak_sent
            && !connection.sides[1 - s].killed
            // Else nobody is there any more to send it to.
            && !connection.sides[s].destroyed
        {
            (flow.nak_sent, flow.nak_due) = (true, true);
        }
    }

    /// An answer to flow `s` arrives at the requester.
    fn answer_arrives(&mut self, now: Instant, c: usize, s: usize, header: &Header) {
        let flow = &mut self.connections[c].flows[s];
        let Some(psn) = flow.count(header.psn, flow.known).filter(|psn| *psn < flow.sent) else { return };
        let syndrome = match header.opcode {
            Opcode::RC_ACKNOWLEDGE => Syndrome::from_byte(header.word[0]),
            _ => Syndrome::ACK,
        };
        let positive = matches!(syndrome, Syndrome::Ack { .. });
        let mut done = if positive { psn + 1 } else { psn };
        flow.acknowledged = flow.acknowledged.max(done);
        if header.opcode != Opcode::RC_ACKNOWLEDGE {
            // Answers are taken in order.
            let index = flow.wrs.iter().find(|wr| wr.kind.is_answered() && wr.answers < wr.packets).map(|wr| wr.index);
            if let Some(wr) = index.and_then(|index| flow.wr_mut(index))
                && psn == wr.first + u64::from(wr.answers)
            {
                wr.answers += 1;
            } else {
                done = 0;
            }
        }
        let unanswered = flow.wrs.iter().find(|wr| wr.kind.is_answered() && wr.answers < wr.packets);
        let limit = unanswered.map_or(done, |wr| wr.first + u64::from(wr.answers));
        let known = done.min(limit);
        if known > flow.known {
            flow.known = known;
            flow.rnr_naks = 0;
            flow.rnr_until = None;
        }
        if let Syndrome::RnrNak(timer) = syndrome
            && flow.known == psn
            && flow.rnr_until.is_none_or(|until| until < now)
        {
            flow.rnr_naks += 1;
            flow.most_rnr_naks = flow.most_rnr_naks.max(flow.rnr_naks);
            flow.rnr_until = Some(now + timer.delay());
        }
    }
}
