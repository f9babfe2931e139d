use std::fmt::{self, Display};
use std::str::FromStr;

#[cfg(doc)]
use super::Context;

/// The kind of link over which frames are sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// AF_XDP where that can be opened, otherwise UDP sockets; [`Context::why_not_xdp`] has the reason.
    ///
    /// An interface by which a default route leaves is opened over UDP sockets unless it is named. With some drivers
    /// attaching an XDP program resets the interface, which can cut the connections to the host.
    #[default]
    Auto,
    /// AF_XDP sockets on the queues of the interface.
    Xdp,
    /// UDP sockets: they need no capability, and work on any interface.
    Udp,
}

/// A text that is not a kind of link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a link: use auto, xdp or udp")]
pub struct LinkKindError(String);

impl LinkKind {
    /// All kinds of link, in the order of their declaration.
    pub const ALL: [LinkKind; 3] = [LinkKind::Auto, LinkKind::Xdp, LinkKind::Udp];

    /// The name of the kind in options: `auto`, `xdp` or `udp`.
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
