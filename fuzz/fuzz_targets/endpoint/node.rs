use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uroce::memory::Pd;
use uroce::time::Instant;
use uroce::transport::{
    Capabilities, CompletionKind, Data, Destination, Endpoint, Event, MAX_INLINE_BYTES, Path, QpAttributes,
    QueuePairInit, ReceiveRequest, RecoveryMode, RecoverySettings, Remote, SendOperation, SendRequest, Service, Sge,
    SgeList, State,
};
use uroce::wire::{self, Key, Operation, PathMtu, Placement, Psn, QKey, Qpn, RnrTimer, Selectivity};
use uroce_laboratory::world;

use crate::frames;
use crate::input::Input;
use crate::memory::{Arena, SLOT_BYTES, access};
use crate::queues::{CQS, Posted, QueuePairModel, Queues, SharedModel};

pub const QUEUE_PAIRS_MAX: usize = 6;
const SHARED_MAX: usize = 3;

/// Packets that a queue pair may have to send at the same time, by kind. Answers: four times what the peer may have
/// outstanding and two, then those that are new and a NAK; READ responses are of a slot each. RC requests: the window.
/// Others: a full queue of full entries.
const SENT_MAX: [usize; 4] = [OWED_MAX, OWED_MAX * SLOT_BYTES.div_ceil(256), 128, 16 * (16 * SLOT_BYTES).div_ceil(256)];
/// And answers to FLUSHes, which have no such limit.
const OWED_MAX: usize = 5 * RD_ATOMIC_MAX + 4 + 128;

/// The same where it may speak the extension: READs that a peer asks for again, and requests sent again, beside the others.
const EXTENDED_SENT_MAX: [usize; 4] = [OWED_MAX, (1 << 14) * SLOT_BYTES.div_ceil(256), 3 * 128, SENT_MAX[3]];

const Q_KEY: QKey = QKey(0x1111_1111);

/// READs and atomics outstanding in one direction, at the most.
const RD_ATOMIC_MAX: usize = 5;

/// An endpoint, and what is known of it.
pub struct Node {
    pub number: usize,
    pub endpoint: Endpoint,
    pub pds: [Pd; 2],
    pub arena: Arena,
    pub queues: Queues,
    pub events: u64,
    /// Frames sent by kind of packet: answers without data, READ responses, requests of RC, others.
    pub sent: [u64; 4],
    /// It may speak the extension; so many bytes may wait then.
    is_extended: bool,
    waiting_bytes_max: usize,
    buffer: Vec<u8>,
}

/// Where a send request goes.
pub struct Target {
    pub path: Path,
    pub qpn: Qpn,
    /// Memory there.
    pub remote: Remote,
    /// A key there.
    pub key: Key,
}

impl Node {
    pub fn new(number: usize) -> Node {
        let mut endpoint = Endpoint::new([number as u8 + 1; 32]);
        let pds = [endpoint.allocate_pd(), endpoint.allocate_pd()];
        let arena = Arena::new(&mut endpoint, pds[0]);
        let (queues, buffer) = (Queues::new(), vec![0; 8192]);
        let (sent, is_extended, waiting_bytes_max) = ([0; 4], false, 0);
        Node { number, endpoint, pds, arena, queues, events: 0, sent, is_extended, waiting_bytes_max, buffer }
    }

    /// How queue pairs that are created from now on deal with losses.
    pub fn choose_recovery(&mut self, input: &mut Input<'_>) {
        let recovery =
            [RecoveryMode::GoBackN, RecoveryMode::Auto, RecoveryMode::Auto, RecoveryMode::Selective][input.below(4)];
        self.is_extended = recovery != RecoveryMode::GoBackN;
        self.waiting_bytes_max = [4000, 1 << 30][input.below(2)];
        self.endpoint.set_recovery(RecoverySettings {
            recovery,
            window: [8, 128][input.below(2)],
            reorder_bytes: [0, 3000, 1 << 29][input.below(3)],
            endpoint_reorder_bytes: self.waiting_bytes_max,
            ..RecoverySettings::default()
        });
    }

