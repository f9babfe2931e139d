//! The link over UDP sockets: what it makes of real datagrams, its own addresses, and frames that are not RoCE.
//!
//! Needs root, for namespaces only.
#![allow(clippy::disallowed_methods, reason = "two real hosts are on the wall clock")]

mod common;

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::hosts::{Pair, PairOptions};
use uroce::frame::Frame;
use uroce::link::udp::{UdpLink, UdpOffload, UdpOpenError};
use uroce::link::{HopError, Imposed, Link};
use uroce::time;
use uroce::verbs::{
    Access, Capabilities, ConnectOptions, Data, LinkKind, OpenOptions, PathMtu, Psn, QueuePairOptions, SendOperation,
    SendRequest, Service, Status,
};
use uroce::wire::{Addresses, Bth, Extension, Flow, Headers, IpHeader, Opcode, Packet, Qpn, RoceFrame};

const LIMIT: Duration = Duration::from_secs(10);

/// Bytes of 10.7.0.N and fd07::N, of the host with that number.
fn addresses(is_v6: bool) -> [IpAddr; 2] {
    [1, 2].map(|n| if is_v6 { format!("fd07::{n}").parse().unwrap() } else { IpAddr::from([10, 7, 0, n]) })
}

/// A packet with the right ICRC, as an endpoint writes it.
fn packet(out: &mut [u8], flow: &Flow, identification: u16, payload: &[u8]) -> usize {
    packet_to(Qpn::new(5), out, flow, identification, payload)
}

fn packet_to(to: Qpn, out: &mut [u8], flow: &Flow, identification: u16, payload: &[u8]) -> usize {
    let headers = Headers { bth: Bth::new(Opcode::RC_SEND_ONLY, to, Psn::new(7)), extension: Extension::None };
    let fill = |out: &mut [u8]| {
        out.copy_from_slice(payload);
        Ok::<(), std::convert::Infallible>(())
    };
    headers.write(out, flow, identification, payload.len(), fill).unwrap()
}

fn flow(addresses: [IpAddr; 2], source_port: u16) -> Flow {
    let addresses = Addresses::new(addresses[0], addresses[1]).unwrap();
    Flow { addresses, source_port, traffic_class: 0x2a, hop_limit: 9, flow_label: 0 }
}

/// Waits for `count` frames, and a little for more.
fn receive(link: &mut UdpLink, count: usize) -> Vec<Frame> {
    let (start, mut frames) = (Instant::now(), Vec::new());
    while frames.len() < count && start.elapsed() < LIMIT {
        link.receive(time::Instant::ZERO, &mut frames, 64);
    }
    std::thread::sleep(Duration::from_millis(5));
    link.receive(time::Instant::ZERO, &mut frames, 64);
    frames
}

fn counter(link: &UdpLink, name: &str) -> u64 {
    link.counters().into_iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Of both families and all lengths, in batches: every field that a socket can show arrives, and the ICRC is right.
#[test]
fn packets_arrive_with_the_headers_they_were_sent_with() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    let [mut a, mut b] = [0, 1].map(|host| pair.within(host, || UdpLink::open("veth0").unwrap()));
    let Imposed { identification, source_port } = a.imposed().unwrap();
    assert_eq!(a.max_packet_bytes(), 4224);
    for is_v6 in [false, true] {
        let flow = flow(addresses(is_v6), source_port);
        let [source, destination] = addresses(is_v6);
        let hop = a.hop(source, destination).unwrap();
        assert_eq!(a.hop(source, destination), Ok(hop), "the same again");
        let lengths = [0, 1, 4, 256, 1024, 2048, 4096];
        for len in lengths {
            let len = packet(a.transmit_buffer().unwrap(), &flow, identification, &vec![len as u8; len]);
            a.transmit(time::Instant::ZERO, len, hop);
        }
        a.flush(time::Instant::ZERO);
        let frames = receive(&mut b, lengths.len());
        assert_eq!(frames.len(), lengths.len());
        for (frame, len) in frames.iter().zip(lengths) {
            let roce = RoceFrame::parse(frame.bytes()).unwrap();
            assert!(roce.icrc_ok() && roce.ip.checksum_ok(), "{len} bytes");
            assert_eq!(roce.flow(), Flow { flow_label: roce.flow().flow_label, ..flow });
            assert_eq!(roce.ib.len(), 12 + len.next_multiple_of(4) + 4);
        }
    }
    for (from, to) in [(&a, "tx_frames"), (&b, "rx_frames")] {
        assert_eq!(counter(from, to), 14);
    }
}

