//! Every counter that a device has is explained in docs/COUNTERS.md, and nothing is explained there that does not exist.
//!
//! Names come from devices that are open (UDP sockets with a capture and faults) and from the code of those that need privileges.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use uroce::verbs::{Counters, LinkKind, OpenOptions};

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The counters that the document explains.
fn explained() -> BTreeSet<String> {
    let document = read("docs/COUNTERS.md");
    let names = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    names
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()))
        .collect()
}

/// The names between `counters! {` and its end, in the code of a link that cannot be opened here.
fn of_code(file: &str) -> BTreeSet<String> {
    let text = read(file);
    let (_, body) = text.split_once("counters! {").unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let names = body.lines().filter_map(|line| line.trim().strip_suffix(','));
    names.filter(|name| !name.starts_with("//")).map(str::to_owned).collect()
}

#[test]
fn every_counter_is_explained() {
    let capture = std::env::temp_dir().join(format!("uroce-counters-{}.pcap", std::process::id()));
    let mut options = OpenOptions::new();
    options.device = Some("127.0.13.1".to_owned());
    options.link = LinkKind::Udp;
    options.capture = Some(capture.clone());
    options.faults = Some("loss=0.01".parse().unwrap());
    let context = options.open().unwrap();
    let mut known: BTreeSet<String> = context.counters().into_iter().map(|(name, _)| name.to_owned()).collect();
    drop(context);
    fs::remove_file(capture).unwrap();
    known.extend(Counters::default().list().map(|(name, _)| name.to_owned()));
    for file in ["src/link/xdp/link.rs", "src/link/next_hops.rs", "src/cm/counters.rs"] {
        known.extend(of_code(file));
    }
    // Those of the other direction, and of the other interfaces, are explained with the first.
    let stands_for_others = |name: &str| !name.starts_with("fault_rx_");
    let explained = explained();
    let missing: Vec<&String> =
        known.iter().filter(|name| stands_for_others(name) && !explained.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/COUNTERS.md says nothing of {missing:?}");
    let by_hand = ["rx_ring_full", "rx_fill_ring_empty", "tx_invalid_by_kernel", "rails_copied", "rails_lost"];
    let code = ["src/link/xdp/link.rs", "src/link/rails.rs", "src/link/loopback.rs"].map(read).concat();
    let exists = |name: &str| known.contains(name) || code.contains(&format!("\"{name}\""));
    assert!(by_hand.iter().all(|name| explained.contains(*name) && exists(name)));
    let invented: Vec<&String> = explained.iter().filter(|name| !exists(name)).collect();
    assert!(invented.is_empty(), "docs/COUNTERS.md explains what nothing counts: {invented:?}");
}
