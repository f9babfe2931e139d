//! Memory regions: memory that the program lends.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uroce::verbs::{Access, Registration};

use crate::abi::{IbvContext, IbvMr, IbvMrInitAttr, IbvPd};
use crate::domain::{self, Domain};
use crate::error::{Failure, number, pointer, set_errno};
use crate::name::{Named, by_name};
use crate::slab::{NotRemoved, Object, Ref, Slab};
use crate::{buffer, context};

/// Memory regions at the most, in all contexts.
pub(crate) const MAX_MRS: usize = 1 << 20;

/// A memory region.
pub(crate) struct Region {
    context: usize,
    /// `None` once it is being deregistered. Who holds the lock takes the engine next, so nobody may want it who has the engine.
    registration: Mutex<Option<Registration>>,
    /// Its key, for requests: they are made of the program's while the engine is held.
    key: AtomicU32,
    /// What peers may do, for a registration of other memory. `None`: it is of no memory, and stays so.
    access: Mutex<Option<Access>>,
    /// The domain does not go before.
    domain: Mutex<Arc<()>>,
}

impl Object for Region {
    type C = IbvMr;
    const CAPACITY: usize = MAX_MRS;

    fn slab() -> &'static Slab<Region> {
        static SLAB: Slab<Region> = Slab::new();
        &SLAB
    }
}

impl Named for Region {
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32) {
        // SAFETY: only places are computed; the slab has room for the structure there.
        unsafe { (&raw mut (*c).context, &raw mut (*c).handle) }
    }

    fn context(&self) -> usize {
        self.context
    }
}

pub(crate) fn get(mr: *const IbvMr) -> Result<Ref<Region>, Failure> {
    Region::slab().get(mr).ok_or_else(|| Failure::handle("memory region"))
}

/// As [`get`], for registration and deregistration.
fn get_by_name(mr: *const IbvMr) -> Result<Ref<Region>, Failure> {
    by_name("memory region", get(mr)?)
}

/// `IBV_ACCESS_HUGETLB`: larger pages make no difference to us.
const HUGETLB: u32 = 1 << 7;
/// `enum ibv_access_flags`, but for what a device may ignore: `IBV_ACCESS_LOCAL_WRITE` to `_FLUSH_PERSISTENT`.
const KNOWN: u32 = (1 << 10) - 1;
/// Flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`); relaxed ordering is among them.
const OPTIONAL_RANGE: u32 = 0x3ff0_0000;

/// The access that `enum ibv_access_flags` asks for, of a region or a window.
pub(crate) fn access(flags: c_uint) -> Result<Access, Failure> {
    let flags = match uroce::mutated!("unknown-flags-dropped", by "uroce-verbs --lib access_flags_that_nobody_knows") {
        true => flags & (KNOWN | OPTIONAL_RANGE),
        false => flags,
    };
    if flags & !(KNOWN | OPTIONAL_RANGE) != 0 {
        return Err(Failure::new(libc::EINVAL, format_args!("unknown access flags in {flags:#x}")));
    }
    let wanted = flags & !(OPTIONAL_RANGE | HUGETLB);
    let Some(access) = Access::from_bits(wanted) else {
        return Err(Failure::not_offered(format_args!("access flags {:#x}", wanted & !Access::all().bits())));
    };
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(Failure::not_offered("regions that outlive a power failure"));
    }
    Ok(access | Access::from_bits_truncate(flags & OPTIONAL_RANGE))
}

/// As [`access`], of a region.
fn region_access(flags: c_uint) -> Result<Access, Failure> {
    let access = access(flags)?;
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Failure::new(
            libc::EINVAL,
            "remote writes and atomics need IBV_ACCESS_LOCAL_WRITE (IBTA 10.6.3.1)",
        ));
    }
    Ok(access)
}

