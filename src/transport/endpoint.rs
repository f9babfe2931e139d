use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashSet;

use crate::Forked;
use crate::cache;
use crate::congestion::{Companies, FlowStatus, Rate};
use crate::frame::{FrameBytes, Hop};
use crate::memory::{KeySource, MemoryTable, Pd};
use crate::time::{Duration, Instant};
use crate::wire::{self, Opcode, PKey, Packet, Qpn, RoceFrame};

use super::attributes::{Capabilities, ModifyError, Path, QpAttributes, QueuePairInfo};
use super::class::Class;
use super::context::Context;
use super::counters::{Counters, Which};
use super::event::Event;
use super::extension::RecoverySettings;
use super::groups::{AttachError, Groups};
use super::multipath::{HopQuery, Multipath, Way};
use super::queue_pair::{End, QueuePairInit, QueuePairMachine};
use super::queue_pair_status::QueuePairStatus;
use super::queue_pair_table::QueuePairTable;
use super::rails::RailQuery;
use super::receive_queue::{SharedReceiveQueues, SrqError};
use super::schedule::{Schedule, Turn};
use super::service::Service;
use super::sink::{Single, Sink};
use super::skipped::Skipped;
use super::srq::Srq;
use super::state::State;
use super::timers::Timers;
use super::transmit::Transmit;
use super::treatment::Treatment;
use super::urgent::Urgent;
use super::work::{PostError, ReceiveRequest, SendRequest};

/// An RDMA device without clock, thread and socket: queue pairs, memory, timers and counters.
///
/// `handle_*` report to it what happened, `poll_*` return what it wants. Nothing happens in between.
pub struct Endpoint {
    queue_pairs: QueuePairTable<Slot>,
    memory: MemoryTable,
    shared: SharedReceiveQueues,
    /// Counts of what concerned no queue pair, or one that is destroyed.
    counters: Counters,
    events: VecDeque<Event>,
    timers: Timers,
    /// Queue pairs whose deadlines can have changed since their timers were armed, each once: packets come in batches, and a
    /// deadline is needed after them.
    to_arm: Vec<Qpn>,
    /// Queue pairs that can have something to send.
    schedule: Schedule,
    /// The queue pair that was used last: only the state of others can be missing in the caches.
    latest: Qpn,
    /// Until when urgent messages count as under way.
    urgent: Urgent,
    /// The companies of queue pairs to the same peer.
    companies: Companies,
    /// The next IPv4 identification, and by how much each packet raises it: not at all where the link imposes it.
    identification: u16,
    identification_step: u16,
    /// The UDP source port, where the link imposes it.
    imposed_port: Option<u16>,
    next_pd: u32,
    /// The upper twelve bits of this endpoint's queue pair numbers.
    qpn_slot: u16,
    /// The lower six bits of all slots that are ours; `None` while they are as random as the others.
    host_slot: Option<u8>,
    /// The latest numbers of destroyed queue pairs.
    retired: VecDeque<Qpn>,
    /// Bytes of requests that arrived early and wait, over all queue pairs.
    waiting_bytes: usize,
    /// The settings of new queue pairs for loss recovery.
    recovery: RecoverySettings,
    /// The addresses of each further interface of the device.
    local_rails: Vec<Vec<IpAddr>>,
    /// The addresses that datagrams can go to; `None` for any.
    local_addresses: Option<FxHashSet<IpAddr>>,
    groups: Groups,
    /// Queue pairs that can have rails without a known next hop.
    hop_seekers: VecDeque<Qpn>,
    /// Whether it replaces the endpoint of its parent in a child, and refuses everything.
    is_forked: bool,
}

/// A queue pair, and its counters.
struct Slot {
    queue_pair: QueuePairMachine,
    counters: Counters,
    /// Its paths, if it or its peer uses several.
    multipath: Option<Box<Multipath>>,
    /// Whether it is in the endpoint's queue of those that can have next hops to resolve.
    seeks_hops: bool,
    /// Whether it is among the endpoint's queue pairs whose timers are to be armed.
    is_to_arm: bool,
}

impl Slot {
    /// Enters the queue `seekers` if it has a next hop to resolve.
    fn seek_hops(&mut self, qpn: Qpn, seekers: &mut VecDeque<Qpn>) {
        if !self.seeks_hops && self.multipath.as_ref().is_some_and(|multipath| multipath.has_query()) {
            self.seeks_hops = true;
            seekers.push_back(qpn);
        }
    }
}

/// Timer entries, beyond four a queue pair, above which those left behind are swept out. They are few enough not to
/// matter, and many enough that sweeping costs less than arming.
const IDLE_TIMERS: usize = 64;

/// Upper bound on the queue pairs whose timers are to be armed: as many as an engine's batch has packets.
const TO_ARM_MAX: usize = 64;

/// Upper bound on the queue pairs of an endpoint, which must find a free 24-bit number by drawing.
const MAX_QUEUE_PAIRS: usize = 1 << 20;

/// Upper bound on the numbers of destroyed queue pairs that are not given to new ones. Late packets of a connection
/// must not find another one under its number (IBTA 12.9.8.3.1 has a time to wait for that). It is half a slot, so that
/// no slot has only such numbers.
const RETIRED_MAX: usize = 2048;

