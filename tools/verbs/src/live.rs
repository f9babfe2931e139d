//! A device's counters, for others while the program runs: a page for each open device, and the files in sysfs that are
//! made of them.
//!
//! `uroce run` makes the folder `live` in its tree. A program adds a file `DEVICE.PROCESS.N` for a device that it opens,
//! maps it, and copies its counters there ten times a second and at the end ([`uroce::verbs::status_page`]). The file
//! stays when the program ends, as a kernel's counters do. A device that is opened again counts on in it.
//!
//! The files in `ports/1/counters` and `hw_counters` hold 0. When a program opens one, its descriptor gets another file
//! instead, in memory, with the sum over all pages of the device.

use std::ffi::{CStr, c_int};
use std::fs::OpenOptions;
use std::io::{Cursor, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uroce::verbs::{Context, CounterWatch, Instant, PortCounter, STATUS_BYTES, status_page};

/// How often a page is written. People look at counters once a second, and scripts wait for a tenth.
const INTERVAL: Duration = Duration::from_millis(100);

/// The page of an open device.
struct Page(*mut AtomicU64);

// SAFETY: the memory is mapped for as long as the program runs, and only reached by atomics.
unsafe impl Send for Page {}

impl Page {
    const WORDS: usize = STATUS_BYTES / size_of::<u64>();

    /// A new file in the tree, mapped. It is never unmapped: eight KiB for each device of a process.
    fn create(tree: &Path, device: &str) -> std::io::Result<Page> {
        let name = |serial: u32| tree.join("live").join(format!("{device}.{}.{serial}", std::process::id()));
        let fresh = |serial| OpenOptions::new().read(true).write(true).create_new(true).open(name(serial));
        let file = (0u32..)
            .map(fresh)
            .find(|made| made.as_ref().err().is_none_or(|error| error.kind() != std::io::ErrorKind::AlreadyExists));
        let file = file.expect("one of four billion is free")?;
        file.set_len(STATUS_BYTES as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, of a file that nobody shortens.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), STATUS_BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(Page(memory.cast())) }
    }

    fn write(&self, bytes: &[u8; STATUS_BYTES]) {
        for (at, word) in bytes.chunks_exact(size_of::<u64>()).take(Self::WORDS).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            // SAFETY: the page has that many words, and nobody unmaps it.
            unsafe { (*self.0.add(at)).store(word, Ordering::Relaxed) };
        }
    }
}

/// A page, and what was counted before the device was opened for the last time.
struct Record {
    device: String,
    process: u32,
    page: Page,
    before: Vec<(&'static str, u64)>,
    now: Vec<(&'static str, u64)>,
}

/// Those of devices that are closed.
static CLOSED: Mutex<Vec<Record>> = Mutex::new(Vec::new());

impl Record {
    /// The one of this process, or a new one.
    fn of(tree: &Path, device: &str) -> std::io::Result<Record> {
        let process = std::process::id();
        // A parent's thread may have held the lock at fork(2).
        if let Ok(mut closed) = CLOSED.try_lock()
            && let Some(at) = closed.iter().position(|one| one.process == process && one.device == device)
        {
            return Ok(closed.swap_remove(at));
        }
        let page = Page::create(tree, device)?;
        Ok(Record { device: device.to_owned(), process, page, before: Vec::new(), now: Vec::new() })
    }

    fn report(&mut self, now: Instant, counters: &[(&'static str, u64)]) {
        let before = |name: &str| self.before.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count);
        let totals = counters.iter().map(|(name, count)| (*name, count.wrapping_add(before(name))));
        self.now = totals.collect();
        self.page.write(&status_page(self.process, now, &self.now));
    }
}

/// A record of an open device.
struct Open(Option<Record>);

impl Drop for Open {
    fn drop(&mut self) {
        if let (Some(mut record), Ok(mut closed)) = (self.0.take(), CLOSED.lock()) {
            record.before = std::mem::take(&mut record.now);
            closed.push(record);
        }
    }
}

/// Has a device's counters copied to a page in the tree, if there is one.
pub(crate) fn begin(context: &Context, name: &str) -> Option<CounterWatch> {
    let tree = Path::new(std::ffi::OsStr::from_bytes(crate::redirect::tree()?.to_bytes()));
    // Without a page nothing works less well but the files.
    let mut open = Open(Some(Record::of(tree, name).ok()?));
    let report = move |context: &Context| {
        let (now, counters) = (context.now(), context.counters());
        open.0.iter_mut().for_each(|record| record.report(now, &counters));
    };
    context.watch_counters(INTERVAL, report).ok()
}

/// Where programs find devices, below the tree.
const DEVICES: &[u8] = b"/sys/class/infiniband/";

/// Puts a number in the place of the file that `fd` is of, if that is a counter's in the tree. What cannot be done
/// leaves the file: a 0. Allocates nothing, and leaves `errno` alone.
#[inline(never)]
pub(crate) fn fill(tree: &CStr, fd: c_int) {
    let errno = std::io::Error::last_os_error().raw_os_error();
    let mut path = [0u8; libc::PATH_MAX as usize];
    let path = path_of(fd, &mut path);
    if let Some((device, counter)) = path.strip_prefix(tree.to_bytes()).and_then(counter_of) {
        let value = sum(tree, device, counter) / counter.unit;
        let mut text = [0u8; 24];
        let mut to = Cursor::new(&mut text[..]);
        // Twenty digits at most.
        let _ = writeln!(to, "{value}");
        let len = to.position() as usize;
        replace(fd, &text[..len]);
    }
    crate::error::set_errno(errno.unwrap_or(0));
}

/// The path of a descriptor's file; empty when it is not known.
fn path_of(fd: c_int, room: &mut [u8]) -> &[u8] {
    let mut link = [0u8; 40];
    // The last byte stays 0.
    let _ = write!(&mut link[..39], "/proc/self/fd/{fd}");
    // SAFETY: a string, and room for as many bytes.
    let len =
        unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), room.as_mut_ptr(), room.len()) };
    &room[..usize::try_from(len).unwrap_or(0)]
}

