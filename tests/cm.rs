//! The connection manager in virtual time, over a network that loses, duplicates and delays its messages: both ends come
//! to the same end, each event happens once, and nothing is left. Its messages are those of a kernel's, to the byte.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use uroce::cm::message::{
    DatagramReply, DatagramRequest, DatagramStatus, Message, Reason, Reject, Reply, Request, Transport,
};
use uroce::cm::{EventKind, Id, IpCmHeader, Listener, Mad, MadError, Manager, PortSpace, ServiceId, StateError};
use uroce::frame::FrameBytes;
use uroce::pcap::Reader;
use uroce::time::{Duration, Instant};
use uroce::wire::{Addresses, PKey, Packet, PathMtu, QKey, Qpn, RoceFrame};
use uroce_laboratory::world::connection::{self, SERVICE, address, addresses_from as from};

fn request(qpn: u32) -> Request {
    connection::request(Qpn::new(qpn))
}

fn reply(qpn: u32) -> Reply {
    connection::reply(Qpn::new(qpn))
}

fn asking(service_id: ServiceId) -> DatagramRequest {
    DatagramRequest { request_id: 0, p_key: PKey::DEFAULT, service_id, private_data: [1; 216] }
}

/// What a network does to messages, in a thousand.
#[derive(Clone, Copy, Default)]
struct Faults {
    loss: u32,
    duplicates: u32,
    /// Upper bound on what a message takes, beyond a millisecond.
    delay: Duration,
}

/// Two managers, and the messages between them.
struct World {
    now: Instant,
    ends: [Manager; 2],
    listener: Listener,
    network: BTreeMap<(Instant, u64), (usize, Addresses, Vec<u8>)>,
    sent: u64,
    faults: Faults,
    random: ChaCha8Rng,
    events: Vec<(usize, Id, EventKind)>,
    /// Every message that was sent, and by whom.
    log: Vec<(usize, Mad)>,
}

impl World {
    fn new(seed: u64, faults: Faults) -> World {
        let mut ends = [0, 1].map(|side| Manager::new(0x5054_00ff_fe00_0000 + side as u64, side as u16 + 1, seed));
        let listener = ends[1].listen(Instant::ZERO, SERVICE, None, 128).unwrap();
        World {
            now: Instant::ZERO,
            ends,
            listener,
            network: BTreeMap::new(),
            sent: 0,
            faults,
            random: ChaCha8Rng::seed_from_u64(seed),
            events: Vec::new(),
            log: Vec::new(),
        }
    }

    fn happens(&mut self, in_a_thousand: u32) -> bool {
        self.random.next_u32() % 1000 < in_a_thousand
    }

    fn put_on_the_wire(&mut self) {
        for side in 0..2 {
            while let Some(outgoing) = self.ends[side].poll_transmit() {
                assert_eq!(outgoing.addresses, from(side));
                self.log.push((side, Mad::parse(&outgoing.mad).unwrap()));
                let copies = 1 + u32::from(self.happens(self.faults.duplicates));
                for _ in 0..copies {
                    if self.happens(self.faults.loss) {
                        continue;
                    }
                    let extra = self.random.next_u64() % (self.faults.delay.as_nanos() as u64 + 1);
                    let at = self.now + Duration::from_millis(1) + Duration::from_nanos(extra);
                    self.sent += 1;
                    self.network.insert((at, self.sent), (1 - side, from(side), outgoing.mad.to_vec()));
                }
            }
        }
    }

