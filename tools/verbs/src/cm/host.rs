//! A device with its connection manager, and whose events are whose.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use uroce::cm::message::{DatagramStatus, Reject, Reply, Request};
use uroce::cm::{CmEvent, EventKind, Id, Listener};
use uroce::link::device::Device;
use uroce::verbs::ConnectionManager;

use crate::abi::{IbvContext, RdmaCmId, RdmaConnParam};
use crate::context::{self, Map, Opened};
use crate::device;
use crate::error::{Failure, trace_counters};
use crate::lock::SpinLock;

use super::event::{Kind, Param, Pending};
use super::id::{self, Asked};

/// A device that identifiers are bound to.
///
/// It stays open until the program ends: peers may repeat messages of connections that the program has forgotten.
pub(super) struct Host {
    /// The context that programs see as `id->verbs`.
    pub context: usize,
    pub opened: Arc<Opened>,
    pub manager: ConnectionManager,
    pub routes: Arc<Routes>,
    /// The protection domain of who names none, which programs see as `id->pd`.
    default_pd: usize,
}

/// Which identifier a connection or a listener belongs to, by their pointers.
#[derive(Default)]
pub(super) struct Routes {
    pub connections: Mutex<Map<Id, usize>>,
    pub listeners: Mutex<Map<Listener, usize>>,
    host: OnceLock<Weak<Host>>,
}

/// The devices that are open, by name.
static HOSTS: SpinLock<Vec<(String, Arc<Host>)>> = SpinLock::new(Vec::new());

/// Held while a device is being opened.
static OPENING: SpinLock<()> = SpinLock::new(());

/// How long a program's exit waits until peers know of it. A kernel goes on telling them; here nobody does after that.
const EXIT_PATIENCE: Duration = Duration::from_millis(1500);

/// How often it looks, and in how many looks it tells them again: many are lost on the way to a host that is flooded.
const EXIT_LOOK: Duration = Duration::from_millis(2);
const EXIT_TELL: u32 = 25;

impl Host {
    /// The device, opened now if need be.
    pub fn of(device: Device) -> Result<Arc<Host>, Failure> {
        let _one = OPENING.lock();
        let name = device.name.clone();
        if let Some((_, host)) = HOSTS.lock().iter().find(|(known, _)| *known == name) {
            return Ok(host.clone());
        }
        let context = device::open_found(device)?;
        let opened = context::get(context)?.opened()?;
        let routes = Arc::new(Routes::default());
        let to = routes.clone();
        let manager = ConnectionManager::start(&opened.context, move |event| to.dispatch(event))
            .map_err(|error| Failure::new(libc::ENODEV, format_args!("{name}: {error}")))?;
        let default_pd = crate::domain::ibv_alloc_pd(context) as usize;
        if default_pd == 0 {
            return Err(Failure::new(libc::ENOMEM, format_args!("{name}: no protection domain")));
        }
        let host = Arc::new(Host { context: context as usize, opened, manager, routes, default_pd });
        let _ = host.routes.host.set(Arc::downgrade(&host));
        HOSTS.lock().push((name, host.clone()));
        Ok(host)
    }

    /// All that are open.
    pub fn all() -> Vec<Arc<Host>> {
        HOSTS.lock().iter().map(|(_, host)| host.clone()).collect()
    }

    pub fn context(&self) -> *mut IbvContext {
        self.context as *mut IbvContext
    }

    /// The protection domain of who names none.
    pub fn default_pd(&self) -> *mut crate::abi::IbvPd {
        self.default_pd as *mut crate::abi::IbvPd
    }
}

/// What is said of a connection: what the peer accepts is what we may have in flight, and the reverse.
fn of_request(request: &Request) -> RdmaConnParam {
    RdmaConnParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: request.initiator_depth,
        initiator_depth: request.responder_resources,
        flow_control: u8::from(request.flow_control),
        retry_count: request.retry_count,
        rnr_retry_count: request.rnr_retry,
        srq: u8::from(request.has_srq),
        qp_num: request.qpn.value(),
    }
}

fn of_reply(reply: &Reply) -> RdmaConnParam {
    RdmaConnParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: u8::from(reply.flow_control),
        retry_count: 0,
        rnr_retry_count: reply.rnr_retry,
        srq: u8::from(reply.has_srq),
        qp_num: reply.qpn.value(),
    }
}

