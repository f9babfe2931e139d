//! What programs hold pointers to, and reach into.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    AtomicWriteFn, FlushFn, IbvDeviceAttrEx, IbvMwBind, IbvMwBindInfo, IbvPortAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvWc,
};
use super::{IbvCqInitAttrEx, IbvParentDomainInitAttr, IbvQpInitAttrEx, IbvSrqInitAttrEx, IbvTdInitAttr, IbvValuesEx};

/// Room for a `pthread_mutex_t`, which only the stock library uses.
type Mutex = [u64; 5];
/// Room for a `pthread_cond_t`.
type Condition = [u64; 6];

#[repr(C)]
pub(crate) struct IbvDevice {
    pub ops: [*const c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

type Unused = *const c_void;

/// What the header's inline functions call. `None` in a slot that it does not look at before the call would end the
/// program, so those all are there.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvContextOps {
    pub compat_query_device: Unused,
    pub compat_query_port: Unused,
    pub compat_1: [Unused; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut IbvPd, c_int) -> *mut IbvMw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvMw, *mut IbvMwBind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut IbvMw) -> c_int>,
    pub compat_2: Unused,
    pub poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int>,
    pub compat_3: [Unused; 7],
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int>,
    pub compat_4: [Unused; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int>,
    pub compat_5: [Unused; 5],
}

#[repr(C)]
pub(crate) struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: IbvContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: Mutex,
    pub abi_compat: *mut c_void,
}

/// `struct verbs_context`: grows upwards, with the context at its end. The header's inline functions find the slots by
/// their distance from the context, and take an empty one for EOPNOTSUPP.
#[repr(C)]
pub(crate) struct VerbsContext {
    pub query_port: Option<unsafe extern "C" fn(*mut IbvContext, u8, *mut IbvPortAttr, usize) -> c_int>,
    pub advise_mr: Unused,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut IbvPd) -> *mut IbvMr>,
    /// read_counters … modify_qp_rate_limit: counters, device memory, flow actions, pacing.
    pub not_offered_1: [Unused; 11],
    pub alloc_parent_domain: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvParentDomainInitAttr) -> *mut IbvPd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut IbvTd) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvTdInitAttr) -> *mut IbvTd>,
    /// modify_cq … create_wq: moderation, tag matching, scaling, work queues.
    pub not_offered_2: [Unused; 7],
    pub query_rt_values: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvValuesEx) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvCqInitAttrEx) -> *mut IbvCqEx>,
    pub private: Unused,
    pub query_device_ex:
        Option<unsafe extern "C" fn(*mut IbvContext, *const c_uint, *mut IbvDeviceAttrEx, usize) -> c_int>,
    pub not_offered_3: [Unused; 4],
    pub open_qp: Unused,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvQpInitAttrEx) -> *mut IbvQp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut IbvSrq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvSrqInitAttrEx) -> *mut IbvSrq>,
    pub open_xrcd: Unused,
    pub close_xrcd: Unused,
    pub placeholder: u64,
    pub sz: usize,
    pub context: IbvContext,
}

/// All bits set in `abi_compat`: there is a `verbs_context` around the context.
pub(crate) const ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

#[repr(C)]
pub(crate) struct IbvPd {
    pub context: *mut IbvContext,
    pub handle: u32,
}

#[repr(C)]
pub(crate) struct IbvTd {
    pub context: *mut IbvContext,
}

