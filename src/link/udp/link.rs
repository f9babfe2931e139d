use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::UdpOpenError;
use super::identification::{Solver, Tracker};
use super::pool::Pool;
use super::sharing::{Lease, LeaseError};
use super::socket::{BATCH, Headers, Outgoing, Probe, Readiness, Received, Socket};
use crate::frame::{Frame, FrameBytes};
use crate::link::device_error::DeviceError;
use crate::link::gid::Gid;
use crate::link::holder;
use crate::link::hop_table::HopTable;
use crate::link::membership::Place;
use crate::link::netlink::{Interface, Netlink};
use crate::link::selection::Selection;
use crate::link::{EthernetHeader, Hop, HopError, Imposed, Link, Requests};
use crate::time::{Duration, Instant};
use crate::wire::{Addresses, Flow, ICRC_BYTES, ROCE_PORT, icrc};

/// The largest IP packet: path MTU 4096 with all headers takes 4176 bytes.
pub(crate) const MAX_PACKET_BYTES: usize = 4224;

/// Bytes before a received datagram's payload: Ethernet 14, IPv6 40, UDP 8, rounded up.
const HEADROOM_BYTES: usize = 64;
const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;

/// Buffers to receive into: several steps of an engine, and what a fault layer holds back.
const RECEIVE_BUFFERS: u32 = 1024;

/// Upper bound on the packets that wait for the sockets: two steps of an engine.
const TRANSMIT_BUFFERS: u32 = 2 * BATCH as u32;

/// Pause before a socket without room is tried again: the time of some twenty packets.
const RETRY: Duration = Duration::from_micros(50);

/// A [`Link`] over UDP sockets.
pub struct UdpLink {
    sockets: Vec<Local>,
    /// The slot of this program, if several share the sockets' addresses.
    lease: Option<Lease>,
    /// Sockets on multicast groups, which only receive.
    groups: Vec<Socket>,
    /// A descriptor that is readable when one of these is.
    readiness: Readiness,
    place: Place,
    /// The socket that is served first next time.
    next_socket: usize,
    headers: Headers,
    received: Arc<Pool>,
    free: Vec<u32>,
    solver: Solver,
    tracker: Tracker,
    hops: HopTable<Destination>,
    sent: Arc<Pool>,
    free_to_send: Vec<u32>,
    lent: Option<u32>,
    queued: VecDeque<Queued>,
    retry_at: Option<Instant>,
    max_packet_bytes: usize,
    counters: Counters,
}

/// One of our addresses, and its socket.
struct Local {
    socket: Socket,
    probe: Probe,
    /// The index of its interface.
    scope: u32,
}

#[derive(Clone, Copy)]
struct Destination {
    socket: usize,
    address: IpAddr,
}

struct Queued {
    buffer: u32,
    len: usize,
    destination: Destination,
}

counters! {
    /// What became of frames.
    struct Counters {
        rx_frames,
        rx_bytes,
        rx_too_long,
        rx_identification_refused,
        tx_frames,
        tx_bytes,
        tx_no_buffer,
        tx_stalls,
        tx_errors,
    }
}

impl UdpLink {
    /// Opens port 4791 on the addresses of `interface`, in the calling thread's network namespace; on one alone when
    /// `interface` is that address.
    ///
    /// Addresses in its GID table that the interface does not have are left out, since no packet can leave from them.
    /// These are the link-local one, where IPv6 is off, and addresses for which the kernel still looks for duplicates.
    /// That takes a second or two after the interface is up.
    ///
    /// # Errors
    /// - [`UdpOpenError::Device`] when there is no such interface or address, or the kernel does not answer.
    /// - [`UdpOpenError::Down`] when the interface is down.
    /// - [`UdpOpenError::Taken`] when another process has the port.
    /// - [`UdpOpenError::OverXdp`] when a program over AF_XDP has the interface.
    /// - [`UdpOpenError::NoAddress`] when none of its addresses can be used.
    /// - [`UdpOpenError::Socket`] when a socket cannot be made for another reason.
    pub fn open(interface: &str) -> Result<UdpLink, UdpOpenError> {
        UdpLink::open_with(interface, |device, gids, interfaces| Ok((bind_all(device, gids, interfaces)?, None)))
    }

