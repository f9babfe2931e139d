//! How fast a queue pair sends: a controller decides on a rate and a window, and the pacer keeps to them.

mod arrivals;
mod bbr;
mod congestion_control;
mod controller;
mod dcqcn;
mod flight;
mod flood;
mod flow_status;
mod longest_frame;
mod near;
mod notices;
mod nscc;
mod own_controller;
mod pacer;
mod progress;
mod rate;
mod steady;
mod swift;
mod timely;

pub use bbr::Bbr;
pub use congestion_control::{CongestionControl, CongestionControlError};
pub use controller::Controller;
pub use dcqcn::Dcqcn;
pub use flight::Flight;
pub use flow_status::FlowStatus;
pub use longest_frame::LongestFrame;
pub use nscc::Nscc;
pub use own_controller::OwnController;
pub use pacer::Pacer;
pub use progress::{Progress, Sample};
pub use rate::{Rate, RateError};
pub use steady::Steady;
pub use swift::Swift;
pub use timely::Timely;
