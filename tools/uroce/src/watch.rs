#![allow(clippy::disallowed_methods, reason = "it waits for a peer in real time")]

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::tcp::{self, PeerProgram};

/// Watches that something happens, and that the peer's program is there.
pub struct Watch<'a> {
    last: Instant,
    looked: Instant,
    patience: Duration,
    /// How long nothing may happen once the peer's program has ended.
    after_end: Duration,
    peer: Option<&'a TcpStream>,
}

/// How often it is looked whether the peer's program is there.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The least time after which nothing more is expected of a program that has ended.
const AFTER_END: Duration = Duration::from_secs(2);

impl<'a> Watch<'a> {
    /// Gives up after `patience` without anything. When the peer's program has ended, its last packets may still have to be
    /// retransmitted: then after four times `ack_timeout`, or 2 s. `peer` is the connection that the program keeps as long as
    /// it runs, where it does.
    pub fn new(patience: Duration, ack_timeout: Duration, peer: Option<&'a TcpStream>) -> Watch<'a> {
        let now = Instant::now();
        Watch { last: now, looked: now, patience, after_end: AFTER_END.max(4 * ack_timeout), peer }
    }

    /// Something happened.
    pub fn moved(&mut self, now: Instant) {
        self.last = now;
    }

    /// Nothing happened. `state` says how far things had come.
    ///
    /// # Errors
    /// [`Stalled`] when that has been so for too long.
    pub fn nothing(&mut self, state: impl FnOnce() -> String) -> Result<(), Failure> {
        let now = Instant::now();
        let since = now.saturating_duration_since(self.last);
        let looks =
            since > self.after_end.min(self.patience) && now.saturating_duration_since(self.looked) > LOOK_AGAIN;
        if looks {
            self.looked = now;
        }
        let ended = || self.peer.is_some_and(|peer| tcp::peer_program(peer) == PeerProgram::Ended);
        let has_ended = looks && since > self.after_end && ended();
        match has_ended || since > self.patience {
            true => Err(Box::new(Stalled { since, state: state() })),
            false => Ok(()),
        }
    }
}

/// Nothing happened for too long.
#[derive(Debug)]
pub struct Stalled {
    since: Duration,
    /// How far things had come.
    state: String,
}

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = (self.since.as_secs_f64() * 10.0).round() / 10.0;
        write!(f, "nothing has come from the peer for {seconds} s, {}", self.state)
    }
}

impl std::error::Error for Stalled {}

impl Stalled {
    /// It, and what is known of the peer's program at an address.
    pub fn explain(&self, program: PeerProgram, at: &str) -> String {
        match program {
            PeerProgram::Ended => format!("{self}: the peer's program at {at} has ended; look at its output"),
            PeerProgram::Runs | PeerProgram::Unknown => self.to_string(),
        }
    }
}
