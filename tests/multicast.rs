//! Multicast groups of datagram queue pairs, over both links and both families: who is attached gets one copy, the sender none,
//! and the kernel is a member for as long as somebody is attached.
//!
//! Needs root, for namespaces and AF_XDP.
#![allow(clippy::disallowed_methods, reason = "two real hosts are on the wall clock")]

#[allow(unused_macros, reason = "for tests of the transport")]
mod common;

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use common::hosts::{Pair, PairOptions};
use uroce::verbs::{
    Access, AddressVector, AttachError, Capabilities, Completion, CompletionQueue, ConnectOptions, Context, Data,
    Destination, LinkKind, MemoryRegion, MulticastError, OpenOptions, QKey, QpAttributes, Qpn, QueuePair,
    QueuePairOptions, ReceiveRequest, SendOperation, SendRequest, Service, Status,
};

const LIMIT: Duration = Duration::from_secs(10);
const Q_KEY: QKey = QKey(0x1234);
const GRH_BYTES: usize = 40;

/// A host's device, with datagram queue pairs that report to one queue each.
struct Host {
    context: Context,
    region: MemoryRegion,
    queue_pairs: Vec<(QueuePair, CompletionQueue)>,
}

impl Host {
    fn open(link: LinkKind, count: usize) -> Host {
        let context = OpenOptions::new().device("veth0").link(link).open().unwrap();
        let pd = context.allocate_pd();
        let region = pd.allocate_region(65536, Access::LOCAL_WRITE).unwrap();
        let make = |_| {
            let cq = context.create_completion_queue(64);
            let capabilities = Capabilities { max_send_requests: 16, max_receive_requests: 16 };
            let options = QueuePairOptions { service: Service::Ud, capabilities, send: &cq, receive: &cq, srq: None };
            let qp = pd.create_queue_pair(&options).unwrap();
            let attributes = QpAttributes { q_key: Some(Q_KEY), ..Default::default() };
            qp.connect_with(&qp.local(), &ConnectOptions::new().attributes(attributes)).unwrap();
            (qp, cq)
        };
        let queue_pairs = (0..count).map(make).collect();
        Host { context, region, queue_pairs }
    }

    /// The same, with the first ones attached, in the calling thread's namespace; asking twice changes nothing.
    fn attached(link: LinkKind, count: usize, attached: usize, group: Ipv6Addr) -> Host {
        let host = Host::open(link, count);
        for (qp, _) in &host.queue_pairs[..attached] {
            qp.attach(group).unwrap();
            qp.attach(group).unwrap();
        }
        host
    }

    fn post_receive(&self, index: usize) {
        let sge = self.region.sge(1024 * (index + 1), 1024);
        self.queue_pairs[index].0.post_receive(ReceiveRequest { wr_id: 7, sges: [sge].into_iter().collect() }).unwrap();
    }

    /// Sends a byte to a group.
    fn send(&self, index: usize, group: Ipv6Addr, byte: u8) {
        let is_v4 = group.to_ipv4_mapped().is_some();
        let gids = self.context.gids();
        let is_of = |gid: &Ipv6Addr| gid.to_ipv4_mapped().is_some() == is_v4 && !gid.is_unicast_link_local();
        let source_gid_index = gids.iter().position(|gid| is_of(&gid.address)).unwrap();
        let vector =
            AddressVector { source_gid_index, destination_gid: group, traffic_class: 0, hop_limit: 3, flow_label: 0 };
        let qp = &self.queue_pairs[index].0;
        let path = self.context.address_handle(&vector, qp.qpn()).unwrap();
        let mut request = SendRequest::new(9, SendOperation::Send, Data::Inline([byte].into_iter().collect()));
        request.signaled = false;
        request.destination = Some(Destination { path, qpn: Qpn::MULTICAST, q_key: Q_KEY });
        qp.post_send(request).unwrap();
    }

    /// The next completion of a queue pair.
    fn next(&self, index: usize) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(done) = self.queue_pairs[index].1.poll() {
                return done;
            }
            assert!(start.elapsed() < LIMIT, "queue pair {index} got nothing: {:?}", self.context.counters());
        }
    }

    fn received(&self, index: usize) -> u8 {
        let done = self.next(index);
        assert_eq!((done.status, done.wr_id, done.byte_len), (Status::Success, 7, GRH_BYTES as u32 + 1));
        self.region.memory().to_vec(1024 * (index + 1) + GRH_BYTES, 1)[0]
    }
}

