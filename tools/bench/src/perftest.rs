//! Unmodified programs of perftest on both ends, by `uroce run`: what reaches those who change nothing.

use std::process::Command;

use crate::Failure;
use crate::ends;
use crate::figure::Counts;
use crate::rig::{Rig, Side};

/// Round trips of a latency test: those of a tenth of a second or so.
const ROUND_TRIPS: &str = "20000";

/// Bulk messages of `bytes`, and the seconds that they are sent for: `program` is ib_write_bw, ib_read_bw or ib_send_bw.
///
/// # Errors
/// What either end says when it fails.
pub fn bulk(rig: &Rig, program: &str, bytes: usize, mtu: usize, seconds: f64) -> Result<Counts, Failure> {
    // As many bytes outstanding as in the figures without perftest.
    let depth = (super::verbs::REGION_BYTES / bytes).max(1).to_string();
    // It counts whole seconds.
    let seconds = seconds.ceil();
    let (bytes, mtu_text, time) = (bytes.to_string(), mtu.to_string(), seconds.to_string());
    let words = ["-s", &bytes, "-m", &mtu_text, "-t", &depth, "-D", &time, "--report_gbits", "-F"];
    let text = play(rig, program, &words)?;
    let last = || {
        let row = text.lines().rfind(|line| line.split_whitespace().next() == Some(&bytes))?;
        row.split_whitespace().nth(3)?.parse::<f64>().ok()
    };
    let gigabits = last().ok_or_else(|| format!("{program} said no rate: {text}"))?;
    let sent = gigabits * 1e9 / 8.0 * seconds;
    Ok(Counts { bytes: sent as u64, packets: (sent / mtu as f64) as u64, seconds, ..Counts::default() })
}

/// Round trips of 64 bytes: `program` is ib_send_lat or ib_write_lat.
///
/// # Errors
/// What either end says when it fails.
pub fn round_trips(rig: &Rig, program: &str) -> Result<Counts, Failure> {
    let text = play(rig, program, &["-s", "64", "-n", ROUND_TRIPS, "-U", "-F"])?;
    // «number, microseconds one way», a line each.
    let one_way = |line: &str| line.split_once(',')?.1.trim().parse::<f64>().ok();
    let round_trips_ns: Vec<u32> = text.lines().filter_map(one_way).map(|us| (2000.0 * us) as u32).collect();
    let packets = 2 * round_trips_ns.len() as u64;
    let seconds = round_trips_ns.iter().map(|ns| f64::from(*ns) / 1e9).sum();
    Ok(Counts { bytes: 64 * packets, packets, seconds, round_trips_ns })
}

/// Runs `program` on both ends; returns what the client printed.
fn play(rig: &Rig, program: &str, words: &[&str]) -> Result<String, Failure> {
    let address = Rig::end(Side::Receiver).ipv4.to_string();
    let command = |side| {
        let mut command = Command::new(rig.arbiter());
        command.args(["run", "--dev", rig.interface(side), program]).args(words);
        if side == Side::Sender {
            command.arg(&address);
        }
        command
    };
    ends::play(rig, command, "Couldn't connect")
}
