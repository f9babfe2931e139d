use arrayvec::ArrayVec;

use crate::memory::{AccessError, MemoryTable};
use crate::wire::{
    AtomicEth, Bth, CarriedAcknowledge, Deth, Extension, Feth, Headers, Ieth, ImmDt, Opcode, Position, Psn, QKey,
    RequestTrailer, Reth, Telemetry,
};

use super::wqe::Wqe;
use crate::transport::connection::Connection;
use crate::transport::context::Context;
use crate::transport::outgoing::Outgoing;
use crate::transport::service::Service;
use crate::transport::transmit::Transmit;
use crate::transport::work::SendOperation;

/// A packet of a request, before it is written.
#[derive(Clone, Copy, Debug)]
pub struct RequestPacket {
    /// Its index in its message.
    pub index: u32,
    /// Upper bound on the answers that a READ requests; fewer when fewer are left.
    pub answers: u32,
    /// Earlier transmissions of the packet.
    pub attempt: u8,
    /// Whether it asks for an acknowledge, although it is not the last packet of its message.
    pub asks_for_acknowledge: bool,
    /// Whether it offers the extension.
    pub offers: bool,
    pub path: u8,
    /// An acknowledge of the other direction, if the message has no other packet.
    pub acknowledge: Option<CarriedAcknowledge>,
}

impl RequestPacket {
    /// Writes the packet of `wqe`. `Ok(None)` when it cannot be written.
    pub fn write(
        &self,
        wqe: &Wqe,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, AccessError> {
        let RequestPacket { index, attempt, asks_for_acknowledge, offers, path, acknowledge, .. } = *self;
        let mtu = connection.path_mtu.bytes() as u32;
        let position = Position::of(index, wqe.packets);
        let opcode = wqe.request.operation.opcode(position).expect("local operations take no PSN");
        let (extension, payload_bytes) = self.extension(wqe, position, mtu);
        let opcode = if connection.service == Service::Uc { opcode.on_uc() } else { opcode };
        let bth = Bth::new(opcode, connection.remote, Psn::of(wqe.first + u64::from(index)))
            .with_ack_request(position.ends() || asks_for_acknowledge || opcode == Opcode::RC_READ_REQUEST)
            .with_solicited(wqe.request.solicited && position.ends() && wqe.request.operation.takes_receive())
            .with_offer(offers);
        // The trailer names the packet's place in its message, for a peer that understands it.
        let said = RequestTrailer {
            reth: if index > 0 { wqe.reth() } else { None },
            acknowledge,
            index,
            attempt,
            receive_number: wqe.receive_number,
            has_telemetry: connection.extension.asks_telemetry(connection.path_mtu),
        };
        let mut trailer = ArrayVec::<u8, { RequestTrailer::MAX_BYTES + Telemetry::BYTES }>::new();
        connection.extension.put_trailer(&said, &mut trailer);
        if said.has_telemetry {
            trailer.extend(Telemetry::default().to_bytes());
        }
        let headers = Headers { bth, extension };
        let packet = Outgoing { headers, payload_bytes: payload_bytes as usize, trailer: &trailer, tag: None };
        let gather =
            |memory: &MemoryTable, out: &mut [u8]| wqe.request.data.gather(memory, connection.pd, index * mtu, out);
        connection.write(path, out, packet, cx, gather)
    }

    /// The headers after the BTH, and the bytes of payload after them.
    fn extension(&self, wqe: &Wqe, position: Position, mtu: u32) -> (Extension, u32) {
        let offset = self.index * mtu;
        let rest = wqe.len - offset;
        match wqe.request.operation {
            SendOperation::Read(remote) => {
                // The rest of the answers, when some have arrived.
                let len = rest.min(self.answers.saturating_mul(mtu));
                let from = if mutated!("read-asked-again-from-its-beginning") { 0 } else { offset.into() };
                let reth = Reth::new(remote.address.wrapping_add(from), remote.key, len);
                (Extension::Reth(reth), 0)
            }
            SendOperation::CompareSwap { remote, compare, swap } => {
                (Extension::Atomic(AtomicEth::new(remote.address, remote.key, swap, compare)), 0)
            }
            SendOperation::FetchAdd { remote, add } => {
                (Extension::Atomic(AtomicEth::new(remote.address, remote.key, add, 0)), 0)
            }
            SendOperation::AtomicWrite(remote) => {
                (Extension::Reth(Reth::new(remote.address, remote.key, wqe.len)), wqe.len)
            }
            SendOperation::Flush { remote, length, placement, selectivity } => {
                let reth = Reth::new(remote.address, remote.key, length);
                (Extension::FethReth(Feth::new(placement, selectivity), reth), 0)
            }
            SendOperation::Write(remote) if position.starts() => {
                (Extension::Reth(Reth::new(remote.address, remote.key, wqe.len)), rest.min(mtu))
            }
            SendOperation::WriteWithImmediate(remote, data) if position.starts() => {
                let reth = Reth::new(remote.address, remote.key, wqe.len);
                let extension = match position {
                    Position::Only => Extension::RethImmDt(reth, ImmDt::new(data)),
                    _ => Extension::Reth(reth),
                };
                (extension, rest.min(mtu))
            }
            SendOperation::SendWithImmediate(data) | SendOperation::WriteWithImmediate(_, data) if position.ends() => {
                (Extension::ImmDt(ImmDt::new(data)), rest.min(mtu))
            }
            SendOperation::SendWithInvalidate(key) if position.ends() => {
                (Extension::Ieth(Ieth::new(key)), rest.min(mtu))
            }
            _ => (Extension::None, rest.min(mtu)),
        }
    }
}

/// Writes the datagram of `wqe`, for a queue pair whose own queue key is `own_key`. `Ok(None)` when it cannot be
/// written.
pub fn write_datagram(
    wqe: &Wqe,
    own_key: QKey,
    out: &mut [u8],
    connection: &Connection,
    cx: &mut Context<'_>,
) -> Result<Option<Transmit>, AccessError> {
    let Some(destination) = &wqe.request.destination else { return Ok(None) };
    // IBTA 10.2.5: a key with the top bit set is privileged; the queue pair's own is sent instead.
    let q_key = if destination.q_key.0 >> 31 == 1 && !mutated!("ud-privileged-key-sent-as-it-is") {
        own_key
    } else {
        destination.q_key
    };
    let deth = Deth::new(q_key, connection.qpn);
    let (opcode, extension) = match wqe.request.operation {
        SendOperation::SendWithImmediate(data) => {
            (Opcode::UD_SEND_ONLY_IMM, Extension::DethImmDt(deth, ImmDt::new(data)))
        }
        _ => (Opcode::UD_SEND_ONLY, Extension::Deth(deth)),
    };
    let bth = Bth::new(opcode, destination.qpn, Psn::of(wqe.first)).with_solicited(wqe.request.solicited);
    let gather = |memory: &MemoryTable, out: &mut [u8]| wqe.request.data.gather(memory, connection.pd, 0, out);
    let packet = Outgoing { payload_bytes: wqe.len as usize, ..Outgoing::headers(Headers { bth, extension }) };
    packet.write(&destination.path, out, cx, gather)
}
