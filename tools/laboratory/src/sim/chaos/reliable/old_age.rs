use uroce::time::Duration;
use uroce::transport::Skipped;

use crate::sim::chaos::header::Header;
use crate::sim::random::Random;

use super::{Wake, World};

/// The times at which a connection ages at once: its queue pairs are advanced as if many packets had passed, in order.
#[derive(Debug)]
pub(super) struct Ages {
    /// The number of posted requests at which it ages, and the packets to skip in both directions. The last entry is
    /// the next.
    left: Vec<(u64, [Skipped; 2])>,
    /// The number of checks left whether the connection is quiet; `None` when no ageing is due.
    tries_left: Option<u32>,
}

/// The number of checks whether the connection is quiet: several pauses of retransmission timers and probes.
const TRIES: u32 = 40;

impl Ages {
    /// The ages of a connection that posts `total` requests in all: most never age.
    pub fn new(total: u64, random: &mut Random) -> Ages {
        let mut left = Vec::new();
        if random.chance(0.2) {
            for _ in 0..random.between(1, 4) {
                let skipped = [(); 2].map(|()| distance(random));
                left.push((random.below(total + 1), skipped));
            }
        }
        left.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Ages { left, tries_left: None }
    }

    pub fn is_due(&self, posted: [u64; 2]) -> bool {
        self.tries_left.is_none() && self.left.last().is_some_and(|(at, _)| *at <= posted[0] + posted[1])
    }

    pub fn is_waiting(&self) -> bool {
        self.tries_left.is_some()
    }

    pub fn stop_waiting(&mut self) {
        self.tries_left = None;
    }
}

/// Draws a distance: near half of the PSN space or all of it, where comparisons wrap, or any.
fn distance(random: &mut Random) -> Skipped {
    let around = |random: &mut Random, at: u32| at - 300 + random.below(600) as u32;
    let packets = match random.below(8) {
        0..4 => around(random, 1 << 23),
        4 => 1 << 23,
        5 => around(random, 1 << 24) & 0x00ff_ffff,
        6 => random.below(1 << 24) as u32,
        _ => random.below(1000) as u32,
    };
    let messages = if random.chance(0.7) { packets } else { random.below(u64::from(packets) + 1) as u32 };
    let receives = if random.chance(0.5) { 0 } else { random.below(u64::from(messages) + 1) as u32 };
    Skipped { packets, messages, receives }
}

impl World {
    /// Stops the programs of a connection until it has aged.
    pub(super) fn want_age(&mut self, c: usize) {
        self.programs[c].ages.tries_left = Some(TRIES);
        self.wait_for_age(c);
    }

    fn wait_for_age(&mut self, c: usize) {
        let at = self.network.now() + self.scenario.setting.core.delay * 8 + Duration::from_millis(2);
        self.wake(at, Wake::Age { c }, c);
    }

    /// Ages a connection if it is idle and none of its packets is in flight: those would be stale otherwise.
    pub(super) fn age(&mut self, c: usize) {
        let now = self.network.now();
        let program = &mut self.programs[c];
        let Some(tries_left) = program.ages.tries_left else { return };
        let connection = &mut self.watch.observer.connections[c];
        let qpns = connection.sides.each_ref().map(|side| side.qpn);
        let is_idle = connection.flows.iter().all(|flow| flow.is_idle());
        let is_quiet = is_idle && !self.network.is_on_its_way(|frame| qpns.contains(&Header::of(frame).qpn));
        if !is_quiet && tries_left > 0 && program.connected && !program.closing {
            program.ages.tries_left = Some(tries_left - 1);
            return self.wait_for_age(c);
        }
        program.ages.tries_left = None;
        let Some((_, skipped)) = program.ages.left.pop() else { return };
        if is_quiet && program.connected && !program.closing {
            for s in [0, 1] {
                let side = &connection.sides[s];
                let endpoint = self.network.endpoint(side.node);
                endpoint.skip(now, side.qpn, skipped[s], skipped[1 - s]).expect("it exists");
            }
            for (s, skipped) in skipped.into_iter().enumerate() {
                connection.flows[s].skip(skipped);
                connection.sides[1 - s].posted_receives += u64::from(skipped.receives);
            }
        }
        for s in [0, 1] {
            self.want_post(c, s);
        }
    }
}
