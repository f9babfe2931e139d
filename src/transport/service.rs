use std::fmt;

/// The transport service of a queue pair (IBTA 9.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// The reliable connection service (RC).
    Rc,
    /// The unreliable connection service (UC).
    Uc,
    /// The unreliable datagram service (UD).
    Ud,
    /// The general services interface, QP1: unreliable datagrams of the management class.
    Gsi,
}

impl Service {
    /// Whether each request names its destination, as with UD and GSI.
    pub fn is_datagram(self) -> bool {
        matches!(self, Service::Ud | Service::Gsi)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Ud => "UD",
            Service::Gsi => "GSI",
        })
    }
}
