use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustc_hash::FxHashMap;

use crate::frame::FrameBytes;
use crate::wire::{Key, Qpn};

use super::{HostMemory, KeySource, Lent, copy};

/// A protection domain: queue pairs, regions and windows work together only within one (IBTA 10.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(pub u32);

/// A queue pair as the table sees it: what decides which keys a request through it may name (IBTA 10.6.3.1, 10.6.7.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The protection domain of the queue pair.
    pub pd: Pd,
    /// Its number, which type 2 windows are bound to.
    pub queue_pair: Qpn,
}

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

/// All regions and windows of an endpoint, by key. L_Key and R_Key of a region are the same number.
pub struct MemoryTable {
    /// Entries by the upper 24 bits of the key, so that a window is found by any of its 256 keys.
    entries: FxHashMap<u32, Entry>,
    keys: KeySource,
}

struct Entry {
    key: Key,
    pd: Pd,
    kind: Kind,
}

enum Kind {
    Region(Region),
    /// No memory: reads return zeros, and writes have no effect. For local requests only.
    Null,
    Window(WindowKind, Option<BoundWindow>),
}

struct Region {
    /// The address of the first byte in requests; zero if the access is zero-based.
    iova: u64,
    start: *mut u8,
    len: u64,
    access: Access,
    /// Windows bound to the region, which cannot be deregistered before they are gone.
    windows: u32,
    /// Keeps memory of our own alive; `None` for memory that the program lent.
    _owner: Option<Arc<HostMemory>>,
}

struct BoundWindow {
    /// The only queue pair that can use a type 2 window.
    queue_pair: Option<Qpn>,
    region: Key,
    /// The address of the first byte in requests.
    base: u64,
    /// The address of the same byte in the region.
    address: u64,
    len: u64,
    access: Access,
}

// SAFETY: the pointers are to memory that whoever registered it keeps valid until deregistration, from any thread.
unsafe impl Send for MemoryTable {}

impl MemoryTable {
    /// An empty table with keys from `keys`.
    pub fn new(keys: KeySource) -> MemoryTable {
        MemoryTable { entries: FxHashMap::default(), keys }
    }

    /// The source of unguessable numbers, for QPNs and PSNs too.
    pub fn keys(&mut self) -> &mut KeySource {
        &mut self.keys
    }

    /// The number of regions and windows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no regions and windows.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Registers memory of our own. Peers use its own addresses.
    pub fn register(&mut self, pd: Pd, memory: Arc<HostMemory>, access: Access) -> Key {
        let (start, len, iova) = (memory.as_ptr(), memory.len() as u64, memory.address());
        self.insert_region(pd, Region { iova, start, len, access, windows: 0, _owner: Some(memory) })
    }

    /// Registers `len` bytes from `offset` on of memory of our own. Peers use addresses from `iova` on, or offsets with
    /// [`Access::ZERO_BASED`].
    ///
    /// # Panics
    /// When the range goes beyond the end of the memory.
    pub fn register_part(
        &mut self,
        pd: Pd,
        memory: Arc<HostMemory>,
        (offset, len): (usize, usize),
        iova: u64,
        access: Access,
    ) -> Key {
        assert!(offset <= memory.len() && len <= memory.len() - offset, "{len} bytes at {offset} of {}", memory.len());
        // SAFETY: the offset was checked to lie in the mapping, or just behind it.
        let start = unsafe { memory.as_ptr().add(offset) };
        self.insert_region(pd, Region { iova, start, len: len as u64, access, windows: 0, _owner: Some(memory) })
    }

    /// Registers memory that the program lends. Peers use addresses from `iova` on, or offsets with
    /// [`Access::ZERO_BASED`].
    ///
    /// An access to pages that the program unmaps later is an access error.
    ///
    /// # Safety
    /// The owner of the memory must expect peers to read it, and to write it as its access allows, until
    /// [`deregister`](MemoryTable::deregister) has returned. It can unmap the memory before. It must keep the handler
    /// for SIGSEGV and SIGBUS, and block neither in threads that work with the table ([`faults`](super::faults)).
    pub unsafe fn register_borrowed(&mut self, pd: Pd, lent: Lent, iova: u64) -> Key {
        let (start, len, access) = lent.into_parts();
        self.insert_region(pd, Region { iova, start, len, access, windows: 0, _owner: None })
    }

    /// Registers a null region, under a key for local requests: reads of it return zeros, and writes to it have no
    /// effect.
    pub fn register_null(&mut self, pd: Pd) -> Key {
        self.insert(pd, Kind::Null)
    }

    /// Changes a region's domain, access, or both; its key stays (IBTA 11.2.8.6).
    ///
    /// # Errors
    /// [`AccessError::NoSuchKey`] when no region has the key; [`AccessError::Denied`] with [`Access::MW_BIND`] while
    /// windows are bound to it.
    pub fn reregister(&mut self, key: Key, pd: Option<Pd>, access: Option<Access>) -> Result<(), AccessError> {
        let entry = self.entries.get_mut(&(key.0 >> 8)).filter(|entry| entry.key == key);
        let Some(Entry { pd: current, kind: Kind::Region(region), .. }) = entry else {
            return Err(AccessError::NoSuchKey(key));
        };
        if region.windows > 0 {
            return Err(AccessError::Denied { key, wanted: Access::MW_BIND });
        }
        *current = pd.unwrap_or(*current);
        let was_zero_based = region.access.contains(Access::ZERO_BASED);
        region.access = access.unwrap_or(region.access);
        match (was_zero_based, region.access.contains(Access::ZERO_BASED)) {
            (_, true) => region.iova = 0,
            (true, false) => region.iova = region.start as u64,
            (false, false) => {}
        }
        Ok(())
    }

