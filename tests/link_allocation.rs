//! After start-up the links allocate nothing: a counting allocator watches the thread that sends and receives.

#[path = "common/allocations.rs"]
mod allocations;
mod common;

use std::net::IpAddr;

use allocations::allocations;
use common::hosts::{Pair, PairOptions};
use uroce::frame::Frame;
use uroce::link::Link;
use uroce::link::udp::UdpLink;
use uroce::link::xdp::{XdpLink, XdpOptions};
use uroce::time::{Duration, Instant};

#[test]
fn packets_over_af_xdp_allocate_nothing() {
    packets_allocate_nothing(|| XdpLink::open("veth0", &XdpOptions::default()).unwrap());
}

#[test]
fn packets_over_udp_sockets_allocate_nothing() {
    packets_allocate_nothing(|| UdpLink::open("veth0").unwrap());
}

/// 10,000 packets from one link to the other after the neighbour is known, with AF_XDP in one and two chunks: no
/// allocation.
fn packets_allocate_nothing<L: Link + 'static>(open: fn() -> L) {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    let [mut a, mut b] = [0, 1].map(|host| pair.within(host, open));
    let [from, to] = [1, 2].map(|last| IpAddr::from([10, 7, 0, last]));
    let hop = a.hop(from, to).unwrap();
    let mut packet = vec![0; 4200];
    packet[..28].copy_from_slice(&[
        0x45, 0, 0x10, 0x68, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 7, 0, 1, 10, 7, 0, 2, 0xc0, 0, 0x12, 0xb7, 0x10, 0x54, 0,
        0,
    ]);
    let mut frames: Vec<Frame> = Vec::with_capacity(64);
    let mut clock = Instant::ZERO;
    let mut run = |count: u64| {
        let (mut sent, mut received) = (0, 0);
        for _ in 0..10_000_000 {
            clock = clock + Duration::from_micros(10);
            while sent < count && sent < received + 32 {
                let Some(buffer) = a.transmit_buffer() else { break };
                let len = if sent % 2 == 0 { 100 } else { packet.len() };
                buffer[..len].copy_from_slice(&packet[..len]);
                a.transmit(clock, len, hop);
                sent += 1;
            }
            a.flush(clock);
            received += b.receive(clock, &mut frames, 64) as u64;
            frames.clear();
            b.flush(clock);
            if received == count {
                return;
            }
        }
        panic!("{received} of {count} received");
    };
    // The neighbour becomes known, and the kernel's news of it are read.
    run(1000);
    // News of the network may come in between (a router, duplicate address detection) and are read with allocations.
    let least = (0..5).map(|_| {
        let before = allocations();
        run(10_000);
        allocations() - before
    });
    assert_eq!(least.min(), Some(0));
}
