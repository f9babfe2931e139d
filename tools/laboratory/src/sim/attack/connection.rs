use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use uroce::congestion::CongestionControl;
use uroce::frame::{FrameBytes, Hop};
use uroce::memory::{Access, HostMemory};
use uroce::path::PathPolicy;
use uroce::time::{Duration, Instant};
use uroce::transport::{
    CompletionRing, Data, Endpoint, Path, ReceiveRequest, RecoveryMode, RecoverySettings, Remote, SendOperation,
    SendRequest, Service, Sge, SgeList, Status,
};
use uroce::wire::{Addresses, Flow, ICRC_BYTES, Key, Packet, Psn, Qpn};

use crate::world::{Peering, queue_pair};

use super::super::link::{Faults, LinkProfile};
use super::super::network::{LinkEnd, Network, NodeId, Observer, Step, bth_offset};
use super::super::planes::FIRST_PORT;
use super::super::random::Random;
use super::super::transfer::TransferOperation;
use super::forgery::{FORGED, Known, MTU, SPOT_BYTES, SPOTS, STRANGER};
use super::{AttackOutcome, Counts};

/// The parameters of a connection that is attacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The operation of its messages, and the packets of each.
    pub operation: TransferOperation,
    pub packets: u32,
    /// The recovery of the requester, and of the responder.
    pub recovery: [RecoveryMode; 2],
    /// Whether the responder is attacked; otherwise the requester is.
    pub is_responder_attacked: bool,
    /// The share of frames that the network loses in each direction, 0 to 1.
    pub loss: f64,
    /// Whether it continues after the extension was wrongly switched on, as for forgeries that redirect packets.
    pub outlives_extension: bool,
}

/// A reliable connection that is always busy, and all effects of forged packets on it.
///
/// Programs at both ends know their requests, and check memory, completions and sent frames. They never ask the
/// transport how it judges a packet.
pub(super) struct Connection {
    plan: Plan,
    network: Network,
    /// The requester, and the responder.
    sides: [Side; 2],
    /// The numbers of messages posted and completed.
    posted: u64,
    completed: u64,
    /// The numbers of receive requests posted and completed.
    receives: u64,
    received: u64,
    /// By slot: one more than the number of the message whose bytes a receive request has completely reported.
    seen: Vec<u64>,
    watch: Watch,
    /// When a message was completed last.
    last_progress: Instant,
    is_broken: bool,
    pub counts: Counts,
    scratch: Vec<u8>,
}

struct Side {
    node: NodeId,
    qpn: Qpn,
    memory: Arc<HostMemory>,
    key: Key,
    cq: Arc<CompletionRing>,
}

/// Rate and delay in each direction: 50 Mb/s and 10 ms.
///
/// A window of 128 packets is then always full, and true packets are few beside forged ones. The effect of a forged
/// packet depends on the window, and not on rate or delay.
const BYTES_PER_SECOND: u64 = 6_250_000;
const DELAY: Duration = Duration::from_millis(10);

/// The time until the window is full, and both ends know of each other.
const WARM_UP: Duration = Duration::from_millis(200);

/// The local ACK timeout code: 134 ms. After eight of them a requester gives up.
const TIMEOUT_CODE: u8 = 15;

/// The time without completions after which a connection counts as broken; it is several times that of giving up.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The packets of outstanding messages: more than fit into a window.
const OUTSTANDING_PACKETS: u32 = 256;

/// The slots in memory for each outstanding message, so that bytes stay in place long after completion.
const SLOTS_A_MESSAGE: u64 = 4;

impl Plan {
    fn outstanding(&self) -> u64 {
        u64::from(OUTSTANDING_PACKETS.div_ceil(self.packets)).max(8)
    }

    fn slots(&self) -> u64 {
        SLOTS_A_MESSAGE * self.outstanding()
    }

    fn message_bytes(&self) -> usize {
        self.packets as usize * MTU.bytes()
    }

    fn attacked(&self) -> usize {
        usize::from(self.is_responder_attacked)
    }
}

/// The address of a side's first interface.
fn address(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + side as u8)
}

fn further_address(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, 1 + side as u8)
}

/// Observations of the attacked side's frames.
struct Watch {
    node: NodeId,
    /// The peer's addresses.
    peer: [[u8; 4]; 2],
    /// Whether the peer never offers the extension.
    is_peer_plain: bool,
    has_sent_elsewhere: bool,
    has_sent_extended: bool,
}

