use super::transmit::Transmit;

/// Where the packets of an endpoint go: it writes each in its place there.
pub trait Sink {
    /// The place for the next packet, the same until one is [taken](Self::take). `None` when no more packets are taken now.
    fn place(&mut self) -> Option<&mut [u8]>;

    /// Takes the packet that was written there.
    fn take(&mut self, transmit: Transmit);
}

/// Takes one packet.
pub(super) struct Single<'a> {
    pub out: &'a mut [u8],
    pub taken: Option<Transmit>,
}

impl Sink for Single<'_> {
    fn place(&mut self) -> Option<&mut [u8]> {
        if self.taken.is_none() { Some(self.out) } else { None }
    }

    fn take(&mut self, transmit: Transmit) {
        self.taken = Some(transmit);
    }
}
