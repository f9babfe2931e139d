//! Congestion: several flows over one bottleneck or a row of them, none of which knows its rate.

mod background;
mod cell;
mod chain;
mod cubic;
mod flow_plan;
mod meter;
mod result;
mod run;
mod scenario;
mod setup;

pub use cell::CongestionCell;
pub use cubic::CUBIC;
pub use result::{CompletionTime, Congestion};
pub use scenario::Scenario;
