//! Tokens beside bulk: how long a short message takes while large transfers load the line, with and without classes.

use uroce::congestion::{CongestionControl, Rate};
use uroce::time::{Duration, Instant};
use uroce::transport::{Class, RecoveryMode, RecoverySettings};
use uroce::wire::PathMtu;

use super::link::{Faults, LinkProfile};
use super::network::{LinkEnd, Network, NodeId, Observer, Step};
use super::random::Random;
use super::tokens::Tokens;
use super::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

/// Where tokens and bulk meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Two hosts send bulk over a switch to a third one, and one of them tokens. Each link has a queue for each class.
    Switch,
    /// A host's own line is the wide area network: a single queue, first in, first out.
    WanLine,
    /// The host's line is faster, and the wide area network behind it is such a queue.
    Wan,
}

/// One cell of the table: tokens beside bulk that loads the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriorityCell {
    /// Where they meet.
    pub meeting: Meeting,
    /// The load of bulk, as a share of the line; with 1 nobody tells it a rate, and it takes what there is.
    pub load: f64,
    /// The number of tokens that are measured.
    pub tokens: usize,
}

/// The result of a cell. Latencies are those of tokens, from the request to the receiver's completion.
#[derive(Clone, Debug)]
pub struct Priorities {
    /// The median without bulk.
    pub idle: Duration,
    /// The latency that 99 % of tokens must keep to with classes.
    pub bound: Duration,
    /// With tokens urgent and bulk of its class.
    pub classes: Latency,
    /// With all in one class.
    pub one_class: Latency,
    /// How long the longest frame takes on the line.
    pub frame: Duration,
}

/// What tokens met.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// The median.
    pub median: Duration,
    /// The latency that one of a hundred exceeds.
    pub p99: Duration,
    /// The share of the line that all frames took.
    pub load: f64,
}

/// The number of bulk flows, over all hosts that send.
const FLOWS: usize = 8;

impl Meeting {
    /// All of them, in the order of the table.
    pub const ALL: [Meeting; 3] = [Meeting::Switch, Meeting::WanLine, Meeting::Wan];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Meeting::Switch => "switch",
            Meeting::WanLine => "wan-line",
            Meeting::Wan => "wan",
        }
    }

    /// The rate of the line that is loaded, in bits of Ethernet frames a second.
    pub fn line_bps(self) -> u64 {
        match self {
            Meeting::Switch => HOST_BPS,
            Meeting::WanLine | Meeting::Wan => 1_000_000_000,
        }
    }

    /// The round trip without queues.
    pub fn round_trip(self) -> Duration {
        match self {
            Meeting::Switch => Duration::from_micros(10),
            Meeting::WanLine | Meeting::Wan => Duration::from_millis(40),
        }
    }

    /// The links that a token takes.
    pub fn hops(self) -> u32 {
        match self {
            Meeting::Switch | Meeting::Wan => 2,
            Meeting::WanLine => 1,
        }
    }

    /// The mean time between two tokens.
    fn every(self) -> Duration {
        self.round_trip() / if self == Meeting::Switch { 1 } else { 40 }
    }

    /// How much longer than without bulk 99 % of tokens may take: a frame's time a hop where hops know classes, 2 % of
    /// the round trip where one does not.
    fn allowance(self, frame: Duration) -> Duration {
        if self == Meeting::Switch { frame * self.hops() } else { self.round_trip() / 50 }
    }
}

/// The rate of a host's line.
const HOST_BPS: u64 = 25_000_000_000;

/// What is different between the runs of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Idle,
    Classes,
    OneClass,
}

