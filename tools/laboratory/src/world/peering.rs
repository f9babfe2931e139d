use uroce::memory::Access;
use uroce::time::Instant;
use uroce::transport::{Endpoint, Path, QpAttributes, Service, State};
use uroce::wire::{PathMtu, Psn, QKey, Qpn, RnrTimer};

/// The attributes that take a queue pair from RESET to ready to send. Those that its service does not use are left out.
#[derive(Clone, Copy, Debug)]
pub struct Peering {
    /// The transport service of the queue pair.
    pub service: Service,
    /// The operations that the peer is allowed.
    pub access: Access,
    /// The path to the peer.
    pub path: Path,
    /// The path MTU of both directions.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub destination: Qpn,
    /// The first PSN that is sent.
    pub send_psn: Psn,
    /// The first PSN that is expected.
    pub receive_psn: Psn,
    /// The number of READs and atomics that can be outstanding, in each direction.
    pub rd_atomic: u8,
    /// The time that the peer must wait after an RNR NAK.
    pub rnr_timer: RnrTimer,
    /// The code of the local ACK timeout: 4.096 µs × 2^code.
    pub timeout: u8,
    /// The number of retries before the requester gives up, 0 to 7.
    pub retry_count: u8,
    /// The number of retries after RNR NAKs, 0 to 7; 7 is without limit.
    pub rnr_retry: u8,
    /// The Q_Key that datagrams must have.
    pub q_key: QKey,
}

impl Peering {
    /// A reliable connection in which the peer is only allowed SEND. PSNs begin with 0, and the numbers of outstanding
    /// READs and of retries are the largest possible.
    pub fn new(path: Path, destination: Qpn) -> Peering {
        Peering {
            service: Service::Rc,
            access: Access::empty(),
            path,
            path_mtu: PathMtu::Mtu1024,
            destination,
            send_psn: Psn::new(0),
            receive_psn: Psn::new(0),
            rd_atomic: QpAttributes::MAX_RD_ATOMIC,
            rnr_timer: RnrTimer::default(),
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            q_key: QKey(0),
        }
    }

    /// The same values as attributes of a queue pair.
    pub fn attributes(&self) -> QpAttributes {
        QpAttributes {
            access: Some(self.access),
            path: Some(self.path),
            path_mtu: Some(self.path_mtu),
            destination: Some(self.destination),
            send_psn: Some(self.send_psn),
            receive_psn: Some(self.receive_psn),
            max_dest_rd_atomic: Some(self.rd_atomic),
            max_rd_atomic: Some(self.rd_atomic),
            min_rnr_timer: Some(self.rnr_timer),
            timeout: Some(self.timeout),
            retry_count: Some(self.retry_count),
            rnr_retry: Some(self.rnr_retry),
            q_key: Some(self.q_key),
            ..QpAttributes::default()
        }
    }

    /// The three transitions: to INIT, to ready to receive, and to ready to send.
    pub fn steps(&self) -> [QpAttributes; 3] {
        let steps = self.attributes().steps(self.service, State::Reset);
        steps.into_inner().expect("three transitions lead from RESET to RTS")
    }

    /// Takes the queue pair through all three transitions.
    ///
    /// # Panics
    /// When one of them is refused.
    pub fn connect(&self, endpoint: &mut Endpoint, now: Instant, qpn: Qpn) {
        endpoint.connect(now, qpn, &self.attributes()).expect("all that the transitions need is there");
    }
}
