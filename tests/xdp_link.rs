//! The AF_XDP link between two network namespaces. Needs root, `ip` and veth.
//!
//! Every test makes its own namespaces; a thread in each opens an [`XdpLink`]. Frames carry a number and bytes derived
//! from it, and the receiver checks every byte.
#![cfg(feature = "xdp")]

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use common::hosts::{Pair, PairOptions};
use common::privileges::keep_capabilities;
use uroce::frame::Frame;
use uroce::link::device::Device;
use uroce::link::netlink::link_local;
use uroce::link::xdp::{AttachMode, CopyMode, XdpLink, XdpOpenError, XdpOptions};
use uroce::link::{Hop, HopError, Link};
use uroce::time::{Duration, Instant};

const PORT: u16 = 4791;

fn now() -> Instant {
    #[allow(clippy::disallowed_methods)] // a test may look at the clock
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    Instant::from_ns(START.elapsed().as_nanos() as u64)
}

fn v4(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 7, 0, last).into()
}

fn v6(last: u16) -> IpAddr {
    Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, last).into()
}

/// Writes an IP/UDP packet of `len` bytes whose payload is made from `number`; returns its length.
fn write_packet(to: &mut [u8], source: IpAddr, destination: IpAddr, port: u16, len: usize, number: u64) -> usize {
    let at = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            to[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            to[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            to[12..16].copy_from_slice(&source.octets());
            to[16..20].copy_from_slice(&destination.octets());
            let sum: u32 = to[..20].chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            to[10..12].copy_from_slice(&sum.to_be_bytes());
            20
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            to[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, 17, 64]);
            to[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            to[8..24].copy_from_slice(&source.octets());
            to[24..40].copy_from_slice(&destination.octets());
            40
        }
        _ => panic!("two families"),
    };
    let udp = &mut to[at..len];
    let udp_len = udp.len() as u16;
    udp[..2].copy_from_slice(&0xc000u16.to_be_bytes());
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    udp[6..8].fill(0);
    udp[8..16].copy_from_slice(&number.to_be_bytes());
    for (i, byte) in udp[16..].iter_mut().enumerate() {
        *byte = pattern(number, i);
    }
    len
}

fn pattern(number: u64, at: usize) -> u8 {
    (number as usize).wrapping_mul(31).wrapping_add(at.wrapping_mul(7)).wrapping_add(at >> 8) as u8
}

/// The IP packet length of frame `number`: 64 to `max` bytes, every length sooner or later.
fn length(number: u64, max: usize) -> usize {
    64 + (number as usize * 977) % (max - 64 + 1)
}

/// The number in a received frame, after all of its bytes were checked. `vlan`: whether it is tagged.
fn check_frame(frame: &Frame, vlan: bool, max: usize) -> u64 {
    let bytes = frame.bytes().to_vec();
    let ip = &bytes[if vlan { 18 } else { 14 }..];
    let at = if ip[0] >> 4 == 4 { 20 } else { 40 };
    let number = u64::from_be_bytes(ip[at + 8..at + 16].try_into().unwrap());
    assert_eq!(ip.len(), length(number, max), "length of frame {number}");
    let wrong = ip[at + 16..].iter().enumerate().find(|&(i, &b)| b != pattern(number, i));
    assert_eq!(wrong, None, "bytes of frame {number} of {}", ip.len());
    number
}

/// Sends `count` packets over the hops in turn and takes what arrives, until both ends have all or time is up. Returns
/// the numbers received. Ends pace each other: no more than 64 packets ahead of what the peer has received.
struct Exchange {
    count: u64,
    max: usize,
    vlan: bool,
    received: [AtomicU64; 2],
    start: Barrier,
}

impl Exchange {
    fn run(&self, side: usize, link: &mut XdpLink, hops: &[(Hop, IpAddr, IpAddr)]) -> Vec<u64> {
        self.start.wait();
        let mut numbers = Vec::new();
        let mut frames = Vec::new();
        let mut sent = 0;
        let deadline = now() + Duration::from_secs(20);
        while (numbers.len() < self.count as usize || sent < self.count) && now() < deadline {
            let mut batch = 0;
            while sent < self.count && batch < 32 && sent < self.received[1 - side].load(Ordering::Acquire) + 64 {
                let (hop, source, destination) = hops[(sent / 16) as usize % hops.len()];
                let Some(buffer) = link.transmit_buffer() else { break };
                let len = write_packet(buffer, source, destination, PORT, length(sent, self.max), sent);
                link.transmit(now(), len, hop);
                sent += 1;
                batch += 1;
            }
            link.flush(now());
            link.receive(now(), &mut frames, 64);
            numbers.extend(frames.drain(..).map(|f| check_frame(&f, self.vlan, self.max)));
            self.received[side].store(numbers.len() as u64, Ordering::Release);
        }
        self.start.wait();
        // What is still on its way back from the kernel.
        for _ in 0..100 {
            link.flush(now());
        }
        let accounts = link.accounts();
        assert!(link.frames_conserved(), "{accounts:?}");
        assert_eq!(
            (accounts.receive_held, accounts.transmit_kernel, accounts.transmit_waiting),
            (0, 0, 0),
            "{accounts:?}"
        );
        numbers
    }
}

