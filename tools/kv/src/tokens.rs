//! Tokens beside KV transfers over real frames: how long messages of 64 bytes take through a wide area network that is one
//! queue, alone and beside WRITEs at full rate through the same device.

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uroce::transport::{Capabilities, Class, Data, Notify, Remote};
use uroce::verbs::{
    Access, CompletionChannel, CompletionQueue, ConnectOptions, Context, LinkKind, MemoryRegion, OpenOptions, Peer,
    ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, SendOperation, SendRequest, Service, Status,
};
use uroce_laboratory::sim::Random;
use wan::{Conditions, Delays, Plan, Side, Wan, of_sorted};

/// What is played.
#[derive(Clone, Debug)]
pub struct TokenPlan {
    /// The path, the same both ways.
    pub path: Conditions,
    /// The tokens that are measured.
    pub tokens: usize,
    /// The mean time between two of them.
    pub every: Duration,
    /// The flows that transfer beside them.
    pub flows: usize,
    /// Tokens beside transfers before those that are measured: flows find their rates.
    pub warm_up: usize,
    /// Decides which frames are lost, and when tokens go.
    pub seed: u64,
    /// What carries frames.
    pub link: LinkKind,
    /// Has transfers open the device once more, as another program would, by means of this program `uroce`.
    pub apart: Option<PathBuf>,
}

/// What is beside tokens, and in which classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Transfers of class bulk; tokens are urgent.
    Bulk,
    /// Transfers, all in one class.
    OneClass,
}

/// What tokens met.
#[derive(Clone, Debug)]
pub struct TokensPlayed {
    /// What was beside them.
    pub beside: Beside,
    /// How long each took, from the request to the receiver's completion, the shortest first.
    pub latencies: Vec<Duration>,
    /// Payload of transfers that completed meanwhile, in bits a second.
    pub goodput_bps: f64,
    /// How much later than they should have frames left the network.
    pub lateness: Delays,
}

/// Length of a token and of a WRITE, in bytes; how many WRITEs each flow has outstanding.
const TOKEN_BYTES: usize = 64;
const MESSAGE_BYTES: usize = 1 << 20;
const OUTSTANDING: usize = 32;

/// Tokens on the way at most.
const TOKENS_OUTSTANDING: usize = 4096;

/// How long nothing may arrive.
const PATIENCE: Duration = Duration::from_secs(20);

impl Beside {
    /// All of them, in the order in which they are played.
    pub const ALL: [Beside; 3] = [Beside::Nothing, Beside::Bulk, Beside::OneClass];

    /// The traffic classes of tokens and of transfers.
    fn traffic_classes(self) -> [u8; 2] {
        match self {
            Beside::Nothing | Beside::Bulk => [Class::Urgent, Class::Bulk].map(|class| class.dscp() << 2),
            Beside::OneClass => [0; 2],
        }
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Beside::Nothing => "idle",
            Beside::Bulk => "classes",
            Beside::OneClass => "one class",
        })
    }
}

impl TokensPlayed {
    /// The latency that this share of tokens keeps to.
    pub fn quantile(&self, share: f64) -> Duration {
        of_sorted(&self.latencies, share).copied().unwrap_or_default()
    }

    /// As docs/schemas/kv.tokens.json has it; `idle` is what tokens met without transfers.
    pub fn to_json(&self, plan: &TokenPlan, idle: &TokensPlayed) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let late = |share: f64| self.lateness.quantile(share).as_nanos() as f64 / 1e3;
        json!({
            "schema": "uroce.kv.tokens/1",
            "seed": plan.seed,
            "beside": self.beside.to_string(),
            "path": plan.path.to_string(),
            "rtt_ms": ms(plan.path.delay * 2),
            "apart": plan.apart.is_some(),
            "flows": if self.beside == Beside::Nothing { 0 } else { plan.flows },
            "messages": self.latencies.len(),
            "median_ms": ms(self.quantile(0.5)),
            "p99_ms": ms(self.quantile(0.99)),
            "over_of_rtt": self.over_of_rtt(plan, idle),
            "goodput_bps": self.goodput_bps.round(),
            "late_median_us": late(0.5),
            "late_p99_us": late(0.99),
            "late_max_us": late(1.0),
        })
    }

    /// How much longer 99 % of tokens take than with nothing beside them, as a share of the round trip without queues.
    pub fn over_of_rtt(&self, plan: &TokenPlan, idle: &TokensPlayed) -> f64 {
        let [with, without] = [self, idle].map(|played| played.quantile(0.99).as_secs_f64());
        (with - without) / (plan.path.delay * 2).as_secs_f64()
    }
}

