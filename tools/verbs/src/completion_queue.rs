//! Completion queues, polled one by one or through `struct ibv_cq_ex`.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use uroce::verbs::{Completion, CompletionQueue, NetworkHeader, Notify};

use crate::abi::*;
use crate::async_event::Route;
use crate::error::{Failure, number, pointer, set_errno};
use crate::name::{Named, by_name};
use crate::queue::{Acknowledged, EventQueue};
use crate::slab::{Object, Ref, Slab};
use crate::{completion_channel, context, domain};

/// Completion queues at the most, in all contexts.
pub(crate) const MAX_CQS: usize = 1 << 16;

/// Completions in a queue at the most, by what is asked for and reported.
pub(crate) const MAX_CQE: usize = (1 << 20) - 1;

/// A completion queue.
pub(crate) struct Cq {
    pub context: usize,
    pub cq: Arc<CompletionQueue>,
    pub link: Arc<CqLink>,
    /// Queue pairs hold a copy.
    pub users: Arc<()>,
    /// The channel and the parent domain do not go before.
    _needs: [Option<Arc<()>>; 2],
    /// It is being destroyed, and waits for acknowledgements.
    is_ending: AtomicBool,
    /// What `ibv_next_poll` has found.
    current: Mutex<Option<Completion>>,
}

/// What outlives calls: a completion queue as its channel and its queue pairs know it.
pub(crate) struct CqLink {
    pub route: Route,
    pub cq_context: usize,
    pub notifications: Acknowledged,
    events: Option<Arc<EventQueue<Arc<CqLink>>>>,
    is_gone: AtomicBool,
    overflow_is_reported: AtomicBool,
    cq: Weak<CompletionQueue>,
}

impl CqLink {
    /// Whether the queue has overflowed, the first time that is asked after it has.
    pub(crate) fn report_overflow_once(&self) -> bool {
        self.cq.upgrade().is_some_and(|cq| cq.has_overflowed())
            && !self.overflow_is_reported.swap(true, Ordering::AcqRel)
    }

    fn notify(self: &Arc<Self>) {
        if let Some(events) = &self.events {
            events.push(self.clone(), || !self.is_gone.load(Ordering::Acquire));
        }
    }
}

impl Object for Cq {
    type C = IbvCqEx;
    const CAPACITY: usize = MAX_CQS;

    fn slab() -> &'static Slab<Cq> {
        static SLAB: Slab<Cq> = Slab::new();
        &SLAB
    }
}

impl Named for Cq {
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32) {
        // SAFETY: only places are computed; the slab has room for the structure there.
        unsafe { (&raw mut (*c).cq.context, &raw mut (*c).cq.handle) }
    }

    fn context(&self) -> usize {
        self.context
    }
}

pub(crate) fn get<P>(cq: *const P) -> Result<Ref<Cq>, Failure> {
    Cq::slab().get(cq).ok_or_else(|| Failure::handle("completion queue"))
}

/// As [`get`], for all but completions.
pub(crate) fn get_by_name(cq: *const IbvCq) -> Result<Ref<Cq>, Failure> {
    by_name("completion queue", get(cq)?)
}

struct Wanted {
    cqe: u64,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: i64,
    /// NULL, or the parent domain.
    domain: *mut IbvPd,
    ignores_overrun: bool,
}

/// How many completion vectors programs may spread their queues over: one for each processor, as rxe has it. All are served by
/// whichever thread drives the engine.
pub(crate) fn vectors() -> c_int {
    std::thread::available_parallelism().map_or(1, |count| count.get().try_into().unwrap_or(c_int::MAX))
}

/// The room of a queue for which `cqe` completions are asked: as mlx5 has it, the power of two above that, of which one less is
/// [`reported`]. Programs count on more than they ask for: `ib_send_lat -e` takes the event of the peer's answer for that of its
/// own request when the answer comes before the acknowledge, and from then on leaves a completion in its queue of one.
fn room(cqe: u64) -> Result<usize, Failure> {
    if (1..=MAX_CQE as u64).contains(&cqe) {
        Ok((cqe as usize + 1).next_power_of_two())
    } else {
        Err(Failure::new(libc::EINVAL, format_args!("{cqe} completions: the capacity must be 1 to {MAX_CQE}")))
    }
}

/// What `cqe` says of a queue with such a [`room`].
fn reported(room: usize) -> c_int {
    (room - 1) as c_int
}

