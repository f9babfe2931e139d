use std::sync::Arc;

use uroce::congestion::CongestionControl;
use uroce::frame::FrameBytes;
use uroce::memory::{Access, Pd};
use uroce::time::Instant;
use uroce::transport::{Capabilities, CompletionRing, Endpoint, Path, RecoveryMode, RecoverySettings, Service};
use uroce::wire::{Addresses, Bth, Extension, Opcode, PathMtu, Psn, QKey, Qpn, RnrTimer};

use crate::world::{self, Peering, queue_pair, with_ethernet};

use super::conversation::Observed;

/// Our state machine in place of one side of a connection.
pub(super) struct StandIn {
    pub endpoint: Endpoint,
    pub pd: Pd,
    pub qpn: Qpn,
    pub completions: Arc<CompletionRing>,
}

/// The parameters of a stand-in.
pub(super) struct Role {
    pub service: Service,
    /// The addresses, from us to the peer.
    pub addresses: Addresses,
    /// The peer's queue pair number.
    pub peer: Qpn,
    pub path_mtu: PathMtu,
    pub receive_psn: Psn,
    pub send_psn: Psn,
    pub q_key: QKey,
    pub rnr_timer: RnrTimer,
}

/// Length of the longest packet in bytes: path MTU 4096 and headers.
const PACKET_BYTES: usize = 4096 + 128;

/// All access that a peer can have.
pub(super) const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::MW_BIND);

impl StandIn {
    pub fn new(role: &Role) -> StandIn {
        // A constant seed is safe: there is no attacker here.
        let mut endpoint = Endpoint::new([0x5a; 32]);
        // The comparison is with plain IBTA behaviour: conversations end where they leave it.
        // A capture was not taken at our controller's rate.
        let recovery = RecoveryMode::GoBackN;
        let congestion = CongestionControl::Fixed;
        endpoint.set_recovery(RecoverySettings { recovery, congestion, ..RecoverySettings::default() });
        let pd = endpoint.allocate_pd();
        let completions = Arc::new(CompletionRing::new(Capabilities::MAX_REQUESTS, || {}));
        let most = Capabilities::MAX_REQUESTS;
        let init = queue_pair(role.service, pd, [most; 2], &completions, PathMtu::Mtu4096);
        let qpn = endpoint.create_queue_pair(init).expect("a first queue pair is always possible");
        let peering = Peering {
            service: role.service,
            access: ALL_ACCESS,
            path_mtu: role.path_mtu,
            send_psn: role.send_psn,
            receive_psn: role.receive_psn,
            rnr_timer: role.rnr_timer,
            // The timeout is the shortest one: the replay decides when the timer fires.
            timeout: 1,
            q_key: role.q_key,
            ..Peering::new(path(role.addresses), role.peer)
        };
        peering.connect(&mut endpoint, Instant::ZERO, qpn);
        StandIn { endpoint, pd, qpn, completions }
    }

    /// Hands a captured packet to us, with our queue pair number and with `extension` instead of its own.
    pub fn feed(&mut self, now: Instant, frame: &Observed, extension: Extension) {
        let packet = frame.packet();
        let headers = packet.headers();
        let theirs = headers.bth;
        let bth = Bth::new(theirs.opcode(), self.qpn, theirs.psn())
            .with_solicited(theirs.solicited())
            .with_mig_req(theirs.mig_req())
            .with_p_key(theirs.p_key())
            .with_becn(theirs.becn())
            .with_ack_request(theirs.ack_request());
        let headers = uroce::wire::Headers { bth, extension };
        let payload = packet.payload();
        let mut bytes = vec![0; payload.len() + 256];
        let written = headers.write(&mut bytes, &frame.flow(), 0, payload.len(), |out| {
            payload.copy_to_slice(out);
            Ok::<_, std::convert::Infallible>(())
        });
        let len = written.expect("256 bytes are enough for all headers");
        let frame = with_ethernet(&bytes[..len]);
        self.endpoint.handle_frame(now, FrameBytes::from(&frame[..]));
    }

    /// The next packet that we send; `None` when there is none. CNPs are left out: they answer the network's marks, and no
    /// packet of the peer.
    pub fn transmit(&mut self, now: Instant) -> Option<Observed> {
        let mut out = vec![0; PACKET_BYTES];
        loop {
            let transmit = self.endpoint.poll_transmit(now, &mut out)?;
            let ours = Observed::ours(now, &out[..transmit.len]);
            if ours.packet().bth().opcode() != Opcode::CNP {
                return Some(ours);
            }
        }
    }
}

/// A path with these addresses; its other fields are not compared.
pub(super) fn path(addresses: Addresses) -> Path {
    world::path(addresses.source(), addresses.destination(), 0)
}