    fn insert_region(&mut self, pd: Pd, mut region: Region) -> Key {
        if region.access.contains(Access::ZERO_BASED)
            && !mutated!("zero-based-region-has-addresses", by "uroce --lib zero_based_regions")
        {
            region.iova = 0;
        }
        self.insert(pd, Kind::Region(region))
    }

    /// Makes a memory window that is not bound yet, and returns its key.
    pub fn allocate_window(&mut self, pd: Pd, kind: WindowKind) -> Key {
        self.insert(pd, Kind::Window(kind, None))
    }

    fn insert(&mut self, pd: Pd, kind: Kind) -> Key {
        let key = loop {
            let key = self.keys.next_u32();
            // Zero is what programs send with empty messages, and reads like a forgotten key.
            if key >> 8 != 0 && !self.entries.contains_key(&(key >> 8)) {
                break Key(key);
            }
        };
        self.entries.insert(key.0 >> 8, Entry { key, pd, kind });
        key
    }

    /// Removes a region or window. From then on its key is refused.
    ///
    /// # Errors
    /// [`AccessError::NoSuchKey`] when there is none with the key; [`AccessError::Denied`] with [`Access::MW_BIND`]
    /// while windows are bound to the region.
    pub fn deregister(&mut self, key: Key) -> Result<(), AccessError> {
        match &self.entry(key)?.kind {
            Kind::Region(region)
                if region.windows > 0
                    && !mutated!("region-goes-although-windows-are-bound", by "uroce --lib windows_give_access") =>
            {
                return Err(AccessError::Denied { key, wanted: Access::MW_BIND });
            }
            Kind::Region(_) | Kind::Null => {}
            Kind::Window(..) => self.unbind(key.0 >> 8),
        }
        self.entries.remove(&(key.0 >> 8));
        Ok(())
    }

    /// Removes a window, by any of its 256 keys.
    ///
    /// # Errors
    /// [`AccessError::NoSuchKey`] when the key is not a window's.
    pub fn deallocate_window(&mut self, key: Key) -> Result<(), AccessError> {
        match self.entries.get(&(key.0 >> 8)) {
            Some(Entry { kind: Kind::Window(..), .. }) => {}
            _ => return Err(AccessError::NoSuchKey(key)),
        }
        self.unbind(key.0 >> 8);
        self.entries.remove(&(key.0 >> 8));
        Ok(())
    }

    fn unbind(&mut self, index: u32) {
        let Some(Entry { kind: Kind::Window(_, bound), .. }) = self.entries.get_mut(&index) else { return };
        let Some(BoundWindow { region, .. }) = bound.take() else { return };
        if let Some(Entry { kind: Kind::Region(region), .. }) = self.entries.get_mut(&(region.0 >> 8)) {
            region.windows -= 1;
        }
    }

    /// Binds a window on behalf of `queue_pair` (IBTA 10.6.7.2.1).
    ///
    /// A bound type 1 window is bound again; with no bytes, it is unbound. With [`Access::ZERO_BASED`] its first byte
    /// has the address zero for peers. A region that is zero-based itself accepts no windows, as with rxe.
    ///
    /// # Errors
    /// - [`WindowError::NoSuchWindow`] when the window is unknown or of another domain.
    /// - [`WindowError::Bound`] when a type 2 window is bound already.
    /// - [`WindowError::Empty`] when a type 2 window is bound to no bytes.
    /// - [`WindowError::Region`] when the region is unknown, zero-based, or does not allow the binding.
    /// - [`WindowError::OutOfBounds`] when the range does not lie in the region.
    pub fn bind(&mut self, scope: Scope, binding: &WindowBinding) -> Result<(), WindowError> {
        let Scope { pd, queue_pair } = scope;
        let WindowBinding { window, new_key, region: region_key, address, len, access } = *binding;
        let index = window.0 >> 8;
        let kind = match self.entries.get(&index) {
            Some(Entry { pd: of, kind: Kind::Window(kind, bound), .. }) if *of == pd => {
                if *kind == WindowKind::Two && bound.is_some() {
                    return Err(WindowError::Bound(window));
                }
                *kind
            }
            _ => return Err(WindowError::NoSuchWindow(window)),
        };
        let new_key = match mutated!("window-key-not-its-own", by "uroce --lib of_a_windows_new_key") {
            true => new_key,
            false => Key(index << 8 | new_key.0 & 0xff),
        };
        match (len, kind) {
            (0, WindowKind::Two) if !mutated!("type-2-window-bound-to-nothing", by "uroce --lib a_type_2_window_is_not") =>
            {
                return Err(WindowError::Empty(window));
            }
            (0, _) => {
                // To nothing: no region is needed.
                self.unbind(index);
                self.entries.get_mut(&index).expect("found above").key = new_key;
                return Ok(());
            }
            _ => {}
        }
        let region = match self.entries.get_mut(&(region_key.0 >> 8)) {
            Some(Entry { key, pd: of, kind: Kind::Region(region) }) if *key == region_key && *of == pd => region,
            _ => return Err(WindowError::Region(region_key)),
        };
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !region.access.contains(Access::MW_BIND)
            || (region.access.contains(Access::ZERO_BASED)
                && !mutated!("window-over-a-zero-based-region", by "uroce --lib zero_based_regions"))
            || (writes && !region.access.contains(Access::LOCAL_WRITE))
        {
            return Err(WindowError::Region(region_key));
        }
        if region.offset(address, len).is_none() {
            return Err(WindowError::OutOfBounds { address, len });
        }
        let queue_pair = (kind == WindowKind::Two).then_some(queue_pair);
        region.windows += 1;
        self.unbind(index);
        let is_zero_based = access.contains(Access::ZERO_BASED)
            && !mutated!("zero-based-window-has-addresses", by "uroce --lib zero_based_regions");
        let base = if is_zero_based { 0 } else { address };
        let bound = BoundWindow { queue_pair, region: region_key, base, address, len, access };
        let entry = self.entries.get_mut(&index).expect("found above");
        (entry.key, entry.kind) = (new_key, Kind::Window(kind, Some(bound)));
        Ok(())
    }

