//! One endpoint, connected to a peer that consists of the frames that a test makes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use uroce::congestion::CongestionControl;
use uroce::frame::FrameBytes;
use uroce::memory::{Access, HostMemory, Pd, WindowBinding, WindowKind};
use uroce::time::Instant;
use uroce::transport::{
    Completion, CompletionRing, Counters, Data, Endpoint, Event, QpAttributes, ReceiveRequest, RecoveryMode,
    RecoverySettings, SendOperation, SendRequest, Service, Sge, State,
};
use uroce::wire::{
    AcknowledgeTrailer, Aeth, Body, Bth, Extension, Flow, Headers, Hello, Key, Msn, Opcode, Packet, PathMtu, Psn, Qpn,
    RnrTimer, RoceFrame, Syndrome, Tagged,
};

use super::{Host, Peering, flow, path, queue_pair, with_ethernet};

/// The address of the endpoint.
pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// The address of the peer.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The number of the peer's queue pair.
pub const PEER_QPN: Qpn = Qpn::new(0x00be_ef11);

/// The peer's nonce, which the endpoint's tags must return.
pub const PEER_NONCE: u32 = 0x5eed_0001;

/// The first PSN of both directions: four before the wrap.
pub const FIRST_PSN: Psn = Psn::new(0xff_fffc);

/// The number of READs and atomics that the peer can have outstanding.
pub const RD_ATOMIC: u8 = 4;

/// The byte that fills memory which must not be written.
const GUARD: u8 = 0xe7;

/// The path MTU of the connection.
pub const MTU: PathMtu = PathMtu::Mtu256;

/// The number of requests that each work queue holds.
const REQUESTS: usize = 64;

/// The PSN that is `number` after the first one.
pub fn psn(number: u32) -> Psn {
    FIRST_PSN.plus(number)
}

/// A packet that the endpoint sent, after all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The opcode of the packet.
    pub opcode: Opcode,
    /// The PSN of the packet.
    pub psn: Psn,
    /// The syndrome of the acknowledge extended transport header; `None` without one.
    pub syndrome: Option<Syndrome>,
    /// The length of the payload, in bytes.
    pub payload_bytes: usize,
}

/// One endpoint, connected to a peer that consists of the frames that a test makes.
pub struct Crafted {
    /// The current virtual time.
    pub now: Instant,
    /// The endpoint under test.
    pub endpoint: Endpoint,
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// The key of the region that the peer can access.
    pub key: Key,
    /// The protection domain of the queue pair.
    pub pd: Pd,
    /// The queue for all completions.
    pub cq: Arc<CompletionRing>,
    /// The memory of the region.
    pub memory: Arc<HostMemory>,
    /// A region that is registered for the peer too, but in another protection domain, and its key.
    pub foreign: (Arc<HostMemory>, Key),
    /// A region that is registered without remote access, and its key.
    pub private: (Arc<HostMemory>, Key),
    /// The tag at the end of the peer's extended packets; 0 while the peer does not know our nonce.
    pub tag: u32,
    /// The window in the peer's hellos: its upper bound on packets in flight.
    pub window: u32,
    /// Whether the peer's hellos say that requests to it may carry acknowledges.
    pub takes_carried: bool,
    /// Whether they say that requests to it may have room for telemetry.
    pub takes_telemetry: bool,
    /// The hellos that the endpoint sent, and their tags.
    pub hellos: Vec<(Hello, u32)>,
}

impl Crafted {
    /// Length of the region in bytes; not a whole number of pages, so that the rest of the last page can be watched.
    pub const BYTES: usize = 5000;
    const PAGES_BYTES: usize = 8192;

    /// An endpoint with the given recovery that allows the peer all operations.
    pub fn new(recovery: RecoveryMode) -> Crafted {
        Crafted::with_access(ALL, recovery)
    }

    /// An endpoint whose queue pair allows the peer `access`.
    pub fn with_access(access: Access, recovery: RecoveryMode) -> Crafted {
        Crafted::with(access, RecoverySettings { recovery, ..RecoverySettings::default() })
    }

    /// An endpoint whose queue pair allows the peer `access`, with these recovery settings.
    pub fn with(access: Access, recovery: RecoverySettings) -> Crafted {
        Crafted::with_queue(access, recovery, CompletionRing::new(4096, || {}))
    }

