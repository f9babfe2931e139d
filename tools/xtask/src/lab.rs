//! `cargo xtask lab`: two namespaces and a cable to try things in.
use crate::{Failure, Outcome};

pub(crate) fn run(_arguments: &[&str]) -> Outcome {
    Err(Failure::Usage("lab is not there yet".into()))
}