    /// As [`open`](Self::open), but programs of this user share the addresses, up to 63 of them. `arbiter` is the
    /// program `uroce`, which is started as their arbiter when there is none yet. If that fails, the addresses are
    /// opened for this program alone.
    ///
    /// # Errors
    /// As `open`; [`UdpOpenError::Full`] when 63 programs share the interface.
    pub fn open_shared(interface: &str, arbiter: &Path) -> Result<UdpLink, UdpOpenError> {
        UdpLink::open_with(interface, |device, gids, interfaces| share(device, gids, interfaces, arbiter))
    }

    fn open_with(
        interface: &str,
        sockets: impl FnOnce(&Interface, &[Gid], &[Interface]) -> Result<(Vec<Local>, Option<Lease>), UdpOpenError>,
    ) -> Result<UdpLink, UdpOpenError> {
        let interfaces = Netlink::open().and_then(|mut netlink| netlink.interfaces()).map_err(DeviceError::Netlink)?;
        let Selection { interface: device, gids, .. } = Selection::of(interface, &interfaces)?;
        let name = || device.name.clone();
        if !device.up {
            return Err(UdpOpenError::Down { interface: name() });
        }
        if let Some(holder) = holder::exclusive_claimant(device.index) {
            return Err(UdpOpenError::OverXdp { interface: name(), holder });
        }
        let (sockets, lease) = sockets(device, &gids, &interfaces)?;
        // Again, now that the sockets are there: see `holder`. Who shares the interface is no danger.
        let claimant = if lease.is_some() { holder::exclusive_claimant } else { holder::claimant };
        if let Some(holder) = claimant(device.index) {
            return Err(UdpOpenError::OverXdp { interface: name(), holder });
        }
        let max_packet_bytes = device.mtu.min(MAX_PACKET_BYTES);
        let readiness = Readiness::new().map_err(|error| UdpOpenError::Socket {
            interface: name(),
            address: sockets[0].socket.address,
            error,
        })?;
        Ok(UdpLink {
            sockets,
            lease,
            groups: Vec::new(),
            readiness,
            place: Place::new(device.index, gids.iter().filter(|gid| gid.vlan.is_none()).map(|gid| gid.ip())),
            next_socket: 0,
            headers: Headers::new(),
            // A longer one than we would send is seen to be too long.
            received: Pool::new(RECEIVE_BUFFERS, HEADROOM_BYTES + MAX_PACKET_BYTES),
            free: (0..RECEIVE_BUFFERS).rev().collect(),
            solver: Solver::new(MAX_PACKET_BYTES),
            tracker: Tracker::default(),
            hops: HopTable::new(),
            sent: Pool::new(TRANSMIT_BUFFERS, MAX_PACKET_BYTES),
            free_to_send: (0..TRANSMIT_BUFFERS).rev().collect(),
            lent: None,
            queued: VecDeque::with_capacity(TRANSMIT_BUFFERS as usize),
            retry_at: None,
            max_packet_bytes,
            counters: Counters::default(),
        })
    }

    /// Receives one batch from a socket.
    fn receive_batch(&mut self, number: usize, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        self.received.collect(&mut self.free);
        let count = budget.min(BATCH).min(self.free.len());
        let numbers: ArrayVec<u32, BATCH> = self.free.drain(self.free.len() - count..).collect();
        let payload = |buffer: &u32| {
            (self.received.buffer(*buffer).wrapping_add(HEADROOM_BYTES), self.received.buffer_bytes() - HEADROOM_BYTES)
        };
        let buffers: ArrayVec<(*mut u8, usize), BATCH> = numbers.iter().map(payload).collect();
        let mut arrived: ArrayVec<Received, BATCH> = ArrayVec::new();
        let socket = match number.checked_sub(self.sockets.len()) {
            None => &self.sockets[number].socket,
            Some(group) => &self.groups[group],
        };
        // SAFETY: the buffers were free and are ours.
        unsafe { socket.receive(&mut self.headers, &buffers, |_, received| arrived.push(received)) };
        let own = socket.address;
        self.free.extend(&numbers[arrived.len()..]);
        for (&buffer, received) in numbers.iter().zip(&arrived) {
            match self.frame(buffer, received, own, now) {
                Some(frame) => {
                    self.counters.rx_bytes += frame.bytes().len() as u64;
                    frames.push(frame);
                }
                None => self.free.push(buffer),
            }
        }
        arrived.len()
    }

