//! Identifiers: what a program has of a connection, a listener or a datagram service.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uroce::cm::message::{Reply, Request};
use uroce::cm::{Id, IpCmHeader, Listener, PortSpace};
use uroce::verbs::Class;
use uroce::wire::{Addresses, PathMtu};

use crate::abi::*;
use crate::error::{Failure, minus_one};
use crate::kernel::Path;
use crate::queue::{Acknowledged, EventQueue};
use crate::slab::{Object, Ref, Slab};

use super::event::{Kind, Param, Pending};
use super::host::Host;
use super::names::Resolution;
use super::{address, channel, event};

/// An identifier.
pub(crate) struct CmId {
    /// How many of its events the program has, and has acknowledged.
    pub acknowledged: Arc<Acknowledged>,
    inner: Mutex<Inner>,
}

/// What changes of an identifier.
pub(super) struct Inner {
    pub phase: Phase,
    pub space: PortSpace,
    /// `enum ibv_qp_type` of its queue pair.
    pub qp_type: c_int,
    /// Whether its calls wait for their events.
    pub is_sync: bool,
    /// The events of its channel.
    pub events: Arc<EventQueue<Pending>>,
    /// Whether the channel is its own, and goes with it.
    pub owns_channel: bool,
    pub host: Option<Arc<Host>>,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    pub may_share_port: bool,
    /// Whether it stays with the family of its address where that is all addresses (`RDMA_OPTION_ID_AFONLY`).
    pub is_family_only: bool,
    pub traffic_class: u8,
    /// The code of the time for an acknowledge, if the program has set it.
    pub ack_timeout: Option<u8>,
    pub connection: Option<Id>,
    pub listeners: Vec<(Arc<Host>, Listener)>,
    /// What is known of the peer's queue pair.
    pub peer: Peer,
    /// The first PSN that we expect, as the peer is told.
    pub psn: u32,
    /// READs and atomics that we accept, and that we have in flight.
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    /// The route, as programs read it.
    pub route: Option<Box<Path>>,
    /// What `rdma_create_ep` got for queue pairs of connections to come.
    pub template: Option<(usize, IbvQpInitAttr)>,
    /// What `rdma_create_ep` got for the request.
    pub connect_data: Vec<u8>,
    /// What `rdma_resolve_addrinfo` has found.
    pub resolution: Resolution,
}

// SAFETY: the pointers in the template are only given back to the program's calls.
unsafe impl Send for Inner {}

/// How far an identifier is (`enum rdma_cm_state` in the kernel).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    Resolved,
    Routed,
    Listening,
    /// There is, or was, a connection.
    Connected,
}

/// What is known of the peer's queue pair, and of the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub qpn: u32,
    /// The first PSN that it expects, and so the first that we send.
    pub psn: u32,
    pub path_mtu: PathMtu,
    pub flow_label: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub ack_timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer {
            qpn: 0,
            psn: 0,
            path_mtu: PathMtu::Mtu1024,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 0,
            ack_timeout: ACK_TIMEOUT,
            retry_count: 7,
            rnr_retry: 7,
            responder_resources: 0,
            initiator_depth: 0,
        }
    }
}

impl Peer {
    /// What we accept is what the peer may have in flight.
    pub fn of_request(request: &Request) -> Peer {
        Peer {
            qpn: request.qpn.value(),
            psn: request.psn.value(),
            path_mtu: request.path_mtu,
            flow_label: request.flow_label,
            traffic_class: Class::traffic_class(request.traffic_class, request.sl),
            hop_limit: request.hop_limit,
            ack_timeout: request.ack_timeout,
            retry_count: request.retry_count,
            rnr_retry: request.rnr_retry,
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
        }
    }
}

/// The code of the time for an acknowledge, 0.5 s: that of packets on a RoCE path, and one more for the way back
/// (CMA_IBOE_PACKET_LIFETIME in newer kernels' cma.c).
pub(super) const ACK_TIMEOUT: u8 = 17;

/// `enum ibv_qp_type`.
pub(super) const RC: c_int = 2;
pub(super) const UD: c_int = 4;

impl Object for CmId {
    type C = RdmaCmId;
    const CAPACITY: usize = 1 << 17;

    fn slab() -> &'static Slab<CmId> {
        static SLAB: Slab<CmId> = Slab::new();
        &SLAB
    }
}