impl Observer for Watch {
    fn sent(&mut self, _now: Instant, node: NodeId, frame: &[u8], _to: NodeId) {
        const IS_EXTENDED: u8 = 0x20;
        const HELLO: u8 = 0x50;
        if node != self.node {
            return;
        }
        self.has_sent_elsewhere |= !self.peer.iter().any(|address| frame[30..34] == *address);
        let is_extended = frame[bth_offset(frame) + 8] & IS_EXTENDED != 0;
        // An apparent offer is answered with a hello, which is an acknowledge for a peer without the extension.
        let is_hello = frame[frame.len() - ICRC_BYTES - Packet::TAG_BYTES - 1] == HELLO;
        self.has_sent_extended |= self.is_peer_plain && is_extended && !is_hello;
    }
}

/// The first bytes of each packet of a message: the numbers of the message and the packet. No byte is 0x80 or more.
fn stamp(number: u64, packet: u32) -> [u8; 8] {
    let number = number + 1;
    let bits = |value: u64, at: u32| (value >> at) as u8 & 0x7f;
    let packet = u64::from(packet);
    let [a, b, c, d, e] = [28, 21, 14, 7, 0].map(|at| bits(number, at));
    let [f, g, h] = [14, 7, 0].map(|at| bits(packet, at));
    [a, b, c, d, e, f, g, h]
}

/// The number of the message in a stamp; `None` for zeros.
fn number_of(stamp: &[u8]) -> Option<u64> {
    stamp[..5].iter().fold(0, |number, byte| number << 7 | u64::from(*byte)).checked_sub(1)
}

impl Connection {
    /// A connection that has been busy for the time of the warm-up.
    pub fn new(plan: Plan, seed: u64) -> Connection {
        let mut network = Network::new(seed);
        let mut random = Random::new(seed, 3);
        let sides = [0, 1].map(|side| {
            let mut endpoint = Endpoint::new([0; 32].map(|_: u8| random.u32() as u8));
            // The settings are those of a device with two interfaces.
            let settings = RecoverySettings::default().with_paths_as_peer(2, PathPolicy::default());
            // What an attack reaches is computed from a window that is known.
            let settings = settings.with_congestion(CongestionControl::Fixed);
            endpoint.set_recovery(RecoverySettings { recovery: plan.recovery[side], ..settings });
            endpoint.set_local_rails(vec![vec![further_address(side).into()]]);
            let node = network.add_node(endpoint);
            let memory_bytes = plan.slots() as usize * plan.message_bytes() + SPOTS as usize * SPOT_BYTES;
            let memory = Arc::new(HostMemory::new(memory_bytes).expect("the simulation's memory"));
            let cq = Arc::new(CompletionRing::new(4 * plan.outstanding() as usize + 16, || {}));
            let endpoint = network.endpoint(node);
            let pd = endpoint.allocate_pd();
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::RELAXED_ORDERING;
            let key = endpoint.memory().register(pd, memory.clone(), access);
            let requests = plan.outstanding() as usize;
            let init = queue_pair(Service::Rc, pd, [requests; 2], &cq, MTU);
            let qpn = endpoint.create_queue_pair(init).expect("the first queue pair");
            Side { node, qpn, memory, key, cq }
        });
        for (from, to) in [(0, 1), (1, 0)] {
            let profile = LinkProfile {
                bytes_per_second: BYTES_PER_SECOND,
                delay: DELAY,
                queue_bytes: u64::MAX,
                marking: None,
                faults: Faults { loss: plan.loss, ..Faults::NONE },
            };
            network.add_link(LinkEnd::Node(sides[from].node), LinkEnd::Node(sides[to].node), profile);
            network.add_address(sides[to].node, further_address(to).into());
        }
        let attacked = plan.attacked();
        // The attacked side has a route to the stranger.
        network.add_address(sides[1 - attacked].node, STRANGER.into());
        let watch = Watch {
            node: sides[attacked].node,
            peer: [address(1 - attacked).octets(), further_address(1 - attacked).octets()],
            is_peer_plain: plan.recovery[1 - attacked] == RecoveryMode::GoBackN,
            has_sent_elsewhere: false,
            has_sent_extended: false,
        };
        let mut connection = Connection {
            plan,
            network,
            sides,
            posted: 0,
            completed: 0,
            receives: 0,
            received: 0,
            seen: vec![0; plan.slots() as usize],
            watch,
            last_progress: Instant::ZERO,
            is_broken: false,
            counts: Counts::default(),
            scratch: vec![0; plan.message_bytes()],
        };
        connection.connect([random.u32(), random.u32()].map(Psn::new));
        connection.post();
        // Bursts move in step with the round trip: the attacks on two connections must not begin at the same phase.
        connection.run(WARM_UP + random.up_to(2 * DELAY));
        connection
    }

