use uroce::frame::FrameBytes;
use uroce::time::Instant;
use uroce::transport::{Endpoint, Sink, Transmit};

use crate::ethernet::{ETHERNET_BYTES, with_ethernet};

/// Carries packets over IPv4 from one endpoint to another. It takes a batch at a time, as the engine does, and
/// allocates nothing per packet.
pub struct Ferry {
    /// Buffers for frames and their lengths; the first `loaded` are in use.
    frames: Vec<(Vec<u8>, usize)>,
    loaded: usize,
}

impl Ferry {
    /// Upper bound on the frames that it carries at once: a batch of the engine.
    pub const BATCH: usize = 64;

    /// A ferry for frames of at most `frame_bytes`.
    pub fn new(frame_bytes: usize) -> Ferry {
        let mut frame = with_ethernet(&[]);
        frame.resize(frame_bytes, 0);
        Ferry { frames: vec![(frame, 0); Self::BATCH], loaded: 0 }
    }

    /// Takes the packets that `from` has to send, at most a batch. Returns their number.
    pub fn load(&mut self, now: Instant, from: &mut Endpoint) -> usize {
        self.loaded = 0;
        from.transmit(now, self);
        self.loaded
    }

    /// Hands all loaded frames to `to`.
    pub fn unload(&mut self, now: Instant, to: &mut Endpoint) {
        for (frame, len) in &self.frames[..self.loaded] {
            to.handle_frame(now, FrameBytes::from(&frame[..*len]));
        }
    }

    /// The lengths in bytes of the frames that were loaded last.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.frames[..self.loaded].iter().map(|(_, len)| *len)
    }
}

impl Sink for Ferry {
    fn place(&mut self) -> Option<&mut [u8]> {
        self.frames.get_mut(self.loaded).map(|(frame, _)| &mut frame[ETHERNET_BYTES..])
    }

    fn take(&mut self, transmit: Transmit) {
        self.frames[self.loaded].1 = ETHERNET_BYTES + transmit.len;
        self.loaded += 1;
    }
}
