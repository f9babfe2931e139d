//! What unmodified programs see of a device before and beside libibverbs: its name, and its attributes and counters in sysfs.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::compiled::little;
use crate::common::programs::{Ended, Running, run, run_as_nobody, start, uroce, wait_for_listener};
use rxe_rig::{Netns, VethPair};

const LIMIT: Duration = Duration::from_secs(60);

/// Packets that programs under `--trace` sent, in the order of their ends.
fn sent_packets(ended: &Ended) -> Vec<u64> {
    let counts = ended.stderr.split("sent_pkts ").skip(1);
    counts.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()).collect()
}

/// `uroce run` of a shell's script, with options before it.
fn run_script(namespace: &Netns, options: &[&str], script: &str) -> Running {
    uroce(namespace, &[&["run"], options, &["sh", "-c", script]].concat())
}

#[test]
fn a_device_has_the_name_that_is_given_for_programs() {
    let pair = VethPair::create(4500).unwrap();
    let named = "--dev uroce0=mlx5_0";
    let listed = run(&pair.a, &format!("{named} ibv_devices")).end().succeeded();
    assert!(listed.stdout.contains("mlx5_0") && !listed.stdout.contains("uroce0"), "{listed:#?}");
    let described = run(&pair.a, &format!("{named} ibv_devinfo -d mlx5_0 -v")).end().succeeded();
    assert!(described.stdout.contains("hca_id:\tmlx5_0") && described.stdout.contains("10.78.0.1"), "{described:#?}");
    let script = "cd /sys/class/infiniband && echo * && cat mlx5_0/ports/1/gid_attrs/ndevs/1 && ls /dev/infiniband mlx5_0/device/net";
    let seen = run_script(&pair.a, &["--dev", "uroce0=mlx5_0"], script).end().succeeded();
    assert_eq!(
        seen.stdout, "mlx5_0\nuroce0\n/dev/infiniband:\nuverbs-mlx5_0\n\nmlx5_0/device/net:\nuroce0\n",
        "{seen:#?}"
    );
    // Only the program's name changes: uroce's own commands, links and addresses do as before.
    let server = run(&pair.a, &format!("{named} ibv_rc_pingpong -d mlx5_0 -g 1 -n 100 -c"));
    wait_for_listener(&pair.a, 18515);
    let client = ["pingpong", "--dev", "10.78.0.2=mlx5_1", "--link", "udp", "-n", "100", "-c", "10.78.0.1"];
    uroce(&pair.b, &client).end().succeeded();
    server.end().succeeded();
    for (name, words) in [("uroce0=a/b", "no name"), ("uroce0=", "no name"), ("uroce0,uroce0=x", "one name")] {
        run(&pair.a, &format!("--dev {name} true")).end().failed(125, &[words]);
    }
}

#[test]
fn ucx_takes_a_device_by_the_name_that_is_given() {
    let pair = VethPair::create(4500).unwrap();
    let line = |device: &str, host: &str| {
        format!(
            "--dev {device}=mlx5_0 --link udp --trace -- env UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=mlx5_0:1 \
             ucx_perftest -t tag_bw -s 10000 -n 200 -w 10 {host}"
        )
    };
    let server = run_as_nobody(&pair.a, &line("uroce0", ""));
    wait_for_listener(&pair.a, 13337);
    let client = run_as_nobody(&pair.b, &line("uroce1", "10.78.0.1")).end().succeeded();
    server.end().succeeded();
    assert!(sent_packets(&client)[0] > 600, "three packets a message: {client:#?}");
}

#[test]
fn counters_in_sysfs_are_those_of_all_programs_and_live() {
    let pair = VethPair::create(4500).unwrap();
    let line = "ib_write_bw -F -u 17 -s 4096 -D 3";
    let server = run(&pair.a, line);
    wait_for_listener(&pair.a, 18515);
    let file = "/sys/class/infiniband/uroce1/ports/1/hw_counters/sent_pkts";
    let script = format!(
        "{line} 10.78.0.1 >&2 & sleep 2; cat {file}; wait; cat {file}; cd ${{file%/*}} && cat sent_pkts && head -1 sent_pkts <rcvd_pkts",
    );
    let script = format!("file={file}; {script}");
    let client = run_script(&pair.b, &["--trace"], &script).end().succeeded();
    server.end().succeeded();
    let counts: Vec<u64> = client.stdout.lines().map(|line| line.parse().unwrap()).collect();
    let traced = sent_packets(&client);
    let [live, last, relative, again] = counts[..] else { panic!("{client:#?}") };
    assert!(0 < live && live < last, "while it runs, and after: {client:#?}");
    assert_eq!((vec![last], relative, again), (traced, last, last), "{client:#?}");
}

