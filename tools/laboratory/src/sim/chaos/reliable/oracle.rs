use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use rustc_hash::FxHashMap;
use uroce::memory::Pd;
use uroce::time::{Duration, Instant};
use uroce::transport::{CompletionRing, Endpoint, Event, MAX_SGE};
use uroce::wire::{Key, NakCode, Opcode, Qpn, Syndrome};

use crate::sim::chaos::arena::{Arena, Piece, range};
use crate::sim::chaos::header::Header;
use crate::sim::chaos::layout::Layout;
use crate::sim::chaos::setting::Weather;
use crate::sim::chaos::stage::Violations;
use crate::sim::frame_pool::Condition;
use crate::sim::network::{NodeId, Observer};

use super::completions::{answer_may_be, may_have_received};
use super::flow::{Fault, Flow, Kind, Wr, message_offset};
use super::plan::Plan;
use super::windows::{Window, WindowState};

/// Upper bound on the PSNs in flight towards a peer without the extension (see DESIGN).
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
    /// The number of receive requests posted so far.
    pub posted_receives: u64,
    /// Whether the program put the queue pair into the error state.
    pub killed: bool,
    /// Whether the program destroyed the queue pair.
    pub destroyed: bool,
    /// Whether the program deregistered the target region.
    pub deregistered: bool,
    /// Whether the program took the region or a window away while the peer was using it.
    pub took_away: bool,
    pub windows: Vec<Window>,
    /// The number after the peer's last request that uses the target region's own key.
    pub region_used: u64,
    /// Whether the peer must not use that key in new requests, until there is a new one.
    pub is_renewing: bool,
    /// Whether the queue pair still exists in RESET, to be reused.
    pub is_reset: bool,
    /// Slots that completions gave back: of sources, sinks and receive buffers.
    pub free_sources: Vec<usize>,
    pub free_sinks: Vec<usize>,
    pub free_receives: Vec<usize>,
}

/// The oracle's model of a connection.
pub(super) struct Connection {
    pub sides: [Side; 2],
    /// The requests of `sides[s]` are in `flows[s]`.
    pub flows: [Flow; 2],
    pub layout: Layout,
    pub mtu: usize,
    /// The number of retries after RNR NAKs, 7 without limit.
    pub rnr_retry: u8,
    /// The local ACK timeout, and the number of retries.
    pub timeout: Duration,
    pub retry_count: u8,
    /// Whether the timeout is longer than any queue takes.
    pub is_patient: bool,
    /// Upper bound on the PSNs in flight towards a peer that understands the extension; `None` for a side without it.
    pub windows: [Option<u64>; 2],
    /// Whether a side knows that the other understands the extension: it has received its own nonce back.
    pub selective: [bool; 2],
    /// The nonces of the sides' hellos.
    pub nonces: [Option<u32>; 2],
    /// Whether a side knows the other's further addresses; it refuses packets from these before.
    pub knows_addresses: [bool; 2],
    /// Whether a side received a marked packet since its latest CNP, and when that went.
    pub is_marked: [bool; 2],
    pub notified_at: [Option<Instant>; 2],
    /// Whether a side keeps to a rate.
    pub has_rate: [bool; 2],
    /// Whether a side's target is registered for relaxed ordering of WRITEs.
    pub relaxed: [bool; 2],
    /// The name of the next pattern.
    next_name: u64,
}

impl Connection {
    pub fn new(sides: [Side; 2], flows: [Flow; 2], layout: Layout, plan: &Plan, name: u64) -> Connection {
        let (windows, selective, relaxed) = ([None; 2], [false; 2], [false; 2]);
        Connection {
            sides,
            flows,
            layout,
            mtu: plan.mtu.bytes(),
            rnr_retry: plan.rnr_retry,
            timeout: Duration::from_nanos(4096 << plan.timeout),
            retry_count: plan.retry_count,
            is_patient: plan.is_patient,
            windows,
            selective,
            nonces: [None; 2],
            knows_addresses: [false; 2],
            is_marked: [false; 2],
            notified_at: [None; 2],
            has_rate: [false; 2],
            relaxed,
            next_name: name,
        }
    }

    /// Whether WRITEs to a side's target can be placed before earlier ones.
    pub fn places_writes_early(&self, side: usize) -> bool {
        self.relaxed[side] && self.selective[side]
    }

