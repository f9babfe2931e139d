use std::sync::Arc;

use crate::engine::Engine;
use crate::transport::{ReceiveRequest, Srq, SrqError};

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
