use crate::wire::Qpn;

use super::srq::Srq;

/// An asynchronous event (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The queue pair went to the error state, and no completion can report why: its completion queue is in error.
    QueuePairFatal(Qpn),
    /// The peer's request was invalid and got a NAK; the queue pair went to the error state.
    RequestError(Qpn),
    /// The peer requested access to memory that it does not have, and got a NAK; the queue pair went to the error
    /// state.
    AccessError(Qpn),
    /// A completion queue of this queue pair lost a completion, its first. It is in error, and so are the queue pairs
    /// that complete into it.
    CompletionQueueOverflow(Qpn),
    /// The queue pair is in SQD, and everything that it had begun to send is complete.
    SendQueueDrained(Qpn),
    /// The shared receive queue holds fewer requests than its limit, which is now off.
    SrqLimit(Srq),
    /// The queue pair is in the error state, and takes no more requests from the shared receive queue.
    LastWqeReached(Qpn, Srq),
}
