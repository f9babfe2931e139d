use std::time::Duration;

/// An RNR NAK timer code: 5 bits that stand for a delay from a table (IBTA 9.7.5.2.8, Table 45).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The delays in units of 10 µs, by code. Code 0 is the longest.
    const TENS_OF_US: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The code with the low 5 bits of `code`.
    pub const fn new(code: u8) -> RnrTimer {
        RnrTimer(code & 0x1f)
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The minimum delay: 10 µs (code 1) to 655.36 ms (code 0).
    pub const fn delay(self) -> Duration {
        Duration::from_micros(Self::TENS_OF_US[self.0 as usize] as u64 * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_give_the_delays_of_the_table() {
        assert_eq!(RnrTimer::new(0).delay(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(1).delay(), Duration::from_micros(10));
        assert_eq!(RnrTimer::new(12).delay(), Duration::from_micros(640));
        assert_eq!(RnrTimer::new(31).delay(), Duration::from_micros(491_520));
        assert!((1..31).all(|c| RnrTimer::new(c).delay() < RnrTimer::new(c + 1).delay()));
    }
}
