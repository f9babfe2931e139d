use crate::wire::Qpn;

use super::srq::Srq;

/// Something that programs hear of asynchronously (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The queue pair went to the error state, and cannot report why by a completion: its completion queue is in error.
    QueuePairFatal(Qpn),
    /// The peer's request was invalid, and refused; the queue pair went to the error state.
    RequestError(Qpn),
    /// The peer asked for memory that it may not have, and was refused; the queue pair went to the error state.
    AccessError(Qpn),
    /// A completion queue of this queue pair lost a completion, its first: it is in error, and so are the queue pairs that complete
    /// into it.
    CompletionQueueOverflow(Qpn),
    /// Everything that the queue pair had begun to send is done; it was put into SQD.
    SendQueueDrained(Qpn),
    /// The shared receive queue holds fewer requests than its limit, which is now off.
    SrqLimit(Srq),
    /// The queue pair in error takes no more requests from the shared receive queue.
    LastWqeReached(Qpn, Srq),
}
