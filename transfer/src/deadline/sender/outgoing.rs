use std::collections::{BTreeMap, BTreeSet};

use uroce::congestion::{Progress, Sample};
use uroce::time::{Duration, Instant};

use super::super::wire::{Body, Data, Datagram, Report};
use super::super::{Bitmap, Run, Shape, Values, coding};
use super::collecting::Asked;
use super::flight::{Flight, Sent};
use super::open_block::{OpenBlock, Remedy};
use super::round_trip::RoundTrip;

/// A request that is served.
#[derive(Debug)]
pub(super) struct Outgoing {
    id: u64,
    object: u64,
    values: Values,
    shape: Shape,
    repair_per_mille: u16,
    wanted: Bitmap,
    /// Blocks that were not begun, the most important first.
    order: std::vec::IntoIter<Run>,
    run: Option<Run>,
    rank: u32,
    /// Blocks that were begun; the newest of them can have symbols that were never sent.
    open: BTreeMap<u32, OpenBlock>,
    newest: Option<u32>,
    /// Lost symbols that are to be sent once more: rank, block and symbol.
    resend: BTreeSet<(u32, u32, u32)>,
    flight: Flight,
    first_number: u32,
    next_number: u32,
    sequence: u32,
    heard_at: Instant,
    sent_at: Instant,
    stops_at: Instant,
    is_late: bool,
    is_unheard: bool,
    /// How often something was lost before anything was known to have arrived.
    unproven: u32,
    losses: (u64, u64),
}

/// What a datagram with data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// A symbol for the first time.
    Symbol,
    /// A repair symbol for the first time.
    RepairSymbol,
    /// One that was lost.
    Again,
}

/// A receiver that hears nothing for so long is told that the sender is there.
const QUIET: Duration = Duration::from_millis(20);

/// Reports come every 20 ms: when three are missing, the receiver has ended or the path is cut, and nobody knows what became of
/// the rest.
const UNHEARD: Duration = Duration::from_millis(60);

/// The wait for a first sign that anything has arrived is doubled so often at most.
const UNPROVEN_MAX: u32 = 10;

/// Length of the Ethernet header: rates count it.
const ETHERNET_BYTES: usize = 14;

impl Outgoing {
    pub fn new(id: u64, asked: Asked, wanted: Bitmap, values: Values) -> Outgoing {
        Outgoing {
            id,
            object: asked.object,
            values,
            shape: asked.shape,
            repair_per_mille: asked.repair_per_mille,
            wanted,
            order: asked.runs.into_iter(),
            run: None,
            rank: 0,
            open: BTreeMap::new(),
            newest: None,
            resend: BTreeSet::new(),
            flight: Flight::default(),
            first_number: 0,
            next_number: 0,
            sequence: 0,
            heard_at: Instant::ZERO,
            sent_at: Instant::ZERO,
            stops_at: Instant::ZERO + Duration::from_micros(u64::from(asked.left_us)),
            is_late: false,
            is_unheard: false,
            unproven: 0,
            losses: (0, 0),
        }
    }

    /// The same from now on, with datagrams from this number on.
    pub fn beginning_at(self, first_number: u32, now: Instant) -> Outgoing {
        let stops_at = now + (self.stops_at - Instant::ZERO);
        let next_number = first_number;
        Outgoing { first_number, next_number, heard_at: now, sent_at: now, stops_at, ..self }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn object(&self) -> u64 {
        self.object
    }

    pub fn hear(&mut self, now: Instant) {
        (self.heard_at, self.is_unheard) = (now, false);
    }

    pub fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// What is sent later does not arrive in time.
    pub fn stops_at(&self) -> Instant {
        self.stops_at
    }

    pub fn in_flight_bytes(&self) -> u64 {
        self.flight.bytes()
    }

    /// Whether nothing was sent for so long that the receiver may take the sender for gone.
    pub fn is_quiet(&self, now: Instant) -> bool {
        now - self.sent_at >= QUIET
    }

    /// Symbols that were found to be lost since the last call, and those that were not.
    pub fn take_losses(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.losses)
    }

