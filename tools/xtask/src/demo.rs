//! `cargo xtask demo`: two uroce peers in two namespaces over AF_XDP on a veth, a thousand pingpongs, and a capture that
//! tshark, scapy and our own decoder are asked about.
use crate::{Failure, Outcome, program, setup};
use rxe_rig::{VethPair, netns::Netns, process};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use uroce_verify::{Tools, Verdict, verify};

/// Carries path MTU 4096, so that messages take one frame and AF_XDP multi-buffer is shown too.
const INTERFACE_MTU: u16 = 4500;
const PORT: u16 = 18515;
/// Messages each way.
const ITERATIONS: usize = 1000;

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    if let Some(other) = arguments.first() {
        return Err(Failure::Usage(format!("demo takes no argument, not {other}")));
    }
    setup::packages()?;
    setup::scapy()?;
    let uroce = build()?;
    let directory = setup::target_directory().join("demo");
    std::fs::create_dir_all(&directory).map_err(|e| Failure::Failed(format!("{}: {e}", directory.display())))?;
    let capture = directory.join("demo.pcap");

    eprintln!("demo: two namespaces with a veth cable, MTU {INTERFACE_MTU}");
    let pair = VethPair::create(INTERFACE_MTU)?;
    let (server, client) = play(&uroce, &pair, &capture)?;
    drop(pair);

    let round_trip = &client["round_trip_usec"];
    let (median, tail) = (round_trip["p50"].as_f64().unwrap_or(0.0), round_trip["p99"].as_f64().unwrap_or(0.0));
    println!(
        "{ITERATIONS} pingpongs of {} bytes over {}: round trip median {median:.1} µs, 99 % {tail:.1} µs",
        client["size"], client["link_mode"]
    );
    let verdict = examine(&uroce, &capture)?;
    let frames = |direction: &str| server["counters"][direction].as_u64().unwrap_or(0);
    let (received, sent) = (frames("rx_frames"), frames("tx_frames"));
    let result = json!({
        "link_mode": server["link_mode"],
        "xsk_rx_frames": received,
        "xsk_tx_frames": sent,
        "iterations": ITERATIONS,
        "size": client["size"],
        "round_trip_usec": client["round_trip_usec"],
        "usec_per_iteration": client["usec_per_iteration"],
        "captured_packets": verdict.packets,
        "fields_compared_with_tshark": verdict.fields,
        "malformed_by_tshark": verdict.malformed,
        "icrc_ok": verdict.icrc_ok,
        "differences": verdict.differences,
    });
    let file = directory.join("demo.json");
    std::fs::write(&file, format!("{result}\n")).map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))?;
    judge(&verdict, &server, received, sent)?;
    println!("capture: {}\nresult: {}", capture.display(), file.display());
    println!("demo: success");
    Ok(())
}

/// Builds the command line and returns the program.
fn build() -> Result<PathBuf, Failure> {
    eprintln!("demo: building uroce");
    let status = program::cargo().args(["build", "--release", "--package", "uroce-cli"]).status();
    match status {
        Ok(status) if status.success() => Ok(setup::target_directory().join("release/uroce")),
        Ok(status) => Err(Failure::Failed(format!("cargo build failed: {status}"))),
        Err(e) => Err(Failure::Failed(format!("cannot start cargo: {e}"))),
    }
}

/// Server and client, with a capture on the server's side; what both report.
fn play(uroce: &Path, pair: &VethPair, capture: &Path) -> Result<(Value, Value), Failure> {
    let iterations = ITERATIONS.to_string();
    let common = ["pingpong", "--json", "-c", "-m", "4096", "-n", iterations.as_str()];
    let capture = capture.to_string_lossy();
    let server = start(&pair.a, uroce, &[&common[..], &["--capture", &capture]].concat())?;
    wait_for_listener(&pair.a)?;
    let host = VethPair::A.ipv4.to_string();
    let client = start(&pair.b, uroce, &[&common[..], &[host.as_str()]].concat())?;
    Ok((end(server, "the server")?, end(client, "the client")?))
}

fn start(namespace: &Netns, program: &Path, arguments: &[&str]) -> Result<Child, Failure> {
    let mut command = namespace.command(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    process::spawn(command).map_err(|e| Failure::Failed(format!("cannot start {}: {e}", program.display())))
}

fn end(child: Child, who: &str) -> Result<Value, Failure> {
    let output = child.wait_with_output().map_err(|e| Failure::Failed(format!("{who}: {e}")))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!("{who} failed: {}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| Failure::Failed(format!("{who} printed no JSON: {e}")))
}

fn wait_for_listener(namespace: &Netns) -> Outcome {
    let sought = format!("sport = :{PORT}");
    for _ in 0..500 {
        if !namespace.exec("ss", &["-Hltn", &sought])?.trim().is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Failure::Failed(format!("the server does not listen on TCP port {PORT}")))
}

/// Asks tshark, scapy and ourselves about the capture.
fn examine(uroce: &Path, capture: &Path) -> Result<Verdict, Failure> {
    let tools = Tools::find(uroce.to_path_buf(), &setup::target_directory());
    let verdict = tools.and_then(|tools| verify(&tools, capture)).map_err(|e| Failure::Failed(e.to_string()))?;
    println!(
        "{} packets captured: {} malformed by tshark, {} fields the same as tshark's, {} ICRCs right by uroce and by scapy",
        verdict.packets, verdict.malformed, verdict.fields, verdict.icrc_ok
    );
    Ok(verdict)
}

fn judge(verdict: &Verdict, server: &Value, received: u64, sent: u64) -> Outcome {
    if let Some(first) = verdict.differences.first() {
        return Err(Failure::Failed(format!("{} differences, the first: {first}", verdict.differences.len())));
    }
    if !verdict.is_clean() {
        return Err(Failure::Failed("the capture is not clean".into()));
    }
    // Every message and every acknowledge of the server went through its AF_XDP sockets, and is in the capture.
    let over_xdp = server["link_mode"].as_str().is_some_and(|mode| mode.starts_with("xdp-"));
    if !over_xdp
        || received < ITERATIONS as u64
        || sent < ITERATIONS as u64
        || received + sent != verdict.packets as u64
    {
        return Err(Failure::Failed(format!(
            "{received} frames received and {sent} sent over {}, {} captured, {ITERATIONS} messages each way",
            server["link_mode"], verdict.packets
        )));
    }
    Ok(())
}
