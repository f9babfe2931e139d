//! Queue pairs of identifiers, and their attributes.

use std::ffi::c_int;

use uroce::verbs::{Attributes, QpAttributes, State};

use crate::abi::*;
use crate::completion_channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::completion_queue::{ibv_create_cq, ibv_destroy_cq};
use crate::domain;
use crate::error::{Failure, minus_one};
use crate::queue_pair::{create_qp_ex, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::slab::Ref;
use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

use super::connect::UDP_Q_KEY;
use super::id::{self, CmId, Inner, UD};
use super::resolve;

/// `IBV_QPT_UC`.
const UC: c_int = 3;

/// The RNR timer of our receivers, a code: 40.96 ms. Programs count their tries by the kernel's, which waits 655.36 ms each
/// time (`cm_init_qp_rtr_attr` in drivers/infiniband/core/cm.c): with five, a receiver may be late by a turn of a busy
/// processor. A sixteenth of that is enough, and costs a program that runs into it less.
const RNR_TIMER: u8 = 24;

/// `IBV_ACCESS_REMOTE_WRITE`, and the same with READ and ATOMIC.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_ALL: u32 = 1 << 1 | 1 << 2 | 1 << 3;

/// The identifier's queue pair; `None` when it has none.
pub(super) fn of(id: &Ref<CmId>) -> Option<*mut IbvQp> {
    // SAFETY: the slot's structure.
    let qp = unsafe { (*id.c().as_ptr()).qp };
    (!qp.is_null()).then_some(qp)
}

pub(super) fn is_unreliable(inner: &Inner) -> bool {
    inner.qp_type == UC
}

/// The peer's address as `struct ibv_ah_attr` has it.
pub(super) fn address_vector(inner: &Inner) -> Result<IbvAhAttr, Failure> {
    let vector = resolve::vector(inner, inner.peer.flow_label)?;
    Ok(IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: IbvGid(vector.destination_gid.octets()),
            flow_label: vector.flow_label,
            sgid_index: vector.source_gid_index as u8,
            hop_limit: if inner.peer.hop_limit == 0 { vector.hop_limit } else { inner.peer.hop_limit },
            traffic_class: inner.peer.traffic_class,
        },
        is_global: 1,
        port_num: 1,
        ..IbvAhAttr::default()
    })
}

/// The attributes that take the queue pair to a state (`ib_cm_init_qp_attr` in the kernel's cm.c).
fn attributes(inner: &Inner, state: State) -> Result<(IbvQpAttr, Attributes), Failure> {
    let mut attr = IbvQpAttr { qp_state: state as c_int, ..IbvQpAttr::default() };
    let is_datagram = inner.qp_type == UD;
    let is_reliable = !is_datagram && !is_unreliable(inner);
    let mut mask = Attributes::STATE;
    match state {
        State::Init => {
            (attr.port_num, attr.pkey_index) = (1, 0);
            mask |= Attributes::PORT | Attributes::PKEY_INDEX;
            if is_datagram {
                attr.qkey = UDP_Q_KEY;
                mask |= Attributes::QKEY;
            } else {
                // Before there is a connection nobody is allowed anything.
                let reads = if inner.responder_resources > 0 { REMOTE_ALL } else { REMOTE_WRITE };
                attr.qp_access_flags = if inner.connection.is_some() { reads } else { 0 };
                mask |= Attributes::ACCESS_FLAGS;
            }
        }
        State::ReadyToReceive if !is_datagram => {
            let own = inner.host()?.opened.context.active_mtu();
            attr.ah_attr = address_vector(inner)?;
            attr.path_mtu = inner.peer.path_mtu.min(own) as c_int;
            (attr.dest_qp_num, attr.rq_psn) = (inner.peer.qpn, inner.psn);
            mask |= Attributes::AV | Attributes::PATH_MTU | Attributes::DEST_QPN | Attributes::RQ_PSN;
            if is_reliable {
                attr.max_dest_rd_atomic = inner.responder_resources.min(QpAttributes::MAX_RD_ATOMIC);
                attr.min_rnr_timer = RNR_TIMER;
                mask |= Attributes::MAX_DEST_RD_ATOMIC | Attributes::MIN_RNR_TIMER;
            }
        }
        State::ReadyToSend => {
            attr.sq_psn = inner.peer.psn;
            mask |= Attributes::SQ_PSN;
            if is_reliable {
                attr.timeout = inner.peer.ack_timeout;
                (attr.retry_cnt, attr.rnr_retry) = (inner.retry_count, inner.rnr_retry);
                attr.max_rd_atomic = inner.initiator_depth.min(QpAttributes::MAX_RD_ATOMIC);
                mask |=
                    Attributes::TIMEOUT | Attributes::RETRY_CNT | Attributes::RNR_RETRY | Attributes::MAX_QP_RD_ATOMIC;
            }
        }
        _ => {}
    }
    Ok((attr, mask))
}

