use std::sync::Arc;

use uroce::memory::{Access, HostMemory, Pd};
use uroce::transport::{Capabilities, CompletionRing, Endpoint, QueuePairInit, RecoverySettings, Service, Srq};
use uroce::wire::{Key, PathMtu};

/// An endpoint, and what a program has of it: a protection domain, a registered region and a completion queue.
pub struct Host {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The domain that all is in.
    pub pd: Pd,
    /// The region.
    pub memory: Arc<HostMemory>,
    /// Its key.
    pub key: Key,
    /// Where all completions go.
    pub cq: Arc<CompletionRing>,
}

impl Host {
    /// A host that recovers in that way, with `memory` registered for `access`; `seed` decides its keys.
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

    /// What a queue pair of this host is made of, with queues of so many requests.
    pub fn init(&self, service: Service, requests: usize, srq: Option<Srq>, path_mtu: PathMtu) -> QueuePairInit {
        QueuePairInit { srq, ..queue_pair(service, self.pd, [requests; 2], &self.cq, path_mtu) }
    }
}

/// What a queue pair is made of that has queues of so many send and receive requests, and reports all of them in one place.
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
