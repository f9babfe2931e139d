use uroce::congestion::{CongestionControl, Rate};
use uroce::time::{Duration, Instant};
use uroce::transport::{Class, RecoveryMode, RecoverySettings};
use uroce::wire::PathMtu;

use super::link::{Faults, LinkProfile};
use super::network::{LinkEnd, LinkId, Network, NodeId, Step};
use super::planes::FIRST_PORT;
use super::random::Random;
use super::tokens::Tokens;
use super::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

/// Tokens beside KV transfers at full rate, over a wide area network that is one queue, first in, first out: nobody
/// tells the transfers a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenCell {
    /// The rate of the line, in bits of Ethernet frames a second.
    pub line_bps: u64,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The number of flows that transfer KV caches.
    pub flows: usize,
    /// The share of frames that are lost by chance in each direction, 0 to 1.
    pub loss: f64,
    /// The number of tokens that are measured.
    pub tokens: usize,
}

/// The result of a cell.
#[derive(Clone, Debug)]
pub struct TokenDelays {
    /// Without transfers, under the same loss.
    pub idle: TokenDelay,
    /// With tokens urgent and transfers of class bulk.
    pub classes: TokenDelay,
    /// With all in one class.
    pub one_class: TokenDelay,
}

/// What tokens met, from the request to the receiver's completion, and what transfers reached beside them.
#[derive(Clone, Copy, Debug)]
pub struct TokenDelay {
    /// The median.
    pub median: Duration,
    /// The latency that one of a hundred exceeds.
    pub p99: Duration,
    /// The time that tokens wait in the line's queue, which one of a hundred exceeds.
    pub queue_p99: Duration,
    /// Payload of transfers, in bits a second: of each between its first and its last completion in the measured time, since
    /// messages are long, and a lost packet keeps back those behind it.
    pub goodput_bps: f64,
}

/// What is different between the runs of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Idle,
    Classes,
    OneClass,
}

/// The rate of the hosts' own links to the line.
const HOST_BPS: u64 = 25_000_000_000;

/// Round trips after which tokens begin, and those after which they are measured.
const BEGIN_ROUND_TRIPS: u32 = 20;
const WARM_UP_ROUND_TRIPS: u32 = 60;

/// Tokens in a round trip, on average.
const IN_A_ROUND_TRIP: u32 = 40;

/// Length of a message of a transfer, in bytes, and how many each flow has outstanding: more than the longest line takes.
const MESSAGE_BYTES: usize = 1 << 20;
const OUTSTANDING: usize = 32;

impl TokenCell {
    /// The table.
    pub fn table() -> Vec<TokenCell> {
        let mut cells = Vec::new();
        for line_bps in [300_000_000, 1_000_000_000] {
            for round_trip in [30, 40, 100].map(Duration::from_millis) {
                for flows in [1, 4] {
                    for loss in [0.0, 0.001, 0.01] {
                        cells.push(TokenCell { line_bps, round_trip, flows, loss, tokens: 10_000 });
                    }
                }
            }
        }
        cells
    }

