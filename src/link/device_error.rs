use std::io;

use super::Rails;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no such device.
    #[error("no device {name}; there {}", list(known))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The devices there are.
        known: Vec<String>,
    },
    /// The same interface is named twice.
    #[error("{name} is named twice: each interface is one way")]
    Twice {
        /// Its name.
        name: String,
    },
    /// More interfaces are named than a device can have.
    #[error("{count} interfaces are named; a device has {} at the most", Rails::MAX)]
    TooMany {
        /// How many.
        count: usize,
    },
    /// No interface can be used.
    #[error("no usable device: no interface is up, not even lo; see `ip link`, and `uroce devices`")]
    None,
    /// The kernel did not answer.
    #[error("the kernel did not list its interfaces: {0}")]
    Netlink(#[from] io::Error),
}

fn list(known: &[String]) -> String {
    if known.is_empty() { "are none".to_owned() } else { format!("are {}", known.join(", ")) }
}
