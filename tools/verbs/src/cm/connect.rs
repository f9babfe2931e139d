//! Listening, connecting, accepting, disconnecting.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};

use uroce::cm::message::{DatagramReply, DatagramRequest, DatagramStatus, Reject, Reply, Request, Transport};
use uroce::cm::{CM_RETRIES, IpCmHeader, RESPONSE_TIMEOUT, ServiceId, StateError, TooMany};
use uroce::verbs::{ListenError, QpAttributes};
use uroce::wire::{PKey, Psn, QKey, Qpn};

use crate::abi::{RdmaCmId, RdmaConnParam};
use crate::device;
use crate::error::{Failure, minus_one};
use crate::slab::Ref;

use super::host::Host;
use super::id::{self, CmId, Inner, Phase, UD};
use super::{address, queue_pair, resolve};

/// `RDMA_UDP_QKEY`: the Q_Key of datagram services of RDMA CM.
pub(super) const UDP_Q_KEY: u32 = 0x0123_4567;

/// Requests that wait for a decision, at most (the kernel's default of net.rdma_ucm.max_backlog).
const MAX_BACKLOG: usize = 1024;

/// How long we take to acknowledge, at most, as a code: 0.13 s, the kernel's (rxe_param.h).
const TARGET_ACK_DELAY: u8 = 15;

impl From<StateError> for Failure {
    fn from(error: StateError) -> Failure {
        Failure::new(libc::EINVAL, error)
    }
}

impl From<TooMany> for Failure {
    fn from(error: TooMany) -> Failure {
        Failure::new(libc::ENOMEM, error)
    }
}

/// The addresses of a device at which an identifier listens; `None` for all. One without a device is bound to all of them,
/// or to those of its family.
fn places(inner: &Inner, local: SocketAddr, host: &Host) -> Vec<Option<IpAddr>> {
    if inner.host.is_some() {
        return vec![Some(local.ip())];
    }
    if !inner.is_family_only {
        return vec![None];
    }
    let all = host.opened.context.gids().iter().map(|gid| gid.ip());
    all.filter(|address| address.is_ipv4() == local.is_ipv4()).map(Some).collect()
}

fn listen(pointer: *mut RdmaCmId, backlog: c_int) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    if id.lock().phase == Phase::Idle {
        return Err(Failure::new(libc::EINVAL, "the identifier is not bound: call rdma_bind_addr first"));
    }
    let mut inner = id.lock();
    inner.is_phase(&[Phase::Bound])?;
    let local = inner.local.ok_or_else(|| Failure::new(libc::EINVAL, "the identifier has no address"))?;
    let backlog = usize::try_from(backlog).ok().filter(|backlog| (1..=MAX_BACKLOG).contains(backlog));
    let hosts: Vec<Arc<Host>> = match &inner.host {
        Some(host) => vec![host.clone()],
        // One that cannot be opened has said why.
        None => device::visible()?.into_iter().filter_map(|device| Host::of(device).ok()).collect(),
    };
    if hosts.is_empty() {
        return Err(Failure::new(libc::ENODEV, "no device can be opened"));
    }
    let service = ServiceId::of(inner.space, local.port());
    for host in hosts {
        for at in places(&inner, local, &host) {
            let mut routes = host.routes.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            let listener = host.manager.listen(service, at, backlog.unwrap_or(MAX_BACKLOG)).map_err(|error| {
                let code = match error {
                    ListenError::InUse(_) => libc::EADDRINUSE,
                    ListenError::Forked(_) => libc::EINVAL,
                    ListenError::Arbiter(_) => libc::ENODEV,
                };
                Failure::new(code, error)
            })?;
            routes.insert(listener, pointer as usize);
            drop(routes);
            inner.listeners.push((host.clone(), listener));
        }
    }
    inner.phase = Phase::Listening;
    Ok(())
}

/// Listens at the port of an identifier.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_listen(id: *mut RdmaCmId, backlog: c_int) -> c_int {
    minus_one("rdma_listen", listen(id, backlog))
}

/// A copy of the program's private data, at most `room` bytes.
///
/// # Safety
/// `data` is NULL or can be read for `len` bytes.
unsafe fn private_data(data: *const c_void, len: u8, room: usize) -> Result<Vec<u8>, Failure> {
    let len = usize::from(len);
    if len > room {
        return Err(Failure::new(libc::EINVAL, format_args!("{len} bytes of private data; {room} are possible")));
    }
    if data.is_null() || len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec())
}

