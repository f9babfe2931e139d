//! What programs reach in place of the C library's functions for files, since this library comes before it.
//!
//! Programs look for devices in `/dev/infiniband` and in sysfs. `uroce run` writes what they look for into a folder, and
//! names it in `UROCE_TREE`. Paths below the three folders of [`OURS`] are looked up there; all other calls pass to the next
//! library unchanged. None of these functions allocates: they are called in handlers, and between fork and exec. The first
//! call of each asks the loader for the next library's function, which takes the loader's lock. Statically linked programs and those that make the system calls themselves are not reached.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::error::set_errno;
use crate::live;
use crate::marks::{self, Mark};

/// The folders that are looked up in the tree.
const OURS: [&[u8]; 3] = [b"/dev/infiniband", b"/sys/class/infiniband", b"/sys/class/infiniband_verbs"];

/// The longest path, with its NUL (`PATH_MAX`).
const PATH_BYTES: usize = libc::PATH_MAX as usize;

/// The tree's folder, without a slash at its end.
pub(crate) fn tree() -> Option<&'static CStr> {
    static TREE: OnceLock<Option<CString>> = OnceLock::new();
    let read = || CString::new(std::env::var_os("UROCE_TREE")?.into_vec()).ok().filter(|tree| !tree.is_empty());
    TREE.get_or_init(read).as_deref()
}

/// Reads the environment when the library is loaded, since reading it allocates.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        if let Some(tree) = tree() {
            marks::loaded();
            let folder = std::env::current_dir().map_or(Vec::new(), |folder| folder.into_os_string().into_vec());
            HAS_ENTERED.store(folder.starts_with(tree.to_bytes()), Ordering::Relaxed);
        }
    }
    begin
};

/// Whether the process may have a folder in the tree open, or be in one: then paths without a slash in front can lead
/// there.
static HAS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The connection manager of the kernel, which only programs with a library of their own look for.
const KERNEL_CM: &[u8] = b"/dev/infiniband/rdma_cm";

/// The tree, when `path` is looked up there.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn tree_of(path: *const c_char) -> Option<&'static CStr> {
    // Nearly all paths end here.
    // SAFETY: the caller's promise.
    if path.is_null() || unsafe { *path } != b'/' as c_char {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_below = |ours: &[u8]| path.starts_with(ours) && matches!(path.get(ours.len()), None | Some(b'/'));
    tree().filter(|_| OURS.iter().any(|ours| is_below(ours)))
}

/// Passes `path` to `call`, or the path in the tree that takes its place.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn redirected<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: the caller's promise.
    match unsafe { tree_of(path) } {
        None => call(path),
        // SAFETY: the caller's promise.
        Some(tree) => in_tree(tree, unsafe { CStr::from_ptr(path) }, call),
    }
}

/// A function of its own: handlers on small stacks call what never needs this memory. A path that is too long for the
/// C library passes unchanged: no file has it.
#[inline(never)]
fn in_tree<R>(tree: &CStr, path: &CStr, call: impl FnOnce(*const c_char) -> R) -> R {
    HAS_ENTERED.store(true, Ordering::Relaxed);
    let mut bytes = [0u8; PATH_BYTES];
    let (tree, path_bytes) = (tree.to_bytes(), path.to_bytes_with_nul());
    let len = tree.len() + path_bytes.len();
    if len > PATH_BYTES {
        return call(path.as_ptr());
    }
    bytes[..tree.len()].copy_from_slice(tree);
    bytes[tree.len()..len].copy_from_slice(path_bytes);
    call(bytes.as_ptr().cast())
}

/// What opening a file returns.
trait HasDescriptor {
    /// The file's descriptor; negative when there is none.
    fn descriptor(&self) -> c_int;
}

impl HasDescriptor for c_int {
    fn descriptor(&self) -> c_int {
        *self
    }
}

impl HasDescriptor for *mut libc::FILE {
    fn descriptor(&self) -> c_int {
        // SAFETY: the C library's, just opened.
        if self.is_null() { -1 } else { unsafe { libc::fileno(*self) } }
    }
}

/// As [`redirected`], for calls that open a file: the file of a counter gets its value now.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn opened<R: HasDescriptor>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: the caller's promise.
    let (found, first) = unsafe { (tree_of(path), if path.is_null() { 0 } else { *path.cast::<u8>() }) };
    // SAFETY: the caller's promise.
    let result = unsafe { redirected(path, call) };
    let may_be_in = found.or_else(|| tree().filter(|_| first != b'/' && HAS_ENTERED.load(Ordering::Relaxed)));
    if let Some(tree) = may_be_in {
        match result.descriptor() {
            // SAFETY: the caller's promise.
            ..0 if found.is_some() && unsafe { CStr::from_ptr(path) }.to_bytes() == KERNEL_CM => Mark::KernelCm.leave(),
            ..0 => {}
            fd => live::fill(tree, fd),
        }
    }
    result
}

/// The next library's function of a name.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; NULL when no library has it.
    pub fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a string; the loader looks it up.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Functions whose argument `path` is redirected, by `$way`. `$before` and `$after` are the other arguments, `$failure` is
/// returned where the C library lacks the function.
macro_rules! redirect {
    ($way:ident; $($name:ident($($before:ident: $before_type:ty,)* [path] $(, $after:ident: $after_type:ty)*) -> $result:ty, $failure:expr;)*) => {$(
        #[doc = concat!("As the C library's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            });
            let next = NEXT.address();
            if next.is_null() {
                set_errno(libc::ENOSYS);
                return $failure;
            }
            // SAFETY: the program's promises are those of the function of that name, which has this type.
            unsafe {
                let next = transmute::<*mut c_void, Function>(next);
                $way(path, |path| next($($before,)* path $(, $after)*))
            }
        }
    )*};
}