    /// Goes on until there is an event, or nothing happens before `end`.
    fn next_event(&mut self, end: Instant) -> Option<(usize, Id, EventKind)> {
        loop {
            self.put_on_the_wire();
            for side in 0..2 {
                if let Some(event) = self.ends[side].poll_event() {
                    self.events.push((side, event.id, event.kind.clone()));
                    return Some((side, event.id, event.kind));
                }
            }
            let arrival = self.network.keys().next().map(|(at, _)| *at);
            let timer = self.ends.iter().filter_map(Manager::poll_timeout).min();
            let next = [arrival, timer].into_iter().flatten().min().filter(|at| *at <= end);
            let Some(next) = next else {
                self.now = self.now.max(end);
                return None;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (to, addresses, mad)) = self.network.pop_first().unwrap();
                self.ends[to].handle_datagram(self.now, addresses, &mad);
            } else {
                self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
            }
        }
    }

    fn run_for(&mut self, time: Duration) -> Vec<(usize, Id, EventKind)> {
        let end = self.now + time;
        std::iter::from_fn(|| self.next_event(end)).collect()
    }

    /// A connection that both ends have.
    fn connect(&mut self) -> [Id; 2] {
        let active = self.ends[0].connect(self.now, from(0), request(0x11)).unwrap();
        let Some((1, passive, EventKind::Requested { .. })) = self.next_event(Instant::from_ns(u64::MAX)) else {
            panic!("no request")
        };
        self.ends[1].accept(self.now, passive, reply(0x12)).unwrap();
        let Some((0, _, EventKind::Accepted(_))) = self.next_event(Instant::from_ns(u64::MAX)) else {
            panic!("no reply")
        };
        self.ends[0].ready_to_use(self.now, active).unwrap();
        let Some((1, _, EventKind::Established)) = self.next_event(Instant::from_ns(u64::MAX)) else {
            panic!("not established")
        };
        [active, passive]
    }

    fn count(&self, side: usize, attribute: u16) -> usize {
        self.log.iter().filter(|(by, mad)| *by == side && mad.message.attribute() == attribute).count()
    }
}

const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REP: u16 = 0x18;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_kernels_messages_are_read_and_written_to_the_byte() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures/rxe-6.1/rxe-cm-rping.pcap");
    let mut attributes = Vec::new();
    for frame in Reader::open(&file).unwrap() {
        let frame = frame.unwrap();
        let Ok(roce) = RoceFrame::parse(FrameBytes::from(&frame.bytes[..])) else { continue };
        let packet = Packet::parse(roce.ib).unwrap();
        if packet.bth().destination() != Qpn::GSI {
            continue;
        }
        let payload = packet.payload().to_vec();
        let mad = Mad::parse(&payload).unwrap();
        assert_eq!(mad.to_bytes()[..], payload[..], "{mad:?}");
        attributes.push(mad.message.attribute());
        if let Message::Request(request) = &mad.message {
            let header = IpCmHeader::parse(&request.private_data).unwrap();
            assert_eq!(header.addresses, roce.ip.addresses());
            assert_eq!(header.to_bytes()[..], request.private_data[..IpCmHeader::BYTES]);
            assert_eq!(request.service_id.port(), Some((PortSpace::Tcp, 7174)));
            assert_eq!((request.qpn, request.path_mtu), (Qpn::new(0x23), PathMtu::Mtu1024));
            // The kernel's flow label of ports (cma_get_roce_udp_flow_label).
            assert_eq!(request.flow_label, (u32::from(header.source_port) * 31 + 7174) & 0xf_ffff);
        }
    }
    assert_eq!(attributes, [REQ, REP, RTU, DREQ, DREP]);
}

#[test]
fn all_messages_survive_the_wire() {
    let request_of_datagrams = DatagramRequest {
        request_id: 1,
        p_key: PKey(0x1234),
        service_id: ServiceId::of(PortSpace::Udp, 9),
        private_data: [3; DatagramRequest::PRIVATE_BYTES],
    };
    let reply_of_datagrams = DatagramReply {
        request_id: 4,
        status: DatagramStatus::REJECTED,
        qpn: Qpn::new(0xabcdef),
        service_id: ServiceId(u64::MAX),
        q_key: QKey(0x0123_4567),
        private_data: [9; DatagramReply::PRIVATE_BYTES],
    };
    let reject = Reject {
        local_id: 1,
        remote_id: 2,
        what: uroce::cm::message::Rejected::Reply,
        reason: Reason::TIMEOUT,
        ca_guid: 0x1122_3344_5566_7788,
        private_data: [5; Reject::PRIVATE_BYTES],
    };
    let full_request = Request {
        local_id: 0xdead_beef,
        ca_guid: 8,
        transport: Transport::Uc,
        flow_control: true,
        has_srq: true,
        retry_count: 5,
        rnr_retry: 6,
        flow_label: 0xf_ffff,
        traffic_class: 0x6a,
        sl: 15,
        ack_timeout: 31,
        private_data: [1; Request::PRIVATE_BYTES],
        ..request(0xffffff)
    };
    let full_reply = Reply {
        local_id: 3,
        remote_id: 4,
        ca_guid: 5,
        flow_control: true,
        has_srq: true,
        rnr_retry: 3,
        private_data: [2; Reply::PRIVATE_BYTES],
        ..reply(0xfffffe)
    };
    for message in [
        Message::Request(Box::new(full_request)),
        Message::Reply(Box::new(full_reply)),
        Message::Reject(Box::new(reject)),
        Message::DatagramRequest(Box::new(request_of_datagrams)),
        Message::DatagramReply(Box::new(reply_of_datagrams)),
    ] {
        let mad = Mad { transaction: 0x1234_5678_9abc_def0, message };
        assert_eq!(Mad::parse(&mad.to_bytes()), Ok(mad));
    }
}

