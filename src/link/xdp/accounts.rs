/// Where all of a link's memory is, in chunks and in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameAccounts {
    /// All receive chunks.
    pub receive_total: u64,
    /// Receive chunks that the kernel has: in the fill ring, being filled, in the receive ring.
    pub receive_kernel: u64,
    /// Receive chunks that are free.
    pub receive_free: u64,
    /// Receive chunks in frames that were given out and not dropped yet.
    pub receive_held: u64,
    /// All transmit buffers.
    pub transmit_total: u64,
    /// Transmit buffers that are free.
    pub transmit_free: u64,
    /// Transmit buffers that are lent to be written: one or none.
    pub transmit_lent: u64,
    /// Transmit buffers that wait for a neighbour.
    pub transmit_waiting: u64,
    /// Transmit buffers that the kernel has: queued, in flight, or completed and not collected.
    pub transmit_kernel: u64,
}

impl FrameAccounts {
    /// Whether every chunk and buffer is in exactly one place.
    pub fn conserved(&self) -> bool {
        self.receive_total == self.receive_kernel + self.receive_free + self.receive_held
            && self.transmit_total
                == self.transmit_free + self.transmit_lent + self.transmit_waiting + self.transmit_kernel
    }
}
