use std::net::IpAddr;

use crate::congestion::{CongestionControl, FlowStatus};
use crate::path::PathStatus;
use crate::wire::Qpn;

use super::class::Class;
use super::counters::Counters;
use super::service::Service;
use super::state::State;

/// How a queue pair stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairStatus {
    /// Its number.
    pub qpn: Qpn,
    /// Its transport service.
    pub service: Service,
    /// Its state.
    pub state: State,
    /// Which queue pairs send before it.
    pub class: Class,
    /// The address and the queue pair of its peer; `None` before it knows one, and with datagrams.
    pub peer: Option<(IpAddr, Qpn)>,
    /// What recovers from losses now ([`Recovery::name`](crate::recovery::Recovery::name)): `selective`, `go-back-n`, or
    /// `own`; `None` for services that retransmit nothing.
    pub recovery: Option<&'static str>,
    /// What decides how fast it sends.
    pub congestion: CongestionControl,
    /// Its paths, from 0 on; empty unless it or its peer uses several.
    pub paths: Vec<PathStatus>,
    /// What its congestion controller does and knows; `None` before it sends data, and without a controller.
    pub flow: Option<FlowStatus>,
    /// What was counted since it was created. Received packets, and what the endpoint refused, are not among it.
    pub counters: Counters,
}