#[test]
fn what_is_no_message_is_counted() {
    let good = Mad { transaction: 1, message: Message::Request(Box::new(request(1))) }.to_bytes();
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Mad::parse(&bytes).unwrap_err()
    };
    assert_eq!(Mad::parse(&good[..255]), Err(MadError::Length(255)));
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 4), MadError::Class { class: 4, version: 2 });
    assert_eq!(with(2, 1), MadError::Class { class: 7, version: 1 });
    assert_eq!(with(3, 1), MadError::Method(1));
    assert!(matches!(with(17, 0x19), MadError::Message(_)), "LAP");
    assert!(matches!(with(24 + 43, 0xa4), MadError::Message(_)), "RD");
    assert!(matches!(with(24 + 50, 0x67), MadError::Message(_)), "path MTU 6");
    let mut world = World::new(0, Faults::default());
    world.ends[1].handle_datagram(world.now, from(0), &good[..100]);
    assert_eq!(world.ends[1].counters().cm_malformed, 1);
    assert_eq!(world.ends[1].poll_transmit(), None);
}

#[test]
fn a_connection_begins_and_ends_with_five_messages() {
    let mut world = World::new(1, Faults::default());
    let [active, _] = world.connect();
    world.ends[0].disconnect(world.now, active).unwrap();
    let events = world.run_for(seconds(60));
    let ends = |side| events.iter().filter(|event| event.0 == side).map(|event| event.2.clone()).collect::<Vec<_>>();
    for side in 0..2 {
        assert_eq!(ends(side), [EventKind::Disconnected, EventKind::TimeWaitOver]);
    }
    assert_eq!(
        world.log.iter().map(|(_, mad)| mad.message.attribute()).collect::<Vec<_>>(),
        [REQ, REP, RTU, DREQ, DREP]
    );
    // Answers belong to the transaction of what they answer.
    let transactions: BTreeSet<u64> = world.log[..3].iter().map(|(_, mad)| mad.transaction).collect();
    assert_eq!(transactions.len(), 1);
    assert!(world.ends.iter().all(|end| end.connections() == 0 && end.poll_timeout().is_none()));
}

#[test]
fn nobody_listens_is_a_rejection_within_half_a_second() {
    let mut world = World::new(2, Faults::default());
    let other = Request { service_id: ServiceId::of(PortSpace::Tcp, 1), ..request(0x11) };
    let id = world.ends[0].connect(world.now, from(0), other).unwrap();
    let events = world.run_for(seconds(1));
    let [(0, whose, EventKind::Rejected(reject))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*whose, reject.reason), (id, Reason::INVALID_SERVICE_ID));
    assert_eq!((world.ends[1].counters().cm_no_listener, world.count(0, REQ)), (4, 4));
    assert_eq!(world.ends[0].connections(), 0);
}

/// As perftest's server does between two connections: a kernel's client takes a rejection for the end.
#[test]
fn a_request_waits_for_a_listener_that_comes_again_in_a_moment() {
    let mut world = World::new(11, Faults::default());
    world.ends[1].unlisten(world.now, world.listener);
    world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    assert!(world.run_for(Duration::from_millis(900)).is_empty());
    assert_eq!(world.count(1, REJ), 0);
    world.ends[1].listen(world.now, SERVICE, None, 1).unwrap();
    assert!(matches!(world.run_for(Duration::from_millis(10))[..], [(1, _, EventKind::Requested { .. })]));
}

