use std::collections::VecDeque;
use std::net::IpAddr;

use crate::frame::Hop;
use crate::path::PathSet;
use crate::time::{Duration, Instant, earliest};
use crate::wire::{AddressList, IpHeader, PathProbe, Qpn};

use super::attributes::Path;
use super::extension::RecoverySettings;
use super::rails::{RailQuery, Rails};

/// The state of a queue pair that uses several paths to its peer, or whose peer does: the paths, their rails, and what
/// is owed to probe them.
///
/// Path k lies on rail k modulo the number of rails, and has a UDP source port of its own unless the link imposes one.
#[derive(Debug)]
pub(super) struct Multipath {
    pub set: PathSet,
    /// Upper bound on the paths that are added because the peer uses them.
    as_peer: u16,
    rails: Rails,
    /// Answers that are owed to the peer's probes.
    answers: VecDeque<OwedAnswer>,
    /// Whether the link imposes the UDP source port.
    port_is_imposed: bool,
    /// Acknowledges since one was copied.
    acknowledges: u32,
    /// When a copy of one was sent.
    copied: Instant,
}

/// The rail and UDP source port with which a packet arrived, or is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    pub rail: u8,
    pub source_port: u16,
}

#[derive(Clone, Copy, Debug)]
struct OwedAnswer {
    way: Way,
    path: u8,
    token: u32,
    since: Instant,
}

/// Upper bound on the answers to probes that are owed: one for each possible path. More would be late.
const ANSWERS_MAX: usize = PathSet::MAX as usize;

/// The lowest UDP source port of RoCE v2 senders (the dynamic range, IBTA Annex A17.9.2).
const PORT_BASE: u16 = 0xc000;

/// One acknowledge in this many is also sent over another path. If nothing comes through on the quickest path, the peer
/// still learns of all that arrives.
const COPY_EVERY: u32 = 4;

/// The least time between such copies: many short messages have an acknowledge each, and need no copy of every fourth.
const COPY_INTERVAL: Duration = Duration::from_micros(50);

/// A next hop that the link must resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopQuery {
    /// The queue pair whose rail it is.
    pub qpn: Qpn,
    /// The rail of the queue pair, from 1 on.
    pub rail: u8,
    /// The source, one of this device's addresses.
    pub source: IpAddr,
    /// The destination, one of the peer's addresses.
    pub destination: IpAddr,
}

impl Multipath {
    /// The state of a queue pair with that address vector, on a device whose further interfaces have the addresses
    /// `local_rails`.
    pub fn new(
        settings: &RecoverySettings,
        path: &Path,
        local_rails: &[Vec<IpAddr>],
        port_is_imposed: bool,
        now: Instant,
    ) -> Multipath {
        let set = PathSet::new(settings.paths, settings.path_policy);
        // Without a choice of ports there are no more paths than rails.
        let as_peer = if port_is_imposed { local_rails.len() as u16 + 1 } else { settings.paths_as_peer };
        let rails = Rails::new(path.flow.addresses, local_rails, now);
        let mut multipath =
            Multipath { set, as_peer, rails, answers: VecDeque::new(), port_is_imposed, acknowledges: 0, copied: now };
        multipath.lay_paths(now);
        multipath.set.touch(now);
        multipath
    }

    /// Opens the paths that lie on a rail with a next hop, and closes the others. Those on rail 0, except path 0, open
    /// only when the peer can announce no more rails.
    fn lay_paths(&mut self, now: Instant) {
        for path in 1..self.set.count() {
            let is_open = match self.rail_of(path as u8) {
                0 => !self.rails.may_grow(),
                rail => self.rails.rail(rail).is_some(),
            };
            self.set.open(path as u8, is_open, now);
        }
    }

    fn rail_of(&self, path: u8) -> usize {
        usize::from(path) % self.rails.count()
    }

    /// Turns the outer headers and the next hop of path 0 into those of path `number`. Returns false when its rail has no
    /// next hop.
    #[inline]
    pub fn turn(&self, path: &mut Path, number: u8) -> bool {
        let source_port = match number {
            0 => path.flow.source_port,
            _ => PORT_BASE | path.flow.source_port.wrapping_add(number.into()) & !PORT_BASE,
        };
        path.flow.flow_label ^= u32::from(number);
        self.turn_back(path, Way { rail: self.rail_of(number) as u8, source_port })
    }

