use std::fmt;
use std::str::FromStr;

use super::companion::{Companion, Seat};
use super::{Bbr, Controller, Dcqcn, Hpcc, Nscc, OwnController, Rate, Steady, Swift, Timely};

/// The congestion controllers that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// The rate that is set; without one, as fast as the window of packets in flight allows.
    Fixed,
    /// Keeps the queue of the bottleneck short, by the round trip: [`Steady`].
    #[default]
    Steady,
    /// Cuts the rate when the peer reports marks of switches, as RNICs do: [`Dcqcn`].
    Dcqcn,
    /// Keeps the delay of packets at a target, as in Google's data centres: [`Swift`].
    Swift,
    /// Sets the rate by the gradient of the round trip: [`Timely`].
    Timely,
    /// Follows marks and delays by their quadrant, as Ultra Ethernet does: [`Nscc`].
    Nscc,
    /// Follows what switches write into packets about their links: [`Hpcc`].
    Hpcc,
    /// Paces at the rate of delivery, and looks for more now and then: [`Bbr`].
    Bbr,
    /// One that is not of this crate; options cannot name it.
    Own(OwnController),
}

/// A text that names no congestion controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a congestion controller: use fixed, steady, dcqcn, swift, timely, nscc, hpcc or bbr")]
pub struct CongestionControlError(String);

impl CongestionControl {
    /// All congestion controllers of this crate.
    pub const ALL: [CongestionControl; 8] = [
        CongestionControl::Fixed,
        CongestionControl::Steady,
        CongestionControl::Dcqcn,
        CongestionControl::Swift,
        CongestionControl::Timely,
        CongestionControl::Nscc,
        CongestionControl::Hpcc,
        CongestionControl::Bbr,
    ];

    /// The name of the controller in options.
    pub fn name(self) -> &'static str {
        match self {
            CongestionControl::Fixed => "fixed",
            CongestionControl::Steady => "steady",
            CongestionControl::Dcqcn => "dcqcn",
            CongestionControl::Swift => "swift",
            CongestionControl::Timely => "timely",
            CongestionControl::Nscc => "nscc",
            CongestionControl::Hpcc => "hpcc",
            CongestionControl::Bbr => "bbr",
            CongestionControl::Own(own) => own.name,
        }
    }

    /// Whether the controller reacts when switches mark packets: without, they are not to be marked.
    pub fn reacts_to_marks(self) -> bool {
        match self {
            CongestionControl::Steady | CongestionControl::Dcqcn | CongestionControl::Nscc => true,
            CongestionControl::Own(own) => own.reacts_to_marks,
            _ => false,
        }
    }

    /// Whether the controller follows telemetry of switches. Without it, it keeps what is on the way at the link's rate in flight.
    pub fn needs_telemetry(self) -> bool {
        self == CongestionControl::Hpcc
    }

    /// Whether packets are paced whatever the peer understands: RNICs are slowed down by their rate alone.
    pub fn paces_plain_peers(self) -> bool {
        self == CongestionControl::Dcqcn
    }

    /// Whether flows to the same peer keep company.
    pub fn keeps_company(self) -> bool {
        self == CongestionControl::Steady
    }

    /// A controller without history on a link of this rate, in the company of its seat if it [keeps one](Self::keeps_company);
    /// `None` when nothing is decided beside the rate that is set.
    pub fn start(self, line: Rate, seat: Option<Seat>) -> Option<Box<dyn Controller>> {
        match self {
            CongestionControl::Fixed => None,
            CongestionControl::Steady => Some(match seat {
                Some(seat) => Box::new(Companion::Joint(seat)),
                None => Box::new(Steady::default()),
            }),
            CongestionControl::Dcqcn => Some(Box::new(Dcqcn::new(line))),
            CongestionControl::Swift => Some(Box::new(Swift::default())),
            CongestionControl::Timely => Some(Box::new(Timely::new(line))),
            CongestionControl::Nscc => Some(Box::new(Nscc::new(line))),
            CongestionControl::Hpcc => Some(Box::new(Hpcc::new(line))),
            CongestionControl::Bbr => Some(Box::new(Bbr::default())),
            CongestionControl::Own(own) => Some((own.start)(line)),
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
