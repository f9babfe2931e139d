//! One side of the small world: an endpoint, the program that uses it, and what the program must see.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv6Addr;
use std::sync::Arc;

use uroce::congestion::CongestionControl;
use uroce::frame::FrameBytes;
use uroce::memory::{Access, HostMemory};
use uroce::time::Instant;
use uroce::transport::{
    Completion, CompletionKind, CompletionRing, Data, Endpoint, ReceiveRequest, RecoveryMode, RecoverySettings, Remote,
    SendOperation, SendRequest, Service, Sge, Skipped, Status,
};
use uroce::wire::{Key, PathMtu, Placement, Psn, Qpn, RnrTimer, Selectivity};
use uroce_laboratory::world::{Host, Peering, path, with_ethernet};

const MTU: PathMtu = PathMtu::Mtu256;
/// Bytes of a message of one packet; of more packets, those before the last are full.
const TAIL_BYTES: usize = 24;
/// Bytes set apart for a message.
const SLOT_BYTES: usize = 1024;
/// Requests of a side, at the most.
const SLOTS: usize = 4;
const RECEIVES: usize = SLOTS * SLOT_BYTES;
const AREA: usize = 2 * RECEIVES;
const READABLE: usize = AREA + SLOT_BYTES;
const WORD: usize = READABLE + SLOT_BYTES;
const BYTES: usize = WORD + 8;

/// As many as there can be, so that no side gives up but for a long row of misfortunes.
const RETRY_COUNT: u8 = 7;

/// What a side lets the other do.
const PEERS_ACCESS: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(Access::FLUSH_GLOBAL);

/// What no message brings, and the program writes into buffers that are its own again.
const REUSED: u8 = 0xff;
/// How a point in time begins when it is printed.
const TIME: &str = "Instant(";
/// What the word for atomics holds at first.
const WORD_AT_FIRST: u64 = 1000;

/// What a side asks of the other, in packets where there may be several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Send(usize),
    /// All WRITEs go to the same place, from its beginning on.
    Write(usize),
    WriteImmediate(usize),
    Read(usize),
    FetchAdd,
    /// It goes where WRITEs go.
    AtomicWrite,
    Flush,
}

impl Request {
    fn len(self) -> usize {
        match self {
            Request::Send(packets)
            | Request::Write(packets)
            | Request::WriteImmediate(packets)
            | Request::Read(packets) => (packets - 1) * MTU.bytes() + TAIL_BYTES,
            Request::FetchAdd | Request::AtomicWrite => 8,
            Request::Flush => 0,
        }
    }

    fn is_write(self) -> bool {
        matches!(self, Request::Write(_) | Request::WriteImmediate(_) | Request::AtomicWrite)
    }

    /// Whether it takes a receive request.
    pub fn consumes(self) -> bool {
        matches!(self, Request::Send(_) | Request::WriteImmediate(_))
    }

    fn completion(self) -> CompletionKind {
        match self {
            Request::Send(_) => CompletionKind::Send,
            Request::Write(_) | Request::WriteImmediate(_) => CompletionKind::Write,
            Request::Read(_) => CompletionKind::Read,
            Request::FetchAdd => CompletionKind::FetchAdd,
            Request::AtomicWrite => CompletionKind::AtomicWrite,
            Request::Flush => CompletionKind::Flush,
        }
    }
}

/// What can happen to a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// This frame arrives.
    Deliver(u16),
    /// Its timer fires.
    Timeout,
    /// The program posts a receive request.
    PostReceive,
    /// The link takes what it wants to send; in worlds where it does not at once.
    Transmit,
}

/// What the two programs do, and when.
#[derive(Clone, Debug)]
pub struct Plan {
    pub requests: [Vec<Request>; 2],
    /// Receive requests are not there from the beginning, but posted at any time.
    pub late_receives: bool,
    /// What is to be sent is not taken at once, but at any time.
    pub lazy: bool,
    /// Where the PSNs of the sides begin.
    pub first_psns: [Psn; 2],
    /// How each side deals with losses.
    pub recovery: [RecoveryMode; 2],
    /// The connection is so many PSNs older than a READ and an atomic of each side.
    pub age: Option<u32>,
    /// The sides have exchanged a READ and an atomic each, and know each other if both repeat selectively.
    pub is_acquainted: bool,
}

impl Plan {
    /// Whether something happens before the exploration.
    pub fn has_prelude(&self) -> bool {
        self.age.is_some() || self.is_acquainted
    }
}

