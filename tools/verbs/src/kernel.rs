//! The kernel's layout of addresses and attributes (rdma/ib_user_verbs.h, ib_user_sa.h), translated for librdmacm.

use crate::abi::{IbvAhAttr, IbvGid, IbvGlobalRoute, IbvQpAttr, IbvQpCap};

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
pub struct KernelAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_1: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved_2: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
pub struct KernelQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    cap: [u32; 5],
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
pub struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec` (infiniband/sa.h).
#[repr(C)]
pub struct Path {
    dgid: IbvGid,
    sgid: IbvGid,
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: i32,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () =
    assert!(size_of::<KernelAhAttr>() == 32 && size_of::<KernelQpAttr>() == 144 && size_of::<KernelPath>() == 64);
const _: () = assert!(size_of::<Path>() == 72);

/// Selectors of path records: exactly this value (`IB_SA_EQ`).
const EXACTLY: u8 = 2;

impl Path {
    /// A path between RoCE devices, as the kernel's RDMA CM makes it (cma_resolve_iboe_route in cma.c). `mtu` and `life_time` are
    /// codes.
    pub(crate) fn of_roce(
        sgid: IbvGid,
        dgid: IbvGid,
        flow_label: u32,
        traffic_class: u8,
        [mtu, life_time]: [u8; 2],
    ) -> Path {
        Path {
            dgid,
            sgid,
            dlid: 0,
            slid: 0,
            raw_traffic: 0,
            flow_label: flow_label.to_be(),
            hop_limit: 64,
            traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: 0xffff,
            sl: 0,
            mtu_selector: EXACTLY,
            mtu: i32::from(mtu),
            rate_selector: EXACTLY,
            rate: 0,
            packet_life_time_selector: EXACTLY,
            packet_life_time: life_time,
            preference: 0,
        }
    }
}

fn address(from: &KernelAhAttr) -> IbvAhAttr {
    IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: IbvGid(from.dgid),
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// Translates an address.
///
/// # Safety
/// `to` is NULL or may be written, `from` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut IbvAhAttr, from: *const KernelAhAttr) {
    // SAFETY: the caller's promise.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        *to = address(from);
    }
}

/// Translates a queue pair's attributes.
///
/// # Safety
/// `to` is NULL or may be written, `from` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut IbvQpAttr, from: *const KernelQpAttr) {
    // SAFETY: the caller's promise.
    let (Some(to), Some(from)) = (unsafe { (to.as_mut(), from.as_ref()) }) else { return };
    let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = from.cap;
    *to = IbvQpAttr {
        // libibverbs leaves it to the program.
        qp_state: to.qp_state,
        cur_qp_state: from.cur_qp_state as i32,
        path_mtu: from.path_mtu as i32,
        path_mig_state: from.path_mig_state as i32,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: IbvQpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data },
        ah_attr: address(&from.ah_attr),
        alt_ah_attr: address(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: to.rate_limit,
    };
}

/// Translates a path.
///
/// # Safety
/// `to` is NULL or may be written, `from` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut Path, from: *const KernelPath) {
    // SAFETY: the caller's promise.
    let (Some(to), Some(from)) = (unsafe { (to.as_mut(), from.as_ref()) }) else { return };
    *to = Path {
        dgid: IbvGid(from.dgid),
        sgid: IbvGid(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as i32,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as i32,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as i32,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}

/// Translates a path back.
///
/// # Safety
/// `to` is NULL or may be written, `from` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: *const Path) {
    // SAFETY: the caller's promise.
    let (Some(to), Some(from)) = (unsafe { (to.as_mut(), from.as_ref()) }) else { return };
    *to = KernelPath {
        dgid: from.dgid.0,
        sgid: from.sgid.0,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: from.mtu as u32,
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}
