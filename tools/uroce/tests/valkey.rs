//! Valkey over RDMA, unmodified, by `uroce run`: a server with its module, and clients on another host, over AF_XDP and, as
//! nobody, over UDP sockets. Its own test of the network sets and gets random values by two threads; a value of 300 kB
//! comes back as it was; its benchmark sets and gets values of 4 KiB. Each of a thousand connections leaves a completion queue and a
//! descriptor behind, and no more, as on every device: Valkey destroys completion queue, channel and protection domain before
//! the queue pair that uses them, and ignores that this is refused (EBUSY).
//!
//! Valkey is compiled: this test is of `cargo xtask test --full programs`, which does so.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::captures::folder_for_all;
use common::compared::{OVER_UDP, OVER_XDP, Start};
use common::processes::{memory_kib, program_of, signal, wait_until};
use common::programs::{AS_NOBODY, LIMIT, Running, UROCE, sent_packets, start};
use rustix::process::Signal;
use rxe_rig::{Netns, VethPair};

/// Of each kind of request of the benchmark.
const REQUESTS: u64 = 2000;
const VALUE_BYTES: u64 = 4096;

const CONNECTIONS: u64 = 1000;

/// KiB that the server can have more after each connection: its completion queue of 2048 entries stays, which is 240 KiB.
/// Its buffers of 1 MiB do not.
const GROWTH_KIB: i64 = 400;

/// Descriptors beside one of each connection.
const MORE_DESCRIPTORS: i64 = 20;

/// What the set-up compiled.
fn compiled(name: &str) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory");
    let file = target.join("valkey").join(name);
    assert!(file.exists(), "{} is missing: cargo xtask test --full programs", file.display());
    file.display().to_string()
}

/// A server, and its folder.
struct Server {
    running: Running,
    folder: PathBuf,
}

impl Server {
    fn begin(host: &Netns, (run, link): (Start, &str)) -> Server {
        let folder = folder_for_all(&format!("valkey-{link}"));
        let configuration = folder.join("conf");
        let module = format!("loadmodule {}", compiled("src/valkey-rdma.so"));
        let (directory, log) = (folder.display(), folder.join("log"));
        let text = format!(
            "port 0\nprotected-mode no\nsave \"\"\nappendonly no\ndir {directory}\nlogfile {}\n{module}\n\
             rdma-port 6379\nrdma-bind {}\n",
            log.display(),
            VethPair::A.ipv4
        );
        fs::write(&configuration, text).unwrap();
        let words = format!("{} {}", compiled("src/valkey-server"), configuration.display());
        let running = run(host, &format!("--link {link} -- {words}"));
        let server = Server { running, folder };
        let said = || fs::read_to_string(&log).unwrap_or_default();
        wait_until(|| format!("not ready: {}", said()), LIMIT, || said().contains("Ready to accept connections rdma"));
        server
    }

    /// Memory in KiB, and descriptors.
    fn has(&self) -> [i64; 2] {
        let program = program_of(&self.running);
        [memory_kib(program), fs::read_dir(format!("/proc/{program}/fd")).unwrap().count() as i64]
    }

    fn end(self) {
        signal(program_of(&self.running), Signal::TERM);
        self.running.end_within(LIMIT).unwrap().succeeded();
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// Plays a client to its end, which must have sent as many packets at least. What it says of a thousand connections is more
/// than a pipe holds.
#[track_caller]
fn client(server: &Server, host: &Netns, link: &str, words: &str, fewest_packets: u64) -> String {
    let user = if link == "udp" { AS_NOBODY.join(" ") } else { String::new() };
    let says = server.folder.join("says");
    let line = format!("exec {user} {UROCE} run --link {link} --trace -- {words} 2> {}", says.display());
    let ended = start(host.command("sh"), &["-c", &line]).end_within(LIMIT).unwrap();
    let said = fs::read_to_string(&says).unwrap();
    assert!(ended.status.success(), "{ended:#?}, {said}");
    let sent = sent_packets(&said);
    assert!(sent >= fewest_packets, "{sent} packets, not {fewest_packets}: {words}");
    ended.stdout
}

fn values_come_back(link: (Start, &str)) {
    let pair = VethPair::create(4500).unwrap();
    let server = Server::begin(&pair.a, link);
    let host = VethPair::A.ipv4;
    client(&server, &pair.b, link.1, &format!("{} --thread 2 -h {host}", compiled("tests/rdma/rdma-test")), 1000);

    // Larger than what a pipe holds.
    let value: String = (0..50_000).map(|number| format!("{number:06}")).collect();
    let [from, to, script] = ["from", "to", "script"].map(|name| server.folder.join(name));
    fs::write(&from, &value).unwrap();
    let cli = format!("{} --rdma -h {host}", compiled("src/valkey-cli"));
    let packets = value.len() as u64 / 4096;
    for (line, fewest_packets) in
        [(format!("{cli} -x SET key < {}", from.display()), packets), (format!("{cli} GET key > {}", to.display()), 4)]
    {
        fs::write(&script, line + "\n").unwrap();
        client(&server, &pair.b, link.1, &format!("sh {}", script.display()), fewest_packets);
    }
    assert!(fs::read_to_string(&to).unwrap().trim_end() == value, "another value came back");

    let benchmark = format!("{} --rdma -h {host} --csv -d {VALUE_BYTES} -t set,get", compiled("src/valkey-benchmark"));
    // A SET has its value in one packet or two, and a GET is one.
    let measured = client(&server, &pair.b, link.1, &format!("{benchmark} -n {REQUESTS} -c 8"), 2 * REQUESTS);
    assert!(measured.contains("\"SET\"") && measured.contains("\"GET\""), "{measured}");

    // Without `-k`, each request has a connection of its own.
    let each =
        |count: u64| client(&server, &pair.b, link.1, &format!("{benchmark} -k 0 -n {} -c 4", count / 2), 2 * count);
    each(100);
    let before = server.has();
    each(CONNECTIONS);
    let after = server.has();
    eprintln!("{}: {before:?} KiB and descriptors before {CONNECTIONS} connections, {after:?} after them", link.1);
    assert!(after[0] - before[0] < GROWTH_KIB * CONNECTIONS as i64, "{before:?}, {after:?}");
    assert!(after[1] - before[1] < CONNECTIONS as i64 + MORE_DESCRIPTORS, "{before:?}, {after:?}");
    server.end();
}

#[test]
fn values_come_back_over_af_xdp() {
    values_come_back(OVER_XDP);
}

#[test]
fn values_come_back_over_udp_sockets() {
    values_come_back(OVER_UDP);
}
