use std::fmt;

/// A packet sequence number: 24 bits, compared and added modulo 2^24 (IBTA 9.7.2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;

    /// The PSN with the low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & Self::MASK)
    }

    /// The value of the PSN, 0 to 2^24 − 1.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The PSN `count` after this one, modulo 2^24.
    pub const fn plus(self, count: u32) -> Psn {
        Psn(self.0.wrapping_add(count) & Self::MASK)
    }

    /// The PSN `count` before this one, modulo 2^24.
    pub const fn minus(self, count: u32) -> Psn {
        Psn(self.0.wrapping_sub(count) & Self::MASK)
    }

    /// How far this PSN is after `other`: −2^23 to 2^23 − 1, negative when it is before. Half the space counts as
    /// before, half as after (IBTA 9.7.2.1).
    pub fn since(self, other: Psn) -> i32 {
        if mutated!("psn-does-not-wrap") {
            return self.0 as i32 - other.0 as i32;
        }
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// How many PSNs this one is after `other`, counting upwards only: 0 to 2^24 − 1.
    pub const fn after(self, other: Psn) -> u32 {
        self.0.wrapping_sub(other.0) & Self::MASK
    }

    /// The PSN of a packet number: its low 24 bits.
    pub const fn of(number: u64) -> Psn {
        Psn::new(number as u32)
    }

    /// The packet number with this PSN that is nearest to `near`: 2^23 below it to 2^23 − 1 above.
    ///
    /// Packet numbers continue where PSNs wrap (RFC 9000, A.3, does the same). `near` is at least 2^23.
    pub fn expand(self, near: u64) -> u64 {
        let distance = self.since(Psn::of(near)) + i32::from(mutated!("packet-number-off-by-one"));
        near.wrapping_add_signed(distance.into())
    }

    /// Whether this PSN comes before `other`.
    pub fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }

    /// Whether this PSN is one of the `count` PSNs from `first` on; `count` is at most 2^23.
    pub const fn is_within(self, first: Psn, count: u32) -> bool {
        self.after(first) < count
    }

    pub(super) const fn to_be_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    pub(super) const fn from_be_bytes([a, b, c]: [u8; 3]) -> Psn {
        Psn(u32::from_be_bytes([0, a, b, c]))
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_wraps_at_two_to_the_24() {
        let last = Psn::new(0x00ff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert!(last.is_before(Psn::new(0)));
        assert_eq!(Psn::new(5).since(last), 6);
        assert_eq!(last.since(Psn::new(5)), -6);
    }

    #[test]
    fn exactly_half_the_space_is_before() {
        assert_eq!(Psn::new(1 << 23).since(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new((1 << 23) - 1).since(Psn::new(0)), (1 << 23) - 1);
    }

    proptest! {
        #[test]
        fn plus_then_since_gives_the_count_back(base in 0u32..1 << 24, count in 0u32..1 << 23) {
            let base = Psn::new(base);
            prop_assert_eq!(base.plus(count).since(base), count as i32);
            prop_assert_eq!(base.since(base.plus(count)), -(count as i32));
            prop_assert_eq!(base.plus(count).minus(count), base);
            prop_assert!(base.plus(count).is_within(base, count + 1));
            prop_assert!(!base.plus(count).is_within(base, count));
            prop_assert_eq!(base.plus(count).after(base), count);
            prop_assert_eq!(base.after(base.plus(count)), ((1 << 24) - count) & 0x00ff_ffff);
        }
    }
}
