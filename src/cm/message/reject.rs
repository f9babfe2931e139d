use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// REJ (IBTA 12.6.7): there is no connection, or none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The sender's communication id; 0 when it has none.
    pub local_id: u32,
    /// The receiver's communication id; 0 when the sender does not know it.
    pub remote_id: u32,
    /// The message that is rejected.
    pub what: Rejected,
    /// Why.
    pub reason: Reason,
    /// For [`Reason::TIMEOUT`], the GUID of the sender's adapter, by which the receiver knows a request whose id it has
    /// not told yet; 0 otherwise.
    pub ca_guid: u64,
    /// The data of the sender's program.
    pub private_data: [u8; Reject::PRIVATE_BYTES],
}

/// The message that a REJ or an MRA is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A REQ.
    Request,
    /// A REP.
    Reply,
    /// None in particular, or another one.
    Other,
}

/// Why a connection is rejected (IBTA 12.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u16);

impl Reason {
    /// No answer came in time.
    pub const TIMEOUT: Reason = Reason(4);
    /// The communication ids are not those of a connection.
    pub const INVALID_COMM_ID: Reason = Reason(6);
    /// Nobody listens for the service.
    pub const INVALID_SERVICE_ID: Reason = Reason(8);
    /// The sender has a connection with that queue pair, which must end first.
    pub const STALE_CONNECTION: Reason = Reason(10);
    /// The receiver's program rejected the request.
    pub const CONSUMER: Reason = Reason(28);
}

impl Rejected {
    pub(super) fn from_code(code: u8) -> Rejected {
        match code {
            0 => Rejected::Request,
            1 => Rejected::Reply,
            _ => Rejected::Other,
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Rejected::Request => 0,
            Rejected::Reply => 1,
            Rejected::Other => 2,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Wire {
    local_id: U32,
    remote_id: U32,
    /// Message:2.
    byte_8: u8,
    /// Length of the information:7.
    byte_9: u8,
    reason: U16,
    /// Additional information, which depends on the reason: for a timeout it begins with a GUID.
    information: U64,
    information_8: [u8; 64],
    private_data: [u8; Reject::PRIVATE_BYTES],
}

impl Reject {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 148;

    /// The rejection of a message whose sender has the communication id `remote_id`, by who has no connection with it.
    pub(crate) fn of_stranger(remote_id: u32, what: Rejected, reason: Reason) -> Reject {
        Reject { local_id: 0, remote_id, what, reason, ca_guid: 0, private_data: [0; Reject::PRIVATE_BYTES] }
    }

    pub(super) fn from_wire(wire: Wire) -> Reject {
        Reject {
            local_id: wire.local_id.get(),
            remote_id: wire.remote_id.get(),
            what: Rejected::from_code(wire.byte_8 >> 6),
            reason: Reason(wire.reason.get()),
            ca_guid: if wire.reason.get() == Reason::TIMEOUT.0 { wire.information.get() } else { 0 },
            private_data: wire.private_data,
        }
    }

    pub(super) fn to_wire(&self) -> Wire {
        Wire {
            local_id: U32::new(self.local_id),
            remote_id: U32::new(self.remote_id),
            byte_8: self.what.code() << 6,
            byte_9: if self.ca_guid == 0 { 0 } else { (size_of::<U64>() as u8) << 1 },
            reason: U16::new(self.reason.0),
            information: U64::new(self.ca_guid),
            information_8: [0; 64],
            private_data: self.private_data,
        }
    }
}
