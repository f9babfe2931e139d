use std::net::Ipv4Addr;

use arrayvec::ArrayVec;
use uroce::frame::FrameBytes;
use uroce::wire::{
    AddressList, Aeth, Body, Bth, Extension, Flow, Headers, Hello, ICRC_BYTES, Key, Msn, NakCode, Opcode, Packet,
    PathMtu, Psn, Qpn, RequestTrailer, Reth, Sack, Syndrome, Tagged, icrc,
};

use crate::ethernet::ETHERNET_BYTES;

use super::super::network::bth_offset;
use super::super::random::Random;
use super::super::transfer::TransferOperation;

/// The forged packet that a stranger sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forgery {
    /// A WRITE of one packet with a guessed R_Key.
    WriteGuessedKey,
    /// A WRITE of one packet with the right R_Key and address, which a stranger must have learned.
    WriteKnownKey,
    /// A SEND of one packet.
    SendOnly,
    /// A packet from the middle of a SEND.
    SendMiddle,
    /// A packet from the middle of a WRITE, which needs no key.
    WriteMiddle,
    /// The last packet of a SEND without a first one.
    SendOutOfSequence,
    /// A middle packet of a READ response.
    ReadResponse,
    /// Two such packets with consecutive PSNs.
    ReadResponsePair,
    /// An acknowledge without the extension.
    Acknowledge,
    /// A NAK with the code "remote access error".
    Refusal,
    /// An acknowledge that offers the extension.
    OfferingAcknowledge,
    /// A SEND of one packet that offers the extension.
    OfferingSend,
    /// A SEND of one packet that offers the extension, with a trailer that states its position.
    ExtendedSend,
    /// A WRITE of one packet with the right R_Key and address that offers the extension, with a trailer.
    ExtendedWrite,
    /// A selective acknowledge; the network loses packets.
    SelectiveAcknowledge,
    /// An acknowledge with a list of addresses, in which one is the stranger's.
    Addresses,
    /// An acknowledge with a hello, which holds a nonce.
    Hello,
}

impl Forgery {
    /// All forgeries, in the order of the table.
    pub const ALL: [Forgery; 17] = [
        Forgery::WriteGuessedKey,
        Forgery::WriteKnownKey,
        Forgery::SendOnly,
        Forgery::SendMiddle,
        Forgery::WriteMiddle,
        Forgery::SendOutOfSequence,
        Forgery::ReadResponse,
        Forgery::ReadResponsePair,
        Forgery::Acknowledge,
        Forgery::Refusal,
        Forgery::OfferingAcknowledge,
        Forgery::OfferingSend,
        Forgery::ExtendedSend,
        Forgery::ExtendedWrite,
        Forgery::SelectiveAcknowledge,
        Forgery::Addresses,
        Forgery::Hello,
    ];

    /// The name of the forgery in tables.
    pub fn name(self) -> &'static str {
        match self {
            Forgery::WriteGuessedKey => "write-guessed-key",
            Forgery::WriteKnownKey => "write-known-key",
            Forgery::SendOnly => "send-only",
            Forgery::SendMiddle => "send-middle",
            Forgery::WriteMiddle => "write-middle",
            Forgery::SendOutOfSequence => "send-out-of-sequence",
            Forgery::ReadResponse => "read-response",
            Forgery::ReadResponsePair => "read-response-pair",
            Forgery::Acknowledge => "ack",
            Forgery::Refusal => "nak",
            Forgery::OfferingAcknowledge => "offering-ack",
            Forgery::OfferingSend => "offering-send",
            Forgery::ExtendedSend => "extended-send",
            Forgery::ExtendedWrite => "extended-write",
            Forgery::SelectiveAcknowledge => "sack",
            Forgery::Addresses => "addresses",
            Forgery::Hello => "hello",
        }
    }

    /// The traffic of the connection on which the forgery has most effect: the operation, and the packets of a message.
    pub(super) fn traffic(self) -> (TransferOperation, u32) {
        match self {
            Forgery::SendOnly | Forgery::SendOutOfSequence | Forgery::OfferingSend | Forgery::ExtendedSend => {
                (TransferOperation::Send, 1)
            }
            Forgery::SendMiddle => (TransferOperation::Send, LONG_MESSAGE_PACKETS),
            Forgery::WriteMiddle => (TransferOperation::Write, LONG_MESSAGE_PACKETS),
            Forgery::ReadResponse | Forgery::ReadResponsePair => (TransferOperation::Read, LONG_MESSAGE_PACKETS),
            _ => (TransferOperation::Write, 1),
        }
    }

    /// Whether the packet is a response, for the requester; all others are for the responder.
    pub(super) fn is_answer(self) -> bool {
        self.opcode().is_response()
    }

    fn opcode(self) -> Opcode {
        match self {
            Forgery::WriteGuessedKey | Forgery::WriteKnownKey | Forgery::ExtendedWrite => Opcode::RC_WRITE_ONLY,
            Forgery::SendOnly | Forgery::OfferingSend | Forgery::ExtendedSend => Opcode::RC_SEND_ONLY,
            Forgery::SendMiddle => Opcode::RC_SEND_MIDDLE,
            Forgery::WriteMiddle => Opcode::RC_WRITE_MIDDLE,
            Forgery::SendOutOfSequence => Opcode::RC_SEND_LAST,
            Forgery::ReadResponse | Forgery::ReadResponsePair => Opcode::RC_READ_RESPONSE_MIDDLE,
            Forgery::Acknowledge
            | Forgery::Refusal
            | Forgery::OfferingAcknowledge
            | Forgery::SelectiveAcknowledge
            | Forgery::Addresses
            | Forgery::Hello => Opcode::RC_ACKNOWLEDGE,
        }
    }

    fn offers(self) -> bool {
        self.is_extended() || matches!(self, Forgery::OfferingAcknowledge | Forgery::OfferingSend)
    }

    fn is_extended(self) -> bool {
        use Forgery as F;
        matches!(self, F::ExtendedSend | F::ExtendedWrite | F::SelectiveAcknowledge | F::Addresses | F::Hello)
    }
}

