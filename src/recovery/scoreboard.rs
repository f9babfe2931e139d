use std::collections::VecDeque;

use crate::time::{Duration, Instant};

use super::RoundTrip;

/// What became of the packets in flight. Each has a position: requests that were sent, and the answers expected to READs,
/// which take positions, too.
///
/// ```text
///   position:  [ done .... | sent: arrived, lost or nothing known ... | not sent ]
///                          ^first                                     ^next
/// ```
///
/// Twelve bytes a position, and sixteen for each transmission whose fate is not known. A packet is lost when one that was sent
/// after it on the same path has arrived, and a round trip and a little passed since it was sent (as RFC 8985 has it);
/// gaps by themselves say nothing.
#[derive(Debug)]
pub struct Scoreboard {
    first: u64,
    next: u64,
    /// All requests before were carried out.
    carried_out: u64,
    /// By position, modulo its length, which is a power of two.
    ring: Vec<Entry>,
    paths: Vec<PathState>,
    /// Requests that are lost, to be sent again.
    lost: VecDeque<u64>,
    /// Answers that are lost, to be asked for again.
    missing: VecDeque<u64>,
    /// Answers that a later one has overtaken, and since when.
    overtaken: VecDeque<(u64, Instant)>,
    /// Answers that were asked for again: their attempt, and when.
    asked: VecDeque<(u64, u8, Instant)>,
    /// Answers before this were received, or are in one of the queues above.
    frontier: u64,
    /// Transmissions so far, modulo 2^32.
    transmissions: u32,
    round_trip: RoundTrip,
    /// What is waited for before the first measurement.
    first_patience: Duration,
    /// When the oldest transmission that was overtaken counts as lost.
    lost_at: Option<Instant>,
    /// When to ask for a sign of life, while something is in flight.
    probe_at: Option<Instant>,
    /// How often in a row that was done.
    probes: u32,
    /// How much more than an eighth of a round trip packets are late, as a factor: grows when something was sent again in
    /// vain.
    lateness: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The latest transmission, or when it was last asked for: microseconds, modulo 2^32.
    at_us: u32,
    /// Its number among all transmissions, modulo 2^32: many leave in one microsecond.
    order: u32,
    /// Transmissions before that.
    attempt: u8,
    path: u8,
    flags: u8,
}

/// The request is known to have arrived.
const ARRIVED: u8 = 1;
/// Nothing more is to come.
const DONE: u8 = 2;
/// It is done when its answer has arrived.
const ANSWER: u8 = 4;
/// It waits in a queue to be sent or asked for again.
const QUEUED: u8 = 8;
/// A packet was sent for this position, rather than for one before it.
const PACKET: u8 = 16;
/// When it was sent is not known.
const UNTIMED: u8 = 32;

#[derive(Debug, Default)]
struct PathState {
    /// Transmissions in their order: position and attempt.
    sent: VecDeque<(u64, u8)>,
    /// The number of the latest transmission that arrived, and how long that took to be known.
    latest: Option<(u32, Duration)>,
}

/// What a scoreboard asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The request at this position sent again.
    Request(u64),
    /// The answers at `count` positions from this one on asked for again.
    Answers(u64, u32),
}

/// The shortest time by which packets may overtake each other: what moderation and batches of a host do.
const LATE_AT_LEAST: Duration = Duration::from_micros(50);

/// The factor of [`Scoreboard::lateness`] at the most: a whole round trip.
const LATENESS_MAX: u32 = 8;

/// Answers that a probe asks for at the most.
const PROBED_ANSWERS: u64 = 64;

/// The longest pause between probes is this power of two times the first.
const PROBE_BACKOFF_MAX: u32 = 5;

impl Scoreboard {
    /// Nothing is in flight; the next position is `start`. Before the first measurement, `first_patience` is waited for a
    /// sign.
    pub fn new(start: u64, first_patience: Duration) -> Scoreboard {
        Scoreboard {
            first: start,
            next: start,
            carried_out: start,
            ring: vec![Entry::default(); 64],
            paths: vec![PathState::default()],
            lost: VecDeque::new(),
            missing: VecDeque::new(),
            overtaken: VecDeque::new(),
            asked: VecDeque::new(),
            frontier: start,
            transmissions: 0,
            round_trip: RoundTrip::default(),
            first_patience,
            lost_at: None,
            probe_at: None,
            probes: 0,
            lateness: 1,
        }
    }

