//! Two interfaces as one link, over AF_XDP and over UDP sockets: real frames leave by the interface of their source address and
//! arrive whole; an interface that is down loses its own frames alone, and works again when it is up.
//!
//! Needs root, `ip` and veth.
#![allow(clippy::disallowed_methods, reason = "two real hosts are on the wall clock")]

mod common;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::hosts::{Pair, PairOptions};
use uroce::frame::{Frame, Hop};
use uroce::link::udp::UdpLink;
use uroce::link::xdp::{XdpLink, XdpOptions};
use uroce::link::{HopError, Link, Rail, Rails};
use uroce::time;
use uroce::verbs::{LinkKind, OpenError, OpenOptions, Psn};
use uroce::wire::{Addresses, Bth, Extension, Flow, Headers, Opcode, Qpn, RoceFrame};

const LIMIT: Duration = Duration::from_secs(20);
const KINDS: [LinkKind; 2] = [LinkKind::Xdp, LinkKind::Udp];

fn now() -> time::Instant {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    time::Instant::from_ns(START.elapsed().as_nanos() as u64)
}

/// The address of a host (1 or 2) on a rail.
fn address(rail: u8, host: u8, is_v6: bool) -> IpAddr {
    match is_v6 {
        true => format!("fd0{}::{host}", 7 + rail).parse().unwrap(),
        false => IpAddr::from([10, 7 + rail, 0, host]),
    }
}

fn two_cables() -> Pair {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    pair.second_cable(4200);
    pair
}

/// Both interfaces of a host as one link.
fn open(pair: &Pair, host: usize, kind: LinkKind) -> Rails {
    pair.within(host, move || {
        let rail = |number: u8| {
            let name = format!("veth{number}");
            let link: Box<dyn Link> = match kind {
                LinkKind::Udp => Box::new(UdpLink::open(&name).unwrap()),
                _ => Box::new(XdpLink::open(&name, &XdpOptions::default()).unwrap()),
            };
            Rail { link, addresses: [false, true].map(|is_v6| address(number, host as u8 + 1, is_v6)).to_vec() }
        };
        Rails::new(vec![rail(0), rail(1)])
    })
}

/// Sends one packet of `len` bytes of payload from host 1 to host 2, whose PSN is `number`.
fn send(link: &mut Rails, hop: Hop, addresses: [IpAddr; 2], number: u32, len: usize) {
    let (identification, source_port) = link.imposed().map_or((7, 0xc123), |i| (i.identification, i.source_port));
    let addresses = Addresses::new(addresses[0], addresses[1]).unwrap();
    let flow = Flow { addresses, source_port, traffic_class: 0, hop_limit: 64, flow_label: 0 };
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(5), Psn::new(number));
    let headers = Headers { bth, extension: Extension::None };
    let fill = |out: &mut [u8]| {
        out.fill(number as u8);
        Ok::<(), std::convert::Infallible>(())
    };
    let Some(buffer) = link.transmit_buffer() else { return };
    let len = headers.write(buffer, &flow, identification, len, fill).unwrap();
    link.transmit(now(), len, hop);
}

/// What of a frame is looked at: its number, its source, and how many bytes of payload it has, all of which are right.
fn look(frame: &Frame) -> (u32, IpAddr, usize) {
    let roce = RoceFrame::parse(frame.bytes()).unwrap();
    assert!(roce.icrc_ok());
    let packet = uroce::wire::Packet::parse(roce.ib).unwrap();
    let number = packet.bth().psn().value();
    let payload = roce.ib.to_vec()[12..].to_vec();
    let payload = &payload[..payload.len() - 4];
    assert!(payload.iter().all(|byte| *byte == number as u8), "the bytes of {number}");
    (number, roce.ip.addresses().source(), payload.len())
}

