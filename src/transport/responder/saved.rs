use std::collections::VecDeque;

use crate::wire::Psn;

/// Distance in PSNs from which a request before the expected one is no duplicate of what a peer can have outstanding
/// (IBTA 9.7.2.1). Half the PSN space precedes the expected PSN.
pub const FORGOTTEN_AFTER: u32 = 1 << 23;

/// READs and atomics that the peer can request again, newest last: as many as it can have outstanding.
#[derive(Debug, Default)]
pub struct SavedResults(VecDeque<Saved>);

/// A READ or atomic that has executed.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    pub first_psn: Psn,
    pub packets: u32,
    /// The original value, of an atomic.
    pub original: Option<u64>,
}

impl SavedResults {
    /// Saves one more, and first discards the oldest until fewer than `room`, at least 1, are left.
    pub fn save(&mut self, saved: Saved, room: usize) {
        while self.0.len() >= room {
            self.0.pop_front();
        }
        self.0.push_back(saved);
    }

    /// The newest READ or atomic that has this PSN.
    pub fn of(&self, psn: Psn) -> Option<&Saved> {
        self.0.iter().rev().find(|saved| psn.is_within(saved.first_psn, saved.packets))
    }

    /// The first PSN of the oldest after `psn`, which precedes `expected`.
    ///
    /// What is saved is younger than the whole PSN space, but it can be older than half of it. There [`Psn::is_before`]
    /// takes the past for the future.
    pub fn first_after(&self, psn: Psn, expected: Psn) -> Option<Psn> {
        let is_later = |first: &Psn| {
            if mutated!("past-taken-for-the-future", by "uroce --test old_psns a_duplicate_half_the_space") {
                return psn.is_before(*first);
            }
            expected.after(*first) < expected.after(psn)
        };
        self.0.iter().map(|saved| saved.first_psn).find(is_later)
    }

    /// Discards what no peer can request again, after the expected PSN has moved on by at most half the PSN space.
    /// Otherwise, when its PSNs repeat, it would be taken for what has just been served.
    pub fn forget_old(&mut self, expected: Psn) {
        let is_old = |saved: &&Saved| expected.after(saved.first_psn.plus(saved.packets - 1)) >= FORGOTTEN_AFTER;
        let old = self.0.iter().take_while(is_old).count();
        if old > 0 && !mutated!("old-results-not-forgotten", by "uroce --test old_psns a_read_a_whole_lap") {
            self.0.drain(..old);
        }
    }
}