    /// Writes the headers that the kernel removed before a datagram in `buffer`, and makes it a frame. `None` when it
    /// is dropped, which is counted.
    fn frame(&mut self, buffer: u32, received: &Received, own: IpAddr, now: Instant) -> Option<Frame> {
        if received.is_truncated {
            self.counters.rx_too_long += 1;
            return None;
        }
        let flow = Flow {
            addresses: Addresses::new(received.source, own)?,
            source_port: received.source_port,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            flow_label: received.flow_label,
        };
        let ip_start = HEADROOM_BYTES - flow.header_bytes();
        let (start, end) = (ip_start - ETHERNET_BYTES, HEADROOM_BYTES + received.len);
        // SAFETY: the buffer is ours until it is made a frame below, and the range lies in it.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.received.buffer(buffer).wrapping_add(start), end - start) };
        let (ethernet, packet) = bytes.split_at_mut(ETHERNET_BYTES);
        ethernet_header().write(ethernet, if own.is_ipv4() { 4 } else { 6 });
        flow.write(packet, 0, received.len);
        if let IpAddr::V4(peer) = received.source {
            match self.identify(packet, peer, now) {
                Ok(0) => {}
                Ok(identification) => flow.write(packet, identification, received.len),
                Err(Refused) => {
                    self.counters.rx_identification_refused += 1;
                    return None;
                }
            }
        }
        // SAFETY: the buffer is ours, and the range lies in it.
        Some(unsafe { self.received.frame(buffer, start, end - start) })
    }

    /// The identification of an IPv4 packet that has 0 in its place now. 0 when none makes its ICRC right; the
    /// transport then drops the packet.
    fn identify(&mut self, packet: &[u8], peer: Ipv4Addr, now: Instant) -> Result<u16, Refused> {
        let Some(covered) = packet.len().checked_sub(ICRC_BYTES) else { return Ok(0) };
        let computed = icrc::compute(FrameBytes::from(&packet[..covered]));
        let (Some(computed), Some(stored)) = (computed, icrc::stored(FrameBytes::from(packet))) else { return Ok(0) };
        match self.solver.solve(computed ^ stored, covered) {
            Some(identification) if self.tracker.accepts(peer, identification, now) => Ok(identification),
            Some(_) => Err(Refused),
            None => Ok(0),
        }
    }

    /// The destination of the packet in `buffer`. When its hop was replaced, the packet's addresses decide.
    fn destination(&mut self, hop: Hop, buffer: u32, len: usize) -> Option<Destination> {
        if let Some(destination) = self.hops.use_hop(hop) {
            return Some(*destination);
        }
        // SAFETY: the buffer was lent and is ours again, and holds a packet of that length.
        let packet = unsafe { std::slice::from_raw_parts(self.sent.buffer(buffer).cast_const(), len) };
        let addresses = Addresses::of_packet(packet)?;
        let hop = self.hop(addresses.source(), addresses.destination()).ok()?;
        self.hops.use_hop(hop).copied()
    }

