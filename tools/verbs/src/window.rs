//! Memory windows.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use uroce::verbs::{Data, Key, MemoryWindow, SendOperation, SendRequest, WindowBinding, WindowKind};

use crate::abi::*;
use crate::error::{Failure, number, pointer};
use crate::name::{Named, by_name};
use crate::slab::{Object, Ref, Slab};
use crate::{domain, queue_pair, region};

/// Memory windows at the most, in all contexts.
pub(crate) const MAX_MWS: usize = 1 << 16;

/// A memory window.
pub(crate) struct Window {
    context: usize,
    kind: WindowKind,
    window: MemoryWindow,
    _domain: Arc<()>,
}

impl Object for Window {
    type C = IbvMw;
    const CAPACITY: usize = MAX_MWS;

    fn slab() -> &'static Slab<Window> {
        static SLAB: Slab<Window> = Slab::new();
        &SLAB
    }
}

impl Named for Window {
    fn name(c: *mut Self::C) -> (*mut *mut IbvContext, *mut u32) {
        // SAFETY: only places are computed; the slab has room for the structure there.
        unsafe { (&raw mut (*c).context, &raw mut (*c).handle) }
    }

    fn context(&self) -> usize {
        self.context
    }
}

pub(crate) fn get(mw: *const IbvMw) -> Result<Ref<Window>, Failure> {
    Window::slab().get(mw).ok_or_else(|| Failure::handle("memory window"))
}

const TYPE_1: c_int = 1;
const TYPE_2: c_int = 2;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut IbvPd, kind: c_int) -> *mut IbvMw {
    let allocate = || {
        let owner = domain::get(pd)?;
        let window_kind = match kind {
            TYPE_1 => WindowKind::One,
            TYPE_2 => WindowKind::Two,
            _ => {
                return Err(Failure::new(
                    libc::EINVAL,
                    format_args!("{kind} is not a type of memory windows: use IBV_MW_TYPE_1 or IBV_MW_TYPE_2"),
                ));
            }
        };
        let window = owner.pd.allocate_window(window_kind);
        let key = window.key();
        let context = owner.context as *mut IbvContext;
        let made = Window::slab().insert(|c| {
            // SAFETY: the slab passes room for it.
            unsafe { c.write(IbvMw { context, pd, rkey: key.0, handle: Window::slab().number(c), kind }) };
            Window { context: owner.context, kind: window_kind, window, _domain: owner.users.clone() }
        });
        made.map(NonNull::as_ptr).ok_or_else(|| Failure::new(libc::ENOMEM, "too many memory windows"))
    };
    pointer("ibv_alloc_mw", allocate())
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut IbvMw) -> c_int {
    let end = || {
        drop(by_name("memory window", get(mw)?)?);
        let gone = Window::slab().remove(mw, |_| true).map_err(|error| Failure::removal("memory window", error))?;
        gone.window.deallocate();
        Ok(())
    };
    number("ibv_dealloc_mw", end())
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for mw in Window::slab().pointers(|window| window.context == context as usize) {
        if let Ok(gone) = Window::slab().remove(mw.as_ptr(), |_| true) {
            gone.window.deallocate();
        }
    }
}

/// The request that binds `mw` with `new_key`.
pub(crate) fn binding(mw: *const IbvMw, new_key: Key, info: &IbvMwBindInfo) -> Result<SendOperation, Failure> {
    let region = region_below(info)?;
    Ok(SendOperation::BindWindow(WindowBinding {
        window: get(mw)?.window.key(),
        new_key,
        region,
        address: info.addr,
        len: info.length,
        access: region::access(info.mw_access_flags)?,
    }))
}

/// The key of the region that a binding is to: 0 for nothing, which needs none.
fn region_below(info: &IbvMwBindInfo) -> Result<Key, Failure> {
    match (info.mr.is_null(), info.length) {
        (false, _) => region::key(info.mr),
        (true, 0) => Ok(Key(0)),
        (true, _) if uroce::mutated!("window-binding-without-region", by "uroce-verbs --lib bytes_of_no_region_are_not") => {
            Ok(Key(0))
        }
        (true, _) => Err(Failure::new(libc::EINVAL, "a binding of bytes without a region")),
    }
}

/// Writes the key that a binding gives where the program sees it, once that is posted, as irdma does: with rxe and mlx5 the program
/// writes it, which is the same.
pub(crate) fn show_key(mw: *const IbvMw, new_key: Key) {
    if let Ok(window) = get(mw) {
        // SAFETY: the slot's structure.
        unsafe { (*window.c().as_ptr()).rkey = window.window.key().0 & !0xff | new_key.0 & 0xff };
    }
}

/// Binds a type 1 window; the new key is in the structure when this returns.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut IbvQp, mw: *mut IbvMw, bind: *mut IbvMwBind) -> c_int {
    let post = || {
        // SAFETY: NULL, or the program's structure.
        let bind = unsafe { bind.as_ref() }.ok_or_else(|| Failure::null("mw_bind"))?;
        let window = get(mw)?;
        if window.kind != WindowKind::One {
            return Err(Failure::new(libc::EINVAL, "type 2 windows are bound by IBV_WR_BIND_MW"));
        }
        // SAFETY: the slot's structure. Whoever hears of a failed binding writes the key of before there.
        let shown = unsafe { (*window.c().as_ptr()).rkey };
        let new_key = Key(window.window.key().0 & !0xff | (shown.wrapping_add(1) & 0xff));
        let operation = binding(mw, new_key, &bind.bind_info)?;
        queue_pair::post_one(qp, |all_are_signaled| SendRequest {
            signaled: all_are_signaled || bind.send_flags & send_flag::SIGNALED != 0,
            fence: bind.send_flags & send_flag::FENCE != 0,
            ..SendRequest::new(bind.wr_id, operation, Data::EMPTY)
        })?;
        show_key(mw, new_key);
        Ok(())
    };
    number("ibv_bind_mw", post())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_no_region_are_not_bound() {
        let none = std::ptr::null_mut();
        let below = |mr, length| region_below(&IbvMwBindInfo { mr, addr: 0x1000, length, mw_access_flags: 0 });
        let errno = |mr, length| below(mr, length).err().map(|failure| failure.errno);
        assert_eq!(below(none, 0).ok(), Some(Key(0)), "to nothing");
        assert_eq!([1, 4096, u64::MAX].map(|length| errno(none, length)), [Some(libc::EINVAL); 3]);
        let stale = std::ptr::without_provenance_mut(0x1000);
        assert_eq!([0, 1].map(|length| errno(stale, length)), [Some(libc::EINVAL); 2], "a region that is none");
    }
}
