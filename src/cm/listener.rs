use std::net::IpAddr;

use rustc_hash::FxHashMap;

use super::service_id::ServiceId;

/// The name of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listener(u32);

/// Somebody listens for the service already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is in use")]
pub struct InUse(pub ServiceId);

/// Who listens, for what.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: FxHashMap<u32, Listening>,
    next: u32,
}

#[derive(Debug)]
struct Listening {
    service_id: ServiceId,
    /// Our address that it listens at; `None` for all.
    address: Option<IpAddr>,
    backlog: usize,
    /// Requests that its program has not decided on.
    pending: usize,
}

impl Listeners {
    pub fn add(&mut self, service_id: ServiceId, address: Option<IpAddr>, backlog: usize) -> Result<Listener, InUse> {
        if self.at(service_id, address).is_some() {
            return Err(InUse(service_id));
        }
        let listener = self.next;
        self.next += 1;
        self.all.insert(listener, Listening { service_id, address, backlog, pending: 0 });
        Ok(Listener(listener))
    }

    /// Returns what it listened for, if there was a listener.
    pub fn remove(&mut self, listener: Listener) -> Option<(ServiceId, Option<IpAddr>)> {
        self.all.remove(&listener.0).map(|one| (one.service_id, one.address))
    }

    /// The listener for a service at one of our addresses. One for this address goes before one for all.
    pub fn find(&self, service_id: ServiceId, address: IpAddr) -> Option<Listener> {
        self.at(service_id, Some(address)).or_else(|| self.at(service_id, None))
    }

    fn at(&self, service_id: ServiceId, address: Option<IpAddr>) -> Option<Listener> {
        let mut all = self.all.iter();
        all.find(|(_, one)| (one.service_id, one.address) == (service_id, address)).map(|(name, _)| Listener(*name))
    }

    /// Counts one more request that waits for a decision. Returns whether there is room for it.
    pub fn admit(&mut self, listener: Listener) -> bool {
        let found = self.all.get_mut(&listener.0).filter(|one| one.pending < one.backlog);
        found.map(|one| one.pending += 1).is_some()
    }

    /// A request was decided on, or is gone.
    pub fn decided(&mut self, listener: Listener) {
        if let Some(one) = self.all.get_mut(&listener.0) {
            one.pending -= 1;
        }
    }
}