/// As perftest's server does: it listens for datagrams where it listened for connections. A kernel's client takes the answer
/// that there is no such service for the end.
#[test]
fn a_datagram_request_waits_at_the_port_of_a_listener_for_connections_that_has_gone() {
    let mut world = World::new(13, Faults::default());
    world.ends[1].unlisten(world.now, world.listener);
    let (_, port) = SERVICE.port().unwrap();
    let service_id = ServiceId::of(PortSpace::Udp, port);
    world.ends[0].ask(world.now, from(0), asking(service_id)).unwrap();
    assert!(world.run_for(Duration::from_millis(900)).is_empty());
    assert_eq!(world.count(1, SIDR_REP), 0);
    world.ends[1].listen(world.now, service_id, None, 1).unwrap();
    assert!(matches!(world.run_for(Duration::from_millis(10))[..], [(1, _, EventKind::Asked { .. })]));
}

#[test]
fn a_datagram_request_does_not_wait_at_another_port_nor_behind_sixty_four_others() {
    let mut world = World::new(14, Faults::default());
    world.ends[1].unlisten(world.now, world.listener);
    let (_, port) = SERVICE.port().unwrap();
    world.ends[0].ask(world.now, from(0), asking(ServiceId::of(PortSpace::Udp, port + 1))).unwrap();
    world.run_for(Duration::from_millis(20));
    assert_eq!(world.count(1, SIDR_REP), 1);
    for _ in 0..100 {
        world.ends[0].ask(world.now, from(0), asking(ServiceId::of(PortSpace::Udp, port))).unwrap();
    }
    world.run_for(Duration::from_millis(5));
    assert_eq!(world.count(1, SIDR_REP), 1 + 100 - 64);
}

#[test]
fn a_request_waits_no_longer_than_a_second() {
    let mut world = World::new(12, Faults::default());
    world.ends[1].unlisten(world.now, world.listener);
    let id = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    let events = world.run_for(seconds(2));
    let [(0, whose, EventKind::Rejected(reject))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*whose, reject.reason), (id, Reason::INVALID_SERVICE_ID));
}

