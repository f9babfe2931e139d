//! A side as a verbs program has it: a device, a region of memory, and queue pairs that are connected to the other side's.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use uroce::verbs::{
    Access, Capabilities, CompletionKind, CompletionQueue, ConnectOptions, Context, FaultSpec, LinkKind, MemoryRegion,
    OpenOptions, PathMtu, Peer, QpAttributes, QueuePair, QueuePairOptions, ReceiveRequest, Remote, Service, SgeList,
    Status, UdpOffload, XdpOptions,
};

use crate::Failure;
use crate::rig::{Abandoned, Rig, Side};

/// How long the other side may take to set up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How programs open their devices.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    pub rig: &'a Rig,
    /// The program `uroce`, when others could share the interfaces.
    arbiter: Option<&'a Path>,
    link: LinkKind,
    /// Over UDP sockets: the offloads, and whether by IPv6.
    udp: Option<(UdpOffload, bool)>,
    /// What happens to frames.
    faults: Option<&'static str>,
}

impl<'a> Manner<'a> {
    /// Each has its interface alone.
    pub fn exclusive(rig: &'a Rig) -> Manner<'a> {
        Manner { rig, arbiter: None, link: LinkKind::Xdp, udp: None, faults: None }
    }

    /// Others could share it, and none does.
    pub fn shared(rig: &'a Rig) -> Manner<'a> {
        Manner { arbiter: Some(rig.arbiter()), ..Manner::exclusive(rig) }
    }

    /// Each has its interface alone, over UDP sockets, with IPv6 or IPv4.
    pub fn udp(rig: &'a Rig, offload: UdpOffload, is_v6: bool) -> Manner<'a> {
        Manner { link: LinkKind::Udp, udp: Some((offload, is_v6)), ..Manner::exclusive(rig) }
    }

    /// As programs do that are told nothing, over `link`, with faults.
    pub fn faulty(rig: &'a Rig, link: LinkKind, faults: &'static str) -> Manner<'a> {
        Manner { link, faults: Some(faults), ..Manner::shared(rig) }
    }

    fn open(&self, side: Side) -> Result<Context, Failure> {
        let rig = self.rig;
        let xdp = XdpOptions { mode: Some(rig.mode()), ..XdpOptions::default() };
        let mut options = OpenOptions::new().device(rig.interface(side)).xdp(xdp).link(self.link);
        options.arbiter = self.arbiter.map(Path::to_owned);
        if let Some((offload, _)) = self.udp {
            options = options.udp_offload(offload);
        }
        if let Some(faults) = self.faults {
            options = options.faults(faults.parse::<FaultSpec>()?);
        }
        let context = options.open()?;
        let is_shared = context.counters().iter().any(|(name, _)| *name == "kernel_tx_packets");
        if self.link == LinkKind::Xdp && is_shared != self.arbiter.is_some() {
            let arbiter = rig.arbiter().display();
            return Err(format!("{} cannot be shared: {arbiter} did not start", rig.interface(side)).into());
        }
        Ok(context)
    }
}

/// What a program opens.
#[derive(Clone, Copy)]
pub struct Plan {
    pub mtu: PathMtu,
    /// Bytes of the region.
    pub bytes: usize,
    pub queue_pairs: usize,
    /// Send requests of a queue pair, and twice as many receive requests.
    pub depth: usize,
}

/// One side: everything a program has open.
pub struct Program {
    pub pairs: Vec<Pair>,
    pub region: MemoryRegion,
    /// The other side's.
    pub memory: Remote,
    pub context: Context,
    /// Whose counters shall be shown at the end, if at all.
    shows_counters: Option<Side>,
}

/// A queue pair with a completion queue of its own.
pub struct Pair {
    pub qp: QueuePair,
    pub cq: CompletionQueue,
}

/// A request that is complete.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub slot: usize,
    pub is_receive: bool,
}

/// How the two sides tell each other about themselves.
pub struct Line(Sender<Ends>, Receiver<Ends>);

/// A side's queue pairs and memory.
type Ends = (Vec<Peer>, Remote);

/// A line for each side.
pub fn lines() -> [Line; 2] {
    let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
    [Line(to_b, from_b), Line(to_a, from_a)]
}

impl Program {
    /// Opens `side`'s device, and connects to the other side.
    ///
    /// # Errors
    /// What the stack says, or that the other side does not come.
    pub fn open(manner: Manner<'_>, side: Side, plan: Plan, line: Line) -> Result<Program, Failure> {
        let Plan { mtu, bytes, queue_pairs, depth } = plan;
        let context = manner.open(side)?;
        let pd = context.allocate_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.allocate_region(bytes, access)?;
        let capabilities = Capabilities { max_send_requests: depth, max_receive_requests: 2 * depth };
        let pair = |_| {
            let cq = context.create_completion_queue(4 * depth);
            let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
            let qp = pd.create_queue_pair(&options)?;
            Ok(Pair { qp, cq })
        };
        let pairs: Vec<Pair> = (0..queue_pairs).map(pair).collect::<Result<_, Failure>>()?;
        let mut connection = ConnectOptions::new();
        if let Some((_, is_v6)) = manner.udp {
            connection = connection.gid_index(if is_v6 { 2 } else { 1 });
        }
        let locals = pairs.iter().map(|pair| pair.qp.local_with(&connection)).collect::<Result<_, _>>()?;
        line.0.send((locals, region.remote(0)))?;
        let (peers, memory) = line.1.recv_timeout(PATIENCE).map_err(|_| Abandoned)?;
        let attributes = connection.attributes(QpAttributes { path_mtu: Some(mtu), ..Default::default() });
        pairs.iter().zip(&peers).try_for_each(|(pair, peer)| pair.qp.connect_with(peer, &attributes))?;
        let shows_counters = manner.rig.shows_counters().then_some(side);
        Ok(Program { pairs, region, memory, context, shows_counters })
    }

    /// Posts a receive into the place of `bytes` with this number.
    ///
    /// # Errors
    /// What the stack says.
    pub fn post_receive(&self, pair: usize, slot: usize, bytes: usize) -> Result<(), Failure> {
        let sges = SgeList::from_iter([self.region.sge(slot * bytes, bytes)]);
        Ok(self.pairs[pair].qp.post_receive(ReceiveRequest { wr_id: slot as u64, sges })?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(side) = self.shows_counters {
            let text: Vec<_> = self.context.counters().into_iter().filter(|(_, value)| *value > 0).collect();
            eprintln!("{side:?}: {}", text.iter().map(|(n, v)| format!("{n} {v}")).collect::<Vec<_>>().join(", "));
        }
    }
}

impl Pair {
    /// The next completion, if there is one.
    ///
    /// # Errors
    /// When a request failed.
    pub fn completion(&self) -> Result<Option<Done>, Failure> {
        let Some(completion) = self.cq.poll() else { return Ok(None) };
        if completion.status != Status::Success {
            return Err(format!("a request ended with {:?}", completion.status).into());
        }
        let is_receive = completion.kind == CompletionKind::Receive;
        Ok(Some(Done { slot: completion.wr_id as usize, is_receive }))
    }
}