/// Draws in a slot before another slot is taken: with 4000 of 4096 numbers taken, one draw in 43 finds a free one.
const DRAWS_A_SLOT: u32 = 64;

/// Why a queue pair was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The queue would hold no request, or too many.
    #[error("a queue of {0} requests: the capacity must be 1 to 65536")]
    Capacity(usize),
    /// There are as many queue pairs as are possible.
    #[error("the maximum of {0} queue pairs is reached")]
    TooMany(usize),
    /// The device has a queue pair of the GSI service, QP1, already.
    #[error("the device has only one GSI queue pair (QP1), and it is in use")]
    GsiInUse,
    /// The shared receive queue does not exist.
    #[error(transparent)]
    Srq(#[from] SrqError),
    /// The device was opened by the parent of this process; what a child inherits by fork(2) is dead.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// There is no queue pair with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no queue pair {0}")]
pub struct NoSuchQueuePair(pub Qpn);

impl Endpoint {
    /// An endpoint without queue pairs. `seed`, 32 bytes, decides all numbers that strangers must not guess.
    pub fn new(seed: [u8; 32]) -> Endpoint {
        let mut keys = KeySource::new(seed);
        let identification = keys.next_u32() as u16;
        let qpn_slot = keys.qpn_slot(None);
        Endpoint {
            queue_pairs: QueuePairTable::default(),
            memory: MemoryTable::new(keys),
            shared: SharedReceiveQueues::default(),
            counters: Counters::default(),
            events: VecDeque::new(),
            timers: Timers::default(),
            to_arm: Vec::new(),
            schedule: Schedule::default(),
            latest: Qpn::default(),
            urgent: Urgent::default(),
            companies: Companies::default(),
            identification,
            identification_step: 1,
            imposed_port: None,
            next_pd: 1,
            qpn_slot,
            host_slot: None,
            retired: VecDeque::new(),
            waiting_bytes: 0,
            recovery: RecoverySettings::default(),
            local_rails: Vec::new(),
            local_addresses: None,
            groups: Groups::default(),
            hop_seekers: VecDeque::new(),
            is_forked: false,
        }
    }

    /// The endpoint that a process made by fork(2) has instead of its parent's: it is empty, and refuses to make
    /// anything.
    pub fn forked() -> Endpoint {
        Endpoint { is_forked: true, ..Endpoint::new([0; 32]) }
    }

    /// Imposes this IPv4 identification and UDP source port on all packets, whatever their paths say: those of the
    /// link, where something behind it writes these headers. It must be called before there is any queue pair.
    pub fn impose(&mut self, identification: u16, source_port: u16) {
        (self.identification, self.identification_step) = (identification, 0);
        self.imposed_port = Some(source_port);
    }

    /// Sets how queue pairs that are created from now on recover from losses.
    pub fn set_recovery(&mut self, recovery: RecoverySettings) {
        self.recovery = recovery;
    }

    /// For how long urgent messages of this endpoint count as under way: five seconds after the latest send request of an urgent
    /// queue pair.
    pub fn urgent_left(&self, now: Instant) -> Duration {
        self.urgent.own_left(now)
    }

    /// Has bulk and scavenger queue pairs give way to the urgent messages of other endpoints on the same interface for `left`,
    /// five seconds at most, as they do to this one's. The next call counts instead.
    pub fn give_way_for(&mut self, now: Instant, left: Duration) {
        self.urgent.others(now, left);
    }

    /// Makes all queue pairs of the scavenger class together keep to `cap`; `None` for no limit.
    pub fn set_scavenger_cap(&mut self, cap: Option<Rate>) {
        self.schedule.set_scavenger_cap(cap);
    }

    /// How new queue pairs recover from losses.
    pub fn recovery(&self) -> RecoverySettings {
        self.recovery
    }

    /// Makes datagrams to other addresses than these be dropped and counted, except those to groups. rxe and RNICs,
    /// too, accept those to the port's own GIDs only. Without this call all are accepted: what drives the endpoint has
    /// checked them. Connected queue pairs always check both addresses.
    pub fn set_local_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.local_addresses = Some(addresses.into_iter().collect());
    }

    /// Sets the addresses of each further interface of the device, in the order of its GID table. The first interface
    /// is not among them: queue pairs name its addresses in their address vectors. A queue pair that learns from now on
    /// that its peer understands takes from each interface the first address of its own family, and announces it to the
    /// peer.
    pub fn set_local_rails(&mut self, rails: Vec<Vec<IpAddr>>) {
        self.local_rails = rails;
    }

    /// The addresses of each further interface of the device.
    pub fn local_rails(&self) -> &[Vec<IpAddr>] {
        &self.local_rails
    }

    /// A next hop that the link must resolve: pass the result to [`hop_found`](Self::hop_found). Each is returned once,
    /// and again after [`ask_hops_again`](Self::ask_hops_again).
    pub fn poll_hop_query(&mut self) -> Option<HopQuery> {
        while let Some(&qpn) = self.hop_seekers.front() {
            if let Some(slot) = self.queue_pairs.get_mut(qpn) {
                let query = slot.multipath.as_mut().and_then(|multipath| multipath.poll_query());
                if let Some(RailQuery { rail, source, destination }) = query {
                    return Some(HopQuery { qpn, rail, source, destination });
                }
                slot.seeks_hops = false;
            }
            self.hop_seekers.pop_front();
        }
        None
    }

    /// Takes the link's answer to a query; without a next hop the rail is not used.
    pub fn hop_found(&mut self, now: Instant, query: HopQuery, hop: Option<Hop>) {
        let HopQuery { qpn, rail, source, destination } = query;
        self.with(now, qpn, |_, cx| {
            if let Some(multipath) = cx.multipath {
                multipath.hop_found(RailQuery { rail, source, destination }, hop, now);
            }
        });
    }

    /// Makes all next hops of rails be resolved again, after routes changed or an interface came back. Until they are
    /// known, the old ones are used.
    pub fn ask_hops_again(&mut self) {
        for (qpn, slot) in self.queue_pairs.iter_mut() {
            slot.multipath.iter_mut().for_each(|multipath| multipath.ask_hops_again());
            slot.seek_hops(qpn, &mut self.hop_seekers);
        }
    }

    /// The number of paths that a queue pair has, and of those that carry packets; (1, 1) where it knows of no others.
    ///
    /// # Errors
    /// [`NoSuchQueuePair`] when no queue pair has this number.
    pub fn paths(&self, qpn: Qpn) -> Result<(u16, u16), NoSuchQueuePair> {
        let slot = self.queue_pairs.get(qpn).ok_or(NoSuchQueuePair(qpn))?;
        Ok(slot.multipath.as_ref().map_or((1, 1), |multipath| (multipath.set.count(), multipath.set.good())))
    }

    fn impose_port(&self, path: &mut Path) {
        if let Some(source_port) = self.imposed_port {
            path.flow.source_port = source_port;
        }
    }

    /// The registered memory of the endpoint, and its keys.
    pub fn memory(&mut self) -> &mut MemoryTable {
        &mut self.memory
    }

    /// Allocates a new protection domain.
    pub fn allocate_pd(&mut self) -> Pd {
        let pd = Pd(self.next_pd);
        self.next_pd += 1;
        pd
    }

    /// The sum of all counters, over all queue pairs and the endpoint.
    pub fn counters(&self) -> Counters {
        let mut sum = self.counters;
        self.queue_pairs.iter().for_each(|(_, slot)| sum.add(&slot.counters));
        sum
    }

    /// The counters of one queue pair.
    ///
    /// # Errors
    /// [`NoSuchQueuePair`] when no queue pair has this number.
    pub fn queue_pair_counters(&self, qpn: Qpn) -> Result<Counters, NoSuchQueuePair> {
        self.queue_pairs.get(qpn).map(|slot| slot.counters).ok_or(NoSuchQueuePair(qpn))
    }

    /// Bytes of requests that arrived early and wait, over all queue pairs.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// The number of queue pairs.
    pub fn queue_pairs(&self) -> usize {
        self.queue_pairs.len()
    }

    /// What the congestion controllers of queue pairs do and know, in the order of their numbers.
    pub fn flows(&self) -> impl Iterator<Item = (Qpn, FlowStatus)> {
        let all = self.queue_pairs.iter();
        all.filter_map(|(qpn, slot)| Some((qpn, slot.queue_pair.flow_status()?)))
    }

    /// How all queue pairs stand, in the order of their numbers.
    pub fn queue_pair_status(&self) -> impl Iterator<Item = QueuePairStatus> {
        self.queue_pairs.iter().map(|(_, slot)| {
            let Slot { queue_pair: qp, counters, multipath, .. } = slot;
            QueuePairStatus {
                qpn: qp.qpn(),
                service: qp.service(),
                state: qp.state(),
                class: qp.class(),
                peer: qp.flow().map(|flow| (flow.addresses.destination(), qp.remote())),
                recovery: qp.recovery_in_use(),
                congestion: qp.congestion(),
                paths: multipath.iter().flat_map(|multipath| multipath.set.status()).collect(),
                flow: qp.flow_status(),
                counters: *counters,
            }
        })
    }

    /// Creates a queue pair in the RESET state, with a number drawn at random; [`Service::Gsi`] gets QPN 1.
    ///
    /// # Errors
    /// [`CreateError`] when a capacity is out of range, there are too many queue pairs, QP1 exists already, the shared
    /// receive queue does not exist, or the endpoint is [`forked`](Self::forked).
    pub fn create_queue_pair(&mut self, init: QueuePairInit) -> Result<Qpn, CreateError> {
        if self.is_forked {
            return Err(CreateError::Forked(Forked));
        }
        let Capabilities { max_send_requests, max_receive_requests } = init.capabilities;
        let receive = if init.srq.is_some() { 1 } else { max_receive_requests };
        for capacity in [max_send_requests, receive] {
            if !(1..=Capabilities::MAX_REQUESTS).contains(&capacity) {
                return Err(CreateError::Capacity(capacity));
            }
        }
        if self.queue_pairs.len() >= MAX_QUEUE_PAIRS {
            return Err(CreateError::TooMany(self.queue_pairs.len()));
        }
        let qpn = match init.service {
            Service::Gsi if self.queue_pairs.contains(Qpn::GSI) => return Err(CreateError::GsiInUse),
            Service::Gsi => Qpn::GSI,
            _ => self.draw_qpn(),
        };
        if let Some(srq) = init.srq {
            self.shared.attach(srq)?;
        }
        let queue_pair = QueuePairMachine::new(qpn, init, self.recovery);
        let slot =
            Slot { queue_pair, counters: Counters::default(), multipath: None, seeks_hops: false, is_to_arm: false };
        self.queue_pairs.insert(qpn, Box::new(slot));
        Ok(qpn)
    }

    /// Draws a free number in our slot. When that is nearly full, another slot is ours from then on.
    fn draw_qpn(&mut self) -> Qpn {
        loop {
            for _ in 0..DRAWS_A_SLOT {
                let qpn = self.memory.keys().qpn(self.qpn_slot);
                if !self.queue_pairs.contains(qpn) && !self.retired.contains(&qpn) {
                    return qpn;
                }
            }
            self.qpn_slot = self.draw_slot();
        }
    }

    /// Draws twelve bits of which packets show to which program on this host they belong.
    pub fn draw_slot(&mut self) -> u16 {
        self.memory.keys().qpn_slot(self.host_slot)
    }

    /// Sets the slot of this program among those that share the link's addresses, 1 to 63. Queue pairs that are created
    /// from now on have it in their numbers: in the lower six of the upper twelve bits.
    pub fn set_host_slot(&mut self, slot: u8) {
        self.host_slot = Some(slot);
        self.qpn_slot = self.draw_slot();
    }

    /// Creates a shared receive queue of `capacity` requests, 1 to 65536.
    ///
    /// # Errors
    /// [`SrqError::Size`] when `capacity` is out of range; [`SrqError::Forked`] from a [`forked`](Self::forked)
    /// endpoint.
    pub fn create_srq(&mut self, pd: Pd, capacity: usize) -> Result<Srq, SrqError> {
        self.check_not_forked()?;
        self.shared.create(pd, capacity)
    }

    /// Destroys a shared receive queue, without completions for what is posted.
    ///
    /// # Errors
    /// [`SrqError::NoSuchSrq`] when it does not exist; [`SrqError::InUse`] while queue pairs use it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), SrqError> {
        self.shared.destroy(srq)
    }

    /// Posts a receive request to a shared receive queue.
    ///
    /// # Errors
    /// [`SrqError::NoSuchSrq`] when the queue does not exist; [`SrqError::Full`] when it is full;
    /// [`SrqError::Forked`] from a [`forked`](Self::forked) endpoint. Nothing is posted then.
    pub fn post_srq_receive(&mut self, srq: Srq, request: ReceiveRequest) -> Result<(), SrqError> {
        self.check_not_forked()?;
        self.shared.post(srq, request)
    }

    /// Arms the event [`Event::SrqLimit`], which is reported once, when fewer than `limit` requests are left; 0 disarms
    /// it.
    ///
    /// # Errors
    /// [`SrqError::NoSuchSrq`] when the queue does not exist; [`SrqError::Size`] when `limit` is above its capacity;
    /// [`SrqError::Forked`] from a [`forked`](Self::forked) endpoint.
    pub fn arm_srq(&mut self, srq: Srq, limit: usize) -> Result<(), SrqError> {
        self.check_not_forked()?;
        self.shared.arm(srq, limit)
    }

    /// Changes the capacity of a shared receive queue, 1 to 65536 requests.
    ///
    /// # Errors
    /// [`SrqError::NoSuchSrq`] when the queue does not exist; [`SrqError::Size`] when `capacity` is out of range, or
    /// below the number of posted requests or the limit.
    pub fn resize_srq(&mut self, srq: Srq, capacity: usize) -> Result<(), SrqError> {
        self.shared.resize(srq, capacity)
    }

    /// The capacity of a shared receive queue, in requests, and its limit (0 when the event is not armed).
    ///
    /// # Errors
    /// [`SrqError::NoSuchSrq`] when the queue does not exist; [`SrqError::Forked`] from a [`forked`](Self::forked)
    /// endpoint.
    pub fn query_srq(&mut self, srq: Srq) -> Result<(usize, usize), SrqError> {
        self.check_not_forked()?;
        self.shared.query(srq)
    }

    fn check_not_forked(&self) -> Result<(), SrqError> {
        if self.is_forked { Err(SrqError::Forked(Forked)) } else { Ok(()) }
    }

    /// A queue pair, for inspection.
    ///
    /// # Errors
    /// [`NoSuchQueuePair`] when no queue pair has this number.
    pub fn queue_pair(&self, qpn: Qpn) -> Result<&QueuePairMachine, NoSuchQueuePair> {
        self.queue_pairs.get(qpn).map(|slot| &slot.queue_pair).ok_or(NoSuchQueuePair(qpn))
    }

    /// Destroys a queue pair, without completions for what is posted (IBTA 11.2.5.4). Its completions that are not
    /// polled are removed, too, as providers for RNICs do: a program that polled one later would look for what it was
    /// posted with.
    ///
    /// # Errors
    /// [`NoSuchQueuePair`] when no queue pair has this number.
    pub fn destroy_queue_pair(&mut self, qpn: Qpn) -> Result<(), NoSuchQueuePair> {
        let slot = self.queue_pairs.remove(qpn).ok_or(NoSuchQueuePair(qpn))?;
        for group in self.groups.of(qpn) {
            let _ = self.groups.detach(qpn, group);
        }
        self.counters.add(&slot.counters);
        self.waiting_bytes -= slot.queue_pair.waiting_bytes();
        if self.retired.len() == RETIRED_MAX {
            self.retired.pop_front();
        }
        self.retired.push_back(qpn);
        if let Some(srq) = slot.queue_pair.srq() {
            self.shared.detach(srq);
        }
        slot.queue_pair.forget_completions();
        Ok(())
    }

    /// Changes a queue pair's state and attributes.
    ///
    /// # Errors
    /// [`ModifyError`] when there is no such queue pair, its state or service does not allow the modification, or a
    /// value is out of range. Nothing is changed then.
    pub fn modify(&mut self, now: Instant, qpn: Qpn, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let missing = if self.is_forked { ModifyError::Forked(Forked) } else { ModifyError::NoSuchQueuePair(qpn) };
        let mut attributes = *attributes;
        attributes.path.iter_mut().for_each(|path| self.impose_port(path));
        self.with(now, qpn, |qp, cx| qp.modify(&attributes, cx)).unwrap_or(Err(missing))
    }

    /// Takes a queue pair that is in `RESET`, `INIT` or `RTR` to `RTS`, by [`QpAttributes::steps`]. Attributes that are
    /// not given are as in [`QpAttributes::HABITS`], and those that its service has no use for are ignored.
    ///
    /// # Errors
    /// [`ModifyError`] of the step that was refused. The queue pair is then in the state before that step, and can be
    /// connected again. [`ModifyError::Transition`] in other states: RESET is the way back from each.
    pub fn connect(&mut self, now: Instant, qpn: Qpn, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let missing = if self.is_forked { ModifyError::Forked(Forked) } else { ModifyError::NoSuchQueuePair(qpn) };
        let QueuePairInfo { service, attributes: before, .. } = self.queue_pair(qpn).map_err(|_| missing)?.info();
        let from = before.state.unwrap_or(State::Reset);
        let steps = attributes.steps(service, from);
        if steps.is_empty() {
            return Err(ModifyError::Transition { service, from, to: State::ReadyToReceive });
        }
        steps.iter().try_for_each(|step| self.modify(now, qpn, step))
    }

    /// Moves a reliable connection's idle queue pair on, as if `sent` and `received` had gone by, in order, since its
    /// last packet. Its peer must be moved on, too, with the two exchanged, while nothing is in flight between them.
    ///
    /// It is for simulations and has no counterpart in the verbs. PSNs are compared modulo 2^24, so what a queue pair
    /// remembers looks later than the present once it is 2^23 packets old. A simulation that really sent so many
    /// packets would take minutes each time.
    ///
    /// # Errors
    /// [`NoSuchQueuePair`] when no queue pair has this number.
    pub fn skip(&mut self, now: Instant, qpn: Qpn, sent: Skipped, received: Skipped) -> Result<(), NoSuchQueuePair> {
        self.with(now, qpn, |qp, _| qp.skip(sent, received)).ok_or(NoSuchQueuePair(qpn))
    }

    /// Decides for a queue pair what its program does not, until it is in RESET.
    ///
    /// # Errors
    /// [`NoSuchQueuePair`] when no queue pair has this number.
    pub fn treat(&mut self, now: Instant, qpn: Qpn, treatment: &Treatment) -> Result<(), NoSuchQueuePair> {
        self.with(now, qpn, |qp, _| qp.treat(*treatment)).ok_or(NoSuchQueuePair(qpn))
    }

    /// Posts a send request to a queue pair.
    ///
    /// # Errors
    /// [`PostError`] when there is no such queue pair, its state or service does not allow the request, its send queue
    /// is full, or the request is invalid. Nothing is posted then.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, mut request: SendRequest) -> Result<(), PostError> {
        let missing = self.missing(qpn);
        request.destination.iter_mut().for_each(|destination| self.impose_port(&mut destination.path));
        self.with(now, qpn, |qp, cx| qp.post_send(&mut request, cx)).unwrap_or(Err(missing))
    }

    /// Posts a receive request to a queue pair.
    ///
    /// # Errors
    /// [`PostError`] when there is no such queue pair, it is in RESET, it uses a shared receive queue, or its receive
    /// queue is full. Nothing is posted then.
    pub fn post_receive(&mut self, now: Instant, qpn: Qpn, request: ReceiveRequest) -> Result<(), PostError> {
        let missing = self.missing(qpn);
        self.with(now, qpn, |qp, cx| qp.post_receive(request, cx)).unwrap_or(Err(missing))
    }

    fn missing(&self, qpn: Qpn) -> PostError {
        if self.is_forked { PostError::Forked(Forked) } else { PostError::NoSuchQueuePair(qpn) }
    }

    /// Takes a received Ethernet frame. A frame that is refused is counted; the peer gets at most a NAK.
    pub fn handle_frame(&mut self, now: Instant, frame: FrameBytes<'_>) {
        self.handle(now, frame, false);
    }

    /// Takes a received Ethernet frame as [`handle_frame`](Self::handle_frame), whose ICRC the caller has computed, and found
    /// right.
    pub fn handle_checked_frame(&mut self, now: Instant, frame: FrameBytes<'_>) {
        self.handle(now, frame, true);
    }

    fn handle(&mut self, now: Instant, frame: FrameBytes<'_>, has_right_icrc: bool) {
        self.counters.rcvd_pkts += 1;
        if let Err(reason) = self.dispatch(now, frame, has_right_icrc) {
            *reason(&mut self.counters) += 1;
            traced!(debug, "frame refused", why = Counters::name(reason), frame = headline(frame));
        }
    }

    /// Makes the checks that need no queue pair, then those that do, and then passes the packet to the roles. Returns the
    /// counter of the check that failed.
    fn dispatch(&mut self, now: Instant, frame: FrameBytes<'_>, has_right_icrc: bool) -> Result<(), Which> {
        let roce = RoceFrame::parse(frame).map_err(|_| counter(|c| &mut c.malformed))?;
        let packet = Packet::parse(roce.ib).map_err(|_| counter(|c| &mut c.malformed))?;
        if !roce.ip.checksum_ok() {
            return Err(|c| &mut c.bad_ip_checksum);
        }
        let bth = packet.bth();
        if bth.tver() != 0 {
            return Err(|c| &mut c.bad_tver);
        }
        let qpn = bth.destination();
        if qpn == Qpn::MULTICAST {
            return self.dispatch_to_group(now, &packet, &roce, has_right_icrc);
        }
        let handled = self.with(now, qpn, |qp, cx| {
            let way = check(qp, &packet, &roce, cx)?;
            check_icrc(&roce, has_right_icrc)?;
            cx.counters.rcvd_bytes += roce.packet.len() as u64;
            qp.handle_packet(packet, &roce.ip, way, cx);
            Ok(())
        });
        handled.unwrap_or(Err(|c| &mut c.unknown_qpn))
    }

    /// Passes a datagram to all queue pairs that are attached to its group, except the one that sent it.
    fn dispatch_to_group(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        roce: &RoceFrame<'_>,
        has_right_icrc: bool,
    ) -> Result<(), Which> {
        let bth = packet.bth();
        let group = roce.ip.addresses().destination();
        if self.groups.member(group, 0).is_none() {
            return Err(|c| &mut c.unknown_qpn);
        }
        if !bth.opcode().is_known() || bth.opcode().service() != wire::TransportService::Ud {
            return Err(|c| &mut c.bad_opcode);
        }
        if !PKey::DEFAULT.matches(bth.p_key()) {
            return Err(|c| &mut c.bad_p_key);
        }
        check_icrc(roce, has_right_icrc)?;
        let source = roce.ip.addresses().source();
        let is_own = self.local_addresses.as_ref().is_some_and(|local| local.contains(&source));
        let sender = packet.deth().map(|deth| deth.source()).filter(|_| is_own);
        let way = Way { rail: 0, source_port: roce.udp.source_port() };
        let mut index = 0;
        while let Some(qpn) = self.groups.member(group, index) {
            if Some(qpn) != sender {
                self.with(now, qpn, |qp, cx| {
                    cx.counters.rcvd_bytes += roce.packet.len() as u64;
                    qp.handle_packet(*packet, &roce.ip, way, cx);
                });
            }
            index += 1;
        }
        Ok(())
    }

    /// Attaches a UD queue pair to a multicast group; once more has no effect. Returns whether it is the only one: then
    /// the link must join the group.
    ///
    /// # Errors
    /// [`AttachError`] when the queue pair does not exist or is not UD, the address is no group's, or there would be
    /// too many.
    pub fn attach(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, AttachError> {
        self.check_attachable(qpn)?;
        self.groups.attach(qpn, group)
    }

    /// Detaches a queue pair from a multicast group. Returns whether it was the only one: then the link must leave the
    /// group.
    ///
    /// # Errors
    /// [`AttachError`] when the queue pair does not exist, is not UD, or is not attached to the group.
    pub fn detach(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, AttachError> {
        self.check_attachable(qpn)?;
        self.groups.detach(qpn, group)
    }

    /// The multicast groups that a queue pair is attached to.
    pub fn groups(&self, qpn: Qpn) -> Vec<IpAddr> {
        self.groups.of(qpn)
    }

    fn check_attachable(&self, qpn: Qpn) -> Result<(), AttachError> {
        match self.queue_pair(qpn).map(QueuePairMachine::service) {
            Ok(Service::Ud) => Ok(()),
            Ok(other) => Err(AttachError::Service(other)),
            Err(_) => Err(AttachError::NoSuchQueuePair(qpn)),
        }
    }

    /// Handles the time `now`: wakes every queue pair whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.schedule.handle_timeout(now);
        while let Some((at, qpn)) = self.pop_due(now) {
            self.with(now, qpn, |qp, cx| {
                if qp.armed != Some(at) {
                    return; // left behind; an earlier one counts
                }
                qp.armed = None;
                if qp.deadline(cx.multipath.as_deref()).is_some_and(|at| at <= cx.now) {
                    qp.handle_timeout(cx);
                }
            });
        }
    }

    /// Removes the next timer, if it is due.
    fn pop_due(&mut self, now: Instant) -> Option<(Instant, Qpn)> {
        self.arm_timers();
        self.timers.pop_due(now)
    }

    /// Arms the timers of the queue pairs whose deadlines can have changed.
    fn arm_timers(&mut self) {
        let Endpoint { queue_pairs, timers, to_arm, .. } = self;
        for qpn in to_arm.drain(..) {
            let Some(slot) = queue_pairs.get_mut(qpn) else { continue };
            slot.is_to_arm = false;
            let qp = &mut slot.queue_pair;
            let deadline = qp.deadline(slot.multipath.as_deref());
            if let Some(deadline) = deadline.filter(|deadline| qp.armed.is_none_or(|armed| *deadline < armed)) {
                qp.armed = Some(deadline);
                timers.arm(deadline, qpn);
            }
        }
        if timers.len() > 4 * queue_pairs.len() + IDLE_TIMERS {
            timers.sweep(|at, qpn| queue_pairs.get(qpn).is_some_and(|slot| slot.queue_pair.armed == Some(at)));
        }
    }

    /// When [`handle_timeout`](Endpoint::handle_timeout) must be called, `None` for never. It can turn out to be early.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.arm_timers();
        match self.schedule.deadline() {
            None => self.timers.next(),
            Some(held) => Some(self.timers.next().map_or(held, |timer| timer.min(held))),
        }
    }

    /// Writes packets to `sink`, from the IP header on, as long as it takes them and there is something to send now.
    pub fn transmit(&mut self, now: Instant, sink: &mut dyn Sink) {
        while let Some(turn) = self.schedule.next(now) {
            let Turn { class, qpn, packets } = turn;
            let sent = self.with(now, qpn, |qp, cx| qp.transmit(packets, sink, cx)).unwrap_or_default();
            if sent.packets > 0 {
                self.schedule.sent(now, Turn { packets: sent.packets, ..turn }, sent.bytes);
            }
            match sent.end {
                End::NoPlace => return,
                End::NothingLeft => self.leave_lane(class, qpn),
                End::Turn => {}
            }
        }
    }

    /// Writes the next packet to `out`, as [`transmit`](Self::transmit). `None` when there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        let mut single = Single { out, taken: None };
        self.transmit(now, &mut single);
        single.taken
    }

    /// Takes a queue pair that has nothing to send now from those that wait in the lane of `class`.
    fn leave_lane(&mut self, class: Class, qpn: Qpn) {
        self.schedule.remove(class, qpn);
        if let Some(slot) = self.queue_pairs.get_mut(qpn) {
            slot.queue_pair.lane = slot.queue_pair.lane.filter(|lane| *lane != class);
        }
    }

    /// Writes the next acknowledge, NAK or result of an atomic that a queue pair owes its peer, from the IP header on.
    /// It is for one that goes away, and sends neither READ responses nor requests any more. `None` when nothing is
    /// owed.
    pub fn poll_owed(&mut self, now: Instant, qpn: Qpn, out: &mut [u8]) -> Option<Transmit> {
        self.with(now, qpn, |qp, cx| qp.poll_owed(out, cx)).flatten()
    }

    /// The queue pairs that can have something to send.
    pub fn ready(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.schedule.queue_pairs()
    }

    /// Whether [`poll_transmit`](Endpoint::poll_transmit) can have a packet.
    pub fn may_transmit(&self) -> bool {
        self.schedule.may_send()
    }

    /// Whether acknowledges are all there is to send. With more than four ready queue pairs it does not check, and
    /// returns false.
    pub fn owes_only_acknowledges(&self) -> bool {
        /// Upper bound on the queue pairs to check: as many as cost less than the check can save.
        const LOOK_AT: usize = 4;
        let plain = |qpn: Qpn| self.queue_pairs.get(qpn).is_some_and(|slot| slot.queue_pair.owes_only_an_acknowledge());
        (1..=LOOK_AT).contains(&self.schedule.len()) && self.ready().all(plain)
    }

    /// Whether there is an event that was not taken yet.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Removes the oldest event that was not taken yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Runs `work` on a queue pair, and handles its consequences for others.
    fn with<T>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        work: impl FnOnce(&mut QueuePairMachine, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let (result, has_lost_completion) = self.run(now, qpn, work)?;
        if has_lost_completion {
            self.fail_with_their_queues(now);
        }
        Some(result)
    }

    /// Takes the queue pairs whose completion queue is in error to the error state.
    #[cold]
    fn fail_with_their_queues(&mut self, now: Instant) {
        let failed = self.queue_pairs.iter().filter(|(_, slot)| slot.queue_pair.has_failed_queue());
        let failed: Vec<Qpn> = failed.map(|(qpn, _)| qpn).collect();
        for qpn in failed {
            let _ = self.run(now, qpn, |qp, cx| qp.fail_for_its_queue(cx));
        }
    }

    /// Runs `work` on a queue pair, and updates its timer and its place among those that can send. Also returns whether
    /// it has lost a completion.
    fn run<T>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        work: impl FnOnce(&mut QueuePairMachine, &mut Context<'_>) -> T,
    ) -> Option<(T, bool)> {
        if self.to_arm.len() >= TO_ARM_MAX {
            self.arm_timers();
        }
        let (identification_step, port_is_imposed) = (self.identification_step, self.imposed_port.is_some());
        let Endpoint {
            queue_pairs,
            memory,
            shared,
            events,
            identification,
            to_arm,
            schedule,
            latest,
            urgent,
            companies,
            local_rails,
            hop_seekers,
            waiting_bytes,
            local_addresses,
            ..
        } = self;
        let slot = queue_pairs.get_mut(qpn)?;
        let is_cold = std::mem::replace(latest, qpn) != qpn;
        if is_cold {
            cache::prefetch(slot);
        }
        let Slot { queue_pair: qp, counters, multipath, .. } = slot;
        let waiting_elsewhere = *waiting_bytes - qp.waiting_bytes();
        let context = &mut Context {
            now,
            memory,
            shared,
            counters,
            events,
            identification,
            identification_step,
            multipath,
            waiting_elsewhere,
            urgent,
            companies,
            local_addresses,
            has_lost_completion: false,
            is_cold,
        };
        let result = work(qp, context);
        let has_lost_completion = context.has_lost_completion;
        *waiting_bytes = waiting_elsewhere + qp.waiting_bytes();
        if qp.wants_multipath() != multipath.is_some() {
            *multipath = qp.multipath(local_rails, port_is_imposed, now);
        }
        slot.seek_hops(qpn, hop_seekers);
        let Slot { queue_pair: qp, multipath, is_to_arm, .. } = slot;
        match qp.lane {
            None if qp.may_transmit(multipath.as_deref()) => {
                qp.lane = Some(qp.class());
                match qp.owes_only_an_acknowledge() {
                    true => schedule.add_ahead(now, qp.class(), qpn),
                    false => schedule.add(now, qp.class(), qpn),
                }
            }
            None => {}
            Some(lane) if lane == qp.class() => {}
            Some(lane) => change_lane(schedule, now, lane, qp),
        }
        if !std::mem::replace(is_to_arm, true) {
            to_arm.push(qpn);
        }
        Some((result, has_lost_completion))
    }
}

