//! Open devices: `ibv_open_device` to `ibv_close_device`, and what is asked of them.

use std::ffi::{c_int, c_uint, c_void};
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use uroce::link::device::Device;
use uroce::verbs::{
    Capabilities, Context, CounterWatch, Intervals, MAX_MULTICAST_GROUPS, MAX_MULTICAST_MEMBERS, MAX_SGE, OpenOptions,
    QpAttributes,
};
use uroce::wire::PathMtu;

use crate::abi::*;
use crate::async_event::{AsyncEvent, Routes};
use crate::error::{Failure, minus_one, number, trace_counters};
use crate::lock::SpinLock;
use crate::marks::Mark;
use crate::queue::EventQueue;
use crate::slab::{Object, Slab};
use crate::{
    address, buffer, completion_channel, completion_queue, domain, live, options, queue_pair, region, srq,
    thread_domain, ucx, window,
};

/// What the program has opened.
pub(crate) struct OpenDevice {
    pub device: Device,
    /// Common to all contexts of one device: it has one link.
    opened: Mutex<Option<Arc<Opened>>>,
    pub events: Arc<EventQueue<AsyncEvent>>,
}

impl Object for OpenDevice {
    type C = VerbsContext;
    const OFFSET: usize = std::mem::offset_of!(VerbsContext, context);
    const CAPACITY: usize = 1024;

    fn slab() -> &'static Slab<OpenDevice> {
        static SLAB: Slab<OpenDevice> = Slab::new();
        &SLAB
    }
}

/// A device with its link and engine.
pub(crate) struct Opened {
    pub context: Context,
    pub routes: Arc<Routes>,
    /// Copies the counters to where others see them.
    live: Option<CounterWatch>,
    /// Tells at intervals what the device does.
    _told: Option<CounterWatch>,
}

impl Opened {
    /// Says what was counted, if asked to.
    fn trace_counters(&self) {
        trace_counters(&self.context.device().name, || self.context.counters());
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.trace_counters();
    }
}

/// The devices that are in use, by name.
static OPENED: SpinLock<Vec<(String, Weak<Opened>)>> = SpinLock::new(Vec::new());

/// Held while a link is being opened.
static OPENING: SpinLock<()> = SpinLock::new(());

/// Hashing without ambient randomness: keys are our own numbers.
#[allow(clippy::disallowed_types, reason = "the hasher is named")]
pub(crate) type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<std::hash::DefaultHasher>>;

impl OpenDevice {
    /// The device with its link, opened now if need be. Why it cannot be opened is said on stderr: programs only say that
    /// something failed.
    pub(crate) fn opened(&self) -> Result<Arc<Opened>, Failure> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*opened {
            return Ok(opened.clone());
        }
        // One at a time: the link is exclusive.
        let _one = OPENING.lock();
        let name = &self.device.name;
        let there = OPENED.lock().iter().find(|(known, _)| known == name).and_then(|(_, weak)| weak.upgrade());
        let shared = match there {
            Some(there) => there,
            None => {
                let made = Arc::new(open_link(name)?);
                let mut all = OPENED.lock();
                all.retain(|(_, weak)| weak.strong_count() > 0);
                all.push((name.clone(), Arc::downgrade(&made)));
                made
            }
        };
        *opened = Some(shared.clone());
        Ok(shared)
    }
}

fn open_link(name: &str) -> Result<Opened, Failure> {
    let failed = |why: String| {
        eprintln!("uroce: {name}: {why}");
        Failure::new(libc::ENODEV, why)
    };
    let options = options::of_device(name).map_err(failed)?;
    let mut context = Context::open(&options).map_err(|error| failed(error.to_string()))?;
    // Without it nothing works less well but `uroce stat`.
    let _ = context.publish();
    if let Some(why) = context.why_not_xdp() {
        eprintln!("uroce: over UDP sockets: {why}");
    }
    ucx::say_what_was_set();
    let routes = Arc::new(Routes::default());
    let to = routes.clone();
    context.set_event_handler(move |event| to.dispatch(event));
    let live = live::begin(&context, name);
    let told = tell_at_intervals(&context).map_err(failed)?;
    Ok(Opened { context, routes, live, _told: told })
}

