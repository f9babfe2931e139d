//! Captures: reading and writing pcap and pcapng files, with the feature `capture`.

#[cfg(feature = "capture")]
mod link_type;
#[cfg(feature = "capture")]
mod reader;
#[cfg(feature = "capture")]
mod writer;

use crate::time::Instant;

#[cfg(feature = "capture")]
pub use reader::{CapturedFrame, ReadError, Reader};
#[cfg(feature = "capture")]
pub use writer::{Format, Writer};

/// The direction of a frame, as seen by the host that captured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The host received the frame.
    Received,
    /// The host sent the frame.
    Sent,
}

/// A frame to be written to a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The time of the frame, in nanoseconds since the Unix epoch.
    pub time: Instant,
    /// The direction of the frame; pcapng only.
    pub direction: Direction,
    /// The bytes of the frame from the Ethernet header on, in parts that follow each other.
    pub parts: &'a [&'a [u8]],
    /// A comment on the frame, pcapng only; bytes after the first 65,532 are left out.
    pub comment: Option<&'a str>,
}

#[cfg(all(test, feature = "capture"))]
mod tests;
