//! What a session of the agent's is made of: handles, and what they are made with.
use super::work::Sge;

macro_rules! handle {
    ($($name:ident: $what:literal),*) => {
        $(#[doc = concat!("A handle of the agent's: ", $what, ".")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);)*
    };
}

handle!(
    Pd: "a protection domain",
    Cq: "a completion queue",
    Srq: "a shared receive queue",
    Ah: "an address handle"
);

/// A registered region of the agent's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mr {
    /// The agent's handle.
    pub handle: u32,
    /// The address of its first byte, in the agent's process.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its local key.
    pub lkey: u32,
    /// Its remote key.
    pub rkey: u32,
}

impl Mr {
    /// A part of it, for a work request. It may lie outside: the device is to refuse that.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { mr: self.handle, offset, len, lkey: None }
    }
}

/// A queue pair of the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qp {
    /// The agent's handle.
    pub handle: u32,
    /// Its number on the wire, 24 bits.
    pub qpn: u32,
}

/// A memory window of the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mw {
    /// The agent's handle.
    pub handle: u32,
    /// The key from its allocation; each bind gives another.
    pub rkey: u32,
}

/// The transport of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// What a queue pair is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpOptions {
    /// Its transport.
    pub transport: Transport,
    /// Where its work requests complete.
    pub send_cq: Cq,
    /// Where its receives complete.
    pub recv_cq: Cq,
    /// Work requests its send queue holds.
    pub max_send: u32,
    /// Receives its receive queue holds.
    pub max_recv: u32,
    /// Pieces a work request or receive may have.
    pub max_sge: u32,
    /// Bytes that may be sent inline.
    pub max_inline: u32,
    /// Takes its receives from there instead.
    pub srq: Option<Srq>,
    /// Its protection domain.
    pub pd: Pd,
}

impl QpOptions {
    /// A queue pair of 128 work requests, 512 receives of 4 pieces each and 64 bytes inline, all completing in `cq`, in the
    /// session's first protection domain.
    pub fn new(transport: Transport, cq: Cq) -> QpOptions {
        QpOptions {
            transport,
            send_cq: cq,
            recv_cq: cq,
            max_send: 128,
            max_recv: 512,
            max_sge: 4,
            max_inline: 64,
            srq: None,
            pd: Pd(0),
        }
    }
}

/// The way to the other end, and the values that both ends must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The other end's GID.
    pub gid: [u8; 16],
    /// The index of our own GID: 0 link-local, 1 IPv4, 2 global IPv6.
    pub sgid_index: u8,
    /// The other end's queue pair number.
    pub dest_qpn: u32,
    /// The first PSN that the other end sends.
    pub rq_psn: u32,
    /// The first PSN that we send.
    pub sq_psn: u32,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// READs and atomics on the way at once, each way.
    pub rd_atomic: u8,
    /// The RNR NAK timer's code, 0 to 31.
    pub rnr_timer: u8,
    /// The ACK timeout's code: 4.096 µs × 2^timeout; 0 for ever. Emulated machines need 17 (0.5 s).
    pub timeout: u8,
    /// Retries, 0 to 7. rxe takes 7 to mean for ever.
    pub retry: u8,
    /// Retries after an RNR NAK, 0 to 7; 7 means for ever.
    pub rnr_retry: u8,
    /// The traffic class (ToS).
    pub traffic_class: u8,
}

impl Path {
    /// To queue pair `dest_qpn` at `gid` from our GID 1 (IPv4), PSNs from 0 both ways, MTU 1024, 16 READs or atomics, RNR timer
    /// 12, timeout 17, 7 retries of both kinds.
    pub fn new(gid: [u8; 16], dest_qpn: u32) -> Path {
        Path {
            gid,
            sgid_index: 1,
            dest_qpn,
            rq_psn: 0,
            sq_psn: 0,
            mtu: 1024,
            rd_atomic: 16,
            rnr_timer: 12,
            timeout: 17,
            retry: 7,
            rnr_retry: 7,
            traffic_class: 0,
        }
    }
}

/// The access that regions and connected queue pairs are mostly given: all of it.
pub const ACCESS_ALL: &str = "local_write,remote_write,remote_read,remote_atomic,mw_bind";

/// The Q_Key of datagram queue pairs unless another is given.
pub const QKEY: u32 = 0x1111_1111;
