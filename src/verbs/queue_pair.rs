use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::Forked;
use crate::engine::{Core, Engine};
use crate::link::device::Device;
use crate::time::Instant;
use crate::transport::{
    AttachError, Counters, ModifyError, PostError, QpAttributes, QueuePairInfo, ReceiveRequest, SendRequest, State,
};
use crate::wire::{PathMtu, Psn, Qpn};

use super::ruling::Ruling;

/// A queue pair. Dropping it destroys it, after it has sent the acknowledges that it owes its peer.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) engine: Arc<Engine>,
    pub(super) device: Arc<Device>,
    pub(super) qpn: Qpn,
    /// The first PSN that we send, unless [`connect_with`](QueuePair::connect_with) gets another.
    pub(super) first_psn: Psn,
    /// The largest path MTU of the device, as [`Context::active_mtu`](super::Context::active_mtu).
    pub(super) path_mtu: PathMtu,
    /// What the device's policy decides for it.
    pub(super) ruling: Option<Box<Ruling>>,
}

impl QueuePair {
    /// The number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The current state; `RESET` in a child of the process that opened the device.
    pub fn state(&self) -> State {
        self.engine.with(|core, _| core.endpoint.queue_pair(self.qpn).map_or(State::Reset, |qp| qp.state()))
    }

    /// All attributes of the queue pair as they are now (IBTA 11.2.5.3).
    ///
    /// # Errors
    /// [`ModifyError::Forked`] in a child of the process that opened the device.
    pub fn query(&self) -> Result<QueuePairInfo, ModifyError> {
        if self.engine.is_forked() {
            return Err(ModifyError::Forked(Forked));
        }
        let info = self.engine.with(|core, _| core.endpoint.queue_pair(self.qpn).map(|qp| qp.info()));
        info.map_err(|_| ModifyError::NoSuchQueuePair(self.qpn))
    }

    /// The PSN of the next send request, and the next PSN expected from the peer.
    pub fn psns(&self) -> (Psn, Psn) {
        self.engine.with(|core, _| core.endpoint.queue_pair(self.qpn).map(|qp| qp.psns()).unwrap_or_default())
    }

    /// The counters of the queue pair since its creation.
    pub fn counters(&self) -> Counters {
        self.engine.with(|core, _| core.endpoint.queue_pair_counters(self.qpn).unwrap_or_default())
    }

    /// Changes state and attributes (IBTA 11.2.5.2).
    ///
    /// # Errors
    /// [`ModifyError`] names the transition or the attribute that was refused; nothing was changed then.
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        self.engine.with(|core, now| {
            core.endpoint.modify(now, self.qpn, attributes)?;
            self.rule_modified(attributes, core, now);
            Ok(())
        })
    }

    /// Has the policy decide after these attributes were set.
    pub(super) fn rule_modified(&self, attributes: &QpAttributes, core: &mut Core, now: Instant) {
        if let Some(ruling) = &self.ruling {
            ruling.modified(attributes, core, now, self.qpn);
        }
    }

    /// Tells the policy the port of the service that the connection manager connects the queue pair with, before it has
    /// the address of its peer. RESET forgets it.
    pub fn set_service_port(&self, port: u16) {
        if let Some(ruling) = &self.ruling {
            ruling.take_port(port);
        }
    }

    /// Posts a send request, and sends as much as is allowed at once.
    ///
    /// # Errors
    /// [`PostError`] when the queue is full, or the queue pair or its state does not take the request; nothing was
    /// posted then.
    pub fn post_send(&self, request: SendRequest) -> Result<(), PostError> {
        self.engine.post(self.qpn, |core, now| self.post(core, now, request))
    }

    /// Posts send requests in order until one is refused, and sends as much as is allowed. Returns the number of posted
    /// ones.
    ///
    /// It is cheaper than separate calls: the requests lock the engine once, and share a system call.
    ///
    /// # Errors
    /// The [`PostError`] of the refused request, as of [`post_send`](Self::post_send).
    pub fn post_sends(&self, requests: impl Iterator<Item = SendRequest>) -> (usize, Result<(), PostError>) {
        self.engine.post(self.qpn, |core, now| post_all(requests, |request| self.post(core, now, request)))
    }

    fn post(&self, core: &mut Core, now: Instant, request: SendRequest) -> Result<(), PostError> {
        let bytes = request.data.len();
        core.endpoint.post_send(now, self.qpn, request)?;
        if let Some(ruling) = &self.ruling {
            ruling.posted(bytes, core, now, self.qpn);
        }
        Ok(())
    }

    /// Posts receive requests in order until one is refused. Returns the number of posted ones.
    ///
    /// # Errors
    /// The [`PostError`] of the refused request, as of [`post_receive`](Self::post_receive).
    pub fn post_receives(&self, requests: impl Iterator<Item = ReceiveRequest>) -> (usize, Result<(), PostError>) {
        self.engine.without_sending(|core, now| {
            post_all(requests, |request| core.endpoint.post_receive(now, self.qpn, request))
        })
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// [`PostError`] when the queue is full, the state is `RESET`, or a shared receive queue is used; nothing was
    /// posted then.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.engine.without_sending(|core, now| core.endpoint.post_receive(now, self.qpn, request))
    }
}

/// Why a queue pair was not attached to a multicast group, or detached from it.
#[derive(Debug, thiserror::Error)]
pub enum MulticastError {
    /// The queue pair or the address cannot have multicast, or there are too many groups or members.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The kernel refused to let the device join.
    #[error("the kernel refused to join {group}: {error}")]
    Join {
        /// The address of the group.
        group: IpAddr,
        /// The error of the kernel.
        error: io::Error,
    },
}

impl QueuePair {
    /// Attaches a datagram queue pair to a multicast group (IBTA 11.3.1); `::ffff:a.b.c.d` is an IPv4 group.
    ///
    /// The queue pair gets a copy of every datagram to the group and [`Qpn::MULTICAST`], also from others on this
    /// device. The first to attach makes the device join, which the kernel announces to the network (IGMP, MLD). The
    /// socket for that is in the calling thread's network namespace. Attaching again has no effect.
    ///
    /// # Errors
    /// [`MulticastError::Attach`] when the queue pair is not UD, the address is not a group, or there are too many;
    /// [`MulticastError::Join`] when the kernel refuses.
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

    /// Detaches the queue pair from the group (IBTA 11.3.2). The last to detach makes the device leave the group.
    ///
    /// # Errors
    /// [`AttachError::NotAttached`] when it is not attached; [`AttachError::Service`] when the queue pair is not UD.
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
