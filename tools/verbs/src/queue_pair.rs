//! Queue pairs.

use std::ffi::{c_int, c_void};
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uroce::verbs::{
    Access, Attributes, Capabilities, InlinePool, MAX_INLINE_BYTES, MAX_SGE, PathMtu, Psn, QKey, QpAttributes, Qpn,
    QueuePair, QueuePairOptions, RnrTimer, SendRequest, Service, State,
};

use crate::abi::*;
use crate::async_event::{QpRoute, Route};
use crate::completion_queue;
use crate::context::{self, Opened};
use crate::error::{Failure, number, pointer};
use crate::marks::Mark;
use crate::name::{Named, by_name};
use crate::post::{self, SendLimits};
use crate::queue::Acknowledged;
use crate::slab::{NotRemoved, Object, Ref, Slab};
use crate::work_builder::{self, Builder};
use crate::{address, domain, srq};

/// Queue pairs at the most, in all contexts.
pub(crate) const MAX_QPS: usize = 1 << 16;

/// A queue pair.
pub(crate) struct Qp {
    context: usize,
    pub qp: QueuePair,
    opened: Arc<Opened>,
    pub limits: SendLimits,
    max_receive_sge: u32,
    init: IbvQpInitAttr,
    /// What the program has set, as `ibv_query_qp` gives it back.
    attr: Mutex<IbvQpAttr>,
    /// What `ibv_wr_*` is making.
    pub builder: Mutex<Builder>,
    pub is_extended: bool,
    route: Arc<Route>,
    is_ending: AtomicBool,
    /// The domain, both completion queues, and the shared receive queue: they do not go before.
    _needs: [Option<Arc<()>>; 4],
}

// SAFETY: the pointers in `init` are only given back to the program.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Object for Qp {
    type C = IbvQpEx;
    const CAPACITY: usize = MAX_QPS;

    fn slab() -> &'static Slab<Qp> {
        static SLAB: Slab<Qp> = Slab::new();
        &SLAB
    }
}

impl Named for Qp {
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32) {
        // SAFETY: only places are computed; the slab has room for the structure there.
        unsafe { (&raw mut (*c).qp.context, &raw mut (*c).qp.handle) }
    }

    fn context(&self) -> usize {
        self.context
    }
}

pub(crate) fn get<P>(qp: *const P) -> Result<Ref<Qp>, Failure> {
    Qp::slab().get(qp).ok_or_else(|| Failure::handle("queue pair"))
}

/// As [`get`], for all but requests.
fn get_by_name(qp: *const IbvQp) -> Result<Ref<Qp>, Failure> {
    by_name("queue pair", get(qp)?)
}

/// `enum ibv_qp_type`.
const RC: c_int = 2;
const UC: c_int = 3;
const UD: c_int = 4;
/// Raw packets, XRC, and what providers make of their own.
const OTHER_TYPES: [c_int; 4] = [8, 9, 10, 0xff];

fn service(kind: c_int) -> Result<Service, Failure> {
    match kind {
        RC => Ok(Service::Rc),
        UC => Ok(Service::Uc),
        UD => Ok(Service::Ud),
        other if OTHER_TYPES.contains(&other) => {
            Err(Failure::not_offered(format_args!("queue pairs of the type {other}")))
        }
        other => Err(Failure::new(libc::EINVAL, format_args!("{other} is not a queue pair type"))),
    }
}

/// What the queue gets: at least what was asked for, and one of each, since empty queues make no sense to the transport.
fn granted(asked: &IbvQpCap, has_srq: bool) -> Result<IbvQpCap, Failure> {
    let within = |what: &str, asked: u32, limit: usize| {
        if asked as usize <= limit {
            Ok(())
        } else {
            Err(Failure::new(libc::EINVAL, format_args!("{what} is {asked}; the maximum is {limit}")))
        }
    };
    within("max_send_wr", asked.max_send_wr, Capabilities::MAX_REQUESTS)?;
    within("max_send_sge", asked.max_send_sge, MAX_SGE)?;
    within("max_inline_data", asked.max_inline_data, MAX_INLINE_BYTES)?;
    if !has_srq {
        within("max_recv_wr", asked.max_recv_wr, Capabilities::MAX_REQUESTS)?;
        within("max_recv_sge", asked.max_recv_sge, MAX_SGE)?;
    }
    Ok(IbvQpCap {
        max_send_wr: asked.max_send_wr.max(1),
        max_recv_wr: if has_srq { 0 } else { asked.max_recv_wr.max(1) },
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: if has_srq { 0 } else { asked.max_recv_sge.max(1) },
        max_inline_data: asked.max_inline_data,
    })
}