/// `/sys/class/infiniband/DEVICE/ports/1/FOLDER/NAME`: the device and the counter.
fn counter_of(path: &[u8]) -> Option<(&[u8], &'static PortCounter)> {
    let mut parts = path.strip_prefix(DEVICES)?.split(|byte| *byte == b'/');
    let device = parts.next()?;
    if (parts.next()?, parts.next()?) != (b"ports", b"1") {
        return None;
    }
    let (folder, name) = (parts.next()?, parts.next()?);
    let mut all = PortCounter::ALL.iter();
    let counter = all.find(|counter| (counter.folder.as_bytes(), counter.name.as_bytes()) == (folder, name))?;
    parts.next().is_none().then_some((device, counter))
}

/// The sum over all pages of a device. Its memory is not on the stack of who opens other files.
#[inline(never)]
fn sum(tree: &CStr, device: &[u8], counter: &PortCounter) -> u64 {
    /// `struct linux_dirent64`: after 8 bytes each of inode and offset, 2 of length, and 1 of type, the name.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mut path = [0u8; libc::PATH_MAX as usize];
    let mut to = Cursor::new(&mut path[..libc::PATH_MAX as usize - 1]);
    if to.write_all(tree.to_bytes()).and_then(|()| to.write_all(b"/live")).is_err() {
        return 0;
    }
    let mut total = 0u64;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: strings, and buffers with their lengths; the descriptors are ours.
    unsafe {
        let folder = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_DIRECTORY, 0);
        if folder < 0 {
            return 0;
        }
        let mut entries = [0u8; 4096];
        loop {
            let len = libc::syscall(libc::SYS_getdents64, folder, entries.as_mut_ptr(), entries.len());
            let Some(mut rest) = usize::try_from(len).ok().and_then(|len| entries.get(..len)) else { break };
            if rest.is_empty() {
                break;
            }
            while let Some(length) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
                let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
                let (Some(entry), Some(after)) = (rest.get(..length), rest.get(length.max(1)..)) else { break };
                let name = entry.get(NAME_AT..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
                if let Some(name) = name.filter(|name| is_page_of(name.to_bytes(), device)) {
                    total = total.wrapping_add(page_value(folder, name, counter));
                }
                rest = after;
            }
        }
        libc::syscall(libc::SYS_close, folder);
    }
    total
}

/// `DEVICE.PROCESS.N`
fn is_page_of(name: &[u8], device: &[u8]) -> bool {
    name.rsplitn(3, |byte| *byte == b'.').nth(2) == Some(device)
}

#[inline(never)]
fn page_value(folder: libc::c_long, name: &CStr, counter: &PortCounter) -> u64 {
    let mut page = [0u8; STATUS_BYTES];
    // SAFETY: a string, and a buffer with its length; the descriptor is ours.
    let len = unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let file = libc::syscall(libc::SYS_openat, folder, name.as_ptr(), flags, 0);
        if file < 0 {
            return 0;
        }
        let len = libc::syscall(libc::SYS_read, file, page.as_mut_ptr(), page.len());
        libc::syscall(libc::SYS_close, file);
        len
    };
    counter.of_page(&page[..usize::try_from(len).unwrap_or(0)])
}

/// Makes `fd` a descriptor of a new file in memory with that text; whether it is closed at exec(2) stays as it is.
fn replace(fd: c_int, text: &[u8]) {
    // SAFETY: strings, and buffers with their lengths; the new descriptor is ours.
    unsafe {
        let file = libc::memfd_create(c"uroce-counter".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return;
        }
        let is_written = libc::syscall(libc::SYS_write, file, text.as_ptr(), text.len()) == text.len() as libc::c_long;
        if is_written && libc::lseek(file, 0, libc::SEEK_SET) == 0 {
            let flags = libc::fcntl(fd, libc::F_GETFD);
            let at_exec = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
            libc::dup3(file, fd, at_exec);
        }
        libc::close(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_known_by_their_paths() {
        let of = |path: &str| counter_of(path.as_bytes()).map(|(device, counter)| (device.to_vec(), counter.name));
        let found = of("/sys/class/infiniband/eth0.9/ports/1/hw_counters/sent_pkts");
        assert_eq!(found, Some((b"eth0.9".to_vec(), "sent_pkts")));
        for path in ["", "/sys/class/infiniband/eth0/ports/1/hw_counters", "/sys/class/infiniband/eth0/ports/1/state"] {
            assert_eq!(of(path), None);
        }
        assert_eq!(of("/sys/class/infiniband/eth0/ports/1/hw_counters/sent_pkts/x"), None);
    }

    #[test]
    fn a_page_is_of_one_device() {
        assert!(is_page_of(b"eth0.9.17.0", b"eth0.9") && is_page_of(b"eth0.17.0", b"eth0"));
        assert!(!is_page_of(b"eth0.9.17.0", b"eth0") && !is_page_of(b"..", b"eth0"));
    }
}
