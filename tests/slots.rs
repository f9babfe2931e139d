//! Which program of several on one interface gets a packet is decided twice: by the filter in front of their UDP sockets
//! (src/link/udp/sharing/selector.rs), and by the XDP program in front of AF_XDP sockets (xdp/uroce.bpf.c). The kernel runs both
//! here, on the same packets, and they must agree. Needs root.
//!
//! The filter picks among 64 sockets of one port, as the arbiter makes them. The XDP program is asked for each slot in turn
//! (BPF_PROG_TEST_RUN): it takes a packet, or leaves it to the sockets.
#![cfg(all(feature = "xdp", feature = "udp"))]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya::maps::{Array, HashMap, XskMap};
use aya::programs::{TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, sockopt};
use selector::Selector;
use uroce::link::Requests;
use uroce_laboratory::sim::Random;

#[path = "../src/link/udp/sharing/selector.rs"]
#[allow(dead_code, reason = "a part of the library, looked at from outside")]
mod selector;

/// Where that part finds what it uses.
mod link {
    pub use uroce::link::Requests;
}
mod wire {
    pub use uroce::wire::Qpn;
}
const SLOTS: u8 = 64;

const PORT: u16 = 4791;
const XDP_REDIRECT: u32 = 4;

/// A management datagram has 256 bytes after its headers (IBTA 13.4.2).
const MANAGEMENT_BYTES: usize = 12 + 8 + 256;

/// The XDP program wants this much of a management datagram, and leaves what is shorter to the sockets, whose filter wants
/// less of some.
const SHORT_MANAGEMENT_BYTES: usize = 12 + 8 + 24 + 16;

/// Each of our addresses has a group of sockets of its own.
const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(127, 77, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(127, 77, 0, 2)),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// The sockets of one address, and the filter that picks one of them.
struct Group {
    to: SocketAddr,
    sockets: Vec<OwnedFd>,
    sender: OwnedFd,
}

fn udp(address: IpAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket(family, SocketType::DGRAM, None).unwrap()
}

impl Group {
    fn open(address: IpAddr, selector: &Selector) -> Group {
        let mut to = SocketAddr::new(address, 0);
        let mut sockets = Vec::new();
        for _ in 0..SLOTS {
            let socket = udp(address);
            sockopt::set_socket_reuseport(&socket, true).unwrap();
            // The first one finds a free port; uroce's own may be in use.
            rustix::net::bind(&socket, &to).unwrap();
            to = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
            sockets.push(socket);
        }
        selector.attach(sockets[0].as_fd()).unwrap();
        Group { to, sockets, sender: udp(address) }
    }

    /// The slot whose socket gets a datagram. On the loopback it is there when it is sent.
    fn slot_of(&self, datagram: &[u8]) -> u8 {
        rustix::net::sendto(&self.sender, datagram, SendFlags::empty(), &self.to).unwrap();
        let mut buffer = [0; 512];
        let mut got = (0..SLOTS).filter(|slot| {
            let received = rustix::net::recv(&self.sockets[usize::from(*slot)], &mut buffer, RecvFlags::DONTWAIT);
            let is_there = received.is_ok();
            if let Ok((len, _)) = received {
                assert_eq!(&buffer[..len], datagram);
            }
            is_there
        });
        let slot = got.next().expect("one of the sockets gets it");
        assert_eq!(got.next(), None, "one socket gets it");
        slot
    }
}

/// The XDP program as it is when the program of one slot has the AF_XDP socket.
struct Taker {
    ebpf: Ebpf,
    _socket: OwnedFd,
}

fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

impl Taker {
    fn load(slot: u8, listens: &[Requests]) -> Taker {
        // ELF parsers want it aligned, and a vector of its size is.
        let object = include_bytes!(concat!(env!("OUT_DIR"), "/uroce.bpf.o")).to_vec();
        let mut ebpf = EbpfLoader::new().load(&object).unwrap();
        let program: &mut Xdp = ebpf.program_mut("uroce").unwrap().try_into().unwrap();
        program.load().unwrap();
        Array::<_, u32>::try_from(ebpf.map_mut("slot").unwrap()).unwrap().set(0, u32::from(slot), 0).unwrap();
        let mut addresses: HashMap<_, [u8; 16], u8> = HashMap::try_from(ebpf.map_mut("addresses").unwrap()).unwrap();
        ADDRESSES.iter().for_each(|address| addresses.insert(key(*address), 1, 0).unwrap());
        let mut services: HashMap<_, [u8; 24], u8> = HashMap::try_from(ebpf.map_mut("services").unwrap()).unwrap();
        for requests in listens {
            let Requests::For { service_id, address } = requests else { continue };
            let mut service = [0; 24];
            service[..8].copy_from_slice(&service_id.to_be_bytes());
            address.iter().for_each(|address| service[8..].copy_from_slice(&key(*address)));
            services.insert(service, 1, 0).unwrap();
        }
        // No packet goes through it: it only has to be there.
        let socket = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
        XskMap::try_from(ebpf.map_mut("xsks").unwrap()).unwrap().set(0, socket.as_raw_fd(), 0).unwrap();
        Taker { ebpf, _socket: socket }
    }

