use uroce::memory::Access;
use uroce::transport::{Path, QpAttributes, State};
use uroce::wire::{PathMtu, Psn, Qpn, RnrTimer};

/// What a side of a reliable connection is told of its peer.
pub(super) struct Peering {
    pub path: Path,
    pub path_mtu: PathMtu,
    /// The peer's number.
    pub destination: Qpn,
    pub send_psn: Psn,
    pub receive_psn: Psn,
    /// The code of the local ACK timeout: 4.096 µs × 2^code.
    pub timeout: u8,
}

impl Peering {
    /// The steps of a side from RESET to ready to send: WRITEs and READs, as many at once as there can be, patient.
    pub fn steps(self) -> [QpAttributes; 3] {
        let Peering { path, path_mtu, destination, send_psn, receive_psn, timeout } = self;
        [
            QpAttributes {
                state: Some(State::Init),
                p_key_index: Some(0),
                port: Some(1),
                access: Some(Access::REMOTE_WRITE | Access::REMOTE_READ),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(State::ReadyToReceive),
                path: Some(path),
                path_mtu: Some(path_mtu),
                destination: Some(destination),
                receive_psn: Some(receive_psn),
                max_dest_rd_atomic: Some(QpAttributes::MAX_RD_ATOMIC),
                min_rnr_timer: Some(RnrTimer::default()),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(State::ReadyToSend),
                send_psn: Some(send_psn),
                timeout: Some(timeout),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(QpAttributes::MAX_RD_ATOMIC),
                ..QpAttributes::default()
            },
        ]
    }
}