/// Of two programs, one after the other, of which the second is killed: nothing that was counted is taken back.
#[test]
fn counters_stay_when_programs_end_or_are_killed() {
    let pair = VethPair::create(4500).unwrap();
    let pingpong = "ibv_rc_pingpong -g 1 -c -n 300";
    let mut server = run(&pair.a, &format!("--link udp {pingpong}"));
    server.listens(&pair.a, 18515, LIMIT).unwrap();
    let endless = "ib_write_bw -F -u 17 -s 4096 -D 60 -p 18600";
    let mut bandwidth = run(&pair.a, &format!("--link udp {endless}"));
    bandwidth.listens(&pair.a, 18600, LIMIT).unwrap();
    let read = "for file in $folder/sent_pkts $folder/rdma_sends; do read n < $file; echo $n; done";
    let script = format!(
        "folder=/sys/class/infiniband/uroce1/ports/1/hw_counters\n{pingpong} 10.78.0.1 >&2; {read}\n\
         {endless} 10.78.0.1 >&2 & sleep 2; kill -9 $!; wait; {read}; read n < ${{folder%/*}}/../counters/port_xmit_data 2>/dev/null; \
         cat ${{folder%/*}}/counters/port_xmit_data ${{folder}}/lifespan"
    );
    let client = run_script(&pair.b, &["--trace", "--link", "udp"], &script).end().succeeded();
    server.end().succeeded();
    drop(bandwidth);
    let counts: Vec<u64> = client.stdout.lines().map(|line| line.parse().unwrap()).collect();
    let [first, sends, second, sends_after, words, lifespan] = counts[..] else { panic!("{client:#?}") };
    assert_eq!((vec![first], sends, sends_after, lifespan), (sent_packets(&client), 300, 300, 10), "{client:#?}");
    // Half a second of it is there, at least.
    assert!(second > first + 100 && words > 4096 / 4 * (second - first) / 2, "{client:#?}");
}

/// Queue pairs that send to each other; the device is closed and opened again ten times.
#[test]
fn a_device_that_is_opened_again_counts_on() {
    let pair = VethPair::create(4500).unwrap();
    let main = "#include \"check.h\"\n#include <fcntl.h>\nint main(void) { for (int i = 1; i <= 10; i++) {\n\
        struct ibv_context *x = open_first(); struct ibv_pd *pd = ibv_alloc_pd(x); char memory[64] = {0};\n\
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, 1); struct ibv_cq *cq = ibv_create_cq(x, 9, 0, 0, 0);\n\
        struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,\n\
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};\n\
        struct ibv_qp *qp = ibv_create_qp(pd, &init); to_init(qp); union ibv_gid gid;\n\
        CHECK(ibv_query_gid(x, 1, 1, &gid) == 0); connect_to(qp, 0, &gid);\n\
        struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}};\n\
        struct ibv_ah *ah = ibv_create_ah(pd, &to); struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};\n\
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,\n\
        .wr.ud = {.ah = ah, .remote_qpn = 77, .remote_qkey = 1}}, *bad; CHECK(ah && ibv_post_send(qp, &wr, &bad) == 0);\n\
        CHECK(next_completion(cq).status == IBV_WC_SUCCESS && ibv_close_device(x) == 0);\n\
        char text[9] = {0}; int fd = open(\"/sys/class/infiniband/uroce0/ports/1/hw_counters/rdma_sends\", O_RDONLY);\n\
        CHECK(read(fd, text, 8) > 0 && atoi(text) == i && close(fd) == 0); } return 0; }\n";
    let include = format!("-I{}/tests/programs", env!("CARGO_MANIFEST_DIR"));
    let file = little("opens-again", main, &[&include, "-libverbs"]).display().to_string();
    // One page for all ten.
    let script = format!("{file} && ls $UROCE_TREE/live | wc -l");
    let ended = run_script(&pair.a, &["--link", "udp"], &script).end().succeeded();
    assert_eq!(ended.stdout, "1\n", "{ended:#?}");
}

/// Without a device of the machine's own, ibstat reads all that it prints from sysfs.
#[test]
fn ibstat_has_a_value_on_every_line() {
    let pair = VethPair::create(4500).unwrap();
    let ended = run_as_nobody(&pair.a, "ibstat").end().succeeded();
    let lines: Vec<&str> = ended.stdout.lines().map(str::trim).collect();
    let empty: Vec<_> = lines.iter().filter(|line| line.ends_with(':') && !line.starts_with("Port 1")).collect();
    assert!(empty.is_empty() && lines.len() > 12, "{ended:#?}");
    for words in ["CA 'uroce0'", "CA type: uroce", "State: Active", "Physical state: LinkUp", "Link layer: Ethernet"] {
        assert!(lines.contains(&words), "no {words:?}: {ended:#?}");
    }
    let status = start(pair.a.command(crate::common::programs::UROCE), &["run", "ibstatus"]).end().succeeded();
    // A veth says that it has 10 Gb/s.
    assert!(status.stdout.contains("10 Gb/sec (1X FDR10)"), "{status:#?}");
}
