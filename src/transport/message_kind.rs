use crate::wire::Reth;

/// What a message does. Receive requests have numbers that do not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// It takes that receive request.
    Send {
        number: u64,
    },
    /// Messages before it take all receive requests before that.
    Write {
        reth: Reth,
        number: u64,
    },
    Read,
    Atomic,
}
