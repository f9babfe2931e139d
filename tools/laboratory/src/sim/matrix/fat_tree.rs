use uroce::time::Duration;

use crate::sim::link::{Faults, LinkProfile};
use crate::sim::marking::Marking;
use crate::sim::network::{LinkEnd, LinkId, Network, NodeId, SwitchId};

/// A fat tree: hosts at leaves, the leaves of a pod at its spines, and the spines of all pods at cores. Each switch
/// chooses among its links upwards by a hash of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Its name in tables.
    pub name: &'static str,
    /// Hosts at each leaf.
    pub hosts: usize,
    /// Leaves in each pod.
    pub leaves: usize,
    /// Spines in each pod; each leaf has a link to each of them.
    pub spines: usize,
    /// Pods; a tree of one pod has no cores.
    pub pods: usize,
    /// Cores at each spine of a pod.
    pub cores: usize,
}

/// The rate of each link, in bytes of Ethernet frames a second: 100 Gb/s.
pub(super) const LINK_BYTES_PER_S: u64 = 12_500_000_000;

/// The delay of each link.
const LINK_DELAY: Duration = Duration::from_micros(1);

/// Length of a data packet and of an acknowledge, in bytes, as uet-htsim reckons with them.
const PACKET_BYTES: u64 = 4150;
const ACKNOWLEDGE_BYTES: u64 = 64;

impl FatTree {
    /// The trees of the table, as uet-htsim lays them out for connection matrices of 16 and 32 hosts.
    pub const ALL: [FatTree; 3] = [FatTree::TWO_TIERS, FatTree::OVERSUBSCRIBED, FatTree::THREE_TIERS];

    /// 32 hosts, two tiers, as many links upwards as downwards (`-tiers 2`).
    pub const TWO_TIERS: FatTree = FatTree { name: "two-tiers", hosts: 4, leaves: 8, spines: 4, pods: 1, cores: 0 };

    /// 32 hosts, two tiers, a fourth of the links upwards (`-topo leaf_spine_tiny.topo`).
    pub const OVERSUBSCRIBED: FatTree =
        FatTree { name: "oversubscribed", hosts: 8, leaves: 4, spines: 2, pods: 1, cores: 0 };

    /// 16 hosts, three tiers, as many links upwards as downwards (its default).
    pub const THREE_TIERS: FatTree = FatTree { name: "three-tiers", hosts: 2, leaves: 2, spines: 2, pods: 4, cores: 2 };

    /// The number of hosts.
    pub fn host_count(&self) -> usize {
        self.hosts * self.leaves * self.pods
    }

    /// Links between the hosts that are furthest apart.
    fn hops(&self) -> u32 {
        if self.cores == 0 { 4 } else { 6 }
    }

    /// The round trip between the hosts that are furthest apart, without queues: a packet there, and an acknowledge back.
    pub fn round_trip(&self) -> Duration {
        let nanos = (PACKET_BYTES + ACKNOWLEDGE_BYTES) * 1_000_000_000 / LINK_BYTES_PER_S;
        (LINK_DELAY * 2 + Duration::from_nanos(nanos)) * self.hops()
    }

    /// What is on the way in that time, in packets.
    fn bdp_packets(&self) -> f64 {
        (LINK_BYTES_PER_S as f64 * self.round_trip().as_secs_f64() / PACKET_BYTES as f64).ceil()
    }

    /// What its links are: the buffer is five times what is on the way, and marks begin at a fifth and come with each packet from
    /// four fifths on, as in uet-htsim where nothing is trimmed.
    fn link(&self) -> LinkProfile {
        let packets = |count: f64| count.ceil() as u64 * PACKET_BYTES;
        let on_the_way = self.bdp_packets();
        LinkProfile {
            bytes_per_second: LINK_BYTES_PER_S,
            delay: LINK_DELAY,
            queue_bytes: packets(5.0 * on_the_way),
            marking: Some(Marking {
                none_bytes: packets(0.2 * on_the_way),
                all_bytes: packets(0.8 * on_the_way),
                share: 1.0,
            }),
            faults: Faults::NONE,
        }
    }

