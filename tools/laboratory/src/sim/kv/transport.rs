use uroce::congestion::CongestionControl;
use uroce::transport::{RecoveryMode, RecoverySettings};

use crate::sim::congestion::CUBIC;

/// What moves the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvTransport {
    /// A connection of uroce as it is.
    Uroce,
    /// The same with go-back-N.
    GoBackN,
    /// Selective repeat with TCP's CUBIC.
    Cubic,
    /// Selective repeat with BBR.
    Bbr,
    /// [`POOL`] connections with CUBIC, among which each piece is divided.
    PooledCubic,
    /// The same with BBR.
    PooledBbr,
}

/// The connections of a pool: as many as Mooncake takes, with which it reached most over the Internet.
pub const POOL: usize = 8;

impl KvTransport {
    /// All of them, in the order of the table.
    pub const ALL: [KvTransport; 6] = [
        KvTransport::Uroce,
        KvTransport::GoBackN,
        KvTransport::Cubic,
        KvTransport::Bbr,
        KvTransport::PooledCubic,
        KvTransport::PooledBbr,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            KvTransport::Uroce => "uroce",
            KvTransport::GoBackN => "uroce-go-back-n",
            KvTransport::Cubic => "cubic",
            KvTransport::Bbr => "bbr",
            KvTransport::PooledCubic => "pooled-cubic",
            KvTransport::PooledBbr => "pooled-bbr",
        }
    }

    /// The number of connections that carry a piece together.
    pub(super) fn connections(self) -> usize {
        if matches!(self, KvTransport::PooledCubic | KvTransport::PooledBbr) { POOL } else { 1 }
    }

    /// Whether its windows change over seconds.
    pub(super) fn is_slow_to_settle(self) -> bool {
        self.recovery().congestion == CUBIC
    }

    /// How both ends recover, and what decides on the rate.
    pub(super) fn recovery(self) -> RecoverySettings {
        let (recovery, control) = match self {
            KvTransport::Uroce => (RecoveryMode::Auto, CongestionControl::default()),
            KvTransport::GoBackN => (RecoveryMode::GoBackN, CongestionControl::default()),
            KvTransport::Cubic | KvTransport::PooledCubic => (RecoveryMode::Auto, CUBIC),
            KvTransport::Bbr | KvTransport::PooledBbr => (RecoveryMode::Auto, CongestionControl::Bbr),
        };
        RecoverySettings { recovery, ..RecoverySettings::default().with_congestion(control) }
    }
}