    fn connect(&mut self, first_psns: [Psn; 2]) {
        for side in [0, 1] {
            let (here, there) = (&self.sides[side], &self.sides[1 - side]);
            let peering = Peering {
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
                path_mtu: MTU,
                send_psn: first_psns[side],
                receive_psn: first_psns[1 - side],
                timeout: TIMEOUT_CODE,
                ..Peering::new(Path { flow: flow(side), hop: Hop(there.node.0 as u64) }, there.qpn)
            };
            let now = self.network.now();
            peering.connect(self.network.endpoint(here.node), now, here.qpn);
        }
    }

    fn offset(&self, number: u64) -> usize {
        (number % self.plan.slots()) as usize * self.plan.message_bytes()
    }

    fn sge(&self, side: usize, number: u64) -> Sge {
        let (side, offset) = (&self.sides[side], self.offset(number));
        Sge { address: side.memory.address() + offset as u64, length: self.plan.message_bytes() as u32, lkey: side.key }
    }

    /// Posts requests until the planned number is outstanding.
    fn post(&mut self) {
        let now = self.network.now();
        let Plan { operation, packets, .. } = self.plan;
        if operation == TransferOperation::Send {
            for number in self.receives..self.received + self.plan.outstanding() {
                let request = ReceiveRequest { wr_id: number, sges: SgeList::from_iter([self.sge(1, number)]) };
                let (node, qpn) = (self.sides[1].node, self.sides[1].qpn);
                self.network.endpoint(node).post_receive(now, qpn, request).expect("there is room");
            }
            self.receives = self.received + self.plan.outstanding();
        }
        for number in self.posted..self.completed + self.plan.outstanding() {
            let source = &self.sides[usize::from(operation == TransferOperation::Read)];
            for packet in 0..packets {
                let at = self.offset(number) + packet as usize * MTU.bytes();
                source.memory.write(at, &stamp(number, packet));
            }
            let Sge { address, lkey: key, .. } = self.sge(1, number);
            let operation = match operation {
                TransferOperation::Write => SendOperation::Write(Remote { address, key }),
                TransferOperation::Read => SendOperation::Read(Remote { address, key }),
                TransferOperation::Send => SendOperation::Send,
            };
            let request = SendRequest::new(number, operation, Data::Sges(SgeList::from_iter([self.sge(0, number)])));
            let (node, qpn) = (self.sides[0].node, self.sides[0].qpn);
            self.network.endpoint(node).post_send(now, qpn, request).expect("there is room");
        }
        if self.posted < self.completed + self.plan.outstanding() {
            self.posted = self.completed + self.plan.outstanding();
            self.network.kick(self.sides[0].node, &mut self.watch);
        }
    }

    /// Whether the connection can show nothing more: a lasting effect was seen.
    pub fn is_over(&self) -> bool {
        let is_extended = self.watch.has_sent_extended && !self.plan.outlives_extension;
        self.is_broken || self.watch.has_sent_elsewhere || is_extended
    }

    /// Runs the network for `span`, or until [`is_over`](Self::is_over).
    pub fn run(&mut self, span: Duration) {
        let until = self.network.now() + span;
        while !self.is_over() && self.network.next().is_some_and(|at| at <= until) {
            if let Some(Step::Handled(_)) = self.network.step(&mut self.watch) {
                self.look();
            }
        }
        self.network.advance_to(until);
        if self.network.now() > self.last_progress + STALLED_AFTER {
            self.is_broken = true;
        }
    }

    /// Makes the attacked side receive a frame.
    pub fn inject(&mut self, frame: &[u8]) {
        let (now, node) = (self.network.now(), self.sides[self.plan.attacked()].node);
        self.network.endpoint(node).handle_frame(now, FrameBytes::from(frame));
        if !self.plan.is_responder_attacked {
            // The forged frame must be the cause of completions that are found now.
            self.poll();
        }
    }

    /// Checks the effects of injected frames, and sends what they caused.
    pub fn settle(&mut self) {
        self.look();
        self.network.kick(self.sides[self.plan.attacked()].node, &mut self.watch);
    }

    /// What a stranger knows of the connection.
    pub fn known(&self) -> Known {
        let attacked = self.plan.attacked();
        let responder = &self.sides[1];
        let spots = responder.memory.address() + (self.plan.slots() as usize * self.plan.message_bytes()) as u64;
        Known { flow: flow(1 - attacked), qpn: self.sides[attacked].qpn, spots, key: responder.key }
    }

