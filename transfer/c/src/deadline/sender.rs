use uroce::time::Instant;
use uroce_transfer::deadline::{Sender, Source, Values};

use crate::{NEVER, buffer, bytes};

/// Bytes of a program.
struct Lent {
    data: *const u8,
    bytes: u64,
}

// SAFETY: the header says that the bytes stay, and from any thread they are only read.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Source for Lent {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        assert!(offset + into.len() as u64 <= self.bytes, "blocks are within the object");
        // SAFETY: within the object, which the program has lent until it is withdrawn.
        unsafe { self.data.add(offset as usize).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }
}

/// A sender to one peer.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_sender_new(seed: &[u8; 32], datagram_bytes: usize) -> *mut Sender {
    Box::into_raw(Box::new(Sender::new(*seed).with_datagram_bytes(datagram_bytes)))
}

/// Frees a sender, or nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_sender_free(sender: *mut Sender) {
    if !sender.is_null() {
        // SAFETY: it came from a box, and is freed once.
        drop(unsafe { Box::from_raw(sender) });
    }
}

/// An object of a program, with the name and version that it is offered by.
#[repr(C)]
pub struct ObjectOfC {
    object: u64,
    version: u64,
    block_bytes: u32,
    values: *const u8,
    bytes: u64,
}

/// Offers an object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_sender_offer(sender: &mut Sender, offered: &ObjectOfC) -> i32 {
    let lent = Lent { data: offered.values, bytes: if offered.values.is_null() { 0 } else { offered.bytes } };
    match Values::new(offered.version, offered.block_bytes, lent) {
        Ok(values) => {
            sender.offer(offered.object, values);
            0
        }
        Err(_) => -1,
    }
}

/// Offers an object no more.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_sender_withdraw(sender: &mut Sender, object: u64) {
    sender.withdraw(object);
}

/// Takes a datagram that has arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_sender_handle_datagram(
    sender: &mut Sender,
    now_ns: u64,
    datagram: *const u8,
    len: usize,
) {
    // SAFETY: the header's duties.
    sender.handle_datagram(Instant::from_ns(now_ns), unsafe { bytes(datagram, len) });
}

/// Writes the next datagram; returns its length, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_deadline_sender_poll_transmit(
    sender: &mut Sender,
    now_ns: u64,
    into: *mut u8,
    len: usize,
) -> usize {
    // SAFETY: the header's duties.
    sender.poll_transmit(Instant::from_ns(now_ns), unsafe { buffer(into, len) }).unwrap_or(0)
}

/// When something is to be done.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_sender_poll_timeout(sender: &Sender) -> u64 {
    sender.poll_timeout().map_or(NEVER, Instant::as_ns)
}

/// Takes the time.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_sender_handle_timeout(sender: &mut Sender, now_ns: u64) {
    sender.handle_timeout(Instant::from_ns(now_ns));
}

/// The number of requests that are served.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_deadline_sender_requests(sender: &Sender) -> usize {
    sender.requests()
}