    pub fn state(&self, qpn: Qpn) -> State {
        self.endpoint.queue_pair(qpn).expect("it is in the model").state()
    }

    /// The index of a queue pair of the model; `None` when there is none.
    pub fn choose(&self, input: &mut Input<'_>) -> Option<usize> {
        let count = self.queues.queue_pairs.len();
        (count > 0).then(|| input.below(count))
    }

    pub fn create(&mut self, service: Service, shared: bool, input: &mut Input<'_>) -> Option<Qpn> {
        let small = |input: &mut Input<'_>| if input.is_wild() { input.below(4) } else { 16 };
        let capabilities = Capabilities { max_send_requests: small(input), max_receive_requests: small(input) };
        let cqs = [(); 2].map(|()| if input.is_wild() { CQS - 1 } else { input.below(2) });
        let [send_cq, receive_cq] = cqs.map(|index| self.queues.cqs[index].clone());
        let srq = match self.queues.shared.len() {
            count @ 1.. if shared => Some(self.queues.shared[input.below(count)].srq),
            _ => None,
        };
        let pd = self.pds[usize::from(input.is_wild())];
        let path_mtu = PathMtu::Mtu256;
        let init = QueuePairInit { service, pd, capabilities, send_cq, receive_cq, srq, path_mtu };
        let possible = capabilities.max_send_requests > 0 && (srq.is_some() || capabilities.max_receive_requests > 0);
        let created = self.endpoint.create_queue_pair(init);
        if service != Service::Gsi {
            assert_eq!(created.is_ok(), possible, "{created:?} with {capabilities:?}");
        }
        let qpn = created.ok()?;
        self.queues.queue_pairs.push(QueuePairModel::new(qpn, service, srq, cqs));
        Some(qpn)
    }

    pub fn destroy(&mut self, index: usize) {
        self.queues.poll();
        let qp = self.queues.queue_pairs.remove(index);
        self.endpoint.destroy_queue_pair(qp.qpn).expect("it is in the model");
        self.endpoint.destroy_queue_pair(qp.qpn).expect_err("it is gone");
    }

    pub fn create_shared(&mut self, capacity: usize) {
        if self.queues.shared.len() >= SHARED_MAX {
            return;
        }
        let created = self.endpoint.create_srq(self.pds[0], capacity);
        assert_eq!(created.is_ok(), capacity > 0);
        if let Ok(srq) = created {
            self.queues.shared.push(SharedModel { srq, capacity, limit: 0, posted: Default::default() });
        }
    }

    /// Makes, arms, asks and removes shared receive queues.
    pub fn act_on_shared(&mut self, input: &mut Input<'_>) {
        let count = self.queues.shared.len();
        if count == 0 || input.chance(40) {
            return self.create_shared(input.below(12));
        }
        let index = input.below(count);
        let shared = &mut self.queues.shared[index];
        match input.below(4) {
            0 => {
                let users = self.queues.queue_pairs.iter().filter(|qp| qp.srq == Some(shared.srq)).count();
                let removed = self.endpoint.destroy_srq(shared.srq);
                assert_eq!(removed.is_ok(), users == 0, "{removed:?} with {users} queue pairs");
                if users == 0 {
                    self.queues.shared.remove(index);
                }
            }
            1 => assert_eq!(self.endpoint.query_srq(shared.srq), Ok((shared.capacity, shared.limit))),
            _ => {
                let limit = input.below(14);
                let armed = self.endpoint.arm_srq(shared.srq, limit);
                assert_eq!(armed.is_ok(), limit <= shared.capacity);
                if armed.is_ok() {
                    shared.limit = limit;
                }
            }
        }
    }