/// The number of packets of a long message. It is a prime, so that neither windows nor periodic acknowledges keep in
/// step with messages.
pub(super) const LONG_MESSAGE_PACKETS: u32 = 61;

/// The path MTU of the connection: the smallest one, since the simulation counts packets.
pub(super) const MTU: PathMtu = PathMtu::Mtu256;

/// The byte that fills forged payload. True payload has no byte of 0x80 or more.
pub(super) const FORGED: u8 = 0xf5;

/// Length of a forged WRITE in bytes, and the number of its targets in turn, so that two successful ones can be
/// distinguished.
pub(super) const SPOT_BYTES: usize = 16;
pub(super) const SPOTS: u64 = 64;

/// An address of the stranger.
pub(super) const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);

/// What a stranger knows of the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The flow from the impersonated side to the attacked one.
    pub flow: Flow,
    pub qpn: Qpn,
    /// The address of the targets of forged WRITEs: [`SPOTS`] places of [`SPOT_BYTES`] each.
    pub spots: u64,
    /// The R_Key of the targets; only [`Forgery::WriteKnownKey`] and [`Forgery::ExtendedWrite`] use it.
    pub key: Key,
}

/// Makes forged frames: one frame is written once, and some of its fields are changed for each.
///
/// The ICRC is not computed again. A CRC is linear, so the change that a byte causes depends only on its position and
/// value.
pub(super) struct Forger {
    frame: Vec<u8>,
    /// The ICRC of the frame with zeros in all changing fields.
    icrc: u32,
    /// The offset of each field, and the change of the ICRC by each value of each of its bytes.
    fields: Vec<(usize, Field, Vec<[u32; 256]>)>,
    random: Random,
    made: u64,
    spots: u64,
    /// Whether frames come in pairs, whose second PSN follows the first.
    is_pair: bool,
    pair: Option<Psn>,
}

/// A field that differs from frame to frame.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// The PSN, three bytes.
    Psn,
    /// The given number of random bytes, which only the peer knows.
    Random(usize),
    /// The address of one of the targets, eight bytes.
    Spot,
}

impl Field {
    fn bytes(self) -> usize {
        match self {
            Field::Psn => 3,
            Field::Random(count) => count,
            Field::Spot => 8,
        }
    }
}

fn icrc_of(frame: &[u8]) -> u32 {
    let packet = &frame[ETHERNET_BYTES..frame.len() - ICRC_BYTES];
    icrc::compute(FrameBytes::from(packet)).expect("it begins as a packet does")
}

