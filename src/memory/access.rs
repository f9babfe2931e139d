use crate::wire::Key;

bitflags::bitflags! {
    /// The rights of a region or queue pair; the values of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Local writes: receive buffers, READ and atomic results.
        const LOCAL_WRITE = 1;
        /// RDMA WRITE by the peer.
        const REMOTE_WRITE = 2;
        /// RDMA READ by the peer.
        const REMOTE_READ = 4;
        /// Atomics by the peer.
        const REMOTE_ATOMIC = 8;
        /// Memory windows can be bound to the region.
        const MW_BIND = 16;
        /// The first byte of the region has the address zero, in work requests and for peers.
        const ZERO_BASED = 32;
        /// FLUSH by the peer, for global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// FLUSH by the peer, for persistence. A queue pair can allow it, but no region grants it.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Later WRITEs can become visible before earlier ones.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Why an access was refused. A peer's refused access becomes a NAK, a local one a completion status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No region or window has this key, or it was invalidated or deregistered.
    #[error("no region or window has the key {0}")]
    NoSuchKey(Key),
    /// The key is of another protection domain, or of a window bound to another queue pair.
    #[error("the key {0} belongs to another protection domain or queue pair")]
    Foreign(Key),
    /// The region does not grant the access.
    #[error("the region with key {key} does not allow {wanted:?}")]
    Denied {
        /// The key of the region.
        key: Key,
        /// The access that was requested.
        wanted: Access,
    },
    /// The program has unmapped the region's memory, or made it read-only.
    #[error("the memory of the region with key {0} no longer exists")]
    Vanished(Key),
    /// The bytes do not all lie in the region.
    #[error("{len} bytes at {address:#x} do not lie in the region with key {key}")]
    OutOfBounds {
        /// The key of the region.
        key: Key,
        /// The address of the first requested byte.
        address: u64,
        /// The number of requested bytes.
        len: u64,
    },
}
