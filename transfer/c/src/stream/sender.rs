use std::ptr;

use uroce::time::Instant;
use uroce_transfer::stream::{Place, Sender};

use crate::{NEVER, buffer, bytes, say};

use super::{PlaceOfC, StreamOfC, patience, tell_end, write_message};

/// `struct uroce_stream_post`.
#[repr(C)]
pub struct PostOfC {
    offset: u64,
    address: u64,
    bytes: u32,
    rkey: u32,
    immediate: u32,
}

/// A sender; NULL when the stream cannot be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_sender_new(
    stream: &StreamOfC,
    outstanding: usize,
    patience_ns: u64,
    now_ns: u64,
    error: *mut u8,
    error_bytes: usize,
) -> *mut Sender {
    // SAFETY: the header's duties.
    let (stream, error) = unsafe { (stream.stream(), buffer(error, error_bytes)) };
    match stream {
        Ok(stream) => {
            let sender = Sender::new(stream, outstanding, Instant::from_ns(now_ns));
            Box::into_raw(Box::new(match patience(patience_ns) {
                Some(patience) => sender.with_patience(patience),
                None => sender,
            }))
        }
        Err(text) => {
            say(&text, error);
            ptr::null_mut()
        }
    }
}

/// Frees a sender, or nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_sender_free(sender: *mut Sender) {
    if !sender.is_null() {
        // SAFETY: it came from a box, and is freed once.
        drop(unsafe { Box::from_raw(sender) });
    }
}

/// Writes the next message; returns whether there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_sender_poll_message(sender: &mut Sender, into: *mut [u8; 64]) -> i32 {
    // SAFETY: the header's duties.
    unsafe { write_message(sender.poll_message(), into) }
}

/// Takes a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_sender_handle_message(
    sender: &mut Sender,
    now_ns: u64,
    message: *const u8,
    len: usize,
) {
    // SAFETY: the header's duties.
    sender.handle_message(Instant::from_ns(now_ns), unsafe { bytes(message, len) });
}

/// Where the stream goes, and what is there; whether it is invited.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_invited(sender: &Sender, place: &mut PlaceOfC, held: &mut u64) -> i32 {
    let Some((invited, bytes)) = sender.invited() else { return 0 };
    *place = PlaceOfC::of(Place { outstanding: sender.outstanding() as u32, ..invited });
    *held = bytes;
    1
}

/// Begins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_sender_begin(
    sender: &mut Sender,
    chunk_bytes: u64,
    now_ns: u64,
    error: *mut u8,
    error_bytes: usize,
) -> i32 {
    match sender.begin(chunk_bytes, Instant::from_ns(now_ns)) {
        Ok(()) => 0,
        Err(why) => {
            // SAFETY: the header's duties.
            say(&why.to_string(), unsafe { buffer(error, error_bytes) });
            -1
        }
    }
}

/// Parts are ready.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_handle_ready(sender: &mut Sender, parts: usize) {
    sender.handle_ready(parts);
}

/// The next chunk to be posted; returns whether there is one.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_poll_post(sender: &mut Sender, now_ns: u64, into: &mut PostOfC) -> i32 {
    let Some(post) = sender.poll_post(Instant::from_ns(now_ns)) else { return 0 };
    *into = PostOfC {
        offset: post.offset,
        address: post.address,
        bytes: post.bytes,
        rkey: post.rkey,
        immediate: post.immediate,
    };
    1
}

/// A chunk has completed.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_handle_completion(sender: &mut Sender, now_ns: u64) {
    sender.handle_completion(Instant::from_ns(now_ns));
}

/// Nothing more goes.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_handle_broken(sender: &mut Sender) {
    sender.handle_broken();
}

/// Takes the time.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_handle_timeout(sender: &mut Sender, now_ns: u64) {
    sender.handle_timeout(Instant::from_ns(now_ns));
}

/// When something is to be done.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_poll_timeout(sender: &Sender) -> u64 {
    sender.poll_timeout().map_or(NEVER, Instant::as_ns)
}

/// Bytes that are at the receiver.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_whole_bytes(sender: &Sender) -> u64 {
    sender.whole_bytes()
}

/// Parts that are whole there.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_sender_whole_parts(sender: &Sender) -> usize {
    sender.whole_parts()
}

/// How it has ended: `enum uroce_stream_end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_sender_end(sender: &Sender, error: *mut u8, error_bytes: usize) -> i32 {
    // SAFETY: the header's duties.
    unsafe { tell_end(sender.end(), error, error_bytes) }
}
