use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use uroce::verbs::{
    AttachMode, CongestionControl, Context, CounterWatch, FaultSpec, Interval, Intervals, LinkKind, OpenOptions,
    PathPolicy, Rate, RecoveryMode, XdpOptions,
};

use crate::{Failure, counters_on_signal, metrics};

/// The flags of every subcommand that opens a device, or has a program open one: [`OpenOptions`], of which each is a field with
/// its variable.
#[derive(Args, Clone, Debug)]
pub struct DeviceArguments {
    /// Interfaces of the device, separated by commas; queue pairs spread over all of them if the peer supports several paths.
    /// An address (127.0.0.2) is a device of that address alone, over UDP sockets; eth0=mlx5_0 is eth0 under another name. Default: the first usable interface, lo when
    /// there is no other
    #[arg(short = 'd', long = "dev", value_name = "NAME,…", value_delimiter = ',', env = "UROCE_DEV")]
    pub devices: Vec<String>,

    /// Link: xdp (AF_XDP sockets), udp (UDP sockets; no capability needed, any interface), or auto: xdp where it can be opened,
    /// otherwise udp. auto also takes udp if the default route uses an interface that was not named. Default: auto
    #[arg(long, value_name = "LINK", env = "UROCE_LINK")]
    pub link: Option<LinkKind>,

    /// Where to attach the XDP program: native (driver) or skb (network stack, any driver). Default: native, or skb if the driver
    /// does not support it
    #[arg(long, value_name = "MODE", env = "UROCE_XDP_MODE")]
    pub xdp_mode: Option<AttachMode>,

    /// Write every frame to this file: pcap, or pcapng by its suffix (tcpdump cannot see AF_XDP frames)
    #[arg(long, value_name = "FILE", env = "UROCE_CAPTURE")]
    pub capture: Option<PathBuf>,

    /// Inject faults into sent and received frames:
    /// loss=0.01,dup=0.01,reorder=0.01,reorder_by=3,delay=2ms,delay_share=0.5,corrupt=0.001,direction=tx|rx|both,seed=7
    #[arg(long, value_name = "LIST", env = "UROCE_FAULT")]
    pub fault: Option<FaultSpec>,

    /// Loss recovery: auto (selective repeat if the peer supports it, otherwise go-back-n), selective, go-back-n. Default: auto
    #[arg(long, value_name = "NAME", env = "UROCE_RECOVERY")]
    pub recovery: Option<RecoveryMode>,

    /// What decides how fast queue pairs send: steady (keeps the queue of the bottleneck short), dcqcn (as RNICs do, by the
    /// switches' congestion marks), swift and timely (by the delay in data centres), nscc (by marks and delay), bbr (at the rate of delivery) or fixed (the rate limit, nothing else). Default: steady
    #[arg(long, value_name = "NAME", env = "UROCE_CONGESTION")]
    pub congestion: Option<CongestionControl>,

    /// Rate limit of each queue pair in bits/s, as 500M or 2.5G; applies to peers that support selective repeat. Default: none
    #[arg(long, value_name = "BITS", env = "UROCE_RATE")]
    pub rate: Option<Rate>,

    /// Paths to a peer that supports several, 1 to 256. Each has its own UDP source port, and they take the interfaces in turn.
    /// Default: one for each interface, or more if the peer uses more
    #[arg(long, value_name = "N", env = "UROCE_PATHS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub paths: Option<u16>,

    /// How packets are spread over paths: single, round-robin, weighted, recycle. Default: round-robin
    #[arg(long, value_name = "NAME", env = "UROCE_PATH_POLICY")]
    pub path_policy: Option<PathPolicy>,

    /// Rules for the traffic class, the DSCP and the rate of queue pairs, by program, peer, port and first message: a file in TOML
    /// (docs/CLASSES.md)
    #[arg(long, value_name = "FILE", env = "UROCE_POLICY")]
    pub policy: Option<PathBuf>,

    /// Say on stderr every so many seconds what the device did: rates, windows, round trips, retransmissions, losses
    #[arg(long, value_name = "SECONDS", env = "UROCE_INTERVAL", value_parser = Intervals::parse)]
    pub interval: Option<Duration>,

    /// Serve the counters of this user's programs as OpenMetrics at http://ADDRESS/metrics while this one runs (docs/COUNTERS.md)
    #[arg(long, value_name = "ADDRESS:PORT", env = "UROCE_METRICS")]
    pub metrics: Option<SocketAddr>,

    /// Have the interface alone. Otherwise programs of one user share it over UDP sockets
    #[arg(long)]
    pub exclusive: bool,
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
        self.serve_metrics()?;
        // Without it nothing works less well but `uroce stat`.
        let _ = context.publish();
        if let Some(why) = context.why_not_xdp() {
            eprintln!("uroce: over UDP sockets: {why}");
        }
        Ok(context)
    }

    /// With --metrics, serves them.
    pub fn serve_metrics(&self) -> Result<(), Failure> {
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
