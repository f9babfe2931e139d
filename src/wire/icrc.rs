//! The invariant CRC of RoCE v2 (IBTA 7.8.1 and Annex A17.3.3).
//!
//! It is the Ethernet CRC-32 over eight bytes of ones (where an InfiniBand packet has its LRH), IP header, UDP header,
//! BTH and all that follows. Every field that routers can change counts as ones. The ICRC is little-endian on the wire.

use std::sync::LazyLock;

use arrayvec::ArrayVec;
use crc32fast::Hasher;

use crate::frame::FrameBytes;

use super::{Bth, ICRC_BYTES};

const UDP_BYTES: usize = 8;

/// Bytes of ones where an InfiniBand packet has its LRH.
const LRH_BYTES: usize = 8;

/// The masked part of a packet: an IP header of `ip_bytes` without options or extensions, UDP and BTH.
const fn masked_bytes(ip_bytes: usize) -> usize {
    ip_bytes + UDP_BYTES + Bth::BYTES
}

/// A hasher that has taken the LRH. A new one probes the processor's features, which costs as much as 64 bytes of CRC.
static AFTER_LRH: LazyLock<Hasher> = LazyLock::new(|| {
    let mut crc = Hasher::new();
    crc.update(&[0xff; LRH_BYTES]);
    crc
});

/// Computes the ICRC of the packet that begins with the IP header in `packet` and ends where the ICRC begins.
///
/// The first nibble selects IPv4 (20 bytes of header, no options) or IPv6 (40 bytes, no extension headers). `None` when
/// that nibble is neither 4 nor 6, or when `packet.head` ends before the BTH does.
pub fn compute(packet: FrameBytes<'_>) -> Option<u32> {
    match packet.head.first()? >> 4 {
        4 => masked_copy::<{ masked_bytes(20) }>(packet),
        6 => masked_copy::<{ masked_bytes(40) }>(packet),
        _ => None,
    }
}

/// Length of the packets of which nothing but a copy is read, in bytes: the CRC of one long part takes less time than that of
/// two short ones, by more than the copy takes.
const SHORT_BYTES: usize = 256;

#[inline]
fn masked_copy<const N: usize>(packet: FrameBytes<'_>) -> Option<u32> {
    let FrameBytes { head, tail } = packet;
    let (headers, rest) = head.split_first_chunk::<N>()?;
    let mut copy = ArrayVec::<u8, SHORT_BYTES>::new();
    copy.try_extend_from_slice(&masked(headers)).expect("headers are short");
    let mut crc = AFTER_LRH.clone();
    let is_short = copy.try_extend_from_slice(rest).is_ok();
    crc.update(&copy);
    if !is_short {
        crc.update(rest);
    }
    if !tail.is_empty() {
        crc.update(tail);
    }
    Some(crc.finalize())
}

/// The same as [`compute`] of a packet that can be written: its own headers are masked meanwhile, and it is read in one go.
pub(super) fn compute_in_place(packet: &mut [u8]) -> Option<u32> {
    match packet.first()? >> 4 {
        4 => masked_in_place::<{ masked_bytes(20) }>(packet),
        6 => masked_in_place::<{ masked_bytes(40) }>(packet),
        _ => None,
    }
}

#[inline]
fn masked_in_place<const N: usize>(packet: &mut [u8]) -> Option<u32> {
    let kept = *packet.first_chunk::<N>()?;
    packet[..N].copy_from_slice(&masked(&kept));
    let mut crc = AFTER_LRH.clone();
    crc.update(packet);
    packet[..N].copy_from_slice(&kept);
    Some(crc.finalize())
}

/// The headers of IP, UDP and the BTH with ones in all fields that routers can change. They are masked in large pieces, as what
/// reads them next does: a processor waits where it reads in one piece what was just written in several.
#[inline]
fn masked<const N: usize>(headers: &[u8; N]) -> [u8; N] {
    let mask = const { mask::<N>() };
    std::array::from_fn(|at| headers[at] | mask[at])
}

/// The bits of the `N` bytes of headers that routers can change.
const fn mask<const N: usize>() -> [u8; N] {
    let (mut mask, bth) = ([0; N], N - Bth::BYTES);
    if N == masked_bytes(20) {
        mask[1] = 0xff; // type of service
        mask[8] = 0xff; // time to live
        (mask[10], mask[11]) = (0xff, 0xff); // header checksum
    } else {
        mask[0] = 0x0f; // traffic class and flow label
        (mask[1], mask[2], mask[3]) = (0xff, 0xff, 0xff);
        mask[7] = 0xff; // hop limit
    }
    (mask[bth - 2], mask[bth - 1]) = (0xff, 0xff); // UDP checksum
    mask[bth + 4] = 0xff; // FECN, BECN and the reserved bits beside them
    mask
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
            let mut packet: Vec<u8> = (0..300).map(|i| if i == 0 { first } else { i as u8 }).collect();
            let before = packet.clone();
            for len in [0, 30, 40, 59, 60, 61, 200, 256, 257, 300] {
                let computed = compute(FrameBytes::from(&before[..len]));
                assert_eq!(compute_in_place(&mut packet[..len]), computed, "{len} bytes of {first:x}");
                assert_eq!(packet, before);
            }
        }
    }

    #[test]
    fn parts_do_not_matter() {
        let packet: Vec<u8> = (0..300).map(|i| if i == 0 { 0x45 } else { i as u8 }).collect();
        let whole = compute(FrameBytes::from(&packet[..]));
        for cut in 40..packet.len() {
            let (head, tail) = packet.split_at(cut);
            assert_eq!(compute(FrameBytes { head, tail }), whole);
            assert_eq!(stored(FrameBytes { head, tail }), stored(FrameBytes::from(&packet[..])));
        }
    }
}
