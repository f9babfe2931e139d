use arrayvec::ArrayVec;

use crate::memory::Access;
use crate::wire::{QKey, RnrTimer};

use super::attributes::{Attributes, QpAttributes, transition};
use super::service::Service;
use super::state::State;

/// The states of a queue pair on its way from RESET to RTS.
const WAY: [State; 4] = [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend];

impl QpAttributes {
    /// The values that [`steps`](Self::steps) uses for attributes that are not given. Its numbers are those of
    /// `ibv_rc_pingpong` and perftest.
    pub const HABITS: QpAttributes = QpAttributes {
        port: Some(1),
        p_key_index: Some(0),
        // Each region decides for itself what peers can do with it.
        access: Some(Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC)),
        q_key: Some(QKey(0x1111_1111)),
        // ConnectX offers 16; rxe takes up to 128.
        max_dest_rd_atomic: Some(16),
        max_rd_atomic: Some(16),
        // Code 12 is 0.64 ms.
        min_rnr_timer: Some(RnrTimer::new(12)),
        // Code 14 is 67 ms.
        timeout: Some(14),
        retry_count: Some(7),
        // There is no limit: a peer that is slow to post receive requests is no error.
        rnr_retry: Some(7),
        ..QpAttributes::NONE
    };

    /// The modifications that take a queue pair from state `from` to `RTS`, at most three. `from` is `RESET`, `INIT` or
    /// `RTR`; from other states there are none. Each sets what its transition requires, and what it allows if that is
    /// given and was not set before.
    ///
    /// Required attributes that are not given are as in [`HABITS`](Self::HABITS). It does not have `path`, `path_mtu`,
    /// `destination` and `receive_psn`, which connected services need, and `send_psn`, which all need. What the service
    /// has no use for is left out, so that the same attributes serve all services. The states in `self` are ignored.
    ///
    /// ```
    /// # use uroce::transport::{QpAttributes, Service, State};
    /// # use uroce::wire::Psn;
    /// let given = QpAttributes { send_psn: Some(Psn::new(7)), timeout: Some(18), ..Default::default() };
    /// let steps = given.steps(Service::Ud, State::Reset);
    /// assert_eq!(steps.len(), 3);
    /// assert_eq!((steps[0].state, steps[0].port), (Some(State::Init), Some(1)));
    /// assert_eq!((steps[2].state, steps[2].timeout), (Some(State::ReadyToSend), None)); // UD has no timeout
    /// ```
    pub fn steps(&self, service: Service, from: State) -> ArrayVec<QpAttributes, 3> {
        let all = QpAttributes::HABITS.overlaid(self);
        let mut given = self.given();
        let transitions = WAY.windows(2).skip_while(|states| states[0] != from);
        let step = |states: &[State]| {
            let (required, optional) =
                transition(service, states[0], states[1]).expect("all services have these transitions");
            let set = required | (optional & given);
            given.remove(set);
            QpAttributes { state: Some(states[1]), ..all.only(set) }
        };
        transitions.map(step).collect()
    }

    /// The attributes of `set` alone, without states.
    fn only(&self, set: Attributes) -> QpAttributes {
        use Attributes as A;
        fn keep<T>(value: Option<T>, is_kept: bool) -> Option<T> {
            value.filter(|_| is_kept)
        }
        QpAttributes {
            state: None,
            current_state: None,
            notify_drained: keep(self.notify_drained, set.contains(A::EN_SQD_ASYNC_NOTIFY)),
            access: keep(self.access, set.contains(A::ACCESS_FLAGS)),
            p_key_index: keep(self.p_key_index, set.contains(A::PKEY_INDEX)),
            port: keep(self.port, set.contains(A::PORT)),
            q_key: keep(self.q_key, set.contains(A::QKEY)),
            path: keep(self.path, set.contains(A::AV)),
            path_mtu: keep(self.path_mtu, set.contains(A::PATH_MTU)),
            destination: keep(self.destination, set.contains(A::DEST_QPN)),
            receive_psn: keep(self.receive_psn, set.contains(A::RQ_PSN)),
            send_psn: keep(self.send_psn, set.contains(A::SQ_PSN)),
            max_dest_rd_atomic: keep(self.max_dest_rd_atomic, set.contains(A::MAX_DEST_RD_ATOMIC)),
            max_rd_atomic: keep(self.max_rd_atomic, set.contains(A::MAX_QP_RD_ATOMIC)),
            min_rnr_timer: keep(self.min_rnr_timer, set.contains(A::MIN_RNR_TIMER)),
            timeout: keep(self.timeout, set.contains(A::TIMEOUT)),
            retry_count: keep(self.retry_count, set.contains(A::RETRY_CNT)),
            rnr_retry: keep(self.rnr_retry, set.contains(A::RNR_RETRY)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Hop;
    use crate::transport::Path;
    use crate::wire::{Addresses, Flow, PathMtu, Psn, Qpn};

    /// All that there is, so that each step is seen to choose.
    fn everything() -> QpAttributes {
        let addresses = Addresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() };
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        QpAttributes {
            path: Some(Path { flow, hop: Hop(0) }),
            path_mtu: Some(PathMtu::Mtu1024),
            destination: Some(Qpn::new(17)),
            receive_psn: Some(Psn::new(1)),
            send_psn: Some(Psn::new(2)),
            ..QpAttributes::HABITS
        }
    }

    #[test]
    fn each_service_gets_what_its_transitions_take_and_nothing_else() {
        for service in [Service::Rc, Service::Uc, Service::Ud, Service::Gsi] {
            for (at, from) in WAY[..3].iter().enumerate() {
                let mut state = *from;
                for step in everything().steps(service, *from) {
                    state = step.check(service, state).unwrap();
                }
                assert_eq!(state, State::ReadyToSend);
                assert_eq!(everything().steps(service, *from).len(), 3 - at);
            }
        }
        for from in [State::ReadyToSend, State::SendQueueDrained, State::SendQueueError, State::Error] {
            assert!(everything().steps(Service::Rc, from).is_empty(), "there is no way from {from}");
        }
    }

    #[test]
    fn what_is_given_is_set_once_and_where_it_still_can_be() {
        let given =
            QpAttributes { access: Some(Access::empty()), min_rnr_timer: Some(RnrTimer::new(3)), ..everything() };
        let all = given.steps(Service::Rc, State::Reset);
        assert_eq!([all[0].access, all[1].access, all[2].access], [Some(Access::empty()), None, None]);
        assert_eq!([all[1].min_rnr_timer, all[2].min_rnr_timer], [Some(RnrTimer::new(3)), None]);
        // Who has gone to INIT before, to post receive requests, may still change its mind.
        assert_eq!(given.steps(Service::Rc, State::Init)[0].access, Some(Access::empty()));
        // And what it set there stays when it is not given again.
        let again = QpAttributes { access: None, ..given };
        assert_eq!(again.steps(Service::Rc, State::Init)[0].access, None);
    }

    #[test]
    fn what_nobody_can_guess_is_missed_by_name() {
        let [_, receive, send] = QpAttributes::default().steps(Service::Rc, State::Reset).into_inner().unwrap();
        let text = receive.check(Service::Rc, State::Init).unwrap_err().to_string();
        assert_eq!(text, "RC from INIT to RTR: AV, PATH_MTU, RQ_PSN, DEST_QPN missing");
        let text = send.check(Service::Rc, State::ReadyToReceive).unwrap_err().to_string();
        assert_eq!(text, "RC from RTR to RTS: SQ_PSN missing");
    }
}