fn create(pd: *mut IbvPd, init: &mut IbvQpInitAttr, is_extended: bool) -> Result<*mut IbvQpEx, Failure> {
    let owner = domain::get(pd)?;
    let open = context::get(owner.context as *const IbvContext)?;
    let service = service(init.qp_type)?;
    let send_cq = completion_queue::get_by_name(init.send_cq)?;
    let receive_cq = completion_queue::get_by_name(init.recv_cq)?;
    let shared = if init.srq.is_null() { None } else { Some(srq::get_by_name(init.srq)?) };
    context::check_same("send completion queue", send_cq.context, owner.context)?;
    context::check_same("receive completion queue", receive_cq.context, owner.context)?;
    if let Some(shared) = &shared {
        context::check_same("shared receive queue", shared.context, owner.context)?;
    }
    if shared.is_some() && service != Service::Rc && service != Service::Ud {
        return Err(Failure::not_offered("shared receive queues for UC"));
    }
    let cap = granted(&init.cap, shared.is_some())?;
    let options = QueuePairOptions {
        service,
        capabilities: Capabilities {
            max_send_requests: cap.max_send_wr as usize,
            max_receive_requests: cap.max_recv_wr.max(1) as usize,
        },
        send: &send_cq.cq,
        receive: &receive_cq.cq,
        srq: shared.as_ref().map(|shared| &shared.srq),
    };
    let qp = owner.pd.create_queue_pair(&options)?;
    let qpn = qp.qpn();
    let opened = owner.opened.clone();
    let context = owner.context as *mut IbvContext;
    init.cap = cap;
    let limits = SendLimits {
        qpn,
        is_datagram: service.is_datagram(),
        max_sge: cap.max_send_sge,
        max_inline_bytes: cap.max_inline_data,
        inline_pool: (cap.max_inline_data as usize > InlinePool::FROM_BYTES)
            .then(|| InlinePool::new(cap.max_send_wr as usize)),
        all_are_signaled: init.sq_sig_all != 0,
    };
    Mark::QueuePair.leave();
    let made = Qp::slab().insert(|c| {
        let base = IbvQp {
            context,
            qp_context: init.qp_context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: Qp::slab().number(c),
            qp_num: qpn.value(),
            state: State::Reset as c_int,
            qp_type: init.qp_type,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
        };
        // SAFETY: the slab passes room for it.
        unsafe { c.write(work_builder::with_functions(base)) };
        let route = Arc::new(Route {
            element: c as usize,
            events: open.events.clone(),
            acknowledged: Arc::new(Acknowledged::default()),
        });
        let qp_route =
            QpRoute { route: route.clone(), send_cq: send_cq.link.clone(), receive_cq: receive_cq.link.clone() };
        let mut routes = opened.routes.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner);
        routes.insert(qpn.value(), qp_route);
        drop(routes);
        let needs = [
            Some(owner.users.clone()),
            Some(send_cq.users.clone()),
            Some(receive_cq.users.clone()),
            shared.as_ref().map(|shared| shared.users.clone()),
        ];
        Qp {
            context: owner.context,
            qp,
            opened: opened.clone(),
            limits,
            max_receive_sge: cap.max_recv_sge.max(1),
            init: *init,
            attr: Mutex::new(IbvQpAttr { cap, ..IbvQpAttr::default() }),
            builder: Mutex::new(Builder::default()),
            is_extended,
            route,
            is_ending: AtomicBool::new(false),
            _needs: needs,
        }
    });
    made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many queue pairs"))
}

/// Makes a queue pair in the RESET state.
///
/// # Safety
/// `init` is NULL, or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut IbvPd, init: *mut IbvQpInitAttr) -> *mut IbvQp {
    // SAFETY: the caller's promise.
    let init = unsafe { init.as_mut() }.ok_or_else(|| Failure::null("qp_init_attr"));
    pointer("ibv_create_qp", init.and_then(|init| create(pd, init, false))).cast()
}

