counters! {
    /// The numbers of what a connection manager saw and did.
    pub struct Counters {
        cm_sent,
        cm_received,
        /// Messages that were sent again because no answer came.
        cm_retransmitted,
        /// Messages that had come before.
        cm_duplicate,
        /// Datagrams to QP1 that are no message of connection management.
        cm_malformed,
        /// Messages that name no connection of ours, or come from another address than its peer's.
        cm_stray,
        /// Requests for a service that nobody listens for.
        cm_no_listener,
        /// Requests that were dropped: the listener's backlog, or the table of connections, was full.
        cm_backlog_full,
        /// Answers to strangers that were dropped, because too many waited to be sent.
        cm_answer_dropped,
    }
}
