//! `uroce sim`: what a seed decides is the same in every run.

use std::process::Command;

use crate::common::captures::scratch;

/// Two processes, whose memory is at other addresses, play one seed; every frame is the same, with its time.
#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    let mut services = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let [first, second] = ["a", "b"].map(|run| {
            let file = scratch(&format!("trace-{run}.pcap"));
            let seed = seed.to_string();
            let output = Command::new(env!("CARGO_BIN_EXE_uroce"))
                .args(["sim", "chaos", "--json", "--seeds", "1", "--seed", &seed, "--capture"])
                .arg(&file)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            (output.stdout, std::fs::read(file).unwrap())
        });
        assert!(first.1.len() > 1000, "seed {seed} sends something");
        assert!(first == second, "seed {seed} gave two traces");
        let report: serde_json::Value = serde_json::from_slice(&first.0).unwrap();
        services.extend(report["services"].as_object().unwrap().keys().cloned());
    }
    assert_eq!(Vec::from_iter(services), ["rc", "srq", "uc", "ud"], "these seeds are to be of every service");
}
