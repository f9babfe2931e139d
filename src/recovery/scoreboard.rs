use std::cmp::Reverse;
use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::cache;
use crate::congestion::{Progress, Sample};
use crate::time::{Duration, Instant, earliest};
use crate::tournament::Tournament;

use super::stream::Stream;
use super::{Departure, RoundTrip};

/// The state of the packets in flight. Each has a position: requests that were sent, and the answers expected to READs,
/// which take positions, too.
///
/// ```text
///   position:  [ done .... | sent: arrived, lost or nothing known ... | not sent ]
///                          ^first                                     ^next
/// ```
///
/// It holds twelve bytes a position, and sixteen for each transmission whose fate is not known. They are given back
/// when few are in flight.
///
/// A packet is lost when one that was sent after it on the same path has arrived. A round trip and a little must have
/// passed since it was sent, too (as RFC 8985 has it). Gaps by themselves mean nothing.
///
/// With several paths, one that was sent after it on another path counts as well. Then its own path's round trip and
/// twice that little must have passed. When three in a row are lost so, the path is dark.
#[derive(Debug)]
pub struct Scoreboard {
    first: u64,
    next: u64,
    /// All requests before this position have executed.
    carried_out: u64,
    /// Entries by position, modulo its length, which is a power of two.
    ring: Vec<Entry>,
    /// Transmissions in order: position and attempt. The latest that arrived was sent before the first of them.
    sent: VecDeque<(u64, u8)>,
    paths: Vec<PathState>,
    /// Of the paths that are not dark: the silence after which a probe is sent, where the round trip is known, and the
    /// shortest round trip.
    patience: Tournament<Duration>,
    shortest: Tournament<Duration>,
    /// When the overtaken transmissions of a path are to be looked at: when the oldest counts as lost, as if all times were
    /// whole microseconds; or long ago, if there is news of the path.
    losses: Tournament<Reverse<Instant>>,
    /// Lost requests, to be retransmitted.
    lost: VecDeque<u64>,
    /// Lost answers, to be requested again.
    missing: VecDeque<u64>,
    /// Answers that a later one has overtaken, and since when.
    overtaken: VecDeque<(u64, Instant)>,
    /// Answers that were requested again: position, attempt, and until when they are waited for, the earliest first.
    asked: VecDeque<(u64, u8, Instant)>,
    /// Answers before this position were received, or are in one of the queues above.
    frontier: u64,
    /// How answers that were sent for the first time come.
    stream: Stream,
    /// When the last answers that are to come count as lost, since nothing comes after them.
    ends_at: Option<Instant>,
    /// Transmissions so far, modulo 2^32.
    transmissions: u32,
    /// The number of the latest transmission that arrived, on any path.
    latest: Option<u32>,
    /// Whether there are several paths.
    is_multipath: bool,
    /// Whether acknowledges arrive that answer nothing in flight.
    is_probed: bool,
    /// Whether the current report took another path than usual.
    is_detour: bool,
    /// By how much answers can overtake each other, since they take several paths.
    spread: Duration,
    /// The results of packets by path, while there are several paths, until they are taken.
    reports: Vec<PathReport>,
    /// The patience before the first round-trip sample.
    first_patience: Duration,
    /// When the oldest overtaken transmission counts as lost.
    lost_at: Option<Instant>,
    /// The newest transmission that asks for an acknowledge: its position, its attempt and its time.
    asker: Option<(u64, u8, Instant)>,
    /// When to probe for a sign of the peer, while something is in flight.
    probe_at: Option<Instant>,
    /// Such probes in a row.
    probes: u32,
    /// Whether something was heard of what is in flight since the last [`settle`](Scoreboard::settle).
    is_news: bool,
    /// By how much more than an eighth of a round trip packets can be late, as a factor. It grows with each spurious
    /// retransmission.
    lateness: u32,
    /// Bytes of packets in flight.
    in_flight_bytes: u64,
    /// What became of packets, until it is taken.
    progress: Progress,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// When it was last transmitted or requested: microseconds, modulo 2^32.
    at_us: u32,
    /// The number of that transmission among all, modulo 2^32: many leave in one microsecond.
    order: u32,
    /// Transmissions before the latest one.
    attempt: u8,
    path: u8,
    flags: u8,
    /// Length of the packet in units of [`UNIT_BYTES`], rounded up, while it is in flight; 0 when its arrival or its
    /// loss is known.
    units: u8,
}

