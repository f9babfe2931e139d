//! RoCE v2 headers, opcodes and the ICRC: views over bytes, no allocation, no clock, no panic on any input.
//!
//! A received frame is read in two steps, so that each layer reports its own errors. [`RoceFrame::parse`] reads
//! Ethernet, VLAN, IP and UDP; [`Packet::parse`] reads BTH, extended headers, payload and pad. [`RoceFrame::icrc_ok`]
//! checks the invariant CRC. Sending is [`Flow`] + [`Headers`] + payload, written by [`Headers::write`].

mod aeth;
mod answer_report;
mod atomic;
mod bth;
mod cnp;
mod deth;
mod feth;
mod flow;
mod frame;
mod headers;
mod hello;
pub mod icrc;
mod immediate;
mod mtu;
mod numbers;
mod opcode;
mod packet;
mod path_trailer;
mod psn;
mod reth;
mod rnr_timer;
mod telemetry;
mod trailer;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use answer_report::AnswerReport;
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use cnp::Cnp;
pub use deth::Deth;
pub use feth::{Feth, Placement, Selectivity};
pub use flow::{Addresses, Flow};
pub use frame::{FrameError, IpHeader, Layer, RoceFrame};
pub use headers::{Body, Extension, Headers, WriteError};
pub use hello::{Hello, Tagged};
pub use immediate::{Ieth, ImmDt};
pub use mtu::{PathMtu, PathMtuError};
pub use numbers::{Key, Msn, PKey, QKey, Qpn};
pub use opcode::{Opcode, Operation, Position, TransportService};
pub use packet::{Packet, PacketError};
pub use path_trailer::{AcknowledgeTrailer, AddressList, PathProbe};
pub use psn::Psn;
pub use reth::Reth;
pub use rnr_timer::RnrTimer;
pub use telemetry::{LinkRecord, Telemetry};
pub use trailer::{CarriedAcknowledge, RequestTrailer, Sack};

/// The UDP destination port of RoCE v2 (IANA, IBTA Annex A17.9).
pub const ROCE_PORT: u16 = 4791;

/// Length of the invariant CRC at the end of every packet, in bytes.
pub const ICRC_BYTES: usize = 4;

/// Upper bound on the header bytes of a RoCE v2 packet: IPv6 40, UDP 8, BTH 12 and the longest extended headers
/// (AtomicETH, 28). The ICRC is at the other end.
pub const MAX_HEADER_BYTES: usize = 40 + 8 + 12 + 28;
