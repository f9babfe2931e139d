//! Bandwidth: as many messages as the depths allow, on all queue pairs, in one direction or both.

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::net::TcpStream;
use std::time::{Duration, Instant};

use uroce::verbs::Service;

use super::extent::{Extent, Sampling, Span};
use super::report::Bandwidth;
use super::settings::Settings;
use super::side::Side;
use crate::watch::Watch;
use crate::{Failure, interrupt};

/// Completions taken before it is looked again whether something is to be posted, or the time is over.
const BATCH: usize = 32;

/// The peak looks at all pairs of messages; with more than this it is left out, as perftest does.
const PEAK_MESSAGES: usize = 20_000;

/// Sends, receives, or both, messages of `size` bytes, and measures. For READs and atomics, who asks is who sends. `peer` is the
/// connection with the peer's program; `tell` has the results of a test without end.
pub fn run(
    side: &mut Side,
    peer: &TcpStream,
    size: usize,
    mut tell: impl FnMut(&Bandwidth),
) -> Result<Bandwidth, Failure> {
    let settings = side.settings;
    let result = |count, elapsed, peak| Bandwidth::new(size as u64, count, elapsed, peak, settings.gigabits);
    let mut traffic = Traffic::new(settings, peer, size);
    side.ask_for_events();
    while !traffic.is_over() {
        traffic.post(side)?;
        // Both, whatever the first finds.
        let moved = traffic.take_received(side)? | traffic.take_sent(side)?;
        if moved {
            let now = Instant::now();
            traffic.watch.moved(now);
            if let Some((count, elapsed)) = traffic.sampling.as_mut().and_then(|sampling| sampling.lap(now)) {
                tell(&result(count, elapsed, None));
            }
        } else {
            traffic.watch.nothing(|| state(settings, traffic.total, [traffic.sender.completed, traffic.received]))?;
            side.idle()?;
        }
    }
    if interrupt::is_pending()
        && let Some(sampling) = &mut traffic.sampling
    {
        sampling.cut(Instant::now());
    }
    let (count, elapsed, peak) = traffic.result();
    Ok(result(count, elapsed, peak))
}

/// A test under way.
struct Traffic<'a> {
    settings: &'a Settings,
    size: usize,
    sends: bool,
    receives: bool,
    /// A server of a test in both directions waits for the first message, so that the client has begun.
    has_begun: bool,
    /// Messages in each direction.
    total: u64,
    sender: Sender,
    received: u64,
    /// When the first and the last message arrived.
    received_times: Option<(Instant, Instant)>,
    sampling: Option<Sampling>,
    /// Whether one time follows the other.
    repeats: bool,
    watch: Watch<'a>,
}

impl<'a> Traffic<'a> {
    fn new(settings: &'a Settings, peer: &'a TcpStream, size: usize) -> Traffic<'a> {
        let (sends, receives) = (settings.sends(), settings.receives());
        // Who is sent to begins to measure with the first message.
        let has_begun = settings.is_client || !receives;
        Traffic {
            settings,
            size,
            sends,
            receives,
            has_begun,
            total: settings.extent.iterations().saturating_mul(settings.queue_pairs as u64),
            sender: Sender::new(settings.queue_pairs),
            received: 0,
            received_times: None,
            sampling: if has_begun { settings.extent.start() } else { None },
            repeats: matches!(settings.extent, Extent::Duration(Span { repeats: true, .. })),
            watch: Watch::new(settings.patience, settings.ack_timeout(), Some(peer)),
        }
    }

    fn is_over(&self) -> bool {
        let time_is_over = self.sampling.is_some_and(|sampling| !self.repeats && sampling.is_over(Instant::now()));
        let (all_sent, all_received) = (self.sender.completed >= self.total, self.received >= self.total);
        time_is_over || interrupt::is_pending() || (all_sent || !self.sends) && (all_received || !self.receives)
    }

    fn post(&mut self, side: &Side) -> Result<(), Failure> {
        if self.sends && self.has_begun { self.sender.post(side, self.size) } else { Ok(()) }
    }

    /// Takes messages that have arrived. Returns whether there were any.
    fn take_received(&mut self, side: &mut Side) -> Result<bool, Failure> {
        if !self.receives {
            return Ok(false);
        }
        for taken in 0..BATCH {
            let Some(done) = side.poll_received()? else { return Ok(taken > 0) };
            let now = Instant::now();
            if !self.has_begun {
                self.has_begun = true;
                self.sampling = self.settings.extent.start();
            }
            self.received += 1;
            self.received_times = Some((self.received_times.map_or(now, |(first, _)| first), now));
            self.count(now, 1);
            side.post_receive(done.index, self.size)?;
        }
        Ok(true)
    }

    /// Takes completions of what was sent. Returns whether there were any.
    fn take_sent(&mut self, side: &Side) -> Result<bool, Failure> {
        if !self.sends {
            return Ok(false);
        }
        for taken in 0..BATCH {
            let Some(done) = side.poll_sent()? else { return Ok(taken > 0) };
            let now = Instant::now();
            self.sender.completed(done.index, done.count, now);
            self.count(now, done.count);
        }
        Ok(true)
    }

    /// By time, both directions count, as perftest has it.
    fn count(&mut self, now: Instant, done: u64) {
        if let Some(sampling) = &mut self.sampling {
            sampling.count(now, done);
        }
    }

    /// Messages, how long they took, and the time of one at best.
    fn result(&self) -> (u64, Duration, Option<Duration>) {
        match (self.sampling, self.received_times) {
            (Some(sampling), _) => {
                let (count, elapsed) = sampling.result();
                (count, elapsed, None)
            }
            (None, Some((first, last))) if !self.sends => (self.received, last - first, None),
            _ => {
                let peak = if self.settings.no_peak { None } else { self.sender.peak() };
                (self.sender.completed, self.sender.elapsed(), peak)
            }
        }
    }
}

