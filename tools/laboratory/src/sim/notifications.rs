//! Congestion notifications: flows whose packets are marked by the bottleneck, and an attacker who forges notifications.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use uroce::congestion::{CongestionControl, Rate};
use uroce::frame::FrameBytes;
use uroce::time::{Duration, Instant};
use uroce::transport::{Counters, RecoveryMode, RecoverySettings};
use uroce::wire::{Cnp, PathMtu, Qpn};

use crate::ethernet::with_ethernet;
use crate::world;

use super::link::{Faults, LinkProfile};
use super::marking::Marking;
use super::network::{LinkEnd, LinkId, Network, NodeId, Step};
use super::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

/// One flow over a bottleneck, and an attacker who sends its sender notifications that nobody else has a reason for.
#[derive(Clone, Copy, Debug)]
pub struct FloodCell {
    /// What decides on the rate of the flow.
    pub control: CongestionControl,
    /// Whether the ends know each other (docs/EXTENSIONS.md), or are plain peers.
    pub is_known: bool,
    /// The rate of the bottleneck, in bits of Ethernet frames a second.
    pub line_bps: u64,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The time between two forged notifications.
    pub every: Duration,
    /// How long there are none, then how long there are, and then how long there are none again.
    pub phases: [Duration; 3],
}

/// The result of a cell.
#[derive(Clone, Debug)]
pub struct Flood {
    /// The goodput in each round trip, in bits a second.
    pub goodput_bps: Vec<f64>,
    /// The counters of the sender.
    pub counters: Counters,
}

/// The length of messages, in bytes: a packet, so that what is acknowledged at once does not count beside a small window.
const MESSAGE_BYTES: usize = 1 << 12;

impl FloodCell {
    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed.
    pub fn run(&self, seed: u64) -> Result<Flood, TransferError> {
        let mut network = Network::new(seed);
        let nodes = [0, 1].map(|end| network.add_endpoint(seed, 1000 + end));
        for [from, to] in [nodes, [nodes[1], nodes[0]]] {
            let profile = LinkProfile {
                bytes_per_second: self.line_bps / 8,
                delay: self.round_trip / 2,
                queue_bytes: (self.line_bps as f64 / 8.0 * self.round_trip.as_secs_f64()) as u64,
                marking: None,
                faults: Faults::NONE,
            };
            network.add_link(LinkEnd::Node(from), LinkEnd::Node(to), profile);
        }
        let recovery = if self.is_known { RecoveryMode::Auto } else { RecoveryMode::GoBackN };
        let settings = RecoverySettings { recovery, ..RecoverySettings::default() }.with_congestion(self.control);
        let outstanding = 4000;
        let plan = TransferPlan {
            path_mtu: PathMtu::Mtu4096,
            operation: TransferOperation::Write,
            message_bytes: MESSAGE_BYTES,
            outstanding,
            region_bytes: outstanding * MESSAGE_BYTES,
            recovery: [settings; 2],
            timeout: 16,
        };
        let mut transfer = Transfer::new(&mut network, nodes, plan, seed);
        let frame = forged(nodes, transfer.qpns()[0]);
        transfer.post(&mut network, &mut ());
        let mut at = Instant::ZERO;
        let mut goodput_bps = Vec::new();
        for (phase, lasts) in self.phases.into_iter().enumerate() {
            let until = at + lasts;
            if phase == 1 {
                network.wake_at(at, 0);
            }
            while at < until {
                at = at + self.round_trip;
                let before = transfer.completed_bytes();
                self.until(&mut network, &mut transfer, at, (phase == 1).then_some((nodes[0], &frame[..])))?;
                let bytes = (transfer.completed_bytes() - before) as f64;
                goodput_bps.push(bytes * 8.0 / self.round_trip.as_secs_f64());
            }
        }
        Ok(Flood { goodput_bps, counters: network.endpoint(nodes[0]).counters() })
    }

    /// Runs the network until `until`. At each waking the attack's frame reaches its victim.
    fn until(
        &self,
        network: &mut Network,
        transfer: &mut Transfer,
        until: Instant,
        attack: Option<(NodeId, &[u8])>,
    ) -> Result<(), TransferError> {
        while network.next().is_some_and(|at| at <= until) {
            match network.step(&mut ()) {
                Some(Step::Handled(_)) => _ = transfer.poll_and_post(network, &mut ())?,
                Some(Step::Woken(_)) if let Some((victim, frame)) = attack => {
                    let now = network.now();
                    network.endpoint(victim).handle_frame(now, FrameBytes::from(frame));
                    network.kick(victim, &mut ());
                    network.wake_at(now + self.every, 0);
                }
                _ => {}
            }
        }
        network.advance_to(until);
        Ok(())
    }
}

/// Flows that share a bottleneck which marks packets, as the switches of a data centre do.
#[derive(Clone, Copy, Debug)]
pub struct MarkedCell {
    /// What decides on the rate of each flow.
    pub control: CongestionControl,
    /// Whether the ends know each other (docs/EXTENSIONS.md), or are plain peers.
    pub is_known: bool,
    /// What each flow repeats.
    pub operation: TransferOperation,
    /// The number of flows.
    pub flows: usize,
    /// The rate of the bottleneck, and of all other links, in bits of Ethernet frames a second.
    pub line_bps: u64,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// Bytes in the bottleneck's queue above which it marks, and above which it drops.
    pub queue_bytes: [u64; 2],
    /// How long the flows run, and from when on they are measured.
    pub times: [Duration; 2],
}

