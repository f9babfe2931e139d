//! `include/uroce_stream.h`.

mod choice;
mod receiver;
mod sender;

use std::slice;

use uroce::time::Duration;
use uroce_transfer::stream::{End, Parts, Place, Stream};

use crate::{buffer, say};

/// `struct uroce_stream`.
#[repr(C)]
pub struct StreamOfC {
    name: u64,
    version: u64,
    part_bytes: *const u64,
    part_count: usize,
}

/// `struct uroce_stream_place`.
#[repr(C)]
pub struct PlaceOfC {
    address: u64,
    rkey: u32,
    outstanding: u32,
}

impl StreamOfC {
    /// # Safety
    /// `part_bytes` is NULL, or has `part_count` of them.
    unsafe fn stream(&self) -> Result<Stream, String> {
        // SAFETY: the caller's duty.
        let lengths = unsafe { list(self.part_bytes, self.part_count) };
        let parts = Parts::new(lengths).map_err(|error| error.to_string())?;
        Ok(Stream { name: self.name, version: self.version, parts })
    }
}

impl PlaceOfC {
    fn of(place: Place) -> PlaceOfC {
        PlaceOfC { address: place.address, rkey: place.rkey, outstanding: place.outstanding }
    }

    fn place(&self) -> Place {
        Place { address: self.address, rkey: self.rkey, outstanding: self.outstanding }
    }
}

/// A caller's list; none for NULL.
///
/// # Safety
/// `data` has `count` of them for as long as the result is used, unless it is NULL.
unsafe fn list<'a, T>(data: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's duty.
    if data.is_null() { &[] } else { unsafe { slice::from_raw_parts(data, count) } }
}

/// The patience that a caller has; `None` for the usual one.
fn patience(ns: u64) -> Option<Duration> {
    (ns != 0).then(|| Duration::from_nanos(ns))
}

/// `enum uroce_stream_end`, and why.
///
/// # Safety
/// `error_bytes` can be written at `error`, unless it is NULL.
unsafe fn tell_end(end: Option<End>, error: *mut u8, error_bytes: usize) -> i32 {
    match end {
        None => 0,
        Some(End::Complete) => 1,
        Some(End::Failed(failure)) => {
            // SAFETY: the caller's duty.
            say(&failure.to_string(), unsafe { buffer(error, error_bytes) });
            2
        }
    }
}

/// Writes a message, if there is one.
///
/// # Safety
/// 64 bytes can be written at `into`.
unsafe fn write_message(message: Option<[u8; 64]>, into: *mut [u8; 64]) -> i32 {
    // SAFETY: the caller's duty.
    message.map(|message| unsafe { into.write(message) }).is_some().into()
}