impl Routes {
    fn connection(&self, id: Id) -> Option<*const RdmaCmId> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.get(&id).map(|id| *id as *const RdmaCmId)
    }

    fn listener(&self, listener: Listener) -> Option<*const RdmaCmId> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.get(&listener).map(|id| *id as *const RdmaCmId)
    }

    pub fn forget(&self, id: Id) {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Passes an event to its identifier's channel. The manager's thread calls it.
    fn dispatch(&self, event: CmEvent) {
        let CmEvent { id, kind } = event;
        let (listener, asked) = match kind {
            EventKind::Requested { listener, addresses, request } => (
                listener,
                Asked {
                    addresses,
                    peer: id::Peer::of_request(&request),
                    private_data: request.private_data.to_vec(),
                    param: Param::Connection(of_request(&request)),
                },
            ),
            EventKind::Asked { listener, addresses, request } => (
                listener,
                Asked {
                    addresses,
                    peer: id::Peer::default(),
                    private_data: request.private_data.to_vec(),
                    param: id::datagrams(0, 0),
                },
            ),
            kind => return self.report(id, kind),
        };
        let child = self.host.get().and_then(Weak::upgrade).zip(self.listener(listener));
        let made = child.and_then(|(host, listen)| id::child(&host, listen, id, asked).ok());
        if made.is_none()
            && let Some(host) = self.host.get().and_then(Weak::upgrade)
        {
            // The listener is gone.
            let _ = host.manager.with(|manager, now| manager.close(now, id));
        }
    }

    /// What happened to a connection that has an identifier.
    fn report(&self, id: Id, kind: EventKind) {
        let Some(pointer) = self.connection(id) else { return };
        let mut pending = Pending::new(pointer, Kind::Established);
        let mut is_gone = false;
        match kind {
            EventKind::Accepted(reply) => {
                pending.kind = Kind::ConnectResponse;
                pending.param = Param::Connection(of_reply(&reply));
                pending.private_data = reply.private_data.to_vec();
                id::accepted(pointer, &reply);
            }
            EventKind::Established => {}
            EventKind::Rejected(reject) => {
                is_gone = true;
                let Reject { reason, private_data, .. } = *reject;
                pending.kind = Kind::Rejected;
                pending.status = i32::from(reason.0);
                pending.param = Param::Connection(id::no_param());
                pending.private_data = private_data.to_vec();
            }
            EventKind::Unreachable => {
                is_gone = true;
                pending.kind = Kind::Unreachable;
                pending.status = -libc::ETIMEDOUT;
            }
            EventKind::Disconnected => pending.kind = Kind::Disconnected,
            EventKind::TimeWaitOver => {
                is_gone = true;
                pending.kind = Kind::TimeWaitExit;
            }
            EventKind::Answered(reply) => {
                is_gone = true;
                if reply.status == DatagramStatus::SUCCESS {
                    pending.param = id::service(pointer, reply.qpn.value(), reply.q_key.0);
                    pending.private_data = reply.private_data.to_vec();
                } else {
                    pending.kind = Kind::Unreachable;
                    pending.status = i32::from(reply.status.0);
                }
            }
            EventKind::Requested { .. } | EventKind::Asked { .. } => return,
        }
        if is_gone {
            self.forget(id);
        }
        id::push(pending);
    }
}

/// Ends what the program has not ended: its peers shall know. Says what was counted, if asked to.
pub(crate) fn close_all() {
    let hosts = Host::all();
    for host in &hosts {
        let open: Vec<Id> = {
            let connections = host.routes.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.keys().copied().collect()
        };
        let _ = host.manager.with(|manager, now| open.into_iter().for_each(|id| manager.close(now, id)));
    }
    let mut looks = 0;
    while looks * EXIT_LOOK < EXIT_PATIENCE
        && hosts.iter().any(|host| host.manager.with(|manager, _| manager.is_disconnecting()) == Ok(true))
    {
        #[allow(clippy::disallowed_methods, reason = "the program has ended: there is nothing to wait with")]
        std::thread::sleep(EXIT_LOOK);
        looks += 1;
        if looks.is_multiple_of(EXIT_TELL) {
            hosts.iter().for_each(|host| _ = host.manager.with(|manager, _| manager.repeat_ends()));
        }
    }
    for host in hosts {
        trace_counters(&host.opened.context.device().name, || host.manager.counters());
    }
}

pub(crate) fn before_fork() {
    OPENING.take();
    HOSTS.take();
}

/// In a child no device is open; what was stays as it is, since it is the parent's.
pub(crate) fn after_fork(is_child: bool) {
    if is_child {
        // SAFETY: we hold the lock, and a vector of nothing takes the old one's place, which is forgotten.
        unsafe { HOSTS.peek().write(Vec::new()) };
    }
    // SAFETY: `before_fork` took both.
    unsafe {
        HOSTS.give_back();
        OPENING.give_back();
    }
}
