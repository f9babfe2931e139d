use uroce::time::Duration;

/// A part of a cache that is handed to a transport at once: a layer, or all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// When, since the beginning.
    pub at: Duration,
    /// Its length, in bytes.
    pub bytes: u64,
}