fn padded<const N: usize>(header: &[u8], data: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..header.len()].copy_from_slice(header);
    bytes[header.len()..header.len() + data.len()].copy_from_slice(data);
    bytes
}

/// What the program says of a connection; `None` for the usual.
type Given = Option<RdmaConnParam>;

/// READs at once that the transport has, at most.
fn bounded(reads: u8) -> u8 {
    reads.min(QpAttributes::MAX_RD_ATOMIC)
}

/// The number of the identifier's queue pair, or of that which the program names, and whether it has a shared receive queue.
fn queue_pair_of(id: &Ref<CmId>, given: &Given) -> (Qpn, bool) {
    match (queue_pair::of(id), given) {
        (Some(qp), _) => {
            // SAFETY: a queue pair of ours, whose structure stays readable.
            let (number, srq) = unsafe { ((*qp).qp_num, (*qp).srq) };
            (Qpn::new(number), !srq.is_null())
        }
        (None, Some(param)) => (Qpn::new(param.qp_num), param.srq != 0),
        (None, None) => (Qpn::default(), false),
    }
}

fn connect(pointer: *mut RdmaCmId, given: Given, data: Vec<u8>) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    {
        let mut inner = id.lock();
        inner.is_phase(&[Phase::Routed])?;
        let host = inner.host()?;
        let addresses = inner.addresses()?;
        let data = if data.is_empty() { inner.connect_data.clone() } else { data };
        let source_port = inner.local.map_or(0, |local| local.port());
        let header = IpCmHeader { addresses, source_port }.to_bytes();
        let connection = if inner.qp_type == UD {
            check_room(&data, DatagramRequest::PRIVATE_BYTES)?;
            let private_data = padded(&header, &data);
            let service_id = service_of(&inner);
            let request = DatagramRequest { request_id: 0, p_key: PKey::DEFAULT, service_id, private_data };
            // Held, lest the answer comes before it is known whose it is.
            let mut routes = host.routes.connections.lock().unwrap_or_else(PoisonError::into_inner);
            let asked = host.manager.with(|manager, now| manager.ask(now, addresses, request));
            let connection = asked.map_err(|error| Failure::new(libc::EINVAL, error))??;
            routes.insert(connection, pointer as usize);
            connection
        } else {
            check_room(&data, Request::PRIVATE_BYTES)?;
            let request = request(&id, &mut inner, &host, &given, padded(&header, &data))?;
            let mut routes = host.routes.connections.lock().unwrap_or_else(PoisonError::into_inner);
            let begun = host.manager.with(|manager, now| manager.connect(now, addresses, request));
            let connection = begun.map_err(|error| Failure::new(libc::EINVAL, error))??;
            routes.insert(connection, pointer as usize);
            connection
        };
        inner.connection = Some(connection);
        inner.phase = Phase::Connected;
    }
    drop(id);
    id::complete(pointer)
}

/// The service that is asked for at the peer.
fn service_of(inner: &Inner) -> ServiceId {
    ServiceId::of(inner.space, inner.remote.map_or(0, |remote| remote.port()))
}

fn check_room(data: &[u8], all: usize) -> Result<(), Failure> {
    let room = all - IpCmHeader::BYTES;
    if data.len() > room {
        let why = format_args!("{} bytes of private data; {room} are possible", data.len());
        return Err(Failure::new(libc::EINVAL, why));
    }
    Ok(())
}