/// Both ways between two links opened with `options`, over IPv4 and IPv6 in turn; every frame must arrive whole.
fn exchange(
    pair: &Pair,
    options: &XdpOptions,
    count: u64,
    max: usize,
    check: impl Fn(&XdpLink) + Send + Sync + 'static,
) {
    let exchange = Arc::new(Exchange {
        count,
        max,
        vlan: false,
        received: [AtomicU64::new(0), AtomicU64::new(0)],
        start: Barrier::new(2),
    });
    let check = Arc::new(check);
    let threads = [0, 1].map(|side| {
        let (exchange, options, check) = (Arc::clone(&exchange), options.clone(), Arc::clone(&check));
        pair.spawn(side, move || {
            let mut link = XdpLink::open("veth0", &options).unwrap_or_else(|e| panic!("{e}"));
            // Nobody sends these frames again.
            link.expect_unreliable();
            check(&link);
            let (me, peer) = (side as u8 + 1, 2 - side as u8);
            let hops = [(v4(me), v4(peer)), (v6(me.into()), v6(peer.into()))]
                .map(|(source, destination)| (link.hop(source, destination).unwrap(), source, destination));
            let numbers = exchange.run(side, &mut link, &hops);
            (numbers, link.counters())
        })
    });
    let results = threads.map(|thread| thread.join().unwrap());
    let counters: Vec<_> = results.iter().map(|r| r.1.clone()).collect();
    for (side, (mut numbers, _)) in results.into_iter().enumerate() {
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len() as u64, count, "side {side}: {counters:?}");
    }
}

fn options(mode: AttachMode) -> XdpOptions {
    XdpOptions { mode: Some(mode), ..XdpOptions::default() }
}

#[test]
fn frames_of_every_length_arrive_whole_in_native_mode() {
    let pair = Pair::new(PairOptions::default());
    exchange(&pair, &options(AttachMode::Native), 10_000, 1500, |link| {
        assert_eq!((link.mode(), link.is_zero_copy(), link.is_multi_buffer()), (AttachMode::Native, false, false));
    });
}

#[test]
fn frames_of_every_length_arrive_whole_in_skb_mode() {
    let pair = Pair::new(PairOptions::default());
    exchange(&pair, &options(AttachMode::Skb), 10_000, 1500, |link| assert_eq!(link.mode(), AttachMode::Skb));
}

#[test]
fn frames_in_two_chunks_arrive_whole_in_native_mode() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    exchange(&pair, &options(AttachMode::Native), 10_000, 4200, |link| assert!(link.is_multi_buffer()));
}

#[test]
fn frames_in_two_chunks_arrive_whole_in_skb_mode() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    exchange(&pair, &options(AttachMode::Skb), 10_000, 4200, |link| assert!(link.is_multi_buffer()));
}

/// veth with two receive queues on each side: hops are spread over the transmit queues, and frames arrive on both.
#[test]
fn all_receive_queues_are_served() {
    let pair = Pair::new(PairOptions { queues: 2, ..PairOptions::default() });
    exchange(&pair, &options(AttachMode::Native), 10_000, 1500, |link| assert_eq!(link.queues(), 2));
}

/// A hop always leaves by the same queue, hops are spread over the queues, and RoCE on a queue that is not served goes to
/// the kernel: of two hops, the link that serves one of two queues receives one.
#[test]
fn hops_are_spread_over_the_queues() {
    let pair = Pair::new(PairOptions { queues: 2, ..PairOptions::default() });
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let one = XdpOptions { queues: Some(1), ..XdpOptions::default() };
    let mut b = pair.within(1, move || XdpLink::open("veth0", &one).unwrap());
    assert_eq!((a.queues(), b.queues()), (2, 1));
    for number in [0, 2, 4] {
        send_one(&mut a, v4(1), v4(2), PORT, length(number, 1500), number);
        send_one(&mut a, v6(1), v6(2), PORT, length(number + 1, 1500), number + 1);
        assert_eq!(check_frame(&receive_one(&mut b).expect("queue 0"), false, 1500), number);
    }
    assert_eq!(b.receive(now(), &mut Vec::new(), 64), 0);
    assert_eq!(counter(&a, "tx_frames"), 6);
}

/// An interface that could have more queues than it uses: the link serves those there are.
#[test]
fn queues_that_are_switched_off_are_left_out() {
    let pair = Pair::new(PairOptions { queues: 4, ..PairOptions::default() });
    let (ok, text) = pair.exec(0, "ethtool -L veth0 rx 2 tx 2");
    assert!(ok, "{text}");
    let link = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    assert_eq!(link.queues(), 2);
}