/// Makes the checks of a packet that need its queue pair. Returns the way on which it came, or the counter of the check that
/// failed.
fn check(qp: &QueuePairMachine, packet: &Packet<'_>, roce: &RoceFrame<'_>, cx: &Context<'_>) -> Result<Way, Which> {
    let opcode = packet.bth().opcode();
    let service = match qp.service() {
        Service::Rc => wire::TransportService::Rc,
        Service::Uc => wire::TransportService::Uc,
        Service::Ud | Service::Gsi => wire::TransportService::Ud,
    };
    // A CNP is for queue pairs of all services.
    if !opcode.is_known() || (opcode.service() != service && opcode != Opcode::CNP) {
        return Err(|c| &mut c.bad_opcode);
    }
    if !PKey::DEFAULT.matches(packet.bth().p_key()) && !mutated!("partition-not-checked") {
        return Err(|c| &mut c.bad_p_key);
    }
    let mut way = Way { rail: 0, source_port: roce.udp.source_port() };
    if qp.service().is_datagram() {
        let to = roce.ip.addresses().destination();
        // A packet to a group names no single queue pair.
        let is_strange = to.is_multicast() || cx.local_addresses.as_ref().is_some_and(|local| !local.contains(&to));
        if is_strange && !mutated!("datagram-to-another-address-taken", by "uroce --test services datagrams_to_") {
            return Err(|c| &mut c.wrong_address);
        }
    } else {
        match qp.flow() {
            None => return Err(|c| &mut c.wrong_state),
            Some(flow) if !roce.ip.answers(&flow.addresses) && !mutated!("address-not-checked") => {
                let rail = cx.multipath.as_ref().and_then(|multipath| multipath.find_rail(&roce.ip));
                way.rail = rail.ok_or(counter(|c| &mut c.wrong_address))?;
            }
            Some(_) => {}
        }
    }
    Ok(way)
}

