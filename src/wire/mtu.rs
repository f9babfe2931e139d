use std::fmt;
use std::str::FromStr;

/// A path MTU: the payload bytes of a full packet (IBTA 9.7.4.3; codes as in `enum ibv_mtu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes of payload a packet.
    Mtu256 = 1,
    /// 512 bytes of payload a packet.
    Mtu512 = 2,
    /// 1024 bytes of payload a packet.
    Mtu1024 = 3,
    /// 2048 bytes of payload a packet.
    Mtu2048 = 4,
    /// 4096 bytes of payload a packet.
    Mtu4096 = 5,
}

impl PathMtu {
    /// All path MTUs, smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// Payload of a full packet, in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The path MTU of exactly `bytes` payload bytes; `None` when there is none.
    pub fn from_bytes(bytes: usize) -> Option<PathMtu> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The path MTU with this code (1 to 5), as the IBTA and the verbs number them; `None` for other codes.
    pub fn from_code(code: u8) -> Option<PathMtu> {
        Self::ALL.into_iter().find(|mtu| *mtu as u8 == code)
    }

    /// The largest path MTU whose packets fit into IP packets of `bytes`; `None` when 256 bytes and the headers do not
    /// fit.
    ///
    /// rxe reserves 80 bytes for headers and ICRC (`RXE_MAX_HDR_LENGTH`). We reserve the same, so that two ends of one
    /// link agree.
    pub fn fitting(bytes: usize) -> Option<PathMtu> {
        const RESERVED_BYTES: usize = 80;
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + RESERVED_BYTES <= bytes)
    }

    /// Packets in a message of `len` bytes; an empty message takes one.
    pub const fn packets(self, len: usize) -> u32 {
        let packets = len.div_ceil(self.bytes());
        if packets == 0 { 1 } else { packets as u32 }
    }
}

/// A text that is not a path MTU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a path MTU: use 256, 512, 1024, 2048 or 4096")]
pub struct PathMtuError(String);

impl FromStr for PathMtu {
    type Err = PathMtuError;

    /// Reads the bytes of payload.
    fn from_str(text: &str) -> Result<PathMtu, PathMtuError> {
        text.parse().ok().and_then(PathMtu::from_bytes).ok_or_else(|| PathMtuError(text.to_owned()))
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_mtus_give_the_path_mtus_of_rxe() {
        assert_eq!(PathMtu::fitting(1500), Some(PathMtu::Mtu1024));
        assert_eq!(PathMtu::fitting(4500), Some(PathMtu::Mtu4096));
        assert_eq!(PathMtu::fitting(4176), Some(PathMtu::Mtu4096));
        assert_eq!(PathMtu::fitting(4175), Some(PathMtu::Mtu2048));
        assert_eq!(PathMtu::fitting(335), None);
    }

    #[test]
    fn path_mtus_are_written_in_bytes() {
        assert!(PathMtu::ALL.into_iter().all(|mtu| mtu.to_string().parse() == Ok(mtu)));
        assert_eq!("5".parse::<PathMtu>(), Err(PathMtuError("5".to_owned())));
    }

    #[test]
    fn empty_messages_take_a_packet() {
        assert_eq!(PathMtu::Mtu256.packets(0), 1);
        assert_eq!(PathMtu::Mtu256.packets(256), 1);
        assert_eq!(PathMtu::Mtu256.packets(257), 2);
    }
}
