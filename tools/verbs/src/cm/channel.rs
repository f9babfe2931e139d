//! Event channels: a descriptor, and the events that wait behind it.

use std::ffi::c_int;
use std::ptr::NonNull;
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
    if let Ok(gone) = Channel::slab().remove(channel, |_| true) {
        // A thread may sleep in reading its descriptor: as with the kernel, that does not end.
        drop(gone);
    }
}
