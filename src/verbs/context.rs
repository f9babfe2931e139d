use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::rand::GetRandomFlags;

use crate::Forked;
use crate::congestion::Rate;
use crate::engine::{Engine, poll_readable};
use crate::link::device::{Device, Gid};
use crate::link::{HopError, Link};
use crate::memory::{Access, HostMemory, Lent, MapError, Pd, RegisterError, WindowKind};
use crate::path::PathPolicy;
use crate::time::Instant;
use crate::transport::{self, Capabilities, CreateError, Event, Path, QueuePairInit, RecoveryMode, Service, SrqError};
use crate::wire::{Addresses, Flow, PathMtu, Psn, Qpn};

use super::open_link::addresses;
use super::{
    CompletionChannel, CompletionQueue, MemoryRegion, MemoryWindow, OpenError, OpenOptions, QueuePair, Registration,
    SharedReceiveQueue,
};

/// A device that is open, and the engine that drives it.
///
/// It belongs to the process that opened it. In a child made by fork(2) the context, and all objects made from it, are
/// dead. Calls there fail with an error (`Forked`) or do nothing, and nothing that the child does reaches the parent. A
/// child must open the device anew.
#[derive(Debug)]
pub struct Context {
    engine: Arc<Engine>,
    device: Arc<Device>,
    path_mtu: PathMtu,
    why_not_xdp: Option<String>,
}

/// How to reach a peer: the address vector of an address handle or connection (IBTA 11.2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The index of our address in the device's GID table, from 0.
    pub source_gid_index: usize,
    /// The peer's GID; `::ffff:a.b.c.d` for an IPv4 address.
    pub destination_gid: Ipv6Addr,
    /// DSCP (upper six bits) and ECN (lower two).
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 counts as 64, as with rxe.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Why there is no path to a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The GID table has no entry at the index.
    #[error("{device} has no GID with index {index}: there are {count}, see `uroce devices`")]
    NoSuchGid {
        /// The name of the device.
        device: String,
        /// The index that was given.
        index: usize,
        /// The number of GIDs in the table.
        count: usize,
    },
    /// One address is IPv4 and the other IPv6.
    #[error("GID {index} is {own}, the peer's is {peer}: one is IPv4, the other IPv6; choose another GID index")]
    Family {
        /// The index of our GID.
        index: usize,
        /// The address of our GID.
        own: IpAddr,
        /// The address of the peer.
        peer: IpAddr,
    },
    /// The kernel has no route to the peer by this device.
    #[error(transparent)]
    Hop(#[from] HopError),
}

/// The hop limit when none is given (rxe_av.c, and the kernel's default TTL).
const DEFAULT_HOP_LIMIT: u8 = 64;

impl Context {
    /// Opens a device, as [`OpenOptions::open`].
    ///
    /// # Errors
    /// [`OpenError`] states in one line what is missing, where, and the remedy.
    pub fn open(options: &OpenOptions) -> Result<Context, OpenError> {
        if options.device.is_none() && !options.rails.is_empty() {
            return Err(OpenError::NoFirst { rails: options.rails.len() });
        }
        let names: Vec<String> = options.device.iter().chain(&options.rails).cloned().collect();
        let mut devices = Device::find_all(&names)?;
        let (link, why_not_xdp) = options.open_link(&devices)?;
        let rails = devices.iter().skip(1).map(addresses).collect();
        let mut context = Context::with_link(devices.swap_remove(0), link)?;
        context.engine.without_sending(|core, _| {
            core.endpoint.set_local_rails(rails);
        });
        context.path_mtu = options.path_mtu.map_or(context.path_mtu, |limit| limit.min(context.path_mtu));
        context.set_recovery(options.recovery.unwrap_or_default(), options.rate);
        context.set_paths(options.paths, options.path_policy);
        context.why_not_xdp = why_not_xdp;
        Ok(context)
    }

    /// Opens a device over a link that is already open.
    ///
    /// # Errors
    /// [`OpenError::Mtu`] when the link cannot carry the smallest path MTU; [`OpenError::Engine`] when the kernel gives
    /// no thread, descriptor or randomness.
    pub fn with_link(device: Device, link: Box<dyn Link>) -> Result<Context, OpenError> {
        let bytes = link.max_packet_bytes();
        let Some(path_mtu) = PathMtu::fitting(bytes) else {
            return Err(OpenError::Mtu { device: device.name, bytes });
        };
        let engine = Arc::new(Engine::start(link, system_randomness()?)?);
        engine.without_sending(|core, _| core.endpoint.set_local_addresses(addresses(&device)));
        Ok(Context { engine, device: Arc::new(device), path_mtu, why_not_xdp: None })
    }

