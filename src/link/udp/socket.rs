//! A UDP socket on port 4791 and one of our addresses: batches of datagrams, and the fields of their IP headers.

use std::cell::Cell;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::SOCKET_BUFFER_BYTES;
use crate::wire::ROCE_PORT;

/// Upper bound on the packets of one system call.
pub(super) const BATCH: usize = 64;

/// Room for control messages, in bytes: traffic class, hop limit, flow label, and length of a run's packets, each at most
/// 24.
const CONTROL_BYTES: usize = 96;

// Not in the libc crate for this target; linux/udp.h and linux/in6.h.
const UDP_NO_CHECK6_TX: libc::c_int = 101;
const UDP_NO_CHECK6_RX: libc::c_int = 102;
const IPV6_FLOWINFO: libc::c_int = 11;
const IP_MULTICAST_ALL: libc::c_int = 49;
const IPV6_MULTICAST_ALL: libc::c_int = 29;

/// A socket that is bound to port 4791 of one address.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    pub address: IpAddr,
    /// Datagrams that found no room before it was ours.
    dropped_before: u64,
    /// Datagrams of the last batch.
    last_batch: Cell<usize>,
}

/// A socket on one of our addresses and an ephemeral port: it looks up routes in the namespace of the device.
#[derive(Debug)]
pub(super) struct Probe {
    fd: OwnedFd,
    scope: u32,
}

/// A received datagram, except its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub len: usize,
    /// The length of each packet in it, the last of which may be shorter; 0 when there is one.
    pub packet_bytes: usize,
    pub source: IpAddr,
    pub source_port: u16,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
}

/// A datagram to send, or the next packet of a run.
#[derive(Clone, Copy)]
pub(super) struct Outgoing {
    pub payload: (*const u8, usize),
    pub destination: IpAddr,
    /// The index of the interface, for a link-local address.
    pub scope: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Whether it belongs to the run of the one before. The first of a run decides all but the payload.
    pub continues: bool,
}

/// Memory for the headers of a batch.
pub(super) struct Headers {
    names: Box<[libc::sockaddr_in6; BATCH]>,
    vectors: Box<[libc::iovec; BATCH]>,
    controls: Box<[Control; BATCH]>,
    messages: Box<[libc::mmsghdr; BATCH]>,
}

/// Aligned as the kernel's headers of control messages are.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

// SAFETY: the pointers in it are written before each call, and followed during it only.
unsafe impl Send for Headers {}

impl Headers {
    pub fn new() -> Headers {
        // SAFETY: all zeros are valid values of these plain structs.
        let (name, vector, message) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Headers {
            names: Box::new([name; BATCH]),
            vectors: Box::new([vector; BATCH]),
            controls: Box::new([Control([0; CONTROL_BYTES]); BATCH]),
            messages: Box::new([message; BATCH]),
        }
    }

    /// Sets a message of the bytes of one vector.
    fn set(&mut self, index: usize, vector: usize, name_bytes: usize, control_bytes: usize) {
        let header = &mut self.messages[index].msg_hdr;
        header.msg_name = (&raw mut self.names[index]).cast();
        header.msg_namelen = name_bytes as libc::socklen_t;
        header.msg_iov = &raw mut self.vectors[vector];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut self.controls[index]).cast();
        header.msg_controllen = control_bytes as _;
        header.msg_flags = 0;
    }

    fn set_vector(&mut self, index: usize, (start, len): (*const u8, usize)) {
        let vector = &mut self.vectors[index];
        (vector.iov_base, vector.iov_len) = (start.cast_mut().cast(), len);
    }

    /// Sets the message that begins with a datagram, whose bytes a vector has.
    fn begin(&mut self, index: usize, vector: usize, datagram: &Outgoing) {
        let (name, name_bytes) = socket_address(datagram.destination, datagram.scope, ROCE_PORT);
        self.names[index] = name;
        let (level, class, limit) = match datagram.destination {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let out = &mut self.controls[index].0;
        let used = write_control(out, 0, (level, class), &i32::from(datagram.traffic_class).to_ne_bytes());
        let used = write_control(out, used, (level, limit), &i32::from(datagram.hop_limit).to_ne_bytes());
        self.set(index, vector, name_bytes, used);
    }

    /// Adds the next vector to a message, which is a run of packets as long as its first.
    fn extend(&mut self, index: usize) {
        let header = &mut self.messages[index].msg_hdr;
        header.msg_iovlen += 1;
        if header.msg_iovlen == 2 {
            // SAFETY: the vector is one of ours, set before.
            let packet_bytes = unsafe { (*header.msg_iov).iov_len } as u16;
            let used = header.msg_controllen as _; // usize with glibc, u32 with musl
            let kind = (libc::SOL_UDP, libc::UDP_SEGMENT);
            let used = write_control(&mut self.controls[index].0, used, kind, &packet_bytes.to_ne_bytes());
            header.msg_controllen = used as _;
        }
    }
}

