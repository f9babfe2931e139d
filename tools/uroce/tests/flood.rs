//! A flood of requests for connections, most of them broken, as fast as a thread can send, and rping beside it, over AF_XDP and
//! as nobody over UDP sockets: rping finishes, every kind of broken message is counted, and the flooded programs stay as small
//! as they were. Ordinarily some tens of thousands, with UROCE_FULL=1 a million.
//!
//! Half of the flood comes in the peer's name, with identifications of its own: a link over UDP sockets, which tells damaged
//! packets by the identifications that a peer uses, still takes the peer's.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rxe_rig::{Netns, VethPair};
use uroce::cm::message::{Message, Request};
use uroce::cm::{IpCmHeader, MAD_BYTES, Mad, PortSpace, ServiceId};
use uroce::wire::{Addresses, Bth, Deth, Extension, Flow, Headers, Opcode, Psn, QKey, Qpn};
use uroce_laboratory::world::connection;

use crate::common::compiled::program;
use crate::common::plays_all;
use crate::common::processes::{memory_kib, program_of, signal};
use crate::common::programs::{Ended, Running, counted, run, run_as_nobody};

const LIMIT: Duration = Duration::from_secs(240);

/// KiB that a flooded program can have more afterwards: 1,024 answers that wait, and the tables of the connection manager.
const GROWTH_KIB: i64 = 4096;

/// Packets of a system call.
const BATCH: usize = 64;

/// Of REQ: the sender's id, the service, the GUID, the queue pair. Of others: both ids.
const LOCAL_ID_AT: usize = 24;
const REMOTE_ID_AT: usize = 28;
const SERVICE_AT: usize = 32;
const GUID_AT: usize = 40;
const QPN_AT: usize = 56;
const ATTRIBUTE_AT: usize = 16;

/// The host that nobody has, in whose name half of the flood comes. The other half comes in the peer's.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 77);

fn request(to: Ipv4Addr) -> [u8; MAD_BYTES] {
    let addresses = Addresses::V4 { source: STRANGER, destination: to };
    let mut private_data = [0; Request::PRIVATE_BYTES];
    private_data[..IpCmHeader::BYTES].copy_from_slice(&IpCmHeader { addresses, source_port: 40000 }.to_bytes());
    let request = Request {
        local_id: 1,
        service_id: ServiceId::of(PortSpace::Tcp, 1),
        ca_guid: 1,
        local_gid: STRANGER.to_ipv6_mapped(),
        remote_gid: to.to_ipv6_mapped(),
        ack_timeout: 14,
        private_data,
        ..connection::request(Qpn::new(2))
    };
    Mad { transaction: 1, message: Message::Request(Box::new(request)) }.to_bytes()
}

/// The datagram of that number: what it holds, and its length. One of ten is right, and finds nobody who listens; one asks
/// for a service that somebody listens for; one has been sent before.
fn crafted(number: u32, right: &[u8; MAD_BYTES], listening: u16) -> ([u8; MAD_BYTES], usize) {
    let mut mad = *right;
    let unique = number.wrapping_mul(0x9e37_79b9) | 1;
    mad[LOCAL_ID_AT..][..4].copy_from_slice(&unique.to_be_bytes());
    mad[GUID_AT..][..4].copy_from_slice(&unique.to_be_bytes());
    mad[QPN_AT..][..3].copy_from_slice(&unique.to_be_bytes()[..3]);
    match number % 10 {
        0 => {}
        1 => mad[SERVICE_AT..][..8].copy_from_slice(&ServiceId::of(PortSpace::Tcp, listening).0.to_be_bytes()),
        2 => mad = *right,
        3 => return (mad, MAD_BYTES - 4 - number as usize / 10 % 228),
        // Base version, class, class version, method: offsets 0 to 3.
        kind @ 4..=7 => mad[kind as usize - 4] ^= 1 + (unique >> 8) as u8 % 254,
        // MRA, REJ, REP, RTU, DREQ, DREP; ids that are somebody else's, if anybody's.
        _ => {
            mad[ATTRIBUTE_AT + 1] = 0x11 + (number / 10 % 6) as u8;
            mad[REMOTE_ID_AT..][..4].copy_from_slice(&unique.rotate_left(16).to_be_bytes());
        }
    }
    (mad, MAD_BYTES)
}

/// A packet from the IP header to the ICRC. Returns its length.
fn write_packet(out: &mut [u8], number: u32, right: &[u8; MAD_BYTES], listening: u16) -> usize {
    let (mad, len) = crafted(number, right, listening);
    let source = if (number / 10).is_multiple_of(2) { STRANGER } else { VethPair::B.ipv4 };
    let flow = Flow {
        addresses: Addresses::V4 { source, destination: VethPair::A.ipv4 },
        source_port: 0xc000 | number as u16,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    let headers = Headers {
        bth: Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(number)),
        extension: Extension::Deth(Deth::new(QKey(0x8001_0000), Qpn::GSI)),
    };
    // The kernel writes the identification of a packet that has none.
    let written = headers.write(out, &flow, 1 | number as u16, len, |payload| {
        payload.copy_from_slice(&mad[..len]);
        Ok::<_, ()>(())
    });
    written.expect("there is room")
}

/// Sends whole IP packets from the calling thread's namespace.
fn raw_socket() -> OwnedFd {
    // SAFETY: the descriptor is nobody else's.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW);
        assert!(socket >= 0, "{}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(socket)
    }
}

