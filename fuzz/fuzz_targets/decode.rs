#![no_main]
//! Any frame, in one part or two: no panic, the parts do not matter, and reading and writing are inverse.

use std::convert::Infallible;

use libfuzzer_sys::fuzz_target;
use uroce::frame::FrameBytes;
use uroce::wire::{Bth, ICRC_BYTES, IpHeader, Packet, RoceFrame, icrc};
use uroce_laboratory::dissection::{Dissection, Icrc};

fuzz_target!(|data: &[u8]| {
    let Some((&[high, low], frame)) = data.split_first_chunk() else { return };
    let split = usize::from(u16::from_be_bytes([high, low])).min(frame.len());
    let (head, tail) = frame.split_at(split);
    let in_parts = RoceFrame::parse(FrameBytes { head, tail });
    let whole = RoceFrame::parse(FrameBytes::from(frame));
    let _ = Dissection::of(frame, split);

    if let Ok(parts) = &in_parts {
        let whole = whole.as_ref().expect("what is readable in parts is readable");
        assert_eq!((parts.flow(), parts.packet.to_vec()), (whole.flow(), whole.packet.to_vec()));
        assert_eq!(parts.ib.to_vec(), whole.ib.to_vec());
        match (Packet::parse(parts.ib), Packet::parse(whole.ib)) {
            (Ok(parts), Ok(whole)) => {
                assert_eq!(parts.headers(), whole.headers());
                assert_eq!(parts.payload().to_vec(), whole.payload().to_vec());
                assert_eq!(parts.pad().to_vec(), whole.pad().to_vec());
            }
            (Ok(_), Err(error)) => panic!("readable in parts, but not as a whole: {error}"),
            (Err(_), _) => {}
        }
        // An ICRC is judged where all headers are in the first part; such a frame has the same verdict.
        if Packet::parse(parts.ib).is_ok() {
            assert_eq!(parts.icrc_ok(), whole.icrc_ok());
        }
    }
    let Ok(roce) = whole else { return };
    let Ok(packet) = Packet::parse(roce.ib) else { return };

    // The right ICRC, so that the fuzzer need not find it.
    let mut bytes = roce.packet.to_vec();
    let covered = bytes.len() - ICRC_BYTES;
    let right = icrc::compute(FrameBytes::from(&bytes[..covered])).expect("headers that were read");
    bytes[covered..].copy_from_slice(&right.to_le_bytes());
    let ib_start = bytes.len() - roce.ib.len();

    // As it is written again.
    let mut again = vec![0; bytes.len() + 4];
    let payload = packet.payload().to_vec();
    let fill = |out: &mut [u8]| {
        out.copy_from_slice(&payload);
        Ok::<_, Infallible>(())
    };
    let identification = roce.ip.identification().unwrap_or(0);
    let headers = packet.headers();
    let len = headers.write(&mut again, &roce.flow(), identification, payload.len(), fill).expect("it fits");
    again.truncate(len);

    // The pad is ours to choose: zeros, and as few as do. IP says no more than UDP does, and forbids fragments.
    let has_our_pad =
        packet.pad().to_vec().iter().all(|byte| *byte == 0) && packet.pad().len() == (payload.len().wrapping_neg() & 3);
    if has_our_pad {
        assert_eq!(again[ib_start..covered], bytes[ib_start..covered]);
    }
    let has_our_ip = match &roce.ip {
        IpHeader::V4(_) => {
            bytes[6..8] == [0x40, 0] && usize::from(u16::from_be_bytes([bytes[2], bytes[3]])) == bytes.len()
        }
        IpHeader::V6(_) => usize::from(u16::from_be_bytes([bytes[4], bytes[5]])) + 40 == bytes.len(),
    };
    if has_our_pad && has_our_ip {
        // All that the ICRC covers is the same, then, and so is the ICRC.
        assert_eq!(again[covered..], bytes[covered..]);
    }

    // What was written is sound, and no more so with a flipped bit.
    let ether_type = if matches!(roce.ip, IpHeader::V4(_)) { [0x08, 0x00] } else { [0x86, 0xdd] };
    let mut frame = [&[0; 12][..], &ether_type, &again].concat();
    let dissection = Dissection::of(&frame, frame.len()).expect("RoCE");
    assert!(dissection.icrc == Icrc::Ok && dissection.malformed.is_none(), "{dissection:?}");
    let bit = split % (roce.ib.len().min(again.len() - ib_start) * 8);
    // Byte 4 of the BTH is left out, and a flipped bit in the pad count or the opcode may make it malformed instead.
    if bit / 8 != 4 {
        frame[14 + ib_start + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Dissection::of(&frame, frame.len()).expect("RoCE").icrc, Icrc::Bad);
    }
    assert!(roce.ib.len() >= Bth::BYTES + ICRC_BYTES);
});