fn request(
    id: &Ref<CmId>,
    inner: &mut Inner,
    host: &Host,
    given: &Given,
    private_data: [u8; Request::PRIVATE_BYTES],
) -> Result<Request, Failure> {
    let (qpn, has_srq) = queue_pair_of(id, given);
    let reads = |pick: fn(&RdmaConnParam) -> u8| bounded(given.as_ref().map_or(u8::MAX, pick));
    let ack_timeout = inner.ack_timeout.unwrap_or(id::ACK_TIMEOUT);
    let path_mtu = host.opened.context.active_mtu();
    let psn = host.opened.context.random_psn();
    let flow_label = resolve::flow_label(inner);
    let addresses = inner.addresses()?;
    inner.psn = psn.value();
    inner.retry_count = given.as_ref().map_or(7, |param| param.retry_count.min(7));
    inner.rnr_retry = given.as_ref().map_or(7, |param| param.rnr_retry_count.min(7));
    inner.peer.path_mtu = path_mtu;
    inner.peer.flow_label = flow_label;
    inner.peer.traffic_class = inner.traffic_class;
    inner.peer.hop_limit = 64;
    inner.peer.ack_timeout = ack_timeout;
    Ok(Request {
        local_id: 0,
        service_id: service_of(inner),
        ca_guid: 0,
        q_key: QKey(0),
        qpn,
        responder_resources: reads(|param| param.responder_resources),
        initiator_depth: reads(|param| param.initiator_depth),
        remote_response_timeout: RESPONSE_TIMEOUT,
        transport: if queue_pair::is_unreliable(inner) { Transport::Uc } else { Transport::Rc },
        flow_control: given.as_ref().is_some_and(|param| param.flow_control != 0),
        psn,
        local_response_timeout: RESPONSE_TIMEOUT,
        retry_count: inner.retry_count,
        p_key: PKey::DEFAULT,
        path_mtu,
        rnr_retry: inner.rnr_retry,
        max_cm_retries: CM_RETRIES,
        has_srq,
        local_gid: address::gid(addresses.source()),
        remote_gid: address::gid(addresses.destination()),
        flow_label,
        traffic_class: inner.traffic_class,
        hop_limit: 64,
        sl: 0,
        ack_timeout,
        private_data,
    })
}

/// Asks for a connection, or for a datagram service. An event tells the result.
///
/// # Safety
/// `param` is NULL or can be read, with its private data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut RdmaCmId, param: *const RdmaConnParam) -> c_int {
    let connect = || {
        // SAFETY: the caller's promise.
        let given = unsafe { param.as_ref() }.copied();
        let data = match &given {
            // SAFETY: as above.
            Some(param) => unsafe { private_data(param.private_data, param.private_data_len, usize::from(u8::MAX)) }?,
            None => Vec::new(),
        };
        connect(id, given, data)
    };
    minus_one("rdma_connect", connect())
}

/// The peer has accepted, and our queue pair is to be moved.
pub(super) fn finish(id: &Ref<CmId>) -> Result<(), Failure> {
    let port = id.lock().remote.map(|remote| remote.port());
    let moved = queue_pair::to_rtr(id, port).and_then(|()| queue_pair::to_rts(id));
    let inner = id.lock();
    let (Some(host), Some(connection)) = (&inner.host, inner.connection) else {
        return Err(Failure::new(libc::EINVAL, "the identifier has no connection"));
    };
    let told = host.manager.with(|manager, now| match moved {
        Ok(()) => manager.ready_to_use(now, connection).map_err(Failure::from),
        Err(failure) => {
            manager.reject(now, connection, [0; Reject::PRIVATE_BYTES])?;
            Err(failure)
        }
    });
    told.map_err(|error| Failure::new(libc::EINVAL, error))?
}

/// Announces that the program's own queue pair can receive, after `RDMA_CM_EVENT_CONNECT_RESPONSE`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_establish(id: *mut RdmaCmId) -> c_int {
    let establish = || {
        let id = id::get(id)?;
        if queue_pair::of(&id).is_some() {
            return Err(Failure::new(libc::EINVAL, "the identifier has a queue pair, and moves it itself"));
        }
        with_connection(&id, |manager, now, connection| manager.ready_to_use(now, connection))
    };
    minus_one("rdma_establish", establish())
}

/// Runs `work` on the identifier's connection.
fn with_connection(
    id: &Ref<CmId>,
    work: impl FnOnce(&mut uroce::cm::Manager, uroce::time::Instant, uroce::cm::Id) -> Result<(), StateError>,
) -> Result<(), Failure> {
    let inner = id.lock();
    let none = || Failure::new(libc::EINVAL, "the identifier has no connection");
    let connection = inner.connection.ok_or_else(none)?;
    let done = inner.host()?.manager.with(|manager, now| work(manager, now, connection));
    Ok(done.map_err(|error| Failure::new(libc::EINVAL, error))??)
}

