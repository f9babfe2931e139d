#![no_main]
//! Any sequence of messages, notifications, time and calls at a sender and a receiver of a stream: no panic; what they write
//! reads back; chunks follow each other, are ready and never more than may be; without damaged and invented ones, what is whole
//! is what was delivered; in the end both have ended.

#[path = "../src/input.rs"]
mod input;

use std::collections::VecDeque;

use input::Input;
use libfuzzer_sys::fuzz_target;
use uroce::time::{Duration, Instant};
use uroce_transfer::stream::wire::Message;
use uroce_transfer::stream::{Parts, Place, Post, Receiver, Sender, Stream};

/// When everything that anybody waits for is over.
const EVERYTHING: Duration = Duration::from_secs(60);

struct World {
    now: Instant,
    stream: Stream,
    held: u64,
    outstanding: usize,
    sender: Sender,
    receiver: Receiver,
    to_sender: VecDeque<Vec<u8>>,
    to_receiver: VecDeque<Vec<u8>>,
    /// Chunks that were posted: not delivered yet, and delivered but not completed.
    posted: VecDeque<Post>,
    delivered: usize,
    ready: usize,
    /// What was posted and delivered, in bytes.
    sent: u64,
    got: u64,
    /// Whether something came that nobody sent.
    is_forged: bool,
}

fn world(input: &mut Input<'_>) -> Option<World> {
    let now = Instant::from_ns(1_000_000_000);
    let lengths: Vec<u64> = (0..1 + input.byte() % 9).map(|_| u64::from(input.u32() % 5000)).collect();
    let stream = Stream { name: 1, version: 2, parts: Parts::new(&lengths).ok()? };
    let other = match input.is_wild() {
        true => Stream { version: 3, ..stream.clone() },
        false => stream.clone(),
    };
    let held = u64::from(input.u32()) % (stream.parts.bytes() + 1);
    let place = Place { address: input.u64() >> 1, rkey: input.u32(), outstanding: 1 + u32::from(input.byte() % 8) };
    let send_queue = input.byte() as usize % 8;
    let receiver = Receiver::new(other, place, held, now).ok()?;
    let sender = Sender::new(stream.clone(), send_queue, now);
    Some(World {
        now,
        stream,
        held,
        outstanding: (place.outstanding as usize).min(send_queue.max(1)),
        sender,
        receiver,
        to_sender: VecDeque::new(),
        to_receiver: VecDeque::new(),
        posted: VecDeque::new(),
        delivered: 0,
        ready: 0,
        sent: 0,
        got: 0,
        is_forged: false,
    })
}

fn checked(bytes: [u8; 64]) -> Vec<u8> {
    assert_eq!(Message::parse(&bytes).expect("what is written can be read").to_bytes(), bytes);
    bytes.to_vec()
}

impl World {
    fn transmit(&mut self) {
        self.to_sender.extend(self.receiver.poll_message().map(checked));
        self.to_receiver.extend(self.sender.poll_message().map(checked));
        while let Some(post) = self.sender.poll_post(self.now) {
            if !self.is_forged {
                assert_eq!(post.offset, self.held + self.sent);
                assert!(self.posted.len() < self.outstanding);
            }
            self.sent += u64::from(post.bytes);
            assert!(post.bytes > 0 && post.offset + u64::from(post.bytes) <= self.stream.parts.end(self.ready));
            self.posted.push_back(post);
        }
    }

    fn message(&mut self, is_to_sender: bool, bytes: &[u8]) {
        match is_to_sender {
            true => self.sender.handle_message(self.now, bytes),
            false => self.receiver.handle_message(self.now, bytes),
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => {
                let is_to_sender = input.byte() % 2 == 0;
                let queue = if is_to_sender { &mut self.to_sender } else { &mut self.to_receiver };
                let Some(mut bytes) = queue.pop_front() else { return };
                if input.is_wild() {
                    self.is_forged = true;
                    bytes[input.below(64)] ^= 1 + input.byte() % 255;
                }
                self.message(is_to_sender, &bytes);
            }
            2 if self.delivered < self.posted.len() => {
                let Post { mut immediate, bytes, .. } = self.posted[self.delivered];
                self.delivered += 1;
                self.got += u64::from(bytes);
                if input.is_wild() {
                    self.is_forged = true;
                    immediate ^= u32::from(input.byte());
                }
                self.receiver.handle_notification(self.now, immediate, bytes);
            }
            3 if self.delivered > 0 => {
                self.delivered -= 1;
                self.posted.pop_front();
                self.sender.handle_completion(self.now);
            }
            4 => {
                self.ready = self.ready.max(input.below(16));
                self.sender.handle_ready(self.ready);
            }
            5 => drop(self.sender.begin(u64::from(input.u32()) >> (input.byte() % 32), self.now)),
            6 => {
                self.now = self.now + Duration::from_micros(u64::from(input.u32() % 3_000_000));
                self.sender.handle_timeout(self.now);
                self.receiver.handle_timeout(self.now);
            }
            7 if input.is_wild() => match input.byte() % 4 {
                0 => self.sender.handle_broken(),
                1 => self.receiver.handle_broken(),
                2 => {
                    self.is_forged = true;
                    let (immediate, bytes) = (input.u32() % 8, input.u32() % 5000);
                    self.receiver.handle_notification(self.now, immediate, bytes);
                }
                _ => {
                    self.is_forged = true;
                    let len = input.below(80);
                    let mut bytes = [&b"uST1"[..], &[1 + input.byte() % 3, 0, 0, 0]].concat();
                    bytes.extend(input.bytes(len));
                    let is_to_sender = input.byte() % 2 == 0;
                    self.message(is_to_sender, &bytes);
                }
            },
            _ => {}
        }
        self.transmit();
        self.check();
    }

    fn check(&self) {
        let (at_receiver, at_sender) = (self.receiver.whole_bytes(), self.sender.whole_bytes());
        let bytes = self.stream.parts.bytes();
        assert!((self.held..=bytes).contains(&at_receiver) && at_sender <= bytes);
        if !self.is_forged {
            assert!(at_receiver <= self.held + self.got);
            let is_told = self.receiver.cut().is_some() && self.receiver.end().is_none();
            assert!(!is_told || at_receiver == self.held + self.got);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(message.to_bytes(), bytes);
    }
    let mut input = Input::new(bytes);
    input.wildness = input.byte();
    let Some(mut world) = world(&mut input) else { return };
    world.transmit();
    while !input.is_empty() {
        world.act(&mut input);
    }
    world.now = world.now + EVERYTHING;
    world.receiver.handle_timeout(world.now);
    world.sender.handle_timeout(world.now);
    assert!(world.receiver.end().is_some() && world.receiver.poll_timeout().is_none());
    // A sender that is invited, or has nothing on its way, waits for its own program.
    assert!(world.sender.end().is_some() || world.sender.poll_timeout().is_none());
    world.check();
});
