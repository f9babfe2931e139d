//! This stack through its public API, as a verbs program uses it: post, and poll the completion queue.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use uroce::verbs::{
    Access, Capabilities, CompletionKind, CompletionQueue, ConnectOptions, Context, Data, LinkKind, MemoryRegion,
    OpenOptions, PathMtu, Peer, QpAttributes, QueuePair, QueuePairOptions, ReceiveRequest, Remote, SendOperation,
    SendRequest, Service, SgeList, Status, UdpOffload, XdpOptions,
};

use crate::Failure;
use crate::figure::Counts;
use crate::rig::{Abandoned, Meeting, Rig, Side};

/// Bytes of a bulk message, if nothing else is said.
pub const BULK_BYTES: usize = 64 << 10;

/// Memory for bulk messages: as many as fit are outstanding.
pub const REGION_BYTES: usize = 2 << 20;

/// Upper bound on the messages outstanding.
const DEPTH: usize = 32;

/// Receive requests: twice what the peer has outstanding, so that none is ever missing.
const RECEIVE_DEPTH: usize = 2 * DEPTH;

const SMALL_BYTES: usize = 64;

/// How long the other side may take to set up.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is moved in bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    Write,
    Read,
    Send,
}

/// What is moved, in messages of so many bytes and packets, and how many are outstanding.
#[derive(Clone, Copy)]
struct Load {
    bulk: Bulk,
    bytes: usize,
    depth: usize,
    packets: u64,
}

/// How programs open their devices.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    rig: &'a Rig,
    /// The program `uroce`, when others could share the interfaces.
    arbiter: Option<&'a Path>,
    /// Over UDP sockets: the offloads, and the index of the GID. `None` for AF_XDP.
    udp: Option<(UdpOffload, usize)>,
}