/// The result of a cell.
#[derive(Clone, Debug)]
pub struct Marked {
    /// The goodput of each flow in the measured time, in bits a second.
    pub goodput_bps: Vec<f64>,
    /// Frames that were marked, and that found the queue full.
    pub marked: u64,
    /// The same, dropped.
    pub dropped: u64,
    /// The mean of the bottleneck's queue in the measured time, looked at each ten microseconds, in bytes.
    pub mean_queue_bytes: f64,
    /// The counters of the senders of data, added up, and those of its receivers.
    pub counters: [Counters; 2],
}

impl MarkedCell {
    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed.
    pub fn run(&self, seed: u64) -> Result<Marked, TransferError> {
        let mut network = Network::new(seed);
        let pairs: Vec<[NodeId; 2]> = (0..self.flows as u64)
            .map(|flow| [0, 1].map(|end| network.add_endpoint(seed, 1000 + 2 * flow + end)))
            .collect();
        let bottleneck = self.connect(&mut network, &pairs);
        let recovery = if self.is_known { RecoveryMode::Auto } else { RecoveryMode::GoBackN };
        let settings = RecoverySettings { recovery, ..RecoverySettings::default() }
            .with_congestion(self.control)
            .with_line_rate(Some(Rate::from_bits(self.line_bps)));
        let outstanding = 64;
        let plan = TransferPlan {
            path_mtu: PathMtu::Mtu4096,
            operation: self.operation,
            message_bytes: 1 << 16,
            outstanding,
            region_bytes: outstanding << 16,
            recovery: [settings; 2],
            timeout: 14,
        };
        let mut flows: Vec<Transfer> =
            pairs.iter().map(|nodes| Transfer::new(&mut network, *nodes, plan, seed)).collect();
        flows.iter_mut().for_each(|flow| flow.post(&mut network, &mut ()));
        let [end, from] = self.times.map(|time| Instant::ZERO + time);
        let (mut look_at, mut queues, mut before) = (from, Vec::new(), Vec::new());
        while network.next().is_some_and(|at| at <= end) {
            if let Some(Step::Handled(NodeId(node))) = network.step(&mut ()) {
                flows[node / 2].poll_and_post(&mut network, &mut ())?;
            }
            while look_at <= network.now() {
                if before.is_empty() {
                    before = flows.iter().map(Transfer::completed_bytes).collect();
                }
                queues.push(network.queue_delay(bottleneck).as_secs_f64() * self.line_bps as f64 / 8.0);
                look_at = look_at + Duration::from_micros(10);
            }
        }
        let seconds = (end - from).as_secs_f64();
        let bytes = flows.iter().zip(&before).map(|(flow, before)| flow.completed_bytes() - before);
        let goodput_bps = bytes.map(|bytes| bytes as f64 * 8.0 / seconds).collect();
        let mut counters = [Counters::default(); 2];
        for pair in &pairs {
            for (sum, node) in counters.iter_mut().zip(pair) {
                sum.add(&network.endpoint(*node).counters());
            }
        }
        let mean_queue_bytes = queues.iter().sum::<f64>() / queues.len() as f64;
        let tally = network.tally();
        Ok(Marked { goodput_bps, marked: tally.marked, dropped: tally.lost_to_full_queues, mean_queue_bytes, counters })
    }

    /// Connects the pairs over two switches, and returns the link from the first nodes to the second ones.
    fn connect(&self, network: &mut Network, pairs: &[[NodeId; 2]]) -> LinkId {
        let [left, right] = [network.add_switch(), network.add_switch()];
        let profile = |delay| LinkProfile {
            bytes_per_second: self.line_bps / 8,
            delay,
            queue_bytes: u64::MAX,
            marking: None,
            faults: Faults::NONE,
        };
        let [mark, drop] = self.queue_bytes;
        let marking = LinkProfile { queue_bytes: drop, marking: Some(Marking::above(mark)), ..profile(Duration::ZERO) };
        let there = network.add_link(LinkEnd::Switch(left), LinkEnd::Switch(right), marking);
        let back = network.add_link(LinkEnd::Switch(right), LinkEnd::Switch(left), profile(Duration::ZERO));
        for pair in pairs {
            for (node, near, away, link) in [(pair[0], left, right, back), (pair[1], right, left, there)] {
                let access = profile(self.round_trip / 8);
                network.add_link(LinkEnd::Node(node), LinkEnd::Switch(near), access.clone());
                let down = network.add_link(LinkEnd::Switch(near), LinkEnd::Node(node), access);
                network.add_route(near, node, down);
                network.add_route(away, node, link);
            }
        }
        there
    }
}

/// A notification in the name of the second node for a queue pair of the first.
fn forged(nodes: [NodeId; 2], destination: Qpn) -> Vec<u8> {
    let [victim, peer] = nodes.map(|node| Ipv4Addr::new(10, 0, 0, 1 + node.0 as u8));
    let mut packet = vec![0; 200];
    let fill = |out: &mut [u8]| {
        out.fill(0);
        Ok::<_, Infallible>(())
    };
    let (headers, flow) = (Cnp { destination }.headers(), Cnp::flow(&world::flow(peer, victim)));
    let len = headers.write(&mut packet, &flow, 1, Cnp::RESERVED_BYTES, fill).expect("it fits");
    with_ethernet(&packet[..len])
}
