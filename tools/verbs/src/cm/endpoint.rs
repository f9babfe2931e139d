//! Identifiers that wait by themselves.

use std::ffi::c_int;

use crate::abi::*;
use crate::error::{Failure, minus_one, set_errno};

use super::event;
use super::id;
use super::names::PASSIVE;
use super::queue_pair::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use super::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};

/// How long addresses and routes are resolved, in ms: they are there at once.
const TIMEOUT_MS: c_int = 2000;

/// Makes an identifier from the result of [`rdma_getaddrinfo`], whose calls wait for their events, and its queue pair, if
/// attributes are given.
///
/// # Safety
/// `id` is NULL or may be written, `info` is such a result, and `init` is NULL or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut RdmaCmId,
    info: *mut RdmaAddrInfo,
    pd: *mut IbvPd,
    init: *mut IbvQpInitAttr,
) -> c_int {
    crate::lifetime::begin();
    let failed = |made: *mut RdmaCmId| {
        let errno = std::io::Error::last_os_error();
        let _ = id::destroy(made);
        set_errno(errno.raw_os_error().unwrap_or(libc::EINVAL));
        -1
    };
    // SAFETY: the caller's promise.
    let (Some(out), Some(info)) = (unsafe { id.as_mut() }, unsafe { info.as_ref() }) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let made = match id::create(std::ptr::null_mut(), std::ptr::null_mut(), info.ai_port_space, Some(info.ai_qp_type)) {
        Ok(made) => made.as_ptr(),
        Err(failure) => return minus_one("rdma_create_ep", Err(failure)),
    };
    // SAFETY: the caller's promises, for all calls below.
    unsafe {
        if info.ai_flags & PASSIVE != 0 {
            if rdma_bind_addr(made, info.ai_src_addr) != 0 {
                return failed(made);
            }
            if let (Some(init), Ok(id)) = (init.as_ref(), id::get(made)) {
                id.lock().template = Some((pd as usize, IbvQpInitAttr { qp_type: info.ai_qp_type, ..*init }));
            }
            *out = made;
            return 0;
        }
        if rdma_resolve_addr(made, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS) != 0
            || rdma_resolve_route(made, TIMEOUT_MS) != 0
        {
            return failed(made);
        }
        if let Some(init) = init.as_mut() {
            init.qp_type = info.ai_qp_type;
            if rdma_create_qp(made, pd, init) != 0 {
                return failed(made);
            }
        }
        if info.ai_connect_len > 0
            && !info.ai_connect.is_null()
            && let Ok(id) = id::get(made)
        {
            id.lock().connect_data =
                std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len).to_vec();
        }
    }
    *out = made;
    0
}

/// Destroys an identifier with its queue pair and shared receive queue.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_ep(id: *mut RdmaCmId) {
    rdma_destroy_qp(id);
    rdma_destroy_srq(id);
    let _ = id::destroy(id);
}

fn next_request(listen: *mut RdmaCmId) -> Result<*mut RdmaCmId, Failure> {
    let listening = id::get(listen)?;
    let (is_sync, template) = {
        let inner = listening.lock();
        (inner.is_sync, inner.template)
    };
    if !is_sync {
        return Err(Failure::new(libc::EINVAL, "the identifier has a channel: its requests are events there"));
    }
    let c = listening.c().as_ptr();
    drop(listening);
    id::complete(listen)?;
    // SAFETY: the slot's structure; slots are never unmapped. The event stays until it is acknowledged.
    let request = unsafe {
        let event = std::mem::replace(&mut (*c).event, std::ptr::null_mut());
        let (kind, request) = ((*event).event, (*event).id);
        if kind != event::Kind::ConnectRequest as c_int {
            event::acknowledge(event)?;
            return Err(Failure::new(libc::EINVAL, "the event is not a request"));
        }
        id::migrate(request, std::ptr::null_mut())?;
        // The request's own identifier keeps its event: its private data is in it.
        (*request).event = event;
        request
    };
    if let Some((pd, mut init)) = template {
        // SAFETY: the attributes are ours.
        if unsafe { rdma_create_qp(request, pd as *mut IbvPd, &mut init) } != 0 {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
            let _ = id::destroy(request);
            return Err(Failure::new(errno, "the request's queue pair was not created"));
        }
    }
    Ok(request)
}

/// Waits for a request to a listener that has no channel, and makes its queue pair if the listener has attributes for it.
///
/// # Safety
/// `id` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut RdmaCmId, id: *mut *mut RdmaCmId) -> c_int {
    let get = || {
        // SAFETY: the caller's promise.
        let out = unsafe { id.as_mut() }.ok_or_else(|| Failure::null("id"))?;
        *out = next_request(listen)?;
        Ok(())
    };
    minus_one("rdma_get_request", get())
}
