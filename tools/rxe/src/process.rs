//! Programs of this host: run to the end, or started so that they cannot outlive this process.
use crate::error::{Result, RigError};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};

type Work = Box<dyn FnOnce() + Send>;

/// Starts `command` so that the kernel kills it (SIGKILL) when this process ends, however it ends.
///
/// The kernel ties a child to the *thread* that made it, so one thread that lives as long as the process makes them all:
/// a test's own thread may end before what it started for others.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(mut command: Command) -> io::Result<Child> {
    static LAUNCHER: OnceLock<Mutex<mpsc::Sender<Work>>> = OnceLock::new();
    let launcher = LAUNCHER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Work>();
        std::thread::Builder::new()
            .name("launcher".into())
            .spawn(move || receiver.into_iter().for_each(|work| work()))
            .expect("a thread can be made");
        Mutex::new(sender)
    });
    let parent = std::process::id();
    // SAFETY: only async-signal-safe calls between fork and exec, and no allocation.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    let (answer, result) = mpsc::channel();
    let work: Work = Box::new(move || {
        let _ = answer.send(command.spawn());
    });
    launcher.lock().expect("no panic under this lock").send(work).expect("the launcher lives as long as the process");
    result.recv().expect("the launcher answers")
}

/// Runs `command` to its end and returns what it wrote on both outputs (stdout, then stderr).
///
/// # Errors
/// [`RigError::Missing`] when there is no such program, [`RigError::Command`] when it fails.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| not_started(command, e))?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let status = output.status.code().unwrap_or(-1);
        return Err(RigError::Command { command: line(command), status, output: text });
    }
    Ok(text)
}

/// Runs `program` with `arguments`; see [`run`].
///
/// # Errors
/// As [`run`].
pub fn run_args(program: &str, arguments: &[&str]) -> Result<String> {
    run(Command::new(program).args(arguments))
}

pub(crate) fn not_started(command: &Command, error: io::Error) -> RigError {
    if error.kind() == io::ErrorKind::NotFound {
        let program = command.get_program().to_string_lossy();
        return RigError::Missing(format!("{program} is not on this host: run `cargo xtask setup`"));
    }
    RigError::Io { what: format!("starting `{}`", line(command)), source: error }
}

fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("30");
            spawn(command).unwrap()
        })
        .join()
        .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "killed with the thread that asked");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run_args("no-such-program-here", &[]).unwrap_err().to_string();
        assert!(error.contains("no-such-program-here"), "{error}");
    }
}
