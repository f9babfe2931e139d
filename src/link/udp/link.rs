use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use etherparse::UdpHeader;

use super::identification::Solver;
use super::inbox::Inbox;
use super::outbox::{Outbox, Sent, Tally};
use super::sharing::{Lease, LeaseError};
use super::socket::{Headers, Probe, Readiness, Socket, receive_runs};
use super::{UdpOffload, UdpOpenError};
use crate::frame::Frame;
use crate::link::device_error::DeviceError;
use crate::link::gid::Gid;
use crate::link::holder;
use crate::link::hop_table::HopTable;
use crate::link::membership::Place;
use crate::link::netlink::{Interface, Netlink};
use crate::link::selection::Selection;
use crate::link::{EthernetHeader, Hop, HopError, Imposed, Link, Requests};
use crate::time::{Duration, Instant};
use crate::wire::{Addresses, ROCE_PORT};

/// The largest IP packet: path MTU 4096 with all headers takes 4176 bytes.
pub(crate) const MAX_PACKET_BYTES: usize = 4224;

pub(super) const ETHERNET_BYTES: usize = 14;

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
    inbox: Inbox,
    /// Packets that arrived with others, and exceeded the budget.
    ready: VecDeque<Frame>,
    solver: Arc<Solver>,
    hops: HopTable<Destination>,
    outbox: Outbox,
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
    /// Whether the kernel takes runs of packets as one.
    sends_runs: bool,
}

/// The sockets on the addresses of a device, and the lease of their slot, if programs share them.
type Sockets = (Vec<Local>, Option<Lease>);

/// Where packets go: from one of our sockets to an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Destination {
    pub socket: usize,
    pub address: IpAddr,
}

