//! Captures: reading and writing pcap and pcapng files, with the feature `capture`.

#[cfg(feature = "capture")]
mod reader;
#[cfg(feature = "capture")]
mod writer;

use crate::time::Instant;

#[cfg(feature = "capture")]
pub use reader::{CapturedFrame, ReadError, Reader};
#[cfg(feature = "capture")]
pub use writer::{Format, Writer};

/// Which way a frame went, as seen by the one who captured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// It came in.
    Received,
    /// It went out.
    Sent,
}

/// A frame to be written.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// When, in nanoseconds since the Unix epoch.
    pub time: Instant,
    /// Which way.
    pub direction: Direction,
    /// The frame from the Ethernet header on, in parts that follow each other.
    pub parts: &'a [&'a [u8]],
    /// A remark on it; what goes beyond 65,532 bytes is left out.
    pub comment: Option<&'a str>,
}

#[cfg(all(test, feature = "capture"))]
mod tests;