#[test]
fn a_rejection_carries_the_programs_data() {
    let mut world = World::new(3, Faults::default());
    world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    let Some((1, id, EventKind::Requested { listener, addresses, request })) =
        world.next_event(Instant::from_ns(u64::MAX))
    else {
        panic!("no request")
    };
    assert_eq!((listener, addresses, request.qpn), (world.listener, from(1), Qpn::new(0x11)));
    world.ends[1].reject(world.now, id, [7; Reject::PRIVATE_BYTES]).unwrap();
    let events = world.run_for(seconds(1));
    let [(0, _, EventKind::Rejected(reject))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((reject.reason, reject.private_data), (Reason::CONSUMER, [7; Reject::PRIVATE_BYTES]));
    assert!(matches!(world.ends[1].accept(world.now, id, reply(1)), Err(StateError::State { .. })));
    world.run_for(seconds(60));
    assert_eq!(world.ends[1].accept(world.now, id, reply(1)), Err(StateError::NoSuchConnection(id)));
    assert!(world.ends.iter().all(|end| end.connections() == 0));
}

#[test]
fn a_program_that_decides_late_lets_its_peer_wait() {
    let mut world = World::new(4, Faults::default());
    let active = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    let events = world.run_for(seconds(10));
    let [(1, passive, EventKind::Requested { .. })] = events[..] else { panic!("{events:?}") };
    assert_eq!(world.count(1, MRA), 1, "the first duplicate gets an MRA, and there is no second");
    world.ends[1].accept(world.now, passive, reply(0x12)).unwrap();
    let events = world.run_for(seconds(1));
    assert!(matches!(&events[..], [(0, _, EventKind::Accepted(_))]));
    // So does one that is slow to move its queue pair.
    assert!(world.run_for(seconds(10)).is_empty());
    assert_eq!(world.count(0, MRA), 1);
    world.ends[0].ready_to_use(world.now, active).unwrap();
    assert!(matches!(&world.run_for(seconds(1))[..], [(1, _, EventKind::Established)]));
}

#[test]
fn data_tells_as_much_as_the_message() {
    let mut world = World::new(5, Faults::default());
    let active = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    let Some((_, passive, _)) = world.next_event(Instant::from_ns(u64::MAX)) else { panic!("no request") };
    world.ends[1].accept(world.now, passive, reply(0x12)).unwrap();
    world.run_for(seconds(0) + Duration::from_millis(2));
    world.faults.loss = 1000;
    world.ends[0].ready_to_use(world.now, active).unwrap();
    world.put_on_the_wire();
    world.ends[1].handle_data(passive);
    assert!(matches!(world.run_for(seconds(30))[..], [(1, _, EventKind::Established)]));
    // Once.
    world.ends[1].handle_data(passive);
    assert!(world.run_for(seconds(30)).is_empty());
}

/// The message that says so is lost, and the connection is over before it is sent again.
#[test]
fn who_disconnects_was_ready() {
    let mut world = World::new(11, Faults::default());
    let active = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    let Some((_, passive, _)) = world.next_event(Instant::from_ns(u64::MAX)) else { panic!("no request") };
    world.ends[1].accept(world.now, passive, reply(0x12)).unwrap();
    world.run_for(Duration::from_millis(2));
    world.ends[0].ready_to_use(world.now, active).unwrap();
    assert!(world.ends[0].poll_transmit().is_some(), "lost");
    world.ends[0].disconnect(world.now, active).unwrap();
    let events = world.run_for(seconds(60));
    let passives: Vec<_> = events.iter().filter(|event| event.1 == passive).map(|event| &event.2).collect();
    assert_eq!(passives, [&EventKind::Established, &EventKind::Disconnected, &EventKind::TimeWaitOver]);
}

#[test]
fn a_silent_peer_ends_the_attempt() {
    for seed in 0..2 {
        let mut world = World::new(seed, Faults { loss: 1000, ..Faults::default() });
        let id = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
        let events = world.run_for(seconds(600));
        assert_eq!(events, [(0, id, EventKind::Unreachable)]);
        assert_eq!((world.count(0, REQ), world.count(0, REJ)), (16, 1));
        assert_eq!(world.ends[0].connections(), 0);
    }
}

/// The peer's kernel refuses each request (ICMP port unreachable): nobody receives RoCE there.
#[test]
fn a_host_that_refuses_ends_the_attempt_within_half_a_second() {
    let mut world = World::new(3, Faults { loss: 1000, ..Faults::default() });
    let id = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    world.put_on_the_wire();
    // Another host's word changes nothing, and the same host's second one neither.
    for host in ["10.9.9.9".parse().unwrap(), address(1), address(1)] {
        world.ends[0].handle_refusal(world.now, host);
    }
    let event = loop {
        world.put_on_the_wire();
        if let Some(event) = world.ends[0].poll_event() {
            break event;
        }
        world.now = world.ends[0].poll_timeout().expect("it waits for something");
        world.ends[0].handle_timeout(world.now);
    };
    world.put_on_the_wire();
    assert_eq!((event.id, event.kind, world.count(0, REQ)), (id, EventKind::Unreachable, 4));
    assert!(world.now <= Instant::ZERO + Duration::from_millis(500), "{:?}", world.now);
    assert_eq!(world.ends[0].connections(), 0);
    // What is established does not depend on it.
    let mut world = World::new(3, Faults::default());
    world.connect();
    world.ends[0].handle_refusal(world.now, address(1));
    assert!(world.run_for(seconds(1)).is_empty());
}

/// A DREQ is not answered when the peer's program has gone. Its kernel is asked when the DREQ is repeated, and not before.
#[test]
fn a_host_that_refuses_ends_what_was_being_ended() {
    let mut world = World::new(3, Faults::default());
    let [active, _] = world.connect();
    world.faults.loss = 1000;
    world.ends[0].disconnect(world.now, active).unwrap();
    let first = world.ends[0].poll_transmit().unwrap();
    assert!(!first.may_be_refused, "the peer is most likely there");
    world.now = world.ends[0].poll_timeout().expect("it waits for a DREP");
    world.ends[0].handle_timeout(world.now);
    let second = world.ends[0].poll_transmit().unwrap();
    assert!(second.may_be_refused && second.mad == first.mad);
    world.ends[0].handle_refusal(world.now, "10.9.9.9".parse().unwrap());
    assert_eq!(world.ends[0].poll_event(), None, "another host said so");
    world.ends[0].handle_refusal(world.now, address(1));
    assert_eq!(world.run_for(seconds(5)), [(0, active, EventKind::Disconnected), (0, active, EventKind::TimeWaitOver)]);
    assert_eq!(world.ends[0].connections(), 0);
}

#[test]
fn a_new_connection_of_the_same_queue_pair_ends_the_old_one() {
    let mut world = World::new(6, Faults::default());
    let [_, passive] = world.connect();
    // The peer's manager began anew, and knows nothing of it.
    world.ends[0] = Manager::new(0x5054_00ff_fe00_0000, 1, 99);
    let again = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    let events = world.run_for(seconds(60));
    let rejected = events.iter().find_map(|event| match &event.2 {
        EventKind::Rejected(reject) if event.1 == again => Some(reject.reason),
        _ => None,
    });
    assert_eq!(rejected, Some(Reason::STALE_CONNECTION));
    let of_old: Vec<_> = events.iter().filter(|event| event.1 == passive).map(|event| &event.2).collect();
    assert_eq!(of_old, [&EventKind::Disconnected, &EventKind::TimeWaitOver]);
    assert!(world.ends.iter().all(|end| end.connections() == 0));
}

#[test]
fn strangers_change_nothing() {
    let mut world = World::new(7, Faults::default());
    let [active, passive] = world.connect();
    let third = Addresses::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), address(1)).unwrap();
    let end = |local_id, remote_id| {
        let message = Message::DisconnectRequest(uroce::cm::message::DisconnectRequest {
            local_id,
            remote_id,
            remote_qpn: Qpn::new(0x12),
        });
        Mad { transaction: 1, message }.to_bytes()
    };
    // From another address, and of another connection.
    world.ends[1].handle_datagram(world.now, third, &end(active.value(), passive.value()));
    world.ends[1].handle_datagram(world.now, from(0), &end(active.value() + 1, passive.value()));
    assert_eq!(world.ends[1].counters().cm_stray, 2);
    while let Some(answer) = world.ends[1].poll_transmit() {
        let answer = Mad::parse(&answer.mad).unwrap();
        assert_eq!(answer.message.attribute(), DREP, "who asks for the end of nothing is told that it has ended");
    }
    assert!(world.run_for(seconds(10)).is_empty());
    world.ends[1].disconnect(world.now, passive).unwrap();
    assert!(!world.run_for(seconds(10)).is_empty(), "it was there");
}

