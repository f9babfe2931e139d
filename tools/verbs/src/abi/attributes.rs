//! Attributes of devices, ports, queues and paths.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::objects::{offsets, sizes};
use super::{IbvBuf, IbvCompChannel, IbvCq, IbvGid, IbvPd, IbvSrq, IbvTd};

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// What is behind `comp_mask` is zero but for the clock, the flags and the number of ports: on-demand paging, segmentation,
/// scaling, pacing, tag matching, moderation, device memory and PCI atomics are not offered.
#[repr(C)]
pub(crate) struct IbvDeviceAttrEx {
    pub orig_attr: IbvDeviceAttr,
    pub comp_mask: u32,
    pub odp_caps: [u64; 3],
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub not_offered: [u64; 13],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvPortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvGlobalRoute {
    pub dgid: IbvGid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvAhAttr {
    pub grh: IbvGlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvQpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: IbvQpCap,
    pub ah_attr: IbvAhAttr,
    pub alt_ah_attr: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// Begins as [`IbvQpInitAttr`], whose end has no padding.
#[repr(C)]
pub(crate) struct IbvQpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
pub(crate) struct IbvSrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
}

#[repr(C)]
pub(crate) struct IbvSrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
    pub comp_mask: u32,
    pub srq_type: c_int,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub cq: *mut IbvCq,
    pub tm_cap: [u32; 2],
}

#[repr(C)]
pub(crate) struct IbvCqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut IbvCompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut IbvPd,
}

#[repr(C)]
pub(crate) struct IbvTdInitAttr {
    pub comp_mask: u32,
}

#[repr(C)]
pub(crate) struct IbvParentDomainInitAttr {
    pub pd: *mut IbvPd,
    pub td: *mut IbvTd,
    pub comp_mask: u32,
    pub alloc: *const c_void,
    pub free: *const c_void,
    pub pd_context: *mut c_void,
}

#[repr(C)]
pub(crate) struct IbvValuesEx {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

/// Of rdma-core 59 and later.
#[repr(C)]
pub(crate) struct IbvMrInitAttr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
    /// Of rdma-core 64 and later.
    pub buf: *mut IbvBuf,
}

sizes! {
    IbvTdInitAttr = 4, IbvParentDomainInitAttr = 48, IbvValuesEx = 24, IbvMrInitAttr = 72,
    IbvDeviceAttr = 232, IbvDeviceAttrEx = 400, IbvPortAttr = 52, IbvGlobalRoute = 24, IbvAhAttr = 32, IbvQpCap = 20,
    IbvQpAttr = 144, IbvQpInitAttr = 64, IbvQpInitAttrEx = 136, IbvSrqAttr = 12, IbvSrqInitAttr = 24,
    IbvSrqInitAttrEx = 64, IbvCqInitAttrEx = 56,
}

offsets! {
    IbvDeviceAttr, node_guid = 64; IbvDeviceAttr, max_mr_size = 80; IbvDeviceAttr, vendor_id = 96;
    IbvDeviceAttr, max_qp = 108; IbvDeviceAttr, max_qp_rd_atom = 144; IbvDeviceAttr, atomic_cap = 164;
    IbvDeviceAttr, max_srq = 212; IbvDeviceAttr, max_pkeys = 224; IbvDeviceAttr, phys_port_cnt = 227;
    IbvDeviceAttrEx, comp_mask = 232; IbvDeviceAttrEx, odp_caps = 240; IbvDeviceAttrEx, device_cap_flags_ex = 280;
    IbvDeviceAttrEx, phys_port_cnt_ex = 396;
    IbvPortAttr, gid_tbl_len = 12; IbvPortAttr, pkey_tbl_len = 32; IbvPortAttr, lmc = 38; IbvPortAttr, phys_state = 45;
    IbvPortAttr, link_layer = 46; IbvPortAttr, port_cap_flags2 = 48;
    IbvAhAttr, dlid = 24; IbvAhAttr, is_global = 29; IbvAhAttr, port_num = 30;
    IbvQpAttr, qp_access_flags = 32; IbvQpAttr, cap = 36; IbvQpAttr, ah_attr = 56; IbvQpAttr, alt_ah_attr = 88;
    IbvQpAttr, pkey_index = 120; IbvQpAttr, max_rd_atomic = 126; IbvQpAttr, timeout = 130; IbvQpAttr, rate_limit = 136;
    IbvQpInitAttr, qp_type = 52; IbvQpInitAttr, sq_sig_all = 56; IbvQpInitAttrEx, comp_mask = 60;
    IbvQpInitAttrEx, pd = 64; IbvQpInitAttrEx, create_flags = 80; IbvQpInitAttrEx, send_ops_flags = 128;
    IbvSrqInitAttrEx, comp_mask = 20; IbvSrqInitAttrEx, pd = 32; IbvSrqInitAttrEx, tm_cap = 56;
    IbvParentDomainInitAttr, comp_mask = 16; IbvParentDomainInitAttr, pd_context = 40; IbvValuesEx, raw_clock = 8;
    IbvMrInitAttr, comp_mask = 16; IbvMrInitAttr, iova = 24; IbvMrInitAttr, fd = 40; IbvMrInitAttr, dmah = 56;
    IbvMrInitAttr, buf = 64;
    IbvCqInitAttrEx, wc_flags = 32; IbvCqInitAttrEx, comp_mask = 40; IbvCqInitAttrEx, parent_domain = 48;
}
