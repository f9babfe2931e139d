use std::net::Ipv6Addr;

use crate::transport::{Destination, ModifyError, Path, QpAttributes, State};

use super::context::{AddressVector, PathError, find_path, gid_of, source_port};
use super::{Peer, QueuePair};

/// How a queue pair is connected, where [`QueuePair::connect`] would do otherwise.
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
    /// Our address: an index of the device's GID table; `None` for [`Device::default_gid_index`].
    ///
    /// [`Device::default_gid_index`]: crate::link::device::Device::default_gid_index
    pub gid_index: Option<usize>,
    /// DSCP and ECN of what is sent.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 counts as 64.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// What is set otherwise than it would be: than what the peer says, what the device can, and [`QpAttributes::HABITS`].
    pub attributes: QpAttributes,
}

impl ConnectOptions {
    /// The defaults.
    pub fn new() -> ConnectOptions {
        ConnectOptions::default()
    }

    /// With that [`gid_index`](Self#structfield.gid_index).
    pub fn gid_index(self, index: usize) -> ConnectOptions {
        ConnectOptions { gid_index: Some(index), ..self }
    }

    /// With that [`traffic_class`](Self#structfield.traffic_class).
    pub fn traffic_class(self, traffic_class: u8) -> ConnectOptions {
        ConnectOptions { traffic_class, ..self }
    }

    /// With that [`hop_limit`](Self#structfield.hop_limit).
    pub fn hop_limit(self, hop_limit: u8) -> ConnectOptions {
        ConnectOptions { hop_limit, ..self }
    }

    /// With that [`flow_label`](Self#structfield.flow_label).
    pub fn flow_label(self, flow_label: u32) -> ConnectOptions {
        ConnectOptions { flow_label, ..self }
    }

    /// With those [`attributes`](Self#structfield.attributes).
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
    /// A step was refused; the queue pair is in the state before it.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

impl QueuePair {
    /// What the peer is to know of this queue pair: our default GID, a first PSN that nobody can guess, the device's MTU, and as
    /// many READs as [`QpAttributes::HABITS`] has it. The same at every call. A device without addresses says `::`.
    pub fn local(&self) -> Peer {
        self.local_with(&ConnectOptions::new()).unwrap_or_else(|_| self.local_at(Ipv6Addr::UNSPECIFIED))
    }

    /// The same, for who connects with these options.
    ///
    /// # Errors
    /// [`PathError::NoSuchGid`].
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

    /// Takes a queue pair from `RESET` to `INIT`, where receive requests can be posted before the peer may send. Who posts none, or
    /// leaves it to the peer to wait for them, need not call it.
    ///
    /// # Errors
    /// [`ModifyError`].
    pub fn init(&self, options: &ConnectOptions) -> Result<(), ModifyError> {
        let service = self.query()?.service;
        let steps = options.attributes.steps(service, State::Reset);
        self.modify(&steps[0])
    }

    /// Connects with a peer: takes the queue pair from `RESET` (or `INIT`, or `RTR`) to `RTS`, after which both ends may send. The
    /// path MTU is the smaller one of both ends', and we have as many READs outstanding as the peer takes.
    ///
    /// A datagram queue pair becomes ready to send, with nobody in particular; [`destination`](Self::destination) is what its
    /// requests need then.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&self, peer: &Peer) -> Result<(), ConnectError> {
        self.connect_with(peer, &ConnectOptions::new())
    }

    /// The same in another manner.
    ///
    /// # Errors
    /// [`ConnectError`].
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
        Ok(self.engine.with(|core, now| core.endpoint.connect(now, self.qpn(), &attributes))?)
    }

    /// Where a datagram to the peer's queue pair goes, with the Q_Key of the options.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn destination(&self, peer: &Peer, options: &ConnectOptions) -> Result<Destination, PathError> {
        let path = self.path_to(peer, options, source_port(self.qpn(), self.qpn()))?;
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
