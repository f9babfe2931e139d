//! Every symbol of the system's libibverbs and librdmacm is in ours, under the same version, and the other way round.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What versions later than Debian 12's have beyond it: libibverbs.map.in and librdmacm.map of rdma-core 65.
const LATER: [(&str, &[&str]); 6] = [
    ("IBVERBS_1.15", &["ibv_alloc_dmah", "ibv_dealloc_dmah", "ibv_reg_mr_ex"]),
    ("IBVERBS_1.16", &["ibv_dm_export_dmabuf_fd", "ibv_query_port_speed"]),
    ("IBVERBS_1.17", &["ibv_alloc_buf", "ibv_free_buf", "ibv_reg_buf_mr"]),
    (
        "IBVERBS_1.18",
        &[
            "_ibv_query_comp_cntr_caps",
            "ibv_create_comp_cntr",
            "ibv_destroy_comp_cntr",
            "ibv_export_buf_dmabuf_fd",
            "ibv_inc_comp_cntr",
            "ibv_inc_err_comp_cntr",
            "ibv_qp_attach_comp_cntr",
            "ibv_read_comp_cntr",
            "ibv_read_err_comp_cntr",
            "ibv_set_comp_cntr",
            "ibv_set_err_comp_cntr",
        ],
    ),
    ("RDMACM_1.4", &["rdma_query_addrinfo", "rdma_resolve_addrinfo", "rdma_write_cm_event"]),
    ("RDMACM_1.5", &["repoll_create", "repoll_ctl", "repoll_wait"]),
];

/// The library of this build: in the folder of the test programs.
fn ours() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("liburoce_verbs.so")
}

/// `name@version` of what a library defines.
fn symbols(library: &Path) -> BTreeSet<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output().unwrap();
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names.filter(|name| name.contains('@')).map(|name| name.replace("@@", "@")).collect()
}

#[test]
fn all_current_symbols_are_there_with_their_versions() {
    let mut theirs = BTreeSet::new();
    for (name, least) in [("libibverbs.so.1", 150), ("librdmacm.so.1", 68)] {
        let one = symbols(&Path::new("/usr/lib/x86_64-linux-gnu").join(name));
        assert!(one.len() >= least, "{name} is needed (cargo xtask setup): {one:?}");
        theirs.extend(one);
    }
    let ours = symbols(&ours());
    // Those that also have a later version are for programs of before 2006.
    let is_old = |symbol: &str| {
        symbol.strip_suffix("@IBVERBS_1.0").is_some_and(|name| theirs.contains(&format!("{name}@IBVERBS_1.1")))
    };
    let missing: Vec<_> = theirs.iter().filter(|symbol| !is_old(symbol) && !ours.contains(*symbol)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    // What we have beyond is for programs of later versions, or in place of the C library's, under its versions; nothing of
    // Rust's leaks out.
    let later: BTreeSet<String> =
        LATER.iter().flat_map(|(version, names)| names.iter().map(move |name| format!("{name}@{version}"))).collect();
    let missing: Vec<_> = later.difference(&ours).collect();
    assert!(missing.is_empty(), "missing of later versions: {missing:?}");
    let libc = symbols(Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6"));
    let extra = ours.difference(&theirs).filter(|symbol| !later.contains(*symbol));
    let strange: Vec<_> =
        extra.filter(|symbol| !symbol.contains("@IBVERBS_PRIVATE_") && !libc.contains(*symbol)).collect();
    assert!(strange.is_empty(), "beyond libibverbs and librdmacm: {strange:?}");
    // Providers of each later version want what those of Debian 12's have, under that version's number.
    let of = |number: &str| -> BTreeSet<String> {
        let names = ours.iter().filter_map(|symbol| symbol.strip_suffix(&format!("@IBVERBS_PRIVATE_{number}")));
        names.map(|name| name.replace(&format!("verbs_register_driver_{number}"), "verbs_register_driver")).collect()
    };
    for number in ["57", "59", "64", "65"] {
        let missing: Vec<_> = of("34").difference(&of(number)).cloned().collect();
        assert!(missing.is_empty(), "missing under {number}: {missing:?}");
    }
}