    /// The oldest position that is not done.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The position after the newest that was ever sent.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// How long nothing may be heard before a probe is sent.
    pub fn patience(&self) -> Duration {
        self.round_trip.patience(self.first_patience)
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let transmissions: usize = self.paths.iter().map(|path| path.sent.capacity()).sum();
        self.ring.capacity() * size_of::<Entry>()
            + transmissions * size_of::<(u64, u8)>()
            + (self.lost.capacity() + self.missing.capacity()) * size_of::<u64>()
            + self.overtaken.capacity() * size_of::<(u64, Instant)>()
            + self.asked.capacity() * size_of::<(u64, u8, Instant)>()
    }

    /// How often the packet at `position` was sent.
    pub fn attempts(&self, position: u64) -> u8 {
        match self.entry(position) {
            Some(entry) => entry.attempt.saturating_add(1),
            None => 0,
        }
    }

    /// The packet at `position` goes out over `path`, for the first time (at [`next`](Self::next), for `count` positions)
    /// or again. `answers`: each of its positions is done only with its answer.
    pub fn sent(&mut self, position: u64, count: u32, answers: bool, path: u8, now: Instant) {
        let (at_us, order) = (micros(now), self.transmissions);
        self.transmissions = order.wrapping_add(1);
        if position == self.next {
            self.next += u64::from(count);
            self.make_room();
            let flags = if answers { ANSWER } else { 0 };
            for at in position..self.next {
                *self.slot(at) = Entry { at_us, order, attempt: 0, path, flags };
            }
            self.slot(position).flags |= PACKET;
        } else {
            let entry = self.slot(position);
            let attempt = entry.attempt.saturating_add(1);
            *entry = Entry { at_us, order, attempt, path, flags: entry.flags & !(QUEUED | UNTIMED) };
        }
        let attempt = self.slot(position).attempt;
        if self.paths.len() <= usize::from(path) {
            self.paths.resize_with(usize::from(path) + 1, PathState::default);
        }
        self.paths[usize::from(path)].sent.push_back((position, attempt));
        if self.probe_at.is_none() {
            self.probe_at = Some(now + self.patience());
        }
    }

    /// As [`sent`](Self::sent), for the first time, at some time before: nothing is measured by it.
    pub fn taken_over(&mut self, count: u32, answers: bool, now: Instant) {
        let position = self.next;
        self.sent(position, count, answers, 0, now);
        self.slot(position).flags |= UNTIMED;
    }

    /// The answers at `count` positions from `position` on were asked for again.
    pub fn asked(&mut self, position: u64, count: u32, now: Instant) {
        for at in position..position + u64::from(count) {
            let entry = self.slot(at);
            entry.at_us = micros(now);
            entry.attempt = entry.attempt.saturating_add(1);
            entry.flags &= !QUEUED;
            let attempt = entry.attempt;
            self.asked.push_back((at, attempt, now));
        }
    }

    /// The peer says that the request at `position` arrived; it may not have been carried out yet.
    pub fn arrived(&mut self, position: u64, now: Instant) {
        let least = self.round_trip.least();
        let Some(entry) = self.entry_mut(position) else { return };
        if entry.flags & ARRIVED != 0 {
            return;
        }
        entry.flags |= ARRIVED;
        if entry.flags & (PACKET | UNTIMED) != PACKET {
            return;
        }
        let took = Duration::from_micros(u64::from(micros(now).wrapping_sub(entry.at_us)));
        // Which of several transmissions arrived is not said: not the last one, if that was a moment ago.
        if entry.attempt > 0 && least.is_some_and(|least| took < least) {
            return;
        }
        let (order, path) = (entry.order, usize::from(entry.path));
        let latest = &mut self.paths[path].latest;
        if latest.is_none_or(|(latest, _)| is_before(latest, order)) {
            *latest = Some((order, took));
        }
    }

    /// The peer says that it has carried out all requests before `position`.
    pub fn carried_out_before(&mut self, position: u64, now: Instant) {
        let until = position.min(self.next);
        while self.carried_out < until {
            self.arrived(self.carried_out, now);
            let entry = self.slot(self.carried_out);
            if entry.flags & ANSWER == 0 {
                entry.flags |= DONE;
            }
            self.carried_out += 1;
        }
    }