/// How far a test has come, of `total` messages each way.
fn state(settings: &Settings, total: u64, [sent, received]: [u64; 2]) -> String {
    let done = match (settings.sends(), settings.receives()) {
        (true, true) => format!("after {sent} messages sent and {received} received"),
        (true, false) => format!("after {sent} messages sent"),
        (false, _) => format!("after {received} messages received"),
    };
    let of = match settings.extent {
        Extent::Iterations(_) => format!(" of {total}"),
        Extent::Duration(_) => String::new(),
    };
    let lost = if settings.service == Service::Rc { "" } else { "; what is lost stays lost without -c RC" };
    format!("{done}{of}{lost}")
}

/// What was posted and completed, and when.
struct Sender {
    /// By queue pair.
    posted: Vec<u64>,
    outstanding: Vec<u64>,
    /// Posted since the last request that is reported.
    unreported: Vec<u64>,
    completed: u64,
    /// When each of the first messages was posted.
    post_times: Vec<Instant>,
    /// How many were completed, and when.
    completion_times: Vec<(u64, Instant)>,
    last_completion: Option<Instant>,
}

impl Sender {
    fn new(queue_pairs: usize) -> Sender {
        let zeros = vec![0; queue_pairs];
        Sender {
            posted: zeros.clone(),
            outstanding: zeros.clone(),
            unreported: zeros,
            completed: 0,
            post_times: Vec::with_capacity(PEAK_MESSAGES),
            completion_times: Vec::with_capacity(PEAK_MESSAGES),
            last_completion: None,
        }
    }

    /// Posts what the depths allow.
    fn post(&mut self, side: &Side, size: usize) -> Result<(), Failure> {
        let settings = side.settings;
        let (iterations, depth) = (settings.extent.iterations(), settings.send_depth as u64);
        for index in 0..self.posted.len() {
            while self.posted[index] < iterations && self.outstanding[index] < depth {
                if self.post_times.len() < PEAK_MESSAGES {
                    self.post_times.push(Instant::now());
                }
                let nth = self.posted[index];
                self.unreported[index] += 1;
                let reports = self.unreported[index] == settings.moderation || nth + 1 == iterations;
                let signals = if reports { std::mem::take(&mut self.unreported[index]) } else { 0 };
                side.post_send(index, nth, size, signals)?;
                self.posted[index] += 1;
                self.outstanding[index] += 1;
            }
        }
        Ok(())
    }

    fn completed(&mut self, index: usize, count: u64, now: Instant) {
        self.outstanding[index] -= count;
        self.completed += count;
        self.last_completion = Some(now);
        if self.completion_times.len() < PEAK_MESSAGES {
            self.completion_times.push((self.completed, now));
        }
    }

    fn elapsed(&self) -> Duration {
        match (self.post_times.first(), self.last_completion) {
            (Some(first), Some(last)) => last - *first,
            _ => Duration::ZERO,
        }
    }

    /// The shortest time for a message, averaged over any stretch of messages from a post to a completion.
    fn peak(&self) -> Option<Duration> {
        if self.completed == 0 || self.completed > PEAK_MESSAGES as u64 {
            return None;
        }
        shortest_average(&self.post_times, &self.completion_times)
    }
}

/// The least of (completion − post) ÷ messages over all stretches: the bandwidth's peak.
fn shortest_average(posts: &[Instant], completions: &[(u64, Instant)]) -> Option<Duration> {
    let stretches = completions.iter().flat_map(|(count, end)| {
        let before = posts.iter().take(*count as usize).enumerate();
        before.map(move |(nth, start)| (*end - *start).as_nanos() as f64 / (count - nth as u64) as f64)
    });
    stretches.min_by(f64::total_cmp).map(|nanoseconds| Duration::from_nanos(nanoseconds as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_best_stretch() {
        let start = Instant::now();
        let at = |micros: u64| start + Duration::from_micros(micros);
        // Slow at first, then two messages in 3 µs from the post of the second to the completion of the third.
        let posts = [at(0), at(100), at(101)];
        let completions = [(1, at(90)), (2, at(102)), (3, at(103))];
        assert_eq!(shortest_average(&posts, &completions), Some(Duration::from_nanos(1500)));
        // One completion for all.
        assert_eq!(shortest_average(&posts, &completions[2..]), Some(Duration::from_nanos(1500)));
        assert_eq!(shortest_average(&posts, &[]), None);
    }
}
