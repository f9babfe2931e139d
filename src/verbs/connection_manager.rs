use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Forked;
use crate::cm::{CmEvent, InUse, Listener, MAD_BYTES, Mad, Manager, Outgoing, ServiceId};
use crate::engine::{EventFd, thread};
use crate::link::Requests;
use crate::link::udp::RefusalProbe;
use crate::memory::{Access, MapError};
use crate::time::Instant;
use crate::transport::{
    Capabilities, Completion, CreateError, Data, Destination, InlineBytes, ModifyError, Notify, QpAttributes,
    ReceiveRequest, SendOperation, SendRequest, Service, State, Status,
};
use crate::wire::{Bth, Deth, Extension, Flow, Headers, Opcode, Psn, QKey, Qpn};

use super::address_vector::gid_of_address;
use super::{
    AddressVector, CompletionChannel, CompletionQueue, Context, MemoryRegion, QueuePair, QueuePairOptions,
    ROUTING_HEADER_BYTES,
};

/// A device's connection manager (IBTA 12): [`cm::Manager`](Manager), over the device's QP1.
///
/// It makes and ends connections with peers that use RDMA CM: kernels, RNICs, and other programs on this library. The
/// program moves its queue pairs itself.
///
/// A thread of its own, which blocks signals as the engine's does, takes what comes to QP1, retransmits, and reports
/// events. A device has one QP1, and so at most one connection manager at a time.
#[derive(Debug)]
pub struct ConnectionManager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    manager: Mutex<Manager>,
    qp: QueuePair,
    completions: CompletionQueue,
    arrived: CompletionChannel,
    /// Has buffers for [`RECEIVES`] datagrams.
    buffers: MemoryRegion,
    wake: EventFd,
    is_ending: AtomicBool,
    /// One on each of our addresses that has one.
    probes: Vec<RefusalProbe>,
}

/// Why there is no connection manager.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionManagerError {
    /// QP1 was not created: [`CreateError::GsiInUse`] when there is a connection manager.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// QP1 cannot be used.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// There is no memory for messages.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The kernel gives no thread or descriptor.
    #[error("the kernel gives the connection manager no thread or descriptor: {0}")]
    Thread(#[from] io::Error),
}

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// This program, or another on the device, listens for the service already.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// The device was opened by a parent of this process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Several programs share the device, and what decides between them is gone.
    #[error("what shares the device among programs does not answer: {0}")]
    Arbiter(#[source] io::Error),
}

/// The Q_Key of QP1 (IBTA 10.2.5).
const GSI_Q_KEY: QKey = QKey(0x8001_0000);

/// Receive requests of QP1: messages that may arrive while the thread is off the processor. More are dropped, and sent
/// again by their peers.
const RECEIVES: usize = 512;

/// Send requests of QP1 at a time.
const SENDS: usize = 1024;

/// The bytes of a receive request.
const BUFFER_BYTES: usize = ROUTING_HEADER_BYTES + MAD_BYTES;

