use std::fmt::Debug;

use crate::time::{Duration, Instant};
use crate::wire::Telemetry;

use super::{Flight, Progress, Rate};

/// Decides how fast a queue pair sends, and how much it has in flight. A [`Pacer`](super::Pacer) asks it whenever that can
/// have changed, and passes to it what became of packets.
pub trait Controller: Debug + Send + Sync {
    /// Takes what became of packets. `flight` includes it already.
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant);

    /// Takes what switches wrote into the packet of the sample that is [taken](Self::take) next.
    fn measured(&mut self, _telemetry: &Telemetry) {}

    /// Takes an Ethernet frame of `bytes` that goes now: controllers with timers of their own make those expire first that
    /// are due. Returns whether the [rate](Self::rate) or the [window](Self::window_bytes) can be another one from now on.
    fn sent(&mut self, _bytes: u64, _now: Instant) -> bool {
        false
    }

    /// Takes a congestion notification packet (CNP): packets arrive marked. It can be forged.
    fn notified(&mut self, flight: &Flight, now: Instant);

    /// Takes whether urgent messages of this host are under way, which wait for what this controller keeps in queues.
    fn set_beside_urgent(&mut self, _is_beside: bool, _flight: &Flight, _now: Instant) {}

    /// Takes whether its flow is of class scavenger, which leaves the line to all others.
    fn set_scavenger(&mut self, _is_scavenger: bool, _now: Instant) {}

    /// Takes by how much this host is late, as far as that is allowed for: so long can delays be its own.
    fn set_lateness(&mut self, _late: Duration) {}

    /// The rate that is kept to from now on; `None` for as fast as the window of packets in flight allows.
    fn rate(&self) -> Option<Rate>;

    /// The shortest round trip of other flows to the same peer, for one that goes on by itself and has seen none.
    fn shortest_of_others(&self) -> Option<Duration> {
        None
    }

    /// Whether the flow takes turns with others: each of its packets asks for an acknowledge if the next one has to wait for long.
    fn takes_turns(&self) -> bool {
        false
    }

    /// When the next packet may go, after one of `bytes`, of a flow that takes turns with others; `None` of one that does not. What
    /// was not sent until `earliest` is not caught up.
    fn turn(&mut self, _bytes: u64, _earliest: Instant) -> Option<Instant> {
        None
    }

    /// Upper bound on the bytes of packets in flight. One packet can always be in flight.
    fn window_bytes(&self) -> u64;
}
