use crate::congestion::Rate;

use super::attributes::Path;
use super::class::Class;

/// What somebody else than its program decides for a queue pair (docs/CLASSES.md): `None` leaves it to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// The class. Without [`dscp`](Self::dscp) its packets get a DSCP of it, too.
    pub class: Option<Class>,
    /// The DSCP of its packets, 0 to 63. Without [`class`](Self::class) it decides on the class, too.
    pub dscp: Option<u8>,
    /// The rate that a reliable connection never exceeds, whatever its peer.
    pub cap: Option<Rate>,
    /// The DSCP of ACKs and NAKs, of a queue pair whose peer may not have READs and atomics outstanding. An ACK that
    /// overtook a READ response would look as if that were lost.
    pub acknowledge_dscp: Option<u8>,
}

impl Treatment {
    /// The path that the program asked for, with the DSCP that packets get.
    pub(crate) fn path(&self, mut asked: Path) -> Path {
        let own = asked.flow.traffic_class >> 2;
        let of_class = self.class.filter(|class| Class::of_dscp(own) != *class).map(Class::dscp);
        asked.flow = asked.flow.with_dscp(self.dscp.or(of_class).unwrap_or(own));
        asked
    }

    /// The class of a queue pair with that path.
    pub(super) fn class_on(&self, path: &Path) -> Class {
        self.class.unwrap_or(Class::of_traffic_class(path.flow.traffic_class))
    }
}
