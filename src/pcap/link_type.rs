use super::Direction;

/// The kinds of link whose frames a [`Reader`](super::Reader) returns as Ethernet frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkType {
    /// `LINKTYPE_ETHERNET`.
    Ethernet,
    /// `LINKTYPE_LINUX_SLL`: what tcpdump writes for `-i any`, 16 bytes in place of the Ethernet header.
    Cooked,
    /// `LINKTYPE_LINUX_SLL2`: the same with the interface's index, 20 bytes.
    CookedWithInterface,
}

/// Length of an Ethernet header, in bytes.
const ETHERNET_BYTES: usize = 14;

/// Where a cooked header has what an Ethernet header has, too.
struct Layout {
    header_bytes: usize,
    protocol: usize,
    packet_type: usize,
    address_length: usize,
    address: usize,
}

/// A frame with an Ethernet header.
pub(super) struct Uncooked {
    pub bytes: Vec<u8>,
    pub original_bytes: usize,
    /// The direction, where the cooked header has it.
    pub direction: Option<Direction>,
}

impl LinkType {
    /// The kind of the `LINKTYPE_` value as in tcpdump's list; `None` for one that cannot be read.
    pub fn of(value: u32) -> Option<LinkType> {
        match value {
            1 => Some(LinkType::Ethernet),
            113 => Some(LinkType::Cooked),
            276 => Some(LinkType::CookedWithInterface),
            _ => None,
        }
    }

    /// The packet with an Ethernet header in place of a cooked one: from the sender's address, to no address, since a
    /// cooked header does not have the receiver's. A packet that is shorter than its header stays as it is.
    pub fn uncook(self, bytes: Vec<u8>, original_bytes: usize) -> Uncooked {
        let layout = match self {
            LinkType::Ethernet => return Uncooked { bytes, original_bytes, direction: None },
            LinkType::Cooked => {
                Layout { header_bytes: 16, protocol: 14, packet_type: 1, address_length: 5, address: 6 }
            }
            LinkType::CookedWithInterface => {
                Layout { header_bytes: 20, protocol: 0, packet_type: 10, address_length: 11, address: 12 }
            }
        };
        if bytes.len() < layout.header_bytes {
            return Uncooked { bytes, original_bytes, direction: None };
        }
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + bytes.len() - layout.header_bytes);
        frame.extend([0; 6]);
        let has_mac = bytes[layout.address_length] == 6;
        frame.extend(if has_mac { &bytes[layout.address..layout.address + 6] } else { &[0; 6] });
        frame.extend(&bytes[layout.protocol..layout.protocol + 2]);
        frame.extend(&bytes[layout.header_bytes..]);
        // if_packet.h: PACKET_HOST is 0, PACKET_OUTGOING is 4; the others are broadcasts, and of other hosts.
        let direction = match bytes[layout.packet_type] {
            0 => Some(Direction::Received),
            4 => Some(Direction::Sent),
            _ => None,
        };
        let original_bytes = original_bytes.saturating_sub(layout.header_bytes) + ETHERNET_BYTES;
        Uncooked { original_bytes: original_bytes.max(frame.len()), bytes: frame, direction }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// The header of `packet(7)`, as the lists of link types have both of its forms.
    fn cooked(packet_type: u8, version: u8) -> Vec<u8> {
        let mut bytes = match version {
            1 => vec![0, packet_type, 0, 1, 0, 6],
            _ => vec![0x08, 0x00, 0, 0, 0, 0, 0, 9, 0, 1, packet_type, 6],
        };
        bytes.extend(MAC);
        bytes.extend([0, 0]);
        if version == 1 {
            bytes.extend([0x08, 0x00]);
        }
        bytes.extend([0x45; 30]);
        bytes
    }

    #[test]
    fn both_cooked_forms_become_ethernet_frames_with_a_direction() {
        for (link_type, version) in [(LinkType::Cooked, 1), (LinkType::CookedWithInterface, 2)] {
            for (packet_type, direction) in [(0, Some(Direction::Received)), (4, Some(Direction::Sent)), (3, None)] {
                let bytes = cooked(packet_type, version);
                let original = bytes.len() + 100;
                let uncooked = link_type.uncook(bytes, original);
                let expected = [&[0; 6][..], &MAC, &[0x08, 0x00], &[0x45; 30]].concat();
                assert_eq!((uncooked.bytes, uncooked.direction), (expected, direction), "{link_type:?}");
                assert_eq!(uncooked.original_bytes, ETHERNET_BYTES + 30 + 100);
            }
        }
    }

    #[test]
    fn a_packet_that_is_shorter_than_its_header_stays_as_it_is() {
        for link_type in [LinkType::Cooked, LinkType::CookedWithInterface] {
            for length in 0..16 {
                let uncooked = link_type.uncook(vec![6; length], 60);
                assert_eq!((uncooked.bytes.len(), uncooked.original_bytes), (length, 60));
            }
        }
    }
}
