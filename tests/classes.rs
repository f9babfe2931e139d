//! Queue pairs of several classes in one endpoint, and whose packets it sends first: read from the packets.

use std::cell::RefCell;
use std::sync::Arc;

use uroce::congestion::{CongestionControl, Controller, Flight, OwnController, Progress, Rate};
use uroce::memory::{Access, HostMemory};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Class, CompletionRing, Data, Destination, Path, QpAttributes, RecoverySettings, Remote, SendOperation, SendRequest,
    Service, State, Treatment,
};
use uroce::wire::{Bth, Extension, Headers, Opcode, Packet, PathMtu, Psn, QKey, Qpn, Reth, RoceFrame};
use uroce_laboratory::world::{Host, Peering, flow, path, with_ethernet};

const MTU: PathMtu = PathMtu::Mtu1024;
const NOW: Instant = Instant::from_ns(1_000_000_000);

/// An endpoint whose peer never answers.
fn host() -> Host {
    let memory = Arc::new(HostMemory::new(1 << 16).unwrap());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    Host::new(1, RecoverySettings::default(), memory, access, CompletionRing::new(64, || {}))
}

fn path_of(class: Class) -> Path {
    let mut path = path([10, 0, 0, 1], [10, 0, 0, 2], 0);
    path.flow.traffic_class = class.dscp() << 2;
    path
}

/// A connected queue pair, whose peer has the number `peer`.
fn connected(host: &mut Host, class: Class, peer: u32) -> Qpn {
    let qpn = host.endpoint.create_queue_pair(host.init(Service::Rc, 64, None, MTU)).unwrap();
    Peering::new(path_of(class), Qpn::new(peer)).connect(&mut host.endpoint, NOW, qpn);
    qpn
}

/// Posts a WRITE of `packets` packets.
fn write(host: &mut Host, qpn: Qpn, packets: usize) {
    let (address, key) = (host.memory.address(), host.key);
    let data = Data::sge(address, (packets * MTU.bytes()) as u32, key);
    let request = SendRequest::new(0, SendOperation::Write(Remote { address, key }), data);
    host.endpoint.post_send(NOW, qpn, request).unwrap();
}

/// The next packet's traffic class, the number of the queue pair that it is for, and whether it is a request.
fn poll(host: &mut Host) -> Option<(Class, u32, bool)> {
    let mut buffer = vec![0; 2048];
    let transmit = host.endpoint.poll_transmit(NOW, &mut buffer)?;
    let frame = with_ethernet(&buffer[..transmit.len]);
    let roce = RoceFrame::parse((&frame[..]).into()).unwrap();
    let packet = Packet::parse(roce.ib).unwrap();
    let bth = packet.bth();
    let is_request = bth.opcode() != Opcode::RC_ACKNOWLEDGE;
    Some((Class::of_traffic_class(roce.ip.traffic_class()), bth.destination().value(), is_request))
}

/// The peers of all requests that are sent now, in order.
fn requests(host: &mut Host) -> Vec<u32> {
    std::iter::from_fn(|| poll(host)).filter(|(.., is_request)| *is_request).map(|(_, peer, _)| peer).collect()
}

#[test]
fn higher_classes_send_first_although_lower_ones_were_first_to_post() {
    let mut host = host();
    let classes = [Class::Scavenger, Class::Bulk, Class::Normal, Class::Urgent];
    let qpns = [0, 1, 2, 3].map(|at| connected(&mut host, classes[at], at as u32));
    qpns.iter().for_each(|qpn| write(&mut host, *qpn, 10));
    let sent = requests(&mut host);
    assert_eq!(sent[..10], [3; 10]);
    assert_eq!(sent[30..], [0; 10]);
    let before_bulk_ends: Vec<_> = sent[10..20].iter().filter(|peer| **peer == 1).collect();
    assert!((1..=3).contains(&before_bulk_ends.len()), "a fifth each: {sent:?}");
}

