//! What each step of a message costs, for a program that counts instructions.
//!
//! `cargo xtask instructions` runs it under callgrind, which says what each step of a [`Play`] took, with all that it calls.
//! `instructions OPERATION BYTES` plays one kind of message and prints how often each step was taken. What comes before
//! the steps are counted is not in them: queues have grown and the peers know each other.
#![allow(missing_docs)]

use std::hint::black_box;

use uroce::transport::RecoveryMode;
use uroce::wire::PathMtu;

use play::{Play, operation};

mod play;

/// Data packets before the counted ones, and counted ones, about.
const WARM_UP: usize = 2000;
const COUNTED: usize = 4000;

const MTU: PathMtu = PathMtu::Mtu1024;

/// All that is counted.
#[inline(never)]
fn counted(play: &mut Play, messages: usize) {
    play.run(black_box(messages), |_| {});
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [name, bytes] = &words[..] else {
        println!("instructions OPERATION BYTES: cargo xtask instructions counts what it does");
        return;
    };
    let bytes: usize = bytes.parse().expect("the bytes of a message");
    let packets = bytes.div_ceil(MTU.bytes());
    let mut play = Play::new(RecoveryMode::default(), MTU, operation(name), bytes);
    play.run(WARM_UP.div_ceil(packets), |_| {});
    play.frames = [0; 2];
    let messages = COUNTED.div_ceil(packets);
    counted(&mut play, messages);
    let [requests, answers] = play.frames;
    println!("{{\"messages\":{messages},\"requests\":{requests},\"answers\":{answers}}}");
}
