use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;

use uroce::frame::{FrameBytes, Hop};
use uroce::time::{Duration, Instant};
use uroce::transport::{Class, Endpoint};
use uroce::wire::{Bth, ICRC_BYTES, Packet, icrc};
use zerocopy::FromBytes;

use crate::ethernet::{ETHERNET_BYTES, ether_type, is_ipv6};

use super::frame_pool::{Condition, FramePool};
use super::goodput::is_data;
use super::link::{Link, LinkProfile, Lost};
use super::node::Node;
use super::paired_losses::PairedLosses;
use super::pauses::Pauses;
use super::priority_queues::PriorityQueues;
use super::random::Random;
use super::switch::Switch;
use super::telemetry;

/// The index of a node, in the order in which nodes were added. The [`Hop`] of the same number leads
/// to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// The index of a link, in the order in which links were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// The index of a switch, in the order in which switches were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub usize);

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The link ends at a node.
    Node(NodeId),
    /// The link ends at a switch.
    Switch(SwitchId),
}

/// An observer of the frames in a network. Frames begin with the Ethernet header.
pub trait Observer {
    /// The node has sent a frame.
    fn sent(&mut self, _now: Instant, _node: NodeId, _frame: &[u8], _to: NodeId) {}

    /// The node has nothing more to send for now.
    fn drained(&mut self, _now: Instant, _node: NodeId) {}

    /// The frame was lost before it arrived.
    fn lost(&mut self, _now: Instant, _to: NodeId, _frame: &[u8], _why: Lost) {}

    /// A frame arrives; the endpoint has not seen it yet.
    fn arriving(&mut self, _now: Instant, _node: NodeId, _frame: &[u8], _condition: Condition) {}

    /// The endpoint has handled the frame, or a timer when there is none, and has sent nothing since.
    fn handled(&mut self, _now: Instant, _node: NodeId, _endpoint: &mut Endpoint, _frame: Option<&[u8]>) {}
}

impl Observer for () {}

/// The result of [`Network::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A frame moved on, or a node sent some.
    Moved,
    /// A node received a frame or was woken by its timer: it can have completions.
    Handled(NodeId),
    /// The time given to [`Network::wake_at`] has come; holds the token.
    Woken(u64),
}

/// Counts of frames; at any moment sent + duplicated + forged = delivered + lost + in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they count
pub struct Tally {
    pub sent: u64,
    pub duplicated: u64,
    pub forged: u64,
    pub corrupted: u64,
    pub marked: u64,
    pub delivered: u64,
    pub lost: u64,
    pub lost_to_full_queues: u64,
    /// Frames among those delivered that were corrupted or forged.
    pub delivered_bad: u64,
}

/// A network of endpoints, links and switches in virtual time.
pub struct Network {
    now: Instant,
    events: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    nodes: Vec<Node>,
    links: Vec<(Link, LinkEnd)>,
    /// The switches that links lead from, which write telemetry into what they send.
    senders: BTreeMap<LinkId, SwitchId>,
    /// The queues of links that send by class.
    priority_queues: BTreeMap<LinkId, PriorityQueues>,
    /// Losses of links beside those of their profiles.
    paired_losses: BTreeMap<LinkId, PairedLosses>,
    interface_bytes: u64,
    /// Whether frames without data overtake all others on each link.
    acknowledges_overtake: bool,
    switches: Vec<Switch>,
    /// The node of each address that endpoints ask for.
    addresses: BTreeMap<IpAddr, NodeId>,
    /// How many route changes are left, and how long each state of the routes lasts.
    route_changes: (u32, Duration),
    frames: FramePool,
    tally: Tally,
    seed: u64,
    random: Random,
    scratch: Box<[u8]>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: Instant,
    /// The order in which events were scheduled; it decides between events at the same time.
    sequence: u64,
    event: Event,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival {
        link: u32,
        frame: u32,
    },
    /// A frame with room for telemetry has left a switch.
    Departure {
        link: u32,
        frame: u32,
    },
    Egress {
        link: u32,
    },
    Timer {
        node: u32,
    },
    Pull {
        node: u32,
    },
    Routes {
        node: u32,
    },
    Wake(u64),
}

