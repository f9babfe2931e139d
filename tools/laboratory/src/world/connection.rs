//! What two programs say to each other to connect by RDMA CM: 10.0.0.1 asks, and 10.0.0.2 replies. Tests change what they are
//! about.

use std::net::{IpAddr, Ipv4Addr};

use uroce::cm::message::{Reply, Request, Transport};
use uroce::cm::{PortSpace, ServiceId};
use uroce::wire::{Addresses, PKey, PathMtu, Psn, QKey, Qpn};

/// What the second program listens for.
pub const SERVICE: ServiceId = ServiceId::of(PortSpace::Tcp, 7174);

/// The address of a program, 0 or 1.
pub fn address(side: usize) -> IpAddr {
    IpAddr::V4(ipv4(side))
}

fn ipv4(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, side as u8 + 1)
}

/// From a program to the other one.
pub fn addresses_from(side: usize) -> Addresses {
    Addresses::new(address(side), address(1 - side)).expect("addresses of one family")
}

/// The first program's request, for a queue pair of it.
pub fn request(qpn: Qpn) -> Request {
    Request {
        local_id: 0,
        service_id: SERVICE,
        ca_guid: 0,
        q_key: QKey(0),
        qpn,
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: 20,
        transport: Transport::Rc,
        flow_control: false,
        psn: Psn::new(7),
        local_response_timeout: 20,
        retry_count: 7,
        p_key: PKey::DEFAULT,
        path_mtu: PathMtu::Mtu1024,
        rnr_retry: 7,
        max_cm_retries: 15,
        has_srq: false,
        local_gid: ipv4(0).to_ipv6_mapped(),
        remote_gid: ipv4(1).to_ipv6_mapped(),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        ack_timeout: 19,
        private_data: [0; Request::PRIVATE_BYTES],
    }
}

/// The second program's reply, with a queue pair of it.
pub fn reply(qpn: Qpn) -> Reply {
    Reply {
        local_id: 0,
        remote_id: 0,
        q_key: QKey(0),
        qpn,
        psn: Psn::new(9),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        flow_control: false,
        rnr_retry: 7,
        has_srq: false,
        ca_guid: 0,
        private_data: [0; Reply::PRIVATE_BYTES],
    }
}