/// How packets in a row are sent: of which length, in which batch, and how many runs and packets in runs that makes.
struct Row {
    lengths: Vec<usize>,
    qpns: fn(usize) -> u32,
    runs: [u64; 2],
}

/// Messages of several packets, single ones between them, and other queue pairs': each packet arrives once, in order,
/// with a right ICRC, cut apart by the kernel of the sender, of the receiver, or by nobody. The ICRC of IPv4 packets
/// covers the number that the kernel gave each.
#[test]
fn runs_arrive_as_the_packets_that_they_are_made_of() {
    let one: fn(usize) -> u32 = |_| 5;
    // A message of 64 KiB: its first packet has a longer header, so only one can follow it in its run. Then what may not be
    // longer than a datagram of 64 KiB.
    let message = [&[4112][..], &[4096; 15]].concat();
    let rows = [
        Row { lengths: message.clone(), qpns: one, runs: [2, 16] },
        Row { lengths: [&message[..], &message[..]].concat(), qpns: one, runs: [4, 32] },
        Row { lengths: vec![1024; 64], qpns: one, runs: [2, 64] },
        Row { lengths: vec![256; 64], qpns: one, runs: [1, 64] },
        Row { lengths: vec![4, 4, 4, 0, 4, 4, 8, 8, 4, 8], qpns: one, runs: [3, 9] },
        Row { lengths: vec![512; 12], qpns: |at| (at as u32 / 4) << 12 | 7, runs: [3, 12] },
        Row { lengths: vec![512; 12], qpns: |at| 5 + at as u32 % 2, runs: [0, 0] },
    ];
    for offloads_checksums in [true, false] {
        let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
        if !offloads_checksums {
            let (ok, text) = pair.exec(0, "ethtool -K veth0 tx off");
            assert!(ok, "{text}");
        }
        for [from, to] in [UdpOffload::All, UdpOffload::Gso].map(|to| [UdpOffload::All, to]) {
            let [mut a, mut b] = [(0, from), (1, to)]
                .map(|(host, how)| pair.within(host, move || UdpLink::open_with("veth0", how).unwrap()));
            for (row, is_v6) in rows.iter().flat_map(|row| [(row, false), (row, true)]) {
                let received = counter(&b, "rx_run_frames");
                let before = ["tx_runs", "tx_run_frames"].map(|name| counter(&a, name));
                send_and_check(&mut a, &mut b, row, is_v6);
                let after = ["tx_runs", "tx_run_frames"].map(|name| counter(&a, name));
                assert_eq!([0, 1].map(|at| after[at] - before[at]), row.runs, "{:?}", row.lengths);
                let is_whole = offloads_checksums && to == UdpOffload::All;
                let received = counter(&b, "rx_run_frames") - received;
                assert_eq!(received, if is_whole { row.runs[1] } else { 0 }, "{:?}", row.lengths);
            }
            assert_eq!((counter(&a, "tx_runs_refused"), counter(&a, "tx_errors")), (0, 0));
        }
    }
}

fn send_and_check(a: &mut UdpLink, b: &mut UdpLink, row: &Row, is_v6: bool) {
    queue(a, row, is_v6);
    a.flush(time::Instant::ZERO);
    check(&receive(b, row.lengths.len()), row);
}

