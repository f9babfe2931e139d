use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use crate::congestion::Rate;
#[cfg(doc)]
use crate::link::device::Device;
use crate::link::device::DeviceError;
use crate::link::fault::FaultSpec;
use crate::link::udp::UdpOpenError;
use crate::link::xdp::{XdpOpenError, XdpOptions};
use crate::path::PathPolicy;
use crate::transport::{RecoveryMode, RecoverySettings};
use crate::wire::PathMtu;

use super::Context;

/// How a device is opened: built up call by call, or read from the environment.
///
/// ```no_run
/// use uroce::verbs::{LinkKind, OpenOptions};
///
/// let context = OpenOptions::new().device("eth0").link(LinkKind::Udp).rate("2.5G".parse()?).open()?;
/// let context = OpenOptions::from_env()?.open()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`from_env`](Self::from_env) reads these, each as the flag of the command line after which it is called; what is not set, or
/// empty, stays as it is by default:
///
/// | variable | sets | is |
/// |---|---|---|
/// | `UROCE_DEV` | `device`, `rails` | interfaces' names, with commas |
/// | `UROCE_LINK` | `link` | a [`LinkKind`]: `auto`, `xdp`, `udp` |
/// | `UROCE_XDP_MODE` | `xdp.mode` | an [`AttachMode`](crate::link::xdp::AttachMode): `native`, `skb` |
/// | `UROCE_CAPTURE` | `capture` | a file |
/// | `UROCE_FAULT` | `faults` | a [`FaultSpec`]: `loss=0.01,seed=7` |
/// | `UROCE_MTU` | `path_mtu` | a [`PathMtu`]: `256`, `512`, `1024`, `2048`, `4096` |
/// | `UROCE_RECOVERY` | `recovery` | a [`RecoveryMode`]: `auto`, `selective`, `go-back-n` |
/// | `UROCE_RATE` | `rate` | a [`Rate`]: `500M`, `2.5G` |
/// | `UROCE_PATHS` | `paths` | 1 to 256 |
/// | `UROCE_PATH_POLICY` | `path_policy` | a [`PathPolicy`]: `single`, `round-robin`, `weighted`, `recycle` |
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The interface's name; `None` for the first usable one ([`Device::default_of`]).
    pub device: Option<String>,
    /// A program picked the device from a list, and no person named it: as without a name, it is not opened over AF_XDP if a
    /// default route leaves by it.
    pub is_picked: bool,
    /// Further interfaces that the device is to have, up to seven beside the first: the names of its other rails. Queue
    /// pairs spread over all of them towards peers that understand the extension. The device is called after the first,
    /// has its GIDs, and the smallest MTU of all.
    pub rails: Vec<String>,
    /// How frames leave and arrive.
    pub link: LinkKind,
    /// How the AF_XDP link is opened, if it is.
    pub xdp: XdpOptions,
    /// A file for every frame that is sent or received: pcap with nanoseconds, or pcapng by its suffix.
    pub capture: Option<PathBuf>,
    /// What goes wrong on purpose.
    pub faults: Option<FaultSpec>,
    /// The largest path MTU to offer, if the link could carry more.
    pub path_mtu: Option<PathMtu>,
    /// How losses are dealt with; `None` for the default.
    pub recovery: Option<RecoveryMode>,
    /// What queue pairs keep to, towards peers that understand the extension.
    pub rate: Option<Rate>,
    /// Paths of a queue pair to such a peer, 1 to 256: each has a UDP source port of its own and is on one of the interfaces in
    /// turn. `None` for one on each interface, and as many as the peer uses; over UDP sockets, whose source port is the
    /// kernel's, there are no more than one on each.
    pub paths: Option<u16>,
    /// How packets are spread over them.
    pub path_policy: PathPolicy,
}

