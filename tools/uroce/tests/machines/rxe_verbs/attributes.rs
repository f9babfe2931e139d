//! Every attribute of a queue pair in every transition, values out of range, what a queue pair says of itself: what rxe
//! takes and refuses, beside what we do. Where both differ, the difference is named here, and in docs/INTEROP.md.

use std::time::Duration;

use rxe_rig::agent::{Qp, QpOptions, Transport};
use uroce::verbs::{
    Access, Attributes, Capabilities, Event, PathMtu, Psn, QKey, QpAttributes, Qpn, QueuePair, QueuePairOptions,
    RnrTimer, Service, State,
};

use super::bench::{Bench, LIMIT};

const STATES: [(State, &str); 6] = [
    (State::Reset, "reset"),
    (State::Init, "init"),
    (State::ReadyToReceive, "rtr"),
    (State::ReadyToSend, "rts"),
    (State::SendQueueDrained, "sqd"),
    (State::Error, "err"),
];

pub const SERVICES: [(Service, Transport); 3] =
    [(Service::Rc, Transport::Rc), (Service::Uc, Transport::Uc), (Service::Ud, Transport::Ud)];

/// The attributes of `ibv_modify_qp` besides the state: the mask's bit, and the agent's words for a value that is in
/// range. A GID and the state a queue pair is in are put in where the words say so.
const ATTRIBUTES: [(&str, Attributes, &str); 21] = [
    ("CUR_STATE", Attributes::CUR_STATE, "cur_state=STATE"),
    ("EN_SQD_ASYNC_NOTIFY", Attributes::EN_SQD_ASYNC_NOTIFY, "sqd_notify=1"),
    ("ACCESS_FLAGS", Attributes::ACCESS_FLAGS, "access=remote_write"),
    ("PKEY_INDEX", Attributes::PKEY_INDEX, "pkey=0"),
    ("PORT", Attributes::PORT, "port=1"),
    ("QKEY", Attributes::QKEY, "qkey=5"),
    ("AV", Attributes::AV, "gid=GID sgid=1"),
    ("PATH_MTU", Attributes::PATH_MTU, "mtu=1024"),
    ("TIMEOUT", Attributes::TIMEOUT, "timeout=14"),
    ("RETRY_CNT", Attributes::RETRY_CNT, "retry=3"),
    ("RNR_RETRY", Attributes::RNR_RETRY, "rnr_retry=3"),
    ("RQ_PSN", Attributes::RQ_PSN, "rq_psn=5"),
    ("MAX_QP_RD_ATOMIC", Attributes::MAX_QP_RD_ATOMIC, "max_rd_atomic=4"),
    ("ALT_PATH", Attributes::empty(), "alt=GID sgid=1"),
    ("MIN_RNR_TIMER", Attributes::MIN_RNR_TIMER, "rnr_timer=12"),
    ("SQ_PSN", Attributes::SQ_PSN, "sq_psn=7"),
    ("MAX_DEST_RD_ATOMIC", Attributes::MAX_DEST_RD_ATOMIC, "dest_rd_atomic=4"),
    ("PATH_MIG_STATE", Attributes::empty(), "mig_state=0"),
    ("CAP", Attributes::empty(), "cap_send=10"),
    ("DEST_QPN", Attributes::DEST_QPN, "dqpn=0x22"),
    ("RATE_LIMIT", Attributes::empty(), "rate_limit=0"),
];

/// What the transitions up to RTS need (IBTA Table 91).
fn needed(service: Service, from: State, to: State) -> &'static [&'static str] {
    match (service, from, to) {
        (Service::Ud, State::Reset, State::Init) => &["PKEY_INDEX", "PORT", "QKEY"],
        (_, State::Reset, State::Init) => &["PKEY_INDEX", "PORT", "ACCESS_FLAGS"],
        (Service::Rc, State::Init, State::ReadyToReceive) => {
            &["AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER"]
        }
        (Service::Uc, State::Init, State::ReadyToReceive) => &["AV", "PATH_MTU", "DEST_QPN", "RQ_PSN"],
        (Service::Rc, State::ReadyToReceive, State::ReadyToSend) => {
            &["TIMEOUT", "RETRY_CNT", "RNR_RETRY", "SQ_PSN", "MAX_QP_RD_ATOMIC"]
        }
        (_, State::ReadyToReceive, State::ReadyToSend) => &["SQ_PSN"],
        _ => &[],
    }
}