impl CmId {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn get(id: *const RdmaCmId) -> Result<Ref<CmId>, Failure> {
    CmId::slab().get(id).ok_or_else(|| Failure::handle("identifier"))
}

impl Inner {
    fn new(space: PortSpace, qp_type: c_int, events: Arc<EventQueue<Pending>>) -> Inner {
        Inner {
            phase: Phase::Idle,
            space,
            qp_type,
            is_sync: false,
            events,
            owns_channel: false,
            host: None,
            local: None,
            remote: None,
            may_share_port: false,
            is_family_only: false,
            traffic_class: 0,
            ack_timeout: None,
            connection: None,
            listeners: Vec::new(),
            peer: Peer::default(),
            psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry: 7,
            route: None,
            template: None,
            connect_data: Vec::new(),
            resolution: Resolution::default(),
        }
    }

    pub fn host(&self) -> Result<Arc<Host>, Failure> {
        let unbound = || Failure::new(libc::EINVAL, "the identifier is bound to no device: resolve an address first");
        self.host.clone().ok_or_else(unbound)
    }

    /// From us to the peer.
    pub fn addresses(&self) -> Result<Addresses, Failure> {
        let both = self.local.zip(self.remote);
        let found = both.and_then(|(local, remote)| Addresses::new(local.ip(), remote.ip()));
        found.ok_or_else(|| Failure::new(libc::EINVAL, "the identifier has no peer's address: resolve it first"))
    }

