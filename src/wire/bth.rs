use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Opcode, PKey, Psn, Qpn};

/// The base transport header, 12 bytes at the start of every packet (IBTA 9.2).
///
/// ```text
/// byte 0  opcode
///      1  solicited event:1  MigReq:1  pad count:2  transport version:4
///      2  P_Key:16
///      4  FECN:1  BECN:1  reserved:6
///      5  destination QPN:24
///      8  AckReq:1  reserved:7 (of which docs/EXTENSIONS.md uses the upper two)
///      9  PSN:24
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    flags: u8,
    p_key: U16,
    /// Bytes 4 to 7 and 8 to 11 are read and written in one piece each.
    destination: U32,
    psn: U32,
}

const _: () = assert!(size_of::<Bth>() == 12);

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const TVER: u8 = 0x0f;
const FECN: u32 = 0x80 << 24;
const BECN: u32 = 0x40 << 24;
const ACK_REQUEST: u32 = 0x80 << 24;
const OFFER: u32 = 0x40 << 24;
const EXTENDED: u32 = 0x20 << 24;
const COPY: u8 = 0x1f;

impl Bth {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = size_of::<Bth>();

    /// A header with the default P_Key, transport version 0 and MigReq set, as RNICs send it. rxe sends MigReq clear;
    /// both values are accepted.
    pub fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode: opcode.0,
            flags: MIG_REQ,
            p_key: U16::new(PKey::DEFAULT.0),
            destination: U32::new(destination.value()),
            psn: U32::new(psn.value()),
        }
    }

    /// The opcode: transport service and operation.
    pub fn opcode(&self) -> Opcode {
        Opcode(self.opcode)
    }

    /// Whether the packet requests a solicited event at the receiver.
    pub fn solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }

    /// The same header with the solicited event bit set to `on`.
    pub fn with_solicited(mut self, on: bool) -> Bth {
        set(&mut self.flags, SOLICITED, on);
        self
    }

    /// The MigReq bit; hardware sends 1 (migrated), rxe 0.
    pub fn mig_req(&self) -> bool {
        self.flags & MIG_REQ != 0
    }

    /// The same header with the MigReq bit set to `on`.
    pub fn with_mig_req(mut self, on: bool) -> Bth {
        set(&mut self.flags, MIG_REQ, on);
        self
    }

    /// Bytes of padding between payload and ICRC, 0 to 3.
    pub fn pad(&self) -> usize {
        (self.flags >> PAD_SHIFT & 3) as usize
    }

    /// The same header with the pad count `pad`; its low two bits count.
    pub fn with_pad(mut self, pad: usize) -> Bth {
        self.flags = self.flags & !(3 << PAD_SHIFT) | (pad as u8 & 3) << PAD_SHIFT;
        self
    }

    /// The transport version; 0 is the only one.
    pub fn tver(&self) -> u8 {
        self.flags & TVER
    }

    /// The partition key (P_Key).
    pub fn p_key(&self) -> PKey {
        PKey(self.p_key.get())
    }

    /// The same header with the partition key `p_key`.
    pub fn with_p_key(mut self, p_key: PKey) -> Bth {
        self.p_key = U16::new(p_key.0);
        self
    }

    /// The FECN bit: forward explicit congestion notification.
    pub fn fecn(&self) -> bool {
        self.destination.get() & FECN != 0
    }

    /// The BECN bit: backward explicit congestion notification, set in CNPs.
    pub fn becn(&self) -> bool {
        self.destination.get() & BECN != 0
    }

    /// The same header with the BECN bit set to `on`.
    pub fn with_becn(mut self, on: bool) -> Bth {
        self.destination = with(self.destination, BECN, on);
        self
    }

    /// The six reserved bits of byte 4, sent as zero and ignored on receipt (covered by the ICRC as all ones).
    pub fn reserved_4(&self) -> u8 {
        (self.destination.get() >> 24) as u8 & 0x3f
    }

    /// The destination queue pair.
    pub fn destination(&self) -> Qpn {
        Qpn::new(self.destination.get())
    }

    /// The AckReq bit: whether the requester asks for an acknowledge.
    pub fn ack_request(&self) -> bool {
        self.psn.get() & ACK_REQUEST != 0
    }

    /// The same header with the AckReq bit set to `on`.
    pub fn with_ack_request(mut self, on: bool) -> Bth {
        self.psn = with(self.psn, ACK_REQUEST, on);
        self
    }

    /// Whether the sender offers the extension (docs/EXTENSIONS.md).
    pub fn offers(&self) -> bool {
        self.psn.get() & OFFER != 0
    }

    /// The same header with the offer bit set to `on`.
    pub fn with_offer(mut self, on: bool) -> Bth {
        self.psn = with(self.psn, OFFER, on);
        self
    }

    /// Whether the packet has a trailer (docs/EXTENSIONS.md).
    pub fn extended(&self) -> bool {
        self.psn.get() & EXTENDED != 0
    }

    /// The same header with the extended bit set to `on`.
    pub fn with_extended(mut self, on: bool) -> Bth {
        self.psn = with(self.psn, EXTENDED, on);
        self
    }

    /// Which copy of a READ response this is, 0 to 31 (docs/EXTENSIONS.md).
    pub fn copy(&self) -> u8 {
        (self.psn.get() >> 24) as u8 & COPY
    }

    /// The same header with another copy, of which the lower five bits are taken.
    pub fn with_copy(mut self, copy: u8) -> Bth {
        self.psn = U32::new(self.psn.get() & !(u32::from(COPY) << 24) | u32::from(copy & COPY) << 24);
        self
    }

    /// The seven reserved bits of byte 8, sent as zero and ignored on receipt.
    pub fn reserved_8(&self) -> u8 {
        (self.psn.get() >> 24) as u8 & 0x7f
    }

    /// The packet sequence number.
    pub fn psn(&self) -> Psn {
        Psn::new(self.psn.get())
    }
}

