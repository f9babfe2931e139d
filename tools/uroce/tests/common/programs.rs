//! Programs at both ends of a conversation.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_rig::{netns::Netns, process};

/// The `uroce` program that cargo built.
pub const UROCE: &str = env!("CARGO_BIN_EXE_uroce");

/// The library of verbs of the same build.
pub fn library() -> PathBuf {
    Path::new(UROCE).with_file_name("deps/liburoce_verbs.so")
}

/// No program here takes longer, even against a machine under emulation.
pub const LIMIT: Duration = Duration::from_secs(180);

/// What `timeout` in the machine ends with.
pub const STARVED: i32 = 124;

/// A program that runs, and what it prints.
pub struct Running {
    line: String,
    child: Child,
    stdout: Printed<ChildStdout>,
    stderr: Printed<ChildStderr>,
}

/// What a program prints on one of its pipes.
struct Printed<P> {
    pipe: P,
    /// What was read so far.
    text: String,
}

/// What a program printed, and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Starts `uroce` in a namespace.
pub fn uroce(namespace: &Netns, arguments: &[&str]) -> Running {
    start(namespace.command(UROCE), arguments)
}

/// What makes a program run as the user nobody: no capabilities, and none to be had.
pub const AS_NOBODY: [&str; 8] =
    ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"];

/// Starts an unmodified program with `uroce run` in a namespace: its words, and before them options of ours.
pub fn run(namespace: &Netns, line: &str) -> Running {
    uroce(namespace, &run_words(line))
}

/// The same as nobody.
pub fn run_as_nobody(namespace: &Netns, line: &str) -> Running {
    uroce_as_nobody(namespace, &run_words(line))
}

fn run_words(line: &str) -> Vec<&str> {
    std::iter::once("run").chain(line.split_whitespace()).collect()
}

/// Starts `uroce` in a namespace as nobody.
pub fn uroce_as_nobody(namespace: &Netns, arguments: &[&str]) -> Running {
    let [program, user @ ..] = AS_NOBODY;
    start(namespace.command(program), &[&user[..], &[UROCE], arguments].concat())
}

