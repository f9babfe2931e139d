//! The verbs agent at both ends of a conversation over the kernel's rxe: every operation, checked at both ends. One machine,
//! two sessions, which rxe loops to itself.
#![allow(clippy::disallowed_methods, reason = "tests of a rig on the wall clock")]

use rxe_rig::agent::{
    ACCESS_ALL, Agent, Cq, Mr, Operation, Path, QKEY, Qp, QpOptions, Remote, Send, Transport, Wc, WcOpcode, WcStatus,
};
use rxe_rig::{Lab, LabOptions};
use std::sync::OnceLock;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// One machine for all tests here.
fn lab() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| Lab::start(&LabOptions::default()).unwrap_or_else(|e| panic!("no lab: {e}")))
}

/// One end: a session with a queue pair and a region of 1 MiB.
struct End {
    agent: Agent,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl End {
    fn new(transport: Transport) -> End {
        let mut agent = lab().agent(0).unwrap();
        let cq = agent.cq(1024).unwrap();
        let mr = agent.mr(1 << 20, ACCESS_ALL).unwrap();
        let qp = agent.qp(&QpOptions::new(transport, cq)).unwrap();
        End { agent, cq, mr, qp }
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.mr.addr + offset, rkey: self.mr.rkey }
    }

    fn post(&mut self, send: &Send) {
        self.agent.post_send(self.qp, send).unwrap();
    }

    /// The next completion, which is to come.
    fn wc(&mut self) -> Wc {
        self.agent.poll(self.cq, 1, LIMIT).unwrap().pop().expect("a completion")
    }

    /// The next completion, a success.
    fn done(&mut self, wr_id: u64, opcode: WcOpcode) -> Wc {
        let wc = self.wc();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, WcStatus::SUCCESS, opcode), "{wc:?}");
        assert_eq!(wc.qpn, self.qp.qpn);
        wc
    }

    fn equals(&mut self, offset: u64, len: u64, seed: u64) {
        assert_eq!(self.agent.check(&self.mr, offset, len, seed).unwrap(), None);
    }
}

/// Two connected ends.
fn pair(transport: Transport) -> (End, End) {
    let (mut a, mut b) = (End::new(transport), End::new(transport));
    let (gid_a, gid_b) = (a.agent.gid(1).unwrap(), b.agent.gid(1).unwrap());
    let (psn_a, psn_b) = (0x00ff_fff0, 0x12_3456);
    let to_b = Path { sq_psn: psn_a, rq_psn: psn_b, ..Path::new(gid_b, b.qp.qpn) };
    let to_a = Path { sq_psn: psn_b, rq_psn: psn_a, ..Path::new(gid_a, a.qp.qpn) };
    a.agent.connect(a.qp, &to_b).unwrap();
    b.agent.connect(b.qp, &to_a).unwrap();
    (a, b)
}

#[test]
fn every_operation_of_a_reliable_connection_does_what_it_says() {
    let (mut a, mut b) = pair(Transport::Rc);
    a.agent.fill(&a.mr, 0, 100_000, 1).unwrap();

    // SEND of 100,000 bytes from two pieces into one receive. The pattern runs on, since the pieces follow one another.
    let receive = b.mr.sge(0, 200_000);
    b.agent.post_recv(b.qp, 10, &[receive]).unwrap();
    a.post(&Send::new(Operation::Send, 1, &[a.mr.sge(0, 60_000), a.mr.sge(60_000, 40_000)]));
    a.done(1, WcOpcode::SEND);
    assert_eq!(b.done(10, WcOpcode::RECV).byte_len, 100_000);
    b.equals(0, 100_000, 1);

    // SEND with immediate data, inline, solicited
    b.agent.post_recv(b.qp, 11, &[receive]).unwrap();
    a.post(&Send {
        inline: true,
        solicited: true,
        ..Send::new(Operation::SendImm(0xdead_0001), 2, &[a.mr.sge(8, 32)])
    });
    a.done(2, WcOpcode::SEND);
    let wc = b.done(11, WcOpcode::RECV);
    assert_eq!((wc.byte_len, wc.flags & Wc::WITH_IMM, wc.extra), (32, Wc::WITH_IMM, 0xdead_0001));

    // WRITE, to another offset: the same bytes
    a.post(&Send::new(Operation::Write(b.remote(300_000)), 3, &[a.mr.sge(0, 5000)]));
    a.done(3, WcOpcode::RDMA_WRITE);
    let hash = a.agent.hash(&a.mr, 0, 5000).unwrap();
    assert_eq!(b.agent.hash(&b.mr, 300_000, 5000).unwrap(), hash);
    let mut bytes = vec![0; 5000];
    rxe_rig::pattern::fill(&mut bytes, 0, 1);
    assert_eq!(rxe_rig::pattern::hash(&bytes), hash, "the agent's pattern is ours");

    // WRITE with immediate data takes a receive without memory
    b.agent.post_recv(b.qp, 12, &[]).unwrap();
    a.post(&Send::new(Operation::WriteImm(b.remote(400_000), 7), 4, &[a.mr.sge(0, 10)]));
    a.done(4, WcOpcode::RDMA_WRITE);
    let wc = b.done(12, WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!((wc.byte_len, wc.extra), (10, 7));

    // READ
    b.agent.fill(&b.mr, 500_000, 70_000, 2).unwrap();
    a.post(&Send::new(Operation::Read(b.remote(500_000)), 5, &[a.mr.sge(500_000, 70_000)]));
    assert_eq!(a.done(5, WcOpcode::RDMA_READ).byte_len, 70_000);
    a.equals(500_000, 70_000, 2);

    // Atomics give back what was there
    b.agent.write(&b.mr, 600_000, &40u64.to_le_bytes()).unwrap();
    let result = a.mr.sge(600_000, 8);
    a.post(&Send::new(Operation::FetchAdd { at: b.remote(600_000), add: 2 }, 6, &[result]));
    a.done(6, WcOpcode::FETCH_ADD);
    assert_eq!(a.agent.read_u64(&a.mr, 600_000).unwrap(), 40);
    let swap = |compare| Operation::CompareSwap { at: b.remote(600_000), compare, swap: 99 };
    let (right, wrong) = (swap(42), swap(1));
    a.post(&Send::new(right, 7, &[result]));
    a.done(7, WcOpcode::COMP_SWAP);
    assert_eq!(a.agent.read_u64(&a.mr, 600_000).unwrap(), 42);
    a.post(&Send { fence: true, ..Send::new(wrong, 8, &[result]) });
    a.done(8, WcOpcode::COMP_SWAP);
    assert_eq!(a.agent.read_u64(&a.mr, 600_000).unwrap(), 99);
    assert_eq!(b.agent.read_u64(&b.mr, 600_000).unwrap(), 99);

    // Many at once, each 100 bytes further on
    a.post(&Send {
        count: 50,
        stride: 100,
        remote_stride: 100,
        ..Send::new(Operation::Write(b.remote(700_000)), 100, &[a.mr.sge(0, 100)])
    });
    let ids: Vec<_> = a.agent.poll(a.cq, 50, LIMIT).unwrap().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (100..150).collect::<Vec<_>>());
    assert_eq!(b.agent.hash(&b.mr, 700_000, 5000).unwrap(), hash);

    let (state, _) = a.agent.qp_state(a.qp).unwrap();
    assert_eq!(state, "rts");
}