fn create(context: *mut IbvContext, wanted: &Wanted) -> Result<*mut IbvCqEx, Failure> {
    let open = context::get(context)?;
    let room = room(wanted.cqe)?;
    let vectors = vectors();
    if !(0..i64::from(vectors)).contains(&wanted.comp_vector) {
        return Err(Failure::new(libc::EINVAL, format_args!("there are completion vectors 0 to {}", vectors - 1)));
    }
    let domain = if wanted.domain.is_null() { None } else { Some(domain::get(wanted.domain)?) };
    if let Some(domain) = &domain {
        context::check_same("parent domain", domain.context, context as usize)?;
    }
    let channel = if wanted.channel.is_null() { None } else { Some(completion_channel::get(wanted.channel)?) };
    if let Some(channel) = &channel {
        context::check_same("completion channel", channel.context, context as usize)?;
    }
    let opened = open.opened()?;
    // Whom to notify is known when the structure has its place.
    let place = Arc::new(OnceLock::<Arc<CqLink>>::new());
    let notified = place.clone();
    let cq = Arc::new(opened.context.create_completion_queue_with(room, wanted.ignores_overrun, move || {
        if let Some(link) = notified.get() {
            link.notify();
        }
    }));
    let made = Cq::slab().insert(|c| {
        let base = IbvCq {
            context,
            channel: wanted.channel,
            cq_context: wanted.cq_context,
            handle: Cq::slab().number(c),
            cqe: reported(room),
            mutex: [0; 5],
            cond: [0; 6],
            comp_events_completed: 0,
            async_events_completed: 0,
        };
        // SAFETY: the slab passes room for it.
        unsafe { c.write(with_functions(base)) };
        let link = Arc::new(CqLink {
            route: Route {
                element: c as usize,
                events: open.events.clone(),
                acknowledged: Arc::new(Acknowledged::default()),
            },
            cq_context: wanted.cq_context as usize,
            notifications: Acknowledged::default(),
            events: channel.as_ref().map(|channel| channel.events.clone()),
            is_gone: AtomicBool::new(false),
            overflow_is_reported: AtomicBool::new(false),
            cq: Arc::downgrade(&cq),
        });
        let _ = place.set(link.clone());
        Cq {
            context: context as usize,
            cq,
            link,
            users: Arc::new(()),
            _needs: [channel.map(|channel| channel.users.clone()), domain.map(|domain| domain.users.clone())],
            is_ending: AtomicBool::new(false),
            current: Mutex::new(None),
        }
    });
    made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many completion queues"))
}

/// The extended structure; programs that asked for a plain one see its beginning.
fn with_functions(cq: IbvCq) -> IbvCqEx {
    IbvCqEx {
        cq,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        // Those that ibv_create_cq_ex refuses to promise.
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_ts: Some(read_completion_ns),
        read_completion_wallclock_ns: Some(read_completion_ns),
    }
}

/// Makes a completion queue of at least `cqe` completions.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    let cqe = u64::try_from(cqe).unwrap_or(0);
    let domain = std::ptr::null_mut();
    let wanted =
        Wanted { cqe, cq_context, channel, comp_vector: i64::from(comp_vector), domain, ignores_overrun: false };
    pointer("ibv_create_cq", create(context, &wanted)).cast()
}

/// `enum ibv_create_cq_wc_flags` that we fill: byte length, immediate data, queue pair, source, LID, service level, path, and
/// the time, by the device's clock and by the wall's.
const WC_FLAGS: u64 = 0x7f | 1 << 7 | 1 << 11;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const MASK_FLAGS: u32 = 1;
/// `IBV_CQ_INIT_ATTR_MASK_PD`.
const MASK_DOMAIN: u32 = 1 << 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`: a promise of the program's that we have no use for.
const SINGLE_THREADED: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`: the program promises that there are never more completions than there is room for.
const IGNORE_OVERRUN: u32 = 1 << 1;

pub(crate) unsafe extern "C" fn create_cq_ex(context: *mut IbvContext, attr: *mut IbvCqInitAttrEx) -> *mut IbvCqEx {
    let make = || {
        // SAFETY: NULL, or the program's structure.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("cq_attr"))?;
        let beyond = attr.wc_flags & !WC_FLAGS;
        if beyond != 0 {
            return Err(Failure::not_offered(format_args!("wc_flags {beyond:#x}")));
        }
        let beyond = attr.comp_mask & !(MASK_FLAGS | MASK_DOMAIN);
        if beyond != 0 {
            return Err(Failure::not_offered(format_args!("comp_mask {beyond:#x}")));
        }
        let flags = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
        let beyond = flags & !(SINGLE_THREADED | IGNORE_OVERRUN);
        if beyond != 0 {
            return Err(Failure::not_offered(format_args!("flags {beyond:#x}")));
        }
        let wanted = Wanted {
            cqe: u64::from(attr.cqe),
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: i64::from(attr.comp_vector),
            domain: if attr.comp_mask & MASK_DOMAIN != 0 { attr.parent_domain } else { std::ptr::null_mut() },
            ignores_overrun: flags & IGNORE_OVERRUN != 0,
        };
        create(context, &wanted)
    };
    pointer("ibv_create_cq_ex", make())
}