fn accept(pointer: *mut RdmaCmId, given: Given, data: &[u8]) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    let (qpn, has_srq) = queue_pair_of(&id, &given);
    let (qp_type, space, local) = {
        let inner = id.lock();
        (inner.qp_type, inner.space, inner.local)
    };
    if qp_type == UD {
        let reply = DatagramReply {
            request_id: 0,
            status: DatagramStatus::SUCCESS,
            qpn,
            service_id: ServiceId::of(space, local.map_or(0, |local| local.port())),
            q_key: QKey(UDP_Q_KEY),
            private_data: padded(&[], data),
        };
        return with_connection(&id, |manager, now, connection| manager.answer(now, connection, reply));
    }
    let reply = {
        let mut inner = id.lock();
        if let Some(param) = &given {
            let asked = inner.peer;
            // The program may leave it to the peer's request.
            let reads = |given: u8, asked: u8| bounded(if given == u8::MAX { asked } else { given });
            inner.responder_resources = reads(param.responder_resources, asked.responder_resources);
            inner.initiator_depth = reads(param.initiator_depth, asked.initiator_depth);
            inner.rnr_retry = param.rnr_retry_count.min(7);
        }
        Reply {
            local_id: 0,
            remote_id: 0,
            q_key: QKey(0),
            qpn,
            psn: Psn::new(inner.psn),
            responder_resources: inner.responder_resources,
            initiator_depth: inner.initiator_depth,
            target_ack_delay: TARGET_ACK_DELAY,
            flow_control: given.as_ref().is_some_and(|param| param.flow_control != 0),
            rnr_retry: given.as_ref().map_or(7, |param| param.rnr_retry_count.min(7)),
            has_srq,
            ca_guid: 0,
            private_data: padded(&[], data),
        }
    };
    if queue_pair::of(&id).is_some() {
        let port = id.lock().local.map(|local| local.port());
        queue_pair::to_rtr(&id, port)?;
        queue_pair::to_rts(&id)?;
    }
    with_connection(&id, |manager, now, connection| manager.accept(now, connection, reply))?;
    drop(id);
    id::complete(pointer)
}

/// Accepts a connection, or answers for a datagram service.
///
/// # Safety
/// `param` is NULL or can be read, with its private data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut RdmaCmId, param: *const RdmaConnParam) -> c_int {
    let accept = || {
        // SAFETY: the caller's promise.
        let given = unsafe { param.as_ref() }.copied();
        let room = if id::get(id)?.lock().qp_type == UD { DatagramReply::PRIVATE_BYTES } else { Reply::PRIVATE_BYTES };
        let data = match &given {
            // SAFETY: as above.
            Some(param) => unsafe { private_data(param.private_data, param.private_data_len, room) }?,
            None => Vec::new(),
        };
        accept(id, given, &data)
    };
    minus_one("rdma_accept", accept())
}

/// Rejects a connection, or a request for a datagram service.
///
/// # Safety
/// `data` is NULL or can be read for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut RdmaCmId, data: *const c_void, len: u8) -> c_int {
    let reject = || {
        let id = id::get(id)?;
        let is_datagram = id.lock().qp_type == UD;
        let room = if is_datagram { DatagramReply::PRIVATE_BYTES } else { Reject::PRIVATE_BYTES };
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(data, len, room) }?;
        with_connection(&id, |manager, now, connection| {
            if !is_datagram {
                return manager.reject(now, connection, padded(&[], &data));
            }
            let refusal = DatagramReply::refusal(0, ServiceId(0), DatagramStatus::REJECTED);
            manager.answer(now, connection, DatagramReply { private_data: padded(&[], &data), ..refusal })
        })
    };
    minus_one("rdma_reject", reject())
}

/// As [`rdma_reject`]; enhanced connection establishment is not offered, so that there is no more to say.
///
/// # Safety
/// As [`rdma_reject`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut RdmaCmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { rdma_reject(id, data, len) }
}

/// Announces an asynchronous event of the identifier's queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_notify(id: *mut RdmaCmId, event: c_int) -> c_int {
    /// `IBV_EVENT_COMM_EST`: data has arrived, so the peer is ready.
    const ESTABLISHED: c_int = 4;
    let notify = || {
        let id = id::get(id)?;
        if event != ESTABLISHED {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("event {event}: only IBV_EVENT_COMM_EST (4) is of use"),
            ));
        }
        with_connection(&id, |manager, _, connection| {
            manager.handle_data(connection);
            Ok(())
        })
    };
    minus_one("rdma_notify", notify())
}

/// Ends a connection: the queue pair goes to the error state. An event tells when the peer knows.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_disconnect(pointer: *mut RdmaCmId) -> c_int {
    let disconnect = || {
        let id = id::get(pointer)?;
        id.lock().is_phase(&[Phase::Connected])?;
        queue_pair::fail(&id);
        with_connection(&id, |manager, now, connection| match manager.disconnect(now, connection) {
            // It has ended already.
            Err(StateError::NoSuchConnection(_)) => Ok(()),
            other => other,
        })?;
        drop(id);
        id::complete(pointer)
    };
    minus_one("rdma_disconnect", disconnect())
}
