//! What a packet costs in the transport alone: two endpoints in memory, no kernel, no link, one thread.
//!
//! Steady between runs, unlike anything over a network. One JSON object an operation, path MTU and recovery: bytes, packets a second,
//! and nanoseconds a data packet on the requester's and on the responder's side, acknowledges included. For instructions
//! rather than time: `valgrind --tool=callgrind` on the program that `cargo bench --bench endpoint --no-run` names, with
//! the number of messages (10, say) as its argument, and `selective` or `go-back-n` for one recovery only.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use uroce::transport::{RecoveryMode, SendOperation, SendRequest, Status};
use uroce::wire::{PathMtu, Psn};
use uroce_laboratory::world::{Chances, Ferry, Pair, Side};

const MESSAGE_BYTES: usize = 64 << 10;

/// Messages outstanding, each in its own place.
const DEPTH: usize = 4;

/// Messages without an argument: a second or so in all.
const MESSAGES: usize = 4000;

/// A packet of path MTU 4096 and everything around it fits.
const FRAME_BYTES: usize = 8192;

struct Bench {
    pair: Pair,
    ferry: Ferry,
    /// Time spent in each side.
    spent: [Duration; 2],
    /// Data packets.
    packets: u64,
}

impl Bench {
    /// Has a batch that `from` has to send taken by the other side. Returns the number of packets.
    fn carry(&mut self, from: Side) -> usize {
        let now = self.pair.now;
        let start = Instant::now();
        let number = self.ferry.load(now, self.pair.endpoint(from));
        let sent = Instant::now();
        self.ferry.unload(now, self.pair.endpoint(from.other()));
        self.spent[from as usize] += sent - start;
        self.spent[from.other() as usize] += sent.elapsed();
        self.packets += self.ferry.lengths().filter(|len| *len > MESSAGE_BYTES / 256).count() as u64;
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
    let pair = Pair::new(recovery, 1, mtu, Psn::new(0), Chances::NONE);
    let mut bench = Bench { pair, ferry: Ferry::new(FRAME_BYTES), spent: [Duration::ZERO; 2], packets: 0 };
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
