//! Protection domains.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use uroce::verbs::ProtectionDomain;

use crate::abi::{IbvContext, IbvPd};
use crate::context::{self, Opened};
use crate::error::{Failure, number, pointer};
use crate::slab::{Object, Ref, Slab};

/// Protection domains at the most, in all contexts.
pub(crate) const MAX_PDS: usize = 1 << 15;

/// A protection domain.
pub(crate) struct Domain {
    pub context: usize,
    pub pd: ProtectionDomain,
    pub opened: Arc<Opened>,
    /// What belongs to it holds a copy.
    pub users: Arc<()>,
}

impl Object for Domain {
    type C = IbvPd;
    const CAPACITY: usize = MAX_PDS;

    fn slab() -> &'static Slab<Domain> {
        static SLAB: Slab<Domain> = Slab::new();
        &SLAB
    }
}

pub(crate) fn get(pd: *const IbvPd) -> Result<Ref<Domain>, Failure> {
    Domain::slab().get(pd).ok_or_else(|| Failure::handle("protection domain"))
}

/// Makes a protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    let allocate = || {
        let opened = context::get(context)?.opened()?;
        let pd = opened.context.allocate_pd();
        let made = Domain::slab().insert(|c| {
            // SAFETY: the slab passes room for it.
            unsafe { c.write(IbvPd { context, handle: 0 }) };
            Domain { context: context as usize, pd, opened, users: Arc::new(()) }
        });
        made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many protection domains"))
    };
    pointer("ibv_alloc_pd", allocate())
}

/// Destroys a protection domain to which nothing belongs any more.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: *mut IbvPd) -> c_int {
    let gone = Domain::slab().remove(pd, |domain| Arc::strong_count(&domain.users) == 1);
    number("ibv_dealloc_pd", gone.map(drop).map_err(|error| Failure::removal("protection domain", error)))
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for pd in Domain::slab().pointers(|domain| domain.context == context as usize) {
        let _ = Domain::slab().remove(pd.as_ptr(), |_| true);
    }
}
