//! Work requests and their completions.

use std::ffi::{c_int, c_uint, c_void};

use super::objects::{offsets, sizes};
use super::{IbvAh, IbvMr, IbvMw, IbvQpEx};

pub(crate) type AtomicWriteFn = unsafe extern "C" fn(*mut IbvQpEx, u32, u64, *const c_void);
pub(crate) type FlushFn = unsafe extern "C" fn(*mut IbvQpEx, u32, u64, usize, u8, u8);

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaWr {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AtomicWr {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdWr {
    pub ah: *mut IbvAh,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
pub(crate) union WrKind {
    pub rdma: RdmaWr,
    pub atomic: AtomicWr,
    pub ud: UdWr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvMwBindInfo {
    pub mr: *mut IbvMr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[repr(C)]
pub(crate) struct BindMwWr {
    pub mw: *mut IbvMw,
    pub rkey: u32,
    pub bind_info: IbvMwBindInfo,
}

#[repr(C)]
pub(crate) struct IbvMwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: IbvMwBindInfo,
}

#[repr(C)]
pub(crate) struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// Immediate data in network order, or the key to invalidate.
    pub imm_data: u32,
    pub wr: WrKind,
    pub remote_srqn: u32,
    /// The other member of this union is for segmentation offload, which is not offered.
    pub bind_mw: BindMwWr,
}

#[repr(C)]
pub(crate) struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
}

#[repr(C)]
pub(crate) struct IbvWc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `enum ibv_wr_opcode`.
pub(crate) mod wr {
    use std::ffi::c_int;
    pub(crate) const RDMA_WRITE: c_int = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: c_int = 1;
    pub(crate) const SEND: c_int = 2;
    pub(crate) const SEND_WITH_IMM: c_int = 3;
    pub(crate) const RDMA_READ: c_int = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: c_int = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: c_int = 6;
    pub(crate) const LOCAL_INV: c_int = 7;
    pub(crate) const BIND_MW: c_int = 8;
    pub(crate) const SEND_WITH_INV: c_int = 9;
    pub(crate) const TSO: c_int = 10;
    pub(crate) const FLUSH: c_int = 14;
    pub(crate) const ATOMIC_WRITE: c_int = 15;
}

/// `enum ibv_send_flags`.
pub(crate) mod send_flag {
    use std::ffi::c_uint;
    pub(crate) const FENCE: c_uint = 1;
    pub(crate) const SIGNALED: c_uint = 2;
    pub(crate) const SOLICITED: c_uint = 4;
    pub(crate) const INLINE: c_uint = 8;
}

/// `enum ibv_wc_flags`.
pub(crate) mod wc_flag {
    use std::ffi::c_uint;
    pub(crate) const GRH: c_uint = 1;
    pub(crate) const WITH_IMM: c_uint = 2;
    pub(crate) const WITH_INV: c_uint = 8;
}

sizes! { IbvSge = 16, IbvSendWr = 128, IbvRecvWr = 32, IbvWc = 48, IbvMwBindInfo = 32, IbvMwBind = 48, BindMwWr = 48 }

offsets! {
    IbvSendWr, num_sge = 24; IbvSendWr, opcode = 28; IbvSendWr, send_flags = 32; IbvSendWr, imm_data = 36;
    IbvSendWr, wr = 40; IbvSendWr, remote_srqn = 72; IbvSendWr, bind_mw = 80;
    AtomicWr, compare_add = 8; AtomicWr, rkey = 24; UdWr, remote_qkey = 12;
    IbvWc, imm_data = 24; IbvWc, wc_flags = 36; IbvWc, dlid_path_bits = 45;
}
