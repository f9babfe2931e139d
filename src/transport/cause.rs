use std::fmt;

/// Why a request failed, as far as its queue pair can tell: the vendor's part of a completion (`vendor_err`).
///
/// The upper four bits of a code are the status that it explains, so that no two statuses share a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// The peer's NAK says that the request is invalid: of an operation or length that it does not take.
    InvalidRequest = 0x91,
    /// The peer's NAK says that the R_Key, the range or the rights do not allow the access.
    AccessRefused = 0xa1,
    /// The peer's NAK says that it failed on the request by its own fault.
    PeerFault = 0xb1,
    /// The peer has never answered a packet.
    NeverAnswered = 0xc1,
    /// The peer answered earlier requests, and then no more.
    AnswersStopped = 0xc2,
    /// The peer answered requests of at most [`SMALL_BYTES`](Self::SMALL_BYTES), and never a larger one.
    LargeUnanswered = 0xc3,
    /// The peer answered earlier requests, and then no more on any of several paths.
    PathsDark = 0xc4,
    /// The peer answered each time that it has no receive request.
    NotReady = 0xd1,
}

impl Cause {
    /// All causes, by code.
    pub const ALL: [Cause; 8] = [
        Cause::InvalidRequest,
        Cause::AccessRefused,
        Cause::PeerFault,
        Cause::NeverAnswered,
        Cause::AnswersStopped,
        Cause::LargeUnanswered,
        Cause::PathsDark,
        Cause::NotReady,
    ];

    /// Upper bound on the payload that every path carries: that of path MTU 1024, which fits into Ethernet frames of
    /// 1500 bytes.
    pub const SMALL_BYTES: u32 = 1024;

    /// The number that programs see as `vendor_err`.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The cause of that number.
    pub fn from_code(code: u32) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.code() == code)
    }
}

impl fmt::Display for Cause {
    /// What was seen, and what a person can look at.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::InvalidRequest => {
                "the peer refused the request as invalid: it expects another operation, or has receive requests for \
                 shorter messages"
            }
            Cause::AccessRefused => {
                "the peer refused the access to its memory: the R_Key, the address and length, or the rights are wrong"
            }
            Cause::PeerFault => "the peer failed on the request by its own fault: its receive request names bad memory",
            Cause::NeverAnswered => {
                "the peer never answered: is UDP port 4791 open in both directions, and does the path carry packets of \
                 the path MTU?"
            }
            Cause::AnswersStopped => {
                "the peer answered, and then no more: its program ended, its queue pair is in the error state, or the \
                 path is down"
            }
            Cause::LargeUnanswered => {
                "the peer answers packets of up to 1024 bytes and no larger ones: the path is too small for the path \
                 MTU; use 1024"
            }
            Cause::PathsDark => {
                "all paths are dark, none is answered any more: are all interfaces' networks up, and is the peer's queue \
                 pair not in the error state?"
            }
            Cause::NotReady => {
                "the peer had no receive request each time: it must post more, or earlier, or RNR retries be more"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_of_one_cause() {
        for cause in Cause::ALL {
            assert_eq!(Cause::from_code(cause.code()), Some(cause));
        }
        assert_eq!(Cause::from_code(0), None);
    }
}
