use std::fmt::Debug;

use super::Rate;

/// Decides how fast a queue pair sends. A [`Pacer`](super::Pacer) asks it before each packet.
pub trait Controller: Debug + Send + Sync {
    /// The rate that is kept to from now on; `None` for as fast as the window of packets in flight allows.
    fn rate(&self) -> Option<Rate>;
}

/// The rate that a user has set, whatever happens to packets.
#[derive(Clone, Copy, Debug)]
pub struct FixedRate(pub Option<Rate>);

impl Controller for FixedRate {
    fn rate(&self) -> Option<Rate> {
        self.0
    }
}