    /// A network of this form, and its hosts in their order.
    pub(super) fn network(&self, seed: u64) -> (Network, Vec<NodeId>) {
        let mut network = Network::new(seed);
        network.set_interface_bytes(0);
        let hosts: Vec<NodeId> =
            (0..self.host_count()).map(|host| network.add_endpoint(seed, 1000 + host as u64)).collect();
        let switches = |count: usize, network: &mut Network| -> Vec<SwitchId> {
            (0..count).map(|_| network.add_switch()).collect()
        };
        let leaves = switches(self.leaves * self.pods, &mut network);
        let spines = switches(self.spines * self.pods, &mut network);
        let cores = switches(self.spines * self.cores, &mut network);
        let mut builder = Builder { network, link: self.link() };
        for (at, leaf) in hosts.chunks(self.hosts).zip(&leaves) {
            at.iter().for_each(|host| builder.attach(*host, *leaf));
        }
        for pod in 0..self.pods {
            for leaf in self.leaves * pod..self.leaves * (pod + 1) {
                let below = &hosts[self.hosts * leaf..self.hosts * (leaf + 1)];
                for spine in &spines[self.spines * pod..self.spines * (pod + 1)] {
                    builder.stack(leaves[leaf], *spine, below, &hosts);
                }
            }
            let in_pod = self.hosts * self.leaves;
            let below = &hosts[in_pod * pod..in_pod * (pod + 1)];
            for spine in 0..self.spines {
                for core in &cores[self.cores * spine..self.cores * (spine + 1)] {
                    builder.stack(spines[self.spines * pod + spine], *core, below, &hosts);
                }
            }
        }
        (builder.network, hosts)
    }
}

/// A network to which links of one kind are added.
struct Builder {
    network: Network,
    link: LinkProfile,
}

impl Builder {
    fn add(&mut self, from: LinkEnd, to: LinkEnd) -> LinkId {
        self.network.add_link(from, to, self.link.clone())
    }

    /// Connects a host and its leaf. What a host itself has to send waits in it, and is neither marked nor lost there.
    fn attach(&mut self, host: NodeId, leaf: SwitchId) {
        let own = LinkProfile { queue_bytes: u64::MAX, marking: None, ..self.link.clone() };
        self.network.add_link(LinkEnd::Node(host), LinkEnd::Switch(leaf), own);
        let down = self.add(LinkEnd::Switch(leaf), LinkEnd::Node(host));
        self.network.add_route(leaf, host, down);
    }

    /// Connects two switches. The upper one leads to the hosts `below` the lower one, and the lower one to all others.
    fn stack(&mut self, lower: SwitchId, upper: SwitchId, below: &[NodeId], hosts: &[NodeId]) {
        let [low, high] = [lower, upper].map(LinkEnd::Switch);
        let (up, down) = (self.add(low, high), self.add(high, low));
        for host in hosts {
            match below.contains(host) {
                true => self.network.add_route(upper, *host, down),
                false => self.network.add_route(lower, *host, up),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_buffers_are_those_that_the_other_simulator_prints() {
        let of = |tree: FatTree| {
            let LinkProfile { queue_bytes, marking, .. } = tree.link();
            let marking = marking.map(|marking| [marking.none_bytes, marking.all_bytes]);
            (tree.host_count(), tree.round_trip().as_nanos() as u64, queue_bytes, marking)
        };
        assert_eq!(of(FatTree::TWO_TIERS), (32, 9_348, 601_750, Some([24_900, 99_600])));
        assert_eq!(of(FatTree::OVERSUBSCRIBED), (32, 9_348, 601_750, Some([24_900, 99_600])));
        assert_eq!(of(FatTree::THREE_TIERS), (16, 14_022, 892_250, Some([37_350, 145_250])));
    }
}
