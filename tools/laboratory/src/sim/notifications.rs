//! Congestion notifications: flows whose packets are marked by the bottleneck, and an attacker who forges notifications.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use uroce::congestion::CongestionControl;
use uroce::frame::FrameBytes;
use uroce::time::{Duration, Instant};
use uroce::transport::{Counters, Endpoint, RecoveryMode, RecoverySettings};
use uroce::wire::{Cnp, Qpn};

use crate::ethernet::with_ethernet;
use crate::world;

use super::link::{Faults, LinkProfile};
use super::network::{LinkEnd, Network, NodeId, Step};
use super::random::Random;
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
        let nodes = [0, 1].map(|end| {
            let mut random = Random::new(seed, 1000 + end);
            network.add_node(Endpoint::new([0; 32].map(|_: u8| random.u32() as u8)))
        });
        for [from, to] in [nodes, [nodes[1], nodes[0]]] {
            let profile = LinkProfile {
                bytes_per_second: self.line_bps / 8,
                delay: self.round_trip / 2,
                queue_bytes: (self.line_bps as f64 / 8.0 * self.round_trip.as_secs_f64()) as u64,
                ecn_threshold_bytes: None,
                faults: Faults::NONE,
            };
            network.add_link(LinkEnd::Node(from), LinkEnd::Node(to), profile);
        }
        let recovery = if self.is_known { RecoveryMode::Auto } else { RecoveryMode::GoBackN };
        let settings = RecoverySettings { recovery, ..RecoverySettings::default() }.with_congestion(self.control);
        let outstanding = 4000;
        let plan = TransferPlan {
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
                Some(Step::Handled(_)) => {
                    let before = transfer.completed_bytes();
                    transfer.poll();
                    if transfer.completed_bytes() > before {
                        transfer.post(network, &mut ());
                    }
                }
                Some(Step::Woken(_)) if let Some((victim, frame)) = attack => {
                    let now = network.now();
                    network.endpoint(victim).handle_frame(now, FrameBytes::from(frame));
                    network.kick(victim, &mut ());
                    network.wake_at(now + self.every, 0);
                }
                _ => {}
            }
            if let Some(failure) = transfer.failure() {
                return Err(failure.clone());
            }
        }
        network.advance_to(until);
        Ok(())
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