    /// Sets how queue pairs that are created from now on recover losses, and the rate that they keep to
    /// (docs/EXTENSIONS.md).
    pub fn set_recovery(&self, recovery: RecoveryMode, rate: Option<Rate>) {
        self.engine.without_sending(|core, _| {
            let settings = core.endpoint.recovery().on_link(recovery, rate, core.link.max_packet_bytes());
            core.endpoint.set_recovery(settings);
        });
    }

    /// Sets how many paths queue pairs that are created from now on use, and how, as [`OpenOptions::paths`]. It applies
    /// to peers that understand the extension.
    pub fn set_paths(&self, paths: Option<u16>, policy: PathPolicy) {
        self.engine.without_sending(|core, _| {
            let (settings, interfaces) = (core.endpoint.recovery(), core.endpoint.local_rails().len() as u16 + 1);
            core.endpoint.set_recovery(match paths {
                Some(paths) => settings.with_paths(paths, policy),
                None => settings.with_paths_as_peer(interfaces, policy),
            });
        });
    }

    /// The device as it was when it was opened.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The mode of the link, in one word: `xdp-native-copy`, for example.
    pub fn link_mode(&self) -> String {
        self.engine.with(|core, _| core.link.mode())
    }

    /// Why [`LinkKind::Auto`](super::LinkKind::Auto) chose UDP sockets instead of AF_XDP, in one line; `None`
    /// otherwise.
    pub fn why_not_xdp(&self) -> Option<&str> {
        self.why_not_xdp.as_deref()
    }

    /// The GID table of the device, from index 0 on.
    pub fn gids(&self) -> &[Gid] {
        &self.device.gids
    }

    /// The largest path MTU that the link can carry, or [`OpenOptions::path_mtu`] if that is smaller.
    pub fn active_mtu(&self) -> PathMtu {
        self.path_mtu
    }

    /// Allocates a new protection domain.
    pub fn allocate_pd(&self) -> ProtectionDomain {
        let pd = self.engine.with(|core, _| core.endpoint.allocate_pd());
        ProtectionDomain { engine: self.engine.clone(), device: self.device.clone(), pd, path_mtu: self.path_mtu }
    }

    /// Creates a completion queue of `capacity` completions; 0 counts as 1. It does not notify.
    pub fn create_completion_queue(&self, capacity: usize) -> CompletionQueue {
        CompletionQueue::new(self.engine.clone(), transport::CompletionRing::new(capacity, || {}))
    }

    /// Creates a completion queue of `capacity` completions that notifies over `channel`.
    pub fn create_completion_queue_on(&self, capacity: usize, channel: &CompletionChannel) -> CompletionQueue {
        self.create_completion_queue_with(capacity, false, channel.notifier())
    }

    /// Creates a completion queue that notifies by a call of `on_notify`, in whichever thread drives the engine.
    ///
    /// The function must be short, and use nothing of this context: the engine is locked. With `ignores_overrun`, a
    /// completion replaces the oldest one of a full queue, instead of putting the queue into error
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    pub fn create_completion_queue_with(
        &self,
        capacity: usize,
        ignores_overrun: bool,
        on_notify: impl Fn() + Send + Sync + 'static,
    ) -> CompletionQueue {
        let queue = transport::CompletionRing::new(capacity, on_notify);
        let queue = if ignores_overrun { queue.ignoring_overrun() } else { queue };
        CompletionQueue::new(self.engine.clone(), queue)
    }

    /// The path from one of our GIDs to a peer, for a connection between two queue pairs. Its UDP source port follows
    /// from both numbers as with rxe, so that both directions use the same.
    ///
    /// # Errors
    /// [`PathError`] when the GID index is out of range, the address families differ, or the kernel has no route.
    pub fn path(&self, vector: &AddressVector, local: Qpn, remote: Qpn) -> Result<Path, PathError> {
        find_path(&self.engine, &self.device, vector, source_port(local, remote))
    }

    /// The path for datagrams: an address handle. Its UDP source port follows from our queue pair's number.
    ///
    /// # Errors
    /// As [`path`](Self::path).
    pub fn address_handle(&self, vector: &AddressVector, local: Qpn) -> Result<Path, PathError> {
        find_path(&self.engine, &self.device, vector, source_port(local, local))
    }

    /// A random first PSN, which no one can predict.
    pub fn random_psn(&self) -> Psn {
        self.engine.with(|core, _| core.endpoint.memory().keys().psn())
    }

    /// Passes asynchronous events to `on_event` from now on, instead of keeping them for
    /// [`poll_event`](Context::poll_event).
    ///
    /// The thread that drives the engine calls the function. It must be short, and use nothing of this context: the
    /// engine is locked. Only the first call of this method has an effect.
    pub fn set_event_handler(&self, on_event: impl Fn(Event) + Send + Sync + 'static) {
        self.engine.set_event_handler(Box::new(on_event));
    }

