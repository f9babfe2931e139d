use std::net::Ipv4Addr;
use std::sync::Arc;

use uroce::memory::{Access, HostMemory};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    CompletionRing, Data, RecoveryMode, RecoverySettings, Remote, SendOperation, SendRequest, Service, Status,
};
use uroce::wire::{PathMtu, Qpn};

use super::{Ferry, Host, Peering, path};

/// Two endpoints with any number of connected pairs of RC queue pairs, and a network without faults and delay.
pub struct Many {
    hosts: [Host; 2],
    /// The numbers of the queue pairs, by host.
    qpns: [Vec<Qpn>; 2],
    now: Instant,
    ferry: Ferry,
    /// The number of packets that were carried.
    pub packets: u64,
}

const MTU: PathMtu = PathMtu::Mtu1024;

/// Length in bytes that holds a packet of that MTU with all headers.
const FRAME_BYTES: usize = 2048;

/// The number of requests that each work queue holds.
const REQUESTS: usize = 4096;

/// The time between two messages: a million a second, more than an engine sends.
const MESSAGE_INTERVAL: Duration = Duration::from_micros(1);

impl Many {
    /// The number of outstanding READs and atomics in one direction, as perftest and UCX request it.
    pub const RD_ATOMIC: u8 = 16;

    /// `count` queue pairs on each side with the given recovery, ready to send.
    pub fn new(count: usize, recovery: RecoveryMode) -> Many {
        Many::of(count, RecoverySettings { recovery, ..RecoverySettings::default() })
    }

    /// `count` queue pairs on each side with these settings, ready to send.
    pub fn of(count: usize, recovery: RecoverySettings) -> Many {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut hosts = [1, 2].map(|seed| {
            let memory = Arc::new(HostMemory::new(1 << 16).unwrap());
            Host::new(seed, recovery, memory, access | Access::LOCAL_WRITE, CompletionRing::new(4096, || {}))
        });
        let address = |host: usize| Ipv4Addr::new(10, 0, 0, host as u8 + 1);
        let mut all = [Vec::new(), Vec::new()];
        for _ in 0..count {
            let qpns = hosts.each_mut().map(|host| {
                let init = host.init(Service::Rc, REQUESTS, None, MTU);
                host.endpoint.create_queue_pair(init).unwrap()
            });
            for (me, peer) in [(0, 1), (1, 0)] {
                let path = path(address(me), address(peer), peer as u64);
                let peering =
                    Peering { access, path_mtu: MTU, rd_atomic: Self::RD_ATOMIC, ..Peering::new(path, qpns[peer]) };
                peering.connect(&mut hosts[me].endpoint, Instant::ZERO, qpns[me]);
                all[me].push(qpns[me]);
            }
        }
        Many { hosts, qpns: all, now: Instant::ZERO, ferry: Ferry::new(FRAME_BYTES), packets: 0 }
    }

    /// The address and key of the second side's memory.
    pub fn remote(&self) -> Remote {
        Remote { address: self.hosts[1].memory.address(), key: self.hosts[1].key }
    }

    /// Posts a request of `len` bytes on the first side of the queue pair at `index`.
    pub fn post(&mut self, index: usize, operation: SendOperation, len: u32) {
        self.now = self.now + MESSAGE_INTERVAL;
        let host = &mut self.hosts[0];
        let data = Data::sge(host.memory.address(), len, host.key);
        host.endpoint.post_send(self.now, self.qpns[0][index], SendRequest::new(0, operation, data)).unwrap();
    }

    /// Carries packets, a batch from each side in turn, until `count` requests are complete.
    ///
    /// # Panics
    /// When a request fails, or no packet is carried.
    pub fn complete(&mut self, count: usize) {
        let mut completed = 0;
        while completed < count {
            let moved = self.carry(0) + self.carry(1);
            while let Some(done) = self.hosts[0].cq.poll() {
                assert_eq!(done.status, Status::Success);
                completed += 1;
            }
            assert!(moved > 0 || completed == count, "nothing moves");
        }
        // Timers run once a step, as in an engine.
        self.hosts.iter_mut().for_each(|host| host.endpoint.handle_timeout(self.now));
    }

    /// How many queue pairs of each side have a congestion controller.
    pub fn controllers(&self) -> [usize; 2] {
        self.hosts.each_ref().map(|host| host.endpoint.flows().count())
    }

    /// Carries all that the first side is allowed to send, before the second side sends anything.
    pub fn send_all(&mut self) {
        while self.carry(0) > 0 {}
    }

    /// Carries one batch from host `from` to the other one. Returns the number of packets.
    fn carry(&mut self, from: usize) -> usize {
        let count = self.ferry.load(self.now, &mut self.hosts[from].endpoint);
        self.ferry.unload(self.now, &mut self.hosts[1 - from].endpoint);
        self.packets += count as u64;
        count
    }
}
