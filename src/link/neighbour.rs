use std::collections::VecDeque;
use std::net::IpAddr;

use super::EthernetHeader;
use super::netlink::{self, Interface, Mac, Reachability};
use crate::time::{Duration, Instant};

/// Upper bound on the packets that wait for one neighbour; more are dropped. The kernel's own queue holds about as many
/// (unres_qlen_bytes of 212,992 is some 90 packets of 2 KiB, net/core/neighbour.c).
const WAITING_PACKETS: usize = 64;

/// Requests for an unknown neighbour before its packets are dropped. For each, the kernel itself asks three times
/// (mcast_solicit).
pub(super) const ASK_TRIES: u32 = 3;

/// Interval between two such requests: the kernel's three tries take a second each (retrans_time_ms).
const ASK_INTERVAL: Duration = Duration::from_secs(3);

/// Pause after a neighbour did not answer, so that retransmissions do not become a storm of ARP.
const FAILED_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the kernel is notified that a stale neighbour is in use. It confirms the neighbour within 5 s
/// (delay_first_probe_time).
const STALE_INTERVAL: Duration = Duration::from_secs(5);

/// A host on an interface's network, the packets that wait for its Ethernet address, and when the kernel is asked for it.
pub(super) struct Neighbour<W> {
    pub interface: u32,
    pub address: IpAddr,
    /// The number of hops that lead to it.
    pub hops: u32,
    /// Whether it is among those that the table of hops attends to.
    pub in_busy: bool,
    /// The Ethernet address, where it follows from the IP address.
    fixed_mac: Option<Mac>,
    state: State,
    /// Whether the kernel's entry is stale; `told_at` is when it was last notified of our use.
    stale: bool,
    told_at: Option<Instant>,
    waiting: VecDeque<W>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Known(EthernetHeader),
    /// No request was made yet.
    Unknown,
    Asking {
        /// When the last request was made; `None` when the next is due at once.
        since: Option<Instant>,
        tries: u32,
    },
    Failed {
        since: Instant,
    },
}

/// What to do with a packet to a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send it with this header.
    Send(EthernetHeader),
    /// Keep it: the neighbour is not resolved yet.
    Wait,
    /// Drop it: there is no route any more, or the neighbour does not answer.
    Drop,
}

/// A packet whose wait is over, and the result for its neighbour.
#[derive(Debug)]
pub(crate) struct Released<W> {
    pub(crate) packet: W,
    /// The header for the packet; `None` when the neighbour did not answer.
    pub(crate) header: Option<EthernetHeader>,
}

/// What is to be done for a neighbour now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// Wait for the kernel's answer.
    Patience,
    /// Notify the kernel that it is in use.
    Notice,
    /// Request it of the kernel.
    Request,
    /// Release its packets: it has not answered.
    Release,
}

impl<W> Neighbour<W> {
    /// A neighbour of which nothing is known, except its Ethernet address where that follows from the IP address.
    pub fn new(interface: u32, address: IpAddr, fixed_mac: Option<Mac>) -> Neighbour<W> {
        Neighbour {
            interface,
            address,
            hops: 0,
            in_busy: false,
            fixed_mac,
            state: State::Unknown,
            stale: false,
            told_at: None,
            waiting: VecDeque::new(),
        }
    }

    /// Whether nobody needs it: no hop leads to it, and no packet waits for it.
    pub fn is_unneeded(&self) -> bool {
        self.hops == 0 && !self.in_busy && self.waiting.is_empty()
    }

    /// Has room for all packets that may wait, if some are about to: later, none allocates.
    pub fn reserve(&mut self) {
        if self.header().is_none() {
            self.waiting.reserve_exact(WAITING_PACKETS);
        }
    }

    /// Gives that room back.
    pub fn clear(&mut self) {
        self.waiting = VecDeque::new();
    }

    /// The header that packets to it get now.
    pub fn header(&self) -> Option<EthernetHeader> {
        match self.state {
            State::Known(header) => Some(header),
            State::Unknown | State::Asking { .. } | State::Failed { .. } => None,
        }
    }

    /// What to do with a packet to it now.
    pub fn step(&mut self, now: Instant) -> Step {
        match self.state {
            State::Known(header) => Step::Send(header),
            State::Failed { since } if now.saturating_since(since) < FAILED_INTERVAL => Step::Drop,
            State::Failed { .. } => {
                self.state = State::Unknown;
                Step::Wait
            }
            State::Unknown | State::Asking { .. } => Step::Wait,
        }
    }

