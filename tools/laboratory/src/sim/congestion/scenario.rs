use uroce::congestion::CongestionControl;

use super::FlowSizes;

/// The scenarios of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Flows over a wide area, without random loss.
    Wan,
    /// The same with random loss.
    WanLoss,
    /// Flows of equal round trips.
    Fair,
    /// A flow that begins when the others are steady.
    Newcomer,
    /// Half of the flows have a tenth of the others' round trip.
    RttMix,
    /// Half of the flows stay in a data centre, with a thousandth of the others' round trip.
    DcWan,
    /// Flows of the same length begin together, over a short path.
    Incast,
    /// The same over new connections: nothing was sent before.
    NewIncast,
    /// Flows of published sizes come at random and load the bottleneck by half, over connections that are there, on a short way.
    Flows(FlowSizes),
    /// Three bottlenecks in a row: a flow over all, and one over each.
    ParkingLot,
    /// A part of the bottleneck is taken and left in turns, by traffic that slows down for nobody.
    OnOff,
    /// A token bucket without a queue.
    Policer,
    /// Bursts of a twentieth of a round trip, at four times the rate of the bottleneck, by traffic that slows down for nobody.
    Microburst,
    /// A link that is much slower than the way is short, behind a fast one.
    SlowLink,
    /// Many flows of equal round trips on a slow link, each of which has a share of a few packets.
    SmallShares,
    /// Long flows over a short way, whose switch marks packets as in the published analysis of DCQCN.
    LongFlows,
    /// Many queue pairs of one host to one peer.
    OnePeer,
    /// Hosts whose processor often belongs to other programs: they look at packets late, and send late.
    BusyHosts,
    /// A flow of class scavenger beside TCP's CUBIC, which sends for 2 s and pauses for 2 s.
    Scavenger,
    /// Flows of class scavenger alone.
    Scavengers,
    /// A flow beside one of another controller.
    Versus(CongestionControl),
    /// The same beside one of TCP, on a slower line and for longer: TCP's windows take seconds to change.
    BesideTcp(CongestionControl),
}

impl Scenario {
    /// The name of the scenario in tables.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Wan => "wan",
            Scenario::WanLoss => "wan-loss",
            Scenario::Fair => "fair",
            Scenario::Newcomer => "newcomer",
            Scenario::RttMix => "rtt-mix",
            Scenario::DcWan => "dc-wan",
            Scenario::Incast => "incast",
            Scenario::NewIncast => "new-incast",
            Scenario::Flows(FlowSizes::WebSearch) => "web-search",
            Scenario::Flows(FlowSizes::FbHdp) => "fb-hdp",
            Scenario::Flows(FlowSizes::AliStorage) => "ali-storage",
            Scenario::Flows(FlowSizes::GoogleRpc) => "google-rpc",
            Scenario::ParkingLot => "parking-lot",
            Scenario::OnOff => "on-off",
            Scenario::Policer => "policer",
            Scenario::Microburst => "microburst",
            Scenario::SlowLink => "slow-link",
            Scenario::SmallShares => "small-shares",
            Scenario::LongFlows => "long-flows",
            Scenario::OnePeer => "one-peer",
            Scenario::BusyHosts => "busy-hosts",
            Scenario::Scavenger => "scavenger",
            Scenario::Scavengers => "scavengers",
            Scenario::Versus(_) => "versus",
            Scenario::BesideTcp(_) => "beside-tcp",
        }
    }

    /// The controller of the second flow, where it is another one; `None` elsewhere.
    pub fn rival(self) -> Option<CongestionControl> {
        if let Scenario::Versus(rival) | Scenario::BesideTcp(rival) = self { Some(rival) } else { None }
    }

    /// Whether the network is a data centre's, whose switches have shallow buffers and mark packets.
    pub(super) fn is_data_centre(self) -> bool {
        matches!(
            self,
            Scenario::DcWan | Scenario::Incast | Scenario::NewIncast | Scenario::Flows(_) | Scenario::LongFlows
        )
    }
}
