use std::fmt;

use crate::frame::Hop;
use crate::memory::Access;
use crate::wire::{Flow, PathMtu, Psn, Qpn, RnrTimer};

/// The states of a queue pair (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the IBTA's names
pub enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Reset => "RESET",
            State::Init => "INIT",
            State::ReadyToReceive => "RTR",
            State::ReadyToSend => "RTS",
            State::Error => "ERR",
        })
    }
}

/// What a queue pair can hold, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Send requests posted and not completed, 1 to 2^16.
    pub max_send_requests: usize,
    /// Receive requests posted and not completed, 1 to 2^16.
    pub max_receive_requests: usize,
}

impl Capabilities {
    /// The largest queue; rxe's limit is 2^20, UCX and perftest ask for a few thousand.
    pub const MAX_REQUESTS: usize = 1 << 16;
}

/// How packets reach the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The outer headers of packets to the peer. Packets are accepted only from its destination.
    pub flow: Flow,
    /// The next hop, from the link.
    pub hop: Hop,
}

/// What a modification sets; `None` leaves a value alone (IBTA 11.2.5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// The state to go to.
    pub state: Option<State>,
    /// What the peer may do with our memory through this queue pair.
    pub access: Option<Access>,
    /// How to reach the peer.
    pub path: Option<Path>,
    /// The payload bytes of a full packet.
    pub path_mtu: Option<PathMtu>,
    /// The peer's queue pair.
    pub destination: Option<Qpn>,
    /// The first PSN that the peer will send.
    pub receive_psn: Option<Psn>,
    /// The first PSN that we shall send.
    pub send_psn: Option<Psn>,
    /// READs and atomics that the peer may have outstanding, 0 to [`Self::MAX_RD_ATOMIC`].
    pub max_dest_rd_atomic: Option<u8>,
    /// READs and atomics that we may have outstanding, 0 to [`Self::MAX_RD_ATOMIC`].
    pub max_rd_atomic: Option<u8>,
    /// How long the peer shall wait when we have no receive request.
    pub min_rnr_timer: Option<RnrTimer>,
    /// The local ACK timeout code: 4.096 µs × 2^code, 0 for none, up to 31 (IBTA 9.9.2.1.1).
    pub timeout: Option<u8>,
    /// How often to send again without progress before giving up, 0 to 7.
    pub retry_count: Option<u8>,
    /// How often to try again after RNR NAKs before giving up, 0 to 6; 7 for ever.
    pub rnr_retry: Option<u8>,
}

impl QpAttributes {
    /// READs and atomics outstanding in one direction at the most; rxe's and ConnectX's limit is 128 and 16.
    pub const MAX_RD_ATOMIC: u8 = 128;

    /// The attributes that a transition needs and this one lacks; `None` when that transition does not exist.
    pub(super) fn missing(&self, from: State, to: State) -> Option<Option<&'static str>> {
        let required: &[(&'static str, bool)] = match (from, to) {
            (_, State::Reset | State::Error) => &[],
            (State::Reset | State::Init, State::Init) => &[("access", self.access.is_some() || from == to)],
            (State::Init, State::ReadyToReceive) => &[
                ("path", self.path.is_some()),
                ("path_mtu", self.path_mtu.is_some()),
                ("destination", self.destination.is_some()),
                ("receive_psn", self.receive_psn.is_some()),
                ("max_dest_rd_atomic", self.max_dest_rd_atomic.is_some()),
                ("min_rnr_timer", self.min_rnr_timer.is_some()),
            ],
            (State::ReadyToReceive, State::ReadyToSend) => &[
                ("send_psn", self.send_psn.is_some()),
                ("timeout", self.timeout.is_some()),
                ("retry_count", self.retry_count.is_some()),
                ("rnr_retry", self.rnr_retry.is_some()),
                ("max_rd_atomic", self.max_rd_atomic.is_some()),
            ],
            (State::ReadyToSend, State::ReadyToSend) => &[],
            _ => return None,
        };
        Some(required.iter().find(|(_, there)| !there).map(|(name, _)| *name))
    }

    /// The first value that is out of its range: its name and what the range is.
    pub(super) fn out_of_range(&self) -> Option<(&'static str, &'static str)> {
        let above = |value: Option<u8>, limit: u8| value.is_some_and(|value| value > limit);
        [
            ("max_dest_rd_atomic", "0 to 128", above(self.max_dest_rd_atomic, Self::MAX_RD_ATOMIC)),
            ("max_rd_atomic", "0 to 128", above(self.max_rd_atomic, Self::MAX_RD_ATOMIC)),
            ("timeout", "0 to 31", above(self.timeout, 31)),
            ("retry_count", "0 to 7", above(self.retry_count, 7)),
            ("rnr_retry", "0 to 7", above(self.rnr_retry, 7)),
        ]
        .into_iter()
        .find(|(.., bad)| *bad)
        .map(|(name, range, _)| (name, range))
    }
}

/// Why a queue pair was not modified; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// No such transition (IBTA 10.3.1).
    #[error("a queue pair cannot go from {from} to {to}")]
    Transition {
        /// The state it is in.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// The transition needs an attribute that was not given.
    #[error("going from {from} to {to} needs the attribute {attribute}")]
    Missing {
        /// The state it is in.
        from: State,
        /// The state asked for.
        to: State,
        /// The attribute's name in [`QpAttributes`].
        attribute: &'static str,
    },
    /// A value is out of range.
    #[error("the attribute {attribute} must be {range}")]
    OutOfRange {
        /// The attribute's name in [`QpAttributes`].
        attribute: &'static str,
        /// The range.
        range: &'static str,
    },
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQueuePair(Qpn),
}
