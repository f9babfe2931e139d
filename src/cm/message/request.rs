use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::cm::ServiceId;
use crate::wire::{PKey, PathMtu, Psn, QKey, Qpn};

use super::{MessageError, bytes, number};

/// REQ (IBTA 12.6.5): asks for a connection to a service.
///
/// All timeouts are codes: 4.096 µs × 2^code. The alternate path is not offered: RoCE has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's communication id.
    pub local_id: u32,
    /// The service that is asked for.
    pub service_id: ServiceId,
    /// The GUID of the sender's adapter: with the communication id it names the request.
    pub ca_guid: u64,
    /// The sender's Q_Key; 0 for RC and UC.
    pub q_key: QKey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The READs and atomics that the sender accepts at once.
    pub responder_resources: u8,
    /// The READs and atomics that the sender has in flight, at most.
    pub initiator_depth: u8,
    /// How long the sender waits for an answer, at least; 5 bits.
    pub remote_response_timeout: u8,
    /// The transport service of the connection.
    pub transport: Transport,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// The first PSN that the sender expects: its peer begins with it.
    pub psn: Psn,
    /// How long the sender takes to answer a message, at most; 5 bits.
    pub local_response_timeout: u8,
    /// The retries of the sender's queue pair, 0 to 7.
    pub retry_count: u8,
    /// The partition of the connection.
    pub p_key: PKey,
    /// The path MTU of the connection.
    pub path_mtu: PathMtu,
    /// The retries of the sender's queue pair for a receiver that is not ready, 0 to 7; 7 for any number.
    pub rnr_retry: u8,
    /// How often the sender accepts that a message is sent again; 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// The GID of the sender; `::ffff:a.b.c.d` for an IPv4 address.
    pub local_gid: Ipv6Addr,
    /// The GID of the receiver.
    pub remote_gid: Ipv6Addr,
    /// The IPv6 flow label of the path, 20 bits. The kernel derives the UDP source port of the connection from it.
    pub flow_label: u32,
    /// The traffic class of the path: DSCP and ECN.
    pub traffic_class: u8,
    /// The hop limit of the path.
    pub hop_limit: u8,
    /// The service level of the path; 4 bits.
    pub sl: u8,
    /// How long the sender waits for an acknowledge; 5 bits.
    pub ack_timeout: u8,
    /// The data of the sender's program.
    pub private_data: [u8; Request::PRIVATE_BYTES],
}

/// The transport service of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Wire {
    local_id: U32,
    reserved_4: [u8; 4],
    service_id: U64,
    ca_guid: U64,
    reserved_24: [u8; 4],
    q_key: U32,
    qpn: [u8; 3],
    responder_resources: u8,
    /// EE contexts are those of RD, which nobody has.
    ee_context: [u8; 3],
    initiator_depth: u8,
    remote_ee_context: [u8; 3],
    /// Remote response timeout:5, transport service:2, flow control:1.
    byte_43: u8,
    psn: [u8; 3],
    /// Local response timeout:5, retry count:3.
    byte_47: u8,
    p_key: U16,
    /// Path MTU:4, RDC exists:1, RNR retry count:3.
    byte_50: u8,
    /// CM retries:4, SRQ:1, extended transport:3.
    byte_51: u8,
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// Flow label:20, reserved:6, rate:6. The kernel names no rate either.
    word_88: U32,
    traffic_class: u8,
    hop_limit: u8,
    /// Service level:4, subnet local:1.
    byte_94: u8,
    /// ACK timeout:5.
    byte_95: u8,
    alternate: [u8; 44],
    private_data: [u8; Request::PRIVATE_BYTES],
}

/// The LID of a path that leaves the subnet, as all of RoCE do (cm_format_req in the kernel's cm.c).
const PERMISSIVE_LID: u16 = 0xffff;

impl Request {
    /// Bytes of private data. The IP header of RDMA CM takes the first 36 ([`IpCmHeader`](crate::cm::IpCmHeader)).
    pub const PRIVATE_BYTES: usize = 92;

    pub(super) fn from_wire(wire: Wire) -> Result<Request, MessageError> {
        let transport = match wire.byte_43 >> 1 & 3 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            other => return Err(MessageError::Transport(other)),
        };
        let mtu = wire.byte_50 >> 4;
        Ok(Request {
            local_id: wire.local_id.get(),
            service_id: ServiceId(wire.service_id.get()),
            ca_guid: wire.ca_guid.get(),
            q_key: QKey(wire.q_key.get()),
            qpn: Qpn::new(number(wire.qpn)),
            responder_resources: wire.responder_resources,
            initiator_depth: wire.initiator_depth,
            remote_response_timeout: wire.byte_43 >> 3,
            transport,
            flow_control: wire.byte_43 & 1 != 0,
            psn: Psn::new(number(wire.psn)),
            local_response_timeout: wire.byte_47 >> 3,
            retry_count: wire.byte_47 & 7,
            p_key: PKey(wire.p_key.get()),
            path_mtu: PathMtu::from_code(mtu).ok_or(MessageError::PathMtu(mtu))?,
            rnr_retry: wire.byte_50 & 7,
            max_cm_retries: wire.byte_51 >> 4,
            has_srq: wire.byte_51 & 8 != 0,
            local_gid: wire.local_gid.into(),
            remote_gid: wire.remote_gid.into(),
            flow_label: wire.word_88.get() >> 12,
            traffic_class: wire.traffic_class,
            hop_limit: wire.hop_limit,
            sl: wire.byte_94 >> 4,
            ack_timeout: wire.byte_95 >> 3,
            private_data: wire.private_data,
        })
    }

    pub(super) fn to_wire(&self) -> Wire {
        let transport = match self.transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
        };
        Wire {
            local_id: U32::new(self.local_id),
            reserved_4: [0; 4],
            service_id: U64::new(self.service_id.0),
            ca_guid: U64::new(self.ca_guid),
            reserved_24: [0; 4],
            q_key: U32::new(self.q_key.0),
            qpn: bytes(self.qpn.value()),
            responder_resources: self.responder_resources,
            ee_context: [0; 3],
            initiator_depth: self.initiator_depth,
            remote_ee_context: [0; 3],
            byte_43: self.remote_response_timeout << 3 | transport << 1 | u8::from(self.flow_control),
            psn: bytes(self.psn.value()),
            byte_47: self.local_response_timeout << 3 | self.retry_count & 7,
            p_key: U16::new(self.p_key.0),
            byte_50: (self.path_mtu as u8) << 4 | self.rnr_retry & 7,
            byte_51: self.max_cm_retries << 4 | u8::from(self.has_srq) << 3,
            local_lid: U16::new(PERMISSIVE_LID),
            remote_lid: U16::new(PERMISSIVE_LID),
            local_gid: self.local_gid.octets(),
            remote_gid: self.remote_gid.octets(),
            word_88: U32::new(self.flow_label << 12),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            byte_94: self.sl << 4,
            byte_95: self.ack_timeout << 3,
            alternate: [0; 44],
            private_data: self.private_data,
        }
    }
}
