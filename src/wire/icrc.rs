//! The invariant CRC of RoCE v2 (IBTA 7.8.1 and Annex A17.3.3).
//!
//! It is the Ethernet CRC-32 over eight bytes of ones (where an InfiniBand packet has its LRH), IP header, UDP header,
//! BTH and all that follows. Every field that routers can change counts as ones. The ICRC is little-endian on the wire.

use std::sync::LazyLock;

use crc32fast::Hasher;

use crate::frame::FrameBytes;

use super::{Bth, ICRC_BYTES};

/// IPv4 20 or IPv6 40, UDP 8 and BTH 12 bytes: the part with masked fields.
const MASKED_MAX: usize = 40 + UDP_BYTES + Bth::BYTES;
const UDP_BYTES: usize = 8;

/// A hasher without input. A new one probes the processor's features, which costs as much as 64 bytes of CRC.
static PRISTINE: LazyLock<Hasher> = LazyLock::new(Hasher::new);

/// Computes the ICRC of the packet that begins with the IP header in `packet` and ends where the ICRC begins.
///
/// The first nibble selects IPv4 (20 bytes of header, no options) or IPv6 (40 bytes, no extension headers). `None` when
/// that nibble is neither 4 nor 6, or when `packet.head` ends before the BTH does.
pub fn compute(packet: FrameBytes<'_>) -> Option<u32> {
    let ip_bytes = match packet.head.first()? >> 4 {
        4 => 20,
        6 => 40,
        _ => return None,
    };
    let masked_bytes = ip_bytes + UDP_BYTES + Bth::BYTES;
    let (headers, rest) = packet.head.split_at_checked(masked_bytes)?;

    let mut masked = [0xff; 8 + MASKED_MAX];
    let image = &mut masked[8..8 + masked_bytes];
    image.copy_from_slice(headers);
    if ip_bytes == 20 {
        image[1] = 0xff; // type of service
        image[8] = 0xff; // time to live
        image[10..12].fill(0xff); // header checksum
    } else {
        image[0] |= 0x0f; // traffic class and flow label
        image[1..4].fill(0xff);
        image[7] = 0xff; // hop limit
    }
    image[ip_bytes + 6..ip_bytes + 8].fill(0xff); // UDP checksum
    image[ip_bytes + UDP_BYTES + 4] = 0xff; // FECN, BECN and the reserved bits beside them

    let mut crc = PRISTINE.clone();
    crc.update(&masked[..8 + masked_bytes]);
    crc.update(rest);
    if !packet.tail.is_empty() {
        crc.update(packet.tail);
    }
    Some(crc.finalize())
}

/// The ICRC in the last four bytes of `packet`, which can lie across the two parts. `None` when there are fewer bytes.
pub fn stored(packet: FrameBytes<'_>) -> Option<u32> {
    packet.last_chunk::<ICRC_BYTES>().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_short_or_strange_packets_have_none() {
        assert_eq!(compute(FrameBytes::from(&[][..])), None);
        assert_eq!(compute(FrameBytes::from(&[0x45; 39][..])), None);
        assert_eq!(compute(FrameBytes::from(&[0x65; 59][..])), None);
        assert_eq!(compute(FrameBytes::from(&[0x55; 100][..])), None);
        assert_eq!(stored(FrameBytes::from(&[1, 2, 3][..])), None);
    }

    #[test]
    fn parts_do_not_matter() {
        let packet: Vec<u8> = (0..200u8).map(|i| if i == 0 { 0x45 } else { i }).collect();
        let whole = compute(FrameBytes::from(&packet[..]));
        for cut in 40..packet.len() {
            let (head, tail) = packet.split_at(cut);
            assert_eq!(compute(FrameBytes { head, tail }), whole);
            assert_eq!(stored(FrameBytes { head, tail }), stored(FrameBytes::from(&packet[..])));
        }
    }
}
