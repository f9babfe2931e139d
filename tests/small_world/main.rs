//! Small worlds explored to the last state: two endpoints with a few packets between them, any of which may be lost, come
//! twice or come at any later time, with timers that fire too early. In every state of them:
//!
//! - a SEND is received exactly once, in order, with its bytes, and nothing touches the buffer afterwards;
//! - an atomic is carried out exactly once, after all before it, and brings what was there before;
//! - WRITEs to one place, READs and atomics take effect in order, and late packets change nothing;
//! - a request is completed once, in order, not before the other side has carried it out;
//! - when nothing is left to happen, all of that has happened.

mod exploration;
mod side;

use exploration::{Exploration, Extent, Faults};
use side::Request::{AtomicWrite, FetchAdd, Flush, Read, Send, Write, WriteImmediate};
use side::{Plan, Request};
use uroce::transport::RecoveryMode;
use uroce::wire::Psn;

const FAULTS: Faults = Faults { drops: 2, duplicates: 1, timeouts: 2 };

/// For worlds in which many things may be in flight.
const FEW: Faults = Faults { drops: 1, duplicates: 1, timeouts: 1 };

/// PSNs wrap within the first messages.
fn plan(a: &[Request], b: &[Request]) -> Plan {
    let first_psns = [Psn::new(0).minus(2), Psn::new(0).minus(1)];
    let recovery = [RecoveryMode::GoBackN; 2];
    Plan {
        requests: [a.to_vec(), b.to_vec()],
        late_receives: false,
        lazy: false,
        first_psns,
        recovery,
        age: None,
        is_acquainted: false,
    }
}

#[allow(clippy::disallowed_methods, reason = "it tells how long it took")]
fn explore(name: &str, plan: &Plan, faults: Faults, at_least: u64) {
    let began = std::time::Instant::now();
    let extent = Exploration::run(plan, faults).unwrap_or_else(|text| panic!("{name}: {text}"));
    let Extent { states, steps, schedules, side_states, ends, failures } = extent;
    eprintln!(
        "{name}: {states} states ({side_states} of a side), {steps} steps between them, {schedules:.1e} schedules; all is \
         done in {ends} states at rest, in {failures} a side has given up; {:.1?}",
        began.elapsed()
    );
    // So that a mistake cannot make the world shrink to nothing.
    assert!(states >= at_least, "{name}: only {states} states were explored");
    assert!(ends > 0, "{name}: it is never done");
}

#[test]
fn four_packets_of_one_send() {
    explore("SEND of four packets", &plan(&[Send(4)], &[]), FAULTS, 2_000_000);
}

#[test]
fn four_sends() {
    explore("four SENDs", &plan(&[Send(1), Send(1), Send(1), Send(1)], &[]), FAULTS, 2_000_000);
}

#[test]
fn atomics_between_sends() {
    explore("atomics and SENDs", &plan(&[FetchAdd, Send(1), FetchAdd], &[]), FAULTS, 1_000_000);
}

#[test]
fn overlapping_writes() {
    explore("overlapping WRITEs", &plan(&[Write(2), Write(1), WriteImmediate(1)], &[]), FAULTS, 2_000_000);
}

#[test]
fn reads_and_atomics() {
    explore("READs and atomics", &plan(&[Read(2), FetchAdd, Send(1)], &[]), Faults { drops: 1, ..FAULTS }, 1_000_000);
}

#[test]
fn flushes_and_atomic_writes() {
    explore("FLUSHes and ATOMIC WRITEs", &plan(&[Write(1), Flush, AtomicWrite], &[]), FAULTS, 500_000);
    let early =
        Plan { recovery: [RecoveryMode::GoBackN, RecoveryMode::Auto], ..plan(&[FetchAdd, AtomicWrite, Flush], &[]) };
    explore("early FLUSHes and ATOMIC WRITEs of a plain peer", &early, FAULTS, 100_000);
    let answers =
        Plan { recovery: [RecoveryMode::Auto, RecoveryMode::GoBackN], ..plan(&[Flush, Read(2), AtomicWrite], &[]) };
    explore("answers to FLUSHes and ATOMIC WRITEs in any order", &answers, FEW, 50_000);
}

