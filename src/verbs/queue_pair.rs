use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::engine::{Core, Engine};
use crate::link::device::Device;
use crate::transport::{
    AttachError, Counters, ModifyError, PostError, QpAttributes, QueuePairInfo, ReceiveRequest, SendRequest, State,
};
use crate::wire::{PathMtu, Psn, Qpn};

/// A queue pair. Dropping it destroys it, after sending the acknowledges that it owes its peer.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) engine: Arc<Engine>,
    pub(super) device: Arc<Device>,
    pub(super) qpn: Qpn,
    /// The first PSN that we send, unless who connects has another.
    pub(super) first_psn: Psn,
    /// The largest path MTU that the device's link takes.
    pub(super) path_mtu: PathMtu,
}

impl QueuePair {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.engine.with(|core, _| core.endpoint.queue_pair(self.qpn).map_or(State::Reset, |qp| qp.state()))
    }

    /// All its attributes as they are now (IBTA 11.2.5.3).
    ///
    /// # Errors
    /// [`ModifyError::Forked`] in a child of the process that opened the device.
    pub fn query(&self) -> Result<QueuePairInfo, ModifyError> {
        if self.engine.is_forked() {
            return Err(ModifyError::Forked);
        }
        let info = self.engine.with(|core, _| core.endpoint.queue_pair(self.qpn).map(|qp| qp.info()));
        info.map_err(|_| ModifyError::NoSuchQueuePair(self.qpn))
    }

    /// The PSN that the next send request will take, and the next one expected from the peer.
    pub fn psns(&self) -> (Psn, Psn) {
        self.engine.with(|core, _| core.endpoint.queue_pair(self.qpn).map(|qp| qp.psns()).unwrap_or_default())
    }

    /// What happened on it, by name.
    pub fn counters(&self) -> Counters {
        self.engine.with(|core, _| core.endpoint.queue_pair_counters(self.qpn).unwrap_or_default())
    }

    /// Changes state and attributes (IBTA 11.2.5.2).
    ///
    /// # Errors
    /// [`ModifyError`] names the transition and the attribute; nothing was changed then.
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        self.engine.with(|core, now| core.endpoint.modify(now, self.qpn, attributes))
    }

    /// Posts a send request, and sends what may go at once.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn post_send(&self, request: SendRequest) -> Result<(), PostError> {
        self.engine.with(|core, now| core.endpoint.post_send(now, self.qpn, request))
    }

    /// Posts send requests one after the other up to the first that is refused, then sends what may go. Cheaper than one
    /// by one: they take the engine, and the system call, once. Returns how many were posted.
    ///
    /// # Errors
    /// [`PostError`] of the first that was refused.
    pub fn post_sends(&self, requests: impl Iterator<Item = SendRequest>) -> (usize, Result<(), PostError>) {
        self.engine.with(|core, now| post_all(requests, |request| core.endpoint.post_send(now, self.qpn, request)))
    }

    /// Posts receive requests one after the other up to the first that is refused. Returns how many were posted.
    ///
    /// # Errors
    /// [`PostError`] of the first that was refused.
    pub fn post_receives(&self, requests: impl Iterator<Item = ReceiveRequest>) -> (usize, Result<(), PostError>) {
        self.engine.without_sending(|core, now| {
            post_all(requests, |request| core.endpoint.post_receive(now, self.qpn, request))
        })
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.engine.without_sending(|core, now| core.endpoint.post_receive(now, self.qpn, request))
    }
}

/// Why a queue pair was not attached to a multicast group, or detached from it.
#[derive(Debug, thiserror::Error)]
pub enum MulticastError {
    /// The queue pair or the group is none of the kind, or there are too many.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The kernel did not let the device join.
    #[error("the kernel does not join {group}: {error}")]
    Join {
        /// The group.
        group: IpAddr,
        /// What it says.
        error: io::Error,
    },
}

impl QueuePair {
    /// Attaches a datagram queue pair to a multicast group (IBTA 11.3.1): it gets a copy of what is sent to the group and to
    /// [`Qpn::MULTICAST`], by others on this device too. The first that attaches makes the device join, which the kernel
    /// tells the network (IGMP, MLD); its socket is made in the calling thread's network namespace. `::ffff:a.b.c.d` is an IPv4
    /// group. Once more does nothing.
    ///
    /// # Errors
    /// [`MulticastError`].
    pub fn attach(&self, group: Ipv6Addr) -> Result<(), MulticastError> {
        let group = IpAddr::V6(group).to_canonical();
        self.engine.without_sending(|core, _| {
            if core.endpoint.attach(self.qpn, group)?
                && let Err(error) = core.link.join(group)
            {
                core.endpoint.detach(self.qpn, group)?;
                return Err(MulticastError::Join { group, error });
            }
            Ok(())
        })
    }

    /// Detaches it (IBTA 11.3.2). The last that detaches makes the device leave the group.
    ///
    /// # Errors
    /// [`AttachError::NotAttached`], and what [`attach`](QueuePair::attach) would say.
    pub fn detach(&self, group: Ipv6Addr) -> Result<(), AttachError> {
        let group = IpAddr::V6(group).to_canonical();
        self.engine.without_sending(|core, _| detach(core, self.qpn, group))
    }
}

fn detach(core: &mut Core, qpn: Qpn, group: IpAddr) -> Result<(), AttachError> {
    if core.endpoint.detach(qpn, group)? {
        core.link.leave(group);
    }
    Ok(())
}

/// Posts `requests` in order until one is refused.
pub(super) fn post_all<R, E>(
    requests: impl Iterator<Item = R>,
    mut post: impl FnMut(R) -> Result<(), E>,
) -> (usize, Result<(), E>) {
    let mut posted = 0;
    for request in requests {
        if let Err(error) = post(request) {
            return (posted, Err(error));
        }
        posted += 1;
    }
    (posted, Ok(()))
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _ = self.engine.with(|core, now| {
            core.settle(now, self.qpn);
            for group in core.endpoint.groups(self.qpn) {
                let _ = detach(core, self.qpn, group);
            }
            core.endpoint.destroy_queue_pair(self.qpn)
        });
    }
}
