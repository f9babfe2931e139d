mod collecting;
mod flight;
mod open_block;
mod outgoing;
mod round_trip;

use std::collections::{BTreeMap, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use uroce::congestion::{CongestionControl, Pacer, Progress, Rate};
use uroce::time::{Duration, Instant};

use super::wire::{Body, Data, Datagram, EndReason, Reason, Refusal, Report, RequestPart};
use super::{Values, coding, request};

use collecting::{Asked, Collecting};
use outgoing::{Outgoing, Sending};
use round_trip::RoundTrip;

/// The end of transfers to one peer that has the values.
///
/// Its owner hands it datagrams of that peer and the time, and sends what it writes. A congestion controller of uroce
/// finds the rate, for all requests of the peer together.
#[derive(Debug)]
pub struct Sender {
    shelf: BTreeMap<u64, Values>,
    collecting: Collecting,
    requests: Vec<Outgoing>,
    /// Requests that have ended, the newest last, with what their receiver is answered if it goes on.
    ended: VecDeque<(u64, Option<Refusal>)>,
    /// Answers that are owed.
    owed: VecDeque<(u64, Body<'static>)>,
    events: VecDeque<SenderEvent>,
    pacer: Pacer,
    round_trip: RoundTrip,
    random: ChaCha8Rng,
    datagram_bytes: usize,
    counters: SenderCounters,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// It is served from now on.
    Began {
        /// Its number.
        request: u64,
        /// The object that it asks for.
        object: u64,
    },
    /// It is not served any more.
    Ended {
        /// Its number.
        request: u64,
        /// Why.
        why: SenderEnd,
    },
}

/// Why a request is not served any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderEnd {
    /// The receiver has said so.
    Told(EndReason),
    /// Nothing was heard of the receiver for two seconds.
    Silent,
    /// The object was replaced or withdrawn.
    Withdrawn,
}

/// What a sender has counted, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they count; the less obvious ones say more
pub struct SenderCounters {
    /// Symbols that were sent for the first time.
    pub symbols: u64,
    /// Repair symbols that were sent for the first time.
    pub repair_symbols: u64,
    /// Symbols that were sent once more.
    pub retransmitted: u64,
    /// Symbols that were found to be lost.
    pub lost: u64,
    /// Symbols that were found to be lost and had arrived.
    pub spurious: u64,
    /// Datagrams that are none of this mode, or that a sender does not take.
    pub malformed: u64,
    /// Reports of what was not sent.
    pub forged: u64,
    pub refused: u64,
}

/// Upper bound on the requests that one peer has served at once.
const REQUESTS_MAX: usize = 64;

/// Upper bound on the ended requests that are remembered: a repeated request must not begin anew.
const ENDED_MAX: usize = 256;

/// Upper bound on the answers that are owed: a peer that asks for more gets none.
const OWED_MAX: usize = 64;

/// Upper bound on the events that nobody has polled: the oldest are forgotten.
const EVENTS_MAX: usize = 1024;

/// A request ends when nothing was heard of it for so long: its receiver reports at least every 20 ms.
const PATIENCE: Duration = Duration::from_secs(2);

/// Length of a datagram at most, unless it is set: path MTU 4096.
const DATAGRAM_BYTES: usize = 4096;

/// Length of what comes before a datagram, in bytes: IPv4, UDP, BTH, DETH, and the ICRC behind it.
const OVERHEAD_BYTES: usize = 20 + 8 + 12 + 8 + 4;

impl Sender {
    /// A sender with nothing to send. `seed` is drawn at random: who does not see the datagrams must not guess their
    /// numbers, which a report of what arrived has to name.
    pub fn new(seed: [u8; 32]) -> Sender {
        Sender {
            shelf: BTreeMap::new(),
            collecting: Collecting::default(),
            requests: Vec::new(),
            ended: VecDeque::new(),
            owed: VecDeque::new(),
            events: VecDeque::new(),
            pacer: Pacer::new(CongestionControl::default(), None),
            round_trip: RoundTrip::default(),
            random: ChaCha8Rng::from_seed(seed),
            datagram_bytes: DATAGRAM_BYTES,
            counters: SenderCounters::default(),
        }
    }

    /// The same with this congestion controller, and a rate that is never exceeded, in bits of Ethernet frames.
    pub fn with_congestion(self, kind: CongestionControl, cap: Option<Rate>) -> Sender {
        Sender { pacer: Pacer::new(kind, cap), ..self }
    }

    /// The same for a path on which a datagram has at most so many bytes: 4096 unless it is set.
    pub fn with_datagram_bytes(self, datagram_bytes: usize) -> Sender {
        Sender { datagram_bytes, ..self }
    }

    /// Offers the object of this name, in the place of any other. Requests for another version of it end.
    pub fn offer(&mut self, object: u64, values: Values) {
        let version = values.version();
        if self.shelf.insert(object, values).is_some_and(|before| before.version() != version) {
            self.end_requests_for(object);
        }
    }

    /// Offers the object of this name no more. Requests for it end.
    pub fn withdraw(&mut self, object: u64) {
        if self.shelf.remove(&object).is_some() {
            self.end_requests_for(object);
        }
    }

    fn end_requests_for(&mut self, object: u64) {
        let refusal = self.refusal(Reason::Withdrawn, object);
        let ids: Vec<u64> = self.requests.iter().filter(|r| r.object() == object).map(Outgoing::id).collect();
        for id in ids {
            self.end(id, SenderEnd::Withdrawn, Some(refusal));
            self.owe(id, Body::Refusal(refusal));
        }
    }

    /// The next thing that has become of a request.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// What was counted.
    pub fn counters(&self) -> SenderCounters {
        self.counters
    }

    /// The number of requests that are served.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Takes a datagram that has arrived from the peer.
    pub fn handle_datagram(&mut self, now: Instant, bytes: &[u8]) {
        let Ok(Datagram { request, body }) = Datagram::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        match body {
            Body::Request(part) => self.handle_request(now, request, part),
            Body::Report(report) => self.handle_report(now, request, &report),
            Body::End(reason) => self.end(request, SenderEnd::Told(reason), None),
            Body::Data(_) | Body::Refusal(_) | Body::Here => self.counters.malformed += 1,
        }
    }

    fn handle_request(&mut self, now: Instant, id: u64, part: RequestPart) {
        if let Some(outgoing) = self.requests.iter_mut().find(|outgoing| outgoing.id() == id) {
            outgoing.hear(now);
            return self.owe(id, Body::Here);
        }
        if let Some((_, refusal)) = self.ended.iter().find(|(ended, _)| *ended == id) {
            if let Some(refusal) = *refusal {
                self.owe(id, Body::Refusal(refusal));
            }
            return;
        }
        let object = part.object;
        match self.collecting.take(id, part) {
            Ok(None) => {}
            Ok(Some(asked)) => match self.begin(now, id, asked) {
                Ok(()) => self.owe(id, Body::Here),
                Err(reason) => self.refuse(id, reason, object),
            },
            Err(reason) => self.refuse(id, reason, object),
        }
    }

    /// Begins to serve a request, unless there is a reason not to.
    fn begin(&mut self, now: Instant, id: u64, asked: Asked) -> Result<(), Reason> {
        let values = self.shelf.get(&asked.object).ok_or(Reason::NoObject)?;
        if values.version() != asked.version {
            return Err(Reason::OtherVersion);
        }
        let shape = asked.shape;
        if (values.source().bytes(), values.block_bytes()) != (shape.bytes(), shape.block_bytes()) {
            return Err(Reason::OtherShape);
        }
        if Data::HEADER_BYTES + usize::from(shape.symbol_bytes()) > self.datagram_bytes {
            return Err(Reason::LongSymbols);
        }
        let repairs = coding::repairs(shape.symbols(0), asked.repair_per_mille);
        if !coding::is_possible(shape.symbols(0), repairs) {
            return Err(Reason::Contradiction);
        }
        let wanted = request::wanted(&asked.runs, &shape).map_err(|_| Reason::Contradiction)?;
        if self.requests.len() == REQUESTS_MAX {
            return Err(Reason::Busy);
        }
        let outgoing = Outgoing::new(id, asked, wanted, values.clone());
        // Never 0, which reports use for none; and far from the last one.
        let first_number = (self.random.next_u32() >> 1).max(1);
        self.tell(SenderEvent::Began { request: id, object: outgoing.object() });
        self.requests.push(outgoing.beginning_at(first_number, now));
        Ok(())
    }

    fn refusal(&self, reason: Reason, object: u64) -> Refusal {
        let values = self.shelf.get(&object);
        Refusal {
            reason,
            version: values.map_or(0, Values::version),
            bytes: values.map_or(0, |values| values.source().bytes()),
            block_bytes: values.map_or(0, Values::block_bytes),
        }
    }

    fn refuse(&mut self, id: u64, reason: Reason, object: u64) {
        let refusal = self.refusal(reason, object);
        self.counters.refused += 1;
        self.remember(id, Some(refusal));
        self.owe(id, Body::Refusal(refusal));
    }

    fn remember(&mut self, id: u64, refusal: Option<Refusal>) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((id, refusal));
    }

    fn owe(&mut self, id: u64, body: Body<'static>) {
        if self.owed.len() < OWED_MAX && !self.owed.iter().any(|(owed, _)| *owed == id) {
            self.owed.push_back((id, body));
        }
    }

    fn tell(&mut self, event: SenderEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn end(&mut self, id: u64, why: SenderEnd, refusal: Option<Refusal>) {
        let before = self.requests.len();
        self.requests.retain(|outgoing| outgoing.id() != id);
        self.owed.retain(|(owed, _)| *owed != id);
        let was_served = self.requests.len() < before;
        if was_served {
            self.tell(SenderEvent::Ended { request: id, why });
        }
        // The end of a request can overtake the request.
        if was_served || !self.ended.iter().any(|(ended, _)| *ended == id) {
            self.remember(id, refusal);
        }
    }

    fn handle_report(&mut self, now: Instant, id: u64, report: &Report) {
        let Some(index) = self.requests.iter().position(|outgoing| outgoing.id() == id) else {
            let refusal = match self.ended.iter().find(|(ended, _)| *ended == id) {
                Some((_, refusal)) => *refusal,
                // It was begun with another sender: this one was started anew.
                None => Some(self.refusal(Reason::NoRequest, 0)),
            };
            if let Some(refusal) = refusal {
                self.owe(id, Body::Refusal(refusal));
            }
            return;
        };
        let outgoing = &mut self.requests[index];
        if !outgoing.is_possible(report) {
            self.counters.forged += 1;
            return;
        }
        let progress = outgoing.take_report(report, &mut self.round_trip, now);
        if outgoing.is_quiet(now) {
            self.owe(id, Body::Here);
        }
        self.take_progress(&progress, now);
    }

    fn take_progress(&mut self, progress: &Progress, now: Instant) {
        let in_flight = self.in_flight_bytes();
        self.pacer.take(progress, in_flight, now);
        for outgoing in &mut self.requests {
            let (lost, spurious) = outgoing.take_losses();
            self.counters.lost += lost;
            self.counters.spurious += spurious;
        }
    }

    fn in_flight_bytes(&self) -> u64 {
        self.requests.iter().map(Outgoing::in_flight_bytes).sum()
    }

    /// Takes the time. To be called at [`poll_timeout`](Self::poll_timeout); earlier calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_silent = |outgoing: &&Outgoing| outgoing.heard_at() + PATIENCE <= now;
        let silent: Vec<u64> = self.requests.iter().filter(is_silent).map(Outgoing::id).collect();
        for id in silent {
            self.end(id, SenderEnd::Silent, None);
        }
        for index in 0..self.requests.len() {
            let progress = self.requests[index].find_lost(&self.round_trip, now);
            self.take_progress(&progress, now);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) has something to do, if
    /// nothing arrives before; `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.owed.is_empty() {
            return Some(Instant::ZERO);
        }
        let of_requests = self.requests.iter().flat_map(|outgoing| {
            [Some(outgoing.heard_at() + PATIENCE), outgoing.lost_at(&self.round_trip)].into_iter().flatten()
        });
        let can_send = self.pacer.has_room(self.in_flight_bytes()) && self.requests.iter().any(Outgoing::has_more);
        let paced = can_send.then(|| self.pacer.wait(Instant::ZERO).unwrap_or(Instant::ZERO));
        of_requests.chain(paced).min()
    }

    /// Writes the next datagram that is to be sent now, and returns its length; `None` when there is none. The buffer
    /// holds [as many bytes](Self::with_datagram_bytes) as a datagram can have.
    pub fn poll_transmit(&mut self, now: Instant, into: &mut [u8]) -> Option<usize> {
        if let Some((request, body)) = self.owed.pop_front() {
            return Datagram { request, body }.write(into);
        }
        if self.pacer.wait(now).is_some() || !self.pacer.has_room(self.in_flight_bytes()) {
            return None;
        }
        self.requests.iter_mut().for_each(|outgoing| outgoing.stop_if_late(now));
        let outgoing = self.requests.iter_mut().filter(|outgoing| outgoing.has_more()).min_by_key(|o| o.stops_at())?;
        let (len, kind) = outgoing.write(now, OVERHEAD_BYTES, into)?;
        match kind {
            Sending::Symbol => self.counters.symbols += 1,
            Sending::RepairSymbol => self.counters.repair_symbols += 1,
            Sending::Again => self.counters.retransmitted += 1,
        }
        self.pacer.sent(now, len + OVERHEAD_BYTES);
        Some(len)
    }
}
