use std::sync::Arc;

use rustc_hash::FxHashMap;
use uroce::memory::{HostMemory, Scope, WindowBinding, WindowKind};
use uroce::wire::{AtomicEth, Extension, Ieth, Key, Operation, Reth, Selectivity};

use super::conversation::Observed;
use super::hypothesis::{Fate, Outcome};
use super::stand_in::{ALL_ACCESS, StandIn};
use super::{MAX_MEMORY_BYTES, ReplayError};

/// The responder's memory, as far as the peer accessed it: for each key one region, from the lowest served address to
/// the highest. Ours has other addresses and keys, and requests are translated.
#[derive(Debug, Default)]
pub(super) struct Regions {
    by_key: FxHashMap<u32, Region>,
}

/// A region and the known part of its contents.
#[derive(Debug)]
pub(super) struct Region {
    /// The first address of the region, as the peer names it.
    start: u64,
    memory: Arc<HostMemory>,
    key: Key,
    /// For each byte, whether the capture has shown its value: the peer has written or read it.
    known: Vec<bool>,
    /// Whether another program also writes to it.
    pub is_volatile: bool,
}

/// The remote bytes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub key: Key,
    pub address: u64,
    pub len: u32,
}

impl Target {
    /// The target of a request that begins a WRITE, a READ, or an atomic, or flushes a range; `None` for others.
    pub fn of(request: &Observed) -> Option<Target> {
        let packet = request.packet();
        if packet.feth().is_some_and(|feth| feth.selectivity() != Selectivity::Range) {
            return None;
        }
        match (packet.reth(), packet.atomic_eth()) {
            (Some(reth), _) => Some(Target { key: reth.key(), address: reth.address(), len: reth.length() }),
            (_, Some(eth)) => Some(Target { key: eth.key(), address: eth.address(), len: 8 }),
            _ => None,
        }
    }
}

impl Regions {
    /// Registers the regions that the peer accessed.
    pub fn of(requests: &[Observed], fates: &[Fate], peer: &mut StandIn) -> Result<Regions, ReplayError> {
        let mut extents: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
        let mut windows = Vec::new();
        for (request, fate) in requests.iter().zip(fates) {
            if fate.outcome != Outcome::Served {
                continue;
            }
            if let Some(ieth) = request.packet().ieth() {
                windows.push(ieth.key());
                extents.entry(ieth.key().0).or_insert((u64::MAX, 0));
            }
            let Some(Target { key, address, len }) = Target::of(request) else { continue };
            let Some(end) = address.checked_add(len.into()) else { continue };
            if len > 0 {
                let extent = extents.entry(key.0).or_insert((address, end));
                *extent = (extent.0.min(address), extent.1.max(end));
            }
        }
        let bytes: u64 = extents.values().map(|(start, end)| end.saturating_sub(*start)).sum();
        if bytes > MAX_MEMORY_BYTES {
            return Err(ReplayError::TooMuchMemory { bytes });
        }
        let mut by_key = FxHashMap::default();
        let mut sorted: Vec<_> = extents.into_iter().collect();
        sorted.sort_unstable();
        for (their_key, (start, end)) in sorted {
            // For atomics our address needs the same alignment as theirs.
            let start = if start > end { 0 } else { start & !7 };
            let memory = Arc::new(HostMemory::new((end - start).max(1) as usize)?);
            let mut key = peer.endpoint.memory().register(peer.pd, memory.clone(), ALL_ACCESS);
            if windows.contains(&Key(their_key)) {
                key = bind(peer, key, &memory);
            }
            let known = vec![false; memory.len()];
            by_key.insert(their_key, Region { start, memory, key, known, is_volatile: false });
        }
        Ok(Regions { by_key })
    }

    /// The number of regions.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The region that contains all of `target`; `None` when there is none.
    pub fn find(&mut self, target: Target) -> Option<&mut Region> {
        let region = self.by_key.get_mut(&target.key.0)?;
        let offset = target.address.checked_sub(region.start)?;
        let end = offset.checked_add(target.len.into())?;
        (end <= region.memory.len() as u64).then_some(region)
    }

    /// Our key and address for theirs.
    fn translate(&self, key: Key, address: u64) -> (Key, u64) {
        match self.by_key.get(&key.0) {
            Some(region) => (region.key, region.memory.address().wrapping_add(address.wrapping_sub(region.start))),
            // No region of ours has the key 0.
            None => (Key(0), address),
        }
    }

    /// The extended headers of a request, with our keys and addresses instead of theirs.
    pub fn translated(&self, request: &Observed) -> Extension {
        let reth = |reth: &Reth| {
            let (key, address) = self.translate(reth.key(), reth.address());
            Reth::new(address, key, reth.length())
        };
        match request.packet().headers().extension {
            Extension::Reth(theirs) => Extension::Reth(reth(&theirs)),
            Extension::RethImmDt(theirs, imm) => Extension::RethImmDt(reth(&theirs), imm),
            Extension::FethReth(feth, theirs) => Extension::FethReth(feth, reth(&theirs)),
            Extension::Atomic(eth) => {
                let (key, address) = self.translate(eth.key(), eth.address());
                Extension::Atomic(AtomicEth::new(address, key, eth.swap_or_add(), eth.compare()))
            }
            Extension::Ieth(ieth) => Extension::Ieth(Ieth::new(self.translate(ieth.key(), 0).0)),
            other => other,
        }
    }

    /// Makes the key invalid, as if the peer's program had deregistered the region.
    pub fn deregister(&mut self, key: Key, peer: &mut StandIn) {
        if let Some(region) = self.by_key.remove(&key.0) {
            // A window's region stays; no request has its key.
            let _ = peer.endpoint.memory().deregister(region.key);
        }
    }
}

/// Binds a window over all of a region to the queue pair.
fn bind(peer: &mut StandIn, region: Key, memory: &HostMemory) -> Key {
    let scope = Scope { pd: peer.pd, queue_pair: peer.qpn };
    let window = peer.endpoint.memory().allocate_window(scope.pd, WindowKind::Two);
    let (address, len) = (memory.address(), memory.len() as u64);
    let binding = WindowBinding { window, new_key: window, region, address, len, access: ALL_ACCESS };
    peer.endpoint.memory().bind(scope, &binding).expect("a fresh window over a region that allows it");
    window
}

impl Region {
    fn offset(&self, target: Target) -> usize {
        (target.address - self.start) as usize
    }

    /// Our bytes at `target`, and for each whether the capture has shown it.
    pub fn contents(&self, target: Target) -> (Vec<u8>, &[bool]) {
        let (offset, len) = (self.offset(target), target.len as usize);
        (self.memory.to_vec(offset, len), &self.known[offset..][..len])
    }

    /// Writes `bytes` at the start of `target`, as known.
    pub fn set(&mut self, target: Target, bytes: &[u8]) {
        let offset = self.offset(target);
        self.memory.write(offset, bytes);
        self.known[offset..][..bytes.len()].fill(true);
    }

    /// Marks `target` as known: the peer has written it.
    pub fn mark_known(&mut self, target: Target) {
        let offset = self.offset(target);
        self.known[offset..][..target.len as usize].fill(true);
    }
}

/// The value that an atomic stores.
pub(super) fn after_atomic(request: &Observed, original: u64) -> u64 {
    let packet = request.packet();
    let Some(eth) = packet.atomic_eth() else { return original };
    match request.operation() {
        Operation::CompareSwap if original == eth.compare() => eth.swap_or_add(),
        Operation::CompareSwap => original,
        _ => original.wrapping_add(eth.swap_or_add()),
    }
}
