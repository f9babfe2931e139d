mod assembly;
mod reporter;

use std::collections::VecDeque;

use uroce::time::{Duration, Instant};

use super::wire::{Body, Data, Datagram, EndReason, Refusal, RequestPart};
use super::{Bitmap, Request, RequestError, Run, coding};

use assembly::{Assembly, Placed};
use reporter::Reporter;

/// The end of a transfer that gets it: it asks for blocks, and has by the deadline those that arrived.
///
/// Its owner hands it datagrams and the time, and sends what it writes, until it has [ended](Self::end).
#[derive(Debug)]
pub struct Receiver {
    id: u64,
    request: Request,
    slots: Vec<Slot>,
    whole: Bitmap,
    /// Blocks that are neither whole nor spoiled.
    left: u32,
    /// Blocks that became whole and were not [told](Self::poll_block) yet.
    told: VecDeque<u32>,
    phase: Phase,
    reporter: Reporter,
    heard_at: Instant,
    end: Option<End>,
    /// How often the sender is to be told of the end now, and when it was told last.
    farewells: (u8, Instant),
    counters: ReceiverCounters,
}

/// What is there of a block.
#[derive(Debug)]
enum Slot {
    Unwanted,
    Missing,
    Open(Box<Assembly>),
    Whole(Vec<u8>),
    /// All of it arrived, and its checksum was wrong.
    Spoiled,
}

/// What the receiver does.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It repeats its request until it is answered: the next part to be sent, when, and how much later all parts are due again.
    Asking { part: usize, at: Instant, gap: Duration },
    /// It reports what arrives.
    Receiving,
}

/// How a transfer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All wanted blocks are whole.
    Complete,
    /// The deadline has passed, and blocks are missing.
    Deadline,
    /// The program has cancelled it.
    Cancelled,
    /// It cannot go on. Blocks that are whole stay so.
    Failed(Failure),
}

/// Why a transfer cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing answered in this mode.
    #[error(
        "the peer has no deadline mode, or none reached it: nothing answered within {within:?} ({others} datagrams were of \
         something else); run the sender there, or transfer without a deadline"
    )]
    NoDeadlineMode {
        /// How long the receiver has asked.
        within: Duration,
        /// Datagrams that were no datagrams of this mode.
        others: u64,
    },
    /// The peer has answered, and was then silent for long.
    #[error("the peer has been silent for {0:?}: it has ended, or the path is cut")]
    Silent(Duration),
    /// The peer does not send, or no more.
    #[error("the peer refuses: {0}")]
    Refused(Refusal),
    /// The peer sent another version than was asked for.
    #[error("the peer mixes versions: {asked} was asked for, and {got} came")]
    MixedVersions {
        /// The version that was asked for.
        asked: u64,
        /// The version that came.
        got: u64,
    },
    /// All blocks arrived, and some had wrong bytes.
    #[error("{0} blocks arrived with a wrong checksum: their values changed while they were sent; ask for them again")]
    Spoiled(u32),
}

/// Why a deadline cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeadlineError {
    /// The new deadline is not in the future.
    #[error("the deadline passed {ago:?} ago: choose one in the future, or cancel")]
    Passed {
        /// How long ago it was.
        ago: Duration,
    },
    /// The transfer has ended.
    #[error("the transfer has ended: ask again for what is missing")]
    Ended,
}

/// What a receiver has counted, in datagrams unless another unit is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they count; the less obvious ones say more
pub struct ReceiverCounters {
    /// Symbols that were placed.
    pub placed: u64,
    /// Symbols that were here already, or whose block was whole.
    pub duplicate: u64,
    /// Symbols that were computed from others.
    pub decoded_symbols: u64,
    /// Blocks whose bytes were wrong once all were there.
    pub spoiled_blocks: u64,
    /// Datagrams after the end.
    pub late: u64,
    /// Datagrams of other requests.
    pub foreign: u64,
    /// Datagrams that are none of this mode.
    pub malformed: u64,
    /// Symbols that the request does not have.
    pub impossible: u64,
    /// Requests that were sent, in datagrams, and repeated ones.
    pub requests: u64,
    pub reports: u64,
}

/// The first repetition of a request comes after this, and each later one after twice as long, up to the longest: a lost
/// request would cost all the time until then. Repetitions are short, and losses come in bursts.
const FIRST_GAP: Duration = Duration::from_micros(250);
const LONGEST_GAP: Duration = Duration::from_millis(8);

/// The end is told so often at once: a sender that does not hear of it takes what it has sent for being on its way.
const FAREWELLS: u8 = 4;

/// A sender that goes on after the end is told of it once in this time.
const END_GAP: Duration = Duration::from_millis(10);

