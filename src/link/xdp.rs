//! Frames over AF_XDP: our BPF program hands RoCE v2 to sockets of ours, everything else goes on to the kernel.
//!
//! The options and the errors are there without the feature `xdp`, too: what is missing then is said when a link is opened.

#[cfg_attr(not(feature = "xdp"), path = "xdp/absent.rs")]
mod link;

mod error;
#[cfg(feature = "xdp")]
mod pool;
#[cfg(feature = "xdp")]
mod program;
#[cfg(feature = "xdp")]
mod queue;
#[cfg(feature = "xdp")]
mod rings;

pub use self::error::XdpOpenError;
#[cfg(feature = "xdp")]
pub use self::link::FrameAccounts;
pub use self::link::XdpLink;

/// Bytes of a chunk: the most that AF_XDP allows, one page (net/xdp/xdp_umem.c).
const CHUNK_BYTES: usize = 4096;

/// Bytes that the kernel keeps free at a received chunk's start (XDP_PACKET_HEADROOM); we leave them free when sending
/// too, since the library's descriptors always point behind them.
const HEADROOM_BYTES: usize = 256;

/// Frame bytes in one chunk.
const CHUNK_CAPACITY: usize = CHUNK_BYTES - HEADROOM_BYTES;

/// Bytes of an Ethernet header with one VLAN tag.
const ETHERNET_BYTES_MAX: usize = 18;

/// The largest IP packet that fits into one chunk, VLAN tag and all.
pub(crate) const SINGLE_BUFFER_PACKET_BYTES: usize = CHUNK_CAPACITY - ETHERNET_BYTES_MAX;

/// The largest IP packet in two chunks.
pub(crate) const MULTI_BUFFER_PACKET_BYTES: usize = 2 * CHUNK_CAPACITY - ETHERNET_BYTES_MAX;

/// Receive chunks for each of several queues: nearly all of them are in its fill ring, so that one NAPI poll's 64 packets of
/// two chunks do not empty it.
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
    /// `native` or `skb`.
    pub fn name(self) -> &'static str {
        match self {
            AttachMode::Native => "native",
            AttachMode::Skb => "skb",
        }
    }
}

/// Whether the kernel copies packets to and from our memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy where the driver can, else copies.
    #[default]
    Auto,
    /// Always copies.
    Copy,
    /// Zero-copy, or an error. Untested: no interface at hand can do it.
    ZeroCopy,
}

/// How an [`XdpLink`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// Where the program is attached; `None`: native, and where the driver cannot, skb.
    pub mode: Option<AttachMode>,
    /// Copying or not.
    pub copy: CopyMode,
    /// Whether the kernel says when it needs to be called (XDP_USE_NEED_WAKEUP). No difference on veth.
    pub need_wakeup: bool,
    /// Receive queues to serve, from 0 on, one socket each; `None`: all of the interface's. RoCE on the others goes to
    /// the kernel.
    pub queues: Option<u32>,
    /// Chunks of 4 KiB for received frames, 64 to 65536, and at least 256 a queue; a frame takes one, or two above 3840
    /// bytes. Nearly all of them are with the kernel: what comes while the receiving thread has no processor must find
    /// room, since nobody sends unreliable messages again. 15,360 survive some 20 ms at the 0.7 Mpps of a veth, or at its
    /// 0.38 Mpps of two chunks each: a few turns of other programs (docs/INTEROP.md has the floods that came whole). They
    /// are cleared and locked when the link is opened: some 50 ms more than for 4096 on a busy machine, much more in an
    /// emulated one. 512 stay in the cache and are up to 8 % faster.
    pub receive_frames: u32,
    /// Packets that can be on their way out at the same time, 8 KiB each, 16 to 16384.
    pub transmit_packets: u32,
    /// Whether packets may take two chunks (kernel 6.6 and later); without, the path MTU is 2048 at the most.
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
    /// Bytes of memory for frames, which the kernel locks, of a link with so many receive queues.
    pub(super) fn memory_bytes(&self, queues: u32) -> u64 {
        u64::from(self.receive_chunks(queues) + 2 * self.transmit_packets) * CHUNK_BYTES as u64
    }

    /// Chunks to receive into.
    fn receive_chunks(&self, queues: u32) -> u32 {
        self.receive_frames.max(if queues > 1 { queues * CHUNKS_A_QUEUE_MIN } else { 0 })
    }
}