/// With `UROCE_INTERVAL`, says on stderr every so many seconds what the device did.
fn tell_at_intervals(context: &Context) -> Result<Option<CounterWatch>, String> {
    let Some(text) = std::env::var_os("UROCE_INTERVAL").filter(|text| !text.is_empty()) else { return Ok(None) };
    let interval = Intervals::parse(&text.to_string_lossy()).map_err(|error| format!("UROCE_INTERVAL: {error}"))?;
    let (mut intervals, process) = (Intervals::default(), std::process::id());
    let tell = move |context: &Context| {
        if let Some(interval) = intervals.look(context) {
            eprintln!("uroce: {} in process {process}: {interval}", context.device().name);
        }
    };
    context.watch_counters(interval, tell).map(Some).map_err(|error| error.to_string())
}

/// Every device in use sends what it owes.
pub(crate) fn settle_all(patience: std::time::Duration) {
    let all: Vec<_> = OPENED.lock().iter().filter_map(|(_, weak)| weak.upgrade()).collect();
    for opened in all {
        if opened.context.settle(patience) {
            opened.trace_counters();
            opened.live.iter().for_each(CounterWatch::report);
        }
        // Dropping the last of it here would take the engine down in the middle of the program's exit.
        std::mem::forget(opened);
    }
}

pub(crate) fn before_fork() {
    OPENING.take();
    OPENED.take();
}

/// In a child nothing is open; what was stays as it is, since the memory it needs is the parent's.
pub(crate) fn after_fork(is_child: bool) {
    if is_child {
        // SAFETY: we hold the lock, and a vector of nothing takes the old one's place, which is forgotten.
        unsafe { OPENED.peek().write(Vec::new()) };
    }
    // SAFETY: `before_fork` took both.
    unsafe {
        OPENED.give_back();
        OPENING.give_back();
    }
}

/// The context that a program's pointer means.
pub(crate) fn get(context: *const IbvContext) -> Result<crate::slab::Ref<OpenDevice>, Failure> {
    OpenDevice::slab().get(context).ok_or_else(|| Failure::handle("context"))
}

/// What is made of several objects is made of those of one context. Contexts of one device share its link, so that others
/// would do, but not with the kernel, whose handles are each context's own.
pub(crate) fn check_same(kind: &str, its: usize, wanted: usize) -> Result<(), Failure> {
    if its == wanted {
        Ok(())
    } else {
        Err(Failure::new(libc::EINVAL, format_args!("the {kind} belongs to another context")))
    }
}

const EMPTY: *const c_void = std::ptr::null();

pub(crate) fn open(device: *mut IbvDevice, found: Device) -> Result<*mut IbvContext, Failure> {
    let events =
        EventQueue::new().map_err(|error| Failure::new(error.raw_os_error().unwrap_or(libc::EMFILE), error))?;
    let fd = events.fd();
    let make = |c: *mut VerbsContext| {
        let fresh = VerbsContext {
            query_port: Some(query_port_sized),
            advise_mr: EMPTY,
            alloc_null_mr: Some(region::alloc_null_mr),
            not_offered_1: [EMPTY; 11],
            alloc_parent_domain: Some(domain::alloc_parent_domain),
            dealloc_td: Some(thread_domain::dealloc_td),
            alloc_td: Some(thread_domain::alloc_td),
            not_offered_2: [EMPTY; 7],
            query_rt_values: Some(query_rt_values),
            create_cq_ex: Some(completion_queue::create_cq_ex),
            private: EMPTY,
            query_device_ex: Some(query_device_ex),
            not_offered_3: [EMPTY; 4],
            open_qp: EMPTY,
            create_qp_ex: Some(queue_pair::create_qp_ex),
            get_srq_num: Some(srq::srq_number),
            create_srq_ex: Some(srq::create_srq_ex),
            open_xrcd: EMPTY,
            close_xrcd: EMPTY,
            placeholder: 0,
            sz: size_of::<VerbsContext>(),
            context: IbvContext {
                device,
                ops: IbvContextOps {
                    compat_query_device: EMPTY,
                    compat_query_port: EMPTY,
                    compat_1: [EMPTY; 5],
                    alloc_mw: Some(window::alloc_mw),
                    bind_mw: Some(window::bind_mw),
                    dealloc_mw: Some(window::dealloc_mw),
                    compat_2: EMPTY,
                    poll_cq: Some(completion_queue::poll_cq),
                    req_notify_cq: Some(completion_queue::req_notify_cq),
                    compat_3: [EMPTY; 7],
                    post_srq_recv: Some(srq::post_srq_recv),
                    compat_4: [EMPTY; 4],
                    post_send: Some(queue_pair::post_send),
                    post_recv: Some(queue_pair::post_recv),
                    compat_5: [EMPTY; 5],
                },
                // There is nothing to command; programs may duplicate it all the same, to pass the device on.
                cmd_fd: fd,
                async_fd: fd,
                num_comp_vectors: completion_queue::vectors(),
                mutex: [0; 5],
                abi_compat: ABI_IS_EXTENDED,
            },
        };
        // SAFETY: the slab passes room for it.
        unsafe { c.write(fresh) };
        OpenDevice { device: found, opened: Mutex::new(None), events: Arc::new(events) }
    };
    let made = OpenDevice::slab().insert(make).ok_or_else(|| Failure::new(libc::ENOMEM, "too many contexts"))?;
    Mark::Opened.leave();
    // SAFETY: the context lies in the structure just made.
    Ok(unsafe { &raw mut (*made.as_ptr()).context })
}

