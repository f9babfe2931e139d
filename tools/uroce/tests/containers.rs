//! Unprivileged programs under `uroce run` in the places that containers give them: bubblewrap with a /dev and a /sys of its own
//! or none, user namespaces, a small root folder. Each game counts its packets.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::captures::scratch;
use crate::common::programs::{AS_NOBODY, Running, UROCE, library, sent_packets, start};
use rxe_rig::Netns;

const LIMIT: Duration = Duration::from_secs(60);

/// Plays `ibv_rc_pingpong` and rping between two containers, each of which begins with `words`, on two addresses of the
/// namespace's loopback. The device is looked for in sysfs as well.
fn play(namespace: &Netns, words: &[&str]) {
    let in_it = |arguments: &[&str]| -> Running {
        let [program, ..] = words else { panic!("no words") };
        start(namespace.command(program), &[&words[1..], arguments].concat())
    };
    let file = "/sys/class/infiniband/lo/ports/1/gids/0";
    let read = in_it(&["run", "--dev", "127.0.0.2", "cat", file]).end().succeeded();
    assert_eq!(read.stdout, "0000:0000:0000:0000:0000:ffff:7f00:0002\n");
    let run = |address: &str, line: &str| {
        let arguments = ["run", "--dev", address, "--trace"];
        in_it(&[&arguments[..], &line.split(' ').collect::<Vec<_>>()].concat())
    };
    let mut server = run("127.0.0.2", "ibv_rc_pingpong -g 0 -c -n 100");
    server.listens(namespace, 18515, LIMIT).unwrap();
    let client = run("127.0.0.3", "ibv_rc_pingpong -g 0 -c -n 100 127.0.0.2");
    for side in [client, server] {
        assert!(sent_packets(&side.end().succeeded().stderr) >= 400);
    }
    let mut server = run("127.0.0.2", "rping -s -C 10 -V");
    server.prints(&["rdma_listen: done"], LIMIT).unwrap();
    let client = run("127.0.0.3", "rping -c -a 127.0.0.2 -C 10 -V");
    for side in [client, server] {
        assert!(sent_packets(&side.end().succeeded().stderr) > 20);
    }
}

/// What bubblewrap gives a sandbox that a distribution's programs run in: no home, an own /dev, /proc and /tmp.
fn bubble<'a>(sys: &[&'a str]) -> Vec<&'a str> {
    let folder = Path::new(UROCE).parent().unwrap().to_str().unwrap();
    let places = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"];
    let more = ["--symlink", "usr/bin", "/bin", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"];
    let isolation = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL", "--die-with-parent"];
    let ours = ["--ro-bind", folder, folder];
    [&AS_NOBODY[..], &["bwrap"], &places, &more, &isolation, &ours, sys, &[UROCE]].concat()
}

#[test]
fn in_bubblewrap_with_an_own_dev_and_without_sys() {
    let namespace = Netns::create("box").unwrap();
    play(&namespace, &bubble(&[]));
}

#[test]
fn in_bubblewrap_with_the_hosts_sys() {
    let namespace = Netns::create("box").unwrap();
    play(&namespace, &bubble(&["--ro-bind", "/sys", "/sys"]));
}

/// Root there, and nobody outside: its capabilities count for nothing that AF_XDP needs.
#[test]
fn in_a_user_namespace_as_its_root() {
    let namespace = Netns::create("box").unwrap();
    // The limit on its own user namespaces is set off by --no-new-privs for setuid programs only.
    play(&namespace, &[&AS_NOBODY[..], &["unshare", "-Ur", UROCE]].concat());
}

/// A folder with a program, what it loads, and nothing else: as images without a distribution are made.
fn small_root() -> PathBuf {
    let root = scratch("small-root");
    let _ = fs::remove_dir_all(&root);
    let programs = ["ibv_rc_pingpong", "rping", "cat", "sh"].map(|name| PathBuf::from("/usr/bin").join(name));
    let library = library();
    let all = programs.iter().map(PathBuf::as_path).chain([Path::new(UROCE), &library]);
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    for file in all {
        let needed = Command::new("ldd").arg(file).output().unwrap();
        let text = String::from_utf8(needed.stdout).unwrap();
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(Path::new(library), &root.join(&library[1..]));
        }
        let to = if file.starts_with("/usr") { &file.to_string_lossy()[1..] } else { "opt" };
        match to {
            "opt" => copy(file, &root.join("opt").join(file.file_name().unwrap())),
            to => copy(file, &root.join(to)),
        }
    }
    for folder in ["dev", "proc", "tmp"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    root
}

#[test]
fn in_a_root_folder_with_nothing_else() {
    let namespace = Netns::create("box").unwrap();
    let root = small_root();
    let root = root.to_str().unwrap();
    let places = ["--ro-bind", root, "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--setenv", "PATH"];
    let words = [&AS_NOBODY[..], &["bwrap"], &places, &["/usr/bin", "--unshare-pid", "/opt/uroce"]].concat();
    play(&namespace, &words);
    fs::remove_dir_all(root).unwrap();
}

/// A device of the kernel's would stay unseen: uroce takes its place only where somebody said so.
#[test]
fn beside_a_device_of_the_machine_it_wants_to_be_asked() {
    let namespace = Netns::create("box").unwrap();
    let with_device = ["--tmpfs", "/sys/class", "--dir", "/sys/class/infiniband/mlx5_7"];
    let ask = |more: &[&str]| {
        let words = ["--dev-bind", "/", "/", "--bind", "/sys", "/sys"];
        let arguments = [&words[..], &with_device, &[UROCE, "run"], more].concat();
        start(namespace.command("bwrap"), &arguments).end()
    };
    ask(&["ibv_devices"]).failed(125, &["mlx5_7", "--dev"]);
    let ended = ask(&["--dev", "lo", "ibv_devices"]).succeeded();
    assert!(ended.stdout.contains("lo") && !ended.stdout.contains("mlx5_7"), "{ended:#?}");
}
