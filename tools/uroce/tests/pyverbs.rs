//! rdma-core's own tests in Python (Debian's python3-pyverbs), by `uroce run` over AF_XDP, and as nobody over UDP sockets: none
//! fails; and what passes on the kernel's rxe passes here too, but for what is named here with its reason. `cargo xtask pyverbs` prints both side by side.

use crate::common::programs::{AS_NOBODY, UROCE};
use rxe_rig::VethPair;
use rxe_rig::pyverbs::{Report, Suite, Verdict};

/// What every run plays: queue pairs, completion queues, memory, connections; some seconds. With UROCE_FULL=1, all files.
const SOME: [&str; 7] = ["test_addr", "test_cq", "test_cq_events", "test_mr", "test_pd", "test_qp", CONNECTIONS];

/// Its tests have two processes on one device each: over AF_XDP one of them has UDP sockets. On rxe all are skipped: they ask
/// sysfs for the device's network interface, which the machine's kernel does not tell.
const CONNECTIONS: &str = "test_rdmacm";

/// What passes on rxe and is skipped here: file, test, why.
const SKIPPED: [(&str, &str, &str); 1] = [(
    "test_device",
    "DeviceTest.test_query_gid_ex_bad_flow",
    "asks for an empty entry of the GID table; ours is as long as there are GIDs, rxe's has 1024 entries",
)];

fn is_explained(file: &str, test: &str) -> bool {
    SKIPPED.iter().any(|(its, which, _)| (*its, *which) == (file, test))
}

/// Runs files in a namespace, and says of each how it went. None of their tests may fail.
fn play(suite: &Suite, files: &[String], link: &str, user: &[&str]) -> Vec<Report> {
    let pair = VethPair::create(1500).unwrap();
    let device = VethPair::A.interface;
    let prefix = [user, &[UROCE, "run", "--dev", device, "--link", link, "--"]].concat();
    let mut failures = Vec::new();
    let mut reports = Vec::new();
    for file in files {
        let report = suite.run(&pair.a, &prefix, device, file).unwrap();
        say(link, &report);
        let failed = report.outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Failed);
        failures.extend(failed.map(|outcome| format!("over {link}: {file}.{}: {}", outcome.test, outcome.why)));
        reports.push(report);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    reports
}

/// The tests of `reports` that passed.
fn passed(reports: &[Report]) -> usize {
    reports.iter().map(|report| report.count(Verdict::Passed)).sum()
}

fn say(on: &str, report: &Report) {
    let [passed, skipped, failed] =
        [Verdict::Passed, Verdict::Skipped, Verdict::Failed].map(|verdict| report.count(verdict));
    eprintln!("{on}: {}: {passed} passed, {skipped} skipped, {failed} failed in {:?}", report.file, report.time);
}

#[test]
fn none_of_rdma_cores_tests_fails() {
    let suite = Suite::unpack().unwrap_or_else(|e| panic!("{e}"));
    let is_full = std::env::var_os("UROCE_FULL").is_some();
    let is_wanted = |file: &str| is_full || SOME.contains(&file);
    let files: Vec<String> = suite.files().iter().filter(|file| is_wanted(file)).cloned().collect();
    assert!(files.len() >= SOME.len(), "{files:?}");
    let ours = play(&suite, &files, "xdp", &[]);
    assert!(passed(&ours) >= 50, "only {} tests passed: were they skipped?", passed(&ours));
    let connections = ours.iter().find(|report| report.file == CONNECTIONS).expect("it is played");
    assert_eq!(connections.count(Verdict::Passed), 10, "{connections:#?}");
    let over_udp = play(&suite, &files, "udp", &AS_NOBODY);
    assert_eq!(passed(&over_udp), passed(&ours), "the link makes no difference");
    if !is_full {
        return;
    }

    let theirs = suite.run_on_rxe(&files, |report| say("rxe", report)).unwrap_or_else(|e| panic!("{e}"));
    let mut less = Vec::new();
    for (our, their) in ours.iter().zip(&theirs) {
        for there in their.outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Passed) {
            let here = our.outcomes.iter().find(|here| here.test == there.test).expect("the same tests on both");
            if here.verdict != Verdict::Passed && !is_explained(&our.file, &here.test) {
                less.push(format!("{}.{}: {}", our.file, here.test, here.why));
            }
        }
    }
    assert!(less.is_empty(), "pass on rxe and not here:\n{}", less.join("\n"));
}
