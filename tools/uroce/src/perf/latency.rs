//! Latency: one message at a time, on one queue pair.

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::net::TcpStream;
use std::time::Instant;

use super::extent::{Extent, Sampling};
use super::report::Latency;
use super::side::Side;
use super::test::Test;
use crate::watch::Watch;
use crate::{Failure, interrupt};

/// Plays with messages of `size` bytes, and measures. `peer` is the connection with the peer's program.
pub fn run(side: &mut Side, peer: &TcpStream, size: usize) -> Result<Latency, Failure> {
    let (verb, extent) = (side.settings.verb(), side.settings.extent);
    let mut game = Game::new(side, peer, size);
    game.play()?;
    if let Extent::Duration(_) = extent {
        if interrupt::is_pending()
            && let Some(sampling) = &mut game.sampling
        {
            sampling.cut(Instant::now());
        }
        let (count, elapsed) = game.sampling.map(|sampling| sampling.result()).unwrap_or_default();
        return Ok(Latency::by_time(verb, size as u64, count, elapsed));
    }
    let (times, sent) = (game.times, game.sent);
    let round_trips = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    Ok(Latency::of(verb, size as u64, sent, round_trips))
}

/// A game under way.
struct Game<'s, 'a> {
    side: &'s mut Side<'a>,
    size: usize,
    iterations: u64,
    sent: u64,
    /// Send requests completed.
    completed: u64,
    /// When each message was posted.
    times: Vec<Instant>,
    sampling: Option<Sampling>,
    watch: Watch<'s>,
}

impl<'s, 'a> Game<'s, 'a> {
    fn new(side: &'s mut Side<'a>, peer: &'s TcpStream, size: usize) -> Game<'s, 'a> {
        let settings = side.settings;
        let watch = Watch::new(settings.patience, settings.ack_timeout(), Some(peer));
        let iterations = settings.extent.iterations();
        Game { side, size, iterations, sent: 0, completed: 0, times: Vec::new(), sampling: None, watch }
    }

    fn play(&mut self) -> Result<(), Failure> {
        self.side.ask_for_events();
        match self.side.settings.test {
            Test::SendLat => self.send(),
            Test::WriteLat => self.write(),
            _ => self.ask(),
        }
    }

    /// SEND: the client begins. Each end's time begins with its first message received.
    fn send(&mut self) -> Result<(), Failure> {
        let begins = self.side.settings.is_client;
        let mut received = 0;
        while !self.is_over() && (self.sent < self.iterations || received < self.iterations) {
            if received < self.iterations && !(begins && self.sent == 0) {
                let done = loop {
                    if self.is_over() {
                        return Ok(());
                    }
                    match self.side.poll_received()? {
                        Some(done) => break done,
                        None => self.nothing("received", received)?,
                    }
                };
                received += 1;
                if self.sampling.is_none() {
                    self.sampling = self.side.settings.extent.start();
                }
                self.count();
                self.side.post_receive(done.index, self.size)?;
            }
            if self.sent < self.iterations {
                if !self.wait_for_room()? {
                    return Ok(());
                }
                self.post()?;
            }
        }
        self.wait_for_the_last()
    }

    /// RDMA WRITE: the server begins; both ends poll the last byte of their buffer, which counts the messages.
    fn write(&mut self) -> Result<(), Failure> {
        let begins = !self.side.settings.is_client;
        self.sampling = self.side.settings.extent.start();
        let mut received = 0u64;
        while !self.is_over() && (self.sent < self.iterations || received < self.iterations) {
            if received < self.iterations && !(begins && self.sent == 0) {
                received += 1;
                while self.side.marked(self.size) != received as u8 {
                    if self.is_over() {
                        return Ok(());
                    }
                    // What brings the bytes in.
                    if !self.reap()? {
                        self.nothing("received", received - 1)?;
                    }
                }
                self.count();
            }
            if self.sent < self.iterations {
                // The byte belongs to the message before until that is acknowledged.
                if !self.wait_for_room()? {
                    return Ok(());
                }
                self.side.mark(self.size, (self.sent + 1) as u8);
                self.post()?;
            }
        }
        self.wait_for_the_last()
    }

    /// READ and atomics: the client asks, the server's transport answers.
    fn ask(&mut self) -> Result<(), Failure> {
        self.sampling = self.side.settings.extent.start();
        while self.sent < self.iterations && !self.is_over() {
            self.post()?;
            while self.completed < self.sent {
                if self.is_over() {
                    return Ok(());
                }
                if !self.reap()? {
                    self.nothing("answered", self.completed)?;
                }
            }
            self.count();
        }
        Ok(())
    }

    fn post(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if self.sampling.is_none() {
            self.times.push(now);
        }
        self.watch.moved(now);
        self.side.post_send(0, self.sent, self.size, 1)?;
        self.sent += 1;
        Ok(())
    }

    /// Takes a send completion if there is one.
    fn reap(&mut self) -> Result<bool, Failure> {
        let done = self.side.poll_sent()?;
        self.completed += done.map_or(0, |done| done.count);
        Ok(done.is_some())
    }

    /// Waits until another request may be posted. False when the time is over before that: the peer may have answered a
    /// message whose acknowledge is still to come.
    fn wait_for_room(&mut self) -> Result<bool, Failure> {
        let depth = self.side.settings.send_depth as u64;
        self.wait_until(depth - 1)?;
        Ok(self.sent - self.completed < depth)
    }

    /// Waits until all is acknowledged, if it is iterations that count: when the time is over, nobody may answer any more.
    fn wait_for_the_last(&mut self) -> Result<(), Failure> {
        self.wait_until(0)
    }

    fn wait_until(&mut self, outstanding: u64) -> Result<(), Failure> {
        while self.sent - self.completed > outstanding && !self.is_over() {
            if !self.reap()? {
                self.nothing("acknowledged", self.completed)?;
            }
        }
        Ok(())
    }

    fn count(&mut self) {
        if let Some(sampling) = &mut self.sampling {
            sampling.count(Instant::now(), 1);
        }
    }

    fn is_over(&self) -> bool {
        interrupt::is_pending() || self.sampling.is_some_and(|sampling| sampling.is_over(Instant::now()))
    }

    fn nothing(&mut self, what: &str, count: u64) -> Result<(), Failure> {
        let sent = self.sent;
        self.watch.nothing(|| format!("after {sent} messages sent and {count} {what}"))?;
        self.side.idle()
    }
}
