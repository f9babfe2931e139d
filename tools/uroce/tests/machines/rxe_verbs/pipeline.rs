//! Many operations in flight in both directions at once.

use rxe_rig::pattern;

use super::bench::{Bench, COUNTER, Operation, READABLE, RESULT, Request, SOURCE, Side, TARGET, kind};
use super::connection::Setup;
use super::conversation::Conversation;
use super::random::Random;

/// How many operations, and of what length.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    count: usize,
    /// Bytes that an operation has to itself in each area.
    slot: usize,
    /// Most operations are shorter than this.
    mostly: usize,
}

impl Shape {
    /// Many that are mostly of one packet.
    pub const SHORT: Shape = Shape { count: 100, slot: 10_000, mostly: 300 };
    /// A few of many packets.
    pub const LONG: Shape = Shape { count: 12, slot: 50_000, mostly: 50_000 };
}

/// What memory holds before something arrives.
const BEFORE: u64 = 78;

/// One end's requests, and what must come of them.
struct Plan {
    side: Side,
    seed: u64,
    shape: Shape,
    requests: Vec<Request>,
    kinds: Vec<u8>,
    /// Receives for the other end: the slot, and what they complete as.
    receives: Vec<(usize, u8, u32, Option<u32>)>,
    /// The other end's target area, and this end's results.
    target: Vec<u8>,
    results: Vec<u8>,
    counter: u64,
}

impl Plan {
    fn new(c: &Conversation<'_>, side: Side, seed: u64, shape: Shape) -> Plan {
        let Shape { count, slot: slot_bytes, mostly } = shape;
        let mut random = Random(seed ^ side as u64);
        let image = |offset: usize, seed| {
            let mut bytes = vec![0; count * slot_bytes];
            pattern::fill(&mut bytes, offset as u64, seed);
            bytes
        };
        let (source, readable) = (image(SOURCE, seed), image(READABLE, seed + 1));
        let mut plan = Plan {
            side,
            seed,
            shape,
            requests: Vec::new(),
            kinds: Vec::new(),
            receives: Vec::new(),
            target: image(TARGET, BEFORE),
            results: image(RESULT, BEFORE),
            counter: 5,
        };
        let other = side.other();
        for i in 0..count {
            let slot = i * slot_bytes;
            // Mostly short ones, some of several packets.
            let len = if random.below(3) == 0 { random.below(slot_bytes + 1) } else { random.below(mostly) };
            let (there, immediate) = (c.at(other, TARGET + slot), 0xabc0_0000 | i as u32);
            let choice = random.below(7);
            let (operation, kind) = match choice {
                0 => (Operation::Send, kind::SEND),
                1 => (Operation::SendImmediate(immediate), kind::SEND),
                2 => (Operation::Write(there), kind::WRITE),
                3 => (Operation::WriteImmediate(there, immediate), kind::WRITE),
                4 | 5 => (Operation::Read(c.at(other, READABLE + slot)), kind::READ),
                _ => (Operation::FetchAdd { at: c.at(other, COUNTER), add: i as u64 }, kind::FETCH_ADD),
            };
            let local = match choice {
                4 | 5 => {
                    plan.results[slot..][..len].copy_from_slice(&readable[slot..][..len]);
                    (RESULT + slot, len)
                }
                6 => {
                    plan.results[slot..][..8].copy_from_slice(&plan.counter.to_le_bytes());
                    plan.counter += i as u64;
                    (RESULT + slot, 8)
                }
                _ => {
                    plan.target[slot..][..len].copy_from_slice(&source[slot..][..len]);
                    (SOURCE + slot, len)
                }
            };
            match choice {
                0 => plan.receives.push((i, kind::RECEIVE, len as u32, None)),
                1 => plan.receives.push((i, kind::RECEIVE, len as u32, Some(immediate))),
                3 => plan.receives.push((i, kind::RECEIVE_WRITE_IMMEDIATE, len as u32, Some(immediate))),
                _ => {}
            }
            let request = Request::new(i as u64, operation, &[local]);
            // Not rxe's (Linux 6.1): a fenced request that it must send again waits for all READs and atomics that are
            // in flight, and these may come after it, or be itself. Then it waits for ever.
            let fence = side == Side::Us && random.below(10) == 0;
            plan.requests.push(Request { fence, ..request });
            plan.kinds.push(kind);
        }
        plan
    }

    /// Memory at both ends as it shall be before, and the receives.
    fn prepare(&self, c: &mut Conversation<'_>) {
        let (side, other, len) = (self.side, self.side.other(), self.shape.count * self.shape.slot);
        c.fill(side, SOURCE, len, self.seed);
        c.fill(other, READABLE, len, self.seed + 1);
        c.fill(other, TARGET, len, BEFORE);
        c.fill(side, RESULT, len, BEFORE);
        c.write(other, COUNTER, &5u64.to_le_bytes());
        for &(slot, ..) in &self.receives {
            c.post_receive(other, slot as u64, &[(TARGET + slot * self.shape.slot, self.shape.slot)]);
        }
    }

    fn check(&self, c: &mut Conversation<'_>) {
        let (side, other, what) = (self.side, self.side.other(), format!("pipeline of seed {:#x}", self.seed));
        let done: Vec<_> = c.sent(side, self.requests.len()).iter().map(|d| (d.wr_id, d.status, d.kind)).collect();
        let wanted: Vec<_> = self.kinds.iter().enumerate().map(|(i, &kind)| (i as u64, 0, kind)).collect();
        assert_eq!(done, wanted, "{what}: completions of {side:?}");
        let done = c.received(other, self.receives.len());
        let done: Vec<_> = done.iter().map(|d| (d.wr_id as usize, d.kind, d.byte_len, d.immediate)).collect();
        assert_eq!(done, self.receives, "{what}: receives of {other:?}");
        c.assert_bytes(other, TARGET, &self.target, &format!("{what}: SENDs and WRITEs of {side:?}"));
        c.assert_bytes(side, RESULT, &self.results, &format!("{what}: READs and atomics of {side:?}"));
        assert_eq!(c.number(other, COUNTER), self.counter, "{what}: the sum of the atomics of {side:?}");
    }
}

/// Operations from each end, all posted before the first is looked at.
pub fn both_ways(bench: &mut Bench, setup: &Setup, seed: u64, shape: Shape) {
    let count = shape.count;
    let names =
        ["completer_retry", "rcvd_seq_err", "duplicate_request", "out_of_seq_request", "reordered", "retransmitted"];
    let counters = |bench: &Bench| names.map(|name| bench.counter(name));
    let before = counters(bench);
    let mut c = bench.converse(setup);
    let plans = Side::BOTH.map(|side| Plan::new(&c, side, seed ^ (side as u64) << 8, shape));
    for plan in &plans {
        plan.prepare(&mut c);
    }
    for i in 0..count {
        for plan in &plans {
            c.post(plan.side, &plan.requests[i]);
        }
    }
    for plan in &plans {
        plan.check(&mut c);
    }
    c.assert_healthy();
    c.destroy();
    let after = counters(bench);
    let counts: Vec<_> = (0..names.len()).map(|i| format!("{} {}", after[i] - before[i], names[i])).collect();
    bench.say(&format!("{count} operations each way at once, all bytes right: {}", counts.join(", ")));
}