    /// How much longer than without transfers one of a hundred tokens may take: 2 % of the round trip.
    pub fn allowance(&self) -> Duration {
        self.round_trip / 50
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed.
    pub fn run(&self, seed: u64) -> Result<TokenDelays, TransferError> {
        let [idle, classes, one_class] = [Run::Idle, Run::Classes, Run::OneClass].map(|run| self.play(run, seed));
        Ok(TokenDelays { idle: idle?, classes: classes?, one_class: one_class? })
    }

    fn play(&self, run: Run, seed: u64) -> Result<TokenDelay, TransferError> {
        let (mut network, nodes, line) = self.network(seed);
        let settings = RecoverySettings { recovery: RecoveryMode::Auto, ..RecoverySettings::default() }
            .with_congestion(CongestionControl::default())
            .with_line_rate(Some(Rate::from_bits(HOST_BPS)));
        let class = |class| if run == Run::OneClass { Class::Normal } else { class };
        let mut tokens = Tokens::new(&mut network, nodes, settings, class(Class::Urgent));
        let plan = TransferPlan {
            path_mtu: PathMtu::Mtu4096,
            operation: TransferOperation::Write,
            message_bytes: MESSAGE_BYTES,
            outstanding: OUTSTANDING,
            region_bytes: OUTSTANDING * MESSAGE_BYTES,
            recovery: [settings; 2],
            timeout: 16,
        };
        let flows = if run == Run::Idle { 0 } else { self.flows };
        let mut flows: Vec<Flow> = (0..flows)
            .map(|flow| Transfer::of_class(&mut network, nodes, plan, class(Class::Bulk), flow as u64))
            .map(|transfer| Flow { transfer, completions: None })
            .collect();
        flows.iter_mut().for_each(|flow| flow.transfer.post(&mut network, &mut ()));
        let mut random = Random::new(seed, 5);
        let mut queues = Vec::new();
        network.wake_at(Instant::ZERO + self.round_trip * BEGIN_ROUND_TRIPS, 0);
        let measured_from = Instant::ZERO + self.round_trip * WARM_UP_ROUND_TRIPS;
        let mut before = 0;
        while tokens.latencies.len() < before + self.tokens {
            match network.step(&mut ()) {
                Some(Step::Handled(_)) => {
                    tokens.poll(&mut network)?;
                    flows.iter_mut().try_for_each(|flow| flow.poll(&mut network, measured_from))?;
                }
                Some(Step::Woken(_)) if queues.len() < self.tokens => {
                    if network.now() < measured_from {
                        before += 1;
                    } else {
                        queues.push(network.queue_delay(line));
                    }
                    tokens.post(&mut network, &mut ());
                    let next = network.now() + random.up_to(self.round_trip / IN_A_ROUND_TRIP * 2);
                    network.wake_at(next, 0);
                }
                Some(_) => {}
                None => return Err(TransferError::Wrong("nothing happens".to_owned())),
            }
        }
        let mut latencies = tokens.latencies.split_off(before);
        [&mut latencies, &mut queues].into_iter().for_each(|times| times.sort_unstable());
        let p99 = self.tokens * 99 / 100;
        Ok(TokenDelay {
            median: latencies[self.tokens / 2],
            p99: latencies[p99],
            queue_p99: queues[p99],
            goodput_bps: flows.iter().map(Flow::goodput_bps).fold(0.0, |sum, flow| sum + flow),
        })
    }

    /// The network, the host that sends and the one that receives, and the line to the latter.
    ///
    /// Tokens and transfers share the line, and lose frames behind it. The same tokens are lost with transfers and without.
    fn network(&self, seed: u64) -> (Network, [NodeId; 2], LinkId) {
        let mut network = Network::new(seed);
        // An interface takes a frame when the one before has left it: what waits, waits where classes count.
        network.set_interface_bytes(0);
        let nodes = [0, 1].map(|node| network.add_endpoint(seed, 1000 + node));
        let host = LinkProfile {
            bytes_per_second: HOST_BPS / 8,
            delay: Duration::ZERO,
            queue_bytes: u64::MAX,
            marking: None,
            faults: Faults::NONE,
        };
        let line = LinkProfile {
            bytes_per_second: self.line_bps / 8,
            delay: self.round_trip / 2,
            queue_bytes: self.line_bps / 8 * self.round_trip.as_micros() as u64 / 1_000_000,
            ..host.clone()
        };
        let lossy = LinkProfile { faults: Faults::losses(self.loss, false), ..host.clone() };
        let lines = [(nodes[0], nodes[1]), (nodes[1], nodes[0])].map(|(from, to)| {
            let (near, far) = (network.add_switch(), network.add_switch_by_port(FIRST_PORT));
            network.add_link(LinkEnd::Node(from), LinkEnd::Switch(near), host.clone());
            let across = network.add_link(LinkEnd::Switch(near), LinkEnd::Switch(far), line.clone());
            network.add_route(near, to, across);
            let bulk = network.add_link(LinkEnd::Switch(far), LinkEnd::Node(to), lossy.clone());
            let tokens = network.add_link(LinkEnd::Switch(far), LinkEnd::Node(to), host.clone());
            network.lose_the_same(tokens, self.loss);
            [bulk, tokens].into_iter().for_each(|down| network.add_route(far, to, down));
            across
        });
        (network, nodes, lines[0])
    }
}

/// A flow that transfers KV caches.
struct Flow {
    transfer: Transfer,
    /// When the first and the latest of the messages completed that count, and the bytes of all that had completed by then.
    completions: Option<[(Instant, u64); 2]>,
}

impl Flow {
    /// Posts as many messages as have completed. What completes from then on, `measured_from`, counts.
    fn poll(&mut self, network: &mut Network, measured_from: Instant) -> Result<(), TransferError> {
        if self.transfer.poll_and_post(network, &mut ())? && network.now() >= measured_from {
            let latest = (network.now(), self.transfer.completed_bytes());
            self.completions = Some([self.completions.map_or(latest, |[first, _]| first), latest]);
        }
        Ok(())
    }

    /// Payload in bits a second; 0 before a second completion.
    fn goodput_bps(&self) -> f64 {
        let Some([(began, before), (ended, after)]) = self.completions.filter(|[first, last]| first.0 < last.0) else {
            return 0.0;
        };
        (after - before) as f64 * 8.0 / (ended - began).as_secs_f64()
    }
}