/// A queue pair of ours and one of theirs, neither with a peer, in the same state.
struct Twins<'a> {
    bench: &'a mut Bench,
    service: Service,
    transport: Transport,
    qp: QueuePair,
    their_qp: Qp,
}

impl<'a> Twins<'a> {
    fn new(bench: &'a mut Bench, (service, transport): (Service, Transport)) -> Twins<'a> {
        let (qp, their_qp) = make(bench, service, transport);
        Twins { bench, service, transport, qp, their_qp }
    }

    /// Puts new ones in the place of those there are, in `state`.
    fn renew(&mut self, state: State) {
        let old = self.their_qp.handle;
        (self.qp, self.their_qp) = make(self.bench, self.service, self.transport);
        self.bench.agent.destroy("qp", old).unwrap();
        let steps: &[State] = match state {
            State::Reset => &[],
            State::Init => &[State::Init],
            State::ReadyToReceive => &[State::Init, State::ReadyToReceive],
            State::ReadyToSend => &[State::Init, State::ReadyToReceive, State::ReadyToSend],
            State::Error => &[State::Init, State::Error],
            other => &[State::Init, State::ReadyToReceive, State::ReadyToSend, other],
        };
        let mut from = State::Reset;
        for &to in steps {
            let taken = self.modify(from, Some(to), needed(self.service, from, to));
            assert_eq!(taken, (true, true), "{} from {from} to {to}", self.service);
            from = to;
        }
    }

    /// Whether we, and they, take a modification in state `from` with the named attributes.
    fn modify(&mut self, from: State, to: Option<State>, names: &[&str]) -> (bool, bool) {
        self.modify_otherwise(from, to, names, ("", ""), |_| {})
    }

    /// As [`Twins::modify`], with one value other than usual: its name and the agent's words, and the same for us.
    fn modify_otherwise(
        &mut self,
        from: State,
        to: Option<State>,
        names: &[&str],
        (other, other_words): (&str, &str),
        for_us: impl FnOnce(&mut QpAttributes),
    ) -> (bool, bool) {
        let attributes = names.iter().filter_map(|name| ATTRIBUTES.iter().find(|(other, ..)| other == name));
        let mut ours = QpAttributes { state: to, ..Default::default() };
        let mut words = to.map_or(String::new(), |to| format!(" state={}", name_of(to)));
        let mut foreign = false;
        for (name, attribute, text) in attributes {
            let text = if *name == other { &other_words } else { text };
            foreign |= attribute.is_empty();
            self.set(&mut ours, *attribute, from);
            let gid: String =
                self.bench.context().gids()[1].address.octets().iter().map(|b| format!("{b:02x}")).collect();
            words += &format!(" {}", text.replace("GID", &gid).replace("STATE", name_of(from)));
        }
        for_us(&mut ours);
        // What we have no name for cannot be asked of us.
        let ours = !foreign && self.qp.modify(&ours).is_ok();
        (ours, self.theirs(&words))
    }

    fn theirs(&mut self, words: &str) -> bool {
        let line = format!("modify {}{words}", self.their_qp.handle);
        match self.bench.agent.command(&line) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error.errno(), Some(libc::EINVAL | libc::EOPNOTSUPP)), "{line}: {error}");
                false
            }
        }
    }

    fn set(&mut self, to: &mut QpAttributes, attribute: Attributes, from: State) {
        match attribute {
            Attributes::CUR_STATE => to.current_state = Some(from),
            Attributes::EN_SQD_ASYNC_NOTIFY => to.notify_drained = Some(true),
            Attributes::ACCESS_FLAGS => to.access = Some(Access::REMOTE_WRITE),
            Attributes::PKEY_INDEX => to.p_key_index = Some(0),
            Attributes::PORT => to.port = Some(1),
            Attributes::QKEY => to.q_key = Some(QKey(5)),
            Attributes::AV => {
                let vector = super::connection::vector(self.bench, 1);
                to.path = Some(self.bench.context().path(&vector, self.qp.qpn(), Qpn::new(0x22)).unwrap());
            }
            Attributes::PATH_MTU => to.path_mtu = Some(PathMtu::Mtu1024),
            Attributes::TIMEOUT => to.timeout = Some(14),
            Attributes::RETRY_CNT => to.retry_count = Some(3),
            Attributes::RNR_RETRY => to.rnr_retry = Some(3),
            Attributes::RQ_PSN => to.receive_psn = Some(Psn::new(5)),
            Attributes::MAX_QP_RD_ATOMIC => to.max_rd_atomic = Some(4),
            Attributes::MIN_RNR_TIMER => to.min_rnr_timer = Some(RnrTimer::new(12)),
            Attributes::SQ_PSN => to.send_psn = Some(Psn::new(7)),
            Attributes::MAX_DEST_RD_ATOMIC => to.max_dest_rd_atomic = Some(4),
            Attributes::DEST_QPN => to.destination = Some(Qpn::new(0x22)),
            _ => {}
        }
    }
}

