use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::wire::{Key, Qpn};

use super::{Access, AccessError, HostMemory, KeySource, Lent, Span, WindowBinding, WindowError, WindowKind};

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
    #[inline]
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
    #[inline]
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
    #[inline]
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
            Kind::Null => return Ok(Span::null(len as usize, key)),
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
        // SAFETY: the offset was checked to lie in the region, and so was the length from there.
        Some(unsafe { Span::new(self.start.add(offset as usize), len as usize, key) })
    }
}

#[cfg(test)]
mod tests;
