use std::net::Ipv6Addr;

use crate::transport::{Destination, ModifyError, Path, QpAttributes, State};

use super::address_vector::{AddressVector, PathError, find_path, gid_of, source_port};
use super::{Peer, QueuePair};

/// Options for a connection: what differs from [`QueuePair::connect`].
///
/// ```
/// use uroce::verbs::{Access, ConnectOptions, QpAttributes};
///
/// let attributes = QpAttributes { timeout: Some(18), access: Some(Access::REMOTE_READ), ..Default::default() };
/// let options = ConnectOptions::new().gid_index(1).attributes(attributes);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The index of our address in the device's GID table; `None` for [`Device::default_gid_index`].
    ///
    /// [`Device::default_gid_index`]: crate::link::device::Device::default_gid_index
    pub gid_index: Option<usize>,
    /// DSCP and ECN of the packets that are sent. The DSCP decides the [`Class`](crate::transport::Class) of the queue
    /// pair.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 counts as 64.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Attributes that replace the negotiated ones: those of the peer, those of the device, and
    /// [`QpAttributes::HABITS`].
    pub attributes: QpAttributes,
}

impl ConnectOptions {
    /// The default options: no attribute is replaced.
    pub fn new() -> ConnectOptions {
        ConnectOptions::default()
    }

    /// Sets the index of our address ([`gid_index`](Self#structfield.gid_index)).
    pub fn gid_index(self, index: usize) -> ConnectOptions {
        ConnectOptions { gid_index: Some(index), ..self }
    }

    /// Sets DSCP and ECN ([`traffic_class`](Self#structfield.traffic_class)).
    pub fn traffic_class(self, traffic_class: u8) -> ConnectOptions {
        ConnectOptions { traffic_class, ..self }
    }

    /// Sets the hop limit ([`hop_limit`](Self#structfield.hop_limit)).
    pub fn hop_limit(self, hop_limit: u8) -> ConnectOptions {
        ConnectOptions { hop_limit, ..self }
    }

    /// Sets the flow label ([`flow_label`](Self#structfield.flow_label)).
    pub fn flow_label(self, flow_label: u32) -> ConnectOptions {
        ConnectOptions { flow_label, ..self }
    }

    /// Sets the attributes to replace ([`attributes`](Self#structfield.attributes)).
    pub fn attributes(self, attributes: QpAttributes) -> ConnectOptions {
        ConnectOptions { attributes, ..self }
    }
}

/// Why a queue pair was not connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// There is no path to the peer.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A transition was refused; the queue pair stays in the state before it.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

impl QueuePair {
    /// The description of this queue pair that the peer needs to connect.
    ///
    /// It holds our default GID, a random first PSN, the device's path MTU and the READs that [`QpAttributes::HABITS`]
    /// allow. It is equal at every call. The GID of a device without addresses is `::`.
    pub fn local(&self) -> Peer {
        self.local_with(&ConnectOptions::new()).unwrap_or_else(|_| self.local_at(Ipv6Addr::UNSPECIFIED))
    }

    /// The description of this queue pair, as [`local`](Self::local), for a connection with these options.
    ///
    /// # Errors
    /// [`PathError::NoSuchGid`] when the GID table has no entry at the index.
    pub fn local_with(&self, options: &ConnectOptions) -> Result<Peer, PathError> {
        let index = options.gid_index.unwrap_or_else(|| self.device.default_gid_index());
        let local = self.local_at(gid_of(&self.device, index)?.address);
        let QpAttributes { send_psn, path_mtu, max_dest_rd_atomic, .. } = options.attributes;
        Ok(Peer {
            psn: send_psn.unwrap_or(local.psn),
            path_mtu: path_mtu.or(local.path_mtu),
            max_dest_rd_atomic: max_dest_rd_atomic.or(local.max_dest_rd_atomic),
            ..local
        })
    }