    /// Sends what peers are owed, above all acknowledges, and writes the capture to its file. It is for programs that
    /// exit without dropping the context.
    ///
    /// It gives up after `patience` when another thread does not release the engine. Returns whether it was done.
    pub fn settle(&self, patience: Duration) -> bool {
        self.engine.settle(patience)
    }

    /// Takes the oldest asynchronous event; `None` when there is none.
    pub fn poll_event(&self) -> Option<Event> {
        self.engine.with(|core, _| core.endpoint.poll_event())
    }

    /// A descriptor that is readable while there are events for [`poll_event`](Context::poll_event), for poll(2) and
    /// its like. Programs must not read from it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.engine.event_fd()
    }

    /// Sleeps until an event, a signal or the end of `timeout`, and takes the event; `None`
    /// when there is none.
    ///
    /// # Errors
    /// [`io::Error`] when poll(2) fails, except for a signal; and in a child of the process that opened the device.
    pub fn wait_event(&self, timeout: Duration) -> io::Result<Option<Event>> {
        if self.engine.is_forked() {
            return Err(io::Error::other(Forked));
        }
        if let Some(event) = self.poll_event() {
            return Ok(Some(event));
        }
        self.engine.will_sleep();
        poll_readable(self.event_fd(), timeout)?;
        Ok(self.poll_event())
    }

    /// The time of the clock that stamps completions: the Unix time when the device was opened, continued by the
    /// monotonic clock.
    pub fn now(&self) -> Instant {
        self.engine.now()
    }

    /// All counters, by name: the transport's, then the link's.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.with(|core, _| core.endpoint.counters().list().chain(core.link.counters()).collect())
    }
}

/// A protection domain: its regions and queue pairs work together. A clone is the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    engine: Arc<Engine>,
    device: Arc<Device>,
    pd: Pd,
    path_mtu: PathMtu,
}

impl ProtectionDomain {
    /// Maps `len` bytes of zeroed memory, and registers them.
    ///
    /// # Errors
    /// [`MapError`] when the kernel gives no memory.
    pub fn allocate_region(&self, len: usize, access: Access) -> Result<MemoryRegion, MapError> {
        let memory = Arc::new(HostMemory::new(len)?);
        let key = self.engine.with(|core, _| core.endpoint.memory().register(self.pd, memory.clone(), access));
        Ok(MemoryRegion::new(self.engine.clone(), memory, access, key))
    }

    /// Registers `len` bytes at `start` that the program lends. Peers address them from `iova` on, or from 0 on with
    /// [`Access::ZERO_BASED`].
    ///
    /// The pages are populated now. Access to pages that the program unmaps later is an access error, not a fault.
    ///
    /// # Errors
    /// [`RegisterError`] when a page is not mapped, or not writable although the access needs that.
    ///
    /// # Safety
    /// - The owner of the memory must expect peers to read it, and to write it as `access` allows, until the
    ///   registration is dropped.
    /// - The owner can unmap the memory before. Memory that is mapped at the same addresses later is read and written
    ///   then.
    /// - The handler that makes a copy of unmapped memory fail must stay. A program that has a handler of its own for
    ///   SIGSEGV or SIGBUS must install it before.
    /// - Threads must not block these signals once they have worked with the context
    ///   ([`faults`](crate::memory::faults)).
    pub unsafe fn register_borrowed(
        &self,
        start: *mut u8,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        // Before the engine is locked: many pages take long.
        let lent = Lent::populate(start, len, access)?;
        // SAFETY: the caller's promise is the same.
        let key = self.engine.with(|core, _| unsafe { core.endpoint.memory().register_borrowed(self.pd, lent, iova) });
        Ok(Registration::new(self.engine.clone(), key))
    }

    /// Registers a key without memory, for local requests with any address and length. What they read is zeros, and
    /// what they write is discarded.
    pub fn register_null(&self) -> Registration {
        let key = self.engine.with(|core, _| core.endpoint.memory().register_null(self.pd));
        Registration::new(self.engine.clone(), key)
    }

    /// The number of the domain, for [`Registration::reregister`].
    pub(super) fn number(&self) -> Pd {
        self.pd
    }

    /// Allocates a memory window, not yet bound.
    pub fn allocate_window(&self, kind: WindowKind) -> MemoryWindow {
        let key = self.engine.with(|core, _| core.endpoint.memory().allocate_window(self.pd, kind));
        MemoryWindow::new(self.engine.clone(), key)
    }

