#![no_main]
//! Two whole endpoints with queue pairs of every service, and whatever programs and the network may do to them: every
//! verb, right and wrong; frames of their own, delivered, lost, repeated, reordered, damaged, changed in one thing with a
//! right ICRC, and invented. What must hold is in `node`, `queues` and `memory`: no panic; what is sent is sound and
//! bounded; memory changes only where a region lets it; work requests are reported in order, each once; nothing waits
//! without a timer; and in the end everything is flushed, no timer is armed and nothing is left.

mod frames;
#[path = "../../src/input.rs"]
mod input;
mod memory;
mod node;
mod queues;
mod stats;

use std::collections::VecDeque;

use input::Input;
use libfuzzer_sys::fuzz_target;
use node::{Node, QUEUE_PAIRS_MAX, Target, path};
use uroce::frame::FrameBytes;
use uroce::time::{Duration, Instant};
use uroce::transport::{Path, QpAttributes, Remote, Service, State};
use uroce::wire::{Bth, Opcode, PKey, Psn, Qpn};

/// Frames on their way at the same time; what is more is lost.
const WIRE_MAX: usize = 600;

/// Things that happen in one run, so that every run ends soon.
const STEPS_MAX: usize = 400;

struct World {
    nodes: [Node; 2],
    now: Instant,
    /// Frames on their way, and the node that each is for.
    wire: VecDeque<(usize, Vec<u8>)>,
    is_v6: bool,
}

impl World {
    fn new(input: &mut Input<'_>) -> World {
        let is_v6 = input.chance(64);
        let mut world = World { nodes: [Node::new(0), Node::new(1)], now: Instant::ZERO, wire: VecDeque::new(), is_v6 };
        world.nodes.iter_mut().for_each(|node| node.choose_recovery(input));
        world.nodes.iter_mut().for_each(|node| node.create_shared(8));
        for _ in 0..1 + input.below(3) {
            let (service, shared) = service(input);
            world.connect(service, shared, input);
        }
        world
    }

    fn path(&self, from: usize, to: usize) -> Path {
        path(from, to, self.is_v6)
    }

