//! In-band telemetry: what a switch writes into a frame that has room for it (docs/EXTENSIONS.md, kind 8).

use uroce::wire::{Bth, ICRC_BYTES, LinkRecord, Packet, Telemetry};
use zerocopy::FromBytes;

use super::network::bth_offset;

/// Where the room for telemetry begins, which the tag and the ICRC follow.
fn offset(frame: &[u8]) -> Option<usize> {
    frame.len().checked_sub(Telemetry::BYTES + Packet::TAG_BYTES + ICRC_BYTES)
}

/// Whether a frame is a request with room for telemetry. Acknowledges return that of others.
pub(super) fn is_wanted(frame: &[u8]) -> bool {
    let Ok((bth, _)) = Bth::ref_from_prefix(frame.get(bth_offset(frame)..).unwrap_or_default()) else { return false };
    let is_request = bth.extended() && !bth.opcode().is_response();
    is_request && read(frame).is_some()
}

fn read(frame: &[u8]) -> Option<Telemetry> {
    let at = offset(frame)?;
    Telemetry::parse(&frame[at..at + Telemetry::BYTES])
}

/// Adds a record to the telemetry of a frame; one for which there is no room is left out.
///
/// A CRC is linear: the ICRC changes by the difference that the new bytes make in the CRC from there on. So the switch needs no
/// other byte of the frame, and bits that were flipped before are still noticed.
pub(super) fn write(frame: &mut [u8], switch: u16, record: LinkRecord) {
    let (Some(at), Some(mut telemetry)) = (offset(frame), read(frame)) else { return };
    if telemetry.links.try_push(record).is_err() {
        return;
    }
    telemetry.path ^= switch;
    let end = frame.len() - ICRC_BYTES;
    let before = crc32fast::hash(&frame[at..end]);
    frame[at..at + Telemetry::BYTES].copy_from_slice(&telemetry.to_bytes());
    let difference = before ^ crc32fast::hash(&frame[at..end]);
    frame[end..].iter_mut().zip(difference.to_le_bytes()).for_each(|(byte, change)| *byte ^= change);
}

#[cfg(test)]
mod tests {
    use uroce::frame::FrameBytes;
    use uroce::wire::{Body, Extension, Headers, Opcode, Psn, Qpn, RequestTrailer, RoceFrame};

    use super::*;
    use crate::ethernet::ETHERNET_BYTES;
    use crate::world::{flow, with_ethernet};

    const RECORD: LinkRecord = LinkRecord { rate_bps: 25_000_000_000, queue_bytes: 512, time_ns: 3, sent_bytes: 4 };

    fn frame(opcode: Opcode) -> Vec<u8> {
        let bth = Bth::new(opcode, Qpn::new(1), Psn::new(2)).with_extended(true);
        let trailer = [&RequestTrailer::default().to_bytes()[..], &Telemetry::default().to_bytes()].concat();
        let body = Body { payload_bytes: 40, trailer: &trailer, tag: Some(7) };
        let mut bytes = [0; 400];
        let flow = flow([10, 0, 0, 1], [10, 0, 0, 2]);
        let headers = Headers { bth, extension: Extension::None };
        let len = headers.write(&mut bytes, &flow, 0, body, |_| Ok::<_, std::convert::Infallible>(())).unwrap();
        with_ethernet(&bytes[..len])
    }

    fn icrc_is_right(frame: &[u8]) -> bool {
        RoceFrame::parse(FrameBytes::from(frame)).unwrap().icrc_ok()
    }

    #[test]
    fn switches_write_one_after_the_other_and_the_icrc_stays_right() {
        let mut frame = frame(Opcode::RC_SEND_MIDDLE);
        for switch in 1..=7_u16 {
            assert!(is_wanted(&frame));
            write(&mut frame, 1 << switch, RECORD);
            let telemetry = read(&frame).unwrap();
            let most = switch.min(5);
            assert_eq!((telemetry.path, telemetry.links.len()), ((2 << most) - 2, usize::from(most)));
            assert!(icrc_is_right(&frame) && telemetry.links.iter().all(|link| *link == RECORD));
        }
        // What was damaged stays so.
        let mut damaged = self::frame(Opcode::RC_SEND_MIDDLE);
        damaged[60] ^= 1;
        write(&mut damaged, 1, RECORD);
        assert!(!icrc_is_right(&damaged));
    }

    #[test]
    fn only_requests_with_room_are_written_to() {
        assert!(!is_wanted(&frame(Opcode::RC_READ_RESPONSE_MIDDLE)), "its data can look like that");
        let mut other = frame(Opcode::RC_SEND_MIDDLE);
        let kind = other.len() - 9;
        other[kind] = 0x12;
        assert!(!is_wanted(&other));
        (ETHERNET_BYTES..other.len()).for_each(|len| assert!(!is_wanted(&other[..len])));
    }
}
