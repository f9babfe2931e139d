use std::ptr;

use uroce::time::Instant;
use uroce_transfer::stream::Receiver;

use crate::{NEVER, buffer, bytes, say};

use super::{PlaceOfC, StreamOfC, patience, tell_end, write_message};

/// Receives a stream; NULL when it cannot be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_receiver_new(
    stream: &StreamOfC,
    place: &PlaceOfC,
    held: u64,
    patience_ns: u64,
    now_ns: u64,
    error: *mut u8,
    error_bytes: usize,
) -> *mut Receiver {
    // SAFETY: the header's duties.
    let (stream, error) = unsafe { (stream.stream(), buffer(error, error_bytes)) };
    let begin = |stream| {
        let receiver = Receiver::new(stream, place.place(), held, Instant::from_ns(now_ns));
        receiver.map_err(|error| error.to_string())
    };
    match stream.and_then(begin) {
        Ok(receiver) => Box::into_raw(Box::new(match patience(patience_ns) {
            Some(patience) => receiver.with_patience(patience),
            None => receiver,
        })),
        Err(text) => {
            say(&text, error);
            ptr::null_mut()
        }
    }
}

/// Frees a receiver, or nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_receiver_free(receiver: *mut Receiver) {
    if !receiver.is_null() {
        // SAFETY: it came from a box, and is freed once.
        drop(unsafe { Box::from_raw(receiver) });
    }
}

/// Writes the next message; returns whether there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_receiver_poll_message(receiver: &mut Receiver, into: *mut [u8; 64]) -> i32 {
    // SAFETY: the header's duties.
    unsafe { write_message(receiver.poll_message(), into) }
}

/// Takes a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_receiver_handle_message(
    receiver: &mut Receiver,
    now_ns: u64,
    message: *const u8,
    len: usize,
) {
    // SAFETY: the header's duties.
    receiver.handle_message(Instant::from_ns(now_ns), unsafe { bytes(message, len) });
}

/// A chunk has arrived.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_receiver_handle_notification(
    receiver: &mut Receiver,
    now_ns: u64,
    immediate: u32,
    bytes: u32,
) {
    receiver.handle_notification(Instant::from_ns(now_ns), immediate, bytes);
}

/// Nothing more comes.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_receiver_handle_broken(receiver: &mut Receiver) {
    receiver.handle_broken();
}

/// Takes the time.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_receiver_handle_timeout(receiver: &mut Receiver, now_ns: u64) {
    receiver.handle_timeout(Instant::from_ns(now_ns));
}

/// When something is to be done.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_receiver_poll_timeout(receiver: &Receiver) -> u64 {
    receiver.poll_timeout().map_or(NEVER, Instant::as_ns)
}

/// Bytes that are there.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_receiver_whole_bytes(receiver: &Receiver) -> u64 {
    receiver.whole_bytes()
}

/// Parts that are whole.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_receiver_whole_parts(receiver: &Receiver) -> usize {
    receiver.whole_parts()
}

/// How it has ended: `enum uroce_stream_end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_receiver_end(receiver: &Receiver, error: *mut u8, error_bytes: usize) -> i32 {
    // SAFETY: the header's duties.
    unsafe { tell_end(receiver.end(), error, error_bytes) }
}
