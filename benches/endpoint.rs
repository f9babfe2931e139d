//! What a packet costs in the transport alone: two endpoints in memory, no kernel, no link, one thread.
//!
//! Steady between runs, unlike anything over a network. One JSON object an operation, message length, path MTU and
//! recovery: bytes, messages and packets a second, and nanoseconds a data packet on the requester's and on the
//! responder's side, acknowledges included. Four messages are outstanding; of short WRITEs and SENDs also 128 (`-t128` in the name), as
//! many as perftest keeps. For instructions rather than time: `cargo xtask instructions`.
//!
//! `endpoint [MESSAGES] [selective|go-back-n]`.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use uroce::transport::RecoveryMode;
use uroce::wire::PathMtu;

use play::{DEEP, DEPTH, Play, Step, operation};

mod play;

/// Message lengths, and messages without an argument: a second or so in all.
const SHORT_BYTES: usize = 64;
const SHORT_MESSAGES: usize = 100_000;
const LONG_BYTES: usize = 64 << 10;
const LONG_MESSAGES: usize = 4000;

/// Messages of one kind: their bytes, how many are played, and how many of them are outstanding.
struct Load {
    bytes: usize,
    messages: usize,
    depth: usize,
}

fn run(name: &str, (recovery, mode): (RecoveryMode, &str), mtu: PathMtu, load: Load) {
    let Load { bytes, messages, depth } = load;
    let mut play = Play::new(recovery, mtu, operation(name), bytes, depth);
    let [mut requester, mut responder] = [Duration::ZERO; 2];
    let mut before = Instant::now();
    play.run(messages, |step| {
        let now = Instant::now();
        match step {
            Step::Post | Step::Request | Step::Acknowledge | Step::Complete => requester += now - before,
            Step::Execute | Step::Answer => responder += now - before,
        }
        before = now;
    });
    let packets = messages * bytes.div_ceil(mtu.bytes());
    let [requester, responder] = [requester, responder].map(|time| time.as_nanos() as f64 / packets as f64);
    let both = requester + responder;
    println!(
        "{{\"name\":\"endpoint-{name}-{length}-mtu{mtu}{deep}-{mode}\",\"outstanding\":{depth},\"bytes\":{total},\"packets\":{packets},\"messages_per_s\":{messages_per_s:.0},\"packets_per_s\":{packets_per_s:.0},\"ns_per_packet\":{both:.1},\"requester_ns\":{requester:.1},\"responder_ns\":{responder:.1}}}",
        length = if bytes == LONG_BYTES { "64k".to_owned() } else { bytes.to_string() },
        mtu = mtu.bytes(),
        deep = if depth == DEPTH { String::new() } else { format!("-t{depth}") },
        total = messages * bytes,
        messages_per_s = 1e9 / (both * (packets / messages) as f64),
        packets_per_s = 1e9 / both,
    );
}

fn main() {
    let messages = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let modes = [(RecoveryMode::default(), "selective"), (RecoveryMode::GoBackN, "go-back-n")];
    let only = std::env::args().find(|argument| modes.iter().any(|(_, mode)| mode == argument));
    for mode in modes.into_iter().filter(|(_, mode)| only.as_ref().is_none_or(|only| only == mode)) {
        for name in ["write", "send", "read"] {
            // READs are limited by how many may be outstanding: eight.
            let depths = if name == "read" { &[DEPTH][..] } else { &[DEPTH, DEEP] };
            for &depth in depths {
                let load = Load { bytes: SHORT_BYTES, messages: messages.unwrap_or(SHORT_MESSAGES), depth };
                run(name, mode, PathMtu::Mtu1024, load);
            }
            for mtu in [PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096] {
                let load = Load { bytes: LONG_BYTES, messages: messages.unwrap_or(LONG_MESSAGES), depth: DEPTH };
                run(name, mode, mtu, load);
            }
        }
    }
}
