use zerocopy::IntoBytes;

use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Flow, ICRC_BYTES, Ieth, ImmDt, Packet, Reth, icrc};

/// The headers of one packet to be sent, from the BTH on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The base transport header; its pad count is set by [`write`](Headers::write).
    pub bth: Bth,
    /// The extended headers after it; they must be those of its opcode.
    pub extension: Extension,
}

/// The combinations of extended headers that RC, UC and UD use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named for the headers they hold
pub enum Extension {
    None,
    Reth(Reth),
    RethImmDt(Reth, ImmDt),
    FethReth(Feth, Reth),
    ImmDt(ImmDt),
    Ieth(Ieth),
    Aeth(Aeth),
    AethAtomicAck(Aeth, AtomicAckEth),
    Atomic(AtomicEth),
    Deth(Deth),
    DethImmDt(Deth, ImmDt),
}

/// Why a packet could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError<E> {
    /// The packet does not fit into the buffer.
    #[error("a packet of {need} bytes does not fit into a buffer of {have}")]
    TooLong {
        /// Length of the packet, in bytes.
        need: usize,
        /// Length of the buffer, in bytes.
        have: usize,
    },
    /// The payload could not be read; holds the error of the caller's function.
    #[error(transparent)]
    Payload(E),
}

impl Extension {
    /// Length on the wire, in bytes.
    pub fn len(&self) -> usize {
        match self {
            Extension::None => 0,
            Extension::ImmDt(_) | Extension::Ieth(_) | Extension::Aeth(_) => 4,
            Extension::Deth(_) => 8,
            Extension::AethAtomicAck(..) | Extension::DethImmDt(..) => 12,
            Extension::Reth(_) => 16,
            Extension::RethImmDt(..) | Extension::FethReth(..) => 20,
            Extension::Atomic(_) => 28,
        }
    }

    /// Whether there are no extended headers.
    pub fn is_empty(&self) -> bool {
        matches!(self, Extension::None)
    }

    pub(super) fn write(&self, out: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match self {
            Extension::None => {}
            Extension::Reth(reth) => put(0, reth.as_bytes()),
            Extension::RethImmDt(reth, imm) => {
                put(0, reth.as_bytes());
                put(16, imm.as_bytes());
            }
            Extension::FethReth(feth, reth) => {
                put(0, feth.as_bytes());
                put(4, reth.as_bytes());
            }
            Extension::ImmDt(imm) => put(0, imm.as_bytes()),
            Extension::Ieth(ieth) => put(0, ieth.as_bytes()),
            Extension::Aeth(aeth) => put(0, aeth.as_bytes()),
            Extension::AethAtomicAck(aeth, atomic) => {
                put(0, aeth.as_bytes());
                put(4, atomic.as_bytes());
            }
            Extension::Atomic(atomic) => put(0, atomic.as_bytes()),
            Extension::Deth(deth) => put(0, deth.as_bytes()),
            Extension::DethImmDt(deth, imm) => {
                put(0, deth.as_bytes());
                put(8, imm.as_bytes());
            }
        }
    }
}

/// What a written packet has after its headers, without the pad.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// Length of the payload, in bytes.
    pub payload_bytes: usize,
    /// The bytes after the pad (docs/EXTENSIONS.md); empty for none.
    pub trailer: &'a [u8],
    /// The tag between these and the ICRC.
    pub tag: Option<u32>,
}

impl From<usize> for Body<'_> {
    /// A body of `payload_bytes` bytes, without a trailer.
    fn from(payload_bytes: usize) -> Self {
        Body { payload_bytes, trailer: &[], tag: None }
    }
}

impl Headers {
    /// Writes a whole packet, from the IP header to the ICRC, to the start of `out`, and returns its length in bytes.
    ///
    /// `fill` writes the payload of `body`. It runs before the ICRC is computed, while the bytes are in cache. With a
    /// trailer or a tag (docs/EXTENSIONS.md) the BTH must have the extended bit. `identification` is the IPv4 one; IPv6 has
    /// none.
    ///
    /// # Errors
    /// [`WriteError::TooLong`] when `out` is shorter than the packet; [`WriteError::Payload`] with the error that
    /// `fill` returned.
    pub fn write<'a, E>(
        &self,
        out: &mut [u8],
        flow: &Flow,
        identification: u16,
        body: impl Into<Body<'a>>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, WriteError<E>> {
        let Body { payload_bytes, trailer, tag } = body.into();
        debug_assert_eq!(
            self.extension.len(),
            self.bth.opcode().extension_bytes(),
            "{} with {:?}",
            self.bth.opcode(),
            self.extension
        );
        let pad = payload_bytes.wrapping_neg() & 3;
        let ib_start = flow.header_bytes();
        let payload_start = ib_start + Bth::BYTES + self.extension.len();
        let trailer_start = payload_start + payload_bytes + pad;
        let tag_start = trailer_start + trailer.len();
        let icrc_start = tag_start + tag.map_or(0, |_| Packet::TAG_BYTES);
        let need = icrc_start + ICRC_BYTES;
        let have = out.len();
        let Some(out) = out.get_mut(..need) else { return Err(WriteError::TooLong { need, have }) };

        flow.write(out, identification, need - ib_start);
        out[ib_start..ib_start + Bth::BYTES].copy_from_slice(self.bth.with_pad(pad).as_bytes());
        self.extension.write(&mut out[ib_start + Bth::BYTES..]);
        fill(&mut out[payload_start..payload_start + payload_bytes]).map_err(WriteError::Payload)?;
        if pad > 0 {
            out[trailer_start - pad..trailer_start].fill(0);
        }
        out[trailer_start..tag_start].copy_from_slice(trailer);
        if let Some(tag) = tag {
            out[tag_start..tag_start + Packet::TAG_BYTES].copy_from_slice(&tag.to_be_bytes());
        }
        let icrc = icrc::compute_in_place(&mut out[..icrc_start]).expect("IP, UDP and BTH were just written");
        out[icrc_start..].copy_from_slice(&icrc.to_le_bytes());
        Ok(need)
    }
}