/// Gives a completion queue room for `cqe` completions. Those in it stay; it cannot be made smaller than they are many.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resize_cq(cq: *mut IbvCq, cqe: c_int) -> c_int {
    let resize = || {
        let resized = get_by_name(cq)?;
        let room = room(u64::try_from(cqe).unwrap_or(0))?;
        resized.cq.resize(room).map_err(|waiting| {
            Failure::new(libc::EINVAL, format_args!("{waiting} completions wait in the queue, more than {cqe}"))
        })?;
        // SAFETY: the slot's structure.
        unsafe { (*resized.c().as_ptr()).cq.cqe = reported(room) };
        Ok(())
    };
    number("ibv_resize_cq", resize())
}

/// Destroys a completion queue that no queue pair uses, when the program has acknowledged all its events.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_cq(cq: *mut IbvCq) -> c_int {
    let destroy = || {
        let ending = get_by_name(cq)?;
        if Arc::strong_count(&ending.users) > 1 {
            return Err(Failure::new(libc::EBUSY, "queue pairs still use the completion queue"));
        }
        if ending.is_ending.swap(true, Ordering::AcqRel) {
            return Err(Failure::new(libc::EINVAL, "the completion queue is being destroyed by another thread"));
        }
        end(&ending.link);
        ending.link.route.end();
        ending.link.notifications.wait();
        ending.is_ending.store(false, Ordering::Release);
        drop(ending);
        let gone = Cq::slab().remove(cq, |cq| Arc::strong_count(&cq.users) == 1);
        gone.map(drop).map_err(|error| Failure::removal("completion queue", error))
    };
    number("ibv_destroy_cq", destroy())
}

/// No more notifications, and none that nobody has taken.
fn end(link: &Arc<CqLink>) {
    let gone = || link.is_gone.store(true, Ordering::Release);
    match &link.events {
        Some(events) => events.remove(|pending| Arc::ptr_eq(pending, link), gone),
        None => gone(),
    }
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for cq in Cq::slab().pointers(|cq| cq.context == context as usize) {
        if let Ok(gone) = Cq::slab().remove(cq.as_ptr(), |_| true) {
            end(&gone.link);
        }
    }
}

pub(crate) fn async_acknowledged(cq: *const IbvCq) -> Option<Arc<Acknowledged>> {
    Some(get(cq).ok()?.link.route.acknowledged.clone())
}

/// Acknowledges notifications that `ibv_get_cq_event` gave.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: *mut IbvCq, events: c_uint) {
    if let Ok(cq) = get(cq) {
        cq.link.notifications.acknowledge(u64::from(events));
    }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    match get_by_name(cq) {
        Ok(cq) => {
            cq.cq.request_notification(if solicited_only == 0 { Notify::Next } else { Notify::Solicited });
            0
        }
        Err(failure) => number("ibv_req_notify_cq", Err(failure)),
    }
}

/// What `struct ibv_wc` says in `wc_flags`.
fn flags(completion: &Completion) -> c_uint {
    let mut flags = 0;
    if completion.network_header.is_some() {
        flags |= wc_flag::GRH;
    }
    if completion.immediate.is_some() {
        flags |= wc_flag::WITH_IMM;
    }
    if completion.invalidated.is_some() {
        flags |= wc_flag::WITH_INV;
    }
    flags
}

/// What `struct ibv_wc` says in `sl`. Ethernet has no service level; the mlx5 driver reports the network header of a
/// datagram there, and UCX before 1.14 drops datagrams without it (its `ud_iface.h`).
fn service_level(completion: &Completion) -> u8 {
    match completion.network_header {
        Some(NetworkHeader::Ipv4) => 0xa,
        Some(NetworkHeader::Ipv6) => 0x9,
        None => 0,
    }
}

