use crate::time::{Duration, Instant};

/// What became of packets in flight, as far as acknowledges and timers have shown: what a congestion controller learns
/// from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of packets whose arrival became known.
    pub delivered_bytes: u64,
    /// Bytes of packets that were found to be lost.
    pub lost_bytes: u64,
    /// Bytes of packets in flight when nothing had been heard for long: nobody knows what became of them.
    pub forgotten_bytes: u64,
    /// The newest round-trip sample.
    pub sample: Option<Sample>,
}

/// The round trip of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the packet was sent.
    pub sent_at: Instant,
    /// The time from then until its arrival was known, without the time for which the peer kept its acknowledge.
    pub round_trip: Duration,
    /// How long the peer kept the acknowledge.
    pub delay: Duration,
    /// The path that the packet took.
    pub path: u8,
    /// Whether the packet arrived with «congestion experienced».
    pub is_marked: bool,
}

impl Progress {
    /// Whether there is any news.
    pub fn is_news(&self) -> bool {
        *self != Progress::default()
    }
}
