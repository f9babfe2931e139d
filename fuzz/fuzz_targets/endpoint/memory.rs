use std::sync::Arc;

use uroce::memory::{Access, HostMemory, Pd, WindowBinding, WindowKind};
use uroce::transport::Endpoint;
use uroce::wire::Key;

use crate::input::Input;

/// Places in the arena that regions are made of.
pub const SLOTS: usize = 6;

/// Bytes of a slot, and of memory between two that no region ever covers.
pub const SLOT_BYTES: usize = 4000;
const GUARD_BYTES: usize = 96;
const STRIDE: usize = SLOT_BYTES + GUARD_BYTES;

const GUARD: u8 = 0xe7;

/// Regions at the same time; keys that are gone are remembered beside them, to be used all the same.
const REGIONS_MAX: usize = 10;
const WINDOWS_MAX: usize = 6;

const WRITES: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
const ALL: Access = WRITES.union(Access::REMOTE_READ).union(Access::FLUSH_GLOBAL).union(Access::MW_BIND);

/// The memory of a node, what is registered of it, and what must not change.
pub struct Arena {
    memory: Arc<HostMemory>,
    pub regions: Vec<Region>,
    pub windows: Vec<Window>,
    /// Of slots that nothing may write to: their bytes.
    frozen: [Option<Vec<u8>>; SLOTS],
    guards: Vec<u8>,
}

#[derive(Clone, Copy)]
pub struct Region {
    pub key: Key,
    slot: usize,
    access: Access,
    is_live: bool,
}

/// A memory window, as it is if all that was asked for comes true.
#[derive(Clone, Copy)]
pub struct Window {
    pub key: Key,
    pub slot: Option<usize>,
}

impl Arena {
    pub fn new(endpoint: &mut Endpoint, pd: Pd) -> Arena {
        let memory = Arc::new(HostMemory::new(SLOTS * STRIDE + GUARD_BYTES).unwrap());
        let guards = vec![GUARD; GUARD_BYTES];
        for slot in 0..=SLOTS {
            memory.write(slot * STRIDE, &guards);
        }
        let frozen = [(); SLOTS].map(|()| Some(vec![0; SLOT_BYTES]));
        let mut arena = Arena { memory, regions: Vec::new(), windows: Vec::new(), frozen, guards };
        let relaxed = ALL | Access::RELAXED_ORDERING;
        for (slot, access) in [(0, ALL), (1, relaxed), (2, Access::LOCAL_WRITE), (3, Access::REMOTE_READ)] {
            arena.register(endpoint, pd, slot, 0, SLOT_BYTES, access);
        }
        for kind in [WindowKind::One, WindowKind::Two, WindowKind::Two] {
            arena.windows.push(Window { key: endpoint.memory().allocate_window(pd, kind), slot: None });
        }
        arena
    }

    fn start(slot: usize) -> usize {
        slot * STRIDE + GUARD_BYTES
    }

    pub fn address(&self, slot: usize, offset: usize) -> u64 {
        self.memory.address() + (Self::start(slot) + offset) as u64
    }

    fn register(&mut self, endpoint: &mut Endpoint, pd: Pd, slot: usize, offset: usize, len: usize, access: Access) {
        let memory = self.memory.clone();
        let part = (Self::start(slot) + offset, len);
        let key = endpoint.memory().register_part(pd, memory, part, self.address(slot, offset), access);
        self.regions.push(Region { key, slot, access, is_live: true });
        self.freeze();
    }

    /// Registers, deregisters, changes, makes windows and removes them.
    pub fn act(&mut self, endpoint: &mut Endpoint, pds: &[Pd; 2], input: &mut Input<'_>) {
        let pd = pds[usize::from(input.is_wild())];
        // The regions that all goes to when nothing is wrong.
        let spared = if input.is_wild() { 0 } else { 2 };
        match input.below(6) {
            0 if self.regions.iter().filter(|region| region.is_live).count() < REGIONS_MAX => {
                let (slot, access) = (input.below(SLOTS), access(input));
                let (offset, len) = match input.below(3) {
                    0 => (input.below(256) * 8, input.below(256) * 4),
                    _ => (0, SLOT_BYTES),
                };
                self.register(endpoint, pd, slot, offset, len, access);
            }
            1 => {
                let index = spared + input.below(self.regions.len() - spared);
                let region = &mut self.regions[index];
                let removed = endpoint.memory().deregister(region.key).is_ok();
                assert!(region.is_live || !removed, "a region was deregistered twice");
                region.is_live &= !removed;
                self.freeze();
            }
            2 => {
                let index = spared + input.below(self.regions.len() - spared);
                let access = access(input);
                let region = &mut self.regions[index];
                let changed = endpoint.memory().reregister(region.key, Some(pd), Some(access)).is_ok();
                assert!(region.is_live || !changed, "a region that is gone was registered again");
                if changed {
                    region.access = access;
                }
                self.freeze();
            }
            3 if self.windows.len() < WINDOWS_MAX => {
                let kind = if input.chance(80) { WindowKind::One } else { WindowKind::Two };
                self.windows.push(Window { key: endpoint.memory().allocate_window(pd, kind), slot: None });
            }
            4 if !self.windows.is_empty() => {
                let index = input.below(self.windows.len());
                let window = self.windows[index].key;
                let key = if input.is_wild() { Key(window.0 & !0xff | u32::from(input.byte())) } else { window };
                if endpoint.memory().deregister(key).is_ok() {
                    self.windows.remove(index);
                }
            }
            _ => {
                let key = self.key(input);
                let is_live = self.regions.iter().any(|region| region.key == key && region.is_live);
                let changed = endpoint.memory().reregister(key, None, None).is_ok();
                assert!(is_live || !changed, "{key} is no region's, and was registered again");
            }
        }
    }

