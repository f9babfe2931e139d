use clap::{Args, ValueEnum};
use uroce::link::xdp::{AttachMode, XdpOptions};
use uroce::verbs::{Context, OpenError, OpenOptions};

/// The flags of every subcommand that opens a device.
#[derive(Args, Clone, Debug)]
pub struct DeviceArguments {
    /// The device: an interface's name; default: the first usable one
    #[arg(short = 'd', long = "dev", env = "UROCE_DEV")]
    pub device: Option<String>,

    /// How frames leave and arrive
    #[arg(long, value_enum, default_value = "xdp", env = "UROCE_LINK")]
    pub link: LinkKind,

    /// Where the XDP program is attached; default: native, and where the driver cannot, skb
    #[arg(long, value_enum, env = "UROCE_XDP_MODE")]
    pub xdp_mode: Option<XdpMode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// AF_XDP sockets
    Xdp,
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
        let LinkKind::Xdp = self.link;
        let mode = self.xdp_mode.map(|mode| match mode {
            XdpMode::Native => AttachMode::Native,
            XdpMode::Skb => AttachMode::Skb,
        });
        Context::open(&OpenOptions { device: self.device.clone(), xdp: XdpOptions { mode, ..XdpOptions::default() } })
    }
}
