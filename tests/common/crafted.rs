//! One endpoint, connected to a peer that is nothing but the frames a test makes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use uroce::frame::{FrameBytes, Hop};
use uroce::memory::{Access, HostMemory, Pd, WindowBinding, WindowKind};
use uroce::time::Instant;
use uroce::transport::{
    Capabilities, Completion, CompletionQueue, Counters, Data, Endpoint, Event, Path, QpAttributes, QueuePairInit,
    ReceiveRequest, RecoveryMode, RecoverySettings, SendOperation, SendRequest, Service, Sge, State,
};
use uroce::wire::{
    AcknowledgeTrailer, Addresses, Aeth, Body, Bth, Extension, Flow, Headers, Hello, Key, Msn, Opcode, Packet, PathMtu,
    Psn, Qpn, RnrTimer, RoceFrame, Syndrome, Tagged,
};

/// Our own address, and the peer's.
pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
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

pub const MTU: PathMtu = PathMtu::Mtu256;

/// Ethernet as the link would prepend it.
const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];

/// An answer of the endpoint, all of whose checks have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub opcode: Opcode,
    pub psn: Psn,
    pub syndrome: Option<Syndrome>,
    pub payload_bytes: usize,
}

pub struct Crafted {
    pub now: Instant,
    pub endpoint: Endpoint,
    pub qpn: Qpn,
    pub key: Key,
    pub pd: Pd,
    pub cq: Arc<CompletionQueue>,
    pub memory: Arc<HostMemory>,
    /// Registered for the peer too, but in another protection domain; and registered without remote access.
    pub foreign: (Arc<HostMemory>, Key),
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

    pub fn new(recovery: RecoveryMode) -> Crafted {
        Crafted::with_access(ALL, recovery)
    }

    pub fn with_access(access: Access, recovery: RecoveryMode) -> Crafted {
        Crafted::with(access, RecoverySettings { recovery, ..RecoverySettings::default() })
    }

    pub fn with(access: Access, recovery: RecoverySettings) -> Crafted {
        Crafted::with_queue(access, recovery, CompletionQueue::new(4096, || {}))
    }

    /// All completions go to `cq`.
    pub fn with_queue(access: Access, recovery: RecoverySettings, cq: CompletionQueue) -> Crafted {
        let mut endpoint = Endpoint::new([7; 32]);
        endpoint.set_recovery(recovery);
        let (pd, other_pd) = (endpoint.allocate_pd(), endpoint.allocate_pd());
        let mut register = |pd, access| {
            let memory = Arc::new(HostMemory::new(Self::BYTES).unwrap());
            memory.write(0, &[GUARD; Self::BYTES]);
            // SAFETY: the mapping is of whole pages, and nobody else knows of it yet.
            unsafe { memory.as_ptr().add(Self::BYTES).write_bytes(GUARD, Self::PAGES_BYTES - Self::BYTES) };
            let key = endpoint.memory().register(pd, memory.clone(), access);
            (memory, key)
        };
        let (memory, key) = register(pd, ALL);
        let foreign = register(other_pd, ALL);
        let private = register(pd, Access::LOCAL_WRITE);
        let cq = Arc::new(cq);
        let qpn = Crafted::connect(&mut endpoint, pd, &cq, access);
        let window = RecoverySettings::MAX_WINDOW;
        let (now, hellos) = (Instant::ZERO, Vec::new());
        Crafted { now, endpoint, qpn, key, pd, cq, memory, foreign, private, tag: 0, window, hellos }
    }

    /// A further queue pair, connected to the same one of the peer.
    pub fn another_queue_pair(&mut self) -> Qpn {
        Crafted::connect(&mut self.endpoint, self.pd, &self.cq, ALL)
    }

    fn connect(endpoint: &mut Endpoint, pd: Pd, cq: &Arc<CompletionQueue>, access: Access) -> Qpn {
        let capabilities = Capabilities { max_send_requests: 64, max_receive_requests: 64 };
        let (send_cq, receive_cq) = (cq.clone(), cq.clone());
        let init = QueuePairInit {
            service: Service::Rc,
            pd,
            capabilities,
            send_cq,
            receive_cq,
            srq: None,
            path_mtu: PathMtu::Mtu1024,
        };
        let qpn = endpoint.create_queue_pair(init).unwrap();
        for attributes in Crafted::steps(access) {
            endpoint.modify(Instant::ZERO, qpn, &attributes).unwrap();
        }
        qpn
    }

    /// Brings the queue pair, which was reset, up again.
    pub fn reconnect(&mut self) {
        self.get_ready_to_receive();
        self.get_ready_to_send();
    }