    fn takes(&self, frame: &[u8]) -> bool {
        let program: &Xdp = self.ebpf.program("uroce").unwrap().try_into().unwrap();
        let run = program.test_run(TestRunOptions { data_in: Some(frame), repeat: 1, ..TestRunOptions::default() });
        run.unwrap().return_value == XDP_REDIRECT
    }
}

/// A frame with this datagram.
fn frame(to: IpAddr, is_tagged: bool, datagram: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if is_tagged {
        frame.extend([0x81, 0, 0, 7]);
    }
    let udp_bytes = (8 + datagram.len()) as u16;
    match to {
        IpAddr::V4(to) => {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + udp_bytes).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1]);
            frame.extend(to.octets());
        }
        IpAddr::V6(to) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(udp_bytes.to_be_bytes());
            frame.extend([17, 64]);
            frame.extend([0xfd; 16]);
            frame.extend(to.octets());
        }
    }
    frame.extend(0xc000_u16.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(udp_bytes.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(datagram);
    frame
}

/// A datagram to some queue pair, or one of the connection manager's: requests mostly for a service that somebody listens for.
/// Some are cut short.
fn datagram(random: &mut Random, services: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..MANAGEMENT_BYTES).map(|_| random.u32() as u8).collect();
    if random.below(3) > 0 {
        bytes[5..8].copy_from_slice(&[0, 0, 1]);
        // REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR (IBTA Table 99).
        let attribute = 0x10 + random.below(11) as u16;
        bytes[36..38].copy_from_slice(&attribute.to_be_bytes());
        if random.below(5) > 0 {
            let service = services[random.below(services.len() as u64) as usize];
            bytes[52..60].copy_from_slice(&service.to_be_bytes());
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(random.below(MANAGEMENT_BYTES as u64) as usize);
    }
    bytes
}

#[test]
fn the_filter_of_sockets_and_the_xdp_program_choose_the_same_slot() {
    const SEED: u64 = 0x51_07;
    let mut random = Random::new(SEED, 0);
    // Services that differ in one half only, at one address or at all; some slots listen for several, others for none.
    let services: Vec<u64> = (0..24).map(|at| 0x0106_0000 + at % 12 + ((at / 12) << 32)).collect();
    let listens: Vec<(Requests, u8)> = services
        .iter()
        .map(|service_id| {
            let address = ADDRESSES.get(random.below(5) as usize).copied();
            (Requests::For { service_id: *service_id, address }, 1 + random.below(40) as u8)
        })
        .collect();
    let unclaimed = 50;
    let groups = ADDRESSES.map(|address| {
        let listeners = listens.iter().filter_map(|(all, slot)| Some((selector::listens_at(all, address)?, *slot)));
        Group::open(address, &Selector { listeners: listeners.collect(), unclaimed })
    });
    let takers: Vec<Taker> = (1..SLOTS)
        .map(|slot| {
            let own: Vec<Requests> = listens.iter().filter(|(_, its)| *its == slot).map(|(all, _)| *all).collect();
            Taker::load(slot, &own)
        })
        .collect();

    // How many of them a slot took, a slot was to have through its socket, and nobody was to have.
    let [mut taken, mut left, mut nobodys] = [0; 3];
    for number in 0..1000 {
        let datagram = datagram(&mut random, &services);
        let group = &groups[random.below(3) as usize];
        let by_filter = group.slot_of(&datagram);
        let frame = frame(group.to.ip(), random.below(3) == 0, &datagram);
        let by_xdp: Vec<u8> = (1..SLOTS).filter(|slot| takers[usize::from(slot - 1)].takes(&frame)).collect();
        let what = format!("packet {number} of seed {SEED:#x}, to {}: {datagram:02x?}", group.to.ip());
        let is_request = datagram.get(5..8) == Some(&[0, 0, 1])
            && datagram.get(36..38).is_some_and(|attribute| [[0, 0x10], [0, 0x17]].iter().any(|one| one == attribute));
        match by_xdp[..] {
            [slot] => {
                assert_eq!(slot, by_filter, "{what}");
                taken += 1;
            }
            // Cut short, or a request that nobody listens for: the kernel has the last word, and that is the filter's.
            [] => {
                let is_short = datagram.len() < SHORT_MANAGEMENT_BYTES;
                let is_unclaimed = is_request && by_filter == unclaimed;
                assert!(by_filter == 0 || is_short || is_unclaimed, "slot {by_filter} by its filter only: {what}");
                nobodys += u32::from(by_filter == 0);
                left += u32::from(by_filter != 0);
            }
            _ => panic!("{by_xdp:?} all take {what}"),
        }
    }
    eprintln!("{taken} packets were taken, {left} left to their sockets, {nobodys} nobody's");
    assert!(taken > 500 && left > 20 && nobodys > 10, "{taken}, {left}, {nobodys}");
}