/// Starts a program; it dies with the test.
pub fn start(mut command: Command, arguments: &[&str]) -> Running {
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let line = format!("uroce {}", arguments.join(" "));
    let mut child = process::spawn(command).unwrap_or_else(|e| panic!("{line}: {e}"));
    let (stdout, stderr) = (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
    Running { line, child, stdout: Printed::on(stdout), stderr: Printed::on(stderr) }
}

/// The words of a Python script of `tests/programs`, in an environment that `cargo xtask setup` has made. Its home is one that
/// nobody may look into.
pub fn python(environment: &str, script: &str) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory");
    let python = target.join(environment).join("bin/python3");
    assert!(python.exists(), "{} is missing: cargo xtask setup", python.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(script);
    format!("env HOME=/ PYTHONDONTWRITEBYTECODE=1 {} {}", python.display(), script.display())
}

/// A counter that `uroce run --trace` printed at a program's end; `None` when it is not there.
pub fn counted(stderr: &str, name: &str) -> Option<u64> {
    let (_, rest) = stderr.split_once(&format!("{name} "))?;
    Some(rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().unwrap())
}

/// Packets that a program sent, by what `uroce run --trace` printed at its end.
#[track_caller]
pub fn sent_packets(stderr: &str) -> u64 {
    counted(stderr, "sent_pkts").unwrap_or_else(|| panic!("no counters: {stderr}"))
}

/// Waits until somebody in the namespace listens on a TCP port.
pub fn wait_for_listener(namespace: &Netns, port: u16) {
    let end = Instant::now() + LIMIT;
    while !has_listener(namespace, port) {
        assert!(Instant::now() < end, "nobody listens on TCP port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether somebody in the namespace listens on a TCP port.
fn has_listener(namespace: &Netns, port: u16) -> bool {
    let wanted = format!(":{port:04X} ");
    // Local address, remote address, state 0A is LISTEN.
    namespace.run(|| {
        ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"].iter().any(|file| {
            let table = std::fs::read_to_string(file).unwrap_or_default();
            table.lines().any(|line| line.contains(&wanted) && line.contains(" 0A "))
        })
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or nobody waits for it any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it listens on a TCP port of its namespace.
    ///
    /// # Errors
    /// When it has ended, or `limit` is over; in words.
    pub fn listens(&mut self, namespace: &Netns, port: u16, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !has_listener(namespace, port) {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                let texts = self.texts();
                return Err(format!("{} ended ({status}) and did not serve: {texts:?}", self.line));
            }
            if Instant::now() > end {
                return Err(format!("{} does not listen on TCP port {port}", self.line));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits until it has printed one of `words` on stderr; what it prints afterwards is kept, too.
    ///
    /// # Errors
    /// When it has ended, or `limit` is over; what it had printed.
    pub fn prints(&mut self, words: &[&str], limit: Duration) -> Result<(), String> {
        let has_one = |text: &str| words.iter().any(|words| text.contains(words));
        let printed = self.stderr.is_enough(has_one, limit);
        printed.map_err(|text| format!("{} did not print {words:?}, but {text}", self.line))
    }

    /// Waits until it has printed `words` so many times on stdout.
    ///
    /// # Errors
    /// As [`prints`](Running::prints).
    pub fn has_results(&mut self, times: usize, words: &str, limit: Duration) -> Result<(), String> {
        let printed = self.stdout.is_enough(|text| text.matches(words).count() >= times, limit);
        printed.map_err(|text| format!("{} did not print {words:?} {times} times, but {text}", self.line))
    }

    /// Waits for its end.
    pub fn end(self) -> Ended {
        self.end_within(LIMIT).unwrap_or_else(|text| panic!("{text}"))
    }

    /// Waits for its end, and ends it after `limit`.
    ///
    /// # Errors
    /// When it had to be ended; what it had printed.
    pub fn end_within(mut self, limit: Duration) -> Result<Ended, String> {
        let end = Instant::now() + limit;
        let Running { child, stdout, stderr, .. } = &mut self;
        let (status, stdout, stderr) = std::thread::scope(|scope| {
            // It may print more than the pipes hold.
            let readers = (scope.spawn(|| stdout.all()), scope.spawn(|| stderr.all()));
            let status = loop {
                match child.try_wait().expect("a child can be waited for") {
                    Some(status) => break Some(status),
                    None if Instant::now() > end => break None,
                    None => std::thread::sleep(Duration::from_millis(10)),
                }
            };
            let _ = child.kill();
            let _ = child.wait();
            (status, readers.0.join().unwrap(), readers.1.join().unwrap())
        });
        let line = std::mem::take(&mut self.line);
        match status {
            Some(status) => Ok(Ended { line, status, stdout, stderr }),
            None => Err(format!("{line} did not end in {} s: {:?}", limit.as_secs(), (stdout, stderr))),
        }
    }

    /// Ends it, and tells what it printed until then.
    pub fn stop(mut self) -> (String, String) {
        let _ = self.child.kill();
        self.texts()
    }

    fn texts(&mut self) -> (String, String) {
        (self.stdout.all(), self.stderr.all())
    }
}

impl<P: Read + AsFd> Printed<P> {
    fn on(pipe: P) -> Printed<P> {
        Printed { pipe, text: String::new() }
    }

    /// Reads until the text `is_it`; returns the text when that is not so at its end, or when `limit` is over.
    fn is_enough(&mut self, is_it: impl Fn(&str) -> bool, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !is_it(&self.text) {
            let mut polled = [PollFd::new(&self.pipe, PollFlags::IN)];
            let wait = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
            poll(&mut polled, wait.as_ref()).map_err(|error| error.to_string())?;
            let mut some = [0; 4096];
            let count = match polled[0].revents().is_empty() {
                true => 0,
                false => self.pipe.read(&mut some).map_err(|error| error.to_string())?,
            };
            if count == 0 {
                return Err(self.text.clone());
            }
            self.text.push_str(&String::from_utf8_lossy(&some[..count]));
        }
        Ok(())
    }

    /// Reads to the end; returns all of it.
    fn all(&mut self) -> String {
        let _ = self.pipe.read_to_string(&mut self.text);
        std::mem::take(&mut self.text)
    }
}

impl Ended {
    /// It ended with success and said nothing of bad data.
    #[track_caller]
    pub fn succeeded(self) -> Ended {
        assert!(self.check().is_ok(), "{self:#?}");
        self
    }

    /// Whether it ended with success and said nothing of bad data; if not, all of it in words.
    pub fn check(&self) -> Result<(), String> {
        match self.status.success() && !self.stdout.contains("invalid data") {
            true => Ok(()),
            false => Err(format!("{self:?}")),
        }
    }

    /// It ended with `status` and one line on stderr, beside the one that says what was opened, that contains all of `words`.
    #[track_caller]
    pub fn failed(self, status: i32, words: &[&str]) {
        assert_eq!(self.status.code(), Some(status), "{self:#?}");
        let lines = self.stderr.lines().filter(|line| !line.contains(", GID "));
        let why: Vec<&str> = lines.collect();
        assert!(status == 2 || why.len() == 1, "not one line: {self:#?}");
        for word in words {
            assert!(why.join("\n").contains(word), "no {word:?}: {self:#?}");
        }
    }
}
