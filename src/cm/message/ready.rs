use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RTU (IBTA 12.6.9): the reply has arrived, and the connection can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyToUse {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Wire {
    local_id: U32,
    remote_id: U32,
    private_data: [u8; 224],
}

impl ReadyToUse {
    pub(super) fn from_wire(wire: Wire) -> ReadyToUse {
        ReadyToUse { local_id: wire.local_id.get(), remote_id: wire.remote_id.get() }
    }

    pub(super) fn to_wire(&self) -> Wire {
        let (local_id, remote_id) = (U32::new(self.local_id), U32::new(self.remote_id));
        Wire { local_id, remote_id, private_data: [0; 224] }
    }
}
