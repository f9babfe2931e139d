use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::cm::ServiceId;
use crate::wire::{QKey, Qpn};

use super::{bytes, number};

/// SIDR_REP (IBTA 12.11.2): names the queue pair of a datagram service, or says why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramReply {
    /// The id of the request.
    pub request_id: u32,
    /// Whether the service can be used.
    pub status: DatagramStatus,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// The Q_Key of its queue pair.
    pub q_key: QKey,
    /// The data of the sender's program.
    pub private_data: [u8; DatagramReply::PRIVATE_BYTES],
}

/// Whether a datagram service can be used (IBTA 12.11.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramStatus(pub u8);

impl DatagramStatus {
    /// It can.
    pub const SUCCESS: DatagramStatus = DatagramStatus(0);
    /// Nobody listens for the service.
    pub const UNSUPPORTED: DatagramStatus = DatagramStatus(1);
    /// The program rejected the request.
    pub const REJECTED: DatagramStatus = DatagramStatus(2);
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Wire {
    request_id: U32,
    status: u8,
    information_len: u8,
    reserved_6: [u8; 2],
    qpn: [u8; 3],
    reserved_11: u8,
    service_id: U64,
    q_key: U32,
    information: [u8; 72],
    private_data: [u8; DatagramReply::PRIVATE_BYTES],
}

impl DatagramReply {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 136;

    /// The answer that a service cannot be used, for the reason `status`.
    pub fn refusal(request_id: u32, service_id: ServiceId, status: DatagramStatus) -> DatagramReply {
        let (qpn, q_key) = (Qpn::default(), QKey::default());
        DatagramReply { request_id, status, qpn, service_id, q_key, private_data: [0; DatagramReply::PRIVATE_BYTES] }
    }

    pub(super) fn from_wire(wire: Wire) -> DatagramReply {
        DatagramReply {
            request_id: wire.request_id.get(),
            status: DatagramStatus(wire.status),
            qpn: Qpn::new(number(wire.qpn)),
            service_id: ServiceId(wire.service_id.get()),
            q_key: QKey(wire.q_key.get()),
            private_data: wire.private_data,
        }
    }

    pub(super) fn to_wire(&self) -> Wire {
        Wire {
            request_id: U32::new(self.request_id),
            status: self.status.0,
            information_len: 0,
            reserved_6: [0; 2],
            qpn: bytes(self.qpn.value()),
            reserved_11: 0,
            service_id: U64::new(self.service_id.0),
            q_key: U32::new(self.q_key.0),
            information: [0; 72],
            private_data: self.private_data,
        }
    }
}