/// Upper bound on the thread's sleep, whatever the timers: lost wake-ups end here.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl ConnectionManager {
    /// Opens QP1 of a device. The manager's thread calls `on_event` with each event; it may call everything but
    /// must not drop the manager.
    ///
    /// # Errors
    /// [`ConnectionManagerError`] when the device's QP1 is in use, or the kernel gives no memory, thread or descriptor.
    pub fn start(
        context: &Context,
        on_event: impl Fn(CmEvent) + Send + 'static,
    ) -> Result<ConnectionManager, ConnectionManagerError> {
        let context = context.share();
        let pd = context.allocate_pd();
        let arrived = CompletionChannel::new()?;
        let completions = context.create_completion_queue_on(SENDS + RECEIVES, &arrived);
        let capabilities = Capabilities { max_send_requests: SENDS, max_receive_requests: RECEIVES };
        let options = QueuePairOptions { capabilities, ..QueuePairOptions::new(Service::Gsi, &completions) };
        let qp = pd.create_queue_pair(&options)?;
        let buffers = pd.allocate_region(RECEIVES * BUFFER_BYTES, Access::LOCAL_WRITE)?;
        let attributes =
            QpAttributes { q_key: Some(GSI_Q_KEY), send_psn: Some(context.random_psn()), ..QpAttributes::default() };
        for step in attributes.steps(Service::Gsi, State::Reset) {
            qp.modify(&step)?;
        }
        // Whoever shares the device rejects what nobody listens for. If none does, nobody answers.
        let _ = context.engine().with(|core, _| core.link.take_requests(Requests::Unclaimed));
        let (slot, seed) = context.random_ids();
        let manager = Manager::new(context.device().guid(), slot, seed);
        // Where an address has none, connections to nobody end with their retries.
        let index = context.device().index;
        let probes = context.gids().iter().filter_map(|gid| RefusalProbe::open(gid.ip(), index).ok()).collect();
        let shared = Arc::new(Shared {
            context,
            manager: Mutex::new(manager),
            qp,
            completions,
            arrived,
            buffers,
            wake: EventFd::new()?,
            is_ending: AtomicBool::new(false),
            probes,
        });
        shared.post_receives(0..RECEIVES);
        let thread = {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("uroce-cm".to_owned());
            thread::start(builder, move || shared.run(&on_event))?
        };
        Ok(ConnectionManager { shared, thread: Some(thread) })
    }

    /// Runs `work` with the manager, and sends what it wants to send. The time is the engine's.
    ///
    /// # Errors
    /// [`Forked`] in a child of the process that opened the device.
    pub fn with<T>(&self, work: impl FnOnce(&mut Manager, Instant) -> T) -> Result<T, Forked> {
        if self.shared.context.engine().is_forked() {
            return Err(Forked);
        }
        let result = self.shared.with(work);
        // There may be an event, or an earlier timer.
        self.shared.wake.signal();
        Ok(result)
    }

    /// Listens for a service, as [`Manager::listen`], among all programs that share the device.
    ///
    /// # Errors
    /// [`ListenError::InUse`] when some program listens for the service at that address; [`ListenError::Arbiter`] when
    /// nobody decides; [`ListenError::Forked`] in a child of the process that opened the device.
    pub fn listen(
        &self,
        service_id: ServiceId,
        address: Option<IpAddr>,
        backlog: usize,
    ) -> Result<Listener, ListenError> {
        // Ours go first: the other programs need not know of what cannot be.
        let listener = self.with(|manager, now| manager.listen(now, service_id, address, backlog))??;
        let requests = Requests::For { service_id: service_id.0, address };
        self.shared.context.engine().with(|core, _| core.link.take_requests(requests)).map_err(|error| {
            let _ = self.with(|manager, now| manager.unlisten(now, listener));
            match error.kind() {
                io::ErrorKind::AddrInUse => ListenError::InUse(InUse(service_id)),
                _ => ListenError::Arbiter(error),
            }
        })?;
        Ok(listener)
    }

    /// Ends a listener, as [`Manager::unlisten`]. In a child of the process that opened the device it does nothing.
    pub fn unlisten(&self, listener: Listener) {
        if let Ok(Some((service_id, address))) = self.with(|manager, now| manager.unlisten(now, listener)) {
            let requests = Requests::For { service_id: service_id.0, address };
            self.shared.context.engine().with(|core, _| core.link.leave_requests(requests));
        }
    }

    /// All counters of the manager, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.with(|manager, _| manager.counters().list().collect()).unwrap_or_default()
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        if self.shared.context.engine().is_forked() {
            // The thread is the parent's.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
        self.shared.context.engine().with(|core, _| core.link.leave_requests(Requests::Unclaimed));
    }
}

