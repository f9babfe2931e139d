//! Congestion: several flows over one bottleneck or a row of them, none of which knows its rate.

mod background;
mod cell;
mod chain;
mod cubic;
mod flow_plan;
mod flow_sizes;
mod meter;
mod offered;
mod paper_dcqcn;
mod result;
mod run;
mod scenario;
mod setup;
mod tcp_bbr;

pub use cell::CongestionCell;
pub use cubic::{CUBIC, TCP_CUBIC};
pub use flow_sizes::FlowSizes;
pub use paper_dcqcn::PAPER_DCQCN;
pub use result::{CompletionTime, Congestion, Scavenged, SizeBin};
pub use scenario::Scenario;
pub use tcp_bbr::TCP_BBR;