    /// Attributes that lead a queue pair to `state`, all as they must be.
    pub fn attributes(
        &self,
        service: Service,
        state: State,
        path: Path,
        peer: Qpn,
        input: &mut Input<'_>,
    ) -> QpAttributes {
        let rc = service == Service::Rc;
        let psn = || Psn::new(0xff_fff0);
        let mut attributes = QpAttributes { state: Some(state), ..Default::default() };
        match state {
            State::Init => {
                attributes.p_key_index = Some(0);
                attributes.port = (service != Service::Gsi).then_some(1);
                match service.is_datagram() {
                    true => attributes.q_key = Some(Q_KEY),
                    false => attributes.access = Some(access(input)),
                }
            }
            State::ReadyToReceive if !service.is_datagram() => {
                attributes.path = Some(path);
                attributes.path_mtu = Some(PathMtu::Mtu256);
                attributes.destination = Some(peer);
                attributes.receive_psn = Some(psn());
                attributes.max_dest_rd_atomic = rc.then(|| rd_atomic(input));
                attributes.min_rnr_timer = rc.then(|| RnrTimer::new(1 + input.byte() % 8));
            }
            State::ReadyToSend => {
                attributes.send_psn = Some(psn());
                if rc {
                    attributes.timeout = Some(if input.is_wild() { 0 } else { 8 + input.byte() % 4 });
                    attributes.retry_count = Some(input.byte() % 8);
                    attributes.rnr_retry = Some(input.byte() % 8);
                    attributes.max_rd_atomic = Some(rd_atomic(input));
                }
            }
            _ => {}
        }
        attributes
    }

    /// Modifies, and holds the outcome against what must follow.
    pub fn modify(&mut self, now: Instant, index: usize, attributes: &QpAttributes) -> bool {
        let resets = attributes.state == Some(State::Reset);
        if resets {
            self.queues.poll();
        }
        let qp = &mut self.queues.queue_pairs[index];
        let qpn = qp.qpn;
        let before = self.endpoint.queue_pair(qpn).expect("it is in the model").state();
        let modified = self.endpoint.modify(now, qpn, attributes);
        let after = self.endpoint.queue_pair(qpn).expect("it is in the model").state();
        match modified {
            Ok(()) => assert_eq!(after, attributes.state.unwrap_or(before)),
            Err(error) => {
                assert_eq!(after, before, "{error}");
                assert!(!error.to_string().is_empty());
            }
        }
        if modified.is_ok() {
            // Without a timer, or without the right to ask, a request may wait for ever.
            qp.may_stall |= attributes.timeout == Some(0);
            qp.may_stall |= attributes.max_rd_atomic == Some(0) && before != State::ReadyToReceive;
            if resets {
                qp.reset();
            }
            if before == State::SendQueueError && after == State::ReadyToSend {
                self.queues.poll();
                self.queues.queue_pairs[index].failed = false;
            }
        }
        modified.is_ok()
    }

    /// Any modification: mostly a sensible one, with something missing or too much at times.
    pub fn modify_somehow(&mut self, now: Instant, index: usize, path: Path, peer: Qpn, input: &mut Input<'_>) {
        use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
        let qp = &self.queues.queue_pairs[index];
        let (service, from) = (qp.service, self.state(qp.qpn));
        let to = match (from, if input.is_wild() { input.byte() } else { 0 }) {
            (Reset, 0..160) => Init,
            (Init, 0..160) => ReadyToReceive,
            (ReadyToReceive, 0..160) => ReadyToSend,
            (ReadyToSend, 0..160) => SendQueueDrained,
            (SendQueueDrained | SendQueueError, 0..160) => ReadyToSend,
            (Error, 0..160) => Reset,
            (_, other) => [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError, Error, from]
                [usize::from(other % 8)],
        };
        let mut attributes = match (from, to) {
            (Reset | Init | ReadyToReceive, _) => self.attributes(service, to, path, peer, input),
            _ => QpAttributes { state: Some(to), ..Default::default() },
        };
        match if input.is_wild() { input.byte() } else { 255 } {
            0..20 => attributes.notify_drained = Some(true),
            20..30 => attributes.max_dest_rd_atomic = Some(input.byte() % 3),
            30..40 => attributes.max_rd_atomic = Some(input.byte() % 3),
            40..50 => attributes.access = Some(access(input)),
            50..60 => attributes.path = Some(path),
            60..65 => attributes.timeout = Some(input.byte()),
            65..70 => attributes.path_mtu = None,
            70..75 => attributes.current_state = Some(ReadyToSend),
            75..80 => attributes.q_key = Some(QKey(input.u32())),
            80..85 => attributes.state = None,
            _ => {}
        }
        if to == SendQueueDrained && from == ReadyToSend && input.chance(200) {
            attributes.notify_drained = Some(true);
        }
        self.modify(now, index, &attributes);
    }