#[test]
fn who_is_about_to_go_repeats_the_end_of_its_connections() {
    let mut world = World::new(7, Faults::default());
    let [active, passive] = world.connect();
    world.ends[0].disconnect(world.now, active).unwrap();
    let sent = |world: &mut World| std::iter::from_fn(|| world.ends[0].poll_transmit()).collect::<Vec<_>>();
    let first = sent(&mut world);
    assert_eq!(first.len(), 1, "and it is lost");
    assert!(world.ends[0].is_disconnecting());
    world.ends[0].repeat_ends();
    let again = sent(&mut world);
    assert_eq!(again.iter().map(|out| out.mad).collect::<Vec<_>>(), [first[0].mad]);
    world.ends[1].handle_datagram(world.now, from(0), &again[0].mad);
    let events = world.run_for(seconds(1));
    assert!(events.iter().any(|event| event.1 == passive && event.2 == EventKind::Disconnected));
    assert!(!world.ends[0].is_disconnecting());
    world.ends[0].repeat_ends();
    assert_eq!(sent(&mut world).len(), 0, "nothing is ending");
}

#[test]
fn a_flood_of_requests_is_bounded() {
    let mut world = World::new(8, Faults::default());
    let mut outgoing = 0;
    for number in 0..100_000u32 {
        let request = Request { local_id: number + 1, ca_guid: u64::from(number), ..request(number) };
        let mad = Mad { transaction: 0, message: Message::Request(Box::new(request)) }.to_bytes();
        world.ends[1].handle_datagram(world.now, from(0), &mad);
        let unknown = Request { service_id: ServiceId(5), ca_guid: 1 << 40, ..self::request(number) };
        let mad = Mad { transaction: 0, message: Message::Request(Box::new(unknown)) }.to_bytes();
        world.ends[1].handle_datagram(world.now, from(0), &mad);
    }
    while world.ends[1].poll_transmit().is_some() {
        outgoing += 1;
    }
    let counters = world.ends[1].counters();
    assert_eq!(world.ends[1].connections(), 128, "the backlog");
    assert_eq!((counters.cm_backlog_full, counters.cm_no_listener), (100_000 - 128, 100_000));
    assert_eq!((outgoing, counters.cm_answer_dropped), (1024, 100_000 - 1024));
}

