use std::collections::BTreeMap;

use uroce::time::{Duration, Instant};
use uroce_transfer::deadline::{Receiver, Request, RequestError, Sender, Shape, Source, Values};

use super::link::{Faults, Link, LinkProfile};
use super::random::Random;

/// A sender of deadline mode, and the links to its receivers and back.
pub(super) struct DeadlinePath {
    pub now: Instant,
    pub sender: Sender,
    /// From the sender, and to it.
    links: [Link; 2],
    /// Datagrams by their arrival, and whether they go to the sender.
    on_the_way: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    sequence: u64,
    buffer: Vec<u8>,
    requests: u64,
}

/// The rate of the path, in bits of Ethernet frames a second.
pub const LINE_BPS: u64 = 300_000_000;

/// Length of a symbol, in bytes: what fits into path MTU 4096.
pub(super) const SYMBOL_BYTES: u16 = Shape::SYMBOL_BYTES_MAX;

/// Bytes of a frame beside its datagram: Ethernet, IPv4, UDP, BTH, DETH and ICRC.
pub(super) const FRAME_OVERHEAD: usize = 14 + 20 + 8 + 12 + 8 + 4;

/// What is transferred for the controller to find the rate: 100 MiB, in blocks of one.
const WARM_UP_OBJECT: u64 = 0;
const WARM_UP_BYTES: u64 = 100 << 20;
const WARM_UP_BLOCK_BYTES: u32 = 1 << 20;

/// A transfer that takes longer has failed, whatever its deadline.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that are as good as any others.
struct Zeros(u64);

impl Source for Zeros {
    fn bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _offset: u64, into: &mut [u8]) {
        into.fill(0);
    }
}

impl DeadlinePath {
    /// A path that loses a share of its frames each way, independently or in bursts of eight, with a queue of a
    /// bandwidth-delay product, and never less than the burst of a start.
    pub fn new(round_trip: Duration, (loss, bursts): (f64, bool), seed: u64) -> DeadlinePath {
        let profile = LinkProfile {
            bytes_per_second: LINE_BPS / 8,
            delay: round_trip / 2,
            queue_bytes: (LINE_BPS / 8 * round_trip.as_millis() as u64 / 1000).max(256 << 10),
            marking: None,
            faults: Faults::losses(loss, bursts),
        };
        let mut random = Random::new(seed, 8);
        DeadlinePath {
            now: Instant::from_ns(1_000_000_000),
            sender: Sender::new([0; 32].map(|_: u8| random.u32() as u8)),
            links: [100, 101].map(|stream| Link::new(profile.clone(), Random::new(seed, stream))),
            on_the_way: BTreeMap::new(),
            sequence: 0,
            buffer: vec![0; 4096],
            requests: 0,
        }
    }

    /// A transfer that is long enough for the controller to find the rate.
    pub fn find_rate(&mut self) {
        let values = Values::new(1, WARM_UP_BLOCK_BYTES, Zeros(WARM_UP_BYTES)).expect("it can be cut");
        self.sender.offer(WARM_UP_OBJECT, values);
        let shape = Shape::new(WARM_UP_BYTES, WARM_UP_BLOCK_BYTES, SYMBOL_BYTES).expect("it can be cut");
        let request = Request::new(WARM_UP_OBJECT, 1, shape).by(self.now + PATIENCE);
        self.transfer(request).expect("the request is possible");
    }

    /// Plays a request to its end.
    pub fn transfer(&mut self, request: Request) -> Result<Receiver, RequestError> {
        self.requests += 1;
        let mut receiver = Receiver::new(self.requests, request.with_patience(PATIENCE), self.now)?;
        while receiver.end().is_none() {
            self.step(&mut receiver);
        }
        // Its last words go on their way.
        while let Some(len) = receiver.poll_transmit(self.now, &mut self.buffer) {
            self.pass(true, len);
        }
        Ok(receiver)
    }

    fn pass(&mut self, is_to_sender: bool, len: usize) {
        let link = &mut self.links[usize::from(is_to_sender)];
        if let Ok(passage) = link.pass(self.now, (len + FRAME_OVERHEAD) as u64) {
            self.sequence += 1;
            let datagram = (is_to_sender, self.buffer[..len].to_vec());
            self.on_the_way.insert((passage.arrival, self.sequence), datagram);
        }
    }

    fn step(&mut self, receiver: &mut Receiver) {
        while let Some(len) = receiver.poll_transmit(self.now, &mut self.buffer) {
            self.pass(true, len);
        }
        while let Some(len) = self.sender.poll_transmit(self.now, &mut self.buffer) {
            self.pass(false, len);
        }
        let arrival = self.on_the_way.first_key_value().map(|((at, _), _)| *at);
        let timers = [receiver.poll_timeout(), self.sender.poll_timeout()];
        let timer = timers.into_iter().flatten().min().map(|at| at.max(self.now + Duration::from_nanos(1)));
        self.now = [arrival, timer].into_iter().flatten().min().expect("a receiver has a deadline");
        receiver.handle_timeout(self.now);
        self.sender.handle_timeout(self.now);
        while let Some(entry) = self.on_the_way.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (is_to_sender, datagram) = entry.remove();
            if is_to_sender {
                self.sender.handle_datagram(self.now, &datagram);
            } else {
                receiver.handle_datagram(self.now, &datagram);
            }
        }
    }
}
