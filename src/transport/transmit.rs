use crate::frame::Hop;

/// A packet that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes from the IP header to the ICRC.
    pub len: usize,
    /// Where it goes.
    pub hop: Hop,
}