    pub fn is_phase(&self, phases: &[Phase]) -> Result<(), Failure> {
        if phases.contains(&self.phase) {
            return Ok(());
        }
        let words = match self.phase {
            Phase::Idle => "not bound",
            Phase::Bound => "bound to an address, but no peer's is resolved",
            Phase::Resolved => "without a route: resolve it first",
            Phase::Routed => "not connected",
            Phase::Listening => "listening",
            Phase::Connected => "connected, or was",
        };
        Err(Failure::new(libc::EINVAL, format_args!("the identifier is {words}")))
    }
}

/// Adds an event to its identifier's channel.
pub(super) fn push(pending: Pending) {
    let Ok(id) = get(pending.id as *const RdmaCmId) else { return };
    let events = id.lock().events.clone();
    events.push(pending, || true);
}

/// The peer has accepted.
pub(super) fn accepted(id: *const RdmaCmId, reply: &Reply) {
    let Ok(id) = get(id) else { return };
    let mut inner = id.lock();
    inner.peer.qpn = reply.qpn.value();
    inner.peer.psn = reply.psn.value();
    inner.peer.rnr_retry = reply.rnr_retry;
    inner.responder_resources = reply.initiator_depth;
    inner.initiator_depth = reply.responder_resources;
}

pub(super) fn no_param() -> RdmaConnParam {
    RdmaConnParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

/// Parameters of datagrams without an address.
pub(super) fn datagrams(qp_num: u32, qkey: u32) -> Param {
    Param::Datagrams { ah_attr: IbvAhAttr::default(), qp_num, qkey }
}

/// Parameters of the peer's datagram service.
pub(super) fn service(id: *const RdmaCmId, qp_num: u32, qkey: u32) -> Param {
    let Ok(id) = get(id) else { return datagrams(qp_num, qkey) };
    let ah_attr = super::queue_pair::address_vector(&id.lock()).unwrap_or_default();
    Param::Datagrams { ah_attr, qp_num, qkey }
}

fn insert(inner: Inner, context: *mut c_void, channel: *mut RdmaEventChannel) -> Result<NonNull<RdmaCmId>, Failure> {
    let (space, qp_type) = (inner.space, inner.qp_type);
    let made = CmId::slab().insert(|c| {
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut fresh: RdmaCmId = unsafe { std::mem::zeroed() };
        (fresh.context, fresh.channel) = (context, channel);
        (fresh.ps, fresh.qp_type) = (c_int::from(space.number()), qp_type);
        // SAFETY: the slab passes room for it.
        unsafe { c.write(fresh) };
        CmId { acknowledged: Arc::new(Acknowledged::default()), inner: Mutex::new(inner) }
    });
    made.ok_or_else(|| Failure::new(libc::ENOMEM, "too many identifiers"))
}

/// Writes the identifier's device and addresses to where programs read them.
pub(super) fn show(id: &Ref<CmId>, inner: &Inner) {
    let c = id.c().as_ptr();
    // SAFETY: the slot's structure, which holds as many bytes.
    unsafe {
        if let Some(host) = &inner.host {
            (*c).verbs = host.context();
            (*c).port_num = 1;
            if (*c).pd.is_null() {
                (*c).pd = host.default_pd();
            }
        }
        if let Some(local) = inner.local {
            (*c).route.addr.source = address::storage(local).0;
            (*c).route.addr.source_gid = address::gid(local.ip()).octets();
        }
        if let Some(remote) = inner.remote {
            (*c).route.addr.destination = address::storage(remote).0;
            (*c).route.addr.destination_gid = address::gid(remote.ip()).octets();
        }
        (*c).route.addr.p_key = 0xffff;
        if let Some(route) = &inner.route {
            (*c).route.path_rec = (&raw const **route).cast_mut().cast();
            (*c).route.num_paths = 1;
        }
    }
}

/// What a peer asks a listener for.
pub(super) struct Asked {
    /// From us to the peer.
    pub addresses: Addresses,
    pub peer: Peer,
    pub private_data: Vec<u8>,
    pub param: Param,
}

/// Makes the identifier of a connection that a peer asks for, and tells the listener's channel.
pub(super) fn child(host: &Arc<Host>, listen: *const RdmaCmId, connection: Id, asked: Asked) -> Result<(), Failure> {
    let Asked { addresses, peer, private_data, param } = asked;
    let listening = get(listen)?;
    let parent = listening.lock();
    // Its destruction has begun: it takes no more requests out of its channel.
    parent.is_phase(&[Phase::Listening])?;
    let header = IpCmHeader::parse(&private_data);
    let peers_port = header.map_or(0, |header| header.source_port);
    let own_port = parent.local.map_or(0, |local| local.port());
    let mut inner = Inner::new(parent.space, parent.qp_type, parent.events.clone());
    inner.phase = Phase::Connected;
    inner.host = Some(host.clone());
    inner.local = Some(SocketAddr::new(addresses.source(), own_port));
    inner.remote = Some(SocketAddr::new(addresses.destination(), peers_port));
    inner.connection = Some(connection);
    inner.peer = peer;
    (inner.responder_resources, inner.initiator_depth) = (peer.responder_resources, peer.initiator_depth);
    (inner.retry_count, inner.rnr_retry) = (peer.retry_count, peer.rnr_retry);
    inner.psn = host.opened.context.random_psn().value();
    // SAFETY: the slot's structure.
    let (context, channel) = unsafe { ((*listening.c().as_ptr()).context, (*listening.c().as_ptr()).channel) };
    let made = insert(inner, context, channel)?;
    let id = get(made.as_ptr())?;
    show(&id, &id.lock());
    host.routes.connections.lock().unwrap_or_else(PoisonError::into_inner).insert(connection, made.as_ptr() as usize);
    // The program's part of the data follows the header.
    let data = if header.is_some() { &private_data[IpCmHeader::BYTES..] } else { &private_data[..] };
    let pending = Pending {
        listen: listen as usize,
        param,
        private_data: data.to_vec(),
        ..Pending::new(made.as_ptr(), Kind::ConnectRequest)
    };
    parent.events.push(pending, || true);
    Ok(())
}

fn space(number: c_int) -> Result<PortSpace, Failure> {
    let found = PortSpace::ALL.into_iter().find(|space| c_int::from(space.number()) == number);
    found.ok_or_else(|| Failure::not_offered(format_args!("port space {number:#06x} (TCP, UDP and IB are)")))
}

/// Makes an identifier. Without a channel it gets one of its own, and its calls wait for their events.
pub(super) fn create(
    channel: *mut RdmaEventChannel,
    context: *mut c_void,
    ps: c_int,
    qp_type: Option<c_int>,
) -> Result<NonNull<RdmaCmId>, Failure> {
    let space = space(ps)?;
    let qp_type = qp_type.filter(|kind| *kind != 0).unwrap_or(if space == PortSpace::Udp { UD } else { RC });
    let owns_channel = channel.is_null();
    let channel = if owns_channel { channel::create()?.as_ptr() } else { channel };
    let mut inner = Inner::new(space, qp_type, channel::get(channel)?.events.clone());
    (inner.is_sync, inner.owns_channel) = (owns_channel, owns_channel);
    insert(inner, context, channel)
}

/// Makes an identifier.
///
/// # Safety
/// `id` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut RdmaEventChannel,
    id: *mut *mut RdmaCmId,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    crate::lifetime::begin();
    let make = || {
        // SAFETY: the caller's promise.
        let id = unsafe { id.as_mut() }.ok_or_else(|| Failure::null("id"))?;
        *id = create(channel, context, ps, None)?.as_ptr();
        Ok(())
    };
    minus_one("rdma_create_id", make())
}

/// Takes the events of an identifier out of its channel, and ends the connections that nobody has taken.
fn discard_events(id: *const RdmaCmId, events: &EventQueue<Pending>) {
    let mut children = Mutex::new(Vec::new());
    events.remove(
        |pending| {
            if pending.kind == Kind::ConnectRequest && pending.listen == id as usize {
                children.lock().unwrap_or_else(PoisonError::into_inner).push(pending.id);
            }
            pending.id == id as usize || pending.listen == id as usize
        },
        || {},
    );
    for child in children.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = destroy(child as *mut RdmaCmId);
    }
}

