//! Captures: reading and writing pcap and pcapng files.

mod reader;
mod writer;

pub use reader::{CapturedFrame, ReadError, Reader};
pub use writer::{Format, Record, Writer};

/// Which way a frame went, as seen by the one who captured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// It came in.
    Received,
    /// It went out.
    Sent,
}

#[cfg(test)]
mod tests;
