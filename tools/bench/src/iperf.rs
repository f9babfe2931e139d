//! `iperf3` on both ends: what TCP reaches on the cable, measured by a program that is not ours.

use std::process::Command;

use serde_json::Value;

use crate::Failure;
use crate::ends::play;
use crate::figure::Counts;
use crate::rig::{Rig, Side};

/// What one TCP stream delivers, with all offloads that the cable has.
///
/// # Errors
/// What the client says when it fails, or is not installed.
pub fn tcp(rig: &Rig, seconds: f64) -> Result<Counts, Failure> {
    let address = Rig::end(Side::Receiver).ipv4.to_string();
    // It knows whole seconds.
    let time = seconds.ceil().to_string();
    let command = |side| {
        let mut command = Command::new("iperf3");
        command.arg("--json");
        match side {
            Side::Receiver => command.args(["--server", "--one-off", "--bind", &address]),
            Side::Sender => command.args(["--client", &address, "--time", &time]),
        };
        command
    };
    counts(&play(rig, command, "unable to connect")?)
}

/// What the server had received.
fn counts(text: &str) -> Result<Counts, Failure> {
    let result: Value = serde_json::from_str(text).map_err(|e| format!("iperf3 said no JSON ({e}): {text}"))?;
    let sum = &result["end"]["sum_received"];
    let (bytes, seconds) = (sum["bytes"].as_u64(), sum["seconds"].as_f64());
    let (bytes, seconds) = bytes.zip(seconds).ok_or_else(|| format!("iperf3 said no sum_received: {text}"))?;
    let segment = result["start"]["tcp_mss_default"].as_u64().filter(|bytes| *bytes > 0);
    let segment = segment.ok_or_else(|| format!("iperf3 said no tcp_mss_default: {text}"))?;
    Ok(Counts { bytes, packets: bytes / segment, seconds, ..Counts::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_that_arrived() {
        let text = r#"{"start":{"tcp_mss_default":1000},
            "end":{"sum_sent":{"bytes":9,"seconds":9.0},"sum_received":{"bytes":125000,"seconds":0.5}}}"#;
        let counts = counts(text).unwrap();
        assert_eq!((counts.bytes, counts.packets, counts.seconds), (125_000, 125, 0.5));
        for bad in ["", "{}", r#"{"start":{"tcp_mss_default":0},"end":{"sum_received":{"bytes":1,"seconds":1.0}}}"#] {
            assert!(super::counts(bad).unwrap_err().to_string().starts_with("iperf3 said no"), "{bad}");
        }
    }
}
