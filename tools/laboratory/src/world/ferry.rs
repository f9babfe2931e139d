use uroce::frame::FrameBytes;
use uroce::time::Instant;
use uroce::transport::Endpoint;

use super::with_ethernet;

/// Carries packets over IPv4 from one endpoint to another, a batch at a time as the engine does, and allocates nothing on the way.
pub struct Ferry {
    /// Frames, of which the first `loaded` are on board, and their lengths.
    frames: Vec<(Vec<u8>, usize)>,
    loaded: usize,
}

/// Bytes of the Ethernet header.
const ETHERNET_BYTES: usize = 14;

impl Ferry {
    /// Frames on board at the same time, as the engine sends them.
    pub const BATCH: usize = 64;

    /// A ferry for frames of at most that length.
    pub fn new(frame_bytes: usize) -> Ferry {
        let mut frame = with_ethernet(&[]);
        frame.resize(frame_bytes, 0);
        Ferry { frames: vec![(frame, 0); Self::BATCH], loaded: 0 }
    }

    /// Takes what `from` has to send, a batch at most. Returns the number of packets.
    pub fn load(&mut self, now: Instant, from: &mut Endpoint) -> usize {
        self.loaded = 0;
        while let Some((frame, len)) = self.frames.get_mut(self.loaded)
            && let Some(transmit) = from.poll_transmit(now, &mut frame[ETHERNET_BYTES..])
        {
            *len = ETHERNET_BYTES + transmit.len;
            self.loaded += 1;
        }
        self.loaded
    }

    /// Hands all to `to`.
    pub fn unload(&mut self, now: Instant, to: &mut Endpoint) {
        for (frame, len) in &self.frames[..self.loaded] {
            to.handle_frame(now, FrameBytes::from(&frame[..*len]));
        }
    }

    /// The lengths of the frames that were loaded last.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.frames[..self.loaded].iter().map(|(_, len)| *len)
    }
}