    fn sges(&self, count: usize, most: usize, input: &mut Input<'_>) -> SgeList {
        let sge = |_| {
            let (address, lkey) = self.arena.name(input);
            Sge { address, length: length(most, input), lkey }
        };
        (0..count).map(sge).collect()
    }

    pub fn post_receive(&mut self, now: Instant, index: usize, input: &mut Input<'_>) {
        let count = if input.chance(200) { 1 } else { input.below(5) };
        let request = ReceiveRequest { wr_id: self.queues.wr_id(), sges: self.sges(count, 1900, input) };
        let wr_id = request.wr_id;
        let qp = &self.queues.queue_pairs[index];
        let own = self.endpoint.post_receive(now, qp.qpn, request.clone());
        if own.is_ok() {
            self.queues.queue_pairs[index].receives.push_back(wr_id);
        }
        let Some(srq) = self.queues.queue_pairs[index].srq else { return };
        assert!(own.is_err(), "a queue pair with a shared receive queue took a request of its own");
        if self.endpoint.post_srq_receive(srq, request).is_ok() {
            self.queues.find_shared(srq).expect("it is in use").posted.insert(wr_id);
        }
    }

    pub fn post_send(&mut self, now: Instant, index: usize, target: Target, input: &mut Input<'_>) {
        use SendOperation as Op;
        let (qpn, service) = (self.queues.queue_pairs[index].qpn, self.queues.queue_pairs[index].service);
        let remote = target.remote;
        let kind = match service {
            Service::Uc if !input.is_wild() => [0, 1, 3, 4, 8][input.below(5)],
            Service::Ud | Service::Gsi if !input.is_wild() => input.below(2),
            _ => input.below(14),
        };
        let (operation, kind) = match kind {
            0 => (Op::Send, CompletionKind::Send),
            1 => (Op::SendWithImmediate(input.u32()), CompletionKind::Send),
            2 => (Op::SendWithInvalidate(target.key), CompletionKind::Send),
            3 => (Op::Write(remote), CompletionKind::Write),
            4 => (Op::WriteWithImmediate(remote, input.u32()), CompletionKind::Write),
            5 | 6 => (Op::Read(remote), CompletionKind::Read),
            7 => {
                let (compare, swap) = (input.u64(), input.u64());
                (Op::CompareSwap { remote, compare, swap }, CompletionKind::CompareSwap)
            }
            8 => match self.arena.bind(input) {
                (_, Some(binding)) => (Op::BindWindow(binding), CompletionKind::BindWindow),
                (key, None) => (Op::LocalInvalidate(key), CompletionKind::LocalInvalidate),
            },
            9 | 10 => (Op::FetchAdd { remote, add: input.u64() }, CompletionKind::FetchAdd),
            11 => (Op::AtomicWrite(remote), CompletionKind::AtomicWrite),
            12 => {
                let (length, placement) = (input.u32() % 2048, Placement::from_bits_retain(input.byte() & 3));
                let selectivity = Selectivity::new(input.byte());
                (Op::Flush { remote, length, placement, selectivity }, CompletionKind::Flush)
            }
            _ => (Op::Write(remote), CompletionKind::Write),
        };
        let most = if service.is_datagram() { 256 } else { 1900 };
        let is_word = operation.is_atomic() || matches!(operation, Op::AtomicWrite(_));
        let data = if is_word && !input.is_wild() {
            let (address, lkey) = self.arena.name(input);
            Data::sge(address, 8, lkey)
        } else if operation.is_local() || (matches!(operation, Op::Flush { .. }) && !input.is_wild()) {
            Data::EMPTY
        } else if input.chance(30) {
            Data::Inline((0..input.below(MAX_INLINE_BYTES + 1).min(255)).map(|i| i as u8).collect())
        } else {
            let count = if input.chance(200) { 1 } else { input.below(17) };
            Data::Sges(self.sges(count, most, input))
        };
        let mut request = SendRequest::new(self.queues.wr_id(), operation, data);
        let flags = input.byte();
        request.signaled = flags & 3 != 0;
        request.solicited = flags & 4 != 0;
        request.fence = flags & 0x18 == 0x18;
        if service.is_datagram() {
            let q_key = if input.is_wild() { QKey(input.u32()) } else { Q_KEY };
            request.destination = Some(Destination { path: target.path, qpn: target.qpn, q_key });
        }
        let posted = Posted { wr_id: request.wr_id, signaled: request.signaled, kind };
        let result = self.endpoint.post_send(now, qpn, request);
        let takes = !matches!(self.state(qpn), State::Reset | State::Init | State::ReadyToReceive);
        assert!(takes || result.is_err(), "a queue pair in {} took a send request", self.state(qpn));
        if result.is_ok() {
            self.queues.queue_pairs[index].sends.push_back(posted);
        }
    }