fn queue(link: &mut UdpLink, row: &Row, is_v6: bool) {
    let Imposed { identification, source_port } = link.imposed().unwrap();
    let flow = flow(addresses(is_v6), source_port);
    let [source, destination] = addresses(is_v6);
    let hop = link.hop(source, destination).unwrap();
    for (at, len) in row.lengths.iter().enumerate() {
        let payload = vec![at as u8; *len];
        let to = Qpn::new((row.qpns)(at));
        let len = packet_to(to, link.transmit_buffer().unwrap(), &flow, identification, &payload);
        link.transmit(time::Instant::ZERO, len, hop);
    }
}

fn check(frames: &[Frame], row: &Row) {
    assert_eq!(frames.len(), row.lengths.len());
    for (at, (frame, len)) in frames.iter().zip(&row.lengths).enumerate() {
        let roce = RoceFrame::parse(frame.bytes()).unwrap();
        assert!(roce.icrc_ok() && roce.ip.checksum_ok(), "packet {at} of {len} bytes");
        let packet = Packet::parse(roce.ib).unwrap();
        assert_eq!(packet.bth().destination(), Qpn::new((row.qpns)(at)));
        assert!(packet.payload().len() == *len && packet.payload().to_vec().iter().all(|byte| *byte == at as u8));
    }
}

/// Messages of sixteen packets, of which fifteen fill a run: the sixteenth waits for the next message, and begins a run with it.
#[test]
fn what_does_not_fill_a_run_goes_on_with_the_next_message() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    let [mut a, mut b] = [0, 1].map(|host| pair.within(host, || UdpLink::open("veth0").unwrap()));
    let message = Row { lengths: vec![4112; 16], qpns: |_| 5, runs: [1, 15] };
    let end = Row { lengths: vec![4112, 8], ..message };
    for (is_v6, before) in [(false, 0), (true, 4)] {
        let mut kept = Vec::new();
        let mut send = |a: &mut UdpLink, row: &Row| {
            queue(a, row, is_v6);
            kept.push(a.flush_whole_runs(time::Instant::ZERO));
        };
        send(&mut a, &message);
        let mut frames = receive(&mut b, 15);
        assert_eq!((frames.len(), counter(&a, "tx_runs")), (15, before + 1));
        send(&mut a, &message);
        frames.extend(receive(&mut b, 15));
        check(&frames.drain(..16).collect::<Vec<_>>(), &message);
        // What is shorter ends a run.
        send(&mut a, &end);
        frames.extend(receive(&mut b, 4));
        check(&frames.drain(..16).collect::<Vec<_>>(), &message);
        check(&frames, &end);
        send(&mut a, &message);
        a.flush(time::Instant::ZERO);
        check(&receive(&mut b, 16), &message);
        assert_eq!(kept, [1, 2, 0, 1]);
        assert_eq!(counter(&a, "tx_runs"), before + 4);
    }
}

#[test]
fn what_exceeds_a_step_waits_for_the_next() {
    let pair = Pair::new(PairOptions::default());
    let [mut a, mut b] = [0, 1].map(|host| pair.within(host, || UdpLink::open("veth0").unwrap()));
    let Imposed { identification, source_port } = a.imposed().unwrap();
    let [source, destination] = addresses(true);
    let (flow, hop) = (flow([source, destination], source_port), a.hop(source, destination).unwrap());
    let mut count = 0;
    for round in 0..30 {
        for at in 0..40 {
            let payload = [round, at, 0, 0];
            let len = packet(a.transmit_buffer().unwrap(), &flow, identification, &payload);
            a.transmit(time::Instant::ZERO, len, hop);
        }
        a.flush(time::Instant::ZERO);
        let (start, mut frames) = (Instant::now(), Vec::new());
        while frames.len() < 40 && start.elapsed() < LIMIT {
            let came = b.receive(time::Instant::ZERO, &mut frames, 7);
            assert!(came <= 7);
            let waits = (frames.len() < 40 && came > 0).then_some(time::Instant::ZERO);
            assert_eq!(b.poll_timeout(), waits, "{} are here", frames.len());
        }
        for (at, frame) in frames.iter().enumerate() {
            let roce = RoceFrame::parse(frame.bytes()).unwrap();
            assert_eq!(Packet::parse(roce.ib).unwrap().payload().to_vec(), [round, at as u8, 0, 0]);
        }
        count += frames.len();
    }
    // As many buffers as there are, many times over: each came back.
    assert_eq!((count, counter(&b, "rx_runs")), (30 * 40, 30));
}