/// Takes the identifier's queue pair to a state.
fn modify(id: &Ref<CmId>, state: State) -> Result<(), Failure> {
    let qp = of(id).ok_or_else(|| Failure::new(libc::EINVAL, "the identifier has no queue pair"))?;
    let (mut attr, mask) = attributes(&id.lock(), state)?;
    // SAFETY: the attributes are ours.
    match unsafe { ibv_modify_qp(qp, &mut attr, mask.bits() as c_int) } {
        0 => Ok(()),
        errno => Err(Failure::new(errno, format_args!("the queue pair did not go to {state:?}"))),
    }
}

/// Rights of the connection, which were not known when the queue pair was made, and what it takes to receive. `port` is
/// that of the service.
pub(super) fn to_rtr(id: &Ref<CmId>, port: Option<u16>) -> Result<(), Failure> {
    if let (Some(qp), Some(port)) = (of(id), port) {
        crate::queue_pair::get(qp)?.qp.set_service_port(port);
    }
    modify(id, State::Init)?;
    modify(id, State::ReadyToReceive)
}

pub(super) fn to_rts(id: &Ref<CmId>) -> Result<(), Failure> {
    modify(id, State::ReadyToSend)
}

/// Takes the identifier's queue pair to the error state, if it has one: what is posted is flushed.
pub(super) fn fail(id: &Ref<CmId>) {
    if id.lock().qp_type != UD && of(id).is_some() {
        let _ = modify(id, State::Error);
    }
}

/// Fills in the attributes for the state in `attr`, and which they are, for programs that move queue pairs themselves.
///
/// # Safety
/// `attr` and `mask` are NULL or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(id: *mut RdmaCmId, attr: *mut IbvQpAttr, mask: *mut c_int) -> c_int {
    let fill = || {
        let id = id::get(id)?;
        // SAFETY: the caller's promise.
        let (attr, mask) = unsafe { (attr.as_mut(), mask.as_mut()) };
        let (attr, mask) = attr.zip(mask).ok_or_else(|| Failure::null("qp_attr or qp_attr_mask"))?;
        let states = [State::Init, State::ReadyToReceive, State::ReadyToSend];
        let state = states.into_iter().find(|state| *state as c_int == attr.qp_state);
        let unknown = || Failure::new(libc::EINVAL, format_args!("qp_state {}: INIT, RTR or RTS", attr.qp_state));
        let (filled, names) = attributes(&id.lock(), state.ok_or_else(unknown)?)?;
        (*attr, *mask) = (filled, names.bits() as c_int);
        Ok(())
    };
    minus_one("rdma_init_qp_attr", fill())
}

/// What the calling verb left in `errno`.
fn last_failure(what: &str) -> Failure {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    Failure::new(errno, format_args!("{what} was not created"))
}

/// Makes the completion queues that the program does not bring.
fn make_queues(c: *mut RdmaCmId, init: &mut IbvQpInitAttr) -> Result<(), Failure> {
    // SAFETY: the slot's structure.
    let (verbs, cq_context) = (unsafe { (*c).verbs }, c.cast());
    let make = move |entries: u32| {
        let channel = ibv_create_comp_channel(verbs);
        if channel.is_null() {
            return Err(last_failure("a completion channel"));
        }
        let cq = ibv_create_cq(verbs, entries.max(1) as c_int, cq_context, channel, 0);
        if cq.is_null() {
            let failure = last_failure("a completion queue");
            ibv_destroy_comp_channel(channel);
            return Err(failure);
        }
        Ok((channel, cq))
    };
    // SAFETY: the slot's structure, here and below.
    unsafe {
        if init.recv_cq.is_null() && (*c).recv_cq.is_null() {
            ((*c).recv_cq_channel, (*c).recv_cq) = make(init.cap.max_recv_wr)?;
        }
        if init.send_cq.is_null() && (*c).send_cq.is_null() {
            ((*c).send_cq_channel, (*c).send_cq) = make(init.cap.max_send_wr)?;
        }
        if init.recv_cq.is_null() {
            init.recv_cq = (*c).recv_cq;
        }
        if init.send_cq.is_null() {
            init.send_cq = (*c).send_cq;
        }
        if init.srq.is_null() {
            init.srq = (*c).srq;
        }
    }
    Ok(())
}

