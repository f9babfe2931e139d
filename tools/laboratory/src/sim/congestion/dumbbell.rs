use uroce::congestion::{CongestionControl, Rate};
use uroce::time::Duration;
use uroce::transport::Endpoint;

use crate::sim::link::{Faults, LinkProfile};
use crate::sim::marking::Marking;
use crate::sim::network::{LinkEnd, LinkId, Network, NodeId};
use crate::sim::random::Random;

use super::CongestionCell;

/// A network of pairs of nodes that share one link: senders, a switch, the bottleneck, a switch, receivers.
pub(super) struct Dumbbell {
    pub network: Network,
    /// The sender and the receiver of each flow.
    pub pairs: Vec<[NodeId; 2]>,
    pub bottleneck: LinkId,
}

/// How much faster the links of the nodes are than the bottleneck.
const ACCESS_FACTOR: u64 = 4;

/// Where the flows need marks, the bottleneck marks above what it carries in 32 µs: 100 KB at 25 Gb/s, as in HPCC's
/// simulations of DCQCN.
const MARKED_SHARE: u64 = 31_250;

/// The delay of the bottleneck itself, in one direction; the rest of a round trip is that of the flow's own links.
const BOTTLENECK_DELAY: Duration = Duration::from_nanos(500);

impl Dumbbell {
    pub fn new(cell: &CongestionCell, seed: u64) -> Dumbbell {
        let mut network = Network::new(seed);
        let pairs: Vec<[NodeId; 2]> = (0..cell.flows)
            .map(|flow| {
                [0, 1].map(|end| {
                    let mut random = Random::new(seed, 1000 + 2 * flow as u64 + end);
                    network.add_node(Endpoint::new([0; 32].map(|_: u8| random.u32() as u8)))
                })
            })
            .collect();
        let line = cell.line_bps / 8;
        let faults = Faults { loss: cell.loss, ..Faults::NONE };
        let profile = |bytes_per_second, delay, queue_bytes| LinkProfile {
            bytes_per_second,
            delay,
            queue_bytes,
            marking: None,
            faults: Faults::NONE,
        };
        let [left, right] = [network.add_switch(), network.add_switch()].map(LinkEnd::Switch);
        let buffer = (cell.bdp_bytes() * cell.buffer_bdp) as u64;
        let marks = (cell.control == CongestionControl::Dcqcn).then_some(line / MARKED_SHARE);
        let over = LinkProfile {
            faults: faults.clone(),
            marking: marks.map(Marking::above),
            ..profile(line, BOTTLENECK_DELAY, buffer)
        };
        let bottleneck = network.add_link(left, right, over);
        let back = LinkProfile { faults, ..profile(ACCESS_FACTOR * line, BOTTLENECK_DELAY, u64::MAX) };
        let back = network.add_link(right, left, back);
        let far = cell.round_trip / 2 - BOTTLENECK_DELAY;
        for [sender, receiver] in &pairs {
            for (node, near, away, link, delay) in
                [(sender, left, right, back, Duration::ZERO), (receiver, right, left, bottleneck, far)]
            {
                let access = profile(ACCESS_FACTOR * line, delay, u64::MAX);
                network.add_link(LinkEnd::Node(*node), near, access.clone());
                let down = network.add_link(near, LinkEnd::Node(*node), access);
                let (LinkEnd::Switch(near), LinkEnd::Switch(away)) = (near, away) else { continue };
                network.add_route(near, *node, down);
                network.add_route(away, *node, link);
            }
        }
        Dumbbell { network, pairs, bottleneck }
    }

    /// The rate of the links of the nodes.
    pub fn access_rate(cell: &CongestionCell) -> Rate {
        Rate::from_bits(ACCESS_FACTOR * cell.line_bps)
    }

    /// The flow of each node.
    pub fn owners(&self) -> Vec<usize> {
        let mut owners = vec![0; 2 * self.pairs.len()];
        for (flow, pair) in self.pairs.iter().enumerate() {
            pair.iter().for_each(|node| owners[node.0] = flow);
        }
        owners
    }
}