/// Checks the ICRC, the last check of all, unless that was done before: `is_right`.
fn check_icrc(roce: &RoceFrame<'_>, is_right: bool) -> Result<(), Which> {
    if is_right || roce.icrc_ok() || mutated!("icrc-not-checked") { Ok(()) } else { Err(|c| &mut c.bad_icrc) }
}

/// Makes a queue pair whose class has changed wait in its new lane.
#[cold]
fn change_lane(schedule: &mut Schedule, now: Instant, before: Class, qp: &mut QueuePairMachine) {
    schedule.remove(before, qp.qpn());
    qp.lane = Some(qp.class());
    schedule.add(now, qp.class(), qp.qpn());
}

/// The addresses, QPN, PSN and opcode of a frame, as text for the trace.
#[cold]
fn headline(frame: FrameBytes<'_>) -> String {
    let Ok(roce) = RoceFrame::parse(frame) else { return format!("{} bytes", frame.len()) };
    let addresses = roce.ip.addresses();
    let (from, to) = (addresses.source(), addresses.destination());
    match Packet::parse(roce.ib).map(|packet| *packet.bth()) {
        Ok(bth) => format!("{from} to {to}, QPN {}, PSN {}, {}", bth.destination(), bth.psn(), bth.opcode()),
        Err(error) => format!("{from} to {to}: {error}"),
    }
}

/// Gives the closures one type.
fn counter(which: Which) -> Which {
    which
}