/// The devices of a namespace, with the GIDs that the kernel's RDMA core would give them, IPv6 on or off.
#[test]
fn devices_are_listed_with_their_gids() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    pair.ip(0, "link add spare type veth peer name spare-end");
    let (ok, text) = pair.exec(0, "sysctl -qw net.ipv6.conf.spare.disable_ipv6=1");
    assert!(ok, "{text}");
    let devices = pair.within(0, || Device::list().unwrap());
    let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
    // The loopback last: a link over UDP sockets can use it.
    assert!(names.len() == 4 && names[3] == "lo", "{names:?}");
    let device = pair.within(0, || Device::find(None).unwrap());
    assert_eq!((device.name.as_str(), device.mtu, device.active_mtu), ("veth0", 4500, 4096));
    let missing = |device: &Device| {
        let device = device.clone();
        pair.within(0, move || device.link_modes().unwrap().remove(0).missing)
    };
    assert_eq!(missing(&device), Vec::<String>::new());
    let ips: Vec<IpAddr> = device.gids.iter().map(|g| g.ip()).collect();
    assert_eq!(ips, [IpAddr::V6(link_local(device.mac)), v4(1), v6(1)]);
    let spare = devices.iter().find(|d| d.name == "spare").unwrap();
    assert!(!spare.is_usable());
    assert_eq!(spare.gids.iter().map(|g| g.address).collect::<Vec<_>>(), [link_local(spare.mac)]);
    assert!(missing(spare)[0].contains("ip link set spare up"), "{spare:?}");
    let error = pair.within(0, || Device::find(Some("nope0")).unwrap_err().to_string());
    assert!(error.starts_with("no device nope0; there are ") && error.contains("veth0"), "{error}");
}

/// Waits in poll(2) until one of the link's descriptors is readable.
fn poll(link: &XdpLink, timeout_ms: i32) -> bool {
    let mut fds: Vec<libc::pollfd> =
        link.poll_fds().into_iter().map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array lives through the call, with its length.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) > 0 }
}

/// A sleeping owner is woken by a frame, and by news of a neighbour that its packets wait for.
#[test]
fn descriptors_become_readable_for_frames_and_for_neighbours() {
    let pair = Pair::new(PairOptions::default());
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let mut b = pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let hop = a.hop(v4(1), v4(2)).unwrap();
    let buffer = a.transmit_buffer().unwrap();
    let len = write_packet(buffer, v4(1), v4(2), PORT, length(3, 1500), 3);
    a.transmit(now(), len, hop);
    let deadline = now() + Duration::from_secs(5);
    let mut sleeps = 0;
    a.flush(now());
    while a.accounts().transmit_waiting > 0 && now() < deadline {
        poll(&a, 1000);
        sleeps += 1;
        a.flush(now() + Duration::from_millis(1));
    }
    assert!((1..1000).contains(&sleeps), "{sleeps}");
    let deadline = now() + Duration::from_secs(5);
    let mut frames = Vec::new();
    while b.receive(now(), &mut frames, 8) == 0 && now() < deadline {
        assert!(poll(&b, 5000), "nothing in five seconds");
        b.flush(now() + Duration::from_secs(1));
    }
    assert_eq!(check_frame(&frames[0], false, 1500), 3);
}

