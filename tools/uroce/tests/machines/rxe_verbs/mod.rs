//! Our verbs at one end of a connection, the Linux kernel's (Soft-RoCE, in a machine) at the other: every service, every
//! operation in both directions, every byte checked at both ends, over a network that works and over one that does not,
//! and every failure with the status that the IBTA gives it.
//!
//! Needs root, and what `cargo xtask setup` installs. `cargo test -p uroce-cli --test machines rxe_verbs:: -- --nocapture`
//! says what is shown.
#![allow(clippy::disallowed_methods, reason = "a conversation with a real machine is on the wall clock")]

mod attributes;
mod bench;
mod connection;
mod conversation;
mod datagrams;
mod device;
mod failures;
mod operations;
mod pipeline;
mod random;
mod shared;
mod transfers;

use std::sync::{Mutex, PoisonError};

use bench::{Bench, Side};
use connection::Setup;
use pipeline::Shape;
use random::Random;
use transfers::Kind;
use uroce::link::fault::FaultSpec;
use uroce::verbs::{PathMtu, Service};

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
    every_operation(&mut bench, Service::Rc, PathMtu::Mtu1024, 1, &Kind::ALL);
    for gid in [0, 2] {
        every_operation(
            &mut bench,
            Service::Rc,
            PathMtu::Mtu1024,
            gid,
            &[Kind::SendImmediate, Kind::Write, Kind::Read],
        );
    }
    for mtu in [PathMtu::Mtu256, PathMtu::Mtu512] {
        every_operation(&mut bench, Service::Rc, mtu, 1, &[Kind::Send, Kind::WriteImmediate, Kind::Read]);
    }
    transfers::windows(&mut bench, PathMtu::Mtu1024);
    transfers::fences(&mut bench, PathMtu::Mtu1024);
    transfers::solicited_and_inline(&mut bench, PathMtu::Mtu1024);
    pipeline::both_ways(&mut bench, &Setup::new(PathMtu::Mtu1024), SEED, Shape::SHORT);
    failures::all(&mut bench, PathMtu::Mtu1024);
    device::limits(&mut bench);
    device::rights(&mut bench);
    attributes::all(&mut bench);
    operations::on_every_service(&mut bench);
    operations::local_faults(&mut bench);
    unreliable(&mut bench, &[PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024]);
    shared::all(&mut bench, PathMtu::Mtu1024);
}

#[test]
fn contents_at_path_mtu_4096() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::start(4500);
    assert_eq!(bench.context().active_mtu(), PathMtu::Mtu4096);
    assert_eq!(bench.agent.active_mtu().unwrap(), 4096);
    println!("seed {SEED:#x}");
    every_operation(&mut bench, Service::Rc, PathMtu::Mtu4096, 1, &Kind::ALL);
    every_operation(&mut bench, Service::Rc, PathMtu::Mtu4096, 2, &[Kind::Send, Kind::WriteImmediate, Kind::Read]);
    every_operation(&mut bench, Service::Rc, PathMtu::Mtu2048, 0, &[Kind::SendImmediate, Kind::Write, Kind::Read]);
    unreliable(&mut bench, &[PathMtu::Mtu2048, PathMtu::Mtu4096]);
    pipeline::both_ways(&mut bench, &Setup::new(PathMtu::Mtu4096), SEED ^ 1, Shape::SHORT);
}

#[test]
fn contents_over_networks_that_lose_double_overtake_and_corrupt() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::start(1500);
    // Requests that were kept although earlier ones were missing, and how often we went back.
    let (mut kept, mut went_back) = (0, 0);
    for (text, rounds) in [
        ("loss=0.01", 8),
        ("loss=0.05", 6),
        ("dup=0.05,reorder=0.05", 6),
        ("reorder=0.2,reorder_by=10", 3),
        ("loss=0.01,dup=0.02,reorder=0.02,corrupt=0.02,delay=300us,delay_share=0.05", 4),
    ] {
        for round in 0..rounds {
            let faults: FaultSpec = text.parse().unwrap();
            bench.open_with(Some(FaultSpec { seed: SEED + round, ..faults }));
            let setup = Setup { gid: (round % 3) as usize, ..Setup::new(PathMtu::Mtu1024) };
            pipeline::both_ways(&mut bench, &setup, SEED + round, Shape::SHORT);
            if round == 0 {
                pipeline::both_ways(&mut bench, &setup, SEED, Shape::LONG);
            }
            for (name, wanted) in [
                ("lost", faults.loss),
                ("duplicated", faults.duplicate),
                ("reordered", faults.reorder),
                ("corrupted", faults.corrupt),
            ] {
                let happened =
                    ["tx", "rx"].map(|way| bench.counter(&format!("fault_{way}_{name}"))).iter().sum::<u64>();
                assert_eq!(happened > 0, wanted > 0.0, "{name}: {happened} frames with {text}");
            }
            kept += bench.counter("reordered");
            went_back += bench.counter("completer_retry");
        }
    }
    bench.say(&format!("{kept} requests of the kernel kept, went back {went_back} times"));
    assert!(kept > 100 && went_back > 10, "{kept} requests kept, went back {went_back} times");
}

/// UC at each of the path MTUs, and UD, by each GID.
fn unreliable(bench: &mut Bench, mtus: &[PathMtu]) {
    let kinds = [Kind::Send, Kind::SendImmediate, Kind::Write, Kind::WriteImmediate];
    for (gid, mtu) in [1, 2, 0].into_iter().zip(mtus) {
        every_operation(bench, Service::Uc, *mtu, gid, &kinds);
    }
    for gid in [0, 1, 2] {
        datagrams::all(bench, gid, &mut Random(SEED ^ gid as u64));
    }
}

/// Operations of all lengths around the packet's, from and into one and several pieces, in both directions; and atomics.
fn every_operation(bench: &mut Bench, service: Service, mtu: PathMtu, gid: usize, kinds: &[Kind]) {
    let mut random = Random(SEED ^ mtu.bytes() as u64 ^ (gid as u64) << 32);
    let mut count = 0;
    let mut conversation = bench.converse(&Setup { service, gid, ..Setup::new(mtu) });
    let m = mtu.bytes();
    for side in Side::BOTH {
        for &kind in kinds {
            for len in [0, 1, 3, m - 1, m, m + 1, 5 * m + 7, 1 << 16] {
                transfers::transfer(&mut conversation, side, kind, len, &mut random);
                count += 1;
            }
        }
        if service == Service::Rc && gid == 1 {
            transfers::transfer(&mut conversation, side, *random.of(kinds), 1 << 20, &mut random);
            transfers::atomics(&mut conversation, side, &mut random);
            count += 1;
        }
    }
    conversation.assert_healthy();
    conversation.destroy();
    let retries = bench.counter("completer_retry");
    bench.say(&format!(
        "{service}, path MTU {m}, GID {gid}: {count} transfers of {kinds:?}, all bytes right; {retries} retries"
    ));
}
