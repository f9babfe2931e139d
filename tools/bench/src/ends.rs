//! Programs of others on both ends of the cable: a server, and a client that prints what it measured.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::Failure;
use crate::rig::{Rig, Side};

/// How often the client looks for its server, and how long it waits in between.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Runs what `command` makes of a side on both ends; returns what the client printed. A client that says `unready` came before its
/// server listened.
///
/// # Errors
/// What the client says when it fails.
pub fn play(rig: &Rig, command: impl Fn(Side) -> Command + Sync, unready: &str) -> Result<String, Failure> {
    // It says what it measured, too, and nobody reads it.
    let mut server = Ended(start(rig, Side::Receiver, &command, Stdio::null)?);
    for _ in 0..ATTEMPTS {
        std::thread::sleep(PAUSE);
        let client = start(rig, Side::Sender, &command, Stdio::piped)?;
        let Output { status, stdout, stderr } = client.wait_with_output()?;
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if status.success() {
            server.0.wait()?;
            return Ok(out);
        }
        if !format!("{out}{err}").contains(unready) {
            return Err(format!("{:?}: {err}{out}", command(Side::Sender)).into());
        }
    }
    Err(format!("{:?}: its server never listened", command(Side::Sender)).into())
}

fn start(
    rig: &Rig,
    side: Side,
    command: &(impl Fn(Side) -> Command + Sync),
    output: fn() -> Stdio,
) -> Result<Child, Failure> {
    rig.on(side, || {
        let mut command = command(side);
        command.stdin(Stdio::null()).stdout(output()).stderr(output());
        command.spawn().map_err(|e| format!("{command:?}: {e}: `cargo xtask bench` brings it").into())
    })
}

/// A server, which does not outlive a client that failed.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
