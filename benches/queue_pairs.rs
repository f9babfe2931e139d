//! What the number of queue pairs costs: a message of one packet and its acknowledge, with 1, 100 and 10,000 queue pairs
//! in each of two endpoints in memory; no kernel, no link, one thread.
//!
//! `one`: all messages on one queue pair, while the others are idle. `round-robin`: each on the next one. One message is in
//! flight at a time, so that the work is the same everywhere and only the number differs. One JSON object each: the median
//! of many rounds in nanoseconds a packet, and the fastest. For instructions, which caches do not change:
//! `valgrind --tool=callgrind --toggle-collect='*::measured'` on the program that
//! `cargo bench --bench queue_pairs --no-run` names, with the number of queue pairs, `one` or `round-robin`, and `selective` or
//! `go-back-n`.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(missing_docs)]

use std::time::Instant;

use uroce::transport::{RecoveryMode, SendOperation};
use uroce_laboratory::world::Many;

const MESSAGE_BYTES: u32 = 64;

/// Messages a round: long against the clock, short against the other programs of the machine.
const ROUND: usize = 1000;
const ROUNDS: usize = 200;

/// Runs a round; `next` is the first message's queue pair, and `step` the way to the next one's.
#[inline(never)]
fn measured(many: &mut Many, count: usize, next: &mut usize, step: usize) {
    let operation = SendOperation::Write(many.remote());
    for _ in 0..ROUND {
        many.post(*next, operation, MESSAGE_BYTES);
        many.complete(1);
        *next = (*next + step) % count;
    }
}

fn run(count: usize, mode: &str, recovery: &str, rounds: usize) {
    let step = usize::from(mode == "round-robin");
    let mut many =
        Many::new(count, if recovery == "go-back-n" { RecoveryMode::GoBackN } else { RecoveryMode::default() });
    let mut next = 0;
    // Every queue pair has been used before.
    let operation = SendOperation::Write(many.remote());
    for index in 0..count {
        many.post(index, operation, MESSAGE_BYTES);
        many.complete(1);
    }
    let mut ns: Vec<f64> = (0..rounds)
        .map(|_| {
            let (start, before) = (Instant::now(), many.packets);
            measured(&mut many, count, &mut next, step);
            start.elapsed().as_nanos() as f64 / (many.packets - before) as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!(
        "{{\"name\":\"queue-pairs-{count}-{mode}-{recovery}\",\"packets\":{},\"ns_per_packet\":{:.1},\"fastest_ns_per_packet\":{:.1}}}",
        many.packets,
        ns[ns.len() / 2],
        ns[0],
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    match &arguments[..] {
        [] => {
            for recovery in ["selective", "go-back-n"] {
                for count in [1, 100, 10_000] {
                    ["one", "round-robin"].iter().for_each(|mode| run(count, mode, recovery, ROUNDS));
                }
            }
        }
        [count, mode, recovery] => run(count.parse().expect("a number of queue pairs"), mode, recovery, 10),
        _ => panic!("queue_pairs [COUNT one|round-robin selective|go-back-n]"),
    }
}