/// The registration of memory that the program has.
fn lend(owner: &Domain, addr: *mut c_void, length: usize, iova: u64, access: Access) -> Result<Registration, Failure> {
    if length == 0 {
        return Err(Failure::new(libc::EINVAL, "the length of the region is 0"));
    }
    if (addr as u64).checked_add(length as u64).is_none() || iova.checked_add(length as u64).is_none() {
        return Err(Failure::new(libc::EINVAL, format_args!("{length} bytes at {addr:p} exceed the address space")));
    }
    // SAFETY: whoever registers memory through the verbs says that peers may access it; it may vanish all the same.
    unsafe { owner.pd.register_borrowed(addr.cast(), length as u64, iova, access) }
        .map_err(|error| Failure::new(libc::EFAULT, error))
}

/// Registers memory of the program's.
pub(crate) fn register(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut IbvMr, Failure> {
    let owner = domain::get(pd)?;
    let access = region_access(flags)?;
    let registration = lend(&owner, addr, length, iova, access)?;
    let key = registration.key().0;
    let context = owner.context as *mut IbvContext;
    let c = IbvMr { context, pd, addr, length, handle: 0, lkey: key, rkey: key };
    insert(&owner, c, registration, Some(access))
}

fn insert(
    owner: &Domain,
    structure: IbvMr,
    registration: Registration,
    access: Option<Access>,
) -> Result<*mut IbvMr, Failure> {
    let key = registration.key().0;
    let made = Region::slab().insert(|c| {
        // SAFETY: the slab passes room for it.
        unsafe { c.write(IbvMr { handle: Region::slab().number(c), ..structure }) };
        Region {
            context: owner.context,
            registration: Mutex::new(Some(registration)),
            key: AtomicU32::new(key),
            access: Mutex::new(access),
            domain: Mutex::new(owner.users.clone()),
        }
    });
    made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many memory regions"))
}

/// Makes a region of no memory: good for any address and length, for local requests only.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut IbvPd) -> *mut IbvMr {
    let allocate = || {
        let owner = domain::get(pd)?;
        let registration = owner.pd.register_null();
        let context = owner.context as *mut IbvContext;
        let (addr, lkey) = (std::ptr::null_mut(), registration.key().0);
        let c = IbvMr { context, pd, addr, length: usize::MAX, handle: 0, lkey, rkey: 0 };
        insert(&owner, c, registration, None)
    };
    pointer("ibv_alloc_null_mr", allocate())
}

/// `enum ibv_mr_init_attr_mask`.
mod init_mask {
    pub(super) const IOVA: u64 = 1;
    pub(super) const ADDR: u64 = 1 << 1;
    pub(super) const FD: u64 = 1 << 2;
    pub(super) const FD_OFFSET: u64 = 1 << 3;
    pub(super) const BUF: u64 = 1 << 5;
}

/// Registers memory of the program's or of a buffer; since rdma-core 59.
///
/// # Safety
/// `attr` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut IbvPd, attr: *mut IbvMrInitAttr) -> *mut IbvMr {
    use init_mask::{ADDR, BUF, FD, FD_OFFSET, IOVA};
    let registered = || {
        drop(domain::get(pd)?);
        if attr.is_null() {
            return Err(Failure::null("mr_init_attr"));
        }
        // SAFETY: the caller's promise. What is behind `comp_mask` is read when that names it: older programs have less.
        let mask = unsafe { (*attr).comp_mask };
        if mask & BUF != 0 && mask & (FD | FD_OFFSET) != 0 || (mask & ADDR != 0) == (mask & FD != 0) {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("comp_mask {mask:#x}: set either the address or the descriptor"),
            ));
        }
        if mask & !(IOVA | ADDR | BUF) != 0 {
            return Err(Failure::not_offered(format_args!("comp_mask {:#x}", mask & !(IOVA | ADDR | BUF))));
        }
        // SAFETY: as above.
        let (addr, length, access) = unsafe { ((*attr).addr, (*attr).length, (*attr).access) };
        if mask & BUF != 0 {
            // SAFETY: as above.
            buffer::check(unsafe { (*attr).buf }, pd, addr, length)?;
        }
        // SAFETY: as above.
        let iova = if mask & IOVA != 0 { unsafe { (*attr).iova } } else { addr as u64 };
        register(pd, addr, length, iova, access as c_uint)
    };
    pointer("ibv_reg_mr_ex", registered())
}