    fn local_at(&self, gid: Ipv6Addr) -> Peer {
        let max_dest_rd_atomic = QpAttributes::HABITS.max_dest_rd_atomic;
        Peer { path_mtu: Some(self.path_mtu), max_dest_rd_atomic, ..Peer::new(self.qpn(), self.first_psn, gid) }
    }

    /// Takes a queue pair from `RESET` to `INIT`, where receive requests can be posted before the peer sends.
    ///
    /// A program that posts none, or leaves it to the peer to retry until there are some, need not call it.
    ///
    /// # Errors
    /// [`ModifyError`] when the transition is refused; the queue pair is unchanged then.
    pub fn init(&self, options: &ConnectOptions) -> Result<(), ModifyError> {
        let service = self.query()?.service;
        let steps = options.attributes.steps(service, State::Reset);
        self.modify(&steps[0])
    }

    /// Connects with a peer: takes the queue pair from `RESET` (or `INIT`, or `RTR`) to `RTS`, after which both ends
    /// can send.
    ///
    /// The path MTU is the smaller one of both ends. Outstanding READs and atomics are as many as the peer accepts, at
    /// most those of [`QpAttributes::HABITS`].
    ///
    /// A datagram queue pair becomes ready to send, to any peer; its requests need a [`destination`](Self::destination)
    /// then.
    ///
    /// # Errors
    /// [`ConnectError::Path`] when there is no path to the peer; [`ConnectError::Modify`] when a transition is refused.
    pub fn connect(&self, peer: &Peer) -> Result<(), ConnectError> {
        self.connect_with(peer, &ConnectOptions::new())
    }

    /// Connects with a peer, as [`connect`](Self::connect), with these options.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(&self, peer: &Peer, options: &ConnectOptions) -> Result<(), ConnectError> {
        let QpAttributes { max_rd_atomic: most, .. } = QpAttributes::HABITS;
        let mut agreed = QpAttributes { send_psn: Some(self.first_psn), ..Default::default() };
        if !self.query()?.service.is_datagram() {
            agreed.path = Some(self.path_to(peer, options, source_port(self.qpn(), peer.qpn))?);
            agreed.path_mtu = Some(peer.path_mtu.map_or(self.path_mtu, |theirs| theirs.min(self.path_mtu)));
            agreed.destination = Some(peer.qpn);
            agreed.receive_psn = Some(peer.psn);
            agreed.max_rd_atomic = peer.max_dest_rd_atomic.min(most).or(most);
        }
        let attributes = agreed.overlaid(&options.attributes);
        Ok(self.engine.with(|core, now| {
            core.endpoint.connect(now, self.qpn(), &attributes)?;
            self.rule_modified(&attributes, core, now);
            Ok::<_, ModifyError>(())
        })?)
    }

    /// The destination of datagrams to the peer's queue pair, with the Q_Key of the options.
    ///
    /// # Errors
    /// [`PathError`] when there is no path to the peer.
    pub fn destination(&self, peer: &Peer, options: &ConnectOptions) -> Result<Destination, PathError> {
        let path = self.path_to(peer, options, source_port(self.qpn(), self.qpn()))?;
        let path = self.ruling.as_ref().map_or(path, |ruling| ruling.policy().datagram_path(path));
        let q_key = options.attributes.q_key.or(QpAttributes::HABITS.q_key).unwrap_or_default();
        Ok(Destination { path, qpn: peer.qpn, q_key })
    }

    fn path_to(&self, peer: &Peer, options: &ConnectOptions, source_port: u16) -> Result<Path, PathError> {
        let ConnectOptions { gid_index, traffic_class, hop_limit, flow_label, .. } = *options;
        let source_gid_index = gid_index.unwrap_or_else(|| self.device.default_gid_index());
        let vector =
            AddressVector { source_gid_index, destination_gid: peer.gid, traffic_class, hop_limit, flow_label };
        find_path(&self.engine, &self.device, &vector, source_port)
    }
}