#[test]
fn without_classes_queue_pairs_send_in_turns() {
    let mut host = host();
    let qpns = [0, 1].map(|at| connected(&mut host, Class::Normal, at));
    qpns.iter().for_each(|qpn| write(&mut host, *qpn, 20));
    assert_eq!(requests(&mut host), [[0; 16].as_slice(), &[1; 16], &[0; 4], &[1; 4]].concat());
}

/// A queue pair is in the middle of its message when it gets another class.
#[test]
fn a_new_address_changes_the_class_of_what_waits() {
    let mut host = host();
    let [first, second] = [0, 1].map(|at| connected(&mut host, Class::Normal, at));
    write(&mut host, first, 40);
    write(&mut host, second, 40);
    assert_eq!(poll(&mut host), Some((Class::Normal, 0, true)));
    let endpoint = &mut host.endpoint;
    for attributes in [
        QpAttributes { state: Some(State::SendQueueDrained), ..Default::default() },
        QpAttributes { path: Some(path_of(Class::Urgent)), ..Default::default() },
        QpAttributes { state: Some(State::ReadyToSend), ..Default::default() },
    ] {
        endpoint.modify(NOW, second, &attributes).unwrap();
    }
    assert_eq!(endpoint.queue_pair(second).unwrap().class(), Class::Urgent);
    let sent = requests(&mut host);
    assert_eq!((&sent[..40], &sent[40..]), (&[1; 40][..], &[0; 39][..]));
}

#[test]
fn a_datagram_has_the_class_of_its_address_and_those_behind_it_wait_with_it() {
    let mut host = host();
    let datagrams = host.endpoint.create_queue_pair(host.init(Service::Ud, 64, None, MTU)).unwrap();
    let plan = Peering { service: Service::Ud, ..Peering::new(path_of(Class::Normal), Qpn::new(0)) };
    plan.connect(&mut host.endpoint, NOW, datagrams);
    let connected = connected(&mut host, Class::Normal, 0);
    write(&mut host, connected, 3);
    for (class, peer) in [(Class::Urgent, 1), (Class::Scavenger, 2), (Class::Urgent, 3), (Class::Urgent, 4)] {
        let destination = Destination { path: path_of(class), qpn: Qpn::new(peer), q_key: QKey(0) };
        let data = Data::sge(host.memory.address(), 64, host.key);
        let request = SendRequest { destination: Some(destination), ..SendRequest::new(0, SendOperation::Send, data) };
        host.endpoint.post_send(NOW, datagrams, request).unwrap();
    }
    let sent: Vec<_> = std::iter::from_fn(|| poll(&mut host)).filter(|(.., is_request)| *is_request).collect();
    let expected = [
        (Class::Urgent, 1, true),
        (Class::Normal, 0, true),
        (Class::Normal, 0, true),
        (Class::Normal, 0, true),
        (Class::Scavenger, 2, true),
        (Class::Urgent, 3, true),
        (Class::Urgent, 4, true),
    ];
    assert_eq!(sent, expected);
}

/// The cap holds back what a device sends in the class, and the device says until when.
#[test]
fn the_scavenger_class_keeps_to_its_cap_and_others_do_not() {
    let mut host = host();
    host.endpoint.set_scavenger_cap(Some("1M".parse().unwrap()));
    let qpns = [connected(&mut host, Class::Scavenger, 0), connected(&mut host, Class::Normal, 1)];
    qpns.iter().for_each(|qpn| write(&mut host, *qpn, 20));
    let sent = requests(&mut host);
    let of = |peer: u32| sent.iter().filter(|sent| **sent == peer).count();
    assert_eq!(of(1), 20);
    assert!((1..3).contains(&of(0)), "{sent:?}: a burst of a millisecond is a packet");
    assert!(!host.endpoint.may_transmit());
    let at = host.endpoint.poll_timeout().unwrap();
    assert!(at > NOW);
    host.endpoint.handle_timeout(at);
    assert!(host.endpoint.may_transmit());
    assert!(host.endpoint.poll_transmit(at, &mut vec![0; 2048]).is_some());
}

