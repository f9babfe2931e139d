//! The AF_XDP link between two network namespaces. Needs root, `ip` and veth.
//!
//! Every test makes its own namespaces; a thread in each opens an [`XdpLink`]. Frames carry a number and bytes derived
//! from it, and the receiver checks every byte.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use common::{Pair, PairOptions};
use uroce::frame::Frame;
use uroce::link::xdp::{AttachMode, CopyMode, OpenError, XdpLink, XdpOptions};
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
            check(&link);
            let (me, peer) = (side as u8 + 1, 2 - side as u8);
            let hops = [(v4(me), v4(peer)), (v6(me.into()), v6(peer.into()))]
                .map(|(source, destination)| (link.hop(source, destination).unwrap(), source, destination));
            let numbers = exchange.run(side, &mut link, &hops);
            (numbers, link.counters())
        })
    });
    for (side, thread) in threads.into_iter().enumerate() {
        let (mut numbers, counters) = thread.join().unwrap();
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
