use std::net::IpAddr;

use rustc_hash::FxHashSet;

use crate::link::Link;
use crate::time::{Duration, Instant};
use crate::transport::Endpoint;

/// Upper bound on the queries in one step: each can take two requests to the kernel, some 20 µs, and packets wait
/// meanwhile.
const QUERIES_A_STEP: usize = 4;

/// Upper bound on the remembered pairs of addresses without a next hop: as many as a link has hops.
const NOWHERE_MAX: usize = 1 << 16;

/// Interval after which all queries are repeated while one has no next hop, although no change is known: links over UDP
/// sockets are not notified of routes.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The next hops that queue pairs want beside those of their own paths. The link resolves a few at a time, and all
/// again when the kernel's routes or interfaces change.
#[derive(Default)]
pub(super) struct HopQueries {
    /// Pairs of addresses without a next hop: many queue pairs ask for the same.
    nowhere: FxHashSet<(IpAddr, IpAddr)>,
    ask_again_at: Option<Instant>,
    /// The link's change counter when all were resolved.
    route_changes: u64,
    /// Whether the last step left queries for the next.
    has_more: bool,
}

impl HopQueries {
    /// Has the link resolve some of the wanted hops, and passes the results to the endpoint.
    pub fn answer(&mut self, now: Instant, endpoint: &mut Endpoint, link: &mut dyn Link) {
        let route_changes = link.route_changes();
        if route_changes != self.route_changes || self.ask_again_at.is_some_and(|at| at <= now) {
            self.route_changes = route_changes;
            self.ask_again_at = None;
            self.nowhere.clear();
            endpoint.ask_hops_again();
        }
        self.has_more = false;
        for _ in 0..QUERIES_A_STEP {
            let Some(query) = endpoint.poll_hop_query() else { return };
            let way = (query.source, query.destination);
            let hop = match self.nowhere.contains(&way) {
                true => None,
                false => link.hop(query.source, query.destination).ok(),
            };
            if hop.is_none() {
                self.ask_again_at.get_or_insert(now + ASK_AGAIN);
                if self.nowhere.len() < NOWHERE_MAX {
                    self.nowhere.insert(way);
                }
            }
            endpoint.hop_found(now, query, hop);
        }
        self.has_more = true;
    }

    /// Whether the last step left queries for the next.
    pub fn has_more(&self) -> bool {
        self.has_more
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;
    use crate::frame::{FrameBytes, Hop};
    use crate::link::memory::{Gives, MemoryLink};
    use crate::transport::{
        Capabilities, CompletionRing, Data, Path, QpAttributes, QueuePairInit, RecoverySettings, Remote, SendOperation,
        SendRequest, Service,
    };
    use crate::wire::{Addresses, Flow, Key, PathMtu, Psn, Qpn};

    /// Interfaces beside the first, each of which is one pair of addresses to ask for.
    const RAILS: usize = 7;
    const QUEUE_PAIRS: usize = 2;

    /// A host's address on its first interface, 0, or on a further one.
    fn address(host: usize, rail: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, rail as u8, 0, 1 + host as u8)
    }

    /// A host, and its queue pairs, not yet connected.
    fn host(number: usize) -> (Endpoint, Vec<Qpn>) {
        let mut endpoint = Endpoint::new([number as u8; 32]);
        let paths = 1 + RAILS as u16;
        endpoint.set_recovery(RecoverySettings { paths, paths_as_peer: paths, ..Default::default() });
        endpoint.set_local_rails((1..=RAILS).map(|rail| vec![address(number, rail).into()]).collect());
        let pd = endpoint.allocate_pd();
        let cq = Arc::new(CompletionRing::new(16, || {}));
        let create = || QueuePairInit {
            service: Service::Rc,
            pd,
            capabilities: Capabilities { max_send_requests: 1, max_receive_requests: 1 },
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            srq: None,
            path_mtu: PathMtu::Mtu1024,
        };
        let qpns = (0..QUEUE_PAIRS).map(|_| endpoint.create_queue_pair(create()).unwrap()).collect();
        (endpoint, qpns)
    }

    fn connect((endpoint, own): &mut (Endpoint, Vec<Qpn>), number: usize, peers: &[Qpn]) {
        let addresses = Addresses::V4 { source: address(number, 0), destination: address(1 - number, 0) };
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        for (qpn, peer) in own.iter().zip(peers) {
            let attributes = QpAttributes {
                path: Some(Path { flow, hop: Hop(0) }),
                path_mtu: Some(PathMtu::Mtu1024),
                destination: Some(*peer),
                receive_psn: Some(Psn::new(9)),
                send_psn: Some(Psn::new(9)),
                ..Default::default()
            };
            endpoint.connect(Instant::ZERO, *qpn, &attributes).unwrap();
        }
    }

