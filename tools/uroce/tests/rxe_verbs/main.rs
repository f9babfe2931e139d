//! Our verbs at one end of a reliable connection, the Linux kernel's (Soft-RoCE, in a machine) at the other: every
//! operation in both directions, every byte checked at both ends, over a network that works and over one that does not,
//! and every failure with the status that the IBTA gives it.
//!
//! Needs root, and what `cargo xtask setup` installs. `cargo test -p uroce-cli --test rxe_verbs -- --nocapture` says what
//! is shown.
#![allow(clippy::disallowed_methods, reason = "a conversation with a real machine is on the wall clock")]

mod bench;
mod failures;
mod pipeline;
mod random;
mod transfers;

use std::sync::{Mutex, PoisonError};

use bench::{Bench, Setup, Side};
use random::Random;
use transfers::Kind;
use uroce::verbs::PathMtu;

/// A machine takes a processor, and our side another one.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Where the random sizes and layouts of a run come from; said when it fails.
const SEED: u64 = 0x5eed;

#[test]
fn contents_at_path_mtu_1024() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::start(1500);
    assert_eq!(bench.context().active_mtu(), PathMtu::Mtu1024);
    assert_eq!(bench.agent.active_mtu().unwrap(), 1024);
    println!("seed {SEED:#x}");
    every_operation(&mut bench, PathMtu::Mtu1024, 1, &Kind::ALL);
    for gid in [0, 2] {
        every_operation(&mut bench, PathMtu::Mtu1024, gid, &[Kind::SendImmediate, Kind::Write, Kind::Read]);
    }
    for mtu in [PathMtu::Mtu256, PathMtu::Mtu512] {
        every_operation(&mut bench, mtu, 1, &[Kind::Send, Kind::WriteImmediate, Kind::Read]);
    }
    transfers::windows(&mut bench, PathMtu::Mtu1024);
    transfers::fences(&mut bench, PathMtu::Mtu1024);
    transfers::solicited_and_inline(&mut bench, PathMtu::Mtu1024);
    pipeline::both_ways(&mut bench, &Setup::new(PathMtu::Mtu1024), SEED, 100);
    failures::all(&mut bench, PathMtu::Mtu1024);
}

#[test]
fn contents_at_path_mtu_4096() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::start(4500);
    assert_eq!(bench.context().active_mtu(), PathMtu::Mtu4096);
    assert_eq!(bench.agent.active_mtu().unwrap(), 4096);
    println!("seed {SEED:#x}");
    every_operation(&mut bench, PathMtu::Mtu4096, 1, &Kind::ALL);
    every_operation(&mut bench, PathMtu::Mtu4096, 2, &[Kind::Send, Kind::WriteImmediate, Kind::Read]);
    every_operation(&mut bench, PathMtu::Mtu2048, 0, &[Kind::SendImmediate, Kind::Write, Kind::Read]);
    pipeline::both_ways(&mut bench, &Setup::new(PathMtu::Mtu4096), SEED ^ 1, 100);
}

#[test]
fn contents_over_loss() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::start(1500);
    for permille in [10, 50] {
        for from in ["port0", "tap0"] {
            let rule = format!("iifname {from} udp dport 4791 numgen random mod 1000 < {permille} counter drop");
            bench.lab.rule(&rule).unwrap();
        }
        for round in 0..20 {
            pipeline::both_ways(&mut bench, &Setup::new(PathMtu::Mtu1024), SEED + round, 100);
        }
        println!("{}", bench.lab.rules().unwrap());
        bench.lab.remove_rules().unwrap();
    }
}

/// Operations of all lengths around the packet's, from and into one and several pieces, in both directions; and atomics.
fn every_operation(bench: &mut Bench, mtu: PathMtu, gid: usize, kinds: &[Kind]) {
    let mut random = Random(SEED ^ mtu.bytes() as u64 ^ (gid as u64) << 32);
    let mut count = 0;
    let mut conversation = bench.converse(&Setup { gid, ..Setup::new(mtu) });
    let m = mtu.bytes();
    for side in Side::BOTH {
        for &kind in kinds {
            for len in [0, 1, 3, m - 1, m, m + 1, 5 * m + 7, 1 << 16] {
                transfers::transfer(&mut conversation, side, kind, len, &mut random);
                count += 1;
            }
        }
        if gid == 1 {
            transfers::transfer(&mut conversation, side, *random.of(kinds), 1 << 20, &mut random);
            transfers::atomics(&mut conversation, side, &mut random);
            count += 1;
        }
    }
    conversation.assert_healthy();
    conversation.destroy();
    let retries = bench.counter("completer_retry");
    bench.say(&format!("path MTU {m}, GID {gid}: {count} transfers of {kinds:?}, all bytes right; {retries} retries"));
}