/// The sockets stay out of programs that are started and the rings out of children.
#[test]
fn sockets_and_rings_are_not_inherited() {
    let pair = Pair::new(PairOptions::default());
    let link = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    for fd in link.poll_fds() {
        // SAFETY: asks for the flags of an open descriptor.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
    let socket = std::fs::read_link(format!("/proc/self/fd/{}", link.poll_fds()[0])).unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut rings = 0;
    let mut ours = false;
    for line in maps.lines() {
        if line.contains("-7f") || line.contains(" rw-s ") {
            ours = line.ends_with(socket.to_str().unwrap());
        }
        if let Some(flags) = line.strip_prefix("VmFlags:")
            && std::mem::take(&mut ours)
        {
            rings += 1;
            assert!(flags.contains(" dc "), "a ring is copied to children: {flags}");
        }
    }
    assert_eq!(rings, 4, "receive, transmit, fill, completion");
}

/// The interface goes away under an open link: nothing panics, and nothing is lost track of.
#[test]
fn a_vanished_interface_is_survived() {
    let pair = Pair::new(PairOptions::default());
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    send_one(&mut a, v4(1), v4(2), PORT, 100, 0);
    pair.ip(0, "link del veth0");
    let hop = a.hop(v4(1), v4(2));
    for number in 0..2000 {
        if let (Ok(hop), Some(buffer)) = (&hop, a.transmit_buffer()) {
            let len = write_packet(buffer, v4(1), v4(2), PORT, 100, number);
            a.transmit(now(), len, *hop);
        }
        a.flush(now());
        a.receive(now(), &mut Vec::new(), 64);
    }
    assert!(a.frames_conserved(), "{:?}", a.accounts());
    assert!(a.hop(v4(1), v4(3)).is_err());
    a.flush(now() + Duration::from_secs(1));
    assert!(!poll(&a, 10), "nothing is readable for ever");
}

/// What is not RoCE stays with the kernel, in both modes, with options and fragments and other ports.
#[test]
fn other_traffic_stays_with_the_kernel() {
    for mode in [AttachMode::Native, AttachMode::Skb] {
        let pair = Pair::new(PairOptions::default());
        let link = pair.within(0, move || XdpLink::open("veth0", &options(mode)).unwrap());
        for target in ["10.7.0.1", "fd07::1"] {
            let (ok, text) = pair.exec(1, &format!("ping -c 3 -i 0.01 -W 2 {target}"));
            assert!(ok, "{mode:?}: {text}");
        }
        let socket = pair.within(0, || std::net::UdpSocket::bind("10.7.0.1:4790").unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        // Larger than the MTU: the kernel puts the fragments together.
        let sent = vec![7; 4000];
        let bytes = sent.clone();
        pair.within(1, move || {
            std::net::UdpSocket::bind("10.7.0.2:0").unwrap().send_to(&bytes, "10.7.0.1:4790").unwrap();
        });
        let mut received = [0; 5000];
        let len = socket.recv(&mut received).expect("a datagram to another port reaches its socket");
        assert_eq!(received[..len], sent);
        drop(link);
    }
}

/// Waits for one frame.
fn receive_one(link: &mut XdpLink) -> Option<Frame> {
    let deadline = now() + Duration::from_secs(3);
    let mut frames = Vec::new();
    while now() < deadline {
        link.flush(now());
        if link.receive(now(), &mut frames, 1) == 1 {
            return frames.pop();
        }
        std::thread::yield_now();
    }
    None
}

/// Sends packet `number` of `len` bytes, and flushes for as long as its neighbour is asked for.
fn send_one(link: &mut XdpLink, source: IpAddr, destination: IpAddr, port: u16, len: usize, number: u64) {
    let hop = link.hop(source, destination).unwrap();
    let buffer = link.transmit_buffer().unwrap();
    let len = write_packet(buffer, source, destination, port, len, number);
    link.transmit(now(), len, hop);
    let deadline = now() + Duration::from_secs(3);
    while link.accounts().transmit_waiting > 0 && now() < deadline {
        link.flush(now());
    }
    link.flush(now());
}

fn counter(link: &XdpLink, name: &str) -> u64 {
    link.counters().into_iter().find(|c| c.0 == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Tagged RoCE frames, as a switch's trunk port sends them, reach the link; ones with two tags go to the kernel.
#[test]
fn tagged_frames_arrive() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    for mode in [AttachMode::Native, AttachMode::Skb] {
        let mut link = pair.within(0, move || XdpLink::open("veth0", &options(mode)).unwrap());
        let mac = link.interface().mac.unwrap();
        for (number, tags) in [[0x88a8u16, 0x8100].as_slice(), &[0x8100], &[0x88a8], &[]].into_iter().enumerate() {
            let mut frame = [mac, [2, 0, 0, 0, 0, 7]].concat();
            for tag in tags {
                frame.extend([tag.to_be_bytes(), [0, 77]].concat());
            }
            frame.extend([8, 0]);
            let mut packet = vec![0; 300];
            write_packet(&mut packet, v4(2), v4(1), PORT, 300, number as u64);
            frame.extend(&packet);
            pair.within(1, {
                let frame = frame.clone();
                move || send_raw("veth0", &frame)
            });
            if tags.len() == 2 {
                continue;
            }
            // The one with two tags would have come first.
            assert!(receive_one(&mut link).expect("a frame").bytes().to_vec() == frame, "{mode:?} {tags:x?}");
        }
    }
}

/// A frame with packet `number` in it.
fn frame_to(mac: [u8; 6], source: IpAddr, destination: IpAddr, number: u64) -> Vec<u8> {
    let mut packet = vec![0; length(number, 1500)];
    write_packet(&mut packet, source, destination, PORT, length(number, 1500), number);
    let ethertype = if source.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&mac[..], &[2, 0, 0, 0, 0, 7], &ethertype, &packet].concat()
}

/// The numbers of the frames to these addresses that the link takes, and what comes with them to `mac`.
fn taken(pair: &Pair, link: &mut XdpLink, destinations: &[IpAddr]) -> Vec<u64> {
    let mac = link.interface().mac.unwrap();
    let own = IpAddr::V6(link_local(mac));
    let source = |to: &IpAddr| if to.is_ipv4() { v4(2) } else { v6(2) };
    let last = destinations.len() as u64;
    let all = destinations.iter().chain([&own]).zip(0..);
    let frames: Vec<Vec<u8>> = all.map(|(to, number)| frame_to(mac, source(to), *to, number)).collect();
    pair.within(1, move || frames.iter().for_each(|frame| send_raw("veth0", frame)));
    // One to the address that every interface has comes after them.
    let mut numbers = Vec::new();
    loop {
        let number = check_frame(&receive_one(link).expect("the last one"), false, 1500);
        if number == last {
            return numbers;
        }
        numbers.push(number);
    }
}

/// The link takes frames to the interface's own addresses, as they are now, and to the groups that it was told of; the kernel
/// gets those to everybody, to other groups and to other hosts.
#[test]
fn only_frames_to_this_host_are_taken() {
    for mode in [AttachMode::Native, AttachMode::Skb] {
        let pair = Pair::new(PairOptions::default());
        let mut link = pair.within(0, move || XdpLink::open("veth0", &options(mode)).unwrap());
        let kernel = pair.within(0, || std::net::UdpSocket::bind("0.0.0.0:4791").unwrap());
        kernel.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let destinations: [IpAddr; 10] = [
            v4(1),
            v6(1),
            v4(99),
            v6(99),
            [255; 4].into(),
            [10, 7, 0, 255].into(),
            [224, 0, 0, 1].into(),
            "ff02::1".parse().unwrap(),
            [10, 8, 0, 1].into(),
            "::ffff:10.7.0.1".parse().unwrap(),
        ];
        // An IPv6 packet to a mapped address is nobody's; that it is taken for the IPv4 one does no harm, as the transport looks.
        assert_eq!(taken(&pair, &mut link, &destinations), [0, 1, 9], "{mode:?}");
        let mut heard = [0; 2000];
        for number in [4u64, 5, 6] {
            kernel.recv(&mut heard).unwrap_or_else(|error| panic!("{}: {error}", destinations[number as usize]));
            assert_eq!(heard[..8], number.to_be_bytes());
        }
        link.set_groups(&[destinations[6], destinations[7]]);
        assert_eq!(taken(&pair, &mut link, &destinations), [0, 1, 6, 7, 9], "{mode:?}");
        link.set_groups(&[]);

        // Addresses come and go.
        let mut follows = |change: &str, expected: &[u64]| {
            pair.ip(0, change);
            let deadline = now() + Duration::from_secs(5);
            loop {
                link.flush(now());
                let found = taken(&pair, &mut link, &destinations[..9]);
                if found == expected {
                    return;
                }
                assert!(now() < deadline, "{mode:?} {change}: {found:?}");
            }
        };
        follows("addr add 10.7.0.99/32 dev veth0", &[0, 1, 2]);
        follows("addr add fd07::63/64 dev veth0 nodad", &[0, 1, 2, 3]);
        follows("addr del 10.7.0.1/24 dev veth0", &[1, 2, 3]);
        assert_eq!(counter(&link, "addresses_refused"), 0);
    }
}

/// RoCE of other hosts that passes through this one, by a route or a bridge, goes on, in both directions, while links are open
/// on both interfaces; and what is for this host is taken.
#[test]
fn roce_of_others_passes_through() {
    for is_bridge in [false, true] {
        let pair = Pair::new(PairOptions::default());
        let beyond = Pair::new(PairOptions::default());
        let far = &beyond.hosts[0];
        pair.ip(0, &format!("link add out type veth peer name in netns {far}"));
        beyond.ip(0, "link set in up");
        pair.ip(0, "link set out up");
        if is_bridge {
            for arguments in
                ["link add br0 type bridge", "link set br0 up", "link set veth0 master br0", "link set out master br0"]
            {
                pair.ip(0, arguments);
            }
            pair.ip(0, "addr flush dev veth0");
            beyond.ip(0, "addr flush dev veth0");
            beyond.ip(0, "addr add 10.7.0.9/24 dev in");
            beyond.ip(0, "addr add fd07::9/64 dev in nodad");
        } else {
            for command in ["sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv6.conf.all.forwarding=1"] {
                let (ok, text) = pair.exec(0, command);
                assert!(ok, "{text}");
            }
            pair.ip(0, "addr add 10.9.0.1/24 dev out");
            pair.ip(0, "addr add fd09::1/64 dev out nodad");
            pair.ip(1, "route add 10.9.0.0/24 via 10.7.0.1");
            pair.ip(1, "-6 route add fd09::/64 via fd07::1");
            beyond.ip(0, "addr flush dev veth0");
            beyond.ip(0, "addr add 10.9.0.9/24 dev in");
            beyond.ip(0, "addr add fd09::9/64 dev in nodad");
            beyond.ip(0, "route add 10.7.0.0/24 via 10.9.0.1");
            beyond.ip(0, "-6 route add fd07::/64 via fd09::1");
        }
        let links =
            ["veth0", "out"].map(|name| pair.within(0, move || XdpLink::open(name, &XdpOptions::default()).unwrap()));
        let net = if is_bridge { 7 } else { 9 };
        for [near, distant] in
            [["10.7.0.2".to_owned(), format!("10.{net}.0.9")], ["fd07::2".to_owned(), format!("fd0{net}::9")]]
        {
            let bind = |host: &Pair, number: usize, address: &str| {
                let address: IpAddr = address.parse().unwrap();
                host.within(number, move || std::net::UdpSocket::bind((address, PORT)).unwrap())
            };
            let [one, other] = [bind(&pair, 1, &near), bind(&beyond, 0, &distant)];
            for (from, to, address) in [(&one, &other, &distant), (&other, &one, &near)] {
                to.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let address: IpAddr = address.parse().unwrap();
                // The neighbour is asked for meanwhile, and the first datagram waits for it.
                from.send_to(b"passes through", (address, PORT)).unwrap();
                let mut heard = [0; 100];
                let len =
                    to.recv(&mut heard).unwrap_or_else(|error| panic!("bridge {is_bridge}, to {address}: {error}"));
                assert_eq!(&heard[..len], b"passes through");
            }
        }
        let [mut near, _] = links;
        if !is_bridge {
            assert_eq!(taken(&pair, &mut near, &[v4(1), v6(1), [10, 9, 0, 9].into()]), [0, 1]);
        }
    }
}

/// Sends an Ethernet frame from a packet socket of the calling thread's namespace.
fn send_raw(interface: &str, frame: &[u8]) {
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: plain calls; the name, the frame and the address live through them, and the length is the address's.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let len = size_of_val(&to) as u32;
        let sent = libc::sendto(socket, frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), len);
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
        libc::close(socket);
    }
}

