use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::cm::ServiceId;
use crate::wire::PKey;

/// SIDR_REQ (IBTA 12.11.1): asks for the queue pair of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramRequest {
    /// The sender's id of this request.
    pub request_id: u32,
    /// The partition of the service.
    pub p_key: PKey,
    /// The service that is asked for.
    pub service_id: ServiceId,
    /// The data of the sender's program.
    pub private_data: [u8; DatagramRequest::PRIVATE_BYTES],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Wire {
    request_id: U32,
    p_key: U16,
    reserved_6: U16,
    service_id: U64,
    private_data: [u8; DatagramRequest::PRIVATE_BYTES],
}

impl DatagramRequest {
    /// Bytes of private data. The IP header of RDMA CM takes the first 36.
    pub const PRIVATE_BYTES: usize = 216;

    pub(super) fn from_wire(wire: Wire) -> DatagramRequest {
        DatagramRequest {
            request_id: wire.request_id.get(),
            p_key: PKey(wire.p_key.get()),
            service_id: ServiceId(wire.service_id.get()),
            private_data: wire.private_data,
        }
    }

    pub(super) fn to_wire(&self) -> Wire {
        Wire {
            request_id: U32::new(self.request_id),
            p_key: U16::new(self.p_key.0),
            reserved_6: U16::ZERO,
            service_id: U64::new(self.service_id.0),
            private_data: self.private_data,
        }
    }
}
