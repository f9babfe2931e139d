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

/// A hasher that has taken the LRH.
static AFTER_LRH: LazyLock<Hasher> = LazyLock::new(|| {
    let mut crc = PRISTINE.clone();
    crc.update(&[0xff; LRH_BYTES]);
    crc
});

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
            mask(&mut image[LRH_BYTES..]);
            Some(crc(&image, rest, tail))
        }
        6 => {
            let (headers, rest) = head.split_at_checked(masked_bytes(40) - LRH_BYTES)?;
            let mut image: [u8; masked_bytes(40)] = image(headers);
            mask(&mut image[LRH_BYTES..]);
            Some(crc(&image, rest, tail))
        }
        _ => None,
    }
}

/// The same as [`compute`] of a packet that can be written: its own headers are masked meanwhile, and it is read in one go.
pub(super) fn compute_in_place(packet: &mut [u8]) -> Option<u32> {
    match packet.first()? >> 4 {
        4 => masked_in_place::<{ masked_bytes(20) - LRH_BYTES }>(packet),
        6 => masked_in_place::<{ masked_bytes(40) - LRH_BYTES }>(packet),
        _ => None,
    }
}

#[inline]
fn masked_in_place<const N: usize>(packet: &mut [u8]) -> Option<u32> {
    let kept = *packet.first_chunk::<N>()?;
    mask(&mut packet[..N]);
    let mut crc = AFTER_LRH.clone();
    crc.update(packet);
    packet[..N].copy_from_slice(&kept);
    Some(crc.finalize())
}

/// The masked part of a packet with these headers, which are not masked yet. Its length is known when it is compiled: the copy is
/// a few moves.
#[inline]
fn image<const N: usize>(headers: &[u8]) -> [u8; N] {
    let mut image = [0xff; N];
    image[LRH_BYTES..].copy_from_slice(headers);
    image
}

/// Makes ones of all fields that routers can change, in the headers of IP, UDP and the BTH.
#[inline(always)]
fn mask(headers: &mut [u8]) {
    let bth = headers.len() - Bth::BYTES;
    if bth == 20 + UDP_BYTES {
        headers[1] = 0xff; // type of service
        headers[8] = 0xff; // time to live
        headers[10..12].fill(0xff); // header checksum
    } else {
        headers[0] |= 0x0f; // traffic class and flow label
        headers[1..4].fill(0xff);
        headers[7] = 0xff; // hop limit
    }
    headers[bth - 2..bth].fill(0xff); // UDP checksum
    headers[bth + 4] = 0xff; // FECN, BECN and the reserved bits beside them
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
    fn in_place_it_is_the_same_and_the_packet_stays_what_it_was() {
        for first in [0x45, 0x65] {
            let mut packet: Vec<u8> = (0..200u8).map(|i| if i == 0 { first } else { i }).collect();
            let before = packet.clone();
            for len in [0, 30, 40, 59, 60, 61, 200] {
                let computed = compute(FrameBytes::from(&before[..len]));
                assert_eq!(compute_in_place(&mut packet[..len]), computed, "{len} bytes of {first:x}");
                assert_eq!(packet, before);
            }
        }
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