#[test]
fn a_listener_that_goes_away_rejects_who_waits() {
    let mut world = World::new(9, Faults::default());
    let id = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    world.put_on_the_wire();
    let (_, (_, addresses, mad)) = world.network.pop_first().unwrap();
    // The program has not seen the request.
    world.ends[1].handle_datagram(world.now, addresses, &mad);
    world.ends[1].unlisten(world.now, world.listener);
    let events = world.run_for(seconds(5));
    let [(0, whose, EventKind::Rejected(reject))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*whose, reject.reason), (id, Reason::CONSUMER));
    let listener = world.ends[1].listen(world.now, SERVICE, Some(address(1)), 1).unwrap();
    assert_ne!(listener, world.listener);
    assert!(world.ends[1].listen(world.now, SERVICE, Some(address(1)), 1).is_err());
    assert!(world.ends[1].listen(world.now, SERVICE, None, 1).is_ok(), "one for all addresses beside");
}

/// A program that takes one connection ends its listener first, and accepts then.
#[test]
fn a_request_that_the_program_has_taken_outlives_its_listener() {
    let mut world = World::new(9, Faults::default());
    let id = world.ends[0].connect(world.now, from(0), request(0x11)).unwrap();
    let Some((1, taken, _)) = world.next_event(Instant::from_ns(u64::MAX)) else { panic!("no request") };
    world.ends[1].unlisten(world.now, world.listener);
    assert!(world.run_for(seconds(3)).is_empty());
    world.ends[1].accept(world.now, taken, reply(0x12)).unwrap();
    assert!(matches!(world.run_for(seconds(1))[..], [(0, whose, EventKind::Accepted(_))] if whose == id));
    // A new listener's backlog has nothing to do with it.
    world.ends[1].listen(world.now, SERVICE, None, 1).unwrap();
    world.ends[0].connect(world.now, from(0), request(0x13)).unwrap();
    assert!(matches!(world.run_for(Duration::from_millis(10))[..], [(1, _, EventKind::Requested { .. })]));
}

