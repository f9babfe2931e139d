//! A queue pair over two interfaces at once, in real frames: both carry its packets; one that goes down in the middle costs no
//! error, whether it is ours or the peer's; and when it is up it is used again.
//!
//! Needs root, `ip` and veth.
#![allow(clippy::disallowed_methods, reason = "two real hosts are on the wall clock")]

mod common;

use std::time::{Duration, Instant};

use common::hosts::{Pair, PairOptions};
use uroce::verbs::{
    Access, Capabilities, CompletionQueue, ConnectOptions, Context, Data, LinkKind, MemoryRegion, OpenError,
    OpenOptions, Peer, Psn, QpAttributes, QueuePair, QueuePairOptions, Rate, SendOperation, SendRequest, Service,
    Status,
};

/// Nothing here takes longer; a machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

const MESSAGE: usize = 16 << 10;

/// Messages outstanding, each in a place of its own.
const OUTSTANDING: usize = 32;

/// One host's device and queue pair. Both hosts' memory is cut into places for messages.
struct Host {
    // Dropped in this order.
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    context: Context,
}

fn options(kind: LinkKind) -> OpenOptions {
    // Slow enough for a busy machine, fast enough for a thousand packets in a moment.
    let rate = Rate::from_bits(200_000_000);
    OpenOptions::new().device("veth0").rails(["veth1"]).link(kind).rate(rate)
}

impl Host {
    fn open(pair: &Pair, host: usize, kind: LinkKind) -> Host {
        let context = pair.within(host, move || Context::open(&options(kind)).unwrap_or_else(|e| panic!("{e}")));
        let pd = context.allocate_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.allocate_region(OUTSTANDING * MESSAGE, access).unwrap();
        let cq = context.create_completion_queue(2 * OUTSTANDING);
        let capabilities = Capabilities { max_send_requests: OUTSTANDING, max_receive_requests: 1 };
        let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
        let qp = pd.create_queue_pair(&options).unwrap();
        Host { qp, cq, region, context }
    }

    /// Connects with the host of that number, 1 or 2.
    fn connect(&self, other: &Host, number: u8, is_v6: bool) {
        let gid = if is_v6 { format!("fd07::{number}") } else { format!("::ffff:10.7.0.{number}") };
        let gids = self.context.gids();
        let own = gids.iter().position(|gid| gid.ip().is_ipv6() == is_v6 && !gid.address.is_unicast_link_local());
        // The timeout is long: an interface that changes may stop a busy machine for seconds.
        let attributes = QpAttributes { send_psn: Some(Psn::new(7)), timeout: Some(19), ..Default::default() };
        let options = ConnectOptions::new().gid_index(own.unwrap()).attributes(attributes);
        self.qp.connect_with(&Peer::new(other.qp.qpn(), Psn::new(7), gid.parse().unwrap()), &options).unwrap();
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.context.counters();
        counters.into_iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

/// What a message's bytes are.
fn bytes(serial: u64) -> Vec<u8> {
    (0..MESSAGE as u64).map(|at| (serial * 37 + at * 11 + (at >> 8)) as u8).collect()
}

/// Messages from a to b by WRITE, or from b to a by READ, one after the other in all places.
struct Transfer<'a> {
    a: &'a Host,
    b: &'a Host,
    reads: bool,
    posted: u64,
    completed: u64,
}

impl Transfer<'_> {
    /// Goes on until something is so, and all that was posted is done. Every completion is a success, in order.
    fn until(&mut self, what: &str, is_so: &mut dyn FnMut(&Self) -> bool) {
        let start = Instant::now();
        let mut is_over = false;
        while !is_over || self.completed < self.posted {
            if !is_over && self.completed.is_multiple_of(16) {
                is_over = is_so(self);
            }
            while !is_over && self.posted < self.completed + OUTSTANDING as u64 {
                self.post();
            }
            while let Some(completion) = self.a.cq.poll() {
                let is_next = (completion.status, completion.wr_id) == (Status::Success, self.completed);
                assert!(is_next, "{what}: {completion:?} for {}; {:?}", self.completed, self.counters());
                self.check(completion.wr_id);
                self.completed += 1;
            }
            assert!(
                start.elapsed() < LIMIT,
                "{what}: not in {LIMIT:?}, {} done; {:?}",
                self.completed,
                self.counters()
            );
        }
    }

