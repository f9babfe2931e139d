//! One connection at a time, with completion queues of its own.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use rxe_rig::agent::Cq;
use uroce::verbs::{
    Access, CompletionChannel, CompletionQueue, Data, Notify, Remote, SendOperation, SendRequest, State, WindowBinding,
};

use super::bench::{Bench, Done, RESULT, Request, Side, kind};
use super::connection::{Connection, Queues, Setup};
use super::operations::End;

/// Two connected queue pairs, ours and theirs, each with a completion queue for sends and one for receives.
pub struct Conversation<'a> {
    pub bench: &'a mut Bench,
    pub connection: Connection,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    channel: CompletionChannel,
    their_send_cq: Cq,
    their_receive_cq: Cq,
}

impl Bench {
    /// A connection between both ends, in the ready-to-send state.
    pub fn converse(&mut self, setup: &Setup) -> Conversation<'_> {
        let channel = CompletionChannel::new().unwrap();
        let send_cq = self.context().create_completion_queue(1024);
        let receive_cq = self.context().create_completion_queue_on(1024, &channel);
        let (their_send_cq, their_receive_cq) =
            (self.agent.cq(1024).unwrap(), self.agent.cq_with_events(1024).unwrap());
        let queues = Queues {
            send: &send_cq,
            receive: &receive_cq,
            srq: None,
            their_send: their_send_cq,
            their_receive: their_receive_cq,
            their_srq: None,
        };
        let connection = Connection::open(self, setup, &queues);
        Conversation { bench: self, connection, send_cq, receive_cq, channel, their_send_cq, their_receive_cq }
    }
}

impl Deref for Conversation<'_> {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        self.bench
    }
}

impl DerefMut for Conversation<'_> {
    fn deref_mut(&mut self) -> &mut Bench {
        self.bench
    }
}

impl Conversation<'_> {
    pub fn post(&mut self, side: Side, request: &Request) {
        self.connection.post(self.bench, side, request);
    }

    pub fn post_receive(&mut self, side: Side, wr_id: u64, local: &[(usize, usize)]) {
        self.connection.post_receive(self.bench, side, wr_id, local);
    }

    /// The next `count` completions of sends.
    pub fn sent(&mut self, side: Side, count: usize) -> Vec<Done> {
        match side {
            Side::Us => self.bench.ours_done(&self.send_cq, count),
            Side::Rxe => self.bench.theirs_done(self.their_send_cq, count),
        }
    }

    /// The next completions of sends of theirs: `count`, or those that come within `limit`.
    pub fn theirs_sent_within(&mut self, count: usize, limit: Duration) -> Vec<Done> {
        self.bench.theirs_done_within(self.their_send_cq, count, limit)
    }

    /// The next `count` completions of receives.
    pub fn received(&mut self, side: Side, count: usize) -> Vec<Done> {
        match side {
            Side::Us => self.bench.ours_done(&self.receive_cq, count),
            Side::Rxe => self.bench.theirs_done(self.their_receive_cq, count),
        }
    }

    /// How a request of ours ends.
    pub fn end_of_ours(&mut self, operation: SendOperation) -> End {
        let data = if matches!(operation, SendOperation::LocalInvalidate(_)) {
            Data::EMPTY
        } else {
            Data::Sges(self.our_sges(&[(RESULT, 8)]))
        };
        match self.connection.post_raw(SendRequest::new(1, operation, data)) {
            Err(_) => End::Refused,
            Ok(()) => End::Completed(self.sent(Side::Us, 1)[0].status),
        }
    }

    /// How a request of theirs ends, in the agent's words.
    pub fn end_of_theirs(&mut self, words: &str) -> End {
        let sge = if words.starts_with("local_inv") { String::new() } else { self.their_sge_words(RESULT, 8) };
        let line = format!(
            "post_send {} {words} wr_id=1 signaled{sge}{}",
            self.connection.their_qp.handle,
            self.connection.their_destination()
        );
        if let Err(error) = self.agent.command(&line) {
            assert!(error.errno().is_some(), "{line}: {error}");
            return End::Refused;
        }
        let (cq, limit) = (self.their_send_cq, Duration::from_secs(2));
        let done = self.agent.poll(cq, 1, limit).unwrap();
        done.first().map_or(End::Silence, |wc| End::Completed(wc.status.0))
    }

    /// Asks for a notification at the next solicited receive of an end.
    pub fn arm_solicited(&mut self, side: Side) {
        match side {
            Side::Us => self.receive_cq.request_notification(Notify::Solicited),
            Side::Rxe => self.bench.agent.arm(self.their_receive_cq, true).unwrap(),
        }
    }

    /// Whether a notification came within `limit`.
    pub fn notified(&mut self, side: Side, limit: Duration) -> bool {
        match side {
            Side::Us => self.channel.wait(limit).unwrap() > 0,
            Side::Rxe => self.bench.agent.event(self.their_receive_cq, limit).unwrap(),
        }
    }

    /// Makes a window in an end's region and binds it. Returns its key.
    pub fn bind_window(&mut self, side: Side, offset: usize, len: usize) -> u32 {
        let key = match side {
            Side::Us => {
                let mut window = self.bench.pd().allocate_window(uroce::verbs::WindowKind::Two);
                let (old, new_key) = (window.key(), window.next_key());
                let Remote { address, key: region } = self.region().remote(offset);
                let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
                let binding = WindowBinding { window: old, new_key, region, address, len: len as u64, access };
                self.connection
                    .qp
                    .post_send(SendRequest::new(900, SendOperation::BindWindow(binding), Data::EMPTY))
                    .unwrap();
                new_key.0
            }
            Side::Rxe => {
                let window = self.bench.agent.mw(2).unwrap();
                let range = (&self.bench.theirs().clone(), offset as u64, len as u64);
                self.bench
                    .agent
                    .bind_type2(self.connection.their_qp, &window, 900, range, "remote_write,remote_read")
                    .unwrap()
            }
        };
        let done = self.sent(side, 1)[0];
        assert_eq!((done.wr_id, done.status, done.kind), (900, 0, kind::BIND));
        key
    }

    /// No completion is left anywhere, and both queue pairs are ready to send.
    pub fn assert_healthy(&mut self) {
        assert!(self.send_cq.poll().is_none() && self.receive_cq.poll().is_none(), "completions too many at our end");
        for cq in [self.their_send_cq, self.their_receive_cq] {
            assert_eq!(self.bench.agent.poll(cq, 1, Duration::ZERO).unwrap(), [], "at the kernel's end");
        }
        assert_eq!(self.connection.qp.state(), State::ReadyToSend);
        assert_eq!(self.their_state(), "rts");
    }

    pub fn their_state(&mut self) -> String {
        self.bench.agent.qp_state(self.connection.their_qp).unwrap().0
    }

    pub fn destroy(self) {
        self.bench.agent.destroy("qp", self.connection.their_qp.handle).unwrap();
        for cq in [self.their_send_cq, self.their_receive_cq] {
            self.bench.agent.destroy("cq", cq.0).unwrap();
        }
    }
}
