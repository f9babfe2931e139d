use std::path::PathBuf;

use clap::{Args, ValueEnum};
use uroce::congestion::Rate;
use uroce::link::fault::FaultSpec;
use uroce::link::xdp::{AttachMode, XdpOptions};
use uroce::path::PathPolicy;
use uroce::transport::RecoveryMode;
use uroce::verbs::{Context, LinkKind, OpenError, OpenOptions};

/// The flags of every subcommand that opens a device.
#[derive(Args, Clone, Debug)]
pub struct DeviceArguments {
    /// The device: an interface's name; default: the first usable one, lo when there is no other. Several with commas are one
    /// device, whose queue pairs spread over all of them
    #[arg(short = 'd', long = "dev", value_name = "NAME,…", value_delimiter = ',', env = "UROCE_DEV")]
    pub devices: Vec<String>,

    /// How frames leave and arrive; default: xdp where it can be opened, else udp; udp too where the default route leaves by
    /// the device, and it is not named
    #[arg(long, value_enum, env = "UROCE_LINK")]
    pub link: Option<Link>,

    /// Where the XDP program is attached; default: native, and where the driver cannot, skb
    #[arg(long, value_enum, env = "UROCE_XDP_MODE")]
    pub xdp_mode: Option<XdpMode>,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// AF_XDP sockets
    Xdp,
    /// UDP sockets: no capability is needed, and any interface will do
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XdpMode {
    /// In the driver
    Native,
    /// In the network stack, with any driver
    Skb,
}

impl DeviceArguments {
    /// Opens the device.
    pub fn open(&self) -> Result<Context, OpenError> {
        let link = match self.link {
            None => LinkKind::Auto,
            Some(Link::Xdp) => LinkKind::Xdp,
            Some(Link::Udp) => LinkKind::Udp,
        };
        let mode = self.xdp_mode.map(|mode| match mode {
            XdpMode::Native => AttachMode::Native,
            XdpMode::Skb => AttachMode::Skb,
        });
        let context = Context::open(&OpenOptions {
            device: self.devices.first().cloned(),
            rails: self.devices.iter().skip(1).cloned().collect(),
            link,
            xdp: XdpOptions { mode, ..XdpOptions::default() },
            capture: self.capture.clone(),
            faults: self.fault,
            recovery: self.recovery,
            rate: self.rate,
            paths: self.paths,
            path_policy: self.path_policy.unwrap_or_default(),
            ..OpenOptions::default()
        })?;
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