    /// Invalidates a bound type 2 window, on a local request or a peer's SEND with invalidate (IBTA 10.6.7.2.6).
    ///
    /// # Errors
    /// [`AccessError::NoSuchKey`] when the key is not that of a bound type 2 window: ordinary regions cannot be
    /// invalidated, as with rxe. [`AccessError::Foreign`] when the window is of another domain, or bound by another
    /// queue pair.
    pub fn invalidate(&mut self, scope: Scope, key: Key) -> Result<(), AccessError> {
        match self.entries.get(&(key.0 >> 8)) {
            Some(Entry { key: current, pd: of, kind: Kind::Window(WindowKind::Two, Some(bound)) })
                if *current == key =>
            {
                if *of != scope.pd || bound.queue_pair != Some(scope.queue_pair) {
                    return Err(AccessError::Foreign(key));
                }
            }
            _ => return Err(AccessError::NoSuchKey(key)),
        }
        if !mutated!("invalidated-window-stays-open", by "uroce --lib windows_give_access") {
            self.unbind(key.0 >> 8);
        }
        Ok(())
    }

    /// The memory that a peer's request names: `len` bytes at `address` in the region or window of `key`.
    ///
    /// `wanted` is the access that the request needs, and `scope` the queue pair that it came through. An empty span
    /// needs no key at all (IBTA 9.7.4.1.5).
    ///
    /// # Errors
    /// - [`AccessError::NoSuchKey`] when the key is unknown, or its window is not bound.
    /// - [`AccessError::Foreign`] when the key is of another domain, or of a window of another queue pair.
    /// - [`AccessError::Denied`] when region or window does not grant `wanted`.
    /// - [`AccessError::OutOfBounds`] when the bytes do not all lie in it.
    pub fn remote(
        &self,
        scope: Scope,
        key: Key,
        address: u64,
        len: u64,
        wanted: Access,
    ) -> Result<Span<'_>, AccessError> {
        if len == 0 {
            return Ok(Span::EMPTY);
        }
        let out_of_bounds = AccessError::OutOfBounds { key, address, len };
        match self.allowed(scope, key, wanted)? {
            Kind::Region(region) => region.span(key, address, len).ok_or(out_of_bounds),
            Kind::Window(_, None) | Kind::Null => Err(AccessError::NoSuchKey(key)),
            Kind::Window(_, Some(window)) => {
                let offset = address.checked_sub(window.base).ok_or(out_of_bounds)?;
                if (offset > window.len || len > window.len - offset)
                    && !mutated!("window-range-not-checked", by "uroce --lib windows_give_access")
                {
                    return Err(out_of_bounds);
                }
                match &self.entry(window.region)?.kind {
                    Kind::Region(region) => region.span(key, window.address + offset, len).ok_or(out_of_bounds),
                    Kind::Window(..) | Kind::Null => Err(AccessError::NoSuchKey(key)),
                }
            }
        }
    }

    /// Checks that a peer has the access `wanted` to the region or window of `key` through the queue pair of `scope`,
    /// whatever the bytes.
    ///
    /// # Errors
    /// [`AccessError::NoSuchKey`], [`AccessError::Foreign`] or [`AccessError::Denied`], on the same conditions as in
    /// [`remote`](MemoryTable::remote).
    pub fn check_remote(&self, scope: Scope, key: Key, wanted: Access) -> Result<(), AccessError> {
        self.allowed(scope, key, wanted).map(|_| ())
    }

    /// The entry of `key`, if it grants a peer the access `wanted`.
    fn allowed(&self, scope: Scope, key: Key, wanted: Access) -> Result<&Kind, AccessError> {
        let entry = self.entry(key)?;
        if entry.pd != scope.pd && !mutated!("domain-not-compared") {
            return Err(AccessError::Foreign(key));
        }
        let access = match &entry.kind {
            Kind::Region(region) => region.access,
            Kind::Window(_, None) | Kind::Null => return Err(AccessError::NoSuchKey(key)),
            Kind::Window(_, Some(window))
                if window.queue_pair.is_some_and(|bound| bound != scope.queue_pair)
                    && !mutated!("window-open-to-any-queue-pair", by "uroce --lib windows_give_access") =>
            {
                return Err(AccessError::Foreign(key));
            }
            Kind::Window(_, Some(_)) if mutated!("window-gives-any-right", by "uroce --lib windows_give_access") => {
                wanted
            }
            Kind::Window(_, Some(window)) => window.access,
        };
        // Nothing that we write outlives a power failure for certain.
        let access = match mutated!("persistence-promised", by "uroce --test flush a_flush_needs_what") {
            true => access,
            false => access.difference(Access::FLUSH_PERSISTENT),
        };
        if access.contains(wanted) { Ok(&entry.kind) } else { Err(AccessError::Denied { key, wanted }) }
    }

    /// As [`remote`](MemoryTable::remote), where `key` is a region's own, and whether WRITEs to the region can overtake
    /// each other.
    ///
    /// `None` for any error, and for windows: their keys can stand for other memory in the next packet.
    pub fn remote_of_region(
        &self,
        scope: Scope,
        key: Key,
        address: u64,
        len: u64,
        wanted: Access,
    ) -> Option<(Span<'_>, bool)> {
        let Kind::Region(region) = &self.entry(key).ok()?.kind else { return None };
        let is_relaxed = region.access.contains(Access::RELAXED_ORDERING);
        self.remote(scope, key, address, len, wanted).ok().map(|span| (span, is_relaxed))
    }

    /// The memory that the program itself names in a scatter or gather entry; `write` when the entry is written to.
    ///
    /// # Errors
    /// - [`AccessError::NoSuchKey`] when the key is unknown, or a window's.
    /// - [`AccessError::Foreign`] when the key is of another domain.
    /// - [`AccessError::Denied`] when `write` is set and the region is not registered with [`Access::LOCAL_WRITE`].
    /// - [`AccessError::OutOfBounds`] when the bytes do not all lie in the region.
    pub fn local(&self, pd: Pd, key: Key, address: u64, len: u64, write: bool) -> Result<Span<'_>, AccessError> {
        if len == 0 {
            return Ok(Span::EMPTY);
        }
        let entry = self.entry(key)?;
        if entry.pd != pd {
            return Err(AccessError::Foreign(key));
        }
        let region = match &entry.kind {
            Kind::Region(region) => region,
            Kind::Null => return Ok(Span { len: len as usize, key, is_null: true, ..Span::EMPTY }),
            Kind::Window(..) => return Err(AccessError::NoSuchKey(key)),
        };
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(AccessError::Denied { key, wanted: Access::LOCAL_WRITE });
        }
        region.span(key, address, len).ok_or(AccessError::OutOfBounds { key, address, len })
    }

    fn entry(&self, key: Key) -> Result<&Entry, AccessError> {
        let entry = self.entries.get(&(key.0 >> 8));
        entry.filter(|entry| entry.key == key || mutated!("key-not-compared")).ok_or(AccessError::NoSuchKey(key))
    }
}