/// Bytes that an interface takes from the endpoint before the link has sent them, unless
/// [set](Network::set_interface_bytes): two full frames. The rest stays with the endpoint, which decides at the last
/// moment what to send.
const INTERFACE_BYTES: u64 = 8500;

/// Length in bytes that holds a packet of path MTU 4096, with all headers.
const FRAME_BYTES_MAX: usize = 4096 + 256;

impl Network {
    /// An empty network at time zero; `seed` decides all randomness.
    pub fn new(seed: u64) -> Network {
        Network {
            now: Instant::ZERO,
            events: BinaryHeap::new(),
            scheduled: 0,
            nodes: Vec::new(),
            links: Vec::new(),
            senders: BTreeMap::new(),
            priority_queues: BTreeMap::new(),
            paired_losses: BTreeMap::new(),
            interface_bytes: INTERFACE_BYTES,
            acknowledges_overtake: false,
            switches: Vec::new(),
            addresses: BTreeMap::new(),
            route_changes: (0, Duration::ZERO),
            frames: FramePool::default(),
            tally: Tally::default(),
            seed,
            random: Random::new(seed, 1),
            scratch: vec![0; FRAME_BYTES_MAX].into(),
        }
    }

    /// Adds an endpoint, and returns the index of its node.
    pub fn add_node(&mut self, endpoint: Endpoint) -> NodeId {
        self.nodes.push(Node::new(endpoint));
        NodeId(self.nodes.len() - 1)
    }

    /// Adds an endpoint whose keys follow from `seed` and the number of a `stream` of it. Returns the index of its node.
    pub fn add_endpoint(&mut self, seed: u64, stream: u64) -> NodeId {
        let mut random = Random::new(seed, stream);
        self.add_node(Endpoint::new([0; 32].map(|_: u8| random.u32() as u8)))
    }

    /// Adds a further address of a node, for endpoints that [ask](Endpoint::poll_hop_query) for the next hop.
    pub fn add_address(&mut self, node: NodeId, address: IpAddr) {
        self.addresses.insert(address, node);
    }

    /// Changes routes `times` times. Each time an endpoint asks for next hops, half of them have none, and the endpoint
    /// asks again after `pause`.
    pub fn change_routes(&mut self, times: u32, pause: Duration) {
        self.route_changes = (times, pause);
    }

    /// Adds a switch that chooses among several links by a hash of the flow (ECMP).
    pub fn add_switch(&mut self) -> SwitchId {
        self.switches.push(Switch::new(self.random.u32()));
        SwitchId(self.switches.len() - 1)
    }

    /// Adds a switch that chooses among several links by the UDP source port: `first_port` takes the first link, and so
    /// on.
    pub fn add_switch_by_port(&mut self, first_port: u16) -> SwitchId {
        self.switches.push(Switch::by_port(first_port));
        SwitchId(self.switches.len() - 1)
    }

    /// Adds a link from one end to another, in that direction. A node sends on its last one; a switch needs
    /// [`add_route`](Network::add_route).
    pub fn add_link(&mut self, from: LinkEnd, to: LinkEnd, profile: LinkProfile) -> LinkId {
        let id = LinkId(self.links.len());
        self.links.push((Link::new(profile, Random::new(self.seed, 100 + id.0 as u64)), to));
        match from {
            LinkEnd::Node(node) => self.nodes[node.0].uplink = Some(id),
            LinkEnd::Switch(switch) => drop(self.senders.insert(id, switch)),
        }
        id
    }

    /// Gives a link a queue for each [`Class`], the higher first, instead of one for all. It then marks no frames, and
    /// no queue is ever full.
    pub fn add_priority_queues(&mut self, link: LinkId) {
        self.priority_queues.insert(link, PriorityQueues::default());
    }

    /// Makes a link lose this share of packets, 0 to 1, whatever else goes over it: another network of the same seed loses
    /// the same packets, if it sends them.
    pub fn lose_the_same(&mut self, link: LinkId, share: f64) {
        self.paired_losses.insert(link, PairedLosses::new(self.seed, share));
    }

    /// Takes a node's processor away at these times: frames and timers wait.
    pub fn set_pauses(&mut self, node: NodeId, pauses: Pauses) {
        self.nodes[node.0].pauses = Some(pauses);
    }

