//! What threads share, by one name: the models in `tools/loom` put their own in its place.

use std::ptr::NonNull;

pub(crate) use std::sync::OnceLock;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub(crate) use std::thread::yield_now;

/// Makes a function that statics are made by: a constant one, but in models.
macro_rules! for_statics {
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visibility const fn $($rest)*
    };
}
pub(crate) use for_statics;

/// Reserves the address range of a table of `count`, which is never given back; pages come with use. `None` when the kernel gives
/// none. Zeroed pages are what `_fresh` would make.
pub(crate) fn reserve<T>(count: usize, _fresh: impl Fn() -> T) -> Option<NonNull<T>> {
    // SAFETY: a fresh anonymous mapping overlaps nothing.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            count * size_of::<T>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED { None } else { NonNull::new(address.cast()) }
}