    /// Takes up to `count` packets that the endpoint wants to send, checks them, and hands them over as frames with the
    /// node they are for. True when there are no more.
    pub fn transmit(&mut self, now: Instant, count: usize, mut take: impl FnMut(usize, Vec<u8>)) -> bool {
        let mut sent = [0; 4];
        for _ in 0..count {
            let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) else {
                self.check_alive();
                return true;
            };
            let frame = world::with_ethernet(&self.buffer[..transmit.len]);
            let opcode = frames::check(&frame, self.number);
            let kind = match (opcode.is_response(), opcode.operation(), opcode.service()) {
                (true, Operation::ReadResponse, _) => 1,
                (true, ..) => 0,
                (false, _, wire::TransportService::Rc) => 2,
                _ => 3,
            };
            sent[kind] += 1;
            self.sent[kind] += 1;
            let sent_max = if self.is_extended { EXTENDED_SENT_MAX } else { SENT_MAX };
            let most = sent_max[kind] * self.queues.queue_pairs.len();
            assert!(
                sent[kind] <= most,
                "{sent:?} answers, READ responses, RC requests, others at once, and more to come"
            );
            take(transmit.hop.0 as usize, frame);
        }
        false
    }

    /// An RC request that nothing is to be sent for waits for the peer, and then a timer runs.
    fn check_alive(&mut self) {
        self.queues.poll();
        let waits = |qp: &&QueuePairModel| {
            qp.service == Service::Rc
                && !qp.may_stall
                && self.state(qp.qpn) == State::ReadyToSend
                && !self.queues.cqs[qp.cqs[0]].has_overflowed()
                && qp.sends.iter().any(|posted| posted.signaled)
        };
        if let Some(qp) = self.queues.queue_pairs.iter().find(waits) {
            assert!(self.endpoint.poll_timeout().is_some(), "{} waits for ever", qp.qpn);
        }
    }

    /// What must hold after everything that happens.
    pub fn check(&mut self) {
        self.check_events();
        self.arena.check();
        let waiting = self.endpoint.waiting_bytes();
        assert!(waiting <= self.waiting_bytes_max, "{waiting} bytes wait, of {}", self.waiting_bytes_max);
        let queue_pairs = self.queues.queue_pairs.iter().map(|qp| self.endpoint.queue_pair(qp.qpn));
        let sum: usize = queue_pairs.map(|qp| qp.expect("it is in the model").waiting_bytes()).sum();
        assert_eq!(waiting, sum, "bytes wait for no queue pair");
    }

    pub fn check_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            self.events += 1;
            self.check_event(event);
        }
    }

    fn check_event(&mut self, event: Event) {
        match event {
            Event::QueuePairFatal(qpn) | Event::RequestError(qpn) | Event::AccessError(qpn) => {
                assert_eq!(self.state(qpn), State::Error, "{event:?}");
            }
            Event::CompletionQueueOverflow(qpn) => {
                let qp = self.queues.find(qpn).expect("it is there");
                let cqs = qp.cqs;
                assert!(cqs.iter().any(|index| self.queues.cqs[*index].has_overflowed()), "{event:?}");
            }
            Event::SendQueueDrained(qpn) => {
                assert_eq!(self.state(qpn), State::SendQueueDrained, "{event:?}");
            }
            Event::SrqLimit(srq) => {
                let shared = self.queues.find_shared(srq).expect("it is there");
                assert!(shared.limit > 0, "{event:?}, but it was not armed");
                shared.limit = 0;
            }
            Event::LastWqeReached(qpn, srq) => {
                let qp = self.queues.find(qpn).expect("it is there");
                qp.last_wqe_events += 1;
                assert_eq!((qp.srq, qp.last_wqe_events), (Some(srq), 1), "{event:?}");
            }
        }
    }

    /// Everything is flushed, reset and removed; panics when anything is left.
    pub fn finish(&mut self, now: Instant) {
        for index in 0..self.queues.queue_pairs.len() {
            let attributes = QpAttributes { state: Some(State::Error), ..Default::default() };
            assert!(self.modify(now, index, &attributes));
        }
        self.check();
        self.queues.poll();
        self.queues.check_all_reported();
        self.transmit(now, usize::MAX, |_, _| {});
        for index in 0..self.queues.queue_pairs.len() {
            let attributes = QpAttributes { state: Some(State::Reset), ..Default::default() };
            assert!(self.modify(now, index, &attributes));
        }
        assert_eq!(self.endpoint.poll_transmit(now, &mut self.buffer), None, "nothing is owed after a reset");
        assert!(!self.endpoint.may_transmit());
        self.settle_timers(now);
        while !self.queues.queue_pairs.is_empty() {
            self.destroy(0);
        }
        assert_eq!(self.endpoint.queue_pairs(), 0);
        for shared in self.queues.shared.drain(..) {
            self.endpoint.destroy_srq(shared.srq).expect("nobody uses it");
        }
        self.arena.check();
        self.arena.clear(&mut self.endpoint);
    }

    /// Timers that were left behind go when their time comes, and then there is none.
    fn settle_timers(&mut self, mut now: Instant) {
        /// Four a queue pair and some may stand.
        const TIMERS_MAX: usize = 4 * QUEUE_PAIRS_MAX + 64 + 1;
        for _ in 0..TIMERS_MAX {
            let Some(at) = self.endpoint.poll_timeout() else { return };
            now = now.max(at);
            self.endpoint.handle_timeout(now);
        }
        panic!("timers are armed at rest: {:?}", self.endpoint.poll_timeout());
    }
}

/// Bytes of an entry: around the path MTU, small, or up to `most`; or absurd.
fn length(most: usize, input: &mut Input<'_>) -> u32 {
    if input.is_wild() {
        return match input.below(4) {
            0 => 1 << 31,
            1 => (1 << 31) - 300,
            2 => 3900,
            _ => input.u32(),
        };
    }
    match input.byte() {
        byte @ 0..10 => u32::from(byte & 1),
        byte @ 10..60 => 255 + u32::from(byte % 3),
        60..160 => most as u32,
        _ => u32::from(input.byte()).min(most as u32),
    }
}

fn rd_atomic(input: &mut Input<'_>) -> u8 {
    if input.is_wild() { 0 } else { 1 + input.below(RD_ATOMIC_MAX) as u8 }
}

/// How to get from one node to another.
pub fn path(from: usize, to: usize, is_v6: bool) -> Path {
    let address = |node: usize| match is_v6 {
        true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node as u16 + 1)),
        false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, node as u8 + 1)),
    };
    world::path(address(from), address(to), to as u64)
}