    /// Makes frames without data overtake all others on each link, as where acknowledges have a class of their own. No link marks or
    /// loses them then.
    pub fn let_acknowledges_overtake(&mut self) {
        self.acknowledges_overtake = true;
    }

    /// Makes interfaces take frames while at most so many bytes wait in them.
    pub fn set_interface_bytes(&mut self, bytes: u64) {
        self.interface_bytes = bytes;
    }

    /// Makes `switch` send frames for `node` over `link`; with several routes, it chooses one for each flow.
    pub fn add_route(&mut self, switch: SwitchId, node: NodeId, link: LinkId) {
        self.switches[switch.0].add_route(node.0, link);
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The node of an index.
    pub fn node(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0]
    }

    /// The endpoint of a node.
    pub fn endpoint(&mut self, node: NodeId) -> &mut Endpoint {
        &mut self.nodes[node.0].endpoint
    }

    /// The number of nodes in the network.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The counts of frames so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The number of frames in flight.
    pub fn in_flight(&self) -> u64 {
        self.frames.in_flight() as u64
    }

    /// How long a frame that is given to the link now waits before it is sent.
    pub fn queue_delay(&self, link: LinkId) -> Duration {
        self.links[link.0].0.when_at_most(0).saturating_since(self.now)
    }

    /// Makes a frame of `bytes` from elsewhere take its turn on a link, and leave the network behind it. Returns whether
    /// the link carried it.
    pub fn occupy(&mut self, link: LinkId, bytes: u64) -> bool {
        self.links[link.0].0.pass(self.now, bytes).is_ok()
    }

    /// Whether `is_it` holds for one of the frames in flight.
    pub fn is_on_its_way(&self, is_it: impl Fn(&[u8]) -> bool) -> bool {
        self.frames.on_their_way().any(is_it)
    }

    /// Makes [`step`](Network::step) return [`Step::Woken`] with `token` at time `at`.
    pub fn wake_at(&mut self, at: Instant, token: u64) {
        self.schedule(at, Event::Wake(token));
    }

    /// The time of the next event; `None` when there is none.
    pub fn next(&self) -> Option<Instant> {
        self.events.peek().map(|Reverse(scheduled)| scheduled.at)
    }

    /// Advances the time to `at`, but not past the next event.
    pub fn advance_to(&mut self, at: Instant) {
        let limit = self.next().unwrap_or(at);
        self.now = self.now.max(at.min(limit));
    }

    /// Sends the packets of an endpoint to which requests were posted, and arms its timer.
    pub fn kick(&mut self, node: NodeId, observer: &mut impl Observer) {
        self.pull(node, observer);
    }

    /// Handles the next event. `None` when there is none left.
    pub fn step(&mut self, observer: &mut impl Observer) -> Option<Step> {
        let Reverse(Scheduled { at, event, .. }) = self.events.pop()?;
        self.now = at;
        if let Some(end) = self.pause_end(&event) {
            if let Event::Timer { node } = event {
                let armed = &mut self.nodes[node as usize].armed;
                *armed = armed.map(|armed| if armed == at { end } else { armed });
            }
            self.schedule(end, event);
            return Some(Step::Moved);
        }
        Some(match event {
            Event::Arrival { link, frame } => match self.links[link as usize].1 {
                LinkEnd::Node(node) => {
                    self.deliver(node, frame, observer);
                    Step::Handled(node)
                }
                LinkEnd::Switch(switch) => {
                    let in_flight = self.frames.frame(frame);
                    match self.switches[switch.0].route(in_flight.to, &in_flight.bytes) {
                        Some(link) => self.offer(link, frame, observer),
                        None => self.lose(frame, Lost::Blackhole, observer),
                    }
                    Step::Moved
                }
            },
            Event::Departure { link, frame } => {
                self.measure(LinkId(link as usize), frame);
                Step::Moved
            }
            Event::Egress { link } => {
                self.send_by_class(LinkId(link as usize), observer);
                Step::Moved
            }
            Event::Timer { node } => {
                let node = NodeId(node as usize);
                let state = &mut self.nodes[node.0];
                if state.armed == Some(at) {
                    state.armed = None;
                }
                state.endpoint.handle_timeout(at);
                observer.handled(at, node, &mut state.endpoint, None);
                self.pull(node, observer);
                Step::Handled(node)
            }
            Event::Pull { node } => {
                self.nodes[node as usize].will_pull = false;
                self.pull(NodeId(node as usize), observer);
                Step::Moved
            }
            Event::Routes { node } => {
                self.nodes[node as usize].endpoint.ask_hops_again();
                self.pull(NodeId(node as usize), observer);
                Step::Moved
            }
            Event::Wake(token) => Step::Woken(token),
        })
    }

