use std::fmt;

/// The Ethernet header that a link puts in front of the packets to one next hop, but for the EtherType, which follows
/// from the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetHeader {
    /// Whom the frame goes to.
    pub destination: Mac,
    /// The interface that it leaves by.
    pub source: Mac,
    /// The VLAN tag that the interface adds.
    pub vlan: Option<VlanTag>,
}

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub tpid: u16,
    /// Priority (3 bits), drop eligible (1 bit), identifier (12 bits).
    pub tci: u16,
}

impl EthernetHeader {
    /// Bytes of the longest header.
    pub const BYTES_MAX: usize = 18;

    /// Bytes on the wire: 14, or 18 with a VLAN tag.
    pub const fn len(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    /// Never: a header has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The header of a packet whose first byte is `first`, in the first [`len`](EthernetHeader::len) bytes: IPv6 when
    /// the version in it is 6, else IPv4.
    pub fn bytes(&self, first: u8) -> [u8; EthernetHeader::BYTES_MAX] {
        let mut bytes = [0; EthernetHeader::BYTES_MAX];
        bytes[..6].copy_from_slice(&self.destination.0);
        bytes[6..12].copy_from_slice(&self.source.0);
        if let Some(tag) = self.vlan {
            bytes[12..14].copy_from_slice(&tag.tpid.to_be_bytes());
            bytes[14..16].copy_from_slice(&tag.tci.to_be_bytes());
        }
        let ether_type: u16 = if first >> 4 == 6 { 0x86dd } else { 0x0800 };
        bytes[self.len() - 2..self.len()].copy_from_slice(&ether_type.to_be_bytes());
        bytes
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_ether_type_of_the_packet_behind_any_tag() {
        let plain =
            EthernetHeader { destination: Mac([1, 2, 3, 4, 5, 6]), source: Mac([7, 8, 9, 10, 11, 12]), vlan: None };
        assert_eq!(plain.bytes(0x45)[..14], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x08, 0x00]);
        let tagged = EthernetHeader { vlan: Some(VlanTag { tpid: 0x8100, tci: 0x6005 }), ..plain };
        assert_eq!(tagged.bytes(0x60)[12..], [0x81, 0, 0x60, 5, 0x86, 0xdd]);
        assert_eq!((plain.len(), tagged.len()), (14, 18));
        assert_eq!(plain.destination.to_string(), "01:02:03:04:05:06");
    }
}
