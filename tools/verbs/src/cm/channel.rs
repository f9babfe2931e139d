//! Event channels: a descriptor, and the events that wait behind it.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::{NonNull, null};
use std::sync::Arc;

use crate::abi::RdmaEventChannel;
use crate::error::{Failure, pointer};
use crate::queue::EventQueue;
use crate::slab::{Object, Ref, Slab};

use super::event::Pending;

/// An event channel.
pub(crate) struct Channel {
    pub events: Arc<EventQueue<Pending>>,
}

impl Object for Channel {
    type C = RdmaEventChannel;
    const CAPACITY: usize = 1 << 17;

    fn slab() -> &'static Slab<Channel> {
        static SLAB: Slab<Channel> = Slab::new();
        &SLAB
    }
}

pub(super) fn get(channel: *const RdmaEventChannel) -> Result<Ref<Channel>, Failure> {
    Channel::slab().get(channel).ok_or_else(|| Failure::handle("event channel"))
}

thread_local! {
    /// Where this thread took its last event; NULL when it has itself destroyed that channel.
    static LAST: Cell<*const RdmaEventChannel> = const { Cell::new(null()) };
}

/// The events of a channel, for who waits for the next.
///
/// A thread that comes back for more, while another has destroyed the channel, sleeps for good. Had it come a moment
/// earlier, it would sleep in reading the descriptor: which of the two came first no program can know, so both are the
/// same (rping ends so at every disconnection).
pub(super) fn wait_on(channel: *const RdmaEventChannel) -> Result<Arc<EventQueue<Pending>>, Failure> {
    let events = get(channel).map(|channel| channel.events.clone());
    while events.is_err() && !channel.is_null() && LAST.get() == channel {
        // SAFETY: no pointers are involved.
        unsafe { libc::pause() };
    }
    events
}

/// This thread has taken an event of the channel.
pub(super) fn taken_from(channel: *const RdmaEventChannel) {
    LAST.set(channel);
}

pub(super) fn create() -> Result<NonNull<RdmaEventChannel>, Failure> {
    let events =
        EventQueue::new().map_err(|error| Failure::new(error.raw_os_error().unwrap_or(libc::EMFILE), error))?;
    let fd: c_int = events.fd();
    let made = Channel::slab().insert(|c| {
        // SAFETY: the slab passes room for it.
        unsafe { c.write(RdmaEventChannel { fd }) };
        Channel { events: Arc::new(events) }
    });
    made.ok_or_else(|| Failure::new(libc::ENOMEM, "too many event channels"))
}

/// Makes an event channel.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut RdmaEventChannel {
    crate::lifetime::begin();
    pointer("rdma_create_event_channel", create().map(NonNull::as_ptr))
}

/// Destroys an event channel, which no identifier may use any more. Who waits for an event of it goes on waiting.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut RdmaEventChannel) {
    if LAST.get() == channel.cast_const() {
        LAST.set(null());
    }
    if let Ok(gone) = Channel::slab().remove(channel, |_| true) {
        // A thread may sleep in reading its descriptor: as with the kernel, that does not end.
        drop(gone);
    }
}
