use std::path::Path;

use super::{UdpOffload, UdpOpenError};
use crate::link::Gone;

/// A link over UDP sockets, which this library was built without: it cannot be opened.
#[derive(Debug)]
pub enum AbsentUdpLink {}

pub use self::AbsentUdpLink as UdpLink;

impl AbsentUdpLink {
    /// Opens no link: its feature, `udp`, is off.
    ///
    /// # Errors
    /// [`UdpOpenError::NotBuilt`], always.
    pub fn open(_interface: &str) -> Result<Gone, UdpOpenError> {
        Err(UdpOpenError::NotBuilt)
    }

    /// Opens no link: its feature, `udp`, is off.
    ///
    /// # Errors
    /// [`UdpOpenError::NotBuilt`], always.
    pub fn open_with(_interface: &str, _offload: UdpOffload) -> Result<Gone, UdpOpenError> {
        Err(UdpOpenError::NotBuilt)
    }

    /// Opens no link: its feature, `udp`, is off.
    ///
    /// # Errors
    /// [`UdpOpenError::NotBuilt`], always.
    pub fn open_shared(_interface: &str, _offload: UdpOffload, _arbiter: &Path) -> Result<Gone, UdpOpenError> {
        Err(UdpOpenError::NotBuilt)
    }
}
