use uroce::time::Instant;
use uroce::transport::Endpoint;

use super::network::LinkId;
use super::pauses::Pauses;

/// An endpoint and the interface that it sends with.
pub struct Node {
    /// The endpoint of the node. After posting to it, call [`Network::kick`](super::Network::kick).
    pub endpoint: Endpoint,
    /// The link that its frames take.
    pub(super) uplink: Option<LinkId>,
    /// The time of the earliest timer event that is scheduled for it.
    pub(super) armed: Option<Instant>,
    /// Whether an event is scheduled that makes it continue to send.
    pub(super) will_pull: bool,
    /// When it has no processor; `None` for never.
    pub(super) pauses: Option<Pauses>,
    /// The numbers of frames that it has sent and received.
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Node {
    pub(super) fn new(endpoint: Endpoint) -> Node {
        Node { endpoint, uplink: None, armed: None, will_pull: false, pauses: None, sent: 0, received: 0 }
    }

    /// The numbers of frames that it has sent and received.
    pub fn frames(&self) -> (u64, u64) {
        (self.sent, self.received)
    }
}
