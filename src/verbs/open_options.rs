use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::congestion::{CongestionControl, Rate};
#[cfg(doc)]
use crate::link::device::Device;
use crate::link::fault::FaultSpec;
use crate::link::udp::UdpOffload;
use crate::link::xdp::XdpOptions;
use crate::path::PathPolicy;
use crate::transport::{RecoveryMode, RecoverySettings};
use crate::wire::PathMtu;

use super::{Context, LinkKind, OpenError};

/// The options for opening a device: set call by call, or read from the environment.
///
/// ```no_run
/// use uroce::verbs::{LinkKind, OpenOptions};
///
/// let context = OpenOptions::new().device("eth0").link(LinkKind::Udp).rate("2.5G".parse()?).open()?;
/// let context = OpenOptions::from_env()?.open()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`from_env`](Self::from_env) reads these variables, each named after its flag of the command line. A variable that
/// is not set, or empty, leaves the default:
///
/// | variable | sets | is |
/// |---|---|---|
/// | `UROCE_DEV` | `device`, `rails` | names of interfaces, or addresses, separated by commas |
/// | `UROCE_LINK` | `link` | a [`LinkKind`]: `auto`, `xdp`, `udp` |
/// | `UROCE_XDP_MODE` | `xdp.mode` | an [`AttachMode`](crate::link::xdp::AttachMode): `native`, `skb` |
/// | `UROCE_UDP_OFFLOAD` | `udp_offload` | a [`UdpOffload`]: `all`, `gso`, `gro`, `none` |
/// | `UROCE_CAPTURE` | `capture` | the path of a file |
/// | `UROCE_FAULT` | `faults` | a [`FaultSpec`]: `loss=0.01,seed=7` |
/// | `UROCE_MTU` | `path_mtu` | a [`PathMtu`]: `256`, `512`, `1024`, `2048`, `4096` |
/// | `UROCE_RECOVERY` | `recovery` | a [`RecoveryMode`]: `auto`, `selective`, `go-back-n` |
/// | `UROCE_CONGESTION` | `congestion` | a [`CongestionControl`]: `fixed`, `steady`, `dcqcn`, `swift`, `timely`, `nscc`, `hpcc`, `bbr` |
/// | `UROCE_RATE` | `rate` | a [`Rate`]: `500M`, `2.5G` |
/// | `UROCE_PATHS` | `paths` | a number of paths: 1 to 256 |
/// | `UROCE_PATH_POLICY` | `path_policy` | a [`PathPolicy`]: `single`, `round-robin`, `weighted`, `recycle` |
/// | `UROCE_POLICY` | `policy` | the path of a file |
/// | `UROCE_ARBITER` | `arbiter` | the path of the program `uroce` |
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The interface's name, or one of its addresses, which is then the whole device, over UDP sockets; `None` for the
    /// first usable interface ([`Device::default_of`]). `eth0=mlx5_0` gives the device another name.
    pub device: Option<String>,
    /// Whether a program picked the device from a list, and no person named it. As without a name, it is then not
    /// opened over AF_XDP if a default route leaves by it.
    pub is_picked: bool,
    /// The names of further interfaces of the device, its other rails: up to seven beside the first.
    ///
    /// Queue pairs spread over all of them towards peers that understand the extension. The device has the name and the
    /// GIDs of the first, and the smallest MTU of all.
    pub rails: Vec<String>,
    /// The kind of link over which frames are sent and received.
    pub link: LinkKind,
    /// The options of the AF_XDP link, if it is used.
    pub xdp: XdpOptions,
    /// The kernel's offloads that the link over UDP sockets uses, if there is one.
    pub udp_offload: UdpOffload,
    /// The file that every sent or received frame is written to: pcap with nanoseconds, or pcapng if its suffix is
    /// `.pcapng`.
    pub capture: Option<PathBuf>,
    /// The faults to inject into the link; `None` for none.
    pub faults: Option<FaultSpec>,
    /// The upper bound on the path MTU that is offered; `None` for the largest that the link can carry.
    pub path_mtu: Option<PathMtu>,
    /// How queue pairs recover losses; `None` for the default.
    pub recovery: Option<RecoveryMode>,
    /// What decides how fast queue pairs send.
    pub congestion: CongestionControl,
    /// The rate that queue pairs never exceed, towards peers that understand the extension; `None` for no limit.
    pub rate: Option<Rate>,
    /// The number of paths of a queue pair to a peer that understands the extension, 1 to 256. Each path has a UDP
    /// source port of its own, and they take the interfaces in turn.
    ///
    /// `None` is for one path on each interface, or more if the peer uses more. Over UDP sockets, whose source port is
    /// always 4791, each interface has one path.
    pub paths: Option<u16>,
    /// How packets are spread over the paths.
    pub path_policy: PathPolicy,
    /// The file with rules for the class, the DSCP and the rate of queue pairs: a [`TrafficPolicy`](super::TrafficPolicy).
    pub policy: Option<PathBuf>,
    /// The program `uroce`, with which several programs of one user share the interface: one of them over AF_XDP, the
    /// others over UDP sockets. It decides which packets are for which of them. It is started when it is needed, and
    /// ends with the last of the programs.
    ///
    /// `None` is for a program that has the interface alone. So has one with several interfaces.
    pub arbiter: Option<PathBuf>,
}

