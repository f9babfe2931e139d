//! Two hosts on one machine: network namespaces joined by a veth pair, gone when the value is dropped.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two namespaces, with an interface `veth0` each: 10.7.0.1/24, fd07::1/64 and 10.7.0.2/24, fd07::2/64.
pub struct Pair {
    pub hosts: [String; 2],
}

/// How the pair is made.
#[derive(Clone, Copy)]
pub struct PairOptions {
    pub mtu: usize,
    pub queues: u32,
}

impl Default for PairOptions {
    fn default() -> Self {
        PairOptions { mtu: 1500, queues: 1 }
    }
}

impl Pair {
    pub fn new(options: PairOptions) -> Pair {
        let unique = format!("uroce-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pair = Pair { hosts: [format!("{unique}-a"), format!("{unique}-b")] };
        let PairOptions { mtu, queues } = options;
        for host in &pair.hosts {
            run("ip", &format!("netns add {host}"));
            run("ip", &format!("-n {host} link set lo up"));
            // Link-local addresses are good at once, not after a second or two.
            run("ip", &format!("netns exec {host} sysctl -qw net.ipv6.conf.default.accept_dad=0"));
        }
        pair.cable(0, &format!("numrxqueues {queues} numtxqueues {queues} mtu {mtu}"));
        pair
    }

    /// Joins the hosts by another pair of interfaces, `veth1` each: 10.8.0.1/24, fd08::1/64 and 10.8.0.2/24, fd08::2/64.
    #[allow(dead_code)]
    pub fn second_cable(&self, mtu: usize) {
        self.cable(1, &format!("mtu {mtu}"));
    }

    fn cable(&self, cable: u32, how: &str) {
        let [a, b] = &self.hosts;
        let name = format!("veth{cable}");
        run("ip", &format!("link add name {name} netns {a} {how} type veth peer name {name} netns {b} {how}"));
        for (number, host) in self.hosts.iter().enumerate() {
            let (net, number) = (7 + cable, number + 1);
            run("ip", &format!("-n {host} addr add 10.{net}.0.{number}/24 dev {name}"));
            run("ip", &format!("-n {host} addr add fd0{net}::{number}/64 dev {name} nodad"));
            run("ip", &format!("-n {host} link set {name} up"));
        }
    }

    /// Runs `ip` in a host.
    #[allow(dead_code)]
    pub fn ip(&self, host: usize, arguments: &str) {
        run("ip", &format!("-n {} {arguments}", self.hosts[host]));
    }

    /// Runs a program in a host; returns whether it succeeded and what it printed.
    #[allow(dead_code)]
    pub fn exec(&self, host: usize, command: &str) -> (bool, String) {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.hosts[host]])
            .args(command.split_whitespace())
            .output()
            .expect("ip runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// A thread in a host.
    pub fn spawn<T: Send + 'static>(&self, host: usize, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let path = format!("/run/netns/{}", self.hosts[host]);
        std::thread::spawn(move || {
            enter(&path);
            f()
        })
    }

    /// Runs `f` on a thread in a host, and waits for it.
    #[allow(dead_code)]
    pub fn within<T: Send + 'static>(&self, host: usize, f: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(host, f).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for host in &self.hosts {
            let _ = Command::new("ip").args(["netns", "del", host]).output();
        }
    }
}

/// Moves the calling thread into a namespace.
fn enter(path: &str) {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path).expect("the namespace is there");
    // SAFETY: the descriptor is open; the call concerns this thread alone.
    let moved = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(moved, 0, "setns {path}: {}", std::io::Error::last_os_error());
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split_whitespace()).output().expect("the program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
}
