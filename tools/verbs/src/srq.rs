//! Shared receive queues.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use uroce::verbs::{MAX_SGE, SharedReceiveQueue};

use crate::abi::*;
use crate::async_event::Route;
use crate::context::{self, Opened};
use crate::domain;
use crate::error::{Failure, number, pointer};
use crate::name::{Named, by_name};
use crate::post;
use crate::queue::Acknowledged;
use crate::slab::{Object, Ref, Slab};

/// Shared receive queues at the most, in all contexts.
pub(crate) const MAX_SRQS: usize = 1 << 15;

/// A shared receive queue.
pub(crate) struct Srq {
    pub context: usize,
    pub srq: SharedReceiveQueue,
    opened: Arc<Opened>,
    max_sge: u32,
    route: Arc<Route>,
    /// Queue pairs hold a copy.
    pub users: Arc<()>,
    _domain: Arc<()>,
}

impl Object for Srq {
    type C = IbvSrq;
    const CAPACITY: usize = MAX_SRQS;

    fn slab() -> &'static Slab<Srq> {
        static SLAB: Slab<Srq> = Slab::new();
        &SLAB
    }
}

impl Named for Srq {
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32) {
        // SAFETY: only places are computed; the slab has room for the structure there.
        unsafe { (&raw mut (*c).context, &raw mut (*c).handle) }
    }

    fn context(&self) -> usize {
        self.context
    }
}

pub(crate) fn get(srq: *const IbvSrq) -> Result<Ref<Srq>, Failure> {
    Srq::slab().get(srq).ok_or_else(|| Failure::handle("shared receive queue"))
}

/// As [`get`], for all but requests.
pub(crate) fn get_by_name(srq: *const IbvSrq) -> Result<Ref<Srq>, Failure> {
    by_name("shared receive queue", get(srq)?)
}

fn create(pd: *mut IbvPd, srq_context: *mut std::ffi::c_void, attr: &mut IbvSrqAttr) -> Result<*mut IbvSrq, Failure> {
    let owner = domain::get(pd)?;
    let open = context::get(owner.context as *const IbvContext)?;
    if attr.max_sge as usize > MAX_SGE {
        return Err(Failure::new(
            libc::EINVAL,
            format_args!("{} scatter/gather entries: the maximum is {MAX_SGE}", attr.max_sge),
        ));
    }
    let srq = owner.pd.create_shared_receive_queue(attr.max_wr as usize)?;
    let number = srq.number();
    let opened = owner.opened.clone();
    let context = owner.context as *mut IbvContext;
    let max_sge = attr.max_sge.max(1);
    let made = Srq::slab().insert(|c| {
        let base = IbvSrq {
            context,
            srq_context,
            pd,
            handle: Srq::slab().number(c),
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
        };
        // SAFETY: the slab passes room for it.
        unsafe { c.write(base) };
        let route = Arc::new(Route {
            element: c as usize,
            events: open.events.clone(),
            acknowledged: Arc::new(Acknowledged::default()),
        });
        opened.routes.srqs.lock().unwrap_or_else(PoisonError::into_inner).insert(number.0, route.clone());
        Srq {
            context: owner.context,
            srq,
            opened: opened.clone(),
            max_sge,
            route,
            users: Arc::new(()),
            _domain: owner.users.clone(),
        }
    });
    let made = made.ok_or_else(|| Failure::new(libc::ENOMEM, "too many shared receive queues"))?;
    attr.max_sge = max_sge;
    Ok(made.as_ptr())
}

/// Makes a shared receive queue.
///
/// # Safety
/// `init` is NULL, or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut IbvPd, init: *mut IbvSrqInitAttr) -> *mut IbvSrq {
    // SAFETY: the caller's promise.
    let init = unsafe { init.as_mut() }.ok_or_else(|| Failure::null("srq_init_attr"));
    pointer("ibv_create_srq", init.and_then(|init| create(pd, init.srq_context, &mut init.attr)))
}

