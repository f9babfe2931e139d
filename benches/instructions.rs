//! What each step of a message costs, for a program that counts instructions.
//!
//! `cargo xtask instructions` runs it under callgrind, which says what each step of a [`Play`] took, with all that it calls.
//! `instructions OPERATION BYTES` plays one kind of message and prints how often each step was taken. What comes before
//! the steps are counted is not in them: queues have grown and the peers know each other. `deep-write` and its like keep 128
//! messages outstanding rather than four.
//!
//! `instructions exchange BYTES` plays WRITEs by both sides in turn, and prints the number of packets.
//!
//! `instructions queue-pairs|window|paths NUMBER` plays WRITEs over so many queue pairs in turn, with a window of so many
//! packets that is filled and emptied, or over so many paths, and prints the number of packets.
#![allow(missing_docs)]

use std::hint::black_box;

use uroce::congestion::CongestionControl;
use uroce::path::PathPolicy;
use uroce::transport::{RecoveryMode, RecoverySettings, SendOperation, SendRequest};
use uroce::wire::{PathMtu, Psn};
use uroce_laboratory::world::{Chances, Ferry, Many, Pair, Side};

use play::{DEEP, DEPTH, Play, operation};

mod play;

/// Data packets before the counted ones, and counted ones, about.
const WARM_UP: usize = 2000;
const COUNTED: usize = 4000;

const MTU: PathMtu = PathMtu::Mtu1024;

/// Holds a packet with all headers.
const FRAME_BYTES: usize = 2048;

/// Messages of one packet; and long ones, of which few fill a window.
const SHORT_BYTES: usize = 64;
const LONG_PACKETS: usize = 64;

/// Messages over each queue pair before the counted ones: the peers know each other after them.
const ACQUAINTANCE: usize = 4;

/// All that is counted.
#[inline(never)]
fn counted(work: impl FnOnce()) {
    black_box(work)();
}

fn steps(name: &str, bytes: usize, depth: usize) {
    let packets = bytes.div_ceil(MTU.bytes());
    let mut play = Play::new(RecoveryMode::default(), MTU, operation(name), bytes, depth);
    play.run(WARM_UP.div_ceil(packets), |_| {});
    play.frames = [0; 2];
    let messages = COUNTED.div_ceil(packets);
    counted(|| play.run(black_box(messages), |_| {}));
    let [requests, answers] = play.frames;
    println!("{{\"messages\":{messages},\"requests\":{requests},\"answers\":{answers}}}");
}

/// WRITEs of one packet, one after the other, over each queue pair in turn.
fn in_turn(many: &mut Many, queue_pairs: usize, messages: usize) {
    let operation = SendOperation::Write(many.remote());
    for message in 0..messages {
        many.post(message % queue_pairs, operation, SHORT_BYTES as u32);
        many.complete(1);
    }
}

/// Fills a window of so many packets, and empties it.
fn fill(many: &mut Many, window: usize) {
    let operation = SendOperation::Write(many.remote());
    let messages = window / LONG_PACKETS;
    (0..messages).for_each(|_| many.post(0, operation, (LONG_PACKETS * MTU.bytes()) as u32));
    many.send_all();
    many.complete(messages);
}

/// WRITEs of so many bytes in turn by both sides: each goes with the acknowledge of the one before.
fn exchange(bytes: usize) {
    let mut pair = Pair::new(RecoveryMode::default(), 1, MTU, Psn::new(0), Chances::NONE);
    let mut ferry = Ferry::new(FRAME_BYTES);
    let mut play = |messages: usize| {
        let mut frames = 0;
        for side in [Side::A, Side::B].into_iter().cycle().take(messages) {
            let write = SendOperation::Write(pair.remote(side.other(), Pair::HALF));
            let data = pair.data(side, 0, bytes);
            pair.post(side, SendRequest::new(0, write, data));
            let now = pair.now;
            frames += ferry.load(now, pair.endpoint(side));
            ferry.unload(now, pair.endpoint(side.other()));
            pair.endpoint(side.other()).handle_timeout(now);
            while pair.try_completion(side.other()).is_some() {}
        }
        frames
    };
    play(WARM_UP);
    let mut frames = 0;
    counted(|| frames = play(black_box(COUNTED)));
    println!("{{\"packets\":{frames}}}");
}

fn scale(what: &str, number: usize) {
    let settings = RecoverySettings::default();
    let (queue_pairs, settings) = match what {
        "queue-pairs" => (number, settings),
        "window" => (1, RecoverySettings { window: number as u32, congestion: CongestionControl::Fixed, ..settings }),
        "paths" => (1, settings.with_paths(number as u16, PathPolicy::default())),
        other => panic!("{other} is none of queue-pairs, window, paths"),
    };
    let mut many = Many::of(queue_pairs, settings);
    in_turn(&mut many, queue_pairs, WARM_UP.max(ACQUAINTANCE * queue_pairs));
    let before = many.packets;
    counted(|| match what {
        "window" => (0..COUNTED.div_ceil(number)).for_each(|_| fill(&mut many, number)),
        _ => in_turn(&mut many, queue_pairs, COUNTED),
    });
    println!("{{\"packets\":{}}}", many.packets - before);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [what, number] = &words[..] else {
        println!("instructions WHAT NUMBER: cargo xtask instructions counts what it does");
        return;
    };
    let number: usize = number.parse().expect("the bytes of a message, or how many there are");
    match what.as_str() {
        "queue-pairs" | "window" | "paths" => scale(what, number),
        "exchange" => exchange(number),
        kind => match kind.strip_prefix("deep-") {
            Some(operation) => steps(operation, number, DEEP),
            None => steps(kind, number, DEPTH),
        },
    }
}
