//! Worlds that tests, benches and fuzz targets share: endpoints in memory, and the carrier of their packets.
//!
//! * [`Pair`]: two endpoints with a queue pair each, over a network in virtual time, whose packets a test can also
//!   carry;
//! * [`Many`]: any number of connections between two endpoints, without delay;
//! * [`Crafted`]: one endpoint, whose peer consists of the frames that a test makes;
//! * [`connection`]: the request and the reply of two programs that connect by RDMA CM;
//! * the parts of these, for worlds of a test's own: [`Host`], [`queue_pair`], [`Peering`], [`Ferry`], [`path`],
//!   [`with_ethernet`].

pub mod connection;
pub mod crafted;
mod ferry;
mod host;
mod many;
mod pair;
mod peering;
mod pipeline;

use std::net::IpAddr;

use uroce::frame::Hop;
use uroce::transport::Path;
use uroce::wire::{Addresses, Flow};

pub use crate::ethernet::with_ethernet;
pub use crafted::Crafted;
pub use ferry::Ferry;
pub use host::{Host, queue_pair};
pub use many::Many;
pub use pair::{Chances, Pair, PairPlan, Side, pattern};
pub use peering::Peering;

/// The path from `source` to `destination`, addresses of one family, over next hop `hop`. All other values are
/// defaults.
pub fn path(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, hop: u64) -> Path {
    Path { flow: flow(source, destination), hop: Hop(hop) }
}

/// The outer headers of such a path: hop limit 64, and source port 0xc000.
pub fn flow(source: impl Into<IpAddr>, destination: impl Into<IpAddr>) -> Flow {
    let addresses = Addresses::new(source.into(), destination.into()).expect("addresses of one family");
    Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

/// Makes two tests of each of these functions, which take a [`RecoveryMode`](uroce::transport::RecoveryMode): one with
/// the default, and one with go-back-N.
#[macro_export]
macro_rules! in_both_modes {
    ($($test:ident)*) => {
        mod by_default {
            $(#[test] fn $test() { super::$test(uroce::transport::RecoveryMode::default()); })*
        }
        mod go_back_n {
            $(#[test] fn $test() { super::$test(uroce::transport::RecoveryMode::GoBackN); })*
        }
    };
}