    /// An endpoint whose completions all go to `cq`. Its time stands, unless a test moves it, so no congestion controller
    /// can learn from it: there is none.
    pub fn with_queue(access: Access, recovery: RecoverySettings, cq: CompletionRing) -> Crafted {
        Crafted::controlled(access, RecoverySettings { congestion: CongestionControl::Fixed, ..recovery }, cq)
    }

    /// The same with the congestion controller of the settings.
    pub fn controlled(access: Access, recovery: RecoverySettings, cq: CompletionRing) -> Crafted {
        let guarded = || {
            let memory = Arc::new(HostMemory::new(Self::BYTES).unwrap());
            memory.write(0, &[GUARD; Self::BYTES]);
            // SAFETY: the mapping is of whole pages, and nothing else uses it yet.
            unsafe { memory.as_ptr().add(Self::BYTES).write_bytes(GUARD, Self::PAGES_BYTES - Self::BYTES) };
            memory
        };
        let mut host = Host::new(7, recovery, guarded(), ALL, cq);
        let other_pd = host.endpoint.allocate_pd();
        let [foreign, private] = [(other_pd, ALL), (host.pd, Access::LOCAL_WRITE)].map(|(pd, access)| {
            let memory = guarded();
            let key = host.endpoint.memory().register(pd, memory.clone(), access);
            (memory, key)
        });
        let Host { mut endpoint, pd, memory, key, cq } = host;
        let qpn = Crafted::connect(&mut endpoint, pd, &cq, access);
        let window = RecoverySettings::MAX_WINDOW;
        let (now, hellos) = (Instant::ZERO, Vec::new());
        Crafted {
            now,
            endpoint,
            qpn,
            key,
            pd,
            cq,
            memory,
            foreign,
            private,
            tag: 0,
            window,
            takes_carried: false,
            takes_telemetry: false,
            hellos,
        }
    }

    /// Creates a further queue pair, connected to the same one of the peer.
    pub fn another_queue_pair(&mut self) -> Qpn {
        Crafted::connect(&mut self.endpoint, self.pd, &self.cq, ALL)
    }

    fn connect(endpoint: &mut Endpoint, pd: Pd, cq: &Arc<CompletionRing>, access: Access) -> Qpn {
        let init = queue_pair(Service::Rc, pd, [REQUESTS; 2], cq, PathMtu::Mtu1024);
        let qpn = endpoint.create_queue_pair(init).unwrap();
        Crafted::peering(access).connect(endpoint, Instant::ZERO, qpn);
        qpn
    }

    /// Takes the queue pair, which was reset, to ready to send again.
    pub fn reconnect(&mut self) {
        self.get_ready_to_receive();
        self.get_ready_to_send();
    }

    /// Takes the queue pair from RESET to ready to receive.
    pub fn get_ready_to_receive(&mut self) {
        let [init, receive, _] = Crafted::peering(ALL).steps();
        for attributes in [init, receive] {
            self.endpoint.modify(self.now, self.qpn, &attributes).unwrap();
        }
    }

    /// Takes the queue pair from ready to receive to ready to send.
    pub fn get_ready_to_send(&mut self) {
        let [_, _, send] = Crafted::peering(ALL).steps();
        self.endpoint.modify(self.now, self.qpn, &send).unwrap();
    }

    fn peering(access: Access) -> Peering {
        Peering {
            access,
            path_mtu: MTU,
            send_psn: FIRST_PSN,
            receive_psn: FIRST_PSN,
            rd_atomic: RD_ATOMIC,
            rnr_timer: RnrTimer::new(1),
            timeout: 8,
            ..Peering::new(path(US, PEER, 0), PEER_QPN)
        }
    }

    /// Changes the state of the queue pair, as its program does.
    pub fn modify(&mut self, state: State) {
        let attributes = QpAttributes { state: Some(state), ..Default::default() };
        self.endpoint.modify(self.now, self.qpn, &attributes).unwrap();
    }

    /// The address of the byte at `offset` of the region.
    pub fn at(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }

    /// Posts a receive request for a range of the region.
    pub fn post_receive(&mut self, wr_id: u64, offset: usize, length: u32) {
        let sges = [Sge { address: self.at(offset), length, lkey: self.key }].into_iter().collect();
        self.endpoint.post_receive(self.now, self.qpn, ReceiveRequest { wr_id, sges }).unwrap();
    }

