//! Why the rig could not do what it was asked.
use std::fmt;
use std::time::Duration;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, RigError>;

/// Why the rig could not do what it was asked.
#[derive(Debug)]
pub enum RigError {
    /// An operation on a file, socket or process of this host failed.
    Io {
        /// What was being done.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A program on this host, or a command in a machine, ended with a status other than 0.
    Command {
        /// The command line.
        command: String,
        /// Its exit status; −1 when a signal ended it.
        status: i32,
        /// What it printed on both outputs.
        output: String,
    },
    /// Something did not happen in time.
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// The end of the machine's console, or what else may explain it.
        log: String,
    },
    /// The verbs agent answered `err`, or something that is no answer to the command.
    Agent {
        /// The command sent.
        command: String,
        /// The answer.
        answer: String,
    },
    /// The host or the image lacks something.
    Missing(String),
}

impl RigError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> RigError {
        let what = what.into();
        move |source| RigError::Io { what, source }
    }

    /// The errno in an agent's `err` answer (`errno=N`), when it has one: how a verbs call is expected to fail.
    pub fn errno(&self) -> Option<i32> {
        match self {
            RigError::Agent { answer, .. } => {
                answer.split_whitespace().find_map(|word| word.strip_prefix("errno=")?.parse().ok())
            }
            _ => None,
        }
    }
}

impl fmt::Display for RigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RigError::Io { what, source } => write!(f, "{what}: {source}"),
            RigError::Command { command, status, output } => {
                write!(f, "`{command}` ended with status {status}:\n{}", output.trim_end())
            }
            RigError::Timeout { what, after, log } => {
                write!(f, "{what}: nothing after {:.0} s; the log ends:\n{}", after.as_secs_f64(), log.trim_end())
            }
            RigError::Agent { command, answer } => write!(f, "verbs agent, `{command}`: {answer}"),
            RigError::Missing(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for RigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RigError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
