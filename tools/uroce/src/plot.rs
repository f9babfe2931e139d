//! `uroce plot`: what `--interval` told, as a picture.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::Failure;

mod look;
mod panels;

use look::Look;

const EXAMPLES: &str = "\
Examples:
  uroce perf write-bw -D 10 --interval 0.1 --json 10.0.0.2 | uroce plot - write.svg
  uroce run --interval 0.1 ib_write_bw -D 10 10.0.0.2 2> told; uroce plot told write.svg";

/// Draw what `--interval` told of a program: its rates, window, round trip, and what was retransmitted, marked, dropped or not ready.
///
/// Lines are taken with and without --json; all other lines are skipped.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What the program printed; `-` is standard input.
    #[arg(value_name = "FILE")]
    told: PathBuf,
    /// Where the picture goes (SVG).
    #[arg(value_name = "PICTURE")]
    picture: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let name = arguments.told.display();
    let text = match arguments.told.as_os_str() == "-" {
        true => {
            let mut text = Vec::new();
            std::io::stdin().read_to_end(&mut text).map(|_| text)
        }
        false => std::fs::read(&arguments.told),
    };
    let text = text.map_err(|error| format!("{name}: {error}"))?;
    let looks = Look::all(&String::from_utf8_lossy(&text)).map_err(|error| format!("{name}: {error}"))?;
    panels::draw(&arguments.picture, &looks)?;
    Ok(ExitCode::SUCCESS)
}
