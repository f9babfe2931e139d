//! The kernel's rxe knows no LIDs either: qperf is refused by it as it is by uroce without `--lids`.

use std::time::Duration;

use crate::common::qperf::{REFUSALS, results};
use rxe_rig::{Lab, LabOptions};

/// Carries its path MTU of 2048.
const MTU: u16 = 4500;

/// The kernel's rxe says the same, and lets only those through that the connection manager connects.
#[test]
fn rxe_refuses_it_in_the_same_words() {
    let lab = Lab::start(&LabOptions { mtu: MTU, ..LabOptions::default() }).unwrap_or_else(|e| panic!("no lab: {e}"));
    let vm = lab.vm(0);
    let limit = Duration::from_secs(180);
    let server = vm.spawn("qperf", limit).unwrap();
    vm.check("until ss -ltn | grep -q :19765; do sleep 0.1; done", limit).unwrap();
    let ask = |words: &str| vm.run(&format!("qperf {} -t 1 {words}", vm.ipv4()), limit).unwrap();
    for (test, refusal) in REFUSALS {
        let output = ask(test);
        let said = format!("{}{}", output.text, server.text());
        eprintln!("rxe: {test}: {said}");
        assert!(output.status != 0 && said.contains(refusal), "{said}");
    }
    let output = ask("-cm1 rc_lat");
    eprintln!("rxe: {}", output.text);
    assert!(output.status == 0 && results(&output.text).len() == 1, "{output:?}");
    server.kill().unwrap();
}
