use std::sync::Arc;

use crate::engine::Engine;
use crate::transport::{ReceiveRequest, Srq, SrqError};

use super::queue_pair::post_all;

/// A receive queue that several queue pairs take their requests from. Dropping it destroys it, unless queue pairs still
/// use it: then it goes with the context.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    engine: Arc<Engine>,
    srq: Srq,
}

impl SharedReceiveQueue {
    pub(super) fn new(engine: Arc<Engine>, srq: Srq) -> SharedReceiveQueue {
        SharedReceiveQueue { engine, srq }
    }

    /// Its number, as events name it.
    pub fn number(&self) -> Srq {
        self.srq
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// [`SrqError`]; nothing was posted then.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), SrqError> {
        self.engine.without_sending(|core, _| core.endpoint.post_srq_receive(self.srq, request))
    }

    /// Posts receive requests one after the other up to the first that is refused. Returns how many were posted.
    ///
    /// # Errors
    /// [`SrqError`] of the first that was refused.
    pub fn post_receives(&self, requests: impl Iterator<Item = ReceiveRequest>) -> (usize, Result<(), SrqError>) {
        self.engine
            .without_sending(|core, _| post_all(requests, |request| core.endpoint.post_srq_receive(self.srq, request)))
    }

    /// Changes its capacity.
    ///
    /// # Errors
    /// [`SrqError::Size`] also when more requests are posted than it shall hold.
    pub fn resize(&self, capacity: usize) -> Result<(), SrqError> {
        self.engine.with(|core, _| core.endpoint.resize_srq(self.srq, capacity))
    }

    /// Its capacity, and its limit: 0 when the event is not armed.
    ///
    /// # Errors
    /// [`SrqError`].
    pub fn query(&self) -> Result<(usize, usize), SrqError> {
        self.engine.with(|core, _| core.endpoint.query_srq(self.srq))
    }

    /// Arms [`Event::SrqLimit`](crate::transport::Event::SrqLimit): it comes once, when fewer than `limit` requests are
    /// left.
    ///
    /// # Errors
    /// [`SrqError`].
    pub fn arm(&self, limit: usize) -> Result<(), SrqError> {
        self.engine.with(|core, _| core.endpoint.arm_srq(self.srq, limit))
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        let _ = self.engine.with(|core, _| core.endpoint.destroy_srq(self.srq));
    }
}