/// Packets to a neighbour that is not there wait, few of them, and are dropped and counted at last.
#[test]
fn packets_without_a_neighbour_wait_bounded_and_are_dropped() {
    let pair = Pair::new(PairOptions::default());
    let mut link = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let hop = link.hop(v4(1), v4(99)).unwrap();
    for number in 0..100 {
        let buffer = link.transmit_buffer().unwrap();
        let len = write_packet(buffer, v4(1), v4(99), PORT, 100, number);
        link.transmit(now(), len, hop);
    }
    link.flush(now());
    let waiting = link.accounts().transmit_waiting;
    assert_eq!((waiting, counter(&link, "tx_no_neighbour")), (64, 36));
    assert!(link.poll_timeout().is_some(), "retries are due");
    let deadline = now() + Duration::from_secs(15);
    while link.accounts().transmit_waiting > 0 && now() < deadline {
        link.flush(now());
        std::thread::yield_now();
    }
    assert_eq!((counter(&link, "tx_no_neighbour"), counter(&link, "neighbours_failed")), (100, 1));
    assert!(link.frames_conserved());
    // And it goes on: the neighbour appears.
    pair.ip(1, "addr add 10.7.0.99/24 dev veth0");
    let mut peer = pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let deadline = now() + Duration::from_secs(5);
    while counter(&link, "tx_frames") == 0 && now() < deadline {
        send_one(&mut link, v4(1), v4(99), PORT, 100, 7);
    }
    assert!(receive_one(&mut peer).is_some());
}

