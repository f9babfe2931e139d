use std::ops::Range;

use uroce::congestion::CongestionControl;
use uroce::time::{Duration, Instant};
use uroce::transport::Class;

/// One flow of a scenario.
#[derive(Clone, Debug)]
pub(super) struct FlowPlan {
    /// What decides on its rate.
    pub control: CongestionControl,
    /// The class of its queue pairs.
    pub class: Class,
    /// It posts for so long and then pauses for as long, from the beginning on; `None` when it always does.
    pub pauses: Option<Duration>,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The bottlenecks that it takes, of those in a row.
    pub hops: Range<usize>,
    /// When it sends a message before it begins, so that its ends know each other and the path; `None` for never.
    pub greets: Option<Instant>,
    /// When it begins.
    pub start: Instant,
    /// How many bytes it has to send from then on, a multiple of a message; `None` for no end.
    pub bytes: Option<u64>,
    /// Which flows are like it: the shares of groups are told apart.
    pub group: usize,
}

impl FlowPlan {
    /// Whether it pauses now.
    pub fn is_paused(&self, now: Instant) -> bool {
        self.pauses.is_some_and(|turn| (now - Instant::ZERO).as_nanos() / turn.as_nanos() % 2 == 1)
    }
}