impl Region {
    /// The offset of `address` in the region, if all `len` bytes lie in it; `None` otherwise, and for addresses that
    /// wrap.
    fn offset(&self, address: u64, len: u64) -> Option<u64> {
        let offset = address.checked_sub(self.iova)?;
        (offset <= self.len && len <= self.len - offset + u64::from(mutated!("region-one-byte-too-long")))
            .then_some(offset)
    }

    fn span(&self, key: Key, address: u64, len: u64) -> Option<Span<'_>> {
        let offset = self.offset(address, len)?;
        // SAFETY: the offset was checked to lie in the region.
        let start = unsafe { self.start.add(offset as usize) };
        Some(Span { start, len: len as usize, key, is_null: false, table: PhantomData })
    }
}

/// Bytes of a region that may be accessed now: checked, and used before anything else can happen to the table.
///
/// So it borrows the table; it does not outlive its region.
///
/// ```compile_fail,E0502
/// # use std::sync::Arc;
/// # use uroce::{memory::{Access, HostMemory, KeySource, MemoryTable, Pd, Scope}, wire::Qpn};
/// let mut table = MemoryTable::new(KeySource::new([7; 32]));
/// let memory = Arc::new(HostMemory::new(4096).unwrap());
/// let (address, pd) = (memory.address(), Pd(1));
/// let key = table.register(pd, memory, Access::REMOTE_READ);
/// let span = table.remote(Scope { pd, queue_pair: Qpn::new(9) }, key, address, 8, Access::REMOTE_READ).unwrap();
/// table.deregister(key).unwrap(); // the pages go
/// span.read(&mut [0; 8]).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    start: *mut u8,
    len: usize,
    /// The key of the region, for errors.
    key: Key,
    /// Whether there is no memory: reads return zeros, and writes have no effect.
    is_null: bool,
    /// The region cannot be removed from the table as long as this borrow lives.
    table: PhantomData<&'a MemoryTable>,
}