impl PriorityCell {
    /// The table: bulk at 95 % of the line, and bulk that takes all of it.
    pub fn table() -> Vec<PriorityCell> {
        let cell = |meeting, load| PriorityCell { meeting, load, tokens: 10_000 };
        Meeting::ALL.iter().flat_map(|meeting| [0.95, 1.0].map(|load| cell(*meeting, load))).collect()
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed.
    pub fn run(&self, seed: u64) -> Result<Priorities, TransferError> {
        let (mut idle, _, _) = self.play(Run::Idle, seed)?;
        let (classes, load, frame_bytes) = self.play(Run::Classes, seed)?;
        let (one_class, one_load, _) = self.play(Run::OneClass, seed)?;
        idle.sort_unstable();
        let frame = Duration::from_nanos(frame_bytes * 8_000_000_000 / self.meeting.line_bps());
        let idle = idle[idle.len() / 2];
        let bound = idle + self.meeting.allowance(frame);
        let [classes, one_class] = [(classes, load), (one_class, one_load)].map(|(mut all, load)| {
            all.sort_unstable();
            Latency { median: all[all.len() / 2], p99: all[all.len() * 99 / 100], load }
        });
        Ok(Priorities { idle, bound, classes, one_class, frame })
    }

    /// The latencies of tokens, the load of the line, and the length of the longest frame.
    fn play(&self, run: Run, seed: u64) -> Result<(Vec<Duration>, f64, u64), TransferError> {
        let (mut network, senders, receiver) = self.network(seed);
        let settings = RecoverySettings { recovery: RecoveryMode::Auto, ..RecoverySettings::default() }
            .with_congestion(CongestionControl::default())
            .with_line_rate(Some(Rate::from_bits(self.meeting.line_bps())));
        let class = |class| if run == Run::Classes { class } else { Class::Normal };
        let mut tokens = Tokens::new(&mut network, [senders[0], receiver], settings, class(Class::Urgent));
        let mut bulk = match run {
            Run::Idle => Vec::new(),
            Run::Classes | Run::OneClass => self.bulk(&mut network, &senders, receiver, settings, class(Class::Bulk)),
        };
        let mut seen = Seen { receiver, bytes: 0, longest: 0 };
        let mut random = Random::new(seed, 5);
        for flow in &mut bulk {
            flow.post(&mut network, &mut seen);
        }
        // Flows find their rates, and peers recognize each other by the first tokens.
        let mut left = self.tokens as u64;
        let from = Instant::ZERO + self.meeting.round_trip() * WARM_UP_ROUND_TRIPS;
        tokens.post(&mut network, &mut seen);
        network.wake_at(from, 0);
        let mut began = None;
        while (tokens.latencies.len() as u64) < self.tokens as u64 + 1 {
            match network.step(&mut seen) {
                Some(Step::Handled(_)) => {
                    tokens.poll(&mut network)?;
                    for flow in &mut bulk {
                        flow.poll_and_post(&mut network, &mut seen)?;
                    }
                }
                Some(Step::Woken(_)) if left > 0 => {
                    began.get_or_insert((network.now(), seen.bytes));
                    left -= 1;
                    tokens.post(&mut network, &mut seen);
                    let next = network.now() + random.up_to(self.meeting.every() * 2);
                    network.wake_at(next, 0);
                }
                Some(_) => {}
                None => return Err(TransferError::Wrong("nothing happens".to_owned())),
            }
        }
        let (began, before) = began.expect("tokens were sent");
        let bits = (seen.bytes - before) as f64 * 8.0;
        let load = bits / (network.now() - began).as_secs_f64() / self.meeting.line_bps() as f64;
        Ok((tokens.latencies.split_off(1), load, seen.longest))
    }

    /// The flows that load the line, each with its part of the load as its upper bound.
    fn bulk(
        &self,
        network: &mut Network,
        senders: &[NodeId],
        receiver: NodeId,
        settings: RecoverySettings,
        class: Class,
    ) -> Vec<Transfer> {
        let rate = Rate::from_bits((self.load * self.meeting.line_bps() as f64) as u64 / FLOWS as u64);
        let settings = RecoverySettings { rate: (self.load < 1.0).then_some(rate), ..settings };
        let outstanding = 8;
        let plan = TransferPlan {
            path_mtu: PathMtu::Mtu4096,
            operation: TransferOperation::Write,
            message_bytes: 1 << 18,
            outstanding,
            region_bytes: outstanding << 18,
            recovery: [settings; 2],
            timeout: 16,
        };
        let sender = |flow: usize| senders[flow % senders.len()];
        (0..FLOWS).map(|flow| Transfer::of_class(network, [sender(flow), receiver], plan, class, flow as u64)).collect()
    }

    /// The network, the hosts that send, the first of them tokens too, and the one that receives.
    fn network(&self, seed: u64) -> (Network, Vec<NodeId>, NodeId) {
        let mut network = Network::new(seed);
        // An interface takes a frame when the one before has left it: what waits, waits where classes count.
        network.set_interface_bytes(0);
        let count = if self.meeting == Meeting::Switch { 3 } else { 2 };
        let nodes: Vec<NodeId> = (0..count).map(|node| network.add_endpoint(seed, 1000 + node)).collect();
        let (receiver, senders) = (nodes[count as usize - 1], nodes[..count as usize - 1].to_vec());
        let (line, delay) = (self.meeting.line_bps(), self.meeting.round_trip() / 2 / self.meeting.hops());
        let profile = |bps: u64| LinkProfile {
            bytes_per_second: bps / 8,
            delay,
            queue_bytes: u64::MAX,
            marking: None,
            faults: Faults::NONE,
        };
        if self.meeting == Meeting::WanLine {
            network.add_link(LinkEnd::Node(senders[0]), LinkEnd::Node(receiver), profile(line));
            network.add_link(LinkEnd::Node(receiver), LinkEnd::Node(senders[0]), profile(line));
            return (network, senders, receiver);
        }
        let switch = network.add_switch();
        for node in &nodes {
            network.add_link(LinkEnd::Node(*node), LinkEnd::Switch(switch), profile(HOST_BPS));
            let is_loaded = *node == receiver;
            let rate = if is_loaded { line } else { HOST_BPS };
            let down = network.add_link(LinkEnd::Switch(switch), LinkEnd::Node(*node), profile(rate));
            network.add_route(switch, *node, down);
            if self.meeting == Meeting::Switch {
                network.add_priority_queues(down);
            }
        }
        (network, senders, receiver)
    }
}

/// Round trips before tokens are measured.
const WARM_UP_ROUND_TRIPS: u32 = 40;

/// Counts what arrives at the receiver.
struct Seen {
    receiver: NodeId,
    bytes: u64,
    /// The length of the longest frame.
    longest: u64,
}

impl Observer for Seen {
    fn arriving(&mut self, _: Instant, node: NodeId, frame: &[u8], _: super::Condition) {
        if node == self.receiver {
            self.bytes += frame.len() as u64;
            self.longest = self.longest.max(frame.len() as u64);
        }
    }
}
