use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

/// Without the feature `udp` nobody learns that a datagram was refused.
#[derive(Debug)]
pub(crate) enum RefusalProbe {}

impl RefusalProbe {
    pub fn open(_address: IpAddr, _scope: u32) -> io::Result<RefusalProbe> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn address(&self) -> IpAddr {
        match *self {}
    }

    pub fn port(&self) -> u16 {
        match *self {}
    }

    pub fn ask(&self, _destination: IpAddr, _payload: &[u8]) {
        match *self {}
    }

    pub fn refused(&self) -> Option<IpAddr> {
        match *self {}
    }
}

impl AsRawFd for RefusalProbe {
    fn as_raw_fd(&self) -> RawFd {
        match *self {}
    }
}
