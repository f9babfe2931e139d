use zerocopy::{FromBytes, IntoBytes};

use crate::frame::FrameBytes;

use super::opcode::ext;
use super::{
    AcknowledgeTrailer, Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, Extension, Feth, Headers, ICRC_BYTES, Ieth,
    ImmDt, Opcode, RequestTrailer, Reth, Sack, Telemetry,
};

/// A received packet from BTH to payload: a view, of which only lengths were checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bth: &'a Bth,
    extensions: &'a [u8],
    /// Payload, pad, and the trailer until it is split off.
    body: FrameBytes<'a>,
    trailer_bytes: usize,
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The bytes are too few for the headers of the opcode, its pad, and the ICRC.
    #[error("{have} bytes after UDP, {need} needed for the headers, pad and ICRC of {opcode:?}")]
    TooShort {
        /// The opcode, if its byte was there.
        opcode: Option<Opcode>,
        /// The bytes that the packet needs.
        need: usize,
        /// The bytes that are there.
        have: usize,
    },
    /// The length from BTH to ICRC is not a multiple of four, which the pad would make it (IBTA 9.2.6); holds the
    /// length.
    #[error("{0} bytes after UDP are not a multiple of 4")]
    Unaligned(usize),
    /// Not 16 bytes follow the BTH of a CNP (IBTA A17.9.3); holds their number, the pad included.
    #[error("{0} bytes after the BTH of a CNP, which has 16")]
    CnpLength(usize),
}

impl<'a> Packet<'a> {
    /// Reads the packet in `ib`: the UDP payload, from BTH to ICRC inclusive. Reserved opcodes are read as if they had
    /// no extended header.
    ///
    /// # Errors
    /// [`PacketError::TooShort`] when headers, pad and ICRC do not fit; [`PacketError::Unaligned`] when the length is
    /// not a multiple of four; [`PacketError::CnpLength`] when it is not that of a CNP.
    #[inline]
    pub fn parse(ib: FrameBytes<'a>) -> Result<Packet<'a>, PacketError> {
        let have = ib.len();
        let short = |opcode, need| PacketError::TooShort { opcode, need, have };
        let minimum = Bth::BYTES + ICRC_BYTES;
        if have < minimum {
            return Err(short(None, minimum));
        }
        let Ok((bth, after_bth)) = Bth::ref_from_prefix(ib.head) else { return Err(short(None, minimum)) };
        let opcode = bth.opcode();
        let header_bytes = opcode.extension_bytes();
        let need = minimum + header_bytes + bth.pad();
        // The second comparison is for frames in two parts: all headers must be in the first.
        if have < need || after_bth.len() < header_bytes {
            return Err(short(Some(opcode), need));
        }
        if !have.is_multiple_of(4) {
            return Err(PacketError::Unaligned(have));
        }
        let body = ib.skip(Bth::BYTES + header_bytes).take(have - need + bth.pad());
        if opcode == Opcode::CNP && (body.len(), bth.pad()) != (Cnp::RESERVED_BYTES, 0) {
            return Err(PacketError::CnpLength(body.len()));
        }
        Ok(Packet { bth, extensions: &after_bth[..header_bytes], body, trailer_bytes: 0 })
    }

    /// The packet of these headers without payload, written to `buffer`.
    ///
    /// # Panics
    /// When the extended headers take more than 28 bytes, which no known opcode does.
    pub fn of_headers(headers: &Headers, buffer: &'a mut [u8; Packet::HEADER_BYTES_MAX]) -> Packet<'a> {
        buffer[..Bth::BYTES].copy_from_slice(headers.bth.with_pad(0).as_bytes());
        headers.extension.write(&mut buffer[Bth::BYTES..]);
        let (bth, extensions) = Bth::ref_from_prefix(&buffer[..]).expect("the buffer is longer than a BTH");
        let extensions = &extensions[..headers.extension.len()];
        Packet { bth, extensions, body: FrameBytes::from(&[][..]), trailer_bytes: 0 }
    }

    /// Length of the BTH and the longest extended headers, in bytes.
    pub const HEADER_BYTES_MAX: usize = Bth::BYTES + 28;

    /// Length of the tag at the end of each extended packet, in bytes.
    pub const TAG_BYTES: usize = 4;

    /// An extended packet without its tag, and the tag. Until then the tag counts as payload. `None` when the packet is
    /// too short for one.
    pub fn split_tag(&self) -> Option<(Packet<'a>, u32)> {
        let mut packet = *self;
        packet.take_tag().map(|tag| (packet, tag))
    }

    /// Takes the tag off an extended packet, as [`split_tag`](Self::split_tag). `None` when the packet is too short for one:
    /// then nothing is taken.
    #[inline]
    pub fn take_tag(&mut self) -> Option<u32> {
        let rest = self.body.len().checked_sub(Self::TAG_BYTES).filter(|rest| *rest >= self.bth.pad())?;
        let tag = u32::from_be_bytes(self.body.last_chunk()?);
        if !self.bth.extended() || self.trailer_bytes > 0 {
            return None;
        }
        self.body = self.body.take(rest);
        Some(tag)
    }

    /// Takes the trailer off a request. Until then it counts as payload; the tag must be split off before. `None` when there is
    /// no valid trailer: then nothing is taken.
    pub fn take_trailer(&mut self) -> Option<RequestTrailer> {
        let mut trailer = RequestTrailer::default();
        self.move_trailer(&mut trailer).then_some(trailer)
    }

    /// Moves the trailer of a request to `trailer`, a default one, as [`take_trailer`](Self::take_trailer). Returns whether
    /// there is a valid one.
    #[inline]
    pub(crate) fn move_trailer(&mut self, trailer: &mut RequestTrailer) -> bool {
        let Some(bytes) = trailer.read_end(self.body).filter(|bytes| bytes + self.bth.pad() <= self.body.len()) else {
            return false;
        };
        self.trailer_bytes = bytes;
        true
    }

    /// What switches wrote into a request whose trailer was split off. `None` when there is no room for that.
    pub fn telemetry(&self) -> Option<Telemetry> {
        let has_room = self.trailer_bytes > RequestTrailer::MAX_BYTES;
        Telemetry::parse(&self.body.last_chunk::<{ Telemetry::BYTES }>().filter(|_| has_room)?)
    }

    /// What follows the AETH of an acknowledge without its tag. `None` for every other packet, and when it is not a
    /// valid trailer.
    pub fn acknowledge_trailer(&self) -> Option<AcknowledgeTrailer> {
        let announces = self.bth.extended() && self.bth.opcode() == Opcode::RC_ACKNOWLEDGE;
        if announces { AcknowledgeTrailer::of(self.body) } else { None }
    }

    /// The selective acknowledge that follows an AETH, before the tag. `None` when there is none.
    pub fn sack(&self) -> Option<Sack> {
        match self.split_tag()?.0.acknowledge_trailer()? {
            AcknowledgeTrailer::Sack(sack) | AcknowledgeTrailer::Measured(sack, _) => Some(sack),
            _ => None,
        }
    }

    /// The packet's bytes as [`parse`](Packet::parse) reads them, without its trailer, and with zeros for the ICRC.
    pub fn without_trailer(&self) -> Box<[u8]> {
        let body = self.body.take(self.body.len() - self.trailer_bytes);
        let headers = Bth::BYTES + self.extensions.len();
        let mut bytes = vec![0; headers + body.len() + ICRC_BYTES].into_boxed_slice();
        bytes[..Bth::BYTES].copy_from_slice(self.bth.as_bytes());
        bytes[Bth::BYTES..headers].copy_from_slice(self.extensions);
        body.copy_to_slice(&mut bytes[headers..headers + body.len()]);
        bytes
    }

    /// The base transport header.
    pub fn bth(&self) -> &'a Bth {
        self.bth
    }

    /// The payload without its pad. For an opcode without payload (an ACK, for example) it is what follows the headers.
    pub fn payload(&self) -> FrameBytes<'a> {
        self.body.take(self.body.len() - self.trailer_bytes - self.bth.pad())
    }