pub(super) fn destroy(pointer: *mut RdmaCmId) -> Result<(), Failure> {
    let id = get(pointer)?;
    let (events, owns_channel) = {
        let mut inner = id.lock();
        for (host, listener) in inner.listeners.drain(..).collect::<Vec<_>>() {
            host.routes.listeners.lock().unwrap_or_else(PoisonError::into_inner).remove(&listener);
            host.manager.unlisten(listener);
        }
        if let (Some(host), Some(connection)) = (inner.host.clone(), inner.connection.take()) {
            host.routes.forget(connection);
            let _ = host.manager.with(|manager, now| manager.close(now, connection));
        }
        inner.phase = Phase::Idle;
        inner.local = None;
        (inner.events.clone(), inner.owns_channel)
    };
    discard_events(pointer, &events);
    // SAFETY: the slot's structure.
    let (event, channel) = unsafe { ((*id.c().as_ptr()).event, (*id.c().as_ptr()).channel) };
    let is_ours = !event.is_null() && id.lock().is_sync;
    if is_ours {
        let _ = event::acknowledge(event);
    }
    let acknowledged = id.acknowledged.clone();
    drop(id);
    acknowledged.wait();
    CmId::slab().remove(pointer, |_| true).map(drop).map_err(|error| Failure::removal("identifier", error))?;
    if owns_channel {
        channel::rdma_destroy_event_channel(channel);
    }
    Ok(())
}

/// Destroys an identifier, after its events are acknowledged. Its connection ends.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_id(id: *mut RdmaCmId) -> c_int {
    minus_one("rdma_destroy_id", destroy(id))
}

/// Moves an identifier to another channel, with its events; to one of its own without.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_migrate_id(id: *mut RdmaCmId, channel: *mut RdmaEventChannel) -> c_int {
    minus_one("rdma_migrate_id", migrate(id, channel))
}

pub(super) fn migrate(pointer: *mut RdmaCmId, channel: *mut RdmaEventChannel) -> Result<(), Failure> {
    let id = get(pointer)?;
    let owns_channel = channel.is_null();
    let channel = if owns_channel { channel::create()?.as_ptr() } else { channel };
    let events = channel::get(channel)?.events.clone();
    let old = {
        let mut inner = id.lock();
        let before = std::mem::replace(&mut inner.events, events.clone());
        // Under the identifier's lock, so that none comes between.
        let moved = Mutex::new(Vec::new());
        let is_its = |pending: &Pending| match pending.kind {
            Kind::ConnectRequest => pending.listen == pointer as usize,
            _ => pending.id == pointer as usize,
        };
        before.remove(
            |pending| {
                if is_its(pending) {
                    moved.lock().unwrap_or_else(PoisonError::into_inner).push(pending.clone());
                }
                is_its(pending)
            },
            || {},
        );
        for pending in moved.into_inner().unwrap_or_else(PoisonError::into_inner) {
            events.push(pending, || true);
        }
        inner.is_sync = owns_channel;
        std::mem::replace(&mut inner.owns_channel, owns_channel)
    };
    let c = id.c().as_ptr();
    // SAFETY: the slot's structure.
    let (event, old_channel) = unsafe {
        let before = ((*c).event, (*c).channel);
        (*c).channel = channel;
        before
    };
    if old {
        if !event.is_null() {
            let _ = event::acknowledge(event);
            // SAFETY: as above.
            unsafe { (*c).event = std::ptr::null_mut() };
        }
        channel::rdma_destroy_event_channel(old_channel);
    }
    Ok(())
}

