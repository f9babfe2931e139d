//! What `uroce run` says at the end when a program's traffic went elsewhere, and when it says nothing.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::compiled::little;
use crate::common::programs::{Ended, run, start, uroce, wait_for_listener};
use rxe_rig::VethPair;

/// What a program does with the device, and then by TCP with itself.
fn with_tcp(verbs: &str) -> String {
    format!(
        "#include <arpa/inet.h>\n#include <sys/socket.h>\n#include <unistd.h>\n#include <infiniband/verbs.h>\n\
         int main(void) {{ int n; struct ibv_device **list = ibv_get_device_list(&n); if (!list || !n) return 2;\n{verbs}\n\
         struct sockaddr_in at = {{.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}}; socklen_t len = sizeof at;\n\
         int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);\n\
         return bind(l, (void *)&at, len) || listen(l, 1) || getsockname(l, (void *)&at, &len)\n\
         || connect(c, (void *)&at, len) || accept(l, 0, 0) < 0; }}\n"
    )
}

/// Opens the device, and makes a queue pair.
const OPENS: &str = "struct ibv_context *x = ibv_open_device(list[0]); struct ibv_pd *pd = ibv_alloc_pd(x);\n\
                     struct ibv_cq *cq = ibv_create_cq(x, 1, 0, 0, 0);\n\
                     struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,\n\
                     .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};\n\
                     if (!ibv_create_qp(pd, &init)) return 3;";

/// The lines that tell where traffic went: not those that say which link it takes, and what UCX was told.
fn words(ended: &Ended) -> Vec<&str> {
    let others = ["over UDP sockets", "for UCX"];
    let ours = |line: &&str| line.starts_with("uroce: ") && !others.iter().any(|other| line.contains(other));
    ended.stderr.lines().filter(ours).collect()
}

#[test]
fn a_program_whose_data_went_by_tcp_is_told_once() {
    let pair = VethPair::create(1500).unwrap();
    let lists = little("lists-only", &with_tcp(""), &["-libverbs"]);
    let idle = little("idle-queue-pair", &with_tcp(OPENS), &["-libverbs"]);
    for (program, name, text) in [
        (&lists, "lists-only", "listed the devices, opened none and made TCP connections"),
        (&idle, "idle-queue-pair", "opened the device and made queue pairs, and sent no packet"),
    ] {
        // Of three processes that do the same one is named.
        let script = format!("{0}; {0}; {0}", program.display());
        let ended = uroce(&pair.a, &["run", "--link", "udp", "sh", "-c", &script]).end().succeeded();
        let words = words(&ended);
        assert!(words.len() == 1 && words[0].contains(text) && words[0].contains(name), "{ended:#?}");
    }
    // One that brings a connection manager of its own.
    let main = "#include <fcntl.h>\nint main(void) { return open(\"/dev/infiniband/rdma_cm\", O_RDWR) >= 0; }\n";
    let kernels = little("kernels-cm", main, &[]);
    let ended = run(&pair.a, &kernels.display().to_string()).end().succeeded();
    assert!(words(&ended).concat().contains("kernels-cm opened /dev/infiniband/rdma_cm"), "{ended:#?}");
}

#[test]
fn ucx_that_was_told_to_take_tcp_is_told_so() {
    let pair = VethPair::create(1500).unwrap();
    let line =
        |host: &str| format!("env UCX_TLS=all UCX_NET_DEVICES=uroce0,uroce1 ucx_perftest -t tag_lat -n 100 {host}");
    let server = run(&pair.a, &line(""));
    wait_for_listener(&pair.a, 13337);
    let client = run(&pair.b, &line("10.78.0.1")).end().succeeded();
    server.end().succeeded();
    assert!(words(&client).concat().contains("ucx_perftest"), "{client:#?}");
}

#[test]
fn what_only_asks_or_comes_here_or_is_not_about_rdma_is_told_nothing() {
    let pair = VethPair::create(1500).unwrap();
    for line in ["ibv_devices", "ibv_devinfo -v", "ucx_info -d", "ls /", "true", "ibstat"] {
        let ended = run(&pair.a, &format!("--link udp {line}")).end().succeeded();
        assert_eq!(words(&ended), Vec::<&str>::new(), "{ended:#?}");
    }
    // One process of two moved packets.
    let idle = little("idle-queue-pair", &with_tcp(OPENS), &["-libverbs"]).display().to_string();
    let pingpong = "ibv_rc_pingpong -g 1 -n 10";
    let server = uroce(&pair.a, &["run", "sh", "-c", &format!("{pingpong}; {idle}")]);
    wait_for_listener(&pair.a, 18515);
    let client = run(&pair.b, &format!("{pingpong} 10.78.0.1"));
    for ended in [client.end().succeeded(), server.end().succeeded()] {
        assert_eq!(words(&ended), Vec::<&str>::new(), "{ended:#?}");
    }
}

#[test]
fn who_ran_without_the_library_is_told() {
    let pair = VethPair::create(1500).unwrap();
    let fixed = little("static-shell", "int main(void) { return 0; }\n", &["-static"]);
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static-script");
    std::fs::write(&script, format!("#!{}\n", fixed.display())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ended = run(&pair.a, &script.display().to_string()).end().succeeded();
    assert!(words(&ended).concat().contains("no process had uroce's library: static-script"), "{ended:#?}");
    let ended = run(&pair.a, "bwrap --dev-bind / / --clearenv /bin/true").end().succeeded();
    assert!(words(&ended).concat().contains("use `bwrap uroce run PROGRAM`"), "{ended:#?}");
    let ended = run(&pair.a, "bwrap --dev-bind / / /bin/true").end().succeeded();
    assert_eq!(words(&ended), Vec::<&str>::new(), "{ended:#?}");
}

/// Where the kernel has RDMA devices (here a folder in sysfs says so), a program would see uroce's in their place: it runs only
/// when a device is named.
#[test]
fn beside_devices_of_the_kernel_a_program_runs_only_when_one_is_named() {
    let pair = VethPair::create(1500).unwrap();
    let beside = |arguments: &str| {
        let script = format!(
            "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/rxe0 /sys/class/infiniband/mlx5_0 && \
             exec {} run --link udp {arguments} ibv_devices",
            crate::common::programs::UROCE
        );
        start(pair.a.command("unshare"), &["--mount", "--propagation", "private", "sh", "-e", "-c", &script]).end()
    };
    beside("").failed(125, &["this machine has RDMA devices", "rxe0", "mlx5_0", "--dev"]);
    let named = beside("--dev lo").succeeded();
    assert!(named.stdout.contains("lo ") || named.stdout.contains("lo\t"), "{named:#?}");
}
