//! What the kernel would know an object by: the context in its structure, and a number (`handle`) among that one's objects.
//!
//! With rdma-core it is all that the kernel is told, and a number that it has not given is ENOENT. Here the address of the
//! structure says which object it is, and the rest must fit. That goes for the verbs that are calls of the kernel's there; requests
//! and completions go by the address alone, as with rdma-core's providers.

use crate::abi::IbvContext;
use crate::error::Failure;
use crate::slab::{Object, Ref};

/// An object whose structure has a name.
pub(crate) trait Named: Object {
    /// Where the structure has the context and the number.
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32);
    /// The context that the object belongs to.
    fn context(&self) -> usize;
}

/// The object again, if its structure has the name that it came with.
pub(crate) fn by_name<T: Named>(kind: &str, found: Ref<T>) -> Result<Ref<T>, Failure> {
    let c = found.c().as_ptr();
    let (context, number) = T::name(c);
    // SAFETY: the structure is in its slot. The program may write there at any time, so each is read once.
    let (context, number) = unsafe { (context.read_volatile(), number.read_volatile()) };
    if (context as usize, number) == (found.context(), T::slab().number(c)) {
        return Ok(found);
    }
    Err(Failure::new(libc::ENOENT, format_args!("the {kind}'s context or handle was changed since it was created")))
}