    /// Posts a send request with a range of the region.
    pub fn post_send(&mut self, wr_id: u64, operation: SendOperation, offset: usize, length: u32) {
        let data = Data::sge(self.at(offset), length, self.key);
        self.endpoint.post_send(self.now, self.qpn, SendRequest::new(wr_id, operation, data)).unwrap();
    }

    /// Binds a type 2 window to a range of the region, and returns its key.
    pub fn bind_window(&mut self, offset: usize, len: usize, access: Access) -> Key {
        let window = self.endpoint.memory().allocate_window(self.pd, WindowKind::Two);
        let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
        let (region, address) = (self.key, self.at(offset));
        let binding = WindowBinding { window, new_key, region, address, len: len as u64, access };
        let request = SendRequest::new(900, SendOperation::BindWindow(binding), Data::EMPTY);
        self.endpoint.post_send(self.now, self.qpn, request).unwrap();
        assert_eq!(self.answers(), []);
        assert_eq!(self.completion().map(|c| c.wr_id), Some(900));
        new_key
    }

    /// Exchanges hellos with the endpoint (docs/EXTENSIONS.md): from now on the peer's extended packets have the right
    /// tag.
    pub fn get_acquainted(&mut self) {
        self.hello_from_peer(Tagged::None);
        assert_eq!(self.answers(), []);
        let (hello, tag) = self.hellos.pop().expect("a hello is answered");
        assert_eq!((tag, hello.tagged), (PEER_NONCE, Tagged::None), "to the peer, as whom we do not know");
        self.tag = hello.nonce;
        self.hello_from_peer(Tagged::From(FIRST_PSN));
        assert!(self.endpoint.queue_pair(self.qpn).unwrap().is_extended());
    }

    /// Hands over a hello from the peer, in an acknowledge of no request.
    pub fn hello_from_peer(&mut self, tagged: Tagged) {
        self.hello_with_psn(FIRST_PSN.minus(1), tagged);
    }