pub(crate) unsafe extern "C" fn create_srq_ex(context: *mut IbvContext, init: *mut IbvSrqInitAttrEx) -> *mut IbvSrq {
    /// `IBV_SRQ_INIT_ATTR_TYPE`, `_PD`.
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    let make = || {
        drop(context::get(context)?);
        // SAFETY: NULL, or the program's structure.
        let init = unsafe { init.as_mut() }.ok_or_else(|| Failure::null("srq_init_attr_ex"))?;
        if init.comp_mask & !(TYPE | PD) != 0 || (init.comp_mask & TYPE != 0 && init.srq_type != 0) {
            return Err(Failure::not_offered("shared receive queues other than basic ones"));
        }
        if init.comp_mask & PD == 0 {
            return Err(Failure::new(libc::EINVAL, "IBV_SRQ_INIT_ATTR_PD is missing"));
        }
        create(init.pd, init.srq_context, &mut init.attr)
    };
    pointer("ibv_create_srq_ex", make())
}

/// `enum ibv_srq_attr_mask`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;

/// Changes the queue's size, or arms its limit event.
///
/// # Safety
/// `attr` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut IbvSrq, attr: *mut IbvSrqAttr, mask: c_int) -> c_int {
    let modify = || {
        let srq = get_by_name(srq)?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("srq_attr"))?;
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(Failure::new(libc::EINVAL, format_args!("the mask {mask:#x} is unknown")));
        }
        if mask & MAX_WR != 0 {
            srq.srq.resize(attr.max_wr as usize)?;
        }
        if mask & LIMIT != 0 {
            srq.srq.arm(attr.srq_limit as usize)?;
        }
        Ok(())
    };
    number("ibv_modify_srq", modify())
}

/// Writes the queue's size and limit to `attr`.
///
/// # Safety
/// `attr` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int {
    let query = || {
        let srq = get_by_name(srq)?;
        let (capacity, limit) = srq.srq.query()?;
        if attr.is_null() {
            return Err(Failure::null("srq_attr"));
        }
        let found = IbvSrqAttr { max_wr: capacity as u32, max_sge: srq.max_sge, srq_limit: limit as u32 };
        // SAFETY: the caller's promise.
        unsafe { attr.write(found) };
        Ok(())
    };
    number("ibv_query_srq", query())
}

/// Destroys a shared receive queue that no queue pair uses, when the program has acknowledged all its events.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_srq(srq: *mut IbvSrq) -> c_int {
    let destroy = || {
        let ending = get_by_name(srq)?;
        if Arc::strong_count(&ending.users) > 1 {
            return Err(Failure::new(libc::EBUSY, "queue pairs still use the shared receive queue"));
        }
        ending.end_route();
        ending.route.end();
        drop(ending);
        let gone = Srq::slab().remove(srq, |srq| Arc::strong_count(&srq.users) == 1);
        gone.map(drop).map_err(|error| Failure::removal("shared receive queue", error))
    };
    number("ibv_destroy_srq", destroy())
}

impl Srq {
    /// No more events.
    fn end_route(&self) {
        let mut routes = self.opened.routes.srqs.lock().unwrap_or_else(PoisonError::into_inner);
        routes.remove(&self.srq.number().0);
    }
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for srq in Srq::slab().pointers(|srq| srq.context == context as usize) {
        if let Ok(gone) = Srq::slab().remove(srq.as_ptr(), |_| true) {
            gone.end_route();
        }
    }
}

pub(crate) fn async_acknowledged(srq: *const IbvSrq) -> Option<Arc<Acknowledged>> {
    Some(get(srq).ok()?.route.acknowledged.clone())
}

pub(crate) unsafe extern "C" fn srq_number(srq: *mut IbvSrq, number: *mut u32) -> c_int {
    let query = || {
        let srq = get(srq)?;
        if number.is_null() {
            return Err(Failure::null("srq_num"));
        }
        // SAFETY: the program's variable.
        unsafe { number.write(srq.srq.number().0) };
        Ok(())
    };
    self::number("ibv_get_srq_num", query())
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut IbvSrq,
    wr: *mut IbvRecvWr,
    bad_wr: *mut *mut IbvRecvWr,
) -> c_int {
    let queue = match get(srq) {
        Ok(queue) => queue,
        Err(failure) => return post::refused("ibv_post_srq_recv", failure, wr, bad_wr),
    };
    post::receives("ibv_post_srq_recv", queue.max_sge, wr, bad_wr, |requests| {
        let (posted, result) = queue.srq.post_receives(requests);
        (posted, result.map_err(Failure::from))
    })
}
