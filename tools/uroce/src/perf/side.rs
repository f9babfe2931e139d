use std::time::Duration;

use uroce::verbs::{
    Access, Capabilities, Completion, CompletionChannel, CompletionQueue, ConnectOptions, Context, Data, Destination,
    Key, MemoryRegion, Notify, PathMtu, Peer, QpAttributes, Qpn, QueuePair, QueuePairOptions, ReceiveRequest, Remote,
    SendOperation, SendRequest, Service, SgeList, SharedReceiveQueue, Status,
};

use super::AtomicType;
use super::exchange::Agreed;
use super::keys::Keys;
use super::settings::Settings;
use super::test::{Test, Verb};
use crate::Failure;
use crate::choices::Q_KEY;
use crate::failed_request::{FailedRequest, Probe};

/// Room for the routing header in front of a datagram.
const GRH_BYTES: usize = 40;

/// As perftest has it; rxe and we default to 64.
const HOP_LIMIT: u8 = 255;

/// How long a sleep on events lasts at the most: then it is looked whether anything moves at all.
const SLEEP: Duration = Duration::from_secs(1);

/// Our end: queue pairs, and buffers for each.
///
/// ```text
///   region:  send 0 | send 1 | … | receive 0 | receive 1 | …       each a slot
///   slot:    max(largest message, cycle buffer), and for datagrams the routing header's room
/// ```
pub struct Side<'a> {
    pub settings: &'a Settings,
    agreed: Agreed,
    context: &'a Context,
    /// How queue pairs are connected.
    ways: ConnectOptions,
    // Before the shared queue and the region: what uses them goes first.
    players: Vec<Player>,
    /// With `--use-srq`: where all receive requests go.
    srq: Option<SharedReceiveQueue>,
    region: MemoryRegion,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    channel: CompletionChannel,
    slot_bytes: usize,
    /// Bytes in front of each received message.
    headroom_bytes: usize,
}

/// A queue pair.
struct Player {
    qp: QueuePair,
    own: Keys,
    /// The peer's buffer.
    remote: Remote,
    /// The peer's queue pair, once it is known.
    peer: Option<Peer>,
    /// Where datagrams go.
    datagrams_to: Option<Destination>,
    /// Receive requests posted for messages of the size at hand.
    receives_posted: u64,
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The queue pair's place.
    pub index: usize,
    /// How many requests it stands for.
    pub count: u64,
}

/// Completions name the queue pair in the lower half of wr_id, and in the upper one how many requests they stand for.
const COUNT_SHIFT: u32 = 32;

impl Done {
    fn wr_id(self) -> u64 {
        self.count << COUNT_SHIFT | self.index as u64
    }

    fn of(completion: Completion, what: &'static str) -> Result<Done, Failure> {
        let Completion { status, wr_id, .. } = completion;
        if status != Status::Success {
            return Err(Box::new(FailedRequest { what, completion }));
        }
        Ok(Done { index: wr_id as u32 as usize, count: wr_id >> COUNT_SHIFT })
    }
}

