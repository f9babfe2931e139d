//! How far the runs come, on standard error, when UROCE_FUZZ_STATS is set: a target that only bounces off the first
//! checks shows nothing.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use crate::node::Node;

/// Runs between two reports.
const EVERY: u64 = 1 << 14;

#[derive(Default)]
struct Sums {
    runs: u64,
    counters: BTreeMap<&'static str, u64>,
    /// By kind and status, as numbers of `enum ibv_wc_opcode` and `enum ibv_wc_status`.
    completions: BTreeMap<(u8, u8), u64>,
    sent: [u64; 4],
    events: u64,
}

static SUMS: LazyLock<Option<Mutex<Sums>>> =
    LazyLock::new(|| std::env::var_os("UROCE_FUZZ_STATS").map(|_| Mutex::default()));

pub fn note(nodes: &[Node]) {
    let Some(sums) = &*SUMS else { return };
    let mut sums = sums.lock().expect("one thread");
    sums.runs += 1;
    for node in nodes {
        node.endpoint.counters().list().for_each(|(name, count)| *sums.counters.entry(name).or_default() += count);
        node.queues.seen.iter().for_each(|(kind, count)| *sums.completions.entry(*kind).or_default() += count);
        (0..4).for_each(|kind| sums.sent[kind] += node.sent[kind]);
        sums.events += node.events;
    }
    if sums.runs % EVERY == 0 {
        let Sums { runs, counters, completions, sent, events } = &*sums;
        eprintln!("{runs} runs: {sent:?} answers, READ responses, RC requests and others sent, {events} events");
        eprintln!("  counters {counters:?}\n  completions {completions:?}");
    }
}