#[test]
fn a_window_is_reached_until_it_is_invalidated() {
    let (mut a, mut b) = pair(Transport::Rc);
    let window = b.agent.mw(2).unwrap();
    let rkey = b.agent.bind_type2(b.qp, &window, 20, (&b.mr, 4096, 4096), "remote_write,remote_read").unwrap();
    b.done(20, WcOpcode::BIND_MW);
    a.agent.fill(&a.mr, 0, 1000, 3).unwrap();
    let through = Remote { addr: b.mr.addr + 4096, rkey };
    a.post(&Send::new(Operation::Write(through), 1, &[a.mr.sge(0, 1000)]));
    a.done(1, WcOpcode::RDMA_WRITE);
    assert_eq!(b.agent.hash(&b.mr, 4096, 1000).unwrap(), a.agent.hash(&a.mr, 0, 1000).unwrap());

    b.agent.post_recv(b.qp, 21, &[b.mr.sge(0, 64)]).unwrap();
    a.post(&Send::new(Operation::SendInv(rkey), 2, &[a.mr.sge(0, 16)]));
    a.done(2, WcOpcode::SEND);
    let wc = b.done(21, WcOpcode::RECV);
    assert_ne!(wc.flags & (Wc::WITH_INV | Wc::WITH_INV_OF_RXE), 0, "{wc:?}");
    assert_eq!(wc.extra, rkey);
    a.post(&Send::new(Operation::Write(through), 3, &[a.mr.sge(0, 8)]));
    let wc = a.wc();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::REM_ACCESS_ERR));
    assert_eq!(a.agent.qp_state(a.qp).unwrap().0, "err");
}

#[test]
fn a_wrong_key_is_refused_and_what_follows_is_flushed() {
    let (mut a, mut b) = pair(Transport::Rc);
    let wrong = Remote { rkey: b.mr.rkey ^ 0x5500, ..b.remote(0) };
    a.post(&Send::new(Operation::Write(wrong), 1, &[a.mr.sge(0, 8)]));
    assert_eq!(a.wc().status, WcStatus::REM_ACCESS_ERR);
    a.post(&Send::new(Operation::Send, 2, &[a.mr.sge(0, 8)]));
    assert_eq!(a.wc().status, WcStatus::WR_FLUSH_ERR);
    b.equals_zero();
}

impl End {
    fn equals_zero(&mut self) {
        assert_eq!(self.agent.read(&self.mr, 0, 64).unwrap(), [0; 64]);
    }
}

#[test]
fn an_unreliable_connection_sends_and_writes() {
    let (mut a, mut b) = pair(Transport::Uc);
    a.agent.fill(&a.mr, 0, 9000, 4).unwrap();
    b.agent.post_recv(b.qp, 1, &[b.mr.sge(0, 9000)]).unwrap();
    a.post(&Send::new(Operation::Send, 1, &[a.mr.sge(0, 9000)]));
    a.done(1, WcOpcode::SEND);
    assert_eq!(b.done(1, WcOpcode::RECV).byte_len, 9000);
    b.equals(0, 9000, 4);
}