    /// An endpoint whose queue pairs have peers that have named as many addresses: it wants all next hops.
    fn acquainted() -> Endpoint {
        let mut hosts = [0, 1].map(host);
        for number in [0, 1] {
            let peers = hosts[1 - number].1.clone();
            connect(&mut hosts[number], number, &peers);
        }
        // A WRITE of nothing, which needs no memory: with its acknowledge, peers come to know each other.
        for qpn in hosts[0].1.clone() {
            let request = SendRequest {
                wr_id: 0,
                operation: SendOperation::Write(Remote { address: 0, key: Key(0) }),
                data: Data::EMPTY,
                signaled: true,
                solicited: false,
                fence: false,
                destination: None,
            };
            hosts[0].0.post_send(Instant::ZERO, qpn, request).unwrap();
        }
        let mut frame = [0; 2048];
        frame[12] = 8;
        for step in 0..40 {
            let now = Instant::ZERO + Duration::from_millis(step);
            for from in [0, 1] {
                hosts[from].0.handle_timeout(now);
                while let Some(sent) = hosts[from].0.poll_transmit(now, &mut frame[14..]) {
                    hosts[1 - from].0.handle_frame(now, FrameBytes::from(&frame[..14 + sent.len]));
                }
            }
        }
        let [(endpoint, _), _] = hosts;
        endpoint
    }

    /// A link that has a way everywhere or nowhere.
    fn ways(is_there: bool) -> MemoryLink {
        MemoryLink::new(0, Gives { next_hop: is_there.then_some(Hop(3)), ..Gives::default() })
    }

    fn pairs() -> Vec<(IpAddr, IpAddr)> {
        (1..=RAILS).map(|rail| (address(0, rail).into(), address(1, rail).into())).collect()
    }

    /// How often the link was asked in each step, until there is nothing left.
    fn steps(queries: &mut HopQueries, now: Instant, endpoint: &mut Endpoint, ways: &mut MemoryLink) -> Vec<usize> {
        let mut numbers = Vec::new();
        loop {
            let before = ways.given().asked.len();
            queries.answer(now, endpoint, ways);
            numbers.push(ways.given().asked.len() - before);
            if !queries.has_more() {
                return numbers;
            }
            assert!(numbers.len() < 100, "there is always more");
        }
    }

    const START: Instant = Instant::ZERO;

    #[test]
    fn the_link_is_asked_for_four_next_hops_a_step_and_for_each_once() {
        let (mut endpoint, mut ways, mut queries) = (acquainted(), ways(true), HopQueries::default());
        assert_eq!(steps(&mut queries, START, &mut endpoint, &mut ways), [4, 4, 4, 2]);
        assert_eq!(ways.given().asked, [pairs(), pairs()].concat(), "one queue pair after the other");
        // Nothing is left to ask, and nothing makes it ask again.
        for seconds in [0, 1, 5, 3600] {
            assert_eq!(steps(&mut queries, START + Duration::from_secs(seconds), &mut endpoint, &mut ways), [0]);
        }
    }

    #[test]
    fn where_there_is_no_way_the_link_is_asked_once_for_all_queue_pairs_and_again_after_a_second() {
        let (mut endpoint, mut ways, mut queries) = (acquainted(), ways(false), HopQueries::default());
        let once = [4, 3, 0, 0];
        assert_eq!(steps(&mut queries, START, &mut endpoint, &mut ways), once);
        assert_eq!(ways.given().asked, pairs());
        let just_before = START + (ASK_AGAIN - Duration::from_nanos(1));
        assert_eq!(steps(&mut queries, just_before, &mut endpoint, &mut ways), [0]);
        assert_eq!(steps(&mut queries, START + ASK_AGAIN, &mut endpoint, &mut ways), once);
        // A second after that there is a way, for both queue pairs; then nobody asks any more.
        ways.gives().next_hop = Some(Hop(3));
        assert_eq!(steps(&mut queries, START + ASK_AGAIN * 2, &mut endpoint, &mut ways), [4, 4, 4, 2]);
        assert_eq!(steps(&mut queries, START + ASK_AGAIN * 4, &mut endpoint, &mut ways), [0]);
    }

    #[test]
    fn when_routes_change_the_link_is_asked_for_all_at_once() {
        for is_there in [true, false] {
            let (mut endpoint, mut ways, mut queries) = (acquainted(), ways(is_there), HopQueries::default());
            steps(&mut queries, START, &mut endpoint, &mut ways);
            ways.gives().next_hop = Some(Hop(3));
            ways.gives().route_changes = 1;
            assert_eq!(steps(&mut queries, START, &mut endpoint, &mut ways), [4, 4, 4, 2]);
            assert_eq!(steps(&mut queries, START, &mut endpoint, &mut ways), [0]);
            // What was nowhere before is not looked up after a second on account of that.
            assert_eq!(steps(&mut queries, START + ASK_AGAIN * 2, &mut endpoint, &mut ways), [0]);
        }
    }
}
