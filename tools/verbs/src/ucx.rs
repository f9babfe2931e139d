//! UCX, and what `uroce run` told it in the environment.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Once;

/// What `uroce run` set for UCX, as `NAME=VALUE, NAME=VALUE`: variables that nobody else had set. It is there only when there
/// are some.
const TOLD: &str = "UROCE_UCX";

/// Says once on stderr what was set, when this program uses UCX.
pub(crate) fn say_what_was_set() {
    static ONCE: Once = Once::new();
    let Some(told) = std::env::var_os(TOLD).filter(|_| is_loaded()) else { return };
    ONCE.call_once(|| {
        eprintln!(
            "uroce: {} for UCX (docs/GUIDE.md, UCX, says why); what you set yourself stays as it is",
            told.display()
        );
    });
}

/// Whether UCX's transports are in this process.
fn is_loaded() -> bool {
    let mut found = false;
    // SAFETY: the callback gets the pointer that is passed, and runs before the call returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's structure, and our variable.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<bool>()) };
    if !info.dlpi_name.is_null() {
        // SAFETY: a string of the loader's.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
        // Wheels put a hash behind the name: libuct-1141f529.so.0.
        *found |= path.rsplit('/').next().is_some_and(|name| name.starts_with("libuct"));
    }
    0
}
