use super::Flight;

/// What had been delivered and lost at a moment: what was since then tells a share of losses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    delivered: u64,
    lost: u64,
}

/// The least bytes of which a share is computed: a hundred packets of path MTU 4096.
pub(super) const LOOK_BYTES: u64 = 430_000;

impl Losses {
    /// What has been delivered and lost until now.
    pub fn until(flight: &Flight) -> Losses {
        Losses { delivered: flight.delivered_bytes(), lost: flight.lost_bytes() }
    }

    /// Bytes that were delivered, and lost, since then.
    pub fn since(self, flight: &Flight) -> (u64, u64) {
        (flight.delivered_bytes() - self.delivered, flight.lost_bytes() - self.lost)
    }
}
