use std::sync::Arc;

use crate::engine::Engine;
use crate::link::device::Device;
use crate::memory::{Access, HostMemory, Lent, MapError, Pd, RegisterError, WindowKind};
use crate::transport::{Capabilities, CreateError, QueuePairInit, Service, SrqError};
use crate::wire::PathMtu;

use super::ruling::{DevicePolicy, Ruling};
use super::{CompletionQueue, MemoryRegion, MemoryWindow, QueuePair, Registration, SharedReceiveQueue};

/// A protection domain: its regions and queue pairs work together. A clone is the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(super) engine: Arc<Engine>,
    pub(super) device: Arc<Device>,
    pub(super) pd: Pd,
    pub(super) path_mtu: PathMtu,
    pub(super) policy: Option<Arc<DevicePolicy>>,
}

impl ProtectionDomain {
    /// Maps `len` bytes of zeroed memory, and registers them.
    ///
    /// # Errors
    /// [`MapError`] when the kernel gives no memory.
    pub fn allocate_region(&self, len: usize, access: Access) -> Result<MemoryRegion, MapError> {
        let memory = Arc::new(HostMemory::new(len)?);
        let key = self.engine.with(|core, _| core.endpoint.memory().register(self.pd, memory.clone(), access));
        Ok(MemoryRegion::new(self.engine.clone(), memory, access, key))
    }

    /// Registers `len` bytes at `start` that the program lends. Peers address them from `iova` on, or from 0 on with
    /// [`Access::ZERO_BASED`].
    ///
    /// The pages are populated now. Access to pages that the program unmaps later is an access error, not a fault.
    ///
    /// # Errors
    /// [`RegisterError`] when a page is not mapped, or not writable although the access needs that.
    ///
    /// # Safety
    /// - The owner of the memory must expect peers to read it, and to write it as `access` allows, until the
    ///   registration is dropped.
    /// - The owner can unmap the memory before. Memory that is mapped at the same addresses later is read and written
    ///   then.
    /// - The handler that makes a copy of unmapped memory fail must stay. A program that has a handler of its own for
    ///   SIGSEGV or SIGBUS must install it before.
    /// - Threads must not block these signals once they have worked with the context
    ///   ([`faults`](crate::memory::faults)).
    pub unsafe fn register_borrowed(
        &self,
        start: *mut u8,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        // Before the engine is locked: many pages take long.
        let lent = Lent::populate(start, len, access)?;
        // SAFETY: the caller's promise is the same.
        let key = self.engine.with(|core, _| unsafe { core.endpoint.memory().register_borrowed(self.pd, lent, iova) });
        Ok(Registration::new(self.engine.clone(), key))
    }

    /// Registers a key without memory, for local requests with any address and length. What they read is zeros, and
    /// what they write is discarded.
    pub fn register_null(&self) -> Registration {
        let key = self.engine.with(|core, _| core.endpoint.memory().register_null(self.pd));
        Registration::new(self.engine.clone(), key)
    }

    /// The number of the domain, for [`Registration::reregister`].
    pub(super) fn number(&self) -> Pd {
        self.pd
    }

    /// Allocates a memory window, not yet bound.
    pub fn allocate_window(&self, kind: WindowKind) -> MemoryWindow {
        let key = self.engine.with(|core, _| core.endpoint.memory().allocate_window(self.pd, kind));
        MemoryWindow::new(self.engine.clone(), key)
    }

    /// Creates a queue pair, in the `RESET` state.
    ///
    /// # Errors
    /// [`CreateError`] when a capacity is out of range, there are too many queue pairs, or the shared receive queue is
    /// missing.
    pub fn create_queue_pair(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, CreateError> {
        let init = QueuePairInit {
            service: options.service,
            pd: self.pd,
            capabilities: options.capabilities,
            send_cq: options.send.ring().clone(),
            receive_cq: options.receive.ring().clone(),
            srq: options.srq.map(SharedReceiveQueue::number),
            path_mtu: self.path_mtu,
        };
        let (qpn, first_psn) = self.engine.with(|core, _| {
            let qpn = core.endpoint.create_queue_pair(init)?;
            if matches!(options.service, Service::Uc | Service::Ud) {
                core.link.expect_unreliable();
            }
            Ok::<_, CreateError>((qpn, core.endpoint.memory().keys().psn()))
        })?;
        let (engine, device) = (self.engine.clone(), self.device.clone());
        let ruling = self.policy.clone().map(|policy| Box::new(Ruling::new(policy)));
        Ok(QueuePair { engine, device, qpn, first_psn, path_mtu: self.path_mtu, ruling })
    }

    /// Creates a receive queue of `capacity` requests, 1 to 65536, for several queue pairs.
    ///
    /// # Errors
    /// [`SrqError::Size`] when `capacity` is out of range; [`SrqError::Forked`] in a child.
    pub fn create_shared_receive_queue(&self, capacity: usize) -> Result<SharedReceiveQueue, SrqError> {
        let srq = self.engine.with(|core, _| core.endpoint.create_srq(self.pd, capacity))?;
        Ok(SharedReceiveQueue::new(self.engine.clone(), srq))
    }
}

/// The options for a queue pair: its service, its queues and their sizes.
///
/// ```
/// # use uroce::verbs::{Capabilities, CompletionQueue, QueuePairOptions, Service};
/// # fn options(cq: &CompletionQueue) {
/// let capabilities = Capabilities { max_send_requests: 1024, max_receive_requests: 1 };
/// let options = QueuePairOptions { capabilities, ..QueuePairOptions::new(Service::Rc, cq) };
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOptions<'a> {
    /// The transport service of the queue pair.
    pub service: Service,
    /// The capacities of its send and receive queue, in requests.
    pub capabilities: Capabilities,
    /// The queue for completions of send requests.
    pub send: &'a CompletionQueue,
    /// The queue for completions of receive requests.
    pub receive: &'a CompletionQueue,
    /// The shared receive queue; `None` for a receive queue of its own.
    pub srq: Option<&'a SharedReceiveQueue>,
}

impl<'a> QueuePairOptions<'a> {
    /// Options with room for 128 requests of each kind, whose completions all go to `cq`.
    pub fn new(service: Service, cq: &'a CompletionQueue) -> QueuePairOptions<'a> {
        let capabilities = Capabilities { max_send_requests: 128, max_receive_requests: 128 };
        QueuePairOptions { service, capabilities, send: cq, receive: cq, srq: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::memory::{Gives, MemoryLink};
    use crate::verbs::Context;

    #[test]
    fn the_link_is_told_of_messages_that_nobody_sends_again() {
        for (service, expected) in
            [(Service::Rc, false), (Service::Gsi, false), (Service::Uc, true), (Service::Ud, true)]
        {
            let link = MemoryLink::new(1500, Gives::default());
            let device = Device::find(Some("lo")).unwrap();
            let context = Context::with_link(device, Box::new(link.clone())).unwrap();
            let cq = context.create_completion_queue(16);
            let _qp = context.allocate_pd().create_queue_pair(&QueuePairOptions::new(service, &cq)).unwrap();
            assert_eq!(link.given().expects_unreliable, expected, "{service:?}");
        }
    }
}
