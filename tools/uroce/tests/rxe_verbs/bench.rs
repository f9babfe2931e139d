//! One machine with a kernel peer, our stack beside it, and conversations between the two.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use rxe_rig::agent::{self, ACCESS_ALL, Agent, Cq, Mr, Qp, QpOptions, Transport};
use rxe_rig::{Lab, LabOptions, lab, pattern};
use uroce::link::Tapped;
use uroce::link::device::Device;
use uroce::link::fault::FaultSpec;
use uroce::link::xdp::{XdpLink, XdpOptions};
use uroce::verbs::{
    Access, AddressVector, Capabilities, CompletionChannel, CompletionQueue, Context, Data, Key, MemoryRegion, Notify,
    PathMtu, ProtectionDomain, Psn, QpAttributes, Qpn, QueuePair, QueuePairOptions, ReceiveRequest, Remote, RnrTimer,
    SendOperation, SendRequest, Service, SgeList, State, WindowBinding,
};

/// How long anything may take. Emulated machines are slow, and retransmission waits half a second.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Each end has one region of four areas, one after the other, so that nothing that moves overlaps.
pub const AREA: usize = (1 << 20) + (1 << 16);

/// Where an end's own SENDs and WRITEs come from.
pub const SOURCE: usize = 0;
/// Where an end's own READs and atomics put their results.
pub const RESULT: usize = AREA;
/// Where the other end's SENDs and WRITEs go.
pub const TARGET: usize = 2 * AREA;
/// What the other end READs; at its end, the eight bytes for atomics.
pub const READABLE: usize = 3 * AREA;
/// The eight bytes for atomics.
pub const COUNTER: usize = 4 * AREA - 64;

/// Bytes of a region.
pub const REGION: usize = 4 * AREA;

/// An end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Us,
    Rxe,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Us, Side::Rxe];

    pub fn other(self) -> Side {
        match self {
            Side::Us => Side::Rxe,
            Side::Rxe => Side::Us,
        }
    }
}

/// Remote memory, as both ends' interfaces can be told of it.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub address: u64,
    pub key: u32,
}

impl At {
    fn ours(self) -> Remote {
        Remote { address: self.address, key: Key(self.key) }
    }

    fn theirs(self) -> agent::Remote {
        agent::Remote { addr: self.address, rkey: self.key }
    }
}

/// An operation, for either end.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Send,
    SendImmediate(u32),
    SendInvalidate(u32),
    Write(At),
    WriteImmediate(At, u32),
    Read(At),
    CompareSwap { at: At, compare: u64, swap: u64 },
    FetchAdd { at: At, add: u64 },
}

/// A work request, for either end. `local` are offsets and lengths in the poster's region.
#[derive(Clone, Debug)]
pub struct Request {
    pub wr_id: u64,
    pub operation: Operation,
    pub local: Vec<(usize, usize)>,
    pub fence: bool,
    pub solicited: bool,
    pub inline: bool,
}

impl Request {
    pub fn new(wr_id: u64, operation: Operation, local: &[(usize, usize)]) -> Request {
        Request { wr_id, operation, local: local.to_vec(), fence: false, solicited: false, inline: false }
    }
}

/// A completion at either end, with the numbers of the verbs (`enum ibv_wc_status`, `enum ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub wr_id: u64,
    pub status: u8,
    pub kind: u8,
    pub byte_len: u32,
    pub immediate: Option<u32>,
    pub invalidated: Option<u32>,
}

/// The values of `enum ibv_wc_opcode`.
pub mod kind {
    pub const SEND: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const READ: u8 = 2;
    pub const COMPARE_SWAP: u8 = 3;
    pub const FETCH_ADD: u8 = 4;
    pub const BIND: u8 = 5;
    pub const RECEIVE: u8 = 128;
    pub const RECEIVE_WRITE_IMMEDIATE: u8 = 129;
}

/// What both ends of a conversation are set to.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// 0 link-local, 1 IPv4, 2 global IPv6.
    pub gid: usize,
    pub mtu: PathMtu,
    /// The first PSN that each end sends.
    pub our_psn: u32,
    pub their_psn: u32,
    /// The ACK timeout's code of each end, the retries after timeouts and NAKs, and after RNR NAKs.
    pub our_patience: (u8, u8, u8),
    pub their_patience: (u8, u8, u8),
    pub our_access: Access,
    pub their_access: &'static str,
}

/// All that a peer may be allowed.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

