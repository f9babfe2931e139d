use std::fmt;
use std::str::FromStr;

/// Which of the kernel's UDP offloads a link uses, where the kernel has them: one pass through its stack then pays for
/// many packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpOffload {
    /// Both.
    #[default]
    All,
    /// Runs of packets are sent as one (UDP_SEGMENT, Linux 4.18).
    Gso,
    /// Runs of packets are received as one (UDP_GRO, Linux 5.0).
    Gro,
    /// Neither: each packet passes through the kernel's stack alone.
    None,
}

impl UdpOffload {
    const ALL: [UdpOffload; 4] = [UdpOffload::All, UdpOffload::Gso, UdpOffload::Gro, UdpOffload::None];

    /// The name of it in options: `all`, `gso`, `gro` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            UdpOffload::All => "all",
            UdpOffload::Gso => "gso",
            UdpOffload::Gro => "gro",
            UdpOffload::None => "none",
        }
    }

    /// Whether runs of packets are sent as one.
    pub fn sends_runs(self) -> bool {
        matches!(self, UdpOffload::All | UdpOffload::Gso)
    }

    /// Whether runs of packets are received as one.
    pub fn receives_runs(self) -> bool {
        matches!(self, UdpOffload::All | UdpOffload::Gro)
    }
}

/// A text that names no UDP offload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a UDP offload: use all, gso, gro or none")]
pub struct UdpOffloadError(String);

impl FromStr for UdpOffload {
    type Err = UdpOffloadError;

    fn from_str(text: &str) -> Result<UdpOffload, UdpOffloadError> {
        UdpOffload::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| UdpOffloadError(text.to_owned()))
    }
}

impl fmt::Display for UdpOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
