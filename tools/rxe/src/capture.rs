//! tcpdump on an interface of a namespace, stopped without losing what it has seen.
use crate::error::{Result, RigError};
use crate::netns::Netns;
use crate::process;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running tcpdump. On the bridge it sees what both sides sent; on an interface with an XDP program it does not see
/// what the program took.
#[derive(Debug)]
pub struct Capture {
    process: Child,
    errors: BufReader<std::process::ChildStderr>,
}

impl Capture {
    /// Starts to write the frames of `interface` in `namespace` that match `filter` (like `udp port 4791`) to `file`, a
    /// pcap. It sees every frame sent after this returns.
    ///
    /// # Errors
    /// [`RigError::Missing`] without tcpdump; [`RigError::Command`] when it refuses the interface, filter or file.
    pub fn start(namespace: &Netns, interface: &str, filter: &str, file: &Path) -> Result<Capture> {
        let mut command = namespace.command("tcpdump");
        // Immediate mode: a frame is in the file when it was seen, not when a buffer is full. -B: 32 MiB of buffer, since
        // this process may wait while the emulated machines have the processors.
        command.args(["-Z", "root", "--immediate-mode", "-B", "32768", "-s", "0", "-U", "-n", "-i", interface, "-w"]);
        command.arg(file).arg(filter).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = process::spawn(command).map_err(|e| process::not_started(&Command::new("tcpdump"), e))?;
        let mut errors = BufReader::new(process.stderr.take().expect("piped"));
        let mut said = String::new();
        // "tcpdump: listening on br0, …"
        while errors.read_line(&mut said).is_ok_and(|length| length > 0) && !said.contains("listening on") {}
        if !said.contains("listening on") {
            let status = process.wait().ok().and_then(|status| status.code()).unwrap_or(-1);
            return Err(RigError::Command {
                command: format!("tcpdump -i {interface} {filter}"),
                status,
                output: said,
            });
        }
        Ok(Capture { process, errors })
    }

    /// Stops it and returns its own words (frames captured, dropped).
    ///
    /// # Errors
    /// [`RigError::Io`] when it cannot be waited for.
    pub fn stop(mut self) -> Result<String> {
        // Frames on their way through the bridge.
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: our own child, not yet waited for, so the pid is still its.
        unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGINT) };
        let mut said = String::new();
        let _ = self.errors.read_to_string(&mut said);
        self.process.wait().map_err(RigError::io("waiting for tcpdump"))?;
        Ok(said)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
