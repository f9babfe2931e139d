use std::convert::Infallible;

use crate::memory::MemoryTable;
use crate::wire::{Body, Headers, WriteError};

use super::attributes::Path;
use super::context::Context;
use super::transmit::Transmit;

/// A packet to be written, without the bytes of its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing<'a> {
    pub headers: Headers,
    pub payload_bytes: usize,
    /// The bytes that follow the payload and its pad (docs/EXTENSIONS.md); empty for none.
    pub trailer: &'a [u8],
    /// The tag at the end, for a peer that understands the extension. Such a packet announces it, and makes the offer.
    pub tag: Option<u32>,
}

impl Outgoing<'_> {
    /// A packet of headers only.
    pub fn headers(headers: Headers) -> Outgoing<'static> {
        Outgoing { headers, payload_bytes: 0, trailer: &[], tag: None }
    }

    /// The packet with that tag at its end, if there is one.
    pub fn tagged(mut self, tag: Option<u32>) -> Self {
        self.set_tag(tag);
        self
    }

    /// Gives it that tag, if there is one.
    #[inline]
    pub fn set_tag(&mut self, tag: Option<u32>) {
        if tag.is_some() {
            self.headers.bth = self.headers.bth.with_offer(true).with_extended(true);
        }
        self.tag = tag;
    }

    /// Whether it is a request, or has data.
    pub fn is_data(&self) -> bool {
        !self.headers.bth.opcode().is_response() || self.payload_bytes > 0
    }

    /// Writes the packet to `out`, with the outer headers of `path`; `fill` writes the payload. `Ok(None)` when `out`
    /// is too short, which is counted.
    ///
    /// # Errors
    /// The error of `fill`.
    pub fn write<E>(
        &self,
        path: &Path,
        out: &mut [u8],
        cx: &mut Context<'_>,
        fill: impl FnOnce(&MemoryTable, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Transmit>, E> {
        let Outgoing { headers, payload_bytes, trailer, tag } = self;
        let body = Body { payload_bytes: *payload_bytes, trailer, tag: *tag };
        let memory = &*cx.memory;
        let fill = |out: &mut [u8]| fill(memory, out);
        match headers.write(out, &path.flow, *cx.identification, body, fill) {
            Ok(len) => {
                *cx.identification = cx.identification.wrapping_add(cx.identification_step);
                cx.counters.sent_pkts += 1;
                cx.counters.sent_bytes += len as u64;
                Ok(Some(Transmit { len, hop: path.hop, is_data: self.is_data() }))
            }
            Err(WriteError::Payload(error)) => Err(error),
            Err(WriteError::TooLong { .. }) => {
                cx.counters.too_long += 1;
                Ok(None)
            }
        }
    }
}

/// Fills a packet that has no payload.
pub(super) fn no_payload(_: &MemoryTable, _: &mut [u8]) -> Result<(), Infallible> {
    Ok(())
}
