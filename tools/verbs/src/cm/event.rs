//! Events, and what happens when a program takes one.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::abi::{IbvAhAttr, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, RdmaEventParam, RdmaUdParam};
use crate::error::{Failure, event_taken, minus_one};
use crate::queue::{Acknowledged, EventQueue};
use crate::slab::{Object, Slab};

use super::{channel, id, queue_pair};

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Kind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    MulticastError = 13,
    TimeWaitExit = 15,
    AddrInfoResolved = 16,
    /// The program's own.
    User = 18,
}

/// What an event says.
#[derive(Clone, Copy)]
pub(crate) enum Param {
    None,
    /// Of a connection; the private data is beside.
    Connection(RdmaConnParam),
    /// Of a datagram service or a group.
    Datagrams {
        ah_attr: IbvAhAttr,
        qp_num: u32,
        qkey: u32,
    },
    /// The program's own word.
    Word(u64),
}

/// An event that waits to be taken.
#[derive(Clone)]
pub(crate) struct Pending {
    /// The identifier's pointer, and that of the listening one.
    pub id: usize,
    pub listen: usize,
    pub kind: Kind,
    pub status: c_int,
    pub param: Param,
    pub private_data: Vec<u8>,
}

// SAFETY: its parameters' pointers are NULL; the private data is beside.
unsafe impl Send for Pending {}

impl Pending {
    pub fn new(id: *const RdmaCmId, kind: Kind) -> Pending {
        Pending { id: id as usize, listen: 0, kind, status: 0, param: Param::None, private_data: Vec::new() }
    }
}

/// An event that the program has taken, and not acknowledged.
pub(crate) struct Given {
    /// Whose destruction waits for it.
    acknowledged: Arc<Acknowledged>,
    /// What its parameters point to.
    _private_data: Box<[u8]>,
}

impl Object for Given {
    type C = RdmaCmEvent;
    const CAPACITY: usize = 1 << 17;

    fn slab() -> &'static Slab<Given> {
        static SLAB: Slab<Given> = Slab::new();
        &SLAB
    }
}

/// Takes an event, and does what librdmacm does before the program sees it. `None`: the program does not see this one.
fn process(mut pending: Pending) -> Option<Pending> {
    let id = id::get(pending.id as *const RdmaCmId).ok()?;
    match pending.kind {
        Kind::ConnectResponse if queue_pair::of(&id).is_some() => {
            pending.kind = Kind::Established;
            if let Err(failure) = super::connect::finish(&id) {
                pending.kind = Kind::ConnectError;
                pending.status = -failure.errno;
            }
        }
        Kind::Rejected => queue_pair::fail(&id),
        _ => {}
    }
    Some(pending)
}

/// Takes the next event of a queue.
pub(super) fn take(events: &EventQueue<Pending>) -> Result<*mut RdmaCmEvent, Failure> {
    loop {
        let taken = events.take(|pending| {
            // Counted under the queue's lock: who destroys the identifier has either removed it, or waits for it.
            let whose = if pending.kind == Kind::ConnectRequest { pending.listen } else { pending.id };
            let found = id::get(whose as *const RdmaCmId).ok();
            let acknowledged = found.map(|id| {
                id.acknowledged.given();
                id.acknowledged.clone()
            });
            (pending.clone(), acknowledged)
        });
        let (pending, acknowledged) =
            taken.map_err(|error| Failure::new(error.raw_os_error().unwrap_or(libc::EIO), error))?;
        let Some(acknowledged) = acknowledged else { continue };
        match process(pending) {
            Some(pending) => return give(pending, acknowledged),
            None => acknowledged.acknowledge(1),
        }
    }
}

fn give(pending: Pending, acknowledged: Arc<Acknowledged>) -> Result<*mut RdmaCmEvent, Failure> {
    let private_data = pending.private_data.into_boxed_slice();
    let (data, len) = match private_data.len() {
        0 => (std::ptr::null(), 0),
        len => (private_data.as_ptr().cast::<c_void>(), len as u8),
    };
    let param = match pending.param {
        Param::Connection(param) => {
            RdmaEventParam { conn: RdmaConnParam { private_data: data, private_data_len: len, ..param } }
        }
        Param::Datagrams { ah_attr, qp_num, qkey } => {
            RdmaEventParam { ud: RdmaUdParam { private_data: data, private_data_len: len, ah_attr, qp_num, qkey } }
        }
        Param::Word(arg) => RdmaEventParam { arg },
        // SAFETY: integers and pointers only, for which zero is a value.
        Param::None => unsafe { std::mem::zeroed() },
    };
    let counted = acknowledged.clone();
    let made = Given::slab().insert(|c| {
        let event = RdmaCmEvent {
            id: pending.id as *mut RdmaCmId,
            listen_id: pending.listen as *mut RdmaCmId,
            event: pending.kind as c_int,
            status: pending.status,
            param,
        };
        // SAFETY: the slab passes room for it.
        unsafe { c.write(event) };
        Given { acknowledged, _private_data: private_data }
    });
    made.map(|made| made.as_ptr()).ok_or_else(|| {
        counted.acknowledge(1);
        Failure::new(libc::ENOMEM, "too many events are not acknowledged")
    })
}

/// Waits for an event of a channel, and takes it. Without waiting when the program has made the channel's descriptor
/// non-blocking.
///
/// # Safety
/// `event` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut RdmaEventChannel, event: *mut *mut RdmaCmEvent) -> c_int {
    let get = || {
        // Not held while waiting.
        let events = channel::wait_on(channel)?;
        if event.is_null() {
            return Err(Failure::null("event"));
        }
        let taken = take(&events)?;
        channel::taken_from(channel);
        // SAFETY: the caller's promise.
        unsafe { event.write(taken) };
        Ok(())
    };
    event_taken("rdma_get_cm_event", get())
}

pub(super) fn acknowledge(event: *mut RdmaCmEvent) -> Result<(), Failure> {
    let given = Given::slab().remove(event, |_| true).map_err(|error| Failure::removal("event", error))?;
    given.acknowledged.acknowledge(1);
    Ok(())
}

/// Frees an event.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_ack_cm_event(event: *mut RdmaCmEvent) -> c_int {
    minus_one("rdma_ack_cm_event", acknowledge(event))
}

/// Adds an event of the program's own (`RDMA_CM_EVENT_USER`) to the channel of an identifier, which wakes who waits there.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_write_cm_event(id: *mut RdmaCmId, event: c_int, status: c_int, arg: u64) -> c_int {
    let write = || {
        id::get(id)?;
        if event != Kind::User as c_int {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("event {event}: programs have RDMA_CM_EVENT_USER only"),
            ));
        }
        id::push(Pending { status, param: Param::Word(arg), ..Pending::new(id, Kind::User) });
        Ok(())
    };
    minus_one("rdma_write_cm_event", write())
}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    let name = match event {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        16 => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        17 => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        18 => c"RDMA_CM_EVENT_USER",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