    /// When the node that is to handle an event has its processor back; `None` when it has it.
    fn pause_end(&mut self, event: &Event) -> Option<Instant> {
        let node = match *event {
            Event::Timer { node } | Event::Pull { node } | Event::Routes { node } => node as usize,
            Event::Arrival { link, .. } => match self.links[link as usize].1 {
                LinkEnd::Node(node) => node.0,
                LinkEnd::Switch(_) => return None,
            },
            Event::Departure { .. } | Event::Egress { .. } | Event::Wake(_) => return None,
        };
        self.nodes[node].pauses.as_mut()?.end_at(self.now)
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse(Scheduled { at: at.max(self.now), sequence: self.scheduled, event }));
    }

    /// Answers the next-hop queries of an endpoint.
    fn answer_hops(&mut self, id: NodeId) {
        let endpoint = &mut self.nodes[id.0].endpoint;
        let mut next = endpoint.poll_hop_query();
        if next.is_none() {
            return;
        }
        let (changes, pause) = &mut self.route_changes;
        let will_change = *changes > 0;
        *changes -= u32::from(will_change);
        while let Some(query) = next {
            let to = self.addresses.get(&query.destination).filter(|_| !will_change || self.random.chance(0.5));
            endpoint.hop_found(self.now, query, to.map(|node| Hop(node.0 as u64)));
            next = endpoint.poll_hop_query();
        }
        if will_change {
            let at = self.now + *pause;
            self.schedule(at, Event::Routes { node: id.0 as u32 });
        }
    }

    /// Takes packets from an endpoint while its interface has room, and arms its timer.
    fn pull(&mut self, id: NodeId, observer: &mut impl Observer) {
        self.answer_hops(id);
        if let Some(uplink) = self.nodes[id.0].uplink {
            loop {
                let room_at = self.links[uplink.0].0.when_at_most(self.interface_bytes);
                let node = &mut self.nodes[id.0];
                if room_at > self.now {
                    if !node.will_pull && node.endpoint.may_transmit() {
                        node.will_pull = true;
                        self.schedule(room_at, Event::Pull { node: id.0 as u32 });
                    }
                    break;
                }
                let Some(transmit) = node.endpoint.poll_transmit(self.now, &mut self.scratch[ETHERNET_BYTES..]) else {
                    observer.drained(self.now, id);
                    break;
                };
                node.sent += 1;
                self.tally.sent += 1;
                let to = transmit.hop.0 as usize;
                let ether_type = ether_type(&self.scratch[ETHERNET_BYTES..]);
                let frame = &mut self.scratch[..ETHERNET_BYTES + transmit.len];
                frame[..6].copy_from_slice(&[2, 0, 0, 0, (to >> 8) as u8, to as u8]);
                frame[6..12].copy_from_slice(&[2, 0, 0, 0, (id.0 >> 8) as u8, id.0 as u8]);
                frame[12..14].copy_from_slice(&ether_type);
                observer.sent(self.now, id, frame, NodeId(to));
                let frame = self.frames.put([frame, &[]], to, Condition::Intact);
                self.offer(uplink, frame, observer);
            }
        }
        let node = &mut self.nodes[id.0];
        // After a pause, timers can be overdue.
        if let Some(at) = node.endpoint.poll_timeout().map(|at| at.max(self.now))
            && node.armed.is_none_or(|armed| at < armed)
        {
            node.armed = Some(at);
            self.schedule(at, Event::Timer { node: id.0 as u32 });
        }
    }

    /// Gives a frame to a link, or to its queues.
    fn offer(&mut self, id: LinkId, frame: u32, observer: &mut impl Observer) {
        let Some(queues) = self.priority_queues.get_mut(&id) else { return self.transmit(id, frame, observer) };
        queues.put(Class::of_traffic_class(traffic_class(&self.frames.frame(frame).bytes)), frame);
        if !queues.is_sending {
            self.send_by_class(id, observer);
        }
    }

    /// Sends the first frame of the highest queue of an idle link.
    fn send_by_class(&mut self, id: LinkId, observer: &mut impl Observer) {
        let Some(queues) = self.priority_queues.get_mut(&id) else { return };
        let next = queues.take();
        queues.is_sending = next.is_some();
        if let Some(frame) = next {
            self.transmit(id, frame, observer);
            let idle_at = self.links[id.0].0.when_at_most(0);
            self.schedule(idle_at, Event::Egress { link: id.0 as u32 });
        }
    }

    /// Sends a frame on a link, which decides on its faults.
    fn transmit(&mut self, id: LinkId, frame: u32, observer: &mut impl Observer) {
        let link = &mut self.links[id.0].0;
        let in_flight = self.frames.frame(frame);
        let bytes = in_flight.bytes.len() as u64;
        if self.acknowledges_overtake && !is_data(&in_flight.bytes) {
            let at = link.pass_first(self.now, bytes);
            return self.schedule(at, Event::Arrival { link: id.0 as u32, frame });
        }
        let passage = match link.pass(self.now, bytes) {
            Ok(passage) => passage,
            Err(why) => return self.lose(frame, why, observer),
        };
        if self.paired_losses.get_mut(&id).is_some_and(|losses| losses.lose(&in_flight.bytes)) {
            return self.lose(frame, Lost::Chance, observer);
        }
        let arrival = |frame| Event::Arrival { link: id.0 as u32, frame };
        if passage.marked && mark_congestion(&mut in_flight.bytes) {
            self.tally.marked += 1;
        }
        if let Some(at) = passage.forgery
            && in_flight.condition == Condition::Intact
        {
            let copy = self.frames.duplicate(frame);
            let forged = self.frames.frame(copy);
            forged.condition = Condition::Forged;
            forge(&mut forged.bytes, self.links[id.0].0.random());
            self.tally.forged += 1;
            self.schedule(at, arrival(copy));
        }
        if passage.corrupted {
            let in_flight = self.frames.frame(frame);
            in_flight.condition = Condition::Corrupted;
            corrupt(&mut in_flight.bytes, self.links[id.0].0.random());
            self.tally.corrupted += 1;
        }
        if let Some(at) = passage.duplicate {
            let copy = self.frames.duplicate(frame);
            self.tally.duplicated += 1;
            self.schedule(at, arrival(copy));
        }
        if self.senders.contains_key(&id) && telemetry::is_wanted(&self.frames.frame(frame).bytes) {
            let at = self.links[id.0].0.when_at_most(0);
            self.schedule(at, Event::Departure { link: id.0 as u32, frame });
        }
        self.schedule(passage.arrival, arrival(frame));
    }

    /// Makes the switch write into a frame what is known of the link on which it leaves now.
    fn measure(&mut self, id: LinkId, frame: u32) {
        if let Some(switch) = self.senders.get(&id) {
            let record = self.links[id.0].0.record(self.now);
            telemetry::write(&mut self.frames.frame(frame).bytes, switch.0 as u16 + 1, record);
        }
    }

    fn lose(&mut self, frame: u32, why: Lost, observer: &mut impl Observer) {
        self.tally.lost += 1;
        self.tally.lost_to_full_queues += u64::from(why == Lost::QueueFull);
        let in_flight = self.frames.frame(frame);
        observer.lost(self.now, NodeId(in_flight.to), &in_flight.bytes, why);
        self.frames.drop_frame(frame);
    }

    fn deliver(&mut self, id: NodeId, frame: u32, observer: &mut impl Observer) {
        let condition = self.frames.frame(frame).condition;
        let bytes = self.frames.take(frame);
        self.tally.delivered += 1;
        self.tally.delivered_bad += u64::from(condition != Condition::Intact);
        observer.arriving(self.now, id, &bytes, condition);
        // Some frames have two parts, as from AF_XDP in multi-buffer mode; all headers are in the first.
        let headers = bytes.len().min(ETHERNET_BYTES + uroce::wire::MAX_HEADER_BYTES);
        let cut = match self.random.u32() {
            chance if chance % 8 == 0 => headers + (chance >> 3) as usize % (bytes.len() - headers + 1),
            _ => bytes.len(),
        };
        let (head, tail) = bytes.split_at(cut);
        let node = &mut self.nodes[id.0];
        node.received += 1;
        node.endpoint.handle_frame(self.now, FrameBytes { head, tail });
        observer.handled(self.now, id, &mut node.endpoint, Some(&bytes));
        self.frames.give_back(frame, bytes);
        self.pull(id, observer);
    }
}

