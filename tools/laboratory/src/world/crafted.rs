//! One endpoint, connected to a peer that is nothing but the frames a test makes.

use std::net::Ipv4Addr;
use std::sync::Arc;

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

/// Our own address.
pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// The peer's address.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The peer's queue pair.
pub const PEER_QPN: Qpn = Qpn::new(0x00be_ef11);

/// What the peer wants brought back.
pub const PEER_NONCE: u32 = 0x5eed_0001;

/// The first PSN of both directions: they wrap soon.
pub const FIRST_PSN: Psn = Psn::new(0xff_fffc);

/// READs and atomics that the peer may have outstanding.
pub const RD_ATOMIC: u8 = 4;

/// What memory that nobody may touch holds.
const GUARD: u8 = 0xe7;

/// The path MTU.
pub const MTU: PathMtu = PathMtu::Mtu256;

/// Requests that each work queue holds.
const REQUESTS: usize = 64;

/// PSN number `number`, from the first one on.
pub fn psn(number: u32) -> Psn {
    FIRST_PSN.plus(number)
}

/// An answer of the endpoint, all of whose checks have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// What it is.
    pub opcode: Opcode,
    /// Its PSN.
    pub psn: Psn,
    /// What it says, in an acknowledge extended transport header.
    pub syndrome: Option<Syndrome>,
    /// Bytes that it brings.
    pub payload_bytes: usize,
}

/// One endpoint, connected to a peer that is nothing but the frames that a test makes.
pub struct Crafted {
    /// The time.
    pub now: Instant,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The key of the region that the peer may use.
    pub key: Key,
    /// The domain of the queue pair.
    pub pd: Pd,
    /// Where all completions go.
    pub cq: Arc<CompletionRing>,
    /// The region.
    pub memory: Arc<HostMemory>,
    /// A region that is registered for the peer too, but in another protection domain, and its key.
    pub foreign: (Arc<HostMemory>, Key),
    /// A region that is registered without remote access, and its key.
    pub private: (Arc<HostMemory>, Key),
    /// What ends extended packets from the peer; 0 while it does not know our nonce.
    pub tag: u32,
    /// What the peer's hellos say that it has in flight at the most.
    pub window: u32,
    /// Hellos that were sent, and their tags.
    pub hellos: Vec<(Hello, u32)>,
}

impl Crafted {
    /// Bytes of the region; not a whole number of pages, so that what follows in the last page can be watched.
    pub const BYTES: usize = 5000;
    const PAGES_BYTES: usize = 8192;

    /// One that recovers in that way and allows the peer everything.
    pub fn new(recovery: RecoveryMode) -> Crafted {
        Crafted::with_access(ALL, recovery)
    }

    /// One whose queue pair allows the peer `access`.
    pub fn with_access(access: Access, recovery: RecoveryMode) -> Crafted {
        Crafted::with(access, RecoverySettings { recovery, ..RecoverySettings::default() })
    }

    /// One with these settings.
    pub fn with(access: Access, recovery: RecoverySettings) -> Crafted {
        Crafted::with_queue(access, recovery, CompletionRing::new(4096, || {}))
    }

