//! From names to addresses: `rdma_getaddrinfo`, and the same with an event.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::abi::*;
use crate::error::{Failure, minus_one, set_errno};

use super::address::{IN_BYTES, IN6_BYTES};
use super::event::{Kind, Pending};
use super::id::{self, RC, UD};

/// Flags of `struct rdma_addrinfo`.
pub(super) const PASSIVE: c_int = 1;
const NUMERIC_HOST: c_int = 2;
const SUBNET_ADMINISTRATION: c_int = 0x10;

/// `RDMA_PS_TCP`, `RDMA_PS_UDP`.
const TCP: c_int = 0x0106;
const UDP: c_int = 0x0111;

/// A copy in memory of malloc, which programs may free.
fn copied(from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: nothing but the size is passed; the caller of the verb promises that `from` has as many bytes.
    unsafe {
        let to = libc::malloc(len.max(1));
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len);
        }
        to
    }
}

/// A copy of an address that a program gives, and its length; nothing when its length is that of no address.
fn copied_address(address: *const c_void, len: u32) -> (*mut c_void, u32) {
    match !address.is_null() && (IN_BYTES..=IN6_BYTES).contains(&(len as usize)) {
        true => (copied(address, len as usize), len),
        false => (std::ptr::null_mut(), 0),
    }
}

/// Resolves names to addresses, as getaddrinfo(3). Without names the hints' addresses are the result. Returns 0, or what
/// that returns; -1 with `errno` for its other errors.
///
/// # Safety
/// `node` and `service` are NULL or strings, `hints` is NULL or can be read, `result` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const RdmaAddrInfo,
    result: *mut *mut RdmaAddrInfo,
) -> c_int {
    // SAFETY: the caller's promise.
    let (hints, result) = unsafe { (hints.as_ref(), result.as_mut()) };
    let (Some(result), false) = (result, node.is_null() && service.is_null() && hints.is_none()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_family = hints.map_or(0, |hints| hints.ai_family);
    if wanted.ai_family == 0 && flags & PASSIVE == 0 && node.is_null() {
        wanted.ai_family = libc::AF_INET;
    }
    wanted.ai_flags = if flags & PASSIVE != 0 { libc::AI_PASSIVE } else { 0 };
    wanted.ai_flags |= if flags & NUMERIC_HOST != 0 { libc::AI_NUMERICHOST } else { 0 };
    let space = hints.map_or(0, |hints| hints.ai_port_space);
    let kind = hints.map_or(0, |hints| hints.ai_qp_type);
    let is_datagram = space == UDP || kind == UD;
    wanted.ai_socktype = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut made: RdmaAddrInfo = unsafe { std::mem::zeroed() };
    made.ai_flags = flags;
    made.ai_qp_type = if kind != 0 {
        kind
    } else if is_datagram {
        UD
    } else {
        RC
    };
    made.ai_port_space = if space != 0 {
        space
    } else if is_datagram {
        UDP
    } else {
        TCP
    };
    if !node.is_null() || !service.is_null() {
        let mut found = std::ptr::null_mut();
        // SAFETY: the caller's promise, and what we have just made.
        let error = unsafe { libc::getaddrinfo(node, service, &wanted, &mut found) };
        if error != 0 {
            return error;
        }
        // SAFETY: at least one was found.
        let first = unsafe { &*found };
        let address = copied(first.ai_addr.cast(), first.ai_addrlen as usize);
        made.ai_family = first.ai_family;
        if flags & PASSIVE != 0 {
            (made.ai_src_addr, made.ai_src_len) = (address, first.ai_addrlen);
        } else {
            (made.ai_dst_addr, made.ai_dst_len) = (address, first.ai_addrlen);
        }
        // SAFETY: made by getaddrinfo.
        unsafe { libc::freeaddrinfo(found) };
    }
    if let Some(hints) = hints {
        if made.ai_src_addr.is_null() {
            (made.ai_src_addr, made.ai_src_len) = copied_address(hints.ai_src_addr, hints.ai_src_len);
        }
        if node.is_null() && service.is_null() {
            made.ai_family = hints.ai_family;
            (made.ai_dst_addr, made.ai_dst_len) = copied_address(hints.ai_dst_addr, hints.ai_dst_len);
        }
    }
    *result = copied((&raw const made).cast(), size_of::<RdmaAddrInfo>()).cast();
    0
}

/// Frees what [`rdma_getaddrinfo`] made.
///
/// # Safety
/// `info` is NULL, or such a result that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut RdmaAddrInfo) {
    let mut next = info;
    // SAFETY: the caller's promise; all parts are of malloc.
    while let Some(this) = unsafe { next.as_mut() } {
        let after = this.ai_next;
        let parts = [
            this.ai_src_addr,
            this.ai_dst_addr,
            this.ai_src_canonname.cast(),
            this.ai_dst_canonname.cast(),
            this.ai_route,
            this.ai_connect,
            next.cast(),
        ];
        // SAFETY: as above.
        parts.into_iter().for_each(|part| unsafe { libc::free(part) });
        next = after;
    }
}