/// Sends `count` packets while the peer does not look, and then has it look until there are no more. Returns how many it got.
fn flood(from: &mut XdpLink, to: &mut XdpLink, count: u64) -> usize {
    let before = counter(from, "tx_frames");
    while counter(from, "tx_frames") < before + count {
        send_one(from, v4(1), v4(2), PORT, 100, 7);
    }
    let mut frames = Vec::new();
    while to.receive(now(), &mut frames, 64) > 0 {
        to.flush(now());
    }
    frames.len()
}

/// The kernel has 1024 chunks, and after a time without the receiving thread more. Where nobody sends again what is lost it
/// has all from the start.
#[test]
fn there_is_room_for_what_waits() {
    let pair = Pair::new(PairOptions::default());
    let open = |side| pair.within(side, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let (mut a, mut b) = (open(0), open(1));
    assert_eq!(b.accounts().receive_kernel, 1024);
    assert_eq!(flood(&mut a, &mut b, 1500), 1024, "{:?}", b.counters());
    assert_eq!((b.accounts().receive_kernel, counter(&b, "rx_fill_ring_empty")), (2048, 476));
    assert_eq!(flood(&mut a, &mut b, 1500), 1500, "{:?}", b.counters());
    b.expect_unreliable();
    assert_eq!(b.accounts().receive_kernel, 14_400);
    assert_eq!(flood(&mut a, &mut b, 14_400), 14_400, "{:?}", b.counters());
    assert!(b.frames_conserved());
}

/// Routes are the kernel's: a gateway's MAC, another interface, no route, one's own address; and they change.
#[test]
fn hops_follow_the_kernels_routes() {
    let pair = Pair::new(PairOptions::default());
    // What the gateway gets for others is not taken by its link.
    pair.ip(1, "addr add 192.0.2.1/32 dev veth0");
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let mut b = pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let far = IpAddr::from([192, 0, 2, 1]);
    assert_eq!(a.hop(v4(1), far), Err(HopError::NoRoute(v4(1), far)));
    assert_eq!(a.hop(v4(1), v4(1)), Err(HopError::OwnAddress(v4(1))));
    assert_eq!(a.hop(v6(1), v6(1)), Err(HopError::OwnAddress(v6(1))));
    pair.ip(0, "link add other type veth peer name other-end");
    pair.ip(0, "addr add 198.51.100.1/24 dev other");
    pair.ip(0, "link set other-end up");
    pair.ip(0, "link set other up");
    let beside = IpAddr::from([198, 51, 100, 2]);
    let error = a.hop(v4(1), beside).unwrap_err();
    assert_eq!(error, HopError::OtherInterface { destination: beside, interface: "other".into() });

    pair.ip(0, "route add 192.0.2.0/24 via 10.7.0.2");
    send_one(&mut a, v4(1), far, PORT, 100, 1);
    let frame = receive_one(&mut b).expect("through the gateway").bytes().to_vec();
    assert_eq!(frame[..6], b.interface().mac.unwrap());
    let mapped = IpAddr::from(Ipv4Addr::new(10, 7, 0, 2).to_ipv6_mapped());
    assert_eq!(a.hop(v4(1), mapped), a.hop(v4(1), v4(2)), "mapped addresses are the IPv4 ones");

    // A hop given out before follows a change of the route.
    let gone = a.hop(v4(1), far).unwrap();
    pair.ip(0, "route del 192.0.2.0/24");
    let until = now() + Duration::from_millis(100);
    while now() < until {
        a.flush(now());
    }
    let hop = a.hop(v4(1), v4(2)).unwrap();
    let before = counter(&a, "tx_no_neighbour");
    let buffer = a.transmit_buffer().unwrap();
    let len = write_packet(buffer, v4(1), far, PORT, 100, 2);
    a.transmit(now(), len, gone);
    assert_eq!(counter(&a, "tx_no_neighbour"), before + 1, "no route any more");
    assert_ne!(hop, gone);
    assert_eq!(a.hop(v4(1), far), Err(HopError::NoRoute(v4(1), far)));
}

/// Twice as many destinations as a link remembers come and go meanwhile: a hop given out before leads to its peer, although its
/// number means nothing any more.
#[test]
fn a_hop_that_was_forgotten_leads_to_the_packets_destination() {
    let pair = Pair::new(PairOptions::default());
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let mut b = pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    send_one(&mut a, v4(1), v4(2), PORT, length(0, 1500), 0);
    assert_eq!(receive_one(&mut b).map(|frame| check_frame(&frame, false, 1500)), Some(0));
    let old = a.hop(v4(1), v4(2)).unwrap();
    for number in 0..2 * 65_536u32 {
        // Groups: each is a neighbour of its own, and the kernel need not be asked for it.
        a.hop(v4(1), IpAddr::from((0xef00_0000 + number).to_be_bytes())).unwrap();
    }
    assert_eq!(a.ethernet_header(old), None);
    for number in 1..4 {
        let len = write_packet(a.transmit_buffer().unwrap(), v4(1), v4(2), PORT, length(number, 1500), number);
        a.transmit(now(), len, old);
        a.flush(now());
        let frame = receive_one(&mut b).expect("it is found anew");
        assert_eq!(frame.bytes().head[..6], b.interface().mac.unwrap());
        assert_eq!(check_frame(&frame, false, 1500), number);
    }
    assert_ne!(a.hop(v4(1), v4(2)).unwrap(), old);
    assert!(a.frames_conserved());
}

/// Link-local IPv6 goes by the device's interface, groups have their own MAC, and the peer's MAC may change.
#[test]
fn link_local_and_group_destinations_have_hops() {
    let pair = Pair::new(PairOptions::default());
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let mut b = pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let [from, to] = [&a, &b].map(|l| IpAddr::V6(link_local(l.interface().mac.unwrap())));
    send_one(&mut a, from, to, PORT, 200, 1);
    let frame = receive_one(&mut b).expect("link-local").bytes().to_vec();
    assert_eq!(frame[..6], b.interface().mac.unwrap());
    let groups: [IpAddr; 2] = ["ff02::1:77".parse().unwrap(), "239.1.2.3".parse().unwrap()];
    b.set_groups(&groups);
    send_one(&mut a, from, groups[0], PORT, 200, 2);
    let frame = receive_one(&mut b).expect("IPv6 group").bytes().to_vec();
    assert_eq!(frame[..6], [0x33, 0x33, 0, 1, 0, 0x77]);
    send_one(&mut a, v4(1), groups[1], PORT, 200, 3);
    let frame = receive_one(&mut b).expect("IPv4 group").bytes().to_vec();
    assert_eq!(frame[..6], [0x01, 0, 0x5e, 1, 2, 3]);

    send_one(&mut a, v4(1), v4(2), PORT, 200, 4);
    receive_one(&mut b).expect("before the change");
    pair.ip(1, "link set veth0 address 02:00:00:00:00:99");
    pair.ip(0, "neigh replace 10.7.0.2 lladdr 02:00:00:00:00:99 dev veth0");
    let until = now() + Duration::from_millis(100);
    while now() < until {
        a.flush(now());
    }
    send_one(&mut a, v4(1), v4(2), PORT, 200, 5);
    let frame = receive_one(&mut b).expect("after the change").bytes().to_vec();
    assert_eq!(frame[..6], [2, 0, 0, 0, 0, 0x99]);
}

/// GID 0 is made from the MAC even where IPv6 is off, and packets between two such addresses arrive.
#[test]
fn link_local_works_where_ipv6_is_off() {
    let pair = Pair::new(PairOptions::default());
    for host in [0, 1] {
        let (ok, text) = pair.exec(host, "sysctl -qw net.ipv6.conf.veth0.disable_ipv6=1");
        assert!(ok, "{text}");
    }
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let mut b = pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let [from, to] = [&a, &b].map(|l| IpAddr::V6(link_local(l.interface().mac.unwrap())));
    send_one(&mut a, from, to, PORT, 200, 1);
    assert!(receive_one(&mut b).is_some());
}

/// What cannot be opened is refused in one line that says why.
#[test]
fn refusals_are_one_line_and_name_the_remedy() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    let refused = |name: &'static str, options: XdpOptions| {
        let error = pair.within(0, move || XdpLink::open(name, &options).map(|_| ()).unwrap_err());
        let text = error.to_string();
        assert!(!text.contains('\n') && text.len() < 250, "{text:?}");
        (error, text)
    };
    let (error, text) = refused("nope0", XdpOptions::default());
    assert!(matches!(error, XdpOpenError::NoInterface { .. }) && text.contains("ip link"), "{text}");
    let (error, text) = refused("lo", XdpOptions::default());
    assert!(matches!(error, XdpOpenError::NotEthernet { .. }), "{text}");
    let zero_copy = XdpOptions { copy: CopyMode::ZeroCopy, ..XdpOptions::default() };
    let (error, text) = refused("veth0", zero_copy);
    assert!(matches!(error, XdpOpenError::ZeroCopy { .. }) && text.contains("copy mode"), "{text}");
    let (error, text) = refused("veth0", XdpOptions { queues: Some(9), ..XdpOptions::default() });
    assert!(matches!(error, XdpOpenError::Option { .. }), "{text}");

    let first = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let (error, text) = refused("veth0", XdpOptions::default());
    assert!(matches!(error, XdpOpenError::Taken { .. }) && text.contains("over AF_XDP"), "{text}");
    drop(first);
    // The queue is free again at once, or nearly so.
    pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).map(|_| ()).unwrap());
    pair.ip(0, "link set veth0 down");
    let (error, text) = refused("veth0", XdpOptions::default());
    assert!(matches!(error, XdpOpenError::Down { .. }) && text.contains("up"), "{text}");
}