/// The fixed part of a side: its memory, used again for every run.
pub struct Place {
    side: usize,
    memory: Arc<HostMemory>,
    /// Where the peer's memory is, and its key and number: the same in every run.
    pub peer: Option<(Remote, Qpn)>,
    /// What it receives, one round after another, before the connection gets old.
    pub prelude: Vec<Vec<Vec<u8>>>,
}

impl Place {
    pub fn new(side: usize) -> Place {
        Place { side, memory: Arc::new(HostMemory::new(BYTES).unwrap()), peer: None, prelude: Vec::new() }
    }

    /// What the peer must know.
    pub fn introduce(&self) -> (Remote, Qpn) {
        let (host, qpn) = self.host(RecoveryMode::GoBackN);
        (Remote { address: self.memory.address(), key: host.key }, qpn)
    }

    fn host(&self, recovery: RecoveryMode) -> (Host, Qpn) {
        // A controller's state would make of one world very many.
        let congestion = CongestionControl::Fixed;
        let recovery = RecoverySettings { recovery, congestion, ..RecoverySettings::default() };
        let cq = CompletionRing::new(2 * SLOTS + 2, || {});
        let access = PEERS_ACCESS | Access::LOCAL_WRITE;
        let mut host = Host::new(self.side as u8 + 1, recovery, self.memory.clone(), access, cq);
        let init = host.init(Service::Rc, SLOTS, None, MTU);
        let qpn = host.endpoint.create_queue_pair(init).unwrap();
        (host, qpn)
    }
}

/// The byte at `offset` of message `index` of `side`: unlike that of any other message, 0 and [`REUSED`].
fn byte(side: usize, index: usize, offset: usize) -> u8 {
    1 + (((side * SLOTS + index) * 29 + offset * 7) % 232) as u8
}

/// What a READ of a side's memory brings.
fn readable(side: usize, offset: usize) -> u8 {
    byte(side, SLOTS, offset)
}

/// What fetch and add number `index` adds.
fn summand(index: usize) -> u64 {
    1 << (8 * index)
}

/// A side while something happens to it.
pub struct Side<'a> {
    place: &'a Place,
    plan: &'a Plan,
    endpoint: Endpoint,
    cq: Arc<CompletionRing>,
    key: Key,
    qpn: Qpn,
    now: Instant,
    /// Of its own requests, how many are completed.
    pub completed: usize,
    /// Receive requests posted, and completed.
    pub posted: usize,
    pub received: usize,
    /// Of the peer's requests, how many are seen to be carried out.
    pub executed: usize,
    /// It has asked as often as it may without progress, and failed.
    pub has_given_up: bool,
}