impl Receiver {
    /// Begins a transfer. `id` is drawn at random: who does not see the datagrams must not guess it.
    ///
    /// # Errors
    /// [`RequestError`] when the request asks for what cannot be.
    pub fn new(id: u64, request: Request, now: Instant) -> Result<Receiver, RequestError> {
        let wanted = request.check(now)?;
        let blocks = request.shape.blocks();
        let slot = |block| if wanted.has(block) { Slot::Missing } else { Slot::Unwanted };
        Ok(Receiver {
            id,
            slots: (0..blocks).map(slot).collect(),
            whole: Bitmap::new(blocks),
            left: wanted.count(),
            told: VecDeque::new(),
            phase: Phase::Asking { part: 0, at: now, gap: FIRST_GAP },
            reporter: Reporter::default(),
            heard_at: now,
            end: None,
            farewells: (FAREWELLS, now),
            counters: ReceiverCounters::default(),
            request,
        })
    }

    /// How the transfer has ended; `None` while it goes on.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The blocks that are whole.
    pub fn whole(&self) -> &Bitmap {
        &self.whole
    }

    /// The bytes of a block that is whole; `None` for all others.
    pub fn block(&self, block: u32) -> Option<&[u8]> {
        match self.slots.get(block as usize) {
            Some(Slot::Whole(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The next block that has become whole, each once, in the order in which they did.
    pub fn poll_block(&mut self) -> Option<u32> {
        self.told.pop_front()
    }

    /// Length of all blocks that were asked for, in bytes.
    pub(super) fn wanted_bytes(&self) -> u64 {
        let wanted = (0..).zip(&self.slots).filter(|(_, slot)| !matches!(slot, Slot::Unwanted));
        wanted.map(|(block, _)| self.request.shape.block_len(block) as u64).sum()
    }

    /// The blocks that were asked for and are not whole, the most important first: what a further request asks for.
    pub fn missing(&self) -> Vec<Run> {
        let blocks = self.request.runs.iter().flat_map(|run| run.blocks());
        Run::of(blocks.filter(|block| !self.whole.has(*block)))
    }

    /// What was counted.
    pub fn counters(&self) -> ReceiverCounters {
        self.counters
    }

    /// The deadline.
    pub fn deadline(&self) -> Instant {
        self.request.deadline
    }

    /// Moves the deadline; the sender learns of it with the next report.
    ///
    /// # Errors
    /// [`DeadlineError`] when the transfer has ended, or the new deadline is not in the future.
    pub fn set_deadline(&mut self, deadline: Instant, now: Instant) -> Result<(), DeadlineError> {
        self.handle_timeout(now);
        if self.end.is_some() {
            return Err(DeadlineError::Ended);
        }
        if deadline <= now {
            return Err(DeadlineError::Passed { ago: now - deadline });
        }
        self.request.deadline = deadline;
        self.reporter.due(now);
        Ok(())
    }

    /// Ends the transfer: blocks that are whole stay so. Nothing happens after its end.
    pub fn cancel(&mut self) {
        self.finish(End::Cancelled);
    }

    fn finish(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
            // What is there of other blocks is of no use to anybody.
            let open = self.slots.iter_mut().filter(|slot| matches!(slot, Slot::Open(_)));
            open.for_each(|slot| *slot = Slot::Missing);
        }
    }

    /// Takes the time. To be called at [`poll_timeout`](Self::poll_timeout); earlier calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.end.is_some() {
            return;
        }
        let silent = now - self.heard_at;
        let is_late = now >= self.request.deadline;
        match self.phase {
            Phase::Asking { .. } if is_late || silent >= self.request.patience => {
                let others = self.counters.malformed;
                self.finish(End::Failed(Failure::NoDeadlineMode { within: silent, others }));
            }
            _ if is_late => self.finish(End::Deadline),
            Phase::Receiving if silent >= self.request.patience => self.finish(End::Failed(Failure::Silent(silent))),
            Phase::Asking { .. } | Phase::Receiving => {}
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) has something to do, if
    /// nothing arrives before; `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.end.is_some() {
            return (self.farewells.0 > 0).then_some(self.heard_at);
        }
        let sends_at = match self.phase {
            Phase::Asking { at, .. } => at,
            Phase::Receiving => self.reporter.at(),
        };
        Some(sends_at.min(self.request.deadline).min(self.heard_at + self.request.patience))
    }

