//! What is said at the end when a program's traffic went elsewhere: many programs silently take TCP.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use uroce::verbs::status_counters;

/// Programs that start another one without our library: they clear the environment, or what they start does not see the
/// library's folder.
const WRAPPERS: [&str; 12] =
    ["sudo", "doas", "su", "runuser", "pkexec", "bwrap", "firejail", "flatpak", "chroot", "docker", "podman", "ssh"];

/// Why none of the program's traffic came to this stack, in a line; `None` when some did, or when the program shows no
/// sign of having meant to. `tree` has the marks that processes left (`tools/verbs/src/marks.rs`).
///
/// A program that fails says so itself, so only one that `succeeded` is told that its queue pairs were idle.
pub fn word(tree: &Path, program: &OsStr, succeeded: bool) -> Option<String> {
    let left = |mark: &str| {
        let name = fs::read(tree.join("marks").join(mark)).ok()?;
        Some(String::from_utf8_lossy(&name).into_owned())
    };
    if has_moved_packets(tree) {
        return None;
    }
    if let Some(name) = left("kernel-cm") {
        return Some(format!(
            "{name} opened /dev/infiniband/rdma_cm, which is a kernel's: it did not use uroce's librdmacm"
        ));
    }
    match (left("connected"), left("opened"), left("queue-pair")) {
        (Some(name), None, _) => {
            Some(format!("{name} listed the devices, opened none and made TCP connections: its data went by them"))
        }
        (Some(name), Some(_), Some(_)) if succeeded => Some(format!(
            "{name} opened the device and made queue pairs, and sent no packet by them: its data went by TCP or shared \
             memory"
        )),
        _ => not_loaded(&tree.join("marks"), program),
    }
}

/// Whether any process sent or received a packet.
fn has_moved_packets(tree: &Path) -> bool {
    let pages = fs::read_dir(tree.join("live")).into_iter().flatten().flatten();
    let mut pages = pages.filter_map(|page| fs::read(page.path()).ok());
    pages.any(|page| status_counters(&page).any(|(name, count)| matches!(name, "sent_pkts" | "rcvd_pkts") && count > 0))
}

/// Says when no process had our library, or only a program that does not pass it on.
fn not_loaded(marks: &Path, program: &OsStr) -> Option<String> {
    let own = Path::new(program).file_name()?.to_string_lossy().into_owned();
    let entries = fs::read_dir(marks).ok()?.flatten();
    let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("loaded.")?.to_owned()));
    let names: Vec<String> = names.collect();
    match names.as_slice() {
        [] => Some(format!(
            "no process had uroce's library: {own} runs where LD_PRELOAD has no effect (a static program, a sandbox)"
        )),
        [one] if *one == own && WRAPPERS.contains(&own.as_str()) => Some(format!(
            "{own} had uroce's library, but nothing that it started: {own} does not pass LD_PRELOAD on, or hides the \
             library's folder; use `{own} uroce run PROGRAM`"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a tree with these marks, each with a program's name in it, and a page with that many packets.
    fn said(marks: &[&str], packets: u64, program: &str, succeeded: bool) -> Option<String> {
        let tree = std::env::temp_dir().join(format!("uroce-elsewhere-{}", std::process::id()));
        for folder in ["marks", "live"] {
            fs::create_dir_all(tree.join(folder)).unwrap();
        }
        for mark in marks {
            fs::write(tree.join("marks").join(mark), "app").unwrap();
        }
        let page = uroce::verbs::status_page(1, uroce::verbs::Instant::ZERO, &[("sent_pkts", packets)]);
        fs::write(tree.join("live/eth0.1.0"), &page[..]).unwrap();
        let word = word(&tree, OsStr::new(program), succeeded);
        fs::remove_dir_all(&tree).unwrap();
        word
    }

    #[test]
    fn only_who_meant_to_come_and_went_elsewhere_is_told() {
        let has = |word: Option<String>, text: &str| word.is_some_and(|word| word.contains(text));
        let (tcp, idle) = (["loaded.app", "listed", "connected"], ["opened", "queue-pair"]);
        let both = [&tcp[..], &idle].concat();
        assert!(has(said(&tcp, 0, "app", false), "app listed the devices, opened none"));
        assert!(has(said(&both, 0, "app", true), "sent no packet"));
        assert!(has(said(&["loaded.app", "listed", "kernel-cm"], 0, "app", false), "rdma_cm"));
        assert!(has(said(&[], 0, "/usr/bin/app", true), "no process had uroce's library: app runs"));
        assert!(has(said(&["loaded.sudo"], 0, "/usr/bin/sudo", true), "use `sudo uroce run PROGRAM`"));
        // It came; it failed; it only asked; it was not about RDMA; what it started had the library.
        assert_eq!(said(&both, 1, "app", true), None);
        assert_eq!(said(&both, 0, "app", false), None);
        assert_eq!(said(&[&tcp[..], &["opened"]].concat(), 0, "app", true), None);
        assert_eq!(said(&["loaded.app", "listed", "opened", "queue-pair"], 0, "app", true), None);
        assert_eq!(said(&["loaded.ls"], 0, "ls", true), None);
        assert_eq!(said(&["loaded.sudo", "loaded.sh"], 0, "sudo", true), None);
    }
}