impl OpenOptions {
    /// The default options: the first usable interface, over AF_XDP where that can be opened.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Opens the device: [`Context::open`].
    ///
    /// # Errors
    /// [`OpenError`] states in one line what is missing, where, and the remedy.
    pub fn open(&self) -> Result<Context, OpenError> {
        Context::open(self)
    }

    /// Sets the interface by its name ([`device`](Self#structfield.device)).
    pub fn device(mut self, name: impl Into<String>) -> OpenOptions {
        self.device = Some(name.into());
        self
    }

    /// Sets whether a program picked the device ([`is_picked`](Self#structfield.is_picked)).
    pub fn picked(mut self, is_picked: bool) -> OpenOptions {
        self.is_picked = is_picked;
        self
    }

    /// Sets the further interfaces by their names ([`rails`](Self#structfield.rails)).
    pub fn rails<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> OpenOptions {
        self.rails = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the kind of link ([`link`](Self#structfield.link)).
    pub fn link(mut self, link: LinkKind) -> OpenOptions {
        self.link = link;
        self
    }

    /// Sets the options of the AF_XDP link ([`xdp`](Self#structfield.xdp)).
    pub fn xdp(mut self, xdp: XdpOptions) -> OpenOptions {
        self.xdp = xdp;
        self
    }

    /// Sets the offloads of UDP sockets ([`udp_offload`](Self#structfield.udp_offload)).
    pub fn udp_offload(mut self, offload: UdpOffload) -> OpenOptions {
        self.udp_offload = offload;
        self
    }

    /// Sets the file that every frame is written to ([`capture`](Self#structfield.capture)).
    pub fn capture(mut self, file: impl Into<PathBuf>) -> OpenOptions {
        self.capture = Some(file.into());
        self
    }

    /// Sets the faults to inject ([`faults`](Self#structfield.faults)).
    pub fn faults(mut self, faults: FaultSpec) -> OpenOptions {
        self.faults = Some(faults);
        self
    }

    /// Sets the upper bound on the path MTU ([`path_mtu`](Self#structfield.path_mtu)).
    pub fn path_mtu(mut self, limit: PathMtu) -> OpenOptions {
        self.path_mtu = Some(limit);
        self
    }

    /// Sets how losses are recovered ([`recovery`](Self#structfield.recovery)).
    pub fn recovery(mut self, recovery: RecoveryMode) -> OpenOptions {
        self.recovery = Some(recovery);
        self
    }

    /// Sets what decides how fast queue pairs send ([`congestion`](Self#structfield.congestion)).
    pub fn congestion(mut self, control: CongestionControl) -> OpenOptions {
        self.congestion = control;
        self
    }

    /// Sets the upper bound on the rate ([`rate`](Self#structfield.rate)).
    pub fn rate(mut self, rate: Rate) -> OpenOptions {
        self.rate = Some(rate);
        self
    }

    /// Sets the number of paths ([`paths`](Self#structfield.paths)).
    pub fn paths(mut self, paths: u16) -> OpenOptions {
        self.paths = Some(paths);
        self
    }

    /// Sets how packets are spread over the paths ([`path_policy`](Self#structfield.path_policy)).
    pub fn path_policy(mut self, policy: PathPolicy) -> OpenOptions {
        self.path_policy = policy;
        self
    }

    /// Sets the file with rules for queue pairs ([`policy`](Self#structfield.policy)).
    pub fn policy(mut self, file: impl Into<PathBuf>) -> OpenOptions {
        self.policy = Some(file.into());
        self
    }

    /// Sets the program with which programs share the interface ([`arbiter`](Self#structfield.arbiter)).
    pub fn arbiter(mut self, program: impl Into<PathBuf>) -> OpenOptions {
        self.arbiter = Some(program.into());
        self
    }

    /// Reads the options from the variables of the environment [above](Self), as `uroce` and the C library do.
    ///
    /// # Errors
    /// [`OptionError`] of the first variable whose value is not valid.
    pub fn from_env() -> Result<OpenOptions, OptionError> {
        OpenOptions::from_variables(|name| std::env::var_os(name))
    }

    /// Reads the options from another environment, as [`from_env`](Self::from_env); `value` returns the value of a
    /// variable.
    ///
    /// # Errors
    /// [`OptionError`] of the first variable whose value is not valid.
    pub fn from_variables(value: impl Fn(&str) -> Option<OsString>) -> Result<OpenOptions, OptionError> {
        let mut options = OpenOptions::new();
        for Variable { name, read, .. } in &VARIABLES {
            if let Some(text) = value(name).filter(|text| !text.is_empty()) {
                read(&mut options, &text).map_err(|reason| OptionError { name, reason })?;
            }
        }
        Ok(options)
    }

    /// The environment from which [`from_env`](Self::from_env) reads these options: every variable, with its value, or
    /// `None` if it must not be set.
    ///
    /// It is for programs that start another program. `is_picked`, and the options of `xdp` except its mode, have no
    /// variable.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, Option<OsString>)> {
        VARIABLES.iter().map(|Variable { name, write, .. }| (*name, write(self)))
    }
}

/// A variable of the environment, and the option that it sets.
struct Variable {
    name: &'static str,
    read: fn(&mut OpenOptions, &OsStr) -> Result<(), String>,
    write: fn(&OpenOptions) -> Option<OsString>,
}

const VARIABLES: [Variable; 14] = [
    Variable {
        name: "UROCE_DEV",
        read: |options, text| {
            let mut names = utf8(text)?.split(',').map(str::to_owned);
            (options.device, options.rails) = (names.next(), names.collect());
            Ok(())
        },
        write: |options| {
            let names: Vec<&str> = options.device.iter().chain(&options.rails).map(String::as_str).collect();
            (!names.is_empty()).then(|| names.join(",").into())
        },
    },
    Variable {
        name: "UROCE_LINK",
        read: |options, text| set(&mut options.link, text),
        write: |options| unless_default(&options.link),
    },
    Variable {
        name: "UROCE_XDP_MODE",
        read: |options, text| set_some(&mut options.xdp.mode, text),
        write: |options| written(&options.xdp.mode),
    },
    Variable {
        name: "UROCE_UDP_OFFLOAD",
        read: |options, text| set(&mut options.udp_offload, text),
        write: |options| unless_default(&options.udp_offload),
    },
    Variable {
        name: "UROCE_CAPTURE",
        read: |options, text| {
            options.capture = Some(text.into());
            Ok(())
        },
        write: |options| options.capture.clone().map(PathBuf::into_os_string),
    },
    Variable {
        name: "UROCE_FAULT",
        read: |options, text| set_some(&mut options.faults, text),
        write: |options| written(&options.faults),
    },
    Variable {
        name: "UROCE_MTU",
        read: |options, text| set_some(&mut options.path_mtu, text),
        write: |options| written(&options.path_mtu),
    },
    Variable {
        name: "UROCE_RECOVERY",
        read: |options, text| set_some(&mut options.recovery, text),
        write: |options| written(&options.recovery),
    },
    Variable {
        name: "UROCE_CONGESTION",
        read: |options, text| set(&mut options.congestion, text),
        write: |options| unless_default(&options.congestion),
    },
    Variable {
        name: "UROCE_RATE",
        read: |options, text| set_some(&mut options.rate, text),
        write: |options| written(&options.rate),
    },
    Variable {
        name: "UROCE_PATHS",
        read: |options, text| {
            let (text, most) = (utf8(text)?, RecoverySettings::MAX_PATHS);
            let paths = text.parse().ok().filter(|paths| (1..=most).contains(paths));
            options.paths = Some(paths.ok_or_else(|| format!("`{text}` is not a number of paths: use 1 to {most}"))?);
            Ok(())
        },
        write: |options| written(&options.paths),
    },
    Variable {
        name: "UROCE_PATH_POLICY",
        read: |options, text| set(&mut options.path_policy, text),
        write: |options| unless_default(&options.path_policy),
    },
    Variable {
        name: "UROCE_POLICY",
        read: |options, text| {
            options.policy = Some(text.into());
            Ok(())
        },
        write: |options| options.policy.clone().map(PathBuf::into_os_string),
    },
    Variable {
        name: "UROCE_ARBITER",
        read: |options, text| {
            options.arbiter = Some(text.into());
            Ok(())
        },
        write: |options| options.arbiter.clone().map(PathBuf::into_os_string),
    },
];

fn utf8(text: &OsStr) -> Result<&str, String> {
    text.to_str().ok_or_else(|| format!("`{}` is not UTF-8", text.display()))
}

fn set<T: FromStr<Err: Display>>(option: &mut T, text: &OsStr) -> Result<(), String> {
    *option = utf8(text)?.parse().map_err(|error: T::Err| error.to_string())?;
    Ok(())
}

fn set_some<T: FromStr<Err: Display>>(option: &mut Option<T>, text: &OsStr) -> Result<(), String> {
    *option = Some(utf8(text)?.parse().map_err(|error: T::Err| error.to_string())?);
    Ok(())
}

fn written<T: Display>(option: &Option<T>) -> Option<OsString> {
    option.as_ref().map(|value| value.to_string().into())
}

fn unless_default<T: Display + Default + PartialEq>(option: &T) -> Option<OsString> {
    (*option != T::default()).then(|| option.to_string().into())
}

/// A variable of the environment has a value that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct OptionError {
    name: &'static str,
    reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::xdp::AttachMode;

    fn read(variables: &[(&'static str, &str)]) -> Result<OpenOptions, OptionError> {
        OpenOptions::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, text)| OsString::from(text))
        })
    }

    #[test]
    fn an_environment_says_what_calls_say() {
        let called = OpenOptions::new()
            .device("eth0")
            .rails(["eth1", "eth2"])
            .link(LinkKind::Udp)
            .xdp(XdpOptions { mode: Some(AttachMode::Skb), ..XdpOptions::default() })
            .udp_offload(UdpOffload::Gro)
            .capture("a b.pcapng")
            .faults("loss=0.01,delay=2ms,direction=tx,seed=7".parse().unwrap())
            .path_mtu(PathMtu::Mtu2048)
            .recovery(RecoveryMode::GoBackN)
            .congestion(CongestionControl::Steady)
            .rate(Rate::from_bits(2_500_000_000))
            .paths(256)
            .path_policy(PathPolicy::Recycle)
            .policy("a b.toml")
            .arbiter("/usr/bin/uroce");
        let variables = [
            ("UROCE_DEV", "eth0,eth1,eth2"),
            ("UROCE_LINK", "udp"),
            ("UROCE_XDP_MODE", "skb"),
            ("UROCE_UDP_OFFLOAD", "gro"),
            ("UROCE_CAPTURE", "a b.pcapng"),
            ("UROCE_FAULT", "loss=0.01,delay=2ms,direction=tx,seed=7"),
            ("UROCE_MTU", "2048"),
            ("UROCE_RECOVERY", "go-back-n"),
            ("UROCE_CONGESTION", "steady"),
            ("UROCE_RATE", "2.5G"),
            ("UROCE_PATHS", "256"),
            ("UROCE_PATH_POLICY", "recycle"),
            ("UROCE_POLICY", "a b.toml"),
            ("UROCE_ARBITER", "/usr/bin/uroce"),
        ];
        assert_eq!(VARIABLES.map(|variable| variable.name), variables.map(|(name, _)| name), "one of each");
        assert_eq!(read(&variables), Ok(called.clone()));
        let passed_on: Vec<_> = called.variables().collect();
        let again = OpenOptions::from_variables(|name| passed_on.iter().find(|(known, _)| *known == name)?.1.clone());
        assert_eq!(again, Ok(called));
    }

    #[test]
    fn what_is_not_set_or_empty_is_the_default() {
        assert_eq!(read(&[]), Ok(OpenOptions::new()));
        assert_eq!(read(&VARIABLES.map(|variable| (variable.name, ""))), Ok(OpenOptions::new()));
        assert!(OpenOptions::new().variables().all(|(_, value)| value.is_none()));
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_could_be() {
        for (name, text, says) in [
            ("UROCE_LINK", "tcp", "UROCE_LINK: `tcp` is not a link: use auto, xdp or udp"),
            ("UROCE_XDP_MODE", "fast", "UROCE_XDP_MODE: `fast` is not an XDP mode: use native or skb"),
            ("UROCE_UDP_OFFLOAD", "on", "UROCE_UDP_OFFLOAD: `on` is not a UDP offload: use all, gso, gro or none"),
            ("UROCE_MTU", "1500", "UROCE_MTU: `1500` is not a path MTU: use 256, 512, 1024, 2048 or 4096"),
            ("UROCE_PATHS", "0", "UROCE_PATHS: `0` is not a number of paths: use 1 to 256"),
            (
                "UROCE_RATE",
                "fast",
                "UROCE_RATE: `fast` is not a rate: write bits a second, 1k to 1000000G, as in 500M, 2.5G or 1Gbit",
            ),
            (
                "UROCE_FAULT",
                "loss=2",
                "UROCE_FAULT: faults: item 1, `loss=2`: use a share from 0 to 1, as in 0.01 or 1%: one frame in a hundred",
            ),
        ] {
            assert_eq!(read(&[(name, text)]).unwrap_err().to_string(), says);
        }
    }
}
