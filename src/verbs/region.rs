use std::sync::Arc;

use crate::engine::Engine;
use crate::memory::{AccessError, HostMemory};
use crate::transport::{Remote, Sge};
use crate::wire::Key;

/// Registered memory of its own. Read and written through copies, since peers may write at any time.
///
/// The registration ends when it is dropped, and with it all access by peers; the pages go afterwards.
#[derive(Debug)]
pub struct MemoryRegion {
    engine: Arc<Engine>,
    memory: Arc<HostMemory>,
    key: Key,
}

impl MemoryRegion {
    pub(super) fn new(engine: Arc<Engine>, memory: Arc<HostMemory>, key: Key) -> MemoryRegion {
        MemoryRegion { engine, memory, key }
    }

    /// L_Key and R_Key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The address of the first byte, as work requests and peers name it.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The memory itself, for copying in and out.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// An entry for work requests: `length` bytes at `offset`. It is checked when it is used.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { address: self.address().wrapping_add(offset as u64), length: length as u32, lkey: self.key }
    }

    /// What a peer needs to know to reach the byte at `offset`.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { address: self.address().wrapping_add(offset as u64), key: self.key }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // A region with windows bound stays registered, and its memory alive with it, until the context goes.
        let _ = self.engine.with(|core, _| core.endpoint.memory().deregister(self.key));
    }
}

/// A memory window: bound by [`SendOperation::BindWindow`](crate::transport::SendOperation::BindWindow).
#[derive(Debug)]
pub struct MemoryWindow {
    engine: Arc<Engine>,
    key: Key,
}

impl MemoryWindow {
    pub(super) fn new(engine: Arc<Engine>, key: Key) -> MemoryWindow {
        MemoryWindow { engine, key }
    }

    /// The key it was made with. Binding gives it a new one, with the same upper 24 bits.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The next key to bind it with.
    pub fn next_key(&mut self) -> Key {
        self.key = Key(self.key.0 & !0xff | (self.key.0.wrapping_add(1) & 0xff));
        self.key
    }

    /// Ends it, by the key it has now.
    ///
    /// # Errors
    /// [`AccessError`] when it has another.
    pub fn destroy(self, current: Key) -> Result<(), AccessError> {
        self.engine.with(|core, _| core.endpoint.memory().deregister(current))
    }
}