    /// Hands over a hello from the peer, in an acknowledge of `psn`.
    pub fn hello_with_psn(&mut self, psn: Psn, tagged: Tagged) {
        let (takes_carried, takes_telemetry) = (self.takes_carried, self.takes_telemetry);
        let hello = Hello { nonce: PEER_NONCE, window: self.window, takes_carried, takes_telemetry, tagged };
        let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(0)));
        let bth = self.bth(Opcode::RC_ACKNOWLEDGE, psn).with_offer(true).with_extended(true);
        let frame = self.extended_frame(bth, aeth, &[], &hello.to_bytes());
        self.hand_over(&frame);
    }

    /// The base transport header of a request or response to the endpoint.
    pub fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth::new(opcode, self.qpn, psn)
    }

    /// The Ethernet frame of a packet from the peer, with the right ICRC.
    pub fn frame(&self, bth: Bth, extension: Extension, payload: &[u8]) -> Vec<u8> {
        self.extended_frame(bth, extension, payload, &[])
    }

    /// The Ethernet frame of a packet with a trailer, and with the tag if the packet is extended.
    pub fn extended_frame(&self, bth: Bth, extension: Extension, payload: &[u8], trailer: &[u8]) -> Vec<u8> {
        self.frame_along(&flow(PEER, US), bth, extension, payload, &self.with_tag(bth, trailer))
    }

    /// The Ethernet frame of an extended packet without the tag.
    pub fn frame_without_tag(&self, bth: Bth, extension: Extension) -> Vec<u8> {
        self.frame_along(&flow(PEER, US), bth, extension, &[], &[])
    }

    /// The trailer, followed by the tag if the packet is extended.
    pub fn with_tag(&self, bth: Bth, trailer: &[u8]) -> Vec<u8> {
        let tag = self.tag.to_be_bytes();
        [trailer, if bth.extended() { &tag } else { &[] }].concat()
    }

    /// The Ethernet frame of a packet with any outer headers, and with `end` between payload and ICRC.
    pub fn frame_along(&self, flow: &Flow, bth: Bth, extension: Extension, payload: &[u8], end: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 8192];
        let fill = |out: &mut [u8]| {
            out.copy_from_slice(payload);
            Ok::<(), std::convert::Infallible>(())
        };
        let headers = Headers { bth, extension };
        let body = Body { payload_bytes: payload.len(), trailer: end, tag: None };
        let len = headers.write(&mut packet, flow, 1, body, fill).unwrap();
        with_ethernet(&packet[..len])
    }

    /// Hands over a frame without changes.
    pub fn hand_over(&mut self, frame: &[u8]) {
        self.endpoint.handle_frame(self.now, FrameBytes::from(frame));
    }

    /// Hands over a frame without changes, and returns the endpoint's packets.
    pub fn take(&mut self, frame: &[u8]) -> Vec<Response> {
        self.hand_over(frame);
        self.answers()
    }

    /// Hands over a packet with the right ICRC, and returns the endpoint's packets.
    pub fn send(&mut self, bth: Bth, extension: Extension, payload: &[u8]) -> Vec<Response> {
        let frame = self.frame(bth, extension, payload);
        self.take(&frame)
    }

    /// Takes all packets that the endpoint sends, except hellos, and checks them.
    pub fn answers(&mut self) -> Vec<Response> {
        let mut answers = Vec::new();
        for frame in self.frames() {
            let roce = RoceFrame::parse(FrameBytes::from(&frame[..])).expect("what is sent is RoCE");
            assert!(roce.icrc_ok() && roce.ip.checksum_ok());
            let packet = without_tag(&Packet::parse(roce.ib).expect("what is sent is a packet"));
            assert_eq!(packet.bth().destination(), PEER_QPN);
            answers.push(Response {
                opcode: packet.bth().opcode(),
                psn: packet.bth().psn(),
                syndrome: packet.aeth().map(|aeth| aeth.syndrome()),
                payload_bytes: packet.payload().len(),
            });
        }
        answers
    }

    /// Takes all packets that the endpoint sends, as Ethernet frames. Hellos are kept apart.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut packet = vec![0; 8192];
        let mut frames = Vec::new();
        while let Some(transmit) = self.endpoint.poll_transmit(self.now, &mut packet) {
            let frame = with_ethernet(&packet[..transmit.len]);
            let roce = RoceFrame::parse(FrameBytes::from(&frame[..])).expect("what is sent is RoCE");
            let sent = Packet::parse(roce.ib).expect("what is sent is a packet").split_tag();
            let hello = sent.and_then(|(packet, tag)| match packet.acknowledge_trailer()? {
                AcknowledgeTrailer::Hello(hello) => Some((hello, tag)),
                _ => None,
            });
            match hello {
                Some(hello) => self.hellos.push(hello),
                None => frames.push(frame),
            }
        }
        frames
    }

    /// The next completion; `None` when there is none.
    pub fn completion(&mut self) -> Option<Completion> {
        self.cq.poll()
    }

    /// The state of the queue pair.
    pub fn state(&self) -> State {
        self.endpoint.queue_pair(self.qpn).unwrap().state()
    }

    /// The next event; `None` when there is none.
    pub fn event(&mut self) -> Option<Event> {
        self.endpoint.poll_event()
    }

    /// The counters of the endpoint.
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// Panics when memory outside of `touched` (a range of the region) has changed.
    pub fn assert_untouched_but(&self, touched: std::ops::Range<usize>, what: &str) {
        let own = self.memory.to_vec(0, Self::BYTES);
        let wrong = (0..Self::BYTES).find(|i| own[*i] != GUARD && !touched.contains(i));
        assert_eq!(wrong, None, "{what}: a byte of the region was written");
        for (name, memory) in [("own", &self.memory), ("foreign", &self.foreign.0), ("private", &self.private.0)] {
            let from = if name == "own" { Self::BYTES } else { 0 };
            // SAFETY: the mapping is of whole pages, and the endpoint, its only other writer, is not running.
            let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr().add(from), Self::PAGES_BYTES - from) };
            assert!(bytes.iter().all(|byte| *byte == GUARD), "{what}: memory was written that is {name}");
        }
    }

    /// Panics when any memory has changed.
    pub fn assert_untouched(&self, what: &str) {
        self.assert_untouched_but(0..0, what);
    }
}

/// All operations that a peer can be allowed.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT)
    .union(Access::MW_BIND);

/// The packet without the tag at the end of extended ones.
pub fn without_tag<'a>(packet: &Packet<'a>) -> Packet<'a> {
    packet.split_tag().map_or(*packet, |(packet, _)| packet)
}

/// The expected acknowledge without payload.
pub fn acknowledge(psn: Psn, syndrome: Syndrome) -> Response {
    Response { opcode: Opcode::RC_ACKNOWLEDGE, psn, syndrome: Some(syndrome), payload_bytes: 0 }
}