impl Socket {
    /// The socket on port 4791 of `address`; `scope` is the index of its interface, for a link-local address. On the
    /// address of a multicast group it is one of many.
    pub fn bind(address: IpAddr, scope: u32) -> io::Result<Socket> {
        Socket::bind_one(address, scope, address.is_multicast().then_some(libc::SO_REUSEADDR))
    }

    /// One of several sockets of one user on port 4791 of `address`.
    pub fn bind_shared(address: IpAddr, scope: u32) -> io::Result<Socket> {
        Socket::bind_one(address, scope, Some(libc::SO_REUSEPORT))
    }

    /// A socket on port 4791 of `address` that another process bound.
    pub fn adopt(fd: OwnedFd, address: IpAddr) -> Socket {
        let mut socket = Socket { fd, address, dropped_before: 0, last_batch: Cell::new(BATCH) };
        socket.dropped_before = socket.dropped();
        socket
    }

    fn bind_one(address: IpAddr, scope: u32, reuse: Option<libc::c_int>) -> io::Result<Socket> {
        let socket = Socket { fd: new_socket(address)?, address, dropped_before: 0, last_batch: Cell::new(BATCH) };
        let options: &[(libc::c_int, libc::c_int, libc::c_int)] = match address {
            IpAddr::V4(_) => &[
                // Never fragmented, and so with identification 0 (ip_select_ident); whatever ICMP says of the path.
                (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
                (libc::IPPROTO_IP, libc::IP_RECVTTL, 1),
                (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
                // On a group's address: from the interface that joined it.
                (libc::IPPROTO_IP, IP_MULTICAST_ALL, 0),
            ],
            IpAddr::V6(_) => &[
                (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
                (libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0),
                (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, scope as libc::c_int),
                (libc::IPPROTO_IPV6, IPV6_FLOWINFO, 1),
                // RNICs' UDP checksum is zero.
                (libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1),
            ],
        };
        for &(level, name, value) in options {
            socket.set(level, name, value)?;
        }
        if let Some(reuse) = reuse {
            socket.set(libc::SOL_SOCKET, reuse, 1)?;
        }
        let bytes = SOCKET_BUFFER_BYTES as libc::c_int;
        for (force, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
            if socket.set(libc::SOL_SOCKET, force, bytes).is_err() {
                socket.set(libc::SOL_SOCKET, plain, bytes)?;
            }
        }
        bind(&socket.fd, address, scope, ROCE_PORT)?;
        Ok(socket)
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        set_option(self.as_fd(), level, name, value)
    }

    /// The number of datagrams that found no room in the socket's buffer.
    pub fn dropped(&self) -> u64 {
        /// From linux/sock_diag.h.
        const SK_MEMINFO_DROPS: usize = 8;
        let mut values = [0u32; SK_MEMINFO_DROPS + 1];
        let mut len = size_of_val(&values) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes.
        let got = unsafe {
            let out = values.as_mut_ptr().cast();
            libc::getsockopt(self.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, out, &raw mut len)
        };
        if got == 0 { u64::from(values[SK_MEMINFO_DROPS]).saturating_sub(self.dropped_before) } else { 0 }
    }

    /// How many datagrams the next batch should be made for, at most [`BATCH`]: more than the last one had. Preparing for
    /// 64 takes as long as the system call that finds none.
    pub fn likely_batch(&self) -> usize {
        (2 * self.last_batch.get()).clamp(8, BATCH)
    }

    /// Receives up to `buffers.len()` (at most [`BATCH`]) datagrams, one a buffer, and passes on what came with each.
    /// An error counts as no datagram: the caller cannot do anything about either.
    ///
    /// # Safety
    /// The buffers must be writable, and used by nothing else.
    pub unsafe fn receive(
        &self,
        headers: &mut Headers,
        buffers: &[(*mut u8, usize)],
        mut take: impl FnMut(usize, Received),
    ) -> usize {
        let count = buffers.len().min(BATCH);
        for (index, &(start, len)) in buffers[..count].iter().enumerate() {
            headers.set_vector(index, (start.cast_const(), len));
            headers.set(index, index, size_of::<libc::sockaddr_in6>(), CONTROL_BYTES);
        }
        let messages = headers.messages.as_mut_ptr();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the headers point to the names, controls and buffers, all of which outlive the call.
        let received = unsafe {
            libc::recvmmsg(self.as_raw_fd(), messages, count as libc::c_uint, flags as _, std::ptr::null_mut())
        };
        let received = usize::try_from(received).unwrap_or(0);
        self.last_batch.set(received);
        for index in 0..received {
            let message = &headers.messages[index];
            let (source, source_port) = address_of(&headers.names[index]);
            let mut got = Received {
                len: message.msg_len as usize,
                packet_bytes: 0,
                source,
                source_port,
                traffic_class: 0,
                hop_limit: 0,
                flow_label: 0,
            };
            for_each_control(&message.msg_hdr, |level, kind, data| got.control(level, kind, data));
            take(index, got);
        }
        received
    }

    /// Sends datagrams of at most [`BATCH`] packets. Returns how many datagrams the kernel accepted, or why it did not
    /// accept the first: a run of packets is one.
    ///
    /// # Safety
    /// Their payloads must be readable.
    pub unsafe fn send(&self, headers: &mut Headers, packets: impl Iterator<Item = Outgoing>) -> io::Result<usize> {
        let mut count = 0;
        for (vector, packet) in packets.take(BATCH).enumerate() {
            headers.set_vector(vector, packet.payload);
            if packet.continues && count > 0 {
                headers.extend(count - 1);
            } else {
                headers.begin(count, vector, &packet);
                count += 1;
            }
        }
        let messages = headers.messages.as_mut_ptr();
        // SAFETY: the headers point to the names, controls and payloads, all of which outlive the call.
        let sent =
            unsafe { libc::sendmmsg(self.as_raw_fd(), messages, count as libc::c_uint, libc::MSG_DONTWAIT as _) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Has the kernel take runs of packets, or single ones only. Returns whether it takes runs.
    ///
    /// Runs need UDP's checksum, which hosts and virtual machines on one machine never compute. Without runs it is off,
    /// as RNICs leave it: the ICRC covers more.
    pub fn send_runs(&self, runs: bool) -> bool {
        // No length of packets for those that name none.
        let runs = runs && self.set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let (level, no_checksum) = match self.address {
            IpAddr::V4(_) => (libc::SOL_SOCKET, libc::SO_NO_CHECK),
            IpAddr::V6(_) => (libc::IPPROTO_UDP, UDP_NO_CHECK6_TX),
        };
        self.set(level, no_checksum, i32::from(!runs)).is_ok() && runs
    }
}

/// Has the kernel deliver runs of packets to a socket as one datagram each. Linux before 5.0 does not.
pub(super) fn receive_runs(socket: BorrowedFd<'_>, runs: bool) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, runs.into())
}

impl Probe {
    /// A probe on an address, whose interface has the index `scope`.
    pub fn bind(address: IpAddr, scope: u32) -> io::Result<Probe> {
        let probe = Probe { fd: new_socket(address)?, scope };
        bind(&probe.fd, address, scope, 0)?;
        Ok(probe)
    }

    /// Checks that the kernel has a route from this address to `destination`. It sends nothing.
    pub fn check_route(&self, destination: IpAddr) -> io::Result<()> {
        let (peer, peer_bytes) = socket_address(destination, self.scope, ROCE_PORT);
        // SAFETY: `peer` is a socket address of at least that many bytes.
        let connected =
            unsafe { libc::connect(self.fd.as_raw_fd(), (&raw const peer).cast(), peer_bytes as libc::socklen_t) };
        if connected == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A descriptor that is readable when one of the sockets in it is. So sockets can come and go although the link's
/// descriptors are known from the start.
#[derive(Debug)]
pub(super) struct Readiness(OwnedFd);

impl Readiness {
    pub fn new() -> io::Result<Readiness> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(Readiness(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a socket. The kernel removes it when it is closed.
    pub fn add(&self, socket: &Socket) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the kernel reads one event.
        let added =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event) };
        if added == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Received {
    fn control(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        // IP_TOS comes as a byte, the others as ints.
        let int = || data.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => self.traffic_class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IP, libc::IP_TTL) => self.hop_limit = int() as u8,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.traffic_class = int() as u8,
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => self.hop_limit = int() as u8,
            (libc::SOL_UDP, libc::UDP_GRO) => self.packet_bytes = usize::try_from(int()).unwrap_or(0),
            (libc::IPPROTO_IPV6, IPV6_FLOWINFO) => {
                self.flow_label = data.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) & 0xf_ffff);
            }
            _ => {}
        }
    }
}

pub(super) fn new_socket(address: IpAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are involved.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an int.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The port that a socket is bound to.
pub(super) fn local_port(fd: &OwnedFd) -> io::Result<u16> {
    // SAFETY: all zeros are a valid value of this plain struct.
    let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
    let mut len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes.
    let done = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) };
    if done == 0 { Ok(address_of(&name).1) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn bind(fd: &OwnedFd, address: IpAddr, scope: u32, port: u16) -> io::Result<()> {
    let (name, name_bytes) = socket_address(address, scope, port);
    // SAFETY: `name` is a socket address of at least that many bytes.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), name_bytes as libc::socklen_t) };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Calls `work` with level, type and data of each control message.
pub(super) fn for_each_control(header: &libc::msghdr, mut work: impl FnMut(libc::c_int, libc::c_int, &[u8])) {
    // SAFETY: the kernel wrote whole control messages into the buffer and set its length; the macros stay within it.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(head) = control.as_ref() {
            // Lengths are usize with glibc, and u32 with musl.
            let len = head.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as _) as _;
            work(head.cmsg_level, head.cmsg_type, std::slice::from_raw_parts(libc::CMSG_DATA(control), len));
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
}

/// Writes a control message of a level and a type, whose data is at most eight bytes, at `start`. Returns where it ends.
fn write_control(
    out: &mut [u8; CONTROL_BYTES],
    start: usize,
    (level, kind): (libc::c_int, libc::c_int),
    data: &[u8],
) -> usize {
    let data_bytes = data.len() as libc::c_uint;
    // SAFETY: the macros only compute.
    let (space, len, data_at) =
        unsafe { (libc::CMSG_SPACE(data_bytes), libc::CMSG_LEN(data_bytes), libc::CMSG_LEN(0) as usize) };
    let message = &mut out[start..start + space as usize];
    // struct cmsghdr: length, level, type; then the data.
    message[..8].copy_from_slice(&u64::from(len).to_ne_bytes());
    message[8..12].copy_from_slice(&level.to_ne_bytes());
    message[12..16].copy_from_slice(&kind.to_ne_bytes());
    message[data_at..data_at + data.len()].copy_from_slice(data);
    start + space as usize
}

// `write_control` writes the header as 64-bit Linux has it.
const _: () = assert!(size_of::<libc::cmsghdr>() == 16);

/// A socket address of either family, in room for the larger one, and its length in bytes.
pub(super) fn socket_address(address: IpAddr, scope: u32, port: u16) -> (libc::sockaddr_in6, usize) {
    // SAFETY: all zeros are a valid value of this plain struct.
    let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
    match address {
        IpAddr::V4(address) => {
            let small = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: port.to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the larger struct has room for the smaller one, at no stricter alignment.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in>().write(small) };
            (name, size_of::<libc::sockaddr_in>())
        }
        IpAddr::V6(address) => {
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = port.to_be();
            name.sin6_addr.s6_addr = address.octets();
            // The kernel looks at it where the address needs one.
            name.sin6_scope_id = if address.is_unicast_link_local() || address.is_multicast() { scope } else { 0 };
            (name, size_of::<libc::sockaddr_in6>())
        }
    }
}

/// The address and port that the kernel wrote to `name`.
pub(super) fn address_of(name: &libc::sockaddr_in6) -> (IpAddr, u16) {
    if libc::c_int::from(name.sin6_family) == libc::AF_INET {
        // SAFETY: the family says that the smaller struct is there, at no stricter alignment.
        let small = unsafe { (&raw const *name).cast::<libc::sockaddr_in>().read() };
        return (Ipv4Addr::from(u32::from_be(small.sin_addr.s_addr)).into(), u16::from_be(small.sin_port));
    }
    (Ipv6Addr::from(name.sin6_addr.s6_addr).into(), u16::from_be(name.sin6_port))
}