/// Runs as nobody of ours sends them: of more packets, of packets that are too long, and of ones that are none.
#[test]
fn strange_runs_do_no_harm() {
    let pair = Pair::new(PairOptions { mtu: 9000, ..PairOptions::default() });
    let mut b = pair.within(1, || UdpLink::open("veth0").unwrap());
    let socket = pair.within(0, || UdpSocket::bind("10.7.0.1:6000").unwrap());
    let flow = flow(addresses(false), 6000);
    let send = |packet_bytes: usize, datagram: &[u8]| {
        let value = packet_bytes as libc::c_int;
        // SAFETY: the value is an int and lives through the call.
        let set = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
            libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const value).cast(), 4)
        };
        assert_eq!(set, 0);
        socket.send_to(datagram, "10.7.0.2:4791").map(|_| ())
    };
    let mut packets = Vec::new();
    for identification in 0..128 {
        let mut bytes = [0; 64];
        let len = packet(&mut bytes, &flow, identification, &[identification as u8; 4]);
        packets.extend(&bytes[28..len]);
    }
    // Since Linux 6.9; before, 64 are the most.
    let (all, many) =
        if send(20, &packets).is_ok() { (128, true) } else { (64, send(20, &packets[..64 * 20]).is_ok()) };
    assert!(many);
    let frames = receive(&mut b, all);
    assert_eq!((frames.len(), counter(&b, "rx_runs")), (all, 1));
    for (at, frame) in frames.iter().enumerate() {
        let roce = RoceFrame::parse(frame.bytes()).unwrap();
        assert!(roce.icrc_ok() && Packet::parse(roce.ib).unwrap().payload().to_vec() == [at as u8; 4], "packet {at}");
    }
    send(5000, &[1; 20_000]).unwrap();
    assert_eq!((receive(&mut b, 0).len(), counter(&b, "rx_too_long")), (0, 4));
    for (packet_bytes, len) in [(1, 60), (7, 100), (12, 60), (15, 200), (16, 70), (4224, 60_000)] {
        send(packet_bytes, &vec![0x2a; len]).unwrap();
        let frames = receive(&mut b, len.div_ceil(packet_bytes));
        assert_eq!(frames.len(), len.div_ceil(packet_bytes));
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().skip(14 + 28).to_vec()).collect();
        assert!(bytes.len() == len && bytes.iter().all(|byte| *byte == 0x2a));
        assert!(frames.iter().all(|frame| RoceFrame::parse(frame.bytes()).is_ok_and(|roce| !roce.icrc_ok())));
    }
}

/// The arbiter of programs that share the addresses ends runs while some wait in the socket: the kernel does not tell of
/// those any more, and they are received all the same.
#[test]
fn runs_that_wait_when_runs_end_are_received() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    let [mut a, mut b] = [0, 1].map(|host| pair.within(host, || UdpLink::open("veth0").unwrap()));
    let Imposed { identification, source_port } = a.imposed().unwrap();
    for is_v6 in [false, true] {
        let [source, destination] = addresses(is_v6);
        let (flow, hop) = (flow([source, destination], source_port), a.hop(source, destination).unwrap());
        let send_runs = |a: &mut UdpLink| {
            for len in [&[4112][..], &[4096; 15], &[4112], &[4096; 14], &[100]].concat() {
                let len = packet(a.transmit_buffer().unwrap(), &flow, identification, &vec![7; len]);
                a.transmit(time::Instant::ZERO, len, hop);
            }
            a.flush(time::Instant::ZERO);
        };
        switch_runs(&b, true);
        send_runs(&mut a);
        assert_eq!(receive(&mut b, 32).len(), 32);
        send_runs(&mut a);
        std::thread::sleep(Duration::from_millis(20));
        switch_runs(&b, false);
        let frames = receive(&mut b, 32);
        assert!(frames.len() == 32 && frames.iter().all(|frame| RoceFrame::parse(frame.bytes()).unwrap().icrc_ok()));
    }
}

