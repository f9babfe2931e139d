use super::PathMask;
use super::policy::{Feedback, Policy};

/// Takes paths in proportion to weights: the shorter the round trip the larger the weight, and smaller for a while with
/// every mark and loss.
#[derive(Debug)]
pub(super) struct Weighted {
    shares: Box<[Share]>,
    at: u8,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    /// The weight: what the round trip allows, less what marks and losses took. In 1/256, from [`LEAST`] to [`WHOLE`].
    limit: u32,
    weight: u32,
    /// The saved credit: a whole pays for a packet.
    credit: u32,
}

const WHOLE: u32 = 256;

/// The minimum weight: a path with less would not be measured again.
const LEAST: u32 = WHOLE / 16;

/// The part of a weight that a mark takes: 1/8 for each packet, as DCTCP's in a window of which a quarter is marked.
const MARK_DIVISOR: u32 = 8;

/// The part of a weight that a loss takes.
const LOSS_DIVISOR: u32 = 4;

impl Weighted {
    pub fn new(count: usize) -> Weighted {
        Weighted { shares: vec![Share { limit: WHOLE, weight: WHOLE, credit: 0 }; count].into(), at: 0 }
    }

    #[cfg(test)]
    fn weight(&self, path: u8) -> u32 {
        self.shares[usize::from(path)].weight
    }
}

impl Policy for Weighted {
    fn choose(&mut self, usable: &PathMask) -> u8 {
        // The least weight has saved enough after so many rounds.
        for _ in 0..=(WHOLE / LEAST) as usize * self.shares.len() {
            let Some(path) = usable.next_from(self.at) else { break };
            self.at = path.wrapping_add(1);
            let share = &mut self.shares[usize::from(path)];
            share.credit += share.weight;
            if share.credit >= WHOLE {
                share.credit -= WHOLE;
                return path;
            }
        }
        0
    }

    fn take(&mut self, path: u8, feedback: Feedback) -> bool {
        let share = &mut self.shares[usize::from(path)];
        match feedback {
            Feedback::Arrived(took, least) => {
                let ratio = least.as_nanos() * u128::from(WHOLE) / took.as_nanos().max(1);
                share.limit = (ratio as u32).clamp(LEAST, WHOLE);
                share.weight = (share.weight + 1).min(share.limit);
            }
            Feedback::Marked => share.weight = (share.weight - share.weight / MARK_DIVISOR).max(LEAST),
            Feedback::Lost => share.weight = (share.weight - share.weight / LOSS_DIVISOR).max(LEAST),
        }
        false
    }

    fn forget(&mut self, path: u8) {
        self.shares[usize::from(path)] = Share { limit: WHOLE, weight: WHOLE, credit: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn arrive(policy: &mut Weighted, path: u8, ms: u64) {
        policy.take(path, Feedback::Arrived(Duration::from_millis(ms), Duration::from_millis(10)));
    }

    fn packets(policy: &mut Weighted, of: usize) -> [u32; 3] {
        let mut packets = [0; 3];
        let all = (0..3).collect();
        (0..of).for_each(|_| packets[usize::from(policy.choose(&all))] += 1);
        packets
    }

    #[test]
    fn without_news_all_paths_weigh_the_same() {
        assert_eq!(packets(&mut Weighted::new(3), 300), [100; 3]);
    }

    #[test]
    fn weights_follow_the_round_trip() {
        let mut policy = Weighted::new(3);
        for (path, ms) in [(0, 10), (1, 20), (2, 40)] {
            arrive(&mut policy, path, ms);
        }
        assert_eq!(packets(&mut policy, 700), [400, 200, 100]);
        // As far as they go.
        arrive(&mut policy, 2, 100_000);
        assert_eq!(policy.weight(2), LEAST);
    }

    #[test]
    fn marks_and_losses_weigh_until_enough_arrived_without() {
        let mut policy = Weighted::new(3);
        policy.take(0, Feedback::Marked);
        policy.take(1, Feedback::Lost);
        assert_eq!([0, 1, 2].map(|path| policy.weight(path)), [224, 192, 256]);
        assert_eq!(packets(&mut policy, 672), [224, 192, 256]);
        (0..32).for_each(|_| arrive(&mut policy, 0, 10));
        assert_eq!([0, 1, 2].map(|path| policy.weight(path)), [256, 192, 256]);
        for _ in 0..1000 {
            policy.take(1, Feedback::Lost);
        }
        assert_eq!(policy.weight(1), LEAST);
        policy.forget(1);
        assert_eq!(policy.weight(1), WHOLE);
    }
}
