use std::fmt;
use std::str::FromStr;

use crate::time::Duration;

use super::PathMask;
use super::recycle::Recycle;
use super::round_robin::RoundRobin;
use super::single::Single;
use super::weighted::Weighted;

/// Decides which path the next packet takes.
///
/// A policy is called for each packet, and again with the result of each. Both calls must be cheap and allocate
/// nothing.
pub trait Policy: fmt::Debug + Send {
    /// The path of the next packet: one of the `usable` ones, of which there is at least one.
    fn choose(&mut self, usable: &PathMask) -> u8;

    /// Takes the result of a packet. Returns whether its path should be left alone for a round trip.
    fn take(&mut self, path: u8, feedback: Feedback) -> bool;

    /// The path carries nothing any more: forgets what is remembered of it.
    fn forget(&mut self, path: u8);
}

/// The result of a packet on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// The packet arrived: the time until that was known, and the shortest such time on any path lately.
    Arrived(Duration, Duration),
    /// The packet arrived with «congestion experienced».
    Marked,
    /// The packet was lost.
    Lost,
}

/// The path policies that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// The first path that works; the others are standby.
    Single,
    /// Each path in turn.
    #[default]
    RoundRobin,
    /// Each path in turn, but short and clean paths more often than long, marked and lossy ones.
    Weighted,
    /// A path whose packet came back unmarked is used again; otherwise each path in turn.
    Recycle,
}

/// A text that is not a path policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a path policy: use single, round-robin, weighted or recycle")]
pub struct PathPolicyError(String);

impl PathPolicy {
    /// All path policies.
    pub const ALL: [PathPolicy; 4] =
        [PathPolicy::Single, PathPolicy::RoundRobin, PathPolicy::Weighted, PathPolicy::Recycle];

    /// The name of the policy in options.
    pub fn name(self) -> &'static str {
        match self {
            PathPolicy::Single => "single",
            PathPolicy::RoundRobin => "round-robin",
            PathPolicy::Weighted => "weighted",
            PathPolicy::Recycle => "recycle",
        }
    }

    /// A policy without history, for `count` paths.
    pub(super) fn start(self, count: usize) -> Box<dyn Policy> {
        match self {
            PathPolicy::Single => Box::new(Single),
            PathPolicy::RoundRobin => Box::new(RoundRobin::default()),
            PathPolicy::Weighted => Box::new(Weighted::new(count)),
            PathPolicy::Recycle => Box::new(Recycle::new(count)),
        }
    }
}

impl fmt::Display for PathPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PathPolicy {
    type Err = PathPolicyError;

    fn from_str(text: &str) -> Result<PathPolicy, PathPolicyError> {
        PathPolicy::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| PathPolicyError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_known_by_name() {
        for policy in PathPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert_eq!("fastest".parse::<PathPolicy>(), Err(PathPolicyError("fastest".to_owned())));
    }

    #[test]
    fn every_policy_keeps_to_the_paths_that_may_be_taken() {
        // With 256 Miri takes minutes.
        let counts = if cfg!(miri) { &[1, 2, 3, 16][..] } else { &[1, 2, 3, 16, 256] };
        for policy in PathPolicy::ALL {
            for &count in counts {
                let mut running = policy.start(count);
                for usable in 0..count {
                    let usable = usable as u8;
                    let only = PathMask::from_iter([usable]);
                    for _ in 0..3 {
                        assert_eq!(running.choose(&only), usable, "{policy:?} of {count}");
                    }
                    running.take(usable, Feedback::Lost);
                    running.take(usable, Feedback::Marked);
                    assert_eq!(running.choose(&only), usable, "{policy:?} of {count}");
                    running.forget(usable);
                }
            }
        }
    }
}