pub(crate) unsafe extern "C" fn create_qp_ex(context: *mut IbvContext, init: *mut IbvQpInitAttrEx) -> *mut IbvQp {
    /// `IBV_QP_INIT_ATTR_PD`, `_CREATE_FLAGS`, `_SEND_OPS_FLAGS`.
    const PD: u32 = 1;
    const CREATE_FLAGS: u32 = 1 << 2;
    const SEND_OPS_FLAGS: u32 = 1 << 6;
    /// All of `enum ibv_qp_create_send_ops_flags` but segmentation offload; the last are FLUSH and ATOMIC WRITE.
    const SEND_OPS: u64 = ((1 << 10) - 1) | 1 << 11 | 1 << 12;
    let make = || {
        drop(context::get(context)?);
        // SAFETY: NULL, or the program's structure.
        let init = unsafe { init.as_mut() }.ok_or_else(|| Failure::null("qp_init_attr_ex"))?;
        let mask = init.comp_mask;
        if mask & !(PD | CREATE_FLAGS | SEND_OPS_FLAGS) != 0 {
            return Err(Failure::not_offered(format_args!("comp_mask {mask:#x}")));
        }
        if mask & CREATE_FLAGS != 0 && init.create_flags != 0 {
            return Err(Failure::not_offered(format_args!("create_flags {:#x}", init.create_flags)));
        }
        if mask & PD == 0 {
            return Err(Failure::new(libc::EINVAL, "IBV_QP_INIT_ATTR_PD is missing"));
        }
        let is_extended = mask & SEND_OPS_FLAGS != 0;
        if is_extended && init.send_ops_flags & !SEND_OPS != 0 {
            return Err(Failure::not_offered(format_args!("send_ops_flags {:#x}", init.send_ops_flags & !SEND_OPS)));
        }
        let mut plain = IbvQpInitAttr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        let made = create(init.pd, &mut plain, is_extended)?;
        init.cap = plain.cap;
        Ok(made)
    };
    pointer("ibv_create_qp_ex", make()).cast()
}

/// The extended structure of a queue pair that was made with `send_ops_flags`, for `ibv_wr_*`; else NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(qp: *mut IbvQp) -> *mut IbvQpEx {
    let extended = get(qp).and_then(|qp| {
        if qp.is_extended {
            Ok(qp.c().as_ptr())
        } else {
            Err(Failure::not_offered("ibv_wr_* on a queue pair made without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS"))
        }
    });
    pointer("ibv_qp_to_qp_ex", extended)
}

fn state(number: c_int) -> Result<State, Failure> {
    use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
    let all = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError, Error];
    let found = all.into_iter().find(|state| *state as c_int == number);
    found.ok_or_else(|| Failure::new(libc::EINVAL, format_args!("{number} is not a queue pair state")))
}

/// The attributes of `mask` as the transport takes them.
fn attributes(qp: &Qp, attr: &IbvQpAttr, mask: u32) -> Result<QpAttributes, Failure> {
    let Some(names) = Attributes::from_bits(mask) else {
        let unknown = mask & !Attributes::all().bits();
        return Err(Failure::not_offered(format_args!("the attributes {unknown:#x} (paths to fail over to, rates)")));
    };
    let given = |name: Attributes| names.contains(name).then_some(());
    let mut to = QpAttributes {
        notify_drained: given(Attributes::EN_SQD_ASYNC_NOTIFY).map(|()| attr.en_sqd_async_notify != 0),
        access: given(Attributes::ACCESS_FLAGS).map(|()| Access::from_bits_truncate(attr.qp_access_flags)),
        p_key_index: given(Attributes::PKEY_INDEX).map(|()| attr.pkey_index),
        port: given(Attributes::PORT).map(|()| attr.port_num),
        q_key: given(Attributes::QKEY).map(|()| QKey(attr.qkey)),
        destination: given(Attributes::DEST_QPN).map(|()| Qpn::new(attr.dest_qp_num)),
        receive_psn: given(Attributes::RQ_PSN).map(|()| Psn::new(attr.rq_psn)),
        send_psn: given(Attributes::SQ_PSN).map(|()| Psn::new(attr.sq_psn)),
        max_dest_rd_atomic: given(Attributes::MAX_DEST_RD_ATOMIC).map(|()| attr.max_dest_rd_atomic),
        max_rd_atomic: given(Attributes::MAX_QP_RD_ATOMIC).map(|()| attr.max_rd_atomic),
        timeout: given(Attributes::TIMEOUT).map(|()| attr.timeout),
        retry_count: given(Attributes::RETRY_CNT).map(|()| attr.retry_cnt),
        rnr_retry: given(Attributes::RNR_RETRY).map(|()| attr.rnr_retry),
        ..QpAttributes::default()
    };
    if names.contains(Attributes::STATE) {
        to.state = Some(state(attr.qp_state)?);
    }
    if names.contains(Attributes::CUR_STATE) {
        to.current_state = Some(state(attr.cur_qp_state)?);
    }
    if names.contains(Attributes::MIN_RNR_TIMER) {
        if attr.min_rnr_timer > 31 {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("min_rnr_timer is {}; 31 is possible", attr.min_rnr_timer),
            ));
        }
        to.min_rnr_timer = Some(RnrTimer::new(attr.min_rnr_timer));
    }
    if names.contains(Attributes::PATH_MTU) {
        let limit = qp.opened.context.active_mtu();
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(PathMtu::from_code).filter(|mtu| *mtu <= limit);
        to.path_mtu = Some(mtu.ok_or_else(|| {
            let bytes = limit.bytes();
            Failure::new(
                libc::EINVAL,
                format_args!("the path MTU {} (a code); the link carries {bytes} bytes", attr.path_mtu),
            )
        })?);
    }
    if names.contains(Attributes::AV) {
        let set = qp.attr.lock().unwrap_or_else(PoisonError::into_inner).dest_qp_num;
        let remote = if names.contains(Attributes::DEST_QPN) { attr.dest_qp_num } else { set };
        let context = &qp.opened.context;
        let vector = address::vector(&attr.ah_attr, context.gids())?;
        to.path = Some(context.path(&vector, qp.limits.qpn, Qpn::new(remote))?);
    }
    Ok(to)
}

