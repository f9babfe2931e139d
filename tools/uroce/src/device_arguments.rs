use std::path::PathBuf;

use clap::Args;
use uroce::verbs::{
    AttachMode, Context, FaultSpec, LinkKind, OpenError, OpenOptions, PathPolicy, Rate, RecoveryMode, XdpOptions,
};

/// The flags of every subcommand that opens a device, or has a program open one: [`OpenOptions`], of which each is a field with
/// its variable.
#[derive(Args, Clone, Debug)]
pub struct DeviceArguments {
    /// The device: an interface's name; default: the first usable one, lo when there is no other. Several with commas are one
    /// device, whose queue pairs spread over all of them
    #[arg(short = 'd', long = "dev", value_name = "NAME,…", value_delimiter = ',', env = "UROCE_DEV")]
    pub devices: Vec<String>,

    /// How frames leave and arrive: xdp (AF_XDP sockets), udp (UDP sockets: no capability is needed, and any interface will do), or
    /// auto, the default: xdp where it can be opened, else udp; udp too where the default route leaves by the device, and it
    /// is not named
    #[arg(long, value_name = "LINK", env = "UROCE_LINK")]
    pub link: Option<LinkKind>,

    /// Where the XDP program is attached: native (in the driver) or skb (in the network stack, with any driver); default: native,
    /// and where the driver cannot, skb
    #[arg(long, value_name = "MODE", env = "UROCE_XDP_MODE")]
    pub xdp_mode: Option<AttachMode>,

    /// Write every frame to this file: pcap, or pcapng by its suffix (tcpdump cannot see AF_XDP frames)
    #[arg(long, value_name = "FILE", env = "UROCE_CAPTURE")]
    pub capture: Option<PathBuf>,

    /// Do harm on purpose: loss=0.01,dup=0.01,reorder=0.01,delay=2ms,corrupt=0.001,direction=tx|rx|both,seed=7
    #[arg(long, value_name = "LIST", env = "UROCE_FAULT")]
    pub fault: Option<FaultSpec>,

    /// How losses are dealt with: auto (selective repeat with peers that know it, else go-back-n), selective, go-back-n
    #[arg(long, value_name = "NAME", env = "UROCE_RECOVERY")]
    pub recovery: Option<RecoveryMode>,

    /// What a queue pair keeps to, towards peers that know selective repeat: bits a second, as 500M or 2.5G
    #[arg(long, value_name = "BITS", env = "UROCE_RATE")]
    pub rate: Option<Rate>,

    /// Paths to a peer that knows several, 1 to 256: each has a UDP source port of its own, and is on one of the device's
    /// interfaces in turn; default: one for each interface, and as many as the peer uses
    #[arg(long, value_name = "N", env = "UROCE_PATHS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub paths: Option<u16>,

    /// How packets are spread over paths: single, round-robin, weighted, recycle; default: round-robin
    #[arg(long, value_name = "NAME", env = "UROCE_PATH_POLICY")]
    pub path_policy: Option<PathPolicy>,
}

impl DeviceArguments {
    /// What they ask for.
    pub fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        let mut names = self.devices.iter().cloned();
        options.device = names.next();
        options.rails = names.collect();
        options.link = self.link.unwrap_or_default();
        options.xdp = XdpOptions { mode: self.xdp_mode, ..XdpOptions::default() };
        options.capture.clone_from(&self.capture);
        options.faults = self.fault;
        options.recovery = self.recovery;
        options.rate = self.rate;
        options.paths = self.paths;
        options.path_policy = self.path_policy.unwrap_or_default();
        options
    }

    /// Opens the device.
    pub fn open(&self) -> Result<Context, OpenError> {
        let context = self.options().open()?;
        if let Some(why) = context.why_not_xdp() {
            eprintln!("uroce: over UDP sockets: {why}");
        }
        Ok(context)
    }

    /// Says on stderr what was opened: nobody should have to wait for a peer to learn it.
    pub fn announce(&self, context: &Context, gid_index: usize) {
        let names = if self.devices.is_empty() { context.device().name.clone() } else { self.devices.join(",") };
        let gid = context.gids()[gid_index].ip();
        eprintln!("uroce: {names}, {}, GID {gid_index} {gid}", context.link_mode());
    }
}