    /// A name for a pattern, which is unique.
    pub fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }
}

/// The models of all connections, and the violations that were found.
pub(super) struct Oracle {
    pub connections: Vec<Connection>,
    /// The connection and the receiving side, by node and QPN.
    pub by_qpn: FxHashMap<(usize, u32), (usize, usize)>,
    pub weather: Weather,
    /// The completion queues of each node, and whether completions are polled at once.
    pub queues: Vec<Vec<Arc<CompletionRing>>>,
    pub polls_at_once: bool,
    /// Upper bound on the bytes that wait for earlier ones on each node.
    pub waiting_bytes_max: Vec<usize>,
    pub violations: Violations,
    /// Connections with an unsuccessful completion since the programs last asked.
    pub failed: Vec<usize>,
    /// Sides with completions since the programs last asked.
    pub moved: Vec<(usize, usize)>,
}

impl Oracle {
    pub fn new(weather: Weather, polls_at_once: bool) -> Oracle {
        Oracle {
            connections: Vec::new(),
            by_qpn: FxHashMap::default(),
            weather,
            queues: Vec::new(),
            polls_at_once,
            waiting_bytes_max: Vec::new(),
            violations: Violations::default(),
            failed: Vec::new(),
            moved: Vec::new(),
        }
    }

    pub fn violation(&mut self, now: Instant, text: String) {
        self.violations.push(now, text);
    }

    pub(super) fn violation_at(&mut self, now: Instant, c: usize, s: usize, text: impl AsRef<str>) {
        let side = &self.connections[c].sides[s];
        let text = format!("connection {c} side {s} (node {}, {}): {}", side.node.0, side.qpn, text.as_ref());
        self.violation(now, text);
    }

    /// Checks a CNP that side `s` sends: it received a marked packet, does not know the peer, and sent none for 50 µs.
    fn notification_sent(&mut self, now: Instant, c: usize, s: usize) {
        let connection = &mut self.connections[c];
        let is_early = connection.notified_at[s].is_some_and(|at| now - at < Duration::from_micros(50));
        let is_due = std::mem::take(&mut connection.is_marked[s]) && !is_early && !connection.selective[s];
        connection.notified_at[s] = Some(now);
        if !is_due {
            self.violation_at(now, c, s, "sent a CNP that is not due");
        }
    }