impl Shared {
    fn with<T>(&self, work: impl FnOnce(&mut Manager, Instant) -> T) -> T {
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut manager, self.context.now());
        let outgoing: Vec<Outgoing> = std::iter::from_fn(|| manager.poll_transmit()).collect();
        drop(manager);
        outgoing.into_iter().for_each(|outgoing| self.send(&outgoing));
        result
    }

    fn run(&self, on_event: &dyn Fn(CmEvent)) {
        while !self.is_ending.load(Ordering::Acquire) {
            self.completions.request_notification(Notify::Next);
            while let Some(completion) = self.completions.poll() {
                self.take(&completion);
            }
            let sleep = self.with(|manager, now| {
                manager.handle_timeout(now);
                manager.poll_timeout().map_or(LONGEST_SLEEP, |at| at.saturating_since(now).min(LONGEST_SLEEP))
            });
            let mut had_events = false;
            while let Some(event) = self.with(|manager, _| manager.poll_event()) {
                on_event(event);
                had_events = true;
            }
            if !had_events {
                let probes = self.probes.iter().map(AsRawFd::as_raw_fd);
                let descriptors: Vec<RawFd> = probes.chain([self.arrived.as_fd().as_raw_fd()]).collect();
                self.wake.wait(&descriptors, sleep);
            }
            for peer in self.probes.iter().flat_map(|probe| std::iter::from_fn(|| probe.refused())) {
                self.with(|manager, now| manager.handle_refusal(now, peer));
            }
            // Takes what was signalled; nobody else waits there.
            let _ = self.arrived.wait(Duration::ZERO);
        }
    }

    /// Takes a datagram, and posts its buffer again.
    fn take(&self, completion: &Completion) {
        if completion.qpn != self.qp.qpn() || completion.status != Status::Success {
            return;
        }
        let index = completion.wr_id as usize;
        let at = index * BUFFER_BYTES;
        let mut header = [0; ROUTING_HEADER_BYTES];
        self.buffers.memory().read(at, &mut header);
        let len = (completion.byte_len as usize).saturating_sub(ROUTING_HEADER_BYTES);
        let payload = self.buffers.memory().to_vec(at + ROUTING_HEADER_BYTES, len);
        self.post_receives(index..index + 1);
        // What does not come from a QP1 is nobody's (IBTA 13.5.1).
        if completion.source_qpn != Qpn::GSI {
            return;
        }
        let Some(addresses) = self.context.sender_addresses(&header) else { return };
        self.with(|manager, now| manager.handle_datagram(now, addresses, &payload));
    }

    fn post_receives(&self, indices: std::ops::Range<usize>) {
        let request =
            |index: usize| ReceiveRequest::new(index as u64, [self.buffers.sge(index * BUFFER_BYTES, BUFFER_BYTES)]);
        // As many as the queue holds are never refused.
        let _ = self.qp.post_receives(indices.map(request));
    }

    /// Sends a message. One that cannot be sent is lost, as the network loses some: it is sent again.
    fn send(&self, outgoing: &Outgoing) {
        let Some(vector) = self.vector(outgoing) else { return };
        let Ok(path) = self.context.address_handle(&vector, Qpn::GSI) else { return };
        let mut bytes = InlineBytes::new();
        bytes.extend(&outgoing.mad, None).expect("a datagram fits into a request");
        let request = SendRequest {
            signaled: false,
            destination: Some(Destination { path, qpn: Qpn::GSI, q_key: GSI_Q_KEY }),
            ..SendRequest::new(0, SendOperation::Send, Data::Inline(bytes))
        };
        // First: a kernel refuses only a few datagrams a second.
        self.ask_for_a_refusal(outgoing);
        let _ = self.qp.post_send(request);
    }

    /// Has the peer's kernel say whether nobody receives RoCE there, when that matters: by a datagram that every connection
    /// manager ignores, since RNICs take only what is valid away from their host's kernel.
    fn ask_for_a_refusal(&self, outgoing: &Outgoing) {
        let addresses = outgoing.addresses;
        let Some(probe) = self.probes.iter().find(|probe| probe.address() == addresses.source()) else { return };
        if !outgoing.may_be_refused {
            return;
        }
        let flow = Flow { addresses, source_port: probe.port(), traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let headers = Headers {
            bth: Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::default()),
            extension: Extension::Deth(Deth::new(GSI_Q_KEY, Qpn::GSI)),
        };
        let mut packet = [0; MAD_BYTES + 128];
        let written = headers.write(&mut packet, &flow, 0, MAD_BYTES, |payload| {
            payload.copy_from_slice(&Mad::of_no_meaning());
            Ok::<_, ()>(())
        });
        if let Ok(len) = written {
            probe.ask(addresses.destination(), &packet[flow.header_bytes()..len]);
        }
    }

    fn vector(&self, outgoing: &Outgoing) -> Option<AddressVector> {
        let (own, peer) = (outgoing.addresses.source(), outgoing.addresses.destination());
        Some(AddressVector {
            source_gid_index: self.context.gids().iter().position(|gid| gid.ip() == own)?,
            destination_gid: gid_of_address(peer),
            traffic_class: outgoing.traffic_class,
            hop_limit: 0,
            flow_label: 0,
        })
    }
}
