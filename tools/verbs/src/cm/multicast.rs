//! Groups.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use crate::abi::{IbvAhAttr, IbvGid, IbvGlobalRoute, RdmaCmId, RdmaJoinAttr};
use crate::error::{Failure, minus_one};
use crate::queue_pair::{ibv_attach_mcast, ibv_detach_mcast};

use super::connect::UDP_Q_KEY;
use super::event::{Kind, Param, Pending};
use super::id::{self, UD};
use super::{address, queue_pair};

/// The queue pair number of datagrams to a group.
const MULTICAST_QPN: u32 = 0x00ff_ffff;

fn join(pointer: *mut RdmaCmId, group: SocketAddr) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    let (host, own_index) = {
        let inner = id.lock();
        if inner.qp_type != UD {
            return Err(Failure::new(libc::EINVAL, "the identifier is not one of datagrams (RDMA_PS_UDP)"));
        }
        let host = inner.host()?;
        let local = inner.local.map(|local| local.ip());
        let own = host.opened.context.gids().iter().position(|gid| Some(gid.ip()) == local);
        (host, own.ok_or_else(|| Failure::new(libc::ENODEV, "the device has lost its address"))?)
    };
    if !group.ip().is_multicast() {
        return Err(Failure::new(libc::EINVAL, format_args!("{} is not a group", group.ip())));
    }
    let dgid = IbvGid(address::gid(group.ip()).octets());
    let attached = match queue_pair::of(&id) {
        // SAFETY: the GID is ours.
        Some(qp) => unsafe { ibv_attach_mcast(qp, &dgid, 0) },
        None => 0,
    };
    let traffic_class = id.lock().traffic_class;
    drop(host);
    let grh = IbvGlobalRoute { dgid, flow_label: 0, sgid_index: own_index as u8, hop_limit: 1, traffic_class };
    let ah_attr = IbvAhAttr { grh, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
    let pending = match attached {
        0 => Pending {
            param: Param::Datagrams { ah_attr, qp_num: MULTICAST_QPN, qkey: UDP_Q_KEY },
            ..Pending::new(pointer, Kind::MulticastJoin)
        },
        errno => Pending { status: -errno, ..Pending::new(pointer, Kind::MulticastError) },
    };
    id::push(pending);
    drop(id);
    id::complete(pointer)
}

/// Joins a group; the identifier's queue pair is attached to it. An event tells the result.
///
/// # Safety
/// `group` is NULL or can be read for as many bytes as its family has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut RdmaCmId, group: *mut c_void, _context: *mut c_void) -> c_int {
    let join = || {
        if group.is_null() {
            return Err(Failure::null("addr"));
        }
        // SAFETY: the caller's promise.
        join(id, unsafe { address::read(group) }?)
    };
    minus_one("rdma_join_multicast", join())
}

/// As [`rdma_join_multicast`]; members that only send are members here.
///
/// # Safety
/// `attr` is NULL or can be read, with its address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut RdmaCmId,
    attr: *const RdmaJoinAttr,
    _context: *mut c_void,
) -> c_int {
    /// `RDMA_CM_JOIN_MC_ATTR_ADDRESS`.
    const ADDRESS: u32 = 1;
    let join = || {
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.filter(|attr| attr.comp_mask & ADDRESS != 0 && !attr.addr.is_null());
        let attr = attr.ok_or_else(|| Failure::null("mc_join_attr, or its address,"))?;
        // SAFETY: as above.
        join(id, unsafe { address::read(attr.addr) }?)
    };
    minus_one("rdma_join_multicast_ex", join())
}

/// Leaves a group.
///
/// # Safety
/// `group` is NULL or can be read for as many bytes as its family has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut RdmaCmId, group: *mut c_void) -> c_int {
    let leave = || {
        if group.is_null() {
            return Err(Failure::null("addr"));
        }
        // SAFETY: the caller's promise.
        let group = unsafe { address::read(group) }?;
        let id = id::get(id)?;
        let gid = IbvGid(address::gid(group.ip()).octets());
        if let Some(qp) = queue_pair::of(&id) {
            // SAFETY: the GID is ours.
            match unsafe { ibv_detach_mcast(qp, &gid, 0) } {
                0 => {}
                errno => return Err(Failure::new(errno, format_args!("the queue pair is not in {}", group.ip()))),
            }
        }
        Ok(())
    };
    minus_one("rdma_leave_multicast", leave())
}
