//! What unmodified programs see of a device before and beside libibverbs: its name.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use common::programs::{Ended, Running, run, run_as_nobody, uroce, wait_for_listener};
use rxe_rig::{Netns, VethPair};

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
