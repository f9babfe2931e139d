//! Frames over AF_XDP: our BPF program passes RoCE v2 to our sockets, and everything else to the kernel.
//!
//! The options and the errors exist without the feature `xdp` too. Opening a link fails then, with an error that names the
//! feature.

#[cfg_attr(not(feature = "xdp"), path = "xdp/absent.rs")]
mod link;

#[cfg(feature = "xdp")]
mod accounts;
mod error;
#[cfg(feature = "xdp")]
mod opening;
#[cfg(feature = "xdp")]
mod pool;
#[cfg(feature = "xdp")]
mod program;
#[cfg(feature = "xdp")]
mod queue;
#[cfg(feature = "xdp")]
mod rings;
#[cfg(feature = "xdp")]
mod room;
#[cfg(feature = "xdp")]
mod sockets;

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "xdp")]
pub use self::accounts::FrameAccounts;
pub use self::error::XdpOpenError;
pub use self::link::XdpLink;

/// Size of a chunk in bytes: the most that AF_XDP allows, one page (net/xdp/xdp_umem.c).
const CHUNK_BYTES: usize = 4096;

/// Bytes that the kernel keeps free at a received chunk's start (XDP_PACKET_HEADROOM). We leave them free when sending
/// too, since the library's descriptors always point behind them.
const HEADROOM_BYTES: usize = 256;

/// Frame bytes that fit into one chunk.
const CHUNK_CAPACITY: usize = CHUNK_BYTES - HEADROOM_BYTES;

/// Length of an Ethernet header with one VLAN tag, in bytes.
const ETHERNET_BYTES_MAX: usize = 18;

/// The largest IP packet that fits into one chunk, with a VLAN tag, in bytes.
pub(crate) const SINGLE_BUFFER_PACKET_BYTES: usize = CHUNK_CAPACITY - ETHERNET_BYTES_MAX;

/// The largest IP packet in two chunks, in bytes.
pub(crate) const MULTI_BUFFER_PACKET_BYTES: usize = 2 * CHUNK_CAPACITY - ETHERNET_BYTES_MAX;

/// Receive chunks for each of several queues. Nearly all of them are in its fill ring, so that one NAPI poll's 64
/// packets of two chunks do not empty it.
const CHUNKS_A_QUEUE_MIN: u32 = 256;

/// Where in the receive path the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver: the fastest. Also called driver mode.
    Native,
    /// In the kernel's network stack, on any interface. Also called generic mode.
    Skb,
}

impl AttachMode {
    /// The name of the mode: `native` or `skb`.
    pub fn name(self) -> &'static str {
        match self {
            AttachMode::Native => "native",
            AttachMode::Skb => "skb",
        }
    }
}

/// A text that is not an XDP mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an XDP mode: use native or skb")]
pub struct AttachModeError(String);

impl FromStr for AttachMode {
    type Err = AttachModeError;

    fn from_str(text: &str) -> Result<AttachMode, AttachModeError> {
        let all = [AttachMode::Native, AttachMode::Skb];
        all.into_iter().find(|mode| mode.name() == text).ok_or_else(|| AttachModeError(text.to_owned()))
    }
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the kernel copies packets to and from our memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy where the driver supports it, otherwise copies.
    #[default]
    Auto,
    /// Copies, whatever the driver supports.
    Copy,
    /// Zero-copy, or an error. Untested: no interface at hand supports it.
    ZeroCopy,
}

/// How an [`XdpLink`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// Where the program is attached. `None`: native, and skb where the driver does not support that.
    pub mode: Option<AttachMode>,
    /// Whether the kernel copies packets, or the driver uses our memory.
    pub copy: CopyMode,
    /// Whether the kernel signals when it must be called (XDP_USE_NEED_WAKEUP). No difference on veth.
    pub need_wakeup: bool,
    /// Receive queues to serve, from 0 on, with one socket each; `None` for all of the interface's. The kernel gets
    /// RoCE on the others.
    pub queues: Option<u32>,
    /// Chunks of 4 KiB for received frames, 64 to 65536, and at least 256 a queue. A frame takes one, or two above 3840
    /// bytes.
    ///
    /// The kernel has 1024 of a queue's, which stay near the processors: copies to them are 20 % faster. After frames
    /// have waited it has twice as many as waited, for some seconds. It has nearly all from the first queue pair on whose
    /// messages nobody sends again ([`expect_unreliable`](crate::link::Link::expect_unreliable)): arrivals while the receiving
    /// thread has no processor must find room then. 15,360 hold some 20 ms at the 0.7 Mpps of a veth, or at its 0.38 Mpps of two
    /// chunks each. That is a few turns of other programs (docs/INTEROP.md has the floods without loss).
    ///
    /// They are cleared and locked when the link is opened: some 50 ms more than for 4096 on a busy machine, much more
    /// in an emulated one.
    pub receive_frames: u32,
    /// Packets that can be on their way out at the same time, 8 KiB each, 16 to 16384.
    pub transmit_packets: u32,
    /// Whether packets can take two chunks (Linux 6.6 and later). Without, the path MTU is at most 2048.
    pub multi_buffer: bool,
}

impl Default for XdpOptions {
    fn default() -> Self {
        XdpOptions {
            mode: None,
            copy: CopyMode::Auto,
            need_wakeup: true,
            queues: None,
            // With the buffers to send from 64 MiB.
            receive_frames: 15_360,
            transmit_packets: 512,
            multi_buffer: true,
        }
    }
}

impl XdpOptions {
    /// Memory for frames in bytes, which the kernel locks, for a link with `queues` receive queues.
    pub(super) fn memory_bytes(&self, queues: u32) -> u64 {
        u64::from(self.receive_chunks(queues) + 2 * self.transmit_packets) * CHUNK_BYTES as u64
    }

    /// The number of chunks to receive into.
    fn receive_chunks(&self, queues: u32) -> u32 {
        self.receive_frames.max(if queues > 1 { queues * CHUNKS_A_QUEUE_MIN } else { 0 })
    }
}