    /// Checks a packet that the requester of `c`'s flow `s` sends.
    fn request_sent(&mut self, now: Instant, c: usize, s: usize, header: &Header) {
        let connection = &self.connections[c];
        let window = connection.windows[s].filter(|_| connection.selective[s]).unwrap_or(WINDOW_PACKETS);
        let flow = &connection.flows[s];
        let found = flow.count(header.psn, flow.sent).filter(|psn| *psn < flow.posted_psn);
        let Some(psn) = found else {
            return self.violation_at(now, c, s, format!("sent PSN {}, which no request has", header.psn));
        };
        if psn < flow.known {
            let text = format!("sent packet {psn} again although it is known to be done up to {}", flow.known);
            return self.violation_at(now, c, s, text);
        }
        if psn >= flow.sent && psn >= flow.acknowledged + window {
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
        let is_new = psn >= flow.sent;
        if flow.is_drained || (flow.is_draining && is_new && psn == first) {
            return self.violation_at(
                now,
                c,
                s,
                format!("sent packet {psn} of request {index}, while the queue drains"),
            );
        }
        let last = is_read || psn + 1 == end;
        if last && !header.acknowledge_requested {
            return self.violation_at(now, c, s, format!("the last packet of request {index} asks for no acknowledge"));
        }
        let fenced = wr.fence && psn == first;
        if fenced {
            let waiting = flow.wrs.iter().find(|wr| wr.index < index && wr.awaits_answer());
            if let Some(waiting) = waiting {
                let text = format!("sent the fenced request {index} before the answers to {}", waiting.index);
                return self.violation_at(now, c, s, text);
            }
        }
        let flow = &mut self.connections[c].flows[s];
        if flow.known == flow.sent {
            flow.be_patient(now);
        }
        flow.sent_again += u32::from(psn < flow.sent);
        flow.last_sent_at = now;
        flow.sent = flow.sent.max(if is_read { end } else { psn + 1 });
    }

    /// Checks an answer that the responder of `c`'s flow `s` sends.
    fn answer_sent(&mut self, now: Instant, c: usize, s: usize, header: &Header) {
        let r = 1 - s;
        let flow = &self.connections[c].flows[s];
        // A packet came early, and no request was carried out; or answers with data are still owed.
        let is_early = self.connections[c].selective[r] && flow.messages(flow.executed) == Some(0);
        if (is_early || header.hello.is_some()) && flow.is_before_first(header.psn) {
            return;
        }
        let Some(psn) = flow.count(header.psn, flow.arrived) else {
            return self.violation_at(now, c, r, format!("answers PSN {} before the first", header.psn));
        };
        let is_read =
            is_positive(header) && !matches!(header.opcode, Opcode::RC_ACKNOWLEDGE | Opcode::RC_ATOMIC_ACKNOWLEDGE);
        if is_read && self.connections[c].sides[r].killed {
            let text = format!("reads memory for packet {psn}, although the program has put it into the error state");
            return self.violation_at(now, c, r, text);
        }
        if psn > flow.arrived || (psn == flow.arrived && is_positive(header)) {
            let text = format!("answers packet {psn} although only those before {} have arrived", flow.arrived);
            return self.violation_at(now, c, r, text);
        }
        if is_positive(header) {
            let flow = &mut self.connections[c].flows[s];
            flow.expected = flow.expected.max(psn + 1);
            flow.refused = flow.refused.filter(|refused| *refused > psn);
        }
        let flow = &self.connections[c].flows[s];
        let msn = u64::from(u32::from_be_bytes([0, header.words[0][1], header.words[0][2], header.words[0][3]]));
        let has_aeth = header.opcode != Opcode::RC_READ_RESPONSE_MIDDLE && !header.is_carried;
        let msn_now = flow.messages_before(flow.arrived).and_then(|index| flow.messages(index));
        let is_repeat = flow.find(psn).is_some_and(|wr| wr.asked_again);
        let (executed, msns) = match header.opcode {
            Opcode::RC_ACKNOWLEDGE => match Syndrome::from_byte(header.words[0][0]) {
                Syndrome::Ack { .. } => {
                    let done = flow.messages_before(psn + 1);
                    // An acknowledge can stop short of a READ or atomic that is done.
                    let low = done.and_then(|done| flow.messages(done));
                    (done, low.map(|low| (low, msn_now.unwrap_or(low))))
                }
                syndrome => {
                    let done = flow.messages_before(psn);
                    let low = done.and_then(|done| flow.messages(done));
                    self.nak_sent(now, c, s, psn, syndrome);
                    // A READ that is answered again can find its region gone.
                    let again = msn_now.filter(|_| is_repeat).unwrap_or_default();
                    (done, low.map(|low| (low, again.max(low + 1))))
                }
            },
            _ => {
                let Some(wr) = flow.find(psn) else { return };
                if !wr.kind.is_answered() || wr.kind.is_atomic() != (header.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE) {
                    let text = format!("answers {:?} {} with opcode {:#04x}", wr.kind, wr.index, header.opcode.0);
                    return self.violation_at(now, c, r, text);
                }
                // Repeated answers have the current MSN.
                let latest = msn_now.filter(|_| is_repeat).unwrap_or(wr.messages + 1);
                (Some(wr.index + 1), Some((wr.messages + 1, latest)))
            }
        };
        if let Some((low, high)) = msns.filter(|_| has_aeth)
            && msn.wrapping_sub(low) & 0x00ff_ffff > high - low
        {
            let text = format!("MSN {msn} in an answer to packet {psn}, where {low} requests are done");
            self.violation_at(now, c, r, text);
        }
        if let Some(executed) = executed {
            self.execute(now, c, s, executed, "answered");
        }
    }

    /// Checks that all PSNs in a selective acknowledge of flow `s` have arrived.
    fn sack_sent(&mut self, now: Instant, c: usize, s: usize, frame: &[u8]) {
        let psns = match Header::selectively_acknowledged(frame) {
            Ok(None) => return,
            Ok(Some(psns)) => psns,
            Err(text) => return self.violation_at(now, c, 1 - s, text),
        };
        let flow = &self.connections[c].flows[s];
        let wrong =
            psns.into_iter().find(|psn| flow.count(*psn, flow.arrived).is_none_or(|psn| !flow.has_arrived(psn)));
        if let Some(psn) = wrong {
            self.violation_at(now, c, 1 - s, format!("acknowledges {psn}, which has not arrived"));
        }
    }

    fn nak_sent(&mut self, now: Instant, c: usize, s: usize, psn: u64, syndrome: Syndrome) {
        let connection = &mut self.connections[c];
        let keeps_early = connection.windows[1 - s].is_some();
        let flow = &mut connection.flows[s];
        flow.nak_due = false;
        let wr = flow.find(psn).cloned();
        let lacked = wr.as_ref().is_some_and(|wr| wr.kind.consumes() && wr.lacked);
        let is_gap = flow.gaps.contains(&psn);
        // A packet that arrived while a NAK for it waited to be sent has been taken since. One without a receive
        // request has not.
        let is_not_ready = lacked && matches!(syndrome, Syndrome::RnrNak(_));
        let may_be_expected = psn == flow.expected || (psn == flow.expected_before_rnr && psn > flow.expected);
        if may_be_expected || (psn < flow.expected && (keeps_early || is_not_ready)) {
            if is_not_ready && !keeps_early {
                // The responder ignored later packets until this one came again, and has continued from there since.
                let again =
                    flow.wrs.iter().rev().find(|wr| wr.asked_again && wr.first > psn && wr.end() <= flow.expected);
                flow.gaps.extend(again.into_iter().flat_map(|again| psn + 1..again.end() - 1));
            }
            flow.refused = Some(psn);
            flow.expected_before_rnr = if is_not_ready { flow.expected.max(flow.expected_before_rnr) } else { 0 };
            // A packet that waits for earlier ones stays in place.
            flow.expected = if keeps_early { flow.expected } else { psn };
        }
        let text = match (syndrome, wr) {
            (Syndrome::RnrNak(_), Some(wr)) => {
                if !wr.kind.consumes() {
                    format!("RNR NAK for {:?} {}, which needs no receive request", wr.kind, wr.index)
                } else if !lacked {
                    format!("RNR NAK for request {}, although a receive request is there", wr.index)
                } else {
                    return;
                }
            }
            (Syndrome::Nak(NakCode::PsnSequenceError), wr) => {
                if is_gap || lacked || keeps_early {
                    return;
                }
                format!("sequence NAK for packet {psn} of {wr:?}, behind which nothing came before it")
            }
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

    /// Applies that the responder has carried out all requests of flow `s` before `to`, as it acknowledged or showed.
    /// Their bytes must be in place.
    pub(super) fn execute(&mut self, now: Instant, c: usize, s: usize, to: u64, how: &str) {
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
            if wr.kind.is_local() {
                continue;
            }
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
                    // There are too many ranges: the whole target is compared.
                    ranges.clear();
                    let (start, len) = connection.layout.target();
                    ranges.push((start as u32, len as u32, index));
                }
            }
        }
        // All flags before the last one are obsolete: packets that waited are carried out together with the one they
        // waited for.
        while flow.flags.get(1).is_some_and(|(_, index)| *index < to) {
            flow.flags.pop_front();
        }
        if let Some(text) = problem {
            self.violation_at(now, c, 1 - s, text);
        }
        for (start, len, index) in ranges {
            self.verify(now, c, 1 - s, range((start, len)), &format!("{how} request {index}"));
        }
    }