impl Entry {
    /// Makes its packet be in flight no more, and returns the length of that in bytes; 0 if it was not.
    fn land(&mut self) -> u64 {
        u64::from(std::mem::take(&mut self.units)) * UNIT_BYTES as u64
    }
}

/// The granularity in which lengths of packets in flight are remembered: the longest packet fits into 255.
const UNIT_BYTES: usize = 32;

/// The request is known to have arrived.
const ARRIVED: u8 = 1;
/// The position is done.
const DONE: u8 = 2;
/// The position is done only when its answer has arrived.
const ANSWER: u8 = 4;
/// The position waits in a queue to be retransmitted or requested again.
const QUEUED: u8 = 8;
/// A packet was sent for this position itself, not for an earlier one.
const PACKET: u8 = 16;
/// The time of its transmission is not known.
const UNTIMED: u8 = 32;
/// The packet arrived with «congestion experienced».
const MARKED: u8 = 64;
/// Its arrival is known only by a report that took another path.
const DETOUR: u8 = 128;

#[derive(Debug, Default)]
struct PathState {
    /// Transmissions, on any path, after which a later one has arrived, in order: position and attempt.
    overtaken: VecDeque<(u64, u8)>,
    /// The number of the latest transmission that arrived, and the microseconds until that was known.
    latest: Option<(u32, u32)>,
    round_trip: RoundTrip,
    /// Whether acknowledges measured the round trip, and not only probes, which can come back another way.
    is_measured: bool,
    /// Lost packets in a row, as later ones on other paths show.
    silent: u32,
    /// Whether the path carries nothing: patience does not depend on it.
    is_dark: bool,
}

/// The result of a packet, for the path policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathReport {
    /// A packet arrived.
    Arrived {
        /// The path that it took.
        path: u8,
        /// The time until its arrival was known.
        took: Duration,
        /// Whether it arrived with «congestion experienced».
        is_marked: bool,
    },
    /// A packet on this path was lost.
    Lost(u8),
    /// All packets on this path are lost: the path is dark.
    Dark(u8),
}

/// Lost packets in a row after which a path is dark: one or two can be lost by chance.
const SILENT_MAX: u32 = 3;

/// What a recovery wants to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Retransmit the request at this position.
    Request(u64),
    /// Request the answers at `count` positions again, from this one on.
    Answers(u64, u32),
}

impl Wants {
    /// The first position that is meant.
    pub fn position(self) -> u64 {
        let (Wants::Request(position) | Wants::Answers(position, _)) = self;
        position
    }
}

/// Minimum time by which packets can overtake each other: interrupt moderation and batches of a host.
const LATE_AT_LEAST: Duration = Duration::from_micros(50);

/// Upper bound on [`Scoreboard::lateness`]: a whole round trip.
const LATENESS_MAX: u32 = 8;

/// Upper bound on the answers that a probe requests.
const PROBED_ANSWERS: u64 = 64;

/// Upper bound on the answers at the end of all that are to come: if those that come last are late, they are lost rather
/// than all that the peer has yet to send.
const STREAM_END: u64 = 8;

/// Round trips, at least, for which a pause between answers is remembered.
const STREAM_ROUND_TRIPS: u32 = 8;

/// Upper bound on the number of paths.
const MAX_PATHS: usize = 256;

/// Positions that always have room: twice the usual window.
const ROOM_KEPT: usize = 1024;

/// Transmissions after which the order of two numbers is ambiguous: a quarter of all numbers.
const ORDER_KEPT: u32 = 1 << 30;

/// The longest interval between probes is this power of two times the first.
const PROBE_BACKOFF_MAX: u32 = 5;

/// The same of the time for which an answer is waited for that was requested again.
const ASKED_BACKOFF_MAX: u8 = 5;

impl Scoreboard {
    /// A scoreboard with nothing in flight; the next position is `start`. `first_patience` is the retransmission
    /// timeout before the first round-trip sample.
    pub fn new(start: u64, first_patience: Duration) -> Scoreboard {
        Scoreboard {
            first: start,
            next: start,
            carried_out: start,
            ring: vec![Entry::default(); 64],
            sent: VecDeque::new(),
            paths: vec![PathState::default()],
            patience: Tournament::default(),
            shortest: Tournament::default(),
            losses: Tournament::default(),
            lost: VecDeque::new(),
            missing: VecDeque::new(),
            overtaken: VecDeque::new(),
            asked: VecDeque::new(),
            frontier: start,
            stream: Stream::default(),
            ends_at: None,
            transmissions: 0,
            latest: None,
            is_multipath: false,
            is_probed: false,
            is_detour: false,
            spread: Duration::ZERO,
            reports: Vec::new(),
            first_patience,
            lost_at: None,
            asker: None,
            probe_at: None,
            probes: 0,
            is_news: false,
            lateness: 1,
            in_flight_bytes: 0,
            progress: Progress::default(),
        }
    }