    /// Turns the outer headers and the next hop of path 0 into those of an answer, on the rail and with the port that the packet
    /// came with. Returns false when the rail has no next hop.
    #[inline]
    pub fn turn_back(&self, path: &mut Path, way: Way) -> bool {
        if !self.port_is_imposed {
            path.flow.source_port = way.source_port;
        }
        way.rail == 0 || self.take_rail(path, way.rail)
    }

    #[inline(never)]
    fn take_rail(&self, path: &mut Path, rail: u8) -> bool {
        let Some((addresses, hop)) = self.rails.rail(rail.into()) else { return false };
        (path.flow.addresses, path.hop) = (addresses, hop);
        true
    }

    /// The rail, from 1 on, that a packet arrived over, if its addresses are those of one.
    pub fn find_rail(&self, ip: &IpHeader<'_>) -> Option<u8> {
        self.rails.find(ip.addresses())
    }

    /// Counts an acknowledge that is sent. Returns whether a copy must be sent over another path.
    pub fn wants_copy(&mut self, now: Instant) -> bool {
        self.acknowledges = self.acknowledges.saturating_add(1);
        let is_late = now >= self.copied + COPY_INTERVAL
            || mutated!("copy-of-each-fourth", by "uroce --test paths copies_of_acknowledges_are_few");
        let wants = self.set.good() > 1 && self.acknowledges >= COPY_EVERY && is_late;
        if wants {
            (self.acknowledges, self.copied) = (0, now);
        }
        wants
    }

    /// Takes a probe of the peer for a path. Returns false when too many answers are owed already.
    pub fn probed(&mut self, probe: &PathProbe, way: Way, now: Instant) -> bool {
        let count = u16::from(probe.path) + 1;
        if self.set.count() < count && count <= self.as_peer {
            self.set.grow(count);
            self.lay_paths(now);
            self.set.touch(now);
        }
        let room = self.answers.len() < ANSWERS_MAX;
        if room {
            self.answers.push_back(OwedAnswer { way, path: probe.path, token: probe.token, since: now });
        }
        room
    }

    /// The next answer that is owed to a probe, and the rail and port for it.
    pub fn poll_answer(&mut self, now: Instant) -> Option<(PathProbe, Way)> {
        let OwedAnswer { way, path, token, since } = self.answers.pop_front()?;
        let delay_us = u16::try_from((now - since).as_micros()).unwrap_or(u16::MAX);
        Some((PathProbe { path, is_answer: true, delay_us, token }, way))
    }

    /// Takes the peer's list of further addresses. Returns whether it is accepted.
    pub fn take_addresses(&mut self, list: &AddressList, base: &Path, now: Instant) -> bool {
        let believed = self.rails.take(list, base.flow.addresses);
        self.lay_paths(now);
        believed
    }

    /// Takes the list of our further addresses, if one is owed.
    pub fn poll_addresses(&mut self) -> Option<AddressList> {
        self.rails.poll()
    }

    /// The next rail whose next hop the link must resolve.
    pub fn poll_query(&mut self) -> Option<RailQuery> {
        self.rails.poll_query()
    }

    pub fn has_query(&self) -> bool {
        self.rails.has_query()
    }

    /// Takes the link's answer to a query.
    pub fn hop_found(&mut self, query: RailQuery, hop: Option<Hop>, now: Instant) {
        if self.rails.hop_found(query, hop) {
            self.lay_paths(now);
            self.set.touch(now);
        }
    }

    /// Has the link resolve the next hops of all rails again.
    pub fn ask_hops_again(&mut self) {
        self.rails.ask_again();
    }

    /// Whether a probe, an answer to one, or a list of addresses is owed.
    pub fn may_transmit(&self) -> bool {
        !self.answers.is_empty() || self.rails.is_owed() || self.set.is_probe_due()
    }

    pub fn deadline(&self) -> Option<Instant> {
        earliest([self.set.deadline(), self.rails.deadline()])
    }

    /// Handles the time `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let might_grow = self.rails.may_grow();
        self.rails.handle_timeout(now);
        self.set.handle_timeout(now);
        if might_grow != self.rails.may_grow() {
            self.lay_paths(now);
        }
    }
}
