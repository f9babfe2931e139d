use uroce::memory::Access;
use uroce::time::Instant;
use uroce::transport::{Endpoint, Path, QpAttributes, Service, State};
use uroce::wire::{PathMtu, Psn, QKey, Qpn, RnrTimer};

/// What a queue pair is told of its peer on the way from RESET to ready to send. What its service has no use for is left out.
#[derive(Clone, Copy, Debug)]
pub struct Peering {
    /// What the queue pair is for.
    pub service: Service,
    /// What the peer may do.
    pub access: Access,
    /// How it is reached.
    pub path: Path,
    /// Bytes of a packet's payload, at most.
    pub path_mtu: PathMtu,
    /// Its queue pair.
    pub destination: Qpn,
    /// The first PSN that is sent.
    pub send_psn: Psn,
    /// The first PSN that is expected.
    pub receive_psn: Psn,
    /// READs and atomics outstanding, each way.
    pub rd_atomic: u8,
    /// How long the peer is to wait for a receive request.
    pub rnr_timer: RnrTimer,
    /// The code of the local ACK timeout: 4.096 µs × 2^code.
    pub timeout: u8,
    /// How often the requester tries again before it gives up.
    pub retry_count: u8,
    /// How often it tries again for want of a receive request; 7 is without end.
    pub rnr_retry: u8,
    /// The key that datagrams must have.
    pub q_key: QKey,
}

impl Peering {
    /// A reliable connection in which the peer may do nothing but SEND, as many READs are outstanding as can be, PSNs begin with
    /// 0 and patience is as long as it can be.
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

    /// All that it says, as attributes.
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

    /// The three steps: to INIT, to ready to receive, and to ready to send.
    pub fn steps(&self) -> [QpAttributes; 3] {
        let steps = self.attributes().steps(self.service, State::Reset);
        steps.into_inner().expect("three transitions lead from RESET to RTS")
    }

    /// Takes all three steps.
    ///
    /// # Panics
    /// When one of them is refused.
    pub fn connect(&self, endpoint: &mut Endpoint, now: Instant, qpn: Qpn) {
        endpoint.connect(now, qpn, &self.attributes()).expect("all that the transitions need is there");
    }
}
