#![allow(clippy::disallowed_methods, reason = "it waits for a peer in real time")]

use std::fmt;
use std::time::{Duration, Instant};

use uroce::verbs::{
    Cause, Completion, CompletionQueue, ConnectOptions, Data, Key, PathMtu, Peer, QpAttributes, Qpn, QueuePair, Remote,
    SendOperation, SendRequest, SgeList, State, Status,
};

use crate::tcp::PeerProgram;

/// A request that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedRequest {
    /// `send` or `receive`.
    pub what: &'static str,
    pub completion: Completion,
}

/// What is known of the peer beside its packets.
#[derive(Clone, Debug)]
pub struct Around {
    /// The peer's address.
    pub at: String,
    pub program: PeerProgram,
    /// Whether it is uroce, which has been compared terms with.
    pub is_uroce: bool,
    /// The path MTU of the connection.
    pub mtu: PathMtu,
}

/// What it takes to send a peer one more packet.
pub struct Probe<'a> {
    pub qp: &'a QueuePair,
    /// Where its completion comes.
    pub cq: &'a CompletionQueue,
    pub peer: Peer,
    /// How the queue pair was connected.
    pub ways: &'a ConnectOptions,
}

/// How long an answer to the packet without payload may take: some of its retransmissions.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Completion { qpn, status, .. } = self.completion;
        write!(f, "a {} request of queue pair {qpn} failed: {status}", self.what)?;
        match self.completion.cause {
            Some(cause) => write!(f, ", vendor error {:#x}", cause.code()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for FailedRequest {}

impl FailedRequest {
    /// Whether its packets, of messages of `message_bytes`, may be too large for the path, as far as the queue pair
    /// knows. The smallest path MTU is never too large.
    fn may_be_too_large(&self, message_bytes: usize, mtu: PathMtu) -> bool {
        let is_small = message_bytes.min(mtu.bytes()) <= PathMtu::Mtu256.bytes();
        self.completion.cause == Some(Cause::NeverAnswered) && !is_small
    }

    /// What failed, and why, in one line. When packets of messages of `message_bytes` may be too large for the path, and the
    /// peer's program is there, the peer is sent a small one by the failed queue pair's probe.
    pub fn explain<'a>(
        &self,
        around: &Around,
        message_bytes: usize,
        probe: impl FnOnce(Qpn) -> Option<Probe<'a>>,
    ) -> String {
        let is_of_use = around.program != PeerProgram::Ended && self.may_be_too_large(message_bytes, around.mtu);
        let probe = if is_of_use { probe(self.completion.qpn) } else { None };
        self.in_words(around, probe.map(|probe| probe.is_answered()))
    }

    /// `answers_small` is whether the peer answers a packet without payload; `None` when none was sent.
    fn in_words(&self, around: &Around, answers_small: Option<bool>) -> String {
        let why = self.why(around, answers_small);
        let is_guess = !around.is_uroce && self.completion.cause.is_some();
        let guess = if is_guess { "; are both given the same test, -s, -n, -q and -c?" } else { "" };
        format!("{self}: {why}{guess}")
    }

    fn why(&self, around: &Around, answers_small: Option<bool>) -> String {
        let Around { at, program, mtu, .. } = around;
        let Completion { status, cause, .. } = self.completion;
        match (status, cause) {
            // A flushed receive can be seen before the send request whose retries were in vain.
            (Status::RetryExceeded, _) | (Status::WrFlush, None) if *program == PeerProgram::Ended => {
                format!("the peer's program at {at} has ended, its TCP connection is closed: look at its output")
            }
            (_, Some(Cause::LargeUnanswered)) => too_small(at, *mtu),
            (_, Some(Cause::NeverAnswered)) if answers_small == Some(true) => too_small(at, *mtu),
            (_, Some(Cause::NeverAnswered)) if answers_small == Some(false) => format!(
                "nothing ever came back from {at}, to a small packet neither: is UDP port 4791 open in both directions?"
            ),
            (_, Some(Cause::AnswersStopped)) if *program == PeerProgram::Runs => format!(
                "the peer at {at} stopped answering, and its TCP connection is open: its queue pair is in the error \
                 state (look at its output), or the path is down"
            ),
            (_, Some(cause)) => cause.to_string(),
            (Status::WrFlush, None) => {
                "the queue pair went to the error state before: look at the peer's output".to_owned()
            }
            (Status::LocalLength, None) => "the peer's message is longer than this end's receive request".to_owned(),
            (Status::LocalAccess, None) => "the peer's request does not fit this end's memory".to_owned(),
            (Status::BadResponse, None) => "the peer's answer does not fit the request".to_owned(),
            (_, None) => "it is this end's fault".to_owned(),
        }
    }
}

/// The path carries small packets and no large ones.
fn too_small(at: &str, mtu: PathMtu) -> String {
    let try_next = match mtu {
        PathMtu::Mtu4096 | PathMtu::Mtu2048 => PathMtu::Mtu1024,
        PathMtu::Mtu1024 => PathMtu::Mtu512,
        _ => PathMtu::Mtu256,
    };
    let (mtu, try_next) = (mtu.bytes(), try_next.bytes());
    format!(
        "the path to {at} carries small packets and none of path MTU {mtu}: use -m {try_next} at both ends, or raise \
         the MTU on the way"
    )
}

impl Probe<'_> {
    /// Whether the peer answers a WRITE without payload, whatever its answer. Nothing may have arrived there before: the
    /// queue pair is connected once more, at the same packet number.
    fn is_answered(&self) -> bool {
        let Probe { qp, cq, peer, ways } = self;
        let attributes = QpAttributes { retry_count: Some(2), timeout: Some(14), ..ways.attributes };
        let ways = (*ways).clone().attributes(attributes);
        let is_ready = qp.modify(&QpAttributes { state: Some(State::Reset), ..Default::default() }).is_ok()
            && qp.init(&ways).is_ok()
            && qp.connect_with(peer, &ways).is_ok();
        let nowhere = SendOperation::Write(Remote { address: 0, key: Key(0) });
        let mut request = SendRequest::new(0, nowhere, Data::Sges(SgeList::default()));
        request.signaled = true;
        if !is_ready || qp.post_send(request).is_err() {
            return false;
        }
        let end = Instant::now() + ANSWER_LIMIT;
        while Instant::now() < end {
            match cq.poll() {
                Some(done) if done.qpn == qp.qpn() => return done.status != Status::RetryExceeded,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use uroce::verbs::CompletionKind;

    use super::*;

    fn failed(status: Status, cause: Option<Cause>) -> FailedRequest {
        let qp = Qpn::new(7);
        let completion = Completion {
            wr_id: 0,
            status,
            kind: CompletionKind::Send,
            byte_len: 0,
            immediate: None,
            invalidated: None,
            qpn: qp,
            source_qpn: qp,
            network_header: None,
            cause,
            time: uroce::verbs::Instant::ZERO,
        };
        FailedRequest { what: "send", completion }
    }

    #[test]
    fn a_peer_that_has_ended_explains_silence_and_no_nak() {
        let around = |program, is_uroce| Around { at: "10.0.0.1".to_owned(), program, is_uroce, mtu: PathMtu::Mtu4096 };
        let never = failed(Status::RetryExceeded, Some(Cause::NeverAnswered));
        for silent in [&never, &failed(Status::WrFlush, None)] {
            let said = silent.in_words(&around(PeerProgram::Ended, true), Some(true));
            assert!(said.contains("program at 10.0.0.1 has ended"), "{said}");
        }
        assert!(never.to_string().contains("0xc1"), "{never}");
        let said = never.in_words(&around(PeerProgram::Unknown, false), None);
        assert!(said.contains("never answered") && said.contains("same test, -s, -n, -q and -c?"), "{said}");
        let refused = failed(Status::RemoteAccess, Some(Cause::AccessRefused));
        let said = refused.in_words(&around(PeerProgram::Ended, true), None);
        assert!(said.contains("refused the access") && !said.contains("same test"), "{said}");
    }

    #[test]
    fn a_packet_of_the_smallest_path_mtu_is_never_too_large() {
        let never = failed(Status::RetryExceeded, Some(Cause::NeverAnswered));
        assert!(never.may_be_too_large(65536, PathMtu::Mtu4096) && never.may_be_too_large(257, PathMtu::Mtu1024));
        assert!(!never.may_be_too_large(256, PathMtu::Mtu4096) && !never.may_be_too_large(65536, PathMtu::Mtu256));
        let stopped = failed(Status::RetryExceeded, Some(Cause::AnswersStopped));
        assert!(!stopped.may_be_too_large(65536, PathMtu::Mtu4096));
    }

    #[test]
    fn the_size_to_try_is_one_that_the_path_may_carry() {
        for (mtu, words) in [
            (PathMtu::Mtu4096, "none of path MTU 4096: use -m 1024"),
            (PathMtu::Mtu1024, "none of path MTU 1024: use -m 512"),
            (PathMtu::Mtu512, "none of path MTU 512: use -m 256"),
        ] {
            let said = too_small("10.0.0.1", mtu);
            assert!(said.contains(words), "{said}");
        }
    }
}
