use std::fmt;

use crate::time::Duration;

/// Upper bound on the bits that are flipped in a corrupted frame.
///
/// CRC-32 finds every pattern of up to three flipped bits in frames below 11 kB: its Hamming distance is 4 up to 91,607
/// bits. So no corrupted frame passes by chance.
pub(super) const FLIPPED_BITS_MAX: usize = 3;

/// What happens to one frame. A lost frame has no other fault; all other faults can come together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Whether the frame is lost.
    pub is_lost: bool,
    /// Whether the frame arrives twice, the copy right behind the frame.
    pub is_duplicated: bool,
    /// The bits of the frame that are flipped; `None` for none.
    pub corruption: Option<Corruption>,
    /// How long the frame is delayed.
    pub delay: Duration,
    /// How many frames overtake the frame.
    pub overtaken_by: u32,
}

impl Fate {
    /// Whether the frame has to wait.
    pub fn is_held(&self) -> bool {
        self.delay > Duration::ZERO || self.overtaken_by > 0
    }

    /// Whether nothing happens to the frame.
    pub fn is_nothing(&self) -> bool {
        *self == Fate::default()
    }
}

impl fmt::Display for Fate {
    /// The text of the remark in captures: `fault: lost`, `fault: corrupted, delayed 2ms`; empty when nothing happens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "fault: ";
        let mut write = |text: fmt::Arguments<'_>| {
            f.write_str(separator)?;
            separator = ", ";
            f.write_fmt(text)
        };
        if self.is_lost {
            return write(format_args!("lost"));
        }
        if self.corruption.is_some() {
            write(format_args!("corrupted"))?;
        }
        if self.is_duplicated {
            write(format_args!("duplicated"))?;
        }
        if self.delay > Duration::ZERO {
            write(format_args!("delayed {:?}", self.delay))?;
        }
        if self.overtaken_by > 0 {
            write(format_args!("overtaken by {}", self.overtaken_by))?;
        }
        Ok(())
    }
}

/// Which bits of a frame are flipped, for frames of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    pub(super) count: usize,
    pub(super) draws: [u32; FLIPPED_BITS_MAX],
}

impl Corruption {
    /// Flips one to three different bits of `bytes`; fewer when it has fewer bits.
    pub fn apply(&self, bytes: &mut [u8]) {
        let bits = bytes.len() * 8;
        let mut flipped = [usize::MAX; FLIPPED_BITS_MAX];
        for i in 0..self.count.min(bits) {
            let mut bit = self.draws[i] as usize % bits;
            while flipped.contains(&bit) {
                bit = (bit + 1) % bits;
            }
            flipped[i] = bit;
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
        }
    }
}
