//! Whatever arrives, reading it gives a value or an error, never a panic, and what is given lies within what arrived.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use uroce::frame::FrameBytes;
use uroce::wire::{Addresses, Bth, Extension, Flow, Headers, Opcode, Packet, Psn, Qpn, RoceFrame, WriteError, icrc};
use uroce_laboratory::dissection::{Dissection, Icrc};

fn flow(v6: bool) -> Flow {
    let addresses = if v6 {
        Addresses::V6 { source: Ipv6Addr::LOCALHOST, destination: Ipv6Addr::UNSPECIFIED }
    } else {
        Addresses::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::BROADCAST }
    };
    Flow { addresses, source_port: 0xc000, traffic_class: 2, hop_limit: 64, flow_label: if v6 { 7 } else { 0 } }
}

/// A frame without extended headers, whatever its opcode demands: a short one of some kinds.
fn frame(v6: bool, tagged: bool, opcode: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![0; 12];
    if tagged {
        frame.extend([0x81, 0x00, 0x20, 0x05]);
    }
    frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    let start = frame.len();
    frame.resize(start + 200 + payload, 0);
    let headers = Headers { bth: Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(1), Psn::new(2)), extension: Extension::None };
    let fill = |out: &mut [u8]| {
        out.fill(0x5a);
        Ok::<_, Infallible>(())
    };
    let len = headers.write(&mut frame[start..], &flow(v6), 3, payload, fill).unwrap();
    frame.truncate(start + len);
    frame[start + flow(v6).header_bytes()] = opcode;
    frame
}

/// Reads everything there is to read, in two parts, and checks that it lies within.
fn read_all(bytes: &[u8], split: usize) {
    let (head, tail) = bytes.split_at(split.min(bytes.len()));
    let Ok(roce) = RoceFrame::parse(FrameBytes { head, tail }) else { return };
    assert!(roce.packet.len() <= bytes.len() && roce.ib.len() <= roce.packet.len());
    let (_, _, _) = (roce.icrc_ok(), roce.ip.checksum_ok(), roce.ip.identification());
    assert!(roce.flow().flow_label < 1 << 20);
    if let Err(error) = Packet::parse(roce.ib) {
        assert!(!error.to_string().is_empty());
    }
    read_packet(roce.ib);
}

fn read_packet(ib: FrameBytes<'_>) {
    let Ok(packet) = Packet::parse(ib) else { return };
    let bth = packet.bth();
    let header_bytes = Bth::BYTES + bth.opcode().extension_bytes();
    assert_eq!(header_bytes + packet.payload().len() + packet.pad().len() + 4, ib.len());
    assert_eq!(packet.pad().len(), bth.pad());
    assert_eq!(packet.headers().extension.len(), bth.opcode().extension_bytes());
    assert!(bth.tver() < 16 && bth.reserved_4() < 64 && bth.reserved_8() < 128 && bth.pad() < 4);
    if let Some(aeth) = packet.aeth() {
        assert!(aeth.msn().value() < 1 << 24);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), split in 0usize..300) {
        read_all(&bytes, split);
        let (head, tail) = bytes.split_at(split.min(bytes.len()));
        read_packet(FrameBytes { head, tail });
        let _ = icrc::compute(FrameBytes { head, tail });
        let _ = icrc::stored(FrameBytes { head, tail });
    }

    #[test]
    fn any_opcode_with_any_length(
        v6: bool, tagged: bool, opcode: u8, payload in 0usize..80, split in 0usize..300, cut in 0usize..300,
    ) {
        let bytes = frame(v6, tagged, opcode, payload);
        read_all(&bytes, split);
        read_all(&bytes[..cut.min(bytes.len())], split);
        let _ = Dissection::of(&bytes, cut.min(bytes.len()));
    }

    #[test]
    fn any_changed_bytes(
        v6: bool, tagged: bool, opcode: u8, payload in 0usize..80, split in 0usize..300,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = frame(v6, tagged, opcode, payload);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        read_all(&bytes, split);
        let _ = Dissection::of(&bytes, bytes.len());
    }

    /// Lengths of IP and UDP, the pad count, and every transport version.
    #[test]
    fn any_lengths(v6: bool, ip_length: u16, udp_length: u16, flags: u8, payload in 0usize..80) {
        let mut bytes = frame(v6, false, 0x04, payload);
        let (ip_at, udp_at, bth_at) = if v6 { (18, 14 + 44, 14 + 48) } else { (16, 14 + 24, 14 + 28) };
        bytes[bth_at + 1] = flags;
        read_all(&bytes, bytes.len());
        bytes[udp_at..udp_at + 2].copy_from_slice(&udp_length.to_be_bytes());
        read_all(&bytes, bytes.len());
        bytes[ip_at..ip_at + 2].copy_from_slice(&ip_length.to_be_bytes());
        read_all(&bytes, bytes.len());
    }

    /// A buffer of any length takes the packet whole or refuses it untouched beyond its end.
    #[test]
    fn any_buffer(v6: bool, have in 0usize..200, payload in 0usize..100) {
        let headers = Headers { bth: Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(1), Psn::new(2)), extension: Extension::None };
        let mut buffer = vec![0xaa; have + 1];
        let written = headers.write(&mut buffer[..have], &flow(v6), 3, payload, |out| {
            out.fill(1);
            Ok::<_, Infallible>(())
        });
        match written {
            Ok(len) => {
                let ether_type = if v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
                let frame = [&[0; 12][..], &ether_type, &buffer[..len]].concat();
                prop_assert_eq!(Dissection::of(&frame, frame.len()).unwrap().icrc, Icrc::Ok);
                prop_assert!(buffer[len..].iter().all(|byte| *byte == 0xaa));
            }
            Err(WriteError::TooLong { need, have: says }) => prop_assert!(need > have && says == have),
            Err(error) => prop_assert!(false, "{error:?}"),
        }
    }
}
