use crate::wire::Key;

use super::Access;

/// Why a memory window could not be bound (IBTA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The window's key is unknown, or of another protection domain.
    #[error("no window has the key {0}")]
    NoSuchWindow(Key),
    /// The window is bound; it must be invalidated first.
    #[error("the window with key {0} is bound already")]
    Bound(Key),
    /// The region does not exist, is zero-based, or does not allow binding or the window's access.
    #[error("the region with key {0} does not allow this binding")]
    Region(Key),
    /// A type 2 window is invalidated by its key, not by a binding to no bytes (IBTA o10-37.2.40).
    #[error("the window with key {0} is of type 2: it cannot be bound to zero bytes")]
    Empty(Key),
    /// The range does not lie in the region.
    #[error("{len} bytes at {address:#x} do not lie in the region")]
    OutOfBounds {
        /// The address of the first byte of the range.
        address: u64,
        /// Length of the range, in bytes.
        len: u64,
    },
}

/// The types of memory windows (IBTA 10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Type 1: for any queue pair of its domain. It can be bound again, or to no bytes, any number of times.
    One,
    /// Type 2: for the queue pair that bound it, until it is invalidated.
    Two,
}

/// The memory that a window gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// The window, by any of its 256 keys.
    pub window: Key,
    /// The window's new key. Its lower 8 bits count: the upper 24 are the window's.
    pub new_key: Key,
    /// The key of the region that the window gives access to.
    pub region: Key,
    /// The address of the first byte, in the region.
    pub address: u64,
    /// Length of the window, in bytes.
    pub len: u64,
    /// The access that peers get.
    pub access: Access,
}
