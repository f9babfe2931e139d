use std::collections::BTreeMap;

use crate::time::{Duration, Instant};

use super::Fate;

/// Upper bound on the time that a reordered frame waits for others to overtake it.
const OVERTAKE_WAIT: Duration = Duration::from_millis(1);

/// Frames of one direction that wait: for their time, or for others to overtake them. Bounded.
#[derive(Debug)]
pub struct HoldQueue<T> {
    capacity: usize,
    next: u64,
    /// Delayed frames by the time at which they go, and the order in which they came.
    timed: BTreeMap<(Instant, u64), (u32, T)>,
    /// Frames that let others overtake them: how many still, and until when.
    held_back: Vec<(u32, Instant, T)>,
}

impl<T> HoldQueue<T> {
    /// A queue for at most `capacity` frames.
    pub fn new(capacity: usize) -> HoldQueue<T> {
        HoldQueue { capacity, next: 0, timed: BTreeMap::new(), held_back: Vec::new() }
    }

    /// Keeps `frame` for as long as its fate demands.
    ///
    /// # Errors
    /// Returns the frame when the queue is full.
    pub fn hold(&mut self, now: Instant, fate: &Fate, frame: T) -> Result<(), T> {
        if self.len() >= self.capacity {
            return Err(frame);
        }
        self.timed.insert((now + fate.delay, self.next), (fate.overtaken_by, frame));
        self.next += 1;
        self.settle(now);
        Ok(())
    }

    /// Records that a frame passed that did not wait here.
    pub fn overtake(&mut self) {
        self.held_back.iter_mut().for_each(|(left, ..)| *left = left.saturating_sub(1));
    }

    /// The next frame whose wait is over; `None` when there is none.
    pub fn release(&mut self, now: Instant) -> Option<T> {
        self.settle(now);
        if let Some(at) = self.held_back.iter().position(|(left, until, _)| *left == 0 || *until <= now) {
            return Some(self.held_back.remove(at).2);
        }
        let entry = self.timed.first_entry().filter(|entry| entry.key().0 <= now)?;
        let (_, frame) = entry.remove();
        self.overtake();
        Some(frame)
    }

    /// Moves frames whose delay is over, and that others are to overtake, to those that wait for that.
    fn settle(&mut self, now: Instant) {
        while let Some(entry) = self.timed.first_entry()
            && entry.key().0 <= now
            && entry.get().0 > 0
        {
            let ((due, _), (overtaken_by, frame)) = entry.remove_entry();
            self.held_back.push((overtaken_by, due + OVERTAKE_WAIT, frame));
        }
    }

    /// When [`release`](HoldQueue::release) has a frame the next time; `None` when no frame waits.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timed = self.timed.keys().next().map(|(due, _)| *due);
        let held = self.held_back.iter().map(|(left, until, _)| if *left == 0 { Instant::ZERO } else { *until }).min();
        timed.into_iter().chain(held).min()
    }

    /// The number of frames that wait.
    pub fn len(&self) -> usize {
        self.timed.len() + self.held_back.len()
    }

    /// Whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
