//! What providers for hardware import from libibverbs. Some programs are linked with such libraries and never use them
//! without the hardware, but the loader wants every name: all of these say EOPNOTSUPP.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::context::ibv_query_gid_type;
use crate::device::{ibv_read_sysfs_file, verbs_open_device};
use crate::error::set_errno;

/// Functions that return an error number.
macro_rules! not_offered {
    ($($name:ident)*) => { $(
        /// Not offered: for providers of hardware.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            set_errno(libc::EOPNOTSUPP);
            libc::EOPNOTSUPP
        }
    )* };
}

/// Providers announce themselves when they are loaded; there is nothing for them here.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_register_driver_34(_ops: *const c_void) {}

/// As [`verbs_register_driver_34`], for those of before 2018.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_register_driver(_name: *const c_char, _init: *const c_void) {}

/// Providers fill contexts of their own with it; there are none.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_set_ops(_context: *mut c_void, _ops: *const c_void) {}

/// Providers make contexts with it; there are none.
#[unsafe(no_mangle)]
pub extern "C" fn _verbs_init_and_alloc_context(
    _device: *mut c_void,
    _cmd_fd: c_int,
    _alloc_size: usize,
    _context: *mut c_void,
    _driver: u32,
) -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// Providers end contexts with it; there are none.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_uninit_context(_context: *mut c_void) {}

/// The number of attributes of a command that providers are about to send; there are none.
#[unsafe(no_mangle)]
pub extern "C" fn __ioctl_final_num_attrs(_count: c_uint, _link: *mut c_void) -> c_uint {
    0
}

/// Providers' logs. Variadic in C: what follows the format is left where it is.
#[unsafe(no_mangle)]
pub extern "C" fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_char) {}

/// Whether providers' objects may be destroyed although their device is gone.
#[unsafe(no_mangle)]
pub static verbs_allow_disassociate_destroy: bool = false;

/// A file of the device's folder in sysfs.
///
/// # Safety
/// `buffer` has room for `size` bytes, and `device` is a device of ours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    _sysfs_device: *mut c_void,
    _format: *const c_char,
) -> c_int {
    // There is no such folder. An empty file would be taken for an answer.
    // SAFETY: strings of our own; the caller's promise for the buffer.
    unsafe { ibv_read_sysfs_file(c"/sys/class/infiniband".as_ptr(), c"-".as_ptr(), buffer, size) }
}

/// What rdma-core has added to its own tools' and providers' functions since Debian 12's.
extern "C" fn added_later() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// As [`added_later`], for those that return a pointer.
extern "C" fn pointer_added_later() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

// Debian 12's programs (rdma-core 34 to 56) want private functions under the number 34; those of later versions want them
// under theirs. One symbol has one version in the linker's script, so the others are jumps.
macro_rules! later_versions {
    ($($name:ident)*) => { $( later_versions!(@each $name, $name); )* };
    ($($name:ident)* => $target:ident) => { $( later_versions!(@each $name, $target); )* };
    (@each $name:ident, $target:path) => { later_versions!(@one $name, $target, "57" "59" "64" "65"); };
    (@one $name:ident, $target:path, $($number:literal)*) => {
        std::arch::global_asm!(
            ".text",
            $(
                concat!(".globl uroce_", stringify!($name), "_", $number),
                concat!("uroce_", stringify!($name), "_", $number, ": jmp {target}"),
                concat!(
                    ".symver uroce_", stringify!($name), "_", $number, ", ",
                    stringify!($name), "@IBVERBS_PRIVATE_", $number
                ),
            )*
            target = sym $target,
        );
    };
}

/// Functions that are not offered under any of their versions.
macro_rules! not_offered_in_any_version {
    ($($name:ident)*) => {
        not_offered! { $($name)* }
        later_versions! { $($name)* }
    };
}

not_offered_in_any_version! {
    execute_ioctl
    ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd
    ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_counters ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
    ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp
    ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq verbs_init_cq
}

later_versions! {
    __ioctl_final_num_attrs __verbs_log _verbs_init_and_alloc_context ibv_query_gid_type ibv_read_ibdev_sysfs_file
    verbs_open_device verbs_set_ops verbs_uninit_context
}

later_versions! {
    ibv_cmd_alloc_dmah ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr
    ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
    ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_port_speed ibv_cmd_read_comp_cntr
    ibv_cmd_read_err_comp_cntr ibv_cmd_reg_mr_ex ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
    ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free
    => added_later
}

later_versions! { ibv_dmabuf_heap_alloc => pointer_added_later }

/// A function that has its number in its name, and a variable: [`verbs_allow_disassociate_destroy`] once more.
macro_rules! numbered {
    ($($number:literal)*) => {
        std::arch::global_asm!(
            ".text",
            $(
                concat!(".globl uroce_register_", $number),
                concat!("uroce_register_", $number, ": jmp {register}"),
                concat!(
                    ".symver uroce_register_", $number, ", verbs_register_driver_", $number, "@IBVERBS_PRIVATE_", $number
                ),
                concat!(".globl uroce_disassociate_", $number),
                concat!(".type uroce_disassociate_", $number, ", @object"),
                concat!(".size uroce_disassociate_", $number, ", 1"),
                ".pushsection .rodata",
                concat!("uroce_disassociate_", $number, ": .byte 0"),
                ".popsection",
                concat!(
                    ".symver uroce_disassociate_", $number,
                    ", verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_", $number
                ),
            )*
            register = sym verbs_register_driver_34,
        );
    };
}

numbered!("57" "59" "64" "65");

/// Functions of rdma-core 59 and later for what is not offered, which return an error number.
macro_rules! not_offered_later {
    ($($name:ident)*) => { $(
        /// Not offered.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            added_later()
        }
    )* };
}

not_offered_later! {
    ibv_dealloc_dmah _ibv_query_comp_cntr_caps ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
    ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
}

/// Handles for where a device's writes go among the processors are not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_dmah() -> *mut c_void {
    pointer_added_later()
}

/// Completion counters are not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_cntr() -> *mut c_void {
    pointer_added_later()
}

/// Device memory is not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dm_export_dmabuf_fd() -> c_int {
    added_later();
    -1
}
