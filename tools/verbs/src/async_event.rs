//! Asynchronous events: from the engine to the context that made the queue, and from there to the program.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use uroce::verbs::Event;

use crate::abi::{IbvAsyncEvent, IbvContext, IbvCq, IbvQp, IbvSrq};
use crate::completion_queue::CqLink;
use crate::context::{self, Map};
use crate::error::{Failure, event_taken};
use crate::queue::{Acknowledged, EventQueue};
use crate::{completion_queue, queue_pair, srq};

/// An event on its way to a program.
pub(crate) struct AsyncEvent {
    kind: c_int,
    /// What it is about, by the program's pointer.
    element: usize,
    acknowledged: Arc<Acknowledged>,
}

/// `enum ibv_event_type`: those that we raise.
mod kind {
    use std::ffi::c_int;
    pub(super) const CQ_ERR: c_int = 0;
    pub(super) const QP_FATAL: c_int = 1;
    pub(super) const QP_REQ_ERR: c_int = 2;
    pub(super) const QP_ACCESS_ERR: c_int = 3;
    pub(super) const SQ_DRAINED: c_int = 5;
    pub(super) const SRQ_LIMIT_REACHED: c_int = 15;
    pub(super) const QP_LAST_WQE_REACHED: c_int = 16;
}

/// Where the events of one object go.
pub(crate) struct Route {
    /// The program's pointer.
    pub element: usize,
    pub events: Arc<EventQueue<AsyncEvent>>,
    pub acknowledged: Arc<Acknowledged>,
}

impl Route {
    fn push(&self, kind: c_int) {
        let event = AsyncEvent { kind, element: self.element, acknowledged: self.acknowledged.clone() };
        self.events.push(event, || true);
    }

    /// Takes out the events that nobody has taken, and waits until all that were are acknowledged.
    pub(crate) fn end(&self) {
        self.events.remove(|event| event.element == self.element, || {});
        self.acknowledged.wait();
    }
}

/// A queue pair's route, and the completion queues that it can overflow.
pub(crate) struct QpRoute {
    pub route: Arc<Route>,
    pub send_cq: Arc<CqLink>,
    pub receive_cq: Arc<CqLink>,
}

/// Where the events of one device go: the engine knows numbers, programs know pointers.
#[derive(Default)]
pub(crate) struct Routes {
    pub queue_pairs: Mutex<Map<u32, QpRoute>>,
    pub srqs: Mutex<Map<u32, Arc<Route>>>,
}

impl Routes {
    pub(crate) fn dispatch(&self, event: Event) {
        let about = |number: uroce::wire::Qpn, kind| {
            let routes = self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(qp) = routes.get(&number.value()) {
                qp.route.push(kind);
            }
        };
        match event {
            Event::QueuePairFatal(qpn) => about(qpn, kind::QP_FATAL),
            Event::RequestError(qpn) => about(qpn, kind::QP_REQ_ERR),
            Event::AccessError(qpn) => about(qpn, kind::QP_ACCESS_ERR),
            Event::SendQueueDrained(qpn) => about(qpn, kind::SQ_DRAINED),
            Event::LastWqeReached(qpn, _) => about(qpn, kind::QP_LAST_WQE_REACHED),
            Event::SrqLimit(number) => {
                if let Some(route) = self.srqs.lock().unwrap_or_else(PoisonError::into_inner).get(&number.0) {
                    route.push(kind::SRQ_LIMIT_REACHED);
                }
            }
            Event::CompletionQueueOverflow(qpn) => {
                let routes = self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner);
                for link in routes.get(&qpn.value()).iter().flat_map(|qp| [&qp.send_cq, &qp.receive_cq]) {
                    if link.report_overflow_once() {
                        link.route.push(kind::CQ_ERR);
                    }
                }
            }
        }
    }
}

/// Waits for an event on the context, and takes it.
///
/// # Safety
/// `event` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut IbvContext, event: *mut IbvAsyncEvent) -> c_int {
    let take = || {
        // Not held while waiting: the context may be closed meanwhile.
        let events = context::get(context)?.events.clone();
        if event.is_null() {
            return Err(Failure::null("event"));
        }
        let taken = events.take(|taken| {
            taken.acknowledged.given();
            IbvAsyncEvent { element: taken.element as *mut c_void, event_type: taken.kind }
        });
        let taken = taken.map_err(|error| Failure::new(error.raw_os_error().unwrap_or(libc::EIO), error))?;
        // SAFETY: the caller's promise.
        unsafe { event.write(taken) };
        Ok(())
    };
    event_taken("ibv_get_async_event", take())
}

/// Says that the program is done with an event; what it was about can be destroyed then.
///
/// # Safety
/// `event` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut IbvAsyncEvent) {
    // SAFETY: the caller's promise.
    let Some(event) = (unsafe { event.as_ref() }) else { return };
    let acknowledged = match event.event_type {
        kind::CQ_ERR => completion_queue::async_acknowledged(event.element.cast::<IbvCq>()),
        kind::QP_FATAL | kind::QP_REQ_ERR | kind::QP_ACCESS_ERR | kind::SQ_DRAINED | kind::QP_LAST_WQE_REACHED => {
            queue_pair::async_acknowledged(event.element.cast::<IbvQp>())
        }
        kind::SRQ_LIMIT_REACHED => srq::async_acknowledged(event.element.cast::<IbvSrq>()),
        _ => None,
    };
    if let Some(acknowledged) = acknowledged {
        acknowledged.acknowledge(1);
    }
}
