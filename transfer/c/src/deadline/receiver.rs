use std::ptr;

use uroce::time::{Duration, Instant};
use uroce_transfer::deadline::{End, Receiver, Request, Run, Shape};

use crate::{NEVER, buffer, bytes, say};

/// `struct uroce_deadline_run`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RunOfC {
    first: u32,
    count: u32,
}

/// `struct uroce_deadline_request`.
#[repr(C)]
pub struct RequestOfC {
    object: u64,
    version: u64,
    bytes: u64,
    block_bytes: u32,
    symbol_bytes: u16,
    repair_per_mille: u16,
    deadline_ns: u64,
    patience_ns: u64,
    runs: *const RunOfC,
    run_count: usize,
}

impl RequestOfC {
    /// # Safety
    /// `runs` is NULL, or has `run_count` of them.
    unsafe fn request(&self) -> Result<Request, String> {
        let shape = Shape::new(self.bytes, self.block_bytes, self.symbol_bytes).map_err(|error| error.to_string())?;
        let request = Request::new(self.object, self.version, shape)
            .with_repair(self.repair_per_mille)
            .by(Instant::from_ns(self.deadline_ns));
        let request = match self.patience_ns {
            0 => request,
            ns => request.with_patience(Duration::from_nanos(ns)),
        };
        if self.runs.is_null() {
            return Ok(request);
        }
        // SAFETY: the caller's duty.
        let runs = unsafe { std::slice::from_raw_parts(self.runs, self.run_count) };
        Ok(request.with_runs(runs.iter().map(|run| Run { first: run.first, count: run.count }).collect()))
    }
}

/// Begins a transfer; NULL when the request cannot be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_receiver_new(
    id: u64,
    request: &RequestOfC,
    now_ns: u64,
    error: *mut u8,
    error_bytes: usize,
) -> *mut Receiver {
    // SAFETY: the header's duties.
    let (request, error) = unsafe { (request.request(), buffer(error, error_bytes)) };
    let begin = |request| Receiver::new(id, request, Instant::from_ns(now_ns)).map_err(|error| error.to_string());
    match request.and_then(begin) {
        Ok(receiver) => Box::into_raw(Box::new(receiver)),
        Err(text) => {
            say(&text, error);
            ptr::null_mut()
        }
    }
}

/// Frees a receiver, or nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_receiver_free(receiver: *mut Receiver) {
    if !receiver.is_null() {
        // SAFETY: it came from a box, and is freed once.
        drop(unsafe { Box::from_raw(receiver) });
    }
}

/// Takes a datagram that has arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_receiver_handle_datagram(
    receiver: &mut Receiver,
    now_ns: u64,
    datagram: *const u8,
    len: usize,
) {
    // SAFETY: the header's duties.
    receiver.handle_datagram(Instant::from_ns(now_ns), unsafe { bytes(datagram, len) });
}

/// Writes the next datagram; returns its length, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_receiver_poll_transmit(
    receiver: &mut Receiver,
    now_ns: u64,
    into: *mut u8,
    len: usize,
) -> usize {
    // SAFETY: the header's duties.
    receiver.poll_transmit(Instant::from_ns(now_ns), unsafe { buffer(into, len) }).unwrap_or(0)
}

/// When something is to be done.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_receiver_poll_timeout(receiver: &Receiver) -> u64 {
    receiver.poll_timeout().map_or(NEVER, Instant::as_ns)
}

/// Takes the time.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_receiver_handle_timeout(receiver: &mut Receiver, now_ns: u64) {
    receiver.handle_timeout(Instant::from_ns(now_ns));
}

/// How it has ended: `enum uroce_deadline_end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_receiver_end(receiver: &Receiver, error: *mut u8, error_bytes: usize) -> i32 {
    match receiver.end() {
        None => 0,
        Some(End::Complete) => 1,
        Some(End::Deadline) => 2,
        Some(End::Cancelled) => 3,
        Some(End::Failed(failure)) => {
            // SAFETY: the header's duties.
            say(&failure.to_string(), unsafe { buffer(error, error_bytes) });
            4
        }
    }
}

/// The bytes of a whole block.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_receiver_block(receiver: &Receiver, block: u32, len: &mut usize) -> *const u8 {
    let bytes = receiver.block(block);
    *len = bytes.map_or(0, <[u8]>::len);
    bytes.map_or(ptr::null(), <[u8]>::as_ptr)
}

/// The next block that has become whole.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_receiver_poll_block(receiver: &mut Receiver, block: &mut u32) -> i32 {
    match receiver.poll_block() {
        Some(whole) => {
            *block = whole;
            1
        }
        None => 0,
    }
}

/// The bitmap.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_receiver_whole(receiver: &Receiver, blocks: &mut u32) -> *const u64 {
    *blocks = receiver.whole().len();
    receiver.whole().words().as_ptr()
}

/// The blocks that are missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_receiver_missing(
    receiver: &Receiver,
    runs: *mut RunOfC,
    run_count: usize,
) -> usize {
    let missing = receiver.missing();
    if !runs.is_null() {
        // SAFETY: the header's duties.
        let into = unsafe { std::slice::from_raw_parts_mut(runs, run_count) };
        for (into, run) in into.iter_mut().zip(&missing) {
            *into = RunOfC { first: run.first, count: run.count };
        }
    }
    missing.len()
}

/// Moves the deadline.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_receiver_set_deadline(receiver: &mut Receiver, deadline_ns: u64, now_ns: u64) -> i32 {
    let moved = receiver.set_deadline(Instant::from_ns(deadline_ns), Instant::from_ns(now_ns));
    if moved.is_ok() { 0 } else { -1 }
}

/// Ends the transfer.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_receiver_cancel(receiver: &mut Receiver) {
    receiver.cancel();
}