#[test]
fn datagram_services_are_asked_for_and_answered_again() {
    let mut world = World::new(10, Faults { loss: 300, duplicates: 100, delay: seconds(1) });
    let service_id = ServiceId::of(PortSpace::Udp, 7174);
    world.ends[1].listen(world.now, service_id, None, 8).unwrap();
    let ask = asking(service_id);
    let mut answers = 0;
    for _ in 0..100 {
        world.ends[0].ask(world.now, from(0), ask.clone()).unwrap();
        let end = world.now + seconds(100);
        while let Some((side, id, kind)) = world.next_event(end) {
            match kind {
                EventKind::Asked { request, .. } => {
                    assert_eq!((side, &request.private_data), (1, &ask.private_data));
                    let answer = DatagramReply {
                        request_id: 0,
                        status: DatagramStatus::SUCCESS,
                        qpn: Qpn::new(5),
                        service_id,
                        q_key: QKey(0x0123_4567),
                        private_data: [2; 136],
                    };
                    world.ends[1].answer(world.now, id, answer).unwrap();
                }
                EventKind::Answered(reply) => {
                    assert_eq!((side, reply.qpn, reply.q_key), (0, Qpn::new(5), QKey(0x0123_4567)));
                    answers += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(answers, 100);
    world.run_for(seconds(100));
    assert!(world.ends.iter().all(|end| end.connections() == 0));
}

/// What a connection has come to, at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Story {
    accepted: u32,
    established: u32,
    /// Rejected, or without an answer.
    failed: u32,
    disconnected: u32,
    over: u32,
}

/// Random programs over random networks. An end in time needs no luck: of 16 copies at most 30 % are lost.
#[test]
fn both_ends_come_to_the_same_end_whatever_the_network_does() {
    for seed in 0..300 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let faults = Faults {
            loss: random.next_u32() % 300,
            duplicates: random.next_u32() % 300,
            delay: Duration::from_millis(u64::from(random.next_u32() % 1500)),
        };
        let mut world = World::new(seed, faults);
        let mut stories = BTreeMap::<(usize, Id), Story>::new();
        let mut todo = BTreeMap::<(Instant, u32), (usize, Id, u32)>::new();
        let mut serial = 0;
        let mut peers = BTreeMap::<Id, Id>::new();
        let mut by_qpn = BTreeMap::<u32, Id>::new();
        let mut refused = BTreeSet::new();
        for number in 0..10 {
            let id = world.ends[0].connect(world.now, from(0), request(0x100 + number)).unwrap();
            by_qpn.insert(0x100 + number, id);
            stories.entry((0, id)).or_default();
        }
        loop {
            let next = todo.keys().next().map_or(Instant::from_ns(u64::MAX >> 1), |(at, _)| *at);
            let event = world.next_event(next);
            let later = world.now + Duration::from_millis(u64::from(random.next_u32() % 12_000));
            let mut plan = |at, what| {
                serial += 1;
                todo.insert((at, serial), what);
            };
            let Some((side, id, kind)) = event else {
                let Some((_, (side, id, what))) = todo.pop_first() else { break };
                let manager = &mut world.ends[side];
                // The connection may have ended meanwhile.
                let _ = match what {
                    0 => manager.accept(world.now, id, reply(0x200 + id.value() % 0x1000)),
                    1 => {
                        refused.insert(id);
                        manager.reject(world.now, id, [0; Reject::PRIVATE_BYTES])
                    }
                    2 => manager.ready_to_use(world.now, id),
                    _ => manager.disconnect(world.now, id),
                };
                continue;
            };
            let story = stories.entry((side, id)).or_default();
            assert_eq!((story.failed, story.over), (0, 0), "seed {seed}: {kind:?} after the end");
            match kind {
                EventKind::Requested { request, .. } => {
                    assert_eq!((side, *story), (1, Story::default()), "seed {seed}");
                    let active = by_qpn[&request.qpn.value()];
                    assert_eq!(peers.insert(active, id), None, "seed {seed}: asked twice");
                    plan(later, (1, id, u32::from(random.next_u32().is_multiple_of(8))));
                }
                EventKind::Accepted(_) => {
                    story.accepted += 1;
                    assert_eq!((side, story.accepted), (0, 1), "seed {seed}");
                    plan(world.now + Duration::from_millis(5), (0, id, 2));
                    if random.next_u32().is_multiple_of(2) {
                        plan(later + seconds(60), (0, id, 3));
                    }
                    plan(later + seconds(120), (1, peers[&id], 3));
                }
                EventKind::Established => {
                    story.established += 1;
                    assert_eq!((side, story.established, story.disconnected), (1, 1, 0), "seed {seed}");
                }
                EventKind::Rejected(_) | EventKind::Unreachable => {
                    story.failed += 1;
                    assert_eq!(story.disconnected, 0, "seed {seed}");
                }
                EventKind::Disconnected => {
                    story.disconnected += 1;
                    assert_eq!((story.disconnected, side == 1 || story.accepted == 1), (1, true), "seed {seed}");
                }
                EventKind::TimeWaitOver => {
                    story.over += 1;
                    assert_eq!(story.disconnected, 1, "seed {seed}");
                }
                EventKind::Asked { .. } | EventKind::Answered(_) => panic!("seed {seed}"),
            }
        }
        for (active, passive) in peers {
            let (active_end, passive_end) = (stories[&(0, active)], stories[&(1, passive)]);
            let wanted = match refused.contains(&passive) {
                true => [Story { failed: 1, ..Story::default() }, Story::default()],
                false => [
                    Story { accepted: 1, disconnected: 1, over: 1, ..Story::default() },
                    Story { established: 1, disconnected: 1, over: 1, ..Story::default() },
                ],
            };
            assert_eq!([active_end, passive_end], wanted, "seed {seed}, loss {}", faults.loss);
        }
        assert!(world.ends.iter().all(|end| end.connections() == 0 && end.poll_timeout().is_none()), "seed {seed}");
    }
}