// `open` and `openat` have three and four arguments in C only with O_CREAT or O_TMPFILE. The last one is passed in a register
// all the same, on x86-64 and aarch64, and the C library reads it only then.
redirect! {
    opened;
    open([path], flags: c_int, mode: c_uint) -> c_int, -1;
    open64([path], flags: c_int, mode: c_uint) -> c_int, -1;
    __open_2([path], flags: c_int) -> c_int, -1;
    __open64_2([path], flags: c_int) -> c_int, -1;
    openat(folder: c_int, [path], flags: c_int, mode: c_uint) -> c_int, -1;
    openat64(folder: c_int, [path], flags: c_int, mode: c_uint) -> c_int, -1;
    __openat_2(folder: c_int, [path], flags: c_int) -> c_int, -1;
    __openat64_2(folder: c_int, [path], flags: c_int) -> c_int, -1;
    fopen([path], mode: *const c_char) -> *mut libc::FILE, std::ptr::null_mut();
    fopen64([path], mode: *const c_char) -> *mut libc::FILE, std::ptr::null_mut();
}

redirect! {
    redirected;
    stat([path], to: *mut libc::stat) -> c_int, -1;
    stat64([path], to: *mut libc::stat64) -> c_int, -1;
    lstat([path], to: *mut libc::stat) -> c_int, -1;
    lstat64([path], to: *mut libc::stat64) -> c_int, -1;
    fstatat(folder: c_int, [path], to: *mut libc::stat, flags: c_int) -> c_int, -1;
    fstatat64(folder: c_int, [path], to: *mut libc::stat64, flags: c_int) -> c_int, -1;
    __xstat(version: c_int, [path], to: *mut libc::stat) -> c_int, -1;
    __xstat64(version: c_int, [path], to: *mut libc::stat64) -> c_int, -1;
    __lxstat(version: c_int, [path], to: *mut libc::stat) -> c_int, -1;
    __lxstat64(version: c_int, [path], to: *mut libc::stat64) -> c_int, -1;
    __fxstatat(version: c_int, folder: c_int, [path], to: *mut libc::stat, flags: c_int) -> c_int, -1;
    __fxstatat64(version: c_int, folder: c_int, [path], to: *mut libc::stat64, flags: c_int) -> c_int, -1;
    statx(folder: c_int, [path], flags: c_int, mask: c_uint, to: *mut libc::statx) -> c_int, -1;
    access([path], mode: c_int) -> c_int, -1;
    eaccess([path], mode: c_int) -> c_int, -1;
    faccessat(folder: c_int, [path], mode: c_int, flags: c_int) -> c_int, -1;
    chdir([path]) -> c_int, -1;
    getxattr([path], name: *const c_char, to: *mut c_void, size: usize) -> isize, -1;
    lgetxattr([path], name: *const c_char, to: *mut c_void, size: usize) -> isize, -1;
    listxattr([path], to: *mut c_char, size: usize) -> isize, -1;
    llistxattr([path], to: *mut c_char, size: usize) -> isize, -1;
    opendir([path]) -> *mut libc::DIR, std::ptr::null_mut();
    scandir([path], list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int, -1;
    scandir64([path], list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int, -1;
    readlink([path], to: *mut c_char, size: usize) -> isize, -1;
    readlinkat(folder: c_int, [path], to: *mut c_char, size: usize) -> isize, -1;
    __readlink_chk([path], to: *mut c_char, size: usize, room: usize) -> isize, -1;
    __readlinkat_chk(folder: c_int, [path], to: *mut c_char, size: usize, room: usize) -> isize, -1;
}

/// As [`redirected`], for calls that return a path: the tree's folder is taken off its beginning.
///
/// # Safety
/// `path` is NULL or a string. `call` returns NULL or a string that may be written.
unsafe fn resolved(path: *const c_char, call: impl FnOnce(*const c_char) -> *mut c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    let Some(tree) = (unsafe { tree_of(path) }) else { return call(path) };
    // SAFETY: the caller's promise; `tree_of` refuses NULL.
    let found = in_tree(tree, unsafe { CStr::from_ptr(path) }, call);
    if found.is_null() {
        return found;
    }
    // SAFETY: the caller's promise; a shorter string is moved to the beginning of its own memory, with its NUL.
    unsafe {
        let rest = CStr::from_ptr(found).to_bytes_with_nul().strip_prefix(tree.to_bytes());
        if let Some(rest) = rest.filter(|rest| rest[0] == b'/') {
            std::ptr::copy(rest.as_ptr(), found.cast(), rest.len());
        }
    }
    found
}

/// As realpath(3). The tree's own path does not show.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    static NEXT: Next = Next::new(c"realpath");
    // SAFETY: the program's promises are those of the C library's function, which has this type, and is in every one.
    unsafe {
        let next = transmute::<*mut c_void, Function>(NEXT.address());
        resolved(path, |path| next(path, to))
    }
}

/// As realpath(3), for programs that are compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, to: *mut c_char, room: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    static NEXT: Next = Next::new(c"__realpath_chk");
    // SAFETY: as above.
    unsafe {
        let next = transmute::<*mut c_void, Function>(NEXT.address());
        resolved(path, |path| next(path, to, room))
    }
}

/// As canonicalize_file_name(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the program's promise is the same.
    unsafe { realpath(path, std::ptr::null_mut()) }
}
