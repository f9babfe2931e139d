//! Why a link could not be opened.

use std::io;
use std::net::IpAddr;

use super::AttachMode;

/// Why an [`XdpLink`](super::XdpLink) could not be opened: each in one line that names what, where and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum XdpOpenError {
    /// The library was built without its feature `xdp`.
    #[error("this program was built without AF_XDP (uroce's feature `xdp`); use --link udp")]
    NotBuilt,
    /// There is no such interface in this network namespace.
    #[error("{interface}: no such interface; `uroce devices` and `ip link` list what there is")]
    NoInterface {
        /// The name asked for.
        interface: String,
    },
    /// The interface is the loopback or a tunnel.
    #[error("{interface}: not an Ethernet interface; use --link udp on it")]
    NotEthernet {
        /// The interface.
        interface: String,
    },
    /// The interface is set down.
    #[error("{interface}: the interface is down; `ip link set {interface} up`")]
    Down {
        /// The interface.
        interface: String,
    },
    /// The process lacks privileges.
    #[error(
        "{interface}: AF_XDP needs {}, which this process lacks; run it as root, or `setcap {}+ep PROGRAM`, or use --link udp",
        missing.join(", "), missing.join(",").to_lowercase()
    )]
    Capability {
        /// The interface.
        interface: String,
        /// The capabilities that are missing.
        missing: Vec<&'static str>,
    },
    /// The kernel did not let this process load or attach a program, although its capabilities look right.
    #[error(
        "{interface}: the kernel refused the XDP program ({error}); in a container or user namespace the capabilities must come from the host; or use --link udp"
    )]
    LoadRefused {
        /// The interface.
        interface: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The kernel was built without AF_XDP.
    #[error("{interface}: this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use --link udp")]
    NoAfXdp {
        /// The interface.
        interface: String,
    },
    /// A program of this stack has the interface.
    #[error("{interface}: {holder} has it over AF_XDP: use another --dev, or wait for that program's end")]
    Taken {
        /// The interface.
        interface: String,
        /// Who has it.
        holder: String,
    },
    /// Somebody receives RoCE by UDP sockets, whose packets would come here.
    #[error(
        "{interface}: {holder} receives RoCE on UDP port 4791 of {address}, and over AF_XDP its packets would come here: use \
         another --dev, or wait for that program's end"
    )]
    Sockets {
        /// The interface.
        interface: String,
        /// The address of the socket.
        address: IpAddr,
        /// Who has it.
        holder: String,
    },
    /// Another program is attached to the interface.
    #[error("{interface}: another XDP program is attached, {owner}: use --link udp, or another --dev")]
    OtherProgram {
        /// The interface.
        interface: String,
        /// By whom, as far as is known.
        owner: String,
    },
    /// The MTU is too large for the mode.
    #[error("{interface}: MTU {mtu} is too large for {} mode; lower it, or use skb mode", mode.name())]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// The mode asked for.
        mode: AttachMode,
    },
    /// The program could not be attached.
    #[error("{interface}: no XDP program can be attached in {} mode ({error}); try the other mode", mode.name())]
    Attach {
        /// The interface.
        interface: String,
        /// The mode tried last.
        mode: AttachMode,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Zero-copy was asked for and is not there.
    #[error("{interface}: the driver has no zero-copy ({error}); use copy mode")]
    ZeroCopy {
        /// The interface.
        interface: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Another socket has the queue.
    #[error("{interface}: queue {queue} belongs to another AF_XDP socket; end the program that has it")]
    Busy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The kernel did not bind the socket.
    #[error("{interface}: queue {queue} could not be bound ({error})")]
    Bind {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The memory for frames could not be locked.
    #[error(
        "{interface}: {bytes} bytes for frames could not be locked ({error}); raise `ulimit -l`, grant CAP_IPC_LOCK, or use fewer frames"
    )]
    Memory {
        /// The interface.
        interface: String,
        /// The bytes asked for.
        bytes: u64,
        /// The kernel's answer.
        error: io::Error,
    },
    /// An option is out of range.
    #[error("{what} is {value}, not between {least} and {most}")]
    Option {
        /// The option.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The smallest possible.
        least: u32,
        /// The largest possible.
        most: u32,
    },
    /// Another step failed.
    #[error("{interface}: {what}: {error}")]
    Step {
        /// The interface.
        interface: String,
        /// What was being done.
        what: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
}
