use std::fmt;

use crate::time::{Duration, Instant};
use crate::wire::{Addresses, Qpn};

use super::listener::Listener;
use super::mad::Mad;

/// The name of a connection, or of a request for one, at this end: its communication id (IBTA 12.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(super) u32);

impl Id {
    /// The communication id.
    pub fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Where a connection stands (IBTA 12.9.7). The names of the kernel's `enum ib_cm_state` are beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// We have sent a REQ (REQ_SENT).
    Requesting,
    /// The peer's REP is here, and our program moves its queue pair (REP_RCVD).
    Accepted,
    /// The peer's REQ is here, and our program decides (REQ_RCVD).
    Requested,
    /// We have sent a REP (REP_SENT).
    Replied,
    /// Both ends may send (ESTABLISHED).
    Established,
    /// We have sent a DREQ (DREQ_SENT).
    Disconnecting,
    /// It is over; late packets of it may still come (TIMEWAIT).
    TimeWait,
    /// We have sent a SIDR_REQ (SIDR_REQ_SENT).
    Asking,
    /// The peer's SIDR_REQ is here, and our program decides (SIDR_REQ_RCVD).
    Asked,
    /// We have sent a SIDR_REP. It is kept for a while, should the peer ask again.
    Answered,
}

impl State {
    /// Whether our program has to decide on a peer's request.
    pub fn is_undecided(self) -> bool {
        matches!(self, State::Requested | State::Asked)
    }

    /// The state as the end of a sentence about the connection.
    pub fn words(self) -> &'static str {
        match self {
            State::Requesting => "waiting for the peer's reply",
            State::Accepted => "accepted by the peer",
            State::Requested => "waiting for this program's decision",
            State::Replied => "waiting for the peer to be ready",
            State::Established => "established",
            State::Disconnecting => "disconnecting",
            State::TimeWait => "disconnected",
            State::Asking => "a request for a datagram service",
            State::Asked => "a peer's request for a datagram service",
            State::Answered => "a request that was decided on",
        }
    }
}

/// A connection, or a request for one.
#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    /// The peer's communication id; 0 while it is not known.
    pub remote_id: u32,
    /// The GUID of the peer's adapter; 0 while it is not known.
    pub remote_guid: u64,
    pub remote_qpn: Qpn,
    /// From here to the peer.
    pub addresses: Addresses,
    pub traffic_class: u8,
    /// The listener whose request it is.
    pub listener: Option<Listener>,
    /// Whether the program has closed it: it gets no more events.
    pub is_closed: bool,
    /// What was sent last, to be sent again: until it is answered, or when the peer repeats what it answers.
    pub sent: Option<Mad>,
    pub retries_left: u8,
    /// The time until the next retransmission.
    pub interval: Duration,
    pub deadline: Option<Instant>,
    /// How long its late packets can be in the network.
    pub time_wait: Duration,
    /// How often the peer has said that nobody listens.
    refusals: usize,
    /// Whether the peer's kernel has said that nobody receives RoCE there, and nothing else came since.
    pub is_refused: bool,
}

/// The times after which a request is sent again that found nobody listening. Programs listen anew between two connections
/// (perftest does), and their clients know that sooner over uroce than over a kernel's connection manager.
const AFTER_REFUSAL: [Duration; 3] =
    [Duration::from_millis(30), Duration::from_millis(100), Duration::from_millis(300)];

/// The first retransmission of a message. Round trips take up to 0.3 s, and the peer's program decides meanwhile.
const FIRST_INTERVAL: Duration = Duration::from_millis(400);

/// Upper bound on the time until the next retransmission: the kernel's response timeout, code 20 (cma.c).
const LONGEST_INTERVAL: Duration = Duration::from_nanos(4096 << 20);

impl Connection {
    pub fn new(state: State, addresses: Addresses) -> Connection {
        Connection {
            state,
            remote_id: 0,
            remote_guid: 0,
            remote_qpn: Qpn::default(),
            addresses,
            traffic_class: 0,
            listener: None,
            is_closed: false,
            sent: None,
            retries_left: 0,
            interval: FIRST_INTERVAL,
            deadline: None,
            time_wait: Duration::ZERO,
            refusals: 0,
            is_refused: false,
        }
    }

    /// When to ask again, although nobody listens; `None` when that was done often enough.
    pub fn ask_again(&mut self) -> Option<Duration> {
        let after = AFTER_REFUSAL.get(self.refusals).copied();
        self.refusals += 1;
        after
    }

    /// A message is to be sent until it is answered, at most `retries` times more.
    pub fn expect_answer(&mut self, mad: Mad, retries: u8) {
        self.sent = Some(mad);
        self.retries_left = retries;
        self.interval = FIRST_INTERVAL;
    }

    /// The time until the next retransmission; it doubles each time.
    pub fn next_interval(&mut self) -> Duration {
        let interval = self.interval;
        self.interval = (interval * 2).min(LONGEST_INTERVAL);
        interval
    }
}

/// The time of a code: 4.096 µs × 2^code (IBTA 12.7.4), with an upper bound.
pub(super) fn time_of(code: u8, upper_bound: Duration) -> Duration {
    Duration::from_nanos(4096 << code.min(31)).min(upper_bound)
}