    /// Has what lies outside of it fetched into the caches.
    pub fn prefetch(&self) {
        if !self.ring.is_empty() {
            cache::prefetch(self.slot_ref(self.next));
        }
        self.paths.first().into_iter().for_each(cache::prefetch);
        self.patience.prefetch();
        self.shortest.prefetch();
        self.sent.back().into_iter().for_each(cache::prefetch);
    }

    /// The oldest position that is not done.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The position after the newest that was ever sent.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Announces that acknowledges arrive from now on that answer nothing in flight: they are no signs of life.
    pub fn ignore_idle_acknowledges(&mut self) {
        self.is_probed = true;
    }

    /// Announces that there are several paths from now on, whose round trips differ by `spread`.
    pub fn spread_over_paths(&mut self, spread: Duration) {
        (self.is_multipath, self.spread) = (true, spread);
    }

    /// Records that a probe of the path was answered after `round_trip`; `is_back` when nothing had come through
    /// before.
    pub fn path_answered(&mut self, path: u8, round_trip: Duration, is_back: bool) {
        let state = self.path(path);
        if !state.is_measured {
            state.round_trip.sample(round_trip);
        }
        if is_back {
            (state.is_dark, state.silent) = (false, 0);
        }
        self.note_path(path);
    }

    /// The results of packets since they were [forgotten](Self::forget_reports).
    pub fn reports(&self) -> &[PathReport] {
        &self.reports
    }

    /// Forgets the results of packets, which were taken.
    pub fn forget_reports(&mut self) {
        self.reports.clear();
    }

    fn path(&mut self, path: u8) -> &mut PathState {
        let path = usize::from(path);
        if self.paths.len() <= path {
            self.paths.resize_with(path + 1, PathState::default);
        }
        &mut self.paths[path]
    }

    /// Takes over what was learned of a path, by which packets on it can be lost earlier.
    fn note_path(&mut self, path: u8) {
        let index = usize::from(path);
        let PathState { round_trip, is_dark, .. } = &self.paths[index];
        let known = Some(round_trip).filter(|_| !is_dark);
        let patience = known.and_then(|known| known.smoothed().map(|_| known.patience(self.first_patience)));
        self.patience.set(index, patience);
        self.shortest.set(index, known.and_then(RoundTrip::least));
        self.look_at(path);
    }

    /// Makes the overtaken transmissions of a path be looked at, if there are any.
    #[inline]
    fn look_at(&mut self, path: u8) {
        if self.lost_at.is_some() && !self.paths[usize::from(path)].overtaken.is_empty() {
            self.losses.set(path.into(), Some(Reverse(Instant::ZERO)));
        }
    }

    /// The silence after which a probe is sent: that of the slowest path that carries something.
    pub fn patience(&self) -> Duration {
        self.patience.greatest().unwrap_or(self.first_patience)
    }