    fn counters(&self) -> [Vec<(&'static str, u64)>; 2] {
        [self.a, self.b].map(|host| host.context.counters())
    }

    fn ends(&self) -> (&Host, &Host) {
        if self.reads { (self.b, self.a) } else { (self.a, self.b) }
    }

    fn post(&mut self) {
        let place = self.posted as usize % OUTSTANDING * MESSAGE;
        self.ends().0.region.memory().write(place, &bytes(self.posted));
        let data = Data::Sges([self.a.region.sge(place, MESSAGE)].into_iter().collect());
        let remote = self.b.region.remote(place);
        let operation = if self.reads { SendOperation::Read(remote) } else { SendOperation::Write(remote) };
        self.a.qp.post_send(SendRequest::new(self.posted, operation, data)).unwrap();
        self.posted += 1;
    }

    /// A message that is complete is where it should be, whole.
    fn check(&self, serial: u64) {
        let place = serial as usize % OUTSTANDING * MESSAGE;
        let arrived = self.ends().1.region.memory().to_vec(place, MESSAGE);
        assert!(arrived == bytes(serial), "message {serial} is not what was sent");
    }
}

/// Frames that both hosts have received on a rail: data at one, acknowledges at the other.
fn received(transfer: &Transfer, rail: usize) -> u64 {
    let name = format!("rail{rail}_rx_frames");
    transfer.a.counter(&name) + transfer.b.counter(&name)
}

/// The transfer goes on until a rail has carried so many frames more.
fn until_used(transfer: &mut Transfer, rail: usize, what: &str) {
    let before = received(transfer, rail);
    transfer.until(&format!("{what}: rail {rail} is used"), &mut |transfer| received(transfer, rail) > before + 300);
}

fn two_cables() -> Pair {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    pair.second_cable(4500);
    pair
}

fn one_of_two_goes_down(kind: LinkKind, is_v6: bool, reads: bool) {
    let pair = two_cables();
    let [a, b] = [0, 1].map(|host| Host::open(&pair, host, kind));
    a.connect(&b, 2, is_v6);
    b.connect(&a, 1, is_v6);
    let mut transfer = Transfer { a: &a, b: &b, reads, posted: 0, completed: 0 };
    let kind_of = format!("{kind:?}, IPv6 {is_v6}, READ {reads}");
    until_used(&mut transfer, 0, &kind_of);
    until_used(&mut transfer, 1, &kind_of);
    // Who knows the other's addresses first probes the rail before the other believes it: from here on, both know.
    let strangers = |transfer: &Transfer| [transfer.a, transfer.b].map(|host| host.counter("wrong_address"));
    let before = strangers(&transfer);
    assert!(before.iter().all(|count| *count < 16), "{kind_of}: {before:?}");
    // Further interfaces first, then the one that the queue pair's own addresses are of.
    for (rail, host) in [(1, 0), (1, 1), (0, 0), (0, 1)] {
        let (name, what) = (format!("veth{rail}"), format!("{kind_of}, veth{rail} of host {host}"));
        pair.ip(host, &format!("link set {name} down"));
        let goal = transfer.completed + 200;
        transfer.until(&format!("{what} is down"), &mut |transfer| transfer.completed >= goal);
        until_used(&mut transfer, 1 - rail, &what);
        pair.ip(host, &format!("link set {name} up"));
        if is_v6 {
            // The kernel takes them away with the link.
            pair.ip(host, &format!("addr add fd0{}::{}/64 dev {name} nodad", 7 + rail, host + 1));
        }
        until_used(&mut transfer, rail, &format!("{what} is up"));
        until_used(&mut transfer, 1 - rail, &format!("{what} is up"));
    }
    assert_eq!(strangers(&transfer), before, "{kind_of}");
    assert_eq!((a.counter("bad_icrc"), b.counter("bad_icrc")), (0, 0), "{kind_of}");
}

#[test]
fn an_interface_that_goes_down_costs_no_error_over_af_xdp() {
    one_of_two_goes_down(LinkKind::Xdp, false, false);
}

#[test]
fn an_interface_that_goes_down_costs_no_error_over_af_xdp_and_ipv6() {
    one_of_two_goes_down(LinkKind::Xdp, true, false);
}

#[test]
fn an_interface_that_goes_down_costs_reads_no_error_over_af_xdp() {
    one_of_two_goes_down(LinkKind::Xdp, false, true);
}

#[test]
fn an_interface_that_goes_down_costs_no_error_over_udp_sockets() {
    one_of_two_goes_down(LinkKind::Udp, false, false);
}

/// The second interface has no way at first: its cable's other end has no address in common. The rail is used when it has one.
#[test]
fn a_rail_without_a_way_is_used_when_there_is_one() {
    for kind in [LinkKind::Xdp, LinkKind::Udp] {
        let pair = two_cables();
        pair.ip(0, "route del 10.8.0.0/24 dev veth1");
        let [a, b] = [0, 1].map(|host| Host::open(&pair, host, kind));
        a.connect(&b, 2, false);
        b.connect(&a, 1, false);
        let mut transfer = Transfer { a: &a, b: &b, reads: false, posted: 0, completed: 0 };
        transfer.until("all over the first", &mut |transfer| transfer.completed >= 200);
        assert_eq!(a.counter("rail1_tx_packets"), 0, "{kind:?}");
        pair.ip(0, "route add 10.8.0.0/24 dev veth1");
        until_used(&mut transfer, 1, &format!("{kind:?}: there is a way"));
    }
}

/// A peer of one interface is reached over it alone, by several paths where there is AF_XDP; more than one an interface are
/// refused over UDP sockets.
#[test]
fn a_peer_with_one_interface_is_reached_over_it() {
    let pair = two_cables();
    let a = Host::open(&pair, 0, LinkKind::Xdp);
    let b = {
        let alone = options(LinkKind::Xdp).rails([""; 0]);
        let context = pair.within(1, move || Context::open(&alone).unwrap());
        let pd = context.allocate_pd();
        let region = pd.allocate_region(OUTSTANDING * MESSAGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let cq = context.create_completion_queue(16);
        let capabilities = Capabilities { max_send_requests: 1, max_receive_requests: 1 };
        let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
        let qp = pd.create_queue_pair(&options).unwrap();
        Host { qp, cq, region, context }
    };
    a.connect(&b, 2, false);
    b.connect(&a, 1, false);
    let mut transfer = Transfer { a: &a, b: &b, reads: false, posted: 0, completed: 0 };
    transfer.until("one interface at the peer", &mut |transfer| transfer.completed >= 500);
    assert_eq!((a.counter("rail1_tx_packets"), b.counter("wrong_address")), (0, 0));
    let refused = pair.within(0, || options(LinkKind::Udp).paths(3).open());
    let error = refused.map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::UdpPaths { paths: 3, interfaces: 2 }), "{error}");
    assert!(error.to_string().contains("--paths") && !error.to_string().contains('\n'), "{error}");
}