/// What is decided for a queue pair, and the DSCP and class that its packets and its turns then have.
#[test]
fn a_treatment_counts_more_than_what_the_program_asked_for_until_reset() {
    let mut host = host();
    let [first, second] = [0, 1].map(|at| connected(&mut host, Class::Normal, at));
    let class = |host: &Host, qpn| host.endpoint.queue_pair(qpn).unwrap().class();
    let dscp = |host: &mut Host| {
        let mut buffer = vec![0; 2048];
        host.endpoint.poll_transmit(NOW, &mut buffer).map(|_| buffer[1] >> 2)
    };
    for (treatment, expected) in [
        (Treatment { class: Some(Class::Scavenger), ..Treatment::default() }, (Class::Scavenger, 1)),
        (Treatment { dscp: Some(46), ..Treatment::default() }, (Class::Urgent, 46)),
        (Treatment { class: Some(Class::Urgent), dscp: Some(26), ..Treatment::default() }, (Class::Urgent, 26)),
        (Treatment { class: Some(Class::Normal), ..Treatment::default() }, (Class::Normal, 0)),
    ] {
        host.endpoint.treat(NOW, first, &treatment).unwrap();
        write(&mut host, first, 1);
        assert_eq!((class(&host, first), dscp(&mut host)), (expected.0, Some(expected.1)), "{treatment:?}");
        while poll(&mut host).is_some() {}
    }
    // It wins against a later address, and ends with RESET.
    host.endpoint.treat(NOW, second, &Treatment { dscp: Some(46), ..Treatment::default() }).unwrap();
    for attributes in [
        QpAttributes { state: Some(State::SendQueueDrained), ..Default::default() },
        QpAttributes { path: Some(path_of(Class::Scavenger)), ..Default::default() },
    ] {
        host.endpoint.modify(NOW, second, &attributes).unwrap();
    }
    assert_eq!(class(&host, second), Class::Urgent);
    host.endpoint.modify(NOW, second, &QpAttributes { state: Some(State::Reset), ..Default::default() }).unwrap();
    Peering::new(path_of(Class::Scavenger), Qpn::new(1)).connect(&mut host.endpoint, NOW, second);
    assert_eq!(class(&host, second), Class::Scavenger);
}

/// A peer that is never known to support more than plain RoCE, which has no rate otherwise.
#[test]
fn a_cap_holds_towards_every_peer() {
    let mut host = host();
    let [first, second] = [0, 1].map(|at| connected(&mut host, Class::Normal, at));
    let cap = Some("1M".parse().unwrap());
    host.endpoint.treat(NOW, first, &Treatment { cap, ..Treatment::default() }).unwrap();
    [first, second].into_iter().for_each(|qpn| write(&mut host, qpn, 20));
    let sent = requests(&mut host);
    let of = |peer: u32| sent.iter().filter(|sent| **sent == peer).count();
    assert!((1..3).contains(&of(0)) && of(1) == 20, "a burst, and all: {sent:?}");
}

thread_local! {
    /// What controllers were told of urgent messages.
    static TOLD: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
    /// What controllers were told of their class.
    static TOLD_OF_CLASS: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
}

/// A controller that notes what it is told of urgent messages, and of its class.
#[derive(Debug)]
struct Told;

impl Controller for Told {
    fn take(&mut self, _: &Progress, _: &Flight, _: Instant) {}

    fn notified(&mut self, _: &Flight, _: Instant) {}

    fn set_beside_urgent(&mut self, is_beside: bool, _: &Flight, _: Instant) {
        TOLD.with_borrow_mut(|told| told.push(is_beside));
    }

    fn set_scavenger(&mut self, is_scavenger: bool, _: Instant) {
        TOLD_OF_CLASS.with_borrow_mut(|told| told.push(is_scavenger));
    }

    fn rate(&self) -> Option<Rate> {
        None
    }

    fn window_bytes(&self) -> u64 {
        u64::MAX
    }
}