impl OpenOptions {
    /// The defaults: the first usable interface, over AF_XDP where that can be opened.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Opens the device: [`Context::open`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self) -> Result<Context, OpenError> {
        Context::open(self)
    }

    /// On the interface of that name ([`device`](Self#structfield.device)).
    pub fn device(mut self, name: impl Into<String>) -> OpenOptions {
        self.device = Some(name.into());
        self
    }

    /// Whether a program picked the device ([`is_picked`](Self#structfield.is_picked)).
    pub fn picked(mut self, is_picked: bool) -> OpenOptions {
        self.is_picked = is_picked;
        self
    }

    /// On these interfaces besides ([`rails`](Self#structfield.rails)).
    pub fn rails<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> OpenOptions {
        self.rails = names.into_iter().map(Into::into).collect();
        self
    }

    /// Over that kind of link ([`link`](Self#structfield.link)).
    pub fn link(mut self, link: LinkKind) -> OpenOptions {
        self.link = link;
        self
    }

    /// Over AF_XDP in that manner ([`xdp`](Self#structfield.xdp)).
    pub fn xdp(mut self, xdp: XdpOptions) -> OpenOptions {
        self.xdp = xdp;
        self
    }

    /// With every frame written to a file ([`capture`](Self#structfield.capture)).
    pub fn capture(mut self, file: impl Into<PathBuf>) -> OpenOptions {
        self.capture = Some(file.into());
        self
    }

    /// With what goes wrong on purpose ([`faults`](Self#structfield.faults)).
    pub fn faults(mut self, faults: FaultSpec) -> OpenOptions {
        self.faults = Some(faults);
        self
    }

    /// With no larger path MTU ([`path_mtu`](Self#structfield.path_mtu)).
    pub fn path_mtu(mut self, limit: PathMtu) -> OpenOptions {
        self.path_mtu = Some(limit);
        self
    }

    /// With that way to deal with losses ([`recovery`](Self#structfield.recovery)).
    pub fn recovery(mut self, recovery: RecoveryMode) -> OpenOptions {
        self.recovery = Some(recovery);
        self
    }

    /// With no higher rate ([`rate`](Self#structfield.rate)).
    pub fn rate(mut self, rate: Rate) -> OpenOptions {
        self.rate = Some(rate);
        self
    }

    /// With so many paths ([`paths`](Self#structfield.paths)).
    pub fn paths(mut self, paths: u16) -> OpenOptions {
        self.paths = Some(paths);
        self
    }

    /// With that way to choose among them ([`path_policy`](Self#structfield.path_policy)).
    pub fn path_policy(mut self, policy: PathPolicy) -> OpenOptions {
        self.path_policy = policy;
        self
    }

    /// What the environment says, by the variables [above](Self). So do `uroce` and the C library.
    ///
    /// # Errors
    /// [`OptionError`] of the first variable that cannot be read.
    pub fn from_env() -> Result<OpenOptions, OptionError> {
        OpenOptions::from_variables(|name| std::env::var_os(name))
    }

    /// The same of another environment: `value` says what a variable is set to.
    ///
    /// # Errors
    /// [`OptionError`] of the first variable that cannot be read.
    pub fn from_variables(value: impl Fn(&str) -> Option<OsString>) -> Result<OpenOptions, OptionError> {
        let mut options = OpenOptions::new();
        for Variable { name, read, .. } in &VARIABLES {
            if let Some(text) = value(name).filter(|text| !text.is_empty()) {
                read(&mut options, &text).map_err(|reason| OptionError { name, reason })?;
            }
        }
        Ok(options)
    }

    /// An environment of which [`from_env`](Self::from_env) makes the same: every variable, and what to set it to, or that it must
    /// not be set. For who starts another program with it. What only programs say has none: `is_picked`, and of `xdp` all but
    /// its mode.
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

const VARIABLES: [Variable; 10] = [
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
        name: "UROCE_RATE",
        read: |options, text| set_some(&mut options.rate, text),
        write: |options| written(&options.rate),
    },
    Variable {
        name: "UROCE_PATHS",
        read: |options, text| {
            let (text, most) = (utf8(text)?, RecoverySettings::MAX_PATHS);
            let paths = text.parse().ok().filter(|paths| (1..=most).contains(paths));
            options.paths =
                Some(paths.ok_or_else(|| format!("`{text}` is no number of paths: 1 to {most} are possible"))?);
            Ok(())
        },
        write: |options| written(&options.paths),
    },
    Variable {
        name: "UROCE_PATH_POLICY",
        read: |options, text| set(&mut options.path_policy, text),
        write: |options| unless_default(&options.path_policy),
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

/// A variable of the environment is set to what it cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct OptionError {
    name: &'static str,
    reason: String,
}

/// How frames leave and arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// AF_XDP where that can be opened, else UDP sockets ([`Context::why_not_xdp`] has the reason). An interface by which a
    /// default route leaves is opened over UDP sockets unless it is named: with some drivers attaching an XDP program resets
    /// the interface, and the connections by which the host is reached may be cut.
    #[default]
    Auto,
    /// AF_XDP sockets.
    Xdp,
    /// UDP sockets: no capability is needed, and any interface will do.
    Udp,
}