    /// Whether a report says only what can be: numbers that were sent, and blocks that were begun.
    pub fn is_possible(&self, report: &Report) -> bool {
        let was_sent = |run: &Run| run.first >= self.first_number && run.first + run.count <= self.next_number;
        let is_descending = report.arrived.windows(2).all(|pair| pair[1].first + pair[1].count < pair[0].first);
        let has_newest = report.arrived.iter().any(|run| (run.first..run.first + run.count).contains(&report.newest));
        let was_wanted = |(index, bits): (u32, u64)| {
            let words = self.wanted.words();
            words.get(index as usize).is_some_and(|word| bits & !word == 0)
        };
        report.arrived.iter().all(was_sent)
            && is_descending
            && (has_newest || (report.newest == 0 && report.arrived.is_empty() && report.words.is_empty()))
            && report.words.iter().all(|word| was_wanted((word.index, word.bits)))
    }

    /// Takes a report, and returns what became of datagrams.
    pub fn take_report(&mut self, report: &Report, round_trip: &mut RoundTrip, now: Instant) -> Progress {
        let was_unheard = std::mem::replace(&mut self.is_unheard, false);
        self.heard_at = now;
        let delay = Duration::from_micros(u64::from(report.delay_us));
        let sample = self.flight.sent_at(report.newest).map(|sent_at| Sample {
            sent_at,
            round_trip: (now - sent_at).saturating_sub(delay),
            delay,
            path: 0,
            is_marked: false,
        });
        if let Some(sample) = &sample {
            round_trip.take(sample.round_trip);
        }
        let [known, spurious] = self.flight.acknowledge(&report.arrived);
        let bytes = |sent: &[Sent]| sent.iter().map(|sent| sent.bytes).sum::<u64>();
        let delivered_bytes = bytes(&known) + bytes(&spurious);
        self.losses.1 += spurious.len() as u64;
        for sent in known.into_iter().chain(spurious) {
            self.arrived(sent);
        }
        for word in &report.words {
            (0..64).filter(|bit| word.bits >> bit & 1 == 1).for_each(|bit| self.close(64 * word.index + bit));
        }
        // Reports can overtake each other.
        let is_newest = report.sequence > self.sequence;
        let mut progress = Progress { delivered_bytes, sample, ..Progress::default() };
        if is_newest {
            self.sequence = report.sequence;
            let left = Duration::from_micros(u64::from(report.left_us));
            self.stops_at = now + left.saturating_sub(round_trip.least());
            self.is_late = false;
            let lost = self.lose(round_trip, true, now);
            let field = if was_unheard { &mut progress.forgotten_bytes } else { &mut progress.lost_bytes };
            *field = lost;
        }
        progress
    }

    /// Takes the time: what was overtaken for long enough is lost. Of a receiver that is not heard, nothing counts as in flight,
    /// since other requests need the room, and it is sent nothing until it is heard again.
    pub fn find_lost(&mut self, round_trip: &RoundTrip, now: Instant) -> Progress {
        if now < self.unheard_at(round_trip) {
            return Progress { lost_bytes: self.lose(round_trip, false, now), ..Progress::default() };
        }
        self.is_unheard = true;
        let forgotten = self.flight.lose(now, Some(now));
        Progress { forgotten_bytes: self.queue(forgotten), ..Progress::default() }
    }

    fn unheard_at(&self, round_trip: &RoundTrip) -> Instant {
        self.heard_at + round_trip.unreported() + UNHEARD
    }

    /// When [`find_lost`](Self::find_lost) will find something.
    pub fn lost_at(&self, round_trip: &RoundTrip) -> Option<Instant> {
        let unheard_at = (!self.is_unheard).then(|| self.unheard_at(round_trip));
        self.flight.lost_at(round_trip.overtaken()).into_iter().chain(unheard_at).min()
    }

    /// Takes for lost what must be; returns how many bytes that is.
    fn lose(&mut self, round_trip: &RoundTrip, is_reported: bool, now: Instant) -> u64 {
        let before = |time: Duration| Instant::from_ns(now.as_ns().saturating_sub(time.as_nanos() as u64));
        // Anybody can report that nothing has arrived, and have it sent to somebody else: less and less often.
        let wait = round_trip.unreported() * (1 << self.unproven.min(UNPROVEN_MAX));
        let lost = self.flight.lose(before(round_trip.overtaken()), is_reported.then(|| before(wait)));
        self.unproven += u32::from(!lost.is_empty() && !self.flight.is_proven());
        self.queue(lost)
    }

    /// Takes datagrams for lost, and queues the symbols that are to be sent once more; returns how many bytes were lost.
    fn queue(&mut self, lost: Vec<(u32, Sent)>) -> u64 {
        self.losses.0 += lost.len() as u64;
        for (number, sent) in &lost {
            if let Some(open) = self.open.get_mut(&sent.block)
                && open.lose(sent.symbol, *number) == Remedy::Resend
            {
                self.resend.insert((open.rank, sent.block, sent.symbol));
            }
        }
        lost.iter().map(|(_, sent)| sent.bytes).sum()
    }

