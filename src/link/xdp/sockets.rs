use std::io;
use std::sync::Arc;

use xsk_rs::FrameDesc;
use xsk_rs::config::{BindFlags, Interface as InterfaceName, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::socket::Socket;
use xsk_rs::umem::{Umem, UmemCreateError};

use super::pool::Pool;
use super::queue::{Queue, QueueParts};
use super::{AttachMode, CopyMode, SINGLE_BUFFER_PACKET_BYTES, XdpOpenError, XdpOptions, rings};
use crate::link::netlink::Interface;

/// One receive chunk in as many is kept from the kernel, for frames that are held while they are handled: a step's 64
/// in two chunks each are 128. A holder of more takes them from the fill rings.
const HELD_SHARE: u32 = 16;

/// The sockets of all queues and their memory.
pub(super) struct Sockets {
    pub pool: Arc<Pool>,
    pub descriptors: Box<[FrameDesc]>,
    pub queues: Vec<Queue>,
    /// Whether the driver reads and writes the memory itself.
    pub zero_copy: bool,
    pub multi_buffer: bool,
}

impl Sockets {
    pub fn open(
        interface: &Interface,
        options: &XdpOptions,
        mode: AttachMode,
        wanted: u32,
    ) -> Result<Sockets, XdpOpenError> {
        let mut flags = BindFlags::empty();
        flags.set(BindFlags::XDP_USE_NEED_WAKEUP, options.need_wakeup);
        match (options.copy, mode) {
            (CopyMode::ZeroCopy, _) => flags |= BindFlags::XDP_ZEROCOPY,
            (CopyMode::Copy, _) | (CopyMode::Auto, AttachMode::Skb) => flags |= BindFlags::XDP_COPY,
            // Without either flag the kernel takes zero-copy where the driver has it.
            (CopyMode::Auto, AttachMode::Native) => {}
        }
        // Asked for only where packets can be that large: not all zero-copy drivers have it.
        if options.multi_buffer && interface.mtu > SINGLE_BUFFER_PACKET_BYTES {
            match Sockets::bind(interface, options, flags | BindFlags::XDP_USE_SG, wanted) {
                // Kernels before 6.6 do not know the flag, drivers may not have it.
                Err(XdpOpenError::Bind { error, .. })
                    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {}
                done => return done,
            }
        }
        Sockets::bind(interface, options, flags, wanted)
    }

    fn bind(
        interface: &Interface,
        options: &XdpOptions,
        flags: BindFlags,
        wanted: u32,
    ) -> Result<Sockets, XdpOpenError> {
        let size = |entries: u32| QueueSize::new(entries.next_power_of_two()).expect("a power of two");
        let receive_frames = options.receive_chunks(wanted);
        let receive = size(receive_frames);
        // Every descriptor of every packet fits: these rings are never full.
        let transmit = size(2 * options.transmit_packets);
        let (pool, umem, descriptors) = Pool::new(receive_frames, options.transmit_packets, receive, transmit)
            .map_err(|error| memory_error(interface, options.memory_bytes(wanted), error))?;
        let config = SocketConfig::builder()
            .rx_queue_size(receive)
            .tx_queue_size(transmit)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(flags)
            .build();
        let mut queues = Vec::new();
        for number in 0..wanted {
            let parts = match rings::while_busy(|| bind(config, &umem, &interface.name, number)) {
                Ok(parts) => parts,
                // The kernel lists the queues the driver could have; the last of them need not exist.
                Err(error) if number > 0 && options.queues.is_none() && error.raw_os_error() == Some(libc::EINVAL) => {
                    break;
                }
                Err(error) => return Err(bind_error(interface, options, flags, number, error)),
            };
            queues.push(parts);
        }
        let all = pool.receive_chunks();
        let chunks = ((all - all.div_ceil(HELD_SHARE)) / queues.len() as u32).max(1);
        let mut queues: Vec<Queue> = queues
            .into_iter()
            .map(|(tx, rx, fill, completion)| {
                let need_wakeup = options.need_wakeup;
                let parts = QueueParts { tx, rx, fill, completion, need_wakeup, transmit_ring: transmit.get(), chunks };
                Queue::new(parts)
            })
            .collect();
        for queue in &queues {
            rings::set_up(queue.fd(), transmit.get());
        }
        let zero_copy = rings::is_zero_copy(queues[0].fd());
        if zero_copy {
            // A driver has a ring of its own to fill, and this is untested.
            queues.iter_mut().for_each(Queue::keep_room);
        }
        let multi_buffer = flags.contains(BindFlags::XDP_USE_SG);
        Ok(Sockets { pool, descriptors, queues, zero_copy, multi_buffer })
    }
}

type Rings = (xsk_rs::socket::TxQueue, xsk_rs::socket::RxQueue, xsk_rs::umem::FillQueue, xsk_rs::umem::CompQueue);

fn bind(config: SocketConfig, umem: &Umem, interface: &str, queue: u32) -> io::Result<Rings> {
    let name: InterfaceName = padded(interface).parse().map_err(io::Error::other)?;
    // SAFETY: the library loads no program, which is what its contract asks of sockets that share memory.
    let made = unsafe { Socket::new(config, umem, &name, queue) };
    match made {
        Ok((tx, rx, Some((fill, completion)))) => Ok((tx, rx, fill, completion)),
        Ok((_, _, None)) => Err(io::Error::other("the queue is bound by this link already")),
        Err(error) => Err(source(&error)),
    }
}

/// The name as the socket library needs it: the library copies 15 bytes of it however short it is (libxdp's `xsk_create_ctx`),
/// which must be ours. From a colon on the kernel takes a name for that of an alias, and leaves it out (`dev_ioctl`,
/// net/core/dev_ioctl.c); interfaces' own names have none.
fn padded(interface: &str) -> String {
    format!("{interface::<width$}", width = libc::IFNAMSIZ - 1)
}

/// The error number behind the library's error.
fn source(error: &(dyn std::error::Error + 'static)) -> io::Error {
    match error.source().and_then(|e| e.downcast_ref::<io::Error>()) {
        Some(inner) => {
            inner.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
        }
        None => io::Error::other(error.to_string()),
    }
}

fn memory_error(interface: &Interface, bytes: u64, error: UmemCreateError) -> XdpOpenError {
    let interface = interface.name.clone();
    let error = source(&error);
    match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => XdpOpenError::NoAfXdp { interface },
        Some(libc::EPERM | libc::EACCES) => XdpOpenError::Capability { interface, missing: vec!["CAP_NET_RAW"] },
        Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN) => XdpOpenError::Memory { interface, bytes, error },
        _ => XdpOpenError::Step { interface, what: "registering memory", error },
    }
}

fn bind_error(
    interface: &Interface,
    options: &XdpOptions,
    flags: BindFlags,
    queue: u32,
    error: io::Error,
) -> XdpOpenError {
    let name = interface.name.clone();
    match error.raw_os_error() {
        Some(libc::EBUSY) => XdpOpenError::Busy { interface: name, queue },
        Some(libc::EOPNOTSUPP | libc::EINVAL)
            if options.copy == CopyMode::ZeroCopy && !flags.contains(BindFlags::XDP_USE_SG) =>
        {
            XdpOpenError::ZeroCopy { interface: name, error }
        }
        _ => XdpOpenError::Bind { interface: name, queue, error },
    }
}