impl Span<'_> {
    const EMPTY: Span<'static> =
        Span { start: std::ptr::dangling_mut(), len: 0, key: Key(0), is_null: false, table: PhantomData };

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The addresses of the span's bytes in this process, for any key and address that named them.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.len
    }

    /// Copies the span to `out`.
    ///
    /// # Errors
    /// [`AccessError::Vanished`] when the program has unmapped the memory.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn read(&self, out: &mut [u8]) -> Result<(), AccessError> {
        assert_eq!(self.len, out.len());
        if self.is_null {
            out.fill(0);
            return Ok(());
        }
        // SAFETY: `out` is nobody else's, so it does not overlap the region, which is registered: the table is borrowed.
        unsafe { copy::copy(self.start, out.as_mut_ptr(), self.len) }.map_err(|_| AccessError::Vanished(self.key))
    }

    /// Copies `data` to the span, the last bytes last, since programs poll on them.
    ///
    /// One store writes the last eight bytes that lie at a multiple of eight, if the span ends with them; otherwise the
    /// last four, two, or one.
    ///
    /// # Errors
    /// [`AccessError::Vanished`] when the program has unmapped the memory, or part of it.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn write(&self, data: FrameBytes<'_>) -> Result<(), AccessError> {
        assert_eq!(self.len, data.len());
        if self.len == 0 || self.is_null {
            return Ok(());
        }
        let last = last_bytes(self.start as usize + self.len, self.len);
        let (early, late) = (data.take(self.len - last), data.skip(self.len - last));
        let mut value = [0; 8];
        value[..late.head.len()].copy_from_slice(late.head);
        value[late.head.len()..last].copy_from_slice(late.tail);
        // SAFETY: the region is registered: the table is borrowed. The last bytes end at a multiple of their number.
        let store_last = || unsafe { copy::store(u64::from_ne_bytes(value), self.start.add(self.len - last), last) };
        if mutated!("last-bytes-stored-first", by "uroce --lib the_last_bytes_are_not_written_before") {
            store_last().map_err(|_| AccessError::Vanished(self.key))?;
        }
        // SAFETY: the parts together have the span's length, and what is borrowed as bytes does not overlap the region, which
        // is registered, as above.
        unsafe {
            copy::copy(early.head.as_ptr(), self.start, early.head.len())
                .and_then(|()| copy::copy(early.tail.as_ptr(), self.start.add(early.head.len()), early.tail.len()))
                .and_then(|()| {
                    fence(Ordering::Release);
                    store_last()
                })
        }
        .map_err(|_| AccessError::Vanished(self.key))
    }

    /// Replaces the eight bytes of the span, aligned to eight, by `new(old)` in one atomic step, and returns the old
    /// ones. They are in the host's byte order, as with all RoCE devices.
    ///
    /// # Errors
    /// [`AtomicError::Misaligned`] when the address is not a multiple of eight; [`AtomicError::Access`] when the
    /// program has unmapped the memory.
    pub fn update_u64(&self, new: impl Fn(u64) -> u64) -> Result<u64, AtomicError> {
        if self.is_null || self.len != 8 || !(self.start as usize).is_multiple_of(8) {
            return Err(AtomicError::Misaligned);
        }
        // SAFETY: the cell is aligned, and its region registered: the table is borrowed.
        unsafe { copy::update_u64(self.start.cast(), new) }.map_err(|_| AccessError::Vanished(self.key).into())
    }
}

/// How many bytes before the address `end` one instruction can store: at most `len`, which is not 0.
fn last_bytes(end: usize, len: usize) -> usize {
    1 << end.trailing_zeros().min(len.ilog2()).min(3)
}

