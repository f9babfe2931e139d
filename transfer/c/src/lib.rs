//! `liburoce_transfer_c.so`: what the headers in `include` declare, over `uroce_transfer`.
//!
//! Every pointer of a caller is as the header says: valid, and not used by another thread meanwhile.
#![allow(clippy::missing_safety_doc, reason = "the header says what callers owe")]

use std::slice;

mod deadline;
mod stream;

/// No time at which anything is to be done.
const NEVER: u64 = u64::MAX;

/// A caller's bytes; none for NULL.
///
/// # Safety
/// `bytes` can be read from `data` on for as long as the result is used, unless it is NULL.
unsafe fn bytes<'a>(data: *const u8, bytes: usize) -> &'a [u8] {
    // SAFETY: the caller's duty.
    if data.is_null() { &[] } else { unsafe { slice::from_raw_parts(data, bytes) } }
}

/// A caller's buffer; none for NULL.
///
/// # Safety
/// `bytes` can be written from `data` on for as long as the result is used, unless it is NULL.
unsafe fn buffer<'a>(data: *mut u8, bytes: usize) -> &'a mut [u8] {
    // SAFETY: the caller's duty.
    if data.is_null() { &mut [] } else { unsafe { slice::from_raw_parts_mut(data, bytes) } }
}

/// Writes a text with its zero into a caller's buffer, cut where it is too short.
fn say(text: &str, into: &mut [u8]) {
    let Some(room) = into.len().checked_sub(1) else { return };
    let len = text.floor_char_boundary(room);
    into[..len].copy_from_slice(&text.as_bytes()[..len]);
    into[len] = 0;
}