/// Registers memory, known to peers by its own addresses.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr(pd: *mut IbvPd, addr: *mut c_void, length: usize, access: c_int) -> *mut IbvMr {
    pointer("ibv_reg_mr", register(pd, addr, length, addr as u64, access as c_uint))
}

/// Registers memory, known to peers as `iova` and on.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut IbvMr {
    pointer("ibv_reg_mr_iova", register(pd, addr, length, iova, access as c_uint))
}

/// As `ibv_reg_mr_iova`, with flags that a device may ignore.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova2(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut IbvMr {
    pointer("ibv_reg_mr_iova2", register(pd, addr, length, iova, access))
}

/// Memory of other devices is not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut IbvPd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut IbvMr {
    pointer("ibv_reg_dmabuf_mr", domain::get(pd).and_then(|_| Err(Failure::not_offered("dma-buf regions"))))
}

/// `enum ibv_rereg_mr_flags`.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;

/// Changes a region's memory, protection domain or access. Other memory comes with other keys (IBTA 11.2.8.6), which stand in
/// the structure then.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rereg_mr(
    mr: *mut IbvMr,
    flags: c_int,
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    /// `IBV_REREG_MR_ERR_INPUT`, `IBV_REREG_MR_ERR_CMD`: nothing was changed. The first is for arguments that do not go together,
    /// the second for what the region or its domain refuses (the kernel, with rdma-core).
    const ERR_INPUT: c_int = -1;
    const ERR_CMD: c_int = -4;
    let check = || {
        let region = get(mr)?;
        if region.access.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(Failure::new(libc::EINVAL, "a null region cannot be changed"));
        }
        if flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0 {
            return Err(Failure::new(libc::EINVAL, format_args!("unknown flags in {flags:#x}")));
        }
        if flags & CHANGE_TRANSLATION != 0 && (addr.is_null() || length == 0) {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("the new memory is {length} bytes at {addr:p}: neither may be 0"),
            ));
        }
        if flags & CHANGE_ACCESS == 0 && access != 0 {
            return Err(Failure::new(
                libc::EINVAL,
                format_args!("access {access:#x}, without IBV_REREG_MR_CHANGE_ACCESS"),
            ));
        }
        Ok(())
    };
    let change = || {
        let region = get_by_name(mr)?;
        if flags == 0 {
            return Err(Failure::new(libc::EINVAL, "no flag says what to change"));
        }
        let new_pd = if flags & CHANGE_PD != 0 { Some(domain::get(pd)?) } else { None };
        if let Some(new_pd) = &new_pd {
            context::check_same("protection domain", new_pd.context, region.context)?;
        }
        let new_access = if flags & CHANGE_ACCESS != 0 { Some(region_access(access as c_uint)?) } else { None };
        let mut registration = region.registration.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known_access = region.access.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current_access) = *known_access else {
            return Err(Failure::new(libc::EINVAL, "a null region cannot be changed"));
        };
        if flags & CHANGE_TRANSLATION != 0 {
            let old = registration.take().ok_or_else(|| Failure::handle("memory region"))?;
            let access = new_access.unwrap_or(current_access);
            let lent = || {
                if let Some(new) = &new_pd {
                    return lend(new, addr, length, addr as u64, access);
                }
                // SAFETY: the slot's structure.
                let own = domain::get(unsafe { (*region.c().as_ptr()).pd })?;
                context::check_same("protection domain", own.context, region.context)?;
                lend(&own, addr, length, addr as u64, access)
            };
            let new = match lent() {
                Ok(new) => new,
                Err(failure) => {
                    *registration = Some(old);
                    return Err(failure);
                }
            };
            if let Err((old, error)) = old.deregister() {
                *registration = Some(old);
                return Err(error.into());
            }
            let key = new.key().0;
            *registration = Some(new);
            region.key.store(key, Ordering::Relaxed);
            // SAFETY: the slot's structure.
            unsafe {
                let c = region.c().as_ptr();
                ((*c).addr, (*c).length, (*c).lkey, (*c).rkey) = (addr, length, key, key);
            }
        } else {
            let registration = registration.as_ref().ok_or_else(|| Failure::handle("memory region"))?;
            registration.reregister(new_pd.as_ref().map(|new| &new.pd), new_access)?;
        }
        *known_access = Some(new_access.unwrap_or(current_access));
        if let Some(new) = new_pd {
            *region.domain.lock().unwrap_or_else(PoisonError::into_inner) = new.users.clone();
            // SAFETY: the slot's structure.
            unsafe { (*region.c().as_ptr()).pd = pd };
        }
        Ok(())
    };
    if let Err(failure) = check() {
        number("ibv_rereg_mr", Err(failure));
        return ERR_INPUT;
    }
    if number("ibv_rereg_mr", change()) == 0 { 0 } else { ERR_CMD }
}

