//! Our C types against the header: a C program prints what the compiler makes of `infiniband/verbs.h`.
//!
//! Where there is no header or no compiler the test says so; with `RDMACCL_VERBS_HEADER=required` that is a failure.

use super::abi::*;
use super::constants::*;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

macro_rules! layout {
    ($into:ident: $($type:ident { $($($field:ident).+),* })*) => {
        $(
            $into.push((format!("sizeof(struct {})", stringify!($type)), size_of::<$type>() as u64));
            $into.push((format!("_Alignof(struct {})", stringify!($type)), align_of::<$type>() as u64));
            $($into.push((
                format!("offsetof(struct {}, {})", stringify!($type), stringify!($($field).+).replace(' ', "")),
                offset_of!($type, $($field).+) as u64,
            ));)*
        )*
    };
}

/// C expressions, each with the value that we take it for.
fn ours() -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> =
        CONSTANTS.iter().map(|(name, value)| (name.to_string(), u64::from(*value))).collect();
    layout!(all:
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
            local_ca_ack_delay, phys_port_cnt
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_async_event { element, element.cq, element.qp, element.port_num, event_type }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed
        }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits
        }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_ah { context, pd, handle }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit
        }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed
        }
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, wr.rdma.remote_addr, wr.rdma.rkey,
            wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, wr.ud.ah,
            wr.ud.remote_qpn, wr.ud.remote_qkey
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
    );
    // Where the C names are another.
    all.push(("sizeof(union ibv_gid)".into(), size_of::<ibv_gid>() as u64));
    all.push(("_Alignof(union ibv_gid)".into(), align_of::<ibv_gid>() as u64));
    all.push((
        "offsetof(struct ibv_send_wr, qp_type.xrc.remote_srqn)".into(),
        offset_of!(ibv_send_wr, remote_srqn) as u64,
    ));
    all.push((
        "offsetof(struct ibv_send_wr, bind_mw)".into(),
        offset_of!(ibv_send_wr, _bind_mw_or_tso) as u64,
    ));
    all
}

/// What the C compiler says; the text says why it cannot.
fn theirs(expressions: &[(String, u64)]) -> Result<Vec<u64>, String> {
    let folder = std::env::temp_dir().join(format!("rdmaccl-verbs-header-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    let mut text =
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n"
            .to_string();
    for (expression, _) in expressions {
        let _ = writeln!(text, "printf(\"%llu\\n\", (unsigned long long)({expression}));");
    }
    text.push_str("return 0; }\n");
    let run = || {
        std::fs::write(&source, text).map_err(|e| format!("{}: {e}", source.display()))?;
        let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output();
        let compiled = compiled.map_err(|e| format!("cc: {e}"))?;
        if !compiled.status.success() {
            return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
        }
        let output = Command::new(&program).output().map_err(|e| format!("{}: {e}", program.display()))?;
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(lines.lines().map(|line| line.parse().unwrap_or(u64::MAX)).collect())
    };
    let result = run();
    let _ = std::fs::remove_dir_all(&folder);
    result
}

#[test]
#[allow(clippy::print_stderr)]
fn every_size_offset_and_constant_is_the_headers() {
    let ours = ours();
    assert!(ours.len() > 300);
    match theirs(&ours) {
        Ok(theirs) => {
            assert_eq!(theirs.len(), ours.len());
            let wrong: Vec<_> =
                ours.iter().zip(&theirs).filter(|((_, ours), theirs)| ours != *theirs).collect();
            assert!(wrong.is_empty(), "ours and theirs: {wrong:#?}");
        }
        Err(why) if std::env::var("RDMACCL_VERBS_HEADER").is_ok_and(|v| v == "required") => panic!("{why}"),
        Err(why) => eprintln!("skipped, infiniband/verbs.h cannot be compiled: {why}"),
    }
}

#[test]
fn the_symbols_of_the_installed_library_have_these_versions() {
    match super::Table::open("libibverbs.so.1") {
        Ok(table) => assert!(table.fork_init.is_some()),
        Err(error) => assert!(error.to_string().contains("cannot be opened"), "{error}"),
    }
}
