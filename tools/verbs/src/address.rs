//! Address handles, and addresses as programs write them.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use uroce::link::device::Gid;
use uroce::verbs::{AddressVector, Class, Path, Qpn, ROUTING_HEADER_BYTES, ReplyError};

use crate::abi::*;
use crate::context;
use crate::domain;
use crate::error::{Failure, minus_one, number, pointer};
use crate::name::{Named, by_name};
use crate::options;
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

impl Named for Address {
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32) {
        // SAFETY: only places are computed; the slab has room for the structure there.
        unsafe { (&raw mut (*c).context, &raw mut (*c).handle) }
    }

    fn context(&self) -> usize {
        self.context
    }
}

pub(crate) fn get(ah: *const IbvAh) -> Result<Ref<Address>, Failure> {
    Address::slab().get(ah).ok_or_else(|| Failure::handle("address handle"))
}

/// The LID that a device with these GIDs shows when LIDs are asked for: the last 16 bits of its first IPv4 address, 0 when
/// it has none.
pub(crate) fn lid(gids: &[Gid]) -> u16 {
    first_ipv4(gids).map_or(0, |(_, own)| own.to_bits() as u16)
}

/// The first IPv4 address, and its index in the table.
fn first_ipv4(gids: &[Gid]) -> Option<(usize, Ipv4Addr)> {
    gids.iter().enumerate().find_map(|(index, gid)| Some((index, gid.address.to_ipv4_mapped()?)))
}

/// The address of the neighbour with a LID: ours with other last 16 bits.
fn by_lid(lid: u16, gids: &[Gid]) -> Option<AddressVector> {
    let (source_gid_index, own) = first_ipv4(gids).filter(|_| lid != 0)?;
    let peer = Ipv4Addr::from_bits(own.to_bits() & !0xffff | u32::from(lid));
    let destination_gid = peer.to_ipv6_mapped();
    Some(AddressVector { source_gid_index, destination_gid, traffic_class: 0, hop_limit: 0, flow_label: 0 })
}

/// The address that `struct ibv_ah_attr` gives to a device with these GIDs. RoCE has no other than global ones, but where
/// LIDs are asked for.
pub(crate) fn vector(attr: &IbvAhAttr, gids: &[Gid]) -> Result<AddressVector, Failure> {
    context::check_port(u32::from(attr.port_num))?;
    if attr.is_global == 0 {
        let found = if options::has_lids() { by_lid(attr.dlid, gids) } else { None };
        return found.ok_or_else(|| {
            Failure::new(
                libc::EINVAL,
                "is_global is 0: RoCE needs GIDs (the tools' option -g; for programs that have none, `uroce run --lids`)",
            )
        });
    }
    Ok(AddressVector {
        source_gid_index: usize::from(attr.grh.sgid_index),
        destination_gid: Ipv6Addr::from(attr.grh.dgid.0),
        traffic_class: Class::traffic_class(attr.grh.traffic_class, attr.sl),
        hop_limit: attr.grh.hop_limit,
        flow_label: attr.grh.flow_label & 0xf_ffff,
    })
}

fn create(
    pd: *mut IbvPd,
    vector: impl FnOnce(&[Gid]) -> Result<AddressVector, Failure>,
) -> Result<*mut IbvAh, Failure> {
    let owner = domain::get(pd)?;
    let vector = &vector(owner.opened.context.gids())?;
    let path = owner.opened.context.address_handle(vector, Qpn::default())?;
    let context = owner.context as *mut IbvContext;
    let made = Address::slab().insert(|c| {
        // SAFETY: the slab passes room for it.
        unsafe { c.write(IbvAh { context, pd, handle: Address::slab().number(c) }) };
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
    pointer("ibv_create_ah", attr.and_then(|attr| create(pd, |gids| vector(attr, gids))))
}

/// Destroys an address handle. Datagrams that were posted with it go out all the same.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(ah: *mut IbvAh) -> c_int {
    let end = || {
        drop(by_name("address handle", get(ah)?)?);
        Address::slab().remove(ah, |_| true).map(drop).map_err(|error| Failure::removal("address handle", error))
    };
    number("ibv_destroy_ah", end())
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for ah in Address::slab().pointers(|address| address.context == context as usize) {
        let _ = Address::slab().remove(ah.as_ptr(), |_| true);
    }
}

/// The address of who sent the datagram of `wc`, of which `grh` is the beginning.
fn sender(
    context: *const IbvContext,
    port: u8,
    wc: *const IbvWc,
    grh: *const c_void,
) -> Result<(IbvAhAttr, AddressVector), Failure> {
    let open = context::get(context)?;
    context::check_port(u32::from(port))?;
    // SAFETY: NULL, or the program's structure and buffer.
    let (wc, grh) = unsafe { (wc.as_ref(), grh.cast::<[u8; ROUTING_HEADER_BYTES]>().as_ref()) };
    let wc = wc.ok_or_else(|| Failure::null("wc"))?;
    let grh = grh.ok_or_else(|| Failure::null("grh"))?;
    let invalid = |error: ReplyError| Failure::new(libc::EINVAL, error);
    if wc.wc_flags & wc_flag::GRH == 0 {
        return Err(invalid(ReplyError::NoRoutingHeader));
    }
    let vector = open.opened()?.context.sender_vector(grh).map_err(invalid)?;
    let attr = IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: IbvGid(vector.destination_gid.octets()),
            flow_label: vector.flow_label,
            sgid_index: vector.source_gid_index as u8,
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        dlid: wc.slid,
        // The completion's `sl` is no service level (`completion_queue::service_level`).
        sl: 0,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 1,
        port_num: port,
    };
    Ok((attr, vector))
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
        let (found, _) = sender(context, port, wc, grh)?;
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
        let context = domain::get(pd)?.context as *const IbvContext;
        let (_, vector) = sender(context, port, wc, grh)?;
        create(pd, |_| Ok(vector))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(address: &str) -> Gid {
        Gid { address: address.parse().unwrap(), interface: "eth0".to_owned(), vlan: None }
    }

    #[test]
    fn a_lid_is_the_end_of_the_first_ipv4_address_and_leads_back_to_it() {
        let table = [gid("fe80::1"), gid("::ffff:10.78.2.1"), gid("::ffff:192.168.0.1"), gid("fd78::1")];
        assert_eq!(lid(&table), 0x0201);
        let vector = by_lid(0x0302, &table).unwrap();
        assert_eq!((vector.source_gid_index, vector.destination_gid), (1, gid("::ffff:10.78.3.2").address));
        assert_eq!(by_lid(0, &table), None);
        // Without IPv4 there are none.
        assert_eq!((lid(&table[..1]), by_lid(7, &table[..1])), (0, None));
    }
}
