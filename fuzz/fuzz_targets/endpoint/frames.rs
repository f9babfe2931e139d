use uroce::frame::FrameBytes;
use uroce::wire::{Bth, Extension, Flow, Headers, ICRC_BYTES, Opcode, Packet, Psn, Qpn, RoceFrame, icrc};
use uroce_laboratory::world::with_ethernet;

use crate::input::Input;

/// What a node sends must be sound. Returns the opcode.
pub fn check(frame: &[u8], node: usize) -> Opcode {
    let roce = RoceFrame::parse(FrameBytes::from(frame)).unwrap_or_else(|e| panic!("node {node} sent no RoCE: {e}"));
    assert!(roce.icrc_ok() && roce.ip.checksum_ok(), "node {node} sent a frame with a wrong sum");
    let packet = Packet::parse(roce.ib).unwrap_or_else(|e| panic!("node {node} sent no packet: {e}"));
    let opcode = packet.bth().opcode();
    assert!(opcode.is_known(), "node {node} sent {opcode}");
    opcode
}

/// A frame of these outer headers and IB bytes from the BTH to the pad, with the right ICRC.
pub fn seal(flow: &Flow, ib: &[u8]) -> Vec<u8> {
    let body = ib.len().saturating_sub(Bth::BYTES).next_multiple_of(4);
    let mut packet = vec![0; flow.header_bytes() + Bth::BYTES + body + ICRC_BYTES];
    let bth = Bth::new(Opcode::RC_SEND_MIDDLE, Qpn::default(), Psn::default());
    let fill = |_: &mut [u8]| Ok::<(), std::convert::Infallible>(());
    let headers = Headers { bth, extension: Extension::None };
    headers.write(&mut packet, flow, 1, body, fill).expect("the buffer is long enough");
    packet[flow.header_bytes()..][..ib.len()].copy_from_slice(ib);
    let covered = packet.len() - ICRC_BYTES;
    let right = icrc::compute(FrameBytes::from(&packet[..covered])).expect("IP, UDP and BTH are there");
    packet[covered..].copy_from_slice(&right.to_le_bytes());
    with_ethernet(&packet)
}

/// The frame with one thing changed, and a right ICRC over that.
pub fn mutate(frame: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let Ok(roce) = RoceFrame::parse(FrameBytes::from(frame)) else { return frame.to_vec() };
    let mut flow = roce.flow();
    let mut ib = roce.ib.to_vec();
    ib.truncate(ib.len() - ICRC_BYTES);
    let psn = u32::from_be_bytes([0, ib[9], ib[10], ib[11]]);
    let body = ib.len() - Bth::BYTES;
    match input.below(11) {
        0 => ib[0] = input.byte(),
        1 => ib[1] = input.byte(),
        2 => ib[2 + input.below(2)] ^= 1 << input.below(8),
        3 => ib[5 + input.below(3)] ^= 1 << input.below(8),
        4 => ib[8] ^= 0x80,
        5 => ib[9..12].copy_from_slice(&psn.wrapping_add(input.u32() as i8 as u32).to_be_bytes()[1..]),
        // A byte of the extended headers, or of the payload.
        6 | 7 if body > 0 => ib[Bth::BYTES + input.below(body.min(32))] ^= 1 << input.below(8),
        // A byte of the trailer, if there is one.
        10 if body > 0 => {
            let from_end = 1 + input.below(body.min(28));
            let at = ib.len() - from_end;
            ib[at] ^= 1 << input.below(8);
        }
        8 => {
            let len = (Bth::BYTES + input.below(256) * 4).min(ib.len() + 256);
            ib.resize(len, 0x5a);
        }
        _ => flow.addresses = flow.addresses.reversed(),
    }
    seal(&flow, &ib)
}

/// A packet out of nothing: any opcode, with extended headers from `extension`, a payload of `payload_bytes`, and a trailer.
pub fn craft(flow: &Flow, bth: Bth, extension: &[u8], payload_bytes: usize, trailer: &[u8]) -> Vec<u8> {
    let pad = payload_bytes.wrapping_neg() & 3;
    let bth = bth.with_pad(pad);
    let ib = [zerocopy::IntoBytes::as_bytes(&bth), extension, &vec![0xab; payload_bytes + pad], trailer].concat();
    seal(flow, &ib)
}
