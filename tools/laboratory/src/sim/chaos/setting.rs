use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uroce::frame::Hop;
use uroce::time::{Duration, Instant};
use uroce::transport::{Endpoint, Path};
use uroce::wire::{Addresses, Flow};

use crate::sim::link::{Blackhole, Bursts, Faults, LinkProfile};
use crate::sim::marking::Marking;
use crate::sim::network::{LinkEnd, Network};
use crate::sim::random::Random;

/// The strictness of the oracle, which depends on the network's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weather {
    /// No frame is lost, delayed or duplicated.
    Fair,
    /// Faults are so rare that seven retries are never used up.
    Mild,
    /// All kinds of faults happen.
    Harsh,
}

/// Upper bound on the duration of a harsh blackhole, in addition to twenty times the delay.
const HARSH_HOLE: Duration = Duration::from_micros(500);

/// A network and its faults.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub nodes: usize,
    pub v6: bool,
    /// The number of parallel links between the two switches; 0 when two nodes are connected directly.
    pub paths: usize,
    pub edge: LinkProfile,
    pub core: LinkProfile,
    /// The links between the switches in each direction, where they differ from `core`; otherwise empty.
    pub unlike: Vec<[LinkProfile; 2]>,
    /// The number of further interfaces of each node.
    pub rails: Vec<u8>,
    /// The number of times that the routes of a node's further interfaces change.
    pub route_changes: u32,
    pub weather: Weather,
}

impl Setting {
    /// A random setting without several interfaces.
    pub fn new(random: &mut Random) -> Setting {
        let weather = match random.below(100) {
            0..15 => Weather::Fair,
            15..60 => Weather::Mild,
            _ => Weather::Harsh,
        };
        let nodes = random.choose(&[2, 2, 2, 3, 4]);
        let paths = if nodes == 2 { random.choose(&[0, 0, 1, 2, 4]) } else { random.choose(&[1, 1, 2, 4]) };
        let bytes_per_second = random.choose(&[125_000_000, 1_250_000_000, 12_500_000_000]);
        let delay = Duration::from_nanos(random.choose(&[200, 1_000, 10_000, 10_000, 100_000, 1_000_000]));
        let faults = faults(weather, delay, random);
        // In fair and mild weather no frame is lost to full queues: windows fit in.
        let queue_bytes = match weather {
            Weather::Harsh => random.choose(&[20_000, 100_000, 1_000_000]),
            _ => u64::MAX,
        };
        let core = LinkProfile { bytes_per_second, delay, queue_bytes, marking: Some(Marking::above(10_000)), faults };
        let edge = if paths == 0 {
            core.clone()
        } else {
            LinkProfile { delay: Duration::from_nanos(200), faults: Faults::NONE, ..core.clone() }
        };
        Setting {
            nodes,
            v6: random.chance(0.3),
            paths,
            edge,
            core,
            unlike: Vec::new(),
            rails: vec![0; nodes],
            route_changes: 0,
            weather,
        }
    }

    /// The setting with links between the switches that differ in delay, each of which can go dark in one direction or
    /// both. Nodes get further interfaces, from which routes can be missing at times.
    pub fn with_unlike_links(mut self, random: &mut Random) -> Setting {
        self.paths = random.choose(&[2, 3, 4, 8, 16]);
        self.edge = LinkProfile { delay: Duration::from_nanos(200), faults: Faults::NONE, ..self.core.clone() };
        let spread = random.choose(&[1, 1, 4, 20]);
        let gloomy = self.weather > Weather::Fair && random.chance(0.7);
        // Three blackholes in a row must not use up the retries of a queue pair with one path: eight times four round
        // trips.
        let longest = if self.weather == Weather::Harsh { HARSH_HOLE } else { Duration::from_micros(100) };
        let link = |random: &mut Random| {
            // In fair weather no frame overtakes another.
            let part = if self.weather == Weather::Fair { 20 } else { 20 / spread + random.below(21 - 20 / spread) };
            let delay = self.core.delay * part as u32 / 20;
            let holes = if gloomy { random.choose(&[0, 0, 1, 1, 3]) } else { 0 };
            let ways = random.choose(&[[true, true], [true, true], [true, false], [false, true]]);
            let dark: Vec<_> = (0..holes).map(|_| blackhole(self.core.delay, longest, random)).collect();
            ways.map(|is_dark| {
                let mut faults = self.core.faults.clone();
                faults.blackholes.extend(dark.iter().filter(|_| is_dark));
                LinkProfile { delay, faults, ..self.core.clone() }
            })
        };
        let mut unlike: Vec<_> = (0..self.paths).map(|_| link(random)).collect();
        if self.weather == Weather::Mild {
            // One link never goes dark, so that no requester gives up.
            let spared = random.below(unlike.len() as u64) as usize;
            unlike[spared].iter_mut().for_each(|profile| profile.faults.blackholes.clear());
        }
        self.unlike = unlike;
        self.rails.iter_mut().for_each(|rails| *rails = random.choose(&[0, 0, 1, 1, 2, 3]));
        self.route_changes = random.choose(&[0, 1, 4, 16]);
        self
    }

