//! Who reads a subcommand's output and closes the pipe has seen enough (`uroce devices | head -1`): no subcommand panics.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::programs::{UROCE, uroce, wait_for_listener};
use rxe_rig::{Netns, VethPair, process};

/// Runs `uroce` with a standard output that nobody reads: what it prints would fit into the pipe of a reader that is slow to
/// close, so it is closed before the program starts.
fn unread(namespace: &Netns, arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = namespace.command(UROCE);
    command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    process::spawn(command).unwrap().wait_with_output().unwrap()
}

/// It was ended by the signal that says so, without a backtrace.
fn ended_quietly(arguments: &[&str], output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{arguments:?}: {output:?}");
}

/// All subcommands, as the help lists them.
fn subcommands() -> Vec<String> {
    let help = Command::new(UROCE).arg("--help").output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    let commands = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Descriptions that go on in the next line are further to the right.
    let commands = commands.filter(|line| !line.starts_with("   "));
    commands.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn no_subcommand_panics_when_nobody_reads() {
    let pair = VethPair::create(1500).unwrap();
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/rxe-6.1");
    let capture = captures.join("rxe-rc-write.pcap").display().to_string();
    let capture = capture.as_str();
    let host = VethPair::A.ipv4.to_string();
    let host = host.as_str();
    let mut tried = Vec::new();
    for arguments in [
        &["devices"][..],
        &["devices", "--json"],
        &["decode", capture],
        &["decode", "--json", capture],
        &["replay", capture],
        &["replay", "--json", capture],
        &["sim", "chaos", "--seeds", "1"],
        &["sim", "chaos", "--seeds", "1", "--json"],
        &["sim", "loss-rtt", "--only", "op=write,loss=0.01,rtt_ms=1"],
        &["sim", "tokens", "--tokens", "200", "--only", "line_bps=300e6,rtt_ms=30,flows=1,loss=0"],
        &["sim", "batches", "--batches", "20", "--only", "op=write,messages=16,rtt_ms=10,loss=1%,gap_ms=0"],
        &["sim", "deadline", "--chunks", "20", "--only", "rtt_ms=10,loss=1%,repair_per_mille=60"],
        &["sim", "kv", "--only", "row=path,transport=uroce-go-back-n,rtt_ms=2,line_bps=1e9"],
        &["sim", "stream", "--only", "rtt_ms=10,model=Nemotron-Nano-9B,chunk=chosen"],
        &["sim", "layers", "--only", "element=float16,deadline_ms=160"],
        &["completions", "bash"],
        &["help"],
    ] {
        tried.push(arguments[0]);
        ended_quietly(arguments, &unread(&pair.b, arguments));
    }
    // The client of each: the server's end is its own affair, and is no success.
    for arguments in
        [&["pingpong", "-n", "10"][..], &["pingpong", "-n", "10", "--json"], &["perf", "write-bw", "-n", "5"]]
    {
        tried.push(arguments[0]);
        let server = uroce(&pair.a, arguments);
        wait_for_listener(&pair.a, 18515);
        for arguments in [&["stat"][..], &["stat", "--json"], &["top", "--interval", "0.1"]] {
            tried.push(arguments[0]);
            ended_quietly(arguments, &unread(&pair.a, arguments));
        }
        let client = [arguments, &["--patience", "5", host]].concat();
        ended_quietly(&client, &unread(&pair.b, &client));
        server.stop();
    }
    // It prints nothing.
    tried.push("plot");
    // The program's own output, and its own end.
    for arguments in [["run", "--", "sh", "-c", "echo"], ["lab", "--", "sh", "-c", "echo"]] {
        tried.push(arguments[0]);
        let output = unread(&pair.b, &arguments);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
    }
    for subcommand in subcommands() {
        assert!(tried.contains(&subcommand.as_str()), "{subcommand} is not tried");
    }
}