/// Waits for the event of an identifier whose calls do so, and keeps it in `id->event`.
pub(super) fn complete(pointer: *mut RdmaCmId) -> Result<(), Failure> {
    let id = get(pointer)?;
    let (is_sync, events) = {
        let inner = id.lock();
        (inner.is_sync, inner.events.clone())
    };
    if !is_sync {
        return Ok(());
    }
    let c = id.c().as_ptr();
    drop(id);
    // SAFETY: the slot's structure; slots are never unmapped.
    let before = unsafe { std::mem::replace(&mut (*c).event, std::ptr::null_mut()) };
    if !before.is_null() {
        event::acknowledge(before)?;
    }
    let taken = event::take(&events)?;
    // SAFETY: as above, and the event was just made.
    let (kind, status) = unsafe {
        (*c).event = taken;
        ((*taken).event, (*taken).status)
    };
    match status {
        0 => Ok(()),
        _ if kind == Kind::Rejected as c_int => {
            Err(Failure::new(libc::ECONNREFUSED, format_args!("the peer rejected the connection, reason {status}")))
        }
        status => Err(Failure::new(status.abs(), "the peer did not answer, or an address was not resolved")),
    }
}

/// `RDMA_OPTION_ID`, and its options.
const LEVEL_ID: c_int = 0;
const TYPE_OF_SERVICE: c_int = 0;
const REUSE_ADDRESS: c_int = 1;
const FAMILY_ONLY: c_int = 2;
const ACK_TIMEOUT_OPTION: c_int = 3;

/// Sets an option of an identifier.
///
/// # Safety
/// `value` is NULL or can be read for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut RdmaCmId,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    let set = || {
        let id = get(id)?;
        if value.is_null() {
            return Err(Failure::null("optval"));
        }
        let short = || Failure::new(libc::EINVAL, format_args!("optlen is {len}: the option is longer"));
        // SAFETY: the caller's promise, for as many bytes as are read.
        let byte = || if len < 1 { Err(short()) } else { Ok(unsafe { value.cast::<u8>().read() }) };
        // SAFETY: as above.
        let number = || if len < 4 { Err(short()) } else { Ok(unsafe { value.cast::<c_int>().read_unaligned() }) };
        let mut inner = id.lock();
        match (level, option) {
            (LEVEL_ID, TYPE_OF_SERVICE) => inner.traffic_class = byte()?,
            (LEVEL_ID, REUSE_ADDRESS) => inner.may_share_port = number()? != 0,
            (LEVEL_ID, FAMILY_ONLY) => inner.is_family_only = number()? != 0,
            (LEVEL_ID, ACK_TIMEOUT_OPTION) => inner.ack_timeout = Some(byte()?.min(31)),
            // RDMA_OPTION_IB_PATH: RoCE has the path that the route names.
            (1, 1) => {}
            _ => return Err(Failure::new(libc::ENOSYS, format_args!("option {option} of level {level}"))),
        }
        Ok(())
    };
    minus_one("rdma_set_option", set())
}

/// Our port, in network order; 0 without.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_src_port(id: *mut RdmaCmId) -> u16 {
    get(id).ok().and_then(|id| id.lock().local).map_or(0, |local| local.port().to_be())
}

/// The peer's port, in network order; 0 without.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_dst_port(id: *mut RdmaCmId) -> u16 {
    get(id).ok().and_then(|id| id.lock().remote).map_or(0, |remote| remote.port().to_be())
}

/// What an identifier wants a port for.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub space: PortSpace,
    pub address: SocketAddr,
    pub may_share: bool,
    pub is_family_only: bool,
}

/// The error when another identifier has the port, as the kernel's (cma_check_port in cma.c): EADDRINUSE when it has it at
/// that address, and EADDRNOTAVAIL when one of both wants it at all addresses.
pub(super) fn port_error(wish: Wish, but: *const RdmaCmId) -> Option<c_int> {
    let address = wish.address;
    let is_any = |ip: IpAddr| ip.is_unspecified();
    let others = CmId::slab().pointers(|id| {
        let inner = id.lock();
        let is_apart =
            |local: SocketAddr| wish.is_family_only && inner.is_family_only && local.is_ipv4() != address.is_ipv4();
        inner.connection.is_none()
            && inner.space == wish.space
            && !(wish.may_share && inner.may_share_port && inner.listeners.is_empty())
            && inner.local.is_some_and(|local| {
                local.port() == address.port()
                    && !is_apart(local)
                    && (local.ip() == address.ip() || is_any(local.ip()) || is_any(address.ip()))
            })
    });
    let other = others.iter().find(|other| other.as_ptr().cast_const() != but)?;
    let theirs = get(other.as_ptr()).ok().and_then(|id| id.lock().local);
    let is_all = is_any(address.ip()) || theirs.is_some_and(|local| is_any(local.ip()));
    Some(if is_all { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE })
}

/// The GID that stands for a peer.
pub(super) fn gid(inner: &Inner) -> Ipv6Addr {
    inner.remote.map_or(Ipv6Addr::UNSPECIFIED, |remote| address::gid(remote.ip()))
}