/// Sends tokens through a network of their own.
///
/// # Errors
/// What could not be done, in words.
pub fn play_tokens(plan: &TokenPlan, beside: Beside) -> Result<TokensPlayed, String> {
    let mut wan = Wan::start(Plan::simple(plan.path, plan.seed)).map_err(|error| error.to_string())?;
    let (to_sender, of_receiver) = channel();
    let (to_receiver, of_sender) = channel();
    let (latencies, goodput_bps) = std::thread::scope(|scope| {
        let wan = &wan;
        let ends = |side| Ends { plan, beside, interface: wan.host(side, 0).interface };
        let receiver = scope.spawn(move || {
            let ends = ends(Side::B);
            wan.namespace(Side::B).run(move || ends.receive(&to_sender, of_sender))
        });
        // The receiver ends when nobody can tell it anything any more.
        let sent = wan.namespace(Side::A).run(move || ends(Side::A).send(to_receiver, of_receiver));
        receiver.join().map_err(|_| "the receiver panicked".to_owned())??;
        sent
    })?;
    let counts = wan.stop().map_err(|error| error.to_string())?;
    Ok(TokensPlayed { beside, latencies, goodput_bps, lateness: counts.lateness })
}

/// What the hosts say to each other.
enum Told {
    /// The queue pairs, those of tokens first, and the memory to write to.
    Here(Vec<Peer>, Option<Remote>),
    /// When a token arrived, on the clock of engines, in nanoseconds.
    Arrived(u64),
}

/// What a host knows.
struct Ends<'a> {
    plan: &'a TokenPlan,
    beside: Beside,
    interface: String,
}

/// A device, opened once.
struct Device {
    context: Context,
    pd: ProtectionDomain,
    memory: MemoryRegion,
}

/// A host's devices and what it has there.
struct Here {
    device: Device,
    /// That of transfers, where they are apart.
    apart: Option<Device>,
    tokens: (QueuePair, CompletionQueue, CompletionChannel),
    flows: Vec<(QueuePair, CompletionQueue)>,
}

