use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::{Psn, QKey, Qpn};

use super::{bytes, number};

/// REP (IBTA 12.6.8): the connection is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The sender's communication id.
    pub local_id: u32,
    /// That of the request.
    pub remote_id: u32,
    /// The sender's Q_Key; 0 for RC and UC.
    pub q_key: QKey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The first PSN that the sender expects: its peer begins with it.
    pub psn: Psn,
    /// The READs and atomics that the sender accepts at once.
    pub responder_resources: u8,
    /// The READs and atomics that the sender has in flight, at most.
    pub initiator_depth: u8,
    /// How long the sender takes to acknowledge, at most: 4.096 µs × 2^code; 5 bits.
    pub target_ack_delay: u8,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// The retries of the sender's queue pair for a receiver that is not ready, 0 to 7; 7 for any number.
    pub rnr_retry: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// The GUID of the sender's adapter.
    pub ca_guid: u64,
    /// The data of the sender's program.
    pub private_data: [u8; Reply::PRIVATE_BYTES],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Wire {
    local_id: U32,
    remote_id: U32,
    q_key: U32,
    qpn: [u8; 3],
    reserved_15: u8,
    ee_context: [u8; 3],
    reserved_19: u8,
    psn: [u8; 3],
    reserved_23: u8,
    responder_resources: u8,
    initiator_depth: u8,
    /// Target ACK delay:5, failover:2, flow control:1.
    byte_26: u8,
    /// RNR retry count:3, SRQ:1.
    byte_27: u8,
    ca_guid: U64,
    private_data: [u8; Reply::PRIVATE_BYTES],
}

impl Reply {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 196;

    pub(super) fn from_wire(wire: Wire) -> Reply {
        Reply {
            local_id: wire.local_id.get(),
            remote_id: wire.remote_id.get(),
            q_key: QKey(wire.q_key.get()),
            qpn: Qpn::new(number(wire.qpn)),
            psn: Psn::new(number(wire.psn)),
            responder_resources: wire.responder_resources,
            initiator_depth: wire.initiator_depth,
            target_ack_delay: wire.byte_26 >> 3,
            flow_control: wire.byte_26 & 1 != 0,
            rnr_retry: wire.byte_27 >> 5,
            has_srq: wire.byte_27 & 0x10 != 0,
            ca_guid: wire.ca_guid.get(),
            private_data: wire.private_data,
        }
    }

    pub(super) fn to_wire(&self) -> Wire {
        Wire {
            local_id: U32::new(self.local_id),
            remote_id: U32::new(self.remote_id),
            q_key: U32::new(self.q_key.0),
            qpn: bytes(self.qpn.value()),
            reserved_15: 0,
            ee_context: [0; 3],
            reserved_19: 0,
            psn: bytes(self.psn.value()),
            reserved_23: 0,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            byte_26: self.target_ack_delay << 3 | u8::from(self.flow_control),
            byte_27: self.rnr_retry << 5 | u8::from(self.has_srq) << 4,
            ca_guid: U64::new(self.ca_guid),
            private_data: self.private_data,
        }
    }
}
