//! From addresses to devices and routes.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use uroce::link::device::Device;
use uroce::verbs::{AddressVector, Qpn};

use crate::abi::{IbvContext, IbvGid, RdmaCmId};
use crate::device;
use crate::error::{Failure, minus_one, pointer};
use crate::kernel::Path;

use super::address::{self, gid};
use super::event::{Kind, Pending};
use super::host::Host;
use super::id::{self, Inner, Phase};

/// Ports that programs get without asking, as the kernel's by default (ip_local_port_range).
const EPHEMERAL: std::ops::Range<u16> = 32768..61000;

/// The device with an address, if there is one.
fn device_with(address: SocketAddr) -> Result<Option<Device>, Failure> {
    let scope = match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let has = |device: &Device| {
        (scope == 0 || device.index == scope) && device.gids.iter().any(|gid| gid.ip() == address.ip())
    };
    Ok(device::visible()?.into_iter().find(has))
}

/// Whether an address is that of all devices: the unspecified one is, and a loopback address that none has, as with the
/// kernel (cma_any_addr in cma.c). libfabric binds to `localhost` when it does not know its address.
fn is_any(address: SocketAddr) -> Result<bool, Failure> {
    let ip = address.ip();
    Ok(ip.is_unspecified() || (ip.is_loopback() && device_with(address)?.is_none()))
}

/// The device with an address.
pub(super) fn device_of(address: SocketAddr) -> Result<Device, Failure> {
    device_with(address)?.ok_or_else(|| {
        let why = format!("no device has the address {}: see `uroce devices`", address.ip());
        eprintln!("uroce: RDMA CM: {why}");
        Failure::new(libc::ENODEV, why)
    })
}

/// The address of a family that is the only device which the program sees (`--dev ADDRESS`).
fn only_address(is_ipv4: bool) -> Result<Option<IpAddr>, Failure> {
    let only = device::visible()?.into_iter().find_map(|device| device.address);
    Ok(only.filter(|address| address.is_ipv4() == is_ipv4))
}

/// Our address towards a peer: the device's only one, or else that of the kernel's routes. `wanted` is that address when it
/// is given: then multicast groups need no route.
fn source_towards(wanted: Option<SocketAddr>, peer: SocketAddr) -> Result<SocketAddr, Failure> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let mut from = wanted.unwrap_or(SocketAddr::new(any, 0));
    from.set_port(0);
    let failed = |error: std::io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
        Failure::new(errno, format_args!("no route to {}: {error}", peer.ip()))
    };
    // Nothing is sent; a port of 0 would not be connected to.
    let socket = UdpSocket::bind(from).map_err(failed)?;
    socket.connect(SocketAddr::new(peer.ip(), 4791)).map_err(failed)?;
    let mut source = socket.local_addr().map_err(failed)?;
    source.set_port(0);
    if let Some(only) = only_address(source.is_ipv4())? {
        source.set_ip(only);
    }
    if let (SocketAddr::V6(source), SocketAddr::V6(peer)) = (&mut source, peer) {
        source.set_scope_id(peer.scope_id());
    }
    Ok(source)
}

/// Our own address, for a peer that is a loopback address out of reach: the first device's, as with the kernel
/// (cma_bind_loopback in cma.c).
fn own_address(is_ipv4: bool) -> Result<IpAddr, Failure> {
    let devices = device::visible()?;
    let mut own = devices.iter().flat_map(|device| &device.gids).map(|gid| gid.ip());
    own.find(|ip| ip.is_ipv4() == is_ipv4)
        .ok_or_else(|| Failure::new(libc::ENODEV, "no device has an address of the loopback's family"))
}

