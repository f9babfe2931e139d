//! Completion channels: a descriptor that says which completion queues have something.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{IbvCompChannel, IbvContext, IbvCq};
use crate::completion_queue::CqLink;
use crate::context;
use crate::error::{Failure, event_taken, number, pointer};
use crate::queue::EventQueue;
use crate::slab::{Object, Ref, Slab};

/// A completion channel.
pub(crate) struct Channel {
    pub context: usize,
    pub events: Arc<EventQueue<Arc<CqLink>>>,
    /// Completion queues hold a copy.
    pub users: Arc<()>,
}

impl Object for Channel {
    type C = IbvCompChannel;
    const CAPACITY: usize = 1 << 16;

    fn slab() -> &'static Slab<Channel> {
        static SLAB: Slab<Channel> = Slab::new();
        &SLAB
    }
}

pub(crate) fn get(channel: *const IbvCompChannel) -> Result<Ref<Channel>, Failure> {
    Channel::slab().get(channel).ok_or_else(|| Failure::handle("completion channel"))
}

/// Makes a completion channel.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    let create = || {
        drop(context::get(context)?);
        let events =
            EventQueue::new().map_err(|error| Failure::new(error.raw_os_error().unwrap_or(libc::EMFILE), error))?;
        let fd = events.fd();
        let made = Channel::slab().insert(|c| {
            // SAFETY: the slab passes room for it.
            unsafe { c.write(IbvCompChannel { context, fd, refcnt: 0 }) };
            Channel { context: context as usize, events: Arc::new(events), users: Arc::new(()) }
        });
        made.map(|made| made.as_ptr()).ok_or_else(|| Failure::new(libc::ENOMEM, "too many completion channels"))
    };
    pointer("ibv_create_comp_channel", create())
}

/// Destroys a completion channel that no completion queue uses.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    let gone = Channel::slab().remove(channel, |channel| Arc::strong_count(&channel.users) == 1);
    number("ibv_destroy_comp_channel", gone.map(drop).map_err(|error| Failure::removal("completion channel", error)))
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for channel in Channel::slab().pointers(|channel| channel.context == context as usize) {
        let _ = Channel::slab().remove(channel.as_ptr(), |_| true);
    }
}

/// Waits for a completion queue to notify, and says which it was.
///
/// # Safety
/// `cq` and `cq_context` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let take = || {
        // Not held while waiting.
        let events = get(channel)?.events.clone();
        if cq.is_null() || cq_context.is_null() {
            return Err(Failure::null("cq or cq_context"));
        }
        let taken = events.take(|link| {
            link.notifications.given();
            (link.route.element as *mut IbvCq, link.cq_context as *mut c_void)
        });
        let (which, its_context) =
            taken.map_err(|error| Failure::new(error.raw_os_error().unwrap_or(libc::EIO), error))?;
        // SAFETY: the caller's promise.
        unsafe {
            cq.write(which);
            cq_context.write(its_context);
        }
        Ok(())
    };
    // Once for every event: not worth a line in the trace.
    match take() {
        Ok(()) => 0,
        Err(failure) => event_taken("ibv_get_cq_event", Err(failure)),
    }
}