    /// Memory that it holds, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let overtaken: usize = self.paths.iter().map(|path| path.overtaken.capacity()).sum();
        let transmissions = self.sent.capacity() + overtaken;
        self.ring.capacity() * size_of::<Entry>()
            + transmissions * size_of::<(u64, u8)>()
            + (self.lost.capacity() + self.missing.capacity()) * size_of::<u64>()
            + self.overtaken.capacity() * size_of::<(u64, Instant)>()
            + self.asked.capacity() * size_of::<(u64, u8, Instant)>()
            + self.reports.capacity() * size_of::<PathReport>()
    }

    /// Transmissions of the packet at `position`.
    pub fn attempts(&self, position: u64) -> u8 {
        match self.entry(position) {
            Some(entry) => entry.attempt.saturating_add(1),
            None => 0,
        }
    }

    /// Bytes of packets in flight: neither their arrival nor their loss is known.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// What became of packets since the last call.
    pub fn progress(&mut self) -> Progress {
        std::mem::take(&mut self.progress)
    }

    /// Records that the packet at `position` is not in flight any more, and returns its length in bytes; 0 if it was
    /// not.
    fn land(&mut self, position: u64) -> u64 {
        let bytes = self.slot(position).land();
        self.in_flight_bytes -= bytes;
        bytes
    }

    /// Records that nothing is in flight any more: nothing was heard for long. Otherwise a window whose packets are all
    /// lost would stay full.
    fn forget_flight(&mut self) {
        if self.in_flight_bytes > 0 {
            (self.first..self.next).for_each(|position| self.slot(position).units = 0);
            self.progress.forgotten_bytes += std::mem::take(&mut self.in_flight_bytes);
        }
    }

    /// Records that the packet at `position`, which was in flight, is lost.
    fn count_lost(&mut self, position: u64) {
        self.progress.lost_bytes += self.land(position);
    }

    /// Records that the packet at `position` goes out: for the first time (at [`next`](Self::next)) or again.
    pub fn sent(&mut self, position: u64, packet: Departure, now: Instant) {
        let Departure { count, answers, path, bytes, asks } = packet;
        let (at_us, order) = (micros(now), self.transmissions);
        let units = bytes.div_ceil(UNIT_BYTES).min(u8::MAX.into()) as u8;
        self.transmissions = order.wrapping_add(1);
        let (attempt, flags) = if position == self.next {
            self.next += u64::from(count);
            self.make_room();
            let flags = if answers { ANSWER } else { 0 };
            for at in position + 1..self.next {
                *self.slot(at) = Entry { at_us, order, attempt: 0, path, flags, units: 0 };
            }
            (0, flags | PACKET)
        } else {
            self.count_lost(position);
            let Entry { attempt, flags, .. } = *self.slot(position);
            (attempt.saturating_add(1), flags & !(QUEUED | UNTIMED | MARKED | DETOUR))
        };
        *self.slot(position) = Entry { at_us, order, attempt, path, flags, units };
        self.in_flight_bytes += u64::from(units) * UNIT_BYTES as u64;
        self.sent.push_back((position, attempt));
        // After so many others, or on a path that carried nothing for long.
        let is_old = |latest: u32| order.wrapping_sub(latest) >= ORDER_KEPT;
        self.latest.take_if(|latest| is_old(*latest));
        self.path(path).latest.take_if(|(latest, _)| is_old(*latest));
        if asks {
            self.asker = Some((position, attempt, now));
        }
        // Whatever was sent before, the answer to this one is to come.
        if asks || self.probe_at.is_none() {
            self.probe_at = Some(now + self.pause());
        }
    }

    /// As [`sent`](Self::sent), for the first time, at an earlier time that is not known: it gives no round-trip
    /// sample.
    pub fn taken_over(&mut self, count: u32, answers: bool, now: Instant) {
        let position = self.next;
        self.sent(position, Departure { count, answers, path: 0, bytes: 0, asks: true }, now);
        self.slot(position).flags |= UNTIMED;
    }

    /// Records that the answers at `count` positions from `position` on were requested again.
    pub fn asked(&mut self, position: u64, count: u32, now: Instant) {
        // The request and the answer may both take the slowest path.
        let patience = self.patience() + self.spread;
        for at in position..position + u64::from(count) {
            let entry = self.slot(at);
            entry.at_us = micros(now);
            entry.attempt = entry.attempt.saturating_add(1);
            entry.flags &= !QUEUED;
            let attempt = entry.attempt;
            // A peer that keeps to a rate may take longer for all that was requested again: each time it has twice as long.
            let until = now + patience * (1 << (attempt - 1).min(ASKED_BACKOFF_MAX));
            let index = self.asked.partition_point(|(_, _, other)| *other <= until);
            self.asked.insert(index, (at, attempt, until));
        }
    }

    /// Sets whether the next reports took another path than usual (`is_detour`): then absence from them does not mean
    /// loss.
    pub fn listen(&mut self, is_detour: bool) {
        self.is_detour = is_detour;
    }

    /// Records that the request at `position` arrived; it need not have executed yet.
    pub fn arrived(&mut self, position: u64, now: Instant) {
        if self.entry(position).is_some() {
            self.take_arrival(position, 0, micros(now));
        }
    }

    /// Records that the request at `position`, which has an entry, arrived, and that `done` is so: [`DONE`] unless it waits for
    /// its answer, or nothing.
    #[inline(always)]
    fn take_arrival(&mut self, position: u64, done: u8, now_us: u32) {
        let is_detour = self.is_detour;
        let entry = self.slot(position);
        let is_first = entry.flags & ARRIVED == 0;
        // What a detour told says something of what was sent before when it is heard the usual way, too.
        let is_confirmed = entry.flags & DETOUR != 0 && !is_detour;
        if entry.flags & ANSWER == 0 {
            entry.flags |= done;
        }
        if !is_first && !is_confirmed {
            return;
        }
        entry.flags = entry.flags & !DETOUR | ARRIVED | if is_detour { DETOUR } else { 0 };
        let bytes = entry.land();
        let entry = *entry;
        self.is_news |= is_first;
        self.in_flight_bytes -= bytes;
        self.progress.delivered_bytes += bytes;
        self.look_at(entry.path);
        if entry.flags & (PACKET | UNTIMED) != PACKET {
            return;
        }
        let took_us = now_us.wrapping_sub(entry.at_us);
        // Which of several transmissions arrived is not said: not the last one, if that was a moment ago. With several paths it
        // may have been any.
        if entry.attempt > 0 && (self.is_multipath || self.is_too_early(entry.path, took_us)) {
            return;
        }
        self.note_arrival(&entry, took_us, is_first);
    }

    /// Whether no packet on the path has arrived within that time.
    fn is_too_early(&self, path: u8, took_us: u32) -> bool {
        self.paths[usize::from(path)]
            .round_trip
            .least()
            .is_some_and(|least| Duration::from_micros(took_us.into()) < least)
    }

    /// Records that the transmission of `entry` arrived, which was known after `took_us`. `is_first`: it was not known before.
    #[inline(always)]
    fn note_arrival(&mut self, entry: &Entry, took_us: u32, is_first: bool) {
        let latest_on_path = &mut self.paths[usize::from(entry.path)].latest;
        let is_after = |latest: u32| is_before(latest, entry.order);
        let is_latest = !self.is_detour && latest_on_path.is_none_or(|(latest, _)| is_after(latest));
        if is_latest {
            *latest_on_path = Some((entry.order, took_us));
            if self.latest.is_none_or(is_after) {
                self.latest = Some(entry.order);
            }
        }
        if self.is_multipath {
            self.note_arrival_on_path(entry, took_us, is_first, is_latest);
        }
    }

    /// As [`note_arrival`](Self::note_arrival), where there are several paths: reports it to the path policy if it `is_first`,
    /// and takes the time if it `is_latest` on its path.
    #[inline(never)]
    fn note_arrival_on_path(&mut self, entry: &Entry, took_us: u32, is_first: bool, is_latest: bool) {
        let took = Duration::from_micros(took_us.into());
        if is_first {
            let is_marked = entry.flags & MARKED != 0;
            self.reports.push(PathReport::Arrived { path: entry.path, took, is_marked });
        }
        if !is_latest {
            return;
        }
        let path = self.path(entry.path);
        if !std::mem::replace(&mut path.is_measured, true) {
            path.round_trip = RoundTrip::default();
        }
        path.round_trip.sample(took);
        path.silent = 0;
        self.note_path(entry.path);
    }

    /// Records that the peer has executed all requests before `position`.
    pub fn carried_out_before(&mut self, position: u64, now: Instant) {
        let (from, until, now_us) = (self.carried_out, position.min(self.next), micros(now));
        (from..until).for_each(|position| self.take_arrival(position, DONE, now_us));
        self.carried_out = from.max(until);
    }

    /// Whether the request at `position` has executed.
    pub fn is_carried_out(&self, position: u64) -> bool {
        position < self.carried_out
    }

    /// Makes the request at `position` lost, whatever is known of it.
    pub fn lose(&mut self, position: u64) {
        let Some(entry) = self.entry_mut(position) else { return };
        entry.flags &= !ARRIVED;
        if entry.flags & (QUEUED | DONE) == 0 {
            entry.flags |= QUEUED;
            let path = entry.path;
            self.look_at(path);
            self.lost.push_front(position);
            self.count_lost(position);
        }
    }

    /// Records that the answer at `position` arrived, which was [waited for](Self::awaits_answer).
    pub fn answered(&mut self, position: u64, now: Instant) {
        debug_assert!(self.awaits_answer(position));
        // Whoever answers has carried out everything before, and all of the READ that this is an answer to.
        if self.carried_out <= position {
            let rest = (position + 1..self.next).take_while(|at| self.slot_ref(*at).flags & PACKET == 0);
            self.carried_out_before(position + 1 + rest.count() as u64, now);
        }
        self.is_news = true;
        let entry = self.slot(position);
        entry.flags |= DONE | ARRIVED;
        if entry.attempt == 0 {
            for before in self.frontier.max(self.first)..position {
                if self.awaits_answer(before) {
                    self.overtaken.push_back((before, now));
                }
            }
            self.frontier = self.frontier.max(position + 1);
            self.stream.came(now, self.patience() * STREAM_ROUND_TRIPS);
        }
    }

    /// Whether the answer at `position` is still missing.
    pub fn awaits_answer(&self, position: u64) -> bool {
        self.entry(position).is_some_and(|entry| entry.flags & (ANSWER | DONE) == ANSWER)
    }

    /// Takes the trigger of an acknowledge: the request that arrived last, at `position`, in its transmission number
    /// `attempt`.
    ///
    /// The acknowledge waited for `delay`, if that is known; `is_marked` when the request had «congestion experienced».
    /// Returns whether a later transmission of it was spurious.
    pub fn measured(
        &mut self,
        position: u64,
        attempt: u8,
        delay: Option<Duration>,
        is_marked: bool,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.entry_mut(position) else { return false };
        let is_this = entry.attempt == attempt && entry.flags & (PACKET | UNTIMED) == PACKET;
        if is_this && is_marked {
            entry.flags |= MARKED;
        }
        let entry = *entry;
        let took_us = micros(now).wrapping_sub(entry.at_us);
        let took = Duration::from_micros(took_us.into());
        if is_this && let Some(delay) = delay {
            if entry.flags & ANSWER == 0 {
                self.progress.sample = Some(Sample {
                    sent_at: Instant::from_ns(now.as_ns().saturating_sub(took.as_nanos() as u64)),
                    round_trip: took.saturating_sub(delay),
                    delay,
                    path: entry.path,
                    is_marked,
                });
            }
            if !self.is_multipath {
                self.paths[usize::from(entry.path)].round_trip.sample(took.saturating_sub(delay));
                self.note_path(entry.path);
            } else if attempt > 0 && entry.flags & ARRIVED == 0 {
                // Only here it is said which transmission arrived.
                self.note_arrival(&entry, took_us, true);
            }
        }
        let in_vain = entry.attempt > attempt && entry.flags & ARRIVED == 0;
        if in_vain && self.lateness < LATENESS_MAX {
            self.lateness += 1;
            (0..self.paths.len()).for_each(|path| self.look_at(path as u8));
        }
        in_vain
    }

    /// Computes how far everything is done, and what is lost, after all that an acknowledge or answer reported.
    pub fn settle(&mut self, now: Instant) -> u64 {
        let mut first = self.first;
        while first < self.next && self.slot_ref(first).flags & DONE != 0 {
            if self.slot_ref(first).units > 0 {
                self.progress.delivered_bytes += self.land(first);
            }
            first += 1;
        }
        self.first = first;
        self.carried_out = self.carried_out.max(self.first);
        self.frontier = self.frontier.max(self.first);
        self.ends_at = self.stream_ends_at();
        let is_news = std::mem::take(&mut self.is_news)
            || mutated!("probes-count-as-signs-of-life", by "uroce --lib an_acknowledge_without_news");
        if is_news || !self.is_probed || self.first == self.next {
            self.probes = 0;
            self.probe_at = (self.first < self.next).then(|| self.silent_at(now));
        }
        self.find_lost(now);
        self.give_room_back();
        self.first
    }

    /// How long silence lasts before the next probe.
    fn pause(&self) -> Duration {
        match self.probes {
            // The arithmetic of durations takes time, and each packet that asks comes here.
            0 => self.patience(),
            probes => self.patience() * (1 << probes.min(PROBE_BACKOFF_MAX)),
        }
    }

    /// Until when the peer, which was heard now, is to be heard again: until the answer to the newest packet that asks.
    fn silent_at(&self, now: Instant) -> Instant {
        let is_awaited = |(position, attempt, _): &(u64, u8, Instant)| {
            let entry = self.entry(*position).filter(|entry| entry.attempt == *attempt);
            entry.is_some_and(|entry| entry.flags & (ARRIVED | DONE | QUEUED) == 0)
        };
        let asked = self.asker.filter(is_awaited);
        asked.map_or(now + self.patience(), |(_, _, at)| (at + self.patience()).max(now + self.answers_late()))
    }

    /// How late a packet can be without being lost on a path whose shortest round trip that is.
    fn late(&self, shortest: Option<Duration>) -> Duration {
        (shortest.unwrap_or_default() / 8 * self.lateness).max(LATE_AT_LEAST)
    }

    /// How late an answer can be: its path is not known.
    fn answers_late(&self) -> Duration {
        self.late(self.shortest.greatest()) + self.spread
    }

    /// When the last answers, which nothing follows, count as lost: when they come later than the others came.
    fn stream_ends_at(&mut self) -> Option<Instant> {
        if self.frontier >= self.next {
            self.stream.rest();
            return None;
        }
        let is_end = self.next - self.frontier <= STREAM_END && self.awaited_at_the_end().next().is_some();
        self.stream.next_by(self.answers_late()).filter(|_| is_end)
    }

    /// Answers that nothing has overtaken, and whose requests were carried out.
    fn awaited_at_the_end(&self) -> impl Iterator<Item = u64> + '_ {
        (self.frontier..self.carried_out.min(self.next)).filter(|at| self.awaits_answer(*at))
    }

    fn find_lost(&mut self, now: Instant) {
        if self.ends_at.take_if(|at| *at <= now).is_some() {
            let last: ArrayVec<u64, { STREAM_END as usize }> = self.awaited_at_the_end().collect();
            last.into_iter().for_each(|position| self.miss(position));
            self.frontier = self.frontier.max(self.carried_out);
        }
        self.find_overtaken();
        self.find_lost_on_paths(now);
        let late = if self.overtaken.is_empty() { Duration::ZERO } else { self.answers_late() };
        while let Some(&(position, since)) = self.overtaken.front() {
            if self.awaits_answer(position) && since + late > now {
                break;
            }
            self.overtaken.pop_front();
            self.miss(position);
        }
        while let Some(&(position, attempt, until)) = self.asked.front() {
            let waits = self.awaits_answer(position) && self.slot(position).attempt == attempt;
            if waits && until > now {
                break;
            }
            self.asked.pop_front();
            if waits {
                self.miss(position);
            }
        }
    }

    /// The entry at `position`, if its latest transmission is number `attempt`, and nothing is known of that.
    fn unknown(&self, position: u64, attempt: u8) -> Option<&Entry> {
        let entry = self.entry(position)?;
        (entry.attempt == attempt && entry.flags & (ARRIVED | DONE | QUEUED) == 0).then_some(entry)
    }

    /// Hands over to their paths the transmissions after which a later one has arrived.
    fn find_overtaken(&mut self) {
        while let Some((position, attempt)) = self.sent.pop_front() {
            let Some(&Entry { path, order, .. }) = self.unknown(position, attempt) else { continue };
            if self.latest.is_none_or(|latest| !is_before(order, latest)) {
                self.sent.push_front((position, attempt));
                break;
            }
            self.paths[usize::from(path)].overtaken.push_back((position, attempt));
            self.losses.set(path.into(), Some(Reverse(Instant::ZERO)));
        }
    }

    /// Looks at the paths of which there is news, or whose time has come.
    fn find_lost_on_paths(&mut self, now: Instant) {
        self.lost_at = None;
        if self.losses.greatest().is_some() {
            let whole = Instant::from_ns(now.as_ns() - now.as_ns() % 1000);
            self.look_at_due(whole);
            // A microsecond that has begun is not over.
            self.lost_at = self.losses.greatest().map(|Reverse(at)| at + (now - whole));
        }
    }

    /// Looks at these paths in the order of their numbers, at a time in whole microseconds.
    #[inline(never)]
    fn look_at_due(&mut self, now: Instant) {
        let mut due = ArrayVec::<u8, MAX_PATHS>::new();
        while let Some(path) = self.losses.take(Reverse(now)) {
            due.push(path as u8);
        }
        due.sort_unstable();
        due.iter().for_each(|path| self.find_lost_on(*path, now));
    }

    /// Finds what is lost on one path, at a time in whole microseconds.
    fn find_lost_on(&mut self, path: u8, now: Instant) {
        let (now_us, index) = (micros(now), usize::from(path));
        let mut lost_at = None;
        while let Some(&(position, attempt)) = self.paths[index].overtaken.front() {
            let Some(&entry) = self.unknown(position, attempt) else {
                self.paths[index].overtaken.pop_front();
                continue;
            };
            let path = &self.paths[index];
            let late = self.late(path.round_trip.least());
            let overtaken_by = path.latest.filter(|(latest, _)| is_before(entry.order, *latest));
            let wait = match overtaken_by {
                Some((_, took_us)) => Duration::from_micros(took_us.into()) + late,
                // It left on another path.
                None => {
                    let usual = path.round_trip.smoothed().unwrap_or(self.first_patience);
                    let latest = path.latest.map(|(_, took_us)| Duration::from_micros(took_us.into()));
                    latest.map_or(usual, |took| usual.max(took)) + late * 2
                }
            };
            let since = Duration::from_micros(u64::from(now_us.wrapping_sub(entry.at_us)));
            if since < wait {
                lost_at = Some(Reverse(now + (wait - since)));
                break;
            }
            self.paths[index].overtaken.pop_front();
            self.slot(position).flags |= QUEUED;
            self.count_lost(position);
            if overtaken_by.is_some() || !mutated!("path-lost-with-its-packets") {
                self.lost.push_back(position);
            }
            if self.is_multipath {
                self.report_loss(index as u8, overtaken_by.is_none());
            }
        }
        self.losses.set(index, lost_at);
    }

    fn report_loss(&mut self, path: u8, is_silent: bool) {
        let state = self.path(path);
        state.silent += u32::from(is_silent);
        let turns_dark = state.silent >= SILENT_MAX && !state.is_dark;
        state.is_dark |= turns_dark;
        self.reports.push(PathReport::Lost(path));
        if turns_dark {
            self.reports.push(PathReport::Dark(path));
            self.note_path(path);
        }
    }

    fn miss(&mut self, position: u64) {
        if self.awaits_answer(position) && self.slot(position).flags & QUEUED == 0 {
            self.slot(position).flags |= QUEUED;
            self.missing.push_back(position);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None` for never.
    pub fn deadline(&self) -> Option<Instant> {
        let overtaken = self.overtaken.front().map(|(_, since)| *since + self.answers_late());
        let asked = self.asked.front().map(|(_, _, until)| *until);
        earliest([self.probe_at, overtaken, asked, self.lost_at, self.ends_at])
    }

    /// Makes a probe due now, if something is in flight. Intervals between probes grow beyond those between retries.
    pub fn probe_at_once(&mut self, now: Instant) {
        self.probe_at = self.probe_at.map(|at| at.min(now));
    }

    /// Puts a probe off that is due. Returns whether one was.
    pub fn put_off_probe(&mut self, now: Instant) -> bool {
        let is_due = self.probe_at.is_some_and(|at| at <= now);
        if is_due {
            self.probe_at = Some(now + self.patience());
        }
        is_due
    }

    /// Handles the time `now`. Returns whether a probe is due, since nothing was heard for long.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.find_lost(now);
        if self.probe_at.is_none_or(|at| at > now) {
            return false;
        }
        if self.probes > 0 {
            self.forget_flight();
        }
        self.probes += 1;
        self.probe_at = Some(now + self.pause());
        // The oldest request of which nothing is known; the oldest that was not carried out, since the peer may have said
        // that it cannot yet, and that was lost; and the oldest answers.
        let mut requests = (self.carried_out..self.next).filter(|at| self.slot_ref(*at).flags & PACKET != 0);
        let oldest = requests.clone().next();
        let unknown = requests.find(|at| self.slot_ref(*at).flags & ARRIVED == 0);
        unknown.into_iter().chain(oldest).for_each(|request| self.lose(request));
        (self.first..self.carried_out.min(self.first + PROBED_ANSWERS)).for_each(|at| self.miss(at));
        true
    }

    /// Whether there is something to retransmit or to request again.
    pub fn wants_anything(&self) -> bool {
        !self.lost.is_empty() || !self.missing.is_empty()
    }

    /// What to retransmit or to request again next; it stays until it [was](Self::sent).
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

    /// Records that what [`wants`](Self::wants) returned for `position` will not be sent.
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

    /// Makes the ring large enough for all positions from `first` to `next`.
    fn make_room(&mut self) {
        let needed = (self.next - self.first) as usize;
        if needed > self.ring.len() {
            self.resize(needed.next_power_of_two());
        }
    }

    /// Shrinks what has become much too large: answers to READs can take half the PSNs, whatever the window.
    fn give_room_back(&mut self) {
        let needed = (self.next - self.first) as usize;
        if self.ring.len() <= ROOM_KEPT || needed > self.ring.len() / 8 {
            return;
        }
        self.resize((needed * 2).next_power_of_two().max(ROOM_KEPT));
        self.lost.shrink_to(ROOM_KEPT);
        self.missing.shrink_to(ROOM_KEPT);
        self.overtaken.shrink_to(ROOM_KEPT);
        self.asked.shrink_to(ROOM_KEPT);
        self.sent.shrink_to(ROOM_KEPT);
        self.paths.iter_mut().for_each(|path| path.overtaken.shrink_to(ROOM_KEPT));
    }

    /// Resizes the ring to `len`, a power of two with room for all positions from `first` to `next`.
    fn resize(&mut self, len: usize) {
        let mut ring = vec![Entry::default(); len];
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

#[cfg(test)]
mod tests;