/// Gives an identifier its address: the port that is asked for if it is free, or any for 0.
fn reserve(pointer: *const RdmaCmId, inner_of: &id::CmId, mut address: SocketAddr) -> Result<SocketAddr, Failure> {
    let wish = {
        let inner = inner_of.lock();
        let (may_share, is_family_only) = (inner.may_share_port, inner.is_family_only);
        id::Wish { space: inner.space, address, may_share, is_family_only }
    };
    if address.port() == 0 {
        let first = EPHEMERAL.start + (std::process::id() as u16) % (EPHEMERAL.end - EPHEMERAL.start);
        let all = (first..EPHEMERAL.end).chain(EPHEMERAL.start..first);
        for port in all {
            address.set_port(port);
            if id::port_error(id::Wish { address, may_share: false, ..wish }, pointer).is_none() {
                return Ok(address);
            }
        }
        return Err(Failure::new(libc::EADDRNOTAVAIL, "no port is free"));
    }
    match id::port_error(wish, pointer) {
        Some(errno) => Err(Failure::new(errno, format_args!("port {} is in use", address.port()))),
        None => Ok(address),
    }
}

fn bind(pointer: *mut RdmaCmId, address: SocketAddr) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    id.lock().is_phase(&[Phase::Idle])?;
    let host = match is_any(address)? {
        true => None,
        false => Some(Host::of(device_of(address)?)?),
    };
    let address = reserve(pointer, &id, address)?;
    let mut inner = id.lock();
    inner.local = Some(address);
    inner.host = host;
    inner.phase = Phase::Bound;
    id::show(&id, &inner);
    Ok(())
}

/// Binds an identifier to one of our addresses, and so to its device. The unspecified address is all of them, and so is a
/// loopback address that no device has.
///
/// # Safety
/// `addr` is NULL or can be read for as many bytes as its family has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut RdmaCmId, addr: *mut c_void) -> c_int {
    let bind = || {
        if addr.is_null() {
            return Err(Failure::null("addr"));
        }
        // SAFETY: the caller's promise.
        bind(id, unsafe { address::read(addr) }?)
    };
    minus_one("rdma_bind_addr", bind())
}

fn resolve(pointer: *mut RdmaCmId, source: Option<SocketAddr>, peer: SocketAddr) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    let bound = {
        let inner = id.lock();
        inner.is_phase(&[Phase::Idle, Phase::Bound])?;
        inner.local
    };
    if peer.ip().is_unspecified() {
        return Err(Failure::new(libc::EINVAL, "the peer's address is unspecified"));
    }
    let wanted = source.or(bound);
    let find = || -> Result<(SocketAddr, SocketAddr, Arc<Host>), Failure> {
        let given = match wanted {
            Some(wanted) if !is_any(wanted)? => Some(wanted),
            _ => None,
        };
        let towards = source_towards(given, peer)?;
        let (mut local, mut peer) = (given.unwrap_or(towards), peer);
        local.set_port(wanted.map_or(0, |wanted| wanted.port()));
        if peer.ip().is_loopback() {
            let has_device = device_with(local)?.is_some();
            if !has_device {
                local.set_ip(own_address(peer.is_ipv4())?);
            }
            // A device of the loopback reaches that address, and any other only itself.
            if !has_device || !local.ip().is_loopback() {
                peer.set_ip(local.ip());
            }
        }
        let host = Host::of(device_of(local)?)?;
        Ok((local, peer, host))
    };
    match find() {
        Ok((local, peer, host)) => {
            let local = reserve(pointer, &id, local)?;
            let mut inner = id.lock();
            (inner.local, inner.remote, inner.host) = (Some(local), Some(peer), Some(host));
            inner.phase = Phase::Resolved;
            id::show(&id, &inner);
            drop(inner);
            id::push(Pending::new(pointer, Kind::AddrResolved));
        }
        // As with the kernel, what the network does not have is an event.
        Err(failure) => {
            crate::error::trace("rdma_resolve_addr", &Err(&failure));
            id::push(Pending { status: -failure.errno, ..Pending::new(pointer, Kind::AddrError) });
        }
    }
    drop(id);
    id::complete(pointer)
}

/// Finds the device that leads to a peer's address. An event tells the result.
///
/// # Safety
/// `source` is NULL; it and `destination` can be read for as many bytes as their families have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut RdmaCmId,
    source: *mut c_void,
    destination: *mut c_void,
    _timeout_ms: c_int,
) -> c_int {
    let resolve = || {
        if destination.is_null() {
            return Err(Failure::null("dst_addr"));
        }
        // SAFETY: the caller's promise.
        let source = if source.is_null() { None } else { Some(unsafe { address::read(source) }?) };
        // SAFETY: the caller's promise.
        resolve(id, source, unsafe { address::read(destination) }?)
    };
    minus_one("rdma_resolve_addr", resolve())
}