    /// Whether packets are sent to it by what the kernel has not confirmed lately.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Keeps a packet until it is known; returns it when too many wait already.
    pub fn wait(&mut self, packet: W) -> Result<(), W> {
        if self.waiting.len() >= WAITING_PACKETS {
            return Err(packet);
        }
        self.waiting.push_back(packet);
        Ok(())
    }

    /// Decides what is to be done for it at `now`, as if that was done.
    pub fn attend(&mut self, now: Instant) -> Need {
        match self.state {
            State::Known(_) => {
                let is_due = self.told_at.is_none_or(|at| now.saturating_since(at) >= STALE_INTERVAL);
                if !(self.stale && is_due) {
                    return Need::Nothing;
                }
                (self.told_at, self.stale) = (Some(now), false);
                Need::Notice
            }
            State::Asking { since: Some(since), .. } if now.saturating_since(since) < ASK_INTERVAL => Need::Patience,
            State::Asking { tries, .. } if tries >= ASK_TRIES => {
                self.state = State::Failed { since: now };
                Need::Release
            }
            State::Unknown | State::Asking { .. } => {
                let tries = if let State::Asking { tries, .. } = self.state { tries } else { 0 };
                self.state = State::Asking { since: Some(now), tries: tries + 1 };
                Need::Request
            }
            State::Failed { .. } => Need::Nothing,
        }
    }

    /// When the request that was made is over; `None` when none was.
    pub fn answer_due(&self) -> Option<Instant> {
        match self.state {
            State::Asking { since: Some(since), .. } => Some(since + ASK_INTERVAL),
            _ => None,
        }
    }

    /// Takes what the kernel says of it. Returns whether it has failed by that.
    pub fn hear(&mut self, now: Instant, news: &netlink::Neighbour, interfaces: &[Interface]) -> bool {
        let header = news.mac.and_then(|mac| header(interfaces, self.interface, mac));
        match (news.state, header) {
            (Reachability::Valid | Reachability::Stale, Some(header)) => {
                self.learn(header, news.state);
                false
            }
            (Reachability::Gone, _) => {
                // Whoever waits goes on waiting, and the next poll asks again.
                self.state = match self.state {
                    State::Asking { tries, .. } => State::Asking { since: None, tries },
                    State::Failed { since } => State::Failed { since },
                    _ => State::Unknown,
                };
                self.stale = false;
                false
            }
            (Reachability::Failed, _) => {
                // Nobody answered the kernel's three questions. That also happens while the interface is coming up (no
                // link-local address to ask from during duplicate address detection), so the last try counts.
                let (state, has_failed) = match self.state {
                    State::Asking { tries, .. } if tries < ASK_TRIES => (State::Asking { since: None, tries }, false),
                    State::Asking { .. } => (State::Failed { since: now }, true),
                    State::Failed { since } => (State::Failed { since }, false),
                    _ => (State::Unknown, false),
                };
                (self.state, self.stale) = (state, false);
                has_failed
            }
            // The kernel is asking.
            _ => false,
        }
    }

    /// Takes what the kernel's table has of it, while nothing else is known.
    pub fn look_up(&mut self, known: &netlink::Neighbour, interfaces: &[Interface]) {
        if let Some(header) = known.mac.and_then(|mac| header(interfaces, self.interface, mac)) {
            self.learn(header, known.state);
        }
    }

    fn learn(&mut self, header: EthernetHeader, reachability: Reachability) {
        self.state = State::Known(header);
        self.stale = reachability == Reachability::Stale;
    }

    /// Makes its header anew: our own MAC address or a VLAN's tag may have changed.
    pub fn renew(&mut self, interfaces: &[Interface]) {
        self.state = match (self.state, self.fixed_mac) {
            (_, Some(mac)) => header(interfaces, self.interface, mac).map_or(State::Unknown, State::Known),
            (State::Known(_), None) => State::Unknown,
            (state, None) => state,
        };
    }

    /// Releases the packets whose wait is over; returns their number.
    pub fn release(&mut self, released: &mut Vec<Released<W>>) -> usize {
        let header = match self.state {
            State::Known(header) => Some(header),
            State::Failed { .. } => None,
            State::Unknown | State::Asking { .. } => return 0,
        };
        let number = self.waiting.len();
        released.extend(self.waiting.drain(..).map(|packet| Released { packet, header }));
        number
    }
}

fn header(interfaces: &[Interface], index: u32, destination: Mac) -> Option<EthernetHeader> {
    let interface = interfaces.iter().find(|i| i.index == index)?;
    let tag = interface.vlan.map(|v| (v.id, v.ethertype));
    Some(EthernetHeader::new(destination, interface.mac?, tag))
}
