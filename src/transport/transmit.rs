use crate::frame::Hop;

/// A packet that was written to the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Length of the packet from the IP header to the ICRC, in bytes.
    pub len: usize,
    /// The next hop that it goes to.
    pub hop: Hop,
    /// Whether it is a request, or has data: congestion control is told of it.
    pub(super) is_data: bool,
}