/// A text is no kind of link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no link: auto, xdp and udp are known")]
pub struct LinkKindError(String);

impl LinkKind {
    /// All of them.
    pub const ALL: [LinkKind; 3] = [LinkKind::Auto, LinkKind::Xdp, LinkKind::Udp];

    /// As options call it.
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Auto => "auto",
            LinkKind::Xdp => "xdp",
            LinkKind::Udp => "udp",
        }
    }
}

impl FromStr for LinkKind {
    type Err = LinkKindError;

    fn from_str(text: &str) -> Result<LinkKind, LinkKindError> {
        LinkKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| LinkKindError(text.to_owned()))
    }
}

impl Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its link was not opened.
    #[error(transparent)]
    Xdp(#[from] XdpOpenError),
    /// Its link over UDP sockets was not opened.
    #[error(transparent)]
    Udp(#[from] UdpOpenError),
    /// The first interface of several was not named.
    #[error("{rails} further interfaces and no first one: name it, too")]
    NoFirst {
        /// How many others are named.
        rails: usize,
    },
    /// AF_XDP is asked for, no device is named, and the default one is the host's way to the world.
    #[error("the default route leaves by {device}, and nobody named it: --dev {device} opens it over AF_XDP")]
    Unnamed {
        /// The interface.
        device: String,
    },
    /// More paths than interfaces are asked for over UDP sockets.
    #[error(
        "{paths} paths over UDP sockets, which have one for each interface, since the source port is always 4791: leave --paths \
         out, give {interfaces}, or open the device over AF_XDP"
    )]
    UdpPaths {
        /// How many are asked for.
        paths: u16,
        /// How many there can be.
        interfaces: usize,
    },
    /// Its MTU is too small for the smallest path MTU and its headers.
    #[error(
        "{device} takes packets of {bytes} bytes; RoCE needs 336: set its MTU with `ip link set {device} mtu 1500`"
    )]
    Mtu {
        /// The interface.
        device: String,
        /// Its largest packet.
        bytes: usize,
    },
    /// The capture cannot be written.
    #[error("cannot write the capture {}: {source}", file.display())]
    Capture {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel gave no thread, descriptor or randomness.
    #[error("cannot start the engine: {0}")]
    Engine(#[from] io::Error),
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
            .capture("a b.pcapng")
            .faults("loss=0.01,delay=2ms,direction=tx,seed=7".parse().unwrap())
            .path_mtu(PathMtu::Mtu2048)
            .recovery(RecoveryMode::GoBackN)
            .rate(Rate::from_bits(2_500_000_000))
            .paths(256)
            .path_policy(PathPolicy::Recycle);
        let variables = [
            ("UROCE_DEV", "eth0,eth1,eth2"),
            ("UROCE_LINK", "udp"),
            ("UROCE_XDP_MODE", "skb"),
            ("UROCE_CAPTURE", "a b.pcapng"),
            ("UROCE_FAULT", "loss=0.01,delay=2ms,direction=tx,seed=7"),
            ("UROCE_MTU", "2048"),
            ("UROCE_RECOVERY", "go-back-n"),
            ("UROCE_RATE", "2.5G"),
            ("UROCE_PATHS", "256"),
            ("UROCE_PATH_POLICY", "recycle"),
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
            ("UROCE_LINK", "tcp", "UROCE_LINK: `tcp` is no link: auto, xdp and udp are known"),
            ("UROCE_XDP_MODE", "fast", "UROCE_XDP_MODE: `fast` is no XDP mode: native and skb are known"),
            ("UROCE_MTU", "1500", "UROCE_MTU: `1500` is no path MTU: 256, 512, 1024, 2048 and 4096 are known"),
            ("UROCE_PATHS", "0", "UROCE_PATHS: `0` is no number of paths: 1 to 256 are possible"),
            ("UROCE_RATE", "fast", "UROCE_RATE: `fast` is no rate: write bits a second, as in 500M or 2.5G"),
            (
                "UROCE_FAULT",
                "loss=2",
                "UROCE_FAULT: faults: item 1, `loss=2`: a share from 0 to 1 is wanted: 0.01 is one frame in a hundred",
            ),
        ] {
            assert_eq!(read(&[(name, text)]).unwrap_err().to_string(), says);
        }
    }
}
