//! `uroce man`: the manual pages, which packages take along (`cargo xtask dist`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};

use crate::Failure;

/// Write the manual pages, one a command, into a folder
#[derive(Args)]
#[command(hide = true)]
pub struct Arguments {
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = &arguments.folder;
    clap_mangen::generate_to(crate::Arguments::command(), folder)
        .map_err(|error| format!("cannot write manual pages into {}: {error}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
