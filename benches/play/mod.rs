//! Messages between two endpoints in memory, which the benches count and time: no kernel, no link, one thread.
//!
//! Each step of a message is a function of its own, which callgrind knows by its name.

use std::hint::black_box;

use uroce::transport::{RecoveryMode, SendOperation, SendRequest, Status};
use uroce::wire::{PathMtu, Psn};
use uroce_laboratory::world::{Chances, Ferry, Pair, Side};

/// Messages outstanding, where nothing else is said: few, as programs have that wait for what they move.
pub const DEPTH: usize = 4;

/// Messages outstanding where rates of short ones are measured: what perftest keeps by default (`--tx-depth`).
pub const DEEP: usize = 128;

/// A packet of path MTU 4096 and everything around it fits.
const FRAME_BYTES: usize = 8192;

/// A step of a message, or of a packet of it. The requester posts, sends requests, takes answers and completes; the responder
/// executes and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Post,
    Request,
    Execute,
    Answer,
    Acknowledge,
    Complete,
}

/// Plays messages of one kind.
pub struct Play {
    pair: Pair,
    ferry: Ferry,
    operation: fn(&Pair, usize) -> SendOperation,
    bytes: usize,
    /// Messages outstanding, each in its own place.
    depth: usize,
    posted: usize,
    /// Frames of the requester, and of the responder, so far.
    pub frames: [usize; 2],
}

/// The operation of that name.
pub fn operation(name: &str) -> fn(&Pair, usize) -> SendOperation {
    match name {
        "send" => |_, _| SendOperation::Send,
        "write" => |pair, offset| SendOperation::Write(pair.remote(Side::B, offset)),
        "read" => |pair, offset| SendOperation::Read(pair.remote(Side::B, offset)),
        other => panic!("{other} is none of send, write, read"),
    }
}

/// The requester's work request.
#[inline(never)]
fn post(pair: &mut Pair, request: SendRequest) {
    pair.post(Side::A, request);
}

/// Requests on their way: a packet each, as it leaves.
#[inline(never)]
fn request(ferry: &mut Ferry, pair: &mut Pair) -> usize {
    black_box(ferry.load(pair.now, pair.endpoint(Side::A)))
}

/// Requests as they come in.
#[inline(never)]
fn execute(ferry: &mut Ferry, pair: &mut Pair) {
    unload(ferry, pair, Side::B);
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
    unload(ferry, pair, black_box(Side::A));
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

/// Hands over a batch, and runs timers once, as an engine does.
fn unload(ferry: &mut Ferry, pair: &mut Pair, to: Side) {
    let now = pair.now;
    ferry.unload(now, pair.endpoint(to));
    pair.endpoint(to).handle_timeout(now);
}

impl Play {
    pub fn new(
        recovery: RecoveryMode,
        mtu: PathMtu,
        operation: fn(&Pair, usize) -> SendOperation,
        bytes: usize,
        depth: usize,
    ) -> Play {
        let pair = Pair::new(recovery, 1, mtu, Psn::new(0), Chances::NONE);
        Play { pair, ferry: Ferry::new(FRAME_BYTES), operation, bytes, depth, posted: 0, frames: [0; 2] }
    }

    fn post(&mut self) {
        let offset = self.posted % self.depth * self.bytes;
        let operation = (self.operation)(&self.pair, Pair::HALF + offset);
        if operation == SendOperation::Send {
            self.pair.post_receive(Side::B, 0, Pair::HALF + offset, self.bytes as u32);
        }
        let data = self.pair.data(Side::A, offset, self.bytes);
        post(&mut self.pair, SendRequest::new(0, operation, data));
        self.posted += 1;
    }

    /// Plays so many messages; `after` hears of each step that was taken, for all packets at once.
    pub fn run(&mut self, messages: usize, mut after: impl FnMut(Step)) {
        let (end, mut done) = (self.posted + messages, 0);
        while done < messages {
            while self.posted < end && self.posted + messages - end - done < self.depth {
                self.post();
            }
            after(Step::Post);
            let requests = request(&mut self.ferry, &mut self.pair);
            after(Step::Request);
            execute(&mut self.ferry, &mut self.pair);
            after(Step::Execute);
            let answers = answer(&mut self.ferry, &mut self.pair);
            after(Step::Answer);
            acknowledge(&mut self.ferry, &mut self.pair);
            after(Step::Acknowledge);
            assert!(requests + answers > 0, "nothing moves");
            self.frames = [self.frames[0] + requests, self.frames[1] + answers];
            while complete(&mut self.pair) {
                done += 1;
            }
            while self.pair.try_completion(Side::B).is_some() {}
            after(Step::Complete);
        }
    }
}