    /// The first steps of that.
    pub fn get_ready_to_receive(&mut self) {
        let [init, receive, _] = Crafted::steps(ALL);
        for attributes in [init, receive] {
            self.endpoint.modify(self.now, self.qpn, &attributes).unwrap();
        }
    }

    /// The last one.
    pub fn get_ready_to_send(&mut self) {
        let [_, _, send] = Crafted::steps(ALL);
        self.endpoint.modify(self.now, self.qpn, &send).unwrap();
    }

    fn steps(access: Access) -> [QpAttributes; 3] {
        let flow = Flow {
            addresses: Addresses::V4 { source: US, destination: PEER },
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        [
            QpAttributes {
                state: Some(State::Init),
                p_key_index: Some(0),
                port: Some(1),
                access: Some(access),
                ..Default::default()
            },
            QpAttributes {
                state: Some(State::ReadyToReceive),
                path: Some(Path { flow, hop: Hop(0) }),
                path_mtu: Some(MTU),
                destination: Some(PEER_QPN),
                receive_psn: Some(FIRST_PSN),
                max_dest_rd_atomic: Some(RD_ATOMIC),
                min_rnr_timer: Some(RnrTimer::new(1)),
                ..Default::default()
            },
            QpAttributes {
                state: Some(State::ReadyToSend),
                send_psn: Some(FIRST_PSN),
                timeout: Some(8),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(RD_ATOMIC),
                ..Default::default()
            },
        ]
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

    pub fn post_receive(&mut self, wr_id: u64, offset: usize, length: u32) {
        let sges = [Sge { address: self.at(offset), length, lkey: self.key }].into_iter().collect();
        self.endpoint.post_receive(self.now, self.qpn, ReceiveRequest { wr_id, sges }).unwrap();
    }

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
        self.endpoint.handle_frame(self.now, FrameBytes::from(&frame[..]));
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
        let tag = self.tag.to_be_bytes();
        self.frame_ending_with(bth, extension, payload, &[trailer, if bth.extended() { &tag } else { &[] }].concat())
    }

    /// An extended packet that has none.
    pub fn frame_without_tag(&self, bth: Bth, extension: Extension) -> Vec<u8> {
        self.frame_ending_with(bth, extension, &[], &[])
    }

    fn frame_ending_with(&self, bth: Bth, extension: Extension, payload: &[u8], end: &[u8]) -> Vec<u8> {
        let flow = Flow {
            addresses: Addresses::V4 { source: PEER, destination: US },
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let mut packet = vec![0; 8192];
        let fill = |out: &mut [u8]| {
            out.copy_from_slice(payload);
            Ok::<(), std::convert::Infallible>(())
        };
        let headers = Headers { bth, extension };
        let len =
            headers.write(&mut packet, &flow, 1, Body { payload_bytes: payload.len(), trailer: end }, fill).unwrap();
        [&ETHERNET[..], &packet[..len]].concat()
    }

    /// Hands over a frame, as it is, and returns the answers to it.
    pub fn take(&mut self, frame: &[u8]) -> Vec<Answer> {
        self.endpoint.handle_frame(self.now, FrameBytes::from(frame));
        self.answers()
    }

    /// Hands over a packet with the right ICRC and returns the answers to it.
    pub fn send(&mut self, bth: Bth, extension: Extension, payload: &[u8]) -> Vec<Answer> {
        let frame = self.frame(bth, extension, payload);
        self.take(&frame)
    }

    /// Everything that the endpoint wants to send, checked.
    pub fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        for frame in self.frames() {
            let roce = RoceFrame::parse(FrameBytes::from(&frame[..])).expect("what is sent is RoCE");
            assert!(roce.icrc_ok() && roce.ip.checksum_ok());
            let packet = without_tag(&Packet::parse(roce.ib).expect("what is sent is a packet"));
            assert_eq!(packet.bth().destination(), PEER_QPN);
            answers.push(Answer {
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
            let frame = [&ETHERNET[..], &packet[..transmit.len]].concat();
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

    pub fn completion(&mut self) -> Option<Completion> {
        self.cq.poll()
    }

    pub fn state(&self) -> State {
        self.endpoint.queue_pair(self.qpn).unwrap().state()
    }

    pub fn event(&mut self) -> Option<Event> {
        self.endpoint.poll_event()
    }

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
pub fn acknowledge(psn: Psn, syndrome: Syndrome) -> Answer {
    Answer { opcode: Opcode::RC_ACKNOWLEDGE, psn, syndrome: Some(syndrome), payload_bytes: 0 }
}