    /// A PSN in use: the one that the responder expects, or the oldest that the requester waits for.
    pub fn psn_in_use(&mut self) -> Psn {
        let side = &self.sides[self.plan.attacked()];
        let queue_pair = self.network.endpoint(side.node).queue_pair(side.qpn).expect("it was created");
        if self.plan.is_responder_attacked { queue_pair.psns().1 } else { queue_pair.send_progress().0 }
    }

    /// Whether the requester uses the extension towards its peer.
    pub fn is_extended(&mut self) -> bool {
        let side = &self.sides[0];
        self.network.endpoint(side.node).queue_pair(side.qpn).is_ok_and(|queue_pair| queue_pair.is_extended())
    }

    /// The number of completed messages.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Checks all effects, and then posts new requests.
    fn look(&mut self) {
        let before = (self.completed, self.received);
        self.poll();
        self.look_at_spots();
        for side in &self.sides {
            // An event is a refused request: there is no other cause here.
            self.is_broken |= self.network.endpoint(side.node).poll_event().is_some();
        }
        if before != (self.completed, self.received) && !self.is_broken {
            self.last_progress = self.network.now();
            self.post();
        }
    }

    /// Takes all completions, and compares memory.
    fn poll(&mut self) {
        while let Some(completion) = self.sides[1].cq.poll() {
            if completion.status != Status::Success {
                self.is_broken = true;
                return;
            }
            let offset = self.offset(completion.wr_id);
            let number = self.inspect(1, offset);
            self.received += 1;
            if let Some(number) = number {
                let slot = number % self.plan.slots();
                self.seen[slot as usize] = number + 1;
            }
        }
        let mut is_any_false = false;
        while let Some(completion) = self.sides[0].cq.poll() {
            if completion.status != Status::Success {
                self.is_broken = true;
                break;
            }
            let number = completion.wr_id;
            let is_there = match self.plan.operation {
                TransferOperation::Write => self.inspect(1, self.offset(number)) == Some(number),
                TransferOperation::Read => self.inspect(0, self.offset(number)) == Some(number),
                TransferOperation::Send => self.seen[(number % self.plan.slots()) as usize] == number + 1,
            };
            is_any_false |= !is_there;
            self.completed += 1;
        }
        self.counts[AttackOutcome::FalselyCompleted] += u64::from(is_any_false);
    }

    /// The number of the message whose bytes fill a slot completely. Parts with forged bytes are counted once, and
    /// cleared.
    fn inspect(&mut self, side: usize, offset: usize) -> Option<u64> {
        let memory = &self.sides[side].memory;
        memory.read(offset, &mut self.scratch);
        let number = number_of(&self.scratch);
        let mut is_whole = true;
        for (packet, part) in (0..).zip(self.scratch.chunks(MTU.bytes())) {
            if part.contains(&FORGED) {
                self.counts[AttackOutcome::Placed] += 1;
                memory.write(offset + packet as usize * MTU.bytes(), &[0; MTU.bytes()]);
            }
            is_whole &= number.is_some_and(|number| part[..8] == stamp(number, packet));
        }
        number.filter(|_| is_whole)
    }

    /// Counts forged WRITEs at their target addresses.
    fn look_at_spots(&mut self) {
        let memory = &self.sides[1].memory;
        let mut spots = [0; SPOTS as usize * SPOT_BYTES];
        let offset = memory.len() - spots.len();
        memory.read(offset, &mut spots);
        if !spots.contains(&FORGED) {
            return;
        }
        let placed = spots.chunks(SPOT_BYTES).filter(|spot| spot.contains(&FORGED)).count();
        self.counts[AttackOutcome::Placed] += placed as u64;
        memory.write(offset, &[0; SPOTS as usize * SPOT_BYTES]);
    }

    /// The counts of all outcomes of the connection.
    pub fn finish(mut self) -> Counts {
        self.look_at_spots();
        for side in [0, 1] {
            for slot in 0..self.plan.slots() {
                let offset = self.offset(slot);
                self.inspect(side, offset);
            }
        }
        self.counts[AttackOutcome::Broken] += u64::from(self.is_broken);
        self.counts[AttackOutcome::Redirected] += u64::from(self.watch.has_sent_elsewhere);
        self.counts[AttackOutcome::SwitchedOn] += u64::from(self.watch.has_sent_extended);
        self.counts
    }
}

