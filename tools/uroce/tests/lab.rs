//! `uroce lab`: two hosts without privileges, with and without namespaces; nothing is left of them.

use std::time::Duration;

use crate::common::processes::{wait_until, wait_until_nothing_is_left};
use crate::common::programs::{Ended, uroce, uroce_as_nobody};
use rxe_rig::VethPair;

const LIMIT: Duration = Duration::from_secs(60);

/// A pingpong between both hosts, as the shell's first lines suggest it.
const GAME: &str = "b uroce pingpong -n 50 >&2 & until b ss -ltn | grep -q :18515; do sleep 0.1; done; uroce pingpong -n 50 $B; \
                    status=$?; wait; echo from $A to $B; exit $status";

fn plays(ended: Ended, hosts: &str) -> Ended {
    let ended = ended.succeeded();
    assert!(ended.stdout.contains("50 iters in") && ended.stdout.contains(hosts), "{ended:#?}");
    ended
}

#[test]
fn two_hosts_play_without_privileges_and_vanish() {
    let pair = VethPair::create(1500).unwrap();
    let host = &pair.a;
    let lab = ["lab", "--", "sh", "-c", GAME];
    let ended = plays(uroce_as_nobody(host, &lab).end_within(LIMIT).unwrap(), "from 10.7.0.1 to 10.7.0.2");
    assert!(ended.stderr.contains("a0, udp"), "{ended:#?}");
    plays(uroce(host, &lab).end_within(LIMIT).unwrap(), "from 10.7.0.1 to 10.7.0.2");
    let ended = uroce_as_nobody(host, &["lab", "--loopback", "--", "sh", "-c", GAME]).end_within(LIMIT).unwrap();
    let ended = plays(ended, "from 127.0.0.2 to 127.0.0.3");
    assert!(ended.stderr.contains("two addresses of the loopback"), "{ended:#?}");
    // The command's status is the lab's; what cannot run is named.
    assert_eq!(uroce(host, &["lab", "sh", "-c", "exit 7"]).end().status.code(), Some(7));
    uroce(host, &["lab", "--", "no-such-program"]).end().failed(1, &["cannot run no-such-program"]);
    wait_until_nothing_is_left(host, LIMIT);
    let left = || {
        let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("uroce-lab-")).collect::<Vec<_>>()
    };
    wait_until(|| format!("{:?} is left", left()), LIMIT, || left().is_empty());
}