    fn arrived(&mut self, sent: Sent) {
        let Some(open) = self.open.get_mut(&sent.block) else { return };
        if open.arrived(sent.symbol) {
            self.resend.remove(&(open.rank, sent.block, sent.symbol));
        }
        if open.is_enough() {
            self.close(sent.block);
        }
    }

    /// The receiver needs no more of a block.
    fn close(&mut self, block: u32) {
        let Some(open) = self.open.remove(&block) else { return };
        let queued: Vec<_> = self.resend.range((open.rank, block, 0)..=(open.rank, block, u32::MAX)).copied().collect();
        for symbol in queued {
            self.resend.remove(&symbol);
        }
    }

    /// Stops when what is sent does not arrive in time.
    pub fn stop_if_late(&mut self, now: Instant) {
        self.is_late = now >= self.stops_at;
    }

    /// Whether there is anything to send.
    pub fn has_more(&self) -> bool {
        let has_new = || self.newest.and_then(|block| self.open.get(&block)).is_some_and(|open| open.next().is_some());
        !self.is_late
            && !self.is_unheard
            && (!self.resend.is_empty() || has_new() || self.run.is_some() || !self.order.as_slice().is_empty())
    }

    /// The next symbol: a lost one of the most important block, else the next of the newest block, else of the next one.
    fn next(&mut self) -> Option<(u32, u32, Sending)> {
        if let Some((_, block, symbol)) = self.resend.pop_first() {
            return Some((block, symbol, Sending::Again));
        }
        let newest = self.newest.filter(|block| self.open.get(block).is_some_and(|open| open.next().is_some()));
        let block = newest.or_else(|| self.open_next())?;
        let open = self.open.get(&block)?;
        let symbol = open.next()?;
        let kind = if symbol < open.symbols { Sending::Symbol } else { Sending::RepairSymbol };
        Some((block, symbol, kind))
    }

    /// Begins the next block in the order of importance.
    fn open_next(&mut self) -> Option<u32> {
        let run = self.run.or_else(|| self.order.next())?;
        self.run = (run.count > 1).then_some(Run { first: run.first + 1, count: run.count - 1 });
        let block = run.first;
        let mut bytes = vec![0; self.shape.block_len(block)];
        self.values.source().read(self.shape.offset(block), &mut bytes);
        let symbols = self.shape.symbols(block);
        let repairs = coding::repairs(symbols, self.repair_per_mille);
        let repair = if repairs > 0 { coding::encode(&self.shape, &bytes, repairs) } else { Vec::new() };
        let open = OpenBlock::new(self.rank, crc32fast::hash(&bytes), symbols, (repairs, repair));
        self.rank += 1;
        self.open.insert(block, open);
        self.newest = Some(block);
        Some(block)
    }

    /// Writes the next symbol; `overhead` bytes come with it in a packet.
    pub fn write(&mut self, now: Instant, overhead: usize, into: &mut [u8]) -> Option<(usize, Sending)> {
        let (head, body) = into.split_at_mut_checked(Data::HEADER_BYTES)?;
        if body.len() < usize::from(self.shape.symbol_bytes()) {
            return None;
        }
        let number = self.next_number;
        self.next_number = number.checked_add(1)?;
        let (block, symbol, sending) = self.next()?;
        let open = self.open.get_mut(&block)?;
        let len = match symbol.checked_sub(open.symbols) {
            None => {
                let range = self.shape.symbol(block, symbol);
                let offset = self.shape.offset(block) + range.start as u64;
                self.values.source().read(offset, &mut body[..range.len()]);
                range.len()
            }
            Some(repair) => {
                let len = usize::from(self.shape.symbol_bytes());
                body[..len].copy_from_slice(&open.repair[repair as usize * len..][..len]);
                len
            }
        };
        open.sent(symbol, number);
        let version = self.values.version();
        let data = Data { version, number, block, symbol, crc: open.crc, payload: &[] };
        Datagram { request: self.id, body: Body::Data(data) }.write(head)?;
        let len = Data::HEADER_BYTES + len;
        let bytes = (len + overhead + ETHERNET_BYTES) as u64;
        self.flight.sent(number, Sent { at: now, bytes, block, symbol });
        self.sent_at = now;
        Some((len, sending))
    }
}