    /// The pad between payload and ICRC; senders fill it with zeros.
    pub fn pad(&self) -> FrameBytes<'a> {
        self.body.skip(self.body.len() - self.trailer_bytes - self.bth.pad()).take(self.bth.pad())
    }

    /// The extended header of one kind, found by the bits of those before it.
    fn extension<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
        &self,
        bit: u8,
    ) -> Option<&'a T> {
        let set = self.bth.opcode().extensions();
        if set & bit == 0 {
            return None;
        }
        let offset = usize::from(ext::bytes(set & (bit - 1)));
        T::ref_from_prefix(&self.extensions[offset..]).ok().map(|(header, _)| header)
    }

    /// The FETH, in FLUSHes.
    pub fn feth(&self) -> Option<&'a Feth> {
        self.extension(ext::FETH)
    }

    /// The RETH, in WRITE_FIRST, WRITE_ONLY and READ requests, ATOMIC WRITEs and FLUSHes.
    pub fn reth(&self) -> Option<&'a Reth> {
        self.extension(ext::RETH)
    }

    /// The AETH, in acknowledges and in all READ responses except MIDDLE.
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.extension(ext::AETH)
    }

    /// The AtomicETH, in atomic requests.
    pub fn atomic_eth(&self) -> Option<&'a AtomicEth> {
        self.extension(ext::ATOMIC)
    }

    /// The AtomicAckETH, in atomic acknowledges.
    pub fn atomic_ack_eth(&self) -> Option<&'a AtomicAckEth> {
        self.extension(ext::ATOMIC_ACK)
    }

    /// The immediate data; `None` when the opcode has none.
    pub fn imm_dt(&self) -> Option<&'a ImmDt> {
        self.extension(ext::IMMDT)
    }

    /// The IETH, in SEND with invalidate.
    pub fn ieth(&self) -> Option<&'a Ieth> {
        self.extension(ext::IETH)
    }

    /// The DETH, in datagrams.
    pub fn deth(&self) -> Option<&'a Deth> {
        self.extension(ext::DETH)
    }

    /// The headers by value, as [`Headers::write`] takes them: reading and writing are inverse.
    pub fn headers(&self) -> Headers {
        let extension = match (self.deth(), self.reth(), self.aeth(), self.imm_dt()) {
            (Some(deth), _, _, None) => Extension::Deth(*deth),
            (Some(deth), _, _, Some(imm)) => Extension::DethImmDt(*deth, *imm),
            (_, Some(reth), _, None) => match self.feth() {
                Some(feth) => Extension::FethReth(*feth, *reth),
                None => Extension::Reth(*reth),
            },
            (_, Some(reth), _, Some(imm)) => Extension::RethImmDt(*reth, *imm),
            (_, _, Some(aeth), _) => match self.atomic_ack_eth() {
                Some(atomic) => Extension::AethAtomicAck(*aeth, *atomic),
                None => Extension::Aeth(*aeth),
            },
            (_, _, _, Some(imm)) => Extension::ImmDt(*imm),
            (None, None, None, None) => match (self.atomic_eth(), self.ieth()) {
                (Some(atomic), _) => Extension::Atomic(*atomic),
                (_, Some(ieth)) => Extension::Ieth(*ieth),
                (None, None) => Extension::None,
            },
        };
        Headers { bth: *self.bth, extension }
    }
}
