//! `uroce completions`: what a shell completes after `uroce`.

use std::io;
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::aot::{Bash, Fish, Zsh};

use crate::Failure;

/// Print the completions of a shell, for its folder of completions
#[derive(Args)]
pub struct Arguments {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The program, as it is called.
const NAME: &str = "uroce";

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let whole = crate::Arguments::command();
    // Those that are hidden would be completed, too.
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = clap::Command::new(NAME).version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    let mut out = io::stdout();
    match arguments.shell {
        Shell::Bash => clap_complete::generate(Bash, &mut command, NAME, &mut out),
        Shell::Zsh => clap_complete::generate(Zsh, &mut command, NAME, &mut out),
        Shell::Fish => clap_complete::generate(Fish, &mut command, NAME, &mut out),
    }
    Ok(ExitCode::SUCCESS)
}