/// Ends a registration to which no windows are bound.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int {
    let end = || {
        let region = get_by_name(mr)?;
        let mut held = region.registration.lock().unwrap_or_else(PoisonError::into_inner);
        let registration = held.take().ok_or_else(|| Failure::handle("memory region"))?;
        if let Err((registration, error)) = registration.deregister() {
            *held = Some(registration);
            return Err(error.into());
        }
        drop(held);
        drop(region);
        Region::slab().remove(mr, |_| true).map(drop).map_err(|error| Failure::removal("memory region", error))
    };
    number("ibv_dereg_mr", end())
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for mr in Region::slab().pointers(|region| region.context == context as usize) {
        let gone: Result<Region, NotRemoved> = Region::slab().remove(mr.as_ptr(), |_| true);
        drop(gone);
    }
}

/// A region from another process is not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(pd: *mut IbvPd, _handle: u32) -> *mut IbvMr {
    pointer("ibv_import_mr", domain::get(pd).and_then(|_| Err(Failure::not_offered("importing"))))
}

/// There are no imported regions.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_mr: *mut IbvMr) {
    set_errno(libc::EOPNOTSUPP);
}

/// For `ibv_import_device` and its kin: contexts of other processes are not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_fd: c_int) -> *mut IbvContext {
    pointer("ibv_import_device", Err(Failure::not_offered("importing")))
}

/// See `ibv_import_device`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut IbvContext, _handle: u32) -> *mut IbvPd {
    pointer("ibv_import_pd", Err(Failure::not_offered("importing")))
}

/// See `ibv_import_device`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_pd: *mut IbvPd) {
    set_errno(libc::EOPNOTSUPP);
}

/// Device memory is not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut IbvContext, _handle: u32) -> *mut c_void {
    pointer("ibv_import_dm", Err(Failure::not_offered("device memory")))
}

/// Device memory is not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {
    set_errno(libc::EOPNOTSUPP);
}

/// The key of the region that a program's pointer means.
pub(crate) fn key(mr: *const IbvMr) -> Result<uroce::verbs::Key, Failure> {
    Ok(uroce::verbs::Key(get(mr)?.key.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_that_nobody_knows_are_refused_but_for_the_optional_ones() {
        let errno = |flags| access(flags).err().map(|failure| failure.errno);
        for bit in (0..32).filter(|bit| (KNOWN | OPTIONAL_RANGE) >> bit & 1 == 0) {
            assert_eq!(errno(1 << bit), Some(libc::EINVAL), "bit {bit}");
            assert_eq!(errno(1 << bit | 1), Some(libc::EINVAL), "bit {bit} beside another");
        }
        for bit in (0..32).filter(|bit| OPTIONAL_RANGE >> bit & 1 == 1) {
            assert_eq!(errno(1 << bit | 1), None, "bit {bit}");
        }
        assert_eq!(access(1 | HUGETLB).ok(), Some(Access::LOCAL_WRITE));
    }
}
