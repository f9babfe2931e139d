//! Sockets over RDMA. They are not offered: each function fails with ENOSYS, and `rsocket` says so.

use std::ffi::c_int;

use crate::error::set_errno;

/// Functions whose result is an `int`.
macro_rules! not_offered {
    ($($name:ident)*) => {
        $(
            /// Not offered: fails with ENOSYS.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                set_errno(libc::ENOSYS);
                -1
            }
        )*
    };
}

not_offered! {
    rbind rlisten raccept rconnect rshutdown rclose rpoll rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl
    riounmap repoll_create repoll_ctl repoll_wait
}

/// Functions whose result is a length or an offset.
macro_rules! no_lengths {
    ($($name:ident)*) => {
        $(
            /// Not offered: fails with ENOSYS.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                set_errno(libc::ENOSYS);
                -1
            }
        )*
    };
}

no_lengths! { rrecv rrecvfrom rrecvmsg rsend rsendto rsendmsg rread rreadv rwrite rwritev riomap riowrite }

/// Not offered: fails with ENOSYS.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    eprintln!("uroce: rsocket: sockets over RDMA are not offered; use the verbs, or the kernel's sockets");
    set_errno(libc::ENOSYS);
    -1
}
