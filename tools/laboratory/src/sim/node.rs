use uroce::time::Instant;
use uroce::transport::Endpoint;

use super::network::LinkId;

/// An endpoint and the interface that it sends with.
pub struct Node {
    /// The device. After posting to it, tell the network: [`Network::kick`](super::Network::kick).
    pub endpoint: Endpoint,
    /// Where its frames go.
    pub(super) uplink: Option<LinkId>,
    /// The earliest timer event that is scheduled for it.
    pub(super) armed: Option<Instant>,
    /// Whether an event is scheduled that lets it send on.
    pub(super) will_pull: bool,
    /// Frames that it has sent and received.
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Node {
    pub(super) fn new(endpoint: Endpoint) -> Node {
        Node { endpoint, uplink: None, armed: None, will_pull: false, sent: 0, received: 0 }
    }

    /// Frames that it has sent and received.
    pub fn frames(&self) -> (u64, u64) {
        (self.sent, self.received)
    }
}