impl Forger {
    pub fn new(forgery: Forgery, known: Known, random: Random) -> Forger {
        let bth = Bth::new(forgery.opcode(), known.qpn, Psn::new(0))
            .with_ack_request(!forgery.is_answer())
            .with_offer(forgery.offers())
            .with_extended(forgery.is_extended());
        let reth = Reth::new(0, known.key, SPOT_BYTES as u32);
        let syndrome = match forgery {
            Forgery::Refusal => Syndrome::Nak(NakCode::RemoteAccessError),
            _ => Syndrome::ACK,
        };
        let opcode = forgery.opcode();
        let extension = match opcode {
            Opcode::RC_WRITE_ONLY => Extension::Reth(reth),
            Opcode::RC_ACKNOWLEDGE => Extension::Aeth(Aeth::new(syndrome, Msn::new(0))),
            _ => Extension::None,
        };
        let payload_bytes = match opcode {
            Opcode::RC_SEND_MIDDLE | Opcode::RC_WRITE_MIDDLE | Opcode::RC_READ_RESPONSE_MIDDLE => MTU.bytes(),
            Opcode::RC_ACKNOWLEDGE => 0,
            _ => SPOT_BYTES,
        };
        let trailer = trailer(forgery);
        // The tag ends the packet; its value is drawn below.
        let tag: &[u8] = if forgery.is_extended() { &[0; Packet::TAG_BYTES] } else { &[] };
        let end = [&trailer[..], tag].concat();
        let mut frame = vec![0; ETHERNET_BYTES + known.flow.header_bytes() + 2 * MTU.bytes()];
        frame[12..14].copy_from_slice(&[8, 0]);
        let fill = |out: &mut [u8]| {
            out.fill(FORGED);
            Ok::<_, std::convert::Infallible>(())
        };
        let out = &mut frame[ETHERNET_BYTES..];
        let body = Body { payload_bytes, trailer: &end, tag: None };
        let len = Headers { bth, extension }.write(out, &known.flow, 0, body, fill);
        frame.truncate(ETHERNET_BYTES + len.expect("there is room"));

        let bth = bth_offset(&frame);
        let mut fields = vec![(bth + 9, Field::Psn)];
        let (behind_bth, trailer_at) = (bth + Bth::BYTES, frame.len() - ICRC_BYTES - end.len());
        match extension {
            Extension::Reth(_) => fields.push((behind_bth, Field::Spot)),
            // The MSN, which requesters do not check.
            Extension::Aeth(_) => fields.push((behind_bth + 1, Field::Random(3))),
            _ => {}
        }
        match forgery {
            Forgery::WriteGuessedKey => fields.push((behind_bth + 8, Field::Random(4))),
            Forgery::Hello => fields.push((trailer_at, Field::Random(4))),
            // The receive number.
            Forgery::ExtendedSend | Forgery::ExtendedWrite => fields.push((trailer_at + 4, Field::Random(3))),
            // The trigger, and the first PSN of the block.
            Forgery::SelectiveAcknowledge => fields.extend([(trailer_at, Field::Psn), (trailer_at + 8, Field::Psn)]),
            _ => {}
        }
        if forgery.is_extended() {
            fields.push((trailer_at + trailer.len(), Field::Random(tag.len())));
        }
        fields.iter().for_each(|(at, field)| frame[*at..at + field.bytes()].fill(0));
        let icrc = icrc_of(&frame);
        let mut change = |at: usize| {
            let changes = std::array::from_fn(|value| {
                frame[at] = value as u8;
                icrc_of(&frame) ^ icrc
            });
            frame[at] = 0;
            changes
        };
        let changes = |(at, field): (usize, Field)| (at, field, (at..at + field.bytes()).map(&mut change).collect());
        let fields = fields.into_iter().map(changes).collect();
        Forger {
            frame,
            icrc,
            fields,
            random,
            made: 0,
            spots: known.spots,
            is_pair: forgery == Forgery::ReadResponsePair,
            pair: None,
        }
    }

    /// The next frame, with a PSN drawn from the 2^`psn_bits` around `near`; from all PSNs if that is 24.
    pub fn next(&mut self, near: Psn, psn_bits: u32) -> &[u8] {
        let psn = match self.pair.take() {
            Some(first) => first.plus(1),
            None => near.minus(1 << (psn_bits - 1)).plus(self.random.u32() >> (32 - psn_bits)),
        };
        self.pair = Some(psn).filter(|_| self.is_pair && self.made.is_multiple_of(2));
        let spot = self.spots + self.made % SPOTS * SPOT_BYTES as u64;
        self.made += 1;
        let mut icrc = self.icrc;
        for (at, field, changes) in &self.fields {
            let bytes = match field {
                Field::Psn => u64::from(psn.value()) << 40,
                Field::Random(_) => self.random.u64(),
                Field::Spot => spot,
            };
            for ((byte, change), out) in bytes.to_be_bytes().iter().zip(changes).zip(&mut self.frame[*at..]) {
                *out = *byte;
                icrc ^= change[usize::from(*byte)];
            }
        }
        let end = self.frame.len() - ICRC_BYTES;
        self.frame[end..].copy_from_slice(&icrc.to_le_bytes());
        &self.frame
    }
}

