use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use uroce::memory::{Access, HostMemory};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Class, CompletionRing, Data, ReceiveRequest, RecoverySettings, SendOperation, SendRequest, Service, Sge, SgeList,
    Status,
};
use uroce::wire::{Key, PathMtu, Qpn};

use crate::world::{Peering, path, queue_pair};

use super::network::{Network, NodeId, Observer};
use super::planes::FIRST_PORT;
use super::transfer::TransferError;

/// Short messages from one node to another, each sent when its time comes, and how long each takes until the receiver
/// has it.
pub(super) struct Tokens {
    sides: [Side; 2],
    /// When those on the way were posted.
    posted: VecDeque<Instant>,
    /// The latencies of those that arrived, in order.
    pub latencies: Vec<Duration>,
}

struct Side {
    node: NodeId,
    qpn: Qpn,
    memory: Arc<HostMemory>,
    key: Key,
    cq: Arc<CompletionRing>,
}

/// The length of a token, in bytes.
const TOKEN_BYTES: u32 = 64;

/// Upper bound on the tokens on the way.
const OUTSTANDING: usize = 4096;

const MTU: PathMtu = PathMtu::Mtu4096;

/// The UDP source port: not that of [transfers](super::transfer).
const SOURCE_PORT: u16 = FIRST_PORT + 1;

impl Tokens {
    /// Connects `nodes` of `network` with a queue pair of `class` each.
    pub fn new(network: &mut Network, nodes: [NodeId; 2], settings: RecoverySettings, class: Class) -> Tokens {
        let sides = nodes.map(|node| {
            let memory = Arc::new(HostMemory::new(TOKEN_BYTES as usize).expect("the simulation's memory"));
            let cq = Arc::new(CompletionRing::new(2 * OUTSTANDING, || {}));
            let endpoint = network.endpoint(node);
            endpoint.set_recovery(settings);
            let pd = endpoint.allocate_pd();
            let key = endpoint.memory().register(pd, memory.clone(), Access::LOCAL_WRITE);
            let init = queue_pair(Service::Rc, pd, [OUTSTANDING; 2], &cq, MTU);
            let qpn = endpoint.create_queue_pair(init).expect("there is room");
            Side { node, qpn, memory, key, cq }
        });
        let now = network.now();
        for (here, there) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
            let address = |side: &Side| Ipv4Addr::new(10, 0, 0, 1 + side.node.0 as u8);
            let mut path = path(address(here), address(there), there.node.0 as u64);
            path.flow.traffic_class = class.dscp() << 2;
            path.flow.source_port = SOURCE_PORT;
            let peering = Peering { path_mtu: MTU, ..Peering::new(path, there.qpn) };
            peering.connect(network.endpoint(here.node), now, here.qpn);
        }
        for _ in 0..OUTSTANDING {
            sides[1].receive(network);
        }
        Tokens { sides, posted: VecDeque::new(), latencies: Vec::new() }
    }

    /// Sends a token.
    pub fn post(&mut self, network: &mut Network, observer: &mut impl Observer) {
        let (now, Side { node, qpn, .. }) = (network.now(), &self.sides[0]);
        let request = SendRequest::new(0, SendOperation::Send, Data::Sges(self.sides[0].sges()));
        network.endpoint(*node).post_send(now, *qpn, request).expect("there is room");
        self.posted.push_back(now);
        network.kick(*node, observer);
    }

    /// Takes what has arrived, and what was acknowledged.
    ///
    /// # Errors
    /// [`TransferError`] when a token failed.
    pub fn poll(&mut self, network: &mut Network) -> Result<(), TransferError> {
        while let Some(sent) = self.sides[0].cq.poll() {
            if sent.status != Status::Success {
                return Err(TransferError::Wrong(format!("{sent:?}")));
            }
        }
        while let Some(received) = self.sides[1].cq.poll() {
            let posted = self.posted.pop_front().filter(|_| received.status == Status::Success);
            let posted = posted.ok_or_else(|| TransferError::Wrong(format!("{received:?}")))?;
            self.latencies.push(received.time - posted);
            self.sides[1].receive(network);
        }
        Ok(())
    }
}

impl Side {
    fn sges(&self) -> SgeList {
        SgeList::from_iter([Sge { address: self.memory.address(), length: TOKEN_BYTES, lkey: self.key }])
    }

    fn receive(&self, network: &mut Network) {
        let (now, request) = (network.now(), ReceiveRequest { wr_id: 0, sges: self.sges() });
        network.endpoint(self.node).post_receive(now, self.qpn, request).expect("there is room");
    }
}