/// Whether the kernel of a host is a member of a group on veth0.
fn is_member(pair: &Pair, host: usize, group: Ipv6Addr) -> bool {
    let name = &pair.hosts[host];
    let out = std::process::Command::new("ip").args(["-n", name, "maddr", "show", "dev", "veth0"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let wanted = group.to_canonical().to_string();
    text.split_whitespace().any(|word| word == wanted)
}

fn three_receivers(link: LinkKind) {
    let pair = Pair::new(PairOptions::default());
    // The kernel takes no IPv6 multicast on an interface that came up a moment ago: it looks at links once a second.
    std::thread::sleep(Duration::from_millis(2500));
    for group in ["::ffff:239.7.1.2", "ff0e::7:12"] {
        let group: Ipv6Addr = group.parse().unwrap();
        // At A the sender, which is attached itself, and another; at B two.
        let a = pair.within(0, move || Host::attached(link, 2, 2, group));
        let b = pair.within(1, move || Host::attached(link, 3, 2, group));
        assert!(is_member(&pair, 0, group) && is_member(&pair, 1, group), "{group}");
        // These would show what goes wrong.
        a.post_receive(0);
        b.post_receive(2);
        for round in 0..20 {
            for (host, index) in [(&a, 1), (&b, 0), (&b, 1)] {
                host.post_receive(index);
            }
            a.send(0, group, round);
            let got = [a.received(1), b.received(0), b.received(1)];
            assert_eq!(got, [round; 3], "{group} over {}", a.context.link_mode());
        }
        // Nobody else has anything, and nobody has anything twice.
        std::thread::sleep(Duration::from_millis(20));
        for (host, index) in [(&a, 0), (&a, 1), (&b, 0), (&b, 1), (&b, 2)] {
            assert_eq!(host.queue_pairs[index].1.poll(), None, "{group} over {}", a.context.link_mode());
        }
        // One is detached; the other goes on.
        b.queue_pairs[0].0.detach(group).unwrap();
        assert_eq!(b.queue_pairs[0].0.detach(group), Err(AttachError::NotAttached(group.to_canonical())));
        b.post_receive(1);
        b.post_receive(0);
        a.send(0, group, 100);
        assert_eq!(b.received(1), 100);
        assert!(b.queue_pairs[0].1.poll().is_none() && is_member(&pair, 1, group));
        // The last one, by its end: the kernel leaves.
        let mut b = b;
        drop(b.queue_pairs.remove(1));
        let began = Instant::now();
        while is_member(&pair, 1, group) {
            assert!(began.elapsed() < Duration::from_secs(5), "{group}: the kernel is still a member");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn each_of_three_receivers_gets_one_copy_over_udp() {
    three_receivers(LinkKind::Udp);
}

#[test]
fn each_of_three_receivers_gets_one_copy_over_xdp() {
    three_receivers(LinkKind::Xdp);
}

#[test]
fn what_cannot_be_attached_is_refused() {
    let pair = Pair::new(PairOptions::default());
    let host = pair.within(0, || Host::open(LinkKind::Udp, 1));
    let group: Ipv6Addr = "ff0e::1".parse().unwrap();
    for unicast in ["::", "fd07::1", "::ffff:10.7.0.1", "::ffff:0.0.0.0"] {
        let address: Ipv6Addr = unicast.parse().unwrap();
        let refused = host.queue_pairs[0].0.attach(address);
        assert!(matches!(refused, Err(MulticastError::Attach(AttachError::NotAGroup(_)))), "{unicast}: {refused:?}");
    }
    let pd = host.context.allocate_pd();
    let cq = host.context.create_completion_queue(4);
    let capabilities = Capabilities { max_send_requests: 4, max_receive_requests: 4 };
    for service in [Service::Rc, Service::Uc] {
        let options = QueuePairOptions { service, capabilities, send: &cq, receive: &cq, srq: None };
        let qp = pd.create_queue_pair(&options).unwrap();
        let refused = qp.attach(group);
        let expected = AttachError::Service(service);
        assert!(matches!(refused, Err(MulticastError::Attach(error)) if error == expected), "{refused:?}");
        assert_eq!(qp.detach(group), Err(expected));
    }
    assert_eq!(host.queue_pairs[0].0.detach(group), Err(AttachError::NotAttached(group.into())));
    assert!(!is_member(&pair, 0, group));
}
