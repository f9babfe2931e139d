//! The invariant CRC of RoCE v2 (IBTA 7.8.1 and Annex A17.3.3).
//!
//! It is the Ethernet CRC-32 over eight bytes of ones (where an InfiniBand packet has its LRH), IP header, UDP header,
//! BTH and all that follows. Every field that routers can change counts as ones. The ICRC is little-endian on the wire.

use std::sync::LazyLock;

use crc32fast::Hasher;

use crate::frame::FrameBytes;

use super::{Bth, ICRC_BYTES};

const UDP_BYTES: usize = 8;

/// Bytes of ones where an InfiniBand packet has its LRH.
const LRH_BYTES: usize = 8;

/// The masked part: the LRH, an IP header of `ip_bytes` without options or extensions, UDP and BTH.
const fn masked_bytes(ip_bytes: usize) -> usize {
    LRH_BYTES + ip_bytes + UDP_BYTES + Bth::BYTES
}

/// A hasher without input. A new one probes the processor's features, which costs as much as 64 bytes of CRC.
static PRISTINE: LazyLock<Hasher> = LazyLock::new(Hasher::new);

/// Computes the ICRC of the packet that begins with the IP header in `packet` and ends where the ICRC begins.
///
/// The first nibble selects IPv4 (20 bytes of header, no options) or IPv6 (40 bytes, no extension headers). `None` when
/// that nibble is neither 4 nor 6, or when `packet.head` ends before the BTH does.
pub fn compute(packet: FrameBytes<'_>) -> Option<u32> {
    let FrameBytes { head, tail } = packet;
    match head.first()? >> 4 {
        4 => {
            let (headers, rest) = head.split_at_checked(masked_bytes(20) - LRH_BYTES)?;
            let mut image: [u8; masked_bytes(20)] = image(headers);
            let ip = &mut image[LRH_BYTES..];
            ip[1] = 0xff; // type of service
            ip[8] = 0xff; // time to live
            ip[10..12].fill(0xff); // header checksum
            Some(crc(&image, rest, tail))
        }
        6 => {
            let (headers, rest) = head.split_at_checked(masked_bytes(40) - LRH_BYTES)?;
            let mut image: [u8; masked_bytes(40)] = image(headers);
            let ip = &mut image[LRH_BYTES..];
            ip[0] |= 0x0f; // traffic class and flow label
            ip[1..4].fill(0xff);
            ip[7] = 0xff; // hop limit
            Some(crc(&image, rest, tail))
        }
        _ => None,
    }
}

/// The masked part of a packet with these headers, before the fields of IP are masked. Its length is known when it is
/// compiled: the copy is a few moves.
#[inline]
fn image<const N: usize>(headers: &[u8]) -> [u8; N] {
    let mut image = [0xff; N];
    image[LRH_BYTES..].copy_from_slice(headers);
    let bth = N - Bth::BYTES;
    image[bth - 2..bth].fill(0xff); // UDP checksum
    image[bth + 4] = 0xff; // FECN, BECN and the reserved bits beside them
    image
}

/// The CRC of the masked part and what follows it, in one or two parts.
#[inline]
fn crc(masked: &[u8], rest: &[u8], tail: &[u8]) -> u32 {
    let mut crc = PRISTINE.clone();
    crc.update(masked);
    crc.update(rest);
    if !tail.is_empty() {
        crc.update(tail);
    }
    crc.finalize()
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