    /// Creates a queue pair, in the `RESET` state.
    ///
    /// # Errors
    /// [`CreateError`] when a capacity is out of range, there are too many queue pairs, or the shared receive queue is
    /// missing.
    pub fn create_queue_pair(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, CreateError> {
        let init = QueuePairInit {
            service: options.service,
            pd: self.pd,
            capabilities: options.capabilities,
            send_cq: options.send.ring().clone(),
            receive_cq: options.receive.ring().clone(),
            srq: options.srq.map(SharedReceiveQueue::number),
            path_mtu: self.path_mtu,
        };
        let (qpn, first_psn) = self.engine.with(|core, _| {
            let qpn = core.endpoint.create_queue_pair(init)?;
            Ok::<_, CreateError>((qpn, core.endpoint.memory().keys().psn()))
        })?;
        let (engine, device) = (self.engine.clone(), self.device.clone());
        Ok(QueuePair { engine, device, qpn, first_psn, path_mtu: self.path_mtu })
    }

    /// Creates a receive queue of `capacity` requests, 1 to 65536, for several queue pairs.
    ///
    /// # Errors
    /// [`SrqError::Size`] when `capacity` is out of range; [`SrqError::Forked`] in a child.
    pub fn create_shared_receive_queue(&self, capacity: usize) -> Result<SharedReceiveQueue, SrqError> {
        let srq = self.engine.with(|core, _| core.endpoint.create_srq(self.pd, capacity))?;
        Ok(SharedReceiveQueue::new(self.engine.clone(), srq))
    }
}

/// The options for a queue pair: its service, its queues and their sizes.
///
/// ```
/// # use uroce::verbs::{Capabilities, CompletionQueue, QueuePairOptions, Service};
/// # fn options(cq: &CompletionQueue) {
/// let capabilities = Capabilities { max_send_requests: 1024, max_receive_requests: 1 };
/// let options = QueuePairOptions { capabilities, ..QueuePairOptions::new(Service::Rc, cq) };
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOptions<'a> {
    /// The transport service of the queue pair.
    pub service: Service,
    /// The capacities of its send and receive queue, in requests.
    pub capabilities: Capabilities,
    /// The queue for completions of send requests.
    pub send: &'a CompletionQueue,
    /// The queue for completions of receive requests.
    pub receive: &'a CompletionQueue,
    /// The shared receive queue; `None` for a receive queue of its own.
    pub srq: Option<&'a SharedReceiveQueue>,
}

impl<'a> QueuePairOptions<'a> {
    /// Options with room for 128 requests of each kind, whose completions all go to `cq`.
    pub fn new(service: Service, cq: &'a CompletionQueue) -> QueuePairOptions<'a> {
        let capabilities = Capabilities { max_send_requests: 128, max_receive_requests: 128 };
        QueuePairOptions { service, capabilities, send: cq, receive: cq, srq: None }
    }
}

/// Resolves the path from one of a device's GIDs to a peer, over the device's link.
pub(super) fn find_path(
    engine: &Engine,
    device: &Device,
    vector: &AddressVector,
    source_port: u16,
) -> Result<Path, PathError> {
    let index = vector.source_gid_index;
    let (own, peer) = (gid_of(device, index)?.ip(), IpAddr::V6(vector.destination_gid).to_canonical());
    let addresses = Addresses::new(own, peer).ok_or(PathError::Family { index, own, peer })?;
    let hop = engine.with(|core, _| core.link.hop(own, peer))?;
    let flow = Flow {
        addresses,
        source_port,
        traffic_class: vector.traffic_class,
        hop_limit: if vector.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { vector.hop_limit },
        flow_label: vector.flow_label,
    };
    Ok(Path { flow, hop })
}

/// The device's GID at the index.
pub(super) fn gid_of(device: &Device, index: usize) -> Result<&Gid, PathError> {
    let (name, count) = (&device.name, device.gids.len());
    device.gids.get(index).ok_or_else(|| PathError::NoSuchGid { device: name.clone(), index, count })
}

/// The UDP source port of a connection, in the dynamic range from 49152 on: both numbers folded, the same in both
/// directions (rdma_calc_flow_label and rdma_flow_label_to_udp_sport in the kernel's ib_verbs.h).
pub fn source_port(local: Qpn, remote: Qpn) -> u16 {
    let mut v = u64::from(local.value()) * u64::from(remote.value());
    v ^= v >> 20;
    v ^= v >> 40;
    let label = (v & 0xf_ffff) as u32;
    0xc000 | ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) as u16
}

fn system_randomness() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    // Up to 256 bytes come whole (random(4)).
    rustix::rand::getrandom(&mut seed, GetRandomFlags::empty())?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_the_same_both_ways_and_rxes() {
        // From a capture of a Linux 6.1 rxe peer: queue pairs 0x11 and 0x12.
        assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x12)), 0xc000 | 0x132);
        for (a, b) in [(1, 2), (0xabcdef, 0x123456), (0xffffff, 0xfffffe)] {
            let (a, b) = (Qpn::new(a), Qpn::new(b));
            assert_eq!(source_port(a, b), source_port(b, a));
            assert!(source_port(a, b) >= 0xc000);
        }
    }
}
