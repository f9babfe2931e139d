//! Open MPI and MPICH over UCX, as Debian has them, with ranks in two namespaces by `uroce run`: collective operations whose
//! results are compared element by element. The libraries take TCP or shared memory in silence: every rank's frames are counted.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::compiled::program_by;
use crate::common::programs::{UROCE, sent_packets, start};
use rxe_rig::VethPair;

const LIMIT: Duration = Duration::from_secs(120);

/// A library of Debian's. Each of its programs has the name that the distribution's alternatives choose from.
struct Library {
    compiler: &'static str,
    launcher: &'static str,
    /// What tells the launcher the agent, which comes next.
    agent: &'static [&'static str],
    more: &'static [&'static str],
}

const OPEN_MPI: Library = Library {
    compiler: "mpicc.openmpi",
    launcher: "mpirun.openmpi",
    agent: &["--mca", "plm_rsh_agent"],
    // Four ranks and two processors: who waits makes room.
    more: &["--allow-run-as-root", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "pml", "ucx"],
};

const MPICH: Library = Library {
    compiler: "mpicc.mpich",
    launcher: "mpirun.mpich",
    agent: &["-launcher", "ssh", "-launcher-exec"],
    more: &[],
};

/// Packets of the path MTU, 4096, that each of `ranks` sends at least: its largest part of the exchange to each other rank,
/// and twice all but its own part of the largest sum. The C program has the sizes.
fn fewest_packets(ranks: u64) -> u64 {
    let largest_packets = (8 << 17) / 4096;
    (ranks - 1) * largest_packets + 2 * largest_packets * (ranks - 1) / ranks
}

/// A file of `tests/programs`.
fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).display().to_string()
}

/// A new empty folder for what the ranks print.
fn traces() -> PathBuf {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let name = format!("mpi-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs the program with `ranks_a_host` ranks in each of two namespaces. What the ranks printed on stderr.
fn play(library: &Library, ranks_a_host: usize, options: &str) -> Vec<String> {
    let pair = VethPair::create(4500).unwrap();
    let folder = traces();
    let ranks = 2 * ranks_a_host;
    let hosts = [VethPair::A, VethPair::B].map(|end| format!("{}:{ranks_a_host}", end.ipv4)).join(",");
    let program = program_by(library.compiler, "collectives", &[]).display().to_string();
    let (agent, rank, count) = (script("mpi_agent"), script("mpi_rank"), ranks.to_string());
    let mut command = pair.a.command(library.launcher);
    command.envs([("UROCE", UROCE), ("PEER", pair.b.name()), ("OPTIONS", options)]).env("TRACES", &folder);
    // Without the last, MPICH's ranks of one host use shared memory.
    command.envs([("UCX_TLS", "rc_verbs,ud_verbs,self"), ("MPIR_CVAR_NOLOCAL", "1")]);
    let where_and_what = ["-host", &hosts, "-np", &count, &rank, &program];
    let words = [library.more, library.agent, &[agent.as_str()], &where_and_what].concat();
    let ended = start(command, &words).end_within(LIMIT);
    let traces: Vec<String> =
        (0..ranks).map(|rank| std::fs::read_to_string(folder.join(rank.to_string())).unwrap_or_default()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    let ended = ended.unwrap_or_else(|why| panic!("{why}: {traces:#?}"));
    assert!(ended.status.success(), "{ended:#?}: {traces:#?}");
    assert_eq!(ended.stdout, format!("{ranks} ranks checked\n"), "{ended:#?}");
    for (rank, trace) in traces.iter().enumerate() {
        let (sent, fewest) = (sent_packets(trace), fewest_packets(ranks as u64));
        assert!(sent >= fewest, "{}: rank {rank} sent {sent} packets, not {fewest}", library.compiler);
    }
    traces
}

#[test]
fn ranks_of_open_mpi_share_their_hosts_device_over_udp_sockets() {
    play(&OPEN_MPI, 2, "--link udp");
}

#[test]
fn ranks_of_mpich_share_their_hosts_device_over_udp_sockets() {
    play(&MPICH, 2, "--link udp");
}

/// A rank sends some 1,300 packets and receives as many, and each way one of a hundred is lost.
#[test]
fn ranks_lose_a_hundredth_of_all_frames_and_have_the_same_results() {
    for library in [OPEN_MPI, MPICH] {
        for trace in play(&library, 2, "--link udp --fault loss=0.01,seed=3") {
            let (_, lost) = trace.split_once("fault_tx_lost ").unwrap_or_else(|| panic!("nothing was lost: {trace}"));
            assert!(!lost.starts_with("0,"), "{trace}");
        }
    }
}

/// One rank of each host has the device over AF_XDP, and the other shares it over UDP sockets.
#[test]
fn ranks_share_their_hosts_device_over_af_xdp() {
    for library in [OPEN_MPI, MPICH] {
        play(&library, 2, "--link xdp");
    }
}