    /// Whether the request at `position` was carried out.
    pub fn is_carried_out(&self, position: u64) -> bool {
        position < self.carried_out
    }

    /// The request at `position` is to be sent again, whatever is known of it.
    pub fn lose(&mut self, position: u64) {
        let Some(entry) = self.entry_mut(position) else { return };
        entry.flags &= !ARRIVED;
        if entry.flags & (QUEUED | DONE) == 0 {
            entry.flags |= QUEUED;
            self.lost.push_front(position);
        }
    }

    /// The answer at `position` arrived, which was [waited for](Self::awaits_answer).
    pub fn answered(&mut self, position: u64, now: Instant) {
        debug_assert!(self.awaits_answer(position));
        // Whoever answers has carried out everything before, and all of the READ that this is an answer to.
        if self.carried_out <= position {
            let rest = (position + 1..self.next).take_while(|at| self.slot_ref(*at).flags & PACKET == 0);
            self.carried_out_before(position + 1 + rest.count() as u64, now);
        }
        let entry = self.slot(position);
        entry.flags |= DONE | ARRIVED;
        if entry.attempt == 0 {
            for before in self.frontier.max(self.first)..position {
                if self.awaits_answer(before) {
                    self.overtaken.push_back((before, now));
                }
            }
            self.frontier = self.frontier.max(position + 1);
        }
    }

    /// Whether the answer at `position` is still to come.
    pub fn awaits_answer(&self, position: u64) -> bool {
        self.entry(position).is_some_and(|entry| entry.flags & (ANSWER | DONE) == ANSWER)
    }

    /// The request that arrived last was at `position`, in its transmission number `attempt`, `delay` before its
    /// acknowledge was sent. Returns whether a later transmission of it was in vain.
    pub fn measured(&mut self, position: u64, attempt: u8, delay: Duration, now: Instant) -> bool {
        let Some(&entry) = self.entry(position) else { return false };
        if entry.attempt == attempt && entry.flags & (PACKET | UNTIMED) == PACKET {
            let took = Duration::from_micros(u64::from(micros(now).wrapping_sub(entry.at_us)));
            self.round_trip.sample(took.saturating_sub(delay));
        }
        let in_vain = entry.attempt > attempt && entry.flags & ARRIVED == 0;
        if in_vain && self.lateness < LATENESS_MAX {
            self.lateness += 1;
        }
        in_vain
    }

    /// After all that an acknowledge or answer said: how far everything is done, and what is lost.
    pub fn settle(&mut self, now: Instant) -> u64 {
        while self.first < self.next && self.slot(self.first).flags & DONE != 0 {
            self.first += 1;
        }
        self.carried_out = self.carried_out.max(self.first);
        self.frontier = self.frontier.max(self.first);
        self.probes = 0;
        self.probe_at = (self.first < self.next).then(|| now + self.patience());
        self.find_lost(now);
        self.first
    }

    /// How late a packet may be without being lost.
    fn late(&self) -> Duration {
        (self.round_trip.least().unwrap_or_default() / 8 * self.lateness).max(LATE_AT_LEAST)
    }

    fn find_lost(&mut self, now: Instant) {
        let (now_us, late) = (micros(now), self.late());
        self.lost_at = None;
        for index in 0..self.paths.len() {
            let Some((latest, took)) = self.paths[index].latest else { continue };
            while let Some(&(position, attempt)) = self.paths[index].sent.front() {
                let known = self.entry(position).filter(|entry| entry.flags & (ARRIVED | DONE | QUEUED) == 0);
                let Some(entry) = known.filter(|entry| entry.attempt == attempt) else {
                    self.paths[index].sent.pop_front();
                    continue;
                };
                let since = Duration::from_micros(u64::from(now_us.wrapping_sub(entry.at_us)));
                if !is_before(entry.order, latest) {
                    break;
                }
                if since < took + late {
                    let at = now + (took + late - since);
                    self.lost_at = Some(self.lost_at.map_or(at, |other| other.min(at)));
                    break;
                }
                self.paths[index].sent.pop_front();
                self.slot(position).flags |= QUEUED;
                self.lost.push_back(position);
            }
        }
        while let Some(&(position, since)) = self.overtaken.front() {
            if self.awaits_answer(position) && since + late > now {
                break;
            }
            self.overtaken.pop_front();
            self.miss(position);
        }
        let patience = self.patience();
        while let Some(&(position, attempt, at)) = self.asked.front() {
            let waits = self.awaits_answer(position) && self.slot(position).attempt == attempt;
            if waits && at + patience > now {
                break;
            }
            self.asked.pop_front();
            if waits {
                self.miss(position);
            }
        }
    }

