use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::reject::Rejected;

/// MRA (IBTA 12.6.6): a message was received, and the answer to it takes time. Who gets it waits longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
    /// The message that was received.
    pub what: Rejected,
    /// How long the answer takes: 4.096 µs × 2^code; 5 bits.
    pub service_timeout: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Wire {
    local_id: U32,
    remote_id: U32,
    /// Message:2.
    byte_8: u8,
    /// Service timeout:5.
    byte_9: u8,
    private_data: [u8; 222],
}

impl Received {
    pub(super) fn from_wire(wire: Wire) -> Received {
        Received {
            local_id: wire.local_id.get(),
            remote_id: wire.remote_id.get(),
            what: Rejected::from_code(wire.byte_8 >> 6),
            service_timeout: wire.byte_9 >> 3,
        }
    }

    pub(super) fn to_wire(&self) -> Wire {
        Wire {
            local_id: U32::new(self.local_id),
            remote_id: U32::new(self.remote_id),
            byte_8: self.what.code() << 6,
            byte_9: self.service_timeout << 3,
            private_data: [0; 222],
        }
    }
}
