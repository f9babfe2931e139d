//! The structures of `rdma/rdma_cma.h`.

use std::ffi::{c_char, c_int, c_void};

use super::{IbvAhAttr, IbvCompChannel, IbvContext, IbvCq, IbvPd, IbvQp, IbvSrq};

/// `struct sockaddr_storage`, of which programs read the family first.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct SocketAddress(pub [u8; 128]);

#[repr(C)]
pub(crate) struct RdmaEventChannel {
    pub fd: c_int,
}

/// `struct rdma_addr`, with `struct rdma_ib_addr` at its end.
#[repr(C)]
pub(crate) struct RdmaAddr {
    pub source: SocketAddress,
    pub destination: SocketAddress,
    pub source_gid: [u8; 16],
    pub destination_gid: [u8; 16],
    pub p_key: u16,
    pub padding: [u8; 6],
}

#[repr(C)]
pub(crate) struct RdmaRoute {
    pub addr: RdmaAddr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

#[repr(C)]
pub(crate) struct RdmaCmId {
    pub verbs: *mut IbvContext,
    pub channel: *mut RdmaEventChannel,
    pub context: *mut c_void,
    pub qp: *mut IbvQp,
    pub route: RdmaRoute,
    pub ps: c_int,
    pub port_num: u8,
    pub event: *mut RdmaCmEvent,
    pub send_cq_channel: *mut IbvCompChannel,
    pub send_cq: *mut IbvCq,
    pub recv_cq_channel: *mut IbvCompChannel,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub pd: *mut IbvPd,
    pub qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaUdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: IbvAhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// What an event says: by the type of the queue pair, or the program's own word.
#[repr(C)]
pub(crate) union RdmaEventParam {
    pub conn: RdmaConnParam,
    pub ud: RdmaUdParam,
    pub arg: u64,
}

#[repr(C)]
pub(crate) struct RdmaCmEvent {
    pub id: *mut RdmaCmId,
    pub listen_id: *mut RdmaCmId,
    pub event: c_int,
    pub status: c_int,
    pub param: RdmaEventParam,
}

#[repr(C)]
pub(crate) struct RdmaAddrInfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: u32,
    pub ai_dst_len: u32,
    pub ai_src_addr: *mut c_void,
    pub ai_dst_addr: *mut c_void,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut RdmaAddrInfo,
}

#[repr(C)]
pub(crate) struct RdmaJoinAttr {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *const c_void,
}

const _: () =
    assert!(size_of::<RdmaEventChannel>() == 4 && size_of::<RdmaAddr>() == 296 && size_of::<RdmaRoute>() == 312);
const _: () = assert!(size_of::<RdmaCmId>() == 416 && std::mem::offset_of!(RdmaCmId, event) == 352);
const _: () = assert!(size_of::<RdmaConnParam>() == 24 && size_of::<RdmaUdParam>() == 56);
const _: () = assert!(size_of::<RdmaCmEvent>() == 80 && size_of::<RdmaAddrInfo>() == 96);
