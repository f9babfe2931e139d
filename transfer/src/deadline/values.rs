use std::fmt;
use std::sync::Arc;

use super::{Shape, ShapeError};

/// Where the bytes of an object are.
pub trait Source: Send + Sync {
    /// Length of the object, in bytes.
    fn bytes(&self) -> u64;

    /// Copies the bytes from `offset` on. They can change meanwhile: the receiver then finds the block's checksum wrong,
    /// and counts it as missing.
    fn read(&self, offset: u64, into: &mut [u8]);
}

impl Source for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self[offset as usize..][..into.len()]);
    }
}

/// An object as its sender has it: a version, and blocks.
#[derive(Clone)]
pub struct Values {
    version: u64,
    block_bytes: u32,
    source: Arc<dyn Source>,
}

impl Values {
    /// The object of this version, in blocks of `block_bytes`.
    ///
    /// # Errors
    /// [`ShapeError`] when it cannot be cut like this into symbols of any length.
    pub fn new(version: u64, block_bytes: u32, source: impl Source + 'static) -> Result<Values, ShapeError> {
        Shape::new(source.bytes(), block_bytes, Shape::SYMBOL_BYTES_MAX)?;
        Ok(Values { version, block_bytes, source: Arc::new(source) })
    }

    /// The version of all its bytes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Length of a block, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Where the bytes are.
    pub fn source(&self) -> &dyn Source {
        &*self.source
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} of {} bytes in blocks of {}", self.version, self.source.bytes(), self.block_bytes)
    }
}
