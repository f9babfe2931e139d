//! What a peer without the extension is sent of it, in a capture (pcapng, which says who sent what).

use std::path::Path;

use uroce::pcap::{Direction, Reader};
use uroce::wire::TransportService;
use uroce_laboratory::dissection::{Dissection, Icrc};

/// The offer, in BTH byte 8.
const OFFER: u8 = 0x40;

/// After so many answers without it nothing is offered any more (docs/EXTENSIONS.md).
const ANSWERS: u32 = 8;

/// How many packets each side sent, and how many of ours made the offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub sent: u32,
    pub received: u32,
    pub offers: u32,
}

/// Requests make the offer, until the peer has given eight answers without it; nothing else of the extension is sent. Nor
/// does the peer send any of it. Panics where that is not so. Answers are only counted with `one_queue_pair`.
pub fn only_offers(file: &Path, one_queue_pair: bool) -> Tally {
    let mut tally = Tally::default();
    let mut answers = 0;
    for frame in Reader::open(file).unwrap() {
        let frame = frame.unwrap();
        let Some(dissection) = Dissection::of(&frame.bytes, frame.bytes.len()) else { continue };
        let Some(packet) = dissection.packet else { continue };
        assert_eq!(dissection.icrc, Icrc::Ok, "frame {} of {}", frame.number, file.display());
        let bth = packet.bth();
        let reserved = bth.reserved_8();
        if frame.direction == Some(Direction::Received) {
            assert_eq!(reserved, 0, "frame {} of {}: {bth:?}", frame.number, file.display());
            tally.received += 1;
            answers += u32::from(bth.opcode().is_response() && tally.offers > 0);
            continue;
        }
        tally.sent += 1;
        let opcode = bth.opcode();
        let may_offer =
            opcode.service() == TransportService::Rc && !opcode.is_response() && (answers < ANSWERS || !one_queue_pair);
        let allowed = if may_offer { OFFER } else { 0 };
        assert_eq!(reserved & !allowed, 0, "frame {} of {}: {bth:?}", frame.number, file.display());
        tally.offers += u32::from(reserved == OFFER);
    }
    tally
}
