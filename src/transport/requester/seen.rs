use crate::transport::cause::Cause;
use crate::transport::completion::Status;

/// What the requester has seen of the peer when a request fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// An answer to any packet, a NAK included.
    pub an_answer: bool,
    /// An answer to a packet with more than [`Cause::SMALL_BYTES`] of payload.
    pub a_large_answer: bool,
    /// Whether packets of the failed request have more than that.
    pub is_large: bool,
    /// Whether there are several paths. Retransmissions took all of them.
    pub has_paths: bool,
}

impl Seen {
    /// The cause of a failure with that status; `None` where the status says all that is known.
    pub fn cause(self, status: Status) -> Option<Cause> {
        match status {
            Status::RemoteInvalidRequest => Some(Cause::InvalidRequest),
            Status::RemoteAccess => Some(Cause::AccessRefused),
            Status::RemoteOperation => Some(Cause::PeerFault),
            Status::RnrRetryExceeded => Some(Cause::NotReady),
            Status::RetryExceeded if !self.an_answer => Some(Cause::NeverAnswered),
            Status::RetryExceeded if self.is_large && !self.a_large_answer => Some(Cause::LargeUnanswered),
            Status::RetryExceeded if self.has_paths => Some(Cause::PathsDark),
            Status::RetryExceeded => Some(Cause::AnswersStopped),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_decides_on_the_cause() {
        let found = |status, seen: Seen| seen.cause(status).map(Cause::code);
        for (status, code) in [
            (Status::RemoteInvalidRequest, Some(0x91)),
            (Status::RemoteAccess, Some(0xa1)),
            (Status::RemoteOperation, Some(0xb1)),
            (Status::RnrRetryExceeded, Some(0xd1)),
            (Status::LocalProtection, None),
        ] {
            assert_eq!(found(status, Seen::default()), code);
        }
        let silence = |an_answer, is_large, a_large_answer, has_paths| {
            found(Status::RetryExceeded, Seen { an_answer, a_large_answer, is_large, has_paths })
        };
        assert_eq!(silence(false, true, false, true), Some(0xc1), "nothing was heard, whatever else holds");
        assert_eq!(silence(true, false, false, false), Some(0xc2));
        assert_eq!(silence(true, true, true, false), Some(0xc2));
        assert_eq!(silence(true, true, false, false), Some(0xc3));
        assert_eq!(silence(true, true, true, true), Some(0xc4));
    }
}
