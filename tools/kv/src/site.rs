use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rxe_rig::process;
use serde_json::Value;

/// A program of a site, and the events that it prints. It is ended when nobody waits for it any more.
pub(crate) struct Site {
    child: Child,
    events: Receiver<Value>,
    stderr: Option<JoinHandle<String>>,
}

impl Site {
    /// Starts it.
    pub fn start(mut command: Command) -> Result<Site, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process::spawn(command).map_err(|error| format!("cannot start a site: {error}"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (sender, events) = channel();
        std::thread::spawn(move || {
            let lines = stdout.map(BufReader::new).into_iter().flat_map(BufRead::lines);
            // The engines print lines of their own.
            let objects = lines.map_while(Result::ok).filter_map(|line| serde_json::from_str::<Value>(&line).ok());
            objects.take_while(|event| sender.send(event.clone()).is_ok()).for_each(drop);
        });
        let stderr = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.map(|mut pipe| pipe.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Site { child, events, stderr: Some(stderr) })
    }

    /// Its next event; `None` when it ended before it printed one.
    pub fn next(&self, end: Instant) -> Result<Option<Value>, String> {
        match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err("the site says nothing".to_owned()),
        }
    }

    /// Tells it that it may end.
    pub fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end, which is near: why it failed, when it did.
    pub fn finish(mut self) -> Result<String, String> {
        let end = Instant::now() + Duration::from_secs(5);
        let status = loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break Some(status),
                None if Instant::now() > end => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let _ = self.child.kill();
        let text = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        match status {
            Some(status) if status.success() => Ok(text),
            Some(status) => Err(format!("a site ended with {status}: {}", last_lines(&text))),
            None => Err(format!("a site did not end: {}", last_lines(&text))),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}