impl<'a> Manner<'a> {
    /// Each has its interface alone.
    pub fn exclusive(rig: &'a Rig) -> Manner<'a> {
        Manner { rig, arbiter: None, udp: None }
    }

    /// Others could share it, and none does.
    pub fn shared(rig: &'a Rig) -> Manner<'a> {
        Manner { rig, arbiter: Some(rig.arbiter()), udp: None }
    }

    /// Each has its interface alone, over UDP sockets, with IPv6 or IPv4.
    pub fn udp(rig: &'a Rig, offload: UdpOffload, is_v6: bool) -> Manner<'a> {
        Manner { rig, arbiter: None, udp: Some((offload, if is_v6 { 2 } else { 1 })) }
    }
}

/// One side: everything a program has open.
struct Program {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    /// The other side's.
    memory: Remote,
    context: Context,
    /// Whose counters shall be shown at the end, if at all.
    shows_counters: Option<Side>,
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(side) = self.shows_counters {
            let text: Vec<_> = self.context.counters().into_iter().filter(|(_, value)| *value > 0).collect();
            eprintln!("{side:?}: {}", text.iter().map(|(n, v)| format!("{n} {v}")).collect::<Vec<_>>().join(", "));
        }
    }
}

/// Messages of `bytes` one way (a READ's data comes the other way), polling.
pub fn bulk(manner: Manner<'_>, bulk: Bulk, bytes: usize, mtu: usize, seconds: f64) -> Result<Counts, Failure> {
    let mtu = PathMtu::from_bytes(mtu).ok_or("no such path MTU")?;
    let depth = REGION_BYTES / bytes;
    let load = Load { bulk, bytes, depth, packets: (bytes / mtu.bytes()) as u64 };
    let [a, b] = lines();
    let requester = |meeting: &Meeting| {
        let program = Program::open(manner, Side::Sender, mtu, REGION_BYTES, a)?;
        meeting.begin()?;
        request(&program, meeting, load)
    };
    let responder = |meeting: &Meeting| {
        let program = Program::open(manner, Side::Receiver, mtu, REGION_BYTES, b)?;
        if bulk == Bulk::Send {
            (0..2 * depth).try_for_each(|number| program.post_receive(number % depth, bytes))?;
        }
        meeting.begin()?;
        respond(&program, meeting, load)
    };
    manner.rig.run(seconds, requester, responder)
}

fn request(program: &Program, meeting: &Meeting, load: Load) -> Result<Option<Counts>, Failure> {
    let Load { bulk, bytes, depth, packets } = load;
    let mut meter = meeting.meter();
    let (mut slot, mut outstanding) = (0, 0);
    loop {
        let running = meter.is_running();
        while running && outstanding < depth {
            let offset = slot * bytes;
            let remote = Remote { address: program.memory.address + offset as u64, ..program.memory };
            let operation = match bulk {
                Bulk::Write => SendOperation::Write(remote),
                Bulk::Read => SendOperation::Read(remote),
                Bulk::Send => SendOperation::Send,
            };
            let sges = SgeList::from_iter([program.region.sge(offset, bytes)]);
            program.qp.post_send(SendRequest::new(slot as u64, operation, Data::Sges(sges)))?;
            slot = (slot + 1) % depth;
            outstanding += 1;
        }
        while program.completion()?.is_some() {
            outstanding -= 1;
            if running {
                meter.count(packets, bytes as u64);
            }
        }
        if !running {
            break;
        }
    }
    let counts = meter.finish();
    while outstanding > 0 && !meeting.is_over() {
        outstanding -= usize::from(program.completion()?.is_some());
    }
    meeting.finish();
    // A SEND counts where it arrives.
    Ok((bulk != Bulk::Send).then_some(counts))
}

fn respond(program: &Program, meeting: &Meeting, load: Load) -> Result<Option<Counts>, Failure> {
    let Load { bytes, packets, .. } = load;
    let mut meter = meeting.meter();
    let mut counts = None;
    let mut received = false;
    while !meeting.is_over() {
        if counts.is_none() && !meter.is_running() {
            counts = Some(std::mem::replace(&mut meter, meeting.meter()).finish());
        }
        if let Some(done) = program.completion()? {
            received = true;
            program.post_receive(done.slot, bytes)?;
            meter.count(packets, bytes as u64);
        }
    }
    Ok(counts.filter(|_| received))
}

/// WRITEs of 64 bytes in turn; each side polls the last byte of its memory for the other's.
pub fn write_round_trips(manner: Manner<'_>, seconds: f64) -> Result<Counts, Failure> {
    small_round_trips(manner, seconds, |program, turn| {
        let data = Data::Inline([turn; SMALL_BYTES].into_iter().collect());
        let request = SendRequest::new(0, SendOperation::Write(program.memory), data);
        Ok(program.qp.post_send(request)?)
    })
}

/// SENDs of 64 bytes in turn; each side polls its completion queue.
pub fn send_round_trips(rig: &Rig, seconds: f64) -> Result<Counts, Failure> {
    small_round_trips(Manner::exclusive(rig), seconds, |program, turn| {
        let data = Data::Inline([turn; SMALL_BYTES].into_iter().collect());
        Ok(program.qp.post_send(SendRequest::new(0, SendOperation::Send, data))?)
    })
}

/// Both sides send in turn. A message has arrived when its last byte is in memory, whether a completion tells of it or
/// not; the completion queue is polled all the while, since that is where a program's own requests end.
fn small_round_trips(
    manner: Manner<'_>,
    seconds: f64,
    send: impl Fn(&Program, u8) -> Result<(), Failure> + Copy + Send,
) -> Result<Counts, Failure> {
    let [a, b] = lines();
    let play = |side, line| {
        move |meeting: &Meeting| {
            let program = Program::open(manner, side, PathMtu::Mtu1024, SMALL_BYTES, line)?;
            (0..DEPTH).try_for_each(|_| program.post_receive(0, SMALL_BYTES))?;
            meeting.begin()?;
            take_turns(&program, meeting, side, send)
        }
    };
    manner.rig.run(seconds, play(Side::Sender, a), play(Side::Receiver, b))
}

fn take_turns(
    program: &Program,
    meeting: &Meeting,
    side: Side,
    send: impl Fn(&Program, u8) -> Result<(), Failure>,
) -> Result<Option<Counts>, Failure> {
    let arrived = |turn: u8| {
        if program.completion()?.is_some_and(|done| done.is_receive) {
            program.post_receive(0, SMALL_BYTES)?;
        }
        let mut last = [0];
        program.region.memory().read(SMALL_BYTES - 1, &mut last);
        Ok::<bool, Failure>(last[0] == turn)
    };
    let mut turn = 1_u8;
    if side == Side::Receiver {
        while !meeting.is_over() {
            if arrived(turn)? {
                send(program, turn)?;
                turn = turn.wrapping_add(1);
            }
        }
        return Ok(None);
    }
    let mut meter = meeting.meter();
    while meter.is_running() {
        let start = Instant::now();
        send(program, turn)?;
        while !arrived(turn)? && !meeting.is_over() {}
        meter.round_trip(start.elapsed(), SMALL_BYTES as u64);
        turn = turn.wrapping_add(1);
    }
    meeting.finish();
    Ok(Some(meter.finish()))
}

/// How the two sides tell each other about themselves.
struct Line(Sender<(Peer, Remote)>, Receiver<(Peer, Remote)>);

fn lines() -> [Line; 2] {
    let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
    [Line(to_b, from_b), Line(to_a, from_a)]
}

impl Program {
    /// Opens `side`'s device, with `bytes` of memory, and connects to the other side.
    fn open(manner: Manner<'_>, side: Side, mtu: PathMtu, bytes: usize, line: Line) -> Result<Program, Failure> {
        let rig = manner.rig;
        let xdp = XdpOptions { mode: Some(rig.mode()), ..XdpOptions::default() };
        let mut options = OpenOptions::new().device(rig.interface(side)).xdp(xdp).link(LinkKind::Xdp);
        options.arbiter = manner.arbiter.map(Path::to_owned);
        let mut connection = ConnectOptions::new();
        if let Some((offload, gid_index)) = manner.udp {
            options = options.link(LinkKind::Udp).udp_offload(offload);
            connection = connection.gid_index(gid_index);
        }
        let context = options.open()?;
        let is_shared = context.counters().iter().any(|(name, _)| *name == "kernel_tx_packets");
        if is_shared != manner.arbiter.is_some() {
            return Err(
                format!("{} cannot be shared: {} did not start", rig.interface(side), rig.arbiter().display()).into()
            );
        }
        let pd = context.allocate_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.allocate_region(bytes, access)?;
        let cq = context.create_completion_queue(4 * DEPTH);
        let capabilities = Capabilities { max_send_requests: 2 * DEPTH, max_receive_requests: RECEIVE_DEPTH };
        let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
        let qp = pd.create_queue_pair(&options)?;
        line.0.send((qp.local_with(&connection)?, region.remote(0)))?;
        let (peer, memory) = line.1.recv_timeout(PATIENCE).map_err(|_| Abandoned)?;
        let attributes = QpAttributes { path_mtu: Some(mtu), ..Default::default() };
        qp.connect_with(&peer, &connection.attributes(attributes))?;
        let shows_counters = rig.shows_counters().then_some(side);
        Ok(Program { qp, cq, region, memory, context, shows_counters })
    }

    fn post_receive(&self, slot: usize, bytes: usize) -> Result<(), Failure> {
        let sges = SgeList::from_iter([self.region.sge(slot * bytes, bytes)]);
        Ok(self.qp.post_receive(ReceiveRequest { wr_id: slot as u64, sges })?)
    }

    /// The next completion, if there is one.
    fn completion(&self) -> Result<Option<Done>, Failure> {
        let Some(completion) = self.cq.poll() else { return Ok(None) };
        if completion.status != Status::Success {
            return Err(format!("a request ended with {:?}", completion.status).into());
        }
        let is_receive = completion.kind == CompletionKind::Receive;
        Ok(Some(Done { slot: completion.wr_id as usize, is_receive }))
    }
}

/// A request that is complete.
#[derive(Clone, Copy, Debug)]
struct Done {
    slot: usize,
    is_receive: bool,
}
