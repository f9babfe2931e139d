use std::sync::Arc;

use uroce::frame::Hop;
use uroce::memory::{Access, HostMemory};
use uroce::time::Instant;
use uroce::transport::{
    Class, CompletionRing, Data, Endpoint, Path, ReceiveRequest, RecoverySettings, Remote, SendOperation, SendRequest,
    Service, Sge, SgeList, State, Status,
};
use uroce::wire::{Addresses, Flow, Key, PathMtu, Psn, Qpn};

use crate::world::{Peering, queue_pair};

use super::network::{Network, NodeId, Observer, Step};
use super::planes::FIRST_PORT;
use super::random::Random;

/// The operation that a transfer repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // named for what they are
pub enum TransferOperation {
    Write,
    Read,
    Send,
}

impl TransferOperation {
    /// All operations, in the order of the tables.
    pub const ALL: [TransferOperation; 3] =
        [TransferOperation::Write, TransferOperation::Read, TransferOperation::Send];

    /// The name of the operation in tables.
    pub fn name(self) -> &'static str {
        match self {
            TransferOperation::Write => "write",
            TransferOperation::Read => "read",
            TransferOperation::Send => "send",
        }
    }
}

/// The parameters of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct TransferPlan {
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// The operation of all messages.
    pub operation: TransferOperation,
    /// Length of a message, in bytes.
    pub message_bytes: usize,
    /// The number of messages that are posted and not completed.
    pub outstanding: usize,
    /// Length of the memory of both sides in bytes, a multiple of a message. Each message takes the next part of it.
    pub region_bytes: usize,
    /// The recovery settings of the source of the bytes, and of their destination.
    pub recovery: [RecoverySettings; 2],
    /// The local ACK timeout code: 4.096 µs × 2^code.
    pub timeout: u8,
}

/// A sequence of messages from one node to another, endless if it is not [told](Transfer::end_after) its end, with a fixed number outstanding. For READs the receiver of
/// the bytes is the requester.
pub struct Transfer {
    plan: TransferPlan,
    sides: [Side; 2],
    /// The number of messages after which it ends.
    end_after: u64,
    posted: u64,
    received: u64,
    completed: u64,
    completed_receives: u64,
    /// The first failure; `None` for none.
    failure: Option<TransferError>,
}

/// Why a transfer ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The requester gave up: it had retransmitted as often as allowed, without an answer.
    #[error("the requester gave up: retry exceeded")]
    GaveUp,
    /// A result is wrong; holds the description.
    #[error("{0}")]
    Wrong(String),
}

struct Side {
    node: NodeId,
    qpn: Qpn,
    memory: Arc<HostMemory>,
    key: Key,
    cq: Arc<CompletionRing>,
}

impl Transfer {
    /// Connects `nodes` of `network` with a queue pair each, and fills the source's memory.
    pub fn new(network: &mut Network, nodes: [NodeId; 2], plan: TransferPlan, seed: u64) -> Transfer {
        Transfer::of_class(network, nodes, plan, Class::default(), seed)
    }

    /// The same, with queue pairs of this class.
    pub fn of_class(
        network: &mut Network,
        nodes: [NodeId; 2],
        plan: TransferPlan,
        class: Class,
        seed: u64,
    ) -> Transfer {
        let sides = [0, 1].map(|index| {
            let node = nodes[index];
            let memory = Arc::new(HostMemory::new(plan.region_bytes).expect("the simulation's memory"));
            let cq = Arc::new(CompletionRing::new(2 * plan.outstanding + 16, || {}));
            let endpoint = network.endpoint(node);
            endpoint.set_recovery(plan.recovery[index]);
            let pd = endpoint.allocate_pd();
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::RELAXED_ORDERING;
            let key = endpoint.memory().register(pd, memory.clone(), access);
            let init = queue_pair(Service::Rc, pd, [plan.outstanding; 2], &cq, plan.path_mtu);
            let qpn = endpoint.create_queue_pair(init).expect("the first queue pair");
            Side { node, qpn, memory, key, cq }
        });
        let mut transfer = Transfer {
            plan,
            sides,
            end_after: u64::MAX,
            posted: 0,
            received: 0,
            completed: 0,
            completed_receives: 0,
            failure: None,
        };
        transfer.fill(seed);
        transfer.connect(network, class);
        transfer
    }

    /// Ends the sequence after so many messages.
    pub fn end_after(&mut self, messages: u64) {
        self.end_after = messages;
    }

    /// The node that the bytes go to, and its queue pair.
    pub fn destination(&self) -> (NodeId, Qpn) {
        (self.sides[1].node, self.sides[1].qpn)
    }

    fn is_read(&self) -> bool {
        self.plan.operation == TransferOperation::Read
    }

    /// The side that the bytes come from, and the side that they go to.
    fn ends(&self) -> (&Side, &Side) {
        (&self.sides[0], &self.sides[1])
    }

