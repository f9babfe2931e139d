//! Two links in memory: what goes over which, and what is written for the one that the kernel imposes headers on.

use super::*;
use crate::link::memory::{Gives, MemoryLink};
use crate::wire::{Extension, Flow, Headers, Opcode, Psn, ROCE_PORT};

const SLOT: u8 = 5;

fn memory() -> MemoryLink {
    let imposed = Some(Imposed { identification: 0, source_port: ROCE_PORT });
    MemoryLink::new(128, Gives { next_hop: Some(Hop(3)), slot: Some(SLOT), imposed, ..Gives::default() })
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// Writes an acknowledge to a queue pair into the lent buffer.
fn write(link: &mut impl Link, to: IpAddr, qpn: Qpn) -> usize {
    let addresses = Addresses::new(address(1), to).unwrap();
    let flow = Flow { addresses, source_port: 50_000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
    let headers = Headers { bth: Bth::new(Opcode::RC_SEND_ONLY, qpn, Psn::new(7)), extension: Extension::None };
    headers.write(link.transmit_buffer().unwrap(), &flow, 77, 0, |_| Ok::<_, ()>(())).unwrap()
}

#[test]
fn packets_of_this_host_go_through_the_kernel_except_those_to_ourselves() {
    let (network, kernel) = (memory(), memory());
    let (by_network, by_kernel) = (network.clone(), kernel.clone());
    let own = vec![address(1)];
    let mut link = SharedLink::new(Loopback::new(network, [2; 6], own.clone()), kernel, own).unwrap();
    let now = Instant::ZERO;
    let group = IpAddr::from([239, 0, 0, 1]);
    let qpn = |slot: u32| Qpn::new((0x40 | slot) << 12 | 9);
    // To whom; how many packets have left by the network, and by the kernel, and came back.
    for (to, qpn, counts) in [
        (address(2), qpn(5), [1, 0, 0]),
        (address(2), qpn(6), [2, 0, 0]),
        (address(1), qpn(6), [2, 1, 0]),
        (address(1), qpn(5), [2, 1, 1]),
        (address(1), Qpn::GSI, [2, 2, 1]),
        (group, Qpn::MULTICAST, [2, 3, 1]),
    ] {
        let hop = link.hop(address(1), to).unwrap();
        let len = write(&mut link, to, qpn);
        link.transmit(now, len, hop);
        let mut frames = Vec::new();
        link.network.receive(now, &mut frames, 9);
        let came_back = link.network.counters().iter().find(|(name, _)| *name == "loopback_packets").unwrap().1;
        let left = [by_network.given().sent.len(), by_kernel.given().sent.len(), came_back as usize];
        assert_eq!(left, counts, "to {to}, queue pair {:#x}", qpn.value());
    }
    // What the kernel will send has its port and identification, and the ICRC of these.
    for (packet, ..) in &by_kernel.given().sent {
        assert_eq!((&packet[4..6], &packet[20..22]), (&[0, 0][..], &ROCE_PORT.to_be_bytes()[..]));
        let (covered, icrc) = packet.split_at(packet.len() - ICRC_BYTES);
        assert_eq!(icrc::compute(FrameBytes::from(covered)).unwrap().to_le_bytes(), icrc);
    }
    assert_eq!(by_network.given().sent[0].0[20..22], 50_000u16.to_be_bytes(), "the network's keeps its own");
}

/// Faults damage a packet before it gets here, and captures record it.
#[test]
fn a_damaged_packet_is_as_damaged_when_the_kernel_sends_it() {
    let (network, kernel) = (memory(), memory());
    let by_kernel = kernel.clone();
    let own = vec![address(1)];
    let mut link = SharedLink::new(Loopback::new(network, [2; 6], own.clone()), kernel, own).unwrap();
    let hop = link.hop(address(1), address(1)).unwrap();
    let len = write(&mut link, address(1), Qpn::GSI);
    link.finish(len, hop);
    let buffer = &mut link.transmit_buffer().unwrap()[..len];
    let recorded = buffer.to_vec();
    buffer[35] ^= 0x10;
    link.transmit(Instant::ZERO, len, hop);
    let sent = by_kernel.given().sent[0].0.clone();
    let icrc = |packet: &[u8]| icrc::compute(FrameBytes::from(&packet[..len - ICRC_BYTES])).unwrap().to_le_bytes();
    assert_eq!(icrc(&recorded), recorded[len - ICRC_BYTES..], "what was recorded is right");
    assert_eq!(sent[len - ICRC_BYTES..], recorded[len - ICRC_BYTES..], "what was sent has its ICRC");
    assert_ne!(icrc(&sent), sent[len - ICRC_BYTES..], "and is damaged");
}

#[test]
fn sockets_are_asked_at_each_step_after_a_packet_and_now_and_then_otherwise() {
    let (network, kernel) = (memory(), memory());
    kernel.gives().arriving.push_back(Frame::from_vec(vec![0; 64]));
    let looked = kernel.clone();
    let mut link = SharedLink::new(Loopback::new(network, [2; 6], vec![]), kernel, vec![]).unwrap();
    let mut looked_at = |microseconds: u64| {
        let before = looked.given().looks;
        link.receive(Instant::ZERO + Duration::from_micros(microseconds), &mut Vec::new(), 64);
        looked.given().looks > before
    };
    // The first look finds a packet.
    assert!(looked_at(5_000) && looked_at(5_001) && looked_at(5_999));
    assert!(looked_at(6_000), "the last one of that time");
    assert!(!looked_at(6_001) && !looked_at(6_199) && looked_at(6_200) && !looked_at(6_201));
}
