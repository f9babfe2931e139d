use super::netlink::Mac;

/// The Ethernet header that a link puts before the packets to one next hop, except the EtherType, which follows from
/// the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    bytes: [u8; EthernetHeader::BYTES_MAX],
    len: u8,
}

impl EthernetHeader {
    /// Length of the longest header, in bytes.
    pub const BYTES_MAX: usize = 18;

    /// A header. `tag` is a VLAN identifier, whose low twelve bits count, and the EtherType of its tag: 0x8100 (802.1Q)
    /// or 0x88a8 (802.1ad).
    pub fn new(destination: Mac, source: Mac, tag: Option<(u16, u16)>) -> EthernetHeader {
        let mut bytes = [0; EthernetHeader::BYTES_MAX];
        bytes[..6].copy_from_slice(&destination);
        bytes[6..12].copy_from_slice(&source);
        let len = match tag {
            None => 14,
            Some((id, ethertype)) => {
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                bytes[14..16].copy_from_slice(&(id & 0x0fff).to_be_bytes());
                18
            }
        };
        EthernetHeader { bytes, len }
    }

    /// Length on the wire, in bytes: 14, or 18 with a VLAN tag.
    #[allow(clippy::len_without_is_empty, reason = "no header is empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Writes the header before an IP packet, whose version (4 or 6) decides the EtherType.
    ///
    /// # Panics
    /// When `to` is shorter than [`len`](EthernetHeader::len).
    pub fn write(&self, to: &mut [u8], ip_version: u8) {
        let len = self.len();
        to[..len].copy_from_slice(&self.bytes[..len]);
        let ethertype: u16 = if ip_version == 6 { 0x86dd } else { 0x0800 };
        to[len - 2..len].copy_from_slice(&ethertype.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_ether_type_of_the_packet_behind_any_tag() {
        let mut bytes = [0; EthernetHeader::BYTES_MAX];
        let plain = EthernetHeader::new([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12], None);
        plain.write(&mut bytes, 4);
        assert_eq!(bytes[..14], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x08, 0x00]);
        let tagged = EthernetHeader::new([1; 6], [2; 6], Some((5, 0x8100)));
        tagged.write(&mut bytes, 6);
        assert_eq!(bytes[12..], [0x81, 0, 0, 5, 0x86, 0xdd]);
        assert_eq!((plain.len(), tagged.len()), (14, 18));
    }
}
