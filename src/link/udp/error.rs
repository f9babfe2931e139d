use std::io;
use std::net::IpAddr;

use crate::link::device_error::DeviceError;

/// Why a [`UdpLink`](super::UdpLink) could not be opened: each in one line that names what, where and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum UdpOpenError {
    /// The library was built without its feature `udp`.
    #[error("this program was built without UDP sockets (uroce's feature `udp`); use --link xdp")]
    NotBuilt,
    /// There is no such interface, or the kernel did not say.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The interface is set down.
    #[error("{interface}: the interface is down; `ip link set {interface} up`")]
    Down {
        /// The interface.
        interface: String,
    },
    /// Somebody else has the port.
    #[error("{interface}: UDP port 4791 of {address} is taken by {holder}")]
    Taken {
        /// The interface.
        interface: String,
        /// The address.
        address: IpAddr,
        /// Who has it, and what to do.
        holder: String,
    },
    /// A program over AF_XDP takes the frames of the interface.
    #[error(
        "{interface}: {holder} has it over AF_XDP and takes all RoCE frames: use another --dev, or wait for that program's end"
    )]
    OverXdp {
        /// The interface.
        interface: String,
        /// Who has it.
        holder: String,
    },
    /// None of its addresses can be used.
    #[error("{interface}: it has no IP address to send from; `ip address add 192.0.2.1/24 dev {interface}`, say")]
    NoAddress {
        /// The interface.
        interface: String,
    },
    /// Something else failed.
    #[error("{interface}: a UDP socket on port 4791 of {address}: {error}")]
    Socket {
        /// The interface.
        interface: String,
        /// The address.
        address: IpAddr,
        /// The kernel's answer.
        error: io::Error,
    },
}