    /// One all of whose completions go to `cq`.
    pub fn with_queue(access: Access, recovery: RecoverySettings, cq: CompletionRing) -> Crafted {
        let guarded = || {
            let memory = Arc::new(HostMemory::new(Self::BYTES).unwrap());
            memory.write(0, &[GUARD; Self::BYTES]);
            // SAFETY: the mapping is of whole pages, and nobody else knows of it yet.
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
        Crafted { now, endpoint, qpn, key, pd, cq, memory, foreign, private, tag: 0, window, hellos }
    }

    /// A further queue pair, connected to the same one of the peer.
    pub fn another_queue_pair(&mut self) -> Qpn {
        Crafted::connect(&mut self.endpoint, self.pd, &self.cq, ALL)
    }

    fn connect(endpoint: &mut Endpoint, pd: Pd, cq: &Arc<CompletionRing>, access: Access) -> Qpn {
        let init = queue_pair(Service::Rc, pd, [REQUESTS; 2], cq, PathMtu::Mtu1024);
        let qpn = endpoint.create_queue_pair(init).unwrap();
        Crafted::peering(access).connect(endpoint, Instant::ZERO, qpn);
        qpn
    }

    /// Brings the queue pair, which was reset, up again.
    pub fn reconnect(&mut self) {
        self.get_ready_to_receive();
        self.get_ready_to_send();
    }

    /// The first steps of that.
    pub fn get_ready_to_receive(&mut self) {
        let [init, receive, _] = Crafted::peering(ALL).steps();
        for attributes in [init, receive] {
            self.endpoint.modify(self.now, self.qpn, &attributes).unwrap();
        }
    }

    /// The last one.
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

    /// Puts the queue pair into a state, as its program does.
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

    /// Binds a window over a range of the region, and returns its key.
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

    /// The peer and we get to know each other (docs/EXTENSIONS.md): from now on its extended packets have the right tag.
    pub fn get_acquainted(&mut self) {
        self.hello_from_peer(Tagged::None);
        assert_eq!(self.answers(), []);
        let (hello, tag) = self.hellos.pop().expect("a hello is answered");
        assert_eq!((tag, hello.tagged), (PEER_NONCE, Tagged::None), "to the peer, as whom we do not know");
        self.tag = hello.nonce;
        self.hello_from_peer(Tagged::From(FIRST_PSN));
        assert!(self.endpoint.queue_pair(self.qpn).unwrap().is_extended());
    }

    /// The peer says its nonce, in an acknowledge of nothing.
    pub fn hello_from_peer(&mut self, tagged: Tagged) {
        self.hello_with_psn(FIRST_PSN.minus(1), tagged);
    }

    /// The same in an acknowledge of that PSN.
    pub fn hello_with_psn(&mut self, psn: Psn, tagged: Tagged) {
        let hello = Hello { nonce: PEER_NONCE, window: self.window, tagged };
        let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(0)));
        let bth = self.bth(Opcode::RC_ACKNOWLEDGE, psn).with_offer(true).with_extended(true);
        let frame = self.extended_frame(bth, aeth, &[], &hello.to_bytes());
        self.hand_over(&frame);
    }

    /// A request's or response's base header, to us.
    pub fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth::new(opcode, self.qpn, psn)
    }

    /// The packet as an Ethernet frame from the peer, with the right ICRC.
    pub fn frame(&self, bth: Bth, extension: Extension, payload: &[u8]) -> Vec<u8> {
        self.extended_frame(bth, extension, payload, &[])
    }

    /// The same with a trailer, and with a tag if the packet is extended.
    pub fn extended_frame(&self, bth: Bth, extension: Extension, payload: &[u8], trailer: &[u8]) -> Vec<u8> {
        self.frame_along(&flow(PEER, US), bth, extension, payload, &self.with_tag(bth, trailer))
    }

    /// An extended packet that has none.
    pub fn frame_without_tag(&self, bth: Bth, extension: Extension) -> Vec<u8> {
        self.frame_along(&flow(PEER, US), bth, extension, &[], &[])
    }

    /// A trailer, with the tag behind it if the packet is extended.
    pub fn with_tag(&self, bth: Bth, trailer: &[u8]) -> Vec<u8> {
        let tag = self.tag.to_be_bytes();
        [trailer, if bth.extended() { &tag } else { &[] }].concat()
    }

    /// A packet with any outer headers, and with `end` between payload and ICRC.
    pub fn frame_along(&self, flow: &Flow, bth: Bth, extension: Extension, payload: &[u8], end: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 8192];
        let fill = |out: &mut [u8]| {
            out.copy_from_slice(payload);
            Ok::<(), std::convert::Infallible>(())
        };
        let headers = Headers { bth, extension };
        let len =
            headers.write(&mut packet, flow, 1, Body { payload_bytes: payload.len(), trailer: end }, fill).unwrap();
        with_ethernet(&packet[..len])
    }

    /// Hands over a frame, as it is.
    pub fn hand_over(&mut self, frame: &[u8]) {
        self.endpoint.handle_frame(self.now, FrameBytes::from(frame));
    }

    /// Hands over a frame, as it is, and returns the answers to it.
    pub fn take(&mut self, frame: &[u8]) -> Vec<Response> {
        self.hand_over(frame);
        self.answers()
    }

    /// Hands over a packet with the right ICRC and returns the answers to it.
    pub fn send(&mut self, bth: Bth, extension: Extension, payload: &[u8]) -> Vec<Response> {
        let frame = self.frame(bth, extension, payload);
        self.take(&frame)
    }

    /// Everything that the endpoint wants to send, checked.
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

    /// Everything that the endpoint wants to send, as Ethernet frames, but hellos, which are kept.
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

    /// The next completion.
    pub fn completion(&mut self) -> Option<Completion> {
        self.cq.poll()
    }

    /// The state of the queue pair.
    pub fn state(&self) -> State {
        self.endpoint.queue_pair(self.qpn).unwrap().state()
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        self.endpoint.poll_event()
    }

    /// What the endpoint has counted.
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// Panics when anything but `touched` (a range of the region) is not as it was at first.
    pub fn assert_untouched_but(&self, touched: std::ops::Range<usize>, what: &str) {
        let own = self.memory.to_vec(0, Self::BYTES);
        let wrong = (0..Self::BYTES).find(|i| own[*i] != GUARD && !touched.contains(i));
        assert_eq!(wrong, None, "{what}: a byte of the region was written");
        for (name, memory) in [("own", &self.memory), ("foreign", &self.foreign.0), ("private", &self.private.0)] {
            let from = if name == "own" { Self::BYTES } else { 0 };
            // SAFETY: the mapping is of whole pages, and the endpoint, which alone might write, is not running.
            let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr().add(from), Self::PAGES_BYTES - from) };
            assert!(bytes.iter().all(|byte| *byte == GUARD), "{what}: memory was written that is {name}");
        }
    }

    /// Panics when anything is not as it was at first.
    pub fn assert_untouched(&self, what: &str) {
        self.assert_untouched_but(0..0, what);
    }
}

/// All that a peer may be allowed.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT)
    .union(Access::MW_BIND);

/// The packet without the tag that ends extended ones.
pub fn without_tag<'a>(packet: &Packet<'a>) -> Packet<'a> {
    packet.split_tag().map_or(*packet, |(packet, _)| packet)
}

/// An acknowledge without data.
pub fn acknowledge(psn: Psn, syndrome: Syndrome) -> Response {
    Response { opcode: Opcode::RC_ACKNOWLEDGE, psn, syndrome: Some(syndrome), payload_bytes: 0 }
}
