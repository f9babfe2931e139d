//! `cargo xtask demo`: two peers over AF_XDP.
use crate::{Failure, Outcome};

pub(crate) fn run(_arguments: &[&str]) -> Outcome {
    Err(Failure::Usage("demo is not there yet".into()))
}
