//! `ibv_wr_*`: work requests made by calls instead of structures.
//!
//! ```text
//!   ibv_wr_start   ibv_wr_rdma_write   ibv_wr_set_sge   …   ibv_wr_complete
//!     forgets        begins a request    gives its data       posts them all, or none when one of them was wrong
//! ```

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use uroce::verbs::{Data, Key, MAX_SGE, Placement, Remote, Selectivity, SendOperation, SendRequest, Sge};

use crate::abi::*;
use crate::error::{Failure, number};
use crate::post::{self, SendLimits};
use crate::queue_pair::{self, Qp};
use crate::window;

/// The requests since `ibv_wr_start`.
#[derive(Default)]
pub(crate) struct Builder {
    requests: Vec<SendRequest>,
    /// The windows that requests bind: after how many requests, which one, and its key.
    bindings: Vec<(usize, usize, Key)>,
    /// The first thing that was wrong; said by `ibv_wr_complete`.
    failure: Option<Failure>,
}

/// A queue pair's structure; only one made for it is given to programs as `struct ibv_qp_ex`.
pub(crate) fn with_functions(qp: IbvQp) -> IbvQpEx {
    IbvQpEx {
        qp,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(atomic_cmp_swp),
        wr_atomic_fetch_add: Some(atomic_fetch_add),
        wr_bind_mw: Some(bind_mw),
        wr_local_inv: Some(local_inv),
        wr_rdma_read: Some(rdma_read),
        wr_rdma_write: Some(rdma_write),
        wr_rdma_write_imm: Some(rdma_write_imm),
        wr_send: Some(send),
        wr_send_imm: Some(send_imm),
        wr_send_inv: Some(send_inv),
        wr_send_tso: Some(send_tso),
        wr_set_ud_addr: Some(set_ud_addr),
        wr_set_xrc_srqn: Some(set_xrc_srqn),
        wr_set_inline_data: Some(set_inline_data),
        wr_set_inline_data_list: Some(set_inline_data_list),
        wr_set_sge: Some(set_sge),
        wr_set_sge_list: Some(set_sge_list),
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        wr_atomic_write: Some(atomic_write),
        wr_flush: Some(flush),
    }
}

/// Runs `work` on the requests being made, and keeps the first failure.
fn with(qp: *mut IbvQpEx, work: impl FnOnce(&mut Builder, &Qp, *mut IbvQpEx) -> Result<(), Failure>) {
    let Ok(qp) = queue_pair::get(qp) else { return };
    let mut builder = qp.builder.lock().unwrap_or_else(PoisonError::into_inner);
    if builder.failure.is_none()
        && let Err(failure) = work(&mut builder, &qp, qp.c().as_ptr())
    {
        builder.failure = Some(failure);
    }
}

/// Begins a request.
fn begin(qp: *mut IbvQpEx, operation: impl FnOnce() -> Result<SendOperation, Failure>) {
    with(qp, |builder, qp, c| {
        // SAFETY: the slot's structure; the program writes these two before each request.
        let (wr_id, flags) = unsafe { ((*c).wr_id, (*c).wr_flags) };
        let request = SendRequest::new(wr_id, operation()?, Data::EMPTY);
        builder.requests.push(post::with_flags(request, flags, &qp.limits));
        Ok(())
    });
}

/// Changes the request that was begun last.
fn change(qp: *mut IbvQpEx, how: impl FnOnce(&mut SendRequest, &SendLimits) -> Result<(), Failure>) {
    with(qp, |builder, qp, _| {
        let last = builder.requests.last_mut();
        how(last.ok_or_else(|| Failure::new(libc::EINVAL, "no request was begun"))?, &qp.limits)
    });
}

const fn remote(key: u32, address: u64) -> Remote {
    Remote { address, key: Key(key) }
}

unsafe extern "C" fn start(qp: *mut IbvQpEx) {
    if let Ok(qp) = queue_pair::get(qp) {
        *qp.builder.lock().unwrap_or_else(PoisonError::into_inner) = Builder::default();
    }
}

unsafe extern "C" fn abort(qp: *mut IbvQpEx) {
    // SAFETY: the same pointer.
    unsafe { start(qp) };
}

unsafe extern "C" fn complete(qp: *mut IbvQpEx) -> c_int {
    let post = || {
        let qp = queue_pair::get(qp)?;
        let Builder { requests, bindings, failure } =
            std::mem::take(&mut *qp.builder.lock().unwrap_or_else(PoisonError::into_inner));
        match failure {
            Some(failure) => Err(failure),
            // Up to the first that the queue pair refuses, as with ibv_post_send.
            None => {
                let (posted, result) = qp.qp.post_sends(requests.into_iter());
                for (_, mw, key) in bindings.into_iter().filter(|(before, ..)| *before < posted) {
                    window::show_key(mw as *const IbvMw, key);
                }
                result.map_err(Failure::from)
            }
        }
    };
    match post() {
        Ok(()) => 0,
        Err(failure) => number("ibv_wr_complete", Err(failure)),
    }
}

unsafe extern "C" fn send(qp: *mut IbvQpEx) {
    begin(qp, || Ok(SendOperation::Send));
}

unsafe extern "C" fn send_imm(qp: *mut IbvQpEx, immediate: u32) {
    begin(qp, || Ok(SendOperation::SendWithImmediate(u32::from_be(immediate))));
}

unsafe extern "C" fn send_inv(qp: *mut IbvQpEx, key: u32) {
    begin(qp, || Ok(SendOperation::SendWithInvalidate(Key(key))));
}

unsafe extern "C" fn rdma_write(qp: *mut IbvQpEx, key: u32, address: u64) {
    begin(qp, || Ok(SendOperation::Write(remote(key, address))));
}

