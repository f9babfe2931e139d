//! Kernel peers on a bridge, and a namespace for our side of the conversation.
//!
//! ```text
//!   namespace uroce-rxe-…                       namespace uroce-peer-…
//!   br0 10.77.0.1, fd77::1
//!    ├── tap0 ── vm0: rxe0 on eth0, 10.77.0.2, fd77::2
//!    ├── tap1 ── vm1: rxe0 on eth0, 10.77.0.3, fd77::3
//!    └── port0 ═════════════ veth ═════════════ uroce0 10.77.0.100, fd77::100
//! ```
use crate::agent::Agent;
use crate::capture::Capture;
use crate::error::{Result, RigError};
use crate::image::{self, Image};
use crate::instructions;
use crate::netns::{self, End, Netns};
use crate::vm::{Vm, VmOptions, ipv4, ipv6};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How a lab is made.
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// How many machines, 0 to 2. Each takes a processor while it boots.
    pub machines: u8,
    /// The MTU in bytes of every interface: 1500 gives RoCE path MTU 1024, 4500 gives 4096.
    pub mtu: u16,
    /// A machine's memory in MiB; the initramfs takes about 100 of it.
    pub memory_mib: u32,
    /// A directory of this host that the machines see, read-only, as `/share`.
    pub share: Option<PathBuf>,
    /// Whether the machines have `rxe0` (without it, our own stack may be run in them).
    pub rxe: bool,
    /// Whether the instructions that they execute are counted ([`Vm::instructions`]).
    pub counts_instructions: bool,
}

impl Default for LabOptions {
    fn default() -> Self {
        LabOptions { machines: 1, mtu: 1500, memory_mib: 512, share: None, rxe: true, counts_instructions: false }
    }
}

/// A running lab. Machines are killed and namespaces removed on `Drop`, and when this process ends in any way (namespaces
/// after a SIGKILL: when the next lab is made).
#[derive(Debug)]
pub struct Lab {
    // Dropped in this order: QEMU before the namespaces that it is in.
    machines: Vec<Vm>,
    bridge: Netns,
    peer: Netns,
    files: Files,
}

/// The lab's directory under the system's temporary one: a socket's path may not be longer than 107 bytes.
#[derive(Debug)]
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Our side's interface, in [`Lab::peer`].
pub const PEER: End = End {
    interface: "uroce0",
    mac: "02:77:00:00:00:64",
    ipv4: Ipv4Addr::new(10, 77, 0, 100),
    ipv6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100),
};

/// The nftables table of [`Lab::rule`].
const RULES: &str = "rig";

/// The port of `verbs-agent` in a machine.
const AGENT_PORT: u16 = 4700;

