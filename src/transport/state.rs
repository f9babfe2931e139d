use std::fmt;

/// The states of a queue pair (IBTA 10.3.1); the values of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the IBTA's names
pub enum State {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

impl State {
    /// Whether packets from the peer are accepted.
    pub(super) fn receives(self) -> bool {
        !matches!(self, State::Reset | State::Init | State::Error)
    }

    /// Whether the peer is notified of congestion.
    pub(super) fn notifies(self) -> bool {
        matches!(self, State::ReadyToReceive | State::ReadyToSend)
    }

    /// Whether the requester runs, even if only to finish what it began.
    pub(super) fn sends(self) -> bool {
        matches!(self, State::ReadyToSend | State::SendQueueDrained)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Reset => "RESET",
            State::Init => "INIT",
            State::ReadyToReceive => "RTR",
            State::ReadyToSend => "RTS",
            State::SendQueueDrained => "SQD",
            State::SendQueueError => "SQE",
            State::Error => "ERR",
        })
    }
}