/// What an identifier knows of the names that it was to resolve.
#[derive(Default)]
pub(super) struct Resolution(Option<Found>);

/// A result that the program has not fetched.
struct Found(*mut RdmaAddrInfo);

// SAFETY: nobody else has the pointer.
unsafe impl Send for Found {}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: of `rdma_getaddrinfo`, and nobody else has it.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// Why `getaddrinfo` found nothing.
fn not_found(code: c_int) -> Failure {
    if code == libc::EAI_SYSTEM || code == -1 {
        let error = std::io::Error::last_os_error();
        return Failure::new(error.raw_os_error().unwrap_or(libc::EIO), error);
    }
    // SAFETY: a string for every number.
    let why = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
    Failure::new(libc::ENODATA, why.to_string_lossy())
}

/// Resolves names as [`rdma_getaddrinfo`], and says so by an event: [`rdma_query_addrinfo`] has the result. The names are
/// resolved before it returns, and what fails is its error. Names of InfiniBand's subnet administration are not offered.
///
/// # Safety
/// `node` and `service` are NULL or strings, `hints` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut RdmaCmId,
    node: *const c_char,
    service: *const c_char,
    hints: *const RdmaAddrInfo,
) -> c_int {
    let resolve = || {
        let found = id::get(id)?;
        // SAFETY: the caller's promise.
        if unsafe { hints.as_ref() }.is_some_and(|hints| hints.ai_flags & SUBNET_ADMINISTRATION != 0) {
            return Err(Failure::not_offered("RAI_SA: there is no subnet administration on Ethernet"));
        }
        let is_waiting = || Failure::new(libc::EBUSY, "the names before were not fetched by rdma_query_addrinfo");
        if found.lock().resolution.0.is_some() {
            return Err(is_waiting());
        }
        let mut result = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let code = unsafe { rdma_getaddrinfo(node, service, hints, &mut result) };
        if code != 0 {
            return Err(not_found(code));
        }
        let result = Found(result);
        match &mut found.lock().resolution.0 {
            Some(_) => return Err(is_waiting()),
            empty => *empty = Some(result),
        }
        drop(found);
        id::push(Pending::new(id, Kind::AddrInfoResolved));
        id::complete(id)
    };
    minus_one("rdma_resolve_addrinfo", resolve())
}

/// The result of [`rdma_resolve_addrinfo`], which is the program's from now on.
///
/// # Safety
/// `info` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut RdmaCmId, info: *mut *mut RdmaAddrInfo) -> c_int {
    let query = || {
        let id = id::get(id)?;
        // SAFETY: the caller's promise.
        let out = unsafe { info.as_mut() }.ok_or_else(|| Failure::null("info"))?;
        let found = id.lock().resolution.0.take();
        let found = found.ok_or_else(|| Failure::new(libc::ENOENT, "no names were resolved"))?;
        *out = std::mem::ManuallyDrop::new(found).0;
        Ok(())
    };
    minus_one("rdma_query_addrinfo", query())
}