impl Lab {
    /// Builds the image if need be, makes the network and boots the machines (together); returns when all are ready.
    ///
    /// # Errors
    /// Those of [`image::ensure`] and [`Netns::create`]; [`RigError::Timeout`] with the console's end when a machine does
    /// not come up.
    pub fn start(options: &LabOptions) -> Result<Lab> {
        if options.machines > 2 {
            return Err(RigError::Missing(format!("{} machines requested, the maximum is 2", options.machines)));
        }
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let image = if options.machines > 0 { Some(image::ensure()?) } else { None };
        let bridge = Netns::create("rxe")?;
        let peer = Netns::create("peer")?;
        let name = format!("uroce-rxe-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let files = Files(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&files.0).map_err(RigError::io(format!("making {}", files.0.display())))?;
        netns::remove_directory_at_exit(&files.0);
        let mut lab = Lab { machines: Vec::new(), bridge, peer, files };
        lab.wire(options.mtu)?;
        if let Some(image) = image {
            lab.boot(&image, options)?;
        }
        Ok(lab)
    }

    fn wire(&self, mtu: u16) -> Result<()> {
        let (bridge, mtu_text) = (&self.bridge, mtu.to_string());
        // Without snooping the bridge passes neighbour discovery on to every port at once.
        bridge.ip(&["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])?;
        bridge.ip(&["link", "set", "br0", "mtu", &mtu_text, "up"])?;
        bridge.ip(&["address", "add", &format!("{}/24", ipv4(1)), "dev", "br0"])?;
        if netns::ipv6_on_this_host() {
            bridge.ip(&["address", "add", &format!("{}/64", ipv6(1)), "dev", "br0", "nodad"])?;
        }
        netns::cable(bridge, "port0", &self.peer, PEER.interface)?;
        netns::offloads_off(bridge, "port0")?;
        bridge.ip(&["link", "set", "port0", "mtu", &mtu_text, "master", "br0", "up"])?;
        netns::configure(&self.peer, &PEER, mtu)
    }

    fn boot(&mut self, image: &Image, options: &LabOptions) -> Result<()> {
        let mut booting = Vec::new();
        let counter = options.counts_instructions.then(|| instructions::build(&self.files.0)).transpose()?;
        for number in 0..options.machines {
            let tap = format!("tap{number}");
            self.bridge.ip(&["tuntap", "add", "dev", &tap, "mode", "tap"])?;
            self.bridge.ip(&["link", "set", &tap, "mtu", &options.mtu.to_string(), "master", "br0", "up"])?;
            let vm = VmOptions {
                name: &format!("vm{number}"),
                index: number + 2,
                mtu: options.mtu,
                memory_mib: options.memory_mib,
                share: options.share.as_deref(),
                rxe: options.rxe,
                counter: counter.as_deref(),
                directory: &self.files.0,
                tap: &tap,
            };
            booting.push(Vm::start(image, &self.bridge, &vm)?);
        }
        for machine in booting {
            self.machines.push(machine.finish()?);
        }
        Ok(())
    }

    /// Machine number `number`, from 0.
    ///
    /// # Panics
    /// When the lab has fewer.
    pub fn vm(&self, number: usize) -> &Vm {
        &self.machines[number]
    }

    /// All machines.
    pub fn vms(&self) -> &[Vm] {
        &self.machines
    }

    /// The namespace of our side, with interface [`PEER`].
    pub fn peer(&self) -> &Netns {
        &self.peer
    }

    /// The namespace of the bridge `br0`, its ports `port0` (to our side), `tap0` and `tap1`: the place for captures, and
    /// for rules that lose, delay or reorder frames.
    pub fn bridge(&self) -> &Netns {
        &self.bridge
    }

    /// Adds an nftables rule for the frames that cross the bridge: frames from our side come in by `iifname port0`, those of
    /// machine n by `iifname tapn`. One percent of our side's RoCE frames is lost by
    /// `iifname port0 udp dport 4791 numgen random mod 100 < 1 counter drop`. Keep to port 4791: the agents' TCP
    /// connections cross the bridge's own interface, but a rule for everything stops neighbour discovery. Lose at random: a
    /// regular loss can fall in step with retransmissions and never let them through.
    ///
    /// # Errors
    /// [`RigError::Command`] when nft does not understand it.
    pub fn rule(&self, rule: &str) -> Result<()> {
        self.bridge.exec("nft", &["add", "table", "bridge", RULES])?;
        let chain = "{ type filter hook forward priority 0; policy accept; }";
        self.bridge.exec("nft", &["add", "chain", "bridge", RULES, "forward", chain])?;
        self.bridge.exec("nft", &["add", "rule", "bridge", RULES, "forward", rule]).map(drop)
    }

    /// The rules as nft lists them, with the counts of those that have a `counter`.
    ///
    /// # Errors
    /// [`RigError::Command`] when there is none.
    pub fn rules(&self) -> Result<String> {
        self.bridge.exec("nft", &["list", "table", "bridge", RULES])
    }

    /// Removes all rules.
    ///
    /// # Errors
    /// [`RigError::Command`] when there is none.
    pub fn remove_rules(&self) -> Result<()> {
        self.bridge.exec("nft", &["delete", "table", "bridge", RULES]).map(drop)
    }

    /// Starts a capture of the RoCE frames of both sides, on the bridge, before any rule there has its way.
    ///
    /// # Errors
    /// As [`Capture::start`].
    pub fn capture(&self, file: &Path) -> Result<Capture> {
        Capture::start(&self.bridge, "br0", "udp port 4791", file)
    }

    /// A new session with `verbs-agent` in machine `number` (started there if it does not run yet). Sessions share nothing:
    /// two of them on one machine are two programs.
    ///
    /// # Errors
    /// [`RigError`] when it cannot be started or reached.
    ///
    /// # Panics
    /// When the lab has no such machine.
    pub fn agent(&self, number: usize) -> Result<Agent> {
        let vm = self.vm(number);
        let limit = std::time::Duration::from_secs(60);
        let start = format!(
            "flock -o /tmp/verbs-agent.lock sh -c 'pidof verbs-agent >/dev/null || \
             {{ setsid verbs-agent -l {AGENT_PORT} >/tmp/verbs-agent.log 2>&1 </dev/null & \
             for i in 1 2 3 4 5 6 7 8 9; do grep -q listening /tmp/verbs-agent.log && exit 0; sleep 1; done; exit 1; }}'"
        );
        vm.check(&start, limit)?;
        let address = std::net::SocketAddr::from((vm.ipv4(), AGENT_PORT));
        let stream = self.bridge.run(|| std::net::TcpStream::connect_timeout(&address, limit));
        Agent::new(stream.map_err(RigError::io(format!("connecting to the verbs agent at {address}")))?)
    }
}
