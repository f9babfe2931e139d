use crate::time::Duration;

use super::Rate;

/// What a queue pair's congestion controller does and knows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    /// The rate that is kept to; `None` for as fast as the window allows.
    pub rate: Option<Rate>,
    /// Upper bound on the bytes of packets in flight.
    pub window_bytes: u64,
    /// Bytes of packets in flight: of requests, and of READ responses.
    pub in_flight_bytes: u64,
    /// The smoothed round trip of the slowest path; `None` before the first sample.
    pub round_trip: Option<Duration>,
    /// The round trip without queues, as the mean over paths; `None` before the first sample.
    pub shortest: Option<Duration>,
    /// Bytes whose arrival is known.
    pub delivered_bytes: u64,
    /// Bytes that were found to be lost.
    pub lost_bytes: u64,
    /// Whether it keeps less in queues, since urgent messages are under way.
    pub gives_way: bool,
}
