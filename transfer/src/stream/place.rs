/// Where a stream goes, and how many chunks may be on their way there at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the stream's first byte, in the receiver's memory.
    pub address: u64,
    /// The key of that memory, for WRITEs of a peer.
    pub rkey: u32,
    /// The receives that its owner keeps posted for chunks, at least 1.
    pub outstanding: u32,
}

impl Place {
    /// Whether a stream of so many bytes can go there.
    ///
    /// # Errors
    /// The name of the field that is out of range.
    pub(super) fn check(&self, bytes: u64) -> Result<(), &'static str> {
        if self.outstanding == 0 {
            return Err("outstanding");
        }
        self.address.checked_add(bytes).map(drop).ok_or("address")
    }
}
