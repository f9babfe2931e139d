use std::ops::Range;
use std::sync::Arc;

use uroce::memory::{Access, HostMemory, MemoryTable, Pd};
use uroce::wire::Key;

use crate::sim::pattern;

/// A range of an arena: offset and length, in bytes.
pub(super) type Piece = (u32, u32);

/// The offsets of a piece.
pub(super) fn range((start, len): Piece) -> Range<usize> {
    start as usize..(start + len) as usize
}

/// The memory of one side of a connection, and its expected contents. Its address in requests follows from its name and
/// not from its mapping, so that it is equal in every run.
pub(super) struct Arena {
    host: Arc<HostMemory>,
    address: u64,
    /// The expected value of every byte, except where requests in flight can have written.
    shadow: Vec<u8>,
    scratch: Vec<u8>,
}

impl Arena {
    /// Memory of `len` bytes that is filled with the pattern `name`.
    pub fn new(len: usize, name: u64) -> Arena {
        let host = Arc::new(HostMemory::new(len).expect("the simulation's memory"));
        let mut shadow = vec![0; len];
        pattern::fill(name, 0, &mut shadow);
        host.write(0, &shadow);
        // The address is above 2^36; arenas are at least a MiB apart.
        let address = (1 << 36) + (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 << 20);
        Arena { host, address, shadow, scratch: Vec::new() }
    }

    /// The address of the byte at `offset`, as requests name it.
    pub fn address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    /// Registers a part: its offset and length, in bytes.
    pub fn register(&self, memory: &mut MemoryTable, pd: Pd, part: (usize, usize), access: Access) -> Key {
        memory.register_part(pd, self.host.clone(), part, self.address(part.0), access)
    }

    pub fn len(&self) -> usize {
        self.shadow.len()
    }

    /// Writes `bytes` as the program.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.host.write(offset, bytes);
        self.shadow[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a pattern as the program.
    pub fn scribble(&mut self, offset: usize, len: usize, name: u64) {
        let Arena { host, shadow, .. } = self;
        let bytes = &mut shadow[offset..][..len];
        pattern::fill(name, 0, bytes);
        host.write(offset, bytes);
    }

    /// The expected contents of a range, to be changed.
    pub fn shadow(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.shadow[offset..][..len]
    }

    pub fn expected(&self, offset: usize, len: usize) -> &[u8] {
        &self.shadow[offset..][..len]
    }

    /// The actual byte at `offset`.
    pub fn actual(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.host.read(offset, &mut byte);
        byte[0]
    }

    pub fn actual_u64(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.host.read(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Takes the actual contents of a range as expected from now on.
    pub fn accept(&mut self, offset: usize, len: usize) {
        let Arena { host, shadow, .. } = self;
        host.read(offset, &mut shadow[offset..][..len]);
    }

    /// The offsets in `range` at which the actual and expected bytes differ.
    pub fn differences(&mut self, range: Range<usize>) -> Vec<usize> {
        self.scratch.resize(range.len(), 0);
        self.host.read(range.start, &mut self.scratch);
        let shadow = &self.shadow[range.clone()];
        if self.scratch == shadow {
            return Vec::new();
        }
        let bytes = range.zip(self.scratch.iter().zip(shadow));
        bytes.filter(|(_, (is, must))| is != must).map(|(offset, _)| offset).collect()
    }

    /// The same in all of `pieces`.
    pub fn differences_in(&mut self, pieces: &[Piece]) -> Vec<usize> {
        pieces.iter().flat_map(|piece| self.differences(range(*piece))).collect()
    }
}
