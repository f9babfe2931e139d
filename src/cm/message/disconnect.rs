use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::Qpn;

use super::{bytes, number};

/// DREQ (IBTA 12.6.10): ends the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectRequest {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
}

/// DREP (IBTA 12.6.11): the end of the connection is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectReply {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RequestWire {
    local_id: U32,
    remote_id: U32,
    remote_qpn: [u8; 3],
    reserved_11: u8,
    private_data: [u8; 220],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ReplyWire {
    local_id: U32,
    remote_id: U32,
    private_data: [u8; 224],
}

impl DisconnectRequest {
    pub(super) fn from_wire(wire: RequestWire) -> DisconnectRequest {
        DisconnectRequest {
            local_id: wire.local_id.get(),
            remote_id: wire.remote_id.get(),
            remote_qpn: Qpn::new(number(wire.remote_qpn)),
        }
    }

    pub(super) fn to_wire(&self) -> RequestWire {
        RequestWire {
            local_id: U32::new(self.local_id),
            remote_id: U32::new(self.remote_id),
            remote_qpn: bytes(self.remote_qpn.value()),
            reserved_11: 0,
            private_data: [0; 220],
        }
    }
}

impl DisconnectReply {
    pub(super) fn from_wire(wire: ReplyWire) -> DisconnectReply {
        DisconnectReply { local_id: wire.local_id.get(), remote_id: wire.remote_id.get() }
    }

    pub(super) fn to_wire(&self) -> ReplyWire {
        let (local_id, remote_id) = (U32::new(self.local_id), U32::new(self.remote_id));
        ReplyWire { local_id, remote_id, private_data: [0; 224] }
    }
}