impl<'a> Side<'a> {
    /// Makes queue pairs and buffers.
    pub fn new(
        settings: &'a Settings,
        agreed: Agreed,
        context: &'a Context,
        gid_index: usize,
    ) -> Result<Side<'a>, Failure> {
        let count = settings.queue_pairs;
        let headroom_bytes = if settings.service == Service::Ud { GRH_BYTES } else { 0 };
        let slot_bytes =
            (settings.largest().max(agreed.cycle_bytes) + headroom_bytes).next_multiple_of(agreed.line_bytes.max(64));
        let access = settings.verb().remote_access();
        let pd = context.allocate_pd();
        let region = pd.allocate_region(2 * count * slot_bytes, Access::LOCAL_WRITE | access)?;
        if settings.test != Test::WriteLat {
            fill(&region);
        }
        let channel = CompletionChannel::new()
            .map_err(|e| format!("no descriptor for completion events: {e}; see `ulimit -n`"))?;
        let send_cq = context.create_completion_queue_on(settings.send_depth * count, &channel);
        let receive_cq = context.create_completion_queue_on(settings.receive_depth * count, &channel);
        let capabilities =
            Capabilities { max_send_requests: settings.send_depth, max_receive_requests: settings.receive_depth };
        let service = settings.service;
        let srq = match settings.use_srq && settings.receives() {
            true => Some(pd.create_shared_receive_queue(settings.receive_depth)?),
            false => None,
        };
        let options =
            QueuePairOptions { service, capabilities, send: &send_cq, receive: &receive_cq, srq: srq.as_ref() };
        let ways = ConnectOptions::new()
            .gid_index(gid_index)
            .traffic_class(settings.traffic_class)
            .hop_limit(HOP_LIMIT)
            .attributes(QpAttributes {
                access: Some(access),
                q_key: Some(Q_KEY),
                path_mtu: Some(agreed.mtu),
                max_dest_rd_atomic: Some(settings.outstanding),
                timeout: Some(settings.timeout),
                ..Default::default()
            });
        let mut players = Vec::with_capacity(count);
        for index in 0..count {
            let qp = pd.create_queue_pair(&options)?;
            qp.init(&ways)?;
            let local = qp.local_with(&ways)?;
            let own = Keys {
                is_uroce: true,
                outstanding: settings.outstanding.into(),
                qpn: local.qpn,
                psn: local.psn,
                key: region.key(),
                address: region.remote((count + index) * slot_bytes).address,
                gid: local.gid,
            };
            let remote = Remote { address: 0, key: Key(0) };
            players.push(Player { qp, own, remote, peer: None, datagrams_to: None, receives_posted: 0 });
        }
        Ok(Side {
            settings,
            agreed,
            context,
            ways,
            players,
            srq,
            region,
            send_cq,
            receive_cq,
            channel,
            slot_bytes,
            headroom_bytes,
        })
    }

    /// What the peer is to know of our queue pairs.
    pub fn keys(&self) -> Vec<Keys> {
        self.players.iter().map(|player| player.own).collect()
    }

    /// The path MTU of its connections.
    pub fn mtu(&self) -> PathMtu {
        self.agreed.mtu
    }

    /// Bytes of the longest message, on connections that acknowledge.
    pub fn largest_message(&self) -> usize {
        if self.settings.service == Service::Rc { self.settings.largest() } else { 0 }
    }

    /// What it takes to send a queue pair's peer one more packet.
    pub fn probe(&self, qpn: Qpn) -> Option<Probe<'_>> {
        let player = self.players.iter().find(|player| player.qp.qpn() == qpn)?;
        Some(Probe { qp: &player.qp, cq: &self.send_cq, peer: player.peer?, ways: &self.ways })
    }

    /// The device.
    pub fn context(&self) -> &'a Context {
        self.context
    }

    /// Connects our queue pairs with the peer's, one to one.
    pub fn connect(&mut self, remotes: &[Keys]) -> Result<(), Failure> {
        for (player, remote) in self.players.iter_mut().zip(remotes) {
            let peer = Peer::new(remote.qpn, remote.psn, remote.gid);
            if self.settings.service == Service::Ud {
                player.datagrams_to = Some(player.qp.destination(&peer, &self.ways)?);
            }
            // As many as the peer takes.
            let theirs = remote.outstanding.min(QpAttributes::MAX_RD_ATOMIC.into());
            let attributes = QpAttributes { max_rd_atomic: u8::try_from(theirs).ok(), ..self.ways.attributes };
            player.remote = Remote { address: remote.address, key: remote.key };
            player.qp.connect_with(&peer, &self.ways.clone().attributes(attributes))?;
            player.peer = Some(peer);
        }
        Ok(())
    }

    /// Posts a send request on queue pair `index`: the message of `size` bytes that is `nth` there. `signals` requests end
    /// with this one and are reported by its completion; with 0 it is not reported itself.
    pub fn post_send(&self, index: usize, nth: u64, size: usize, signals: u64) -> Result<(), Failure> {
        let player = &self.players[index];
        let walk = if self.settings.test.is_latency() { 0 } else { self.walk(nth, size) };
        let remote = Remote { address: player.remote.address.wrapping_add(walk as u64), ..player.remote };
        let operation = match (self.settings.verb(), self.settings.atomic) {
            (Verb::Send, _) => SendOperation::Send,
            (Verb::Write, _) => SendOperation::Write(remote),
            (Verb::Read, _) => SendOperation::Read(remote),
            (Verb::Atomic, AtomicType::FetchAndAdd) => SendOperation::FetchAdd { remote, add: 1 },
            (Verb::Atomic, AtomicType::CmpAndSwap) => SendOperation::CompareSwap { remote, compare: 0, swap: 0 },
        };
        let sge = self.region.sge(index * self.slot_bytes + walk, size);
        let done = Done { index, count: signals };
        let mut request = SendRequest::new(done.wr_id(), operation, Data::Sges(SgeList::from_iter([sge])));
        request.signaled = signals > 0;
        request.destination = player.datagrams_to;
        player.qp.post_send(request).map_err(|e| format!("queue pair {}: {e}", player.own.qpn).into())
    }

    /// Posts the first receive requests for messages of `size` bytes, on all queue pairs.
    pub fn post_receives(&mut self, size: usize) -> Result<(), Failure> {
        for index in 0..self.players.len() {
            self.players[index].receives_posted = 0;
            for _ in 0..self.settings.receives_a_queue_pair() {
                self.post_receive(index, size)?;
            }
        }
        Ok(())
    }

    /// Posts a receive request on queue pair `index` for one that was used, unless there are enough for all messages:
    /// none may be left when messages of another size follow. In a shared queue any queue pair may take it: then `index`
    /// only says whose part of the buffers it has.
    pub fn post_receive(&mut self, index: usize, size: usize) -> Result<(), Failure> {
        let nth = self.players[index].receives_posted;
        if nth >= self.settings.extent.iterations() {
            return Ok(());
        }
        let size = size + self.headroom_bytes;
        let offset = (self.players.len() + index) * self.slot_bytes + self.walk(nth, size);
        let sges = SgeList::from_iter([self.region.sge(offset, size)]);
        let player = &mut self.players[index];
        player.receives_posted += 1;
        let request = ReceiveRequest { wr_id: Done { index, count: 1 }.wr_id(), sges };
        match &self.srq {
            Some(srq) => srq.post_receive(request).map_err(|e| format!("the shared receive queue: {e}").into()),
            None => player.qp.post_receive(request).map_err(|e| format!("queue pair {}: {e}", player.own.qpn).into()),
        }
    }

    /// A send request that is done.
    pub fn poll_sent(&self) -> Result<Option<Done>, Failure> {
        self.send_cq.poll().map(|completion| Done::of(completion, "send")).transpose()
    }

    /// A receive request that is done.
    pub fn poll_received(&self) -> Result<Option<Done>, Failure> {
        self.receive_cq.poll().map(|completion| Done::of(completion, "receive")).transpose()
    }

    /// There was no completion: with `-e`, sleeps until there may be one.
    pub fn idle(&self) -> Result<(), Failure> {
        if self.settings.events {
            self.channel.wait(SLEEP).map_err(|e| format!("cannot wait for a completion: {e}"))?;
            self.ask_for_events();
        }
        Ok(())
    }

    /// Asks to be told of the next completion. To be done once before the first poll.
    pub fn ask_for_events(&self) {
        if self.settings.events {
            self.send_cq.request_notification(Notify::Next);
            self.receive_cq.request_notification(Notify::Next);
        }
    }

    /// Writes the last byte of the message that queue pair 0 sends.
    pub fn mark(&self, size: usize, byte: u8) {
        self.region.memory().write(size - 1, &[byte]);
    }

    /// The last byte of the message that the peer writes to queue pair 0.
    pub fn marked(&self, size: usize) -> u8 {
        let mut byte = [0];
        self.region.memory().read(self.players.len() * self.slot_bytes + size - 1, &mut byte);
        byte[0]
    }

    /// Where in its slot message `nth` of `size` bytes begins: small ones walk through the cycle buffer, others do not.
    fn walk(&self, nth: u64, size: usize) -> usize {
        let Agreed { cycle_bytes, line_bytes, .. } = self.agreed;
        let step = size.max(1).next_multiple_of(line_bytes.max(1));
        if size > cycle_bytes / 2 || step > cycle_bytes {
            0
        } else {
            (nth % (cycle_bytes / step) as u64) as usize * step
        }
    }
}

/// Fills a region with bytes that tell places apart.
fn fill(region: &MemoryRegion) {
    let pattern: Vec<u8> = (0..region.len().min(1 << 16)).map(|at| (at * 7 + (at >> 8) * 13) as u8).collect();
    for start in (0..region.len()).step_by(pattern.len().max(1)) {
        let piece = pattern.len().min(region.len() - start);
        region.memory().write(start, &pattern[..piece]);
    }
}