/// Copies what `mask` names, so that it can be asked for.
fn remember(set: &mut IbvQpAttr, attr: &IbvQpAttr, mask: Attributes) {
    macro_rules! copy {
        ($($name:ident: $($field:ident),*;)*) => {
            $(if mask.contains(Attributes::$name) { $(set.$field = attr.$field;)* })*
        };
    }
    copy! {
        ACCESS_FLAGS: qp_access_flags; PKEY_INDEX: pkey_index; PORT: port_num; QKEY: qkey; AV: ah_attr;
        PATH_MTU: path_mtu; TIMEOUT: timeout; RETRY_CNT: retry_cnt; RNR_RETRY: rnr_retry;
        MAX_QP_RD_ATOMIC: max_rd_atomic; MIN_RNR_TIMER: min_rnr_timer; MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        DEST_QPN: dest_qp_num; EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
    }
}

/// Changes a queue pair's state and attributes.
///
/// # Safety
/// `attr` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut IbvQp, attr: *mut IbvQpAttr, mask: c_int) -> c_int {
    let modify = || {
        let qp = get_by_name(qp)?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("attr"))?;
        let to = attributes(&qp, attr, mask as u32)?;
        qp.qp.modify(&to)?;
        let mut set = qp.attr.lock().unwrap_or_else(PoisonError::into_inner);
        if to.state == Some(State::Reset) {
            *set = IbvQpAttr { cap: set.cap, ..IbvQpAttr::default() };
        }
        remember(&mut set, attr, Attributes::from_bits_truncate(mask as u32));
        if let Some(state) = to.state {
            // SAFETY: the slot's structure.
            unsafe { (*qp.c().as_ptr()).qp.state = state as c_int };
        }
        Ok(())
    };
    number("ibv_modify_qp", modify())
}

/// Writes the queue pair's state and what was set to `attr`, and what it was made of to `init`.
///
/// # Safety
/// `attr` and `init` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    _mask: c_int,
    init: *mut IbvQpInitAttr,
) -> c_int {
    let query = || {
        let qp = get_by_name(qp)?;
        if attr.is_null() || init.is_null() {
            return Err(Failure::null("attr or init_attr"));
        }
        let info = qp.qp.query()?;
        let (send_psn, receive_psn) = qp.qp.psns();
        let state = info.attributes.state.unwrap_or(State::Reset);
        let found = IbvQpAttr {
            qp_state: state as c_int,
            cur_qp_state: state as c_int,
            sq_psn: send_psn.value(),
            rq_psn: receive_psn.value(),
            sq_draining: u8::from(info.is_draining),
            ..*qp.attr.lock().unwrap_or_else(PoisonError::into_inner)
        };
        // SAFETY: the caller's promise, and the slot's structure.
        unsafe {
            (*qp.c().as_ptr()).qp.state = state as c_int;
            attr.write(found);
            init.write(qp.init);
        }
        Ok(())
    };
    number("ibv_query_qp", query())
}

/// Whether data arrives in order for `op`: no promise beyond that of the verbs.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut IbvQp, _op: c_int, _flags: u32) -> c_int {
    0
}