    fn miss(&mut self, position: u64) {
        if self.awaits_answer(position) && self.slot(position).flags & QUEUED == 0 {
            self.slot(position).flags |= QUEUED;
            self.missing.push_back(position);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let late = self.late();
        let overtaken = self.overtaken.front().map(|(_, since)| *since + late);
        let asked = self.asked.front().map(|(_, _, at)| *at + self.patience());
        [self.probe_at, overtaken, asked, self.lost_at].into_iter().flatten().min()
    }

    /// Time has passed. Returns whether a probe is due: nothing was heard for long.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.find_lost(now);
        if self.probe_at.is_none_or(|at| at > now) {
            return false;
        }
        self.probes += 1;
        self.probe_at = Some(now + self.patience() * (1 << self.probes.min(PROBE_BACKOFF_MAX)));
        // The oldest request of which nothing is known; the oldest that was not carried out, since the peer may have said
        // that it cannot yet, and that was lost; and the oldest answers.
        let mut requests = (self.carried_out..self.next).filter(|at| self.slot_ref(*at).flags & PACKET != 0);
        let oldest = requests.clone().next();
        let unknown = requests.find(|at| self.slot_ref(*at).flags & ARRIVED == 0);
        unknown.into_iter().chain(oldest).for_each(|request| self.lose(request));
        (self.first..self.carried_out.min(self.first + PROBED_ANSWERS)).for_each(|at| self.miss(at));
        true
    }

    /// Whether something is to be sent or asked for again.
    pub fn wants_anything(&self) -> bool {
        !self.lost.is_empty() || !self.missing.is_empty()
    }

    /// What is to be sent or asked for again next; it stays until it [was](Self::sent).
    pub fn wants(&mut self) -> Option<Wants> {
        while let Some(&position) = self.lost.front() {
            match self.entry_mut(position) {
                Some(entry) if entry.flags & (ARRIVED | QUEUED) == QUEUED => return Some(Wants::Request(position)),
                Some(entry) => entry.flags &= !QUEUED,
                None => {}
            }
            self.lost.pop_front();
        }
        loop {
            let &position = self.missing.front()?;
            if self.is_missing(position) {
                let count = (position..).take_while(|at| self.is_missing(*at)).count();
                return Some(Wants::Answers(position, count as u32));
            }
            self.missing.pop_front();
        }
    }

    /// What [`wants`](Self::wants) asked for at `position` will not be sent.
    pub fn forgo(&mut self, position: u64) {
        if let Some(entry) = self.entry_mut(position) {
            entry.flags &= !QUEUED;
        }
        for queue in [&mut self.lost, &mut self.missing] {
            if queue.front() == Some(&position) {
                queue.pop_front();
            }
        }
    }

    fn is_missing(&self, position: u64) -> bool {
        self.entry(position).is_some_and(|entry| entry.flags & (ANSWER | DONE | QUEUED) == ANSWER | QUEUED)
    }

    fn entry(&self, position: u64) -> Option<&Entry> {
        (self.first <= position && position < self.next).then(|| self.slot_ref(position))
    }

    fn entry_mut(&mut self, position: u64) -> Option<&mut Entry> {
        (self.first <= position && position < self.next).then(|| self.slot(position))
    }

    fn slot(&mut self, position: u64) -> &mut Entry {
        let index = position as usize & (self.ring.len() - 1);
        &mut self.ring[index]
    }

    fn slot_ref(&self, position: u64) -> &Entry {
        &self.ring[position as usize & (self.ring.len() - 1)]
    }

    /// Makes the ring large enough for all from `first` to `next`.
    fn make_room(&mut self) {
        let needed = (self.next - self.first) as usize;
        if needed <= self.ring.len() {
            return;
        }
        let mut ring = vec![Entry::default(); needed.next_power_of_two()];
        for position in self.first..self.next {
            let index = position as usize & (ring.len() - 1);
            ring[index] = *self.slot_ref(position);
        }
        self.ring = ring;
    }
}

fn micros(at: Instant) -> u32 {
    (at.as_ns() / 1000) as u32
}

fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
