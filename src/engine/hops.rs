use std::net::IpAddr;

use rustc_hash::FxHashSet;

use crate::link::Link;
use crate::time::{Duration, Instant};
use crate::transport::Endpoint;

/// Asked for in one step at the most: each may take two questions to the kernel, some 20 µs, and packets wait meanwhile.
const QUERIES_A_STEP: usize = 4;

/// Pairs of addresses without a way that are remembered at the most: as many as a link has hops.
const NOWHERE_MAX: usize = 1 << 16;

/// How long until all are asked for again when there was no way to some, although nothing is known to have changed: links over
/// UDP sockets hear nothing of routes.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The next hops that queue pairs want beside those of their own paths: asked of the link a few at a time, and all again when
/// the kernel's routes or interfaces change.
#[derive(Default)]
pub(super) struct HopQueries {
    /// Between these there is no way: many queue pairs ask the same.
    nowhere: FxHashSet<(IpAddr, IpAddr)>,
    ask_again_at: Option<Instant>,
    /// The link's number when all were asked for.
    route_changes: u64,
    /// The last step had no time for all.
    has_more: bool,
}

impl HopQueries {
    /// Asks the link for some of what is wanted, and tells the endpoint.
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

    /// Whether the last step left something to ask.
    pub fn has_more(&self) -> bool {
        self.has_more
    }
}
