use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::time::Duration;

/// A rate in bits of Ethernet frames a second, without preamble, checksum and gap. Written as iperf and tc write it:
/// `500M`, `2.5G`, `1Gbit`, `1Gb/s`; at least 1k and at most 1000000G.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    bits: NonZeroU64,
}

/// A text that is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a rate: write bits a second, 1k to 1000000G, as in 500M, 2.5G or 1Gbit")]
pub struct RateError(String);

/// Nanoseconds in a second.
pub(super) const NANOS_IN_A_SECOND: u64 = 1_000_000_000;

impl Rate {
    /// A rate of `bits` a second, at least eight.
    pub const fn from_bits(bits: u64) -> Rate {
        let bits = NonZeroU64::new(if bits < 8 { 8 } else { bits });
        Rate { bits: bits.expect("it is eight or more") }
    }

    /// One of so many equal parts of it; there is at least one.
    pub(super) const fn part(self, parts: u32) -> Rate {
        Rate::from_bits(self.bits.get() / parts as u64)
    }

    /// How long `bytes` take at `part` / `whole` of it; both are at least 1.
    pub(super) fn takes(self, bytes: u64, (part, whole): (u64, u64)) -> Duration {
        let scaled = bytes.saturating_mul(whole).saturating_mul(NANOS_IN_A_SECOND);
        Duration::from_nanos(scaled.div_ceil(self.bytes().saturating_mul(part)))
    }

    /// The rate in bytes a second.
    pub const fn bytes(self) -> u64 {
        self.bits.get() / 8
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        // A lower-case b: GB/s would be bytes.
        let bare = ["bit/s", "b/s", "bps", "bit", "b"].iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(text);
        let (number, unit) = match bare.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&bare[..at], 1e3),
            Some((at, 'm' | 'M')) => (&bare[..at], 1e6),
            Some((at, 'g' | 'G')) => (&bare[..at], 1e9),
            _ => (bare, 1.0),
        };
        let bits = number.parse::<f64>().ok().map(|number| number * unit);
        match bits {
            Some(bits) if (1e3..=1e15).contains(&bits) => Ok(Rate::from_bits(bits as u64)),
            _ => Err(RateError(text.to_owned())),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_with_their_units() {
        for (text, bits) in [("500M", 500_000_000), ("2.5G", 2_500_000_000), ("64k", 64_000), ("1000000", 1_000_000)] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.bytes(), rate.to_string()), (bits / 8, bits.to_string()));
        }
        for text in ["1Gbit", "1Gb", "1Gb/s", "1Gbps", "1Gbit/s", "1000Mbit", "1000000000bit"] {
            assert_eq!(text.parse(), Ok(Rate::from_bits(1_000_000_000)), "{text}");
        }
        for text in ["", "G", "-1M", "fast", "1T", "nan", "0", "bit", "1GB", "1GB/s", "1GBps"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError(text.to_owned())));
        }
    }
}