/// Destroys the completion queues that [`make_queues`] made.
fn end_queues(c: *mut RdmaCmId) {
    // SAFETY: the slot's structure.
    unsafe {
        for (channel, cq) in [
            (&raw mut (*c).recv_cq_channel, &raw mut (*c).recv_cq),
            (&raw mut (*c).send_cq_channel, &raw mut (*c).send_cq),
        ] {
            if !(*channel).is_null() && !(*cq).is_null() {
                ibv_destroy_cq(*cq);
                ibv_destroy_comp_channel(*channel);
                (*cq, *channel) = (std::ptr::null_mut(), std::ptr::null_mut());
            }
        }
    }
}

/// Makes the identifier's queue pair with `make`, and takes it as far as it goes without a peer.
fn create(
    pointer: *mut RdmaCmId,
    init: &mut IbvQpInitAttr,
    make: impl FnOnce(&mut IbvQpInitAttr) -> *mut IbvQp,
) -> Result<(), Failure> {
    let id = id::get(pointer)?;
    let c = id.c().as_ptr();
    if of(&id).is_some() {
        return Err(Failure::new(libc::EINVAL, "the identifier has a queue pair"));
    }
    id.lock().host()?;
    let wanted = id.lock().qp_type;
    if init.qp_type != wanted {
        let why = format_args!("qp_type is {}; the identifier's port space needs {wanted}", init.qp_type);
        return Err(Failure::new(libc::EINVAL, why));
    }
    make_queues(c, init)?;
    let qp = make(init);
    if qp.is_null() {
        let failure = last_failure("the queue pair");
        end_queues(c);
        return Err(failure);
    }
    // SAFETY: the slot's structure, and the queue pair that was just made.
    unsafe { ((*c).qp, (*c).pd) = (qp, (*qp).pd) };
    let states: &[State] = match wanted {
        UD => &[State::Init, State::ReadyToReceive, State::ReadyToSend],
        _ => &[State::Init],
    };
    let moved = states.iter().try_for_each(|state| modify(&id, *state));
    if moved.is_err() {
        destroy(&id);
    }
    moved
}

/// The protection domain, or the identifier's for NULL.
fn domain_of(id: *mut RdmaCmId, pd: *mut IbvPd) -> Result<*mut IbvPd, Failure> {
    let id = id::get(id)?;
    id.lock().host()?;
    // SAFETY: the slot's structure.
    let pd = if pd.is_null() { unsafe { (*id.c().as_ptr()).pd } } else { pd };
    domain::get(pd).map(|_| pd)
}

/// Makes the identifier's queue pair. Without `pd` it gets the device's own domain, and without completion queues those of
/// the identifier.
///
/// # Safety
/// `init` is NULL, or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(id: *mut RdmaCmId, pd: *mut IbvPd, init: *mut IbvQpInitAttr) -> c_int {
    let make = || {
        // SAFETY: the caller's promise.
        let init = unsafe { init.as_mut() }.ok_or_else(|| Failure::null("qp_init_attr"))?;
        let pd = domain_of(id, pd)?;
        // SAFETY: the attributes can be read and written.
        create(id, init, |init| unsafe { ibv_create_qp(pd, init) })
    };
    minus_one("rdma_create_qp", make())
}

