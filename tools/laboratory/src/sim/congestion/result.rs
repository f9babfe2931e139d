use uroce::time::Duration;

/// The result of a cell.
#[derive(Clone, Debug)]
pub struct Congestion {
    /// Goodput of all flows, as a share of what the bottleneck carries × (1 − loss), without what the background took.
    /// With several bottlenecks it is their mean.
    pub utilisation: f64,
    /// The 99th percentile of the delay in the bottleneck's queue, as a share of the round trip.
    pub p99_queue_over_rtt: f64,
    /// The mean of that delay.
    pub mean_queue_over_rtt: f64,
    /// Both in bytes.
    pub queue_bytes: [f64; 2],
    /// The share of frames that the bottleneck dropped in the measured time, because its queue was full or its policer
    /// had no tokens.
    pub queue_drops: f64,
    /// The share of packets that switches marked, of those that arrived in the measured time.
    pub marked: f64,
    /// Round trips until the flows together reached 80 % of what the bottleneck carries; `None` when they did not, and
    /// where flows have an end.
    pub start_rtts: Option<f64>,
    /// What the bottleneck dropped until the measured time, in buffers.
    pub start_drops_buffers: f64,
    /// Frames that arrived again, as a share of the others.
    pub spurious_fraction: f64,
    /// Data packets that were sent again in the measured time, as a share of those that arrived for the first time.
    pub resent: f64,
    /// Jain's index of the flows' goodput.
    pub jain: f64,
    /// The mean goodput of each group of flows, as a part of what it is when all flows have the same.
    pub shares: Vec<f64>,
    /// Round trips from the start of the last flow until each flow has 80 % of its share for good, over five round trips;
    /// `None` when they did not come to it, and where flows end or the background takes turns. In `newcomer` only the
    /// flow that comes last counts.
    pub convergence_rtts: Option<f64>,
    /// When flows had sent all; `None` where they have no end, and when one did not come to it.
    pub completion: Option<CompletionTime>,
    /// How long flows took by size, where they come at random; else empty.
    pub sizes: Vec<SizeBin>,
    /// Beside a scavenger, what TCP keeps of its goodput without one; and what the scavenger takes of what TCP leaves of the
    /// bottleneck. `None` elsewhere.
    pub scavenged: Option<Scavenged>,
    /// The goodput of each flow, in bits a second.
    pub goodput_bps: Vec<f64>,
    /// The share of the bottleneck that was used, and the delay of its queue as a share of the round trip, by half round
    /// trips from the beginning.
    pub timeline: Vec<(f64, f64)>,
}

/// What a scavenger and TCP make of a bottleneck, as shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scavenged {
    /// TCP's goodput, over that without the scavenger.
    pub kept: f64,
    /// The scavenger's goodput, over what TCP does not take of what the bottleneck carries.
    pub of_rest: f64,
}

impl Congestion {
    /// Notes what TCP, the second flow, had without the scavenger, the first, in bits a second of `ideal_bps`.
    pub(super) fn beside_alone(&mut self, alone_bps: f64, ideal_bps: f64) {
        if let [scavenger, tcp] = self.goodput_bps[..] {
            self.scavenged = Some(Scavenged { kept: tcp / alone_bps, of_rest: scavenger / (ideal_bps - tcp) });
        }
    }
}

/// How long flows of some sizes took.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeBin {
    /// The largest size, in bytes; `None` for no limit. The smallest is above the bin before.
    pub up_to_bytes: Option<u64>,
    /// The number of flows.
    pub flows: usize,
    /// The median and the 99th percentile of their times, each over the least that the flow could take: a round trip, and its bytes
    /// at the rate of the bottleneck. `None` when there were no flows.
    pub slowdowns: [Option<f64>; 2],
}

/// When flows of a given length had sent all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletionTime {
    /// From the start of the first flow to the end of the last.
    pub last: Duration,
    /// The same, over the time that the bottleneck takes for all of them, and a round trip.
    pub slowdown: f64,
    /// The mean time of a flow, over the same.
    pub mean_slowdown: f64,
}