#[test]
fn a_datagram_brings_its_grh_and_its_sender() {
    let (mut a, mut b) = (End::new(Transport::Ud), End::new(Transport::Ud));
    a.agent.ready_datagram(a.qp, 5).unwrap();
    b.agent.ready_datagram(b.qp, 6).unwrap();
    for index in 0..3 {
        let gid = b.agent.gid(index).unwrap();
        let ah = a.agent.ah(&gid, index as u8).unwrap();
        b.agent.post_recv(b.qp, 1, &[b.mr.sge(0, 1064)]).unwrap();
        let to = Some((ah, b.qp.qpn, QKEY));
        a.post(&Send { to, ..Send::new(Operation::SendImm(index), 1, &[a.mr.sge(0, 1024)]) });
        a.done(1, WcOpcode::SEND);
        let wc = b.done(1, WcOpcode::RECV);
        assert_eq!((wc.byte_len, wc.src_qp, wc.extra, wc.flags & Wc::WITH_GRH), (1064, a.qp.qpn, index, Wc::WITH_GRH));
    }
}

#[test]
fn a_shared_receive_queue_serves_its_queue_pairs() {
    let (mut a, mut b) = (End::new(Transport::Rc), End::new(Transport::Rc));
    let srq = b.agent.srq(64, 1).unwrap();
    let options = QpOptions { srq: Some(srq), ..QpOptions::new(Transport::Rc, b.cq) };
    b.qp = b.agent.qp(&options).unwrap();
    let gid = b.agent.gid(1).unwrap();
    a.agent.connect(a.qp, &Path::new(gid, b.qp.qpn)).unwrap();
    b.agent.connect(b.qp, &Path::new(gid, a.qp.qpn)).unwrap();
    b.agent.post_srq_recv(srq, 30, &[b.mr.sge(0, 100)]).unwrap();
    a.post(&Send::new(Operation::Send, 1, &[a.mr.sge(0, 100)]));
    a.done(1, WcOpcode::SEND);
    b.done(30, WcOpcode::RECV);
}

#[test]
fn completion_events_come_when_asked_for() {
    let (mut a, mut b) = (End::new(Transport::Rc), End::new(Transport::Rc));
    b.cq = b.agent.cq_with_events(64).unwrap();
    b.qp = b.agent.qp(&QpOptions::new(Transport::Rc, b.cq)).unwrap();
    let gid = b.agent.gid(1).unwrap();
    a.agent.connect(a.qp, &Path::new(gid, b.qp.qpn)).unwrap();
    b.agent.connect(b.qp, &Path::new(gid, a.qp.qpn)).unwrap();
    b.agent.post_recvs(b.qp, 1, b.mr.sge(0, 100), 2, 100).unwrap();
    b.agent.arm(b.cq, true).unwrap();
    a.post(&Send::new(Operation::Send, 1, &[a.mr.sge(0, 100)]));
    b.done(1, WcOpcode::RECV);
    assert!(!b.agent.event(b.cq, Duration::from_millis(500)).unwrap(), "not solicited");
    a.post(&Send { solicited: true, ..Send::new(Operation::Send, 2, &[a.mr.sge(0, 100)]) });
    assert!(b.agent.event(b.cq, LIMIT).unwrap());
}

#[test]
fn what_cannot_be_done_is_answered_and_the_session_goes_on() {
    let mut agent = lab().agent(0).unwrap();
    let wrong = [
        "nonsense",
        "",
        "mr",
        "mr x local_write",
        "mr 10 no_such_access",
        "mr 4096 -1",
        "fill 0 0 1 1",
        "qp rc 1 1 1 0",
        "qp xx 1 1 1 1",
        "poll 9 1 1",
        "gid x",
        "destroy qp 0",
        "destroy nothing 0",
        "write 0 0 zz",
        "post_send 0 send",
        "ah 12",
        "cq 99999999999999999999",
    ];
    for line in wrong {
        let error = agent.command(line).expect_err(line).to_string();
        assert!(error.contains("err "), "{line}: {error}");
    }
    let mr = agent.mr(100, "local_write").unwrap();
    for line in ["read 0 90 20", "fill 0 18446744073709551615 2 1", "post_send 0 send sge=0:0", "check 0 0 101 1"] {
        agent.command(line).expect_err(line);
    }
    // Both ends of an error's way: the kernel's own answer has its errno.
    let error = agent.command("mr 4096 remote_write").expect_err("remote write without local write");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    agent.fill(&mr, 0, 100, 9).unwrap();
    agent.write(&mr, 50, &[0xff, 0xff]).unwrap();
    let difference = agent.check(&mr, 40, 60, 9).unwrap().expect("one that was made");
    assert_eq!((difference.at, difference.have), (50, 0xff));
    agent.dereg(&mr).unwrap();
    agent.check(&mr, 0, 50, 9).unwrap();
    agent.destroy("mr", mr.handle).unwrap();
}