fn switch_runs(link: &UdpLink, runs: bool) {
    let value = libc::c_int::from(runs);
    for socket in link.poll_fds() {
        // SAFETY: the value is an int and lives through the call. What is no UDP socket refuses.
        unsafe { libc::setsockopt(socket, libc::SOL_UDP, libc::UDP_GRO, (&raw const value).cast(), 4) };
    }
}

/// A receiver whose interface merges what arrives packet by packet, as NICs have it: runs come out again, and only runs.
#[test]
fn packets_that_the_receiving_kernel_merges_are_taken_apart() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    for (host, how) in [(0, "tx off"), (1, "gro on")] {
        let (ok, text) = pair.exec(host, &format!("ethtool -K veth0 {how}"));
        assert!(ok, "{text}");
    }
    let [mut a, mut b] = [0, 1].map(|host| pair.within(host, || UdpLink::open("veth0").unwrap()));
    let message = [&[4112][..], &[4096; 15]].concat();
    let qpns: [fn(usize) -> u32; 2] = [|_| 5, |at| 5 + (at as u32) / 4];
    for (row, is_v6) in qpns.into_iter().flat_map(|qpns| [(qpns, false), (qpns, true)]) {
        send_and_check(&mut a, &mut b, &Row { lengths: message.clone(), qpns: row, runs: [0, 0] }, is_v6);
        send_and_check(&mut a, &mut b, &Row { lengths: vec![1024; 64], qpns: row, runs: [0, 0] }, is_v6);
    }
    assert!(counter(&b, "rx_runs") > 0, "{:?}", b.counters());
}

/// A kernel that takes no runs (here: because checksums are switched off again) has them sent singly from then on, and
/// loses none.
#[test]
fn what_the_kernel_refuses_as_a_run_is_sent_singly() {
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    let [mut a, mut b] = [0, 1].map(|host| pair.within(host, || UdpLink::open("veth0").unwrap()));
    let single = |lengths| Row { lengths, qpns: |_| 5, runs: [0, 0] };
    for is_v6 in [false, true] {
        let before = counter(&a, "tx_runs_refused");
        refuse_runs(a.poll_fds(), is_v6);
        send_and_check(&mut a, &mut b, &single(vec![700; 40]), is_v6);
        assert_eq!(counter(&a, "tx_runs_refused"), before + 1, "of one run");
        send_and_check(&mut a, &mut b, &single(vec![700; 40]), is_v6);
        assert_eq!((counter(&a, "tx_runs_refused"), counter(&a, "tx_runs")), (before + 1, 0));
    }
}

/// Switches the checksum off in the sockets of one family, without which the kernel takes no runs.
fn refuse_runs(sockets: Vec<std::os::fd::RawFd>, is_v6: bool) {
    // From linux/udp.h.
    const UDP_NO_CHECK6_TX: libc::c_int = 101;
    let (level, option) =
        if is_v6 { (libc::IPPROTO_UDP, UDP_NO_CHECK6_TX) } else { (libc::SOL_SOCKET, libc::SO_NO_CHECK) };
    let on: libc::c_int = 1;
    for socket in sockets {
        // SAFETY: the value is an int and lives through the call. Descriptors of the other family refuse, or take no harm.
        unsafe { libc::setsockopt(socket, level, option, (&raw const on).cast(), 4) };
    }
}

