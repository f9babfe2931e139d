//! The public API: RDMA verbs in Rust. The crate's [first page](crate) lists the calls in their order.
//!
//! The module also exports the types of its options and results, from whichever module they are: a program needs no
//! other.

mod address_vector;
mod completion_queue;
mod connect;
mod connection_manager;
mod context;
mod interval;
mod link_kind;
mod open_error;
mod open_link;
mod open_options;
mod peer;
mod protection_domain;
mod publication;
mod published;
mod queue_pair;
mod region;
mod reply_address;
mod ruling;
mod shared_receive_queue;
mod snapshot;
mod status;
mod traffic_policy;
mod traffic_rule;

pub use address_vector::{AddressVector, PathError, source_port};
pub use completion_queue::{CompletionChannel, CompletionQueue};
pub use connect::{ConnectError, ConnectOptions};
pub use connection_manager::{ConnectionManager, ConnectionManagerError, ListenError};
pub use context::Context;
pub use interval::{DROP_COUNTERS, INTERVAL_REMARKS, Interval, IntervalError, Intervals};
pub use link_kind::{LinkKind, LinkKindError};
pub use open_error::OpenError;
pub use open_options::{OpenOptions, OptionError};
pub use peer::{Peer, PeerError};
pub use protection_domain::{ProtectionDomain, QueuePairOptions};
pub use published::Published;
pub use queue_pair::{MulticastError, QueuePair};
pub use region::{MemoryRegion, MemoryWindow, Registration};
pub use reply_address::{ROUTING_HEADER_BYTES, ReplyError};
pub use shared_receive_queue::SharedReceiveQueue;
pub use snapshot::Snapshot;
pub use status::{CounterWatch, PortCounter, STATUS_BYTES, status_counters, status_page};
pub use traffic_policy::{TrafficPolicy, TrafficPolicyError};

#[doc(inline)]
pub use crate::Forked;
#[doc(inline)]
pub use crate::congestion::{CongestionControl, CongestionControlError, FlowStatus, Rate, RateError};
#[doc(inline)]
pub use crate::link::HopError;
#[doc(inline)]
pub use crate::link::device::{Device, DeviceError, Gid, LinkMode};
#[doc(inline)]
pub use crate::link::fault::{FaultDirection, FaultSpec, FaultSpecError};
#[doc(inline)]
pub use crate::link::udp::{UdpOffload, UdpOffloadError, UdpOpenError};
#[doc(inline)]
pub use crate::link::xdp::{AttachMode, AttachModeError, CopyMode, XdpOpenError, XdpOptions};
#[doc(inline)]
pub use crate::memory::{Access, AccessError, MapError, RegisterError, WindowBinding, WindowKind};
#[doc(inline)]
pub use crate::path::{PathCondition, PathPolicy, PathPolicyError, PathStatus};
#[doc(inline)]
pub use crate::time::Instant;
#[doc(inline)]
pub use crate::transport::{
    AttachError, Attributes, Capabilities, Cause, Class, ClassError, Completion, CompletionKind, Counters, CreateError,
    Data, Destination, Event, InlineBytes, InlineError, InlinePool, MAX_INLINE_BYTES, MAX_MULTICAST_GROUPS,
    MAX_MULTICAST_MEMBERS, MAX_SGE, ModifyError, NetworkHeader, Notify, Path, PostError, QpAttributes, QueuePairInfo,
    QueuePairStatus, ReceiveRequest, RecoveryMode, RecoveryModeError, Remote, SendOperation, SendRequest, Service, Sge,
    SgeList, Srq, SrqError, State, Status, Treatment,
};
#[doc(inline)]
pub use crate::wire::{Key, PathMtu, PathMtuError, Placement, Psn, QKey, Qpn, RnrTimer, Selectivity};