    /// Upper bound on a round trip, with the windows of `connections` connections in one queue.
    pub fn round_trip(&self, connections: usize) -> Duration {
        // Each direction holds a window of full packets, and answers to READs.
        let bytes = connections as u64 * 2 * (128 + 64) * 4300;
        let queue = Duration::from_nanos(bytes * 1_000_000_000 / self.core.bytes_per_second);
        self.core.delay * 4 + queue + Duration::from_micros(20)
    }

    /// Builds nodes, switches and links.
    pub fn build(&self, seed: u64) -> Network {
        let mut network = Network::new(seed);
        let nodes: Vec<_> = (0..self.nodes)
            .map(|node| {
                let mut random = Random::new(seed, 10 + node as u64);
                let mut endpoint = Endpoint::new([0; 32].map(|_: u8| random.u32() as u8));
                let further: Vec<_> = (1..=self.rails[node]).map(|rail| self.address(rail, node)).collect();
                endpoint.set_local_rails(further.iter().map(|address| vec![*address]).collect());
                let id = network.add_node(endpoint);
                further.into_iter().for_each(|address| network.add_address(id, address));
                id
            })
            .collect();
        network.change_routes(self.route_changes, self.core.delay * 20 + Duration::from_micros(100));
        if self.paths == 0 {
            let (a, b) = (LinkEnd::Node(nodes[0]), LinkEnd::Node(nodes[1]));
            network.add_link(a, b, self.edge.clone());
            network.add_link(b, a, self.edge.clone());
            return network;
        }
        // The paths are between two switches; each node is on one of them.
        let switches = [network.add_switch(), network.add_switch()];
        for (index, node) in nodes.iter().enumerate() {
            let (near, far) = (switches[index % 2], switches[1 - index % 2]);
            network.add_link(LinkEnd::Node(*node), LinkEnd::Switch(near), self.edge.clone());
            let down = network.add_link(LinkEnd::Switch(near), LinkEnd::Node(*node), self.edge.clone());
            network.add_route(near, *node, down);
            for path in 0..self.paths {
                let profile = self.unlike.get(path).map_or(&self.core, |profiles| &profiles[index % 2]);
                let across = network.add_link(LinkEnd::Switch(far), LinkEnd::Switch(near), profile.clone());
                network.add_route(far, *node, across);
            }
        }
        network
    }

    /// The address of a node's interface number `rail`.
    fn address(&self, rail: u8, node: usize) -> IpAddr {
        match self.v6 {
            true => Ipv6Addr::new(0xfd00, rail.into(), 0, 0, 0, 0, 0, 1 + node as u16).into(),
            false => Ipv4Addr::new(10, rail, 0, 1 + node as u8).into(),
        }
    }

    /// The path from one node to another.
    pub fn path(&self, here: usize, there: usize, source_port: u16) -> Path {
        let flow = Flow {
            addresses: Addresses::new(self.address(0, here), self.address(0, there)).expect("of one family"),
            source_port,
            // The traffic class is ECT(0): switches can mark the packets.
            traffic_class: 2,
            hop_limit: 64,
            flow_label: if self.v6 { source_port.into() } else { 0 },
        };
        Path { flow, hop: Hop(there as u64) }
    }
}

/// A random blackhole that lasts at most twenty times the delay plus `longest`.
fn blackhole(delay: Duration, longest: Duration, random: &mut Random) -> Blackhole {
    let from = Instant::ZERO + random.up_to(delay * 50 + Duration::from_micros(500));
    Blackhole { from, until: from + random.up_to(delay * 20 + longest) }
}

fn faults(weather: Weather, delay: Duration, random: &mut Random) -> Faults {
    let some = |random: &mut Random, limit: f64| {
        if random.chance(0.4) { 0.0 } else { limit * random.below(1000) as f64 / 1000.0 }
    };
    let reorder_by = random.up_to(delay * 2) + Duration::from_nanos(300);
    match weather {
        Weather::Fair => Faults { forge: some(random, 0.02), reorder_by, ..Faults::NONE },
        Weather::Mild => Faults {
            loss: some(random, 0.02),
            duplicate: some(random, 0.02),
            reorder: some(random, 0.02),
            reorder_by,
            corrupt: some(random, 0.01),
            forge: some(random, 0.02),
            ..Faults::NONE
        },
        Weather::Harsh => {
            let bursts = random.chance(0.4).then(|| Bursts {
                enter: 0.001 + 0.01 * random.below(100) as f64 / 100.0,
                leave: 0.02 + 0.2 * random.below(100) as f64 / 100.0,
                loss: 0.3 + 0.7 * random.below(100) as f64 / 100.0,
            });
            let blackholes =
                (0..random.choose(&[0, 0, 0, 1, 2])).map(|_| blackhole(delay, HARSH_HOLE, random)).collect();
            Faults {
                loss: some(random, 0.15),
                bursts,
                duplicate: some(random, 0.2),
                reorder: some(random, 0.2),
                reorder_by: reorder_by + random.up_to(delay * 6),
                corrupt: some(random, 0.05),
                forge: some(random, 0.05),
                blackholes,
                policer: None,
            }
        }
    }
}
