//! Hints to the processor's caches.

/// Length of a line of the caches, in bytes: that of all x86-64 processors.
const LINE_BYTES: usize = 64;

/// Has all lines of a value fetched that are not in the caches, at the same time and while work goes on. Otherwise each is
/// waited for when it is first touched.
#[inline]
pub(crate) fn prefetch<T: ?Sized>(value: &T) {
    let (start, len) = (std::ptr::from_ref(value).cast::<u8>(), size_of_val(value));
    for offset in (0..len).step_by(LINE_BYTES) {
        prefetch_line(start.wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch is a hint. It reads nothing, and does not fault, whatever the address is.
    unsafe {
        _mm_prefetch(at.cast(), _MM_HINT_T0);
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch_line(_at: *const u8) {}
