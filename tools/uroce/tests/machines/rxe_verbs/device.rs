//! Rights of regions, and what a device says of itself and holds to.

use uroce::verbs::{Access, Capabilities, QueuePairOptions, Service};

use super::bench::Bench;

/// Rights of a region: the bits, and whether we and they register memory with them.
pub fn rights(bench: &mut Bench) {
    for (name, bits, ours, theirs) in [
        ("none: read locally", 0, true, true),
        ("LOCAL_WRITE", 1, true, true),
        // IBTA 11.2.8.2 wants LOCAL_WRITE as well. Ours is the Rust interface; the rights are what they say.
        ("REMOTE_WRITE alone", 2, true, false),
        ("REMOTE_WRITE", 2 | 1, true, true),
        ("REMOTE_READ", 4, true, true),
        ("REMOTE_ATOMIC alone", 8, true, false),
        ("REMOTE_ATOMIC", 8 | 1, true, true),
        ("MW_BIND", 16, true, true),
        // rxe takes these two and does nothing.
        ("ZERO_BASED", 32 | 1, true, true),
        ("HUGETLB", 128 | 1, false, true),
        ("ON_DEMAND", 64 | 1, false, false),
        ("FLUSH_GLOBAL", 256 | 1, true, false),
        // Taken, and never given (tests/flush.rs); libibverbs.so.1 refuses it.
        ("FLUSH_PERSISTENT", 512 | 1, true, false),
        ("RELAXED_ORDERING", 1 << 20 | 1, true, true),
        ("a bit that is none", 1 << 10 | 1, false, false),
        ("an optional bit that is none", 1 << 25 | 1, false, true),
    ] {
        let have = Access::from_bits(bits).is_some_and(|access| bench.pd().allocate_region(4096, access).is_ok());
        assert_eq!(have, ours, "{name} with us");
        let answer = bench.agent.command(&format!("mr 4096 {bits:#x}"));
        let refusal = answer.err().map(|error| error.errno());
        assert_eq!(refusal, (!theirs).then_some(Some(libc::EINVAL)), "{name} with rxe");
    }
}

/// What `ibv_query_device` and `ibv_query_port` say of rxe, on which programs rely that were written with it at hand.
pub fn limits(bench: &mut Bench) {
    let device = bench.agent.command("device").unwrap();
    for (name, value) in [
        ("max_qp", 1_048_560),
        ("max_qp_wr", 1 << 20),
        ("max_sge", 32),
        ("max_sge_rd", 32),
        ("max_cq", 1 << 20),
        ("max_cqe", 32_767),
        ("max_mr", 524_287),
        ("max_mr_size", u64::MAX),
        ("page_size_cap", 0xffff_f000),
        ("max_pd", 1 << 20),
        ("max_qp_rd_atom", 128),
        ("max_qp_init_rd_atom", 128),
        ("max_res_rd_atom", 258_048),
        ("atomic_cap", 1),
        ("max_mw", 524_287),
        ("max_ah", 32_767),
        ("max_srq", 917_503),
        ("max_srq_wr", 1 << 20),
        ("max_srq_sge", 27),
        ("max_mcast_grp", 8192),
        ("max_mcast_qp_attach", 56),
        ("max_pkeys", 64),
        ("local_ca_ack_delay", 15),
        ("phys_port_cnt", 1),
        ("max_ee", 0),
        ("max_rdd", 0),
        ("max_fmr", 0),
        ("max_raw_ethy_qp", 0),
        ("vendor_id", 0xff_ffff),
        ("vendor_part_id", 0),
        ("hw_ver", 0),
        ("caps", 0x0122_3c76),
    ] {
        assert_eq!(device.number(name).unwrap(), value, "{name}");
    }
    let port = bench.agent.command("port").unwrap();
    let ours = u64::from(bench.context().active_mtu().bytes() as u32);
    for (name, value) in [
        ("state", 4),
        ("active_mtu", ours),
        ("max_mtu", 4096),
        ("gids", 1024),
        ("pkeys", 1),
        ("max_msg", 8 << 20),
        ("link_layer", 2),
    ] {
        assert_eq!(port.number(name).unwrap(), value, "{name}");
    }
    // Its queues end where it says.
    for (line, allowed) in
        [("qp rc 10 10 32 0", true), ("qp rc 10 10 33 0", false), ("cq 32767", true), ("cq 32768", false)]
    {
        let line = if line.starts_with("qp") { format!("{line} cq={}", bench.cq().0) } else { line.to_owned() };
        assert_eq!(bench.agent.command(&line).is_ok(), allowed, "{line}");
    }
    // And ours where we say.
    let cq = bench.context().create_completion_queue(1);
    for (requests, allowed) in
        [(0, false), (1, true), (Capabilities::MAX_REQUESTS, true), (Capabilities::MAX_REQUESTS + 1, false)]
    {
        for capabilities in [
            Capabilities { max_send_requests: requests, max_receive_requests: 1 },
            Capabilities { max_send_requests: 1, max_receive_requests: requests },
        ] {
            let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
            assert_eq!(bench.pd().create_queue_pair(&options).is_ok(), allowed, "{capabilities:?}");
        }
        assert_eq!(bench.pd().create_shared_receive_queue(requests).is_ok(), allowed, "{requests}");
    }
}
