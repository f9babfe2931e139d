use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use uroce::verbs::{
    AttachMode, CongestionControl, Context, CounterWatch, FaultSpec, Interval, Intervals, LinkKind, OpenOptions,
    PathPolicy, Rate, RecoveryMode, UdpOffload, XdpOptions,
};

use crate::{Failure, counters_on_signal, metrics};

/// The flags of every subcommand that opens a device, or has a program open one: [`OpenOptions`], of which each is a field with
/// its variable.
#[derive(Args, Clone, Debug)]
pub struct DeviceArguments {
    /// Interfaces of the device, with commas between them, or one address (127.0.0.2); eth0=mlx5_0 is eth0 under another name.
    /// Default: the first usable interface, otherwise lo
    #[arg(
        short = 'd',
        long = "dev",
        value_name = "NAME,…",
        value_delimiter = ',',
        env = "UROCE_DEV",
        hide_env_values = true,
        help_heading = "Device"
    )]
    pub devices: Vec<String>,

    /// xdp (AF_XDP sockets), udp (UDP sockets: no capability needed, any interface), or auto (xdp where it can be opened, and
    /// not unasked on the interface of the default route). Default: auto
    #[arg(long, value_name = "LINK", env = "UROCE_LINK", hide_env_values = true, help_heading = "Device")]
    pub link: Option<LinkKind>,

    /// Where to attach the XDP program: native (driver) or skb (any driver). Default: native where the driver can
    #[arg(long, value_name = "MODE", env = "UROCE_XDP_MODE", hide_env_values = true, help_heading = "Device")]
    pub xdp_mode: Option<AttachMode>,

    /// Over UDP sockets, send (gso) or receive (gro) runs of packets as one, all or none. Default: all that the kernel can
    #[arg(long, value_name = "NAME", env = "UROCE_UDP_OFFLOAD", hide_env_values = true, help_heading = "Device")]
    pub udp_offload: Option<UdpOffload>,

    /// Have the interface alone; otherwise programs of one user share it
    #[arg(long, help_heading = "Device")]
    pub exclusive: bool,

    /// Inject faults into sent and received frames, as in loss=1%,dup=0.1%,delay=2ms,seed=7; also reorder, reorder_by,
    /// delay_share, corrupt, direction=tx|rx|both
    #[arg(long, value_name = "LIST", env = "UROCE_FAULT", hide_env_values = true, help_heading = "Network")]
    pub fault: Option<FaultSpec>,

    /// Loss recovery: selective, go-back-n, or auto: selective repeat if the peer knows it. Default: auto
    #[arg(long, value_name = "NAME", env = "UROCE_RECOVERY", hide_env_values = true, help_heading = "Network")]
    pub recovery: Option<RecoveryMode>,

    /// Congestion control: steady, dcqcn, swift, timely, nscc, hpcc (needs switches that write telemetry), bbr or
    /// fixed (nothing but --rate). Default: steady
    #[arg(long, value_name = "NAME", env = "UROCE_CONGESTION", hide_env_values = true, help_heading = "Network")]
    pub congestion: Option<CongestionControl>,

    /// Most that each queue pair sends to peers with selective repeat, in bits/s, as in 500M or 2.5Gbit. Default: no limit
    #[arg(long, value_name = "RATE", env = "UROCE_RATE", hide_env_values = true, help_heading = "Network")]
    pub rate: Option<Rate>,

    /// Paths to a peer that supports several, 1 to 256: UDP source ports, in turn on each interface. Default: one an interface,
    /// or as many as the peer uses
    #[arg(long, value_name = "N", env = "UROCE_PATHS", hide_env_values = true, help_heading = "Network",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub paths: Option<u16>,

    /// How packets are spread over paths: single, round-robin, weighted, recycle. Default: round-robin
    #[arg(long, value_name = "NAME", env = "UROCE_PATH_POLICY", hide_env_values = true, help_heading = "Network")]
    pub path_policy: Option<PathPolicy>,

    /// Rules for traffic class, DSCP and rate of queue pairs: a file in TOML (docs/CLASSES.md)
    #[arg(long, value_name = "FILE", env = "UROCE_POLICY", hide_env_values = true, help_heading = "Network")]
    pub policy: Option<PathBuf>,

    /// Write every frame to this file: pcap, or pcapng by its suffix (tcpdump cannot see AF_XDP frames)
    #[arg(long, value_name = "FILE", env = "UROCE_CAPTURE", hide_env_values = true, help_heading = "Output")]
    pub capture: Option<PathBuf>,

    /// Say on stderr every so often, 0.1 to 3600 seconds, what the device did: as in 1, 500ms or 1m
    #[arg(long, value_name = "TIME", env = "UROCE_INTERVAL", hide_env_values = true, help_heading = "Output",
          value_parser = Intervals::parse)]
    pub interval: Option<Duration>,

    /// Serve the counters of this user's programs as OpenMetrics at http://ADDRESS/metrics (docs/COUNTERS.md)
    #[arg(long, value_name = "ADDRESS:PORT", env = "UROCE_METRICS", hide_env_values = true, help_heading = "Output")]
    pub metrics: Option<SocketAddr>,
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
        options.udp_offload = self.udp_offload.unwrap_or_default();
        options.capture.clone_from(&self.capture);
        options.faults = self.fault;
        options.recovery = self.recovery;
        options.congestion = self.congestion.unwrap_or_default();
        options.rate = self.rate;
        options.paths = self.paths;
        options.path_policy = self.path_policy.unwrap_or_default();
        options.policy.clone_from(&self.policy);
        options.arbiter = if self.exclusive { None } else { std::env::current_exe().ok() };
        options
    }

    /// Opens the device, whose counters SIGUSR1 then prints.
    pub fn open(&self) -> Result<Context, Failure> {
        counters_on_signal::begin()?;
        let mut context = self.options().open()?;
        self.begin()?;
        // Without it nothing works less well but `uroce stat`.
        let _ = context.publish();
        if let Some(why) = context.why_not_xdp() {
            eprintln!("uroce: over UDP sockets: {why}");
        }
        Ok(context)
    }

    /// What the flags ask of this program beside the device: it says on stderr what a controller needs that links do not
    /// show, and with --metrics serves them.
    pub fn begin(&self) -> Result<(), Failure> {
        if self.congestion.is_some_and(CongestionControl::needs_telemetry) {
            eprintln!(
                "uroce: without telemetry of switches, hpcc keeps in flight what the link carries in a round trip"
            );
        }
        self.metrics.map_or(Ok(()), metrics::serve)
    }

    /// With --interval, tells on stderr what the device does until the result is dropped; with `json` on stdout, a line of JSON
    /// each time.
    pub fn watch(&self, context: &Context, json: bool) -> Result<Option<CounterWatch>, Failure> {
        let Some(interval) = self.interval else { return Ok(None) };
        let mut intervals = Intervals::default();
        let tell = move |context: &Context| match intervals.look(context) {
            Some(interval) if json => println!("{}", as_json(&interval)),
            Some(interval) => eprintln!("uroce: {interval}"),
            None => {}
        };
        Ok(Some(context.watch_counters(interval, tell)?))
    }

    /// Says on stderr what was opened: nobody should have to wait for a peer to learn it.
    pub fn announce(&self, context: &Context, gid_index: usize) {
        let names = if self.devices.is_empty() { context.device().name.clone() } else { self.devices.join(",") };
        let gid = context.gids()[gid_index].ip();
        eprintln!("uroce: {names}, {}, GID {gid_index} {gid}", context.link_mode());
    }
}

fn as_json(interval: &Interval) -> serde_json::Value {
    let counters: serde_json::Map<String, serde_json::Value> =
        interval.counters.iter().map(|(name, by)| ((*name).to_owned(), (*by).into())).collect();
    let (round_trip, shortest) = interval.round_trip().unzip();
    json!({
        "schema": "uroce.interval/1",
        "interval": true,
        "elapsed_s": interval.elapsed.as_secs_f64(),
        "seconds": interval.lasted.as_secs_f64(),
        "sent_bps": interval.sent_bps(),
        "received_bps": interval.received_bps(),
        "window_bytes": interval.window_bytes(),
        "in_flight_bytes": interval.in_flight_bytes(),
        "rtt_ns": round_trip.map(|time| time.as_nanos() as u64),
        "shortest_rtt_ns": shortest.map(|time| time.as_nanos() as u64),
        "counters": counters,
    })
}
