//! Thread domains: a program's promise to use some objects from one thread. All objects may be used from any here, so that a
//! thread domain is a handle and nothing else.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::{IbvContext, IbvTd, IbvTdInitAttr};
use crate::context;
use crate::error::{Failure, number, pointer};
use crate::slab::{Object, Ref, Slab};

/// Thread domains at the most, in all contexts.
const MAX_TDS: usize = 1 << 15;

/// A thread domain.
pub(crate) struct ThreadDomain {
    pub context: usize,
    /// Parent domains hold a copy.
    pub users: Arc<()>,
}

impl Object for ThreadDomain {
    type C = IbvTd;
    const CAPACITY: usize = MAX_TDS;

    fn slab() -> &'static Slab<ThreadDomain> {
        static SLAB: Slab<ThreadDomain> = Slab::new();
        &SLAB
    }
}

pub(crate) fn get(td: *const IbvTd) -> Result<Ref<ThreadDomain>, Failure> {
    ThreadDomain::slab().get(td).ok_or_else(|| Failure::handle("thread domain"))
}

pub(crate) unsafe extern "C" fn alloc_td(context: *mut IbvContext, attr: *mut IbvTdInitAttr) -> *mut IbvTd {
    let allocate = || {
        drop(context::get(context)?);
        // SAFETY: NULL, or the program's structure.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("init_attr"))?;
        if attr.comp_mask != 0 {
            return Err(Failure::not_offered(format_args!("comp_mask {:#x}", attr.comp_mask)));
        }
        let made = ThreadDomain::slab().insert(|c| {
            // SAFETY: the slab passes room for it.
            unsafe { c.write(IbvTd { context }) };
            ThreadDomain { context: context as usize, users: Arc::new(()) }
        });
        made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many thread domains"))
    };
    pointer("ibv_alloc_td", allocate())
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut IbvTd) -> c_int {
    let gone = ThreadDomain::slab().remove(td, |thread| Arc::strong_count(&thread.users) == 1);
    number("ibv_dealloc_td", gone.map(drop).map_err(|error| Failure::removal("thread domain", error)))
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for td in ThreadDomain::slab().pointers(|thread| thread.context == context as usize) {
        let _ = ThreadDomain::slab().remove(td.as_ptr(), |_| true);
    }
}
