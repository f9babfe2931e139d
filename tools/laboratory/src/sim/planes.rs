use uroce::time::Duration;

use super::link::{Faults, LinkProfile};
use super::network::{LinkEnd, Network, NodeId};
use super::switch::source_port;

/// One of several parallel networks between two nodes.
#[derive(Clone, Debug)]
pub(super) struct Plane {
    /// The delay in one direction.
    pub delay: Duration,
    /// The faults from the first node to the second, and in the other direction.
    pub faults: [Faults; 2],
}

/// The first UDP source port: its path takes the first plane, that of the next port the second, and so on.
pub(super) const FIRST_PORT: u16 = 0xc000;

/// Builds two nodes with planes between them, each of `bytes_per_second` in each direction. The UDP source port decides
/// which plane a frame takes.
pub(super) fn build(seed: u64, bytes_per_second: u64, planes: &[Plane]) -> (Network, [NodeId; 2]) {
    let mut network = Network::new(seed);
    let nodes = [0, 1].map(|node| network.add_endpoint(seed, 10 + node));
    let switches = [0, 1].map(|_| network.add_switch_by_port(FIRST_PORT));
    // The links to the planes have no delay, and practically no limit of rate.
    let edge = LinkProfile {
        bytes_per_second: 1_000_000_000_000,
        delay: Duration::ZERO,
        queue_bytes: u64::MAX,
        marking: None,
        faults: Faults::NONE,
    };
    for here in [0, 1] {
        let (near, far) = (LinkEnd::Switch(switches[here]), LinkEnd::Switch(switches[1 - here]));
        network.add_link(LinkEnd::Node(nodes[here]), near, edge.clone());
        let down = network.add_link(near, LinkEnd::Node(nodes[here]), edge.clone());
        network.add_route(switches[here], nodes[here], down);
        for plane in planes {
            let profile = LinkProfile {
                bytes_per_second,
                delay: plane.delay,
                faults: plane.faults[here].clone(),
                ..edge.clone()
            };
            let across = network.add_link(near, far, profile);
            network.add_route(switches[here], nodes[1 - here], across);
        }
    }
    (network, nodes)
}

/// The index of the plane that a frame takes.
pub(super) fn plane_of(frame: &[u8], planes: usize) -> usize {
    usize::from(source_port(frame).wrapping_sub(FIRST_PORT)) % planes
}
