//! One machine with a kernel peer, our stack beside it, and the memory of both.

use std::time::{Duration, Instant};

use rxe_rig::agent::{self, ACCESS_ALL, Agent, Cq, Mr};
use rxe_rig::{Lab, LabOptions, lab, pattern};
use uroce::link::Tapped;
use uroce::link::device::Device;
use uroce::link::fault::FaultSpec;
use uroce::link::xdp::{XdpLink, XdpOptions};
use uroce::transport::RecoveryMode;
use uroce::verbs::{Access, CompletionQueue, Context, Key, MemoryRegion, ProtectionDomain, Remote, SgeList};

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
    pub fn ours(self) -> Remote {
        Remote { address: self.address, key: Key(self.key) }
    }

    pub fn theirs(self) -> agent::Remote {
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
    /// Of a datagram: who sent it.
    pub source: Option<u32>,
    /// The queue pair.
    pub qpn: u32,
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

/// All that a peer may be allowed.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// A machine, and our side of things.
pub struct Bench {
    pub lab: Lab,
    pub agent: Agent,
    /// What our device does to the frames that it sends and receives.
    faults: Option<FaultSpec>,
    theirs: Mr,
    /// For those who ask for no completions.
    their_cq: Cq,
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
        let their_cq = agent.cq(16).unwrap();
        let mut bench = Bench { lab, agent, faults: None, theirs, their_cq, ours: None, started };
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
        // As programs have it.
        context.set_recovery(RecoveryMode::Auto, None);
        let pd = context.allocate_pd();
        let region = pd.allocate_region(REGION, ALL).unwrap();
        self.ours = Some(Ours { region, pd, context });
    }

    fn ours(&self) -> &Ours {
        self.ours.as_ref().expect("opened at the start")
    }

    pub fn pd(&self) -> &ProtectionDomain {
        &self.ours().pd
    }

    /// A completion queue of theirs for those who ask for no completions.
    pub fn cq(&self) -> Cq {
        self.their_cq
    }

    /// Their region.
    pub fn theirs(&self) -> &Mr {
        &self.theirs
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

    pub fn region(&self) -> &MemoryRegion {
        &self.ours().region
    }

    /// Where a place in an end's region is, for the other end.
    pub fn at(&self, side: Side, offset: usize) -> At {
        match side {
            Side::Us => {
                let Remote { address, key } = self.region().remote(offset);
                At { address, key: key.0 }
            }
            Side::Rxe => At { address: self.theirs.addr + offset as u64, key: self.theirs.rkey },
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
            Side::Rxe => self.agent.fill(&self.theirs, offset as u64, len as u64, seed).unwrap(),
        }
    }

    pub fn write(&mut self, side: Side, offset: usize, bytes: &[u8]) {
        match side {
            Side::Us => self.region().memory().write(offset, bytes),
            Side::Rxe => self.agent.write(&self.theirs, offset as u64, bytes).unwrap(),
        }
    }

    pub fn number(&mut self, side: Side, offset: usize) -> u64 {
        match side {
            Side::Us => u64::from_le_bytes(self.region().memory().to_vec(offset, 8).try_into().unwrap()),
            Side::Rxe => self.agent.read_u64(&self.theirs, offset as u64).unwrap(),
        }
    }

    /// The bytes of a range.
    pub fn bytes(&mut self, side: Side, offset: usize, len: usize) -> Vec<u8> {
        /// What the agent reads at once.
        const PIECE: usize = 4096;
        if side == Side::Us {
            return self.region().memory().to_vec(offset, len);
        }
        let pieces = (0..len).step_by(PIECE).map(|start| {
            let len = (len - start).min(PIECE);
            self.agent.read(&self.theirs, (offset + start) as u64, len as u64).unwrap()
        });
        pieces.collect::<Vec<_>>().concat()
    }

    /// Panics unless the range holds exactly `expected`.
    pub fn assert_bytes(&mut self, side: Side, offset: usize, expected: &[u8], what: &str) {
        // Most are right: then their hash is enough.
        if side == Side::Rxe {
            let hash = self.agent.hash(&self.theirs, offset as u64, expected.len() as u64).unwrap();
            if hash == pattern::hash(expected) {
                return;
            }
        }
        let have = self.bytes(side, offset, expected.len());
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

    pub fn our_sges(&self, local: &[(usize, usize)]) -> SgeList {
        local.iter().map(|&(offset, len)| self.region().sge(offset, len)).collect()
    }

    pub fn their_sges(&self, local: &[(usize, usize)]) -> Vec<agent::Sge> {
        local.iter().map(|&(offset, len)| self.theirs.sge(offset as u64, len as u32)).collect()
    }

    /// A piece of their region, in the agent's words.
    pub fn their_sge_words(&self, offset: usize, len: usize) -> String {
        format!(" sge={}:{offset}:{len}", self.theirs.handle)
    }

    /// The next `count` completions in a queue of ours.
    pub fn ours_done(&self, cq: &CompletionQueue, count: usize) -> Vec<Done> {
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
                source: c.network_header.map(|_| c.source_qpn.value()),
                qpn: c.qpn.value(),
            });
        }
        all
    }

    /// The next `count` completions in a queue of theirs.
    pub fn theirs_done(&mut self, cq: Cq, count: usize) -> Vec<Done> {
        let all = self.theirs_done_within(cq, count, LIMIT);
        let ours = || self.context().counters().into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(
            all.len(),
            count,
            "so many completions came at the kernel's end: {all:?}; our counters: {:?}",
            ours()
        );
        all
    }

    /// The next completions in a queue of theirs: `count`, or those that come within `limit`.
    pub fn theirs_done_within(&mut self, cq: Cq, count: usize, limit: Duration) -> Vec<Done> {
        let all = self.agent.poll(cq, count as u32, limit).unwrap();
        let flag = |wc: &agent::Wc, flags| wc.flags & flags != 0;
        let done = |wc: &agent::Wc| Done {
            wr_id: wc.wr_id,
            status: wc.status.0,
            kind: wc.opcode.0,
            byte_len: wc.byte_len,
            immediate: flag(wc, agent::Wc::WITH_IMM).then_some(wc.extra),
            invalidated: flag(wc, agent::Wc::WITH_INV | agent::Wc::WITH_INV_OF_RXE).then_some(wc.extra),
            source: flag(wc, agent::Wc::WITH_GRH).then_some(wc.src_qp),
            qpn: wc.qpn,
        };
        all.iter().map(done).collect()
    }
}