    /// Hands the oldest packets that leave by one socket to the kernel. True when it should be called again.
    fn send_batch(&mut self, now: Instant) -> bool {
        let Some(first) = self.queued.front() else { return false };
        let number = first.destination.socket;
        let local = &self.sockets[number];
        let (sent, max) = (&self.sent, self.max_packet_bytes);
        let run = self.queued.iter().take_while(|queued| queued.destination.socket == number);
        let datagrams = run.map(|queued| {
            let start = sent.buffer(queued.buffer).cast_const();
            // SAFETY: the buffer is ours while it is queued, and holds a packet of that length.
            let packet = unsafe { std::slice::from_raw_parts(start, queued.len.min(max)) };
            outgoing(packet, queued.destination.address, local.scope)
        });
        // SAFETY: the payloads lie in buffers that are ours while they are queued.
        let count = match unsafe { local.socket.send(&mut self.headers, datagrams) } {
            Ok(count) => {
                for queued in self.queued.iter().take(count) {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += (ETHERNET_BYTES + queued.len) as u64;
                }
                count
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => {
                self.counters.tx_stalls += 1;
                self.retry_at = Some(now + RETRY);
                return false;
            }
            // The network is away, say: this packet is lost, the next one may go elsewhere.
            Err(_) => {
                self.counters.tx_errors += 1;
                1
            }
        };
        self.free_to_send.extend(self.queued.drain(..count).map(|queued| queued.buffer));
        true
    }
}

/// The addresses of a device, each once, with the indices of their interfaces. The kernel has one port for an address
/// that is on a VLAN, too.
fn places(device: &Interface, gids: &[Gid], interfaces: &[Interface]) -> Vec<(IpAddr, u32)> {
    let mut places: Vec<(IpAddr, u32)> = Vec::new();
    for gid in gids {
        let scope = interfaces.iter().find(|i| i.name == gid.interface).map_or(device.index, |i| i.index);
        if !places.iter().any(|(address, _)| *address == gid.ip()) {
            places.push((gid.ip(), scope));
        }
    }
    places
}

/// Sockets on all addresses of a device that are there, which programs share.
fn share(
    device: &Interface,
    gids: &[Gid],
    interfaces: &[Interface],
    arbiter: &Path,
) -> Result<(Vec<Local>, Option<Lease>), UdpOpenError> {
    let interface = || device.name.clone();
    let places = places(device, gids, interfaces);
    let taken = |address| UdpOpenError::Taken { interface: interface(), address, holder: holder::port_holder(address) };
    let (lease, joined) = match Lease::take((device.index, &device.name), &places, Some(arbiter)) {
        Ok(lease) => lease,
        Err(LeaseError::NoArbiter) => return Ok((bind_all(device, gids, interfaces)?, None)),
        Err(LeaseError::Full) => return Err(UdpOpenError::Full { interface: interface() }),
        Err(LeaseError::Address(address, error)) => {
            return Err(match error.raw_os_error() {
                Some(libc::EADDRINUSE) => taken(address),
                _ => UdpOpenError::Socket { interface: interface(), address, error },
            });
        }
    };
    let local = |(socket, address, scope)| {
        let probe = Probe::bind(address, scope);
        let probe = probe.map_err(|error| UdpOpenError::Socket { interface: interface(), address, error })?;
        Ok(Local { socket: Socket::adopt(socket, address), probe, scope })
    };
    let sockets: Vec<Local> = joined
        .into_iter()
        .map(|one| local((one.socket, one.address, one.scope)))
        .collect::<Result<_, UdpOpenError>>()?;
    if sockets.is_empty() {
        Err(UdpOpenError::NoAddress { interface: interface() })
    } else {
        Ok((sockets, Some(lease)))
    }
}

/// Sockets on all addresses of a device that are there, for this program alone.
fn bind_all(device: &Interface, gids: &[Gid], interfaces: &[Interface]) -> Result<Vec<Local>, UdpOpenError> {
    let name = || device.name.clone();
    let mut sockets: Vec<Local> = Vec::new();
    for (address, scope) in places(device, gids, interfaces) {
        let bound = Socket::bind(address, scope).and_then(|socket| Ok((socket, Probe::bind(address, scope)?)));
        match bound {
            Ok((socket, probe)) => sockets.push(Local { socket, probe, scope }),
            Err(error) => match error.raw_os_error() {
                // Not ours, not yet (duplicate address detection), or of a family that is off.
                Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT) => {}
                Some(libc::EADDRINUSE) => {
                    let holder = holder::port_holder(address);
                    return Err(UdpOpenError::Taken { interface: name(), address, holder });
                }
                _ => return Err(UdpOpenError::Socket { interface: name(), address, error }),
            },
        }
    }
    if sockets.is_empty() { Err(UdpOpenError::NoAddress { interface: name() }) } else { Ok(sockets) }
}

/// The packet has an identification that its sender does not use.
struct Refused;

/// The Ethernet header of packets over sockets, of which nothing is known.
fn ethernet_header() -> EthernetHeader {
    EthernetHeader::new([0; 6], [0; 6], None)
}

