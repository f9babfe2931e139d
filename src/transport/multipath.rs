use std::collections::VecDeque;
use std::net::IpAddr;

use crate::frame::Hop;
use crate::path::PathSet;
use crate::time::Instant;
use crate::wire::{AddressList, IpHeader, PathProbe, Qpn};

use super::attributes::Path;
use super::extension::RecoverySettings;
use super::rails::{RailQuery, Rails};

/// What a queue pair has that uses several paths to its peer, or whose peer does: the paths, the rails that they lie on, and
/// what is owed to find out how they fare.
///
/// Path k lies on rail k modulo their number, and has a UDP source port of its own.
#[derive(Debug)]
pub(super) struct Multipath {
    pub set: PathSet,
    /// As many as the peer uses, up to so many.
    as_peer: u16,
    rails: Rails,
    /// Answers to the peer's probes that are owed.
    answers: VecDeque<OwedAnswer>,
    /// The UDP source port is not ours to choose.
    port_is_imposed: bool,
    /// Acknowledges so far.
    acknowledges: u32,
}

/// How a packet came, or goes.
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

/// Answers to probes that are owed at the most: one for each path that there can be, and as much again would be late.
const ANSWERS_MAX: usize = PathSet::MAX as usize;

/// The ports of RoCE v2 senders (the dynamic range, IBTA Annex A17.9.2).
const PORT_BASE: u16 = 0xc000;

/// One acknowledge in so many goes over another path, too: should nothing come through on the quickest one, the peer still
/// hears of all that arrives.
const COPY_EVERY: u32 = 4;

/// A next hop that the link shall say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopQuery {
    /// For this queue pair.
    pub qpn: Qpn,
    /// Which of its rails, from 1 on.
    pub rail: u8,
    /// From there: one of this device's addresses.
    pub source: IpAddr,
    /// To there.
    pub destination: IpAddr,
}

impl Multipath {
    /// For a queue pair with that address vector, on a device whose further interfaces have the addresses of `local_rails`.
    pub fn new(
        settings: &RecoverySettings,
        path: &Path,
        local_rails: &[Vec<IpAddr>],
        port_is_imposed: bool,
        now: Instant,
    ) -> Multipath {
        let set = PathSet::new(settings.paths, settings.path_policy);
        // Without ports to choose from there are no more paths than rails.
        let as_peer = if port_is_imposed { local_rails.len() as u16 + 1 } else { settings.paths_as_peer };
        let rails = Rails::new(path.flow.addresses, local_rails, now);
        let mut multipath =
            Multipath { set, as_peer, rails, answers: VecDeque::new(), port_is_imposed, acknowledges: 0 };
        multipath.lay_paths(now);
        multipath.set.touch(now);
        multipath
    }

    /// Opens the paths that lie on a rail to which there is a way, and closes the others.
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

    /// The outer headers and next hop of a path; `base` is path 0.
    pub fn path(&self, base: &Path, path: u8) -> Option<Path> {
        let port = match path {
            0 => base.flow.source_port,
            _ => PORT_BASE | base.flow.source_port.wrapping_add(path.into()) & !PORT_BASE,
        };
        let way = Way { rail: self.rail_of(path) as u8, source_port: port };
        let mut found = self.back(base, way)?;
        found.flow.flow_label ^= u32::from(path);
        Some(found)
    }

    /// How to send what goes back the way that something came.
    pub fn back(&self, base: &Path, way: Way) -> Option<Path> {
        let mut path = *base;
        if way.rail > 0 {
            (path.flow.addresses, path.hop) = self.rails.rail(way.rail.into())?;
        }
        if !self.port_is_imposed {
            path.flow.source_port = way.source_port;
        }
        Some(path)
    }

    /// The rail that a packet came over whose addresses are not those of rail 0.
    pub fn find_rail(&self, ip: &IpHeader<'_>) -> Option<u8> {
        self.rails.find(ip.addresses())
    }

    /// Whether an acknowledge that was just sent shall go over another path, too.
    pub fn wants_copy(&mut self) -> bool {
        self.acknowledges = self.acknowledges.wrapping_add(1);
        self.set.good() > 1 && self.acknowledges.is_multiple_of(COPY_EVERY)
    }

    /// The peer probes a path. False when too many answers are owed already.
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

    /// The next answer that is owed to a probe, and the way that it goes.
    pub fn poll_answer(&mut self, now: Instant) -> Option<(PathProbe, Way)> {
        let OwedAnswer { way, path, token, since } = self.answers.pop_front()?;
        let delay_us = u16::try_from((now - since).as_micros()).unwrap_or(u16::MAX);
        Some((PathProbe { path, is_answer: true, delay_us, token }, way))
    }

    /// The peer says which further addresses it has. Returns whether that is believed.
    pub fn take_addresses(&mut self, list: &AddressList, base: &Path, now: Instant) -> bool {
        let believed = self.rails.take(list, base.flow.addresses);
        self.lay_paths(now);
        believed
    }

    /// The list of our further addresses, if one is owed.
    pub fn poll_addresses(&mut self) -> Option<AddressList> {
        self.rails.poll()
    }

    /// The next rail that the link is to be asked about.
    pub fn poll_query(&mut self) -> Option<RailQuery> {
        self.rails.poll_query()
    }

    pub fn has_query(&self) -> bool {
        self.rails.has_query()
    }

    /// The link's answer.
    pub fn hop_found(&mut self, query: RailQuery, hop: Option<Hop>, now: Instant) {
        if self.rails.hop_found(query, hop) {
            self.lay_paths(now);
            self.set.touch(now);
        }
    }

    /// Has the link asked about all rails again.
    pub fn ask_hops_again(&mut self) {
        self.rails.ask_again();
    }

    /// Whether something is owed that is no packet of the transport.
    pub fn may_transmit(&self) -> bool {
        !self.answers.is_empty() || self.rails.is_owed() || self.set.is_probe_due()
    }

    pub fn deadline(&self) -> Option<Instant> {
        [self.set.deadline(), self.rails.deadline()].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let might_grow = self.rails.may_grow();
        self.rails.handle_timeout(now);
        self.set.handle_timeout(now);
        if might_grow != self.rails.may_grow() {
            self.lay_paths(now);
        }
    }
}
