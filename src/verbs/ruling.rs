use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::congestion::Rate;
use crate::engine::Core;
use crate::time::Instant;
use crate::transport::{Path, QpAttributes, State};
use crate::wire::Qpn;

use super::traffic_policy::{TrafficPolicy, program_names};
use super::traffic_rule::Known;

/// The policy of a device.
#[derive(Debug)]
pub(super) struct DevicePolicy {
    policy: TrafficPolicy,
    programs: Vec<String>,
    /// The rate of the line; `None` when it is not known.
    line: Option<Rate>,
}

/// What a device's policy decides for a queue pair, as more is known of it.
#[derive(Debug)]
pub(super) struct Ruling {
    policy: Arc<DevicePolicy>,
    seen: Mutex<Seen>,
    /// Whether the first message can change the decision.
    awaits_message: AtomicBool,
}

#[derive(Debug, Default)]
struct Seen {
    peer: Option<IpAddr>,
    port: Option<u16>,
    message: Option<u64>,
}

impl DevicePolicy {
    pub fn new(policy: TrafficPolicy, line: Option<Rate>) -> DevicePolicy {
        DevicePolicy { policy, programs: program_names(), line }
    }

    /// The upper bound on the device's scavenger class.
    pub fn scavenger_cap(&self) -> Option<Rate> {
        self.policy.scavenger_cap(self.line)
    }

    /// The path of datagrams: an address has no port and no first message, and gets nothing but a DSCP.
    pub fn datagram_path(&self, path: Path) -> Path {
        let peer = Some(path.flow.addresses.destination());
        let known = Known { programs: &self.programs, peer, port: None, message: None };
        self.policy.treatment(&known, self.line).path(path)
    }
}

impl Ruling {
    pub fn new(policy: Arc<DevicePolicy>) -> Ruling {
        let awaits_message = AtomicBool::new(policy.policy.asks_for_messages());
        Ruling { policy, seen: Mutex::default(), awaits_message }
    }

    /// The policy of the device.
    pub fn policy(&self) -> &DevicePolicy {
        &self.policy
    }

    /// Takes the port of the service that the queue pair is connected with.
    pub fn take_port(&self, port: u16) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).port = Some(port);
    }

    /// Decides anew after these attributes were set: they can have brought a peer.
    pub fn modified(&self, attributes: &QpAttributes, core: &mut Core, now: Instant, qpn: Qpn) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if attributes.state == Some(State::Reset) {
            *seen = Seen::default();
            self.awaits_message.store(self.policy.policy.asks_for_messages(), Ordering::Relaxed);
        } else if let Some(path) = &attributes.path {
            seen.peer = Some(path.flow.addresses.destination());
            self.decide(&seen, core, now, qpn);
        }
    }

    /// Decides anew when the first message was posted, of so many bytes, before it is sent.
    pub fn posted(&self, bytes: u64, core: &mut Core, now: Instant, qpn: Qpn) {
        if self.awaits_message.swap(false, Ordering::Relaxed) {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.message = Some(bytes);
            self.decide(&seen, core, now, qpn);
        }
    }

    fn decide(&self, seen: &Seen, core: &mut Core, now: Instant, qpn: Qpn) {
        let DevicePolicy { policy, programs, line } = &*self.policy;
        let Seen { peer, port, message } = *seen;
        let treatment = policy.treatment(&Known { programs, peer, port, message }, *line);
        // It was modified, or took a request, under the same lock.
        let _ = core.endpoint.treat(now, qpn, &treatment);
    }
}
