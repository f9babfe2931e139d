use uroce::time::Duration;

use super::goodput::{FRAME, PAYLOAD};
use super::link::{Faults, LinkProfile};
use super::network::{LinkEnd, Network, NodeId};

/// A line between two hosts, the same both ways. In front of it is a queue of a bandwidth-delay product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The rate, in bits of Ethernet frames a second.
    pub bps: u64,
    /// The rate of the hosts' own links to it, which is higher: packets wait in the line's queue, not at the sender.
    pub host_bps: u64,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The share of frames that are lost in each direction, 0 to 1.
    pub loss: f64,
}

impl Line {
    /// Two hosts on links of their own, and between them the line.
    pub(super) fn network(&self, seed: u64) -> (Network, [NodeId; 2]) {
        let mut network = Network::new(seed);
        let nodes = [0, 1].map(|node| network.add_endpoint(seed, 10 + node));
        let path = LinkProfile {
            bytes_per_second: self.bps / 8,
            delay: self.round_trip / 2,
            queue_bytes: self.bdp_bytes(),
            marking: None,
            faults: Faults { loss: self.loss, ..Faults::NONE },
        };
        let host = LinkProfile {
            bytes_per_second: self.host_bps / 8,
            delay: Duration::ZERO,
            queue_bytes: u64::MAX,
            faults: Faults::NONE,
            ..path.clone()
        };
        for (from, to) in [(0, 1), (1, 0)] {
            let switch = network.add_switch();
            network.add_link(LinkEnd::Node(nodes[from]), LinkEnd::Switch(switch), host.clone());
            let out = network.add_link(LinkEnd::Switch(switch), LinkEnd::Node(nodes[to]), path.clone());
            network.add_route(switch, nodes[to], out);
        }
        (network, nodes)
    }

    /// What the line carries in a round trip, in bytes of frames.
    pub(super) fn bdp_bytes(&self) -> u64 {
        self.bps / 8 * self.round_trip.as_micros() as u64 / 1_000_000
    }

    /// The payload that the line carries when nothing but full packets is sent and none twice, in bits a second.
    pub fn payload_bps(&self) -> f64 {
        self.bps as f64 * PAYLOAD as f64 / FRAME as f64
    }
}
