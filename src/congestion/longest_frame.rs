/// The longest frame that a controller was told of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LongestFrame {
    /// 0 before the first.
    bytes: u64,
}

impl LongestFrame {
    /// Length of a packet of path MTU 4096, in bytes: what is reckoned with where no frame is known.
    pub const UNKNOWN: f64 = 4300.0;

    /// Takes a frame of `bytes` that is sent. Returns whether it is the longest one.
    pub fn take(&mut self, bytes: u64) -> bool {
        let is_longest = bytes > self.bytes;
        self.bytes = self.bytes.max(bytes);
        is_longest
    }

    /// Whether a window of so many bytes has at most 64 of them.
    pub fn is_small(self, window: f64) -> bool {
        window <= SMALL * self.bytes()
    }

    /// Its length, in bytes; that of a [packet of path MTU 4096](Self::UNKNOWN) before the first.
    pub fn bytes(self) -> f64 {
        if self.bytes > 0 { self.bytes as f64 } else { LongestFrame::UNKNOWN }
    }
}

/// The most packets of a window from which nothing is seen in a round trip.
const SMALL: f64 = 64.0;
