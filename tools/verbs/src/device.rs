//! The list of devices: `ibv_get_device_list` and what asks devices that are not open.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use uroce::link::device::Device;

use crate::abi::{IbvContext, IbvDevice};
use crate::context;
use crate::error::{Failure, number, pointer, set_errno};
use crate::lock::SpinLock;
use crate::marks::Mark;
use crate::options;
use crate::slab::{Object, Slab};

/// A device that the program was told of. They are never taken back: programs keep the pointers beyond the list.
pub(crate) struct Known {
    pub name: String,
}

impl Object for Known {
    type C = IbvDevice;
    const CAPACITY: usize = 1024;

    fn slab() -> &'static Slab<Known> {
        static SLAB: Slab<Known> = Slab::new();
        &SLAB
    }
}

/// Lists that were given out, so that only those are freed.
static LISTS: SpinLock<Vec<usize>> = SpinLock::new(Vec::new());

pub(crate) fn before_fork() {
    LISTS.take();
}

pub(crate) fn after_fork() {
    // SAFETY: `before_fork` took it.
    unsafe { LISTS.give_back() };
}

/// `enum ibv_node_type`, `enum ibv_transport_type`: an InfiniBand channel adapter, as rxe and RNICs for RoCE are.
const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;

/// The devices that programs see, by `UROCE_DEV`.
pub(crate) fn visible() -> Result<Vec<Device>, Failure> {
    Device::visible(&options::interfaces()).map_err(|error| {
        eprintln!("uroce: {error}");
        Failure::new(libc::ENODEV, error)
    })
}

fn known(device: &Device) -> Result<NonNull<IbvDevice>, Failure> {
    // One thread at a time, lest one device gets two pointers.
    let _one = LISTS.lock();
    if let Some(pointer) = Known::slab().pointers(|known| known.name == device.name).first() {
        return Ok(*pointer);
    }
    let make = |c: *mut IbvDevice| {
        let mut fresh = IbvDevice {
            ops: [std::ptr::null(); 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        put(&mut fresh.name, &device.name);
        put(&mut fresh.dev_name, &format!("uverbs-{}", device.name));
        // `uroce run` writes these files, and `redirect` leads the program's calls there.
        put(&mut fresh.dev_path, &format!("/sys/class/infiniband_verbs/uverbs-{}", device.name));
        put(&mut fresh.ibdev_path, &format!("/sys/class/infiniband/{}", device.name));
        // SAFETY: the slab passes room for it.
        unsafe { c.write(fresh) };
        Known { name: device.name.clone() }
    };
    let full = || Failure::new(libc::ENOMEM, "too many devices");
    Known::slab().insert(make).ok_or_else(full)
}

/// Opens a device that the program has not asked for by its pointer.
pub(crate) fn open_found(device: Device) -> Result<*mut IbvContext, Failure> {
    let pointer = known(&device)?.as_ptr();
    context::open(pointer, device)
}

/// Copies `text` with a NUL at its end, shortened if need be.
fn put(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The device of a pointer that the program has, as it is now.
fn find(device: *const IbvDevice) -> Result<Device, Failure> {
    let known = Known::slab().get(device).ok_or_else(|| Failure::handle("device"))?;
    let names = options::interfaces();
    let found = match names.is_empty() {
        true => Device::find(Some(&known.name)),
        // There is only that one.
        false => Device::find(names.first().map(String::as_str)),
    };
    found.map_err(|error| Failure::new(libc::ENODEV, error))
}

/// Lists the devices; `num_devices` may be NULL.
///
/// # Safety
/// `num_devices` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut IbvDevice {
    crate::lifetime::begin();
    Mark::Listed.leave();
    let made = visible().and_then(|devices| {
        let pointers = devices.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        let bytes = (pointers.len() + 1) * size_of::<*mut IbvDevice>();
        // SAFETY: nothing but the size is passed.
        let list = unsafe { libc::calloc(1, bytes) }.cast::<*mut IbvDevice>();
        if list.is_null() {
            return Err(Failure::new(libc::ENOMEM, "no memory"));
        }
        for (index, device) in pointers.iter().enumerate() {
            // SAFETY: there is room for all of them and a NULL.
            unsafe { *list.add(index) = device.as_ptr() };
        }
        LISTS.lock().push(list as usize);
        // SAFETY: the caller's promise.
        if let Some(num) = unsafe { num_devices.as_mut() } {
            *num = pointers.len() as c_int;
        }
        Ok(list)
    });
    // SAFETY: the caller's promise.
    if let (Err(_), Some(num)) = (&made, unsafe { num_devices.as_mut() }) {
        *num = 0;
    }
    pointer("ibv_get_device_list", made)
}

/// Frees a list; the devices in it stay. What is no list is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_device_list(list: *mut *mut IbvDevice) {
    let mut lists = LISTS.lock();
    if let Some(at) = lists.iter().position(|known| *known == list as usize) {
        lists.swap_remove(at);
        // SAFETY: we made it with calloc, and it was not freed yet.
        unsafe { libc::free(list.cast()) };
    }
}

/// The device's name, as long as the program runs.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut IbvDevice) -> *const c_char {
    match Known::slab().get(device) {
        // SAFETY: the slot holds a device.
        Some(known) => unsafe { (&raw const (*known.c().as_ptr()).name).cast() },
        None => {
            set_errno(libc::EINVAL);
            std::ptr::null()
        }
    }
}

/// The device's GUID in network order; 0 when there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut IbvDevice) -> u64 {
    match find(device) {
        Ok(device) => device.guid().to_be(),
        Err(failure) => {
            set_errno(failure.errno);
            0
        }
    }
}

/// The kernel's number of the device: here that of the interface.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut IbvDevice) -> c_int {
    match find(device) {
        Ok(device) => device.index as c_int,
        Err(failure) => {
            set_errno(failure.errno);
            -1
        }
    }
}

/// Opens a device. Its link is opened with the first object that needs it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut IbvDevice) -> *mut IbvContext {
    pointer("ibv_open_device", find(device).and_then(|found| context::open(device, found)))
}

/// As `ibv_open_device`; what providers call. There is nothing private to say to this one.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_open_device(device: *mut IbvDevice, _private: *mut c_void) -> *mut IbvContext {
    ibv_open_device(device)
}

/// Where sysfs is.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file in a folder of sysfs, without the newline at its end. Returns its length, or -1.
///
/// # Safety
/// `folder` and `file` are strings, and `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    if folder.is_null() || file.is_null() || buffer.is_null() || size == 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise.
    let [folder, file] = [folder, file].map(|text| unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy());
    match std::fs::read(format!("{folder}/{file}")) {
        Ok(mut bytes) => {
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            bytes.truncate(size - 1);
            // SAFETY: there is room for `size` bytes, and these are fewer.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len());
                *buffer.add(bytes.len()) = 0;
            }
            bytes.len() as c_int
        }
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// Passes no fork-related advice on: the transport reads and writes registered memory through the program's own pages.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    number("ibv_fork_init", Ok(()))
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// Nothing to do, as for `ibv_fork_init`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Nothing to do, as for `ibv_fork_init`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
