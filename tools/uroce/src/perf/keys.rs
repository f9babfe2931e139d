use std::net::Ipv6Addr;

use uroce::verbs::{Key, Psn, Qpn};

use crate::Failure;
use crate::terms::Terms;

/// What perftest's handshake says of a queue pair: 108 characters, hexadecimal fields that end in colons, and a NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Whether its program is uroce, by the LID.
    pub is_uroce: bool,
    /// READs and atomics that the peer may have outstanding.
    pub outstanding: u16,
    pub qpn: Qpn,
    pub psn: Psn,
    /// The R_Key of the memory at `address`.
    pub key: Key,
    /// Where WRITEs, READs and atomics go.
    pub address: u64,
    pub gid: Ipv6Addr,
}

impl Keys {
    /// Bytes of the message. (59 without a GID, which RoCE does not do without.)
    pub const BYTES: usize = 108;

    /// The message.
    pub fn to_bytes(self) -> [u8; Keys::BYTES] {
        let Keys { is_uroce, outstanding, qpn, psn, key, address, gid } = self;
        let gid: String = gid.octets().iter().map(|octet| format!("{octet:02x}:")).collect();
        let (qpn, psn, key) = (qpn.value(), psn.value(), key.0);
        let lid = if is_uroce { Terms::LID } else { 0 };
        let text = format!("{lid:04x}:{outstanding:04x}:{qpn:06x}:{psn:06x}:{key:08x}:{address:016x}:{gid}00000000:\0");
        text.as_bytes().try_into().expect("every field has a fixed number of digits")
    }

    /// Reads the message.
    pub fn parse(bytes: &[u8; Keys::BYTES]) -> Result<Keys, Failure> {
        let text = std::str::from_utf8(bytes).unwrap_or("").trim_end_matches('\0');
        let wrong = || {
            Failure::from(format!(
                "the peer's keys {text:?} are not lid:reads:qpn:psn:rkey:address:gid:srqn; is it a perftest of the same \
                 kind, without -R?"
            ))
        };
        let mut fields = text.split(':');
        let mut next = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits && !field.starts_with('+'));
            field.and_then(|field| u64::from_str_radix(field, 16).ok()).ok_or_else(wrong)
        };
        let is_uroce = next(4)? == u64::from(Terms::LID);
        let outstanding = next(4)? as u16;
        let qpn = Qpn::new(next(6)? as u32);
        let psn = Psn::new(next(6)? as u32);
        let key = Key(next(8)? as u32);
        let address = next(16)?;
        let mut gid = [0; 16];
        for octet in &mut gid {
            *octet = next(2)? as u8;
        }
        let _srqn = next(8)?;
        Ok(Keys { is_uroce, outstanding, qpn, psn, key, address, gid: gid.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured from Debian 12's ib_write_bw.
    const CAPTURED: &[u8; Keys::BYTES] = b"0000:0001:000028:77a3fc:00001913:0000561be93bd000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:03:00000000:\0";

    #[test]
    fn the_keys_are_those_of_ib_write_bw() {
        let keys = Keys {
            is_uroce: false,
            outstanding: 1,
            qpn: Qpn::new(0x28),
            psn: Psn::new(0x77a3fc),
            key: Key(0x1913),
            address: 0x561b_e93b_d000,
            gid: "::ffff:10.77.0.3".parse().unwrap(),
        };
        assert_eq!(Keys::parse(CAPTURED).unwrap(), keys);
        assert_eq!(&keys.to_bytes(), CAPTURED);
    }

    #[test]
    fn other_messages_are_refused_with_what_was_expected() {
        for (at, byte) in [(0, b'g'), (5, b'+'), (4, b'0'), (60, 0xff), (106, b'0'), (50, b':')] {
            let mut bytes = *CAPTURED;
            bytes[at] = byte;
            let error = Keys::parse(&bytes).map(|keys| format!("{at}: {keys:?}")).unwrap_err();
            assert!(error.to_string().contains("lid:reads:qpn:psn:rkey:address:gid:srqn"), "{error}");
        }
        assert!(Keys::parse(&[0; Keys::BYTES]).is_err());
    }
}