/// The game is over when this is dropped, also when something fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends datagrams until `count` were sent and the game is over. Returns how many, and how long that took.
fn flood(count: u64, listening: u16, sent: &AtomicU64, is_over: &AtomicBool) -> (u64, Duration) {
    let (socket, right) = (raw_socket(), request(VethPair::A.ipv4));
    let mut buffers = vec![[0u8; 400]; BATCH];
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut to: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    (to.sin_family, to.sin_addr.s_addr) = (libc::AF_INET as u16, u32::from(VethPair::A.ipv4).to_be());
    let (began, mut number) = (Instant::now(), 0u32);
    while u64::from(number) < count || !is_over.load(Ordering::Relaxed) {
        let mut parts: Vec<libc::iovec> = Vec::with_capacity(BATCH);
        for buffer in &mut buffers {
            let iov_len = write_packet(buffer, number, &right, listening);
            parts.push(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len });
            number += 1;
        }
        let message = |part: &mut libc::iovec| {
            // SAFETY: as above.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_name, message.msg_hdr.msg_namelen) = ((&raw mut to).cast(), size_of_val(&to) as u32);
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
            message
        };
        let mut messages: Vec<libc::mmsghdr> = parts.iter_mut().map(message).collect();
        // SAFETY: all that the messages point to lives until the call returns.
        let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), BATCH as u32, 0) };
        assert!(done > 0, "{}", io::Error::last_os_error());
        sent.fetch_add(done as u64, Ordering::Relaxed);
    }
    (sent.load(Ordering::Relaxed), began.elapsed())
}

/// A server of rping at the flooded host.
fn rping_server(pair: &VethPair, start: fn(&Netns, &str) -> Running, link: &str, count: u32) -> Running {
    let mut server = start(&pair.a, &format!("--link {link} --trace -- rping -s -p 7001 -C {count} -V"));
    server.prints(&["rdma_listen: done"], LIMIT).unwrap();
    server
}

/// Its client, to the end of both. Returns the server's, and the client's time.
fn rping(
    pair: &VethPair,
    start: fn(&Netns, &str) -> Running,
    link: &str,
    server: Running,
    count: u32,
) -> (Ended, Duration) {
    let began = Instant::now();
    let line = format!("--link {link} --trace -- rping -c -a {} -p 7001 -C {count} -V", VethPair::A.ipv4);
    start(&pair.b, &line).end_within(LIMIT).unwrap().succeeded();
    let took = began.elapsed();
    (server.end_within(LIMIT).unwrap().succeeded(), took)
}

fn rping_finishes(start: fn(&Netns, &str) -> Running, link: &str) {
    let pair = VethPair::create(4500).unwrap();
    let (count, turns) = if plays_all() { (1_000_000, 10_000) } else { (50_000, 500) };
    let (_, alone) = rping(&pair, start, link, rping_server(&pair, start, link, turns), turns);
    let server = rping_server(&pair, start, link, turns);
    // Another program on the device, which listens and never decides.
    let line = format!("{} {} serve", program("steady").display(), VethPair::A.ipv4);
    let mut bystander = start(&pair.a, &format!("--link {link} --trace -- {line}"));
    bystander.prints(&["listens"], LIMIT).unwrap();
    let flooded = [program_of(&server), program_of(&bystander)];
    let before = flooded.map(memory_kib);
    let (sent, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let flood = scope.spawn(|| pair.b.run(|| flood(count, 7470, &sent, &is_over)));
        while sent.load(Ordering::Relaxed) < count / 10 && !flood.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let grown: Vec<i64> = flooded.into_iter().zip(before).map(|(one, kib)| memory_kib(one) - kib).collect();
        let (ended, took) = rping(&pair, start, link, server, turns);
        drop(over);
        let (sent, lasted) = flood.join().unwrap();
        let late = memory_kib(flooded[1]) - before[1];
        let rate = sent as f64 / lasted.as_secs_f64() / 1e3;
        eprintln!("{link}: {sent} datagrams, {rate:.0} thousand a second; rping -C {turns} {took:?}, alone {alone:?}");
        eprintln!("{link}: {grown:?} KiB more after a tenth, the bystander {late} KiB more in the end");
        signal(flooded[1], Signal::TERM);
        let bystander = bystander.end_within(LIMIT).unwrap().succeeded();
        let names = ["cm_received", "cm_malformed", "cm_no_listener", "cm_stray", "cm_duplicate", "cm_answer_dropped"];
        eprintln!("{link}: {:?}", names.map(|name| (name, counted(&ended.stderr, name).unwrap_or(0))));
        let names = ["cm_received", "cm_backlog_full", "rx_identification_refused", "rx_dropped_by_kernel"];
        eprintln!(
            "{link}: the bystander {:?}",
            names.map(|name| (name, counted(&bystander.stderr, name).unwrap_or(0)))
        );
        for (name, of) in [("cm_malformed", &ended), ("cm_no_listener", &ended), ("cm_backlog_full", &bystander)] {
            assert!(counted(&of.stderr, name).unwrap_or(0) > 100, "{name}: {of:#?}");
        }
        assert!(grown.into_iter().chain([late]).all(|kib| kib < GROWTH_KIB), "KiB");
    });
}

#[test]
fn rping_finishes_in_a_flood_of_requests_over_af_xdp() {
    rping_finishes(run, "xdp");
}

#[test]
fn rping_finishes_in_a_flood_of_requests_over_udp_sockets() {
    rping_finishes(run_as_nobody, "udp");
}