counters! {
    /// What became of frames.
    struct Counters {
        rx_frames,
        rx_bytes,
        tx_frames,
        tx_bytes,
        tx_runs,
        tx_run_frames,
        tx_runs_refused,
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
        UdpLink::open_with(interface, UdpOffload::default())
    }

    /// As [`open`](Self::open), with these offloads where the kernel has them.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_with(interface: &str, offload: UdpOffload) -> Result<UdpLink, UdpOpenError> {
        UdpLink::open_on(interface, offload, |device, gids, interfaces| Ok((bind_all(device, gids, interfaces)?, None)))
    }

    /// As [`open_with`](Self::open_with), but programs of this user share the addresses, up to 63 of them. `arbiter` is the
    /// program `uroce`, which is started as their arbiter when there is none yet. If that fails, the addresses are
    /// opened for this program alone.
    ///
    /// # Errors
    /// As `open`; [`UdpOpenError::Full`] when 63 programs share the interface.
    pub fn open_shared(interface: &str, offload: UdpOffload, arbiter: &Path) -> Result<UdpLink, UdpOpenError> {
        let runs = offload.receives_runs();
        UdpLink::open_on(interface, offload, |device, gids, interfaces| {
            share(device, &places(device, gids, interfaces), arbiter, runs)?
                .map_or_else(|| Ok((bind_all(device, gids, interfaces)?, None)), Ok)
        })
    }

    fn open_on(
        interface: &str,
        offload: UdpOffload,
        sockets: impl FnOnce(&Interface, &[Gid], &[Interface]) -> Result<Sockets, UdpOpenError>,
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
        let (mut sockets, lease) = sockets(device, &gids, &interfaces)?;
        for local in &mut sockets {
            local.sends_runs = local.socket.send_runs(offload.sends_runs());
            // Among others, it is for the arbiter to say.
            if lease.is_none() {
                let _ = receive_runs(local.socket.as_fd(), offload.receives_runs());
            }
        }
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
        let solver = Arc::new(Solver::new(MAX_PACKET_BYTES));
        Ok(UdpLink {
            sockets,
            lease,
            groups: Vec::new(),
            readiness,
            place: Place::new(device.index, gids.iter().filter(|gid| gid.vlan.is_none()).map(|gid| gid.ip())),
            next_socket: 0,
            headers: Headers::new(),
            inbox: Inbox::new(Arc::clone(&solver)),
            ready: VecDeque::new(),
            solver,
            hops: HopTable::new(),
            outbox: Outbox::new(max_packet_bytes),
            retry_at: None,
            max_packet_bytes,
            counters: Counters::default(),
        })
    }

    /// The destination of the packet in the lent buffer. When its hop was replaced, the packet's addresses decide.
    fn destination(&mut self, hop: Hop, len: usize) -> Option<Destination> {
        if let Some(destination) = self.hops.use_hop(hop) {
            return Some(*destination);
        }
        let addresses = Addresses::of_packet(self.outbox.lent(len))?;
        let hop = self.hop(addresses.source(), addresses.destination()).ok()?;
        self.hops.use_hop(hop).copied()
    }

    /// Gives the packet in the lent buffer the identification that it leaves with. Returns where it goes, and its place
    /// in a run.
    fn number(&mut self, len: usize, hop: Hop) -> Option<(Destination, usize)> {
        let destination = self.destination(hop, len)?;
        let sends_runs = self.sockets[destination.socket].sends_runs;
        Some((destination, self.outbox.number(len, destination, &self.solver, sends_runs)))
    }

    /// Hands all packets to the kernel, except so many at the end.
    fn send_except(&mut self, kept: usize, now: Instant) {
        self.retry_at = None;
        while self.outbox.len() > kept && self.send_batch(kept, now) {}
    }

    /// Hands the oldest packets that leave by one socket to the kernel. True when it should be called again.
    fn send_batch(&mut self, kept: usize, now: Instant) -> bool {
        let Some(number) = self.outbox.next_socket() else { return false };
        let local = &mut self.sockets[number];
        let mut tally = Tally::default();
        let leaving = (self.outbox.len() - kept, number, &local.socket, local.scope);
        match self.outbox.send(leaving, &mut self.headers, &self.solver, &mut tally) {
            Sent::Taken => {
                self.counters.tx_frames += tally.packets;
                self.counters.tx_bytes += tally.bytes + tally.packets * ETHERNET_BYTES as u64;
                self.counters.tx_runs += tally.runs;
                self.counters.tx_run_frames += tally.run_packets;
            }
            Sent::Stalled => {
                self.counters.tx_stalls += 1;
                self.retry_at = Some(now + RETRY);
                return false;
            }
            Sent::Refused(packets) => self.counters.tx_errors += packets,
            Sent::Split { is_for_good } => {
                self.counters.tx_runs_refused += 1;
                if is_for_good {
                    local.sends_runs = local.socket.send_runs(false);
                }
            }
        }
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

/// Sockets on those of a device's addresses that are there, which programs share. Without an arbiter there are none.
/// `runs`: whether this program takes runs of packets.
fn share(
    device: &Interface,
    places: &[(IpAddr, u32)],
    arbiter: &Path,
    runs: bool,
) -> Result<Option<Sockets>, UdpOpenError> {
    let interface = || device.name.clone();
    let taken = |address| UdpOpenError::Taken { interface: interface(), address, holder: holder::port_holder(address) };
    let (lease, joined) = match Lease::take((device.index, &device.name), places, Some(arbiter), runs) {
        Ok(lease) => lease,
        Err(LeaseError::NoArbiter) => return Ok(None),
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
        Ok(Local { socket: Socket::adopt(socket, address), probe, scope, sends_runs: false })
    };
    let sockets: Vec<Local> = joined
        .into_iter()
        .map(|one| local((one.socket, one.address, one.scope)))
        .collect::<Result<_, UdpOpenError>>()?;
    if sockets.is_empty() {
        Err(UdpOpenError::NoAddress { interface: interface() })
    } else {
        Ok(Some((sockets, Some(lease))))
    }
}

/// Sockets on all addresses of a device that are there, for this program alone.
fn bind_all(device: &Interface, gids: &[Gid], interfaces: &[Interface]) -> Result<Vec<Local>, UdpOpenError> {
    let name = || device.name.clone();
    let mut sockets: Vec<Local> = Vec::new();
    for (address, scope) in places(device, gids, interfaces) {
        let bound = Socket::bind(address, scope).and_then(|socket| Ok((socket, Probe::bind(address, scope)?)));
        match bound {
            Ok((socket, probe)) => sockets.push(Local { socket, probe, scope, sends_runs: false }),
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

/// The Ethernet header of packets over sockets, of which nothing is known.
pub(super) fn ethernet_header() -> EthernetHeader {
    EthernetHeader::new([0; 6], [0; 6], None)
}

/// Writes the UDP checksum that the kernel writes into packets from sockets with runs.
fn write_udp_checksum(packet: &mut [u8]) {
    let Some(addresses) = Addresses::of_packet(packet) else { return };
    let ip_bytes = if addresses.source().is_ipv4() { 20 } else { 40 };
    let Some((header, payload)) = packet.get_mut(ip_bytes..).and_then(<[u8]>::split_first_chunk_mut::<8>) else {
        return;
    };
    let udp = UdpHeader::from_bytes(*header);
    let checksum = match addresses {
        Addresses::V4 { source, destination } => {
            udp.calc_checksum_ipv4_raw(source.octets(), destination.octets(), payload)
        }
        Addresses::V6 { source, destination } => {
            udp.calc_checksum_ipv6_raw(source.octets(), destination.octets(), payload)
        }
    };
    if let Ok(checksum) = checksum {
        header[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
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

    fn share_urgency(&mut self, own: Duration) -> Duration {
        self.lease.as_ref().map_or(Duration::ZERO, |lease| lease.share_urgency(own))
    }

    fn take_requests(&mut self, requests: Requests) -> io::Result<()> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.take_requests(requests))
    }

    fn leave_requests(&mut self, requests: Requests) {
        self.lease.iter().for_each(|lease| lease.leave_requests(requests));
    }

    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        let before = frames.len();
        frames.extend(self.ready.drain(..budget.min(self.ready.len())));
        let count = self.sockets.len() + self.groups.len();
        // Another socket comes first every time, so that a busy one does not starve the others.
        self.next_socket = (self.next_socket + 1) % count;
        for step in 0..count {
            let left = budget.saturating_sub(frames.len() - before);
            if left == 0 {
                break;
            }
            let number = (self.next_socket + step) % count;
            let socket = match number.checked_sub(self.sockets.len()) {
                None => &self.sockets[number].socket,
                Some(group) => &self.groups[group],
            };
            self.inbox.receive(socket, now, left, frames);
        }
        self.ready.extend(frames.drain(frames.len().min(before + budget)..));
        self.counters.rx_bytes += frames[before..].iter().map(|frame| frame.bytes().len() as u64).sum::<u64>();
        let number = frames.len() - before;
        self.counters.rx_frames += number as u64;
        number
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        let buffer = self.outbox.lend();
        self.counters.tx_no_buffer += u64::from(buffer.is_none());
        buffer
    }

    fn finish(&mut self, len: usize, hop: Hop) {
        if let Some((destination, _)) = self.number(len, hop)
            && self.sockets[destination.socket].sends_runs
        {
            write_udp_checksum(self.outbox.lent(len));
        }
    }

    fn transmit(&mut self, _now: Instant, len: usize, hop: Hop) {
        assert!(len > 0, "a packet of no bytes");
        match self.number(len, hop) {
            Some((destination, place)) => self.outbox.queue(len, destination, place),
            None => {
                self.counters.tx_errors += 1;
                self.outbox.drop_lent();
            }
        }
    }

    fn flush(&mut self, now: Instant) {
        self.send_except(0, now);
    }

    fn flush_whole_runs(&mut self, now: Instant) -> usize {
        let kept = self.outbox.open_run();
        self.send_except(kept, now);
        kept
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
        if self.ready.is_empty() { self.retry_at } else { Some(Instant::ZERO) }
    }

    fn mode(&self) -> String {
        "udp".to_owned()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let own = self.sockets.iter().map(|local| &local.socket);
        let dropped = own.chain(&self.groups).map(Socket::dropped).sum();
        let counted = self.counters.list().chain(self.inbox.counters.list());
        counted.chain([("rx_dropped_by_kernel", dropped)]).collect()
    }
}