/// Closes a device, and destroys what was made with it and still is there, as the kernel does.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut IbvContext) -> c_int {
    let close = || {
        drop(get(context)?);
        queue_pair::destroy_all(context);
        srq::destroy_all(context);
        address::destroy_all(context);
        window::destroy_all(context);
        region::destroy_all(context);
        completion_queue::destroy_all(context);
        completion_channel::destroy_all(context);
        buffer::destroy_all(context);
        domain::destroy_all(context);
        thread_domain::destroy_all(context);
        let gone = OpenDevice::slab().remove(context, |_| true).map_err(|error| Failure::removal("context", error))?;
        drop(gone);
        Ok(())
    };
    minus_one("ibv_close_device", close())
}

/// Limits that the transport has, and those of our tables. What is zero is not offered.
fn device_attributes(device: &Device) -> IbvDeviceAttr {
    // SAFETY: integers only, for which zero is a value.
    let mut attr: IbvDeviceAttr = unsafe { std::mem::zeroed() };
    for (to, from) in attr.fw_ver.iter_mut().zip(concat!("uroce ", env!("CARGO_PKG_VERSION")).bytes()) {
        *to = from as std::ffi::c_char;
    }
    attr.node_guid = device.guid().to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = 4096;
    // rxe's, which is nobody's.
    attr.vendor_id = 0xff_ffff;
    attr.max_qp = queue_pair::MAX_QPS as c_int;
    attr.max_qp_wr = Capabilities::MAX_REQUESTS as c_int;
    attr.device_cap_flags = capability::ALL;
    attr.max_sge = MAX_SGE as c_int;
    attr.max_sge_rd = MAX_SGE as c_int;
    attr.max_cq = completion_queue::MAX_CQS as c_int;
    attr.max_cqe = completion_queue::MAX_CQE as c_int;
    attr.max_mr = region::MAX_MRS as c_int;
    attr.max_pd = domain::MAX_PDS as c_int;
    attr.max_qp_rd_atom = c_int::from(QpAttributes::MAX_RD_ATOMIC);
    attr.max_res_rd_atom = attr.max_qp_rd_atom * attr.max_qp;
    attr.max_qp_init_rd_atom = c_int::from(QpAttributes::MAX_RD_ATOMIC);
    attr.atomic_cap = 1; // IBV_ATOMIC_HCA: among this device's queue pairs, and with the processor's own
    attr.max_mw = window::MAX_MWS as c_int;
    attr.max_ah = address::MAX_AHS as c_int;
    attr.max_srq = srq::MAX_SRQS as c_int;
    attr.max_srq_wr = Capabilities::MAX_REQUESTS as c_int;
    attr.max_srq_sge = MAX_SGE as c_int;
    attr.max_mcast_grp = MAX_MULTICAST_GROUPS as c_int;
    attr.max_mcast_qp_attach = MAX_MULTICAST_MEMBERS as c_int;
    attr.max_total_mcast_qp_attach = attr.max_mcast_grp * attr.max_mcast_qp_attach;
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15; // rxe's
    attr.phys_port_cnt = 1;
    attr
}

