//! Why a link could not be opened.

use std::io;
use std::net::IpAddr;

use super::AttachMode;

/// Why an [`XdpLink`](super::XdpLink) could not be opened: each in one line that names what, where and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum XdpOpenError {
    /// The library was built without its feature `xdp`.
    #[error(
        "this program was built without AF_XDP: use --link udp, or build it with its feature `xdp`, which cargo takes by default"
    )]
    NotBuilt,
    /// There is no such interface in this network namespace.
    #[error("{interface}: no such interface; `uroce devices` and `ip link` list the existing ones")]
    NoInterface {
        /// The name that was given.
        interface: String,
    },
    /// The interface is the loopback or a tunnel.
    #[error("{interface}: not an Ethernet interface; use --link udp on it")]
    NotEthernet {
        /// The name of the interface.
        interface: String,
    },
    /// The interface is down.
    #[error("{interface}: the interface is down; `ip link set {interface} up`")]
    Down {
        /// The name of the interface.
        interface: String,
    },
    /// The process does not have the capabilities that AF_XDP needs.
    #[error(
        "{interface}: AF_XDP needs {}, which this process does not have; run it as root, or `setcap {}+ep PROGRAM`, or \
         use --link udp",
        missing.join(", "), missing.join(",").to_lowercase()
    )]
    Capability {
        /// The name of the interface.
        interface: String,
        /// The capabilities that are missing.
        missing: Vec<&'static str>,
    },
    /// The kernel did not let this process load or attach a program, although its capabilities look right.
    #[error(
        "{interface}: the kernel refused the XDP program ({error}); in a container or user namespace the capabilities must come from the host; or use --link udp"
    )]
    LoadRefused {
        /// The name of the interface.
        interface: String,
        /// The error that the kernel returned.
        error: io::Error,
    },
    /// The kernel was built without AF_XDP.
    #[error("{interface}: this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use --link udp")]
    NoAfXdp {
        /// The name of the interface.
        interface: String,
    },
    /// Another program of this stack has the interface.
    #[error("{interface}: {holder} uses it over AF_XDP: use another --dev, or wait until that program ends")]
    Taken {
        /// The name of the interface.
        interface: String,
        /// The process that has it.
        holder: String,
    },
    /// Another of the programs that share the interface has it over AF_XDP.
    #[error("{interface}: {holder} uses it over AF_XDP, and others share it over UDP sockets")]
    Shared {
        /// The name of the interface.
        interface: String,
        /// The process that has it.
        holder: String,
    },
    /// UDP sockets receive RoCE on the interface, and would lose their packets to this link.
    #[error(
        "{interface}: {holder} receives RoCE on UDP port 4791 of {address}; AF_XDP would take its packets: use another \
         --dev, or wait until that program ends"
    )]
    Sockets {
        /// The name of the interface.
        interface: String,
        /// The address of the socket.
        address: IpAddr,
        /// The process that has the socket.
        holder: String,
    },
    /// Another program is attached to the interface.
    #[error("{interface}: another XDP program is attached, {owner}: use --link udp, or another --dev")]
    OtherProgram {
        /// The name of the interface.
        interface: String,
        /// The owner of the program, as far as it is known.
        owner: String,
    },
    /// The interface's MTU is too large for the mode.
    #[error("{interface}: MTU {mtu} is too large for {} mode; lower it, or use skb mode", mode.name())]
    Mtu {
        /// The name of the interface.
        interface: String,
        /// The MTU of the interface, in bytes.
        mtu: usize,
        /// The mode that was requested.
        mode: AttachMode,
    },
    /// The program could not be attached.
    #[error("{interface}: no XDP program can be attached in {} mode ({error}); try the other mode", mode.name())]
    Attach {
        /// The name of the interface.
        interface: String,
        /// The mode that was tried last.
        mode: AttachMode,
        /// The error that the kernel returned.
        error: io::Error,
    },
    /// Zero-copy was requested, and the driver does not support it.
    #[error("{interface}: the driver does not support zero-copy ({error}); use copy mode")]
    ZeroCopy {
        /// The name of the interface.
        interface: String,
        /// The error that the kernel returned.
        error: io::Error,
    },
    /// Another socket is bound to the queue.
    #[error("{interface}: queue {queue} belongs to another AF_XDP socket; end the program that uses it")]
    Busy {
        /// The name of the interface.
        interface: String,
        /// The number of the queue.
        queue: u32,
    },
    /// The kernel did not bind the socket.
    #[error("{interface}: queue {queue} could not be bound ({error})")]
    Bind {
        /// The name of the interface.
        interface: String,
        /// The number of the queue.
        queue: u32,
        /// The error that the kernel returned.
        error: io::Error,
    },
    /// The memory for frames could not be locked.
    #[error(
        "{interface}: {bytes} bytes for frames could not be locked ({error}); raise `ulimit -l`, grant CAP_IPC_LOCK, or use fewer frames"
    )]
    Memory {
        /// The name of the interface.
        interface: String,
        /// The size of the memory, in bytes.
        bytes: u64,
        /// The error that the kernel returned.
        error: io::Error,
    },
    /// An option is out of range.
    #[error("{what} is {value}, not between {least} and {most}")]
    Option {
        /// The name of the option.
        what: &'static str,
        /// The value that was given.
        value: u32,
        /// The smallest valid value.
        least: u32,
        /// The largest valid value.
        most: u32,
    },
    /// Another step of opening the link failed.
    #[error("{interface}: {what}: {error}")]
    Step {
        /// The name of the interface.
        interface: String,
        /// The step that failed.
        what: &'static str,
        /// The error that the kernel returned.
        error: io::Error,
    },
}
