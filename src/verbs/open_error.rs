use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::link::device::DeviceError;
use crate::link::udp::UdpOpenError;
use crate::link::xdp::XdpOpenError;

use super::traffic_policy::TrafficPolicyError;

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such device, or it is not usable.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The AF_XDP link was not opened.
    #[error(transparent)]
    Xdp(#[from] XdpOpenError),
    /// The link over UDP sockets was not opened.
    #[error(transparent)]
    Udp(#[from] UdpOpenError),
    /// AF_XDP is requested for one address.
    #[error(
        "{address} is one address of {interface}, and AF_XDP takes a whole interface: --link udp opens the address, and \
         --dev {interface} the interface"
    )]
    OneAddress {
        /// The address that was named.
        address: IpAddr,
        /// The name of its interface.
        interface: String,
    },
    /// Further interfaces are named, but not the first one.
    #[error("{rails} further interfaces are named, but not the first: name it, too")]
    NoFirst {
        /// The number of further interfaces.
        rails: usize,
    },
    /// AF_XDP is requested, no person named the device, and a default route leaves by it.
    #[error("the default route uses {device}, which was not named: --dev {device} opens it over AF_XDP")]
    Unnamed {
        /// The name of the interface.
        device: String,
    },
    /// More paths than interfaces are requested over UDP sockets.
    #[error(
        "{paths} paths need AF_XDP: UDP sockets have one path for each interface, since their source port is always 4791. \
         Omit --paths, set it to {interfaces}, or open the device over AF_XDP"
    )]
    UdpPaths {
        /// The number of paths that was requested.
        paths: u16,
        /// The number of interfaces, and so of possible paths.
        interfaces: usize,
    },
    /// The MTU is too small for the smallest path MTU and its headers.
    #[error(
        "the MTU of {device} is {bytes} bytes; RoCE needs at least 336: set it with `ip link set {device} mtu 1500`"
    )]
    Mtu {
        /// The name of the interface.
        device: String,
        /// The largest IP packet of the link, in bytes.
        bytes: usize,
    },
    /// The capture file cannot be created or written.
    #[error("cannot write the capture {}: {source}", file.display())]
    Capture {
        /// The path of the file.
        file: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The policy cannot be read or kept to.
    #[error(transparent)]
    Policy(#[from] TrafficPolicyError),
    /// The kernel gave no thread, descriptor or randomness.
    #[error("cannot start the engine: {0}")]
    Engine(#[from] io::Error),
}