fn counter(link: &Rails, name: &str) -> u64 {
    link.counters().into_iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Waits until a packet that is sent on a rail again and again arrives there. Returns what arrived before on any.
fn until_it_passes(a: &mut Rails, b: &mut Rails, hop: Hop, addresses: [IpAddr; 2], number: u32) {
    let (start, mut frames) = (Instant::now(), Vec::new());
    loop {
        send(a, hop, addresses, number, 100);
        a.flush(now());
        std::thread::sleep(Duration::from_millis(2));
        b.receive(now(), &mut frames, 64);
        b.flush(now());
        if frames.drain(..).any(|frame| look(&frame) == (number, addresses[0], 100)) {
            return;
        }
        assert!(start.elapsed() < LIMIT, "{} to {}: nothing passes", addresses[0], addresses[1]);
    }
}

#[test]
fn frames_leave_by_the_interface_of_their_source_address_and_arrive_whole() {
    for kind in KINDS {
        let pair = two_cables();
        let [mut a, mut b] = [0, 1].map(|host| open(&pair, host, kind));
        assert_eq!(a.mode().matches('+').count(), 1, "{}", a.mode());
        assert_eq!(a.max_packet_bytes(), 4200, "what both carry");
        for is_v6 in [false, true] {
            let ways = [0, 1].map(|rail| [1, 2].map(|host| address(rail, host, is_v6)));
            let hops = ways.map(|[from, to]| a.hop(from, to).unwrap());
            assert_ne!(hops[0], hops[1]);
            // The neighbours become known.
            hops.iter().zip(ways).for_each(|(hop, way)| until_it_passes(&mut a, &mut b, *hop, way, 99));
            let mut frames = Vec::new();
            std::thread::sleep(Duration::from_millis(20));
            while b.receive(now(), &mut frames, 64) > 0 {
                frames.clear();
            }
            let before = [counter(&b, "rail0_rx_frames"), counter(&b, "rail1_rx_frames")];
            let lengths = [0, 4, 1024, 4096];
            for number in 0..40 {
                let rail = number as usize % 2;
                send(&mut a, hops[rail], ways[rail], number, lengths[number as usize / 2 % 4]);
            }
            a.flush(now());
            let start = Instant::now();
            while frames.len() < 40 {
                b.receive(now(), &mut frames, 64);
                b.flush(now());
                assert!(start.elapsed() < LIMIT, "{} of 40 arrived", frames.len());
            }
            let mut seen: Vec<_> = frames.drain(..).map(|frame| look(&frame)).collect();
            seen.sort_unstable();
            let expected =
                (0..40_u32).map(|number| (number, ways[number as usize % 2][0], lengths[number as usize / 2 % 4]));
            assert_eq!(seen, expected.collect::<Vec<_>>());
            let after = [counter(&b, "rail0_rx_frames"), counter(&b, "rail1_rx_frames")];
            assert_eq!([after[0] - before[0], after[1] - before[1]], [20, 20]);
        }
        // Who takes them in turn pays for no copy, but for those until that is known.
        assert!(counter(&a, "rails_copied") < counter(&a, "rail0_tx_packets"), "{:?}", a.counters());
        assert_eq!(counter(&a, "rails_lost"), 0);
        let stranger = IpAddr::from([192, 0, 2, 1]);
        let own = address(1, 1, false);
        assert_eq!(a.hop(own, stranger), Err(HopError::NoRoute(own, stranger)));
    }
}

/// Our interface, then the peer's: what is sent there meanwhile is lost, the other one works on, and afterwards both do, by the
/// same hops.
#[test]
fn an_interface_that_is_down_loses_its_own_frames_alone_and_works_again_when_it_is_up() {
    for kind in KINDS {
        let pair = two_cables();
        let [mut a, mut b] = [0, 1].map(|host| open(&pair, host, kind));
        let ways = [0, 1].map(|rail| [1, 2].map(|host| address(rail, host, false)));
        let hops = ways.map(|[from, to]| a.hop(from, to).unwrap());
        hops.iter().zip(ways).for_each(|(hop, way)| until_it_passes(&mut a, &mut b, *hop, way, 1));
        for host in [0, 1] {
            pair.ip(host, "link set veth1 down");
            let mut frames = Vec::new();
            std::thread::sleep(Duration::from_millis(20));
            while b.receive(now(), &mut frames, 64) > 0 {
                frames.clear();
            }
            // More than either link has buffers, so that those of the rail that is down run out.
            let mut arrived = 0;
            for number in 0..2000 {
                let rail = number as usize % 2;
                send(&mut a, hops[rail], ways[rail], number, 500);
                if number % 16 == 15 {
                    a.flush(now());
                    std::thread::sleep(Duration::from_micros(200));
                    b.receive(now(), &mut frames, 64);
                    b.flush(now());
                    arrived += frames.drain(..).filter(|frame| look(frame).1 == ways[0][0]).count();
                }
            }
            let start = Instant::now();
            while arrived < 1000 {
                b.receive(now(), &mut frames, 64);
                arrived += frames.drain(..).filter(|frame| look(frame).1 == ways[0][0]).count();
                a.flush(now());
                assert!(start.elapsed() < LIMIT, "{kind:?}, host {host}: {arrived} of 1000 arrived over the other one");
            }
            pair.ip(host, "link set veth1 up");
            until_it_passes(&mut a, &mut b, hops[1], ways[1], 3000 + host as u32);
            assert_eq!(a.hop(ways[1][0], ways[1][1]), Ok(hops[1]));
            until_it_passes(&mut a, &mut b, hops[0], ways[0], 3010 + host as u32);
        }
        let lost = ["tx_no_neighbour", "tx_errors", "rails_lost"];
        let lost: u64 = a.counters().iter().filter(|(name, _)| lost.contains(name)).map(|(_, count)| count).sum();
        assert!(lost > 0, "{:?}", a.counters());
    }
}

/// A device of several interfaces is called after the first, and has its GIDs; the error names the one that is wrong.
#[test]
fn devices_of_several_interfaces_open_and_errors_name_the_bad_one() {
    let pair = two_cables();
    let open = |names: &'static [&'static str], link: LinkKind| {
        pair.within(0, move || OpenOptions::new().device(names[0]).rails(names[1..].iter().copied()).link(link).open())
    };
    for (kind, mode) in KINDS.into_iter().zip(["xdp-native-copy+xdp-native-copy", "udp+udp"]) {
        let context = open(&["veth1", "veth0"], kind).unwrap();
        assert_eq!((context.device().name.as_str(), context.link_mode().as_str()), ("veth1", mode));
        let addresses: Vec<IpAddr> = context.gids().iter().map(|gid| gid.ip()).collect();
        assert!(addresses.contains(&address(1, 1, false)) && !addresses.contains(&address(0, 1, false)));
    }
    let refused = |names, link, words: &[&str]| {
        let text = open(names, link).map(|_| ()).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "no {word:?} in {text}"));
        assert!(!text.contains('\n'), "{text}");
    };
    refused(&["veth0", "nope1"], LinkKind::Xdp, &["nope1", "veth1"]);
    refused(&["veth0", "veth0"], LinkKind::Xdp, &["veth0", "twice"]);
    refused(&["veth0", "lo"], LinkKind::Xdp, &["lo"]);
    pair.ip(0, "link set veth1 down");
    for kind in KINDS {
        refused(&["veth0", "veth1"], kind, &["veth1", "ip link set veth1 up"]);
    }
    const NINE: &[&str] = &["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    refused(NINE, LinkKind::Xdp, &["9", "8"]);
    let error = pair.within(0, || OpenOptions::new().rails(["veth0"]).open());
    assert!(matches!(error, Err(OpenError::NoFirst { rails: 1 })));
}