/// `enum ibv_device_cap_flags`: what is true of us.
mod capability {
    const CURR_QP_STATE_MOD: u32 = 1 << 7;
    const SYS_IMAGE_GUID: u32 = 1 << 11;
    const RC_RNR_NAK_GEN: u32 = 1 << 12;
    const SRQ_RESIZE: u32 = 1 << 13;
    const MEM_WINDOW: u32 = 1 << 17;
    const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    const FLUSH_GLOBAL: u64 = 1 << 38;
    const ATOMIC_WRITE: u64 = 1 << 40;
    /// Those that only `ibv_query_device_ex` has room for.
    pub(super) const FURTHER: u64 = FLUSH_GLOBAL | ATOMIC_WRITE;
    pub(super) const ALL: u32 =
        CURR_QP_STATE_MOD | SYS_IMAGE_GUID | RC_RNR_NAK_GEN | SRQ_RESIZE | MEM_WINDOW | MEM_WINDOW_TYPE_2B;
}

/// What the device can do.
///
/// # Safety
/// `attr` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int {
    let query = || {
        let open = get(context)?;
        if attr.is_null() {
            return Err(Failure::null("device_attr"));
        }
        // SAFETY: the caller's promise.
        unsafe { attr.write(device_attributes(&open.device)) };
        Ok(())
    };
    number("ibv_query_device", query())
}

/// The clock that completions are stamped by counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// The device's clock now, in its own unit, as providers for hardware have it: in `tv_nsec` alone.
unsafe extern "C" fn query_rt_values(context: *mut IbvContext, values: *mut IbvValuesEx) -> c_int {
    /// `IBV_VALUES_MASK_RAW_CLOCK`.
    const RAW_CLOCK: u32 = 1;
    let query = || {
        let opened = get(context)?.opened()?;
        // SAFETY: NULL, or the program's structure.
        let values = unsafe { values.as_mut() }.ok_or_else(|| Failure::null("values"))?;
        if values.comp_mask & !RAW_CLOCK != 0 {
            return Err(Failure::not_offered(format_args!("comp_mask {:#x}", values.comp_mask & !RAW_CLOCK)));
        }
        if values.comp_mask & RAW_CLOCK != 0 {
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: opened.context.now().as_ns() as i64 };
        }
        Ok(())
    };
    number("ibv_query_rt_values_ex", query())
}

unsafe extern "C" fn query_device_ex(
    context: *mut IbvContext,
    input: *const c_uint,
    attr: *mut IbvDeviceAttrEx,
    size: usize,
) -> c_int {
    let query = || {
        let open = get(context)?;
        // SAFETY: NULL, or the program's structure.
        if unsafe { input.as_ref() }.is_some_and(|mask| *mask != 0) {
            return Err(Failure::new(libc::EINVAL, "no input flags are supported"));
        }
        if attr.is_null() || size < size_of::<IbvDeviceAttr>() {
            return Err(Failure::null("attr"));
        }
        // SAFETY: integers only, for which zero is a value.
        let mut all: IbvDeviceAttrEx = unsafe { std::mem::zeroed() };
        all.orig_attr = device_attributes(&open.device);
        all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags) | capability::FURTHER;
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = CLOCK_KHZ;
        all.phys_port_cnt_ex = 1;
        // Programs of other versions have less room, or more.
        let bytes = size.min(size_of::<IbvDeviceAttrEx>());
        // SAFETY: the program's structure has `size` bytes.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), bytes);
        }
        Ok(())
    };
    number("ibv_query_device_ex", query())
}

/// The largest path MTU of the device: its link's once that is open.
pub(crate) fn active_mtu(open: &OpenDevice) -> Option<PathMtu> {
    let opened = open.opened.lock().unwrap_or_else(PoisonError::into_inner);
    match &*opened {
        Some(opened) => Some(opened.context.active_mtu()),
        None => {
            let limit = OpenOptions::from_env().ok().and_then(|options| options.path_mtu);
            let fitting = PathMtu::from_bytes(open.device.active_mtu as usize);
            fitting.map(|mtu| limit.map_or(mtu, |limit| limit.min(mtu)))
        }
    }
}

/// Port numbers begin with 1, and there is one.
pub(crate) fn check_port(port: u32) -> Result<(), Failure> {
    if port == 1 { Ok(()) } else { Err(Failure::new(libc::EINVAL, format_args!("there is port 1 only, not {port}"))) }
}

