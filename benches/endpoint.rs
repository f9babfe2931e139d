//! What a packet costs in the transport alone: two endpoints in memory, no kernel, no link, one thread.
//!
//! Steady between runs, unlike anything over a network. One JSON object an operation, path MTU and recovery: bytes, packets a second,
//! and nanoseconds a data packet on the requester's and on the responder's side, acknowledges included. For instructions
//! rather than time: `valgrind --tool=callgrind` on the program that `cargo bench --bench endpoint --no-run` names, with
//! the number of messages (10, say) as its argument, and `selective` or `go-back-n` for one recovery only.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(missing_docs)]

#[path = "../tests/common/pair.rs"]
#[allow(dead_code)]
mod pair;

use std::time::{Duration, Instant};

use pair::{Faults, Pair, Side};
use uroce::frame::FrameBytes;
use uroce::transport::{RecoveryMode, SendOperation, SendRequest, Status};
use uroce::wire::{PathMtu, Psn};

const MESSAGE_BYTES: usize = 64 << 10;

/// Messages outstanding, each in its own place.
const DEPTH: usize = 4;

/// Messages without an argument: a second or so in all.
const MESSAGES: usize = 4000;

/// Frames on their way at the same time, as the engine sends them.
const BATCH: usize = 64;

const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];

struct Bench {
    pair: Pair,
    frames: Vec<Vec<u8>>,
    /// Time spent in each side.
    spent: [Duration; 2],
    /// Data packets.
    packets: u64,
}

impl Bench {
    /// Has everything that `from` has to send taken by the other side. Returns the number of packets.
    fn carry(&mut self, from: Side) -> usize {
        let now = self.pair.now;
        let mut lengths = [0; BATCH];
        let mut number = 0;
        let start = Instant::now();
        let endpoint = &mut self.pair.node(from).endpoint;
        while number < BATCH
            && let Some(transmit) = endpoint.poll_transmit(now, &mut self.frames[number][ETHERNET.len()..])
        {
            lengths[number] = ETHERNET.len() + transmit.len;
            number += 1;
        }
        let sent = Instant::now();
        let endpoint = &mut self.pair.node(from.other()).endpoint;
        for (frame, len) in self.frames.iter().zip(&lengths[..number]) {
            endpoint.handle_frame(now, FrameBytes::from(&frame[..*len]));
        }
        self.spent[from as usize] += sent - start;
        self.spent[from.other() as usize] += sent.elapsed();
        self.packets += lengths[..number].iter().filter(|len| **len > MESSAGE_BYTES / 256).count() as u64;
        number
    }
}

fn run(
    name: &str,
    (recovery, mode): (RecoveryMode, &str),
    mtu: PathMtu,
    messages: usize,
    operation: impl Fn(&Pair, usize) -> SendOperation,
) {
    let pair = Pair::new(recovery, 1, mtu, Psn::new(0), Faults::NONE);
    let mut frame = ETHERNET.to_vec();
    frame.resize(8192, 0);
    let mut bench = Bench { pair, frames: vec![frame; BATCH], spent: [Duration::ZERO; 2], packets: 0 };
    let (mut posted, mut done) = (0, 0);
    while done < messages {
        while posted < messages && posted - done < DEPTH {
            let offset = posted % DEPTH * MESSAGE_BYTES;
            let request = operation(&bench.pair, Pair::HALF + offset);
            if request == SendOperation::Send {
                bench.pair.post_receive(Side::B, 0, Pair::HALF + offset, MESSAGE_BYTES as u32);
            }
            let data = bench.pair.data(Side::A, offset, MESSAGE_BYTES);
            bench.pair.post(Side::A, SendRequest::new(0, request, data));
            posted += 1;
        }
        let moved = bench.carry(Side::A) + bench.carry(Side::B);
        assert!(moved > 0, "nothing moves");
        while let Some(completion) = bench.pair.try_completion(Side::A) {
            assert_eq!(completion.status, Status::Success);
            done += 1;
        }
        while bench.pair.try_completion(Side::B).is_some() {}
    }
    let packets = bench.packets as f64;
    let [requester, responder] = bench.spent.map(|time| time.as_nanos() as f64 / packets);
    println!(
        "{{\"name\":\"endpoint-{name}-64k-mtu{mtu}-{mode}\",\"bytes\":{},\"packets\":{packets},\"packets_per_s\":{:.0},\"ns_per_packet\":{:.1},\"requester_ns\":{requester:.1},\"responder_ns\":{responder:.1}}}",
        done * MESSAGE_BYTES,
        1e9 / (requester + responder),
        requester + responder,
        mtu = mtu.bytes(),
    );
}

fn main() {
    let messages = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(MESSAGES);
    let modes = [(RecoveryMode::default(), "selective"), (RecoveryMode::GoBackN, "go-back-n")];
    let only = std::env::args().find(|argument| modes.iter().any(|(_, mode)| mode == argument));
    for mode in modes.into_iter().filter(|(_, mode)| only.as_ref().is_none_or(|only| only == mode)) {
        for mtu in [PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096] {
            run("write", mode, mtu, messages, |pair, offset| SendOperation::Write(pair.remote(Side::B, offset)));
            run("send", mode, mtu, messages, |_, _| SendOperation::Send);
            run("read", mode, mtu, messages, |pair, offset| SendOperation::Read(pair.remote(Side::B, offset)));
        }
    }
}
