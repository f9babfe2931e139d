//! `cargo xtask bench`: figures.
use crate::{Failure, Outcome};

pub(crate) fn run(_arguments: &[&str]) -> Outcome {
    Err(Failure::Usage("bench is not there yet".into()))
}