impl Here {
    /// The memory of transfers.
    fn memory(&self) -> &MemoryRegion {
        &self.apart.as_ref().unwrap_or(&self.device).memory
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

impl Ends<'_> {
    fn device(&self) -> Result<Device, String> {
        let mut options = OpenOptions::from_env().map_err(text)?;
        (options.device, options.link) = (Some(self.interface.clone()), self.plan.link);
        options.arbiter = self.plan.apart.clone().or(options.arbiter);
        let context = options.open().map_err(text)?;
        let pd = context.allocate_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let memory = pd.allocate_region(OUTSTANDING * MESSAGE_BYTES, access).map_err(text)?;
        Ok(Device { context, pd, memory })
    }

    fn open(&self) -> Result<Here, String> {
        let device = self.device()?;
        let apart = if self.plan.apart.is_some() { Some(self.device()?) } else { None };
        let Device { context, pd, .. } = &device;
        let channel = CompletionChannel::new().map_err(text)?;
        let cq = context.create_completion_queue_on(2 * TOKENS_OUTSTANDING, &channel);
        let room = |count| Capabilities { max_send_requests: count, max_receive_requests: count };
        let options =
            QueuePairOptions { capabilities: room(TOKENS_OUTSTANDING), ..QueuePairOptions::new(Service::Rc, &cq) };
        let tokens = pd.create_queue_pair(&options).map_err(text)?;
        let flows = if self.beside == Beside::Nothing { 0 } else { self.plan.flows };
        let Device { context, pd, .. } = apart.as_ref().unwrap_or(&device);
        let flow = |_| {
            let cq = context.create_completion_queue(2 * OUTSTANDING);
            let options =
                QueuePairOptions { capabilities: room(OUTSTANDING), ..QueuePairOptions::new(Service::Rc, &cq) };
            Ok((pd.create_queue_pair(&options).map_err(text)?, cq))
        };
        let flows = (0..flows).map(flow).collect::<Result<_, String>>()?;
        Ok(Here { device, apart, tokens: (tokens, cq, channel), flows })
    }

    /// Connects to the other host, which does the same; returns its memory.
    fn connect(&self, here: &Here, to: &Sender<Told>, of: &Receiver<Told>) -> Result<Remote, String> {
        let queue_pairs: Vec<&QueuePair> =
            [&here.tokens.0].into_iter().chain(here.flows.iter().map(|(qp, _)| qp)).collect();
        let peers = queue_pairs.iter().map(|qp| qp.local()).collect();
        to.send(Told::Here(peers, Some(here.memory().remote(0)))).map_err(text)?;
        let Told::Here(peers, Some(memory)) = of.recv_timeout(PATIENCE).map_err(text)? else {
            return Err("the other host says nothing of its queue pairs".into());
        };
        let classes = self.beside.traffic_classes();
        for (index, (qp, peer)) in queue_pairs.iter().zip(&peers).enumerate() {
            let options = ConnectOptions::new().traffic_class(classes[index.min(1)]);
            qp.connect_with(peer, &options).map_err(text)?;
        }
        Ok(memory)
    }

    /// Receives tokens, and tells when each arrived.
    fn receive(&self, to: &Sender<Told>, of: Receiver<Told>) -> Result<(), String> {
        let here = self.open()?;
        let (qp, cq, channel) = &here.tokens;
        qp.init(&ConnectOptions::new()).map_err(text)?;
        let request =
            || ReceiveRequest { wr_id: 0, sges: [here.device.memory.sge(0, TOKEN_BYTES)].into_iter().collect() };
        for _ in 0..TOKENS_OUTSTANDING {
            qp.post_receive(request()).map_err(text)?;
        }
        self.connect(&here, to, &of)?;
        let end = Err(std::sync::mpsc::TryRecvError::Disconnected);
        while of.try_recv().map(|_| ()) != end {
            cq.request_notification(Notify::Next);
            let mut found = false;
            while let Some(token) = cq.poll() {
                found = true;
                if token.status != Status::Success {
                    return Err(format!("a receive request ended with {}", token.status));
                }
                to.send(Told::Arrived(token.time.as_ns())).map_err(text)?;
                qp.post_receive(request()).map_err(text)?;
            }
            if !found {
                channel.wait(Duration::from_millis(10)).map_err(text)?;
            }
        }
        Ok(())
    }

    /// Sends tokens, beside WRITEs. Returns how long each took, the shortest first, and the goodput of the WRITEs.
    fn send(&self, to: Sender<Told>, of: Receiver<Told>) -> Result<(Vec<Duration>, f64), String> {
        let here = self.open()?;
        let there = self.connect(&here, &to, &of)?;
        let (tokens, cq, channel) = &here.tokens;
        let mut flows: Vec<Flow> = here.flows.iter().map(|(qp, cq)| Flow { qp, cq, posted: 0, completed: 0 }).collect();
        let mut random = Random::new(self.plan.seed, 5);
        let warm_up = if flows.is_empty() { 1 } else { self.plan.warm_up };
        let mut posted_at = Vec::new();
        let (mut measured, mut next) = (None, Instant::now());
        while posted_at.len() < warm_up + self.plan.tokens {
            for flow in &mut flows {
                flow.work(here.memory(), there)?;
            }
            if posted_at.len() == warm_up {
                measured = Some((Instant::now(), completed(&flows)));
            }
            posted_at.push(here.device.context.now().as_ns());
            let sges = [here.device.memory.sge(0, TOKEN_BYTES)].into_iter().collect();
            tokens.post_send(SendRequest::new(0, SendOperation::Send, Data::Sges(sges))).map_err(text)?;
            next += random.up_to(self.plan.every * 2);
            // A program that says that it sleeps has the device's own thread send in time.
            while let Some(left) = next.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                cq.request_notification(Notify::Next);
                channel.wait(left).map_err(text)?;
                while let Some(sent) = cq.poll() {
                    succeeded(sent.status)?;
                }
            }
        }
        let (from, before) = measured.ok_or("no token was sent")?;
        let goodput_bps = (completed(&flows) - before) as f64 * 8.0 / from.elapsed().as_secs_f64();
        let mut latencies = Vec::with_capacity(posted_at.len());
        for posted in &posted_at {
            let Told::Arrived(at) = of.recv_timeout(PATIENCE).map_err(text)? else { continue };
            latencies.push(Duration::from_nanos(at.saturating_sub(*posted)));
        }
        let mut latencies = latencies.split_off(warm_up);
        latencies.sort_unstable();
        Ok((latencies, goodput_bps))
    }
}

/// A queue pair that WRITEs without end.
struct Flow<'a> {
    qp: &'a QueuePair,
    cq: &'a CompletionQueue,
    posted: usize,
    completed: usize,
}

impl Flow<'_> {
    /// Takes completions, and posts what there is room for.
    fn work(&mut self, memory: &MemoryRegion, there: Remote) -> Result<(), String> {
        while let Some(written) = self.cq.poll() {
            succeeded(written.status)?;
            self.completed += 1;
        }
        while self.posted < self.completed + OUTSTANDING {
            let offset = self.posted % OUTSTANDING * MESSAGE_BYTES;
            let to = Remote { address: there.address + offset as u64, ..there };
            let data = memory.sge(offset, MESSAGE_BYTES).into();
            self.qp.post_send(SendRequest::new(0, SendOperation::Write(to), data)).map_err(text)?;
            self.posted += 1;
        }
        Ok(())
    }
}

/// Bytes of WRITEs that completed.
fn completed(flows: &[Flow<'_>]) -> usize {
    flows.iter().map(|flow| flow.completed * MESSAGE_BYTES).sum()
}

fn succeeded(status: Status) -> Result<(), String> {
    if status == Status::Success { Ok(()) } else { Err(format!("a send request ended with {status}")) }
}
