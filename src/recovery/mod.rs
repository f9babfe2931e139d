//! Loss recovery: which packets arrived, which are lost, and when to retransmit.
//!
//! Nothing here knows a wire format: packets are positions, counted from the connection's beginning, and acknowledges
//! are positions that arrived. A requester asks its [`Recovery`] what to send, and passes to it what the peer reports.

mod go_back_n;
mod round_trip;
mod scoreboard;
mod selective;
mod stream;

pub use go_back_n::GoBackN;
pub use round_trip::RoundTrip;
pub use scoreboard::{PathReport, Scoreboard, Wants};
pub use selective::Selective;

use std::fmt::Debug;

use crate::congestion::Progress;
use crate::time::{Duration, Instant};

/// How a requester learns what is lost, and retransmits it.
///
/// Each packet of a request has a position, and so has each answer that is expected to a READ or atomic. A position is
/// done when its request has executed; the position of an answer, when the answer has arrived.
///
/// ```text
///   position:  [ done .... | sent: some of it may be done, or lost ... | not sent ]
///                          ^first                                      ^next
/// ```
///
/// The requester sends what the recovery [wants](Self::wants) before anything new, and reports [each
/// packet](Self::sent) that it sends. After each packet of the peer it reports [the contents](Self::acknowledge), and
/// then calls [`settle`](Self::settle).
pub trait Recovery: Debug + Send + Sync {
    /// Its name in what is told of a queue pair.
    fn name(&self) -> &'static str {
        "own"
    }

    /// The oldest position that is not done, as of the last call of [`settle`](Self::settle).
    fn first(&self) -> u64;

    /// The position after the newest that was ever sent.
    fn next(&self) -> u64;

    /// The position of the packet that goes out next, if the connection allows it: [`next`](Self::next), or an earlier
    /// one that is retransmitted in order.
    fn upcoming(&self) -> u64 {
        self.next()
    }

    /// Sets the silence of the peer that costs a retry; `None` for no limit.
    fn set_timeout(&mut self, timeout: Option<Duration>);

    /// How long it waits for a sign of what is in flight; `None` for ever.
    fn patience(&self) -> Option<Duration>;

    /// Whether a new packet can go out.
    fn may_send_new(&self) -> bool;

    /// Whether the packet at `position`, which is sent before its message's last, asks for an acknowledge.
    fn asks_for_acknowledge(&self, position: u64, is_again: bool) -> bool;

    /// Records that the packet at [`next`](Self::next) goes out for the first time.
    fn sent(&mut self, packet: Departure, now: Instant);

    /// Whether there is something to retransmit or to request again.
    fn wants_anything(&self) -> bool;

    /// What to retransmit or to request again next. It stays until it [was](Self::sent_again), or [cannot
    /// be](Self::forgo).
    fn wants(&mut self) -> Option<Wants>;

    /// Records that `what` goes out over `path`, or as many of the answers as one request can ask for, in a packet of
    /// `bytes`.
    fn sent_again(&mut self, what: Wants, path: u8, bytes: usize, now: Instant);

    /// Records that `what` cannot be sent: its request has failed, and is reported when all before it are complete.
    fn forgo(&mut self, what: Wants);

    /// Transmissions of the packet at `position`, if they are counted.
    fn attempts(&self, _position: u64) -> u8 {
        0
    }

    /// How many positions before [`first`](Self::first) an acknowledge can name and still be of use.
    fn reach(&self) -> u64 {
        0
    }

    /// Takes an acknowledge. Returns whether it reports a spurious retransmission.
    fn acknowledge(&mut self, said: &Said<'_>, now: Instant) -> bool;

    /// Classifies an answer to a READ or atomic at `position`, which is in flight.
    fn answer(&self, position: u64) -> Answer;

    /// Records that the answer at `position`, which was [expected](Answer::Expected), arrived.
    fn answered(&mut self, position: u64, now: Instant);

    /// Whether a READ that is requested again can ask for less than all that is left of its message.
    fn asks_for_some_answers(&self) -> bool {
        false
    }

    /// Finds what is lost, after all that a packet reported, and returns [`first`](Self::first).
    fn settle(&mut self, now: Instant) -> u64;

    /// Takes a NAK for a sequence error: the packet at [`first`](Self::first) arrived with a gap before it (IBTA
    /// 9.7.5.1.2). Returns whether everything is retransmitted from there on, which costs a retry.
    fn sequence_error(&mut self, _now: Instant) -> bool {
        false
    }

    /// Whether the last report proves that an answer is lost (IBTA 9.7.5.1.1, implied NAK), and everything is
    /// retransmitted at the cost of a retry.
    fn implied_nak(&mut self, _now: Instant) -> bool {
        false
    }

    /// Whether it is news that the peer could not execute the packet at `position` yet (IBTA 9.7.5.2.8, RNR NAK).
    fn is_news_of(&self, position: u64) -> bool;

    /// Records an RNR NAK for the packet at `position`. Nothing is sent, and no time passes, until [the peer may be
    /// ready](Self::receiver_may_be_ready).
    fn receiver_not_ready(&mut self, position: u64, now: Instant);

    /// Records that the RNR delay is over.
    fn receiver_may_be_ready(&mut self, now: Instant);

    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None` for never.
    fn deadline(&self) -> Option<Instant>;

    /// Handles the time `now`, and returns what has expired.
    fn handle_timeout(&mut self, now: Instant) -> Expired;

    /// Takes, before [`handle_timeout`](Self::handle_timeout), that nothing in flight asks for an acknowledge, and a packet that
    /// does goes next: silence says nothing yet. Returns whether it would have been taken for a loss.
    fn has_not_asked(&mut self, _now: Instant) -> bool {
        false
    }

    /// Bytes of request packets that were sent and of which nothing is known: neither that they arrived, nor that they
    /// are lost.
    fn in_flight_bytes(&self) -> u64 {
        0
    }

    /// What became of packets since the last call, for congestion control.
    fn progress(&mut self) -> Progress {
        Progress::default()
    }

    /// Memory that it holds, in bytes.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Announces that there are paths, which are probed. `spread` is the difference of their round trips, when there is
    /// more than one.
    fn use_paths(&mut self, _spread: Option<Duration>) {}

    /// Records that a probe of the path was answered after `round_trip`; `is_back` when nothing had come through
    /// before.
    fn path_answered(&mut self, _path: u8, _round_trip: Duration, _is_back: bool) {}

    /// Has what lies outside of it fetched into the caches.
    fn prefetch_parts(&self) {}

    /// The result of each packet since they were [forgotten](Self::forget_reports), for the path policy.
    fn reports(&self) -> &[PathReport] {
        &[]
    }

    /// Forgets the results of packets, which the path policy has taken.
    fn forget_reports(&mut self) {}
}

/// A request packet that goes out for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The number of positions that it takes, at least 1.
    pub count: u32,
    /// Whether each of the positions is done only with its answer.
    pub answers: bool,
    /// The path that it takes.
    pub path: u8,
    /// The length of the packet from the IP header to the ICRC, in bytes; 0 when nobody asks what becomes of it.
    pub bytes: usize,
    /// Whether it asks for an acknowledge or another answer.
    pub asks: bool,
}

/// The contents of an acknowledge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    /// All requests before this position have executed.
    pub before: u64,
    /// Pairs of a base and bits: bit k reports the arrival of the position k after the base.
    pub arrived: &'a [(u64, u64)],
    /// The packet that caused the acknowledge.
    pub trigger: Option<Trigger>,
    /// Whether it took another path than usual: then absence from it does not mean loss.
    pub is_detour: bool,
}

impl Said<'_> {
    /// A cumulative acknowledge of all positions before `position`, and nothing more.
    pub fn before(position: u64) -> Said<'static> {
        Said { before: position, ..Said::default() }
    }
}

/// The packet that caused an acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The position of the packet.
    pub position: u64,
    /// Earlier transmissions of the packet.
    pub attempt: u8,
    /// How long the acknowledge waited at the peer; `None` when that is not known.
    pub delay: Option<Duration>,
    /// Whether the packet arrived with «congestion experienced».
    pub is_marked: bool,
}

/// What an answer is classified as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A missing answer, as expected.
    Expected,
    /// An early answer: the oldest missing one comes first.
    Early {
        /// The position of the oldest missing answer.
        oldest: u64,
        /// Whether no other answer is missing between the two.
        is_next: bool,
    },
    /// A duplicate, or an answer to nothing.
    Unexpected,
}

/// What a timeout has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Whether the peer was silent for a timeout, which costs a retry.
    pub is_silent: bool,
    /// Whether something is retransmitted to get a sign of it.
    pub asks_again: bool,
}