    /// Compares a range of a side's memory with the model. Bytes can differ where requests in flight can write.
    pub fn verify(&mut self, now: Instant, c: usize, side: usize, range: Range<usize>, what: &str) {
        let differences = self.connections[c].sides[side].arena.differences(range);
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
        self.verify(now, c, side, 0..len, what);
    }

    /// Compares the bytes that the message of a packet of flow `s` writes, where WRITEs can be placed early. These are
    /// its last packet, on which programs poll, and the packet itself.
    fn verify_message(&mut self, now: Instant, c: usize, s: usize, header: &Header) {
        let connection = &self.connections[c];
        let (flow, mtu) = (&connection.flows[s], connection.mtu as u32);
        let Some(psn) = flow.count(header.psn, flow.arrived) else { return };
        let Some(wr) = flow.find(psn).filter(|wr| wr.kind.writes() && (wr.places || wr.is_void)) else { return };
        let packets = [psn - wr.first, u64::from(wr.packets) - 1].map(|packet| packet as u32 * mtu);
        let ranges = packets.map(|offset| (wr.target + offset, mtu.min(wr.len - offset.min(wr.len))));
        let text = format!("while request {} comes in", wr.index);
        for (start, len) in ranges {
            self.verify(now, c, 1 - s, range((start, len)), &text);
        }
    }

