use crate::frame::FrameBytes;
use crate::wire::{IpHeader, Packet, QKey};

use super::Status;
use super::attributes::QpAttributes;
use super::completion::{Completion, NetworkHeader};
use super::connection::Connection;
use super::context::{Context, Fatal};
use super::inbound::{Inbound, complete_receive};
use super::work::{ReceiveRequest, scatter, total};

/// Bytes before a datagram's payload in the receive buffer: the global routing header (IBTA 11.4.1.2), or what takes
/// its place with IPv4.
pub(super) const GRH_BYTES: u32 = 40;

/// The receiving side of a datagram queue pair (IBTA 9.8.3): every packet is a message, and nothing is answered.
#[derive(Debug, Default)]
pub(super) struct DatagramResponder {
    /// The state of its receive queue; datagrams are never WRITEs.
    pub inbound: Inbound,
    q_key: QKey,
}

impl DatagramResponder {
    pub fn configure(&mut self, attributes: &QpAttributes) {
        self.q_key = attributes.q_key.unwrap_or(self.q_key);
    }

    pub fn q_key(&self) -> QKey {
        self.q_key
    }

    /// Places a datagram in the oldest receive request: first the routing header, then the payload. A datagram that
    /// does not fit, or finds no request, is dropped, and the request stays posted.
    pub fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        ip: &IpHeader<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let Some(deth) = packet.deth() else { return Ok(()) };
        if deth.q_key() != self.q_key && !mutated!("ud-key-not-checked") {
            cx.counters.bad_q_key += 1;
            return Ok(());
        }
        let payload = packet.payload();
        if payload.len() > connection.path_mtu.bytes() {
            cx.counters.dropped_message += 1;
            return Ok(());
        }
        let pd = self.inbound.pd(connection, cx);
        let len = GRH_BYTES + payload.len() as u32;
        let fits = |request: &ReceiveRequest| u64::from(len) <= total(&request.sges);
        // It is taken only to be used: another queue pair can be waiting for a shared queue's.
        let has_room = self.inbound.queue.front(cx.shared).is_some_and(fits)
            || (mutated!("ud-request-lost-with-a-long-datagram") && self.inbound.take(cx).is_none());
        let Some(request) = has_room.then(|| self.inbound.take(cx)).flatten() else {
            cx.counters.dropped_message += 1;
            return Ok(());
        };
        let grh = routing_header(ip);
        let placed = scatter(cx.memory, pd, &request.sges, 0, FrameBytes::from(&grh[..]))
            .and_then(|()| scatter(cx.memory, pd, &request.sges, GRH_BYTES, payload));
        if placed.is_err() {
            complete_receive(&request, Status::LocalProtection, connection, cx);
            return Err(Fatal);
        }
        let completion = Completion {
            immediate: packet.imm_dt().map(|imm| imm.data()).filter(|_| !mutated!("ud-immediate-lost")),
            source_qpn: deth.source(),
            network_header: Some(match ip {
                IpHeader::V4(_) => NetworkHeader::Ipv4,
                IpHeader::V6(_) => NetworkHeader::Ipv6,
            }),
            ..Completion::receive(request.wr_id, connection.qpn, len - u32::from(mutated!("ud-header-not-counted")))
        };
        connection.complete_receive(completion, packet.bth().solicited(), cx);
        Ok(())
    }
}

/// The IPv6 header. With IPv4: zeros, and the IPv4 header behind them, as rxe and RNICs place it (IBTA Annex
/// A17.4.5.2).
fn routing_header(ip: &IpHeader<'_>) -> [u8; GRH_BYTES as usize] {
    let mut header = [0; GRH_BYTES as usize];
    match ip {
        IpHeader::V4(_) if mutated!("ud-without-routing-header") => {}
        IpHeader::V4(ip) => header[20..].copy_from_slice(&ip.slice()[..20]),
        IpHeader::V6(ip) => header.copy_from_slice(ip.slice()),
    }
    header
}
