use std::fmt;
use std::str::FromStr;

use super::{Controller, Steady};

/// The congestion controllers that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// The rate that is set; without one, as fast as the window of packets in flight allows.
    Fixed,
    /// Keeps the queue of the bottleneck short, by the round trip: [`Steady`].
    #[default]
    Steady,
}

/// A text that names no congestion controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a congestion controller: use fixed or steady")]
pub struct CongestionControlError(String);

impl CongestionControl {
    /// All congestion controllers.
    pub const ALL: [CongestionControl; 2] = [CongestionControl::Fixed, CongestionControl::Steady];

    /// The name of the controller in options.
    pub fn name(self) -> &'static str {
        match self {
            CongestionControl::Fixed => "fixed",
            CongestionControl::Steady => "steady",
        }
    }

    /// A controller without history; `None` when nothing is decided beside the rate that is set.
    pub fn start(self) -> Option<Box<dyn Controller>> {
        match self {
            CongestionControl::Fixed => None,
            CongestionControl::Steady => Some(Box::new(Steady::default())),
        }
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CongestionControl {
    type Err = CongestionControlError;

    fn from_str(text: &str) -> Result<CongestionControl, CongestionControlError> {
        let mut all = CongestionControl::ALL.into_iter();
        all.find(|kind| kind.name() == text).ok_or_else(|| CongestionControlError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_known_by_name() {
        for kind in CongestionControl::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("cubic".parse::<CongestionControl>(), Err(CongestionControlError("cubic".to_owned())));
    }
}
