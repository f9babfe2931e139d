use std::io;
use std::net::IpAddr;

use super::Rails;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no such device.
    #[error("no device {name}; there {}", list(known))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The names of the devices that exist.
        known: Vec<String>,
    },
    /// No device has the address.
    #[error("no device has the address {address}: see `uroce devices`")]
    NoAddress {
        /// The address that was given.
        address: IpAddr,
    },
    /// A device cannot have the name.
    #[error("`{name}` is no name for a device: use 1 to 56 letters, digits, `_`, `-` and `.`, and no `.` in front")]
    Name {
        /// The name that was given.
        name: String,
    },
    /// A further interface is given a name.
    #[error("{name}: the device has one name, which the first interface gives it")]
    NotFirst {
        /// What was given.
        name: String,
    },
    /// The same interface is named more than once.
    #[error("{name} is named twice: name each interface once")]
    Twice {
        /// The name of the interface.
        name: String,
    },
    /// More interfaces are named than a device can have.
    #[error("{count} interfaces are named; a device has at most {}", Rails::MAX)]
    TooMany {
        /// The number of interfaces that were named.
        count: usize,
    },
    /// No interface is usable.
    #[error("no usable device: no interface is up, not even lo; see `ip link`, and `uroce devices`")]
    None,
    /// The kernel did not answer.
    #[error("the kernel did not list its interfaces: {0}")]
    Netlink(#[from] io::Error),
}

fn list(known: &[String]) -> String {
    if known.is_empty() { "are none".to_owned() } else { format!("are {}", known.join(", ")) }
}
