use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::captures::scratch;

/// A file system with room for little, mounted until this is dropped.
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    pub fn mount(name: &str, bytes: usize) -> SmallDisk {
        let folder = scratch(name);
        fs::create_dir_all(&folder).unwrap();
        let size = format!("size={bytes}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&folder).status().unwrap();
        assert!(status.success(), "mounting {}: {status}", folder.display());
        SmallDisk { folder }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Moves its files to where there is room.
    pub fn move_to(self, folder: &Path) {
        for entry in fs::read_dir(&self.folder).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, folder.join(from.file_name().unwrap())).unwrap();
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}