/// A thread without capabilities is told which ones it lacks.
#[test]
fn missing_capabilities_are_named() {
    let pair = Pair::new(PairOptions::default());
    let error = pair.within(0, || {
        keep_capabilities(0);
        XdpLink::open("veth0", &XdpOptions::default()).map(|_| ()).unwrap_err()
    });
    let text = error.to_string();
    assert!(matches!(error, XdpOpenError::Capability { .. }), "{text}");
    assert!(text.contains("CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF") && text.contains("setcap"), "{text}");
}

/// CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF are enough, but for the limit on locked memory, which the error names.
#[test]
fn three_capabilities_suffice_within_the_memory_limit() {
    let pair = Pair::new(PairOptions::default());
    let (default, small) = pair.within(0, || {
        let limit = libc::rlimit { rlim_cur: 8 << 20, rlim_max: 8 << 20 };
        keep_capabilities(1 << 12 | 1 << 13 | 1 << 39);
        // SAFETY: the limit is a valid rlimit; lowering it needs no privilege, and the links of the other tests in this
        // process have CAP_IPC_LOCK.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        let default = XdpLink::open("veth0", &XdpOptions::default()).map(|_| ());
        let small = XdpOptions { receive_frames: 512, transmit_packets: 64, ..XdpOptions::default() };
        (default, XdpLink::open("veth0", &small).map(|_| ()))
    });
    let text = default.unwrap_err().to_string();
    assert!(text.contains("67108864 bytes") && text.contains("ulimit -l"), "{text}");
    small.unwrap();
}

/// A frame that outlives its link keeps its bytes.
#[test]
fn frames_outlive_their_link() {
    let pair = Pair::new(PairOptions::default());
    let mut a = pair.within(0, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    let mut b = pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).unwrap());
    send_one(&mut a, v4(1), v4(2), PORT, length(5, 1500), 5);
    let frame = receive_one(&mut b).unwrap();
    assert_eq!((b.accounts().receive_held, b.frames_conserved()), (1, true));
    drop(b);
    assert_eq!(check_frame(&frame, false, 1500), 5);
    let elsewhere = std::thread::spawn(move || drop(frame));
    elsewhere.join().unwrap();
    pair.within(1, || XdpLink::open("veth0", &XdpOptions::default()).map(|_| ()).unwrap());
}