fn port_attributes(open: &OpenDevice) -> IbvPortAttr {
    const CM_SUP: u32 = 1 << 16;
    const IP_BASED_GIDS: u32 = 1 << 26;
    let device = &open.device;
    let is_up = device.up && device.carrier;
    let (width, speed) = width_and_speed(device);
    IbvPortAttr {
        state: if is_up { 4 } else { 1 }, // IBV_PORT_ACTIVE, IBV_PORT_DOWN
        max_mtu: PathMtu::Mtu4096 as c_int,
        active_mtu: active_mtu(open).map_or(PathMtu::Mtu256, |mtu| mtu) as c_int,
        gid_tbl_len: device.gids.len() as c_int,
        port_cap_flags: CM_SUP | IP_BASED_GIDS,
        max_msg_sz: 1 << 31,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: if options::has_lids() { address::lid(&device.gids) } else { 0 },
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: width,
        active_speed: speed,
        phys_state: if is_up { 5 } else { 3 }, // link up, disabled
        link_layer: 2,                         // Ethernet
        flags: 0,
        port_cap_flags2: 0,
    }
}

/// How fast the port is, in units of 100 Mb/s: what its interface says, else what `ibv_query_port` says of such.
///
/// # Safety
/// `speed` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(context: *mut IbvContext, port: u32, speed: *mut u64) -> c_int {
    /// One lane of SDR.
    const UNKNOWN_MBPS: u32 = 2500;
    let query = || {
        let open = get(context)?;
        check_port(port)?;
        if speed.is_null() {
            return Err(Failure::null("port_speed"));
        }
        let mbps = open.device.speed_mbps.filter(|mbps| *mbps > 0).unwrap_or(UNKNOWN_MBPS);
        // SAFETY: the caller's promise.
        unsafe { speed.write(u64::from(mbps.div_ceil(100))) };
        Ok(())
    };
    number("ibv_query_port_speed", query())
}

/// The IBTA's codes for the width and the speed.
fn width_and_speed(device: &Device) -> (u8, u8) {
    let (lanes, speed) = device.lanes();
    (if lanes == 4 { 2 } else { 1 }, speed as u8)
}

/// `struct _compat_ibv_port_attr`, which the exported symbol fills: without the last four bytes.
const COMPAT_PORT_ATTR_BYTES: usize = 48;

/// The port's state, for programs that do not go through the header's inline function.
///
/// # Safety
/// `attr` is NULL or has room for 48 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut IbvContext, port: u8, attr: *mut IbvPortAttr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port_sized(context, port, attr, COMPAT_PORT_ATTR_BYTES) }
}

unsafe extern "C" fn query_port_sized(
    context: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
    size: usize,
) -> c_int {
    let query = || {
        let open = get(context)?;
        check_port(u32::from(port))?;
        if attr.is_null() {
            return Err(Failure::null("port_attr"));
        }
        let all = port_attributes(&open);
        let bytes = size.min(size_of::<IbvPortAttr>());
        // SAFETY: the program's structure has `size` bytes.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), bytes);
        }
        Ok(())
    };
    number("ibv_query_port", query())
}

/// An entry of the GID table.
///
/// # Safety
/// `gid` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(context: *mut IbvContext, port: u8, index: c_int, gid: *mut IbvGid) -> c_int {
    let query = || {
        let entry = gid_entry(&*get(context)?, u32::from(port), index as u32)?;
        if gid.is_null() {
            return Err(Failure::null("gid"));
        }
        // SAFETY: the caller's promise. Programs pass 16 bytes, aligned as they like.
        unsafe { gid.write_unaligned(entry.gid) };
        Ok(())
    };
    minus_one("ibv_query_gid", query())
}

fn gid_entry(open: &OpenDevice, port: u32, index: u32) -> Result<IbvGidEntry, Failure> {
    /// `IBV_GID_TYPE_ROCE_V2` of `struct ibv_gid_entry`.
    const ROCE_V2: u32 = 2;
    check_port(port)?;
    let count = open.device.gids.len();
    let gid = open.device.gids.get(index as usize).ok_or_else(|| {
        Failure::new(libc::EINVAL, format_args!("there is no GID with index {index}: there are {count}"))
    })?;
    let interface = if gid.interface == open.device.interface {
        open.device.index
    } else {
        std::ffi::CString::new(gid.interface.clone())
            // SAFETY: a string.
            .map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) })
    };
    Ok(IbvGidEntry {
        gid: IbvGid(gid.address.octets()),
        gid_index: index,
        port_num: 1,
        gid_type: ROCE_V2,
        ndev_ifindex: interface,
    })
}

