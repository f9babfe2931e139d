use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashSet;

use crate::congestion::Companies;
use crate::memory::MemoryTable;
use crate::time::Instant;
use crate::wire::{Psn, Qpn};

use super::counters::{Counters, Which};
use super::event::Event;
use super::multipath::Multipath;
use super::receive_queue::SharedReceiveQueues;
use super::urgent::Urgent;

/// What a queue pair works on that belongs to its endpoint.
pub(super) struct Context<'a> {
    pub now: Instant,
    pub memory: &'a mut MemoryTable,
    pub shared: &'a mut SharedReceiveQueues,
    pub counters: &'a mut Counters,
    pub events: &'a mut VecDeque<Event>,
    /// The next IPv4 identification, and by how much each packet raises it.
    pub identification: &'a mut u16,
    pub identification_step: u16,
    /// The paths of this queue pair, if it or its peer uses several.
    pub multipath: &'a mut Option<Box<Multipath>>,
    /// Bytes of requests that arrived early and wait at other queue pairs of the endpoint.
    pub waiting_elsewhere: usize,
    /// Until when urgent messages count as under way.
    pub urgent: &'a mut Urgent,
    /// The companies of queue pairs to the same peer.
    pub companies: &'a mut Companies,
    /// The addresses that datagrams can go to; `None` for any.
    pub local_addresses: &'a Option<FxHashSet<IpAddr>>,
    /// Whether a completion queue had no room, and is in error.
    pub has_lost_completion: bool,
    /// Whether other queue pairs were used since this one was, so that it can have left the caches.
    pub is_cold: bool,
}

/// Upper bound on the events that wait to be taken. More are dropped, since the oldest explain the most.
const MAX_EVENTS: usize = 1024;

impl Context<'_> {
    /// The path of the next packet that carries data.
    pub fn choose_path(&mut self) -> u8 {
        self.multipath.as_mut().map_or(0, |multipath| multipath.set.choose(self.now))
    }

    /// The path of answers that the peer waits for: the quickest.
    pub fn quickest_path(&self) -> u8 {
        self.multipath.as_ref().map_or(0, |multipath| multipath.set.quickest())
    }

    /// Counts a packet that a queue pair refuses.
    #[inline]
    pub fn refuse(&mut self, qpn: Qpn, psn: Psn, why: Which) {
        *why(self.counters) += 1;
        traced!(debug, "packet refused", qpn = qpn, psn = psn, why = Counters::name(why));
    }

    /// Reports an event to the owner of the endpoint.
    pub fn push_event(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        }
    }
}

/// A role failed: the queue pair goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fatal;