impl Setup {
    /// IPv4, PSNs that wrap after a few packets, half a second of timeout, endless retries.
    pub fn new(mtu: PathMtu) -> Setup {
        Setup {
            gid: 1,
            mtu,
            our_psn: 0xff_fff0,
            their_psn: 0xff_fffb,
            our_patience: (17, 7, 7),
            their_patience: (17, 7, 7),
            our_access: ALL,
            their_access: ACCESS_ALL,
        }
    }
}

/// READs and atomics in flight, each way.
const RD_ATOMIC: u8 = 16;

/// A machine, and our side of things.
pub struct Bench {
    pub lab: Lab,
    pub agent: Agent,
    /// What our device does to the frames that it sends and receives.
    faults: Option<FaultSpec>,
    theirs: Mr,
    ours: Option<Ours>,
    started: Instant,
}

/// Our device and its memory.
struct Ours {
    // Dropped in this order.
    region: MemoryRegion,
    pd: ProtectionDomain,
    context: Context,
}

impl Bench {
    pub fn start(mtu: u16) -> Bench {
        let started = Instant::now();
        let lab = Lab::start(&LabOptions { mtu, ..LabOptions::default() }).unwrap_or_else(|e| panic!("no lab: {e}"));
        let mut agent = lab.agent(0).unwrap();
        let theirs = agent.mr(REGION as u64, ACCESS_ALL).unwrap();
        let mut bench = Bench { lab, agent, faults: None, theirs, ours: None, started };
        bench.open_with(None);
        bench.say("the machine is up");
        bench
    }

    /// Opens our device anew, with faults.
    pub fn open_with(&mut self, faults: Option<FaultSpec>) {
        (self.ours, self.faults) = (None, faults);
        let open = || {
            let device = Device::find(Some(lab::PEER.interface)).unwrap_or_else(|e| panic!("{e}"));
            let link = XdpLink::open(&device.name, &XdpOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            Context::with_link(device, Box::new(Tapped::new(link, None, faults))).unwrap_or_else(|e| panic!("{e}"))
        };
        let context = self.lab.peer().run(open);
        let pd = context.allocate_pd();
        let region = pd.allocate_region(REGION, ALL).unwrap();
        self.ours = Some(Ours { region, pd, context });
    }

    fn ours(&self) -> &Ours {
        self.ours.as_ref().expect("opened at the start")
    }

    pub fn context(&self) -> &Context {
        &self.ours().context
    }

    /// Progress, with the time since the start: shown when the test fails, or with `--nocapture`.
    pub fn say(&self, what: &str) {
        let faults = self.faults.map_or(String::new(), |faults| format!(" ({faults:?})"));
        println!("{:6.1} s  {what}{faults}", self.started.elapsed().as_secs_f32());
    }

    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.context().counters();
        counters.iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// A connection between both ends, in the ready-to-send state.
    pub fn converse(&mut self, setup: &Setup) -> Conversation<'_> {
        let Ours { context, pd, .. } = self.ours.as_ref().expect("opened at the start");
        let channel = CompletionChannel::new().unwrap();
        let send_cq = context.create_completion_queue(1024);
        let receive_cq = context.create_completion_queue_on(1024, &channel);
        let capabilities = Capabilities { max_send_requests: 256, max_receive_requests: 256 };
        let (send, receive) = (&send_cq, &receive_cq);
        let options = QueuePairOptions { service: Service::Rc, capabilities, send, receive, srq: None };
        let qp = pd.create_queue_pair(&options).unwrap();

        let agent = &mut self.agent;
        let (their_send_cq, their_receive_cq) = (agent.cq(1024).unwrap(), agent.cq_with_events(1024).unwrap());
        let options = QpOptions {
            recv_cq: their_receive_cq,
            max_send: 256,
            max_sge: 6,
            ..QpOptions::new(Transport::Rc, their_send_cq)
        };
        let their_qp = agent.qp(&options).unwrap();
        let (timeout, retry, rnr_retry) = setup.their_patience;
        let to_us = agent::Path {
            sgid_index: setup.gid as u8,
            sq_psn: setup.their_psn,
            rq_psn: setup.our_psn,
            mtu: setup.mtu.bytes() as u32,
            rd_atomic: RD_ATOMIC,
            timeout,
            retry,
            rnr_retry,
            ..agent::Path::new(context.gids()[setup.gid].address.octets(), qp.qpn().value())
        };
        agent.init(their_qp, setup.their_access).unwrap();
        agent.rtr(their_qp, &to_us).unwrap();
        agent.rts(their_qp, &to_us).unwrap();

        let vector = AddressVector {
            source_gid_index: setup.gid,
            destination_gid: Ipv6Addr::from(agent.gid(setup.gid as u32).unwrap()),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let destination = Qpn::new(their_qp.qpn);
        let path = context.path(&vector, qp.qpn(), destination).unwrap();
        let (timeout, retry_count, rnr_retry) = setup.our_patience;
        let steps = [
            QpAttributes {
                state: Some(State::Init),
                p_key_index: Some(0),
                port: Some(1),
                access: Some(setup.our_access),
                ..Default::default()
            },
            QpAttributes {
                state: Some(State::ReadyToReceive),
                path: Some(path),
                path_mtu: Some(setup.mtu),
                destination: Some(destination),
                receive_psn: Some(Psn::new(setup.their_psn)),
                max_dest_rd_atomic: Some(RD_ATOMIC),
                min_rnr_timer: Some(RnrTimer::new(12)),
                ..Default::default()
            },
            QpAttributes {
                state: Some(State::ReadyToSend),
                send_psn: Some(Psn::new(setup.our_psn)),
                timeout: Some(timeout),
                retry_count: Some(retry_count),
                rnr_retry: Some(rnr_retry),
                max_rd_atomic: Some(RD_ATOMIC),
                ..Default::default()
            },
        ];
        for attributes in &steps {
            qp.modify(attributes).unwrap();
        }
        Conversation { bench: self, qp, send_cq, receive_cq, channel, their_qp, their_send_cq, their_receive_cq }
    }
}

/// Two connected queue pairs, ours and theirs, each with a completion queue for sends and one for receives.
pub struct Conversation<'a> {
    pub bench: &'a mut Bench,
    pub qp: QueuePair,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    channel: CompletionChannel,
    pub their_qp: Qp,
    their_send_cq: Cq,
    their_receive_cq: Cq,
}

