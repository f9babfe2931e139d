//! Address handles, and addresses as programs write them.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use uroce::verbs::{AddressVector, Path, Qpn};

use crate::abi::*;
use crate::context;
use crate::domain;
use crate::error::{Failure, minus_one, number, pointer};
use crate::slab::{Object, Ref, Slab};

/// Address handles at the most, in all contexts.
pub(crate) const MAX_AHS: usize = 1 << 18;

/// An address handle.
pub(crate) struct Address {
    context: usize,
    /// Its UDP source port follows from the queue pair that uses it.
    pub path: Path,
    _domain: Arc<()>,
}

impl Object for Address {
    type C = IbvAh;
    const CAPACITY: usize = MAX_AHS;

    fn slab() -> &'static Slab<Address> {
        static SLAB: Slab<Address> = Slab::new();
        &SLAB
    }
}

pub(crate) fn get(ah: *const IbvAh) -> Result<Ref<Address>, Failure> {
    Address::slab().get(ah).ok_or_else(|| Failure::handle("address handle"))
}

/// The address that `struct ibv_ah_attr` gives. RoCE has no other than global ones.
pub(crate) fn vector(attr: &IbvAhAttr) -> Result<AddressVector, Failure> {
    if attr.is_global == 0 {
        return Err(Failure::new(libc::EINVAL, "is_global is 0: RoCE needs GIDs (the tools' option -g)"));
    }
    context::check_port(u32::from(attr.port_num))?;
    Ok(AddressVector {
        source_gid_index: usize::from(attr.grh.sgid_index),
        destination_gid: Ipv6Addr::from(attr.grh.dgid.0),
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
        flow_label: attr.grh.flow_label & 0xf_ffff,
    })
}

fn create(pd: *mut IbvPd, attr: &IbvAhAttr) -> Result<*mut IbvAh, Failure> {
    let owner = domain::get(pd)?;
    let path = owner.opened.context.address_handle(&vector(attr)?, Qpn::default())?;
    let context = owner.context as *mut IbvContext;
    let made = Address::slab().insert(|c| {
        // SAFETY: the slab passes room for it.
        unsafe { c.write(IbvAh { context, pd, handle: 0 }) };
        Address { context: owner.context, path, _domain: owner.users.clone() }
    });
    made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many address handles"))
}

/// Makes an address handle.
///
/// # Safety
/// `attr` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut IbvPd, attr: *mut IbvAhAttr) -> *mut IbvAh {
    // SAFETY: the caller's promise.
    let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("attr"));
    pointer("ibv_create_ah", attr.and_then(|attr| create(pd, attr)))
}

/// Destroys an address handle. Datagrams that were posted with it go out all the same.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(ah: *mut IbvAh) -> c_int {
    let gone = Address::slab().remove(ah, |_| true);
    number("ibv_destroy_ah", gone.map(drop).map_err(|error| Failure::removal("address handle", error)))
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for ah in Address::slab().pointers(|address| address.context == context as usize) {
        let _ = Address::slab().remove(ah.as_ptr(), |_| true);
    }
}

/// Bytes before a datagram's payload.
const GRH_BYTES: usize = 40;

/// Who sent a datagram, from the 40 bytes before its payload: source, destination, traffic class, hop limit, flow label.
/// With IPv4 the last 20 of them are the IP header (IBTA Annex A17.4.5.2).
fn answer_to(header: &[u8; GRH_BYTES]) -> Option<(Ipv6Addr, Ipv6Addr, u8, u32)> {
    if header[0] >> 4 == 6 {
        let word = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).ok().map(Ipv6Addr::from);
        return Some((address(8)?, address(24)?, (word >> 20) as u8, word & 0xf_ffff));
    }
    let ip = &header[20..];
    if ip[0] >> 4 != 4 {
        return None;
    }
    let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).ok().map(|a| Ipv4Addr::from(a).to_ipv6_mapped());
    Some((address(12)?, address(16)?, ip[1], 0))
}

fn from_completion(
    open: &context::OpenDevice,
    port: u8,
    wc: &IbvWc,
    header: Option<&[u8; GRH_BYTES]>,
) -> Result<IbvAhAttr, Failure> {
    context::check_port(u32::from(port))?;
    let invalid = |why| Failure::new(libc::EINVAL, why);
    if wc.wc_flags & wc_flag::GRH == 0 {
        return Err(invalid("the completion has no GRH"));
    }
    let header = header.ok_or_else(|| Failure::null("grh"))?;
    let (source, destination, traffic_class, flow_label) =
        answer_to(header).ok_or_else(|| invalid("the 40 bytes are no IPv4 or IPv6 header"))?;
    let ours = open.device.gids.iter().position(|gid| gid.address == destination);
    let index = ours.ok_or_else(|| Failure::new(libc::EINVAL, format_args!("{destination} is none of our GIDs")))?;
    Ok(IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: IbvGid(source.octets()),
            flow_label,
            sgid_index: index as u8,
            // As libibverbs has it: the answer's own.
            hop_limit: 0xff,
            traffic_class,
        },
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 1,
        port_num: port,
    })
}

/// Writes the address of a datagram's sender to `attr`.
///
/// # Safety
/// `wc` and `grh` are NULL or can be read, `attr` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut IbvContext,
    port: u8,
    wc: *mut IbvWc,
    grh: *mut c_void,
    attr: *mut IbvAhAttr,
) -> c_int {
    let init = || {
        let open = context::get(context)?;
        // SAFETY: the caller's promise.
        let (wc, grh) = unsafe { (wc.as_ref(), grh.cast::<[u8; GRH_BYTES]>().as_ref()) };
        let found = from_completion(&open, port, wc.ok_or_else(|| Failure::null("wc"))?, grh)?;
        if attr.is_null() {
            return Err(Failure::null("ah_attr"));
        }
        // SAFETY: the caller's promise.
        unsafe { attr.write(found) };
        Ok(())
    };
    minus_one("ibv_init_ah_from_wc", init())
}

/// Makes an address handle for an answer to a datagram.
///
/// # Safety
/// `wc` and `grh` are NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut IbvPd,
    wc: *mut IbvWc,
    grh: *mut c_void,
    port: u8,
) -> *mut IbvAh {
    let make = || {
        let open = context::get(domain::get(pd)?.context as *const IbvContext)?;
        // SAFETY: the caller's promise.
        let (wc, grh) = unsafe { (wc.as_ref(), grh.cast::<[u8; GRH_BYTES]>().as_ref()) };
        create(pd, &from_completion(&open, port, wc.ok_or_else(|| Failure::null("wc"))?, grh)?)
    };
    pointer("ibv_create_ah_from_wc", make())
}

/// Ethernet addresses of peers are the link's business.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut IbvContext,
    _attr: *mut IbvAhAttr,
    _mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    number("ibv_resolve_eth_l2_from_gid", Err(Failure::not_offered("resolving Ethernet addresses")))
}
