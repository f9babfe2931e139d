use std::io;
use std::net::IpAddr;

use crate::link::device_error::DeviceError;

/// Why a [`UdpLink`](super::UdpLink) could not be opened: each in one line that names what, where and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum UdpOpenError {
    /// The library was built without its feature `udp`.
    #[error("this program was built without UDP sockets (uroce's feature `udp`); use --link xdp")]
    NotBuilt,
    /// There is no such interface, or the kernel did not answer.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The interface is down.
    #[error("{interface}: the interface is down; `ip link set {interface} up`")]
    Down {
        /// The name of the interface.
        interface: String,
    },
    /// Another process has the port.
    #[error("{interface}: UDP port 4791 of {address} is taken by {holder}")]
    Taken {
        /// The name of the interface.
        interface: String,
        /// The address whose port is taken.
        address: IpAddr,
        /// The process that has it, and the remedy.
        holder: String,
    },
    /// As many programs as possible share the interface.
    #[error("{interface}: 63 programs use it, and there is no room for another: end one, or use another --dev")]
    Full {
        /// The name of the interface.
        interface: String,
    },
    /// A program over AF_XDP takes the frames of the interface.
    #[error(
        "{interface}: {holder} uses it over AF_XDP and takes all RoCE frames: use another --dev, or wait until that \
         program ends"
    )]
    OverXdp {
        /// The name of the interface.
        interface: String,
        /// The process that has it.
        holder: String,
    },
    /// None of its addresses can be used.
    #[error(
        "{interface}: it has no IP address to send from; for example, `ip address add 192.0.2.1/24 dev {interface}`"
    )]
    NoAddress {
        /// The name of the interface.
        interface: String,
    },
    /// Another step of making a socket failed.
    #[error("{interface}: cannot open a UDP socket on port 4791 of {address}: {error}")]
    Socket {
        /// The name of the interface.
        interface: String,
        /// The address of the socket.
        address: IpAddr,
        /// The error that the kernel returned.
        error: io::Error,
    },
}
