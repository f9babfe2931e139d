use std::sync::Arc;

use crate::engine::Engine;
use crate::memory::{Access, AccessError, HostMemory};
use crate::transport::{Remote, Sge};
use crate::wire::Key;

use super::ProtectionDomain;

/// Registered memory that the region owns. It is read and written through copies, since peers can write at any time.
///
/// Dropping it ends the registration, and with it all access by peers; the pages are unmapped afterwards. A region with
/// windows bound stays registered, and mapped, until the context is dropped.
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

    /// The key of the region: both its L_Key and its R_Key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The address of the first byte, as work requests and peers name it: 0 with [`Access::ZERO_BASED`].
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The length of the region in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The memory of the region, for copies in and out.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// A scatter/gather entry for work requests: `length` bytes at `offset`. Its bounds are checked when a request uses
    /// it.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { address: self.address().wrapping_add(offset as u64), length: length as u32, lkey: self.key }
    }

    /// The address and R_Key that a peer needs to reach the byte at `offset`.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { address: self.address().wrapping_add(offset as u64), key: self.key }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // A region with windows bound stays registered, and its memory mapped, until the context is dropped.
        let _ = self.engine.with(|core, _| core.endpoint.memory().deregister(self.key));
    }
}

/// The registration of memory that the program lends. Dropping it ends all access by peers, unless windows are bound to
/// it.
#[derive(Debug)]
pub struct Registration {
    engine: Arc<Engine>,
    key: Key,
}

impl Registration {
    pub(super) fn new(engine: Arc<Engine>, key: Key) -> Registration {
        Registration { engine, key }
    }

    /// The key of the registration: both its L_Key and its R_Key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Changes the protection domain, the access, or both; `None` keeps the current one. The key stays (IBTA 11.2.8.6).
    ///
    /// # Errors
    /// [`AccessError::Denied`] while windows are bound to it; [`AccessError::NoSuchKey`] for a key without memory
    /// ([`register_null`](ProtectionDomain::register_null)).
    pub fn reregister(&self, pd: Option<&ProtectionDomain>, access: Option<Access>) -> Result<(), AccessError> {
        let pd = pd.map(ProtectionDomain::number);
        self.engine.with(|core, _| core.endpoint.memory().reregister(self.key, pd, access))
    }

    /// Ends the registration, unless windows are bound to it.
    ///
    /// # Errors
    /// [`AccessError::Denied`] while windows are bound to it; the registration is returned with the error.
    pub fn deregister(self) -> Result<(), (Registration, AccessError)> {
        match self.engine.with(|core, _| core.endpoint.memory().deregister(self.key)) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // After `deregister` the key is gone. With windows bound the registration stays, but only in the table: the
        // program can still unmap the memory.
        let _ = self.engine.with(|core, _| core.endpoint.memory().deregister(self.key));
    }
}

/// A memory window, which [`SendOperation::BindWindow`](crate::transport::SendOperation::BindWindow) binds.
#[derive(Debug)]
pub struct MemoryWindow {
    engine: Arc<Engine>,
    key: Key,
}

impl MemoryWindow {
    pub(super) fn new(engine: Arc<Engine>, key: Key) -> MemoryWindow {
        MemoryWindow { engine, key }
    }

    /// The key that the window was made with, or the last one of [`next_key`](MemoryWindow::next_key). Binding gives
    /// the window a new key with the same upper 24 bits.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The next key to bind the window with: the lowest 8 bits are one higher, modulo 256.
    pub fn next_key(&mut self) -> Key {
        self.key = Key(self.key.0 & !0xff | (self.key.0.wrapping_add(1) & 0xff));
        self.key
    }

    /// Deallocates the window, whichever of its 256 keys is current.
    pub fn deallocate(self) {
        let _ = self.engine.with(|core, _| core.endpoint.memory().deallocate_window(self.key));
    }

    /// Deallocates the window, by its current key.
    ///
    /// # Errors
    /// [`AccessError::NoSuchKey`] when the window has another key.
    pub fn destroy(self, current: Key) -> Result<(), AccessError> {
        self.engine.with(|core, _| core.endpoint.memory().deregister(current))
    }
}
