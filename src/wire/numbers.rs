use std::fmt;

/// A queue pair number: 24 bits (IBTA 3.5.1). 0 and 1 are the management queue pairs, 0xffffff is multicast.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services queue pair, which carries connection management (IBTA 3.5.1).
    pub const GSI: Qpn = Qpn(1);

    /// All queue pairs that are attached to the multicast group that a datagram goes to (IBTA 10.5.2).
    pub const MULTICAST: Qpn = Qpn(0x00ff_ffff);

    /// The QPN with the low 24 bits of `value`.
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & 0x00ff_ffff)
    }

    /// The value, 0 to 2^24 − 1.
    pub const fn value(self) -> u32 {
        self.0
    }

    pub(super) const fn to_be_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    pub(super) const fn from_be_bytes([a, b, c]: [u8; 3]) -> Qpn {
        Qpn(u32::from_be_bytes([0, a, b, c]))
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A message sequence number: the responder's count of completed messages, 24 bits (IBTA 9.7.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// The MSN with the low 24 bits of `value`.
    pub const fn new(value: u32) -> Msn {
        Msn(value & 0x00ff_ffff)
    }

    /// The value, 0 to 2^24 − 1.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The next MSN, modulo 2^24.
    pub const fn next(self) -> Msn {
        Msn::new(self.0.wrapping_add(1))
    }
}

/// A partition key: bit 15 is membership (1 full, 0 limited), the rest the partition (IBTA 10.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition with full membership, the only one RoCE devices use.
    pub const DEFAULT: PKey = PKey(0xffff);

    /// Whether a packet with `other` is accepted by a queue pair with this key: same partition, and not both limited
    /// members (IBTA 10.9.3). Partition 0 is invalid.
    pub const fn matches(self, other: PKey) -> bool {
        let partition = self.0 & 0x7fff;
        partition != 0 && partition == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

/// A queue key, which guards datagram queue pairs (IBTA 10.2.4). Keys with the top bit set are privileged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

/// A memory key: the L_Key or R_Key of a region or window (IBTA 10.6.3).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Key(pub u32);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:#010x})", self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_keys_match_unless_both_are_limited_or_the_partition_differs() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(PKey(0x7fff).matches(PKey::DEFAULT));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey::DEFAULT.matches(PKey(0x8001)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
    }
}
