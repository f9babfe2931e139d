use crate::Forked;
use crate::frame::Hop;
use crate::memory::Access;
use crate::wire::{Flow, PathMtu, Psn, QKey, Qpn, RnrTimer};

use super::service::Service;
use super::srq::Srq;
use super::state::State;

/// The capacities of a queue pair's queues, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Upper bound on the send requests that are posted and not completed, 1 to 2^16.
    pub max_send_requests: usize,
    /// Upper bound on the receive requests that are posted and not completed, 1 to 2^16. It is ignored with a shared
    /// receive queue.
    pub max_receive_requests: usize,
}

impl Capabilities {
    /// Upper bound on a queue's capacity, in requests. rxe's limit is 2^20; UCX and perftest ask for a few thousand.
    pub const MAX_REQUESTS: usize = 1 << 16;
}

/// How packets reach the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The outer headers of packets to the peer. Connected queue pairs accept packets only between its two addresses,
    /// or between further ones that both sides announced (docs/EXTENSIONS.md).
    pub flow: Flow,
    /// The next hop, as the link resolved it.
    pub hop: Hop,
}

bitflags::bitflags! {
    /// Names of attributes; the values of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Attributes: u32 {
        /// `IBV_QP_STATE`: the state to go to.
        const STATE = 1 << 0;
        /// `IBV_QP_CUR_STATE`: the state that the program assumes.
        const CUR_STATE = 1 << 1;
        /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`: whether an event reports that the send queue is drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `IBV_QP_ACCESS_FLAGS`: the access that the peer has.
        const ACCESS_FLAGS = 1 << 3;
        /// `IBV_QP_PKEY_INDEX`: the index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// `IBV_QP_PORT`: the port of the device.
        const PORT = 1 << 5;
        /// `IBV_QP_QKEY`: the queue key of datagrams.
        const QKEY = 1 << 6;
        /// `IBV_QP_AV`: the address vector, a [`Path`].
        const AV = 1 << 7;
        /// `IBV_QP_PATH_MTU`: the payload bytes of a full packet.
        const PATH_MTU = 1 << 8;
        /// `IBV_QP_TIMEOUT`: the local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// `IBV_QP_RETRY_CNT`: the retries without progress.
        const RETRY_CNT = 1 << 10;
        /// `IBV_QP_RNR_RETRY`: the retries after RNR NAKs.
        const RNR_RETRY = 1 << 11;
        /// `IBV_QP_RQ_PSN`: the first PSN from the peer.
        const RQ_PSN = 1 << 12;
        /// `IBV_QP_MAX_QP_RD_ATOMIC`: the READs and atomics that this side can have outstanding.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `IBV_QP_MIN_RNR_TIMER`: the delay that RNR NAKs name.
        const MIN_RNR_TIMER = 1 << 15;
        /// `IBV_QP_SQ_PSN`: the first PSN to the peer.
        const SQ_PSN = 1 << 16;
        /// `IBV_QP_MAX_DEST_RD_ATOMIC`: the READs and atomics that the peer can have outstanding.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `IBV_QP_DEST_QPN`: the number of the peer's queue pair.
        const DEST_QPN = 1 << 20;
    }
}

/// The attributes that a modification sets; `None` leaves a value unchanged (IBTA 11.2.5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// The state to go to (`STATE`).
    pub state: Option<State>,
    /// The state that the program assumes the queue pair to be in (`CUR_STATE`).
    pub current_state: Option<State>,
    /// Whether an event reports that the send queue is drained (`EN_SQD_ASYNC_NOTIFY`).
    pub notify_drained: Option<bool>,
    /// The access that the peer has to our memory through this queue pair (`ACCESS_FLAGS`).
    pub access: Option<Access>,
    /// The index of the partition key; only 0 exists (`PKEY_INDEX`).
    pub p_key_index: Option<u16>,
    /// The port of the device; only 1 exists (`PORT`).
    pub port: Option<u8>,
    /// The key that datagrams to us must carry (`QKEY`).
    pub q_key: Option<QKey>,
    /// The address vector: how packets reach the peer (`AV`).
    pub path: Option<Path>,
    /// The path MTU: the payload bytes of a full packet (`PATH_MTU`).
    pub path_mtu: Option<PathMtu>,
    /// The number of the peer's queue pair (`DEST_QPN`).
    pub destination: Option<Qpn>,
    /// The first PSN that the peer will send (`RQ_PSN`).
    pub receive_psn: Option<Psn>,
    /// The first PSN that this queue pair will send (`SQ_PSN`).
    pub send_psn: Option<Psn>,
    /// READs and atomics that the peer can have outstanding, 0 to [`Self::MAX_RD_ATOMIC`] (`MAX_DEST_RD_ATOMIC`).
    pub max_dest_rd_atomic: Option<u8>,
    /// READs and atomics that this queue pair can have outstanding, 0 to [`Self::MAX_RD_ATOMIC`] (`MAX_QP_RD_ATOMIC`).
    pub max_rd_atomic: Option<u8>,
    /// The delay after which the peer tries again, when it found no receive request (`MIN_RNR_TIMER`).
    pub min_rnr_timer: Option<RnrTimer>,
    /// The local ACK timeout code: 4.096 µs × 2^code, 0 for none, up to 31 (IBTA 9.9.2.1.1; `TIMEOUT`).
    pub timeout: Option<u8>,
    /// Retries without progress before the requester gives up, 0 to 7 (`RETRY_CNT`).
    pub retry_count: Option<u8>,
    /// Retries after RNR NAKs before the requester gives up, 0 to 6; 7 for no limit (`RNR_RETRY`).
    pub rnr_retry: Option<u8>,
}

impl QpAttributes {
    /// Upper bound on the READs and atomics outstanding in one direction. rxe's limit is 128, ConnectX's 16.
    pub const MAX_RD_ATOMIC: u8 = 128;

    /// No attribute is set.
    pub(super) const NONE: QpAttributes = QpAttributes {
        state: None,
        current_state: None,
        notify_drained: None,
        access: None,
        p_key_index: None,
        port: None,
        q_key: None,
        path: None,
        path_mtu: None,
        destination: None,
        receive_psn: None,
        send_psn: None,
        max_dest_rd_atomic: None,
        max_rd_atomic: None,
        min_rnr_timer: None,
        timeout: None,
        retry_count: None,
        rnr_retry: None,
    };

    /// The names of the attributes that are set.
    pub fn given(&self) -> Attributes {
        use Attributes as A;
        let QpAttributes {
            state,
            current_state,
            notify_drained,
            access,
            p_key_index,
            port,
            q_key,
            path,
            path_mtu,
            destination,
            receive_psn,
            send_psn,
            max_dest_rd_atomic,
            max_rd_atomic,
            min_rnr_timer,
            timeout,
            retry_count,
            rnr_retry,
        } = self;
        [
            (A::STATE, state.is_some()),
            (A::CUR_STATE, current_state.is_some()),
            (A::EN_SQD_ASYNC_NOTIFY, notify_drained.is_some()),
            (A::ACCESS_FLAGS, access.is_some()),
            (A::PKEY_INDEX, p_key_index.is_some()),
            (A::PORT, port.is_some()),
            (A::QKEY, q_key.is_some()),
            (A::AV, path.is_some()),
            (A::PATH_MTU, path_mtu.is_some()),
            (A::DEST_QPN, destination.is_some()),
            (A::RQ_PSN, receive_psn.is_some()),
            (A::SQ_PSN, send_psn.is_some()),
            (A::MAX_DEST_RD_ATOMIC, max_dest_rd_atomic.is_some()),
            (A::MAX_QP_RD_ATOMIC, max_rd_atomic.is_some()),
            (A::MIN_RNR_TIMER, min_rnr_timer.is_some()),
            (A::TIMEOUT, timeout.is_some()),
            (A::RETRY_CNT, retry_count.is_some()),
            (A::RNR_RETRY, rnr_retry.is_some()),
        ]
        .into_iter()
        .filter(|(_, given)| *given)
        .fold(A::empty(), |set, (name, _)| set | name)
    }

    /// These attributes, replaced where `later` sets them.
    pub(crate) fn overlaid(&self, later: &QpAttributes) -> QpAttributes {
        QpAttributes {
            state: later.state.or(self.state),
            current_state: later.current_state.or(self.current_state),
            notify_drained: later.notify_drained.or(self.notify_drained),
            access: later.access.or(self.access),
            p_key_index: later.p_key_index.or(self.p_key_index),
            port: later.port.or(self.port),
            q_key: later.q_key.or(self.q_key),
            path: later.path.or(self.path),
            path_mtu: later.path_mtu.or(self.path_mtu),
            destination: later.destination.or(self.destination),
            receive_psn: later.receive_psn.or(self.receive_psn),
            send_psn: later.send_psn.or(self.send_psn),
            max_dest_rd_atomic: later.max_dest_rd_atomic.or(self.max_dest_rd_atomic),
            max_rd_atomic: later.max_rd_atomic.or(self.max_rd_atomic),
            min_rnr_timer: later.min_rnr_timer.or(self.min_rnr_timer),
            timeout: later.timeout.or(self.timeout),
            retry_count: later.retry_count.or(self.retry_count),
            rnr_retry: later.rnr_retry.or(self.rnr_retry),
        }
    }

    /// Checks a modification of a queue pair in state `from`; returns the state it leads to.
    pub(super) fn check(&self, service: Service, from: State) -> Result<State, ModifyError> {
        if let Some(claimed) = self.current_state
            && claimed != from
        {
            return Err(ModifyError::CurrentState { claimed, actual: from });
        }
        let to = self.state.unwrap_or(from);
        let (required, optional) =
            transition(service, from, to).ok_or(ModifyError::Transition { service, from, to })?;
        let given = self.given();
        let missing = required - given;
        let extra = given - required - optional - Attributes::STATE - Attributes::CUR_STATE;
        if !missing.is_empty() || !extra.is_empty() {
            return Err(ModifyError::Attributes { service, from, to, missing, extra });
        }
        if let Some((attribute, range)) = self.out_of_range() {
            return Err(ModifyError::OutOfRange { attribute, range });
        }
        Ok(to)
    }

    /// The first value that is out of range: its name and its range.
    fn out_of_range(&self) -> Option<(Attributes, &'static str)> {
        use Attributes as A;
        let above = |value: Option<u8>, limit: u8| value.is_some_and(|value| value > limit);
        [
            (A::PORT, "1", self.port.is_some_and(|port| port != 1)),
            (A::PKEY_INDEX, "0", self.p_key_index.is_some_and(|index| index != 0)),
            (A::MAX_DEST_RD_ATOMIC, "0 to 128", above(self.max_dest_rd_atomic, Self::MAX_RD_ATOMIC)),
            (A::MAX_QP_RD_ATOMIC, "0 to 128", above(self.max_rd_atomic, Self::MAX_RD_ATOMIC)),
            (A::TIMEOUT, "0 to 31", above(self.timeout, 31)),
            (A::RETRY_CNT, "0 to 7", above(self.retry_count, 7)),
            (A::RNR_RETRY, "0 to 7", above(self.rnr_retry, 7)),
        ]
        .into_iter()
        .find(|(.., bad)| *bad)
        .map(|(name, range, _)| (name, range))
    }
}

/// The answer to a query of a queue pair (`ibv_query_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairInfo {
    /// The transport service of the queue pair.
    pub service: Service,
    /// The capacities of its queues, in requests.
    pub capabilities: Capabilities,
    /// The shared receive queue that it uses; `None` when it has a receive queue of its own.
    pub srq: Option<Srq>,
    /// The attributes that were set since it was last in RESET; `None` for all others. Both states are the current one.
    /// PSNs that were set advance: `send_psn` to that of the next new request, `receive_psn` to that expected from the
    /// peer.
    pub attributes: QpAttributes,
    /// Whether it is in SQD, and not everything that it had begun to send is complete.
    pub is_draining: bool,
}

/// The attributes that a transition requires, and those that it allows besides (IBTA 11.2.5.2, Table 91). The kernel
/// has the same in `qp_state_table`, drivers/infiniband/core/verbs.c. `None` when there is no such transition.
pub(super) fn transition(service: Service, from: State, to: State) -> Option<(Attributes, Attributes)> {
    use Attributes as A;
    use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
    let none = A::empty();
    let port = if service == Service::Gsi { none } else { A::PORT };
    // The attribute that decides who can use the queue pair.
    let guard = if service.is_datagram() { A::QKEY } else { A::ACCESS_FLAGS };
    let timer = if service == Service::Rc { A::MIN_RNR_TIMER } else { none };
    Some(match (from, to) {
        (_, Reset | Error) => (none, none),
        (Reset, Init) => (A::PKEY_INDEX | port | guard, none),
        (Init, Init) => (none, A::PKEY_INDEX | port | guard),
        (Init, ReadyToReceive) => {
            let connected = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
            let required = match service {
                Service::Rc => connected | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER,
                Service::Uc => connected,
                Service::Ud | Service::Gsi => none,
            };
            (required, A::PKEY_INDEX | guard)
        }
        (ReadyToReceive, ReadyToSend) => {
            let required = match service {
                Service::Rc => A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::SQ_PSN | A::MAX_QP_RD_ATOMIC,
                _ => A::SQ_PSN,
            };
            (required, guard | timer)
        }
        (ReadyToSend, ReadyToSend) => (none, guard | timer),
        (ReadyToSend, SendQueueDrained) => (none, A::EN_SQD_ASYNC_NOTIFY),
        (SendQueueDrained, ReadyToSend) => (none, guard | timer),
        (SendQueueDrained, SendQueueDrained) => {
            let optional = match service {
                Service::Rc => {
                    A::PORT
                        | A::AV
                        | A::TIMEOUT
                        | A::RETRY_CNT
                        | A::RNR_RETRY
                        | A::MAX_QP_RD_ATOMIC
                        | A::MAX_DEST_RD_ATOMIC
                        | A::MIN_RNR_TIMER
                }
                Service::Uc => A::AV,
                Service::Ud | Service::Gsi => none,
            };
            (none, optional | A::PKEY_INDEX | guard)
        }
        (SendQueueError, ReadyToSend) if service != Service::Rc => (none, guard),
        _ => return None,
    })
}

/// Why a queue pair was not modified; it is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The service has no transition between these states (IBTA 10.3.1).
    #[error("a {service} queue pair cannot go from {from} to {to}")]
    Transition {
        /// The queue pair's service.
        service: Service,
        /// The state it is in.
        from: State,
        /// The state that was requested.
        to: State,
    },
    /// The transition requires attributes that were not given, or does not allow some that were.
    #[error("{service} from {from} to {to}: {}", attribute_list(*.missing, *.extra))]
    Attributes {
        /// The queue pair's service.
        service: Service,
        /// The state it is in.
        from: State,
        /// The state that was requested.
        to: State,
        /// The attributes that are required, and were not given.
        missing: Attributes,
        /// The attributes that were given, and are not allowed.
        extra: Attributes,
    },
    /// The queue pair is not in the state that the program assumed.
    #[error("the queue pair is in state {actual}, not in {claimed} as CUR_STATE says")]
    CurrentState {
        /// The state that `CUR_STATE` named.
        claimed: State,
        /// The state that the queue pair is in.
        actual: State,
    },
    /// The value of an attribute is out of range.
    #[error("the attribute {} must be {range}", names(*.attribute))]
    OutOfRange {
        /// The attribute whose value it is.
        attribute: Attributes,
        /// The range of its values, as text.
        range: &'static str,
    },
    /// There is no queue pair with this number.
    #[error("there is no queue pair {0}")]
    NoSuchQueuePair(Qpn),
    /// The device was opened by the parent of this process; what a child inherits by fork(2) is dead.
    #[error(transparent)]
    Forked(#[from] Forked),
}

fn names(set: Attributes) -> String {
    set.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

fn attribute_list(missing: Attributes, extra: Attributes) -> String {
    match (missing.is_empty(), extra.is_empty()) {
        (false, true) => format!("{} missing", names(missing)),
        (true, _) => format!("{} not allowed", names(extra)),
        (false, false) => format!("{} missing, {} not allowed", names(missing), names(extra)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};

    const STATES: [State; 7] = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError, Error];

    #[test]
    fn the_legal_transitions_are_those_of_the_ibta() {
        let legal = |service| {
            let pairs = STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to)));
            pairs.filter(|(from, to)| transition(service, *from, *to).is_some()).count()
        };
        // 14 to RESET and ERR, and RESET→INIT→RTR→RTS⇄SQD, INIT→INIT, RTS→RTS, SQD→SQD; SQE→RTS, except with RC.
        assert_eq!([Service::Rc, Service::Uc, Service::Ud, Service::Gsi].map(legal), [22, 23, 23, 23]);
    }

    #[test]
    fn an_illegal_modification_says_what_is_missing_and_what_is_extra() {
        let attributes = QpAttributes {
            state: Some(ReadyToReceive),
            path_mtu: Some(PathMtu::Mtu1024),
            destination: Some(Qpn::new(2)),
            receive_psn: Some(Psn::new(0)),
            timeout: Some(14),
            ..Default::default()
        };
        let text = attributes.check(Service::Rc, Init).unwrap_err().to_string();
        assert_eq!(text, "RC from INIT to RTR: AV, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC missing, TIMEOUT not allowed");
        let text = attributes.check(Service::Ud, Reset).unwrap_err().to_string();
        assert_eq!(text, "a UD queue pair cannot go from RESET to RTR");
    }

    #[test]
    fn values_out_of_range_and_wrong_current_states_are_refused() {
        let init = QpAttributes {
            state: Some(Init),
            port: Some(2),
            p_key_index: Some(0),
            access: Some(Access::empty()),
            ..Default::default()
        };
        assert_eq!(init.check(Service::Rc, Reset).unwrap_err().to_string(), "the attribute PORT must be 1");
        let wrong = QpAttributes { current_state: Some(Init), ..Default::default() };
        assert_eq!(
            wrong.check(Service::Rc, ReadyToSend),
            Err(ModifyError::CurrentState { claimed: Init, actual: ReadyToSend })
        );
    }
}