    /// Memory to name: an address and the key of a region or window around it; or anything.
    pub fn name(&self, input: &mut Input<'_>) -> (u64, Key) {
        if input.is_wild() {
            return (self.place(input), self.key(input));
        }
        let slot = input.below(2);
        let window = self.windows.iter().find(|window| window.slot == Some(slot) && input.chance(40));
        (self.address(slot, input.below(256) * 8), window.map_or(self.regions[slot].key, |window| window.key))
    }

    /// A key: of a live region or a window, or a stale, damaged or invented one.
    pub fn key(&self, input: &mut Input<'_>) -> Key {
        match input.byte() {
            byte @ 0..140 => self.regions[usize::from(byte) % self.regions.len()].key,
            byte @ 140..220 if !self.windows.is_empty() => {
                let window = self.windows[usize::from(byte) % self.windows.len()].key;
                Key(window.0 ^ u32::from(byte & 1))
            }
            byte @ 220..240 => Key(self.regions[0].key.0 ^ (1 << (byte % 32))),
            _ => Key(input.u32()),
        }
    }

    /// An address in or near a slot, or anywhere.
    pub fn place(&self, input: &mut Input<'_>) -> u64 {
        let slot = input.below(SLOTS);
        match input.byte() {
            byte @ 0..220 => self.address(slot, usize::from(byte) * 8),
            220..230 => self.address(slot, SLOT_BYTES) - u64::from(input.byte()),
            230..240 => self.address(slot, 0).wrapping_sub(u64::from(input.byte())),
            _ => input.u64(),
        }
    }

    /// What a window may be bound to; it is taken to succeed. `None` for an invalidation of the key instead.
    pub fn bind(&mut self, input: &mut Input<'_>) -> (Key, Option<WindowBinding>) {
        let count = self.windows.len();
        if count == 0 || input.is_wild() {
            let (window, new_key, region) = (self.key(input), self.key(input), self.key(input));
            let (address, len, access) = (self.place(input), input.below(256) as u64 * 4, access(input));
            let binding = WindowBinding { window, new_key, region, address, len, access };
            return (window, input.chance(128).then_some(binding));
        }
        let (window, slot) = (&mut self.windows[input.below(count)], input.below(2));
        let old = window.key;
        if window.slot.take().is_some() && input.chance(200) {
            return (old, None);
        }
        let new_key = Key(old.0 & !0xff | (old.0.wrapping_add(1) & 0xff));
        *window = Window { key: new_key, slot: Some(slot) };
        let (address, len) = (self.memory.address() + Self::start(slot) as u64, SLOT_BYTES as u64);
        let (region, access) = (self.regions[slot].key, access(input));
        (old, Some(WindowBinding { window: old, new_key, region, address, len, access }))
    }

    /// Remembers what slots hold that nothing may write to any more.
    fn freeze(&mut self) {
        for slot in 0..SLOTS {
            let written = |region: &Region| region.slot == slot && region.is_live && region.access.intersects(WRITES);
            if self.regions.iter().any(written) {
                self.frozen[slot] = None;
            } else if self.frozen[slot].is_none() {
                self.frozen[slot] = Some(self.memory.to_vec(Self::start(slot), SLOT_BYTES));
            }
        }
    }

    /// Panics when memory was written that is not registered, or not for writing.
    pub fn check(&self) {
        let mut bytes = [0; SLOT_BYTES];
        for slot in 0..=SLOTS {
            let guard = &mut bytes[..GUARD_BYTES];
            self.memory.read(slot * STRIDE, guard);
            assert!(*guard == self.guards[..], "the memory in front of slot {slot} was written");
        }
        for (slot, frozen) in self.frozen.iter().enumerate() {
            let Some(frozen) = frozen else { continue };
            self.memory.read(Self::start(slot), &mut bytes);
            assert!(bytes[..] == frozen[..], "slot {slot} was written, which no region lets be");
        }
    }

    /// Removes everything: windows first, whichever of their keys they have by now.
    pub fn clear(&mut self, endpoint: &mut Endpoint) {
        for window in self.windows.drain(..) {
            let keys = (0..256).map(|low| Key(window.key.0 & !0xff | low));
            let removed = keys.filter(|key| endpoint.memory().deregister(*key).is_ok()).count();
            assert_eq!(removed, 1, "a window is there under one of its keys");
        }
        for region in self.regions.drain(..).filter(|region| region.is_live) {
            endpoint.memory().deregister(region.key).expect("no window is bound to it");
        }
        assert!(endpoint.memory().is_empty());
    }
}

pub fn access(input: &mut Input<'_>) -> Access {
    if input.is_wild() { Access::from_bits_truncate(u32::from(input.byte())) } else { ALL }
}