fn set(byte: &mut u8, mask: u8, on: bool) {
    *byte = if on { *byte | mask } else { *byte & !mask };
}

fn with(word: U32, mask: u32, on: bool) -> U32 {
    U32::new(if on { word.get() | mask } else { word.get() & !mask })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_lands_where_the_layout_says() {
        let bth = Bth::new(Opcode::RC_WRITE_LAST, Qpn::new(0x123456), Psn::new(0xabcdef));
        assert_eq!(bth.as_bytes(), [0x08, 0x40, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(bth.with_solicited(true).as_bytes()[1], 0xc0);
        assert_eq!(bth.with_mig_req(false).as_bytes()[1], 0);
        assert_eq!(bth.with_pad(3).as_bytes()[1], 0x70);
        assert_eq!(bth.with_p_key(PKey(0x8001)).as_bytes()[2..4], [0x80, 0x01]);
        assert_eq!(bth.with_becn(true).as_bytes()[4], 0x40);
        assert_eq!(bth.with_ack_request(true).as_bytes()[8], 0x80);
        assert_eq!((bth.with_offer(true).as_bytes()[8], bth.with_extended(true).as_bytes()[8]), (0x40, 0x20));
        assert_eq!(bth.with_offer(true).with_copy(0x35).as_bytes()[8], 0x55);
    }

    #[test]
    fn each_field_reads_back() {
        let bth = Bth::read_from_bytes(&[0x64, 0xb5, 0x12, 0x34, 0xd5, 1, 2, 3, 0xff, 4, 5, 6]).unwrap();
        assert_eq!(bth.opcode(), Opcode::UD_SEND_ONLY);
        assert!(bth.solicited() && !bth.mig_req() && bth.fecn() && bth.becn() && bth.ack_request());
        assert_eq!((bth.pad(), bth.tver(), bth.p_key()), (3, 5, PKey(0x1234)));
        assert_eq!((bth.reserved_4(), bth.reserved_8(), bth.copy()), (0x15, 0x7f, 0x1f));
        assert_eq!((bth.destination(), bth.psn()), (Qpn::new(0x010203), Psn::new(0x040506)));
    }
}
