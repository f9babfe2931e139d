use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::Failure;
use crate::interrupt::Interrupted;

/// Flags that cannot go together, in words: exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Says on stderr what failed, and with `json` on stdout as an object. Returns the exit status: 2 for usage, 1 for other
/// failures, and that of a signal.
pub fn tell(failure: &Failure, json: bool) -> ExitCode {
    let is_usage = failure.is::<Usage>();
    let word = if is_usage { "error" } else { "uroce" };
    eprintln!("{word}: {failure}");
    if let Some(interrupted) = failure.downcast_ref::<Interrupted>() {
        return ExitCode::from(interrupted.status());
    }
    let (kind, status) = if is_usage { ("usage", 2) } else { ("failure", 1) };
    if json {
        println!("{}", object(kind, status, &failure.to_string()));
    }
    ExitCode::from(status)
}

/// Says what is wrong with the command line, or what was asked for, as clap does; with `--json` among the words also as an
/// object. Then it ends the program.
pub fn usage(error: &clap::Error) -> ! {
    let is_json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    if error.use_stderr() && is_json {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        println!("{}", object("usage", 2, first.trim_start_matches("error: ")));
    }
    error.exit()
}

/// One object: what failed, in words, and the exit status that goes with it.
pub fn object(kind: &str, status: u8, text: &str) -> Value {
    json!({ "schema": "uroce.error/1", "error": { "kind": kind, "text": text, "exit_status": status } })
}
