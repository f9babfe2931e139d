//! Loss recovery: which packets arrived, which are lost, and when to ask.
//!
//! Nothing here knows a wire format: packets are positions, counted from the connection's beginning, and acknowledges are
//! positions that arrived. A requester asks its [`Recovery`] what to send, and tells it what the peer says.

mod go_back_n;
mod round_trip;
mod scoreboard;
mod selective;

pub use go_back_n::GoBackN;
pub use round_trip::RoundTrip;
pub use scoreboard::{PathReport, Scoreboard, Wants};
pub use selective::Selective;

use std::fmt::Debug;

use crate::time::{Duration, Instant};

/// How a requester finds out what is lost, and sends it again.
///
/// Each packet of a request has a position, and so has each answer that is expected to a READ or atomic. A position is done when its
/// packet was carried out, and of an answer when it came.
///
/// ```text
///   position:  [ done .... | sent: some of it may be done, or lost ... | not sent ]
///                          ^first                                      ^next
/// ```
///
/// Whoever uses it sends what it [wants](Self::wants) before anything new, tells it of [each packet](Self::sent), and after each
/// packet of the peer what that [said](Self::acknowledge), and that [this was all](Self::settle).
pub trait Recovery: Debug + Send + Sync {
    /// The oldest position that is not done, as of the last time that things [were settled](Self::settle).
    fn first(&self) -> u64;

    /// The position after the newest that was ever sent.
    fn next(&self) -> u64;

    /// The position of the packet that goes out next, should the connection allow it: at [`next`](Self::next), or that of one
    /// that goes out in its order again.
    fn upcoming(&self) -> u64 {
        self.next()
    }

    /// The peer's silence that costs a retry; `None` for no limit.
    fn set_timeout(&mut self, timeout: Option<Duration>);

    /// Whether a packet may go out that was never sent.
    fn may_send_new(&self) -> bool;

    /// Whether the packet at `position`, which is sent before its message's last, asks for an acknowledge.
    fn asks_for_acknowledge(&self, position: u64, is_again: bool) -> bool;

    /// A packet goes out for the first time, over `path`: the one at [`next`](Self::next), for `count` positions, 1 or more.
    /// `answers`: each of them is done only with its answer.
    fn sent(&mut self, count: u32, answers: bool, path: u8, now: Instant);

    /// Whether something is to be sent or asked for again.
    fn wants_anything(&self) -> bool;

    /// What is to be sent or asked for again next; it stays until it [was](Self::sent_again), or [cannot be](Self::forgo).
    fn wants(&mut self) -> Option<Wants>;

    /// What was wanted goes out over `path`, or as many of the answers as one request can ask for.
    fn sent_again(&mut self, what: Wants, path: u8, now: Instant);

    /// What was wanted cannot be sent: its request has failed, and is reported when all before it are complete.
    fn forgo(&mut self, what: Wants);

    /// How often the packet at `position` was sent, as far as that is counted.
    fn attempts(&self, _position: u64) -> u8 {
        0
    }

    /// Acknowledges for so many positions before [`first`](Self::first) still say something.
    fn reach(&self) -> u64 {
        0
    }

    /// Takes what an acknowledge says. Returns whether it says that a packet was sent again in vain.
    fn acknowledge(&mut self, said: &Said<'_>, now: Instant) -> bool;

    /// What an answer to a READ or atomic at `position`, which is in flight, is to be taken for.
    fn answer(&self, position: u64) -> Answer;

    /// The answer at `position`, which was [expected](Answer::Expected), came.
    fn answered(&mut self, position: u64, now: Instant);

    /// Whether a request that asks for answers again may ask for less than all that are left of its message.
    fn asks_for_some_answers(&self) -> bool {
        false
    }

    /// After all that a packet said: finds out what is lost, and returns [`first`](Self::first).
    fn settle(&mut self, now: Instant) -> u64;

    /// The peer says that the packet at [`first`](Self::first) came to it with a gap before it (IBTA 9.7.5.1.2, NAK sequence error).
    /// Returns whether all is sent again from there on, which costs a retry.
    fn sequence_error(&mut self, _now: Instant) -> bool {
        false
    }

    /// Whether all is sent again, at the cost of a retry, because what was said last proves that an answer is lost (IBTA 9.7.5.1.1,
    /// implied NAK).
    fn implied_nak(&mut self, _now: Instant) -> bool {
        false
    }

    /// Whether it is news that the peer could not carry out the packet at `position` yet (IBTA 9.7.5.2.8, RNR NAK).
    fn is_news_of(&self, position: u64) -> bool;

    /// It could not, and will be left alone for a while. Nothing is to be sent, and no time passes, until
    /// [the peer may be ready](Self::receiver_may_be_ready).
    fn receiver_not_ready(&mut self, position: u64, now: Instant);

    /// That while is over.
    fn receiver_may_be_ready(&mut self, now: Instant);

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    fn deadline(&self) -> Option<Instant>;

    /// Time has passed.
    fn handle_timeout(&mut self, now: Instant) -> Expired;

    /// Bytes of memory that it takes.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// There are paths, which are probed; `spread` is how much their round trips differ, when there is more than one.
    fn use_paths(&mut self, _spread: Option<Duration>) {}

    /// A probe of the path was answered after `round_trip`; `is_back` when nothing had come through before.
    fn path_answered(&mut self, _path: u8, _round_trip: Duration, _is_back: bool) {}

    /// Tells whoever chooses paths what became of packets since this was asked last.
    fn report(&mut self, _to: &mut dyn FnMut(PathReport)) {}
}

/// What an acknowledge says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    /// All requests before this position were carried out.
    pub before: u64,
    /// Those of each base, and how far after it they are, arrived: bit k stands for the position k after it.
    pub arrived: &'a [(u64, u64)],
    /// The packet that it was sent for.
    pub trigger: Option<Trigger>,
    /// It took another way than usual: what it does not say says nothing of what was sent before.
    pub is_detour: bool,
}

impl Said<'_> {
    /// Nothing more than that.
    pub fn before(position: u64) -> Said<'static> {
        Said { before: position, ..Said::default() }
    }
}

/// The packet that an acknowledge was sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Where it was.
    pub position: u64,
    /// It had been sent so often before.
    pub attempt: u8,
    /// How long the acknowledge waited, if that is known.
    pub delay: Option<Duration>,
    /// It came with «congestion experienced».
    pub is_marked: bool,
}

/// What an answer is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is one that is missing.
    Expected,
    /// Its time has not come: the oldest missing one is at `oldest`. `is_next`: it is the one right after that.
    Early {
        /// The position of the oldest missing answer.
        oldest: u64,
        /// No other is missing between the two.
        is_next: bool,
    },
    /// It came before, or nobody asked for it.
    Unexpected,
}

/// What became clear as time passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// The peer was silent for a timeout: that costs a retry.
    pub is_silent: bool,
    /// Something is sent again to hear of it.
    pub asks_again: bool,
}