#[test]
fn a_send_from_each_side() {
    explore("a SEND each", &plan(&[Send(2)], &[Send(1), FetchAdd]), FAULTS, 1_000_000);
}

#[test]
fn receive_requests_that_come_late() {
    let plan = Plan { late_receives: true, ..plan(&[Send(2), WriteImmediate(1)], &[]) };
    explore("late receive requests", &plan, FAULTS, 1_000_000);
}

#[test]
fn packets_that_are_taken_late() {
    let plan = Plan { lazy: true, ..plan(&[Send(1), FetchAdd, Write(1)], &[]) };
    explore("packets taken late", &plan, FEW, 1_000_000);
}

/// What comes early waits for a peer that goes back.
#[test]
fn early_requests_of_a_peer_that_goes_back() {
    let recovery = [RecoveryMode::GoBackN, RecoveryMode::Auto];
    let sends = Plan { recovery, ..plan(&[Send(2), Write(1), Send(1)], &[]) };
    explore("early SENDs and WRITEs of a plain peer", &sends, FAULTS, 500_000);
    let atomics = Plan { recovery, ..plan(&[FetchAdd, Send(1), Read(1)], &[]) };
    explore("early atomics and READs of a plain peer", &atomics, FAULTS, 500_000);
}

#[test]
fn early_requests_that_find_no_receive_request() {
    let recovery = [RecoveryMode::GoBackN, RecoveryMode::Auto];
    let plan = Plan { late_receives: true, recovery, ..plan(&[Send(1), FetchAdd, WriteImmediate(1)], &[]) };
    explore("early requests without receive requests", &plan, FEW, 500_000);
}

/// What comes early is kept, and counts when it is lost twice.
#[test]
fn answers_of_a_peer_that_goes_back() {
    let recovery = [RecoveryMode::Auto, RecoveryMode::GoBackN];
    let reads = Plan { recovery, ..plan(&[Read(2), FetchAdd], &[]) };
    explore("answers that come early", &reads, FEW, 100_000);
    let mixed = Plan { recovery, ..plan(&[Read(2), Send(1)], &[]) };
    explore("answers and a SEND", &mixed, FEW, 100_000);
}

/// They find out that both repeat selectively, whatever of that is lost, comes twice or late.
#[test]
fn getting_to_know_each_other() {
    let plan = Plan { recovery: [RecoveryMode::Auto; 2], ..plan(&[Write(1)], &[]) };
    explore("strangers", &plan, FEW, 1_000);
    let plan = Plan { requests: [vec![Write(1)], vec![Write(1)]], ..plan };
    explore("strangers that offer at once", &plan, FEW, 100_000);
}

/// What was missing is sent again by itself, both ways.
#[test]
fn selective_repeat_on_both_sides() {
    let recovery = [RecoveryMode::Auto; 2];
    let plan = |a: &[Request], b: &[Request]| Plan { recovery, is_acquainted: true, ..plan(a, b) };
    let sends = plan(&[Send(2), Write(1)], &[]);
    explore("SENDs and WRITEs repeated selectively", &sends, FEW, 100_000);
    let answers = plan(&[Read(2), FetchAdd], &[]);
    explore("answers repeated selectively", &answers, FEW, 1_000_000);
    let late = Plan { late_receives: true, ..plan(&[Send(1), FetchAdd], &[]) };
    explore("SENDs repeated selectively without receive requests", &late, FEW, 150_000);
}

/// What is remembered of half the PSN space ago is neither before nor after anything.
#[test]
fn connections_that_are_old() {
    for age in [(1 << 23) - 2, 1 << 23, (1 << 24) - 4] {
        for recovery in
            [[RecoveryMode::GoBackN; 2], [RecoveryMode::GoBackN, RecoveryMode::Auto], [RecoveryMode::Auto; 2]]
        {
            let plan = Plan { recovery, age: Some(age), ..plan(&[Send(1), Write(1), Send(1)], &[]) };
            explore(&format!("{recovery:?}, {age} PSNs later"), &plan, FEW, 50_000);
        }
    }
}
