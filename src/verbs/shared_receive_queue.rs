use std::sync::Arc;

use crate::engine::Engine;
use crate::transport::{ReceiveRequest, Srq, SrqError};

use super::queue_pair::post_all;

/// A receive queue that several queue pairs take their requests from. Dropping it destroys it, unless queue pairs still
/// use it: then it exists as long as the context.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    engine: Arc<Engine>,
    srq: Srq,
}

impl SharedReceiveQueue {
    pub(super) fn new(engine: Arc<Engine>, srq: Srq) -> SharedReceiveQueue {
        SharedReceiveQueue { engine, srq }
    }

    /// The number of the queue, which events carry.
    pub fn number(&self) -> Srq {
        self.srq
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// [`SrqError::Full`] when the queue is full, and [`SrqError::Forked`] in a child; nothing was posted then.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), SrqError> {
        self.engine.without_sending(|core, _| core.endpoint.post_srq_receive(self.srq, request))
    }

    /// Posts receive requests in order until one is refused. Returns the number of posted ones.
    ///
    /// # Errors
    /// The [`SrqError`] of the refused request, as of [`post_receive`](Self::post_receive).
    pub fn post_receives(&self, requests: impl Iterator<Item = ReceiveRequest>) -> (usize, Result<(), SrqError>) {
        self.engine
            .without_sending(|core, _| post_all(requests, |request| core.endpoint.post_srq_receive(self.srq, request)))
    }

    /// Changes the capacity, 1 to 65536 requests (IBTA 11.2.3.3).
    ///
    /// # Errors
    /// [`SrqError::Size`] when `capacity` is out of range, or below the number of posted requests or the limit.
    pub fn resize(&self, capacity: usize) -> Result<(), SrqError> {
        self.engine.with(|core, _| core.endpoint.resize_srq(self.srq, capacity))
    }

    /// The capacity and the limit, in requests; the limit is 0 while the event is not armed.
    ///
    /// # Errors
    /// [`SrqError::Forked`] in a child of the process that opened the device.
    pub fn query(&self) -> Result<(usize, usize), SrqError> {
        self.engine.with(|core, _| core.endpoint.query_srq(self.srq))
    }

    /// Arms [`Event::SrqLimit`](crate::transport::Event::SrqLimit), which comes once, when fewer than `limit` requests
    /// are left (IBTA 10.2.9.4).
    ///
    /// # Errors
    /// [`SrqError::Size`] when `limit` exceeds the capacity; [`SrqError::Forked`] in a child.
    pub fn arm(&self, limit: usize) -> Result<(), SrqError> {
        self.engine.with(|core, _| core.endpoint.arm_srq(self.srq, limit))
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        let _ = self.engine.with(|core, _| core.endpoint.destroy_srq(self.srq));
    }
}
