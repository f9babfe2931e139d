//! The dissection of a captured frame: headers, lengths and checksums, as far as it was captured.

use std::fmt;

use uroce::frame::FrameBytes;
use uroce::wire::{Bth, FrameError, ICRC_BYTES, IpHeader, Packet, PacketError, ROCE_PORT, RoceFrame};
use zerocopy::FromBytes;

/// The contents of a captured frame, as far as it was captured and is consistent.
#[derive(Clone, Debug)]
pub struct Dissection<'a> {
    /// The Ethernet, IP and UDP headers; `None` when they contradict each other.
    pub frame: Option<RoceFrame<'a>>,
    /// The base transport header; `None` when it is not complete.
    pub bth: Option<&'a Bth>,
    /// The packet; `None` when its lengths contradict each other, or not all of its headers were captured.
    pub packet: Option<Packet<'a>>,
    /// The result of the ICRC check.
    pub icrc: Icrc,
    /// The first contradiction that was found; `None` for a sound frame.
    pub malformed: Option<Malformed>,
}

/// The result of a check of the invariant CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// The ICRC is correct.
    Ok,
    /// The ICRC is wrong.
    Bad,
    /// The ICRC cannot be checked: a snap length cut the frame, or the frame has no room for it.
    Absent,
}

impl fmt::Display for Icrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Icrc::Ok => "ok",
            Icrc::Bad => "bad",
            Icrc::Absent => "absent",
        })
    }
}

/// A header or a length that contradicts the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The fault is in the Ethernet, IP or UDP header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The fault is in the InfiniBand headers.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The IPv4 header checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    Ipv4Checksum,
}

const UDP_BYTES: usize = 8;

impl<'a> Dissection<'a> {
    /// Dissects `frame`, an Ethernet frame at its original length, of which the first `captured_bytes` were captured
    /// (see [`CapturedFrame::padded`](uroce::pcap::CapturedFrame::padded)).
    ///
    /// `None` when it is not an IP packet to UDP port 4791, or too little of it was captured to decide.
    pub fn of(frame: &'a [u8], captured_bytes: usize) -> Option<Dissection<'a>> {
        let nothing = Dissection { frame: None, bth: None, packet: None, icrc: Icrc::Absent, malformed: None };
        let parsed = RoceFrame::parse(FrameBytes::from(frame));
        // Zeros in place of a header that was not captured decide nothing.
        udp_start(frame).filter(|start| start + UDP_BYTES <= captured_bytes)?;
        let roce = match parsed {
            Ok(roce) => roce,
            Err(error @ (FrameError::Length { .. } | FrameError::Ipv4Options)) => {
                return Some(Dissection { malformed: Some(error.into()), ..nothing });
            }
            Err(error @ FrameError::Fragment) => {
                return is_first_fragment_to_roce(frame)
                    .then_some(Dissection { malformed: Some(error.into()), ..nothing });
            }
            Err(_) => return None,
        };
        // The number of captured bytes from the BTH on.
        let ib_start = roce.ib.head.as_ptr() as usize - frame.as_ptr() as usize;
        let captured = captured_bytes.checked_sub(ib_start)?;
        let is_whole = captured >= roce.ib.len();

        let bth =
            (captured >= Bth::BYTES).then(|| Bth::ref_from_prefix(roce.ib.head).ok()).flatten().map(|(bth, _)| bth);
        let mut malformed = match &roce.ip {
            ip @ IpHeader::V4(_) if !ip.checksum_ok() => Some(Malformed::Ipv4Checksum),
            _ => None,
        };
        let mut packet = None;
        if is_whole || bth.is_some() {
            match Packet::parse(roce.ib) {
                Ok(parsed) => {
                    let headers_end = Bth::BYTES + parsed.bth().opcode().extension_bytes();
                    packet = (captured >= headers_end).then_some(parsed);
                }
                Err(error) => malformed = Some(error.into()),
            }
        }
        let icrc = match (is_whole && roce.ib.len() >= Bth::BYTES + ICRC_BYTES, roce.icrc_ok()) {
            (false, _) => Icrc::Absent,
            (true, true) => Icrc::Ok,
            (true, false) => Icrc::Bad,
        };
        Some(Dissection { frame: Some(roce), bth, packet, icrc, malformed })
    }

    /// Whether the frame has no fault: no part is malformed, and the ICRC is not wrong.
    pub fn is_sound(&self) -> bool {
        self.malformed.is_none() && self.icrc != Icrc::Bad
    }
}

/// The offset of the UDP header in a frame, if it is an IP packet over UDP.
fn udp_start(frame: &[u8]) -> Option<usize> {
    let ip_start = if matches!(frame.get(12..14)?, [0x08, 0x00] | [0x86, 0xdd]) { 14 } else { 18 };
    let first = *frame.get(ip_start)?;
    Some(ip_start + if first >> 4 == 6 { 40 } else { usize::from(first & 15) * 4 })
}

/// Whether an IPv4 fragment begins with a UDP header to port 4791; later fragments have no ports.
fn is_first_fragment_to_roce(frame: &[u8]) -> bool {
    let Some(udp) = udp_start(frame) else { return false };
    let ip_start = if matches!(frame[12..14], [0x08, 0x00]) { 14 } else { 18 };
    let offset = u16::from_be_bytes([frame[ip_start + 6], frame[ip_start + 7]]) & 0x1fff;
    offset == 0 && frame.get(udp + 2..udp + 4) == Some(&ROCE_PORT.to_be_bytes()[..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_frame_can_be_dissected(bytes in prop::collection::vec(any::<u8>(), 0..200), captured in 0usize..200) {
            let captured = captured.min(bytes.len());
            let _ = Dissection::of(&bytes, captured);
        }
    }
}
