use std::sync::Arc;

use crate::engine::Engine;
use crate::memory::{Access, AccessError, HostMemory};
use crate::transport::{Remote, Sge};
use crate::wire::Key;

use super::ProtectionDomain;

/// Registered memory of its own. Read and written through copies, since peers may write at any time.
///
/// The registration ends when it is dropped, and with it all access by peers; the pages go afterwards.
#[derive(Debug)]
pub struct MemoryRegion {
    engine: Arc<Engine>,
    memory: Arc<HostMemory>,
    /// The address of the first byte in requests.
    address: u64,
    key: Key,
}

impl MemoryRegion {
    pub(super) fn new(engine: Arc<Engine>, memory: Arc<HostMemory>, access: Access, key: Key) -> MemoryRegion {
        let address = if access.contains(Access::ZERO_BASED) { 0 } else { memory.address() };
        MemoryRegion { engine, memory, address, key }
    }

    /// L_Key and R_Key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The address of the first byte, as work requests and peers name it: 0 with [`Access::ZERO_BASED`].
    pub fn address(&self) -> u64 {
        self.address
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

/// The registration of memory that the program lends. Dropping it ends all access by peers.
#[derive(Debug)]
pub struct Registration {
    engine: Arc<Engine>,
    key: Key,
}

impl Registration {
    pub(super) fn new(engine: Arc<Engine>, key: Key) -> Registration {
        Registration { engine, key }
    }

    /// L_Key and R_Key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Changes the domain, the access, or both; the key stays (IBTA 11.2.8.6).
    ///
    /// # Errors
    /// [`AccessError::Denied`] while windows are bound to it.
    pub fn reregister(&self, pd: Option<&ProtectionDomain>, access: Option<Access>) -> Result<(), AccessError> {
        let pd = pd.map(ProtectionDomain::number);
        self.engine.with(|core, _| core.endpoint.memory().reregister(self.key, pd, access))
    }

    /// Ends it, unless windows are bound to it.
    ///
    /// # Errors
    /// [`AccessError::Denied`], and the registration back.
    pub fn deregister(self) -> Result<(), (Registration, AccessError)> {
        match self.engine.with(|core, _| core.endpoint.memory().deregister(self.key)) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Not there any more after `deregister`. With windows bound it stays, in the table only: what it names may
        // vanish.
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

    /// Ends it, whichever of its keys it has now.
    pub fn deallocate(self) {
        let _ = self.engine.with(|core, _| core.endpoint.memory().deallocate_window(self.key));
    }

    /// Ends it, by the key it has now.
    ///
    /// # Errors
    /// [`AccessError`] when it has another.
    pub fn destroy(self, current: Key) -> Result<(), AccessError> {
        self.engine.with(|core, _| core.endpoint.memory().deregister(current))
    }
}
