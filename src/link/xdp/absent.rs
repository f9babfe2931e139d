use super::{XdpOpenError, XdpOptions};
use crate::link::Gone;

/// A link over AF_XDP sockets, which this library was built without: it cannot be opened.
#[derive(Debug)]
pub enum AbsentXdpLink {}

pub use self::AbsentXdpLink as XdpLink;

impl AbsentXdpLink {
    /// Opens no link: its feature, `xdp`, is off.
    ///
    /// # Errors
    /// [`XdpOpenError::NotBuilt`], always.
    pub fn open(_interface: &str, _options: &XdpOptions) -> Result<Gone, XdpOpenError> {
        Err(XdpOpenError::NotBuilt)
    }

    /// Opens no link: its feature, `xdp`, is off.
    ///
    /// # Errors
    /// [`XdpOpenError::NotBuilt`], always.
    pub fn open_shared(_interface: &str, _options: &XdpOptions, _slot: u8) -> Result<Gone, XdpOpenError> {
        Err(XdpOpenError::NotBuilt)
    }
}