/// A peer whose IPv4 identifications count, as rxe's do: each is found. Any flipped bit that the ICRC covers makes it
/// wrong, and what is no packet at all does no harm.
#[test]
fn identifications_are_found_and_damage_is_too() {
    let pair = Pair::new(PairOptions::default());
    let mut b = pair.within(1, || UdpLink::open("veth0").unwrap());
    // Datagrams whose ICRC is made for other identifications than the kernel's: they are not seen anyway.
    let socket = pair.within(0, || UdpSocket::bind("10.7.0.1:6000").unwrap());
    let flow = flow(addresses(false), 6000);
    let mut bytes = [0; 2048];
    let mut send = |identification: u16, payload: &[u8], damage: Option<usize>| {
        let len = packet(&mut bytes, &flow, identification, payload);
        let datagram = &mut bytes[28..len];
        if let Some(bit) = damage {
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        socket.send_to(datagram, "10.7.0.2:4791").unwrap();
    };
    for identification in (65_400..=u16::MAX).chain(0..100) {
        send(identification, &[identification as u8; 100], None);
        let frames = receive_one(&mut b);
        let roce = RoceFrame::parse(frames.bytes()).unwrap();
        assert_eq!((roce.icrc_ok(), roce.ip.identification()), (true, Some(identification)));
        assert!(matches!(&roce.ip, IpHeader::V4(_)) && roce.ip.checksum_ok());
    }
    for bit in (0..8 * 116).step_by(7).filter(|bit| bit / 8 != 4) {
        send(100, &[7; 100], Some(bit));
        let frame = receive_one(&mut b);
        assert!(!RoceFrame::parse(frame.bytes()).unwrap().icrc_ok(), "bit {bit}");
    }
    // Far from the count: not believed, once.
    send(30_000, &[1; 8], None);
    send(30_001, &[2; 8], None);
    let frames = receive(&mut b, 1);
    assert_eq!((frames.len(), counter(&b, "rx_identification_refused")), (1, 1));
    for len in [0, 1, 3, 4, 15, 16] {
        socket.send_to(&vec![0xff; len], "10.7.0.2:4791").unwrap();
        let frame = receive_one(&mut b);
        assert!(RoceFrame::parse(frame.bytes()).is_ok_and(|roce| !roce.icrc_ok()), "{len} bytes");
    }
    socket.send_to(&[0; 9000], "10.7.0.2:4791").unwrap();
    assert_eq!((receive(&mut b, 0).len(), counter(&b, "rx_too_long")), (0, 1));
}

/// Twice as many peers as a link remembers come and go; one is sent to all the while, another one only before and after. What is
/// sent to a peer arrives there, and at nobody else.
#[test]
fn peers_that_come_and_go_are_without_end_and_those_that_stay_are_reached() {
    /// What a link remembers.
    const HOPS: u32 = 65_536;
    let address = |number: u32| IpAddr::from((0x7f01_0000 + number).to_be_bytes());
    let own = IpAddr::from([127, 0, 0, 1]);
    let pair = Pair::new(PairOptions::default());
    pair.ip(0, "link set lo up");
    let mut link = pair.within(0, || UdpLink::open("lo").unwrap());
    let peers = [0, 1, HOPS, HOPS + 1, 2 * HOPS - 1, 2 * HOPS].map(|number| {
        let socket = pair.within(0, move || UdpSocket::bind((address(number), 4791)).unwrap());
        socket.set_nonblocking(true).unwrap();
        (number, socket)
    });
    let imposed = link.imposed().unwrap();
    // Sends to a peer, and looks who received it.
    let reach = |link: &mut UdpLink, number: u32, hop| {
        let flow = flow([own, address(number)], imposed.source_port);
        let len = packet(link.transmit_buffer().unwrap(), &flow, imposed.identification, &number.to_be_bytes());
        link.transmit(time::Instant::ZERO, len, hop);
        link.flush(time::Instant::ZERO);
        for (peer, socket) in &peers {
            let mut datagram = [0; 64];
            match socket.recv(&mut datagram) {
                Ok(_) => assert_eq!((number, &datagram[12..16]), (*peer, &number.to_be_bytes()[..])),
                Err(error) => assert!(error.kind() == std::io::ErrorKind::WouldBlock && number != *peer, "{error}"),
            }
        }
    };
    let [busy, idle] = [0, 1].map(|number| link.hop(own, address(number)).unwrap());
    reach(&mut link, 1, idle);
    for number in 2..=2 * HOPS {
        let hop = link.hop(own, address(number)).unwrap_or_else(|error| panic!("peer {number}: {error}"));
        if peers.iter().any(|(peer, _)| *peer == number) {
            reach(&mut link, number, hop);
        }
        if number % 1000 == 0 {
            reach(&mut link, 0, busy);
        }
    }
    assert_eq!(link.hop(own, address(0)), Ok(busy), "it was in use");
    (0..2).for_each(|_| reach(&mut link, 1, idle));
    assert_ne!(link.hop(own, address(1)), Ok(idle), "it was forgotten");
    assert_eq!(counter(&link, "tx_errors"), 0);
}

/// Two devices of the library on one loopback, each of one address: a WRITE from one to the other.
#[test]
fn two_addresses_of_a_loopback_are_two_devices() {
    let pair = Pair::new(PairOptions::default());
    let [a, b] = ["127.0.0.2", "127.7.7.7"].map(|address| {
        let context = pair.within(0, move || OpenOptions::new().device(address).open().unwrap());
        let gids: Vec<IpAddr> = context.gids().iter().map(|gid| gid.ip()).collect();
        assert_eq!((gids, context.device().name.as_str()), (vec![address.parse().unwrap()], "lo"));
        (context.link_mode(), context)
    });
    assert_eq!((a.0.as_str(), b.0.as_str()), ("udp", "udp"));
    let taken = pair.within(0, || OpenOptions::new().device("127.0.0.2").open().map(|_| ()).unwrap_err());
    assert!(taken.to_string().contains("UDP port 4791 of 127.0.0.2"), "{taken}");
    let beside = pair.within(0, || OpenOptions::new().device("lo").open().map(|_| ()));
    assert!(beside.is_ok(), "it has 127.0.0.1 and ::1");
    let pds = [&a, &b].map(|(_, context)| context.allocate_pd());
    let queues = [&a, &b].map(|(_, context)| context.create_completion_queue(16));
    let [from, to] = [0, 1].map(|at| {
        let region = pds[at].allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        (region, pds[at].create_queue_pair(&QueuePairOptions::new(Service::Rc, &queues[at])).unwrap())
    });
    from.1.connect(&to.1.local()).unwrap();
    to.1.connect(&from.1.local()).unwrap();
    from.0.memory().write(0, b"by address");
    let write = SendOperation::Write(to.0.remote(0));
    from.1.post_send(SendRequest::new(1, write, from.0.sge(0, 10).into())).unwrap();
    let start = Instant::now();
    let done = loop {
        match queues[0].poll() {
            Some(done) => break done,
            None => assert!(start.elapsed() < LIMIT, "no completion"),
        }
    };
    assert_eq!((done.status, to.0.memory().to_vec(0, 10).as_slice()), (Status::Success, &b"by address"[..]));
}

fn receive_one(link: &mut UdpLink) -> Frame {
    let (start, mut frames) = (Instant::now(), Vec::new());
    while frames.is_empty() {
        assert!(start.elapsed() < LIMIT, "nothing arrives");
        link.receive(time::Instant::ZERO, &mut frames, 1);
    }
    frames.pop().unwrap()
}

#[test]
fn what_cannot_be_opened_or_reached_is_said() {
    let pair = Pair::new(PairOptions::default());
    let open = |name: &'static str| pair.within(0, move || UdpLink::open(name).map(|_| ()));
    assert!(matches!(open("nope0"), Err(UdpOpenError::Device(_))));
    let mut link = pair.within(0, || UdpLink::open("veth0").unwrap());
    let taken = open("veth0").unwrap_err();
    assert!(matches!(taken, UdpOpenError::Taken { .. }) && taken.to_string().contains(&std::process::id().to_string()));
    let [own, peer] = addresses(false);
    let nowhere = IpAddr::from([192, 0, 2, 1]);
    assert_eq!(link.hop(own, nowhere), Err(HopError::NoRoute(own, nowhere)));
    assert_eq!(link.hop(peer, own), Err(HopError::NoRoute(peer, own)), "not an address of ours");
    drop(link);
    pair.ip(0, "addr flush dev veth0");
    let error = open("veth0").unwrap_err();
    assert!(matches!(error, UdpOpenError::NoAddress { .. }) && error.to_string().contains("ip address add"), "{error}");
    pair.ip(0, "link set veth0 down");
    assert!(matches!(open("veth0"), Err(UdpOpenError::Down { .. })));
}

/// Waits until the kernel has given the interface its link-local address, which it does some time after it is up.
fn wait_for_link_local(pair: &Pair, host: usize) {
    let start = Instant::now();
    loop {
        let (_, said) = pair.exec(host, "ip -6 address show dev veth0 scope link");
        if said.contains("fe80") && !said.contains("tentative") {
            return;
        }
        assert!(start.elapsed() < LIMIT, "no link-local address: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// While the kernel asks the network whether somebody else has an IPv6 address, sockets cannot be bound to it: the link is opened
/// without it, and one that is opened later has it.
#[test]
fn a_tentative_address_is_left_out_until_it_is_confirmed() {
    let pair = Pair::new(PairOptions::default());
    let (ok, text) = pair.exec(0, "sysctl -qw net.ipv6.conf.veth0.accept_dad=1 net.ipv6.conf.veth0.dad_transmits=3");
    assert!(ok, "{text}");
    pair.ip(0, "addr add fd07::5/64 dev veth0");
    let [v4, v6] = [false, true].map(|is_v6| addresses(is_v6)[1]);
    let tentative: IpAddr = "fd07::5".parse().unwrap();
    let hops = move || {
        let mut link = UdpLink::open("veth0").unwrap();
        let own = IpAddr::from([10, 7, 0, 1]);
        (link.hop(own, v4).is_ok(), link.hop(tentative, v6))
    };
    assert_eq!(pair.within(0, hops), (true, Err(HopError::NoRoute(tentative, v6))), "three seconds of asking");
    let start = Instant::now();
    while pair.within(0, hops).1.is_err() {
        assert!(start.elapsed() < LIMIT, "it is never there");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Queue pairs of one program on one device reach each other: on the loopback and on an interface's own address.
#[test]
fn queue_pairs_of_one_program_reach_each_other() {
    let pair = Pair::new(PairOptions::default());
    wait_for_link_local(&pair, 0);
    for (device, mtu) in [("lo", PathMtu::Mtu4096), ("veth0", PathMtu::Mtu1024)] {
        let context = pair.within(0, move || OpenOptions::new().device(device).link(LinkKind::Udp).open().unwrap());
        assert_eq!((context.link_mode().as_str(), context.active_mtu()), ("udp", mtu));
        for index in 0..context.gids().len() {
            let pd = context.allocate_pd();
            let region = pd.allocate_region(20_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
            let cq = context.create_completion_queue(16);
            let capabilities = Capabilities { max_send_requests: 4, max_receive_requests: 4 };
            let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
            let qps = [(); 2].map(|()| pd.create_queue_pair(&options).unwrap());
            let options = ConnectOptions::new().gid_index(index);
            for (qp, peer) in [(&qps[0], &qps[1]), (&qps[1], &qps[0])] {
                qp.connect_with(&peer.local_with(&options).unwrap(), &options).unwrap();
            }
            region.memory().write(0, &[index as u8 + 1; 10_000]);
            let data = Data::Sges([region.sge(0, 10_000)].into_iter().collect());
            let write = SendOperation::Write(region.remote(10_000));
            qps[0].post_send(SendRequest::new(1, write, data)).unwrap();
            let start = Instant::now();
            let done = loop {
                if let Some(done) = cq.poll() {
                    break done;
                }
                assert!(start.elapsed() < LIMIT, "no completion on {device} GID {index}");
            };
            assert_eq!(done.status, Status::Success);
            assert_eq!(region.memory().to_vec(10_000, 10_000), [index as u8 + 1; 10_000]);
        }
    }
}