/// The outer headers of the packets that a side sends.
fn flow(side: usize) -> Flow {
    let [source, destination] = [address(side), address(1 - side)].map(IpAddr::from);
    Flow {
        addresses: Addresses::new(source, destination).expect("of one family"),
        source_port: FIRST_PORT,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uroce::transport::{QpAttributes, State};

    const PLAN: Plan = Plan {
        operation: TransferOperation::Write,
        packets: 1,
        recovery: [RecoveryMode::GoBackN; 2],
        is_responder_attacked: true,
        loss: 0.0,
        outlives_extension: false,
    };

    #[test]
    fn a_connection_that_nobody_attacks_goes_on_and_nothing_becomes_of_it() {
        for operation in TransferOperation::ALL {
            for packets in [1, 61] {
                for recovery in
                    [[RecoveryMode::GoBackN; 2], [RecoveryMode::Auto; 2], [RecoveryMode::GoBackN, RecoveryMode::Auto]]
                {
                    let plan = Plan { operation, packets, recovery, ..PLAN };
                    let mut connection = Connection::new(plan, 1);
                    let before = connection.completed();
                    connection.run(Duration::from_millis(100));
                    assert!(before > 0 && connection.completed() > before, "{plan:?}");
                    assert_eq!(connection.finish(), Counts::default(), "{plan:?}");
                }
            }
        }
    }

    /// The oracle's other half: forged bytes are found wherever they were put.
    #[test]
    fn forged_bytes_are_found_in_messages_that_come_in_and_in_those_at_rest() {
        let mut connection = Connection::new(PLAN, 2);
        let memory = connection.sides[1].memory.clone();
        // The slot that is written next, the one after the latest, and a target of forged WRITEs.
        let spots = memory.len() - SPOTS as usize * SPOT_BYTES;
        memory.write(spots + 5 * SPOT_BYTES + 3, &[FORGED]);
        connection.look_at_spots();
        assert_eq!(connection.counts[AttackOutcome::Placed], 1);
        connection.look_at_spots();
        assert_eq!(connection.counts[AttackOutcome::Placed], 1, "each is counted once");
        for slot in [3, 9] {
            memory.write(slot * MTU.bytes() + 17, &[FORGED; 4]);
        }
        assert_eq!(connection.finish()[AttackOutcome::Placed], 3);
    }

    #[test]
    fn a_completion_before_its_bytes_are_there_is_false() {
        let mut connection = Connection::new(PLAN, 3);
        let number = connection.completed;
        connection.sides[1].memory.write(connection.offset(number), &[0; 8]);
        assert_eq!(connection.inspect(1, connection.offset(number)), None);
        let whole = connection.completed - 1;
        assert_eq!(connection.inspect(1, connection.offset(whole)), Some(whole));
    }

    #[test]
    fn frames_to_others_and_extended_ones_to_a_plain_peer_are_seen() {
        let watch = |is_peer_plain| Watch {
            node: NodeId(1),
            peer: [address(0).octets(), further_address(0).octets()],
            is_peer_plain,
            has_sent_elsewhere: false,
            has_sent_extended: false,
        };
        let frame = |to: Ipv4Addr, flags: u8| {
            let mut frame = [0; 60];
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[30..34].copy_from_slice(&to.octets());
            frame[14 + 20 + 8 + 8] = flags;
            frame
        };
        for (node, to, flags, is_peer_plain, elsewhere, extended) in [
            (1, address(0), 0xc0, true, false, false),
            (1, further_address(0), 0, true, false, false),
            (1, STRANGER, 0, true, true, false),
            (1, address(0), 0x20, true, false, true),
            (1, address(0), 0x20, false, false, false),
            (0, STRANGER, 0x20, true, false, false),
        ] {
            let mut watch = watch(is_peer_plain);
            watch.sent(Instant::ZERO, NodeId(node), &frame(to, flags), NodeId(0));
            assert_eq!(
                (watch.has_sent_elsewhere, watch.has_sent_extended),
                (elsewhere, extended),
                "{node} {to} {flags}"
            );
        }
    }

    #[test]
    fn a_refusal_and_silence_break_a_connection() {
        let mut connection = Connection::new(PLAN, 4);
        let (node, qpn) = (connection.sides[0].node, connection.sides[0].qpn);
        let now = connection.network.now();
        let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
        connection.network.endpoint(node).modify(now, qpn, &error).unwrap();
        connection.run(Duration::from_millis(100));
        assert!(connection.is_over());
        assert_eq!(connection.finish()[AttackOutcome::Broken], 1);

        // A destroyed queue pair does not answer.
        let mut connection = Connection::new(PLAN, 5);
        let (node, qpn) = (connection.sides[1].node, connection.sides[1].qpn);
        connection.network.endpoint(node).destroy_queue_pair(qpn).unwrap();
        connection.run(2 * STALLED_AFTER);
        assert_eq!(connection.finish()[AttackOutcome::Broken], 1);
    }
}
