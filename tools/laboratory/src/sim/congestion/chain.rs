use uroce::time::Duration;

use crate::sim::link::{Faults, LinkProfile};
use crate::sim::network::{LinkEnd, LinkId, Network, NodeId, SwitchId};
use crate::sim::pauses::Pauses;
use crate::sim::random::Random;

use super::setup::Setup;

/// A network of switches in a row, with a bottleneck from each to the next one, and pairs of nodes at the switches: with
/// one bottleneck a dumbbell, with several a parking lot.
pub(super) struct Chain {
    pub network: Network,
    /// The sender and the receiver of each flow.
    pub pairs: Vec<[NodeId; 2]>,
    pub bottlenecks: Vec<LinkId>,
}

/// The delay of a bottleneck itself, in one direction; the rest of a round trip is that of the flow's own links.
const BOTTLENECK_DELAY: Duration = Duration::from_nanos(500);

impl Chain {
    pub fn new(setup: &Setup, seed: u64) -> Chain {
        let mut network = Network::new(seed);
        let count = if setup.have_one_pair { 1 } else { setup.flows.len() };
        let mut pairs: Vec<[NodeId; 2]> =
            (0..count).map(|pair| [0, 1].map(|end| network.add_endpoint(seed, 1000 + 2 * pair as u64 + end))).collect();
        if let Some((between, length)) = setup.pauses {
            for node in pairs.iter().flatten() {
                let random = Random::new(seed, 3000 + node.0 as u64);
                network.set_pauses(*node, Pauses::new(between, length, random));
            }
        }
        let switches: Vec<SwitchId> = (0..=setup.hops).map(|_| network.add_switch()).collect();
        let faults = Faults { loss: setup.loss, ..Faults::NONE };
        let fast = LinkProfile {
            bytes_per_second: setup.access_bps / 8,
            delay: BOTTLENECK_DELAY,
            queue_bytes: u64::MAX,
            marking: None,
            faults: Faults::NONE,
        };
        let over = match setup.policer {
            Some(policer) => {
                LinkProfile { faults: Faults { policer: Some(policer), ..faults.clone() }, ..fast.clone() }
            }
            None => LinkProfile {
                bytes_per_second: setup.line_bps / 8,
                queue_bytes: setup.buffer_bytes,
                marking: setup.marking,
                faults: faults.clone(),
                ..fast.clone()
            },
        };
        let under = LinkProfile { faults, ..fast.clone() };
        let hops: Vec<[LinkId; 2]> = switches
            .windows(2)
            .map(|pair| {
                let [left, right] = [pair[0], pair[1]].map(LinkEnd::Switch);
                [network.add_link(left, right, over.clone()), network.add_link(right, left, under.clone())]
            })
            .collect();
        for (flow, [sender, receiver]) in setup.flows.iter().zip(&pairs) {
            let far = (flow.round_trip / 2).saturating_sub(BOTTLENECK_DELAY * flow.hops.len() as u32);
            for (node, at, delay) in [(sender, flow.hops.start, Duration::ZERO), (receiver, flow.hops.end, far)] {
                let access = LinkProfile { delay, ..fast.clone() };
                network.add_link(LinkEnd::Node(*node), LinkEnd::Switch(switches[at]), access.clone());
                let down = network.add_link(LinkEnd::Switch(switches[at]), LinkEnd::Node(*node), access);
                network.add_route(switches[at], *node, down);
            }
            for hop in flow.hops.clone() {
                network.add_route(switches[hop], *receiver, hops[hop][0]);
                network.add_route(switches[hop + 1], *sender, hops[hop][1]);
            }
        }
        pairs.resize(setup.flows.len(), pairs[0]);
        Chain { network, pairs, bottlenecks: hops.into_iter().map(|[over, _]| over).collect() }
    }

    /// The flows of each node.
    pub fn flows(&self) -> Vec<Vec<usize>> {
        let mut flows = vec![Vec::new(); 2 * self.pairs.len()];
        for (flow, pair) in self.pairs.iter().enumerate() {
            pair.iter().for_each(|node| flows[node.0].push(flow));
        }
        flows
    }
}
