use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::wire::Qpn;

use super::service::Service;

/// Upper bound on the multicast groups of an endpoint: each needs a socket. rxe allows 8192.
pub const MAX_MULTICAST_GROUPS: usize = 64;

/// Upper bound on the queue pairs in a multicast group: each gets a copy. rxe allows 56.
pub const MAX_MULTICAST_MEMBERS: usize = 64;

/// The queue pairs that datagrams to multicast groups go to (IBTA 10.5.2).
#[derive(Debug, Default)]
pub(super) struct Groups {
    attached: FxHashMap<IpAddr, Vec<Qpn>>,
}

/// Why a queue pair was not attached to a multicast group, or detached from it (IBTA 11.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// There is no queue pair with this number.
    #[error("there is no queue pair {0}")]
    NoSuchQueuePair(Qpn),
    /// The queue pair's service is not UD: only datagrams go to groups.
    #[error("{0} queue pairs cannot be attached to multicast groups: only UD queue pairs can")]
    Service(Service),
    /// The address is not that of a multicast group.
    #[error("{0} is not a multicast address")]
    NotAGroup(IpAddr),
    /// There would be too many groups, or too many queue pairs in one.
    #[error(
        "at most {MAX_MULTICAST_GROUPS} multicast groups, and {MAX_MULTICAST_MEMBERS} queue pairs in one, are supported"
    )]
    TooMany,
    /// The queue pair is not attached to the group.
    #[error("the queue pair is not attached to {0}")]
    NotAttached(IpAddr),
}

impl Groups {
    /// Attaches a queue pair to a group, unless it is attached already. Returns whether it is the group's only one.
    pub fn attach(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, AttachError> {
        if !group.is_multicast() {
            return Err(AttachError::NotAGroup(group));
        }
        if self.attached.len() >= MAX_MULTICAST_GROUPS && !self.attached.contains_key(&group) {
            return Err(AttachError::TooMany);
        }
        let members = self.attached.entry(group).or_default();
        if !members.contains(&qpn) {
            if members.len() >= MAX_MULTICAST_MEMBERS {
                return Err(AttachError::TooMany);
            }
            members.push(qpn);
        }
        Ok(members.len() == 1)
    }

    /// Detaches a queue pair from a group. Returns whether it was the group's last.
    pub fn detach(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, AttachError> {
        let not_attached = AttachError::NotAttached(group);
        let members = self.attached.get_mut(&group).ok_or(not_attached)?;
        let at = members.iter().position(|member| *member == qpn).ok_or(not_attached)?;
        members.remove(at);
        let was_last = members.is_empty();
        if was_last {
            self.attached.remove(&group);
        }
        Ok(was_last)
    }

    /// The groups that a queue pair is attached to.
    pub fn of(&self, qpn: Qpn) -> Vec<IpAddr> {
        let has = |(group, members): (&IpAddr, &Vec<Qpn>)| members.contains(&qpn).then_some(*group);
        self.attached.iter().filter_map(has).collect()
    }

    /// The queue pair at `index` among the members of a group.
    pub fn member(&self, group: IpAddr, index: usize) -> Option<Qpn> {
        let members = match self.attached.get(&group) {
            None if mutated!("datagram-to-another-group-taken", by "uroce --test services datagrams_to_other") => {
                self.attached.values().next()
            }
            members => members,
        };
        members?.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_members_are_bounded_and_first_and_last_are_told() {
        let mut groups = Groups::default();
        let group = |n: usize| IpAddr::from([239, 0, 0, n as u8]);
        let (one, two) = (Qpn::new(5), Qpn::new(6));
        assert_eq!(groups.attach(one, group(0)), Ok(true));
        assert_eq!(groups.attach(one, group(0)), Ok(true), "nobody else is there");
        assert_eq!(groups.attach(two, group(0)), Ok(false));
        assert_eq!(groups.detach(one, group(0)), Ok(false));
        assert_eq!(groups.detach(one, group(0)), Err(AttachError::NotAttached(group(0))));
        assert_eq!((groups.member(group(0), 0), groups.member(group(0), 1)), (Some(two), None));
        assert_eq!(groups.detach(two, group(0)), Ok(true));
        let unicast = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(groups.attach(one, unicast), Err(AttachError::NotAGroup(unicast)));
        for n in 0..MAX_MULTICAST_GROUPS {
            assert_eq!(groups.attach(one, group(n)), Ok(true));
        }
        assert_eq!(groups.attach(one, group(MAX_MULTICAST_GROUPS)), Err(AttachError::TooMany));
        assert_eq!(groups.of(one).len(), MAX_MULTICAST_GROUPS);
        for n in 1..MAX_MULTICAST_MEMBERS as u32 {
            assert_eq!(groups.attach(Qpn::new(100 + n), group(0)), Ok(false));
        }
        assert_eq!(groups.attach(two, group(0)), Err(AttachError::TooMany));
    }
}