/// Immediate data in network order, or the key that was invalidated.
fn immediate_or_key(completion: &Completion) -> u32 {
    match (completion.immediate, completion.invalidated) {
        (Some(immediate), _) => immediate.to_be(),
        (None, Some(key)) => key.0,
        (None, None) => 0,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut IbvCq, num_entries: c_int, wc: *mut IbvWc) -> c_int {
    let failed = |failure| {
        number("ibv_poll_cq", Err(failure));
        -1
    };
    let cq = match get(cq) {
        Ok(cq) => cq,
        Err(failure) => return failed(failure),
    };
    if num_entries < 0 || (num_entries > 0 && wc.is_null()) {
        return failed(Failure::new(libc::EINVAL, "the number of completions is negative, or their array is NULL"));
    }
    for index in 0..num_entries {
        let Some(completion) = cq.cq.poll() else { return index };
        let entry = IbvWc {
            wr_id: completion.wr_id,
            status: completion.status as c_int,
            opcode: completion.kind as c_int,
            vendor_err: completion.vendor_err(),
            byte_len: completion.byte_len,
            imm_data: immediate_or_key(&completion),
            qp_num: completion.qpn.value(),
            src_qp: completion.source_qpn.value(),
            wc_flags: flags(&completion),
            pkey_index: 0,
            slid: 0,
            sl: service_level(&completion),
            dlid_path_bits: 0,
        };
        // SAFETY: the program has room for `num_entries`.
        unsafe { wc.add(index as usize).write(entry) };
    }
    num_entries
}

/// Makes `completion` the one that the `read_*` functions read.
fn show(cq: &Ref<Cq>, completion: Option<Completion>) -> c_int {
    *cq.current.lock().unwrap_or_else(PoisonError::into_inner) = completion;
    match completion {
        Some(completion) => {
            let c = cq.c().as_ptr();
            // SAFETY: the slot's structure; the program only reads these two.
            unsafe {
                (*c).status = completion.status as c_int;
                (*c).wr_id = completion.wr_id;
            }
            0
        }
        None => libc::ENOENT,
    }
}

unsafe extern "C" fn start_poll(cq: *mut IbvCqEx, attr: *mut c_void) -> c_int {
    // SAFETY: NULL, or the program's `struct ibv_poll_cq_attr`, which begins with a comp_mask.
    if unsafe { attr.cast::<u32>().as_ref() }.is_some_and(|mask| *mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: the same pointer.
    unsafe { next_poll(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut IbvCqEx) -> c_int {
    match get(cq) {
        Ok(cq) => show(&cq, cq.cq.poll()),
        Err(failure) => number("ibv_next_poll", Err(failure)),
    }
}

unsafe extern "C" fn end_poll(cq: *mut IbvCqEx) {
    if let Ok(cq) = get(cq) {
        show(&cq, None);
    }
}

/// A property of the completion that was found last; its default when there is none.
fn read<T: Default>(cq: *mut IbvCqEx, property: impl FnOnce(&Completion) -> T) -> T {
    let Ok(cq) = get(cq) else {
        set_errno(libc::EINVAL);
        return T::default();
    };
    let current = cq.current.lock().unwrap_or_else(PoisonError::into_inner);
    current.as_ref().map(property).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut IbvCqEx) -> c_int {
    read(cq, |completion| completion.kind as c_int)
}

unsafe extern "C" fn read_vendor_err(cq: *mut IbvCqEx) -> u32 {
    read(cq, Completion::vendor_err)
}

unsafe extern "C" fn read_byte_len(cq: *mut IbvCqEx) -> u32 {
    read(cq, |completion| completion.byte_len)
}

unsafe extern "C" fn read_imm_data(cq: *mut IbvCqEx) -> u32 {
    read(cq, immediate_or_key)
}

unsafe extern "C" fn read_qp_num(cq: *mut IbvCqEx) -> u32 {
    read(cq, |completion| completion.qpn.value())
}

unsafe extern "C" fn read_src_qp(cq: *mut IbvCqEx) -> u32 {
    read(cq, |completion| completion.source_qpn.value())
}

unsafe extern "C" fn read_wc_flags(cq: *mut IbvCqEx) -> c_uint {
    read(cq, flags)
}

/// When the completion was reported, by the device's clock, which the wall's is too.
unsafe extern "C" fn read_completion_ns(cq: *mut IbvCqEx) -> u64 {
    read(cq, |completion| completion.time.as_ns())
}

unsafe extern "C" fn read_slid(_cq: *mut IbvCqEx) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut IbvCqEx) -> u8 {
    read(cq, service_level)
}

unsafe extern "C" fn read_dlid_path_bits(_cq: *mut IbvCqEx) -> u8 {
    0
}