/// Why an atomic did not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// The address is not a multiple of eight.
    #[error("atomics need eight bytes at a multiple of eight")]
    Misaligned,
    /// The memory cannot be accessed: the program has unmapped it.
    #[error(transparent)]
    Access(#[from] AccessError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> MemoryTable {
        MemoryTable::new(KeySource::new([7; 32]))
    }

    const PD: Pd = Pd(1);
    const QPN: Qpn = Qpn::new(9);
    const SCOPE: Scope = Scope { pd: PD, queue_pair: QPN };
    const ALL: Access =
        Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::MW_BIND);

    #[test]
    fn remote_access_stays_in_the_region() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let key = table.register(PD, memory, ALL);
        let remote = |address, len| table.remote(SCOPE, key, address, len, Access::REMOTE_WRITE);
        assert!(remote(base, 100).is_ok() && remote(base + 99, 1).is_ok());
        for (address, len) in [(base, 101), (base + 100, 1), (base - 1, 1), (u64::MAX, 2), (base, u64::MAX)] {
            assert!(matches!(remote(address, len), Err(AccessError::OutOfBounds { .. })), "{len} at {address:#x}");
        }
        assert!(remote(12345, 0).is_ok(), "an empty access needs no address");
    }

    #[test]
    fn a_part_of_memory_is_all_that_its_key_gives() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let iova = memory.address() + 10;
        let key = table.register_part(PD, memory, (10, 20), iova, ALL);
        let remote = |address, len| table.remote(SCOPE, key, address, len, Access::REMOTE_WRITE).is_ok();
        assert!(remote(base + 10, 20));
        assert!(!remote(base + 9, 1) && !remote(base + 10, 21) && !remote(base + 30, 1));
    }

    #[test]
    fn keys_domains_and_rights_are_checked() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let key = table.register(PD, memory, Access::REMOTE_READ);
        let ask = |pd, key, wanted| table.remote(Scope { pd, queue_pair: QPN }, key, base, 1, wanted).map(|_| ());
        assert_eq!(ask(PD, key, Access::REMOTE_READ), Ok(()));
        assert_eq!(ask(Pd(2), key, Access::REMOTE_READ), Err(AccessError::Foreign(key)));
        assert_eq!(ask(PD, key, Access::REMOTE_WRITE), Err(AccessError::Denied { key, wanted: Access::REMOTE_WRITE }));
        let other = Key(key.0 ^ 1);
        assert_eq!(ask(PD, other, Access::REMOTE_READ), Err(AccessError::NoSuchKey(other)));
        assert!(table.local(PD, key, base, 1, false).is_ok());
        assert!(table.local(PD, key, base, 1, true).is_err());
        table.deregister(key).unwrap();
        assert!(table.local(PD, key, base, 1, false).is_err());
        assert!(table.deregister(key).is_err());
    }

    #[test]
    fn windows_give_access_through_their_queue_pair_until_invalidated() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let region = table.register(PD, memory, ALL);
        let window = table.allocate_window(PD, WindowKind::Two);
        let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
        let access = Access::REMOTE_WRITE;
        let binding = WindowBinding { window, new_key, region, address: base + 10, len: 20, access };
        assert!(table.remote(SCOPE, window, base + 10, 1, access).is_err(), "not bound yet");
        table.bind(SCOPE, &binding).unwrap();
        let ask = |table: &MemoryTable, qpn, address, len, wanted| {
            table.remote(Scope { pd: PD, queue_pair: qpn }, new_key, address, len, wanted).is_ok()
        };
        assert!(ask(&table, QPN, base + 10, 20, access));
        assert!(!ask(&table, QPN, base + 9, 1, access) && !ask(&table, QPN, base + 10, 21, access));
        assert!(!ask(&table, Qpn::new(8), base + 10, 1, access));
        assert!(!ask(&table, QPN, base + 10, 1, Access::REMOTE_READ));
        assert!(table.deregister(region).is_err(), "a window is bound to it");
        assert!(table.invalidate(Scope { pd: PD, queue_pair: Qpn::new(8) }, new_key).is_err());
        table.invalidate(SCOPE, new_key).unwrap();
        assert!(!ask(&table, QPN, base + 10, 1, access));
        assert!(table.invalidate(SCOPE, region).is_err(), "ordinary regions cannot be invalidated");
        table.deregister(region).unwrap();
        table.deregister(new_key).unwrap();
        assert!(table.is_empty());
    }

    #[test]
    fn type_1_windows_serve_their_domain_and_are_bound_anew() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let region = table.register(PD, memory, ALL);
        let mut window = table.allocate_window(PD, WindowKind::One);
        let mut bind = |table: &mut MemoryTable, address, len| {
            let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
            let binding = WindowBinding { window, new_key, region, address, len, access: Access::REMOTE_READ };
            table.bind(SCOPE, &binding).unwrap();
            (std::mem::replace(&mut window, new_key), new_key)
        };
        let ask = |table: &MemoryTable, qpn, key, address| {
            table.remote(Scope { pd: PD, queue_pair: qpn }, key, address, 1, Access::REMOTE_READ).is_ok()
        };
        let (_, first) = bind(&mut table, base, 10);
        assert!(ask(&table, QPN, first, base) && ask(&table, Qpn::new(8), first, base + 9), "any queue pair");
        assert!(table.invalidate(SCOPE, first).is_err(), "only type 2 can be invalidated");
        let (old, second) = bind(&mut table, base + 50, 10);
        assert!(old == first && !ask(&table, QPN, first, base + 50) && ask(&table, QPN, second, base + 50));
        let (_, none) = bind(&mut table, base, 0);
        assert!(!ask(&table, QPN, none, base));
        table.deregister(region).unwrap();
    }

    #[test]
    fn of_a_windows_new_key_the_lower_eight_bits_count() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let address = memory.address();
        let region = table.register(PD, memory, ALL);
        for kind in [WindowKind::One, WindowKind::Two] {
            let window = table.allocate_window(PD, kind);
            let access = Access::REMOTE_WRITE;
            let binding = WindowBinding { window, new_key: Key(0x1234_5678), region, address, len: 100, access };
            table.bind(SCOPE, &binding).unwrap();
            let key = Key(window.0 & !0xff | 0x78);
            assert!(table.remote(SCOPE, key, address, 100, access).is_ok(), "{kind:?}");
            assert!(table.remote(SCOPE, Key(0x1234_5678), address, 100, access).is_err());
        }
        // Whichever of its keys a window is named by, it is that window.
        let window = table.allocate_window(PD, WindowKind::Two);
        let access = Access::REMOTE_WRITE;
        let binding = |window, new_key| WindowBinding { window, new_key, region, address, len: 1, access };
        let other = Key(window.0 ^ 0x55);
        table.bind(SCOPE, &binding(other, Key(1))).unwrap();
        let bound = table.bind(SCOPE, &binding(window, Key(2)));
        assert_eq!(bound, Err(WindowError::Bound(window)));
    }

    #[test]
    fn a_type_2_window_is_not_bound_to_nothing() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let address = memory.address();
        let region = table.register(PD, memory, ALL);
        let window = table.allocate_window(PD, WindowKind::Two);
        let access = Access::REMOTE_READ;
        for region in [region, Key(0)] {
            let binding = WindowBinding { window, new_key: window, region, address, len: 0, access };
            assert_eq!(table.bind(SCOPE, &binding), Err(WindowError::Empty(window)));
        }
        table.deregister(region).unwrap();
    }

    #[test]
    fn zero_based_regions_and_windows_begin_at_zero() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let key = table.register(PD, memory.clone(), ALL | Access::ZERO_BASED);
        let remote = |table: &MemoryTable, key, address, len| {
            table.remote(SCOPE, key, address, len, Access::REMOTE_WRITE).map(|span| span.addresses().start as u64)
        };
        assert_eq!(remote(&table, key, 0, 100), Ok(base));
        assert_eq!(remote(&table, key, 99, 1), Ok(base + 99));
        assert!(remote(&table, key, 1, 100).is_err() && remote(&table, key, base, 1).is_err());
        assert_eq!(table.local(PD, key, 7, 1, true).unwrap().addresses().start as u64, base + 7);
        let window = table.allocate_window(PD, WindowKind::One);
        let access = Access::REMOTE_WRITE;
        let over = WindowBinding { window, new_key: window, region: key, address: 0, len: 10, access };
        assert_eq!(table.bind(SCOPE, &over), Err(WindowError::Region(key)), "windows need addresses below them");
        // The way back: by its own addresses again.
        table.reregister(key, None, Some(ALL)).unwrap();
        assert_eq!(remote(&table, key, base, 100), Ok(base));
        assert!(remote(&table, key, 0, 1).is_err());
        for kind in [WindowKind::One, WindowKind::Two] {
            let window = table.allocate_window(PD, kind);
            let access = access | Access::ZERO_BASED;
            let binding = WindowBinding { window, new_key: window, region: key, address: base + 10, len: 20, access };
            table.bind(SCOPE, &binding).unwrap();
            assert_eq!(remote(&table, window, 0, 20), Ok(base + 10), "{kind:?}");
            assert_eq!(remote(&table, window, 19, 1), Ok(base + 29));
            assert!(remote(&table, window, 1, 20).is_err() && remote(&table, window, base + 10, 1).is_err());
            let past_the_region = WindowBinding { window, address: base + 90, len: 11, ..binding };
            table.deallocate_window(window).unwrap();
            let window = table.allocate_window(PD, kind);
            let past_the_region = WindowBinding { window, ..past_the_region };
            assert!(matches!(table.bind(SCOPE, &past_the_region), Err(WindowError::OutOfBounds { .. })));
        }
        table.reregister(key, None, Some(ALL | Access::ZERO_BASED)).unwrap();
        assert_eq!(remote(&table, key, 0, 100), Ok(base));
    }

    #[test]
    fn a_region_of_no_memory_reads_as_zeros_and_keeps_nothing() {
        let mut table = table();
        let key = table.register_null(PD);
        let span = table.local(PD, key, u64::MAX - 3, 3, true).unwrap();
        span.write(FrameBytes::from(&b"abc"[..])).unwrap();
        let mut read = *b"xyz";
        span.read(&mut read).unwrap();
        assert_eq!(read, [0; 3]);
        assert!(table.local(Pd(2), key, 0, 1, false).is_err());
        assert!(table.remote(SCOPE, key, 0, 1, Access::empty()).is_err(), "not for peers");
        let window = table.allocate_window(PD, WindowKind::One);
        let access = Access::REMOTE_READ;
        let binding = WindowBinding { window, new_key: window, region: key, address: 0, len: 1, access };
        assert_eq!(table.bind(SCOPE, &binding), Err(WindowError::Region(key)));
        assert!(table.reregister(key, None, Some(ALL)).is_err());
        table.deregister(key).unwrap();
        assert!(table.local(PD, key, 0, 1, false).is_err());
    }

    #[test]
    fn atomics_want_eight_aligned_bytes() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let key = table.register(PD, memory.clone(), ALL | Access::REMOTE_ATOMIC);
        let at = |address| table.remote(SCOPE, key, address, 8, Access::REMOTE_ATOMIC).unwrap();
        assert_eq!(at(base + 8).update_u64(|old| old + 5), Ok(0));
        assert_eq!(at(base + 8).update_u64(|old| old + 5), Ok(5));
        assert_eq!(memory.to_vec(8, 8), 10u64.to_ne_bytes());
        assert_eq!(at(base + 4).update_u64(|old| old), Err(AtomicError::Misaligned));
    }

    #[test]
    fn data_in_two_parts_is_placed_whole() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(40).unwrap());
        let base = memory.address();
        let key = table.register(PD, memory.clone(), ALL);
        let data: Vec<u8> = (1..=40).collect();
        for cut in 0..=40 {
            memory.write(0, &[0; 40]);
            let (head, tail) = data.split_at(cut);
            table.remote(SCOPE, key, base, 40, Access::REMOTE_WRITE).unwrap().write(FrameBytes { head, tail }).unwrap();
            assert_eq!(memory.to_vec(0, 40), data, "cut at {cut}");
        }
    }

    /// At every place and of every length, in one part or two: a whole word is seen whole or not at all.
    #[test]
    fn the_last_bytes_are_those_that_one_instruction_stores() {
        for (end, len, last) in [(64, 40, 8), (64, 8, 8), (64, 7, 4), (60, 40, 4), (62, 40, 2), (63, 40, 1), (64, 1, 1)]
        {
            assert_eq!(last_bytes(end, len), last, "{len} bytes to {end}");
        }
        let mut table = table();
        let memory = Arc::new(HostMemory::new(64).unwrap());
        let base = memory.address();
        let key = table.register(PD, memory.clone(), ALL);
        // Miri takes a minute for each of them.
        let every = if cfg!(miri) { 5 } else { 1 };
        for start in 0..16 {
            for len in (1..=24usize).step_by(every) {
                let data: Vec<u8> = (1..=len as u8).collect();
                let (head, tail) = data.split_at(len.saturating_sub(3));
                memory.write(0, &[0xff; 64]);
                let span = table.remote(SCOPE, key, base + start as u64, len as u64, Access::REMOTE_WRITE).unwrap();
                span.write(FrameBytes { head, tail }).unwrap();
                let mut expected = [0xff; 64];
                expected[start..start + len].copy_from_slice(&data);
                assert_eq!(memory.to_vec(0, 64), expected, "{len} bytes at {start}");
            }
        }
    }

    #[cfg(not(miri))] // it has no signals
    #[test]
    fn borrowed_memory_that_was_unmapped_is_an_access_error() {
        let mut table = table();
        let lent = HostMemory::new(8192).unwrap();
        let populated = Lent::populate(lent.as_ptr(), 8192, ALL | Access::REMOTE_ATOMIC).unwrap();
        // SAFETY: nobody else uses the memory.
        let key = unsafe { table.register_borrowed(PD, populated, 0x10_0000) };
        fn at(table: &MemoryTable, key: Key, address: u64) -> Span<'_> {
            table.remote(SCOPE, key, address, 8, Access::REMOTE_WRITE).unwrap()
        }
        at(&table, key, 0x10_0008).write(FrameBytes::from(&b"12345678"[..])).unwrap();
        assert_eq!(lent.to_vec(8, 8), b"12345678");
        drop(lent);
        let span = at(&table, key, 0x10_0008);
        assert_eq!(span.read(&mut [0; 8]), Err(AccessError::Vanished(key)));
        assert_eq!(span.write(FrameBytes::from(&[0; 8][..])), Err(AccessError::Vanished(key)));
        assert_eq!(span.update_u64(|old| old), Err(AtomicError::Access(AccessError::Vanished(key))));
        table.deregister(key).unwrap();
    }

    /// A page that is not there shows the order: where the others cannot be written, the last bytes, by which programs know that
    /// all has come, must not be.
    #[cfg(not(miri))] // it has no signals
    #[test]
    fn the_last_bytes_are_not_written_before_the_others() {
        const PAGE: usize = 4096;
        let mut table = table();
        let lent = HostMemory::new(2 * PAGE).unwrap();
        let populated = Lent::populate(lent.as_ptr(), 2 * PAGE as u64, ALL).unwrap();
        // SAFETY: nobody else uses the memory, which outlives the region.
        let key = unsafe { table.register_borrowed(PD, populated, 0x10_0000) };
        let protect = |protection| {
            // SAFETY: the first page is ours, and no Rust expression touches it meanwhile.
            assert_eq!(unsafe { libc::mprotect(lent.as_ptr().cast(), PAGE, protection) }, 0);
        };
        let data: Vec<u8> = (1..=24).collect();
        let write = |cut| {
            let (head, tail) = data.split_at(cut);
            let address = 0x10_0000 + PAGE as u64 - 16;
            table.remote(SCOPE, key, address, 24, Access::REMOTE_WRITE).unwrap().write(FrameBytes { head, tail })
        };
        for cut in 0..=24 {
            protect(libc::PROT_NONE);
            assert_eq!(write(cut), Err(AccessError::Vanished(key)), "cut at {cut}");
            assert_eq!(lent.to_vec(PAGE, 8), [0; 8], "cut at {cut}");
            protect(libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(write(cut), Ok(()));
            assert_eq!(lent.to_vec(PAGE - 16, 24), data, "cut at {cut}");
            lent.write(PAGE, &[0; 8]);
        }
        table.deregister(key).unwrap();
    }

    #[test]
    fn reregistration_changes_domain_and_access_but_not_the_key() {
        let mut table = table();
        let memory = Arc::new(HostMemory::new(100).unwrap());
        let base = memory.address();
        let key = table.register(PD, memory, Access::REMOTE_READ);
        let ask =
            |table: &MemoryTable, pd, wanted| table.remote(Scope { pd, queue_pair: QPN }, key, base, 1, wanted).is_ok();
        assert!(!ask(&table, PD, Access::REMOTE_WRITE));
        table.reregister(key, Some(Pd(5)), Some(ALL)).unwrap();
        assert!(ask(&table, Pd(5), Access::REMOTE_WRITE) && !ask(&table, PD, Access::REMOTE_READ));
    }
}
