use crate::time::{Duration, Instant};
use crate::wire::Addresses;

use super::message::Message;
use super::service_id::ServiceId;

/// Services whose listener has just gone, and the requests that came for them since. Programs listen anew between two
/// connections (perftest does), for datagrams after connections at the same port; their peers can be there sooner, and
/// take a rejection for the end.
#[derive(Debug, Default)]
pub(super) struct Departed {
    /// Each, and until when somebody may listen again.
    services: Vec<(Instant, ServiceId)>,
    waiting: Vec<Waiting>,
}

/// A request that came just after its listener had gone.
#[derive(Debug)]
pub(super) struct Waiting {
    pub until: Instant,
    pub back: Addresses,
    pub transaction: u64,
    pub message: Message,
}

/// How long a request waits for a new listener, after the last one for its service has gone.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Upper bound on the requests that wait so, and on the services that they can wait for.
const MAX_WAITING: usize = 64;

impl Departed {
    /// The listener for a service has gone.
    pub fn note(&mut self, now: Instant, service_id: ServiceId) {
        self.services.retain(|(until, _)| *until > now);
        if self.services.len() < MAX_WAITING {
            self.services.push((now + LISTEN_AGAIN, service_id));
        }
    }

    /// Until when a request for a service may wait, at whose port a listener has just gone; `None` when it may not.
    pub fn may_wait(&self, now: Instant, service_id: ServiceId) -> Option<Instant> {
        let mut here = self.services.iter().filter(|(until, service)| service.has_port_of(service_id) && *until > now);
        here.next().map(|(until, _)| *until).filter(|_| self.waiting.len() < MAX_WAITING)
    }

    /// Has a request wait. Returns whether it does not do so already.
    pub fn wait(&mut self, waiting: Waiting) -> bool {
        let is_same = |other: &Waiting| (other.back, other.transaction) == (waiting.back, waiting.transaction);
        let is_new = !self.waiting.iter().any(is_same);
        if is_new {
            self.waiting.push(waiting);
        }
        is_new
    }

    /// Takes all requests: somebody listens.
    pub fn take_all(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// Takes the requests that have waited long enough.
    pub fn take_due(&mut self, now: Instant) -> Vec<Waiting> {
        self.waiting.extract_if(.., |one| one.until <= now).collect()
    }

    /// When the next one has; `None` when none waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|one| one.until).min()
    }
}
