//! Two endpoints with any number of RC queue pairs connected between them, and a network without faults and delay.

use std::net::Ipv4Addr;
use std::sync::Arc;

use uroce::frame::{FrameBytes, Hop};
use uroce::memory::{Access, HostMemory, Pd};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Capabilities, CompletionQueue, Data, Endpoint, Path, QpAttributes, QueuePairInit, RecoveryMode, RecoverySettings,
    Remote, SendOperation, SendRequest, Service, State, Status,
};
use uroce::wire::{Addresses, Flow, Key, PathMtu, Psn, Qpn, RnrTimer};

const MTU: PathMtu = PathMtu::Mtu1024;

/// READs and atomics outstanding in one direction, as perftest and UCX ask for.
pub const RD_ATOMIC: u8 = 16;

/// Between two messages: a million a second, more than an engine does.
const MESSAGE_INTERVAL: Duration = Duration::from_micros(1);

/// Frames on their way at the same time, as the engine sends them.
const BATCH: usize = 64;

const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];

struct Node {
    endpoint: Endpoint,
    pd: Pd,
    memory: Arc<HostMemory>,
    key: Key,
    cq: Arc<CompletionQueue>,
    qpns: Vec<Qpn>,
}

pub struct Many {
    nodes: [Node; 2],
    now: Instant,
    /// Frames on their way, and their lengths.
    frames: Vec<(Vec<u8>, usize)>,
    /// Packets carried.
    pub packets: u64,
}

impl Node {
    fn new(seed: u8, recovery: RecoveryMode) -> Node {
        let mut endpoint = Endpoint::new([seed; 32]);
        endpoint.set_recovery(RecoverySettings { recovery, ..RecoverySettings::default() });
        let pd = endpoint.allocate_pd();
        let memory = Arc::new(HostMemory::new(1 << 16).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let key = endpoint.memory().register(pd, memory.clone(), access);
        let cq = Arc::new(CompletionQueue::new(4096, || {}));
        Node { endpoint, pd, memory, key, cq, qpns: Vec::new() }
    }

    fn create(&mut self) -> Qpn {
        let capabilities = Capabilities { max_send_requests: 64, max_receive_requests: 64 };
        let (send_cq, receive_cq) = (self.cq.clone(), self.cq.clone());
        let (service, pd) = (Service::Rc, self.pd);
        let init = QueuePairInit { service, pd, capabilities, send_cq, receive_cq, srq: None, path_mtu: MTU };
        self.endpoint.create_queue_pair(init).unwrap()
    }

    fn connect(&mut self, me: u8, qpn: Qpn, peer: u8, peer_qpn: Qpn) {
        let addresses =
            Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, me + 1), destination: Ipv4Addr::new(10, 0, 0, peer + 1) };
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let steps = [
            QpAttributes {
                state: Some(State::Init),
                p_key_index: Some(0),
                port: Some(1),
                access: Some(access),
                ..Default::default()
            },
            QpAttributes {
                state: Some(State::ReadyToReceive),
                path: Some(Path { flow, hop: Hop(peer.into()) }),
                path_mtu: Some(MTU),
                destination: Some(peer_qpn),
                receive_psn: Some(Psn::new(0)),
                max_dest_rd_atomic: Some(RD_ATOMIC),
                min_rnr_timer: Some(RnrTimer::new(12)),
                ..Default::default()
            },
            QpAttributes {
                state: Some(State::ReadyToSend),
                send_psn: Some(Psn::new(0)),
                timeout: Some(14),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(RD_ATOMIC),
                ..Default::default()
            },
        ];
        steps.iter().for_each(|attributes| self.endpoint.modify(Instant::ZERO, qpn, attributes).unwrap());
    }
}

impl Many {
    /// `count` queue pairs on each side that recover in that way, ready to send.
    pub fn new(count: usize, recovery: RecoveryMode) -> Many {
        let mut nodes = [1, 2].map(|seed| Node::new(seed, recovery));
        for _ in 0..count {
            let qpns = [0, 1].map(|node: usize| nodes[node].create());
            nodes[0].connect(0, qpns[0], 1, qpns[1]);
            nodes[1].connect(1, qpns[1], 0, qpns[0]);
            (0..2).for_each(|node| nodes[node].qpns.push(qpns[node]));
        }
        let mut frame = ETHERNET.to_vec();
        frame.resize(2048, 0);
        Many { nodes, now: Instant::ZERO, frames: vec![(frame, 0); BATCH], packets: 0 }
    }

    /// Where memory of the second side is.
    pub fn remote(&self) -> Remote {
        Remote { address: self.nodes[1].memory.address(), key: self.nodes[1].key }
    }

    /// Posts a request of `len` bytes on the first side of a queue pair.
    pub fn post(&mut self, index: usize, operation: SendOperation, len: u32) {
        self.now = self.now + MESSAGE_INTERVAL;
        let node = &mut self.nodes[0];
        let data = Data::sge(node.memory.address(), len, node.key);
        node.endpoint.post_send(self.now, node.qpns[index], SendRequest::new(0, operation, data)).unwrap();
    }

    /// Carries packets until `count` requests are complete, all those sent by one side before the other answers.
    pub fn complete(&mut self, count: usize) {
        let mut completed = 0;
        while completed < count {
            let moved = self.carry(0) + self.carry(1);
            while let Some(done) = self.nodes[0].cq.poll() {
                assert_eq!(done.status, Status::Success);
                completed += 1;
            }
            assert!(moved > 0 || completed == count, "nothing moves");
        }
        // As engines do in each step.
        self.nodes.iter_mut().for_each(|node| node.endpoint.handle_timeout(self.now));
    }

    /// Has all that the first side may send taken by the other, before that says anything.
    pub fn send_all(&mut self) {
        while self.carry(0) > 0 {}
    }

    /// Has everything that `from` has to send taken by the other side. Returns the number of packets.
    fn carry(&mut self, from: usize) -> usize {
        let out = ETHERNET.len();
        let mut count = 0;
        while count < BATCH
            && let Some(transmit) = self.nodes[from].endpoint.poll_transmit(self.now, &mut self.frames[count].0[out..])
        {
            self.frames[count].1 = out + transmit.len;
            count += 1;
        }
        for (frame, len) in &self.frames[..count] {
            self.nodes[1 - from].endpoint.handle_frame(self.now, FrameBytes::from(&frame[..*len]));
        }
        self.packets += count as u64;
        count
    }
}