fn trailer(forgery: Forgery) -> Vec<u8> {
    match forgery {
        Forgery::ExtendedSend | Forgery::ExtendedWrite => RequestTrailer::default().to_bytes().to_vec(),
        Forgery::SelectiveAcknowledge => {
            let blocks = ArrayVec::from_iter([(Psn::new(0), u64::MAX)]);
            let (trigger, delay_us) = (Psn::new(0), u16::MAX);
            let sack = Sack { trigger, attempt: 0, delay_us, marked: 0, is_trigger_marked: false, blocks };
            sack.to_bytes().to_vec()
        }
        Forgery::Addresses => {
            let list = AddressList { addresses: ArrayVec::from_iter([STRANGER.into()]), is_known: true };
            list.to_bytes().to_vec()
        }
        Forgery::Hello => {
            Hello { nonce: 1, window: 1, takes_carried: true, takes_telemetry: true, tagged: Tagged::From(Psn::new(0)) }
                .to_bytes()
                .to_vec()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uroce::wire::{Addresses, Operation, RoceFrame};

    fn forger(forgery: Forgery) -> Forger {
        let addresses = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 2, hop_limit: 64, flow_label: 0 };
        let known = Known { flow, qpn: Qpn::new(0x123456), spots: 0x7000, key: Key(0x01020304) };
        Forger::new(forgery, known, Random::new(1, 2))
    }

    /// A forged frame differs from the peer's only in what no one else can know.
    #[test]
    fn forged_frames_are_right_but_for_what_is_guessed() {
        for forgery in Forgery::ALL {
            let mut forger = forger(forgery);
            for _ in 0..100 {
                let frame = forger.next(Psn::new(0), 24);
                let roce = RoceFrame::parse(FrameBytes::from(frame)).unwrap();
                assert!(roce.icrc_ok() && roce.ip.checksum_ok(), "{forgery:?}");
                let packet = Packet::parse(roce.ib).unwrap();
                assert_eq!(packet.bth().opcode().is_response(), forgery.is_answer());
                assert_eq!(packet.bth().destination(), Qpn::new(0x123456));
                match forgery {
                    Forgery::SelectiveAcknowledge => {
                        assert_eq!(packet.sack().unwrap().blocks[0].0, packet.bth().psn());
                    }
                    Forgery::Addresses | Forgery::Hello => {
                        assert!(packet.split_tag().unwrap().0.acknowledge_trailer().is_some());
                    }
                    Forgery::ExtendedSend | Forgery::ExtendedWrite => {
                        assert!(packet.split_tag().unwrap().0.take_trailer().is_some());
                    }
                    _ => assert!(!packet.bth().extended()),
                }
                if packet.bth().opcode().operation() == Operation::Write && forgery != Forgery::WriteMiddle {
                    let reth = packet.reth().unwrap();
                    assert!((0x7000..0x7000 + 1024).contains(&reth.address()));
                    assert_eq!(reth.key() == Key(0x01020304), forgery != Forgery::WriteGuessedKey);
                }
            }
        }
    }

    #[test]
    fn each_second_psn_of_a_pair_is_the_one_after_the_first() {
        let mut forger = forger(Forgery::ReadResponsePair);
        let psns: Vec<u32> = (0..6)
            .map(|_| {
                let frame = forger.next(Psn::new(0), 24);
                u32::from_be_bytes([0, frame[51], frame[52], frame[53]])
            })
            .collect();
        assert!(psns.chunks(2).all(|pair| Psn::new(pair[0]).plus(1) == Psn::new(pair[1])), "{psns:?}");
        assert!(Psn::new(psns[1]).plus(1) != Psn::new(psns[2]), "{psns:?}");
    }

    #[test]
    fn psns_are_drawn_from_all_there_are_or_from_those_nearby() {
        let mut forger = forger(Forgery::SendOnly);
        let mut psn = |near: u32, bits| {
            let frame = forger.next(Psn::new(near), bits);
            u32::from_be_bytes([0, frame[51], frame[52], frame[53]])
        };
        let drawn: Vec<u32> = (0..4096).map(|_| psn(5, 24)).collect();
        for quarter in 0..4 {
            let count = drawn.iter().filter(|psn| **psn >> 22 == quarter).count();
            assert!((900..1150).contains(&count), "{count} of 4096 in a quarter");
        }
        for _ in 0..1000 {
            assert!(Psn::new(psn(5, 8)).is_within(Psn::new(5).minus(128), 256));
        }
    }
}
