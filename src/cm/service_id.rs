use std::fmt;

/// The number of a service that can be connected to (IBTA 12.7.3; of RDMA CM: Annex A11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

/// A port space of RDMA CM: its ports are services of their own (`enum rdma_port_space`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// Connections: `RDMA_PS_TCP`.
    Tcp,
    /// Datagrams: `RDMA_PS_UDP`.
    Udp,
    /// Either, by the queue pair's type: `RDMA_PS_IB`.
    Ib,
}

impl PortSpace {
    /// All port spaces that are offered.
    pub const ALL: [PortSpace; 3] = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

    /// Its number in `enum rdma_port_space`.
    pub const fn number(self) -> u16 {
        match self {
            PortSpace::Tcp => 0x0106,
            PortSpace::Udp => 0x0111,
            PortSpace::Ib => 0x013f,
        }
    }
}

impl ServiceId {
    /// The service of a port.
    pub const fn of(space: PortSpace, port: u16) -> ServiceId {
        ServiceId((space.number() as u64) << 16 | port as u64)
    }

    /// The port space and the port of a service of RDMA CM; `None` for another service.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = PortSpace::ALL.into_iter().find(|space| u64::from(space.number()) == self.0 >> 16)?;
        Some((space, self.0 as u16))
    }

    /// Whether both are one port, in whichever port spaces.
    pub(super) fn has_port_of(self, other: ServiceId) -> bool {
        let port = |service: ServiceId| service.port().map(|(_, port)| port);
        self == other || port(self).is_some_and(|own| port(other) == Some(own))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{space:?} port {port}"),
            None => write!(f, "service {:#018x}", self.0),
        }
    }
}
