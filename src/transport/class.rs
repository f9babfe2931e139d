use std::fmt;
use std::str::FromStr;

/// The traffic class of a queue pair: which queue pairs send before it (docs/CLASSES.md).
///
/// It follows from the DSCP of its packets, so that this host and the switches on the way agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Before all others: control messages and tokens.
    Urgent,
    /// Everything that says nothing of its class.
    #[default]
    Normal,
    /// Large transfers, with a smaller share than [`Normal`](Self::Normal).
    Bulk,
    /// When no other class has anything to send: copies of caches and checkpoints.
    Scavenger,
}

/// A text that is not a class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a class: use urgent, normal, bulk or scavenger")]
pub struct ClassError(String);

/// Service levels from here on say nothing: Ethernet has eight priorities (IEEE 802.1Q).
const SERVICE_LEVELS: u8 = 8;

impl Class {
    /// All classes, in the order in which they send.
    pub const ALL: [Class; 4] = [Class::Urgent, Class::Normal, Class::Bulk, Class::Scavenger];

    /// The class of a DSCP, 0 to 63, by what it is used for (RFC 4594, RFC 8622).
    pub const fn of_dscp(dscp: u8) -> Class {
        match dscp {
            // Class selectors 5 to 7, expedited forwarding, and what is between them.
            40..=63 => Class::Urgent,
            // Lower effort, and class selector 1, which meant it before.
            1 | 8 => Class::Scavenger,
            // High-throughput data.
            9..=15 => Class::Bulk,
            _ => Class::Normal,
        }
    }

    /// The class of a traffic class field: its upper six bits are the DSCP.
    pub const fn of_traffic_class(traffic_class: u8) -> Class {
        Class::of_dscp(traffic_class >> 2)
    }

    /// The DSCP of the class where nothing else is asked for: expedited forwarding, the default, AF11 and lower effort.
    pub const fn dscp(self) -> u8 {
        match self {
            Class::Urgent => 46,
            Class::Normal => 0,
            Class::Bulk => 10,
            Class::Scavenger => 1,
        }
    }

    /// The traffic class field of an address that also has a service level.
    ///
    /// RoCE v2 packets have no service level. Without a DSCP, levels 1 to 7 become the class selector of the same
    /// number; a DSCP that is given counts alone. Levels 8 to 15 have no priority of Ethernet, and mean the default.
    pub const fn traffic_class(given: u8, service_level: u8) -> u8 {
        if given >> 2 == 0 && service_level < SERVICE_LEVELS { given | service_level << 5 } else { given }
    }

    /// The name of the class: `urgent`, `normal`, `bulk` or `scavenger`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Urgent => "urgent",
            Class::Normal => "normal",
            Class::Bulk => "bulk",
            Class::Scavenger => "scavenger",
        }
    }
}

impl FromStr for Class {
    type Err = ClassError;

    fn from_str(text: &str) -> Result<Class, ClassError> {
        Class::ALL.into_iter().find(|class| class.name() == text).ok_or_else(|| ClassError(text.to_owned()))
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dscp_has_the_class_of_what_it_is_used_for() {
        let all: Vec<u8> = (0..64).collect();
        let of = |class| all.iter().copied().filter(|dscp| Class::of_dscp(*dscp) == class).collect::<Vec<_>>();
        assert_eq!(of(Class::Urgent), (40..64).collect::<Vec<_>>());
        assert_eq!(of(Class::Bulk), (9..16).collect::<Vec<_>>());
        assert_eq!(of(Class::Scavenger), [1, 8]);
        // What RoCE is used with: 24 and 26 of switches' guides, 34 of storage.
        assert!([0, 24, 26, 34].iter().all(|dscp| of(Class::Normal).contains(dscp)));
        for class in Class::ALL {
            assert_eq!(Class::of_traffic_class(class.dscp() << 2 | 2), class, "its own DSCP leads back to it");
            assert_eq!(class.name().parse(), Ok(class));
        }
        assert_eq!("High".parse::<Class>().unwrap_err().to_string().matches("urgent").count(), 1);
    }

    #[test]
    fn a_service_level_counts_where_no_dscp_does_and_ethernet_has_such_a_priority() {
        let class = |given, level| Class::of_traffic_class(Class::traffic_class(given, level));
        assert_eq!([0, 1, 3, 5, 7].map(|level| Class::traffic_class(0, level)), [0, 0x20, 0x60, 0xa0, 0xe0]);
        let expected = [Class::Normal, Class::Scavenger, Class::Normal, Class::Urgent, Class::Urgent];
        assert_eq!([0, 1, 3, 5, 7].map(|level| class(0, level)), expected);
        assert!((8..16).all(|level| Class::traffic_class(0, level) == 0), "no level wraps round to another");
        assert_eq!(Class::traffic_class(2, 5), 0xa2, "the bits of ECN stay");
        assert_eq!(Class::traffic_class(26 << 2, 5), 26 << 2);
    }
}