/// Writes as much of an entry as the program's version has room for.
unsafe fn put_entry(entry: &IbvGidEntry, to: *mut IbvGidEntry, size: usize) {
    let bytes = size.min(size_of::<IbvGidEntry>());
    // SAFETY: the caller passes room for `size` bytes.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(entry).cast::<u8>(), to.cast(), bytes);
    }
}

/// An entry of the GID table with its type and interface.
///
/// # Safety
/// `entry` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut IbvContext,
    port: u32,
    index: u32,
    entry: *mut IbvGidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    let query = || {
        let found = gid_entry(&*get(context)?, port, index)?;
        if flags != 0 {
            return Err(Failure::new(libc::EOPNOTSUPP, "no flags are supported"));
        }
        if entry.is_null() {
            return Err(Failure::null("entry"));
        }
        // SAFETY: the caller's promise.
        unsafe { put_entry(&found, entry, size) };
        Ok(())
    };
    number("ibv_query_gid_ex", query())
}

/// The whole GID table. Returns the number of entries, or a negative error number.
///
/// # Safety
/// `entries` is NULL or has room for `max_entries` entries of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut IbvContext,
    entries: *mut IbvGidEntry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    let query = || {
        let open = get(context)?;
        if flags != 0 {
            return Err(Failure::new(libc::EOPNOTSUPP, "no flags are supported"));
        }
        if entries.is_null() {
            return Err(Failure::null("entries"));
        }
        let count = open.device.gids.len();
        if count > max_entries {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("there are {count} entries, and room for {max_entries}"),
            ));
        }
        for index in 0..count {
            let entry = gid_entry(&open, 1, index as u32)?;
            // SAFETY: the caller's promise.
            unsafe { put_entry(&entry, entries.byte_add(index * size), size) };
        }
        Ok(count as isize)
    };
    let mut count = 0;
    match number("ibv_query_gid_table", query().map(|found| count = found)) {
        0 => count,
        errno => -(errno as isize),
    }
}

/// The type of a GID: `IBV_GID_TYPE_SYSFS_ROCE_V2`.
///
/// # Safety
/// `kind` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut IbvContext,
    port: u8,
    index: c_uint,
    kind: *mut c_int,
) -> c_int {
    const SYSFS_ROCE_V2: c_int = 1;
    let query = || {
        gid_entry(&*get(context)?, u32::from(port), index)?;
        if kind.is_null() {
            return Err(Failure::null("type"));
        }
        // SAFETY: the caller's promise.
        unsafe { kind.write(SYSFS_ROCE_V2) };
        Ok(())
    };
    minus_one("ibv_query_gid_type", query())
}

/// The only partition key, 0xffff.
const DEFAULT_P_KEY: u16 = 0xffff;

/// An entry of the partition key table, in network order.
///
/// # Safety
/// `p_key` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(context: *mut IbvContext, port: u8, index: c_int, p_key: *mut u16) -> c_int {
    let query = || {
        drop(get(context)?);
        check_port(u32::from(port))?;
        if index != 0 {
            return Err(Failure::new(libc::EINVAL, "there is one partition key, at index 0"));
        }
        if p_key.is_null() {
            return Err(Failure::null("pkey"));
        }
        // SAFETY: the caller's promise.
        unsafe { p_key.write(DEFAULT_P_KEY.to_be()) };
        Ok(())
    };
    minus_one("ibv_query_pkey", query())
}

/// Where a partition key, in network order, stands in the table; -1 when it does not.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(context: *mut IbvContext, port: u8, p_key: u16) -> c_int {
    let query = || {
        drop(get(context)?);
        check_port(u32::from(port))?;
        if u16::from_be(p_key) == DEFAULT_P_KEY {
            Ok(())
        } else {
            Err(Failure::new(libc::EINVAL, "there is one partition key, 0xffff"))
        }
    };
    minus_one("ibv_get_pkey_index", query())
}
