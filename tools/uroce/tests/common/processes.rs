//! Processes in a namespace, and their ends.

#![allow(clippy::disallowed_methods, reason = "processes on the wall clock")]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rxe_rig::Netns;

use super::programs::{Ended, Running};

/// Processes whose numbers the kernel tells in the namespace, by their names.
pub fn processes(namespace: &Netns, name: &str) -> Vec<u32> {
    let network = |process: PathBuf| fs::read_link(process.join("ns/net"));
    let own = namespace.run(|| network("/proc/thread-self".into())).unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_it = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|text| text.trim_end() == name)
            && network(process.clone()).is_ok_and(|its| its == own)
    };
    all.filter(is_it).filter_map(|process| process.file_name()?.to_str()?.parse().ok()).collect()
}

/// The program that `uroce run` runs.
#[track_caller]
pub fn program_of(run: &Running) -> u32 {
    begun_by(run).unwrap_or_else(|| panic!("{} has not one child", run.id()))
}

/// The same; `None` before it has begun, and when it has ended.
pub fn begun_by(run: &Running) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).ok()?;
    children.trim().parse().ok()
}

pub fn kill(process: u32) {
    signal(process, Signal::KILL);
}

pub fn signal(process: u32, signal: Signal) {
    let process = rustix::process::Pid::from_raw(process as i32).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

/// What is left of RoCE in a namespace: sockets on port 4791, and names of ours.
pub fn left(namespace: &Netns) -> Vec<String> {
    namespace.run(|| {
        let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        let udp = ["udp", "udp6"].map(read).join("\n");
        let ours = |line: &&str| line.contains(":12B7 ") || line.contains("@uroce");
        (udp + "\n" + &read("unix")).lines().filter(ours).map(str::to_owned).collect()
    })
}

/// KiB of memory of a process.
pub fn memory_kib(process: u32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status.split_once("VmRSS:").unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
}

/// What a program has printed of itself early and at its end, by tests/programs/report.h: KiB of memory, descriptors and threads.
pub fn reports(ended: &Ended) -> [[i64; 3]; 2] {
    let report = |line: &str| -> [i64; 3] {
        let numbers: Vec<i64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    };
    let all: Vec<[i64; 3]> = ended.stdout.lines().map(report).collect();
    all.try_into().unwrap_or_else(|all| panic!("two reports, not {all:?}: {ended:#?}"))
}

/// Waits until nothing is left of RoCE in a namespace, at most for `limit`.
#[track_caller]
pub fn wait_until_nothing_is_left(namespace: &Netns, limit: Duration) {
    wait_until(|| format!("left: {:?}", left(namespace)), limit, || left(namespace).is_empty());
}

/// Waits until something is so, at most for `limit`; else it fails with `why_not`.
#[track_caller]
pub fn wait_until(why_not: impl Fn() -> String, limit: Duration, is_so: impl Fn() -> bool) {
    let end = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < end, "{}", why_not());
        std::thread::sleep(Duration::from_millis(10));
    }
}