impl<'a> Side<'a> {
    /// The side as it begins, with all its requests posted.
    pub fn begin(place: &'a Place, plan: &'a Plan) -> Side<'a> {
        let mut side = Side::connect(place, plan);
        if plan.has_prelude() {
            side.prelude();
            place.prelude.iter().for_each(|frames| drop(side.take_all(frames)));
            let packets = plan.age.unwrap_or(0);
            let skipped = Skipped { packets, messages: packets, receives: 0 };
            side.endpoint.skip(side.now, side.qpn, skipped, skipped).unwrap();
            while side.cq.poll().is_some() {}
            side.fill_memory();
        }
        side.post_all();
        side
    }

    /// A READ and an atomic, which the peer keeps in mind. Returns the frames sent.
    pub fn prelude(&mut self) -> Vec<Vec<u8>> {
        let (remote, _) = self.place.peer.expect("the sides know each other");
        let at = |offset: usize| Remote { address: remote.address + offset as u64, key: remote.key };
        let to = self.place.memory.address();
        for (operation, len) in
            [(SendOperation::Read(at(READABLE)), 8), (SendOperation::FetchAdd { remote: at(WORD), add: 0 }, 8)]
        {
            let request = SendRequest::new(0, operation, Data::sge(to, len, self.key));
            self.endpoint.post_send(self.now, self.qpn, request).unwrap();
        }
        self.transmit()
    }

    /// Takes frames in their order. Returns the frames sent then.
    pub fn take_all(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        frames.iter().for_each(|frame| self.endpoint.handle_frame(self.now, FrameBytes::from(&frame[..])));
        self.transmit()
    }

    /// Its memory holds what its requests send, what the peer reads, and nothing else.
    fn fill_memory(&self) {
        let (place, plan, s) = (self.place, self.plan, self.place.side);
        let mut bytes = vec![0; BYTES];
        for (index, request) in plan.requests[s].iter().enumerate() {
            let from = index * SLOT_BYTES;
            if matches!(request, Request::Send(_)) || request.is_write() {
                (0..request.len()).for_each(|offset| bytes[from + offset] = byte(s, index, offset));
            }
        }
        (0..SLOT_BYTES).for_each(|offset| bytes[READABLE + offset] = readable(s, offset));
        bytes[WORD..].copy_from_slice(&WORD_AT_FIRST.to_ne_bytes());
        place.memory.write(0, &bytes);
    }

    /// The side with nothing posted.
    pub fn connect(place: &'a Place, plan: &'a Plan) -> Side<'a> {
        let s = place.side;
        let (Host { mut endpoint, cq, key, .. }, qpn) = place.host(plan.recovery[s]);
        let (_, peer) = place.peer.expect("the sides know each other");
        // IPv6 has no identification: a packet sent again is the same, byte for byte.
        let address = |side: usize| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, side as u16 + 1);
        let peering = Peering {
            access: PEERS_ACCESS,
            path_mtu: MTU,
            send_psn: plan.first_psns[s],
            receive_psn: plan.first_psns[1 - s],
            rd_atomic: 2,
            rnr_timer: RnrTimer::new(1),
            retry_count: RETRY_COUNT,
            ..Peering::new(path(address(s), address(1 - s), 1 - s as u64), peer)
        };
        peering.connect(&mut endpoint, Instant::ZERO, qpn);
        let side = Side {
            place,
            plan,
            endpoint,
            cq,
            key,
            qpn,
            now: Instant::ZERO,
            completed: 0,
            posted: 0,
            received: 0,
            executed: 0,
            has_given_up: false,
        };
        side.fill_memory();
        side
    }

    fn post_all(&mut self) {
        let (place, plan, s) = (self.place, self.plan, self.place.side);
        let (remote, _) = place.peer.expect("the sides know each other");
        if !plan.late_receives {
            (0..self.to_receive()).for_each(|_| self.post_receive());
        }
        for (index, &request) in plan.requests[s].iter().enumerate() {
            let at = |offset: usize| Remote { address: remote.address + offset as u64, key: remote.key };
            let operation = match request {
                Request::Send(_) => SendOperation::SendWithImmediate(index as u32),
                Request::Write(_) => SendOperation::Write(at(AREA)),
                Request::WriteImmediate(_) => SendOperation::WriteWithImmediate(at(AREA), index as u32),
                Request::Read(_) => SendOperation::Read(at(READABLE)),
                Request::FetchAdd => SendOperation::FetchAdd { remote: at(WORD), add: summand(index) },
                Request::AtomicWrite => SendOperation::AtomicWrite(at(AREA)),
                Request::Flush => SendOperation::Flush {
                    remote: at(AREA),
                    length: SLOT_BYTES as u32,
                    placement: Placement::GLOBAL,
                    selectivity: Selectivity::Range,
                },
            };
            let from = place.memory.address() + (index * SLOT_BYTES) as u64;
            let data = Data::sge(from, request.len() as u32, self.key);
            self.endpoint.post_send(self.now, self.qpn, SendRequest::new(index as u64, operation, data)).unwrap();
        }
    }

    fn own(&self) -> &'a [Request] {
        &self.plan.requests[self.place.side]
    }

    fn peers(&self) -> &'a [Request] {
        &self.plan.requests[1 - self.place.side]
    }

    fn to_receive(&self) -> usize {
        self.peers().iter().filter(|request| request.consumes()).count()
    }

    fn post_receive(&mut self) {
        let address = self.place.memory.address() + (RECEIVES + self.posted * SLOT_BYTES) as u64;
        let sges = [Sge { address, length: SLOT_BYTES as u32, lkey: self.key }].into_iter().collect();
        let request = ReceiveRequest { wr_id: self.posted as u64, sges };
        self.endpoint.post_receive(self.now, self.qpn, request).unwrap();
        self.posted += 1;
    }

    /// Whether the program has receive requests left to post.
    pub fn may_post(&self) -> bool {
        self.posted < self.to_receive()
    }

    /// Whether it has something to send that nobody has taken.
    pub fn may_transmit(&self) -> bool {
        self.plan.lazy && self.endpoint.may_transmit()
    }

    /// Lets something happen. Returns the frames sent; the error says what is wrong.
    pub fn step(&mut self, event: Event, frames: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        match event {
            Event::Deliver(frame) => {
                self.endpoint.handle_frame(self.now, FrameBytes::from(&frames[usize::from(frame) - 1][..]));
            }
            Event::Timeout => {
                self.fire();
            }
            Event::PostReceive => self.post_receive(),
            Event::Transmit => {}
        }
        let sent = match self.plan.lazy && event != Event::Transmit {
            true => Vec::new(),
            false => self.transmit(),
        };
        self.observe()?;
        Ok(sent)
    }

    /// The first frames.
    pub fn first(&mut self) -> Vec<Vec<u8>> {
        if self.plan.lazy { Vec::new() } else { self.transmit() }
    }

    fn transmit(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut packet = [0; 512];
        while let Some(transmit) = self.endpoint.poll_transmit(self.now, &mut packet) {
            sent.push(with_ethernet(&packet[..transmit.len]));
        }
        sent
    }

    /// Time goes on until the timer does something: it may be early. False when none is set.
    fn fire(&mut self) -> bool {
        while let Some(at) = self.endpoint.poll_timeout() {
            self.now = self.now.max(at);
            let before = format!("{:?}", self.endpoint.queue_pair(self.qpn).unwrap().send_progress());
            self.endpoint.handle_timeout(self.now);
            let after = format!("{:?}", self.endpoint.queue_pair(self.qpn).unwrap().send_progress());
            if before != after || self.endpoint.may_transmit() || !self.cq.is_empty() {
                return true;
            }
        }
        false
    }

    /// Whether its timer will do something. It is of no more use after this question.
    pub fn will_time_out(mut self) -> bool {
        let idle = !self.endpoint.may_transmit();
        self.fire() && idle
    }

    /// All that decides what it will do, or has done.
    pub fn digest(&self) -> String {
        let mut memory = DefaultHasher::new();
        self.place.memory.to_vec(0, BYTES).hash(&mut memory);
        let queue_pair = format!("{:?}", self.endpoint.queue_pair(self.qpn).unwrap());
        // The same thing later is the same: times count from now.
        let mut parts = queue_pair.split(TIME);
        let mut digest = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            let ns: u64 = part[..end].parse().expect("a time is a number");
            digest += &format!("in {}{}", ns.wrapping_sub(self.now.as_ns()) as i64, &part[end..]);
        }
        let Side { completed, posted, received, executed, has_given_up, .. } = self;
        digest + &format!(" {:x} {completed} {posted} {received} {executed} {has_given_up}", memory.finish())
    }

    /// Takes the completions, each of which must be the next one, and looks at all memory.
    fn observe(&mut self) -> Result<(), String> {
        while let Some(done) = self.cq.poll() {
            if done.status != Status::Success {
                self.failed(&done)?;
                continue;
            }
            if self.has_given_up {
                return Err(format!("{done:?} after a failure"));
            }
            match done.kind {
                CompletionKind::Receive | CompletionKind::ReceiveWriteWithImmediate => self.receive_completed(&done)?,
                _ => self.request_completed(&done)?,
            }
        }
        while self.executed < self.peers().len() && self.is_executed(self.executed) {
            self.executed += 1;
        }
        self.look_at_memory()
    }

    fn failed(&mut self, done: &Completion) -> Result<(), String> {
        let retries = self.endpoint.counters().completer_retry;
        match done.status {
            Status::WrFlush if self.has_given_up => Ok(()),
            Status::RetryExceeded if done.wr_id == self.completed as u64 && retries >= RETRY_COUNT.into() => {
                self.has_given_up = true;
                Ok(())
            }
            _ => Err(format!("{done:?} after {retries} retries")),
        }
    }

    fn request_completed(&mut self, done: &Completion) -> Result<(), String> {
        let index = self.completed;
        let Some(&request) = self.own().get(index).filter(|_| done.wr_id == index as u64) else {
            return Err(format!("{done:?}, where {index} is next"));
        };
        if done.kind != request.completion() {
            return Err(format!("{done:?} for {request:?}"));
        }
        let slot = index * SLOT_BYTES;
        match request {
            Request::Read(_) => {
                let bytes = self.bytes(slot, request.len());
                if (0..request.len()).any(|offset| bytes[offset] != readable(1 - self.place.side, offset)) {
                    return Err(format!("READ {index} is completed without its bytes"));
                }
            }
            Request::FetchAdd => {
                let (old, due) = (self.word(slot), sum(self.own(), index));
                if old != due {
                    return Err(format!("fetch and add {index} brought {old:#x}, and {due:#x} was due"));
                }
            }
            _ => {}
        }
        self.place.memory.write(slot, &[REUSED; SLOT_BYTES]);
        self.completed += 1;
        Ok(())
    }

    fn receive_completed(&mut self, done: &Completion) -> Result<(), String> {
        let number = self.received;
        let consumers = self.peers().iter().enumerate().filter(|(_, request)| request.consumes());
        let Some((index, &request)) = consumers.clone().nth(number) else {
            return Err(format!("{done:?}, where nothing is left to be received"));
        };
        let immediate = Some(index as u32);
        if (done.wr_id, done.byte_len, done.immediate) != (number as u64, request.len() as u32, immediate) {
            return Err(format!("{done:?}, where {request:?} {index} is next"));
        }
        let slot = RECEIVES + number * SLOT_BYTES;
        if matches!(request, Request::Send(_)) {
            let bytes = self.bytes(slot, request.len());
            if (0..request.len()).any(|offset| bytes[offset] != byte(1 - self.place.side, index, offset)) {
                return Err(format!("SEND {index} is received without its bytes"));
            }
        }
        self.place.memory.write(slot, &[REUSED; SLOT_BYTES]);
        self.received += 1;
        Ok(())
    }

    /// Whether the peer's request `index` is seen to be carried out; READs and FLUSHes leave no trace.
    fn is_executed(&self, index: usize) -> bool {
        let request = self.peers()[index];
        let consumers_before = self.peers()[..index].iter().filter(|request| request.consumes()).count();
        let consumed = !request.consumes() || consumers_before < self.received;
        consumed
            && match request {
                Request::Send(_) | Request::Read(_) | Request::Flush => true,
                Request::Write(_) | Request::WriteImmediate(_) | Request::AtomicWrite => {
                    let bytes = self.bytes(AREA, request.len());
                    (0..request.len()).all(|offset| bytes[offset] == byte(1 - self.place.side, index, offset))
                }
                Request::FetchAdd => self.word(WORD) == sum(self.peers(), index + 1),
            }
    }

    /// Every byte must be what the requests carried out so far left there, or what the next one brings.
    fn look_at_memory(&self) -> Result<(), String> {
        let (side, peer) = (self.place.side, 1 - self.place.side);
        let wrong = |what: &str, offset: usize| Err(format!("byte {offset} of {what} is wrong"));
        for (index, &request) in self.own().iter().enumerate() {
            for (offset, &is) in self.bytes(index * SLOT_BYTES, SLOT_BYTES).iter().enumerate() {
                let fits = match index < self.completed {
                    true => is == REUSED,
                    false if offset >= request.len() => is == 0,
                    false if request == Request::FetchAdd => true,
                    false if matches!(request, Request::Read(_)) => is == 0 || is == readable(peer, offset),
                    false => is == byte(side, index, offset),
                };
                if !fits {
                    return wrong(&format!("the buffer of {request:?} {index}"), offset);
                }
            }
        }
        let next = self.peers().get(self.executed);
        // Packets that say where they belong are placed in any order.
        let places_early = self.plan.recovery == [RecoveryMode::Auto; 2];
        let sends = |number: usize| {
            let mut consumers = self.peers().iter().enumerate().filter(|(_, request)| request.consumes());
            consumers.nth(number).filter(|(_, request)| matches!(request, Request::Send(_))).map(|(index, _)| index)
        };
        for number in 0..SLOTS {
            let incoming = match places_early {
                true => sends(number),
                false => (number == self.received && matches!(next, Some(Request::Send(_)))).then_some(self.executed),
            };
            for (offset, &is) in self.bytes(RECEIVES + number * SLOT_BYTES, SLOT_BYTES).iter().enumerate() {
                let brought =
                    incoming.is_some_and(|index| offset < self.peers()[index].len() && is == byte(peer, index, offset));
                let fits = if number < self.received { is == REUSED } else { is == 0 || brought };
                if !fits {
                    return wrong(&format!("receive buffer {number}"), offset);
                }
            }
        }
        for (offset, &is) in self.bytes(AREA, SLOT_BYTES).iter().enumerate() {
            let writes = |index: &usize| {
                let request = self.peers()[*index];
                request.is_write() && offset < request.len()
            };
            let last = (0..self.executed).rev().find(writes).map_or(0, |index| byte(peer, index, offset));
            let next = next.map(|_| self.executed).filter(writes).map(|index| byte(peer, index, offset));
            if is != last && Some(is) != next {
                return wrong("what the peer writes", offset);
            }
        }
        let (word, due) = (self.word(WORD), sum(self.peers(), self.executed));
        if word != due {
            return Err(format!("the word for atomics is {word:#x} and must be {due:#x}"));
        }
        Ok(())
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.place.memory.to_vec(offset, len)
    }

    fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().unwrap())
    }
}

/// The word for atomics after the first `count` of `requests`.
fn sum(requests: &[Request], count: usize) -> u64 {
    let adds = requests[..count].iter().enumerate().filter(|(_, request)| **request == Request::FetchAdd);
    WORD_AT_FIRST + adds.map(|(index, _)| summand(index)).sum::<u64>()
}