    /// The side that posts the send requests.
    fn requester(&self) -> &Side {
        &self.sides[usize::from(self.is_read())]
    }

    fn fill(&mut self, seed: u64) {
        let mut random = Random::new(seed, 7);
        let mut block = vec![0; 1 << 16];
        for offset in (0..self.plan.region_bytes).step_by(block.len()) {
            block.as_chunks_mut::<4>().0.iter_mut().for_each(|word| *word = random.u32().to_ne_bytes());
            let len = block.len().min(self.plan.region_bytes - offset);
            self.sides[0].memory.write(offset, &block[..len]);
        }
    }

    fn connect(&mut self, network: &mut Network, class: Class) {
        for index in [0, 1] {
            let (here, there) = (&self.sides[index], &self.sides[1 - index]);
            let address = |side: &Side| std::net::Ipv4Addr::new(10, 0, 0, 1 + side.node.0 as u8).into();
            let flow = Flow {
                addresses: Addresses::new(address(here), address(there)).expect("of one family"),
                source_port: FIRST_PORT,
                traffic_class: class.dscp() << 2 | 2,
                hop_limit: 64,
                flow_label: 0,
            };
            let peering = Peering {
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
                path_mtu: self.plan.path_mtu,
                send_psn: Psn::new(0xff_fe00),
                receive_psn: Psn::new(0xff_fe00),
                timeout: self.plan.timeout,
                ..Peering::new(Path { flow, hop: Hop(there.node.0 as u64) }, there.qpn)
            };
            let now = network.now();
            peering.connect(network.endpoint(here.node), now, here.qpn);
        }
    }

    /// Posts requests until the planned number is outstanding.
    pub fn post(&mut self, network: &mut Network, observer: &mut impl Observer) {
        let now = network.now();
        let (_, destination) = self.ends();
        if self.plan.operation == TransferOperation::Send {
            for number in self.received..self.completed_receives + self.plan.outstanding as u64 {
                let request =
                    ReceiveRequest { wr_id: number, sges: SgeList::from_iter([self.sge(destination, number)]) };
                network.endpoint(destination.node).post_receive(now, destination.qpn, request).expect("there is room");
            }
            self.received = self.completed_receives + self.plan.outstanding as u64;
        }
        let before = self.posted;
        let limit = (self.completed + self.plan.outstanding as u64).min(self.end_after);
        for number in before..limit {
            self.post_message(network, number, self.plan.message_bytes as u64);
        }
        let node = self.requester().node;
        self.posted = limit;
        if limit > before {
            network.kick(node, observer);
        }
    }

    /// Posts the message of that number, which has `length` bytes.
    fn post_message(&self, network: &mut Network, number: u64, length: u64) {
        let (source, destination) = self.ends();
        let remote = |side: &Side| Remote { address: side.memory.address() + self.offset(number), key: side.key };
        let (operation, local) = match self.plan.operation {
            TransferOperation::Write => (SendOperation::Write(remote(destination)), source),
            TransferOperation::Read => (SendOperation::Read(remote(source)), destination),
            TransferOperation::Send => (SendOperation::Send, source),
        };
        let sge = Sge { length: length as u32, ..self.sge(local, number) };
        let request = SendRequest::new(number, operation, Data::Sges(SgeList::from_iter([sge])));
        let (now, requester) = (network.now(), self.requester());
        network.endpoint(requester.node).post_send(now, requester.qpn, request).expect("there is room");
    }

    /// Where the message of that number lies in the memory of both sides.
    fn offset(&self, number: u64) -> u64 {
        let slots = (self.plan.region_bytes / self.plan.message_bytes) as u64;
        (number % slots) * self.plan.message_bytes as u64
    }

    fn sge(&self, side: &Side, number: u64) -> Sge {
        Sge {
            address: side.memory.address() + self.offset(number),
            length: self.plan.message_bytes as u32,
            lkey: side.key,
        }
    }

    /// Posts `bytes` bytes after all that was posted, in messages of the planned length of which the last has the rest, and ends the
    /// sequence with them. Returns the number of its messages. They may be more than are planned to be outstanding together, as
    /// long as the queue has room.
    pub fn send(&mut self, network: &mut Network, observer: &mut impl Observer, bytes: u64) -> u64 {
        let length = self.plan.message_bytes as u64;
        for number in 0..bytes.div_ceil(length) {
            self.post_message(network, self.posted + number, length.min(bytes - number * length));
        }
        self.posted += bytes.div_ceil(length);
        self.end_after = self.posted;
        network.kick(self.requester().node, observer);
        self.posted
    }