    /// Checks the flag of flow `s` at the responder, as a program that polls does.
    pub(super) fn poll_flag(&mut self, now: Instant, c: usize, s: usize) {
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
}

fn is_positive(header: &Header) -> bool {
    header.opcode != Opcode::RC_ACKNOWLEDGE || matches!(Syndrome::from_byte(header.words[0][0]), Syndrome::Ack { .. })
}

/// Whether a request in flight can have put `actual` at `offset` of a side's arena.
fn explains(connection: &Connection, side: usize, offset: usize, actual: u8) -> bool {
    let (outgoing, incoming) = (&connection.flows[side], &connection.flows[1 - side]);
    let mtu = connection.mtu;
    let in_flight = || incoming.wrs.iter().filter(|wr| wr.index >= incoming.executed);
    let by_write = in_flight()
        .any(|wr| wr.written_byte(offset, mtu).is_some_and(|(byte, psn)| byte == actual && psn < incoming.arrived));
    // A WRITE is placed early only where earlier ones write elsewhere or have arrived; the last packet of a message is
    // placed last.
    let by_early_write = || {
        let may_be_placed = |wr: &Wr, psn: u64| {
            incoming.has_arrived(psn)
                && in_flight().take_while(|earlier| earlier.index < wr.index).all(|earlier| {
                    earlier.byte_written_early(offset, mtu).is_none_or(|(_, psn)| incoming.has_arrived(psn))
                })
                && (psn + 1 < wr.end() || (wr.first..psn).all(|before| incoming.has_arrived(before)))
        };
        connection.places_writes_early(side)
            && in_flight().any(|wr| {
                let byte = wr.byte_written_early(offset, mtu);
                byte.is_some_and(|(byte, psn)| byte == actual && may_be_placed(wr, psn))
            })
    };
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
                .consumer(incoming.received + incoming.flushed + place as u64)
                .is_some_and(|wr| may_have_received(connection, side, wr, &receives[place], offset) == Some(actual))
        })
    };
    by_write || by_early_write() || by_answer() || by_send()
}

impl Oracle {
    /// Takes an event of a node. Returns the side whose send queue is drained.
    pub fn event(&mut self, now: Instant, node: NodeId, event: Event) -> Option<(usize, usize)> {
        let (Event::SendQueueDrained(qpn) | Event::AccessError(qpn) | Event::RequestError(qpn)) = event else {
            self.violation(now, format!("node {} tells {event:?}", node.0));
            return None;
        };
        let &(c, s) = self.by_qpn.get(&(node.0, qpn.value()))?;
        let connection = &mut self.connections[c];
        let theirs = &connection.flows[1 - s];
        let text = match event {
            Event::SendQueueDrained(_) => {
                let flow = &mut connection.flows[s];
                let is_answered = flow.wrs.iter().all(|wr| wr.first >= flow.sent || !wr.awaits_answer());
                if flow.is_draining && !flow.is_drained && flow.acknowledged == flow.sent && is_answered {
                    flow.is_drained = true;
                    return Some((c, s));
                }
                format!("tells {event:?} with {} of {} packets acknowledged", flow.acknowledged, flow.sent)
            }
            _ if theirs.bad.is_some() || connection.sides[s].took_away => return None,
            _ => format!("tells {event:?}, and the peer did nothing wrong"),
        };
        self.violation_at(now, c, s, text);
        None
    }

    /// Applies a completed request about a window of flow `s`: one of that side's own or, for a SEND, the peer's.
    pub(super) fn window_changed(&mut self, c: usize, s: usize, wr: &Wr) {
        let side = if wr.kind == Kind::SendInvalidate { 1 - s } else { s };
        let Some(window) = wr.window.and_then(|number| self.connections[c].sides[side].windows.get_mut(number)) else {
            return;
        };
        match (wr.kind, window.state) {
            (Kind::Bind, WindowState::Binding(key)) => {
                let stale = Some(window.key);
                *window = Window { key, state: WindowState::Open, used: 0, stale, ..*window };
            }
            (Kind::LocalInvalidate | Kind::SendInvalidate, WindowState::Ending) => window.end(),
            _ => {}
        }
    }
}