/// Enhanced connection establishment is for providers.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(qp: *mut IbvQp, _ece: *mut c_void) -> c_int {
    number("ibv_query_ece", get(qp).and_then(|_| Err(Failure::not_offered("enhanced connection establishment"))))
}

/// Enhanced connection establishment is for providers.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(qp: *mut IbvQp, _ece: *mut c_void) -> c_int {
    number("ibv_set_ece", get(qp).and_then(|_| Err(Failure::not_offered("enhanced connection establishment"))))
}

/// The group that a GID names.
///
/// # Safety
/// `gid` is NULL or can be read.
unsafe fn group(gid: *const IbvGid) -> Result<Ipv6Addr, Failure> {
    // SAFETY: the caller's promise.
    unsafe { gid.as_ref() }.map(|gid| Ipv6Addr::from(gid.0)).ok_or_else(|| Failure::null("gid"))
}

/// Attaches a UD queue pair to a multicast group. RoCE groups have no LID.
///
/// # Safety
/// `gid` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut IbvQp, gid: *const IbvGid, _lid: u16) -> c_int {
    let attach = || {
        let qp = get_by_name(qp)?;
        // SAFETY: the caller's promise.
        let group = unsafe { group(gid) }?;
        qp.qp.attach(group).map_err(Failure::from)
    };
    number("ibv_attach_mcast", attach())
}

/// Detaches a queue pair from a multicast group.
///
/// # Safety
/// `gid` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut IbvQp, gid: *const IbvGid, _lid: u16) -> c_int {
    let detach = || {
        let qp = get_by_name(qp)?;
        // SAFETY: the caller's promise.
        let group = unsafe { group(gid) }?;
        qp.qp.detach(group).map_err(Failure::from)
    };
    number("ibv_detach_mcast", detach())
}

/// Destroys a queue pair, when the program has acknowledged all its events. What it owes its peer goes out first.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_qp(qp: *mut IbvQp) -> c_int {
    let destroy = || {
        let ending = get_by_name(qp)?;
        if ending.is_ending.swap(true, Ordering::AcqRel) {
            return Err(Failure::new(libc::EINVAL, "the queue pair is being destroyed by another thread"));
        }
        ending.end_route();
        ending.route.end();
        drop(ending);
        Qp::slab().remove(qp, |_| true).map(drop).map_err(|error| Failure::removal("queue pair", error))
    };
    number("ibv_destroy_qp", destroy())
}

impl Qp {
    /// No more events.
    fn end_route(&self) {
        let mut routes = self.opened.routes.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner);
        routes.remove(&self.limits.qpn.value());
    }
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for qp in Qp::slab().pointers(|qp| qp.context == context as usize) {
        let gone: Result<Qp, NotRemoved> = Qp::slab().remove(qp.as_ptr(), |_| true);
        if let Ok(gone) = gone {
            gone.end_route();
        }
    }
}

pub(crate) fn async_acknowledged(qp: *const IbvQp) -> Option<Arc<Acknowledged>> {
    Some(get(qp).ok()?.route.acknowledged.clone())
}

pub(crate) unsafe extern "C" fn post_send(qp: *mut IbvQp, wr: *mut IbvSendWr, bad_wr: *mut *mut IbvSendWr) -> c_int {
    let qp = match get(qp) {
        Ok(qp) => qp,
        Err(failure) => return post::refused("ibv_post_send", failure, wr, bad_wr),
    };
    post::sends(&qp.limits, wr, bad_wr, |requests| {
        let (posted, result) = qp.qp.post_sends(requests);
        (posted, result.map_err(Failure::from))
    })
}

/// Posts one request that is not in a list; `make` is told whether every request is reported.
pub(crate) fn post_one(qp: *const IbvQp, make: impl FnOnce(bool) -> SendRequest) -> Result<(), Failure> {
    let qp = get(qp)?;
    Ok(qp.qp.post_send(make(qp.limits.all_are_signaled))?)
}

pub(crate) unsafe extern "C" fn post_recv(qp: *mut IbvQp, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr) -> c_int {
    let qp = match get(qp) {
        Ok(qp) => qp,
        Err(failure) => return post::refused("ibv_post_recv", failure, wr, bad_wr),
    };
    post::receives("ibv_post_recv", qp.max_receive_sge, wr, bad_wr, |requests| {
        let (posted, result) = qp.qp.post_receives(requests);
        (posted, result.map_err(Failure::from))
    })
}