/// The address vector towards the peer.
pub(super) fn vector(inner: &Inner, flow_label: u32) -> Result<AddressVector, Failure> {
    let host = inner.host()?;
    let addresses = inner.addresses()?;
    let own = host.opened.context.gids().iter().position(|gid| gid.ip() == addresses.source());
    Ok(AddressVector {
        source_gid_index: own.ok_or_else(|| Failure::new(libc::ENODEV, "the device has lost its address"))?,
        destination_gid: id::gid(inner),
        traffic_class: inner.traffic_class,
        hop_limit: 64,
        flow_label,
    })
}

fn route(pointer: *mut RdmaCmId) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    let found = {
        let mut inner = id.lock();
        inner.is_phase(&[Phase::Resolved])?;
        let host = inner.host()?;
        let label = flow_label(&inner);
        let found = vector(&inner, label).and_then(|vector| {
            host.opened.context.address_handle(&vector, Qpn::GSI)?;
            Ok(())
        });
        if found.is_ok() {
            let addresses = inner.addresses()?;
            let mtu = host.opened.context.active_mtu() as u8;
            let [from, to] = [addresses.source(), addresses.destination()].map(|ip| IbvGid(gid(ip).octets()));
            let timeout = inner.ack_timeout.unwrap_or(id::ACK_TIMEOUT);
            let codes = [mtu, timeout.saturating_sub(1)];
            inner.route = Some(Box::new(Path::of_roce(from, to, label, inner.traffic_class, codes)));
            inner.phase = Phase::Routed;
            id::show(&id, &inner);
        }
        found
    };
    match found {
        Ok(()) => id::push(Pending::new(pointer, Kind::RouteResolved)),
        Err(failure) => {
            crate::error::trace("rdma_resolve_route", &Err(&failure));
            id::push(Pending { status: -failure.errno, ..Pending::new(pointer, Kind::RouteError) });
        }
    }
    drop(id);
    id::complete(pointer)
}

/// The flow label of a connection: the kernel's of its ports (cma_get_roce_udp_flow_label in cma.c). Both ends derive
/// their UDP source port from it.
pub(super) fn flow_label(inner: &Inner) -> u32 {
    let port = |address: Option<SocketAddr>| address.map_or(0, |address| u32::from(address.port()));
    (port(inner.local) * 31 + port(inner.remote)) & 0xf_ffff
}

/// Finds the route to a peer. An event tells the result.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_resolve_route(id: *mut RdmaCmId, _timeout_ms: c_int) -> c_int {
    minus_one("rdma_resolve_route", route(id))
}

/// Lists the contexts of all devices, with a NULL at the end; `num_devices` may be NULL.
///
/// # Safety
/// `num_devices` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut IbvContext {
    crate::lifetime::begin();
    let list = || {
        // One that cannot be opened has said why; the others are there all the same.
        let hosts: Vec<_> = device::visible()?.into_iter().filter_map(|device| Host::of(device).ok()).collect();
        let bytes = (hosts.len() + 1) * size_of::<*mut IbvContext>();
        // SAFETY: nothing but the size is passed.
        let list = unsafe { libc::calloc(1, bytes) }.cast::<*mut IbvContext>();
        if list.is_null() {
            return Err(Failure::new(libc::ENOMEM, "no memory"));
        }
        for (index, host) in hosts.iter().enumerate() {
            // SAFETY: there is room for all of them and a NULL.
            unsafe { *list.add(index) = host.context() };
        }
        // SAFETY: the caller's promise.
        if let Some(num) = unsafe { num_devices.as_mut() } {
            *num = hosts.len() as c_int;
        }
        Ok(list)
    };
    pointer("rdma_get_devices", list())
}

/// Frees a list of [`rdma_get_devices`].
///
/// # Safety
/// `list` is NULL, or such a list that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut IbvContext) {
    // SAFETY: made with calloc.
    unsafe { libc::free(list.cast()) };
}
