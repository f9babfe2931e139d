use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::rand::GetRandomFlags;

use crate::Forked;
use crate::congestion::{CongestionControl, FlowStatus, Rate};
use crate::engine::{Engine, poll_readable};
use crate::link::Link;
use crate::link::device::{Device, Gid};
use crate::path::PathPolicy;
use crate::time::Instant;
use crate::transport::{self, Event, Path, RecoveryMode};
use crate::wire::{PathMtu, Psn, Qpn};

use super::address_vector::{find_path, label_port};
use super::open_link::{addresses, line_rate};
use super::publication::Publication;
use super::ruling::DevicePolicy;
use super::{
    AddressVector, CompletionChannel, CompletionQueue, OpenError, OpenOptions, PathError, ProtectionDomain,
    TrafficPolicy, source_port,
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
    policy: Option<Arc<DevicePolicy>>,
    publication: Option<Publication>,
}

impl Context {
    /// Opens a device, as [`OpenOptions::open`].
    ///
    /// # Errors
    /// [`OpenError`] states in one line what is missing, where, and the remedy.
    pub fn open(options: &OpenOptions) -> Result<Context, OpenError> {
        if options.device.is_none() && !options.rails.is_empty() {
            return Err(OpenError::NoFirst { rails: options.rails.len() });
        }
        let policy = options.policy.as_deref().map(TrafficPolicy::read).transpose()?;
        let names: Vec<String> = options.device.iter().chain(&options.rails).cloned().collect();
        let mut devices = Device::find_all(&names)?;
        let line_rate = line_rate(&devices);
        if let Some(policy) = &policy {
            policy.check(&devices[0].name, line_rate)?;
        }
        let (link, why_not_xdp) = options.open_link(&devices)?;
        let rails = devices.iter().skip(1).map(addresses).collect();
        let mut context = Context::with_link(devices.swap_remove(0), link)?;
        context.engine.without_sending(|core, _| {
            core.endpoint.set_local_rails(rails);
            let settings = core.endpoint.recovery().with_line_rate(line_rate);
            core.endpoint.set_recovery(settings);
        });
        context.path_mtu = options.path_mtu.map_or(context.path_mtu, |limit| limit.min(context.path_mtu));
        context.set_congestion(options.congestion);
        context.set_recovery(options.recovery.unwrap_or_default(), options.rate);
        context.set_paths(options.paths, options.path_policy);
        context.why_not_xdp = why_not_xdp;
        context.policy = policy.map(|policy| Arc::new(DevicePolicy::new(policy, line_rate)));
        if let Some(cap) = context.policy.as_ref().and_then(|policy| policy.scavenger_cap()) {
            context.engine.without_sending(|core, _| core.endpoint.set_scavenger_cap(Some(cap)));
        }
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
        engine.without_sending(|core, _| {
            core.endpoint.set_local_addresses(addresses(&device));
            let settings = core.endpoint.recovery().with_line_rate(line_rate(std::slice::from_ref(&device)));
            core.endpoint.set_recovery(settings);
            if let Some(slot) = core.link.slot() {
                core.endpoint.set_host_slot(slot);
            }
        });
        Ok(Context { engine, device: Arc::new(device), path_mtu, why_not_xdp: None, policy: None, publication: None })
    }

    /// Sets what decides how fast queue pairs send that are created from now on.
    pub fn set_congestion(&self, congestion: CongestionControl) {
        self.engine.without_sending(|core, _| {
            let settings = core.endpoint.recovery().with_congestion(congestion);
            core.endpoint.set_recovery(settings);
        });
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

    /// Gives this user's other processes a [`Snapshot`](super::Snapshot) of the device when they ask, as `uroce stat`
    /// does ([`Published`](super::Published)), until the context is dropped. No packet pays for it: a thread sleeps
    /// until somebody asks, and then takes the engine's lock once.
    ///
    /// # Errors
    /// [`io::Error`] when the kernel gives no socket or thread.
    pub fn publish(&mut self) -> io::Result<()> {
        self.publication = Some(Publication::begin(self.share())?);
        Ok(())
    }

    /// Another handle of the same device, for what works beside the program.
    pub(super) fn share(&self) -> Context {
        let Context { engine, device, path_mtu, why_not_xdp, policy, publication: _ } = self;
        let (engine, device, why_not_xdp) = (engine.clone(), device.clone(), why_not_xdp.clone());
        Context { engine, device, path_mtu: *path_mtu, why_not_xdp, policy: policy.clone(), publication: None }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A slot of twelve bits, which packets find this program by, and a random number.
    pub(super) fn random_ids(&self) -> (u16, u64) {
        self.engine.with(|core, _| {
            let slot = core.endpoint.draw_slot();
            let keys = core.endpoint.memory().keys();
            (slot, u64::from(keys.next_u32()) << 32 | u64::from(keys.next_u32()))
        })
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
        let (engine, device, policy) = (self.engine.clone(), self.device.clone(), self.policy.clone());
        ProtectionDomain { engine, device, pd, path_mtu: self.path_mtu, policy }
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

    /// The path from one of our GIDs to a peer, for a connection between two queue pairs.
    ///
    /// Its UDP source port follows from the flow label if there is one, otherwise from both numbers, as with rxe
    /// (rdma_get_udp_sport in the kernel's ib_verbs.h). So both directions use the same.
    ///
    /// # Errors
    /// [`PathError`] when the GID index is out of range, the address families differ, or the kernel has no route.
    pub fn path(&self, vector: &AddressVector, local: Qpn, remote: Qpn) -> Result<Path, PathError> {
        let source_port = match vector.flow_label {
            0 => source_port(local, remote),
            label => label_port(label),
        };
        find_path(&self.engine, &self.device, vector, source_port)
    }

    /// The path for datagrams: an address handle. Its UDP source port follows from our queue pair's number.
    ///
    /// # Errors
    /// As [`path`](Self::path).
    pub fn address_handle(&self, vector: &AddressVector, local: Qpn) -> Result<Path, PathError> {
        let path = find_path(&self.engine, &self.device, vector, source_port(local, local))?;
        match &self.policy {
            Some(policy) if local != Qpn::GSI => Ok(policy.datagram_path(path)),
            _ => Ok(path),
        }
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
        self.engine.with(|core, _| core.counters())
    }

    /// What the congestion controllers of queue pairs do and know now, by queue pair number. Queue pairs that have sent
    /// nothing yet, and those without a controller, are left out.
    pub fn flows(&self) -> BTreeMap<Qpn, FlowStatus> {
        self.engine.with(|core, _| core.endpoint.flows().collect())
    }
}

fn system_randomness() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    // Up to 256 bytes come whole (random(4)).
    rustix::rand::getrandom(&mut seed, GetRandomFlags::empty())?;
    Ok(seed)
}
