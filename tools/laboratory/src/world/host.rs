use std::sync::Arc;

use uroce::memory::{Access, HostMemory, Pd};
use uroce::transport::{Capabilities, CompletionRing, Endpoint, QueuePairInit, RecoverySettings, Service, Srq};
use uroce::wire::{Key, PathMtu};

/// An endpoint with a protection domain, a registered region and a completion queue, as a program has them.
pub struct Host {
    /// The endpoint of the host.
    pub endpoint: Endpoint,
    /// The protection domain of all its objects.
    pub pd: Pd,
    /// The memory of the registered region.
    pub memory: Arc<HostMemory>,
    /// The key of the region.
    pub key: Key,
    /// The queue for all completions.
    pub cq: Arc<CompletionRing>,
}

impl Host {
    /// A host with the given recovery, whose `memory` is registered for `access`; `seed` decides its keys.
    pub fn new(
        seed: u8,
        recovery: RecoverySettings,
        memory: Arc<HostMemory>,
        access: Access,
        cq: CompletionRing,
    ) -> Host {
        let mut endpoint = Endpoint::new([seed; 32]);
        endpoint.set_recovery(recovery);
        let pd = endpoint.allocate_pd();
        let key = endpoint.memory().register(pd, memory.clone(), access);
        Host { endpoint, pd, memory, key, cq: Arc::new(cq) }
    }

    /// The parameters of a queue pair of this host, with room for `requests` in each work queue.
    pub fn init(&self, service: Service, requests: usize, srq: Option<Srq>, path_mtu: PathMtu) -> QueuePairInit {
        QueuePairInit { srq, ..queue_pair(service, self.pd, [requests; 2], &self.cq, path_mtu) }
    }
}

/// The parameters of a queue pair with room for the given numbers of send and receive requests, all of which complete
/// to `cq`.
pub fn queue_pair(
    service: Service,
    pd: Pd,
    [max_send_requests, max_receive_requests]: [usize; 2],
    cq: &Arc<CompletionRing>,
    path_mtu: PathMtu,
) -> QueuePairInit {
    QueuePairInit {
        service,
        pd,
        capabilities: Capabilities { max_send_requests, max_receive_requests },
        send_cq: cq.clone(),
        receive_cq: cq.clone(),
        srq: None,
        path_mtu,
    }
}
