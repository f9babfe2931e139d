//! What the stack tells while it runs is on stderr for who asks by `RUST_LOG`, and for nobody else.

use std::process::{Command, Output};

/// Networks that lose, reorder and damage packets, in virtual time: all that is told happens there.
fn chaos(filter: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uroce"));
    command.args(["sim", "chaos", "--seeds", "40"]).env_remove("RUST_LOG").env("NO_COLOR", "1");
    let output = command.envs(filter.map(|filter| ("RUST_LOG", filter))).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn states_refusals_retries_and_paths_are_told_to_who_asks() {
    let told = String::from_utf8(chaos(Some("uroce=debug")).stderr).unwrap();
    for words in [
        "modified qpn=0x",
        "frame refused why=bad_icrc frame=",
        "packet refused qpn=0x",
        "NAK sent: sequence error qpn=0x",
        "NAK received qpn=0x",
        "retry qpn=0x",
        "path dark",
        "path good qpn=0x",
    ] {
        assert!(told.contains(words), "nothing of `{words}` in {} lines", told.lines().count());
    }
    let warned = String::from_utf8(chaos(Some("uroce=warn")).stderr).unwrap();
    assert!(!warned.contains(" DEBUG "), "debug lines at level warn");
    assert!(!String::from_utf8_lossy(&chaos(None).stderr).contains("qpn="), "nobody asked");
}