unsafe extern "C" fn rdma_write_imm(qp: *mut IbvQpEx, key: u32, address: u64, immediate: u32) {
    begin(qp, || Ok(SendOperation::WriteWithImmediate(remote(key, address), u32::from_be(immediate))));
}

unsafe extern "C" fn rdma_read(qp: *mut IbvQpEx, key: u32, address: u64) {
    begin(qp, || Ok(SendOperation::Read(remote(key, address))));
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut IbvQpEx, key: u32, address: u64, compare: u64, swap: u64) {
    begin(qp, || Ok(SendOperation::CompareSwap { remote: remote(key, address), compare, swap }));
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut IbvQpEx, key: u32, address: u64, add: u64) {
    begin(qp, || Ok(SendOperation::FetchAdd { remote: remote(key, address), add }));
}

unsafe extern "C" fn local_inv(qp: *mut IbvQpEx, key: u32) {
    begin(qp, || Ok(SendOperation::LocalInvalidate(Key(key))));
}

unsafe extern "C" fn bind_mw(qp: *mut IbvQpEx, mw: *mut IbvMw, key: u32, info: *const IbvMwBindInfo) {
    // SAFETY: NULL, or the program's structure.
    let info = unsafe { info.as_ref() };
    begin(qp, || window::binding(mw, Key(key), info.ok_or_else(|| Failure::null("bind_info"))?));
    with(qp, |builder, _, _| {
        builder.bindings.push((builder.requests.len() - 1, mw as usize, Key(key)));
        Ok(())
    });
}

unsafe extern "C" fn send_tso(qp: *mut IbvQpEx, _header: *mut c_void, _bytes: u16, _segment: u16) {
    begin(qp, || Err(Failure::not_offered("segmentation offload")));
}

unsafe extern "C" fn atomic_write(qp: *mut IbvQpEx, key: u32, address: u64, value: *const c_void) {
    // SAFETY: NULL, or eight bytes of the program's, of any alignment.
    let value = (!value.is_null()).then(|| unsafe { value.cast::<[u8; 8]>().read_unaligned() });
    begin(qp, || match value {
        Some(_) => Ok(SendOperation::AtomicWrite(remote(key, address))),
        None => Err(Failure::null("atomic_wr")),
    });
    change(qp, |request, _| {
        request.data = Data::Inline(value.into_iter().flatten().collect());
        Ok(())
    });
}

unsafe extern "C" fn flush(qp: *mut IbvQpEx, key: u32, address: u64, length: usize, placement: u8, level: u8) {
    begin(qp, || {
        let selectivity = Selectivity::new(level);
        let placement = Placement::from_bits(placement).filter(|placement| !placement.is_empty());
        let (Some(placement), true) = (placement, matches!(level, 0 | 1)) else {
            return Err(Failure::new(libc::EINVAL, "a FLUSH of an unknown type or level"));
        };
        let length = match selectivity {
            Selectivity::Range => u32::try_from(length).ok().filter(|length| *length <= 1 << 31),
            _ => Some(0),
        };
        let length = length.ok_or_else(|| Failure::new(libc::EINVAL, "a FLUSH of more than 2^31 bytes"))?;
        Ok(SendOperation::Flush { remote: remote(key, address), length, placement, selectivity })
    });
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut IbvQpEx, _number: u32) {
    change(qp, |_, _| Err(Failure::not_offered("XRC")));
}

unsafe extern "C" fn set_ud_addr(qp: *mut IbvQpEx, ah: *mut IbvAh, qpn: u32, q_key: u32) {
    change(qp, |request, limits| {
        request.destination = Some(post::destination(ah, qpn, q_key, limits)?);
        Ok(())
    });
}

unsafe extern "C" fn set_sge(qp: *mut IbvQpEx, lkey: u32, address: u64, length: u32) {
    change(qp, |request, _| {
        request.data = Data::Sges([Sge { address, length, lkey: Key(lkey) }].into_iter().collect());
        Ok(())
    });
}

unsafe extern "C" fn set_sge_list(qp: *mut IbvQpEx, count: usize, list: *const IbvSge) {
    change(qp, |request, limits| {
        if count > (limits.max_sge as usize).min(MAX_SGE) || (count > 0 && list.is_null()) {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("{count} entries: the queue takes {}", limits.max_sge),
            ));
        }
        // SAFETY: the program's list of `count` entries.
        let entry = |index| unsafe { list.add(index).read_unaligned() };
        let sge = |e: IbvSge| Sge { address: e.addr, length: e.length, lkey: Key(e.lkey) };
        request.data = Data::Sges((0..count).map(|index| sge(entry(index))).collect());
        Ok(())
    });
}

unsafe extern "C" fn set_inline_data(qp: *mut IbvQpEx, address: *mut c_void, length: usize) {
    change(qp, |request, limits| {
        // SAFETY: the program's memory.
        request.data = unsafe { post::inline(std::iter::once((address.cast_const().cast(), length)), limits) }?;
        Ok(())
    });
}

unsafe extern "C" fn set_inline_data_list(qp: *mut IbvQpEx, count: usize, list: *const IbvDataBuf) {
    change(qp, |request, limits| {
        if count > 0 && list.is_null() {
            return Err(Failure::null("buf_list"));
        }
        let parts = (0..count).map(|index| {
            // SAFETY: the program's list of `count` parts; the first that is too much ends the walk.
            let part = unsafe { list.add(index).read_unaligned() };
            (part.addr.cast_const().cast(), part.length)
        });
        // SAFETY: the program's memory.
        request.data = unsafe { post::inline(parts, limits) }?;
        Ok(())
    });
}