/// As [`rdma_create_qp`], with extended attributes.
///
/// # Safety
/// `init` is NULL, or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut RdmaCmId, init: *mut IbvQpInitAttrEx) -> c_int {
    /// `IBV_QP_INIT_ATTR_PD`.
    const PD: u32 = 1;
    let make = || {
        // SAFETY: the caller's promise.
        let extended = unsafe { init.as_mut() }.ok_or_else(|| Failure::null("qp_init_attr"))?;
        let given = if extended.comp_mask & PD == 0 { std::ptr::null_mut() } else { extended.pd };
        extended.pd = domain_of(id, given)?;
        extended.comp_mask |= PD;
        let context = id::get(id)?.lock().host()?.context();
        let mut plain = IbvQpInitAttr {
            qp_context: extended.qp_context,
            send_cq: extended.send_cq,
            recv_cq: extended.recv_cq,
            srq: extended.srq,
            cap: extended.cap,
            qp_type: extended.qp_type,
            sq_sig_all: extended.sq_sig_all,
        };
        create(id, &mut plain, |plain| {
            (extended.send_cq, extended.recv_cq, extended.srq) = (plain.send_cq, plain.recv_cq, plain.srq);
            // SAFETY: as above.
            unsafe { create_qp_ex(context, extended) }
        })
    };
    minus_one("rdma_create_qp_ex", make())
}

fn destroy(id: &Ref<CmId>) {
    let c = id.c().as_ptr();
    if let Some(qp) = of(id) {
        ibv_destroy_qp(qp);
        // SAFETY: the slot's structure.
        unsafe { (*c).qp = std::ptr::null_mut() };
    }
    end_queues(c);
}

/// Destroys the identifier's queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_qp(id: *mut RdmaCmId) {
    if let Ok(id) = id::get(id) {
        destroy(&id);
    }
}

/// Makes the identifier's shared receive queue.
///
/// # Safety
/// `init` is NULL, or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(id: *mut RdmaCmId, pd: *mut IbvPd, init: *mut IbvSrqInitAttr) -> c_int {
    let make = || {
        let pd = domain_of(id, pd)?;
        // SAFETY: the caller's promise.
        keep_srq(id, pd, unsafe { ibv_create_srq(pd, init) })
    };
    minus_one("rdma_create_srq", make())
}

/// As [`rdma_create_srq`], with extended attributes.
///
/// # Safety
/// `init` is NULL, or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut RdmaCmId, init: *mut IbvSrqInitAttrEx) -> c_int {
    let make = || {
        // SAFETY: the caller's promise.
        let given = unsafe { init.as_mut() }.ok_or_else(|| Failure::null("init"))?;
        given.pd = domain_of(id, given.pd)?;
        let context = id::get(id)?.lock().host()?.context();
        let pd = given.pd;
        // SAFETY: as above.
        keep_srq(id, pd, unsafe { create_srq_ex(context, given) })
    };
    minus_one("rdma_create_srq_ex", make())
}

fn keep_srq(id: *mut RdmaCmId, pd: *mut IbvPd, srq: *mut IbvSrq) -> Result<(), Failure> {
    if srq.is_null() {
        return Err(last_failure("the shared receive queue"));
    }
    let id = id::get(id)?;
    // SAFETY: the slot's structure.
    unsafe { ((*id.c().as_ptr()).srq, (*id.c().as_ptr()).pd) = (srq, pd) };
    Ok(())
}

/// Destroys the identifier's shared receive queue.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_srq(id: *mut RdmaCmId) {
    let Ok(id) = id::get(id) else { return };
    let c = id.c().as_ptr();
    // SAFETY: the slot's structure.
    unsafe {
        if !(*c).srq.is_null() {
            ibv_destroy_srq((*c).srq);
            (*c).srq = std::ptr::null_mut();
        }
    }
}

/// Sets options of enhanced connection establishment, which peers here have none of.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_set_local_ece(id: *mut RdmaCmId, ece: *const u32) -> c_int {
    let set = || if ece.is_null() { Err(Failure::null("ece")) } else { id::get(id).map(drop) };
    minus_one("rdma_set_local_ece", set())
}

/// The peer's options of enhanced connection establishment: none.
///
/// # Safety
/// `ece` is NULL or may be written for three numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut RdmaCmId, ece: *mut [u32; 3]) -> c_int {
    let none = || {
        drop(id::get(id)?);
        // SAFETY: the caller's promise.
        *unsafe { ece.as_mut() }.ok_or_else(|| Failure::null("ece"))? = [0; 3];
        Ok(())
    };
    minus_one("rdma_get_remote_ece", none())
}
