//! What each step of a message costs, for a program that counts instructions: two endpoints in memory, no kernel, no link, one
//! thread.
//!
//! `cargo xtask instructions` runs it under callgrind, which says what each of the steps below took, with all that it calls:
//! they are functions of their own for that. `instructions OPERATION BYTES` plays one kind of message and prints how often
//! each step was taken. What comes before the steps are counted is not in them: queues have grown and the peers know each
//! other.
#![allow(missing_docs)]

use std::hint::black_box;

use uroce::transport::{RecoveryMode, SendOperation, SendRequest, Status};
use uroce::wire::{PathMtu, Psn};
use uroce_laboratory::world::{Chances, Ferry, Pair, Side};

/// Messages outstanding, each in its own place.
const DEPTH: usize = 4;

/// Data packets before the counted ones, and counted ones, about.
const WARM_UP: usize = 2000;
const COUNTED: usize = 4000;

/// A packet of the path MTU and everything around it fits.
const FRAME_BYTES: usize = 2048;
const MTU: PathMtu = PathMtu::Mtu1024;

/// How often each step was taken.
#[derive(Default)]
struct Steps {
    messages: usize,
    /// Frames of the requester, and of the responder.
    frames: [usize; 2],
}

struct Play {
    pair: Pair,
    ferry: Ferry,
    operation: fn(&Pair, usize) -> SendOperation,
    bytes: usize,
    steps: Steps,
    posted: usize,
}

/// The requester's work request.
#[inline(never)]
fn post(pair: &mut Pair, request: SendRequest) {
    pair.post(Side::A, black_box(request));
}

/// Requests on their way: a packet each, as it leaves.
#[inline(never)]
fn request(ferry: &mut Ferry, pair: &mut Pair) -> usize {
    black_box(ferry.load(pair.now, pair.endpoint(Side::A)))
}

/// Requests as they come in.
#[inline(never)]
fn execute(ferry: &mut Ferry, pair: &mut Pair) {
    ferry.unload(pair.now, pair.endpoint(Side::B));
}

/// Acknowledges, and responses with data, as they leave.
#[inline(never)]
fn answer(ferry: &mut Ferry, pair: &mut Pair) -> usize {
    let number = ferry.load(pair.now, pair.endpoint(Side::B));
    black_box(number)
}

/// Answers as they come in.
#[inline(never)]
fn acknowledge(ferry: &mut Ferry, pair: &mut Pair) {
    let now = black_box(pair.now);
    ferry.unload(now, pair.endpoint(Side::A));
}

/// The requester's completion.
#[inline(never)]
fn complete(pair: &mut Pair) -> bool {
    let completion = pair.try_completion(Side::A);
    black_box(completion).is_some_and(|completion| {
        assert_eq!(completion.status, Status::Success);
        true
    })
}

impl Play {
    fn post(&mut self) {
        let offset = self.posted % DEPTH * self.bytes;
        let operation = (self.operation)(&self.pair, Pair::HALF + offset);
        if operation == SendOperation::Send {
            self.pair.post_receive(Side::B, 0, Pair::HALF + offset, self.bytes as u32);
        }
        let data = self.pair.data(Side::A, offset, self.bytes);
        post(&mut self.pair, SendRequest::new(0, operation, data));
        self.posted += 1;
    }

    /// Plays so many messages.
    fn run(&mut self, messages: usize) {
        let (end, mut done) = (self.posted + messages, 0);
        while done < messages {
            while self.posted < end && self.posted + messages - end - done < DEPTH {
                self.post();
            }
            let requests = request(&mut self.ferry, &mut self.pair);
            execute(&mut self.ferry, &mut self.pair);
            let answers = answer(&mut self.ferry, &mut self.pair);
            acknowledge(&mut self.ferry, &mut self.pair);
            assert!(requests + answers > 0, "nothing moves");
            self.steps.frames[0] += requests;
            self.steps.frames[1] += answers;
            while complete(&mut self.pair) {
                done += 1;
            }
            while self.pair.try_completion(Side::B).is_some() {}
        }
        self.steps.messages += messages;
    }
}

/// All that is counted.
#[inline(never)]
fn counted(play: &mut Play, messages: usize) {
    play.run(black_box(messages));
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [name, bytes] = &words[..] else {
        println!("instructions OPERATION BYTES: cargo xtask instructions counts what it does");
        return;
    };
    let operation: fn(&Pair, usize) -> SendOperation = match name.as_str() {
        "send" => |_, _| SendOperation::Send,
        "write" => |pair, offset| SendOperation::Write(pair.remote(Side::B, offset)),
        "read" => |pair, offset| SendOperation::Read(pair.remote(Side::B, offset)),
        other => panic!("{other} is none of send, write, read"),
    };
    let bytes: usize = bytes.parse().expect("the bytes of a message");
    let packets = bytes.div_ceil(MTU.bytes());
    let pair = Pair::new(RecoveryMode::default(), 1, MTU, Psn::new(0), Chances::NONE);
    let mut play = Play { pair, ferry: Ferry::new(FRAME_BYTES), operation, bytes, steps: Steps::default(), posted: 0 };
    play.run(WARM_UP.div_ceil(packets));
    play.steps = Steps::default();
    counted(&mut play, COUNTED.div_ceil(packets));
    let Steps { messages, frames: [requests, answers] } = play.steps;
    println!("{{\"messages\":{messages},\"requests\":{requests},\"answers\":{answers}}}");
}