    /// Two new queue pairs, ready to send to each other; of one node or of both.
    fn connect(&mut self, service: Service, shared: bool, input: &mut Input<'_>) {
        let ends = if input.chance(20) { [0, 0] } else { [0, 1] };
        if self.nodes.iter().any(|node| node.queues.queue_pairs.len() + 2 > QUEUE_PAIRS_MAX) {
            return;
        }
        let made = ends.map(|end| self.nodes[end].create(service, shared, input));
        let [Some(first), Some(second)] = made else { return };
        for (me, qpn, peer, peer_qpn) in [(ends[0], first, ends[1], second), (ends[1], second, ends[0], first)] {
            let path = self.path(me, peer);
            let node = &mut self.nodes[me];
            let index = node.queues.queue_pairs.iter().position(|qp| qp.qpn == qpn).expect("just created");
            node.queues.queue_pairs[index].peer = Some((peer, peer_qpn));
            for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
                let attributes = node.attributes(service, state, path, peer_qpn, input);
                assert!(node.modify(self.now, index, &attributes), "{service} to {state}");
            }
            (0..input.below(6)).for_each(|_| node.post_receive(self.now, index, input));
        }
    }

    /// The peer of a queue pair; for datagrams any.
    fn peer(&self, number: usize, index: usize, input: &mut Input<'_>) -> (usize, Qpn) {
        let qp = &self.nodes[number].queues.queue_pairs[index];
        let stranger = qp.service.is_datagram() && input.chance(60);
        match qp.peer.filter(|_| !stranger) {
            Some(peer) => peer,
            None => {
                let peer = &self.nodes[input.below(2)];
                (peer.number, peer.choose(input).map_or(Qpn::GSI, |index| peer.queues.queue_pairs[index].qpn))
            }
        }
    }

    fn post_send(&mut self, number: usize, input: &mut Input<'_>) {
        let Some(index) = self.nodes[number].choose(input) else { return };
        for _ in 0..1 + input.below(4) {
            let (peer, qpn) = self.peer(number, index, input);
            let there = &self.nodes[peer].arena;
            let (address, key) = there.name(input);
            let remote = Remote { address, key };
            let target = Target { path: self.path(number, peer), qpn, remote, key: there.key(input) };
            self.nodes[number].post_send(self.now, index, target, input);
        }
    }

    fn transmit(&mut self, number: usize, count: usize) {
        let wire = &mut self.wire;
        self.nodes[number].transmit(self.now, count, |to, frame| {
            if wire.len() < WIRE_MAX {
                wire.push_back((to, frame));
            }
        });
    }

    /// Hands a frame over, in two parts now and then.
    fn deliver(&mut self, to: usize, frame: &[u8], input: &mut Input<'_>) {
        let cut = match input.byte() {
            0..200 => frame.len(),
            byte => (90 + usize::from(byte)).min(frame.len()),
        };
        let (head, tail) = frame.split_at(cut);
        self.nodes[to].endpoint.handle_frame(self.now, FrameBytes { head, tail });
        self.nodes[to].check_events();
    }

    fn deliver_in_order(&mut self, count: usize, input: &mut Input<'_>) {
        for _ in 0..count {
            let Some((to, frame)) = self.wire.pop_front() else { return };
            self.deliver(to, &frame, input);
        }
    }

    /// Something happens to a frame on its way.
    fn disturb(&mut self, input: &mut Input<'_>) {
        if self.wire.is_empty() {
            return;
        }
        let index = input.below(self.wire.len().min(256));
        match input.below(6) {
            // It overtakes others.
            0 => {
                let (to, frame) = self.wire.remove(index).expect("the index is below the length");
                self.deliver(to, &frame, input);
            }
            1 => drop(self.wire.remove(index)),
            // It comes twice, or very often.
            2 => {
                let (to, frame) = self.wire[index].clone();
                for _ in 0..if input.chance(30) { input.byte() } else { 1 } {
                    self.deliver(to, &frame, input);
                }
            }
            3 | 4 if input.is_wild() => {
                let (to, frame) = self.wire[index].clone();
                self.deliver(to, &frames::mutate(&frame, input), input);
            }
            _ => {
                let (to, mut frame) = self.wire[index].clone();
                let bit = input.u32() as usize % (frame.len() * 8);
                frame[bit / 8] ^= 1 << (bit % 8);
                self.deliver(to, &frame, input);
            }
        }
    }

    /// A packet that nobody sent, near to what a queue pair might expect.
    fn invent(&mut self, to: usize, input: &mut Input<'_>) {
        let Some(index) = self.nodes[to].choose(input) else { return };
        let (from, _) = self.peer(to, index, input);
        let node = &self.nodes[to];
        let qp = &node.queues.queue_pairs[index];
        let service = match qp.service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Ud | Service::Gsi => 0x60,
        };
        let opcode = match input.byte() {
            255 => Opcode(input.byte()),
            _ if service == 0x60 => Opcode(0x64 + input.byte() % 2),
            byte => Opcode(service | (byte & 0x1f)),
        };
        let inner = node.endpoint.queue_pair(qp.qpn).expect("it is in the model");
        let (next, expected) = inner.psns();
        let (unacknowledged, _) = inner.send_progress();
        let delta = u32::from(input.byte());
        let psn = match (delta, opcode.is_response()) {
            (0..150, false) => expected,
            (150..200, false) => expected.minus(delta - 149),
            (200..240, false) => expected.plus(delta - 200),
            (0..100, true) => unacknowledged.plus(delta % 4),
            (100..240, true) => next.minus(delta % 32),
            _ => Psn::new(input.u32()),
        };
        let flags = input.byte();
        let mut bth = Bth::new(opcode, qp.qpn, psn)
            .with_ack_request(flags & 1 != 0)
            .with_solicited(flags & 2 != 0)
            .with_mig_req(flags & 4 != 0);
        if flags & 0xf8 == 0xf8 {
            bth = bth.with_p_key(PKey(input.u32() as u16));
        }
        let length = [0, 1, 255, 256, 256, 256, 257, 300][input.below(8)];
        let payload_bytes = if opcode.may_have_payload() || flags & 0x70 == 0x70 { length } else { 0 };
        let mut extension = Vec::new();
        match opcode.extension_bytes() {
            bytes @ (16 | 20 | 28) => {
                extension.extend(node.arena.place(input).to_be_bytes());
                extension.extend(node.arena.key(input).0.to_be_bytes());
                if bytes < 28 {
                    let length =
                        if input.chance(200) { payload_bytes as u32 } else { input.u32() >> (input.byte() % 32) };
                    extension.extend(length.to_be_bytes());
                }
                extension.extend(input.bytes(bytes - extension.len()));
            }
            4 if opcode.has_invalidate() => extension.extend(node.arena.key(input).0.to_be_bytes()),
            bytes if service == 0x60 && bytes >= 8 => {
                extension.extend(0x1111_1111u32.to_be_bytes());
                extension.extend(input.bytes(bytes - 4));
            }
            bytes => extension.extend(input.bytes(bytes)),
        }
        let flow = self.path(from, to).flow;
        let mut trailer = Vec::new();
        if input.chance(100) {
            bth = bth.with_offer(true).with_extended(true);
            if payload_bytes > 0 && !opcode.is_response() && input.chance(128) {
                trailer.extend(node.arena.place(input).to_be_bytes());
                trailer.extend(node.arena.key(input).0.to_be_bytes());
                trailer.extend((payload_bytes as u32 + 256 * u32::from(input.byte() % 5)).to_be_bytes());
            }
            // A place in a message, and a receive request, mostly near.
            let near = |input: &mut Input<'_>| if input.chance(240) { [0, 0, input.byte() % 6] } else { [input.byte(); 3] };
            trailer.extend(near(input));
            trailer.push(input.byte());
            trailer.extend(near(input));
            let words = trailer.len() as u8 / 4 + 1;
            trailer.push(if input.is_wild() { input.byte() } else { 0x10 | words });
            // Without a tag, as from a peer that does not know us yet.
            trailer.extend(if input.is_wild() { input.u32() } else { 0 }.to_be_bytes());
        }
        self.deliver(to, &frames::craft(&flow, bth, &extension, payload_bytes, &trailer), input);
    }

    /// Goes on by a while, or to the next timeout.
    fn wait(&mut self, input: &mut Input<'_>) {
        let timeout = self.nodes.iter_mut().filter_map(|node| node.endpoint.poll_timeout()).min();
        self.now = match (input.byte(), timeout) {
            (0..180, Some(timeout)) => self.now.max(timeout),
            _ => self.now + Duration::from_nanos(1 << (input.byte() % 34)),
        };
        for node in &mut self.nodes {
            node.endpoint.handle_timeout(self.now);
            let next = node.endpoint.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "a timeout at {next:?} was not handled by {:?}", self.now);
        }
    }

    /// A network without faults for some rounds.
    fn exchange(&mut self, rounds: usize, input: &mut Input<'_>) {
        for _ in 0..rounds {
            self.transmit(0, 64);
            self.transmit(1, 64);
            if self.wire.is_empty() {
                return;
            }
            self.deliver_in_order(self.wire.len(), input);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let number = usize::from(kind >> 7);
        match kind & 0x7f {
            0..24 => self.post_send(number, input),
            24..36 => {
                let node = &mut self.nodes[number];
                if let Some(index) = node.choose(input) {
                    (0..1 + input.below(4)).for_each(|_| node.post_receive(self.now, index, input));
                }
            }
            36..48 => self.exchange(1 + input.below(4), input),
            48..58 => self.transmit(number, if input.chance(100) { usize::MAX } else { input.below(80) }),
            58..66 => self.deliver_in_order(1 + input.below(32), input),
            66..80 => self.disturb(input),
            80..90 if input.is_wild() => self.invent(number, input),
            90..92 => {
                let (flow, count) = (self.path(1 - number, number).flow, input.below(128));
                let bytes = input.bytes(count);
                match input.chance(128) {
                    true => self.deliver(number, &bytes, input),
                    false => {
                        self.deliver(number, &frames::seal(&flow, &[&[0; Bth::BYTES][..], &bytes].concat()), input)
                    }
                }
            }
            92..100 => self.wait(input),
            100..106 => {
                let Some(index) = self.nodes[number].choose(input) else { return };
                let (peer, qpn) = self.peer(number, index, input);
                let path = self.path(number, peer);
                self.nodes[number].modify_somehow(self.now, index, path, qpn, input);
            }
            106..108 => {
                let (service, shared) = service(input);
                self.connect(service, shared, input);
            }
            108 => {
                let (service, shared) = service(input);
                let node = &mut self.nodes[number];
                if node.queues.queue_pairs.len() < QUEUE_PAIRS_MAX {
                    node.create(service, shared, input);
                }
            }
            109 if input.is_wild() => {
                if let Some(index) = self.nodes[number].choose(input) {
                    self.nodes[number].destroy(index);
                }
            }
            110..118 => {
                let Node { arena, endpoint, pds, .. } = &mut self.nodes[number];
                arena.act(endpoint, pds, input);
            }
            118..122 => self.nodes[number].act_on_shared(input),
            122..126 => self.nodes[number].queues.poll(),
            126 => {
                let node = &self.nodes[number];
                let sum = node.endpoint.counters();
                assert!(sum.list().all(|(_, count)| count < 1 << 40));
                let unknown = node.endpoint.queue_pair_counters(Qpn::new(0));
                assert!(unknown.is_err());
            }
            127 if input.is_wild() => {
                let Some(index) = self.nodes[number].choose(input) else { return };
                let fatal = QpAttributes { state: Some(State::Error), ..Default::default() };
                self.nodes[number].modify(self.now, index, &fatal);
            }
            _ => self.exchange(1, input),
        }
    }
}

fn service(input: &mut Input<'_>) -> (Service, bool) {
    match input.below(10) {
        0..4 => (Service::Rc, false),
        4 | 5 => (Service::Rc, true),
        6 => (Service::Uc, input.chance(100)),
        7 | 8 => (Service::Ud, input.chance(100)),
        _ => (Service::Gsi, false),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    // How much goes wrong besides the network: nearly nothing, so that runs get far, or a lot.
    input.wildness = [1, 4, 24, 110][input.below(4)];
    let mut world = World::new(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.nodes.iter_mut().for_each(Node::check);
    }
    stats::note(&world.nodes);
    let now = world.now;
    world.nodes.iter_mut().for_each(|node| node.finish(now));
});
