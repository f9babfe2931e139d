use std::str::FromStr;

use crate::congestion::{Pacer, Rate};
use crate::path::{PathPolicy, PathSet};
use crate::wire::{Bth, PathMtu, Sack};

/// How losses are dealt with between queue pairs of reliable connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Selective repeat towards peers that have shown that they understand it (docs/EXTENSIONS.md), else go-back-N.
    #[default]
    Auto,
    /// Selective repeat: the peer is taken to understand it.
    Selective,
    /// Go-back-N, as all peers speak it; nothing else is offered.
    GoBackN,
}

/// A text is no recovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no recovery: auto, selective and go-back-n are known")]
pub struct RecoveryError(String);

impl FromStr for Recovery {
    type Err = RecoveryError;

    fn from_str(text: &str) -> Result<Recovery, RecoveryError> {
        match text {
            "auto" => Ok(Recovery::Auto),
            "selective" => Ok(Recovery::Selective),
            "go-back-n" => Ok(Recovery::GoBackN),
            _ => Err(RecoveryError(text.to_owned())),
        }
    }
}

/// What an endpoint may do towards peers that understand the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverySettings {
    /// Which recovery.
    pub recovery: Recovery,
    /// PSNs in flight towards such a peer at the most, 1 to 262,144.
    pub window: u32,
    /// What a queue pair keeps to; `None` for as fast as the window lets it.
    pub rate: Option<Rate>,
    /// Bytes that may wait for earlier ones, for each queue pair.
    pub reorder_bytes: usize,
    /// The same over all queue pairs of an endpoint.
    pub endpoint_reorder_bytes: usize,
    /// The longest IP packet that the link takes, in bytes.
    pub link_mtu: usize,
    /// Paths to such a peer to begin with, 1 to [`MAX_PATHS`](Self::MAX_PATHS), each with a UDP source port of its own and on
    /// one of the device's rails in turn.
    pub paths: u16,
    /// As many as the peer uses, up to so many.
    pub paths_as_peer: u16,
    /// How packets are spread over them.
    pub path_policy: PathPolicy,
}

impl RecoverySettings {
    /// The largest window: 6 bandwidth-delay products of 10 Gb/s × 100 ms at path MTU 4096, and a power of two.
    pub const MAX_WINDOW: u32 = 1 << 18;

    /// Paths at the most.
    pub const MAX_PATHS: u16 = PathSet::MAX;

    /// The same with so many paths, 1 to [`MAX_PATHS`](Self::MAX_PATHS), whatever the peer uses.
    pub fn with_paths(self, paths: u16, path_policy: PathPolicy) -> RecoverySettings {
        let paths = paths.clamp(1, Self::MAX_PATHS);
        RecoverySettings { paths, paths_as_peer: paths, path_policy, ..self }
    }

    /// The same with at least so many paths, and as many as the peer uses.
    pub fn with_paths_as_peer(self, paths: u16, path_policy: PathPolicy) -> RecoverySettings {
        RecoverySettings { paths_as_peer: Self::MAX_PATHS, ..self.with_paths(paths, path_policy) }
    }

    /// The same for a link that takes IP packets of `link_mtu` bytes. With a rate the window is as large as can be.
    pub fn on_link(self, recovery: Recovery, rate: Option<Rate>, link_mtu: usize) -> RecoverySettings {
        let window = if rate.is_some() { Self::MAX_WINDOW } else { RecoverySettings::default().window };
        RecoverySettings { recovery, window, rate, link_mtu, ..self }
    }
}

impl Default for RecoverySettings {
    fn default() -> RecoverySettings {
        RecoverySettings {
            recovery: Recovery::default(),
            // Without a rate the window is all that keeps bursts short: an eighth of the frames that a link over AF_XDP
            // has for receiving, at two a packet.
            window: 512,
            rate: None,
            // What a bandwidth-delay product of 10 Gb/s × 100 ms and 5 % of loss takes when nothing may be placed early.
            reorder_bytes: 512 << 20,
            // Two such queue pairs at once, and little beside what such a machine has.
            endpoint_reorder_bytes: 1 << 30,
            link_mtu: usize::MAX,
            paths: 1,
            paths_as_peer: RecoverySettings::MAX_PATHS,
            path_policy: PathPolicy::default(),
        }
    }
}

/// What a queue pair of a reliable connection knows of its peer and the extension.
#[derive(Clone, Debug)]
pub(super) struct Extension {
    pub settings: RecoverySettings,
    peer: Peer,
    pub pacer: Option<Pacer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// It has given so many answers, all without the offer.
    Unknown(u8),
    Understands,
    Plain,
}

/// What is around the payload of an extended packet at the most: IPv6, UDP, BTH, immediate, trailer, ICRC.
const AROUND_PAYLOAD_BYTES: usize = 40 + 8 + 12 + 4 + 24 + 4;

/// What is around the blocks of a selective acknowledge: IPv6, UDP, BTH, AETH, the rest of the trailer, ICRC.
const AROUND_BLOCKS_BYTES: usize = 40 + 8 + 12 + 4 + 12 + 4;

/// Answers without the offer after which a peer is known not to understand.
const PLAIN_AFTER: u8 = 8;

impl Extension {
    pub fn new(settings: RecoverySettings) -> Extension {
        let peer = match settings.recovery {
            Recovery::Auto if mutated!("selective-towards-everybody") => Peer::Understands,
            Recovery::Auto => Peer::Unknown(0),
            Recovery::Selective => Peer::Understands,
            Recovery::GoBackN => Peer::Plain,
        };
        Extension { settings, peer, pacer: settings.rate.map(Pacer::new) }
    }

    /// The path MTU is known: extended packets must fit into the link's, or there are none.
    pub fn fit(&mut self, path_mtu: PathMtu) {
        if path_mtu.bytes() + AROUND_PAYLOAD_BYTES > self.settings.link_mtu {
            self.peer = Peer::Plain;
            self.settings.recovery = Recovery::GoBackN;
        }
    }

    /// Blocks that fit into an acknowledge.
    pub fn max_blocks(&self) -> usize {
        (self.settings.link_mtu.saturating_sub(AROUND_BLOCKS_BYTES) / 12).min(Sack::MAX_BLOCKS)
    }

    /// Whether requests that come before earlier ones are kept, whoever sends them.
    pub fn keeps_early(&self) -> bool {
        self.settings.recovery != Recovery::GoBackN
    }

    /// Whether the peer has shown that it understands.
    pub fn is_on(&self) -> bool {
        self.peer == Peer::Understands
    }

    /// A packet came from the peer. `offered`: the latest request to it made the offer.
    pub fn observe(&mut self, bth: &Bth, offered: bool) {
        if bth.offers() && (self.settings.recovery != Recovery::GoBackN || mutated!("offer-taken-although-unwanted")) {
            self.peer = Peer::Understands;
        } else if let Peer::Unknown(answers) = &mut self.peer
            && bth.opcode().is_response()
            && offered
        {
            *answers += 1;
            if *answers == PLAIN_AFTER {
                self.peer = Peer::Plain;
            }
        }
    }

    /// Whether a request offers the extension, after so many timeouts in a row.
    pub fn offer(&self, timeouts: u32) -> bool {
        match self.peer {
            Peer::Unknown(_) => timeouts.is_multiple_of(2),
            Peer::Understands => true,
            Peer::Plain => false,
        }
    }
}
