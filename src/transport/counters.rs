/// What happened, as numbers; the names are rxe's where it has one (`rdma statistic show`, rxe_hw_counters.c).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they count; the less obvious ones say more
pub struct Counters {
    pub sent_pkts: u64,
    pub rcvd_pkts: u64,
    pub duplicate_request: u64,
    pub out_of_seq_request: u64,
    /// RNR NAKs received.
    pub rcvd_rnr_err: u64,
    /// RNR NAKs sent.
    pub send_rnr_err: u64,
    /// NAKs for a sequence error received.
    pub rcvd_seq_err: u64,
    /// Times that the requester went back to send again, for whatever reason.
    pub completer_retry: u64,
    pub retry_exceeded_err: u64,
    pub retry_rnr_exceeded_err: u64,
    /// Requests whose gather entries could not be read.
    pub send_err: u64,
    /// Frames that are no RoCE v2 at all, or whose lengths cannot be.
    pub malformed: u64,
    pub bad_icrc: u64,
    pub bad_ip_checksum: u64,
    pub unknown_qpn: u64,
    pub bad_tver: u64,
    /// Reserved opcodes, and those of another transport service than the queue pair's.
    pub bad_opcode: u64,
    pub bad_p_key: u64,
    /// Packets from or to an address that is not the queue pair's.
    pub wrong_address: u64,
    /// Packets for a queue pair whose state does not take them.
    pub wrong_state: u64,
    /// Answers to nothing in flight: late, duplicate, or invented.
    pub stray_response: u64,
    /// Requests dropped because their answers could not be kept.
    pub answer_overflow: u64,
    pub rcvd_cnp: u64,
    /// Packets that were written but too long for the link's buffer.
    pub too_long: u64,
}

impl Counters {
    /// All of them, by name.
    pub fn list(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent_pkts", self.sent_pkts),
            ("rcvd_pkts", self.rcvd_pkts),
            ("duplicate_request", self.duplicate_request),
            ("out_of_seq_request", self.out_of_seq_request),
            ("rcvd_rnr_err", self.rcvd_rnr_err),
            ("send_rnr_err", self.send_rnr_err),
            ("rcvd_seq_err", self.rcvd_seq_err),
            ("completer_retry", self.completer_retry),
            ("retry_exceeded_err", self.retry_exceeded_err),
            ("retry_rnr_exceeded_err", self.retry_rnr_exceeded_err),
            ("send_err", self.send_err),
            ("malformed", self.malformed),
            ("bad_icrc", self.bad_icrc),
            ("bad_ip_checksum", self.bad_ip_checksum),
            ("unknown_qpn", self.unknown_qpn),
            ("bad_tver", self.bad_tver),
            ("bad_opcode", self.bad_opcode),
            ("bad_p_key", self.bad_p_key),
            ("wrong_address", self.wrong_address),
            ("wrong_state", self.wrong_state),
            ("stray_response", self.stray_response),
            ("answer_overflow", self.answer_overflow),
            ("rcvd_cnp", self.rcvd_cnp),
            ("too_long", self.too_long),
        ]
        .into_iter()
    }
}
