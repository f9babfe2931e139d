use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Where the files are: in memory, and the same for all programs that are not in containers of their own.
const FOLDER: &str = "/dev/shm";

/// Opens the file that the programs of this user in this network namespace share an interface's presence by. It is made
/// for the user alone. Who has it open has it locked, by flock(2); the next program removes files that nobody has.
///
/// # Errors
/// [`io::Error`] when `/dev/shm` is not there, or the file is not this user's.
pub(super) fn open(interface: u32) -> io::Result<File> {
    let user = rustix::process::geteuid().as_raw();
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    let prefix = format!("uroce-presence-1-{user}-");
    let path = Path::new(FOLDER).join(format!("{prefix}{namespace}-{interface}"));
    sweep(&prefix, user);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    loop {
        let file = options.open(&path)?;
        let data = file.metadata()?;
        if !data.is_file() || data.uid() != user {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        file.lock_shared()?;
        // Somebody who sweeps may have been first.
        if fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == data.ino()) {
            return Ok(file);
        }
    }
}

/// Removes the files of this user that nobody has open.
fn sweep(prefix: &str, user: u32) {
    for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix))
            && entry.metadata().is_ok_and(|data| data.is_file() && data.uid() == user);
        if is_ours
            && let Ok(file) = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}