/// The fields that the kernel needs to write the packet's headers again.
fn outgoing(packet: &[u8], destination: IpAddr, scope: u32) -> Outgoing {
    let (traffic_class, hop_limit, header_bytes) = match destination {
        IpAddr::V4(_) => (packet[1], packet[8], 20 + UDP_BYTES),
        IpAddr::V6(_) => (packet[0] << 4 | packet[1] >> 4, packet[7], 40 + UDP_BYTES),
    };
    let payload = &packet[header_bytes..];
    Outgoing { payload: (payload.as_ptr(), payload.len()), destination, scope, traffic_class, hop_limit }
}

impl Link for UdpLink {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if self.groups.iter().any(|socket| socket.address == group) {
            return Ok(());
        }
        let socket = Socket::bind(group, self.place.interface())?;
        self.place.join(socket.as_fd(), group)?;
        self.readiness.add(&socket)?;
        self.groups.push(socket);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|socket| socket.address != group);
    }

    fn slot(&self) -> Option<u8> {
        self.lease.as_ref().map(Lease::slot)
    }

    fn take_requests(&mut self, requests: Requests) -> io::Result<()> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.take_requests(requests))
    }

    fn leave_requests(&mut self, requests: Requests) {
        self.lease.iter().for_each(|lease| lease.leave_requests(requests));
    }

    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        let before = frames.len();
        let count = self.sockets.len() + self.groups.len();
        // Another socket comes first every time, so that a busy one does not starve the others.
        self.next_socket = (self.next_socket + 1) % count;
        for step in 0..count {
            let left = budget - (frames.len() - before);
            if left == 0 {
                break;
            }
            self.receive_batch((self.next_socket + step) % count, now, frames, left);
        }
        let number = frames.len() - before;
        self.counters.rx_frames += number as u64;
        number
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        if self.lent.is_none() {
            self.lent = self.free_to_send.pop();
            self.counters.tx_no_buffer += u64::from(self.lent.is_none());
        }
        let start = self.sent.buffer(self.lent?);
        // SAFETY: the buffer was free and is lent once: the borrow of `self` ends before anything else happens to it.
        Some(unsafe { std::slice::from_raw_parts_mut(start, self.max_packet_bytes) })
    }

    fn transmit(&mut self, _now: Instant, len: usize, hop: Hop) {
        assert!(len > 0 && len <= self.max_packet_bytes, "a packet of {len} bytes in {}", self.max_packet_bytes);
        let buffer = self.lent.take().expect("transmit follows transmit_buffer");
        match self.destination(hop, buffer, len) {
            Some(destination) => self.queued.push_back(Queued { buffer, len, destination }),
            None => {
                self.counters.tx_errors += 1;
                self.free_to_send.push(buffer);
            }
        }
    }

    fn flush(&mut self, now: Instant) {
        self.retry_at = None;
        while self.send_batch(now) {}
    }

    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        let no_route = HopError::NoRoute(source, destination);
        let socket = self.sockets.iter().position(|local| local.socket.address == source).ok_or(no_route.clone())?;
        if let Some(hop) = self.hops.find(source, destination) {
            return Ok(hop);
        }
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(no_route);
        }
        self.sockets[socket].probe.check_route(destination).map_err(|_| no_route)?;
        let (hop, _) = self.hops.insert(source, destination, Destination { socket, address: destination });
        Ok(hop)
    }

    fn ethernet_header(&self, _hop: Hop) -> Option<EthernetHeader> {
        Some(ethernet_header())
    }

    fn imposed(&self) -> Option<Imposed> {
        Some(Imposed { identification: 0, source_port: ROCE_PORT })
    }

    fn max_packet_bytes(&self) -> usize {
        self.max_packet_bytes
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        let own = self.sockets.iter().map(|local| local.socket.as_raw_fd());
        own.chain([self.readiness.as_raw_fd()]).collect()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn mode(&self) -> String {
        "udp".to_owned()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let own = self.sockets.iter().map(|local| &local.socket);
        let dropped = own.chain(&self.groups).map(Socket::dropped).sum();
        self.counters.list().chain([("rx_dropped_by_kernel", dropped)]).collect()
    }
}