    /// Takes a datagram that has arrived. Whatever it holds, no block becomes whole that is not.
    pub fn handle_datagram(&mut self, now: Instant, bytes: &[u8]) {
        if !uroce::mutated!("deadline-late-counts", by "uroce-transfer --test oracle every_bitmap") {
            self.handle_timeout(now);
        }
        let datagram = match Datagram::parse(bytes) {
            Ok(datagram) => datagram,
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        if datagram.request != self.id {
            self.counters.foreign += 1;
            return;
        }
        if self.end.is_some() {
            self.counters.late += 1;
            if matches!(datagram.body, Body::Data(_)) && now - self.farewells.1 >= END_GAP {
                self.farewells.0 = self.farewells.0.max(1);
            }
            return;
        }
        match datagram.body {
            Body::Data(data) => {
                self.hear(now);
                self.handle_data(now, &data);
            }
            Body::Here => self.hear(now),
            Body::Refusal(refusal) => self.finish(End::Failed(Failure::Refused(refusal))),
            Body::Request(_) | Body::Report(_) | Body::End(_) => self.counters.malformed += 1,
        }
    }

    fn hear(&mut self, now: Instant) {
        self.heard_at = now;
        if matches!(self.phase, Phase::Asking { .. }) {
            self.phase = Phase::Receiving;
            self.reporter.due(now);
        }
    }

    fn handle_data(&mut self, now: Instant, data: &Data<'_>) {
        if data.version != self.request.version
            && !uroce::mutated!("deadline-any-version", by "uroce-transfer --test oracle every_bitmap")
        {
            let mixed = Failure::MixedVersions { asked: self.request.version, got: data.version };
            return self.finish(End::Failed(mixed));
        }
        let shape = self.request.shape;
        if data.block >= shape.blocks() {
            self.counters.impossible += 1;
            return;
        }
        let symbols = shape.symbols(data.block);
        let repairs = coding::repairs(symbols, self.request.repair_per_mille);
        let is_possible = match data.symbol.checked_sub(symbols) {
            None => data.payload.len() == shape.symbol(data.block, data.symbol).len(),
            Some(repair) => repair < repairs && data.payload.len() == usize::from(shape.symbol_bytes()),
        };
        let slot = &mut self.slots[data.block as usize];
        if !is_possible || matches!(slot, Slot::Unwanted) {
            self.counters.impossible += 1;
            return;
        }
        self.reporter.arrived(data.number, now);
        if matches!(slot, Slot::Missing) {
            *slot = Slot::Open(Box::new(Assembly::new(data.crc, symbols, repairs, shape.symbol_bytes())));
        }
        let Slot::Open(assembly) = slot else {
            self.counters.duplicate += 1;
            return;
        };
        match assembly.place(data) {
            Placed::Duplicate => self.counters.duplicate += 1,
            Placed::Symbol { missing } => {
                self.counters.placed += 1;
                if missing == 1
                    && uroce::mutated!("deadline-whole-early", by "uroce-transfer --test oracle every_bitmap")
                {
                    self.whole.insert(data.block);
                }
            }
            Placed::Enough { decoded } => {
                self.counters.placed += 1;
                self.counters.decoded_symbols += u64::from(decoded);
                self.close(data.block);
            }
        }
    }

    /// All of a block is there.
    fn close(&mut self, block: u32) {
        let slot = &mut self.slots[block as usize];
        let Slot::Open(assembly) = std::mem::replace(slot, Slot::Spoiled) else { return };
        self.left -= 1;
        match assembly.finish(self.request.shape.block_len(block)) {
            Some(bytes) => {
                *slot = Slot::Whole(bytes);
                self.whole.insert(block);
                self.told.push_back(block);
                self.reporter.whole(block);
            }
            None => self.counters.spoiled_blocks += 1,
        }
        if self.left == 0 {
            let spoiled = self.counters.spoiled_blocks as u32;
            self.finish(if spoiled == 0 { End::Complete } else { End::Failed(Failure::Spoiled(spoiled)) });
        }
    }

    /// Writes the next datagram that is to be sent now, and returns its length; `None` when there is none. The buffer
    /// holds a path MTU, at least 1024 bytes.
    pub fn poll_transmit(&mut self, now: Instant, into: &mut [u8]) -> Option<usize> {
        let body = if let Some(end) = self.end {
            self.farewells = (self.farewells.0.checked_sub(1)?, now);
            Body::End(match end {
                End::Complete => EndReason::Complete,
                End::Deadline => EndReason::Deadline,
                End::Cancelled => EndReason::Cancelled,
                End::Failed(_) => EndReason::Failed,
            })
        } else {
            match self.phase {
                Phase::Asking { at, .. } if at > now => return None,
                Phase::Asking { part, gap, .. } => Body::Request(self.ask(part, gap, now)),
                Phase::Receiving => {
                    let left_us = self.left_us(now);
                    let report = self.reporter.report(left_us, &self.whole, now)?;
                    self.counters.reports += 1;
                    Body::Report(report)
                }
            }
        };
        Datagram { request: self.id, body }.write(into)
    }

    fn left_us(&self, now: Instant) -> u32 {
        (self.request.deadline - now).as_micros().try_into().unwrap_or(u32::MAX)
    }

    /// A part of the request. All parts go one after the other, and then again after a gap.
    fn ask(&mut self, part: usize, gap: Duration, now: Instant) -> RequestPart {
        self.counters.requests += 1;
        let of_part = self.request.runs_of_part();
        let parts = self.request.runs.len().div_ceil(of_part);
        self.phase = if part + 1 < parts {
            Phase::Asking { part: part + 1, at: now, gap }
        } else {
            Phase::Asking { part: 0, at: now + gap, gap: (gap * 2).min(LONGEST_GAP) }
        };
        let runs = &self.request.runs[part * of_part..];
        RequestPart {
            object: self.request.object,
            version: self.request.version,
            shape: self.request.shape,
            repair_per_mille: self.request.repair_per_mille,
            left_us: self.left_us(now),
            part: part as u8,
            parts: parts as u8,
            runs: runs[..of_part.min(runs.len())].to_vec(),
        }
    }
}