fn name_of(state: State) -> &'static str {
    STATES.iter().find(|(other, _)| *other == state).expect("one of them").1
}

fn make(bench: &mut Bench, service: Service, transport: Transport) -> (QueuePair, Qp) {
    let cq = bench.context().create_completion_queue(16);
    let capabilities = Capabilities { max_send_requests: 16, max_receive_requests: 16 };
    let options = QueuePairOptions { service, capabilities, send: &cq, receive: &cq, srq: None };
    let qp = bench.pd().create_queue_pair(&options).unwrap();
    let cq = bench.cq();
    let their_qp = bench.agent.qp(&QpOptions { max_send: 16, max_recv: 16, ..QpOptions::new(transport, cq) }).unwrap();
    (qp, their_qp)
}

/// What we do, and what rxe does, where it is not the same.
fn difference(service: Service, from: State, to: State, more: Option<&str>) -> Option<(bool, bool)> {
    use State::{Error, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    let late = [
        (ReadyToReceive, ReadyToSend),
        (ReadyToSend, ReadyToSend),
        (SendQueueDrained, ReadyToSend),
        (SendQueueDrained, SendQueueDrained),
    ];
    match more {
        // The kernel's table knows no way from RESET to ERR; the IBTA has one from every state (10.3.1).
        None | Some("CUR_STATE") if (from, to) == (Reset, Error) => Some((true, false)),
        // The IBTA has it in three transitions; we take it in all, if it is right.
        Some("CUR_STATE") if to != ReadyToSend => Some((true, false)),
        // We have no path migration; rxe takes it and does nothing.
        Some("PATH_MIG_STATE") if service != Service::Ud && late.contains(&(from, to)) => Some((false, true)),
        // IBTA Table 91 allows it.
        Some("AV") if service == Service::Uc && (from, to) == (SendQueueDrained, SendQueueDrained) => {
            Some((true, false))
        }
        _ => None,
    }
}

/// Each transition with what it needs, without each one of these, and with each one of all others.
pub fn in_every_transition(bench: &mut Bench) {
    let (mut count, mut different, mut wrong) = (0, 0, Vec::new());
    for which in SERVICES {
        let mut twins = Twins::new(bench, which);
        let service = which.0;
        for (from, _) in STATES {
            for (to, _) in STATES {
                let needed = needed(service, from, to);
                twins.renew(from);
                let mut attempt = |names: &[&str], more: Option<&str>, is_legal: bool| {
                    let (ours, theirs) = twins.modify(from, Some(to), names);
                    let known = difference(service, from, to, more).filter(|_| is_legal || more.is_none());
                    if known.map_or(ours != theirs, |known| known != (ours, theirs)) {
                        wrong.push(format!("{service} {from} to {to} with {names:?}: we {ours}, rxe {theirs}"));
                    }
                    if ours || theirs {
                        twins.renew(from);
                    }
                    (count, different) = (count + 1, different + usize::from(ours != theirs));
                    ours
                };
                let is_legal = attempt(needed, None, true);
                for less in needed {
                    let names: Vec<_> = needed.iter().copied().filter(|name| name != less).collect();
                    let taken = attempt(&names, Some("less"), is_legal);
                    assert!(!taken, "{service} {from} to {to} without {less}");
                }
                for more in ATTRIBUTES.iter().map(|(name, ..)| *name).filter(|name| !needed.contains(name)) {
                    let names: Vec<_> = needed.iter().copied().chain([more]).collect();
                    attempt(&names, Some(more), is_legal);
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    bench.say(&format!("{count} modifications of queue pairs, {different} of them taken by one end only, as is known"));
}

/// Values that are out of range, and whether we and they take them.
pub fn out_of_range(bench: &mut Bench) {
    use State::{Init, ReadyToReceive, ReadyToSend, Reset};
    type Row = ((State, State), &'static str, &'static str, fn(&mut QpAttributes), (bool, bool));
    let rows: [Row; 12] = [
        ((Reset, Init), "PORT", "port=2", |a| a.port = Some(2), (false, false)),
        ((Reset, Init), "PKEY_INDEX", "pkey=1", |a| a.p_key_index = Some(1), (false, true)),
        ((Init, ReadyToReceive), "PATH_MTU", "mtu=4096", |a| a.path_mtu = Some(PathMtu::Mtu4096), (false, true)),
        (
            (Init, ReadyToReceive),
            "MAX_DEST_RD_ATOMIC",
            "dest_rd_atomic=129",
            |a| a.max_dest_rd_atomic = Some(129),
            (false, true),
        ),
        (
            (Init, ReadyToReceive),
            "MIN_RNR_TIMER",
            "rnr_timer=32",
            |a| a.min_rnr_timer = Some(RnrTimer::new(32)),
            (true, true),
        ),
        (
            (Init, ReadyToReceive),
            "DEST_QPN",
            "dqpn=0x1000022",
            |a| a.destination = Some(Qpn::new(0x100_0022)),
            (true, true),
        ),
        (
            (Init, ReadyToReceive),
            "RQ_PSN",
            "rq_psn=0x1000005",
            |a| a.receive_psn = Some(Psn::new(0x100_0005)),
            (true, true),
        ),
        ((ReadyToReceive, ReadyToSend), "TIMEOUT", "timeout=32", |a| a.timeout = Some(32), (false, false)),
        ((ReadyToReceive, ReadyToSend), "RETRY_CNT", "retry=8", |a| a.retry_count = Some(8), (false, true)),
        ((ReadyToReceive, ReadyToSend), "RNR_RETRY", "rnr_retry=8", |a| a.rnr_retry = Some(8), (false, true)),
        (
            (ReadyToReceive, ReadyToSend),
            "MAX_QP_RD_ATOMIC",
            "max_rd_atomic=129",
            |a| a.max_rd_atomic = Some(129),
            (false, false),
        ),
        (
            (ReadyToReceive, ReadyToSend),
            "SQ_PSN",
            "sq_psn=0x1000007",
            |a| a.send_psn = Some(Psn::new(0x100_0007)),
            (true, true),
        ),
    ];
    let mut twins = Twins::new(bench, SERVICES[0]);
    let mut wrong = Vec::new();
    for ((from, to), name, words, for_us, expected) in rows {
        twins.renew(from);
        let taken = twins.modify_otherwise(from, Some(to), needed(Service::Rc, from, to), (name, words), for_us);
        if taken != expected {
            wrong.push(format!("{words}: {taken:?} instead of {expected:?}"));
        }
    }
    twins.renew(ReadyToReceive);
    let names = [needed(Service::Rc, ReadyToReceive, ReadyToSend), &["CUR_STATE"]].concat();
    let lie = ("CUR_STATE", "cur_state=init");
    let taken =
        twins.modify_otherwise(ReadyToReceive, Some(ReadyToSend), &names, lie, |a| a.current_state = Some(Init));
    assert_eq!(taken, (false, false), "a wrong CUR_STATE");
    assert_eq!(wrong, [""; 0]);
}

/// An idle send queue is drained at once: we tell it when asked to, rxe always.
pub fn drained(bench: &mut Bench) {
    /// `IBV_EVENT_SQ_DRAINED`.
    const DRAINED: u32 = 5;
    while bench.context().poll_event().is_some() {}
    while bench.agent.async_event(Duration::ZERO).unwrap().is_some() {}
    let mut twins = Twins::new(bench, SERVICES[0]);
    for names in [&[][..], &["EN_SQD_ASYNC_NOTIFY"]] {
        twins.renew(State::ReadyToSend);
        assert_eq!(twins.modify(State::ReadyToSend, Some(State::SendQueueDrained), names), (true, true));
        let ours = twins.bench.context().poll_event();
        assert_eq!(ours, (!names.is_empty()).then(|| Event::SendQueueDrained(twins.qp.qpn())), "{names:?}");
        let theirs = twins.bench.agent.async_event(LIMIT).unwrap();
        assert_eq!(theirs.map(|(number, _)| number), Some(DRAINED), "{names:?}");
    }
}

/// What a queue pair in RTS says of itself: at both ends what it was set to.
pub fn query(bench: &mut Bench) {
    let mut twins = Twins::new(bench, SERVICES[0]);
    twins.renew(State::ReadyToSend);
    let info = twins.qp.query().unwrap();
    let ours = info.attributes;
    let line = format!("qp_state {}", twins.their_qp.handle);
    let theirs = twins.bench.agent.command(&line).unwrap();
    for (name, value) in [
        ("rq_psn", ours.receive_psn.unwrap().value()),
        ("sq_psn", ours.send_psn.unwrap().value()),
        ("dqpn", ours.destination.unwrap().value()),
        ("mtu", ours.path_mtu.unwrap().bytes() as u32),
        ("timeout", ours.timeout.unwrap().into()),
        ("retry", ours.retry_count.unwrap().into()),
        ("rnr_retry", ours.rnr_retry.unwrap().into()),
        ("max_rd_atomic", ours.max_rd_atomic.unwrap().into()),
        ("dest_rd_atomic", ours.max_dest_rd_atomic.unwrap().into()),
        ("rnr_timer", 12),
        ("access", ours.access.unwrap().bits()),
        ("pkey", ours.p_key_index.unwrap().into()),
        ("port", ours.port.unwrap().into()),
        ("hop", ours.path.unwrap().flow.hop_limit.into()),
        ("tclass", ours.path.unwrap().flow.traffic_class.into()),
        ("draining", info.is_draining.into()),
        ("sgid", 1),
    ] {
        assert_eq!(theirs.number(name).unwrap(), u64::from(value), "{name}");
    }
    assert_eq!((theirs.text("state").unwrap(), ours.state), ("rts", Some(State::ReadyToSend)));
    assert_eq!(ours.min_rnr_timer, Some(RnrTimer::new(12)));
    // rxe rounds queues up to what fits its rings; ours are as asked for.
    assert_eq!((theirs.number("send").unwrap(), theirs.number("recv").unwrap()), (31, 31));
    assert_eq!(info.capabilities, Capabilities { max_send_requests: 16, max_receive_requests: 16 });
}

/// All of these, on one machine.
pub fn all(bench: &mut Bench) {
    in_every_transition(bench);
    out_of_range(bench);
    drained(bench);
    query(bench);
}
