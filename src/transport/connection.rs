use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::memory::{MemoryTable, Pd};
use crate::wire::{Headers, Packet, PathMtu, Qpn, Sack, WriteError};

use super::attributes::{Path, Service};
use super::completion::{Completion, CompletionKind, CompletionQueue, Overrun, Status};
use super::endpoint::{Event, Transmit};
use super::extension::Extension;
use super::surroundings::Surroundings;

/// What both roles need to know of the connection.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub qpn: Qpn,
    pub service: Service,
    pub pd: Pd,
    pub remote: Qpn,
    pub path_mtu: PathMtu,
    pub path: Option<Path>,
    /// What is known of the peer, beside the IBTA.
    pub extension: Extension,
    pub send_cq: Arc<CompletionQueue>,
    pub receive_cq: Arc<CompletionQueue>,
}

impl Identity {
    /// Whether it says what docs/EXTENSIONS.md adds in each packet.
    pub fn is_extended(&self) -> bool {
        self.service == Service::Rc && self.extension.is_on()
    }

    /// Writes one packet to the connected peer over `path`, with a trailer unless that is empty, and with a tag when the peer
    /// understands. `Ok(None)` when it cannot be written, which is counted.
    #[allow(clippy::too_many_arguments, reason = "all that a packet is made of")]
    pub fn write_over<E>(
        &self,
        path: u8,
        out: &mut [u8],
        headers: Headers,
        payload_bytes: usize,
        cx: &mut Surroundings<'_>,
        fill: impl FnOnce(&MemoryTable, &mut [u8]) -> Result<(), E>,
        trailer: &[u8],
    ) -> Result<Option<Transmit>, E> {
        let path = self.path.and_then(|base| match cx.multipath {
            None => Some(base),
            Some(multipath) => {
                multipath.set.touch(cx.now);
                multipath.path(&base, path)
            }
        });
        match path {
            Some(path) if self.is_extended() => {
                self.write_tagged(&path, out, headers, payload_bytes, cx, fill, trailer, self.extension.tag())
            }
            Some(path) => write(&path, out, headers, payload_bytes, cx, fill, trailer),
            None => Ok(None),
        }
    }

    /// Writes one extended packet.
    #[allow(clippy::too_many_arguments, reason = "all that a packet is made of")]
    pub fn write_tagged<E>(
        &self,
        path: &Path,
        out: &mut [u8],
        headers: Headers,
        payload_bytes: usize,
        cx: &mut Surroundings<'_>,
        fill: impl FnOnce(&MemoryTable, &mut [u8]) -> Result<(), E>,
        trailer: &[u8],
        tag: u32,
    ) -> Result<Option<Transmit>, E> {
        let mut end = ArrayVec::<u8, { Sack::MAX_BYTES + Packet::TAG_BYTES }>::new();
        for part in [trailer, &tag.to_be_bytes()] {
            end.try_extend_from_slice(part).expect("no trailer is longer than the longest selective acknowledge");
        }
        let headers = Headers { bth: headers.bth.with_offer(true).with_extended(true), ..headers };
        write(path, out, headers, payload_bytes, cx, fill, &end)
    }

    /// Reports a send request.
    pub fn complete_send(
        &self,
        wr_id: u64,
        kind: CompletionKind,
        status: Status,
        byte_len: u32,
        cx: &mut Surroundings<'_>,
    ) {
        self.complete(&self.send_cq, Completion::send(wr_id, self.qpn, kind, status, byte_len), false, cx);
    }

    /// Reports a receive request.
    pub fn complete_receive(&self, completion: Completion, solicited: bool, cx: &mut Surroundings<'_>) {
        self.complete(&self.receive_cq, completion, solicited, cx);
    }

    fn complete(&self, cq: &CompletionQueue, completion: Completion, solicited: bool, cx: &mut Surroundings<'_>) {
        if let Err(Overrun { is_first }) = cq.push(Completion { time: cx.now, ..completion }, solicited) {
            cx.has_lost_completion = true;
            if is_first {
                cx.push_event(Event::CompletionQueueOverflow(self.qpn));
            }
        }
    }
}

/// Writes one packet along `path`. `Ok(None)` when it cannot be written, which is counted.
pub(super) fn write<E>(
    path: &Path,
    out: &mut [u8],
    headers: Headers,
    payload_bytes: usize,
    cx: &mut Surroundings<'_>,
    fill: impl FnOnce(&MemoryTable, &mut [u8]) -> Result<(), E>,
    trailer: &[u8],
) -> Result<Option<Transmit>, E> {
    let memory = &*cx.memory;
    let fill = |out: &mut [u8]| fill(memory, out);
    match headers.write_extended(out, &path.flow, *cx.identification, payload_bytes, fill, trailer) {
        Ok(len) => {
            *cx.identification = cx.identification.wrapping_add(1);
            cx.counters.sent_pkts += 1;
            Ok(Some(Transmit { len, hop: path.hop }))
        }
        Err(WriteError::Payload(error)) => Err(error),
        Err(WriteError::TooLong { .. }) => {
            cx.counters.too_long += 1;
            Ok(None)
        }
    }
}