/// What the controllers of two queue pairs are told: one of class `class`, and one of class `other`. The first waits for an
/// answer from before a message of the other on, until ten seconds after it. Without `other` it is another program that has an
/// urgent message, for two seconds.
fn told(class: Class, other: Option<Class>) -> Vec<bool> {
    let own = OwnController { name: "told", reacts_to_marks: false, start: |_| Box::new(Told) };
    let mut host = host();
    host.endpoint.set_recovery(RecoverySettings::default().with_congestion(CongestionControl::Own(own)));
    let [first, second] = [(class, 0), (other.unwrap_or_default(), 1)].map(|(class, peer)| {
        let qpn = host.endpoint.create_queue_pair(host.init(Service::Rc, 64, None, MTU)).unwrap();
        // A second, and eight of them before it gives up.
        let peering = Peering { timeout: 18, ..Peering::new(path_of(class), Qpn::new(peer)) };
        peering.connect(&mut host.endpoint, NOW, qpn);
        qpn
    });
    write(&mut host, first, 4);
    requests(&mut host);
    match other {
        Some(_) => write(&mut host, second, 1),
        None => host.endpoint.give_way_for(NOW, Duration::from_secs(2)),
    }
    let mut buffer = vec![0; 2048];
    while let Some(at) = host.endpoint.poll_timeout().filter(|at| *at < NOW + Duration::from_secs(10)) {
        host.endpoint.handle_timeout(at);
        while host.endpoint.poll_transmit(at, &mut buffer).is_some() {}
    }
    TOLD.take()
}

#[test]
fn who_is_to_wait_for_urgent_messages_is_told_while_they_are_under_way() {
    for class in [Class::Bulk, Class::Scavenger] {
        assert_eq!(told(class, Some(Class::Urgent)), [true, false], "{class}");
        assert_eq!(told(class, None), [true, false], "{class}");
        assert_eq!(told(class, Some(Class::Normal)), [], "{class}");
    }
    for class in [Class::Normal, Class::Urgent] {
        assert_eq!(told(class, Some(Class::Urgent)), []);
        assert_eq!(told(class, None), []);
    }
}

#[test]
fn controllers_of_class_scavenger_are_told_and_no_others() {
    for class in Class::ALL {
        told(class, Some(Class::Normal));
        let expected = if class == Class::Scavenger { vec![true] } else { Vec::new() };
        assert_eq!(TOLD_OF_CLASS.take(), expected, "{class}");
    }
}

/// ACKs leave their class by request only, and only where they cannot overtake READ responses.
#[test]
fn acknowledges_have_a_dscp_of_their_own_where_nothing_else_is_owed() {
    for (rd_atomic, expected) in [(0, 48), (1, 10)] {
        let mut host = host();
        let qpn = host.endpoint.create_queue_pair(host.init(Service::Rc, 64, None, MTU)).unwrap();
        let access = Access::REMOTE_WRITE;
        let peering = Peering { access, rd_atomic, ..Peering::new(path_of(Class::Bulk), Qpn::new(0)) };
        peering.connect(&mut host.endpoint, NOW, qpn);
        let treatment = Treatment { acknowledge_dscp: Some(48), ..Treatment::default() };
        host.endpoint.treat(NOW, qpn, &treatment).unwrap();
        // A WRITE of nothing, which is acknowledged.
        let headers = Headers {
            bth: Bth::new(Opcode::RC_WRITE_ONLY, qpn, Psn::new(0)).with_ack_request(true),
            extension: Extension::Reth(Reth::new(host.memory.address(), host.key, 0)),
        };
        let mut packet = vec![0; 256];
        let len = headers.write(&mut packet, &flow([10, 0, 0, 2], [10, 0, 0, 1]), 1, 0, |_| Ok::<_, ()>(())).unwrap();
        host.endpoint.handle_frame(NOW, (&with_ethernet(&packet[..len])[..]).into());
        let mut buffer = vec![0; 2048];
        host.endpoint.poll_transmit(NOW, &mut buffer).unwrap();
        assert_eq!(buffer[1] >> 2, expected, "{rd_atomic} READs");
    }
}
