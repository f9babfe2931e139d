//! Work requests as programs write them, and as the transport takes them.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};

use uroce::verbs::{
    Data, Destination, InlineBytes, InlinePool, Key, MAX_SGE, QKey, Qpn, ReceiveRequest, Remote, SendOperation,
    SendRequest, Sge, SgeList, source_port,
};

use crate::abi::*;
use crate::error::{Failure, number};
use crate::{address, window};

/// What a queue pair's requests are held against.
pub(crate) struct SendLimits {
    pub qpn: Qpn,
    pub is_datagram: bool,
    pub max_sge: u32,
    pub max_inline_bytes: u32,
    /// Memory for inline data that does not lie in the requests themselves, if they may have so much.
    pub inline_pool: Option<InlinePool>,
    /// `sq_sig_all`: every request is reported.
    pub all_are_signaled: bool,
}

/// The entries of a list of the program's, which need not be aligned: libiscsi's are not.
///
/// # Safety
/// `list` has `count` entries, if `count` is possible at all, for as long as the iterator lives.
unsafe fn sges(list: *const IbvSge, count: c_int, limit: u32) -> Result<impl Iterator<Item = IbvSge> + Clone, Failure> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > limit as usize {
        return Err(Failure::new(libc::EINVAL, format_args!("{count} scatter/gather entries: the maximum is {limit}")));
    }
    if count > 0 && list.is_null() {
        return Err(Failure::null("sg_list"));
    }
    // SAFETY: the caller's promise.
    Ok((0..count).map(move |index| unsafe { list.add(index).read_unaligned() }))
}

fn sge(entry: IbvSge) -> Sge {
    Sge { address: entry.addr, length: entry.length, lkey: Key(entry.lkey) }
}

/// The list as the transport has it; `MAX_SGE` at the most.
fn list(entries: impl Iterator<Item = IbvSge>) -> Data {
    Data::Sges(entries.take(MAX_SGE).map(sge).collect())
}

/// Copies the bytes that inline data names.
///
/// # Safety
/// Each part is readable memory of the program's.
pub(crate) unsafe fn inline(
    parts: impl Iterator<Item = (*const u8, usize)>,
    limits: &SendLimits,
) -> Result<Data, Failure> {
    let mut bytes = InlineBytes::new();
    for (start, len) in parts {
        if len > (limits.max_inline_bytes as usize).saturating_sub(bytes.len()) {
            let limit = limits.max_inline_bytes;
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("the inline data is longer than the queue's {limit} bytes"),
            ));
        }
        if len > 0 {
            // SAFETY: the caller's promise.
            let part = unsafe { std::slice::from_raw_parts(start, len) };
            let added = bytes.extend(part, limits.inline_pool.as_ref());
            added.map_err(|error| Failure::new(libc::EINVAL, error))?;
        }
    }
    Ok(Data::Inline(bytes))
}

/// Where a datagram goes.
pub(crate) fn destination(ah: *const IbvAh, qpn: u32, q_key: u32, limits: &SendLimits) -> Result<Destination, Failure> {
    let mut path = address::get(ah)?.path;
    path.flow.source_port = source_port(limits.qpn, limits.qpn);
    Ok(Destination { path, qpn: Qpn::new(qpn), q_key: QKey(q_key) })
}

/// The flags of a request.
pub(crate) fn with_flags(request: SendRequest, flags: c_uint, limits: &SendLimits) -> SendRequest {
    SendRequest {
        signaled: limits.all_are_signaled || flags & send_flag::SIGNALED != 0,
        solicited: flags & send_flag::SOLICITED != 0,
        fence: flags & send_flag::FENCE != 0,
        ..request
    }
}

/// One send request.
///
/// # Safety
/// What it points to is the program's memory.
unsafe fn send(wr: &IbvSendWr, limits: &SendLimits) -> Result<SendRequest, Failure> {
    let immediate = u32::from_be(wr.imm_data);
    // SAFETY: the opcode says which member the program has written; all are plain numbers.
    let (rdma, atomic, ud) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
    let remote = || Remote { address: rdma.remote_addr, key: Key(rdma.rkey) };
    let cell = Remote { address: atomic.remote_addr, key: Key(atomic.rkey) };
    let operation = match wr.opcode {
        wr::SEND => SendOperation::Send,
        wr::SEND_WITH_IMM => SendOperation::SendWithImmediate(immediate),
        wr::SEND_WITH_INV => SendOperation::SendWithInvalidate(Key(wr.imm_data)),
        wr::RDMA_WRITE => SendOperation::Write(remote()),
        wr::RDMA_WRITE_WITH_IMM => SendOperation::WriteWithImmediate(remote(), immediate),
        wr::RDMA_READ => SendOperation::Read(remote()),
        wr::ATOMIC_CMP_AND_SWP => {
            SendOperation::CompareSwap { remote: cell, compare: atomic.compare_add, swap: atomic.swap }
        }
        wr::ATOMIC_FETCH_AND_ADD => SendOperation::FetchAdd { remote: cell, add: atomic.compare_add },
        wr::LOCAL_INV => SendOperation::LocalInvalidate(Key(wr.imm_data)),
        wr::BIND_MW => window::binding(wr.bind_mw.mw, Key(wr.bind_mw.rkey), &wr.bind_mw.bind_info)?,
        wr::ATOMIC_WRITE => SendOperation::AtomicWrite(remote()),
        // There is no room in the structure for what it asks.
        wr::FLUSH => return Err(Failure::not_offered("a FLUSH other than by ibv_wr_flush")),
        wr::TSO => return Err(Failure::not_offered(format_args!("the opcode {}", wr.opcode))),
        other => return Err(Failure::new(libc::EINVAL, format_args!("{other} is not an opcode"))),
    };
    let data = if operation.is_local() {
        Data::EMPTY
    } else {
        // SAFETY: the caller's promise.
        let entries = unsafe { sges(wr.sg_list, wr.num_sge, limits.max_sge) }?;
        if wr.send_flags & send_flag::INLINE != 0 {
            let parts = entries.map(|entry| (entry.addr as *const u8, entry.length as usize));
            // SAFETY: the caller's promise.
            unsafe { inline(parts, limits) }?
        } else {
            list(entries)
        }
    };
    let destination =
        if limits.is_datagram { Some(destination(ud.ah, ud.remote_qpn, ud.remote_qkey, limits)?) } else { None };
    let request = SendRequest { destination, ..SendRequest::new(wr.wr_id, operation, data) };
    Ok(with_flags(request, wr.send_flags, limits))
}

