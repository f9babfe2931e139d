//! A sender and a receiver in virtual time, with a path in each direction that can do anything to datagrams.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::ops::Range;

use uroce::time::{Duration, Instant};
use uroce_laboratory::sim::Random;
use uroce_transfer::deadline::{Receiver, Sender};

/// What happens to datagrams. Shares are probabilities for each, 0 to 1.
#[derive(Clone, Debug)]
pub struct Path {
    /// Bytes a second.
    pub rate: u64,
    pub delay: Duration,
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub reorder_by: Duration,
    /// Nothing passes.
    pub cuts: Vec<Range<Instant>>,
}

impl Default for Path {
    fn default() -> Path {
        Path {
            rate: 40_000_000,
            delay: Duration::from_millis(5),
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            cuts: Vec::new(),
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    Sender,
    Receiver,
}

/// What happens next.
pub enum Step {
    /// A datagram arrives. It has not been handed over.
    Arrives(To, Vec<u8>),
    /// The time of one of the ends has come, and was handed over.
    Time,
}

/// Both ends, and what is between them.
pub struct World {
    pub now: Instant,
    pub sender: Option<Sender>,
    pub receiver: Receiver,
    pub path: Path,
    /// How late timers are at most.
    pub lateness: Duration,
    random: Random,
    busy: [Instant; 2],
    on_the_way: BTreeMap<(Instant, u64), (To, Vec<u8>)>,
    sequence: u64,
    buffer: Vec<u8>,
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl World {
    pub fn new(sender: Sender, receiver: Receiver, path: Path, seed: u64, now: Instant) -> World {
        World {
            now,
            sender: Some(sender),
            receiver,
            path,
            lateness: Duration::ZERO,
            random: Random::new(seed, 1),
            busy: [Instant::ZERO; 2],
            on_the_way: BTreeMap::new(),
            sequence: 0,
            buffer: vec![0; 4096],
        }
    }

    /// Puts a datagram on its way, with nothing that can happen to it.
    pub fn put(&mut self, at: Instant, to: To, bytes: Vec<u8>) {
        self.sequence += 1;
        self.on_the_way.insert((at, self.sequence), (to, bytes));
    }

    /// A datagram enters the path.
    fn pass(&mut self, to: To, len: usize) {
        let bytes = self.buffer[..len].to_vec();
        let busy = &mut self.busy[to as usize];
        *busy = self.now.max(*busy) + Duration::from_nanos(len as u64 * 1_000_000_000 / self.path.rate);
        let at = *busy + self.path.delay;
        let is_cut = self.path.cuts.iter().any(|cut| cut.contains(&self.now));
        if is_cut || self.random.chance(self.path.loss) {
            return;
        }
        let late = if self.random.chance(self.path.reorder) { self.random.up_to(self.path.reorder_by) } else { ms(0) };
        if self.random.chance(self.path.duplicate) {
            let copy = at + self.random.up_to(self.path.reorder_by);
            self.put(copy, to, bytes.clone());
        }
        self.put(at + late, to, bytes);
    }

    fn transmit(&mut self) {
        while let Some(len) = self.receiver.poll_transmit(self.now, &mut self.buffer) {
            self.pass(To::Sender, len);
        }
        while let Some(len) = self.sender.as_mut().and_then(|sender| sender.poll_transmit(self.now, &mut self.buffer)) {
            self.pass(To::Receiver, len);
        }
    }

    /// Goes on to what happens next; `None` when nothing ever will.
    pub fn step(&mut self) -> Option<Step> {
        self.transmit();
        let arrival = self.on_the_way.first_key_value().map(|((at, _), _)| *at);
        let timers = [self.receiver.poll_timeout(), self.sender.as_ref().and_then(Sender::poll_timeout)];
        // What is due now was done: an end that does nothing about it would be asked for ever.
        let earliest = self.now + Duration::from_nanos(1);
        let timer = timers.into_iter().flatten().min().map(|at| at.max(earliest) + self.random.up_to(self.lateness));
        if arrival.is_some_and(|arrival| timer.is_none_or(|timer| arrival <= timer)) {
            let ((at, _), (to, bytes)) = self.on_the_way.pop_first()?;
            self.now = self.now.max(at);
            return Some(Step::Arrives(to, bytes));
        }
        self.now = timer?;
        self.tick();
        Some(Step::Time)
    }

    /// Hands the time to both ends.
    pub fn tick(&mut self) {
        self.receiver.handle_timeout(self.now);
        if let Some(sender) = &mut self.sender {
            sender.handle_timeout(self.now);
        }
    }

    pub fn hand_over(&mut self, to: To, bytes: &[u8]) {
        match to {
            To::Receiver => self.receiver.handle_datagram(self.now, bytes),
            To::Sender => {
                if let Some(sender) = &mut self.sender {
                    sender.handle_datagram(self.now, bytes);
                }
            }
        }
    }

    /// Goes on until the receiver has ended, at most so many steps.
    pub fn run(&mut self) {
        for _ in 0..2_000_000 {
            if self.receiver.end().is_some() {
                return;
            }
            match self.step() {
                Some(Step::Arrives(to, bytes)) => self.hand_over(to, &bytes),
                Some(Step::Time) => {}
                None => panic!("nothing happens any more, and the receiver has not ended"),
            }
        }
        panic!("the receiver does not end");
    }

    /// Goes on until a time.
    pub fn run_until(&mut self, until: Instant) {
        while self.now < until {
            match self.step() {
                Some(Step::Arrives(to, bytes)) => self.hand_over(to, &bytes),
                Some(Step::Time) => {}
                None => self.now = until,
            }
        }
    }
}

/// Bytes of an object.
pub fn contents(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.u32() as u8).collect()
}
