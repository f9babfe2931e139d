use uroce::time::Duration;

use super::wire::{Malformed, Reason};
use super::{CutError, Difference};

/// How an end of a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All parts are whole at the receiver.
    Complete,
    /// It cannot go on. Parts that are whole stay so, and a further connection goes on from there.
    Failed(Failure),
}

/// Why a stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The ends do not have the same stream.
    #[error("the ends do not fit: {0}")]
    Differs(Difference),
    /// The peer does not go on.
    #[error("the peer refuses: {0}")]
    Refused(Reason),
    /// The sender has begun with chunks that cannot be.
    #[error("the peer's chunks cannot be: {0}")]
    Chunks(CutError),
    /// The peer's message is none of a stream.
    #[error("the peer's message is none of a stream: {0}")]
    Malformed(Malformed),
    /// The peer's message comes at a wrong time.
    #[error("the peer's message comes when none is to come: its stream is another one, or has begun already")]
    Unexpected,
    /// A notification names another chunk than the next one.
    #[error("chunk {expected} is the next, and a notification names {got}: something else writes on this queue pair")]
    Chunk {
        /// The number of the next chunk.
        expected: u64,
        /// The number that came.
        got: u64,
    },
    /// A notification is of other bytes than its chunk has.
    #[error("chunk {chunk} has {expected} bytes, and {got} came: something else writes on this queue pair")]
    Length {
        /// The number of the chunk.
        chunk: u64,
        /// Its length in bytes.
        expected: u64,
        /// The bytes that came.
        got: u64,
    },
    /// The peer was silent for long.
    #[error("nothing came from the peer for {0:?}: it has ended, or the path is cut")]
    Silent(Duration),
    /// The program has said that its queue pair carries nothing more.
    #[error("the connection failed: the peer has ended, or the path is cut")]
    Broken,
}