impl Conversation<'_> {
    fn region(&self) -> &MemoryRegion {
        &self.bench.ours().region
    }

    /// Where a place in an end's region is, for the other end.
    pub fn at(&self, side: Side, offset: usize) -> At {
        match side {
            Side::Us => {
                let Remote { address, key } = self.region().remote(offset);
                At { address, key: key.0 }
            }
            Side::Rxe => At { address: self.bench.theirs.addr + offset as u64, key: self.bench.theirs.rkey },
        }
    }

    /// Puts the pattern of `seed` into a range; byte `i` of it is the pattern's byte `offset + i`.
    pub fn fill(&mut self, side: Side, offset: usize, len: usize, seed: u64) {
        match side {
            Side::Us => {
                let mut bytes = vec![0; len];
                pattern::fill(&mut bytes, offset as u64, seed);
                self.region().memory().write(offset, &bytes);
            }
            Side::Rxe => self.bench.agent.fill(&self.bench.theirs, offset as u64, len as u64, seed).unwrap(),
        }
    }

    pub fn write(&mut self, side: Side, offset: usize, bytes: &[u8]) {
        match side {
            Side::Us => self.region().memory().write(offset, bytes),
            Side::Rxe => self.bench.agent.write(&self.bench.theirs, offset as u64, bytes).unwrap(),
        }
    }

    pub fn number(&mut self, side: Side, offset: usize) -> u64 {
        match side {
            Side::Us => u64::from_le_bytes(self.region().memory().to_vec(offset, 8).try_into().unwrap()),
            Side::Rxe => self.bench.agent.read_u64(&self.bench.theirs, offset as u64).unwrap(),
        }
    }

    /// Panics unless the range holds exactly `expected`. Theirs is compared by its hash, and byte by byte when that differs.
    pub fn assert_bytes(&mut self, side: Side, offset: usize, expected: &[u8], what: &str) {
        let have = match side {
            Side::Us => self.region().memory().to_vec(offset, expected.len()),
            Side::Rxe => {
                let (agent, mr) = (&mut self.bench.agent, &self.bench.theirs);
                let hash = agent.hash(mr, offset as u64, expected.len() as u64).unwrap();
                if hash == pattern::hash(expected) {
                    return;
                }
                let pieces = (0..expected.len()).step_by(4096).map(|start| {
                    let len = (expected.len() - start).min(4096);
                    agent.read(mr, (offset + start) as u64, len as u64).unwrap()
                });
                pieces.collect::<Vec<_>>().concat()
            }
        };
        if let Some(first) = (0..expected.len()).find(|&i| have[i] != expected[i]) {
            let count = (0..expected.len()).filter(|&i| have[i] != expected[i]).count();
            panic!(
                "{what}: {count} of {} bytes at {side:?} are wrong, the first at {first}: {:#04x} instead of {:#04x}",
                expected.len(),
                have[first],
                expected[first]
            );
        }
    }

    pub fn post(&mut self, side: Side, request: &Request) {
        match side {
            Side::Us => self.post_ours(request),
            Side::Rxe => self.post_theirs(request),
        }
    }

    fn post_ours(&self, request: &Request) {
        let operation = match request.operation {
            Operation::Send => SendOperation::Send,
            Operation::SendImmediate(data) => SendOperation::SendWithImmediate(data),
            Operation::SendInvalidate(key) => SendOperation::SendWithInvalidate(Key(key)),
            Operation::Write(at) => SendOperation::Write(at.ours()),
            Operation::WriteImmediate(at, data) => SendOperation::WriteWithImmediate(at.ours(), data),
            Operation::Read(at) => SendOperation::Read(at.ours()),
            Operation::CompareSwap { at, compare, swap } => {
                SendOperation::CompareSwap { remote: at.ours(), compare, swap }
            }
            Operation::FetchAdd { at, add } => SendOperation::FetchAdd { remote: at.ours(), add },
        };
        let data = if request.inline {
            let pieces = request.local.iter().map(|&(offset, len)| self.region().memory().to_vec(offset, len));
            Data::Inline(pieces.flatten().collect())
        } else {
            Data::Sges(self.our_sges(&request.local))
        };
        let Request { wr_id, fence, solicited, .. } = *request;
        self.qp
            .post_send(SendRequest { solicited, fence, ..SendRequest::new(wr_id, operation, data) })
            .unwrap_or_else(|e| panic!("{request:?}: {e}"));
    }

    fn post_theirs(&mut self, request: &Request) {
        let operation = match request.operation {
            Operation::Send => agent::Operation::Send,
            Operation::SendImmediate(data) => agent::Operation::SendImm(data),
            Operation::SendInvalidate(key) => agent::Operation::SendInv(key),
            Operation::Write(at) => agent::Operation::Write(at.theirs()),
            Operation::WriteImmediate(at, data) => agent::Operation::WriteImm(at.theirs(), data),
            Operation::Read(at) => agent::Operation::Read(at.theirs()),
            Operation::CompareSwap { at, compare, swap } => {
                agent::Operation::CompareSwap { at: at.theirs(), compare, swap }
            }
            Operation::FetchAdd { at, add } => agent::Operation::FetchAdd { at: at.theirs(), add },
        };
        let Request { wr_id, fence, solicited, inline, .. } = *request;
        let sges = self.their_sges(&request.local);
        let send = agent::Send { fence, solicited, inline, ..agent::Send::new(operation, wr_id, &sges) };
        self.bench.agent.post_send(self.their_qp, &send).unwrap_or_else(|e| panic!("{request:?}: {e}"));
    }

    pub fn post_receive(&mut self, side: Side, wr_id: u64, local: &[(usize, usize)]) {
        match side {
            Side::Us => self.qp.post_receive(ReceiveRequest { wr_id, sges: self.our_sges(local) }).unwrap(),
            Side::Rxe => {
                let sges = self.their_sges(local);
                self.bench.agent.post_recv(self.their_qp, wr_id, &sges).unwrap();
            }
        }
    }

    fn our_sges(&self, local: &[(usize, usize)]) -> SgeList {
        local.iter().map(|&(offset, len)| self.region().sge(offset, len)).collect()
    }

    fn their_sges(&self, local: &[(usize, usize)]) -> Vec<agent::Sge> {
        local.iter().map(|&(offset, len)| self.bench.theirs.sge(offset as u64, len as u32)).collect()
    }

    /// The next `count` completions of sends.
    pub fn sent(&mut self, side: Side, count: usize) -> Vec<Done> {
        match side {
            Side::Us => self.poll_ours(&self.send_cq, count),
            Side::Rxe => self.poll_theirs(self.their_send_cq, count),
        }
    }

    /// The next `count` completions of receives.
    pub fn received(&mut self, side: Side, count: usize) -> Vec<Done> {
        match side {
            Side::Us => self.poll_ours(&self.receive_cq, count),
            Side::Rxe => self.poll_theirs(self.their_receive_cq, count),
        }
    }

    fn poll_ours(&self, cq: &CompletionQueue, count: usize) -> Vec<Done> {
        let (start, mut all) = (Instant::now(), Vec::new());
        while all.len() < count {
            let Some(c) = cq.poll() else {
                assert!(start.elapsed() < LIMIT, "{} of {count} completions came: {all:?}", all.len());
                // The machine may need the processor.
                std::thread::yield_now();
                continue;
            };
            all.push(Done {
                wr_id: c.wr_id,
                status: c.status as u8,
                kind: c.kind as u8,
                byte_len: c.byte_len,
                immediate: c.immediate,
                invalidated: c.invalidated.map(|key| key.0),
            });
        }
        all
    }

    fn poll_theirs(&mut self, cq: Cq, count: usize) -> Vec<Done> {
        let all = self.bench.agent.poll(cq, count as u32, LIMIT).unwrap();
        assert_eq!(all.len(), count, "so many completions came at the kernel's end: {all:?}");
        let flag = |wc: &agent::Wc, flags| wc.flags & flags != 0;
        let done = |wc: &agent::Wc| Done {
            wr_id: wc.wr_id,
            status: wc.status.0,
            kind: wc.opcode.0,
            byte_len: wc.byte_len,
            immediate: flag(wc, agent::Wc::WITH_IMM).then_some(wc.extra),
            invalidated: flag(wc, agent::Wc::WITH_INV | agent::Wc::WITH_INV_OF_RXE).then_some(wc.extra),
        };
        all.iter().map(done).collect()
    }

    /// Asks for a notification at the next solicited receive of an end.
    pub fn arm_solicited(&mut self, side: Side) {
        match side {
            Side::Us => self.receive_cq.request_notification(Notify::Solicited),
            Side::Rxe => self.bench.agent.arm(self.their_receive_cq, true).unwrap(),
        }
    }

    /// Whether a notification came within `limit`.
    pub fn notified(&mut self, side: Side, limit: Duration) -> bool {
        match side {
            Side::Us => self.channel.wait(limit).unwrap() > 0,
            Side::Rxe => self.bench.agent.event(self.their_receive_cq, limit).unwrap(),
        }
    }

    /// Makes a window in an end's region and binds it. Returns its key.
    pub fn bind_window(&mut self, side: Side, offset: usize, len: usize) -> u32 {
        let key = match side {
            Side::Us => {
                let mut window = self.bench.ours().pd.allocate_window(uroce::verbs::WindowKind::Two);
                let (old, new_key) = (window.key(), window.next_key());
                let Remote { address, key: region } = self.region().remote(offset);
                let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
                let binding = WindowBinding { window: old, new_key, region, address, len: len as u64, access };
                self.qp.post_send(SendRequest::new(900, SendOperation::BindWindow(binding), Data::EMPTY)).unwrap();
                new_key.0
            }
            Side::Rxe => {
                let window = self.bench.agent.mw(2).unwrap();
                let range = (&self.bench.theirs, offset as u64, len as u64);
                self.bench.agent.bind_type2(self.their_qp, &window, 900, range, "remote_write,remote_read").unwrap()
            }
        };
        let done = self.sent(side, 1)[0];
        assert_eq!((done.wr_id, done.status, done.kind), (900, 0, kind::BIND));
        key
    }

    /// No completion is left anywhere, and both queue pairs are ready to send.
    pub fn assert_healthy(&mut self) {
        assert!(self.send_cq.poll().is_none() && self.receive_cq.poll().is_none(), "completions too many at our end");
        for cq in [self.their_send_cq, self.their_receive_cq] {
            assert_eq!(self.bench.agent.poll(cq, 1, Duration::ZERO).unwrap(), [], "at the kernel's end");
        }
        assert_eq!(self.qp.state(), State::ReadyToSend);
        assert_eq!(self.their_state(), "rts");
    }

    pub fn their_state(&mut self) -> String {
        self.bench.agent.qp_state(self.their_qp).unwrap().0
    }

    pub fn destroy(self) {
        self.bench.agent.destroy("qp", self.their_qp.handle).unwrap();
        for cq in [self.their_send_cq, self.their_receive_cq] {
            self.bench.agent.destroy("cq", cq.0).unwrap();
        }
    }
}