/// Says that nothing was posted.
///
/// # Safety
/// `bad_wr` is NULL or may be written.
pub(crate) unsafe fn refused_at<W>(verb: &str, failure: Failure, wr: *mut W, bad_wr: *mut *mut W) -> c_int {
    // SAFETY: the caller's promise.
    if let Some(bad_wr) = unsafe { bad_wr.as_mut() } {
        *bad_wr = wr;
    }
    number(verb, Err(failure))
}

/// As [`refused_at`], for a request list none of which was looked at. `bad_wr` is the program's.
pub(crate) fn refused<W>(verb: &str, failure: Failure, wr: *mut W, bad_wr: *mut *mut W) -> c_int {
    // SAFETY: the verbs demand a valid `bad_wr`; NULL is looked for.
    unsafe { refused_at(verb, failure, wr, bad_wr) }
}

/// A request of a linked list, of either kind.
trait Linked {
    fn next(&self) -> *mut Self;
}

impl Linked for IbvSendWr {
    fn next(&self) -> *mut IbvSendWr {
        self.next
    }
}

impl Linked for IbvRecvWr {
    fn next(&self) -> *mut IbvRecvWr {
        self.next
    }
}

/// Posts a linked list in order up to the first request that is refused, here or by the transport.
fn post<W: Linked, R>(
    verb: &str,
    first: *mut W,
    bad_wr: *mut *mut W,
    mut convert: impl FnMut(&W) -> Result<R, Failure>,
    post: impl FnOnce(&mut dyn Iterator<Item = R>) -> (usize, Result<(), Failure>),
) -> c_int {
    if first.is_null() {
        return refused(verb, Failure::null("wr"), first, bad_wr);
    }
    let mut at = first;
    let mut failure = None;
    let mut requests = std::iter::from_fn(|| {
        if at.is_null() {
            return None;
        }
        let copy;
        let wr = if at.is_aligned() {
            // SAFETY: the program's list: each points to the next, the last to NULL.
            unsafe { &*at }
        } else {
            // SAFETY: as above.
            copy = unsafe { at.read_unaligned() };
            &copy
        };
        match convert(wr) {
            Ok(request) => {
                at = wr.next();
                Some(request)
            }
            Err(error) => {
                failure = Some(error);
                None
            }
        }
    });
    let (posted, result) = post(&mut requests);
    let Some(failure) = result.err().or(failure) else { return 0 };
    let mut bad = first;
    for _ in 0..posted {
        // SAFETY: as above; these were posted, so they are there.
        bad = unsafe { (*bad).next() };
    }
    refused(verb, failure, bad, bad_wr)
}

/// Posts a list of send requests.
pub(crate) fn sends(
    limits: &SendLimits,
    wr: *mut IbvSendWr,
    bad_wr: *mut *mut IbvSendWr,
    post_them: impl FnOnce(&mut dyn Iterator<Item = SendRequest>) -> (usize, Result<(), Failure>),
) -> c_int {
    let has_bindings = Cell::new(false);
    let convert = |wr: &IbvSendWr| {
        has_bindings.set(has_bindings.get() | (wr.opcode == wr::BIND_MW));
        // SAFETY: what the program posts points to its own memory.
        unsafe { send(wr, limits) }
    };
    let post_them = |requests: &mut dyn Iterator<Item = SendRequest>| {
        let (posted, result) = post_them(requests);
        if has_bindings.get() {
            let mut at = wr.cast_const();
            for _ in 0..posted {
                // SAFETY: the program's list, of which so many were posted.
                let wr = unsafe { &*at };
                if wr.opcode == wr::BIND_MW {
                    window::show_key(wr.bind_mw.mw, Key(wr.bind_mw.rkey));
                }
                at = wr.next;
            }
        }
        (posted, result)
    };
    post("ibv_post_send", wr, bad_wr, convert, post_them)
}

/// Posts a list of receive requests.
pub(crate) fn receives(
    verb: &str,
    max_sge: u32,
    wr: *mut IbvRecvWr,
    bad_wr: *mut *mut IbvRecvWr,
    post_them: impl FnOnce(&mut dyn Iterator<Item = ReceiveRequest>) -> (usize, Result<(), Failure>),
) -> c_int {
    let convert = |wr: &IbvRecvWr| {
        // SAFETY: as for send requests.
        let entries = unsafe { sges(wr.sg_list, wr.num_sge, max_sge) }?;
        Ok(ReceiveRequest { wr_id: wr.wr_id, sges: entries.map(sge).collect::<SgeList>() })
    };
    post(verb, wr, bad_wr, convert, post_them)
}
