//! Our structures are those of Debian's `infiniband/verbs.h`: a C program says each size and offset, and they are compared.

#[path = "../src/abi/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a part of the library, looked at from outside")]
mod abi;

use abi::*;
use std::collections::BTreeMap;
use std::process::Command;

/// The size of what `field` gives.
fn bytes_of<T, F>(_field: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

/// A C program that prints `name offset size` for each line of the table, and the table as we have it.
macro_rules! layouts {
    ($($ours:ty, $theirs:literal: $($field:ident $(. $inner:ident)* $(= $name:literal)?),*;)*) => {{
        let mut program = String::from(
            "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
        );
        let mut table = BTreeMap::new();
        $(
            let kind = $theirs;
            program += &format!("printf(\"{kind} 0 %zu\\n\", sizeof({kind}));\n");
            table.insert(kind.to_owned(), (0, size_of::<$ours>()));
            $(
                let field = concat!(stringify!($field $(. $inner)*)).replace(' ', "");
                #[allow(unused_mut, unused_assignments, reason = "only some are called otherwise in C")]
                let mut name = field;
                $(name = $name.to_owned();)?
                let line = format!("{kind}.{name}");
                program += &format!(
                    "printf(\"{line} %zu %zu\\n\", offsetof({kind}, {name}), sizeof((({kind} *)0)->{name}));\n"
                );
                // SAFETY: no memory is looked at: only the field's address is made.
                let size = bytes_of::<$ours, _>(|at| unsafe { &raw const (*at).$field $(. $inner)* });
                table.insert(line, (std::mem::offset_of!($ours, $field $(. $inner)*), size));
            )*
        )*
        program += "return 0;\n}\n";
        (program, table)
    }};
}

#[test]
fn structures_are_those_of_the_header() {
    let (program, mut ours) = layouts! {
        IbvDevice, "struct ibv_device":
            node_type, transport_type, name, dev_name, dev_path, ibdev_path;
        IbvContextOps, "struct ibv_context_ops":
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv;
        IbvContext, "struct ibv_context":
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat;
        VerbsContext, "struct verbs_context":
            query_port, advise_mr, alloc_null_mr, alloc_parent_domain, dealloc_td, alloc_td, query_rt_values, create_cq_ex,
            query_device_ex, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd,
            close_xrcd, sz, context;
        IbvPd, "struct ibv_pd": context, handle;
        IbvTd, "struct ibv_td": context;
        IbvTdInitAttr, "struct ibv_td_init_attr": comp_mask;
        IbvParentDomainInitAttr, "struct ibv_parent_domain_init_attr": pd, td, comp_mask, alloc, free, pd_context;
        IbvValuesEx, "struct ibv_values_ex": comp_mask, raw_clock;
        IbvMr, "struct ibv_mr": context, pd, addr, length, handle, lkey, rkey;
        IbvMw, "struct ibv_mw": context, pd, rkey, handle, kind = "type";
        IbvCompChannel, "struct ibv_comp_channel": context, fd, refcnt;
        IbvCq, "struct ibv_cq":
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed;
        IbvCqEx, "struct ibv_cq_ex":
            comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err,
            read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl,
            read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
            read_completion_wallclock_ns;
        IbvSrq, "struct ibv_srq": context, srq_context, pd, handle, mutex, cond, events_completed;
        IbvQp, "struct ibv_qp":
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed;
        IbvQpEx, "struct ibv_qp_ex":
            qp = "qp_base", comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
            wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
            wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list,
            wr_start, wr_complete, wr_abort, wr_atomic_write;
        IbvDataBuf, "struct ibv_data_buf": addr, length;
        IbvAh, "struct ibv_ah": context, pd, handle;
        IbvGidEntry, "struct ibv_gid_entry": gid, gid_index, port_num, gid_type, ndev_ifindex;
        IbvAsyncEvent, "struct ibv_async_event": element, event_type;
        IbvSge, "struct ibv_sge": addr, length, lkey;
        IbvSendWr, "struct ibv_send_wr":
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn = "qp_type.xrc.remote_srqn",
            bind_mw, bind_mw.mw, bind_mw.rkey, bind_mw.bind_info;
        IbvMwBindInfo, "struct ibv_mw_bind_info": mr, addr, length, mw_access_flags;
        IbvMwBind, "struct ibv_mw_bind": wr_id, send_flags, bind_info;
        IbvRecvWr, "struct ibv_recv_wr": wr_id, next, sg_list, num_sge;
        IbvWc, "struct ibv_wc":
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits;
        IbvDeviceAttr, "struct ibv_device_attr":
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
            max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt;
        IbvDeviceAttrEx, "struct ibv_device_attr_ex":
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex,
            xrc_odp_caps, phys_port_cnt_ex;
        IbvPortAttr, "struct ibv_port_attr":
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2;
        IbvGlobalRoute, "struct ibv_global_route": dgid, flow_label, sgid_index, hop_limit, traffic_class;
        IbvAhAttr, "struct ibv_ah_attr": grh, dlid, sl, src_path_bits, static_rate, is_global, port_num;
        IbvQpCap, "struct ibv_qp_cap": max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
        IbvQpAttr, "struct ibv_qp_attr":
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit;
        IbvQpInitAttr, "struct ibv_qp_init_attr": qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all;
        IbvQpInitAttrEx, "struct ibv_qp_init_attr_ex":
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
            max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags;
        IbvSrqAttr, "struct ibv_srq_attr": max_wr, max_sge, srq_limit;
        IbvSrqInitAttr, "struct ibv_srq_init_attr": srq_context, attr;
        IbvSrqInitAttrEx, "struct ibv_srq_init_attr_ex":
            srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap;
        IbvCqInitAttrEx, "struct ibv_cq_init_attr_ex":
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain;
    };
    // Later headers have one function more, at the end.
    ours.insert("struct ibv_qp_ex".to_owned(), (0, std::mem::offset_of!(IbvQpEx, wr_flush)));
    let theirs = run(&program);
    assert_eq!(theirs.len(), ours.len());
    for (name, layout) in &ours {
        assert_eq!(theirs.get(name), Some(layout), "{name}: theirs (offset, size) is on the left");
    }
}

/// What Debian 12's header does not have: offsets as compiled from libibverbs/verbs.h of rdma-core 65.
#[test]
fn structures_of_later_versions_are_as_they_were_measured() {
    use std::mem::offset_of;
    let measured = [
        ("length", offset_of!(IbvMrInitAttr, length), 0),
        ("access", offset_of!(IbvMrInitAttr, access), 8),
        ("comp_mask", offset_of!(IbvMrInitAttr, comp_mask), 16),
        ("iova", offset_of!(IbvMrInitAttr, iova), 24),
        ("addr", offset_of!(IbvMrInitAttr, addr), 32),
        ("fd", offset_of!(IbvMrInitAttr, fd), 40),
        ("fd_offset", offset_of!(IbvMrInitAttr, fd_offset), 48),
        ("dmah", offset_of!(IbvMrInitAttr, dmah), 56),
        ("buf", offset_of!(IbvMrInitAttr, buf), 64),
        ("struct ibv_mr_init_attr", size_of::<IbvMrInitAttr>(), 72),
    ];
    for (name, ours, theirs) in measured {
        assert_eq!(ours, theirs, "{name}");
    }
}

/// Compiles and runs the program, and reads what it prints.
fn run(program: &str) -> BTreeMap<String, (usize, usize)> {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output().unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "libibverbs-dev is needed (cargo xtask setup): {errors}");
    let printed = Command::new(&binary).output().unwrap();
    assert!(printed.status.success());
    let text = String::from_utf8(printed.stdout).unwrap();
    text.lines()
        .map(|line| {
            let mut words = line.rsplitn(3, ' ');
            let mut number = || words.next().unwrap().parse().unwrap();
            let (size, offset) = (number(), number());
            (words.next().unwrap().to_owned(), (offset, size))
        })
        .collect()
}
