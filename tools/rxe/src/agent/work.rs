//! Work requests for the agent's queue pairs, and how they end.
use super::number;
use super::object::Ah;

/// A piece of a region, for a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    pub(super) mr: u32,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) lkey: Option<u32>,
}

impl Sge {
    /// The same memory under another local key, as a wrong one.
    pub fn with_lkey(self, lkey: u32) -> Sge {
        Sge { lkey: Some(lkey), ..self }
    }

    pub(super) fn word(&self) -> String {
        let lkey = self.lkey.map(|key| format!(":{key:#x}")).unwrap_or_default();
        format!(" sge={}:{}:{}{lkey}", self.mr, self.offset, self.len)
    }
}

/// Remote memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its address in the other end's process.
    pub addr: u64,
    /// The key it is reached with.
    pub rkey: u32,
}

/// A send work request's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with immediate data (host order).
    SendImm(u32),
    /// SEND with invalidate of the other end's key.
    SendInv(u32),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE with immediate data (host order).
    WriteImm(Remote, u32),
    /// RDMA READ.
    Read(Remote),
    /// Compare and swap of 8 bytes.
    CompareSwap {
        /// The 8 bytes.
        at: Remote,
        /// What must be there.
        compare: u64,
        /// What is put there then.
        swap: u64,
    },
    /// Fetch and add of 8 bytes.
    FetchAdd {
        /// The 8 bytes.
        at: Remote,
        /// What is added.
        add: u64,
    },
    /// Invalidation of a key of our own.
    LocalInv(u32),
}

/// A send work request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// What it does.
    pub operation: Operation,
    /// The number that its completion carries.
    pub wr_id: u64,
    /// The local memory.
    pub sges: Vec<Sge>,
    /// Whether it completes with a completion when it succeeds.
    pub signaled: bool,
    /// Whether its receive at the other end raises a solicited event.
    pub solicited: bool,
    /// Whether it waits for READs and atomics before it.
    pub fence: bool,
    /// Whether its bytes are taken at the call.
    pub inline: bool,
    /// For a datagram: address handle, queue pair number and Q_Key.
    pub to: Option<(Ah, u32, u32)>,
    /// How many to post, each with `wr_id` one higher.
    pub count: u32,
    /// By how many bytes the local memory moves on from one to the next.
    pub stride: u64,
    /// By how many bytes the remote memory moves on from one to the next.
    pub remote_stride: u64,
}

impl Send {
    /// One signaled request.
    pub fn new(operation: Operation, wr_id: u64, sges: &[Sge]) -> Send {
        Send {
            operation,
            wr_id,
            sges: sges.to_vec(),
            signaled: true,
            solicited: false,
            fence: false,
            inline: false,
            to: None,
            count: 1,
            stride: 0,
            remote_stride: 0,
        }
    }
}

/// How a work request ended: the verbs' `ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WcStatus(pub u8);

impl WcStatus {
    /// It did what it should.
    pub const SUCCESS: WcStatus = WcStatus(0);
    /// Local length error: as a message longer than its receive.
    pub const LOC_LEN_ERR: WcStatus = WcStatus(1);
    /// Local queue pair operation error.
    pub const LOC_QP_OP_ERR: WcStatus = WcStatus(2);
    /// Local protection error: a wrong local key or range.
    pub const LOC_PROT_ERR: WcStatus = WcStatus(4);
    /// Flushed, since the queue pair went to the error state.
    pub const WR_FLUSH_ERR: WcStatus = WcStatus(5);
    /// Memory window bind error.
    pub const MW_BIND_ERR: WcStatus = WcStatus(6);
    /// Local access error.
    pub const LOC_ACCESS_ERR: WcStatus = WcStatus(8);
    /// The other end found the request invalid.
    pub const REM_INV_REQ_ERR: WcStatus = WcStatus(9);
    /// The other end refused the key, the range or the right.
    pub const REM_ACCESS_ERR: WcStatus = WcStatus(10);
    /// The other end could not do it.
    pub const REM_OP_ERR: WcStatus = WcStatus(11);
    /// No answer in all retries.
    pub const RETRY_EXC_ERR: WcStatus = WcStatus(12);
    /// No receive at the other end in all retries.
    pub const RNR_RETRY_EXC_ERR: WcStatus = WcStatus(13);
}

/// What completed: the verbs' `ibv_wc_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WcOpcode(pub u8);

impl WcOpcode {
    /// A SEND of any kind.
    pub const SEND: WcOpcode = WcOpcode(0);
    /// An RDMA WRITE of any kind.
    pub const RDMA_WRITE: WcOpcode = WcOpcode(1);
    /// An RDMA READ.
    pub const RDMA_READ: WcOpcode = WcOpcode(2);
    /// A compare and swap.
    pub const COMP_SWAP: WcOpcode = WcOpcode(3);
    /// A fetch and add.
    pub const FETCH_ADD: WcOpcode = WcOpcode(4);
    /// A memory window's bind.
    pub const BIND_MW: WcOpcode = WcOpcode(5);
    /// A local invalidation.
    pub const LOCAL_INV: WcOpcode = WcOpcode(6);
    /// A receive of a SEND.
    pub const RECV: WcOpcode = WcOpcode(128);
    /// A receive consumed by an RDMA WRITE with immediate data.
    pub const RECV_RDMA_WITH_IMM: WcOpcode = WcOpcode(129);
}

/// A work completion. When `status` is no success, only `wr_id`, `vendor_err` and `qpn` mean anything besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wc {
    /// The request's number.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes moved, of receives and READs. A datagram's have 40 bytes of GRH before them.
    pub byte_len: u32,
    /// [`Wc::WITH_GRH`], [`Wc::WITH_IMM`], [`Wc::WITH_INV`].
    pub flags: u32,
    /// Of a receive: the immediate data (host order) with [`Wc::WITH_IMM`], else the key that was invalidated, if one was.
    pub extra: u32,
    /// Of a datagram, the sender's queue pair number.
    pub src_qp: u32,
    /// The device's own word about a failure.
    pub vendor_err: u32,
    /// The queue pair it belongs to.
    pub qpn: u32,
}

impl Wc {
    /// Flag of a datagram's receive: the first 40 bytes are its GRH.
    pub const WITH_GRH: u32 = 1;
    /// Flag: `extra` is immediate data.
    pub const WITH_IMM: u32 = 2;
    /// Flag: `extra` is a key that was invalidated.
    pub const WITH_INV: u32 = 8;
    /// What rxe sets instead of [`Wc::WITH_INV`] (Linux 6.1): it passes the kernel's own number on, which in the verbs' numbering
    /// says that a checksum was right.
    pub const WITH_INV_OF_RXE: u32 = 4;

    pub(super) fn parse(text: &str) -> Option<Wc> {
        let n: Vec<u64> = text.split(',').map(number).collect::<Option<_>>()?;
        let &[wr_id, status, opcode, byte_len, flags, extra, src_qp, vendor_err, qpn] = &n[..] else { return None };
        Some(Wc {
            wr_id,
            status: WcStatus(status.try_into().ok()?),
            opcode: WcOpcode(opcode.try_into().ok()?),
            byte_len: byte_len.try_into().ok()?,
            flags: flags.try_into().ok()?,
            extra: extra.try_into().ok()?,
            src_qp: src_qp.try_into().ok()?,
            vendor_err: vendor_err.try_into().ok()?,
            qpn: qpn.try_into().ok()?,
        })
    }
}