    /// Takes all completions; each must be successful and in order.
    pub fn poll(&mut self) {
        let requester = usize::from(self.is_read());
        while let Some(completion) = self.sides[requester].cq.poll() {
            if completion.status == Status::RetryExceeded {
                self.failure.get_or_insert(TransferError::GaveUp);
            } else if completion.status != Status::Success || completion.wr_id != self.completed {
                self.fail(format!("request {} instead of {}: {completion:?}", completion.wr_id, self.completed));
            }
            self.completed += 1;
        }
        while let Some(completion) = self.sides[1 - requester].cq.poll() {
            if completion.status != Status::Success || completion.wr_id != self.completed_receives {
                let expected = self.completed_receives;
                self.fail(format!("receive {} instead of {expected}: {completion:?}", completion.wr_id));
            }
            self.completed_receives += 1;
        }
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(TransferError::Wrong(text));
    }

    /// Takes all completions, and posts again if there were any. Returns whether a request has completed.
    ///
    /// # Errors
    /// The first failure of the transfer.
    pub fn poll_and_post(
        &mut self,
        network: &mut Network,
        observer: &mut impl Observer,
    ) -> Result<bool, TransferError> {
        let before = (self.completed, self.completed_receives);
        self.poll();
        if before != (self.completed, self.completed_receives) {
            self.post(network, observer);
        }
        self.failure.clone().map_or(Ok(self.completed > before.0), Err)
    }

    /// Runs the network until `until`, and posts again whenever a request has completed.
    ///
    /// # Errors
    /// The first failure of the transfer.
    pub fn run(
        &mut self,
        network: &mut Network,
        until: Instant,
        observer: &mut impl Observer,
    ) -> Result<(), TransferError> {
        self.post(network, observer);
        while network.next().is_some_and(|at| at <= until) {
            if let Some(Step::Handled(_)) = network.step(observer) {
                self.poll_and_post(network, observer)?;
            }
        }
        network.advance_to(until);
        Ok(())
    }

    /// Posts no more, waits until all requests have completed, and compares the memory of both sides.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, requests do not complete, or the memory differs.
    pub fn finish(mut self, network: &mut Network, observer: &mut impl Observer) -> Result<(), TransferError> {
        let wrong = |text: String| Err(TransferError::Wrong(text));
        while self.completed < self.posted {
            if network.step(observer).is_none() {
                return wrong(format!("{} of {} messages completed, and nothing happens", self.completed, self.posted));
            }
            self.poll();
            if let Some(failure) = &self.failure {
                return Err(failure.clone());
            }
        }
        let bytes = (self.posted * self.plan.message_bytes as u64).min(self.plan.region_bytes as u64) as usize;
        let (mut from, mut to) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        for offset in (0..bytes).step_by(1 << 16) {
            let len = (1 << 16).min(bytes - offset);
            self.sides[0].memory.read(offset, &mut from[..len]);
            self.sides[1].memory.read(offset, &mut to[..len]);
            if from[..len] != to[..len] {
                return wrong(format!("the memory differs somewhere in {len} bytes from {offset} on"));
            }
        }
        Ok(())
    }

    /// The queue pair of the source of the bytes, and that of their destination.
    pub fn qpns(&self) -> [Qpn; 2] {
        [0, 1].map(|side: usize| self.sides[side].qpn)
    }

    /// The first failure; `None` for none.
    pub fn failure(&self) -> Option<&TransferError> {
        self.failure.as_ref()
    }

    /// Whether the requester knows that its peer understands the extension.
    pub fn is_extended(&self, network: &mut Network) -> bool {
        let (node, qpn) = (self.requester().node, self.requester().qpn);
        network.endpoint(node).queue_pair(qpn).is_ok_and(|queue_pair| queue_pair.is_extended())
    }

    /// The number of paths that carry packets, at each end.
    pub fn good_paths(&self, network: &mut Network) -> [u16; 2] {
        [0, 1].map(|side: usize| {
            let side = &self.sides[side];
            network.endpoint(side.node).paths(side.qpn).map_or(0, |(_, good)| good)
        })
    }

    /// The number of queue pairs in the error state.
    pub fn errors(&self, network: &mut Network) -> u64 {
        let is_in_error = |side: &&Side| {
            let queue_pair = network.endpoint(side.node).queue_pair(side.qpn);
            queue_pair.is_ok_and(|queue_pair| queue_pair.state() == State::Error)
        };
        self.sides.iter().filter(is_in_error).count() as u64
    }

    /// The number of completed messages.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// The number of bytes of completed messages, of the planned length.
    pub fn completed_bytes(&self) -> u64 {
        self.completed * self.plan.message_bytes as u64
    }

    /// The memory that recovery uses at both ends, in bytes.
    pub fn memory_bytes(&self, network: &mut Network) -> usize {
        let bytes = |side: &Side, endpoint: &Endpoint| {
            endpoint.queue_pair(side.qpn).map_or(0, |queue_pair| queue_pair.recovery_memory_bytes())
        };
        self.sides.iter().map(|side| bytes(side, network.endpoint(side.node))).sum()
    }
}