/// The offset of the BTH in a frame.
pub(super) fn bth_offset(frame: &[u8]) -> usize {
    if is_ipv6(frame) { ETHERNET_BYTES + 40 + 8 } else { ETHERNET_BYTES + 20 + 8 }
}

/// The IPv4 type of service or IPv6 traffic class of a frame.
fn traffic_class(frame: &[u8]) -> u8 {
    let ip = ETHERNET_BYTES;
    if is_ipv6(frame) { frame[ip] << 4 | frame[ip + 1] >> 4 } else { frame[ip + 1] }
}

/// Marks the frame "congestion experienced" if its sender supports ECN. Returns whether it does.
fn mark_congestion(frame: &mut [u8]) -> bool {
    let ip = ETHERNET_BYTES;
    if is_ipv6(frame) {
        let capable = frame[ip + 1] >> 4 & 3 != 0;
        frame[ip + 1] |= if capable { 0x30 } else { 0 };
        capable
    } else {
        let capable = frame[ip + 1] & 3 != 0;
        frame[ip + 1] |= if capable { 3 } else { 0 };
        write_checksum(frame);
        capable
    }
}

fn write_checksum(frame: &mut [u8]) {
    let ip = &mut frame[ETHERNET_BYTES..ETHERNET_BYTES + 20];
    ip[10..12].fill(0);
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(ip).ones_complement().to_be();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Flips one to three bits that the ICRC covers, from the BTH on.
fn corrupt(frame: &mut [u8], random: &mut Random) {
    let bth = bth_offset(frame);
    let mut flipped = [usize::MAX; 3];
    for i in 0..1 + random.below(3) as usize {
        let bit = loop {
            let bit = random.below((frame.len() - bth) as u64 * 8) as usize;
            // Switches can change the fifth byte of the BTH, so the ICRC does not cover it.
            if bit / 8 != 4 && !flipped.contains(&bit) {
                break bit;
            }
        };
        flipped[i] = bit;
        frame[bth + bit / 8] ^= 0x80 >> (bit % 8);
    }
}

/// Makes the frame a forgery with correct checksums, which the receiver must refuse.
fn forge(frame: &mut [u8], random: &mut Random) {
    let bth = bth_offset(frame);
    let v6 = bth == ETHERNET_BYTES + 40 + 8;
    let is_acknowledge = frame[bth] == uroce::wire::Opcode::RC_ACKNOWLEDGE.0;
    let end = frame.len() - ICRC_BYTES;
    let tag = end - Packet::TAG_BYTES;
    let has_tag = Bth::ref_from_prefix(&frame[bth..]).is_ok_and(|(bth, _)| bth.extended()) && frame[tag..end] != [0; 4];
    match random.below(6) {
        // The peer's address, but a PSN far from those in flight.
        3 if is_acknowledge => frame[bth + 9] ^= 0x40,
        // All fields are right except the tag.
        4 | 5 if has_tag => frame[tag] ^= if frame[tag] == 0x25 { 0x4a } else { 0x25 },
        // Another partition.
        2 => frame[bth + 2] ^= 0x12,
        // The address of a third host.
        _ if v6 => frame[ETHERNET_BYTES + 8 + 15] ^= 0x40,
        _ => frame[ETHERNET_BYTES + 12 + 3] ^= 0x40,
    }
    // Another MSN or another payload, so that accepting it is noticed.
    if is_acknowledge {
        frame[bth + 11] = frame[bth + 11].wrapping_add(3);
    } else if tag > bth + Bth::BYTES {
        frame[tag - 1] ^= 0x5a;
        frame[bth + Bth::BYTES] ^= 0x5a;
    }
    if !v6 {
        write_checksum(frame);
    }
    if let Some(icrc) = icrc::compute(FrameBytes::from(&frame[ETHERNET_BYTES..end])) {
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
    }
}
