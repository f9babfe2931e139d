use std::sync::Arc;

use uroce::frame::FrameBytes;
use uroce::memory::{Access, Pd};
use uroce::time::Instant;
use uroce::transport::{Capabilities, CompletionRing, Endpoint, Path, RecoveryMode, RecoverySettings, Service};
use uroce::wire::{Addresses, Bth, Extension, PathMtu, Psn, QKey, Qpn, RnrTimer};

use crate::world::{self, Peering, queue_pair, with_ethernet};

use super::conversation::Observed;

/// Our state machine in the place of one side of a connection.
pub(super) struct StandIn {
    pub endpoint: Endpoint,
    pub pd: Pd,
    pub qpn: Qpn,
    pub completions: Arc<CompletionRing>,
}

/// What a stand-in must know.
pub(super) struct Role {
    pub service: Service,
    /// From us to the peer.
    pub addresses: Addresses,
    /// The peer's queue pair.
    pub peer: Qpn,
    pub path_mtu: PathMtu,
    pub receive_psn: Psn,
    pub send_psn: Psn,
    pub q_key: QKey,
    pub rnr_timer: RnrTimer,
}

/// The longest packet: path MTU 4096 and headers.
const PACKET_BYTES: usize = 4096 + 128;

/// All that a peer may do.
pub(super) const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::MW_BIND);

impl StandIn {
    pub fn new(role: &Role) -> StandIn {
        // Nobody is there who could guess.
        let mut endpoint = Endpoint::new([0x5a; 32]);
        // What is compared is plain IBTA: conversations are looked at up to where they leave it.
        endpoint.set_recovery(RecoverySettings { recovery: RecoveryMode::GoBackN, ..RecoverySettings::default() });
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
            // The shortest: it is up to the replay when it fires.
            timeout: 1,
            q_key: role.q_key,
            ..Peering::new(path(role.addresses), role.peer)
        };
        peering.connect(&mut endpoint, Instant::ZERO, qpn);
        StandIn { endpoint, pd, qpn, completions }
    }

    /// Hands a packet of the capture to us: the same, but for our queue pair, and with `extension`.
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

    /// The next packet that we send.
    pub fn transmit(&mut self, now: Instant) -> Option<Observed> {
        let mut out = vec![0; PACKET_BYTES];
        let transmit = self.endpoint.poll_transmit(now, &mut out)?;
        Some(Observed::ours(now, &out[..transmit.len]))
    }
}

/// A path there; what it says beside the addresses is not compared.
pub(super) fn path(addresses: Addresses) -> Path {
    world::path(addresses.source(), addresses.destination(), 0)
}
