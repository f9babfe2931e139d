//! Protection domains.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use uroce::verbs::ProtectionDomain;

use crate::abi::{IbvContext, IbvParentDomainInitAttr, IbvPd};
use crate::context::{self, Opened};
use crate::error::{Failure, number, pointer};
use crate::name::{Named, by_name};
use crate::slab::{Object, Ref, Slab};
use crate::thread_domain;

/// Protection domains at the most, in all contexts.
pub(crate) const MAX_PDS: usize = 1 << 15;

/// A protection domain.
pub(crate) struct Domain {
    pub context: usize,
    pub pd: ProtectionDomain,
    pub opened: Arc<Opened>,
    /// What belongs to it holds a copy.
    pub users: Arc<()>,
    /// Of a parent domain: the domain that it stands for, and its thread domain. They do not go before.
    _needs: [Option<Arc<()>>; 2],
}

impl Object for Domain {
    type C = IbvPd;
    const CAPACITY: usize = MAX_PDS;

    fn slab() -> &'static Slab<Domain> {
        static SLAB: Slab<Domain> = Slab::new();
        &SLAB
    }
}

impl Named for Domain {
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32) {
        // SAFETY: only places are computed; the slab has room for the structure there.
        unsafe { (&raw mut (*c).context, &raw mut (*c).handle) }
    }

    fn context(&self) -> usize {
        self.context
    }
}

pub(crate) fn get(pd: *const IbvPd) -> Result<Ref<Domain>, Failure> {
    let found = Domain::slab().get(pd).ok_or_else(|| Failure::handle("protection domain"))?;
    by_name("protection domain", found)
}

/// Makes a protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    let allocate = || {
        let opened = context::get(context)?.opened()?;
        let pd = opened.context.allocate_pd();
        let made = Domain::slab().insert(|c| {
            // SAFETY: the slab passes room for it.
            unsafe { c.write(IbvPd { context, handle: Domain::slab().number(c) }) };
            Domain { context: context as usize, pd, opened, users: Arc::new(()), _needs: [None, None] }
        });
        made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many protection domains"))
    };
    pointer("ibv_alloc_pd", allocate())
}

/// Makes a parent domain: another handle of a protection domain, good wherever that is. Its thread domain changes nothing, since
/// all objects may be used from any thread.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut IbvContext,
    attr: *mut IbvParentDomainInitAttr,
) -> *mut IbvPd {
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`, which is for allocators, and `_ALLOW_CC_UNPROTECTED_ALLOC`: there is no device
    /// from which memory would have to be protected.
    const TAKEN: u32 = 1 << 1 | 1 << 2;
    let allocate = || {
        drop(context::get(context)?);
        // SAFETY: NULL, or the program's structure.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("attr"))?;
        if attr.comp_mask & !TAKEN != 0 {
            return Err(Failure::not_offered(format_args!("comp_mask {:#x} (allocators)", attr.comp_mask & !TAKEN)));
        }
        let own = get(attr.pd)?;
        context::check_same("protection domain", own.context, context as usize)?;
        let thread = if attr.td.is_null() { None } else { Some(thread_domain::get(attr.td)?) };
        if let Some(thread) = &thread {
            context::check_same("thread domain", thread.context, context as usize)?;
        }
        let made = Domain::slab().insert(|c| {
            // SAFETY: the slab passes room for it.
            unsafe { c.write(IbvPd { context, handle: Domain::slab().number(c) }) };
            Domain {
                context: own.context,
                pd: own.pd.clone(),
                opened: own.opened.clone(),
                users: Arc::new(()),
                _needs: [Some(own.users.clone()), thread.map(|thread| thread.users.clone())],
            }
        });
        made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many protection domains"))
    };
    pointer("ibv_alloc_parent_domain", allocate())
}

/// Destroys a protection domain to which nothing belongs any more.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: *mut IbvPd) -> c_int {
    let end = || {
        drop(get(pd)?);
        let gone = Domain::slab().remove(pd, |domain| Arc::strong_count(&domain.users) == 1);
        gone.map(drop).map_err(|error| Failure::removal("protection domain", error))
    };
    number("ibv_dealloc_pd", end())
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for pd in Domain::slab().pointers(|domain| domain.context == context as usize) {
        let _ = Domain::slab().remove(pd.as_ptr(), |_| true);
    }
}
