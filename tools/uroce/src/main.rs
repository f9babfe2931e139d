//! The `uroce` command line.
fn main() {}