#[repr(C)]
pub(crate) struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_buf`, which programs only pass back.
#[repr(C)]
pub(crate) struct IbvBuf {
    pub addr: *mut c_void,
}

#[repr(C)]
pub(crate) struct IbvMw {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub rkey: u32,
    pub handle: u32,
    pub kind: c_int,
}

#[repr(C)]
pub(crate) struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub(crate) struct IbvCq {
    pub context: *mut IbvContext,
    pub channel: *mut IbvCompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: Mutex,
    pub cond: Condition,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

type CqExFn<T> = Option<unsafe extern "C" fn(*mut IbvCqEx) -> T>;

#[repr(C)]
pub(crate) struct IbvCqEx {
    pub cq: IbvCq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut c_void) -> c_int>,
    pub next_poll: CqExFn<c_int>,
    pub end_poll: CqExFn<()>,
    pub read_opcode: CqExFn<c_int>,
    pub read_vendor_err: CqExFn<u32>,
    pub read_byte_len: CqExFn<u32>,
    pub read_imm_data: CqExFn<u32>,
    pub read_qp_num: CqExFn<u32>,
    pub read_src_qp: CqExFn<u32>,
    pub read_wc_flags: CqExFn<c_uint>,
    pub read_slid: CqExFn<u32>,
    pub read_sl: CqExFn<u8>,
    pub read_dlid_path_bits: CqExFn<u8>,
    pub read_completion_ts: CqExFn<u64>,
    pub read_cvlan: CqExFn<u16>,
    pub read_flow_tag: CqExFn<u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut c_void)>,
    pub read_completion_wallclock_ns: CqExFn<u64>,
}

#[repr(C)]
pub(crate) struct IbvSrq {
    pub context: *mut IbvContext,
    pub srq_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub handle: u32,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

#[repr(C)]
pub(crate) struct IbvQp {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

#[repr(C)]
pub(crate) struct IbvQpEx {
    pub qp: IbvQp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut IbvMw, u32, *const IbvMwBindInfo)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut IbvAh, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvDataBuf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvSge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut IbvQpEx) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub wr_atomic_write: Option<AtomicWriteFn>,
    /// Since rdma-core 45; earlier headers end before it.
    pub wr_flush: Option<FlushFn>,
}

#[repr(C)]
pub(crate) struct IbvDataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

#[repr(C)]
pub(crate) struct IbvAh {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub handle: u32,
}

/// A GID as programs see it: 16 bytes in network order, aligned as the union with two `__be64` is.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvGid(pub [u8; 16]);

#[repr(C)]
pub(crate) struct IbvGidEntry {
    pub gid: IbvGid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

#[repr(C)]
pub(crate) struct IbvAsyncEvent {
    /// A pointer to a CQ, QP or SRQ, or the port's number.
    pub element: *mut c_void,
    pub event_type: c_int,
}

macro_rules! sizes {
    ($($kind:ty = $bytes:literal),* $(,)?) => { $(const _: () = assert!(size_of::<$kind>() == $bytes);)* };
}

macro_rules! offsets {
    ($($kind:ty, $field:ident $(. $inner:ident)* = $at:literal);* $(;)?) => {
        $(const _: () = assert!(std::mem::offset_of!($kind, $field $(. $inner)*) == $at);)*
    };
}
pub(super) use {offsets, sizes};

sizes! {
    IbvDevice = 664, IbvContextOps = 256, IbvContext = 328, VerbsContext = 648, IbvPd = 16, IbvTd = 8, IbvMr = 48, IbvMw = 32,
    IbvCompChannel = 16, IbvCq = 128, IbvCqEx = 288, IbvSrq = 128, IbvQp = 160, IbvQpEx = 360, IbvAh = 24, IbvGid = 16,
    IbvGidEntry = 32, IbvAsyncEvent = 16, IbvDataBuf = 16,
}

offsets! {
    IbvDevice, name = 24; IbvDevice, dev_name = 88; IbvDevice, dev_path = 152; IbvDevice, ibdev_path = 408;
    IbvContextOps, alloc_mw = 56; IbvContextOps, bind_mw = 64; IbvContextOps, dealloc_mw = 72;
    IbvContextOps, poll_cq = 88; IbvContextOps, req_notify_cq = 96; IbvContextOps, post_srq_recv = 160;
    IbvContextOps, post_send = 200; IbvContextOps, post_recv = 208;
    IbvContext, ops = 8; IbvContext, cmd_fd = 264; IbvContext, async_fd = 268; IbvContext, num_comp_vectors = 272;
    IbvContext, abi_compat = 320;
    VerbsContext, alloc_null_mr = 16; VerbsContext, alloc_td = 128; VerbsContext, query_rt_values = 192;
    VerbsContext, create_cq_ex = 200; VerbsContext, query_device_ex = 216; VerbsContext, open_qp = 256;
    VerbsContext, create_qp_ex = 264; VerbsContext, get_srq_num = 272; VerbsContext, create_srq_ex = 280;
    VerbsContext, open_xrcd = 288; VerbsContext, sz = 312; VerbsContext, context = 320;
    IbvMr, lkey = 36; IbvMr, rkey = 40; IbvMw, rkey = 16; IbvMw, kind = 24; IbvCompChannel, fd = 8;
    IbvCq, cqe = 28; IbvCq, comp_events_completed = 120; IbvCqEx, comp_mask = 128; IbvCqEx, wr_id = 136;
    IbvCqEx, start_poll = 144; IbvCqEx, read_wc_flags = 216; IbvCqEx, read_completion_wallclock_ns = 280;
    IbvSrq, handle = 24; IbvSrq, events_completed = 120; IbvQp, qp_num = 52; IbvQp, state = 56; IbvQp, qp_type = 60;
    IbvQp, events_completed = 152; IbvQpEx, comp_mask = 160; IbvQpEx, wr_flags = 176; IbvQpEx, wr_send = 240;
    IbvQpEx, wr_set_ud_addr = 272; IbvQpEx, wr_start = 320; IbvQpEx, wr_atomic_write = 344; IbvQpEx, wr_flush = 352;
    IbvAh, handle = 16; IbvGidEntry, gid_type = 24; IbvAsyncEvent, event_type = 8;
}
