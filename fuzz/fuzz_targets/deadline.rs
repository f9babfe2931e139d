#![no_main]
//! Any sequence of datagrams, time and calls at a sender and a receiver of deadline mode: no panic; what they write reads
//! back; without damaged data the bitmap is exact; a block that is whole never changes; in the end nothing is left.

#[path = "../src/input.rs"]
mod input;

use std::collections::{BTreeMap, BTreeSet};

use input::Input;
use libfuzzer_sys::fuzz_target;
use uroce::time::{Duration, Instant};
use uroce_transfer::deadline::wire::{Body, Data, Datagram};
use uroce_transfer::deadline::{Receiver, Request, Run, Sender, Shape, Values};

const ID: u64 = 5;
const OBJECT: u64 = 1;
const VERSION: u64 = 2;

/// Datagrams that the network holds; more are lost.
const FLYING_MAX: usize = 64;

/// When everything that anybody waits for is over.
const EVERYTHING: Duration = Duration::from_secs(60);

struct World {
    now: Instant,
    bytes: Vec<u8>,
    shape: Shape,
    sender: Sender,
    receiver: Receiver,
    /// Whether it goes to the sender, and what.
    flying: Vec<(bool, Vec<u8>)>,
    /// Symbols that were delivered undamaged.
    delivered: BTreeMap<u32, BTreeSet<u32>>,
    /// Whether data was delivered that the sender did not send.
    is_forged: bool,
}

fn shape(input: &mut Input<'_>) -> Option<Shape> {
    let bytes = 1 + u64::from(input.u32() % 6000);
    let block_bytes = 1 + input.u32() % 1500;
    Shape::new(bytes, block_bytes, 64 * (1 + u16::from(input.byte() % 4))).ok()
}

fn world(input: &mut Input<'_>) -> Option<World> {
    let now = Instant::from_ns(1_000_000_000);
    let shape = shape(input)?;
    let bytes: Vec<u8> = (0..shape.bytes()).map(|at| (at * at >> 4) as u8).collect();
    let runs = (0..input.byte() % 4)
        .map(|_| Run { first: input.u32() % shape.blocks(), count: 1 + u32::from(input.byte()) % 9 })
        .collect::<Vec<_>>();
    let request = Request::new(OBJECT, VERSION, shape)
        .with_repair(u16::from(input.byte()) * 4)
        .by(now + Duration::from_micros(u64::from(input.u32() % 1_000_000)));
    let request = if runs.is_empty() { request } else { request.with_runs(runs) };
    let receiver = Receiver::new(ID, request, now).ok()?;
    let mut sender = Sender::new([input.byte(); 32]);
    sender.offer(OBJECT, Values::new(VERSION, shape.block_bytes(), bytes.clone()).ok()?);
    let (flying, delivered) = (Vec::new(), BTreeMap::new());
    Some(World { now, bytes, shape, sender, receiver, flying, delivered, is_forged: false })
}

impl World {
    fn transmit(&mut self) {
        let mut buffer = [0; 4096];
        while let Some(len) = self.receiver.poll_transmit(self.now, &mut buffer) {
            self.fly(true, &buffer[..len]);
        }
        for _ in 0..FLYING_MAX {
            let Some(len) = self.sender.poll_transmit(self.now, &mut buffer) else { break };
            self.fly(false, &buffer[..len]);
        }
    }

    fn fly(&mut self, is_to_sender: bool, bytes: &[u8]) {
        let read = Datagram::parse(bytes).expect("what is written can be read");
        let mut again = [0; 4096];
        let len = read.write(&mut again).expect("it has room");
        assert_eq!(&again[..len], bytes);
        if self.flying.len() < FLYING_MAX {
            self.flying.push((is_to_sender, bytes.to_vec()));
        }
    }

    fn deliver(&mut self, is_to_sender: bool, bytes: &[u8], is_own: bool) {
        if is_to_sender {
            return self.sender.handle_datagram(self.now, bytes);
        }
        self.receiver.handle_timeout(self.now);
        let is_open = self.receiver.end().is_none();
        let whole: Vec<bool> = (0..self.shape.blocks()).map(|block| self.receiver.block(block).is_some()).collect();
        self.receiver.handle_datagram(self.now, bytes);
        assert!(whole.iter().zip(0..).all(|(was, block)| !was || self.receiver.block(block).is_some()));
        let Ok(Datagram { request: ID, body: Body::Data(Data { block, symbol, .. }) }) = Datagram::parse(bytes) else {
            return;
        };
        self.is_forged |= !is_own;
        if is_own && is_open {
            self.delivered.entry(block).or_default().insert(symbol);
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..=3 if !self.flying.is_empty() => {
                let (is_to_sender, mut bytes) = self.flying.remove(input.below(self.flying.len()));
                let is_damaged = input.is_wild();
                if is_damaged {
                    let at = input.below(bytes.len().min(256));
                    bytes[at] ^= 1 + input.byte() % 255;
                } else if input.is_wild() {
                    self.flying.push((is_to_sender, bytes.clone()));
                }
                self.deliver(is_to_sender, &bytes, !is_damaged);
            }
            4 if !self.flying.is_empty() => drop(self.flying.remove(input.below(self.flying.len()))),
            5 => {
                self.now = self.now + Duration::from_micros(u64::from(input.u32() % 50_000));
                self.receiver.handle_timeout(self.now);
                self.sender.handle_timeout(self.now);
            }
            6 if input.is_wild() => {
                // An invented datagram of any kind, of this request or another.
                let len = usize::from(input.byte());
                let mut bytes = [&b"uDL1"[..], &[1 + input.byte() % 6, 0, 0, 0], &ID.to_be_bytes()].concat();
                bytes.extend(input.bytes(len));
                let is_to_sender = input.byte() % 2 == 0;
                self.deliver(is_to_sender, &bytes, false);
            }
            7 if input.is_wild() => match input.byte() % 4 {
                0 => self.receiver.cancel(),
                1 => self.sender.withdraw(OBJECT),
                _ => {
                    let deadline = self.now + Duration::from_micros(u64::from(input.u32() % 500_000));
                    let _ = self.receiver.set_deadline(deadline, self.now);
                }
            },
            _ => {}
        }
        self.transmit();
    }

    fn check(&self) {
        for block in 0..self.shape.blocks() {
            let found = self.receiver.block(block);
            assert_eq!(found.is_some(), self.receiver.whole().has(block));
            if self.is_forged {
                continue;
            }
            let expected = &self.bytes[self.shape.offset(block) as usize..][..self.shape.block_len(block)];
            let is_enough =
                self.delivered.get(&block).is_some_and(|symbols| symbols.len() as u32 >= self.shape.symbols(block));
            assert_eq!(found, is_enough.then_some(expected), "block {block}");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    input.wildness = input.byte();
    let Some(mut world) = world(&mut input) else { return };
    world.transmit();
    while !input.is_empty() {
        world.act(&mut input);
    }
    world.check();
    world.flying.clear();
    world.now = world.now + EVERYTHING;
    world.receiver.handle_timeout(world.now);
    world.sender.handle_timeout(world.now);
    world.transmit();
    assert!(world.receiver.end().is_some() && world.receiver.poll_timeout().is_none());
    assert_eq!(world.sender.requests(), 0);
    world.check();
});