impl Observer for Oracle {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        let header = Header::of(frame);
        let Some(&(c, receiver)) = self.by_qpn.get(&(to.0, header.qpn.value())) else { return };
        let sender = 1 - receiver;
        if self.connections[c].sides[sender].node != node {
            return self.violation_at(now, c, receiver, format!("node {} sends to its queue pair", node.0));
        }
        if let Some((nonce, _)) = header.hello {
            self.connections[c].nonces[sender] = Some(nonce);
        } else if header.is_extended && !self.connections[c].selective[sender] {
            let text = format!("sends an extended packet to a peer that it does not know: {:#04x}", header.opcode.0);
            self.violation_at(now, c, sender, text);
        }
        if header.opcode == Opcode::CNP {
            self.notification_sent(now, c, sender);
        } else if header.opcode.is_response() {
            self.answer_sent(now, c, receiver, &header);
            self.sack_sent(now, c, receiver, frame);
        } else {
            self.request_sent(now, c, sender, &header);
            if let Some(carried) = header.carried(frame) {
                self.answer_sent(now, c, receiver, &carried);
            }
        }
    }

    fn drained(&mut self, now: Instant, node: NodeId) {
        if self.polls_at_once {
            self.poll(now, node);
        }
        for c in 0..self.connections.len() {
            for s in [0, 1] {
                let connection = &mut self.connections[c];
                // The NAK stays behind the answers to earlier READs, which keep to the rate.
                let may_wait = connection.has_rate[1 - s] && connection.flows[s].awaits_read();
                if connection.flows[s].nak_due && connection.sides[1 - s].node == node && !may_wait {
                    connection.flows[s].nak_due = false;
                    if connection.sides[s].destroyed || connection.sides[1 - s].killed || connection.flows[1 - s].failed
                    {
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
        let header = Header::of(frame);
        let Some(&(c, receiver)) = self.by_qpn.get(&(node.0, header.qpn.value())) else { return };
        let connection = &mut self.connections[c];
        connection.knows_addresses[receiver] |= header.names_addresses;
        if header.rail > 0 && !connection.knows_addresses[receiver] {
            return;
        }
        if header.opcode == Opcode::CNP {
            return;
        }
        connection.is_marked[receiver] |= header.is_marked;
        if let Some((_, tag)) = header.hello {
            let is_news = !connection.selective[receiver] && connection.nonces[receiver] == Some(tag);
            connection.selective[receiver] |= is_news;
            if is_news {
                connection.flows[receiver].get_acquainted();
            }
        }
        if header.opcode.is_response() {
            self.answer_arrives(now, c, receiver, &header, frame);
        } else {
            if let Some(carried) = header.carried(frame) {
                self.answer_arrives(now, c, receiver, &carried, frame);
            }
            self.request_arrives(c, 1 - receiver, &header);
        }
    }

    fn handled(&mut self, now: Instant, node: NodeId, endpoint: &mut Endpoint, frame: Option<&[u8]>) {
        if self.polls_at_once {
            self.poll(now, node);
        }
        let Some(frame) = frame else { return self.timer_handled(now, node) };
        let header = Header::of(frame);
        let Some(&(c, receiver)) = self.by_qpn.get(&(node.0, header.qpn.value())) else { return };
        if header.opcode == Opcode::CNP {
            return;
        }
        if !header.opcode.is_response() && !self.connections[c].places_writes_early(receiver) {
            self.poll_flag(now, c, 1 - receiver);
        } else if !header.opcode.is_response() {
            self.verify_message(now, c, 1 - receiver, &header);
        }
        let (waiting, limit) = (endpoint.waiting_bytes(), self.waiting_bytes_max[node.0]);
        if waiting > limit {
            self.violation(now, format!("{waiting} bytes wait on node {}, of {limit}", node.0));
        }
    }
}

impl Oracle {
    /// Applies a packet of flow `s` that arrives at the responder.
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
        let posted_receives = connection.sides[1 - s].posted_receives;
        let keeps_early = connection.windows[1 - s].is_some();
        if let Some(index) = flow.find(psn).filter(|wr| wr.kind.consumes() && !flow.has_begun(wr)).map(|wr| wr.index)
            && let Some(wr) = flow.wr_mut(index)
        {
            wr.lacked = posted_receives <= wr.receive;
        }
        let before = flow.arrived;
        flow.arrive(psn, end);
        if flow.refused == Some(psn) {
            (flow.refused, flow.nak_due) = (None, false);
        }
        let is_gap = if keeps_early { psn > before } else { psn > flow.expected };
        if keeps_early {
            flow.expected = flow.arrived;
        } else if psn == flow.expected {
            (flow.expected, flow.nak_due) = (end, false);
        }
        if is_gap {
            flow.gaps.insert(flow.expected);
        }
        let flow = &connection.flows[s];
        let is_alone = connection.sides[s].destroyed || connection.sides[1 - s].killed;
        // A queue pair in the error state is silent: its own requests or the peer's can have caused that.
        let may_be_in_error = connection.flows.iter().any(|flow| flow.bad.is_some() || flow.failed)
            || connection.sides[1 - s].took_away
            || !self.polls_at_once;
        if is_gap && flow.refused.is_none() && !connection.selective[1 - s] && !is_alone && !may_be_in_error {
            self.connections[c].flows[s].nak_due = true;
        }
    }

    /// Applies that a node has handled its timers: RNR waits that end now are over before frames that arrive at the
    /// same instant.
    fn timer_handled(&mut self, now: Instant, node: NodeId) {
        for connection in &mut self.connections {
            for (flow, side) in connection.flows.iter_mut().zip(&connection.sides) {
                flow.rnr_until = flow.rnr_until.filter(|until| side.node != node || now < *until);
            }
        }
    }

    /// Applies an answer to flow `s` that arrives at the requester in `frame`.
    fn answer_arrives(&mut self, now: Instant, c: usize, s: usize, header: &Header, frame: &[u8]) {
        let rnr_retry = u32::from(self.connections[c].rnr_retry);
        let timeout = self.connections[c].timeout;
        // From a known peer answers are taken in any order; a requester with plain go-back-N keeps no early ones.
        let keeps_early = self.connections[c].windows[s].is_some();
        let takes_any = keeps_early && self.connections[c].selective[s];
        let flow = &mut self.connections[c].flows[s];
        let Some(psn) = flow.count(header.psn, flow.known).filter(|psn| *psn < flow.sent) else { return };
        let syndrome = match header.opcode {
            Opcode::RC_ACKNOWLEDGE => Syndrome::from_byte(header.words[0][0]),
            _ => Syndrome::ACK,
        };
        let positive = matches!(syndrome, Syndrome::Ack { .. });
        let mut done = if positive { psn + 1 } else { psn };
        let is_late = flow.acknowledged > done;
        flow.acknowledged = flow.acknowledged.max(done);
        if header.opcode != Opcode::RC_ACKNOWLEDGE && takes_any {
            flow.answer(psn);
        } else if header.opcode != Opcode::RC_ACKNOWLEDGE
            && !flow.answer_in_order(psn, Header::said_by(frame), keeps_early)
        {
            done = psn;
        }
        // A requester that takes answers in any order remembers acknowledgements beyond missing ones.
        let heard = if takes_any { flow.acknowledged } else { done };
        let unanswered = flow.wrs.iter().find(|wr| wr.awaits_answer());
        let known = unanswered.map_or(heard, |wr| heard.min(wr.first + u64::from(wr.answers)));
        if known > flow.known {
            flow.be_patient(now);
            flow.known = known;
            flow.rnr_naks = 0;
            flow.rnr_until = None;
        }
        flow.naks += u32::from(syndrome == Syndrome::Nak(NakCode::PsnSequenceError));
        if known < done && flow.gap_at.is_none_or(|at| at + timeout <= now) {
            (flow.gap_at, flow.naks) = (Some(now), flow.naks + 1);
        }
        if let Syndrome::RnrNak(timer) = syndrome
            && (flow.known == psn || (takes_any && flow.known < psn && !is_late))
            && flow.rnr_until.is_none_or(|until| until < now)
        {
            flow.rnr_naks += 1;
            flow.most_rnr_naks = flow.most_rnr_naks.max(flow.rnr_naks);
            // With all retries used it waits no more: answers to earlier requests can still come.
            let gives_up = takes_any && rnr_retry != 7 && flow.rnr_naks > rnr_retry;
            flow.rnr_until = Some(now + timer.delay()).filter(|_| !gives_up);
        }
    }
}
